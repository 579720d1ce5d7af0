//! [`findings`]: what stands out in the runs, each thing once, with how often it was seen.

use std::collections::BTreeSet;

use super::names::Names;
use super::signs::{FigureName, IDLE, INTERFERENCE, SLOW_CPU, SLOW_STEPS, Sign, signs};
use super::usage::RunsByCondition;
use crate::experiment::report::{HOT, SAME_STEPS, THROTTLED};
use crate::experiment::results::model::RunRecord;
use crate::experiment::results::outcome::{Finding, FindingFigure, FindingKind, Seen};
use crate::experiment::statistics::{Condition, Summary};
use crate::text::units;

/// One big variable is the likely cause of a hot server if every other server has at most this part of its traffic. Many
/// small variables would spread over the servers.
const APART_FROM_OTHERS: f64 = 0.5;

/// A sign with the run that has it.
type SignOfRun<'a> = (Condition, &'a RunRecord, Sign);

/// The findings, the most frequent of each kind first.
pub(super) fn findings(
    runs: &RunsByCondition<'_>,
    names: &Names,
    shared_roles: &BTreeSet<String>,
) -> Vec<Finding> {
    let mut by_subject: Vec<Vec<SignOfRun>> = Vec::new();
    let mut all: Vec<SignOfRun> = Vec::new();
    for (condition, of_condition) in runs {
        for &run in of_condition {
            let signs = signs(run, condition.way.exclusive, shared_roles);
            all.extend(signs.into_iter().map(|sign| (*condition, run, sign)));
        }
    }
    for one in all {
        let is_same = |known: &&mut Vec<SignOfRun>| {
            known.first().is_some_and(|other| other.2.is_same(&one.2))
        };
        match by_subject.iter_mut().find(is_same) {
            Some(known) => known.push(one),
            None => by_subject.push(vec![one]),
        }
    }
    let order = |one: &Finding| {
        let seen: usize = one.seen.iter().map(|seen| seen.seen).sum();
        (one.kind, std::cmp::Reverse(seen))
    };
    let mut findings: Vec<Finding> = Vec::new();
    for signs in &by_subject {
        if let Some((.., first)) = signs.first() {
            let finding = finding(first.kind, first.subject.clone(), signs, runs, names);
            let at = findings.partition_point(|other| order(other) <= order(&finding));
            findings.insert(at, finding);
        }
    }
    findings
}

