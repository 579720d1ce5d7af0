//! The names and labels of a case and of a run: no two are the same, and Kubernetes takes each.

use std::collections::{BTreeMap, BTreeSet};

use pinfold::experiment::statistics::Way;
use pinfold::experiment::{
    RenderRequest, Rendered, RunTag, Slice, TrainingJob, WorkloadFormat, render,
};
use pinfold::scene::{Amount, ScenePlan};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::render::{CASES, FORMATS, faults, full, job, request};
use super::{SMALL, example, plan};

fn tag(way: Way, run: u32) -> RunTag {
    RunTag {
        experiment: "k3x9".to_owned(),
        way,
        run,
    }
}

fn run_of(
    plan: &ScenePlan,
    case: (&str, &str),
    job: &TrainingJob,
    format: WorkloadFormat,
    tag: &RunTag,
) -> Result<Rendered, String> {
    let slice = Slice::default();
    let request = RenderRequest {
        run: Some(tag),
        ..request(plan, case, job, format, &slice)
    };
    render(&request).map_err(|faults| faults.to_string())
}

fn is_dns_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
}

/// The names of the objects that belong to a case, and of the hosts. Claims are there for all cases.
fn names(rendered: &Rendered) -> BTreeSet<(String, String)> {
    let mut names = BTreeSet::new();
    for object in &rendered.objects {
        if object["kind"] == "PersistentVolumeClaim" {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let name = (text(&object["kind"]), text(&object["metadata"]["name"]));
        assert!(is_dns_label(&name.1), "{name:?}");
        assert!(name.1.starts_with(&rendered.name), "{name:?}");
        assert!(names.insert(name.clone()), "{name:?} is there twice");
        let host = &object["spec"]["template"]["spec"]["hostname"];
        if let Some(host) = host.as_str() {
            assert!(is_dns_label(host) && names.insert(("host".to_owned(), host.to_owned())));
        }
    }
    names
}

/// Every pod template below a value.
fn labels_below(value: &Value, found: &mut Vec<Value>) {
    if value["spec"]["containers"].is_array() {
        found.push(value["metadata"]["labels"].clone());
    }
    let fields = value.as_object().into_iter().flat_map(|all| all.values());
    for inner in fields.chain(value.as_array().into_iter().flatten()) {
        labels_below(inner, found);
    }
}

#[test]
fn no_two_cases_and_no_two_runs_have_objects_of_the_same_name() {
    let (plan, job) = (plan(&example()), full());
    for format in FORMATS {
        let mut seen = BTreeSet::new();
        let mut jobs = BTreeSet::new();
        for (scene, case, ..) in CASES {
            let slice = Slice::default();
            let alone = render(&request(&plan, (scene, case), &job, format, &slice)).unwrap();
            assert_eq!(alone.name, format!("wide-deep-s{scene}-c{case}"));
            let mut all = vec![alone];
            for (way, run) in Way::ALL.into_iter().zip([1, 2, 33, 104]) {
                let tag = tag(way, run);
                let rendered = run_of(&plan, (scene, case), &job, format, &tag).unwrap();
                let expected = format!("wide-deep-s{scene}-c{case}-{}-r{run}", way.name());
                assert_eq!(rendered.name, expected);
                all.push(rendered);
            }
            for rendered in all {
                assert!(jobs.insert(rendered.name.clone()));
                for name in names(&rendered) {
                    assert!(seen.insert(name.clone()), "{name:?} in two cases or runs");
                }
            }
        }
    }
}

#[test]
fn all_objects_and_pods_say_where_they_come_from() {
    let (plan, job) = (plan(&example()), full());
    let both = Way::ALL[3];
    for format in FORMATS {
        let rendered = run_of(&plan, ("2", "1"), &job, format, &tag(both, 12)).unwrap();
        let expected = json!({
            "name": "wide-deep-s2-c1-both-r12", "pinfold.io/plan": "ps-locality", "pinfold.io/scene": "2",
            "pinfold.io/case": "1", "pinfold.io/experiment": "k3x9", "pinfold.io/way": "both", "pinfold.io/run": "12",
        });
        let has_all = |labels: &Value| {
            let mut all = expected.as_object().unwrap().iter();
            all.all(|(key, value)| labels[key] == *value)
        };
        for object in &rendered.objects {
            assert_eq!(faults(object), Vec::<String>::new());
            let labels = &object["metadata"]["labels"];
            if object["kind"] == "PersistentVolumeClaim" {
                // Claims are for all cases and runs.
                let lasting = json!({"name": "wide-deep", "pinfold.io/plan": "ps-locality"});
                assert_eq!(*labels, lasting);
                continue;
            }
            assert!(has_all(labels), "{format:?} {}: {labels}", object["kind"]);
        }
        let mut pods = Vec::new();
        labels_below(&json!(rendered.objects), &mut pods);
        assert!(!pods.is_empty());
        for labels in pods {
            assert!(has_all(&labels) && labels["job"].is_string(), "{labels}");
        }
        // A Deployment's selector can't change, so it holds no more than it must.
        for object in rendered
            .objects
            .iter()
            .filter(|one| one["kind"] == "Deployment")
        {
            let keys = object["spec"]["selector"]["matchLabels"]
                .as_object()
                .unwrap();
            assert!(keys.keys().eq(["job", "name", "task"]));
        }
    }
    // As on claims, a plan's name that is too long for a label is left out.
    let mut long = plan.clone();
    long.metadata.name = Some("p".repeat(64));
    let rendered = run_of(
        &long,
        ("1", "1"),
        &job,
        WorkloadFormat::Native,
        &tag(both, 1),
    )
    .unwrap();
    let labels = rendered.objects[1]["metadata"]["labels"]
        .as_object()
        .unwrap();
    assert!(labels.contains_key("pinfold.io/case") && !labels.contains_key("pinfold.io/plan"));
    let wrong = RunTag {
        experiment: "a b".to_owned(),
        ..tag(both, 1)
    };
    let refused = run_of(&plan, ("1", "1"), &job, WorkloadFormat::Native, &wrong).unwrap_err();
    assert!(
        refused.contains("\"a b\" can't be the value of the label pinfold.io/experiment"),
        "{refused}"
    );
}

/// A plan with the given scenes and cases, each with 3 workers and a parameter server.
fn named(cases: &[(&str, &str)]) -> ScenePlan {
    let mut plan = plan(SMALL);
    let scene = plan.spec.scenes.remove(0);
    let mut scenes: BTreeMap<&str, _> = BTreeMap::new();
    for (name, case) in cases {
        let of_scene = scenes.entry(*name).or_insert_with(|| {
            let mut scene = scene.clone();
            scene.scene = (*name).to_owned();
            scene.cases.clear();
            scene
        });
        let mut one = scene.cases[0].clone();
        one.case = (*case).to_owned();
        of_scene.cases.push(one);
    }
    plan.spec.scenes = scenes.into_values().collect();
    let limits = [("cpu", "1"), ("memory", "1Gi")]
        .map(|(key, amount)| (key.to_owned(), Amount(amount.to_owned())));
    for role in plan.spec.roles.values_mut() {
        role.limits = BTreeMap::from(limits.clone());
    }
    plan
}

fn plain() -> TrainingJob {
    job("{name: a, image: i, script: s, log: {}}")
}

#[test]
fn scenes_and_cases_become_parts_of_names_or_are_refused_together() {
    let plan = named(&[("Shared_PS", "1.0"), ("x", "Y")]);
    let rendered = run_of(
        &plan,
        ("Shared_PS", "1.0"),
        &plain(),
        WorkloadFormat::Native,
        &tag(Way::ALL[0], 1),
    );
    let rendered = rendered.unwrap();
    assert_eq!(rendered.name, "a-sshared-ps-c1-0-usual-r1");
    let labels = &rendered.objects[0]["metadata"]["labels"];
    assert_eq!(
        (&labels["pinfold.io/scene"], &labels["pinfold.io/case"]),
        (&json!("Shared_PS"), &json!("1.0"))
    );
    for (one, other) in [
        (("s", "1.0"), ("s", "1_0")),
        (("S", "1"), ("s", "1")),
        (("1", "2-c3"), ("1-c2", "3")),
        (("a", "b"), ("a", "b-usual-r1")),
    ] {
        let both = named(&[one, other]);
        for (case, rest) in [(one, other), (other, one)] {
            let slice = Slice::default();
            let job = plain();
            let made = render(&request(&both, case, &job, WorkloadFormat::Native, &slice));
            let expected = format!(
                "scene {} case {} and scene {} case {}",
                case.0, case.1, rest.0, rest.1
            );
            let refused = made.unwrap_err().to_string();
            assert!(
                refused.contains(&expected) && refused.contains("rename one of them in the plan"),
                "{refused}"
            );
        }
    }
    // Nothing is left for the job's name.
    let long = "c".repeat(63);
    let plan = named(&[("s", &long)]);
    let refused = run_of(
        &plan,
        ("s", &long),
        &plain(),
        WorkloadFormat::Native,
        &tag(Way::ALL[0], 1),
    )
    .unwrap_err();
    assert!(
        refused.contains("rename the scene or the case to a shorter name"),
        "{refused}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever scenes and cases are called: what is rendered has unique, valid names; what would not is refused.
    #[test]
    fn any_plan_has_unique_names(
        cases in prop::collection::btree_set(("[A-Ca-c1]([-._A-Ca-c1]{0,3}[a-c1])?", "[A-Ca-c1]([-._rA-Ca-c1]{0,3}[a-c1])?"), 1..6),
        name in "[a-z]([a-z0-9-]{0,20}[a-z0-9])?",
        runs in prop::collection::btree_set((0..4_usize, 1..2000_u32), 1..4),
    ) {
        let cases: Vec<(&str, &str)> = cases.iter().map(|(scene, case)| (scene.as_str(), case.as_str())).collect();
        let plan = named(&cases);
        let mut job = plain();
        job.name = Some(name);
        let mut seen = BTreeSet::new();
        for case in cases {
            for (way, run) in &runs {
                let tag = tag(Way::ALL[*way], *run);
                let Ok(rendered) = run_of(&plan, case, &job, WorkloadFormat::Native, &tag) else { continue };
                for name in names(&rendered) {
                    prop_assert!(seen.insert(name.clone()), "{:?} in two cases or runs", name);
                }
            }
            let slice = Slice::default();
            let Ok(rendered) = render(&request(&plan, case, &job, WorkloadFormat::Native, &slice)) else { continue };
            for name in names(&rendered) {
                prop_assert!(seen.insert(name.clone()), "{:?} in two cases or runs", name);
            }
        }
    }
}
