//! [`analyse`]: one run summed up by task and by role, its parameter servers weighed, and what stands out said.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::{first_names, time};
use super::findings::{RunFinding, findings};
use super::members::Members;
use super::query::{Measure, SCRAPES_OF_A_RATE};
use super::task_use::{PS, RoleUse, ServerBalance, TaskUse, roles, tasks};
use super::usage::{Totals, Traffic, Usage};

/// Times and values.
pub type Points = Vec<(f64, f64)>;

/// A measure each second over time, by pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The measure.
    pub measure: Measure,
    /// Times, in seconds since 1970, and values.
    pub pods: BTreeMap<String, Points>,
}

/// The observations of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedRun {
    /// The run's name.
    pub name: String,
    /// The scene of the nodes' labels, if the run was chosen by scene.
    pub scene: Option<String>,
    /// And the case.
    pub case: Option<String>,
    /// Who took part.
    pub members: Members,
    /// What they used.
    pub totals: Totals,
    /// And when.
    pub curves: Vec<Curve>,
    /// The metric of the steps, if named.
    pub step_metric: Option<String>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// The name.
    pub name: String,
    /// The scene.
    pub scene: Option<String>,
    /// The case.
    pub case: Option<String>,
    /// The job's namespace.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// The time of the first sighting.
    pub from: String,
    /// The time of the last sighting.
    pub to: String,
    /// Between them.
    pub seconds: f64,
    /// Between two scrapes.
    pub scrape_interval_seconds: f64,
    /// The time in which no pod of the task was seen.
    pub unseen_seconds: f64,
    /// Whose bytes count.
    pub traffic: Traffic,
    /// How many tasks train.
    pub workers: usize,
    /// By role.
    pub roles: Vec<RoleUse>,
    /// By task.
    pub tasks: Vec<TaskUse>,
    /// How evenly the load lies on the servers.
    pub servers: ServerBalance,
    /// What stands out.
    pub findings: Vec<RunFinding>,
    /// The missing data, in sentences.
    pub missing: Vec<String>,
    /// For pictures: a measure over the seconds since `from`, by task.
    #[serde(skip)]
    pub curves: Vec<(Measure, Vec<(String, Points)>)>,
}

// === impl RunReport ===

impl RunReport {
    /// The usage of a role.
    pub fn role(&self, role: &str) -> Option<&Usage> {
        self.roles
            .iter()
            .find(|one| one.role == role)
            .map(|one| &one.usage)
    }

    /// The usage of the parameter servers.
    pub fn servers_use(&self) -> Option<&Usage> {
        self.role(PS)
    }

    /// The parameter servers.
    pub fn server_tasks(&self) -> impl Iterator<Item = &TaskUse> {
        self.tasks.iter().filter(|task| task.is_server())
    }

    /// Steps per second of all training tasks with known steps.
    pub fn steps_per_second(&self) -> Option<f64> {
        let mut known = self
            .training()
            .filter_map(|task| task.usage.steps_per_second)
            .peekable();
        known.peek()?;
        Some(known.sum())
    }

    /// Of how many of the tasks that train steps are known.
    pub(super) fn stepping(&self) -> usize {
        self.training()
            .filter(|task| task.usage.steps_per_second.is_some())
            .count()
    }

    fn training(&self) -> impl Iterator<Item = &TaskUse> {
        self.tasks.iter().filter(|task| task.is_training())
    }
}

