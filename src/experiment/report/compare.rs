//! [`compare`]: several runs side by side, and how well a job scales.

use serde::Serialize;

use super::analysis::RunReport;
use super::figures::number;
use super::findings::FindingKind;
use crate::text::counted;

/// By what the progress of a run is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProgressMeasure {
    /// Steps each second.
    Steps,
    /// Bytes that the parameter servers send each second: with the same model, each step of each worker fetches the same.
    ServerBytes,
}

/// How well a run scales, beside a smaller one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Efficiency {
    /// The run.
    pub run: String,
    /// The base run of the comparison.
    pub base: String,
    /// By what.
    pub by: ProgressMeasure,
    /// The workers relative to the base.
    pub workers: f64,
    /// The progress relative to the base.
    pub speedup: f64,
    /// The speedup by what it would be if each worker did as much as in the base: 1 is linear.
    pub efficiency: f64,
}

/// Two runs of the same case.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// The first.
    pub one: String,
    /// The second.
    pub other: String,
    /// The measure of the comparison.
    pub by: ProgressMeasure,
    /// The second's progress by the first's.
    pub ratio: f64,
    /// What that means.
    pub text: String,
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentReport {
    /// The queried server.
    pub prometheus: String,
    /// The runs.
    pub runs: Vec<RunReport>,
    /// The scaling efficiency.
    pub efficiency: Vec<Efficiency>,
    /// The same case in two scenes.
    pub pairs: Vec<Pair>,
    /// What could not be said, and why; and what Prometheus warned of.
    pub notes: Vec<String>,
}

/// Puts runs side by side. `base` names a case, or a run; without it, the run of the same scene with the fewest workers is
/// what others are measured by.
///
/// # Errors
/// `base` is the name of none of them.
pub fn compare(
    prometheus: String,
    runs: Vec<RunReport>,
    base: Option<&str>,
    warnings: Vec<String>,
) -> Result<ExperimentReport, String> {
    if let Some(name) = base.filter(|name| !runs.iter().any(|run| is_base(run, name))) {
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        return Err(format!(
            "--base {name}: no run or case has this name: choose one of {}",
            names.join(", ")
        ));
    }
    let mut notes = warnings;
    let efficiency = efficiencies(&runs, base, &mut notes);
    let pairs = comparable_pairs(&runs, &mut notes);
    Ok(ExperimentReport {
        prometheus,
        runs,
        efficiency,
        pairs,
        notes,
    })
}

/// Whether the name of a base is the name of the run or of the run's case.
fn is_base(run: &RunReport, name: &str) -> bool {
    run.name == name || run.case.as_deref() == Some(name)
}

/// The scaling of each run with a base. Each unknown scaling adds a note.
fn efficiencies(
    runs: &[RunReport],
    base: Option<&str>,
    notes: &mut Vec<String>,
) -> Vec<Efficiency> {
    let mut efficiencies = Vec::new();
    for run in runs {
        let Some(base_run) = base_of(run, runs, base) else {
            if let Some(name) = base.filter(|name| !is_base(run, name)) {
                notes.push(format!(
                    "the scaling of {} is unknown: its scene has no case {name}",
                    run.name
                ));
            }
            continue;
        };
        match scaled(run, base_run) {
            Ok(efficiency) => efficiencies.push(efficiency),
            Err(why) => {
                notes.push(format!(
                    "the scaling of {} relative to {} is unknown: {why}",
                    run.name, base_run.name
                ));
            }
        }
    }
    efficiencies
}

/// The run that another run is compared with. Without a name, the smallest run of the same scene is the base.
fn base_of<'a>(
    run: &RunReport,
    runs: &'a [RunReport],
    base: Option<&str>,
) -> Option<&'a RunReport> {
    let mut others = runs
        .iter()
        .filter(|other| other.name != run.name && other.scene == run.scene);
    match base {
        Some(name) if is_base(run, name) => None,
        // A named run is the base of all runs.
        Some(name) => others
            .find(|other| is_base(other, name))
            .or_else(|| runs.iter().find(|other| other.name == name)),
        None => others
            .min_by_key(|other| other.workers)
            .filter(|other| other.workers < run.workers),
    }
}

