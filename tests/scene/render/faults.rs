//! All missing and impossible settings are named at once, and nothing is printed.

use pinfold::experiment::{Slice, TrainingJob, WorkloadFormat, render};

use super::render::{FORMATS, full, job, rendered, request};
use super::{example, plan};

fn refused(job: &TrainingJob) -> Vec<String> {
    let result = render(&request(
        &plan(&example()),
        ("2", "2"),
        job,
        WorkloadFormat::Native,
        &Slice::default(),
    ));
    let faults = result.unwrap_err();
    faults.iter().map(str::to_owned).collect()
}

#[test]
fn everything_that_is_missing_is_named() {
    let faults = refused(&TrainingJob::default());
    let words = [
        "name is missing",
        "image is missing",
        "script (or command) is missing",
    ];
    for word in words {
        assert!(
            faults.iter().any(|fault| fault.contains(word)),
            "{word}: {faults:?}"
        );
    }
    assert_eq!(faults.len(), words.len());
    // A command for all roles is enough.
    let mut job = full();
    (job.script, job.args) = (None, Vec::new());
    assert_eq!(refused(&job).len(), 1);
    job.command = vec!["/train".to_owned()];
    assert!(
        !rendered(&job, "1", "1", WorkloadFormat::Native)
            .objects
            .is_empty()
    );
}

#[test]
fn a_case_without_tasks_is_refused() {
    let without = example().replace(", perNode: {worker: 10, ps: 1}", "");
    let job = full();
    for format in FORMATS {
        let result = render(&request(
            &plan(&without),
            ("1", "1"),
            &job,
            format,
            &Slice::default(),
        ));
        let faults = result.unwrap_err().to_string();
        assert!(
            faults.contains("case 1 of scene 1 in plan ps-locality has no tasks")
                && faults.contains("perNode"),
            "{faults}"
        );
    }
}

#[test]
fn impossible_jobs_are_refused_with_the_reason() {
    let base = "name: a\nimage: i\nscript: s\n";
    for (more, words) in [
        ("name: A_b", "can't be part of a host's name"),
        ("name: 1a", "can't be part of a host's name"),
        (&*format!("name: {}", "a".repeat(60)), "is too long"),
        ("namespace: a_b", "namespace \"a_b\" can't be a name"),
        (
            "namespace: a.b",
            "namespace \"a.b\" can't be a name: use lower-case letters, digits and '-', without '.'",
        ),
        (
            &*format!("namespace: {}", "a".repeat(64)),
            "can't be a name: 64 characters are more than the limit 63",
        ),
        ("image: 'a b'", "the name of the image contains a space"),
        (
            "args: ['--w=$(WORKER_HOST)']",
            "there is no variable WORKER_HOST; write $$(WORKER_HOST)",
        ),
        ("args: ['$(DATA_DIR)']", "the job has no data folder"),
        ("args: ['$(CHIEF_HOSTS)']", "the case has no chief"),
        ("args: ['$(TF_CONFIG)']", "there is no variable TF_CONFIG"),
        (
            "env: {PS_HOSTS: a}",
            "PS_HOSTS is set for each task by Pinfold",
        ),
        (
            "env: {A: '$(B)', B: x}",
            "env.A: Kubernetes would not expand $(B)",
        ),
        ("env: {'a=b': x}", "can't be a variable's name"),
        ("env: {1A: x}", "it begins with a digit"),
        ("roles: {ps: {env: {'9': x}}}", "it begins with a digit"),
        (
            "command: [run]\nroles: {ps: {command: []}}",
            "roles.ps.command is an empty list",
        ),
        ("args: [\"a\\0b\"]", "a zero byte"),
        ("data: {}", "data: the folder has no volume"),
        (
            "data: {claim: a, hostPath: /x}",
            "either a claim or a hostPath",
        ),
        (
            "data: {hostPath: x}",
            "data.hostPath: \"x\": write an absolute path",
        ),
        ("data: {hostPath: /a/../etc}", "without '..'"),
        ("data: {claim: a, path: 'b:/c'}", "data.path"),
        ("data: {size: ten}", "data.size: \"ten\""),
        ("data: {claim: a, storageClass: b}", "are for a new claim"),
        (
            "data: {size: 1Gi, accessMode: RWX}",
            "write one of ReadWriteMany",
        ),
        (
            "data: {claim: a, path: /x}\nlog: {claim: b, path: /x}",
            "have the same path",
        ),
        (
            "data: {claim: a, path: /x}\nlog: {claim: b, path: /x/}",
            "have the same path",
        ),
        (
            "data: {claim: a, path: /x/y}\nlog: {claim: b, path: //x/./y}",
            "have the same path",
        ),
        ("data: {claim: a, path: //}", "data.path"),
        ("data: {claim: a, path: /x/../y}", "data.path"),
        (
            "data: {claim: c}\nlog: {claim: c}",
            "data and log are the same claim, c",
        ),
        (
            "data: {size: 1Gi}\nlog: {claim: a-data}",
            "data and log are the same claim, a-data",
        ),
        (
            "roles: {chief: {}}",
            "scene 2 case 2 has no task of this role",
        ),
        (
            "roles: {worker: {limits: {cpu: 300m}, pin: true}}",
            "worker is to be pinned, but 300m is not a whole number of CPUs; write roles: {worker: {limits: {cpu: 1}}}",
        ),
        (
            "roles: {worker: {requests: {cpu: 3}, limits: {cpu: 2}}}",
            "the cpu request 3 is more than the limit 2",
        ),
        (
            "roles: {worker: {limits: {cpu: two}}}",
            "worker: cpu \"two\"",
        ),
        (
            "imagePullSecrets: [\"harborsecret'\"]",
            "can't be a Secret's name",
        ),
    ] {
        let key = more.split(':').next().unwrap();
        let lines: Vec<&str> = base
            .lines()
            .filter(|line| !line.starts_with(&format!("{key}:")))
            .collect();
        let faults = refused(&job(&format!("{}\n{more}\n", lines.join("\n"))));
        assert!(
            faults.iter().any(|fault| fault.contains(words)),
            "{more}: {faults:?}"
        );
    }
}

