//! The policies restrict an agent to its own Node, to the agent's labels and taints, and to claims
//! and Events of the Node. The tests evaluate the policies with constructed requests and with
//! recorded ones of a real API server, whose own policy must give the recorded answers.

use std::fs;

use pinfold::cluster::claims::NODE_LABEL;
use pinfold::scene::{LEAVING_LABEL, LabelKeys, STARTUP_TAINT, Slot, TaintKey};
use serde_json::{Value, json};

use crate::evaluate::{Policy, Request, Verdict};
use crate::tools::{documents, here};

const USER: &str = "system:serviceaccount:pinfold:pinfold";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Names of Leases that are no claims.
const NO_CLAIMS: &[&str] = &[
    "pinfold-reclaim",
    "scene",
    "scene.p.1.2",
    "scene.p.1.2.ps",
    "scene.p.1.2.ps.0.0",
    "scene..1.2.0",
    "scene.long.0",
    "kube-scheduler",
    "ascene.p.1.2.0",
    "scene.p.1.2.0.",
];

/// Names of claims: of slots with and without a type, with escaped letters, and too long ones.
fn claim_names() -> Vec<String> {
    let slot = |scene: &str, kind: Option<&str>, index: u32| Slot {
        scene: scene.to_owned(),
        case: "2".to_owned(),
        kind: kind.map(str::to_owned),
        index,
    };
    vec![
        slot("1", None, 0).lease_name("p"),
        slot("Scene_1.b", Some("PS"), 123).lease_name("ps-locality.example"),
        slot("z", Some("0"), 7).lease_name("scene"),
        slot(&"x".repeat(63), Some(&"Y".repeat(63)), 7).lease_name("long"),
        slot("1", None, u32::MAX).lease_name(&"p".repeat(253)),
    ]
}

fn policy(file: &str) -> Policy {
    Policy::new(&documents(&format!("deploy/base/{file}.yaml"))[0])
        .beside(&documents("deploy/base/rbac.yaml"))
}

/// The user of a token that is bound to a node, from a recorded TokenReview.
fn review() -> Value {
    let text = fs::read_to_string(here(
        "tests/data/policies/bound-token-claims-and-review.json",
    ))
    .unwrap();
    let recording: Value = serde_json::from_str(&text).unwrap();
    recording["tokenReviewStatus"]["user"].clone()
}

fn admission_request(operation: &str, name: &str, user: &str, extra: &Value) -> Value {
    json!({"operation": operation, "name": name, "userInfo": {"username": user, "extra": extra}})
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "a value at the call is shorter to read than a reference"
)]
fn node(labels: Value) -> Value {
    json!({"metadata": {"name": "bench-node", "labels": labels}, "spec": {"podCIDR": "10.0.0.0/24"}})
}

fn denied(verdict: &Verdict, words: &str) {
    assert!(
        matches!(verdict, Verdict::Denied(message, _) if message.contains(words)),
        "{words}: {verdict:?}"
    );
}

