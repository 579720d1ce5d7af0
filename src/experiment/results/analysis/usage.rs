//! What the roles used in each condition, the traffic of each case, and the evidence that tasks were pinned and sized.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use super::tasks::{Task, known, mean, share};
use crate::experiment::results::model::{CaseFacts, Experiment, RunRecord};
use crate::experiment::results::outcome::{Evidence, RoleOutcome, TrafficMatrix};
use crate::experiment::statistics::{Condition, Summary};

/// How many CPU lists the evidence of a condition has.
const LISTED: usize = 3;

/// The counting runs of each condition.
pub(super) type RunsByCondition<'a> = BTreeMap<Condition, Vec<&'a RunRecord>>;

/// What each role used in each condition.
pub(super) fn roles(
    experiment: &Experiment,
    runs: &RunsByCondition<'_>,
    names: &Names,
) -> Vec<RoleOutcome> {
    let mut outcomes = Vec::new();
    for (&condition, runs) in runs {
        let mut roles: Vec<(usize, &str)> = runs
            .iter()
            .flat_map(|run| Task::all(run))
            .map(|task| (task.order().0, task.order().1))
            .collect();
        roles.sort_unstable();
        roles.dedup();
        for (_, role) in roles {
            outcomes.push(role_outcome(experiment, condition, role, runs, names));
        }
    }
    outcomes
}

fn role_outcome(
    experiment: &Experiment,
    condition: Condition,
    role: &str,
    runs: &[&RunRecord],
    names: &Names,
) -> RoleOutcome {
    let used = |task: Task| task.per_second(task.record.usage.cpu_seconds);
    let over_runs = |value: &dyn Fn(&RunRecord) -> Option<f64>| {
        let values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
        Summary::of(&values)
    };
    RoleOutcome {
        group: names.group(condition),
        name: condition.way.name().to_owned(),
        way: Some(condition.way),
        role: role.to_owned(),
        tasks: runs
            .iter()
            .map(|run| tasks_of(run, role).count())
            .max()
            .unwrap_or_default(),
        cpus: experiment.job.cpus.get(role).cloned(),
        cpus_used: over_runs(&|run| mean(tasks_of(run, role).filter_map(used))),
        throttled_share: over_runs(&|run| throttled(run, role)),
        switches_per_second: over_runs(&|run| {
            mean(tasks_of(run, role).filter_map(|task| task.per_second(task.switches())))
        }),
        threads_waiting: over_runs(&|run| {
            mean(
                tasks_of(run, role)
                    .filter_map(|task| task.per_second(task.record.usage.run_delay_seconds)),
            )
        }),
    }
}

/// The share of a role's periods in which a quota ran out.
pub(super) fn throttled(run: &RunRecord, role: &str) -> Option<f64> {
    share(tasks_of(run, role).map(|task| {
        let usage = &task.record.usage;
        (usage.throttled_periods, usage.quota_periods)
    }))
}

pub(super) fn tasks_of<'a>(run: &'a RunRecord, role: &str) -> impl Iterator<Item = Task<'a>> {
    Task::all(run).filter(move |task| task.record.role == role)
}

/// The traffic between servers and other tasks, for each scene and case over all ways.
pub(super) fn traffic(runs: &RunsByCondition<'_>, names: &Names) -> Vec<TrafficMatrix> {
    let mut by_case: BTreeMap<(usize, usize), Vec<&RunRecord>> = BTreeMap::new();
    let mut groups = BTreeMap::new();
    for (condition, runs) in runs {
        let key = (condition.scene, condition.case);
        by_case.entry(key).or_default().extend(runs);
        groups.insert(key, names.group(*condition));
    }
    by_case
        .iter()
        .filter_map(|(key, runs)| matrix(groups.remove(key).unwrap_or_default(), runs))
        .collect()
}

