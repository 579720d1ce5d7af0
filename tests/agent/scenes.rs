//! The Node's place in a scene: the program, the real kernel, and a fake API server on a real
//! socket.

use pinfold::host::cgroup::NoteSubject;
use pinfold::scene::definition;
use serde_json::{Value, json};

use crate::agent::{assigned, in_force, pinfold};
use crate::api::{Cluster, NODE, long, pod, two_reconciles};
use crate::kernel::{allowed, kernel_tests};

/// The objects for a labelled node: the definition, the Node, and a plan with one slot.
fn install(cluster: &Cluster) {
    cluster.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "pinfold"}}));
    cluster.put(&serde_json::to_value(definition()).unwrap());
    cluster.establish();
    cluster.put(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "uid": "uid-1", "labels": {"pool": "train"}},
        "spec": {}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi"}},
    }));
    cluster.put(&json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p"},
        "spec": {
            "nodes": {"selector": {"matchLabels": {"pool": "train"}}}, "active": {"scene": "2", "case": "3"},
            "scenes": [{"scene": "2", "groups": [{"name": "w", "type": "1"}], "cases": [{"case": "3", "nodes": {"w": 1}}]}],
        },
    }));
}

#[test]
fn a_node_gets_its_labels_and_release_removes_them() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    install(&cluster);
    cluster.put(&pod("worker-0", NODE));
    let labels = || cluster.fake.get("v1", "Node", "", NODE).unwrap()["metadata"]["labels"].clone();
    let place = json!({"pool": "train", "SCENCE": "2", "CASE": "3", "INDEX": "0", "TYPE": "1"});
    let claims = || cluster.fake.all("coordination.k8s.io/v1", "Lease");

    let agent = cluster.settings(&tree, &kernel).start();
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    let status = agent.within(long(), "the node has a slot", |status| {
        status["cluster"]["scene"]["phase"] == "placed"
    });
    assert_eq!(
        status["cluster"]["scene"]["slot"],
        json!({"scene": "2", "case": "3", "type": "1", "index": 0})
    );
    assert_eq!(labels(), place);
    let claim = claims();
    assert_eq!(claim.len(), 1);
    assert_eq!(
        claim[0]["metadata"]["ownerReferences"][0]["uid"],
        json!("uid-1")
    );
    assert!(
        cluster.event(&agent, "Labelled", NODE).contains("scene 2"),
        "{:?}",
        cluster.events()
    );
    let slot = [
        ("plan", "p"),
        ("scene", "2"),
        ("case", "3"),
        ("type", "1"),
        ("index", "0"),
    ];
    assert_eq!(agent.metric("pinfold_scene_info", &slot), Some(1.0));
    assert_eq!(
        agent.metric("pinfold_scene_phase", &[("phase", "placed")]),
        Some(1.0)
    );

    // At rest nothing is written, and an end or a restart changes nothing.
    two_reconciles(&agent);
    cluster.fake.clear_log();
    two_reconciles(&agent);
    agent.stop();
    let agent = cluster.settings(&tree, &kernel).start();
    agent.within(long(), "the node has a slot", |status| {
        status["cluster"]["scene"]["phase"] == "placed"
    });
    agent.stop();
    assert_eq!(cluster.writes(), Vec::<String>::new());
    assert_eq!((labels(), allowed(pid)), (place, own));

    let release = |more: &[&str]| {
        let mut command = pinfold();
        command.args([
            "release",
            "--cluster",
            "--pod-cgroup",
            &tree.path,
            "--node-name",
            NODE,
            "-o",
            "json",
        ]);
        let output = command
            .args(["--kubeconfig", &cluster.kubeconfig()])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let planned = release(&["--dry-run"]);
    assert_eq!((claims().len(), planned["dryRun"] == true), (1, true));
    let done = release(&[]);
    assert_eq!(done["cluster"], planned["cluster"]);
    assert_eq!((labels(), claims().len()), (json!({"pool": "train"}), 0));
    assert_eq!(kernel.cgroups.assignment_record(&main).unwrap(), None);
    assert_eq!(release(&[])["steps"], json!([]));
    drop(tree);
}

#[test]
fn a_recreated_node_gets_its_old_slot() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    install(&cluster);
    // With twenty slots, the node hardly gets the same slot by chance. The slot is also not the first that the node would
    // try.
    let plan = |slots: u32| {
        json!({
            "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p"},
            "spec": {
                "nodes": {"selector": {"matchLabels": {"pool": "train"}}}, "active": {"scene": "2", "case": "3"},
                "scenes": [{"scene": "2", "groups": [{"name": "w", "type": "1"}], "cases": [{"case": "3", "nodes": {"w": slots}}]}],
            },
        })
    };
    let start = || cluster.settings(&tree, &kernel).start();
    let place = |status: &Value| status["cluster"]["scene"]["slot"]["index"].as_u64();
    let placed = |status: &Value| status["cluster"]["scene"]["phase"] == "placed";
    let agent = start();
    let first = agent.within(long(), "the node has a slot", placed);
    assert_eq!(place(&first), Some(0), "the plan has one slot");
    cluster.put(&plan(20));
    let forget = |uid: &str| {
        let node = cluster.fake.get("v1", "Node", "", NODE).unwrap();
        cluster.remove(&node);
        for claim in cluster.fake.all("coordination.k8s.io/v1", "Lease") {
            cluster.remove(&claim);
        }
        cluster.put(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE, "uid": uid, "labels": {"pool": "train"}},
            "spec": {}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi"}},
        }));
    };
    // The Node is deleted, with the labels, claims and the agent's pod; then everything is created again.
    agent.stop();
    forget("uid-2");
    let agent = start();
    assert_eq!(
        place(&agent.within(long(), "the node has a slot", placed)),
        Some(0),
        "the slot from before"
    );
    agent.stop();
    // A release leaves nothing to go by.
    let mut release = pinfold();
    release.args(["release", "--pod-cgroup", &tree.path]);
    assert!(release.output().unwrap().status.success());
    assert_eq!(
        kernel.cgroups.note("", NoteSubject::SceneSlot).unwrap(),
        None
    );
    forget("uid-3");
    let agent = start();
    assert_ne!(
        place(&agent.within(long(), "the node has a slot", placed)),
        Some(0),
        "a free choice would not give this slot"
    );
    agent.stop();
    assert!(release.output().unwrap().status.success());
    drop(tree);
}
