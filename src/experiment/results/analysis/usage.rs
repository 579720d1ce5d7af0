//! What the roles used in each condition, and the tasks in each scene and case.

use std::collections::BTreeMap;

use super::balance::Balance;
use super::tasks::{
    ConditionRuns, ORDER, Task, TaskOrder, known, mean, share, tasks_of, throttled,
};
use crate::experiment::results::model::MeasuredRun;
use crate::experiment::results::outcome::{RoleOutcome, TaskOutcome};
use crate::experiment::statistics::Summary;

/// What each role used in each condition. `cpus` tells what a task of a role is given, as far as somebody wrote it down.
pub(crate) fn roles(
    conditions: &[ConditionRuns<'_>],
    cpus: &BTreeMap<String, String>,
) -> Vec<RoleOutcome> {
    let mut outcomes = Vec::new();
    for condition in conditions {
        let mut roles: Vec<&str> = ORDER.to_vec();
        for task in condition.measured().flat_map(|run| &run.tasks) {
            if !roles.contains(&task.role.as_str()) {
                roles.push(&task.role);
            }
        }
        for role in roles {
            let outcome = role_outcome(condition, role, cpus.get(role));
            outcomes.extend((outcome.tasks > 0).then_some(outcome));
        }
    }
    outcomes
}

fn role_outcome(condition: &ConditionRuns<'_>, role: &str, cpus: Option<&String>) -> RoleOutcome {
    let over_runs = |value: &dyn Fn(&MeasuredRun) -> Option<f64>| {
        let values: Vec<f64> = condition.measured().filter_map(value).collect();
        Summary::of(&values)
    };
    let of_tasks = |rate: &dyn Fn(Task) -> Option<f64>| {
        over_runs(&|run| mean(tasks_of(run, role).filter_map(rate)))
    };
    let tasks = condition.measured().map(|run| tasks_of(run, role).count());
    RoleOutcome {
        condition: condition.name.clone(),
        role: role.to_owned(),
        tasks: tasks.max().unwrap_or_default(),
        cpus: cpus.cloned().or_else(|| exclusive_cpus(condition, role)),
        cpus_used: of_tasks(&|task| task.per_second(task.record.usage.cpu_seconds)),
        throttled_share: over_runs(&|run| throttled(run, role)),
        switches_per_second: of_tasks(&|task| task.per_second(task.switches())),
        threads_waiting: of_tasks(&|task| task.per_second(task.record.usage.run_delay_seconds)),
        llc_misses_per_kiloinstruction: over_runs(&|run| {
            let of = |task: Task| {
                let usage = &task.record.usage;
                (usage.llc_misses, usage.instructions)
            };
            share(tasks_of(run, role).map(of)).map(|share| 1000.0 * share)
        }),
    }
}

/// The exclusive CPUs of a task, if all tasks of the role have the same number of them.
fn exclusive_cpus(condition: &ConditionRuns<'_>, role: &str) -> Option<String> {
    let tasks = condition
        .measured()
        .flat_map(|run| tasks_of(run, role))
        .map(|task| known(task.record.usage.exclusive_cpus).unwrap_or_default());
    let mut tasks = tasks.peekable();
    let first = *tasks.peek()?;
    (first > 0.0 && tasks.all(|cpus| (cpus - first).abs() < 1e-9)).then(|| first.to_string())
}

/// What each task used in each scene and case, over all ways.
pub(crate) fn tasks(conditions: &[ConditionRuns<'_>]) -> Vec<TaskOutcome> {
    let groups = by_group(conditions);
    groups
        .iter()
        .flat_map(|(group, runs)| tasks_of_group(group, runs))
        .collect()
}

/// The runs of each scene and case, over all ways.
pub(super) fn by_group<'a>(
    conditions: &[ConditionRuns<'a>],
) -> Vec<(String, Vec<&'a MeasuredRun>)> {
    let mut groups: Vec<(String, Vec<&MeasuredRun>)> = Vec::new();
    for condition in conditions {
        let group = &condition.name.group;
        match groups.iter_mut().find(|(other, _)| other == group) {
            Some((_, runs)) => runs.extend(condition.measured()),
            None => groups.push((group.clone(), condition.measured().collect())),
        }
    }
    groups
}

fn tasks_of_group(group: &str, runs: &[&MeasuredRun]) -> Vec<TaskOutcome> {
    // A run's shares once, and not for each task again.
    let shares: Vec<[Option<Balance>; 2]> = runs
        .iter()
        .map(|run| {
            [
                servers(run, |task| task.traffic()),
                servers(run, cpu_seconds),
            ]
        })
        .collect();
    let of = |(role, seen): (&str, Vec<Task>)| {
        let name = seen.first().map_or_else(String::new, |task| task.name());
        let over_runs = |value: &dyn Fn(&Task) -> Option<f64>| {
            let values: Vec<f64> = seen.iter().filter_map(value).collect();
            Summary::of(&values)
        };
        let share = |at: usize| {
            let of_run = |shares: &[Option<Balance>; 2]| shares.get(at)?.as_ref()?.share_of(&name);
            let values: Vec<f64> = shares.iter().filter_map(of_run).collect();
            Summary::of(&values)
        };
        let nodes = seen.iter().filter_map(|one| one.record.node.clone());
        TaskOutcome {
            group: group.to_owned(),
            role: role.to_owned(),
            nodes: nodes.collect(),
            share_of_servers: share(0),
            share_of_servers_cpu: share(1),
            sent_bytes_per_second: over_runs(&|one| one.per_second(one.record.usage.sent_bytes)),
            received_bytes_per_second: over_runs(&|one| {
                one.per_second(one.record.usage.received_bytes)
            }),
            cpus_used: over_runs(&|one| one.per_second(cpu_seconds(*one))),
            steps_per_second: over_runs(&|one| one.step_rate()),
            task: name,
        }
    };
    by_task(runs)
        .into_iter()
        .map(|((_, role, ..), seen)| of((role, seen)))
        .collect()
}

fn cpu_seconds(task: Task<'_>) -> Option<f64> {
    known(task.record.usage.cpu_seconds)
}

/// The balance of a load among the parameter servers of a run, if that of all is known.
pub(super) fn servers(run: &MeasuredRun, load: fn(Task<'_>) -> Option<f64>) -> Option<Balance> {
    let servers = Task::all(run).filter(|task| task.is_server());
    let loads: Option<Vec<(String, f64)>> = servers
        .map(|task| Some((task.name(), load(task)?)))
        .collect();
    Balance::of(loads?)
}

/// The tasks of all runs, in the order of tasks, each with what every run has of it.
pub(super) fn by_task<'a>(runs: &[&'a MeasuredRun]) -> BTreeMap<TaskOrder<'a>, Vec<Task<'a>>> {
    let mut tasks: BTreeMap<TaskOrder, Vec<Task>> = BTreeMap::new();
    for task in runs.iter().flat_map(|run| Task::all(run)) {
        tasks.entry(task.order()).or_default().push(task);
    }
    tasks
}
