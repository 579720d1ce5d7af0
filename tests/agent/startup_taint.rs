//! A new node takes pods when its agent is in step: the program, a fake API server and a fake container runtime.

use serde_json::{Value, json};

use crate::agent::{container, pinfold};
use crate::api::{Cluster, NODE, long};
use crate::kernel::kernel_tests;
use crate::runtime::Synchronize;
use crate::runtime_requests::{Runtime, event_message, path};

#[test]
fn the_startup_taint_stays_until_the_runtime_has_reported_its_containers() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let startup = json!({"key": "pinfold.io/agent-not-ready", "effect": "NoSchedule"});
    let other = json!({"key": "gpu", "effect": "NoSchedule"});
    cluster.put(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "uid-1"},
        "spec": {"taints": [startup, other]}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi"}},
    }));
    let taints = || cluster.fake.get("v1", "Node", "", NODE).unwrap()["spec"]["taints"].clone();
    let mut runtime = Runtime::new();
    let settings = runtime.settings(&cluster.settings(&tree, &kernel));
    // Nobody accepts connections for some seconds, as before the runtime's start.
    let (socket, away) = (runtime.socket(), runtime.socket().with_extension("away"));
    std::fs::rename(&socket, &away).unwrap();
    let agent = settings.with(&["--enforcement", "observe"]).start();
    let taint = |status: &Value| status["cluster"]["startupTaint"].clone();
    let status = agent.within(long(), "the taint is seen", |status| {
        taint(status)
            .as_str()
            .is_some_and(|why| why.contains("runtime"))
    });
    assert!(
        taint(&status)
            .as_str()
            .unwrap()
            .contains("so new pods stay off it")
    );
    assert_eq!(taints(), json!([startup, other]));
    assert!(cluster.writes().is_empty(), "{:?}", cluster.writes());

    // A container that the runtime created before.
    let early = event_message(&tree, "early", 1);
    tree.make(&path(&early));
    tree.start(&path(&early));
    let existing = Synchronize {
        pods: early.pod.iter().cloned().collect(),
        containers: early.container.iter().cloned().collect(),
        more: false,
    };
    std::fs::rename(&away, &socket).unwrap();
    runtime.synchronize(&agent, 20_000, &existing);
    agent.within(long(), "the taint is gone", |status| {
        taint(status).is_null() && taints() == json!([other])
    });
    assert_eq!(cluster.writes(), [format!("patch nodes {NODE}")]);

    // A later container is created with variables.
    let mut late = event_message(&tree, "late", 1);
    runtime.change(1, &late);
    let names: Vec<String> = runtime.create(&late).env.into_keys().collect();
    assert!(
        names.iter().any(|name| name == "OMP_NUM_THREADS"),
        "{names:?}"
    );
    let annotations = &mut late.container.as_mut().unwrap().annotations;
    annotations.insert("pinfold.io/injected".to_owned(), names.join(","));
    tree.make(&path(&late));
    tree.start(&path(&late));
    runtime.change(6, &late);
    agent.eventually("both run", |status| {
        ["early", "late"]
            .iter()
            .all(|name| container(status, name, "main").is_some_and(|main| main["running"] == true))
    });
    let family = "pinfold_containers_without_thread_variables";
    assert_eq!(agent.metric(family, &[]), Some(1.0));
    let address = agent.address.to_string();
    let run = |arguments: &[&str]| {
        let output = pinfold().args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let status = run(&["status", "--node", &address]);
    assert!(
        status.contains("threads: 1 container runs without thread variables")
            && status.contains("(main of train/early)"),
        "{status}"
    );
    let explained = run(&["explain", "train/early", "--agent", &address]);
    assert!(
        explained.contains("no agent did so when the container was created"),
        "{explained}"
    );
    agent.stop();
}
