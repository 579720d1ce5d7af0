//! [`findings`]: what stands out in the runs, each thing once, with how often it was seen.

use std::collections::BTreeSet;

use super::signs::{
    FigureName, HOT, IDLE, INTERFERENCE, SAME_STEPS, SLOW_CPU, SLOW_STEPS, Sign, THROTTLED, signs,
};
use super::tasks::ConditionRuns;
use crate::experiment::results::outcome::{
    ConditionName, Finding, FindingFigure, FindingKind, Seen,
};
use crate::experiment::statistics::Summary;
use crate::text::units;

/// One big variable is the likely cause of a hot server if every other server has at most this part of its traffic. Many
/// small variables would spread over the servers.
const APART_FROM_OTHERS: f64 = 0.5;

/// A sign, and where it was seen.
struct SeenSign<'a> {
    condition: &'a ConditionName,
    repeat: usize,
    sign: Sign,
}

/// The findings, the most frequent of each kind first. Roles that are meant for shared CPUs aren't reported as unpinned.
pub(crate) fn findings(
    conditions: &[ConditionRuns<'_>],
    shared_roles: &BTreeSet<String>,
) -> Vec<Finding> {
    let mut by_subject: Vec<Vec<SeenSign>> = Vec::new();
    for seen in all_signs(conditions, shared_roles) {
        let is_same = |known: &&mut Vec<SeenSign>| {
            let first = known.first();
            first.is_some_and(|other| other.sign.is_same(&seen.sign))
        };
        match by_subject.iter_mut().find(is_same) {
            Some(known) => known.push(seen),
            None => by_subject.push(vec![seen]),
        }
    }
    let mut findings: Vec<Finding> = by_subject
        .iter()
        .filter_map(|seen| finding(seen, conditions))
        .collect();
    findings.sort_by_key(|one| {
        let seen: usize = one.seen.iter().map(|seen| seen.seen).sum();
        (one.kind, std::cmp::Reverse(seen))
    });
    findings
}

/// The signs of all runs.
fn all_signs<'a>(
    conditions: &'a [ConditionRuns<'_>],
    shared_roles: &BTreeSet<String>,
) -> Vec<SeenSign<'a>> {
    let mut all = Vec::new();
    for ConditionRuns {
        name: condition,
        runs,
    } in conditions
    {
        let exclusive = condition.way.map(|way| way.exclusive);
        for run in runs {
            let signs = signs(run.measured, exclusive, shared_roles);
            all.extend(signs.into_iter().map(|sign| SeenSign {
                condition,
                repeat: run.repeat,
                sign,
            }));
        }
    }
    all
}

/// The finding that signs of the same thing make; `None` without signs.
fn finding(signs: &[SeenSign<'_>], conditions: &[ConditionRuns<'_>]) -> Option<Finding> {
    let Sign { kind, subject, .. } = &signs.first()?.sign;
    let summaries = summaries(signs);
    let median = |name| {
        let mut known = summaries.iter();
        known
            .find(|(other, _)| *other == name)
            .map(|(_, summary)| summary.median)
    };
    let repeats = |repeats: &mut dyn Iterator<Item = usize>| repeats.collect::<BTreeSet<_>>().len();
    let all = conditions.iter().flat_map(|condition| &condition.runs);
    let nodes = signs.iter().flat_map(|one| &one.sign.nodes);
    Some(Finding {
        kind: *kind,
        sentence: sentence(*kind, subject, &median),
        rule: rule(*kind, &median),
        remedy: remedy(*kind, &median),
        figures: summaries
            .iter()
            .map(|(name, summary)| figure(*name, summary))
            .collect(),
        nodes: nodes.cloned().collect(),
        repeats_seen: repeats(&mut signs.iter().map(|one| one.repeat)),
        repeats: repeats(&mut all.map(|run| run.repeat)),
        seen: seen(signs, conditions),
        subject: subject.clone(),
    })
}

/// Each figure of the signs over the runs in which it was seen.
fn summaries(signs: &[SeenSign<'_>]) -> Vec<(FigureName, Summary)> {
    let mut values: Vec<(FigureName, Vec<f64>)> = Vec::new();
    for (name, value) in signs.iter().flat_map(|one| &one.sign.figures) {
        match values.iter_mut().find(|(other, _)| other == name) {
            Some((_, values)) => values.push(*value),
            None => values.push((*name, vec![*value])),
        }
    }
    let summary = |(name, values): (_, Vec<f64>)| Some((name, Summary::of(&values)?));
    values.into_iter().filter_map(summary).collect()
}

/// How often the signs were seen, by condition. One in which nothing was seen is named, too, if it has runs of the same scene and
/// case, because the comparison tells the cause.
fn seen(signs: &[SeenSign<'_>], conditions: &[ConditionRuns<'_>]) -> Vec<Seen> {
    let is_near = |name: &ConditionName| {
        let mut signs = signs.iter();
        signs.any(|one| one.condition.group == name.group)
    };
    let near = conditions
        .iter()
        .filter(|condition| !condition.runs.is_empty() && is_near(&condition.name));
    near.map(|condition| Seen {
        group: condition.name.group.clone(),
        way: condition.name.name.clone(),
        seen: signs
            .iter()
            .filter(|one| *one.condition == condition.name)
            .count(),
        runs: condition.runs.len(),
    })
    .collect()
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
                "{role} should have exclusive CPUs and had none: {reason}"
            ),
            None => subject.to_owned(),
        },
        FindingKind::HotServer => format!(
            "{subject} is hot: it moves {} of the parameter servers' bytes, {} times its equal share",
            share(FigureName::TrafficShare),
            median(FigureName::TimesEqual).map_or_else(|| "?".to_owned(), units::figures)
        ),
        FindingKind::IdleServers => format!(
            "Idle: {subject}, with {} of the parameter servers' bytes",
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
            "The CPU quota holds the {subject} back: they use it up in {} of its periods",
            share(FigureName::ThrottledShare)
        ),
        FindingKind::Interference => format!(
            "Others used {} of the time of {subject}",
            share(FigureName::InterferenceShare)
        ),
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
    }
}

fn remedy(kind: FindingKind, median: &dyn Fn(FigureName) -> Option<f64>) -> String {
    let words = match kind {
        FindingKind::SharedSteps => {
            "If the counter is global, take the steps of one task only: with a pattern that only the chief's lines match, or with a \
             metric's matchers. If each worker counts its own steps of a synchronous training, the sum is right and nothing is to do"
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