/// The matrix of the runs; `None` if no run knows of traffic between two tasks.
fn matrix(group: String, runs: &[&RunRecord]) -> Option<TrafficMatrix> {
    let mut sums: BTreeMap<(Place, Place), f64> = BTreeMap::new();
    let (mut servers, mut peers, mut knowing) = (BTreeSet::new(), BTreeSet::new(), 0_u32);
    for run in runs {
        let places: BTreeMap<&str, Task> = Task::all(run)
            .map(|task| (task.record.pod.as_str(), task))
            .collect();
        let mut knows = false;
        for sender in places.values() {
            for (pod, bytes) in &sender.record.usage.sent_to {
                let Some(receiver) = places.get(pod.as_str()) else {
                    continue;
                };
                let (server, peer) = match (sender.is_server(), receiver.is_server()) {
                    (true, false) => (sender, receiver),
                    (false, true) => (receiver, sender),
                    _ => continue,
                };
                if let Some(rate) = sender.per_second(Some(*bytes)) {
                    knows = true;
                    let pair = (Place::of(*peer), Place::of(*server));
                    *sums.entry(pair).or_default() += rate;
                }
            }
        }
        if knows {
            knowing += 1;
            let (of_run, others): (Vec<Task>, Vec<Task>) =
                places.values().partition(|task| task.is_server());
            servers.extend(of_run.into_iter().map(Place::of));
            peers.extend(others.into_iter().map(Place::of));
        }
    }
    let cell = |peer: &Place, server: &Place| {
        let sum = sums.get(&(peer.clone(), server.clone()))?;
        Some(sum / f64::from(knowing))
    };
    (knowing > 0).then(|| TrafficMatrix {
        group,
        bytes_per_second: peers
            .iter()
            .map(|peer| servers.iter().map(|server| cell(peer, server)).collect())
            .collect(),
        servers: servers.into_iter().map(|place| place.name).collect(),
        peers: peers.into_iter().map(|place| place.name).collect(),
        runs: knowing as usize,
    })
}

/// A task's place in a matrix, in the order of tasks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: usize,
    role: String,
    index: u32,
    name: String,
}

// === impl Place ===

impl Place {
    fn of(task: Task<'_>) -> Self {
        let (rank, role, index) = task.order();
        Self {
            rank,
            role: role.to_owned(),
            index,
            name: task.name(),
        }
    }
}

/// What shows that the tasks of each condition were pinned and sized, or weren't. Conditions of which nobody knows are left out.
pub(super) fn evidence(runs: &RunsByCondition<'_>, names: &Names) -> Vec<Evidence> {
    let of = |(&condition, runs): (&Condition, &Vec<&RunRecord>)| {
        let tasks: Vec<Task> = runs.iter().flat_map(|run| Task::all(run)).collect();
        let pinned: Vec<bool> = tasks.iter().filter_map(|task| task.is_pinned()).collect();
        let summary = |value: &dyn Fn(&Task) -> Option<f64>| {
            let values: Vec<f64> = tasks.iter().filter_map(value).collect();
            Summary::of(&values)
        };
        let mut verdicts: BTreeMap<&str, usize> = BTreeMap::new();
        for verdict in tasks
            .iter()
            .filter_map(|task| task.record.usage.threads_verdict.as_deref())
        {
            *verdicts.entry(verdict).or_default() += 1;
        }
        let evidence = Evidence {
            group: names.group(condition),
            name: condition.way.name().to_owned(),
            way: Some(condition.way),
            tasks: tasks.len(),
            pinned: pinned.iter().filter(|pinned| **pinned).count(),
            pinned_known: pinned.len(),
            cpus: runs.first().map(|run| cpu_lists(run)).unwrap_or_default(),
            threads: summary(&|task| known(task.record.usage.threads)),
            threads_expected: summary(&|task| known(task.record.usage.threads_expected)),
            threads_verdicts: verdicts
                .into_iter()
                .map(|(verdict, tasks)| (verdict.replace('_', " "), tasks))
                .collect(),
        };
        (evidence.pinned_known > 0 || evidence.threads.is_some()).then_some(evidence)
    };
    runs.iter().filter_map(of).collect()
}

/// The first CPU lists of a run.
fn cpu_lists(run: &RunRecord) -> Vec<String> {
    let mut tasks: Vec<Task> = Task::all(run).collect();
    tasks.sort_by_key(|task| task.order());
    let lists = tasks.into_iter().filter_map(|task| {
        let cpus = task.record.usage.cpus.as_ref()?;
        let node = task.record.node.as_deref().unwrap_or("?");
        Some(format!("{}: CPUs {cpus} of {node}", task.name()))
    });
    let mut lists: Vec<String> = lists.collect();
    let more = lists.len().saturating_sub(LISTED);
    lists.truncate(LISTED);
    lists.extend((more > 0).then(|| format!("and {more} more")));
    lists
}

/// The tasks of a case that train.
pub(super) fn workers(case: &CaseFacts) -> f64 {
    let training = case
        .tasks
        .iter()
        .filter(|(role, _)| super::tasks::TRAINING.contains(&role.as_str()));
    training.map(|(_, tasks)| f64::from(*tasks)).sum()
}
