//! [`outcome()`]: the report of a Prometheus as an [`Outcome`], for the page.

use std::collections::BTreeSet;

use super::analysis::RunReport;
use super::compare::ExperimentReport;
use crate::experiment::results::{
    Answer, ConditionOutcome, CurvePoint, Fact, Finding, FindingKind, Outcome, RoleOutcome,
    RunValue, SpeedupCurve,
};
use crate::experiment::statistics::{Estimate, Summary, USUAL_MARGIN};

/// The confidence of intervals, of which one run of each has none.
const CONFIDENCE: f64 = 0.95;

/// The report as an outcome without verdicts, because there is one run of each.
pub fn outcome(report: &ExperimentReport) -> Outcome {
    let ExperimentReport { runs, notes, .. } = report;
    let missing = runs.iter().flat_map(|run| {
        let missing = run.missing.iter();
        missing.map(|missing| format!("{}: {missing}", run.name))
    });
    Outcome {
        title: title(runs),
        subject: subject(report),
        measure: "steps per second".to_owned(),
        repeats: 1,
        confidence: CONFIDENCE,
        margin: USUAL_MARGIN,
        others: report
            .pairs
            .iter()
            .map(|pair| Answer {
                title: format!("{} against {}", pair.other, pair.one),
                part: format!("in {}", pair.by.words()),
                verdict: None,
                sentence: pair.text.clone(),
                certainty: "One run of each allows no interval.".to_owned(),
                estimate: single(pair.ratio),
                smallest_effect: None,
                ratios: vec![pair.ratio],
                missing: 0,
            })
            .collect(),
        conditions: (1..)
            .zip(runs)
            .map(|(number, run)| condition(number, run))
            .collect(),
        speedup: speedup(report),
        findings: runs.iter().flat_map(findings).collect(),
        roles: runs.iter().flat_map(roles).collect(),
        warnings: notes.iter().cloned().chain(missing).collect(),
        ..Outcome::default()
    }
}

fn title(runs: &[RunReport]) -> String {
    let jobs: BTreeSet<String> = runs
        .iter()
        .map(|run| format!("{}/{}", run.namespace, run.job))
        .collect();
    let jobs: Vec<String> = jobs.into_iter().collect();
    format!("Training of {}", jobs.join(", "))
}

fn subject(report: &ExperimentReport) -> Vec<Fact> {
    let mut facts = vec![
        Fact::new("Source", report.prometheus.clone()),
        Fact::new(
            "Verdicts",
            "none: a verdict needs repeats, which pinfold scene run makes",
        ),
    ];
    facts.extend(report.runs.iter().map(|run| {
        Fact::new(
            &run.name,
            format!("{} to {}, {} workers", run.from, run.to, run.workers),
        )
    }));
    facts
}

fn single(value: f64) -> Option<Estimate> {
    Estimate::of(&[value], CONFIDENCE)
}

fn condition(number: u32, run: &RunReport) -> ConditionOutcome {
    let value = run.steps_per_second();
    ConditionOutcome {
        group: String::new(),
        name: run.name.clone(),
        way: None,
        runs: value
            .map(|value| RunValue {
                number,
                repeat: 1,
                value,
            })
            .into_iter()
            .collect(),
        estimate: value.and_then(single),
        planned: 1,
    }
}

/// A curve for each base, with the runs that are measured by it.
fn speedup(report: &ExperimentReport) -> Vec<SpeedupCurve> {
    let bases: BTreeSet<&str> = report
        .efficiency
        .iter()
        .map(|one| one.base.as_str())
        .collect();
    let curve = |base: &str| {
        let workers = report.runs.iter().find(|run| run.name == base)?.workers as f64;
        let first = CurvePoint {
            case: base.to_owned(),
            workers,
            ideal: 1.0,
            speedup: single(1.0),
            efficiency: Some(1.0),
        };
        let others = report.efficiency.iter().filter(|one| one.base == base);
        let others = others.map(|one| CurvePoint {
            case: one.run.clone(),
            workers: workers * one.workers,
            ideal: one.workers,
            speedup: single(one.speedup),
            efficiency: Some(one.efficiency),
        });
        let mut points = vec![first];
        for point in others {
            let at = points.partition_point(|other| other.workers <= point.workers);
            points.insert(at, point);
        }
        Some(SpeedupCurve {
            group: String::new(),
            name: format!("compared with {base}"),
            way: None,
            points,
        })
    };
    bases.into_iter().filter_map(curve).collect()
}

fn findings(run: &RunReport) -> Vec<Finding> {
    let of = |finding: &super::findings::RunFinding| Finding {
        kind: FindingKind::Other,
        subject: run.name.clone(),
        sentence: format!("{}: {}", run.name, finding.text),
        figures: Vec::new(),
        rule: String::new(),
        remedy: String::new(),
        nodes: BTreeSet::new(),
        repeats_seen: 0,
        repeats: 0,
        seen: Vec::new(),
    };
    run.findings.iter().map(of).collect()
}

fn roles(run: &RunReport) -> Vec<RoleOutcome> {
    let one = |value: Option<f64>| Summary::of(&[value?]);
    let of = |role: &super::task_use::RoleUse| {
        let usage = &role.usage;
        let tasks = role.tasks.max(1) as f64;
        let each = |value: Option<f64>| one(value.map(|value| value / tasks));
        let switches = usage.switches_per_second();
        RoleOutcome {
            group: run.name.clone(),
            name: String::new(),
            way: None,
            role: role.role.clone(),
            tasks: role.tasks,
            cpus: usage
                .cpus_owned
                .map(|owned| format!("{}", owned / tasks))
                .filter(|_| usage.cpus_owned > Some(0.0)),
            cpus_used: each(usage.cpus_used),
            throttled_share: one(usage.throttled_share),
            switches_per_second: each(switches),
            threads_waiting: each(usage.threads_waiting),
        }
    };
    run.roles.iter().map(of).collect()
}
