//! The writer of the ScenePlans' status, with the shipped permissions of the reclaimer.

use std::time::Duration;

use kube::core::params::{Patch, PatchParams};
use kube::core::request::Request;
use pinfold::cluster::plan_status::{PlanStatusSettings, PlanStatusWriter};
use pinfold::cluster::scenes::{Phase, SceneSettings};
use pinfold::cluster::{Api, Call, ErrorKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agents::{Agent, NAMESPACE, claims, cluster, eventually, put_node};
use crate::fakeapi::{FakeApi, Fault, FaultScope};

const ACCOUNT: &str = "system:serviceaccount:pinfold:pinfold-reclaim";

/// A running writer.
struct RunningWriter {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

// === impl RunningWriter ===

impl RunningWriter {
    fn start(fake: &FakeApi) -> Self {
        fake.user("reclaimer", ACCOUNT);
        let api = Api::new(fake.client("reclaimer"), Duration::from_secs(10));
        let stop = CancellationToken::new();
        let until = stop.clone();
        let task = tokio::spawn(async move {
            PlanStatusWriter::new(api, NAMESPACE, PlanStatusSettings::default())
                .run(&until)
                .await;
        });
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn installed() -> FakeApi {
    let fake = cluster();
    for file in ["rbac", "policy"] {
        fake.install(&format!("deploy/components/reclaim/{file}.yaml"));
    }
    fake
}

/// A plan whose case has `count` slots.
fn plan(name: &str, count: u32, generation: u64) -> Value {
    json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation},
        "spec": {
            "nodes": {"selector": {"matchLabels": {"pool": "train"}}},
            "active": {"scene": "1", "case": "1"},
            "scenes": [{"scene": "1", "groups": [{"name": "mixed"}], "cases": [{"case": "1", "nodes": {"mixed": count}}]}],
        },
    })
}

fn stored(fake: &FakeApi, name: &str) -> Value {
    fake.get("pinfold.io/v1alpha1", "ScenePlan", "", name)
        .unwrap()
}

/// The status and the reason of a condition: `True AllReady`.
fn condition(fake: &FakeApi, name: &str, kind: &str) -> String {
    let plan = stored(fake, name);
    let conditions = plan["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |condition| {
        let text = |key: &str| condition[key].as_str().unwrap().to_owned();
        format!("{} {}", text("status"), text("reason"))
    })
}

fn status_writes(fake: &FakeApi) -> usize {
    let log = fake.log();
    log.iter()
        .filter(|logged| logged.user == ACCOUNT && matches!(&*logged.verb, "apply" | "patch"))
        .count()
}

/// A claim as an agent makes it.
fn put_claim(fake: &FakeApi, name: &str, node: &str) {
    let uid = format!("uid-{node}");
    fake.put(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {
            "app.kubernetes.io/managed-by": "pinfold", "pinfold.io/node-uid": uid,
        }, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]},
        "spec": {"holderIdentity": node},
    }));
}

/// The thief of the token of node a's agent claims every slot.
#[tokio::test(start_paused = true)]
async fn one_claim_of_each_node_counts_and_the_others_are_removed() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    put_node(&fake, "b", "uid-b");
    fake.put(&plan("p", 3, 1));
    let mut agent = Agent::start(&fake, "a", SceneSettings::default());
    agent
        .until("a slot", |state| {
            state.phase == Phase::Placed && !state.labels.is_empty()
        })
        .await;
    let own = agent.state().claims.first().unwrap().clone();
    for index in 0..3 {
        let name = format!("scene.p.1.1.{index}");
        if name != own {
            put_claim(&fake, &name, "a");
        }
    }
    let writer = RunningWriter::start(&fake);
    eventually("a report", || {
        condition(&fake, "p", "Conflicted") == "True SurplusClaims"
    })
    .await;
    assert_eq!(stored(&fake, "p")["status"]["claimed"], "1/3");
    assert_eq!(
        claims(&fake).len(),
        3,
        "an agent may need a moment after a lost answer"
    );
    let started = tokio::time::Instant::now();
    eventually("the removal", || claims(&fake).len() == 1).await;
    assert!(
        started.elapsed() > Duration::from_secs(50),
        "{:?}",
        started.elapsed()
    );
    assert!(claims(&fake).contains_key(&own));
    eventually("peace", || {
        condition(&fake, "p", "Conflicted") == "False NoConflict"
    })
    .await;
    let mut other = Agent::start(&fake, "b", SceneSettings::default());
    other
        .until("a slot", |state| state.phase == Phase::Placed)
        .await;
    writer.end().await;
}

