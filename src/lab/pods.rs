//! [`TaskPod`] and [`KnownPods`]: how a run's pods are, and what follows for the run.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::scene::{CHIEF, EVALUATOR, PS, TASK_LABELS};

/// After so many restarts of a container, the run has failed: a program that can't work would otherwise run until the time limit.
const MOST_RESTARTS: u32 = 5;

/// The most pods that a message names.
const MOST_NAMED: usize = 5;

/// The training operator's label with the number of a replica.
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";

/// The pod of a task.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TaskPod {
    pub name: String,
    pub uid: String,
    pub role: String,
    pub index: u32,
    pub node: Option<String>,
    /// The name of the container with the task's program.
    pub container: String,
    /// When its container began, in the last try.
    pub began: Option<Timestamp>,
    /// When its container ended; `None` while it runs.
    pub ended: Option<Timestamp>,
    pub restarts: u32,
    pub state: PodState,
}

/// How a pod is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum PodState {
    /// Its container has not begun, for this reason.
    Waiting(String),
    #[default]
    Running,
    Succeeded,
    /// It has ended for good, for this reason.
    Failed(String),
    /// Somebody deletes it.
    Leaving(String),
}

/// What a run needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ExpectedTasks {
    /// The number of tasks by role.
    pub count: BTreeMap<String, u32>,
    /// Whether the chief's success ends the run. Otherwise the chief and all workers must succeed.
    pub ends_with_chief: bool,
}

/// How a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunState {
    /// Tasks that have not begun, with the reasons.
    Starting(Vec<String>),
    Running,
    Ended,
    Failed(String),
}

// === impl TaskPod ===

impl TaskPod {
    /// Reads a pod of the run; `None` for a pod without the labels of a task. Only a few fields of a pod matter, so it stays a tree
    /// of values: the types of all its fields would make the program half a megabyte larger.
    pub(super) fn read(pod: &Value) -> Option<Self> {
        let labels = &pod["metadata"]["labels"];
        let [_, role, task] = TASK_LABELS;
        let index = text(&labels[task]).or_else(|| text(&labels[REPLICA_INDEX]))?;
        let container = text(&pod["spec"]["containers"][0]["name"])?;
        let statuses = pod["status"]["containerStatuses"].as_array();
        let status = statuses
            .into_iter()
            .flatten()
            .find(|status| status["name"] == container.as_str())
            .unwrap_or(&Value::Null);
        let (began, ended) = times(&status["state"]);
        let restarts = status["restartCount"].as_u64().unwrap_or_default();
        Some(Self {
            name: text(&pod["metadata"]["name"])?,
            uid: text(&pod["metadata"]["uid"])?,
            role: text(&labels[role])?,
            index: index.parse().ok()?,
            node: text(&pod["spec"]["nodeName"]),
            began,
            ended,
            restarts: u32::try_from(restarts).unwrap_or(u32::MAX),
            state: state(pod, &status["state"]),
            container,
        })
    }

    /// The task, for people.
    pub(super) fn task(&self) -> String {
        format!("{} {}", self.role, self.index)
    }

    /// Whether its container began at some time.
    fn has_begun(&self) -> bool {
        self.began.is_some() || self.restarts > 0
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The texts that are there, joined by colons.
fn joined(values: [&Value; 2]) -> Option<String> {
    let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join(": "))
}

/// When a container began and ended, by its state.
fn times(state: &Value) -> (Option<Timestamp>, Option<Timestamp>) {
    let time = |value: &Value| value.as_str()?.parse().ok();
    let ended = &state["terminated"];
    let began = time(&state["running"]["startedAt"]).or_else(|| time(&ended["startedAt"]));
    (began, time(&ended["finishedAt"]))
}

/// How a pod is, given its container's state.
fn state(pod: &Value, container: &Value) -> PodState {
    let status = &pod["status"];
    let why = || disruption(status).or_else(|| joined([&status["reason"], &status["message"]]));
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return PodState::Leaving(why().unwrap_or_else(|| "somebody deletes it".to_owned()));
    }
    match status["phase"].as_str() {
        Some("Succeeded") => return PodState::Succeeded,
        Some("Failed") => {
            let code = container["terminated"]["exitCode"].as_i64();
            let usual = code.map_or_else(
                || "it failed".to_owned(),
                |code| format!("its program ended with code {code}"),
            );
            return PodState::Failed(why().unwrap_or(usual));
        }
        _ => {}
    }
    let waiting = &container["waiting"];
    if let Some(why) = joined([&waiting["reason"], &waiting["message"]]) {
        return PodState::Waiting(why);
    }
    if !container["running"].is_null() || !container["terminated"].is_null() {
        return PodState::Running;
    }
    let scheduled = condition(status, "PodScheduled").filter(|found| found["status"] != "True");
    let message = scheduled.and_then(|found| text(&found["message"]));
    PodState::Waiting(message.unwrap_or_else(|| "its node has not started it yet".to_owned()))
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut conditions = status["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == kind)
}

/// Why the cluster ended a pod.
fn disruption(status: &Value) -> Option<String> {
    let found = condition(status, "DisruptionTarget")?;
    text(&found["message"]).or_else(|| text(&found["reason"]))
}

/// The pods of a run, with their last states: an operator may delete pods at the very end of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownPods {
    /// By uid.
    pods: BTreeMap<String, TaskPod>,
    /// The uids that the last list had.
    there: BTreeSet<String>,
}

