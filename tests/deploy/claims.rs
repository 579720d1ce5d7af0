//! What an agent may touch: its own Node, its own labels and taints, its own claims, Events of its node. The policies are evaluated on requests
//! built here and on those that a real server was sent; that server's own policy gives its recorded answers.

use std::fs;

use pinfold::cluster::claims::NODE_LABEL;
use pinfold::scene::{LabelKeys, TaintKey};
use serde_json::{Value, json};

use crate::evaluate::{Policy, Request, Verdict};
use crate::tools::{documents, here};

const USER: &str = "system:serviceaccount:pinfold:pinfold";

fn policy(file: &str) -> Policy {
    Policy::new(&documents(&format!("deploy/base/{file}.yaml"))[0])
        .beside(&documents("deploy/base/rbac.yaml"))
}

/// The extra words of a token that is bound to a node, as a server reviews it.
fn review() -> Value {
    let text = fs::read_to_string(here(
        "tests/data/policies/bound-token-claims-and-review.json",
    ))
    .unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["tokenReviewStatus"]["user"].clone()
}

fn asks(operation: &str, name: &str, user: &str, extra: &Value) -> Value {
    json!({"operation": operation, "name": name, "userInfo": {"username": user, "extra": extra}})
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "what is written at the call is owned by nobody else"
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
fn an_agent_changes_its_own_node_only_and_of_it_its_labels_only() {
    let policy = policy("node-policy");
    let extra = review()["extra"].clone();
    let own = asks("UPDATE", "bench-node", USER, &extra);
    let old = node(json!({"kubernetes.io/os": "linux"}));
    let say = |object: Value, request: &Value| {
        policy.validate(&Request {
            object,
            old: old.clone(),
            request: request.clone(),
        })
    };
    let labelled = node(
        json!({"kubernetes.io/os": "linux", "SCENCE": "1", "CASE": "2", "INDEX": "0", "TYPE": "PS"}),
    );
    assert_eq!(say(labelled.clone(), &own), Verdict::Allowed);
    // Everyone else is none of its business.
    assert_eq!(
        say(
            node(json!({})),
            &asks("UPDATE", "bench-node", "kubelet", &extra)
        ),
        Verdict::NotMatched
    );
    let other = say(labelled.clone(), &asks("UPDATE", "node-b", USER, &extra));
    assert_eq!(
        other,
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
            &say(
                labelled.clone(),
                &asks("UPDATE", "bench-node", USER, &unbound),
            ),
            "bound to none",
        );
    }
    denied(
        &say(
            labelled.clone(),
            &json!({"operation": "UPDATE", "name": "bench-node", "userInfo": {"username": USER}}),
        ),
        "bound to none",
    );
    denied(
        &say(
            labelled.clone(),
            &asks("CREATE", "bench-node", USER, &extra),
        ),
        "never creates",
    );
    let mut status = own.clone();
    status["subResource"] = json!("status");
    denied(&say(labelled, &status), "never writes its status");
    for key in ["evil", "pinfold.io/x", "pinfold.io/node-uid"] {
        denied(
            &say(node(json!({"kubernetes.io/os": "linux", key: "1"})), &own),
            "SCENCE, CASE, INDEX, TYPE only",
        );
    }
    denied(
        &say(node(json!({"kubernetes.io/os": "windows"})), &own),
        "SCENCE, CASE, INDEX, TYPE only",
    );
    denied(
        &say(node(json!({})), &own),
        "SCENCE, CASE, INDEX, TYPE only",
    );
    let with = |pointer: &str, key: &str, value: Value| {
        let mut changed = old.clone();
        changed.pointer_mut(pointer).unwrap()[key] = value;
        say(changed, &own)
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

/// An operator's taints stay as they are, whatever their effect, while the agent changes its own.
#[test]
fn taints_of_others_are_no_reason_to_refuse_the_own_one() {
    let policy = policy("node-policy");
    let own = asks("UPDATE", "bench-node", USER, &review()["extra"]);
    let tainted =
        |taints: Value| json!({"metadata": {"name": "bench-node"}, "spec": {"taints": taints}});
    let others = [
        json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-11-20T15:00:00Z"}),
        json!({"key": "pinfold.io/scene", "effect": "NoExecute"}),
        json!({"key": "pinfold.io/maintenance", "effect": "NoSchedule"}),
    ];
    let scene = json!({"key": "pinfold.io/scene", "effect": "NoSchedule"});
    let with = |more: &[Value]| tainted(json!([&others[..], more].concat()));
    let say = |object: Value, old: Value| {
        policy.validate(&Request {
            object,
            old,
            request: own.clone(),
        })
    };
    assert_eq!(
        say(with(std::slice::from_ref(&scene)), with(&[])),
        Verdict::Allowed
    );
    assert_eq!(
        say(with(&[]), with(std::slice::from_ref(&scene))),
        Verdict::Allowed
    );
    denied(
        &say(tainted(json!([scene])), with(&[])),
        "taints pinfold.io/scene only",
    );
}

#[test]
fn events_are_written_in_the_name_of_the_own_node_only() {
    let policy = policy("event-policy");
    let extra = review()["extra"].clone();
    // The Event that a real server was sent.
    let text = fs::read_to_string(here("tests/data/apiserver/70-event-create-201.http"))
        .unwrap()
        .replace("\r\n", "\n");
    let sent = text
        .split_once("### response")
        .unwrap()
        .0
        .split_once("\n\n")
        .unwrap()
        .1;
    let of_node: Value = serde_json::from_str(sent).unwrap();
    let say = |operation: &str, object: &Value, old: &Value, extra: &Value| {
        let request = asks(operation, "pinfold-1", USER, extra);
        policy.validate(&Request {
            object: object.clone(),
            old: old.clone(),
            request,
        })
    };
    assert_eq!(
        say("CREATE", &of_node, &Value::Null, &extra),
        Verdict::Allowed
    );
    let mut of_pod = of_node.clone();
    of_pod["regarding"] =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "b", "uid": "c"});
    assert_eq!(
        say("CREATE", &of_pod, &Value::Null, &extra),
        Verdict::Allowed
    );
    assert_eq!(say("UPDATE", &of_pod, &of_pod, &extra), Verdict::Allowed);

    for unbound in [
        json!({}),
        json!({"authentication.kubernetes.io/credential-id": ["JTI=x"]}),
    ] {
        denied(
            &say("CREATE", &of_pod, &Value::Null, &unbound),
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
        denied(&say("CREATE", &wrong, &Value::Null, &extra), words);
    }
    // An Event of the kubelet, or of another agent, is not taken over.
    let mut foreign = of_pod.clone();
    foreign["reportingInstance"] = json!("node-b");
    denied(
        &say("UPDATE", &of_pod, &foreign, &extra),
        "agent of node bench-node",
    );
    // Other reporters are not restricted.
    let kubelet = Request {
        object: foreign,
        old: Value::Null,
        request: asks("CREATE", "x", "system:node:node-b", &json!({})),
    };
    assert_eq!(policy.validate(&kubelet), Verdict::NotMatched);
}

/// A node's name may be longer than the field that names it in an Event.
#[test]
fn events_of_a_node_with_a_long_name_are_taken() {
    let policy = policy("event-policy");
    let name = "n".repeat(200);
    let extra = json!({"authentication.kubernetes.io/node-name": [name]});
    let event = |instance: &str| json!({"reportingInstance": instance, "regarding": {"kind": "Pod", "name": "a"}});
    let say = |instance: &str| {
        let request = asks("CREATE", "x", USER, &extra);
        policy.validate(&Request {
            object: event(instance),
            old: Value::Null,
            request,
        })
    };
    assert_eq!(say(&name[..128]), Verdict::Allowed);
    denied(&say(&name[..127]), "reportingInstance");
}

/// A second installation would give its own agents the rights of those that are there.
#[test]
fn a_second_installation_is_refused() {
    let policy = policy("installation-policy");
    let binding = documents("deploy/base/rbac.yaml")
        .into_iter()
        .find(|one| one["kind"] == "ClusterRoleBinding");
    let binding = binding.unwrap();
    let admin = json!({"operation": "UPDATE", "name": "pinfold", "userInfo": {"username": "kubernetes-admin"}});
    let say = |object: &Value| {
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
        &say(&second),
        "gives rights to pinfold/pinfold, and this change would take them away",
    );
    assert_eq!(say(&binding), Verdict::Allowed);
    // An account more takes nothing away.
    let mut wider = binding.clone();
    wider["subjects"]
        .as_array_mut()
        .unwrap()
        .push(json!({"kind": "User", "name": "a"}));
    assert_eq!(say(&wider), Verdict::Allowed);
    let mut none = binding.clone();
    none.as_object_mut().unwrap().remove("subjects");
    denied(&say(&none), "take them away");
}

/// A right of all verbs is an administrator's, who is no agent.
#[test]
fn an_administrator_is_not_restricted() {
    let mut objects = documents("deploy/base/rbac.yaml");
    let policy = Policy::new(&documents("deploy/base/node-policy.yaml")[0]);
    let create = Request {
        object: node(json!({})),
        old: Value::Null,
        request: asks("CREATE", "node-b", USER, &json!({})),
    };
    let policy = policy.beside(&objects);
    assert!(matches!(policy.validate(&create), Verdict::Denied(..)));
    let role = objects
        .iter_mut()
        .find(|one| one["kind"] == "ClusterRole")
        .unwrap();
    role["rules"] = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    assert_eq!(
        policy.beside(&objects).validate(&create),
        Verdict::NotMatched
    );
}

#[test]
fn the_policy_knows_the_labels_of_plans() {
    let policy = &documents("deploy/base/node-policy.yaml")[0];
    let ours = policy["spec"]["variables"][0]["expression"]
        .as_str()
        .unwrap();
    let keys = LabelKeys::default();
    assert_eq!(
        ours,
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
fn claims_are_made_and_given_back_for_the_own_node_only() {
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
            "metadata": {"name": "scene.a.1.2.0", "labels": {NODE_LABEL: uid}, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": owner, "uid": uid}]},
            "spec": {"holderIdentity": holder},
        })
    };
    let own = lease(name, uid, name);
    let say = |operation: &str, object: Value, old: Value, extra: &Value| {
        policy.validate(&Request {
            object,
            old,
            request: asks(operation, "scene.a.1.2.0", USER, extra),
        })
    };
    let extra = &user["extra"];
    assert_eq!(
        say("CREATE", own.clone(), Value::Null, extra),
        Verdict::Allowed
    );
    assert_eq!(
        say("DELETE", Value::Null, own.clone(), extra),
        Verdict::Allowed
    );
    denied(
        &say("UPDATE", own.clone(), own.clone(), extra),
        "never changes",
    );
    let foreign = lease("node-b", uid, name);
    denied(
        &say("CREATE", foreign.clone(), Value::Null, extra),
        "own node only",
    );
    denied(&say("DELETE", Value::Null, foreign, extra), "own node only");
    // The Node was made anew under its name, and the token still has the uid of the one before.
    let anew = lease(name, "another", name);
    assert_eq!(
        say("CREATE", anew.clone(), Value::Null, extra),
        Verdict::Allowed
    );
    assert_eq!(
        say("DELETE", Value::Null, anew.clone(), extra),
        Verdict::Allowed
    );
    // By its label a claim is found again: it says the same as the owner.
    for labels in [
        json!(null),
        json!({}),
        json!({"x": uid}),
        json!({NODE_LABEL: uid}),
    ] {
        let mut astray = anew.clone();
        astray["metadata"]["labels"] = labels.clone();
        if labels.is_null() {
            astray["metadata"].as_object_mut().unwrap().remove("labels");
        }
        denied(
            &say("CREATE", astray.clone(), Value::Null, extra),
            "pinfold.io/node-uid",
        );
        // What is there may go.
        assert_eq!(say("DELETE", Value::Null, astray, extra), Verdict::Allowed);
    }
    denied(
        &say("CREATE", lease(name, uid, "node-b"), Value::Null, extra),
        "holder",
    );
    let mut orphan = own.clone();
    orphan["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("ownerReferences");
    denied(&say("CREATE", orphan, Value::Null, extra), "own node only");
    let mut shared = own.clone();
    shared["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(json!({"kind": "Node", "name": "b"}));
    denied(&say("CREATE", shared, Value::Null, extra), "own node only");
    denied(
        &say("CREATE", own, Value::Null, &json!({})),
        "bound to none",
    );
}

#[test]
fn a_recorded_exchange_is_answered_as_it_was() {
    let theirs = Policy::new(&documents("tests/data/policies/vap-node-agent.yaml")[0]);
    // The same rules under our account's name: the recorded agents set no other label.
    let ours = policy("node-policy");
    let bound = review();
    let before = json!({"metadata": {"name": "bench-node", "labels": {"kubernetes.io/os": "linux"}}, "spec": {}});
    let mut checked = 0;
    for entry in fs::read_dir(here("tests/data/policies")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        // A Node that is not there is refused before any policy is asked.
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
            (&theirs, bound["username"].as_str().unwrap()),
            (&ours, USER),
        ] {
            let request = Request {
                object: after.clone(),
                old: before.clone(),
                request: asks("UPDATE", name, user, &extra),
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
            if let (Verdict::Denied(message, _), true) = (&verdict, std::ptr::eq(policy, &theirs)) {
                assert!(response.contains(message.as_str()), "{file}: {message}");
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 8);
}

/// A merge patch; an apply of these objects is the same, where nobody else has the labels.
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