#[test]
fn paths_and_claims_that_differ_are_no_fault() {
    let job = job(
        "name: a\nimage: i\nscript: s\ndata: {claim: c, path: /x}\nlog: {size: 1Gi, path: /x/log}\n",
    );
    assert!(
        !rendered(&job, "1", "1", WorkloadFormat::Native)
            .objects
            .is_empty()
    );
}

#[test]
fn a_claim_for_one_node_is_told_of_where_there_are_more() {
    for (mode, case, words) in [
        ("ReadWriteMany", "2", None),
        ("ReadWriteOnce", "1", None),
        (
            "ReadWriteOnce",
            "2",
            Some("mounted only on one node, but the tasks are on 5 nodes"),
        ),
        (
            "ReadWriteOncePod",
            "1",
            Some("mounted only by one pod, but the tasks are 11 pods"),
        ),
    ] {
        let text = format!(
            "name: a\nimage: i\nscript: s\npin: false\nlog: {{size: 1Gi, accessMode: {mode}}}\n"
        );
        let warnings = rendered(&job(&text), "1", case, WorkloadFormat::Native).warnings;
        assert_eq!(warnings.len(), usize::from(words.is_some()), "{warnings:?}");
        assert!(
            words.is_none_or(|words| warnings[0].contains(words)),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_group_that_nobody_makes_or_reads_is_told_of() {
    let gang_warnings = |gang: &str, format| {
        let text = format!("name: a\nimage: i\nscript: s\npin: false\ngang: {gang}\n");
        rendered(&job(&text), "1", "1", format).warnings
    };
    let about_gang = |warnings: Vec<String>| -> Vec<String> {
        warnings
            .into_iter()
            .filter(|one| one.contains("gang"))
            .collect()
    };
    for format in FORMATS {
        assert_eq!(
            about_gang(gang_warnings("{queue: q, group: a}", format)),
            Vec::<String>::new(),
            "{format:?}"
        );
        let other = about_gang(gang_warnings("{scheduler: other, group: a}", format));
        assert!(
            other.len() == 1 && other[0].contains("scheduler"),
            "{format:?}: {other:?}"
        );
        let grouped = about_gang(gang_warnings("{group: g}", format));
        let unused = matches!(format, WorkloadFormat::Volcano | WorkloadFormat::Tfjob);
        assert_eq!(
            grouped.len(),
            usize::from(unused),
            "{format:?}: {grouped:?}"
        );
        assert!(
            grouped
                .iter()
                .all(|one| one.starts_with("gang.group g is not used")),
            "{grouped:?}"
        );
    }
    let native = gang_warnings("{scheduler: other, queue: q}", WorkloadFormat::Native);
    assert!(
        native[0].contains("create the group for 11 pods, with its queue"),
        "{native:?}"
    );
}

/// etcd accepts requests up to 1.5 MiB, and the API server adds fields to the sent object.
#[test]
fn an_object_that_no_api_server_stores_is_refused() {
    let size = |objects: &[serde_json::Value]| {
        objects
            .iter()
            .map(|one| one.to_string().len())
            .max()
            .unwrap()
    };
    let mut job = full();
    for format in FORMATS {
        let made = rendered(&job, "2", "4", format).objects;
        assert!(size(&made) < 900_000, "{format:?}: {}", size(&made));
    }
    job.env.insert("LONG".to_owned(), "x".repeat(4_000));
    for format in [WorkloadFormat::Volcano, WorkloadFormat::Jobset] {
        let refused = render(&request(
            &plan(&example()),
            ("2", "4"),
            &job,
            format,
            &Slice::default(),
        ))
        .unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("KiB as JSON") && refused.contains("render the job as native"),
            "{refused}"
        );
    }
    assert!(size(&rendered(&job, "2", "4", WorkloadFormat::Native).objects) < 64 << 10);
}

#[test]
fn a_file_of_parameters_has_lines() {
    for (text, line, words) in [
        ("name: a\nimagee: b\n", Some(2), "did you mean image?"),
        (
            "name: a\nenv:\n  STEPS: 100\n",
            Some(3),
            "write it in quotes: \"100\"",
        ),
        ("name: a\nport: 70000\n", Some(2), "from 1 to 65535"),
        (
            "name: a\nroles:\n  ps: {limit: {cpu: 2}}\n",
            Some(3),
            "did you mean limits?",
        ),
        ("command: sh run.sh\n", Some(1), "write a list"),
        ("pin: maybe\n", Some(1), "true or false"),
    ] {
        let findings = TrainingJob::read(text, "job.yaml").unwrap().unwrap_err();
        assert_eq!(findings[0].place.line, line, "{text}: {findings:?}");
        assert!(
            findings[0].to_string().contains(words),
            "{text}: {}",
            findings[0]
        );
    }
    for text in ["", "# nothing\n", "a: [", "name: a\n---\nname: b\n"] {
        assert!(TrainingJob::read(text, "job.yaml").is_err(), "{text:?}");
    }
    for text in ["- a\n", "text\n", "7\n"] {
        assert!(
            TrainingJob::read(text, "job.yaml").is_ok_and(|read| read.is_err()),
            "{text:?}"
        );
    }
    // As in the API, null is nothing.
    assert_eq!(job("name: a\nimage:\n"), job("name: a\n"));
}

#[test]
fn surprising_settings_give_warnings() {
    let warnings = |text: &str| {
        rendered(
            &job(&format!("name: a\nimage: i\nscript: s\n{text}")),
            "2",
            "1",
            WorkloadFormat::Native,
        )
        .warnings
    };
    assert_eq!(
        warnings(""),
        Vec::<String>::new(),
        "the plan says pin for both roles"
    );
    let warned = warnings(
        "roles: {worker: {requests: {cpu: 1, memory: 4Gi}, limits: {cpu: 2, memory: 8Gi}}}",
    );
    assert!(
        warned
            .iter()
            .any(|one| one.contains("its cpu request is raised to the limit")),
        "{warned:?}"
    );
    assert_eq!(warned.len(), 2, "and memory's");
    let mut undecided = plan(&example());
    let worker = undecided.spec.roles.get_mut("worker").unwrap();
    (worker.pin, worker.limits) = (None, std::collections::BTreeMap::new());
    let job = job("name: a\nimage: i\nscript: s\n");
    let rendered = render(&request(
        &undecided,
        ("2", "1"),
        &job,
        WorkloadFormat::Native,
        &Slice::default(),
    ))
    .unwrap();
    assert_eq!(rendered.warnings.len(), 1);
    assert!(rendered.warnings[0].contains("tasks of role worker get no exclusive CPUs"));
}