/// The comparisons of the runs of the same case in two scenes, or of two runs without a case. Each impossible comparison
/// adds a note.
fn comparable_pairs(runs: &[RunReport], notes: &mut Vec<String>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (at, one) in runs.iter().enumerate() {
        for other in runs.iter().skip(at + 1) {
            let same_case =
                one.case.is_some() && one.case == other.case && one.scene != other.scene;
            let only_two = runs.len() == 2 && one.case.is_none() && other.case.is_none();
            if !same_case && !only_two {
                continue;
            }
            match pair(one, other) {
                Ok(pair) => pairs.push(pair),
                Err(why) => notes.push(format!(
                    "can't compare {} and {}: {why}",
                    one.name, other.name
                )),
            }
        }
    }
    pairs
}

/// The progress of both by what both are known by.
fn progress(
    one: &RunReport,
    other: &RunReport,
) -> Result<(ProgressMeasure, f64, f64), &'static str> {
    // The counter of a single task for all steps, or the sum of all tasks. The counters of only some tasks can't be
    // compared.
    let all = |run: &RunReport| run.stepping() == run.workers;
    let alike = all(one) && all(other) || one.stepping() == 1 && other.stepping() == 1;
    let steps = |run: &RunReport| run.steps_per_second().filter(|_| alike);
    let sent = |run: &RunReport| {
        run.servers_use()
            .and_then(|usage| usage.sent_bytes_per_second)
    };
    let (by, one, other) = match ((steps(one), steps(other)), (sent(one), sent(other))) {
        ((Some(one), Some(other)), _) => (ProgressMeasure::Steps, one, other),
        (_, (Some(one), Some(other))) => (ProgressMeasure::ServerBytes, one, other),
        _ => {
            return Err(
                "the steps of all training tasks and the bytes sent by the parameter servers are unknown for one of the runs",
            );
        }
    };
    if one > 0.0 {
        Ok((by, one, other))
    } else {
        Err("the run to compare with made no progress")
    }
}

fn scaled(run: &RunReport, base: &RunReport) -> Result<Efficiency, &'static str> {
    if run.workers == 0 || base.workers == 0 {
        return Err("one of the runs has no workers");
    }
    let (by, of_base, of_run) = progress(base, run)?;
    let (speedup, workers) = (of_run / of_base, run.workers as f64 / base.workers as f64);
    let efficiency = speedup / workers;
    Ok(Efficiency {
        run: run.name.clone(),
        base: base.name.clone(),
        by,
        workers,
        speedup,
        efficiency,
    })
}

fn pair(one: &RunReport, other: &RunReport) -> Result<Pair, &'static str> {
    let (by, first, second) = progress(one, other)?;
    let ratio = second / first;
    let what = by.words();
    let mut text = if one.workers != other.workers {
        format!(
            "{} has {} times the progress of {}, in {what}, with {} instead of {}",
            other.name,
            number(ratio),
            one.name,
            counted(other.workers, "worker"),
            one.workers
        )
    } else {
        format!(
            "{} has {} times the progress of {}, in {what}; one run of each can't tell whether that is chance",
            other.name,
            number(ratio),
            one.name
        )
    };
    if let (Some(hot), Some(same)) = (hot(one), hot(other))
        && hot == same
    {
        text += &format!(
            ". {hot} is hot in both: the cause is the program's placement of variables, not the nodes of the pods"
        );
    }
    Ok(Pair {
        one: one.name.clone(),
        other: other.name.clone(),
        by,
        ratio,
        text,
    })
}

/// The server with the most traffic of a run, if any.
fn hot(run: &RunReport) -> Option<&str> {
    let is_hot = |kind| {
        use FindingKind::{HotServer, OneBigVariable, UnevenServers};
        matches!(kind, OneBigVariable | HotServer | UnevenServers)
    };
    run.findings.iter().find(|finding| is_hot(finding.kind))?;
    Some(run.servers.traffic.as_ref()?.hottest()?.task.as_str())
}

// === impl ProgressMeasure ===

impl ProgressMeasure {
    /// The counted thing, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Steps => "steps per second",
            Self::ServerBytes => "bytes sent by the parameter servers per second",
        }
    }
}

#[cfg(test)]
mod tests;
