//! The task that reads this node's Node: the CPUs that the scheduler counts, and the startup taint.

use std::sync::Arc;
use std::time::Duration;

use pinfold::cluster::node_reader::{InStep, NodeReader, NodeReports, StartupTaint};
use pinfold::cluster::scenes::{Phase, SceneSettings};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::agents::{Agent, client, cluster, eventually, put_node, remove_node, writes};
use crate::fakeapi::{ACCOUNT, FakeApi, Fault, FaultScope};

/// The longest wait for the first read.
const FIRST: Duration = Duration::from_secs(11);

/// A reader of the Node `a`, with the rights and under the policies of an agent.
struct Reader {
    in_step: watch::Sender<InStep>,
    restarted: Arc<Notify>,
    reports: NodeReports,
}

// === impl Reader ===

impl Reader {
    fn start(fake: &FakeApi, in_step: InStep) -> Self {
        let (in_step, known) = watch::channel(in_step);
        let restarted = Arc::new(Notify::new());
        let (reader, reports) =
            NodeReader::new(client(fake, "a"), "a", known, Arc::clone(&restarted));
        tokio::spawn(reader.run());
        Self {
            in_step,
            restarted,
            reports,
        }
    }

    fn taint(&self) -> StartupTaint {
        self.reports.startup_taint.borrow().clone()
    }

    async fn refusal(&mut self) -> String {
        let refused = |taint: &StartupTaint| matches!(taint, StartupTaint::Refused(_));
        let state = self.reports.startup_taint.wait_for(refused).await.unwrap();
        let StartupTaint::Refused(why) = state.clone() else {
            panic!("{state:?}")
        };
        why
    }
}

fn startup_taint(effect: &str) -> Value {
    json!({"key": "pinfold.io/agent-not-ready", "value": "x", "effect": effect})
}

fn other_taints() -> [Value; 2] {
    [
        json!({"key": "gpu", "value": "no", "effect": "NoSchedule", "timeAdded": "2026-11-20T16:00:00Z"}),
        json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}),
    ]
}

/// Stores the Node `a` with these taints.
fn put_tainted(fake: &FakeApi, uid: &str, taints: &[Value]) {
    put_node(fake, "a", uid);
    set_taints(fake, taints);
}

fn set_taints(fake: &FakeApi, taints: &[Value]) {
    let mut node = fake.get("v1", "Node", "", "a").unwrap();
    node["spec"]["taints"] = json!(taints);
    node["metadata"]["resourceVersion"] = Value::Null;
    fake.put(&node);
}

