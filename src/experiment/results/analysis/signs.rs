//! [`signs`]: what stands out in one run. `findings` puts the runs' signs together.

use std::collections::BTreeSet;

use super::tasks::{Task, known, mean, share, tasks_of, throttled};
use super::usage::servers as balance_of_servers;
use crate::experiment::results::model::MeasuredRun;
use crate::experiment::results::outcome::FindingKind;
use crate::experiment::statistics::quantile;

/// A parameter server is hot from this many times the mean on, as for the alert PinfoldServerHotSpot.
pub(super) const HOT: f64 = 1.5;

/// Parameter servers that together move fewer bytes a second are not weighed.
const LEAST_TRAFFIC: f64 = 10_000.0;

/// A quota holds back from this part of its periods on, as for the alert PinfoldThrottled.
pub(super) const THROTTLED: f64 = 0.05;

/// Servers are idle if each carries less than this part of an equal share.
pub(super) const IDLE: f64 = 0.1;

/// A worker is a straggler below this part of the median worker's steps per second.
pub(super) const SLOW_STEPS: f64 = 0.8;

/// And where no steps are known, below this part of the median worker's CPU time, as for the alert PinfoldWorkerLags.
pub(super) const SLOW_CPU: f64 = 0.6;

/// Others use exclusive CPUs noticeably from this part of their time on.
pub(super) const INTERFERENCE: f64 = 0.02;

/// Counts of steps that differ by at most this part are the same count.
pub(super) const SAME_STEPS: f64 = 0.005;

/// The fewest steps that tell whether workers count the same.
const FEWEST_STEPS: f64 = 200.0;

/// What stands out in a run.
#[derive(Debug, Clone)]
pub(super) struct Sign {
    pub(super) kind: FindingKind,
    pub(super) subject: String,
    pub(super) figures: Vec<(FigureName, f64)>,
    pub(super) nodes: BTreeSet<String>,
}

/// What a figure of a sign is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FigureName {
    /// Of the servers' bytes.
    TrafficShare,
    /// The bytes by an equal share of them.
    TimesEqual,
    /// Of the servers' CPU time.
    CpuShare,
    /// Of the servers' bytes, the second busiest.
    NextShare,
    Servers,
    BytesPerSecond,
    StepRate,
    CpusUsed,
    /// By the median worker.
    OfMedian,
    ThrottledShare,
    InterferenceShare,
    Tasks,
    StepCount,
    /// Between the greatest and the least count, by the median.
    StepSpread,
}

// === impl Sign ===

impl Sign {
    /// Whether both are about the same thing.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.subject == other.subject
    }
}

/// The signs of a run. `exclusive` tells whether its tasks should have exclusive CPUs, if somebody planned that.
pub(super) fn signs(
    run: &MeasuredRun,
    exclusive: Option<bool>,
    shared_roles: &BTreeSet<String>,
) -> Vec<Sign> {
    let mut signs: Vec<Sign> = shared_steps(run).into_iter().collect();
    if exclusive != Some(false) {
        signs.extend(unpinned(run, exclusive.is_some(), shared_roles));
    }
    signs.extend(hot_server(run));
    signs.extend(idle_servers(run));
    signs.extend(stragglers(run));
    signs.extend(throttled_roles(run));
    signs.extend(interference(run));
    signs
}

/// Workers that start at different times and train at different speeds don't all make the same number of steps, so a common
/// number is a common counter.
fn shared_steps(run: &MeasuredRun) -> Option<Sign> {
    let workers: Vec<Task> = Task::all(run).filter(|task| task.trains()).collect();
    let counts: Option<Vec<f64>> = workers
        .iter()
        .map(|task| known(task.record.steps))
        .collect();
    let counts = counts?;
    let middle = common_count(&counts)?;
    let spread = (quantile(&counts, 1.0)? - quantile(&counts, 0.0)?) / middle;
    Some(Sign {
        kind: FindingKind::SharedSteps,
        subject: "the workers' steps".to_owned(),
        figures: vec![
            (FigureName::Tasks, counts.len() as f64),
            (FigureName::StepCount, middle),
            (FigureName::StepSpread, spread),
        ],
        nodes: BTreeSet::new(),
    })
}

