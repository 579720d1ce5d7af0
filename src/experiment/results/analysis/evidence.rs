//! [`evidence`]: what shows that tasks were pinned and sized.

use std::collections::BTreeMap;

use super::tasks::{ConditionRuns, Task, known};
use crate::experiment::results::model::MeasuredRun;
use crate::experiment::results::outcome::Evidence;
use crate::experiment::statistics::Summary;

/// How many CPU lists the evidence of a condition has.
const LISTED: usize = 3;

/// What shows that the tasks of each condition were pinned and sized, or weren't. Conditions of which nobody knows are left out.
pub(crate) fn evidence(conditions: &[ConditionRuns<'_>]) -> Vec<Evidence> {
    let of = |condition: &ConditionRuns<'_>| {
        let tasks: Vec<Task> = condition.measured().flat_map(Task::all).collect();
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
            condition: condition.name.clone(),
            tasks: tasks.len(),
            pinned: pinned.iter().filter(|pinned| **pinned).count(),
            pinned_known: pinned.len(),
            cpus: condition
                .measured()
                .next()
                .map(cpu_lists)
                .unwrap_or_default(),
            threads: summary(&|task| known(task.record.usage.threads)),
            threads_expected: summary(&|task| known(task.record.usage.threads_expected)),
            threads_verdicts: verdicts
                .into_iter()
                .map(|(verdict, tasks)| (verdict_words(verdict), tasks))
                .collect(),
        };
        (evidence.pinned_known > 0 || evidence.threads.is_some()).then_some(evidence)
    };
    conditions.iter().filter_map(of).collect()
}

/// The first CPU lists of a run.
fn cpu_lists(run: &MeasuredRun) -> Vec<String> {
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

/// The verdict on the threads of tasks, to follow their number.
fn verdict_words(verdict: &str) -> String {
    match verdict {
        "as_expected" => "with as many threads as expected".to_owned(),
        "more_than_expected" => "with more threads than expected".to_owned(),
        "fewer_than_expected" => "with fewer threads than expected".to_owned(),
        "oversubscribed" => "with more running threads than CPUs".to_owned(),
        other => other.replace('_', " "),
    }
}