/// A node that changes its slot holds a claim of each case for as long as its pods run.
#[tokio::test(start_paused = true)]
async fn a_node_between_two_cases_keeps_both_claims() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    let mut two = plan("p", 1, 1);
    two["spec"]["scenes"][0]["cases"] =
        json!([{"case": "1", "nodes": {"mixed": 1}}, {"case": "2", "nodes": {"mixed": 1}}]);
    two["spec"]["active"]["case"] = json!("2");
    fake.put(&two);
    let mut node = fake.get("v1", "Node", "", "a").unwrap();
    for (key, value) in [("SCENCE", "1"), ("CASE", "1"), ("INDEX", "0")] {
        node["metadata"]["labels"][key] = json!(value);
    }
    node["metadata"]["resourceVersion"] = Value::Null;
    fake.put(&node);
    for name in ["scene.p.1.1.0", "scene.p.1.2.0"] {
        put_claim(&fake, name, "a");
    }
    let writer = RunningWriter::start(&fake);
    eventually("a status", || {
        condition(&fake, "p", "Placed") == "False Labelling"
    })
    .await;
    // Each change starts a pass.
    for name in ["b", "c"] {
        tokio::time::sleep(Duration::from_secs(300)).await;
        put_node(&fake, name, &format!("uid-{name}"));
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(condition(&fake, "p", "Conflicted"), "False NoConflict");
    assert_eq!(claims(&fake).len(), 2);
    writer.end().await;
}

/// Without a reclaimer, the next agent gives up the claims that it does not need, those on slots of
/// other plans included.
#[tokio::test(start_paused = true)]
async fn the_next_agent_gives_up_surplus_claims() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 3, 1));
    let mut agent = Agent::start(&fake, "a", SceneSettings::default());
    agent
        .until("a slot", |state| {
            state.phase == Phase::Placed && !state.labels.is_empty()
        })
        .await;
    let own = agent.state().claims.first().unwrap().clone();
    agent.end().await;
    for name in [
        "scene.p.1.1.0",
        "scene.p.1.1.1",
        "scene.p.1.1.2",
        "scene.q.1.1.0",
    ] {
        if name != own {
            put_claim(&fake, name, "a");
        }
    }
    let agent = Agent::start(&fake, "a", SceneSettings::default());
    let waited = eventually("the release", || claims(&fake).len() == 1).await;
    assert!(waited < Duration::from_secs(600), "{waited:?}");
    assert!(claims(&fake).contains_key(&own));
    agent.end().await;
}

/// A thief claims a thousand slots. The writer removes them in several passes.
#[tokio::test(start_paused = true)]
async fn a_thousand_surplus_claims_are_removed() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1000, 1));
    for index in 0..1000 {
        put_claim(&fake, &format!("scene.p.1.1.{index}"), "a");
    }
    let writer = RunningWriter::start(&fake);
    let waited = eventually("the removal", || claims(&fake).len() == 1).await;
    assert!(waited < Duration::from_secs(180), "{waited:?}");
    writer.end().await;
}