#[test]
fn an_agent_may_change_only_the_labels_of_its_own_node() {
    let policy = policy("node-policy");
    let extra = review()["extra"].clone();
    let own = admission_request("UPDATE", "bench-node", USER, &extra);
    let old = node(json!({"kubernetes.io/os": "linux"}));
    let evaluate = |object: Value, request: &Value| {
        policy.validate(&Request {
            object,
            old: old.clone(),
            request: request.clone(),
        })
    };
    let labelled = node(
        json!({"kubernetes.io/os": "linux", "SCENCE": "1", "CASE": "2", "INDEX": "0", "TYPE": "PS"}),
    );
    assert_eq!(evaluate(labelled.clone(), &own), Verdict::Allowed);
    // The policy ignores all other users.
    assert_eq!(
        evaluate(
            node(json!({})),
            &admission_request("UPDATE", "bench-node", "kubelet", &extra)
        ),
        Verdict::NotMatched
    );
    let other_node = evaluate(
        labelled.clone(),
        &admission_request("UPDATE", "node-b", USER, &extra),
    );
    assert_eq!(
        other_node,
        Verdict::Denied(
            "the agent of node bench-node may not change node node-b".into(),
            "Forbidden".into()
        )
    );
    for unbound in [
        json!({}),
        json!({"authentication.kubernetes.io/credential-id": ["JTI=x"]}),
    ] {
        denied(
            &evaluate(
                labelled.clone(),
                &admission_request("UPDATE", "bench-node", USER, &unbound),
            ),
            "bound to none",
        );
    }
    denied(
        &evaluate(
            labelled.clone(),
            &json!({"operation": "UPDATE", "name": "bench-node", "userInfo": {"username": USER}}),
        ),
        "bound to none",
    );
    denied(
        &evaluate(
            labelled.clone(),
            &admission_request("CREATE", "bench-node", USER, &extra),
        ),
        "never creates",
    );
    let mut status = own.clone();
    status["subResource"] = json!("status");
    denied(&evaluate(labelled, &status), "never writes its status");
    assert_eq!(
        evaluate(
            node(json!({"kubernetes.io/os": "linux", "SCENCE": "1", LEAVING_LABEL: "p"})),
            &own
        ),
        Verdict::Allowed
    );
    for key in ["evil", "pinfold.io/x", "pinfold.io/node-uid"] {
        denied(
            &evaluate(node(json!({"kubernetes.io/os": "linux", key: "1"})), &own),
            "SCENCE, CASE, INDEX, TYPE only",
        );
    }
    denied(
        &evaluate(node(json!({"kubernetes.io/os": "windows"})), &own),
        "SCENCE, CASE, INDEX, TYPE only",
    );
    denied(
        &evaluate(node(json!({})), &own),
        "SCENCE, CASE, INDEX, TYPE only",
    );
    let with = |pointer: &str, key: &str, value: Value| {
        let mut changed = old.clone();
        changed.pointer_mut(pointer).unwrap()[key] = value;
        evaluate(changed, &own)
    };
    assert_eq!(
        with(
            "/spec",
            "taints",
            json!([{"key": "pinfold.io/scene", "effect": "NoSchedule"}])
        ),
        Verdict::Allowed
    );
    for key in ["other", "pinfold.io/x"] {
        let foreign = json!([{"key": key, "effect": "NoSchedule"}]);
        denied(
            &with("/spec", "taints", foreign),
            "taints pinfold.io/scene only",
        );
    }
    let startup = json!([{"key": "pinfold.io/agent-not-ready", "effect": "NoSchedule"}]);
    denied(&with("/spec", "taints", startup), "may not set it");
    let evicting = json!([{"key": "pinfold.io/scene", "effect": "NoExecute"}]);
    denied(&with("/spec", "taints", evicting), "NoExecute");
    denied(&with("/spec", "unschedulable", json!(true)), "spec");
    denied(&with("/spec", "providerID", json!("x")), "spec");
    denied(&with("/spec", "podCIDR", json!("10.9.0.0/24")), "spec");
    denied(&with("/spec", "podCIDRs", json!(["10.9.0.0/24"])), "spec");
    denied(
        &with("/metadata", "annotations", json!({"a": "b"})),
        "metadata",
    );
    denied(&with("/metadata", "finalizers", json!(["a/b"])), "metadata");
    denied(
        &with("/metadata", "ownerReferences", json!([{"name": "x"}])),
        "metadata",
    );
}

