//! Admission policies in the fake API server: recorded answers of a real server, and the effect of the shipped policies on an
//! agent.

use pinfold::cluster::scenes::{Phase, SceneSettings};
use serde_json::json;

use crate::agents::{Agent, NAMESPACE, claims, cluster, place, put_node};
use crate::fakeapi::ACCOUNT;
use crate::replay::{answer_of, fresh, holds_except};

#[tokio::test]
async fn writes_are_refused_as_by_a_real_server() {
    const AGENT: &str = "system:serviceaccount:default:agent-any";
    let file = |name: &str| format!("../policies/vap-{name}.http");
    let api = fresh(1, "").await;
    api.install("tests/data/policies/vap-node-agent.yaml");
    api.allow(AGENT, &["get", "patch"], "", "nodes", &[]);
    api.user_on_node("bound", AGENT, "bench-node");
    api.user("unbound", AGENT);
    // The Node's state before the agent's apply.
    let mut node = answer_of(&file("own-node-own-labels-200"));
    node["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .shift_remove("SCENCE");
    node["metadata"]["managedFields"]
        .as_array_mut()
        .unwrap()
        .retain(|entry| entry["manager"] != "agent");
    node["metadata"]["resourceVersion"] = json!("1190");
    api.put(&node);
    api.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench-vm"}}));
    for refused in [
        "annotation-422",
        "cordon-422",
        "nonexistent-node",
        "other-node-403",
        "own-node-foreign-label-422",
        "remove-foreign-label-422",
    ] {
        holds_except(&api, &file(refused), Some("bound"), &[]).await;
    }
    holds_except(&api, &file("unbound-token-403"), Some("unbound"), &[]).await;
    assert_eq!(api.revision(), 1191, "nothing was written");
    // Only in this recording, the server omitted the time of the agent's entry in `managedFields`.
    let without_managers = ["/metadata/managedFields"];
    holds_except(
        &api,
        &file("own-node-own-labels-200"),
        Some("bound"),
        &without_managers,
    )
    .await;
    api.set_revision(1193);
    holds_except(
        &api,
        &file("apply-empty-removes-own-labels"),
        Some("bound"),
        &without_managers,
    )
    .await;
}

/// An agent with the token of another node can't take a slot, and reports why.
#[tokio::test(start_paused = true)]
async fn a_token_of_another_node_gets_no_slot() {
    let fake = cluster();
    put_node(&fake, "a", "uid-a");
    fake.put(&json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p"},
        "spec": {
            "nodes": {"selector": {"matchLabels": {"pool": "train"}}}, "active": {"scene": "1", "case": "1"},
            "scenes": [{"scene": "1", "groups": [{"name": "w"}], "cases": [{"case": "1", "nodes": {"w": 1}}]}],
        },
    }));
    let mut agent = Agent::start(&fake, "a", SceneSettings::default());
    // As if the agent's pod was recreated on node b and kept the node name a.
    fake.user_on_node("token-of-a", ACCOUNT, "b");
    agent
        .until("a refusal", |state| state.says.contains("denied request"))
        .await;
    let state = agent.state();
    assert_ne!(state.phase, Phase::Placed);
    assert!(state.says.contains("the agent of node b"), "{}", state.says);
    let node = || fake.get("v1", "Node", "", "a").unwrap();
    assert_eq!((place(&node()), claims(&fake).len()), (None, 0));
    // With its own token, the agent continues without a restart.
    fake.agent_on("a");
    agent
        .until("a place", |state| state.phase == Phase::Placed)
        .await;
    assert_eq!(
        (place(&node()).as_deref(), claims(&fake).len()),
        (Some("1/1/0"), 1)
    );
    let names = claims(&fake).into_keys().collect::<Vec<_>>();
    assert!(
        fake.get("coordination.k8s.io/v1", "Lease", NAMESPACE, &names[0])
            .is_some()
    );
    agent.end().await;
}
