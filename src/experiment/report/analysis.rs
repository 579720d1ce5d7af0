//! [`analyse`]: one run summed up by task and by role, its parameter servers weighed, and what stands out said.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::balance::Balance;
use super::figures::{bytes, number, percent, time};
use super::members::{Members, TRAINING};
use super::query::{Measure, SCRAPES_OF_A_RATE};
use super::usage::{Totals, Traffic, Usage};

/// A parameter server is hot from this many times the mean on, as for the alert PinfoldServerHotSpot.
pub const HOT: f64 = 1.5;

/// Parameter servers that together move fewer bytes a second are not weighed.
pub const LEAST_TRAFFIC: f64 = 10_000.0;

/// A quota holds back from this part of its periods on, as for the alert PinfoldThrottled.
pub const THROTTLED: f64 = 0.05;

/// A worker lags below this part of the median's CPU, as for the alert PinfoldWorkerLags.
pub const LAGS: f64 = 0.6;

/// A hot server looks like one big variable if every other has at most this part of its traffic: variables are placed one by
/// one, so that many of them would spread.
const APART_FROM_OTHERS: f64 = 0.5;

/// How many tasks a sentence names.
const NAMED: usize = 5;

/// The parameter servers' role.
const PS: &str = "ps";

/// The order of the roles in a report; further roles follow.
const ORDER: [&str; 6] = [PS, "chief", "master", "worker", "evaluator", "launcher"];

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
pub struct Observed {
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

/// The usage of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskUse {
    /// The task, as `ps 0`; the pod's name where no index is known.
    pub task: String,
    /// The role.
    pub role: String,
    /// The pods: several, if the task was restarted.
    pub pods: BTreeSet<String>,
    /// Its pods' nodes.
    pub nodes: BTreeSet<String>,
    /// The slots of the nodes, like `ps 0`.
    pub slots: BTreeSet<String>,
    /// What it used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The sum over all tasks of a role.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleUse {
    /// The role.
    pub role: String,
    /// Its tasks.
    pub tasks: usize,
    /// What they used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// How evenly the load lies on the parameter servers; `None` for fewer than two, or where one's load is not known.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Servers {
    /// Bytes in both directions.
    pub traffic: Option<Balance>,
    /// Their CPU time.
    pub cpu: Option<Balance>,
}

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingKind {
    /// One server of three or more carries most of the traffic, and the remaining servers much less.
    OneBigVariable,
    /// One of two servers carries most: the load does not tell why.
    HotServer,
    /// Some servers carry much more than the remaining servers.
    UnevenServers,
    /// All servers carry about the same.
    EvenServers,
    /// The servers hardly carry anything.
    IdleServers,
    /// A role is held back by its quota.
    Throttled,
    /// Some workers use much less CPU than the remaining workers.
    Lagging,
}

/// What stands out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// A sentence.
    pub text: String,
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
    pub servers: Servers,
    /// What stands out.
    pub findings: Vec<Finding>,
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
        self.tasks.iter().filter(|task| task.role == PS)
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
        self.tasks
            .iter()
            .filter(|task| TRAINING.contains(&task.role.as_str()))
    }
}

