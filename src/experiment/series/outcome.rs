//! [`outcome()`]: the runs that a Prometheus has watched, beside each other.
//!
//! Each scene and case ran once, so there is neither a verdict nor an interval; only repeats show whether a difference is chance.

use std::collections::{BTreeMap, BTreeSet};

use super::run::ObservedRun;
use super::time::time;
use crate::experiment::results::{
    Answer, ConditionName, ConditionOutcome, ConditionRuns, CountedRun, CurvePoint, Fact, Finding,
    FindingKind, MeasuredRun, Outcome, RunValue, SpeedupCurve, TaskRecord, evidence, findings,
    next_steps, roles, tasks, traffic,
};
use crate::experiment::statistics::{Estimate, USUAL_MARGIN};
use crate::text::{counted, units};

/// Unused with single runs, which have no interval.
const CONFIDENCE: f64 = 0.95;

/// A run with its progress.
struct ComparedRun<'a> {
    observed: &'a ObservedRun,
    measured: MeasuredRun,
    /// The tasks that train.
    workers: usize,
    /// Its progress by the report's measure.
    value: Option<f64>,
    /// The same, if it can be held against that of other runs.
    compared: Option<f64>,
}

/// By what the progress of runs is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Steps,
    /// With the same model, each step of each worker fetches the same from the parameter servers.
    ServerBytes,
}

/// What the runs of the Prometheus at `source` show. `base` names the run or the case that larger ones are measured by; without it,
/// it is the run of the same scene with the fewest workers. `notes` are further warnings.
///
/// # Errors
/// `base` is the name of none of them.
pub fn outcome(
    source: &str,
    observed: &[ObservedRun],
    base: Option<&str>,
    notes: Vec<String>,
) -> Result<Outcome, String> {
    if let Some(name) = base.filter(|name| !observed.iter().any(|run| is_base(run, name))) {
        let names: Vec<&str> = observed.iter().map(|run| run.name.as_str()).collect();
        return Err(format!(
            "--base {name}: no run or case has this name: choose one of {}",
            names.join(", ")
        ));
    }
    let measured: Vec<MeasuredRun> = observed.iter().map(ObservedRun::measured).collect();
    let progress = Progress::of(&measured);
    let are_alike = progress == Progress::ServerBytes || steps_are_alike(&measured);
    let runs: Vec<ComparedRun> = observed
        .iter()
        .zip(measured)
        .map(|(observed, measured)| ComparedRun {
            observed,
            workers: measured.tasks.iter().filter(|task| task.trains()).count(),
            value: progress.of_run(&measured),
            compared: progress.of_run(&measured).filter(|_| are_alike),
            measured,
        })
        .collect();
    let conditions: Vec<ConditionRuns> = runs.iter().map(condition).collect();
    let findings = findings(&conditions, &BTreeSet::new());
    let outcome = Outcome {
        title: format!("Training of {}", jobs(observed)),
        summary: format!(
            "What a Prometheus knows of {}. There are no verdicts, because a single run of each can't tell an effect from chance; \
             pinfold scene run makes the repeats that can.",
            counted(runs.len(), "run")
        ),
        subject: subject(source, &runs),
        measure: progress.words().to_owned(),
        repeats: 1,
        confidence: CONFIDENCE,
        margin: USUAL_MARGIN,
        others: pairs(&runs, progress, &findings),
        conditions: (1..)
            .zip(&runs)
            .map(|(number, run)| values(number, run))
            .collect(),
        speedup: speedup(&runs, base),
        findings,
        traffic: traffic(&conditions),
        roles: roles(&conditions, &BTreeMap::new()),
        tasks: tasks(&conditions),
        evidence: evidence(&conditions),
        warnings: warnings(&runs, notes),
        ..Outcome::default()
    };
    Ok(Outcome {
        next: next_steps(&outcome),
        ..outcome
    })
}

// === impl Progress ===

impl Progress {
    /// Steps, if they are known of all runs in a way that can be compared; else the bytes of the parameter servers, if those are
    /// known of any run.
    fn of(runs: &[MeasuredRun]) -> Self {
        let servers = runs
            .iter()
            .any(|run| Self::ServerBytes.of_run(run).is_some());
        if steps_are_alike(runs) || !servers {
            Self::Steps
        } else {
            Self::ServerBytes
        }
    }

