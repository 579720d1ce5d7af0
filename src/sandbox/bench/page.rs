//! [`page()`]: a bench as a page, with the parts of an experiment's report.

use super::effect::Run;
use super::plan::{BenchProgram, Way};
use super::report::{BenchReport, Metric, design, values};
use crate::experiment::results::{
    Comparisons, ConditionName, Evidence, Fact, Names, OtherFigure, Outcome, next_steps,
};
use crate::experiment::statistics::{self, Condition, Summary};
use crate::text::counted;

/// The report as one HTML file.
///
/// # Errors
/// A plan without rounds, and runs that the plan doesn't have.
pub fn page(report: &BenchReport) -> anyhow::Result<String> {
    Ok(crate::experiment::page(&outcome(report)?))
}

fn outcome(report: &BenchReport) -> anyhow::Result<Outcome> {
    let design = design(report.plan.rounds.len())?;
    let runs = values(Metric::StepsPerSecond, &report.runs);
    let comparisons = Comparisons {
        design: &design,
        runs: &runs,
        names: &Names::default(),
    };
    let found = &report.found;
    let mut warnings = found.interference.map_or_else(Vec::new, |interference| {
        interference.warning(&found.enforcement)
    });
    let step = report.step();
    let not_counted = found.not_counted.iter();
    warnings.extend(
        not_counted
            .map(|(metric, reason)| format!("{} is not measured: {reason}", metric.name(step))),
    );
    warnings.extend(found.notes.iter().cloned());
    let outcome = Outcome {
        title: format!("Effect of pinning and sizing: {}", work(report)),
        summary: report.compared.join(" "),
        subject: subject(report),
        measure: format!("{step}s per second"),
        repeats: design.repeats(),
        confidence: design.confidence(),
        margin: design.margin(),
        answers: comparisons.answers()?,
        others: comparisons.others()?,
        conditions: comparisons.conditions(|round, condition| number(report, round, condition)),
        figures: figures(report),
        evidence: evidence(report),
        warnings,
        ..Outcome::default()
    };
    Ok(Outcome {
        next: next_steps(&outcome),
        ..outcome
    })
}

fn work(report: &BenchReport) -> String {
    match &report.plan.work {
        BenchProgram::BuiltIn => "the built-in training job".to_owned(),
        BenchProgram::Command { line, .. } => line.clone(),
    }
}

/// A run's number in the order of the bench, from 1.
fn number(report: &BenchReport, round: usize, condition: Condition) -> u32 {
    let place = report.plan.rounds.get(round).and_then(|ways| {
        ways.iter()
            .position(|way| statistics::Way::from(*way) == condition.way)
    });
    let number = round * Way::ALL.len() + place.unwrap_or_default() + 1;
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What ran where, and the published claims beside the results.
fn subject(report: &BenchReport) -> Vec<Fact> {
    let BenchReport { plan, found, .. } = report;
    let machine = format!(
        "{} ({}), of which {} are reserved",
        counted(plan.online.len(), "CPU"),
        plan.online,
        plan.reserved
    );
    let pods = format!(
        "{} of {}, {}, {}",
        counted(plan.workers, "worker"),
        counted(plan.cpus, "CPU"),
        counted(plan.ps, "parameter server"),
        counted(plan.neighbors.count, "neighbor")
    );
    let enforcement = format!("{} ({})", found.enforcement, found.enforcement_reason);
    let mut facts = vec![
        Fact::new("Work", work(report)),
        Fact::new("Machine", machine),
        Fact::new("Pods", pods),
        Fact::new("Enforcement", enforcement),
    ];
    if let Some(interference) = &found.interference {
        facts.push(Fact::new("Interference", interference.in_words()));
    }
    for claim in &report.claims {
        let but: String = claim.but.iter().map(|but| format!("; but {but}")).collect();
        let value = format!("{}; here: {}{but}", claim.claimed, claim.here);
        facts.push(Fact::new("Published claim", value));
    }
    facts
}

/// All measures but the one that the verdicts are about.
fn figures(report: &BenchReport) -> Vec<OtherFigure> {
    let is_known = |metric: &Metric| {
        let mut ways = report.ways.iter();
        ways.any(|way| way.figures.contains_key(metric))
    };
    let of = |metric: Metric| {
        let ways = report.ways.iter().map(|way| {
            let name = statistics::Way::from(way.way).name().to_owned();
            (name, way.figures.get(&metric).copied())
        });
        OtherFigure {
            name: metric.name(report.step()),
            conditions: ways.collect(),
        }
    };
    let further = Metric::ALL
        .into_iter()
        .filter(|metric| *metric != Metric::StepsPerSecond);
    further.filter(is_known).map(of).collect()
}

/// The threads of the job, which show whether it was sized.
fn evidence(report: &BenchReport) -> Vec<Evidence> {
    let of = |way: Way| {
        let runs: Vec<&Run> = report.runs.iter().filter(|run| run.way == way).collect();
        let threads = runs.iter().filter_map(|run| run.thread_count);
        let threads: Vec<f64> = threads.map(|threads| threads as f64).collect();
        Some(Evidence {
            condition: ConditionName {
                group: String::new(),
                name: statistics::Way::from(way).name().to_owned(),
                way: Some(way.into()),
            },
            tasks: runs.len(),
            pinned: 0,
            pinned_known: 0,
            cpus: Vec::new(),
            threads: Some(Summary::of(&threads)?),
            threads_expected: None,
            threads_verdicts: Vec::new(),
        })
    };
    Way::ALL.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::plan::{Cpus, ThreadChoice};
    use super::super::report::tests::{plan, runs};
    use super::super::report::{Comparison, MachineFacts};
    use super::*;

    fn figures(round: usize, way: Way) -> Vec<(Metric, f64)> {
        let pinned = if way.cpus == Cpus::Pinned { 1.2 } else { 1.0 };
        let right = if way.threads == ThreadChoice::Right {
            1.5
        } else {
            1.0
        };
        let value = (10.0 + round as f64) * pinned * right;
        vec![
            (Metric::StepsPerSecond, value),
            (Metric::StepMsP99, 1000.0 / value),
        ]
    }

    #[test]
    fn a_bench_is_a_page_with_the_same_verdicts() {
        let report = BenchReport::new(plan(6), runs(6, figures), MachineFacts::default()).unwrap();
        let outcome = outcome(&report).unwrap();
        let verdicts: Vec<_> = outcome.answers.iter().map(|one| one.verdict).collect();
        let questions = [Comparison::Pinned, Comparison::Right, Comparison::Both];
        let of = |one| report.effect(one, Metric::StepsPerSecond).unwrap().verdict;
        assert_eq!(verdicts, questions.map(of));
        let numbers = outcome
            .conditions
            .iter()
            .flat_map(|one| one.runs.iter().map(|run| run.number));
        assert_eq!(numbers.collect::<BTreeSet<u32>>(), (1..=24).collect());
        let page = page(&report).unwrap();
        for part in [
            "With exclusive CPUs, the job is 20 % faster.",
            "step time p99, ms",
            "Published claim",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn a_command_can_hold_anything() {
        let mut plan = plan(1);
        plan.work = BenchProgram::Command {
            line: "</script><b onclick=x>".to_owned(),
            steps: None,
        };
        let report = BenchReport::new(plan, Vec::new(), MachineFacts::default()).unwrap();
        let page = page(&report).unwrap();
        assert!(page.contains("&lt;/script&gt;&lt;b onclick") && !page.contains("<b onclick"));
    }
}