/// The number of steps that several workers have in common, if they have: more than a few, and equal but for what passes between
/// two looks.
fn common_count(counts: &[f64]) -> Option<f64> {
    let at = |share| quantile(counts, share);
    let (least, middle, greatest) = (at(0.0)?, at(0.5)?, at(1.0)?);
    let is_common =
        counts.len() >= 2 && middle >= FEWEST_STEPS && greatest - least <= SAME_STEPS * middle;
    is_common.then_some(middle)
}

/// Tasks without exclusive CPUs, by the reason. Roles that are to stay on shared CPUs are none. Where no plan gives exclusive CPUs,
/// only the agent's reason tells that a task should have some.
fn unpinned(run: &MeasuredRun, planned: bool, shared_roles: &BTreeSet<String>) -> Vec<Sign> {
    let mut signs: Vec<Sign> = Vec::new();
    for task in Task::all(run).filter(|task| !shared_roles.contains(&task.record.role)) {
        let usage = &task.record.usage;
        let reason = match (&usage.not_pinned, task.is_pinned()) {
            (Some(reason), _) => reason.as_str(),
            (None, Some(false)) if planned => "the agent gives no reason",
            _ => continue,
        };
        let subject = format!("{} tasks: {reason}", task.record.role);
        let nodes = task.record.node.clone();
        match signs.iter_mut().find(|sign| sign.subject == subject) {
            Some(sign) => {
                sign.nodes.extend(nodes);
                for (_, tasks) in &mut sign.figures {
                    *tasks += 1.0;
                }
            }
            None => signs.push(Sign {
                kind: FindingKind::Unpinned,
                subject,
                figures: vec![(FigureName::Tasks, 1.0)],
                nodes: nodes.into_iter().collect(),
            }),
        }
    }
    signs
}

/// Several parameter servers, with the bytes that they move together in a second, if those of all are known.
fn servers_with_rate(run: &MeasuredRun) -> Option<(Vec<Task<'_>>, f64)> {
    let servers: Vec<Task> = Task::all(run).filter(|task| task.is_server()).collect();
    let rates: Option<Vec<f64>> = servers
        .iter()
        .map(|task| task.per_second(task.traffic()))
        .collect();
    let rate = rates.filter(|rates| rates.len() > 1)?.iter().sum();
    Some((servers, rate))
}

fn hot_server(run: &MeasuredRun) -> Option<Sign> {
    let (servers, rate) = servers_with_rate(run)?;
    let traffic = balance_of_servers(run, |task| task.traffic())?;
    if rate < LEAST_TRAFFIC || traffic.max_over_mean < HOT {
        return None;
    }
    let hottest = traffic.hottest()?;
    let cpu = balance_of_servers(run, |task| known(task.record.usage.cpu_seconds));
    let mut figures = vec![
        (FigureName::TrafficShare, hottest.share),
        (FigureName::TimesEqual, traffic.max_over_mean),
        (FigureName::NextShare, traffic.runner_up()?.share),
        (FigureName::Servers, servers.len() as f64),
        (FigureName::BytesPerSecond, rate),
    ];
    let cpu_share = cpu.and_then(|cpu| cpu.share_of(&hottest.task));
    figures.extend(cpu_share.map(|share| (FigureName::CpuShare, share)));
    let nodes = servers
        .iter()
        .filter(|task| task.name() == hottest.task)
        .filter_map(|task| task.record.node.clone());
    Some(Sign {
        kind: FindingKind::HotServer,
        subject: hottest.task.clone(),
        figures,
        nodes: nodes.collect(),
    })
}