// === impl KnownPods ===

impl KnownPods {
    /// Takes a list of all pods that are there.
    pub(super) fn update(&mut self, listed: Vec<TaskPod>) {
        self.there = listed.iter().map(|pod| pod.uid.clone()).collect();
        for pod in listed {
            // A pod that is being deleted keeps what it was.
            let is_over = |known: &TaskPod| known.state == PodState::Succeeded;
            if !self.pods.get(&pod.uid).is_some_and(is_over) {
                self.pods.insert(pod.uid.clone(), pod);
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &TaskPod> {
        self.pods.values()
    }

    pub(super) fn count(&self) -> usize {
        self.pods.len()
    }

    /// How often containers were started again, all together.
    pub(super) fn restarts(&self) -> u32 {
        self.all().map(|pod| pod.restarts).sum()
    }

    /// How a run is.
    ///
    /// A pod that fails, that somebody deletes or that is replaced makes the run a failure, because its steps would be those of a
    /// disturbed job. A container that starts again in the same pod does not as long as others are still missing: programs may
    /// wait for each other in this way.
    pub(super) fn judge(&self, expected: &ExpectedTasks) -> RunState {
        let succeeded = |role: &str| {
            let of_role = self.all().filter(|pod| pod.role == role);
            let count = of_role
                .filter(|pod| pod.state == PodState::Succeeded)
                .count();
            count >= expected.of(role) as usize
        };
        let has_ended = if expected.ends_with_chief {
            succeeded(CHIEF)
        } else {
            let mut deciding = expected.deciding();
            deciding.all(succeeded)
        };
        if has_ended {
            return RunState::Ended;
        }
        if let Some(why) = self.all().find_map(failure) {
            return RunState::Failed(why);
        }
        if let Some((_, gone)) = self.pods.iter().find(|(uid, _)| !self.there.contains(*uid)) {
            return RunState::Failed(format!(
                "the pod of {} is gone: it was evicted or deleted",
                gone.task()
            ));
        }
        let late = expected.late(self);
        if late.is_empty() {
            RunState::Running
        } else {
            RunState::Starting(late)
        }
    }
}

/// Why a pod makes its run a failure.
fn failure(pod: &TaskPod) -> Option<String> {
    match &pod.state {
        PodState::Failed(why) => Some(format!("{} failed: {why}", pod.task())),
        PodState::Leaving(why) => Some(format!("{} was ended from outside: {why}", pod.task())),
        _ if pod.restarts >= MOST_RESTARTS => Some(format!(
            "{} has failed {} times: read its log with kubectl logs --previous {}",
            pod.task(),
            pod.restarts,
            pod.name
        )),
        _ => None,
    }
}

// === impl ExpectedTasks ===

impl ExpectedTasks {
    fn of(&self, role: &str) -> u32 {
        self.count.get(role).copied().unwrap_or_default()
    }

    /// The roles that train.
    fn deciding(&self) -> impl Iterator<Item = &str> {
        self.count
            .keys()
            .map(String::as_str)
            .filter(|role| !matches!(*role, PS | EVALUATOR))
    }

    /// The tasks whose container has not begun, with the reasons. A long list is cut.
    fn late(&self, pods: &KnownPods) -> Vec<String> {
        let mut late = Vec::new();
        for (role, count) in &self.count {
            for index in 0..*count {
                let pod = pods
                    .all()
                    .find(|pod| pod.role == *role && pod.index == index);
                let why = match pod {
                    Some(pod) if pod.has_begun() => continue,
                    Some(TaskPod {
                        state: PodState::Waiting(why),
                        ..
                    }) => why.as_str(),
                    Some(_) => continue,
                    None => "its pod does not exist yet",
                };
                late.push(format!("{role} {index}: {why}"));
            }
        }
        let more = late.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            late.truncate(MOST_NAMED);
            late.push(format!("and {more} more"));
        }
        late
    }
}

/// When the first task began, servers included, and when the run ended.
pub(super) fn window(
    pods: &KnownPods,
    expected: &ExpectedTasks,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let decides = |pod: &&TaskPod| match pod.role.as_str() {
        PS | EVALUATOR => false,
        role => !expected.ends_with_chief || role == CHIEF,
    };
    let began = pods.all().filter_map(|pod| pod.began).min();
    let ended = pods.all().filter(decides).filter_map(|pod| pod.ended).max();
    (began, ended)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(role: &str, index: u32, status: &Value) -> TaskPod {
        let object = json!({
            "metadata": {
                "name": format!("x-{role}-{index}"), "uid": format!("{role}{index}"),
                "labels": {"name": "x", "job": role, "task": index.to_string()},
            },
            "spec": {"nodeName": "n", "containers": [{"name": role}]},
            "status": status,
        });
        TaskPod::read(&object).unwrap()
    }

    fn running(role: &str, index: u32) -> TaskPod {
        let state = json!({"running": {"startedAt": "2026-11-28T10:00:00Z"}});
        pod(
            role,
            index,
            &json!({"phase": "Running", "containerStatuses": [container(role, &state, 0)]}),
        )
    }

    fn container(role: &str, state: &Value, restarts: u32) -> Value {
        json!({"name": role, "image": "", "imageID": "", "ready": true, "restartCount": restarts, "state": state})
    }

    fn succeeded(role: &str, index: u32) -> TaskPod {
        let state = json!({"terminated": {
            "exitCode": 0, "startedAt": "2026-11-28T10:00:00Z", "finishedAt": "2026-11-28T10:05:00Z",
        }});
        pod(
            role,
            index,
            &json!({"phase": "Succeeded", "containerStatuses": [container(role, &state, 0)]}),
        )
    }

    fn expected(chief: bool) -> ExpectedTasks {
        let roles: &[(&str, u32)] = if chief {
            &[("ps", 1), ("worker", 2), ("chief", 1)]
        } else {
            &[("ps", 1), ("worker", 2)]
        };
        ExpectedTasks {
            count: roles
                .iter()
                .map(|(role, count)| ((*role).to_owned(), *count))
                .collect(),
            ends_with_chief: chief,
        }
    }

    fn known(pods: &[TaskPod]) -> KnownPods {
        let mut known = KnownPods::default();
        known.update(pods.to_vec());
        known
    }

    fn judged(pods: &[TaskPod]) -> RunState {
        known(pods).judge(&expected(false))
    }

    #[test]
    fn a_run_starts_runs_and_ends() {
        let unscheduled = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"},
        ]});
        let pods = [pod("worker", 0, &unscheduled), running("ps", 0)];
        assert_eq!(
            judged(&pods),
            RunState::Starting(vec![
                "worker 0: 0/2 nodes are available".to_owned(),
                "worker 1: its pod does not exist yet".to_owned(),
            ])
        );
        let pods = [running("worker", 0), running("worker", 1), running("ps", 0)];
        assert_eq!(judged(&pods), RunState::Running);
        let pods = [
            succeeded("worker", 0),
            running("worker", 1),
            running("ps", 0),
        ];
        assert_eq!(judged(&pods), RunState::Running);
        let pods = [
            succeeded("worker", 0),
            succeeded("worker", 1),
            running("ps", 0),
        ];
        assert_eq!(judged(&pods), RunState::Ended);
        let (began, ended) = window(&known(&pods), &expected(false));
        assert_eq!(began.unwrap().to_string(), "2026-11-28T10:00:00Z");
        assert_eq!(ended.unwrap().to_string(), "2026-11-28T10:05:00Z");
    }

    #[test]
    fn a_chief_ends_the_run_alone() {
        let workers = [running("worker", 0), running("worker", 1), running("ps", 0)];
        let with = |chief: TaskPod| {
            let pods = [workers.to_vec(), vec![chief]].concat();
            known(&pods).judge(&expected(true))
        };
        assert_eq!(with(running("chief", 0)), RunState::Running);
        assert_eq!(with(succeeded("chief", 0)), RunState::Ended);
    }

    #[test]
    fn a_disturbed_run_has_failed() {
        let failed = |pod: TaskPod| match judged(&[pod]) {
            RunState::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        assert_eq!(
            failed(pod("worker", 0, &evicted)),
            "worker 0 failed: Evicted: low on memory"
        );
        let state = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let crashed =
            json!({"phase": "Running", "containerStatuses": [container("ps", &state, 5)]});
        assert!(failed(pod("ps", 0, &crashed)).contains("ps 0 has failed 5 times"));
        let all = [running("worker", 0), running("worker", 1), running("ps", 0)];
        let mut pods = known(&all);
        assert_eq!(pods.judge(&expected(false)), RunState::Running);
        pods.update(all[..2].to_vec());
        assert!(matches!(pods.judge(&expected(false)), RunState::Failed(_)));
    }

    #[test]
    fn a_job_that_is_cleaned_up_at_its_end_has_ended() {
        let ended = [
            succeeded("worker", 0),
            succeeded("worker", 1),
            running("ps", 0),
        ];
        let mut pods = known(&[running("worker", 0), running("worker", 1), running("ps", 0)]);
        let mut leaving = ended[2].clone();
        leaving.state = PodState::Leaving("the operator deletes it".to_owned());
        pods.update([ended[0].clone(), ended[1].clone(), leaving].to_vec());
        assert_eq!(pods.judge(&expected(false)), RunState::Ended);
        pods.update(Vec::new());
        assert_eq!(pods.judge(&expected(false)), RunState::Ended);
        assert_eq!(pods.count(), 3);
    }

    #[test]
    fn a_long_list_of_late_tasks_is_cut() {
        let expected = ExpectedTasks {
            count: BTreeMap::from([("worker".to_owned(), 200)]),
            ends_with_chief: false,
        };
        let RunState::Starting(late) = KnownPods::default().judge(&expected) else {
            panic!();
        };
        assert_eq!((late.len(), late[5].as_str()), (6, "and 195 more"));
    }
}
