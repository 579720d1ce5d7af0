//! The ways of an experiment, and the values that a job takes by name.

use std::collections::BTreeMap;
use std::fs;

use pinfold::experiment::statistics::Way;
use pinfold::experiment::{
    Preset, RenderRequest, RunTag, Slice, TrainingJob, WorkloadFormat, render,
};
use pinfold::pod::{self, Policy};
use serde_json::{Value, json};

use super::render::{FORMATS, full, job, pods, printed, rendered, request};
use super::{example, here, plan};

/// The pods of a run, or why there is none.
fn run(job: &TrainingJob, way: Way, format: WorkloadFormat) -> Result<Vec<Value>, String> {
    let (plan, slice) = (plan(&example()), Slice::default());
    let tag = RunTag {
        experiment: "e".to_owned(),
        way,
        run: 1,
    };
    let request = RenderRequest {
        run: Some(&tag),
        ..request(&plan, ("1", "1"), job, format, &slice)
    };
    let rendered = render(&request).map_err(|faults| faults.to_string())?;
    Ok(rendered.objects)
}

/// The annotations and the resources of the pods, by role.
fn of_roles(objects: &[Value]) -> BTreeMap<String, (Value, Value)> {
    let pods = pods(objects).into_iter().map(|one| {
        let metadata = &one.template["metadata"];
        let role = metadata["labels"]["job"].as_str().unwrap().to_owned();
        let resources = one.template["spec"]["containers"][0]["resources"].clone();
        (role, (metadata["annotations"].clone(), resources))
    });
    pods.collect()
}

#[test]
fn a_way_decides_about_cpus_and_threads_and_nothing_else() {
    let job = job("{name: a, image: i, script: s}");
    let mut resources = Vec::new();
    for (way, expected) in Way::ALL.into_iter().zip([
        json!({"pinfold.io/cpus": "shared", "pinfold.io/threads": "off"}),
        json!({"pinfold.io/cpus": "shared"}),
        json!({"pinfold.io/cpus": "exclusive", "pinfold.io/threads": "off"}),
        json!({"pinfold.io/cpus": "exclusive"}),
    ]) {
        for format in [
            WorkloadFormat::Native,
            WorkloadFormat::Volcano,
            WorkloadFormat::Jobset,
        ] {
            let objects = run(&job, way, format).unwrap();
            let roles = of_roles(&objects);
            for role in ["ps", "worker"] {
                assert_eq!(roles[role].0, expected, "{format:?} {role} {}", way.name());
            }
            resources.push(
                roles
                    .into_iter()
                    .map(|(role, (_, resources))| (role, resources))
                    .collect::<BTreeMap<_, _>>(),
            );
        }
        // What the agent makes of the pods.
        let list = json!({"apiVersion": "v1", "kind": "List", "items": run(&job, way, WorkloadFormat::Native).unwrap()});
        let mut manifests = pod::Manifests::default();
        manifests.read(&list.to_string(), "list").unwrap();
        for pod in pod::recognized(manifests.pods().unwrap()).iter() {
            let granted = pod::entitlement(pod, &pod.containers[0], &Policy::default());
            assert_eq!(granted.cpus() > 0, way.exclusive, "{granted:?}");
            assert_eq!(
                pod.recognition().job.as_deref(),
                Some(&*format!("a-s1-c1-{}-r1", way.name()))
            );
        }
    }
    assert!(
        resources.iter().all(|one| *one == resources[0]),
        "requests and limits are the same in all ways"
    );
    assert_eq!(
        resources[0]["worker"]["requests"],
        resources[0]["worker"]["limits"]
    );
    // A TFJob has the same annotations in its templates.
    let tfjob = run(&job, Way::ALL[0], WorkloadFormat::Tfjob)
        .unwrap()
        .pop()
        .unwrap();
    let worker = &tfjob["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"]["annotations"];
    assert_eq!(
        *worker,
        json!({"pinfold.io/cpus": "shared", "pinfold.io/threads": "off"})
    );
}

