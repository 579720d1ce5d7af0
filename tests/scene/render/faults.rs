//! What is missing or can't be is named, all of it at once, and nothing is printed.

use pinfold::scene::{Format, Slice, TrainingJob, render};

use super::render::{full, job, rendered};
use super::{AMOUNTS, example, plan};

fn refused(job: &TrainingJob) -> Vec<String> {
    let result = render(&plan(&example()), ("2", "2"), job, Format::Native, &Slice::default(), AMOUNTS);
    let faults = result.unwrap_err();
    faults.iter().map(str::to_owned).collect()
}

#[test]
fn everything_that_is_missing_is_named() {
    let faults = refused(&TrainingJob::default());
    let words = ["name is missing", "image is missing", "script (or command) is missing"];
    for word in words {
        assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:?}");
    }
    assert_eq!(faults.len(), words.len());
    // A command for all roles is enough.
    let mut job = full();
    (job.script, job.args) = (None, Vec::new());
    assert_eq!(refused(&job).len(), 1);
    job.command = vec!["/train".to_owned()];
    assert!(!rendered(&job, "1", "1", Format::Native).objects.is_empty());
}

#[test]
fn what_can_not_be_is_named() {
    let base = "name: a\nimage: i\nscript: s\n";
    for (more, words) in [
        ("name: A_b", "can't be part of a host's name"),
        ("name: 1a", "can't be part of a host's name"),
        (&*format!("name: {}", "a".repeat(60)), "is too long"),
        ("namespace: a_b", "namespace \"a_b\" can't be a name"),
        ("image: 'a b'", "an image's name has no blanks"),
        ("args: ['--w=$(WORKER_HOST)']", "there is no variable WORKER_HOST; write $$(WORKER_HOST)"),
        ("args: ['$(DATA_DIR)']", "there is no data folder"),
        ("args: ['$(CHIEF_HOSTS)']", "the case has no chief"),
        ("args: ['$(TF_CONFIG)']", "there is no variable TF_CONFIG"),
        ("env: {PS_HOSTS: a}", "PS_HOSTS is set for each task by Pinfold"),
        ("env: {A: '$(B)', B: x}", "env.A: $(B) would stay as it is"),
        ("env: {'a=b': x}", "can't be a variable's name"),
        ("args: [\"a\\0b\"]", "a zero byte"),
        ("data: {}", "data: say where it is"),
        ("data: {claim: a, hostPath: /x}", "either a claim or a hostPath"),
        ("data: {hostPath: x}", "data.hostPath: \"x\": write a folder from / on"),
        ("data: {hostPath: /a/../etc}", "without '..'"),
        ("data: {claim: a, path: 'b:/c'}", "data.path"),
        ("data: {size: ten}", "data.size: \"ten\""),
        ("data: {claim: a, storageClass: b}", "are for a new claim"),
        ("data: {size: 1Gi, accessMode: RWX}", "write one of ReadWriteMany"),
        ("data: {claim: a, path: /x}\nlog: {claim: b, path: /x}", "have the same path"),
        ("roles: {chief: {}}", "scene 2 case 2 has no task of this role"),
        (
            "pin: true",
            "worker is to be pinned, and 300m is no whole number of CPUs; write roles: {worker: {limits: {cpu: 1}}}",
        ),
        (
            "roles: {worker: {requests: {cpu: 3}, limits: {cpu: 2}}}",
            "the cpu request 3 is more than the limit 2",
        ),
        ("roles: {worker: {limits: {cpu: two}}}", "worker: cpu \"two\""),
        ("imagePullSecrets: [\"harborsecret'\"]", "can't be a Secret's name"),
    ] {
        let key = more.split(':').next().unwrap();
        let lines: Vec<&str> = base.lines().filter(|line| !line.starts_with(&format!("{key}:"))).collect();
        let faults = refused(&job(&format!("{}\n{more}\n", lines.join("\n"))));
        assert!(faults.iter().any(|fault| fault.contains(words)), "{more}: {faults:?}");
    }
}

#[test]
fn a_file_of_parameters_has_lines() {
    for (text, line, words) in [
        ("name: a\nimagee: b\n", Some(2), "did you mean image?"),
        ("name: a\nenv:\n  STEPS: 100\n", Some(3), "write it in quotes: \"100\""),
        ("name: a\nport: 70000\n", Some(2), "from 1 to 65535"),
        ("name: a\nroles:\n  ps: {limit: {cpu: 2}}\n", Some(3), "did you mean limits?"),
        ("command: sh run.sh\n", Some(1), "write a list"),
        ("pin: maybe\n", Some(1), "true or false"),
    ] {
        let findings = TrainingJob::read(text, "job.yaml").unwrap().unwrap_err();
        assert_eq!(findings[0].place.line, line, "{text}: {findings:?}");
        assert!(findings[0].to_string().contains(words), "{text}: {}", findings[0]);
    }
    for text in ["", "# nothing\n", "a: [", "name: a\n---\nname: b\n"] {
        assert!(TrainingJob::read(text, "job.yaml").is_err(), "{text:?}");
    }
    for text in ["- a\n", "text\n", "7\n"] {
        assert!(TrainingJob::read(text, "job.yaml").is_ok_and(|read| read.is_err()), "{text:?}");
    }
    // As in the API, null is nothing.
    assert_eq!(job("name: a\nimage:\n"), job("name: a\n"));
}

#[test]
fn what_may_surprise_is_told() {
    let told = |text: &str| {
        rendered(&job(&format!("name: a\nimage: i\nscript: s\n{text}")), "2", "1", Format::Native).warnings
    };
    assert_eq!(told(""), Vec::<String>::new(), "the plan says pin for ps and pin: false for workers");
    let warned = told("roles: {worker: {requests: {cpu: 1}, limits: {cpu: 2, memory: 8Gi}, pin: true}}");
    assert!(warned.iter().any(|one| one.contains("its cpu request is raised to the limit")), "{warned:?}");
    assert_eq!(warned.len(), 2, "and memory's");
    let mut undecided = plan(&example());
    undecided.spec.roles.get_mut("worker").unwrap().pin = None;
    let job = job("name: a\nimage: i\nscript: s\n");
    let rendered = render(&undecided, ("2", "1"), &job, Format::Native, &Slice::default(), AMOUNTS).unwrap();
    assert_eq!(rendered.warnings.len(), 1);
    assert!(rendered.warnings[0].contains("tasks of role worker get no CPUs of their own"));
}
