//! The policies about pods that require exclusive CPUs.

use serde_json::{Value, json};

use crate::evaluate::{Policy, Request, Verdict};
use crate::tools::documents;

fn pod(cpus: Option<&str>, class: Option<&str>) -> Value {
    let mut pod = json!({"metadata": {"name": "w"}, "spec": {"containers": []}});
    if let Some(cpus) = cpus {
        pod["metadata"]["annotations"] = json!({"pinfold.io/cpus": cpus});
    }
    if let Some(class) = class {
        pod["spec"]["runtimeClassName"] = json!(class);
    }
    pod
}

#[test]
fn a_pod_that_requires_cpus_needs_the_class() {
    let objects = documents("deploy/components/required/class.yaml");
    let policy = objects
        .iter()
        .find(|object| object["kind"] == "ValidatingAdmissionPolicy")
        .unwrap();
    let policy = Policy::new(policy);
    let asked = |operation: &str, object: Value, old: Value| {
        policy.validate(&Request {
            object,
            old,
            request: json!({"operation": operation}),
        })
    };
    let create = |cpus, class| asked("CREATE", pod(cpus, class), Value::Null);
    for class in [None, Some("other")] {
        let Verdict::Denied(message, _) = create(Some("required"), class) else {
            panic!("{class:?} is admitted");
        };
        assert!(message.contains("runtimeClassName: pinfold-required"));
    }
    let class = Some("pinfold-required");
    assert_eq!(create(Some("required"), class), Verdict::Allowed);
    for cpus in [None, Some("exclusive"), Some("shared")] {
        assert_eq!(create(cpus, None), Verdict::NotMatched, "{cpus:?}");
    }
    // The pods from before the policy can still be changed, and no other pod can begin to require CPUs.
    let update = |before| asked("UPDATE", pod(Some("required"), None), pod(before, None));
    assert_eq!(update(Some("required")), Verdict::NotMatched);
    for before in [None, Some("exclusive")] {
        assert!(matches!(update(before), Verdict::Denied(..)), "{before:?}");
    }
}

#[test]
fn the_class_is_added_where_none_is() {
    let policy = Policy::new(&documents("deploy/policies/required-class.yaml")[0]);
    let class = |cpus, class| {
        let pod = policy.mutate(&pod(cpus, class)).unwrap();
        pod["spec"]["runtimeClassName"].as_str().map(str::to_owned)
    };
    assert_eq!(
        class(Some("required"), None).as_deref(),
        Some("pinfold-required")
    );
    assert_eq!(class(Some("required"), Some("gpu")).as_deref(), Some("gpu"));
    for cpus in [None, Some("exclusive")] {
        assert_eq!(class(cpus, None), None, "{cpus:?}");
    }
}