/// A refused removal is tried again each minute, without an attempt for each claim.
#[tokio::test(start_paused = true)]
async fn a_refused_removal_waits() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 5, 1));
    for index in 0..5 {
        put_claim(&fake, &format!("scene.p.1.1.{index}"), "a");
    }
    fake.fail(
        FaultScope::always().verb("delete").on("leases"),
        Fault::Refuse {
            code: 403,
            text: "no",
            retry_after: None,
        },
    );
    let writer = RunningWriter::start(&fake);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let log = fake.log();
    let tries = log.iter().filter(|logged| logged.verb == "delete").count();
    assert!((7..=10).contains(&tries), "{tries} tries in 10 minutes");
    assert_eq!(claims(&fake).len(), 5);
    fake.heal();
    eventually("the removal", || claims(&fake).len() == 1).await;
    assert!(claims(&fake).contains_key("scene.p.1.1.0"));
    writer.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_follows_claims_and_labels() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    put_node(&fake, "b", "uid-b");
    fake.put(&plan("p", 2, 1));
    let writer = RunningWriter::start(&fake);
    eventually("a status without claims", || {
        condition(&fake, "p", "Placed") == "False Claiming"
    })
    .await;
    let status = stored(&fake, "p")["status"].clone();
    assert_eq!(status["claimed"], "0/2");
    assert_eq!(
        status["slots"],
        json!({"wanted": 2, "claimed": 0, "ready": 0})
    );
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(condition(&fake, "p", "Accepted"), "True Valid");

    let mut agents: Vec<Agent> = ["a", "b"]
        .map(|node| Agent::start(&fake, node, SceneSettings::default()))
        .into();
    for agent in &mut agents {
        agent
            .until("a slot", |state| state.phase == Phase::Placed)
            .await;
    }
    eventually("a placed plan", || {
        condition(&fake, "p", "Placed") == "True AllReady"
    })
    .await;
    let plan = stored(&fake, "p");
    assert_eq!(plan["status"]["claimed"], "2/2");
    assert_eq!(condition(&fake, "p", "Conflicted"), "False NoConflict");
    assert_eq!(
        plan["metadata"]["generation"], 1,
        "a status is no change of the plan"
    );
    for agent in agents {
        agent.end().await;
    }
    writer.end().await;
}

/// A cluster with a node and the plan `p`, a minute after the writer wrote the status.
async fn one_plan_at_rest() -> (FakeApi, RunningWriter) {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    let writer = RunningWriter::start(&fake);
    eventually("a status", || !condition(&fake, "p", "Placed").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    (fake, writer)
}

/// Without changes, and after heartbeats of the nodes, the writer sends no write.
#[tokio::test(start_paused = true)]
async fn at_rest_and_after_a_restart_nothing_is_written() {
    let (fake, writer) = one_plan_at_rest().await;
    let writes = status_writes(&fake);
    for beat in 0..20 {
        let mut node = fake.get("v1", "Node", "", "a").unwrap();
        node["status"]["conditions"] = json!([{"type": "Ready", "lastHeartbeatTime": beat}]);
        node["metadata"]["resourceVersion"] = Value::Null;
        fake.put(&node);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(status_writes(&fake), writes);
    writer.end().await;
    // The next writer finds the status as it should be.
    let writer = RunningWriter::start(&fake);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(status_writes(&fake), writes);
    writer.end().await;
}

/// Each write reaches every agent, so a change of a large case must need few writes.
#[tokio::test(start_paused = true)]
async fn a_thousand_claims_need_few_writes() {
    let fake = installed();
    fake.put(&plan("p", 1000, 1));
    let writer = RunningWriter::start(&fake);
    eventually("a status", || !condition(&fake, "p", "Placed").is_empty()).await;
    let before = status_writes(&fake);
    for index in 0..1000 {
        let (node, uid) = (format!("n-{index}"), format!("uid-{index}"));
        put_node(&fake, &node, &uid);
        fake.put(&json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": format!("scene.p.1.1.{index}"), "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/managed-by": "pinfold"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
            },
            "spec": {"holderIdentity": node},
        }));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("all claims", || {
        stored(&fake, "p")["status"]["claimed"] == "1000/1000"
    })
    .await;
    // 50 s of claims, and a pause of 8 s between two writes.
    let writes = status_writes(&fake) - before;
    assert!((2..=9).contains(&writes), "{writes} writes");
    assert_eq!(condition(&fake, "p", "Placed"), "False Labelling");
    writer.end().await;
}

/// Stale data writes no status: not without the permission to read nodes, and not while the API server is away.
#[tokio::test(start_paused = true)]
async fn missing_data_writes_no_status() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    fake.fail(
        FaultScope::always().verb("list").on("nodes"),
        Fault::Refuse {
            code: 403,
            text: "no",
            retry_after: None,
        },
    );
    let writer = RunningWriter::start(&fake);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(status_writes(&fake), 0);
    fake.heal();
    eventually("a status", || !condition(&fake, "p", "Placed").is_empty()).await;
    writer.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_repeated_and_other_plans_get_their_status() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    let mut unreadable = plan("q", 1, 1);
    unreadable["spec"]["scenes"] = json!("later");
    fake.put(&unreadable);
    fake.fail(
        FaultScope::always().verb("patch").on("sceneplans").times(1),
        Fault::Refuse {
            code: 500,
            text: "etcd",
            retry_after: None,
        },
    );
    let writer = RunningWriter::start(&fake);
    eventually("a status of both plans", || {
        condition(&fake, "p", "Accepted") == "True Valid"
            && condition(&fake, "q", "Accepted") == "False Unreadable"
    })
    .await;
    writer.end().await;
}