/// The summary of a run.
pub fn analyse(observed: &Observed) -> RunReport {
    let Observed {
        members, totals, ..
    } = observed;
    let seconds = members.seconds();
    let traffic = Traffic::of(totals, members.pods.keys());
    let mut tasks: Vec<TaskUse> = Vec::new();
    for (pod, member) in &members.pods {
        let task = match member.index.as_str() {
            "" => pod.clone(),
            index => format!("{} {index}", member.role),
        };
        let known = tasks
            .iter_mut()
            .find(|one| one.task == task && one.role == member.role);
        if let Some(known) = known {
            known.pods.insert(pod.clone());
            known.nodes.extend(member.nodes.iter().cloned());
            known.slots.extend(member.slots.iter().cloned());
        } else {
            tasks.push(TaskUse {
                task,
                role: member.role.clone(),
                pods: BTreeSet::from([pod.clone()]),
                nodes: member.nodes.clone(),
                slots: member.slots.clone(),
                usage: Usage::default(),
            });
        }
    }
    tasks.sort_by_cached_key(|task| {
        let order = ORDER
            .iter()
            .position(|role| *role == task.role)
            .unwrap_or(ORDER.len());
        let index = task
            .task
            .rsplit(' ')
            .next()
            .and_then(|index| index.parse::<u64>().ok());
        (order, task.role.clone(), index, task.task.clone())
    });
    for task in &mut tasks {
        let pods: Vec<&str> = task.pods.iter().map(String::as_str).collect();
        task.usage = Usage::of(totals, &pods, traffic, seconds);
    }
    let mut roles: Vec<RoleUse> = Vec::new();
    for of_role in tasks.chunk_by(|one, other| one.role == other.role) {
        let pods: Vec<&str> = of_role
            .iter()
            .flat_map(|task| task.pods.iter().map(String::as_str))
            .collect();
        let role = of_role
            .first()
            .map(|task| task.role.clone())
            .unwrap_or_default();
        roles.push(RoleUse {
            role,
            tasks: of_role.len(),
            usage: Usage::of(totals, &pods, traffic, seconds),
        });
    }
    let servers = servers(&tasks);
    let mut findings: Vec<Finding> = weigh(&tasks, &servers, seconds).into_iter().collect();
    findings.extend(throttled(&roles));
    findings.extend(lagging(&tasks));
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
        workers: tasks
            .iter()
            .filter(|task| TRAINING.contains(&task.role.as_str()))
            .count(),
        missing: missing(observed, &tasks),
        curves: observed
            .curves
            .iter()
            .map(|curve| (curve.measure, over_time(curve, &tasks, members)))
            .collect(),
        servers,
        findings,
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

fn servers(tasks: &[TaskUse]) -> Servers {
    let balance = |load: &dyn Fn(&Usage) -> Option<f64>| {
        let servers = tasks.iter().filter(|task| task.role == PS);
        let loads: Option<Vec<(String, f64)>> = servers
            .map(|task| Some((task.task.clone(), load(&task.usage)?)))
            .collect();
        Balance::of(loads?)
    };
    Servers {
        traffic: balance(&|usage| usage.traffic()),
        cpu: balance(&|usage| usage.cpu_seconds),
    }
}

/// The findings about the parameter servers' balance, by traffic and with the CPU usage.
fn weigh(tasks: &[TaskUse], servers: &Servers, seconds: f64) -> Option<Finding> {
    let traffic = servers.traffic.as_ref()?;
    let (hottest, next) = (traffic.hottest()?, traffic.runner_up()?);
    let moved: f64 = tasks
        .iter()
        .filter(|task| task.role == PS)
        .filter_map(|task| task.usage.traffic())
        .sum();
    let found = |kind, text| Some(Finding { kind, text });
    if moved / seconds < LEAST_TRAFFIC {
        return found(
            FindingKind::IdleServers,
            format!(
                "the parameter servers move {} per second together, too little to find a hot server",
                bytes(moved / seconds)
            ),
        );
    }
    let by_cpu = servers
        .cpu
        .as_ref()
        .filter(|cpu| cpu.max_over_mean >= HOT)
        .and_then(Balance::hottest);
    let numbers = format!(
        "{} times the mean, Gini {}",
        number(traffic.max_over_mean),
        number(traffic.gini)
    );
    if traffic.max_over_mean < HOT {
        let but = by_cpu.map_or_else(String::new, |busiest| {
            format!(
                "; but {} takes {} of their CPU time",
                busiest.task,
                percent(busiest.share)
            )
        });
        return found(
            FindingKind::EvenServers,
            format!(
                "the parameter servers have about the same load: the busiest, {}, moves {} of their bytes ({numbers}){but}",
                hottest.task,
                percent(hottest.share)
            ),
        );
    }
    let cpu = match servers
        .cpu
        .as_ref()
        .map(|cpu| (cpu, cpu.share_of(&hottest.task)))
    {
        Some((_, Some(share))) => format!(" and takes {} of their CPU time", percent(share)),
        _ => "; its share of their CPU time is unknown".to_owned(),
    };
    let head = format!(
        "{} is hot: it moves {} of the parameter servers' bytes ({numbers}){cpu}",
        hottest.task,
        percent(hottest.share)
    );
    // Of two servers, the hot server always carries several times as much.
    if tasks.iter().filter(|task| task.role == PS).count() == 2 {
        return found(
            FindingKind::HotServer,
            format!(
                "{head}. With two servers, either the hot server has one large variable (partition the variable over both \
                 servers), or the program places variables by number (place the variables by size, with a load-balancing \
                 strategy)"
            ),
        );
    }
    if next.share <= APART_FROM_OTHERS * hottest.share {
        return found(
            FindingKind::OneBigVariable,
            format!(
                "{head}. The likely cause is one large variable: partition the variable over all servers"
            ),
        );
    }
    found(
        FindingKind::UnevenServers,
        format!(
            "{head}, and {} moves another {}. The program places variables by number: place the variables by size (a \
             load-balancing strategy), or partition the large variables",
            next.task,
            percent(next.share)
        ),
    )
}

fn throttled(roles: &[RoleUse]) -> Vec<Finding> {
    let over = roles.iter().filter_map(|role| {
        let share = role.usage.throttled_share.filter(|share| *share > THROTTLED)?;
        Some(Finding {
            kind: FindingKind::Throttled,
            text: format!(
                "the CPU quota throttles the {} tasks in {} of the periods: give the tasks exclusive CPUs, or fewer threads",
                role.role,
                percent(share)
            ),
        })
    });
    over.collect()
}

fn lagging(tasks: &[TaskUse]) -> Option<Finding> {
    let workers = tasks.iter().filter(|task| task.role == "worker");
    let used: Vec<(&str, f64)> = workers
        .filter_map(|task| Some((task.task.as_str(), task.usage.cpus_used?)))
        .collect();
    let mut sorted: Vec<f64> = used.iter().map(|(_, used)| *used).collect();
    sorted.sort_by(f64::total_cmp);
    let median = *sorted.get(sorted.len() / 2).filter(|_| sorted.len() >= 3)?;
    let slow: Vec<&str> = used
        .iter()
        .filter(|(_, used)| *used < LAGS * median)
        .map(|(task, _)| *task)
        .collect();
    (!slow.is_empty()).then(|| Finding {
        kind: FindingKind::Lagging,
        text: format!(
            "{} used less than {} of the median worker's CPU time: check the input, the network and the start time",
            some(&slow),
            percent(LAGS)
        ),
    })
}

/// Missing data.
fn missing(observed: &Observed, tasks: &[TaskUse]) -> Vec<String> {
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
            some(&network)
        ));
    }
    let cpu = without(&|usage| usage.cpu_seconds.is_some());
    if !cpu.is_empty() {
        said.push(format!("no CPU time of {}", some(&cpu)));
    }
    let training: Vec<&TaskUse> = tasks
        .iter()
        .filter(|task| TRAINING.contains(&task.role.as_str()))
        .collect();
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
            said.push(format!("no steps of {} in {metric}", some(&stepless)));
        }
        Some(_) => {}
    }
    if training.is_empty() {
        said.push("the run has no training task".to_owned());
    }
    if !tasks.iter().any(|task| task.role == PS) {
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

/// The first names, and the number of further names.
fn some(names: &[&str]) -> String {
    let shown = names
        .get(..NAMED.min(names.len()))
        .unwrap_or_default()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