/// An operator's taints stay, whatever their effect, while the agent changes the scene taint.
#[test]
fn foreign_taints_do_not_block_the_agents_taint() {
    let policy = policy("node-policy");
    let own = admission_request("UPDATE", "bench-node", USER, &review()["extra"]);
    let tainted =
        |taints: Value| json!({"metadata": {"name": "bench-node"}, "spec": {"taints": taints}});
    let others = [
        json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-11-20T15:00:00Z"}),
        json!({"key": "pinfold.io/scene", "effect": "NoExecute"}),
        json!({"key": "pinfold.io/maintenance", "effect": "NoSchedule"}),
    ];
    let scene = json!({"key": "pinfold.io/scene", "effect": "NoSchedule"});
    let with = |more: &[Value]| tainted(json!([&others[..], more].concat()));
    let evaluate = |object: Value, old: Value| {
        policy.validate(&Request {
            object,
            old,
            request: own.clone(),
        })
    };
    assert_eq!(
        evaluate(with(std::slice::from_ref(&scene)), with(&[])),
        Verdict::Allowed
    );
    assert_eq!(
        evaluate(with(&[]), with(std::slice::from_ref(&scene))),
        Verdict::Allowed
    );
    denied(
        &evaluate(tainted(json!([scene])), with(&[])),
        "taints pinfold.io/scene only",
    );
    // The startup taint may go, with any effect, and may neither come nor change.
    let startup = |effect: &str| json!({"key": STARTUP_TAINT, "value": "x", "effect": effect});
    for effect in ["NoSchedule", "NoExecute"] {
        let before = with(&[startup(effect)]);
        assert_eq!(evaluate(with(&[]), before.clone()), Verdict::Allowed);
        assert_eq!(evaluate(before.clone(), before.clone()), Verdict::Allowed);
        denied(&evaluate(before, with(&[])), "may not set it");
    }
    denied(
        &evaluate(
            with(&[startup("NoExecute")]),
            with(&[startup("NoSchedule")]),
        ),
        "may not set it",
    );
}

#[test]
fn an_agent_may_write_events_only_as_its_own_node() {
    let policy = policy("event-policy");
    let extra = review()["extra"].clone();
    // A recorded Event that a real server accepted.
    let text = fs::read_to_string(here("tests/data/apiserver/70-event-create-201.http"))
        .unwrap()
        .replace("\r\n", "\n");
    let recorded_event = text
        .split_once("### response")
        .unwrap()
        .0
        .split_once("\n\n")
        .unwrap()
        .1;
    let of_node: Value = serde_json::from_str(recorded_event).unwrap();
    let evaluate = |operation: &str, object: &Value, old: &Value, extra: &Value| {
        let request = admission_request(operation, "pinfold-1", USER, extra);
        policy.validate(&Request {
            object: object.clone(),
            old: old.clone(),
            request,
        })
    };
    assert_eq!(
        evaluate("CREATE", &of_node, &Value::Null, &extra),
        Verdict::Allowed
    );
    let mut of_pod = of_node.clone();
    of_pod["regarding"] =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "b", "uid": "c"});
    assert_eq!(
        evaluate("CREATE", &of_pod, &Value::Null, &extra),
        Verdict::Allowed
    );
    assert_eq!(
        evaluate("UPDATE", &of_pod, &of_pod, &extra),
        Verdict::Allowed
    );

    for unbound in [
        json!({}),
        json!({"authentication.kubernetes.io/credential-id": ["JTI=x"]}),
    ] {
        denied(
            &evaluate("CREATE", &of_pod, &Value::Null, &unbound),
            "bound to no node",
        );
    }
    for (pointer, value, words) in [
        (
            "/reportingInstance",
            json!("node-b"),
            "agent of node bench-node",
        ),
        (
            "/reportingInstance",
            json!(null),
            "agent of node bench-node",
        ),
        (
            "/regarding/kind",
            json!("Secret"),
            "about Pods and about its own Node",
        ),
        ("/regarding", json!({}), "about Pods and about its own Node"),
        (
            "/regarding",
            json!({"kind": "Node", "name": "node-b"}),
            "about Pods and about its own Node",
        ),
    ] {
        let mut wrong = of_pod.clone();
        *wrong.pointer_mut(pointer).unwrap() = value;
        if wrong["reportingInstance"].is_null() {
            wrong.as_object_mut().unwrap().remove("reportingInstance");
        }
        denied(&evaluate("CREATE", &wrong, &Value::Null, &extra), words);
    }
    // An agent may not change an Event of the kubelet or of another agent.
    let mut foreign = of_pod.clone();
    foreign["reportingInstance"] = json!("node-b");
    denied(
        &evaluate("UPDATE", &of_pod, &foreign, &extra),
        "agent of node bench-node",
    );
    // The policy ignores the Events of all other reporters.
    let kubelet = Request {
        object: foreign,
        old: Value::Null,
        request: admission_request("CREATE", "x", "system:node:node-b", &json!({})),
    };
    assert_eq!(policy.validate(&kubelet), Verdict::NotMatched);
}