fn taints(fake: &FakeApi) -> Value {
    fake.get("v1", "Node", "", "a").unwrap()["spec"]["taints"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_startup_taint_is_removed_as_soon_as_the_agent_is_in_step() {
    for effect in ["NoSchedule", "NoExecute", "PreferNoSchedule"] {
        let fake = cluster();
        let [first, last] = other_taints();
        put_tainted(
            &fake,
            "uid-a",
            &[first.clone(), startup_taint(effect), last.clone()],
        );
        let reader = Reader::start(&fake, Err("no".to_owned()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((reader.taint(), writes(&fake)), (StartupTaint::Awaited, 0));
        reader.in_step.send(Ok(())).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(taints(&fake), json!([first, last]), "{effect}");
        assert_eq!(reader.taint(), StartupTaint::Absent);
        assert_eq!(writes(&fake), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_taint_is_read_seldom_and_never_written() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &other_taints());
    let reader = Reader::start(&fake, Ok(()));
    tokio::time::sleep(FIRST).await;
    assert_eq!(fake.count("get", "nodes"), 1);
    let cpus = reader.reports.allocatable.borrow().unwrap();
    assert_eq!(cpus.millicores, 8000);
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    // A day has 96 quarters of an hour.
    let reads = fake.count("get", "nodes");
    assert!((70..=130).contains(&reads), "{reads} reads");
    assert_eq!((writes(&fake), fake.count("", "")), (0, reads));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_resolved_by_a_new_read() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    let conflict = Fault::Refuse {
        code: 409,
        text: r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Operation cannot be fulfilled on nodes \"a\": the object has been modified","reason":"Conflict","code":409}"#,
        retry_after: None,
    };
    let patches = FaultScope::always().verb("patch").on("nodes");
    fake.fail(patches.times(3), conflict);
    let reader = Reader::start(&fake, Ok(()));
    tokio::time::sleep(FIRST + Duration::from_secs(1)).await;
    assert_eq!(taints(&fake), json!([]));
    assert_eq!(reader.taint(), StartupTaint::Absent);
    assert_eq!(fake.count("get", "nodes"), 4);
}

/// A kubelet that starts and finds no Node makes one, with the taint.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_with_the_taint_loses_it_again() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    let reader = Reader::start(&fake, Ok(()));
    eventually("the taint is gone", || taints(&fake) == json!([])).await;
    remove_node(&fake, "a");
    reader.restarted.notify_one();
    tokio::time::sleep(Duration::from_secs(30)).await;
    put_tainted(&fake, "uid-b", &[startup_taint("NoSchedule")]);
    let begun = Instant::now();
    eventually("the new taint is gone", || taints(&fake) == json!([])).await;
    assert!(begun.elapsed() <= Duration::from_secs(61), "{begun:?}");
    // Without a restart, the agent still notices within its interval, here of a taint that somebody has set by hand.
    set_taints(&fake, &[startup_taint("NoSchedule")]);
    tokio::time::sleep(Duration::from_secs(1400)).await;
    assert_eq!(taints(&fake), json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_one_error_with_the_remedy() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    // A role of an administrator's own that only reads Nodes.
    fake.forbid(ACCOUNT);
    fake.allow(ACCOUNT, &["get"], "", "nodes", &[]);
    let mut reader = Reader::start(&fake, Ok(()));
    let why = reader.refusal().await;
    for part in [
        "Node a keeps the taint pinfold.io/agent-not-ready",
        "cannot patch resource \"nodes\"",
        "rbac.yaml",
        "kubectl taint node a pinfold.io/agent-not-ready-",
    ] {
        assert!(why.contains(part), "{why}");
    }
    // The agent goes on, and tries more and more seldom.
    fake.clear_log();
    tokio::time::sleep(Duration::from_secs(6 * 3600)).await;
    let tries = fake.count("patch", "nodes");
    assert!((15..=60).contains(&tries), "{tries} tries");
    assert_eq!(reader.taint(), StartupTaint::Refused(why));
    fake.allow(ACCOUNT, &["patch"], "", "nodes", &[]);
    eventually("the taint is gone", || taints(&fake) == json!([])).await;
    assert_eq!(reader.taint(), StartupTaint::Absent);
}

/// The policy of an earlier version does not let agents change the taint.
#[tokio::test(start_paused = true)]
async fn a_policy_that_refuses_the_removal_is_named() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    let denied = Fault::Refuse {
        code: 422,
        text: "an agent may set the taints pinfold.io/scene only",
        retry_after: None,
    };
    fake.fail(FaultScope::always().verb("patch").on("nodes"), denied);
    let mut reader = Reader::start(&fake, Ok(()));
    let why = reader.refusal().await;
    for part in [
        "pinfold.io/scene only",
        "policy pinfold-node of this version",
    ] {
        assert!(why.contains(part), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_tried_again_soon_and_the_last_amount_stays() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    let broken = FaultScope::always().verb("get").on("nodes");
    fake.fail(broken.clone().times(3), Fault::Drop);
    let reader = Reader::start(&fake, Ok(()));
    // The waits after failures are at most 1 s, 2 s and 4 s.
    tokio::time::sleep(FIRST + Duration::from_secs(7)).await;
    assert_eq!(taints(&fake), json!([]));
    let cpus = || reader.reports.allocatable.borrow().unwrap().millicores;
    assert_eq!(cpus(), 8000);
    fake.fail(broken, Fault::Drop);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(cpus(), 8000);
}

/// The task that keeps the slot also writes taints, and has to leave the startup taint alone.
#[tokio::test(start_paused = true)]
async fn a_scene_does_not_touch_the_startup_taint() {
    let fake = cluster();
    put_tainted(&fake, "uid-a", &[startup_taint("NoSchedule")]);
    let plan = |active: Value, generation: u64| {
        json!({
            "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan",
            "metadata": {"name": "p", "generation": generation},
            "spec": {
                "nodes": {"selector": {"matchLabels": {"pool": "train"}}}, "active": active, "taint": {},
                "scenes": [{"scene": "1", "groups": [{"name": "w"}], "cases": [{"case": "1", "nodes": {"w": 1}}]}],
            },
        })
    };
    fake.put(&plan(json!({"scene": "1", "case": "1"}), 1));
    let mut agent = Agent::start(&fake, "a", SceneSettings::default());
    let scene = json!({"key": "pinfold.io/scene", "effect": "NoSchedule"});
    eventually("the taint of the scene", || {
        taints(&fake) == json!([startup_taint("NoSchedule"), scene])
    })
    .await;
    let reader = Reader::start(&fake, Ok(()));
    eventually("only the startup taint is gone", || {
        taints(&fake) == json!([scene])
    })
    .await;
    drop(reader);
    set_taints(&fake, &[startup_taint("NoSchedule"), scene]);
    fake.put(&plan(Value::Null, 2));
    agent
        .until("no slot", |state| {
            state.phase == Phase::Free && state.claims.is_empty()
        })
        .await;
    assert_eq!(taints(&fake), json!([startup_taint("NoSchedule")]));
    agent.end().await;
}
