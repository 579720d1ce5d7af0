//! What makes results doubtful, in sentences.

use std::collections::BTreeSet;

use super::names::Names;
use super::tasks::Task;
use crate::experiment::results::model::{Experiment, NodeFacts, RunRecord};
use crate::experiment::results::read::Results;
use crate::text::counted;
use crate::text::sentence::capital;

/// How many names a sentence has.
const NAMED: usize = 5;

/// Why the times mean nothing, if so.
pub(super) fn caution(experiment: &Experiment) -> Option<String> {
    let nodes = &experiment.cluster.nodes;
    let emulated = named(nodes, |node| node.emulated == Some(true))?;
    Some(format!(
        "The times mean nothing: the CPUs of {emulated} are emulated. What was pinned and sized is still true."
    ))
}

pub(super) fn warnings(results: &Results, names: &Names) -> Vec<String> {
    let Results { experiment, runs } = results;
    let mut warnings = about_nodes(&experiment.cluster.nodes);
    let counting: Vec<&RunRecord> = results.counting().collect();
    let without: Vec<u32> = numbers(
        counting
            .iter()
            .filter(|run| run.measured.evidence.is_none()),
    );
    if !without.is_empty() {
        warnings.push(format!(
            "Nobody could be asked about CPUs and traffic of {}, so the findings don't cover it",
            run_list(&without)
        ));
    }
    let pinned = |run: &&&RunRecord| {
        !run.planned.condition.way.exclusive
            && Task::all(&run.measured).any(|task| task.is_pinned() == Some(true))
    };
    let pinned = numbers(counting.iter().filter(pinned));
    if !pinned.is_empty() {
        warnings.push(format!(
            "Tasks had exclusive CPUs in {}, which should run on shared CPUs: the comparison with exclusive CPUs understates their \
             effect",
            run_list(&pinned)
        ));
    }
    let restarted = |run: &&&RunRecord| run.measured.tasks.iter().any(|task| task.restarts > 0);
    let restarted = numbers(counting.iter().filter(restarted));
    if !restarted.is_empty() {
        warnings.push(format!(
            "Containers were restarted in {}, whose steps then lack a part",
            run_list(&restarted)
        ));
    }
    for run in runs.iter().filter(|run| run.attempts > 1) {
        warnings.push(format!(
            "Run {} ({}) was tried {} times; before: {}",
            run.planned.number,
            names.condition(run.planned.condition),
            run.attempts,
            run.failures.join("; ")
        ));
    }
    let mut of_runs: Vec<(&str, Vec<u32>)> = Vec::new();
    for run in &counting {
        for warning in &run.measured.warnings {
            let number = run.planned.number;
            match of_runs.iter_mut().find(|(other, _)| other == warning) {
                Some((_, runs)) => runs.push(number),
                None => of_runs.push((warning, vec![number])),
            }
        }
    }
    for (warning, runs) in of_runs {
        warnings.push(format!("{}: {warning}", capital(&run_list(&runs))));
    }
    warnings
}

/// What the nodes make doubtful.
fn about_nodes(nodes: &[NodeFacts]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(names) = named(nodes, |node| node.enforcement.as_deref() == Some("observe")) {
        warnings.push(format!(
            "Pinfold only observes on {names}, so nothing was pinned there: pinfold doctor says why"
        ));
    }
    for (what, pick) in [
        ("kernels", kernel as fn(&NodeFacts) -> Option<&str>),
        ("kinds of enforcement", |node| node.enforcement.as_deref()),
    ] {
        let different: BTreeSet<&str> = nodes.iter().filter_map(pick).collect();
        if different.len() > 1 {
            let different: Vec<&str> = different.into_iter().collect();
            warnings.push(format!(
                "The nodes have different {what}: {}",
                different.join(", ")
            ));
        }
    }
    warnings
}

fn kernel(node: &NodeFacts) -> Option<&str> {
    node.kernel.as_deref()
}

/// The nodes of a kind in words; `None` if there are none.
fn named(nodes: &[NodeFacts], is: impl Fn(&NodeFacts) -> bool) -> Option<String> {
    let names: Vec<&str> = nodes
        .iter()
        .filter(|node| is(node))
        .map(|node| node.name.as_str())
        .collect();
    match names.len() {
        0 => None,
        many if many == nodes.len() && many > 1 => Some(format!("all {many} nodes")),
        many if many > NAMED => Some(format!("{} of {}", many, counted(nodes.len(), "node"))),
        _ => Some(names.join(", ")),
    }
}

fn numbers<'a>(runs: impl Iterator<Item = &'a &'a RunRecord>) -> Vec<u32> {
    runs.map(|run| run.planned.number).collect()
}

/// Runs by their numbers: `run 7`, `runs 3, 7 and 11`, `12 runs (1, 3, 5, 7, 9 …)`.
fn run_list(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().take(NAMED).map(u32::to_string).collect();
    match words.as_slice() {
        [one] => format!("run {one}"),
        words if numbers.len() > NAMED => {
            format!("{} runs ({} …)", numbers.len(), words.join(", "))
        }
        words => match words.split_last() {
            Some((last, first)) => format!("runs {} and {last}", first.join(", ")),
            None => "no run".to_owned(),
        },
    }
}