/// The server also answers 409 if other writes to the plan come in between, and no later change
/// would then cause a second try.
#[tokio::test(start_paused = true)]
async fn a_write_after_a_conflict_is_repeated() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    fake.fail(
        FaultScope::always().verb("patch").on("sceneplans").times(2),
        Fault::Refuse {
            code: 409,
            text: "the object has been modified",
            retry_after: None,
        },
    );
    let writer = RunningWriter::start(&fake);
    let waited = eventually("a status", || {
        condition(&fake, "p", "Accepted") == "True Valid"
    })
    .await;
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    writer.end().await;
}

/// A plan that is deleted before the write needs no second try.
#[tokio::test(start_paused = true)]
async fn a_plan_deleted_before_the_write_is_no_failure() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    let slow = FaultScope::always().verb("patch").on("sceneplans");
    fake.fail(slow, Fault::Delay(Duration::from_secs(5)));
    let writer = RunningWriter::start(&fake);
    eventually("a write in flight", || status_writes(&fake) == 1).await;
    fake.remove(&stored(&fake, "p"));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(status_writes(&fake), 1);
    assert_eq!(fake.all("pinfold.io/v1alpha1", "ScenePlan").len(), 0);
    // The writer still works.
    fake.heal();
    fake.put(&plan("q", 1, 1));
    eventually("a status", || {
        condition(&fake, "q", "Accepted") == "True Valid"
    })
    .await;
    writer.end().await;
}

/// Many changes within seconds are merged into few writes, and the last change counts.
#[tokio::test(start_paused = true)]
async fn changes_in_a_burst_are_merged() {
    let (fake, writer) = one_plan_at_rest().await;
    let before = status_writes(&fake);
    for count in 2..102 {
        fake.put(&plan("p", count, u64::from(count)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("the last change", || {
        stored(&fake, "p")["status"]["claimed"] == "0/101"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes = status_writes(&fake) - before;
    assert!((1..=3).contains(&writes), "{writes} writes");
    writer.end().await;
}

/// Two writers, as of two reclaimers, come to rest.
#[tokio::test(start_paused = true)]
async fn two_writers_agree() {
    let fake = installed();
    put_node(&fake, "a", "uid-a");
    fake.put(&plan("p", 1, 1));
    let writers = [RunningWriter::start(&fake), RunningWriter::start(&fake)];
    eventually("a status", || !condition(&fake, "p", "Placed").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes = status_writes(&fake);
    assert!((1..=4).contains(&writes), "{writes} writes");
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(status_writes(&fake), writes);
    for writer in writers {
        writer.end().await;
    }
}

/// Only the reclaimer writes a status, and it writes nothing else of a plan.
#[tokio::test]
async fn only_the_reclaimer_may_write_the_status() {
    let fake = installed();
    fake.put(&plan("p", 1, 1));
    put_node(&fake, "a", "uid-a");
    fake.user("reclaimer", ACCOUNT);
    let apply = async |token: &str, subresource: Option<&str>| {
        let plans = Request::new("/apis/pinfold.io/v1alpha1/sceneplans");
        let object = json!({
            "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p"},
            "status": {"claimed": "7/7"},
        });
        let (params, patch) = (PatchParams::apply("test").force(), Patch::Apply(&object));
        let request = match subresource {
            Some(subresource) => plans.patch_subresource(subresource, "p", &params, &patch),
            None => plans.patch("p", &params, &patch),
        };
        let api = Api::new(fake.client(token), Duration::from_secs(10));
        let answer = api.ask::<Value>(Call::Other, request.unwrap()).await;
        answer.map(drop).map_err(|failure| failure.kind())
    };
    let agent = fake.agent_on("a");
    assert_eq!(
        apply(&agent, Some("status")).await,
        Err(ErrorKind::Forbidden)
    );
    assert_eq!(apply("reclaimer", None).await, Err(ErrorKind::Forbidden));
    assert_eq!(stored(&fake, "p")["status"], Value::Null);
    assert_eq!(apply("reclaimer", Some("status")).await, Ok(()));
    assert_eq!(stored(&fake, "p")["status"]["claimed"], "7/7");
}
