//! What the roles used in each condition, the traffic of each case, and the evidence that tasks were pinned and sized.

use std::collections::BTreeMap;

use super::names::Names;
use super::tasks::{ORDER, Task, known, mean, share};
use crate::experiment::results::model::{CaseFacts, Experiment, RunRecord};
use crate::experiment::results::outcome::{Evidence, RoleOutcome, TrafficMatrix};
use crate::experiment::statistics::{Condition, Summary};

/// How many CPU lists the evidence of a condition has.
const LISTED: usize = 3;

/// The counting runs of each condition.
pub(super) type RunsByCondition<'a> = Vec<(Condition, Vec<&'a RunRecord>)>;

/// What each role used in each condition.
pub(super) fn roles(
    experiment: &Experiment,
    runs: &RunsByCondition<'_>,
    names: &Names,
) -> Vec<RoleOutcome> {
    let mut outcomes = Vec::new();
    for (condition, runs) in runs {
        let mut roles: Vec<&str> = ORDER.to_vec();
        let all = runs.iter().flat_map(|run| &run.tasks);
        for task in all {
            if !roles.contains(&task.role.as_str()) {
                roles.push(&task.role);
            }
        }
        for role in roles {
            let outcome = role_outcome(experiment, *condition, role, runs, names);
            outcomes.extend((outcome.tasks > 0).then_some(outcome));
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
    let mut by_case: Vec<(Condition, Vec<&RunRecord>)> = Vec::new();
    for (condition, runs) in runs {
        let same = |(other, _): &&mut (Condition, _)| {
            (other.scene, other.case) == (condition.scene, condition.case)
        };
        match by_case.iter_mut().find(same) {
            Some((_, known)) => known.extend(runs),
            None => by_case.push((*condition, runs.clone())),
        }
    }
    by_case
        .iter()
        .filter_map(|(condition, runs)| matrix(names.group(*condition), runs))
        .collect()
}

/// The matrix of the runs; `None` if no run knows of traffic between two tasks.
fn matrix(group: String, runs: &[&RunRecord]) -> Option<TrafficMatrix> {
    let mut matrix = TrafficMatrix {
        group,
        servers: places(runs, true),
        peers: places(runs, false),
        bytes_per_second: Vec::new(),
        runs: 0,
    };
    matrix.bytes_per_second = vec![vec![None; matrix.servers.len()]; matrix.peers.len()];
    for run in runs {
        let knows = add(&mut matrix, run);
        matrix.runs += usize::from(knows);
    }
    let runs = matrix.runs as f64;
    for cell in matrix.bytes_per_second.iter_mut().flatten() {
        *cell = cell.map(|sum| sum / runs);
    }
    (matrix.runs > 0).then_some(matrix)
}

/// Adds the traffic of a run; false if it knows of none.
fn add(matrix: &mut TrafficMatrix, run: &RunRecord) -> bool {
    let (mut knows, tasks) = (false, Task::all(run).collect::<Vec<_>>());
    // Where a task's row or column is.
    let place = |task: &Task| {
        let names = if task.is_server() {
            &matrix.servers
        } else {
            &matrix.peers
        };
        let name = task.name();
        names.iter().position(|other| *other == name)
    };
    let places: Vec<Option<usize>> = tasks.iter().map(place).collect();
    let pods: BTreeMap<&str, usize> = (0..)
        .zip(&tasks)
        .map(|(at, task)| (task.record.pod.as_str(), at))
        .collect();
    for (sender, from) in tasks.iter().zip(&places) {
        for (pod, bytes) in &sender.record.usage.sent_to {
            let Some(&at) = pods.get(pod.as_str()) else {
                continue;
            };
            let (Some(receiver), Some(&to)) = (tasks.get(at), places.get(at)) else {
                continue;
            };
            let (row, column) = match (sender.is_server(), receiver.is_server()) {
                (true, false) => (to, *from),
                (false, true) => (*from, to),
                _ => continue,
            };
            let (Some(row), Some(column)) = (row, column) else {
                continue;
            };
            let cell = matrix.bytes_per_second.get_mut(row);
            let cell = cell.and_then(|row| row.get_mut(column));
            if let (Some(cell), Some(rate)) = (cell, sender.per_second(Some(*bytes))) {
                knows = true;
                *cell = Some(cell.unwrap_or_default() + rate);
            }
        }
    }
    knows
}

/// The names of the tasks of all runs that are servers, or aren't, in the order of tasks.
fn places(runs: &[&RunRecord], servers: bool) -> Vec<String> {
    let mut places: Vec<Task> = Vec::new();
    let tasks = runs.iter().flat_map(|run| Task::all(run));
    for task in tasks.filter(|task| task.is_server() == servers) {
        // The tasks of a run are in their order, mostly.
        match places.binary_search_by_key(&task.order(), |known| known.order()) {
            Ok(_) => {}
            Err(at) => places.insert(at, task),
        }
    }
    places.into_iter().map(Task::name).collect()
}

/// What shows that the tasks of each condition were pinned and sized, or weren't. Conditions of which nobody knows are left out.
pub(super) fn evidence(runs: &RunsByCondition<'_>, names: &Names) -> Vec<Evidence> {
    let of = |(condition, runs): &(Condition, Vec<&RunRecord>)| {
        let condition = *condition;
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
    let lists = Task::all(run).filter_map(|task| {
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