/// A node's name may be longer than the Event's field for the reporting instance.
#[test]
fn events_of_a_node_with_a_long_name_are_allowed() {
    let policy = policy("event-policy");
    let name = "n".repeat(200);
    let extra = json!({"authentication.kubernetes.io/node-name": [name]});
    let event = |instance: &str| json!({"reportingInstance": instance, "regarding": {"kind": "Pod", "name": "a"}});
    let evaluate = |instance: &str| {
        let request = admission_request("CREATE", "x", USER, &extra);
        policy.validate(&Request {
            object: event(instance),
            old: Value::Null,
            request,
        })
    };
    assert_eq!(evaluate(&name[..128]), Verdict::Allowed);
    denied(&evaluate(&name[..127]), "reportingInstance");
}

/// A second installation would take the rights away from the agents of the first.
#[test]
fn a_second_installation_is_refused() {
    let policy = policy("installation-policy");
    let binding = documents("deploy/base/rbac.yaml")
        .into_iter()
        .find(|object| object["kind"] == "ClusterRoleBinding");
    let binding = binding.unwrap();
    let admin = json!({"operation": "UPDATE", "name": "pinfold", "userInfo": {"username": "kubernetes-admin"}});
    let evaluate = |object: &Value| {
        let (object, old) = (object.clone(), binding.clone());
        policy.validate(&Request {
            object,
            old,
            request: admin.clone(),
        })
    };
    let mut second = binding.clone();
    second["subjects"][0]["namespace"] = json!("two");
    denied(
        &evaluate(&second),
        "gives rights to pinfold/pinfold, and this change would take them away",
    );
    assert_eq!(evaluate(&binding), Verdict::Allowed);
    // A further account takes no rights away.
    let mut with_more_subjects = binding.clone();
    with_more_subjects["subjects"]
        .as_array_mut()
        .unwrap()
        .push(json!({"kind": "User", "name": "a"}));
    assert_eq!(evaluate(&with_more_subjects), Verdict::Allowed);
    let mut without_subjects = binding.clone();
    without_subjects.as_object_mut().unwrap().remove("subjects");
    denied(&evaluate(&without_subjects), "take them away");
}

/// An account with all verbs is an administrator and not an agent.
#[test]
fn an_administrator_is_not_restricted() {
    let mut objects = documents("deploy/base/rbac.yaml");
    let policy = Policy::new(&documents("deploy/base/node-policy.yaml")[0]);
    let create = Request {
        object: node(json!({})),
        old: Value::Null,
        request: admission_request("CREATE", "node-b", USER, &json!({})),
    };
    let policy = policy.beside(&objects);
    assert!(matches!(policy.validate(&create), Verdict::Denied(..)));
    let role = objects
        .iter_mut()
        .find(|object| object["kind"] == "ClusterRole")
        .unwrap();
    role["rules"] = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    assert_eq!(
        policy.beside(&objects).validate(&create),
        Verdict::NotMatched
    );
}

#[test]
fn the_policy_lists_the_default_labels_and_taint() {
    let policy = &documents("deploy/base/node-policy.yaml")[0];
    let policy_keys = policy["spec"]["variables"][0]["expression"]
        .as_str()
        .unwrap();
    let keys = LabelKeys::default();
    assert_eq!(
        policy_keys,
        format!(
            "['{}', '{}', '{}', '{}']",
            keys.scene, keys.case, keys.index, keys.kind
        )
    );
    let taints = policy["spec"]["variables"][1]["expression"]
        .as_str()
        .unwrap();
    assert_eq!(taints, format!("['{}']", TaintKey::default().0));
}