fn idle_servers(run: &MeasuredRun) -> Option<Sign> {
    let (servers, rate) = servers_with_rate(run)?;
    // Servers that moved nothing at all have no balance.
    let traffic = balance_of_servers(run, |task| task.traffic());
    let equal = 1.0 / servers.len() as f64;
    let idle = |task: &&Task| {
        let share = traffic
            .as_ref()
            .and_then(|traffic| traffic.share_of(&task.name()));
        rate < LEAST_TRAFFIC || share.is_some_and(|share| share < IDLE * equal)
    };
    let idle: Vec<&Task> = servers.iter().filter(idle).collect();
    let names: Vec<String> = idle.iter().map(|task| task.name()).collect();
    let share = idle
        .iter()
        .filter_map(|task| traffic.as_ref()?.share_of(&task.name()))
        .sum();
    (!names.is_empty()).then(|| Sign {
        kind: FindingKind::IdleServers,
        subject: names.join(", "),
        figures: vec![
            (FigureName::TrafficShare, share),
            (FigureName::Servers, servers.len() as f64),
            (FigureName::BytesPerSecond, rate),
        ],
        nodes: idle
            .iter()
            .filter_map(|task| task.record.node.clone())
            .collect(),
    })
}

/// Workers that are much slower than the median: by their own steps, or else by their CPU time.
fn stragglers(run: &MeasuredRun) -> Vec<Sign> {
    let workers: Vec<Task> = tasks_of(run, "worker").collect();
    let by_steps: Option<Vec<f64>> = workers.iter().map(|task| task.step_rate()).collect();
    let (name, limit, values) = match by_steps {
        Some(rates) => (FigureName::StepRate, SLOW_STEPS, rates),
        None => {
            let used = |task: &Task| task.per_second(task.record.usage.cpu_seconds);
            match workers.iter().map(used).collect::<Option<Vec<f64>>>() {
                Some(used) => (FigureName::CpusUsed, SLOW_CPU, used),
                None => return Vec::new(),
            }
        }
    };
    let median = quantile(&values, 0.5).filter(|median| values.len() >= 3 && *median > 0.0);
    let Some(median) = median else {
        return Vec::new();
    };
    let slow = workers
        .iter()
        .zip(values)
        .filter(|(_, value)| *value < limit * median);
    slow.map(|(task, value)| Sign {
        kind: FindingKind::Straggler,
        subject: task.name(),
        figures: vec![(FigureName::OfMedian, value / median), (name, value)],
        nodes: task.record.node.iter().cloned().collect(),
    })
    .collect()
}

fn throttled_roles(run: &MeasuredRun) -> Vec<Sign> {
    let roles: BTreeSet<&str> = run.tasks.iter().map(|task| task.role.as_str()).collect();
    let over = roles.into_iter().filter_map(|role| {
        let share = throttled(run, role).filter(|share| *share > THROTTLED)?;
        Some(Sign {
            kind: FindingKind::Throttled,
            subject: format!("{role} tasks"),
            figures: vec![(FigureName::ThrottledShare, share)],
            nodes: BTreeSet::new(),
        })
    });
    over.collect()
}

/// The exclusive CPUs' time that others used, over all tasks of the run.
fn interference(run: &MeasuredRun) -> Option<Sign> {
    let of = |task: Task| {
        (
            task.record.usage.interference_seconds,
            task.exclusive_seconds(),
        )
    };
    let all = share(Task::all(run).map(of)).filter(|share| *share > INTERFERENCE)?;
    let noticeable = |task: &Task| {
        let (seconds, exclusive) = of(*task);
        matches!((known(seconds), exclusive), (Some(seconds), Some(exclusive)) if seconds > INTERFERENCE * exclusive)
    };
    let nodes = Task::all(run)
        .filter(noticeable)
        .filter_map(|task| task.record.node.clone());
    let used = mean(
        Task::all(run).filter_map(|task| task.per_second(task.record.usage.interference_seconds)),
    );
    let mut figures = vec![(FigureName::InterferenceShare, all)];
    figures.extend(used.map(|used| (FigureName::CpusUsed, used)));
    Some(Sign {
        kind: FindingKind::Interference,
        subject: "the exclusive CPUs".to_owned(),
        figures,
        nodes: nodes.collect(),
    })
}
