//! [`traffic`]: who talks with whom.

use std::collections::BTreeMap;

use super::tasks::{ConditionRuns, Task};
use super::usage::{by_group, by_task};
use crate::experiment::results::model::MeasuredRun;
use crate::experiment::results::outcome::TrafficMatrix;

/// The traffic between servers and other tasks, for each scene and case over all ways.
pub(crate) fn traffic(conditions: &[ConditionRuns<'_>]) -> Vec<TrafficMatrix> {
    let groups = by_group(conditions);
    groups
        .iter()
        .filter_map(|(group, runs)| matrix(group, runs))
        .collect()
}

/// The matrix of the runs; `None` if no run knows of traffic between two tasks.
fn matrix(group: &str, runs: &[&MeasuredRun]) -> Option<TrafficMatrix> {
    let tasks = by_task(runs);
    let tasks = tasks.values().filter_map(|seen| seen.first().copied());
    let (servers, peers): (Vec<Task>, Vec<Task>) = tasks.partition(|task| task.is_server());
    let names = |tasks: Vec<Task>| tasks.into_iter().map(Task::name).collect();
    let mut matrix = TrafficMatrix {
        group: group.to_owned(),
        servers: names(servers),
        peers: names(peers),
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
fn add(matrix: &mut TrafficMatrix, run: &MeasuredRun) -> bool {
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