    fn of_run(self, run: &MeasuredRun) -> Option<f64> {
        match self {
            Self::Steps => run.steps_per_second,
            Self::ServerBytes => {
                let servers = run.tasks.iter().filter(|task| task.role == "ps");
                let sent: Option<Vec<f64>> = servers.map(|task| task.usage.sent_bytes).collect();
                let sent = sent.filter(|sent| !sent.is_empty())?;
                Some(sent.iter().sum::<f64>() / run.seconds?)
            }
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Steps => "steps per second",
            Self::ServerBytes => "bytes sent by the parameter servers per second",
        }
    }
}

/// Whether the steps of all runs mean the same: those of all tasks that train, or of one that counts for all. A sum that lacks
/// some of the workers can't be compared.
fn steps_are_alike(runs: &[MeasuredRun]) -> bool {
    let stepping = |run: &MeasuredRun| {
        let training = run.tasks.iter().filter(|task| task.trains());
        let (with, without): (Vec<&TaskRecord>, Vec<&TaskRecord>) =
            training.partition(|task| task.steps.is_some());
        (with.len(), without.len())
    };
    let all = runs.iter().all(|run| matches!(stepping(run), (1.., 0)));
    let one = runs.iter().all(|run| stepping(run).0 == 1);
    all || one
}

/// Whether the name of a base is the name of the run or of the run's case.
fn is_base(run: &ObservedRun, name: &str) -> bool {
    run.name == name || run.case.as_deref() == Some(name)
}

fn jobs(runs: &[ObservedRun]) -> String {
    let jobs = runs.iter().map(|run| {
        let job = &run.job;
        format!("{}/{}", job.namespace, job.job)
    });
    let jobs: BTreeSet<String> = jobs.collect();
    jobs.into_iter().collect::<Vec<String>>().join(", ")
}

fn condition<'a>(run: &'a ComparedRun<'_>) -> ConditionRuns<'a> {
    ConditionRuns {
        name: ConditionName {
            group: run.observed.name.clone(),
            ..ConditionName::default()
        },
        runs: vec![CountedRun {
            repeat: 0,
            measured: &run.measured,
        }],
    }
}

