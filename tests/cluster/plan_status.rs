//! The writer of the ScenePlans' status, with the shipped permissions of the reclaimer.

use std::time::Duration;

use kube::core::params::{Patch, PatchParams};
use kube::core::request::Request;
use pinfold::cluster::plan_status::{PlanStatusSettings, PlanStatusWriter};
use pinfold::cluster::scenes::{Phase, SceneSettings};
use pinfold::cluster::{Api, Call, ErrorKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agents::{Agent, NAMESPACE, cluster, eventually, put_node};
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
    fake.install("deploy/components/reclaim/rbac.yaml");
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

/// Each write reaches every agent. A change of a large case therefore needs few writes.
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

/// The server also answers 409 if other writes to the plan come in between. No later change would cause a second try.
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

/// Two writers, as after the suspension of a leader, come to rest.
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

/// Only the reclaimer writes a status, and the reclaimer writes nothing else of a plan.
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