#[test]
fn roles_that_cannot_or_must_not_be_pinned_stay_as_they_are() {
    let job_of = |more: &str| job(&format!("{{name: a, image: i, script: s, roles: {more}}}"));
    let unpinned = job_of("{worker: {pin: false}}");
    for way in Way::ALL {
        let roles = of_roles(&run(&unpinned, way, WorkloadFormat::Native).unwrap());
        assert_eq!(roles["worker"].0, json!({"pinfold.io/cpus": "shared"}));
        let cpus = if way.exclusive { "exclusive" } else { "shared" };
        assert_eq!(roles["ps"].0["pinfold.io/cpus"], cpus);
    }
    // Outside an experiment, the plan alone decides.
    let alone = rendered(&unpinned, "1", "1", WorkloadFormat::Native).objects;
    assert_eq!(
        of_roles(&alone)["ps"].0,
        json!({"pinfold.io/cpus": "exclusive"})
    );

    // Neither the job nor the plan says: whatever can be pinned takes part.
    let mut undecided = plan(&example());
    for role in undecided.spec.roles.values_mut() {
        role.pin = None;
    }
    let worker = undecided.spec.roles.get_mut("worker").unwrap();
    worker
        .requests
        .insert("cpu".to_owned(), pinfold::scene::Amount("300m".to_owned()));
    worker.limits.clear();
    let (plain, slice) = (job("{name: a, image: i, script: s}"), Slice::default());
    let tag = RunTag {
        experiment: "e".to_owned(),
        way: Way::ALL[2],
        run: 1,
    };
    let request = RenderRequest {
        run: Some(&tag),
        ..request(
            &undecided,
            ("1", "1"),
            &plain,
            WorkloadFormat::Native,
            &slice,
        )
    };
    let made = render(&request).unwrap();
    let roles = of_roles(&made.objects);
    assert_eq!(
        roles["ps"].0,
        json!({"pinfold.io/cpus": "exclusive", "pinfold.io/threads": "off"})
    );
    assert_eq!(roles["worker"].0, json!(null));
    assert!(
        made.warnings
            .iter()
            .any(|one| one.contains("tasks of role worker get no exclusive CPUs"))
    );

    let none = job_of("{worker: {pin: false}, ps: {pin: false}}");
    let refused = run(&none, Way::ALL[0], WorkloadFormat::Native).unwrap_err();
    assert!(
        refused.contains("all ways of the experiment would be the same")
            && refused.contains("pin: true"),
        "{refused}"
    );
}

/// A program that finds the checkpoints of the run before does less work.
#[test]
fn runs_that_share_a_folder_for_logs_are_told_of() {
    let warned = |more: &str| {
        let job = job(&format!("{{name: a, image: i, script: s, {more}}}"));
        let (plan, slice) = (plan(&example()), Slice::default());
        let tag = RunTag {
            experiment: "e".to_owned(),
            way: Way::ALL[0],
            run: 1,
        };
        let request = RenderRequest {
            run: Some(&tag),
            ..request(&plan, ("1", "1"), &job, WorkloadFormat::Native, &slice)
        };
        let warnings = render(&request).unwrap().warnings;
        warnings
            .iter()
            .any(|one| one.contains("checkpoints of the run before"))
    };
    assert!(warned("log: {claim: l}") && warned("log: {hostPath: /l}"));
    assert!(!warned("log: {}") && !warned("port: 1"));
    assert!(!warned(
        "log: {claim: l}, args: ['--d=$(LOG_DIR)/$(TRAINING_JOB)']"
    ));
    assert!(!warned(
        "log: {claim: l}, roles: {worker: {args: ['--d=$(TRAINING_JOB)']}}"
    ));
}