fn subject(source: &str, runs: &[ComparedRun<'_>]) -> Vec<Fact> {
    let mut facts = vec![Fact::new("Source", source)];
    facts.extend(runs.iter().map(|run| {
        let job = &run.observed.job;
        let nodes: BTreeSet<&str> = job.pods.values().map(|pod| pod.node.as_str()).collect();
        let servers = run.measured.tasks.iter().filter(|task| task.role == "ps");
        Fact::new(
            &run.observed.name,
            format!(
                "{} to {} ({}), {} and {} on {}, scraped every {}",
                time(job.from),
                time(job.to),
                units::seconds(job.seconds()),
                counted(run.workers, "worker"),
                counted(servers.count(), "parameter server"),
                counted(nodes.len(), "node"),
                units::seconds(job.interval)
            ),
        )
    }));
    facts
}

fn single(value: f64) -> Option<Estimate> {
    Estimate::of(&[value], CONFIDENCE)
}

fn values(number: u32, run: &ComparedRun<'_>) -> ConditionOutcome {
    let value = run.value.map(|value| RunValue {
        number,
        repeat: 1,
        value,
    });
    ConditionOutcome {
        condition: ConditionName {
            name: run.observed.name.clone(),
            ..ConditionName::default()
        },
        runs: value.into_iter().collect(),
        estimate: run.value.and_then(single),
        planned: 1,
    }
}

/// The runs of the same case in two scenes, or two runs without a case.
fn pairs(runs: &[ComparedRun<'_>], progress: Progress, findings: &[Finding]) -> Vec<Answer> {
    let mut pairs = Vec::new();
    for (at, one) in runs.iter().enumerate() {
        for other in runs.iter().skip(at + 1) {
            let (this, that) = (one.observed, other.observed);
            let same_case =
                this.case.is_some() && this.case == that.case && this.scene != that.scene;
            let only_two = runs.len() == 2 && this.case.is_none() && that.case.is_none();
            if same_case || only_two {
                pairs.push(pair(one, other, progress, findings));
            }
        }
    }
    pairs
}

fn pair(
    one: &ComparedRun<'_>,
    other: &ComparedRun<'_>,
    progress: Progress,
    findings: &[Finding],
) -> Answer {
    let (this, that) = (&one.observed.name, &other.observed.name);
    let ratio = match (one.compared, other.compared) {
        (Some(first), Some(second)) if first > 0.0 => Some(second / first),
        _ => None,
    };
    let words = progress.words();
    let mut sentence = match ratio {
        Some(ratio) => format!(
            "{that} has {} times the {words} of {this}",
            units::figures(ratio)
        ),
        None => format!(
            "{that} and {this} can't be compared: the {words} of one of them are 0, or unknown for some of its tasks"
        ),
    };
    if one.workers != other.workers {
        sentence += &format!(
            ", with {} instead of {}",
            counted(other.workers, "worker"),
            one.workers
        );
    }
    if let Some(hot) = findings
        .iter()
        .find(|finding| is_hot_in(finding, [this, that]))
    {
        sentence += &format!(
            ". {} is hot in both, so the cause is the program's placement of variables, and not the nodes of the pods",
            hot.subject
        );
    }
    Answer {
        title: format!("{that} against {this}"),
        part: String::new(),
        verdict: None,
        sentence: sentence + ".",
        certainty: "One run of each can't tell whether that is chance.".to_owned(),
        advice: String::new(),
        estimate: ratio.and_then(single),
        smallest_effect: None,
        ratios: ratio.into_iter().collect(),
        missing: 0,
    }
}

/// Whether a parameter server is hot in both runs.
fn is_hot_in(finding: &Finding, runs: [&String; 2]) -> bool {
    let seen = |run| {
        let mut seen = finding.seen.iter();
        seen.any(|seen| &seen.group == run && seen.seen > 0)
    };
    finding.kind == FindingKind::HotServer && runs.into_iter().all(seen)
}

/// A curve for each base, with the runs that are measured by it.
fn speedup(runs: &[ComparedRun<'_>], base: Option<&str>) -> Vec<SpeedupCurve> {
    let mut curves: Vec<(&ComparedRun, Vec<&ComparedRun>)> = Vec::new();
    for run in runs {
        let Some(of_run) = base_of(run, runs, base) else {
            continue;
        };
        match curves
            .iter_mut()
            .find(|(known, _)| known.observed.name == of_run.observed.name)
        {
            Some((_, others)) => others.push(run),
            None => curves.push((of_run, vec![run])),
        }
    }
    let curve = |(of, others): &(&ComparedRun, Vec<&ComparedRun>)| {
        let mut points: Vec<CurvePoint> = std::iter::once(of)
            .chain(others)
            .filter_map(|run| point(run, of))
            .collect();
        points.sort_by(|one, other| one.workers.total_cmp(&other.workers));
        (points.len() > 1).then(|| SpeedupCurve {
            condition: ConditionName {
                group: common_scene(of, others),
                name: format!("compared with {}", of.observed.name),
                way: None,
            },
            points,
        })
    };
    curves.iter().filter_map(curve).collect()
}

/// The scene of a curve, if all its runs have the same.
fn common_scene(base: &ComparedRun<'_>, others: &[&ComparedRun<'_>]) -> String {
    let Some(scene) = &base.observed.scene else {
        return String::new();
    };
    let mut others = others.iter();
    if others.all(|run| run.observed.scene.as_ref() == Some(scene)) {
        format!("scene {scene}")
    } else {
        String::new()
    }
}

/// The run that another run is compared with.
fn base_of<'a, 'b>(
    run: &ComparedRun<'_>,
    runs: &'a [ComparedRun<'b>],
    base: Option<&str>,
) -> Option<&'a ComparedRun<'b>> {
    let mut others = runs.iter().filter(|other| {
        other.observed.name != run.observed.name && other.observed.scene == run.observed.scene
    });
    match base {
        Some(name) if is_base(run.observed, name) => None,
        // A named run is the base of all runs, a named case that of its scene.
        Some(name) => others
            .find(|other| is_base(other.observed, name))
            .or_else(|| runs.iter().find(|other| other.observed.name == name)),
        None => others
            .min_by_key(|other| other.workers)
            .filter(|other| other.workers < run.workers),
    }
}

fn point(run: &ComparedRun<'_>, base: &ComparedRun<'_>) -> Option<CurvePoint> {
    let (value, of_base) = (run.compared?, base.compared.filter(|value| *value > 0.0)?);
    let ideal = (base.workers > 0).then(|| run.workers as f64 / base.workers as f64)?;
    let speedup = value / of_base;
    Some(CurvePoint {
        case: run.observed.name.clone(),
        workers: run.workers as f64,
        ideal,
        speedup: single(speedup),
        efficiency: (ideal > 0.0).then(|| speedup / ideal),
    })
}

/// What is doubtful. Where there are several runs, each is named.
fn warnings(runs: &[ComparedRun<'_>], notes: Vec<String>) -> Vec<String> {
    let mut warnings = notes;
    for run in runs {
        for warning in &run.measured.warnings {
            warnings.push(match runs.len() {
                1 => warning.clone(),
                _ => format!("{}: {warning}", run.observed.name),
            });
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