/// The summary of a run.
pub fn analyse(observed: &ObservedRun) -> RunReport {
    let ObservedRun {
        members, totals, ..
    } = observed;
    let seconds = members.seconds();
    let traffic = Traffic::of(totals, members.pods.keys());
    let tasks = tasks(members, totals, traffic);
    let roles = roles(&tasks, totals, traffic, seconds);
    let servers = ServerBalance::of(&tasks);
    RunReport {
        name: observed.name.clone(),
        scene: observed.scene.clone(),
        case: observed.case.clone(),
        namespace: members.namespace.clone(),
        job: members.job.clone(),
        from: time(members.from),
        to: time(members.to),
        seconds,
        scrape_interval_seconds: members.interval,
        unseen_seconds: members.unseen,
        traffic,
        workers: tasks.iter().filter(|task| task.is_training()).count(),
        missing: missing(observed, &tasks),
        curves: observed
            .curves
            .iter()
            .map(|curve| (curve.measure, over_time(curve, &tasks, members)))
            .collect(),
        findings: findings(&tasks, &roles, &servers, seconds),
        servers,
        roles,
        tasks,
    }
}

/// A curve by task, from the run's beginning on.
fn over_time(curve: &Curve, tasks: &[TaskUse], members: &Members) -> Vec<(String, Points)> {
    // A rate over a time before the run does not belong to the run.
    let from = members.from + (SCRAPES_OF_A_RATE * members.interval).min(members.seconds() / 2.0);
    let of = |task: &TaskUse| {
        // Two targets report the same for a pod. Two pods of a task in sequence are the old pod and the new pod.
        let pods = task.pods.iter().filter_map(|pod| curve.pods.get(pod));
        let pods = pods.flat_map(|points| by_time(points.iter().copied(), f64::max));
        let within = pods.filter(|(at, _)| (from..=members.to).contains(at));
        let points = by_time(
            within.map(|(at, value)| (at - members.from, value)),
            |one, other| one + other,
        );
        (!points.is_empty()).then(|| (task.task.clone(), points))
    };
    tasks.iter().filter_map(of).collect()
}

/// Points in the order of time. Points of the same time are merged.
fn by_time(points: impl Iterator<Item = (f64, f64)>, join: fn(f64, f64) -> f64) -> Points {
    let mut points: Points = points.collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points.dedup_by(|later, earlier| {
        let same = later.0.total_cmp(&earlier.0).is_eq();
        if same {
            earlier.1 = join(earlier.1, later.1);
        }
        same
    });
    points
}

/// Missing data.
fn missing(observed: &ObservedRun, tasks: &[TaskUse]) -> Vec<String> {
    let mut said = Vec::new();
    let without = |known: &dyn Fn(&Usage) -> bool| -> Vec<&str> {
        tasks
            .iter()
            .filter(|task| !known(&task.usage))
            .map(|task| task.task.as_str())
            .collect()
    };
    let network = without(&|usage| usage.sent_bytes.is_some() && usage.received_bytes.is_some());
    if !network.is_empty() {
        said.push(format!(
            "no network bytes of {}: pods on the host's network need metrics.sockets",
            first_names(&network)
        ));
    }
    let cpu = without(&|usage| usage.cpu_seconds.is_some());
    if !cpu.is_empty() {
        said.push(format!("no CPU time of {}", first_names(&cpu)));
    }
    let training: Vec<&TaskUse> = tasks.iter().filter(|task| task.is_training()).collect();
    let stepless: Vec<&str> = training
        .iter()
        .filter(|task| task.usage.steps.is_none())
        .map(|task| task.task.as_str())
        .collect();
    match &observed.step_metric {
        None => said.push("no steps: name the counter of steps with --step-metric".to_owned()),
        Some(metric) if stepless.len() == training.len() => said.push(format!(
            "no steps: no series of {metric} has the namespace and pod of a training task"
        )),
        Some(metric) if !stepless.is_empty() => {
            said.push(format!(
                "no steps of {} in {metric}",
                first_names(&stepless)
            ));
        }
        Some(_) => {}
    }
    if training.is_empty() {
        said.push("the run has no training task".to_owned());
    }
    if !tasks.iter().any(TaskUse::is_server) {
        said.push("the run has no parameter server".to_owned());
    }
    if observed.members.unseen > 0.0 {
        said.push(format!(
            "no pod has samples for {} of this time: only the difference of the counters covers this part",
            super::figures::seconds(observed.members.unseen)
        ));
    }
    said
}

#[cfg(test)]
mod tests;