#[test]
fn an_evaluator_without_a_volume_for_checkpoints_is_told_of() {
    let text = example().replace(
        "perNode: {worker: 10, ps: 1}",
        "perNode: {worker: 10, ps: 1, evaluator: 1}",
    );
    let text = text.replace(", totals: {servers: ", ", totals: {evaluator: 1, servers: ");
    let text: String = text
        .lines()
        .filter(|line| {
            !line.contains("case: \"2\"")
                && !line.contains("case: \"3\"")
                && !line.contains("case: \"4\"")
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let plan = plan(&text);
    for (log, expected) in [("{}", true), ("{claim: l}", false)] {
        let job = job(&format!("{{name: a, image: i, script: s, log: {log}}}"));
        let slice = Slice::default();
        let warnings = render(&request(
            &plan,
            ("1", "1"),
            &job,
            WorkloadFormat::Native,
            &slice,
        ))
        .unwrap()
        .warnings;
        let told = warnings
            .iter()
            .any(|one| one.contains("an evaluator sees no checkpoints"));
        assert_eq!(told, expected, "{warnings:?}");
    }
}

#[test]
fn the_preset_has_the_values_of_the_article() {
    let article = job("{name: a, script: s, preset: article}");
    assert_eq!(article.preset, Some(Preset::Article));
    for format in FORMATS {
        assert!(!rendered(&article, "2", "2", format).objects.is_empty());
    }
    let objects = rendered(&article, "1", "1", WorkloadFormat::Native).objects;
    let roles = of_roles(&objects);
    assert_eq!(
        roles["worker"].1,
        json!({"requests": {"cpu": "300m", "memory": "4Gi"}})
    );
    assert_eq!(
        roles["ps"].1,
        json!({"requests": {"cpu": "2", "memory": "4Gi"}})
    );
    for pod in pods(&objects) {
        let container = &pod.template["spec"]["containers"][0];
        assert_eq!(container["image"], "tensorflow/tensorflow:1.15.5");
        assert_eq!(
            pod.template["metadata"]["annotations"]["pinfold.io/cpus"],
            "shared"
        );
    }
    // What the job says itself goes before.
    let own = job(
        "{name: a, image: mine, script: s, preset: article, roles: {ps: {pin: true}, worker: {requests: {cpu: 1}}}}",
    );
    let objects = rendered(&own, "1", "1", WorkloadFormat::Native).objects;
    let roles = of_roles(&objects);
    assert_eq!(
        roles["worker"].1["requests"],
        json!({"cpu": "1", "memory": "4Gi"})
    );
    let pinned = json!({"cpu": "2", "memory": "4Gi"});
    assert_eq!(roles["ps"].1, json!({"requests": pinned, "limits": pinned}));
    assert_eq!(
        pods(&objects)[0].template["spec"]["containers"][0]["image"],
        "mine"
    );

    let refused = TrainingJob::read("name: a\npreset: papers\n", "job.yaml")
        .unwrap()
        .unwrap_err();
    let refused = refused[0].to_string();
    assert!(
        refused.contains("job.yaml:2") && refused.contains("article"),
        "{refused}"
    );
    let scenes = here("deploy/examples/scenes.yaml");
    let render = |args: &[&str]| {
        let fixed = [
            "render",
            scenes.to_str().unwrap(),
            "--name",
            "a",
            "--script",
            "s",
        ];
        printed(&[&fixed[..], args].concat())
    };
    let (code, out, said) = render(&["--preset", "article"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(out.contains("cpu: 300m") && out.contains("image: tensorflow/tensorflow:1.15.5"));
    let (code, out, said) = render(&["--preset", "papers"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(
        said.contains("papers") && said.contains("article"),
        "{said}"
    );
    assert!(
        fs::read_to_string(scenes)
            .unwrap()
            .contains("preset: article")
    );
}

/// What a case costs the API server: at first there was a Service for each task, and each pod had all addresses twice.
#[test]
fn the_largest_case_is_small() {
    for scene in ["1", "2"] {
        let mut job = full();
        (job.data, job.gang) = (None, None);
        let objects = rendered(&job, scene, "4", WorkloadFormat::Native).objects;
        let bytes: usize = objects.iter().map(|one| one.to_string().len()).sum();
        assert_eq!(objects.len(), 220 + 2);
        assert!(bytes < 700_000, "{bytes}");
    }
}