fn finding(
    kind: FindingKind,
    subject: String,
    signs: &[SignOfRun<'_>],
    runs: &RunsByCondition<'_>,
    names: &Names,
) -> Finding {
    let mut values: Vec<(FigureName, Vec<f64>)> = Vec::new();
    for (name, value) in signs.iter().flat_map(|(.., sign)| &sign.figures) {
        match values.iter_mut().find(|(other, _)| other == name) {
            Some((_, values)) => values.push(*value),
            None => values.push((*name, vec![*value])),
        }
    }
    let summaries: Vec<(FigureName, Summary)> = values
        .iter()
        .filter_map(|(name, values)| Some((*name, Summary::of(values)?)))
        .collect();
    let blocks = |runs: &mut dyn Iterator<Item = &RunRecord>| {
        let mut blocks: Vec<usize> = runs.filter_map(|run| run.planned.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len()
    };
    // A condition in which nothing was seen is named, too, if it has runs of the same scene and case: the comparison tells the cause.
    let is_near = |one: &Condition| {
        let mut signs = signs.iter();
        signs.any(|(other, ..)| (one.scene, one.case) == (other.scene, other.case))
    };
    let seen = runs
        .iter()
        .filter(|(condition, runs)| !runs.is_empty() && is_near(condition))
        .map(|(condition, of_condition)| Seen {
            group: names.group(*condition),
            way: condition.way.name().to_owned(),
            seen: signs.iter().filter(|(of, ..)| of == condition).count(),
            runs: of_condition.len(),
        });
    let median = |name| {
        let mut known = summaries.iter();
        known
            .find(|(other, _)| *other == name)
            .map(|(_, summary)| summary.median)
    };
    Finding {
        sentence: sentence(kind, &subject, &median),
        rule: rule(kind, &median),
        remedy: remedy(kind, &median),
        figures: summaries
            .iter()
            .map(|(name, summary)| figure(*name, summary))
            .collect(),
        nodes: signs
            .iter()
            .flat_map(|(.., sign)| sign.nodes.iter().cloned())
            .collect(),
        repeats_seen: blocks(&mut signs.iter().map(|(_, run, _)| *run)),
        repeats: blocks(&mut runs.iter().flat_map(|(_, runs)| runs.iter().copied())),
        seen: seen.collect(),
        kind,
        subject,
    }
}

fn sentence(
    kind: FindingKind,
    subject: &str,
    median: &dyn Fn(FigureName) -> Option<f64>,
) -> String {
    let share = |name| median(name).map_or_else(|| "?".to_owned(), units::percent);
    match kind {
        FindingKind::SharedSteps => "All workers report the same number of steps. This looks like one global step counter that \
            every worker exports, so each step is counted as often as there are workers"
            .to_owned(),
        FindingKind::Unpinned => match subject.split_once(": ") {
            Some((role, reason)) => format!(
                "{role} had no exclusive CPUs in runs that should give them: {reason}"
            ),
            None => subject.to_owned(),
        },
        FindingKind::HotServer => format!(
            "{subject} is hot: it moves {} of the parameter servers' bytes, {} times its equal share",
            share(FigureName::TrafficShare),
            median(FigureName::TimesEqual).map_or_else(|| "?".to_owned(), units::figures)
        ),
        FindingKind::IdleServers => format!(
            "{subject}: idle, with {} of the parameter servers' bytes",
            share(FigureName::TrafficShare)
        ),
        FindingKind::Straggler => format!(
            "{subject} lags: it reaches {} of the median worker's {}",
            share(FigureName::OfMedian),
            if median(FigureName::StepRate).is_some() {
                "steps per second"
            } else {
                "CPU time"
            }
        ),
        FindingKind::Throttled => format!(
            "The CPU quota holds the {subject} back in {} of the periods",
            share(FigureName::ThrottledShare)
        ),
        FindingKind::Interference => format!(
            "Others used {} of the time of {subject}",
            share(FigureName::InterferenceShare)
        ),
        FindingKind::Other => subject.to_owned(),
    }
}

fn rule(kind: FindingKind, median: &dyn Fn(FigureName) -> Option<f64>) -> String {
    match kind {
        FindingKind::SharedSteps => format!(
            "the workers' counts differ by at most {}",
            units::percent(SAME_STEPS)
        ),
        FindingKind::Unpinned => {
            "a task of a run with exclusive CPUs has none at the end".to_owned()
        }
        FindingKind::HotServer => {
            format!("at least {HOT} times the mean of all parameter servers' bytes")
        }
        FindingKind::IdleServers => format!(
            "less than {} of an equal share of the bytes, or all servers together below 10 kB/s",
            units::percent(IDLE)
        ),
        FindingKind::Straggler if median(FigureName::StepRate).is_some() => format!(
            "less than {} of the median worker's steps per second",
            units::percent(SLOW_STEPS)
        ),
        FindingKind::Straggler => format!(
            "less than {} of the median worker's CPU time",
            units::percent(SLOW_CPU)
        ),
        FindingKind::Throttled => format!(
            "the quota runs out in more than {} of the role's periods",
            units::percent(THROTTLED)
        ),
        FindingKind::Interference => format!(
            "others run in more than {} of the exclusive CPUs' time",
            units::percent(INTERFERENCE)
        ),
        FindingKind::Other => String::new(),
    }
}

fn remedy(kind: FindingKind, median: &dyn Fn(FigureName) -> Option<f64>) -> String {
    let words = match kind {
        FindingKind::SharedSteps => {
            "If the counter is global, take the steps of one worker only, for example with a pattern that only the chief's lines \
             match. If each worker counts its own steps of a synchronous training, the sum is right and nothing is to do"
        }
        FindingKind::Unpinned => "Correct the named reason and repeat the runs of these conditions",
        FindingKind::HotServer => {
            let next = median(FigureName::NextShare).unwrap_or_default();
            let hot = median(FigureName::TrafficShare).unwrap_or_default();
            match median(FigureName::Servers) {
                Some(servers) if servers < 2.5 => {
                    "Either the server has one large variable: partition it over both servers. Or the program places variables by \
                     number: place them by size, with a load-balancing strategy"
                }
                _ if next <= APART_FROM_OTHERS * hot => {
                    "The likely cause is one large variable, because all other servers carry much less: partition it over all \
                     servers. Another layout of the pods won't help"
                }
                _ => {
                    "The program places variables by number: place them by size, with a load-balancing strategy, or partition the \
                     large ones"
                }
            }
        }
        FindingKind::IdleServers => {
            "Partition the large variables, so that each server has a part of them, or run the job with fewer servers and give their \
             CPUs to workers"
        }
        FindingKind::Straggler => {
            "Look at the worker's input, its network and its neighbors; if it is always on the same node, look at the node first"
        }
        FindingKind::Throttled => {
            "Give the tasks exclusive CPUs, which have no quota once they are pinned, or a higher limit; if they have more threads than CPUs, \
             give them fewer"
        }
        FindingKind::Interference => {
            "Run pinfold doctor on the nodes, which names what runs there. With enforcement cpuset these may be daemons of the host; with \
             enforcement partition only kernel threads and interrupts are left, and the key cpuIsolation moves those away"
        }
        FindingKind::Other => "",
    };
    words.to_owned()
}

/// A figure over the runs in which the finding was seen.
fn figure(name: FigureName, summary: &Summary) -> FindingFigure {
    let (label, show): (&str, fn(f64) -> String) = match name {
        FigureName::TrafficShare => ("share of the servers' bytes", units::percent),
        FigureName::TimesEqual => ("times an equal share", units::figures),
        FigureName::CpuShare => ("share of the servers' CPU time", units::percent),
        FigureName::NextShare => ("share of the second busiest", units::percent),
        FigureName::Servers => ("parameter servers", whole),
        FigureName::BytesPerSecond => ("all servers, per second", units::bytes),
        FigureName::StepRate => ("its steps per second", units::figures),
        FigureName::CpusUsed => ("CPUs busy", units::figures),
        FigureName::OfMedian => ("of the median worker", units::percent),
        FigureName::ThrottledShare => ("throttled periods", units::percent),
        FigureName::InterferenceShare => ("of the exclusive CPUs' time", units::percent),
        FigureName::Tasks => ("tasks of a run", whole),
        FigureName::StepCount => ("steps of a worker", whole),
        FigureName::StepSpread => ("difference between the workers", units::percent),
    };
    let (least, median, greatest) = (
        show(summary.least),
        show(summary.median),
        show(summary.greatest),
    );
    FindingFigure {
        name: label.to_owned(),
        words: if least == greatest {
            median
        } else {
            format!("{median} ({least} to {greatest})")
        },
        summary: *summary,
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}