#[test]
fn an_agent_may_create_and_delete_claims_only_for_its_own_node() {
    let policy = policy("claim-policy");
    let user = review();
    let (name, uid) = (
        "bench-node",
        user["extra"]["authentication.kubernetes.io/node-uid"][0]
            .as_str()
            .unwrap(),
    );
    let lease = |owner: &str, uid: &str, holder: &str| {
        json!({
            "metadata": {"name": "scene.a.1.2.0", "labels": {NODE_LABEL: uid, MANAGED_BY: "pinfold"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": owner, "uid": uid}]},
            "spec": {"holderIdentity": holder},
        })
    };
    let own = lease(name, uid, name);
    let evaluate = |operation: &str, object: Value, old: Value, extra: &Value| {
        policy.validate(&Request {
            object,
            old,
            request: admission_request(operation, "scene.a.1.2.0", USER, extra),
        })
    };
    let extra = &user["extra"];
    assert_eq!(
        evaluate("CREATE", own.clone(), Value::Null, extra),
        Verdict::Allowed
    );
    assert_eq!(
        evaluate("DELETE", Value::Null, own.clone(), extra),
        Verdict::Allowed
    );
    denied(
        &evaluate("UPDATE", own.clone(), own.clone(), extra),
        "never changes",
    );
    let foreign = lease("node-b", uid, name);
    denied(
        &evaluate("CREATE", foreign.clone(), Value::Null, extra),
        "own node only",
    );
    denied(
        &evaluate("DELETE", Value::Null, foreign, extra),
        "own node only",
    );
    // The Node was recreated with the same name. The token still has the uid of the earlier Node.
    let recreated = lease(name, "another", name);
    assert_eq!(
        evaluate("CREATE", recreated.clone(), Value::Null, extra),
        Verdict::Allowed
    );
    assert_eq!(
        evaluate("DELETE", Value::Null, recreated.clone(), extra),
        Verdict::Allowed
    );
    // The agent finds its claims by the label, so the label must have the owner's uid.
    for labels in [
        json!(null),
        json!({}),
        json!({"x": uid}),
        json!({MANAGED_BY: "pinfold", NODE_LABEL: uid}),
    ] {
        let mut mislabelled = recreated.clone();
        mislabelled["metadata"]["labels"] = labels.clone();
        if labels.is_null() {
            mislabelled["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("labels");
        }
        denied(
            &evaluate("CREATE", mislabelled.clone(), Value::Null, extra),
            "pinfold.io/node-uid",
        );
        // An agent may delete a mislabelled claim of its node.
        assert_eq!(
            evaluate("DELETE", Value::Null, mislabelled, extra),
            Verdict::Allowed
        );
    }
    denied(
        &evaluate("CREATE", lease(name, uid, "node-b"), Value::Null, extra),
        "holder",
    );
    // Every reader lists the claims by this label.
    for labels in [
        json!({NODE_LABEL: uid}),
        json!({NODE_LABEL: uid, MANAGED_BY: "helm"}),
    ] {
        let mut hidden = own.clone();
        hidden["metadata"]["labels"] = labels;
        denied(
            &evaluate("CREATE", hidden.clone(), Value::Null, extra),
            MANAGED_BY,
        );
        assert_eq!(
            evaluate("DELETE", Value::Null, hidden, extra),
            Verdict::Allowed
        );
    }
    let mut orphan = own.clone();
    orphan["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("ownerReferences");
    denied(
        &evaluate("CREATE", orphan, Value::Null, extra),
        "own node only",
    );
    let mut shared = own.clone();
    shared["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(json!({"kind": "Node", "name": "b"}));
    denied(
        &evaluate("CREATE", shared, Value::Null, extra),
        "own node only",
    );
    denied(
        &evaluate("CREATE", own, Value::Null, &json!({})),
        "bound to none",
    );
}

/// Otherwise a stolen token could take the Lease of a controller's leader, or fill the namespace
/// with Leases of any name.
#[test]
fn the_name_of_a_claim_is_the_name_of_a_slot() {
    let policy = policy("claim-policy");
    let user = review();
    let uid = user["extra"]["authentication.kubernetes.io/node-uid"][0]
        .as_str()
        .unwrap();
    let evaluate = |operation: &str, lease: &str| {
        let lease = json!({
            "metadata": {"name": lease, "labels": {NODE_LABEL: uid, MANAGED_BY: "pinfold"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "bench-node", "uid": uid}]},
            "spec": {"holderIdentity": "bench-node"},
        });
        let (object, old) = match operation {
            "DELETE" => (Value::Null, lease),
            _ => (lease, Value::Null),
        };
        policy.validate(&Request {
            object,
            old,
            request: admission_request(operation, "x", USER, &user["extra"]),
        })
    };
    for name in claim_names() {
        assert_eq!(evaluate("CREATE", &name), Verdict::Allowed, "{name}");
    }
    for name in NO_CLAIMS {
        denied(&evaluate("CREATE", name), "named after a slot");
        assert_eq!(evaluate("DELETE", name), Verdict::Allowed, "{name}");
    }
}

/// The reclaimer removes claims, and no other Lease of its namespace.
#[test]
fn of_the_leases_the_reclaimer_may_delete_only_claims() {
    let policy = Policy::new(&documents("deploy/components/reclaim/policy.yaml")[0]);
    let delete = |name: &str, labels: Value| {
        let user = "system:serviceaccount:pinfold:pinfold-reclaim";
        policy.validate(&Request {
            object: Value::Null,
            old: json!({"metadata": {"name": name, "labels": labels}}),
            request: json!({
                "operation": "DELETE", "name": name, "userInfo": {"username": user},
                "resource": {"group": "coordination.k8s.io", "version": "v1", "resource": "leases"},
            }),
        })
    };
    let labels = || json!({NODE_LABEL: "u", MANAGED_BY: "pinfold"});
    for name in claim_names() {
        assert_eq!(delete(&name, labels()), Verdict::Allowed, "{name}");
        denied(&delete(&name, json!({})), "only claims");
    }
    for name in NO_CLAIMS {
        denied(&delete(name, labels()), "only claims");
    }
    // The labels of a parameter server free no Lease.
    let server = json!({"pinfold.io/reclaim": "ps", "job": "ps"});
    denied(&delete("kube-scheduler", server), "only claims");
}

#[test]
fn the_recorded_policy_gives_the_recorded_answers() {
    let recorded_policy = Policy::new(&documents("tests/data/policies/vap-node-agent.yaml")[0]);
    // Pinfold's policy has the same rules under Pinfold's account. The recorded agents set no other label.
    let own_policy = policy("node-policy");
    let bound = review();
    let before = json!({"metadata": {"name": "bench-node", "labels": {"kubernetes.io/os": "linux"}}, "spec": {}});
    let mut checked = 0;
    for entry in fs::read_dir(here("tests/data/policies")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        // The server refuses a missing Node before any policy.
        if !file.starts_with("vap-") || !file.ends_with(".http") || file.contains("nonexistent") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
        let (request, response) = text.split_once("### response\n").unwrap();
        let name = request
            .split("/nodes/")
            .nth(1)
            .unwrap()
            .split(['?', ' '])
            .next()
            .unwrap();
        let patch: Value =
            serde_json::from_str(request.split_once("\n\n").unwrap().1.trim()).unwrap();
        let status: u16 = response.split(' ').nth(1).unwrap().parse().unwrap();
        let mut after = before.clone();
        merge(&mut after, &patch);
        let extra = if file.contains("unbound") {
            json!({"authentication.kubernetes.io/credential-id": ["JTI=x"]})
        } else {
            bound["extra"].clone()
        };
        for (policy, user) in [
            (&recorded_policy, bound["username"].as_str().unwrap()),
            (&own_policy, USER),
        ] {
            let request = Request {
                object: after.clone(),
                old: before.clone(),
                request: admission_request("UPDATE", name, user, &extra),
            };
            let verdict = policy.validate(&request);
            match &verdict {
                Verdict::Allowed => assert_eq!(status, 200, "{file}"),
                Verdict::Denied(_, reason) => {
                    assert_eq!(
                        status,
                        if reason == "Forbidden" { 403 } else { 422 },
                        "{file}: {verdict:?}"
                    );
                }
                Verdict::NotMatched => panic!("{file} is not matched"),
            }
            if let (Verdict::Denied(message, _), true) =
                (&verdict, std::ptr::eq(policy, &recorded_policy))
            {
                assert!(response.contains(message.as_str()), "{file}: {message}");
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 8);
}

/// Applies a merge patch. A server-side apply of these objects has the same result, because no other manager has the
/// labels.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key).or_insert(json!({})), value);
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}
