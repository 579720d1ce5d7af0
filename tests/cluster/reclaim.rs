//! `pinfold scene reclaim` deletes parameter servers only after every worker, or the chief, has succeeded.
//!
//! The objects come from `scene render`, with a Service for each task as in manifests that people write. The account's permissions and policy come from `deploy/components/reclaim`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pinfold::cluster::reclaim::{ReclaimRound, Reclaimer};
use pinfold::cluster::{Api, ErrorKind};
use pinfold::experiment::{AMOUNTS, RenderRequest, Slice, TrainingJob, WorkloadFormat, render};
use pinfold::scene::{
    ItemKind, JobOutcome, ReclaimAnnotations, ReclaimItem, ReclaimLabels, ReclaimVerdict,
    ScenePlan, read, reclaim,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope, yaml};

const ACCOUNT: &str = "system:serviceaccount:pinfold:pinfold-reclaim";

/// The native objects of a job in a case, and a Service for each task. The names are without scene and case here, which the
/// reclaimer doesn't know.
fn rendered(plan: &ScenePlan, (scene, case): (&str, &str), job: &TrainingJob) -> Vec<Value> {
    let rendered = render(&RenderRequest {
        plan,
        scene,
        case,
        job,
        format: WorkloadFormat::Native,
        slice: &Slice::default(),
        run: None,
        amounts: AMOUNTS,
    })
    .unwrap();
    let text = json!(rendered.objects).to_string();
    let text = text.replace(&rendered.name, job.name.as_deref().unwrap());
    let objects: Vec<Value> = serde_json::from_str(&text).unwrap();
    let with_service = |object: Value| {
        let is_task = ["Job", "Deployment"].contains(&object["kind"].as_str().unwrap());
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": object["metadata"],
            "spec": {"clusterIP": "None", "selector": object["spec"]["selector"]["matchLabels"]},
        });
        is_task.then_some(service).into_iter().chain([object])
    };
    objects.into_iter().flat_map(with_service).collect()
}

/// The objects of a job of scene 2, case 2: 50 workers, 5 parameter servers.
fn objects(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(yaml::here("deploy/examples/scenes.yaml")).unwrap();
    let plan = read(&text, "scenes.yaml").unwrap().remove(0).plan.unwrap();
    let file = format!("name: {name}\nnamespace: train\nimage: i\nscript: s\nreclaim: {{}}\n");
    let job = TrainingJob::read(&file, "job.yaml").unwrap().unwrap();
    rendered(&plan, ("2", "2"), &job)
}

/// The plan of a job with a chief, 2 workers, an evaluator and 2 parameter servers.
const WITH_CHIEF: &str = "
apiVersion: pinfold.io/v1alpha1
kind: ScenePlan
metadata: {name: chief}
spec:
  nodes: {names: [a, b, c]}
  roles:
    ps: {requests: {cpu: 1, memory: 1Gi}}
    chief: {requests: {cpu: 1, memory: 1Gi}}
    worker: {requests: {cpu: 1, memory: 1Gi}}
    evaluator: {requests: {cpu: 1, memory: 1Gi}}
  scenes:
  - scene: '1'
    groups:
    - {name: first, type: first, perNode: {chief: 1, evaluator: 1}}
    - {name: rest, type: rest, perNode: {ps: 1, worker: 1}}
    cases:
    - {case: '1', nodes: {first: 1, rest: 2}}
";

/// The objects of the job [`WITH_CHIEF`]. `chief` is the time in seconds since the chief succeeded, if any. All other Jobs run.
pub(crate) fn with_chief(name: &str, chief: Option<i64>) -> Vec<Value> {
    let plan = read(WITH_CHIEF, "plan.yaml")
        .unwrap()
        .remove(0)
        .plan
        .unwrap();
    let file = format!("name: {name}\nnamespace: train\nimage: i\nscript: s\nreclaim: {{}}\n");
    let job = TrainingJob::read(&file, "job.yaml").unwrap().unwrap();
    let mut all = rendered(&plan, ("1", "1"), &job);
    for object in &mut all {
        object["metadata"]["creationTimestamp"] = json!(ago(7200));
        match (object["kind"].as_str(), chief) {
            (Some("Job"), Some(seconds)) if role(object) == "chief" => {
                done(object, "Complete", seconds);
            }
            (Some("Job"), _) => object["status"] = json!({"active": 1, "startTime": ago(7100)}),
            _ => {}
        }
    }
    all
}

pub(crate) fn ago(seconds: i64) -> String {
    Timestamp::now()
        .checked_sub(SignedDuration::from_secs(seconds))
        .unwrap()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

pub(crate) fn role(object: &Value) -> &str {
    object["metadata"]["labels"]["job"]
        .as_str()
        .unwrap_or_default()
}

/// The objects of a job whose last worker succeeded `seconds` ago.
pub(crate) fn succeeded(name: &str, seconds: i64) -> Vec<Value> {
    let mut all = objects(name);
    for object in &mut all {
        object["metadata"]["creationTimestamp"] = json!(ago(seconds + 3600));
        if object["kind"] == "Job" {
            done(object, "Complete", seconds);
        }
    }
    all
}

pub(crate) fn done(job: &mut Value, condition: &str, seconds: i64) {
    job["status"] = json!({"conditions": [{"type": condition, "status": "True", "lastTransitionTime": ago(seconds)}]});
    if condition == "Complete" {
        job["status"]["completionTime"] = json!(ago(seconds));
        job["status"]["succeeded"] = json!(1);
    }
}

pub(crate) struct Cluster {
    pub(crate) fake: FakeApi,
}

impl Cluster {
    async fn new() -> Self {
        Self::of(FakeApi::start().await)
    }

    pub(crate) fn of(fake: FakeApi) -> Self {
        for file in ["rbac", "policy"] {
            fake.install(&format!("deploy/components/reclaim/{file}.yaml"));
        }
        fake.user("reclaimer", ACCOUNT);
        Self { fake }
    }

    pub(crate) fn put(&self, objects: &[Value]) {
        for object in objects {
            self.fake.put(object);
        }
    }

    /// A reclaimer without state, as in a new process.
    pub(crate) fn reclaimer(&self) -> Reclaimer {
        self.with(30, false)
    }

    fn with(&self, after: u32, dry_run: bool) -> Reclaimer {
        let api = Api::new(self.fake.client("reclaimer"), Duration::from_secs(60));
        Reclaimer::new(api, None, after, dry_run)
    }

    async fn once(&self) -> ReclaimRound {
        self.reclaimer().once().await.unwrap()
    }

    /// The number of objects of a kind with a role.
    fn count(&self, version: &str, kind: &str, of: &str) -> usize {
        self.fake
            .all(version, kind)
            .iter()
            .filter(|object| role(object) == of)
            .count()
    }

    /// The numbers of Deployments and Services of parameter servers.
    pub(crate) fn servers(&self) -> (usize, usize) {
        (
            self.count("apps/v1", "Deployment", "ps"),
            self.count("v1", "Service", "ps"),
        )
    }

    fn deletes(&self) -> usize {
        self.fake.count("delete", "")
    }
}

fn verdicts(round: &ReclaimRound) -> Vec<(&str, &ReclaimVerdict)> {
    round
        .jobs
        .iter()
        .map(|job| (job.job.as_str(), &job.verdict))
        .collect()
}

fn kept_reason(round: &ReclaimRound) -> &str {
    match &round.jobs[0].verdict {
        ReclaimVerdict::Kept { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn servers_are_deleted_some_time_after_the_last_worker_succeeded() {
    let cluster = Cluster::new().await;
    let mut all = succeeded("a", 60);
    // The last worker is still running.
    let last = all
        .iter_mut()
        .rfind(|object| object["kind"] == "Job")
        .unwrap();
    last["status"] = json!({"active": 1, "startTime": ago(3600)});
    let mut last = last.clone();
    cluster.put(&all);
    // A job without the reclaim label, completed long ago.
    let mut other = succeeded("b", 6000);
    for object in &mut other {
        object["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("pinfold.io/reclaim");
    }
    cluster.put(&other);
    let before = (
        cluster.fake.all("batch/v1", "Job").len(),
        cluster.count("v1", "Service", "worker"),
    );

    let round = cluster.once().await;
    assert_eq!(
        verdicts(&round),
        [(
            "a",
            &ReclaimVerdict::Running {
                succeeded: 49,
                of: 50
            }
        )]
    );
    done(&mut last, "Complete", 10);
    cluster.put(std::slice::from_ref(&last));
    let round = cluster.once().await;
    assert!(
        matches!(round.jobs[0].verdict, ReclaimVerdict::Waiting { .. }),
        "{:?}",
        round.jobs[0].verdict
    );
    assert_eq!((cluster.servers(), cluster.deletes()), ((10, 10), 0));

    done(&mut last, "Complete", 31);
    cluster.put(&[last]);
    // First a dry run, then the deletion.
    let round = cluster.with(30, true).once().await.unwrap();
    assert_eq!((round.deleted.len(), cluster.deletes()), (10, 0));
    let round = cluster.once().await;
    assert_eq!((round.deleted.len(), round.failed.len()), (10, 0));
    assert!(
        round.deleted[..5]
            .iter()
            .all(|(kind, ..)| *kind == ItemKind::Deployment),
        "Deployments before Services"
    );
    // The servers of the job without the label remain, and so do all workers.
    assert_eq!(cluster.servers(), (5, 5));
    assert_eq!(
        (
            cluster.fake.all("batch/v1", "Job").len(),
            cluster.count("v1", "Service", "worker")
        ),
        before
    );
    let deletes = cluster.deletes();
    assert_eq!(verdicts(&cluster.once().await), []);
    assert_eq!(cluster.deletes(), deletes, "a second round deletes nothing");
    // Without servers, the reclaimer does not list Jobs.
    cluster.fake.clear_log();
    cluster.once().await;
    assert_eq!(cluster.fake.count("list", "jobs"), 0);
}

#[tokio::test]
async fn the_delay_comes_from_the_job_and_restarts_with_recreated_servers() {
    let cluster = Cluster::new().await;
    let mut all = succeeded("a", 60);
    for object in &mut all {
        object["metadata"]["annotations"]["pinfold.io/reclaim-after"] = json!("90s");
    }
    cluster.put(&all);
    assert!(matches!(
        cluster.once().await.jobs[0].verdict,
        ReclaimVerdict::Waiting { .. }
    ));
    for object in &mut all {
        object["metadata"]["annotations"]["pinfold.io/reclaim-after"] = json!("50s");
    }
    // A server was recreated five seconds ago.
    let server = all
        .iter_mut()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    server["metadata"]["creationTimestamp"] = json!(ago(5));
    cluster.put(&all);
    assert!(matches!(
        cluster.once().await.jobs[0].verdict,
        ReclaimVerdict::Waiting { .. }
    ));
    assert_eq!(cluster.deletes(), 0);
}

#[tokio::test]
async fn failed_missing_or_unclear_workers_keep_the_servers() {
    type Change = fn(&mut Vec<Value>);
    fn worker(all: &mut [Value]) -> &mut Value {
        all.iter_mut()
            .filter(|object| object["kind"] == "Job")
            .nth(7)
            .unwrap()
    }
    fn job_index(all: &[Value]) -> usize {
        all.iter()
            .position(|object| object["kind"] == "Job")
            .unwrap()
    }
    let changes: [(Change, &str); 13] = [
        (
            |all| done(worker(all), "Failed", 600),
            "Job a-worker-7 has failed",
        ),
        (
            |all| done(worker(all), "FailureTarget", 600),
            "Job a-worker-7 has failed",
        ),
        (
            |all| drop(all.remove(job_index(all))),
            "49 workers exist, but the job has 50: 1 missing",
        ),
        (
            |all| all.retain(|object| object["kind"] != "Job"),
            "0 workers exist, but the job has 50: 50 missing",
        ),
        (
            |all| {
                let mut twin = worker(all).clone();
                twin["metadata"]["name"] = json!("twin");
                all.push(twin);
            },
            "repeats the index of another worker",
        ),
        (
            |all| {
                let mut more = worker(all).clone();
                more["metadata"]["name"] = json!("a-worker-50");
                more["metadata"]["labels"]["task"] = json!("50");
                all.push(more);
            },
            "51 workers exist, but the job has 50: 1 too many",
        ),
        (
            |all| worker(all)["metadata"]["deletionTimestamp"] = json!(ago(1)),
            "Job a-worker-7 is being deleted",
        ),
        (
            |all| {
                worker(all)["status"] =
                    json!({"conditions": [{"type": "Complete", "status": "True"}]});
            },
            "Job a-worker-7 has succeeded, but has no completion time",
        ),
        (
            |all| {
                drop(
                    worker(all)["metadata"]
                        .as_object_mut()
                        .unwrap()
                        .remove("annotations"),
                );
            },
            "has no annotation pinfold.io/workers",
        ),
        (
            |all| worker(all)["metadata"]["annotations"]["pinfold.io/workers"] = json!("49"),
            "names 49 workers",
        ),
        (
            |all| worker(all)["metadata"]["annotations"]["pinfold.io/workers"] = json!("many"),
            "write the number of workers",
        ),
        (
            |all| {
                for object in all.iter_mut() {
                    object["metadata"]["annotations"]["pinfold.io/workers"] = json!("0");
                }
                all.retain(|object| object["kind"] != "Job");
            },
            "write the number of workers",
        ),
        (
            |all| {
                let server = all
                    .iter_mut()
                    .find(|object| object["kind"] == "Deployment")
                    .unwrap();
                server["metadata"]["annotations"]["pinfold.io/reclaim-after"] = json!("soon");
            },
            "write a duration with a unit",
        ),
    ];
    for (change, words) in changes {
        let cluster = Cluster::of(FakeApi::direct());
        let mut all = succeeded("a", 600);
        change(&mut all);
        cluster.put(&all);
        let round = cluster.once().await;
        assert!(
            kept_reason(&round).contains(words),
            "{words}: {}",
            kept_reason(&round)
        );
        assert_eq!(
            (cluster.servers(), cluster.deletes()),
            ((5, 5), 0),
            "{words}"
        );
    }
    // A succeeded pod alone does not complete its Job.
    let cluster = Cluster::of(FakeApi::direct());
    let mut all = succeeded("a", 600);
    worker(&mut all)["status"] =
        json!({"succeeded": 1, "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]});
    cluster.put(&all);
    assert_eq!(
        verdicts(&cluster.once().await),
        [(
            "a",
            &ReclaimVerdict::Running {
                succeeded: 49,
                of: 50
            }
        )]
    );
}

/// The names of all Jobs.
fn jobs(cluster: &Cluster) -> Vec<String> {
    let mut names: Vec<String> = cluster
        .fake
        .all("batch/v1", "Job")
        .iter()
        .map(|job| job["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_successful_chief_ends_the_job_and_its_running_tasks() {
    let cluster = Cluster::new().await;
    cluster.put(&with_chief("a", None));
    let round = cluster.once().await;
    assert_eq!(
        verdicts(&round),
        [(
            "a",
            &ReclaimVerdict::Running {
                succeeded: 0,
                of: 1
            }
        )]
    );
    assert!(round.jobs[0].by_chief && round.jobs[0].running.is_empty());
    // Workers block in `server.join()` forever. Only the chief counts, even if a worker has failed or is missing.
    let mut all = with_chief("a", Some(10));
    cluster.put(&all);
    let round = cluster.once().await;
    assert!(
        matches!(round.jobs[0].verdict, ReclaimVerdict::Waiting { .. }),
        "{:?}",
        round.jobs[0].verdict
    );
    assert_eq!((cluster.servers(), cluster.deletes()), ((2, 2), 0));
    all = with_chief("a", Some(60));
    let worker = all
        .iter_mut()
        .find(|object| object["metadata"]["name"] == "a-worker-1")
        .unwrap();
    if worker["kind"] == "Service" {
        // The search found the Service of the same name first.
        let job = all
            .iter_mut()
            .find(|object| object["kind"] == "Job" && object["metadata"]["name"] == "a-worker-1");
        done(job.unwrap(), "Failed", 100);
    }
    cluster.put(&all);
    let round = cluster.once().await;
    let deleted_names: Vec<&str> = round
        .deleted
        .iter()
        .map(|(_, _, name)| name.as_str())
        .collect();
    let expected = [
        "a-evaluator-0",
        "a-worker-0",
        "a-ps-0",
        "a-ps-1",
        "a-ps-0",
        "a-ps-1",
    ];
    assert_eq!((deleted_names, round.failed.len()), (expected.to_vec(), 0));
    // Ended Jobs stay for inspection.
    assert_eq!(jobs(&cluster), ["a-chief-0", "a-worker-1"]);
    assert_eq!(cluster.servers(), (0, 0));
}

#[tokio::test]
async fn servers_stay_until_the_tasks_of_an_ended_job_are_deleted() {
    let cluster = Cluster::new().await;
    cluster.put(&with_chief("a", Some(60)));
    let refuse = Fault::Refuse {
        code: 500,
        text: "no",
        retry_after: None,
    };
    cluster.fake.fail(
        FaultScope::always().verb("delete").on("jobs").times(1),
        refuse,
    );
    let round = cluster.once().await;
    assert_eq!((round.deleted.len(), round.failed.len()), (0, 1));
    assert_eq!(
        cluster.servers(),
        (2, 2),
        "the next round finds the job by its servers"
    );
    // Later rounds finish the deletion, although workers are missing by then.
    cluster.fake.fail(
        FaultScope::always()
            .verb("delete")
            .on("deployments")
            .times(2),
        Fault::Refuse {
            code: 503,
            text: "no",
            retry_after: None,
        },
    );
    cluster.once().await;
    assert_eq!(
        (jobs(&cluster), cluster.servers()),
        (vec!["a-chief-0".to_owned()], (2, 0))
    );
    cluster.once().await;
    assert_eq!(cluster.servers(), (0, 0));
}

#[tokio::test]
async fn the_success_policy_all_workers_overrides_the_chief() {
    let with_policy = |policy: &str, chief| {
        let mut all = with_chief("a", Some(chief));
        for object in &mut all {
            object["metadata"]["annotations"]["pinfold.io/success-policy"] = json!(policy);
        }
        all
    };
    let cluster = Cluster::new().await;
    let mut all = with_policy("AllWorkers", 600);
    cluster.put(&all);
    let round = cluster.once().await;
    assert_eq!(
        verdicts(&round),
        [(
            "a",
            &ReclaimVerdict::Running {
                succeeded: 1,
                of: 3
            }
        )]
    );
    for object in all
        .iter_mut()
        .filter(|object| object["kind"] == "Job" && role(object) == "worker")
    {
        done(object, "Complete", 60);
    }
    cluster.put(&all);
    let round = cluster.once().await;
    assert!(!round.jobs[0].by_chief);
    assert_eq!(
        jobs(&cluster),
        ["a-chief-0", "a-worker-0", "a-worker-1"],
        "the evaluator does not count"
    );
    assert_eq!(cluster.servers(), (0, 0));

    let cluster = Cluster::new().await;
    cluster.put(&with_policy("Chief", 600));
    let words = "is \"Chief\": write AllWorkers, or remove the annotation for the default";
    assert!(kept_reason(&cluster.once().await).contains(words));
    assert_eq!(cluster.deletes(), 0);
}

#[tokio::test]
async fn a_failed_or_missing_chief_keeps_everything() {
    for (condition, words) in [
        (Some("Failed"), "Job a-chief-0 has failed"),
        (None, "2 workers exist, but the job has 3: 1 missing"),
    ] {
        let cluster = Cluster::new().await;
        let mut all = with_chief("a", Some(600));
        let chief_index = all
            .iter()
            .position(|object| object["kind"] == "Job" && role(object) == "chief")
            .unwrap();
        match condition {
            Some(condition) => done(&mut all[chief_index], condition, 600),
            None => drop(all.remove(chief_index)),
        }
        cluster.put(&all);
        let round = cluster.once().await;
        assert!(
            kept_reason(&round).contains(words),
            "{words}: {}",
            kept_reason(&round)
        );
        assert_eq!((cluster.servers(), cluster.deletes()), ((2, 2), 0));
    }
}

#[tokio::test]
async fn an_interrupted_reclaim_is_finished_by_the_next_round() {
    let cluster = Cluster::new().await;
    cluster.put(&succeeded("a", 60));
    // Deletes partly fail: every delete of a Service, and the first three deletes of Deployments.
    let refuse = |code| Fault::Refuse {
        code,
        text: "no",
        retry_after: None,
    };
    cluster.fake.fail(
        FaultScope::always().verb("delete").on("services"),
        refuse(500),
    );
    cluster.fake.fail(
        FaultScope::always()
            .verb("delete")
            .on("deployments")
            .times(3),
        refuse(503),
    );
    let round = cluster.once().await;
    assert_eq!((round.deleted.len(), round.failed.len()), (2, 8));
    assert_eq!(cluster.servers(), (3, 5));
    cluster.fake.heal();
    let round = cluster.once().await;
    assert_eq!((round.deleted.len(), round.failed.len()), (8, 0));
    assert_eq!(cluster.servers(), (0, 0));

    // The reclaimer deletes the rest of a partly deleted job.
    let mut all = succeeded("b", 60);
    all.retain(|object| object["kind"] != "Deployment" && object["metadata"]["name"] != "b-ps-3");
    cluster.put(&all);
    assert_eq!(cluster.once().await.deleted.len(), 4);
    assert_eq!(cluster.servers(), (0, 0));
}

#[tokio::test]
async fn a_delete_with_a_lost_answer_succeeds_in_the_next_round() {
    let cluster = Cluster::new().await;
    cluster.put(&succeeded("a", 60));
    cluster
        .fake
        .fail(FaultScope::always().verb("delete").times(1), Fault::Half);
    let round = cluster.once().await;
    assert_eq!(
        round.failed.len(),
        1,
        "the outcome of the delete is unknown"
    );
    let round = cluster.once().await;
    assert_eq!((round.failed.len(), cluster.servers()), (0, (0, 0)));
}

#[tokio::test]
async fn two_concurrent_reclaimers_delete_each_object_once() {
    for _ in 0..5 {
        let cluster = Cluster::new().await;
        cluster.put(&succeeded("a", 60));
        let (first, second) = (cluster.reclaimer(), cluster.reclaimer());
        let (first, second) = tokio::join!(first.once(), second.once());
        for round in [first.unwrap(), second.unwrap()] {
            assert_eq!(round.failed.len(), 0);
        }
        assert_eq!(cluster.servers(), (0, 0));
        let log = cluster.fake.log();
        let deletes = log
            .iter()
            .filter(|logged| logged.verb == "delete" && logged.status == 200)
            .count();
        assert_eq!(deletes, 10, "each object once");
    }
}

/// The paused clock keeps the first delete waiting until the test has changed the objects.
#[tokio::test(start_paused = true)]
async fn objects_changed_since_the_list_are_read_again() {
    let cluster = Cluster::of(FakeApi::direct());
    let mut all = succeeded("a", 60);
    cluster.put(&all);
    cluster.fake.fail(
        FaultScope::always().verb("delete").times(1),
        Fault::Delay(Duration::from_millis(300)),
    );
    let reclaimer = cluster.reclaimer();
    let round = tokio::spawn(async move { reclaimer.once().await.unwrap() });
    tokio::time::timeout(Duration::from_secs(10), async {
        while cluster.deletes() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    // During the first delete, the job loses its reclaim label.
    for object in &mut all {
        object["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("pinfold.io/reclaim");
    }
    cluster.put(&all);
    let round = round.await.unwrap();
    assert_eq!(
        (round.deleted.len(), round.failed.len(), round.jobs.len()),
        (0, 0, 0),
        "{round:?}"
    );
    assert_eq!(cluster.servers(), (5, 5));
    let log = cluster.fake.log();
    assert!(
        log.iter()
            .any(|logged| logged.verb == "delete" && logged.status == 409),
        "the server refused"
    );
}

#[tokio::test]
async fn objects_changed_before_every_delete_are_reported() {
    let cluster = Cluster::new().await;
    cluster.put(&succeeded("a", 60));
    cluster.put(&succeeded("b", 60));
    let conflict = || Fault::Refuse {
        code: 409,
        text: "changed",
        retry_after: None,
    };
    cluster.fake.fail(
        FaultScope::always().verb("delete").on("deployments"),
        conflict(),
    );
    let round = cluster.once().await;
    let deployment = |name: &str| (ItemKind::Deployment, "train".to_owned(), name.to_owned());
    // The other objects of each job wait for the changed Deployment.
    assert_eq!(round.changed, [deployment("a-ps-0"), deployment("b-ps-0")]);
    assert_eq!(
        (round.deleted.len(), round.failed.len(), cluster.deletes()),
        (0, 0, 3 * 2)
    );
    // A single conflict is not reported.
    cluster.fake.heal();
    cluster.fake.fail(
        FaultScope::always()
            .verb("delete")
            .on("deployments")
            .times(2),
        conflict(),
    );
    let round = cluster.once().await;
    assert_eq!(
        (round.deleted.len(), round.failed.len(), round.changed.len()),
        (20, 0, 0)
    );
}

/// Completed Jobs remain, and the environment of each lists all hosts of its job, so Jobs without
/// servers must not be read in every round.
#[tokio::test]
async fn only_jobs_with_servers_are_listed() {
    let cluster = Cluster::new().await;
    let mut done = succeeded("done", 6000);
    done.retain(|object| role(object) == "worker");
    cluster.put(&done);
    cluster.put(&succeeded("b", 60));
    cluster.fake.clear_log();
    assert_eq!(
        cluster.with(30, true).once().await.unwrap().deleted.len(),
        10
    );
    let job_lists = |cluster: &Cluster| -> Vec<String> {
        let log = cluster.fake.log();
        let jobs = log
            .iter()
            .filter(|logged| logged.verb == "list" && logged.plural == "jobs");
        jobs.map(|logged| logged.query.clone())
            .filter(|query| !query.contains("continue="))
            .collect()
    };
    assert!(
        job_lists(&cluster)
            .iter()
            .all(|query| !query.contains("done")),
        "{:?}",
        job_lists(&cluster)
    );

    // Hundreds of jobs with long names: each request's URL stays short.
    let all = succeeded("c", 60);
    let server = all
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    for number in 0..300 {
        let (mut server, name) = (server.clone(), format!("{number:040}"));
        server["metadata"]["name"] = json!(name);
        server["metadata"]["labels"]["name"] = json!(name);
        cluster.put(&[server]);
    }
    cluster.fake.clear_log();
    let round = cluster.with(30, true).once().await.unwrap();
    assert_eq!((round.jobs.len(), round.deleted.len()), (301, 10));
    let queries = job_lists(&cluster);
    assert!(
        queries.len() > 1 && queries.iter().all(|query| query.len() < 4096),
        "{queries:?}"
    );
    for number in 0..300 {
        let name = format!("{number:040}");
        assert_eq!(
            queries.iter().filter(|query| query.contains(&name)).count(),
            1,
            "{name}"
        );
    }
}

#[tokio::test]
async fn api_errors_delete_nothing() {
    let cluster = Cluster::new().await;
    cluster.put(&succeeded("a", 60));
    let faults = [
        (Fault::Drop, ErrorKind::Connection),
        (Fault::Garbage, ErrorKind::InvalidResponse),
        (Fault::Half, ErrorKind::Connection),
        (
            Fault::Refuse {
                code: 500,
                text: "etcd",
                retry_after: None,
            },
            ErrorKind::Server,
        ),
        (
            Fault::Refuse {
                code: 429,
                text: "later",
                retry_after: Some(7),
            },
            ErrorKind::TooManyRequests,
        ),
    ];
    for plural in ["deployments", "services", "jobs"] {
        for (fault, kind) in faults.clone() {
            cluster.fake.heal();
            cluster
                .fake
                .fail(FaultScope::always().verb("list").on(plural), fault.clone());
            let failure = cluster.reclaimer().once().await.unwrap_err();
            // Half of an answer may also count as an invalid response.
            let half = matches!(fault, Fault::Half) && failure.kind() == ErrorKind::InvalidResponse;
            assert!(
                failure.kind() == kind || half,
                "{plural} {fault:?}: {failure}"
            );
        }
    }
    assert_eq!((cluster.servers(), cluster.deletes()), ((5, 5), 0));
    // An error while listing TFJobs is reported as a hint.
    for (fault, _) in faults {
        cluster.fake.heal();
        cluster
            .fake
            .fail(FaultScope::always().verb("list").on("tfjobs"), fault);
        let round = cluster.with(30, true).once().await.unwrap();
        assert_eq!(
            (round.deleted.len(), round.hints.len()),
            (10, 1),
            "{round:?}"
        );
        assert!(
            round.hints[0].starts_with("TFJobs can't be listed: "),
            "{:?}",
            round.hints
        );
    }
    cluster.fake.heal();
    // A missing permission is reported.
    cluster.fake.forbid(ACCOUNT);
    assert_eq!(
        cluster.reclaimer().once().await.unwrap_err().kind(),
        ErrorKind::Forbidden
    );
}

#[tokio::test]
async fn the_reclaimer_account_deletes_only_reclaimable_objects_and_agents_none() {
    let cluster = Cluster::new().await;
    cluster.fake.install_shipped();
    let mut all = with_chief("a", None);
    for object in &mut all {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if ["a-worker-1", "a-evaluator-0"].contains(&name) {
            object["metadata"]["annotations"]["pinfold.io/success-policy"] = json!("AllWorkers");
        } else if name == "a-ps-1" {
            object["metadata"]["labels"]
                .as_object_mut()
                .unwrap()
                .remove("pinfold.io/reclaim");
        }
    }
    cluster.put(&all);
    let other = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "other", "namespace": "train"}, "spec": {}});
    cluster.put(&[other]);
    let agent = cluster.fake.agent_on("node-1");
    let delete = async |token: &str, path: &str| {
        let api = Api::new(cluster.fake.client(token), Duration::from_secs(5));
        let request = hyper::Request::delete(path).body(Vec::new()).unwrap();
        api.ask::<Value>(pinfold::cluster::Call::Other, request)
            .await
            .map_err(|failure| failure.kind())
            .err()
    };
    let deployment = |name: &str| format!("/apis/apps/v1/namespaces/train/deployments/{name}");
    let service = |name: &str| format!("/api/v1/namespaces/train/services/{name}");
    let job = |name: &str| format!("/apis/batch/v1/namespaces/train/jobs/{name}");
    let refused = [
        deployment("a-ps-1"),
        service("a-ps-1"),
        // A worker's Service has the reclaim label, but is not a parameter server's Service.
        service("a-worker-0"),
        job("a-chief-0"),
        // With `AllWorkers`, this worker's success counts.
        job("a-worker-1"),
        job("other"),
    ];
    for path in &refused {
        assert_eq!(
            delete("reclaimer", path).await,
            Some(ErrorKind::Forbidden),
            "{path}"
        );
    }
    for path in [
        deployment("a-ps-0"),
        service("a-ps-0"),
        job("a-worker-0"),
        job("a-evaluator-0"),
    ] {
        assert_eq!(
            delete(&agent, &path).await,
            Some(ErrorKind::Forbidden),
            "{path}"
        );
        assert_eq!(delete("reclaimer", &path).await, None, "{path}");
    }
}

#[tokio::test]
async fn tfjobs_with_leftover_servers_are_reported_and_not_deleted() {
    let cluster = Cluster::new().await;
    assert_eq!(
        cluster.once().await.hints,
        Vec::<String>::new(),
        "TFJobs are not defined here"
    );
    cluster.fake.put(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tfjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org", "scope": "Namespaced", "names": {"plural": "tfjobs", "kind": "TFJob"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    }));
    cluster.fake.run_controllers();
    let tfjob = |name: &str, policy: Value, done: bool| {
        let condition = if done { "Succeeded" } else { "Running" };
        json!({
            "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name, "namespace": "train"},
            "spec": {"runPolicy": policy, "tfReplicaSpecs": {"PS": {"replicas": 2}, "Worker": {"replicas": 4}}},
            "status": {"conditions": [{"type": condition, "status": "True"}]},
        })
    };
    for (name, policy, done) in [
        ("default", json!({}), true),
        ("none", json!({"cleanPodPolicy": "None"}), false),
        ("running", json!({"cleanPodPolicy": "Running"}), true),
    ] {
        cluster.fake.put(&tfjob(name, policy, done));
    }
    let mut no_servers = tfjob("workers", json!({}), true);
    no_servers["spec"]["tfReplicaSpecs"]
        .as_object_mut()
        .unwrap()
        .remove("PS");
    cluster.fake.put(&no_servers);
    let round = cluster.once().await;
    assert_eq!(round.hints.len(), 2, "{:?}", round.hints);
    assert!(
        round.hints[0]
            .starts_with("TFJob train/default has succeeded and keeps its parameter servers (2)")
    );
    assert!(round.hints[1].starts_with("TFJob train/none will keep its parameter servers (2)"));
    assert_eq!(cluster.fake.count("delete", "tfjobs"), 0);
}

/// A running `pinfold scene reclaim --watch`. Dropping the value kills the process.
pub(crate) struct Watching(pub(crate) Child);

impl Watching {
    fn start(kubeconfig: &std::path::Path, after: u32) -> Self {
        Self::with(kubeconfig, after, &[])
    }

    fn with(kubeconfig: &std::path::Path, after: u32, more: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_pinfold"))
            .args([
                "scene",
                "reclaim",
                "--watch",
                "--interval",
                "1s",
                "--after",
                &format!("{after}s"),
                "--kubeconfig",
            ])
            .arg(kubeconfig)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// The text on standard error, which grows while the program runs.
    fn errors(&mut self) -> Arc<Mutex<String>> {
        let lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        let text = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&text);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut text = copy.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        text
    }

    /// Ends the program with a signal. Returns the exit code, standard output and standard error. Standard error is empty after
    /// [`Watching::errors`].
    pub(crate) fn end(mut self, signal: nix::sys::signal::Signal) -> (Option<i32>, String, String) {
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(id, signal).unwrap();
        let mut texts = (String::new(), String::new());
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut texts.0).unwrap();
        if let Some(stderr) = self.0.stderr.as_mut() {
            std::io::Read::read_to_string(stderr, &mut texts.1).unwrap();
        }
        (self.0.wait().unwrap().code(), texts.0, texts.1)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.0.kill());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_survives_kills_and_an_absent_server() {
    use nix::sys::signal::Signal;
    /// In seconds. The second process must read the job before the delay ends.
    const DELAY: u32 = 12;
    let cluster = Cluster::new().await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("reclaimer.conf");
    std::fs::write(&kubeconfig, cluster.fake.kubeconfig("reclaimer")).unwrap();
    // A success in the future, so that the first process deletes nothing for long.
    cluster.put(&succeeded("a", -60));
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "not within 60 s: {what}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let lists = || cluster.fake.count("list", "jobs");
    // The first process is killed during the delay, and leaves no state.
    let first = Watching::start(&kubeconfig, DELAY);
    // The watch lists the workers once. The program prints the result of the first round before the second round.
    until("a second list of the workers", &|| lists() > 2).await;
    let (code, out, _) = tokio::task::spawn_blocking(move || first.end(Signal::SIGKILL))
        .await
        .unwrap();
    assert_eq!(code, None);
    assert!(
        out.contains(
            "train/a: every worker has succeeded; the parameter servers will be deleted at"
        ),
        "{out}"
    );
    assert_eq!(cluster.servers(), (5, 5));
    // The second process starts while the server is away.
    cluster.fake.go_away();
    let mut second = Watching::start(&kubeconfig, DELAY);
    let errors = second.errors();
    until("a failure of the second process", &|| {
        errors.lock().unwrap().contains("can't read the jobs")
    })
    .await;
    // The delay begins when the second process can read the job.
    cluster.put(&succeeded("a", 0));
    cluster.fake.come_back();
    until("the end of the servers", &|| cluster.servers() == (0, 0)).await;
    until("another round", &|| {
        let log = cluster.fake.log();
        let last = log.iter().rposition(|logged| logged.verb == "delete");
        log.iter()
            .rposition(|logged| logged.verb == "list" && logged.plural == "services")
            > last
    })
    .await;
    let (code, out, _) = tokio::task::spawn_blocking(move || second.end(Signal::SIGTERM))
        .await
        .unwrap();
    assert_eq!(code, Some(0), "{}", errors.lock().unwrap());
    assert!(
        out.contains("deleted: Deployment train/a-ps-0, Deployment train/a-ps-1"),
        "{out}"
    );
    // The program prints each decision once.
    assert_eq!(
        out.lines()
            .filter(|line| line.contains("the parameter servers will be deleted at"))
            .count(),
        1,
        "{out}"
    );
}

/// A lasting failure is reported once, and again if it returns after a recovery. Both output
/// formats behave the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_failure_is_reported_again() {
    use nix::sys::signal::Signal;
    for more in [&[][..], &["-o", "json"]] {
        let cluster = Cluster::new().await;
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("reclaimer.conf");
        std::fs::write(&kubeconfig, cluster.fake.kubeconfig("reclaimer")).unwrap();
        let lists = |plural: &'static str, more: usize| {
            let (cluster, count) = (&cluster, cluster.fake.count("list", plural) + more);
            async move {
                let start = Instant::now();
                while cluster.fake.count("list", plural) < count {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "no list of {plural}"
                    );
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let watching = Watching::with(&kubeconfig, 5, more);
        for _ in 0..2 {
            let refusal = Fault::Refuse {
                code: 500,
                text: "etcd",
                retry_after: None,
            };
            cluster.fake.fail(
                FaultScope::always().verb("list").on("deployments").times(2),
                refusal,
            );
            lists("deployments", 2).await;
            // A successful round lists two kinds, and the watch lists once. The program prints its result before the next round.
            lists("services", 3).await;
        }
        let (code, out, stderr) =
            tokio::task::spawn_blocking(move || watching.end(Signal::SIGTERM))
                .await
                .unwrap();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(
            stderr.matches("can't read the jobs").count(),
            2,
            "{more:?}: {stderr}{out}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_reports_its_decisions() {
    let cluster = Cluster::new().await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("conf");
    std::fs::write(&kubeconfig, cluster.fake.kubeconfig("reclaimer")).unwrap();
    let run = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
        command
            .args(["scene", "reclaim"])
            .args(args)
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, out, _) = run(&[]).await;
    assert_eq!((code, out.lines().count()), (Some(0), 1));
    assert!(
        out.starts_with("no job with parameter servers has the label"),
        "{out}"
    );
    cluster.put(&succeeded("a", 60));
    let mut all = succeeded("b", 60);
    all.retain(|object| object["metadata"]["name"] != "b-worker-49");
    cluster.put(&all);
    let (code, out, _) = run(&["--dry-run"]).await;
    assert_eq!(code, Some(0));
    assert!(
        out.contains(
            "train/b: the parameter servers stay: 49 workers exist, but the job has 50: 1 missing\n"
        ),
        "{out}"
    );
    assert!(
        out.contains("would be deleted: Deployment train/a-ps-0"),
        "{out}"
    );
    assert_eq!(cluster.deletes(), 0);
    assert!(
        run(&["--job-namespace", "elsewhere"])
            .await
            .1
            .starts_with("no job")
    );
    let (code, out, _) = run(&["-o", "json"]).await;
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, answer["deleted"].as_array().unwrap().len()),
        (Some(0), 10)
    );
    assert_eq!(answer["jobs"][1]["verdict"], "kept");
    assert_eq!(cluster.servers(), (5, 5));
    std::fs::write(&kubeconfig, cluster.fake.kubeconfig(ADMIN)).unwrap();
    cluster.put(&succeeded("a", 60));
    cluster.fake.fail(
        FaultScope::always().verb("delete"),
        Fault::Refuse {
            code: 500,
            text: "no",
            retry_after: None,
        },
    );
    let (code, _, stderr) = run(&[]).await;
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("can't delete 10 objects; the first is Deployment train/a-ps-0"),
        "{stderr}"
    );
    cluster.fake.heal();
    cluster.fake.fail(
        FaultScope::always().verb("delete"),
        Fault::Refuse {
            code: 409,
            text: "no",
            retry_after: None,
        },
    );
    let (code, out, stderr) = run(&["-o", "json"]).await;
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &answer["changed"][0]["name"]),
        (Some(2), &json!("a-ps-0")),
        "{stderr}"
    );
    assert!(
        stderr.contains("1 object was changed before each deletion"),
        "{stderr}"
    );
}

fn item(kind: ItemKind, role: &str, task: u32, outcome: JobOutcome) -> ReclaimItem {
    let task = task.to_string();
    ReclaimItem {
        kind,
        namespace: "n".to_owned(),
        name: format!("a-{role}-{task}"),
        uid: "u".to_owned(),
        version: "1".to_owned(),
        labels: ReclaimLabels {
            name: Some("a".to_owned()),
            role: Some(role.to_owned()),
            task: Some(task),
            reclaim: Some("ps".to_owned()),
        },
        annotations: ReclaimAnnotations {
            workers: Some("4".to_owned()),
            ..ReclaimAnnotations::default()
        },
        created: 0,
        leaving: false,
        outcome,
    }
}

proptest! {
    #[test]
    fn servers_are_deleted_only_after_every_worker_succeeded_long_enough_ago(
        workers in proptest::collection::vec((0_u32..5, 0..4_u8, 0_i64..100), 0..6),
        now in 0_i64..200,
        order in any::<u64>(),
    ) {
        let mut items = vec![
            item(ItemKind::Deployment, "ps", 0, JobOutcome::Open),
            item(ItemKind::Service, "ps", 0, JobOutcome::Open),
        ];
        for (task, outcome, at) in &workers {
            let outcome = match outcome {
                0 => JobOutcome::Open,
                1 => JobOutcome::Failed,
                _ => JobOutcome::Succeeded(Some(*at)),
            };
            items.push(item(ItemKind::Job, "worker", *task, outcome));
        }
        let mut items: Vec<Arc<ReclaimItem>> = items.into_iter().map(Arc::new).collect();
        let mut tasks: Vec<u32> = workers.iter().map(|(task, ..)| *task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let all = workers.len() == 4 && tasks.len() == 4 && workers.iter().all(|(_, outcome, _)| *outcome >= 2);
        let last = workers.iter().map(|(_, _, at)| *at).max().unwrap_or(0);
        let decided = reclaim(&items, now, 30);
        prop_assert_eq!(decided.len(), 1);
        prop_assert_eq!(decided[0].verdict == ReclaimVerdict::Reclaim, all && now >= last + 30);
        if let ReclaimVerdict::Waiting { until } = decided[0].verdict {
            prop_assert_eq!(until, last + 30);
        }
        // The order of the listed objects does not matter.
        let places = items.len();
        items.rotate_left(usize::try_from(order % places as u64).unwrap());
        let rotated = reclaim(&items, now, 30);
        prop_assert_eq!(rotated[0].verdict == ReclaimVerdict::Reclaim, decided[0].verdict == ReclaimVerdict::Reclaim);
        prop_assert_eq!(&rotated[0].servers, &decided[0].servers);
    }
}
