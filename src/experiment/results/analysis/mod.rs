//! [`analyze`]: the results of an experiment as an [`Outcome`].

mod balance;
mod comparisons;
mod evidence;
mod findings;
mod names;
mod next;
mod signs;
mod tasks;
mod traffic;
mod usage;
mod warnings;

pub use comparisons::Comparisons;
pub(crate) use comparisons::{change_of_margin, percent};
pub(crate) use evidence::evidence;
pub(crate) use findings::findings;
pub use names::Names;
pub(crate) use next::next_steps;
pub(crate) use tasks::{ConditionRuns, CountedRun};
pub(crate) use traffic::traffic;
pub(crate) use usage::{roles, tasks};

use std::collections::BTreeMap;

use super::model::{Experiment, PlannedRun, RunRecord, SceneFacts, StepSource};
use super::outcome::{Answer, Fact, LostRun, Outcome};
use super::read::Results;
use crate::experiment::statistics::{Condition, Run, RunError};
use crate::text::counted;

/// What an experiment found. Runs that failed or are missing are named and enter no average.
///
/// # Errors
/// A run that the design doesn't have.
pub fn analyze(results: &Results) -> Result<Outcome, RunError> {
    let Results { experiment, .. } = results;
    let names = Names::of(experiment);
    let runs: Vec<Run> = results.counting().filter_map(value).collect();
    let by_condition = by_condition(results, &names);
    let comparisons = Comparisons {
        design: &experiment.design,
        runs: &runs,
        names: &names,
    };
    let number = |block: usize, condition: Condition| {
        let mut order = experiment.order.iter();
        let planned = order.find(|run| run.block == Some(block) && run.condition == condition);
        planned.map_or(0, |run| run.number)
    };
    let workers = |scene: usize| -> Vec<f64> {
        let scene = experiment.scenes.get(scene);
        let cases = scene.into_iter().flat_map(|scene| &scene.cases);
        cases.map(|case| f64::from(case.workers())).collect()
    };
    let is_emulated = warnings::caution(experiment).is_some();
    // Whoever reads only one sentence must not take it for a result.
    let cautious = |answer: Answer| match is_emulated {
        true => Answer {
            sentence: format!("On emulated CPUs, so not a result: {}", answer.sentence),
            advice: String::new(),
            ..answer
        },
        false => answer,
    };
    let outcome = Outcome {
        title: format!(
            "Training job {} in the scenes of plan {}",
            experiment.job.name, experiment.plan
        ),
        summary: summary(experiment, results),
        subject: subject(experiment, results),
        measure: "steps per second".to_owned(),
        repeats: experiment.design.repeats(),
        confidence: experiment.design.confidence(),
        margin: experiment.design.margin(),
        caution: warnings::caution(experiment),
        answers: comparisons.answers()?.into_iter().map(cautious).collect(),
        others: comparisons.others()?,
        conditions: comparisons.conditions(number),
        figures: Vec::new(),
        speedup: comparisons.speedup(workers)?,
        findings: findings(&by_condition, &experiment.job.shared_roles),
        traffic: traffic(&by_condition),
        roles: roles(&by_condition, &experiment.job.cpus),
        tasks: tasks(&by_condition),
        evidence: evidence(&by_condition),
        lost: lost(results, &names),
        warnings: warnings::warnings(results, &names),
        ..Outcome::default()
    };
    Ok(Outcome {
        next: next_steps(&outcome),
        ..outcome
    })
}

/// The runs that count, by condition.
fn by_condition<'a>(results: &'a Results, names: &Names) -> Vec<ConditionRuns<'a>> {
    let runs_of = |condition: Condition| {
        let runs = results.counting();
        let runs = runs.filter(move |run| run.planned.condition == condition);
        runs.filter_map(|run| {
            Some(CountedRun {
                repeat: run.planned.block?,
                measured: &run.measured,
            })
        })
    };
    let conditions = results.experiment.design.conditions();
    conditions
        .map(|condition| ConditionRuns {
            name: names.of_condition(condition),
            runs: runs_of(condition).collect(),
        })
        .collect()
}

/// The value of a run that counts.
fn value(run: &RunRecord) -> Option<Run> {
    Some(Run {
        block: run.planned.block?,
        condition: run.planned.condition,
        value: run.measured.steps_per_second?,
    })
}

/// The runs that failed, have no steps, or are missing.
fn lost(results: &Results, names: &Names) -> Vec<LostRun> {
    let lost = |planned: &PlannedRun, reason: String| {
        Some(LostRun {
            number: planned.number,
            repeat: planned.block? + 1,
            condition: names.condition(planned.condition),
            reason,
        })
    };
    let failed = results.runs.iter().filter(|run| !run.counts());
    let failed = failed.filter_map(|run| {
        let reason = match &run.failure {
            Some(reason) => format!("failed: {reason}"),
            None => "no steps were counted".to_owned(),
        };
        lost(&run.planned, reason)
    });
    let missing = results.missing().filter_map(|planned| {
        lost(
            planned,
            "missing: it hasn't ended, or its file is gone".to_owned(),
        )
    });
    let mut all: Vec<LostRun> = failed.collect();
    for run in missing {
        let at = all.partition_point(|other| other.number < run.number);
        all.insert(at, run);
    }
    all
}

/// What ran on what, in sentences.
fn summary(experiment: &Experiment, results: &Results) -> String {
    let planned = experiment.order.iter().filter(|run| run.block.is_some());
    format!(
        "The job ran in {}: every scene (a layout of the tasks on the nodes) and every case (a size of the job) in every way. The ways \
         are {}. Each condition was to run in {}, on {}; {} of {} planned runs count.",
        counted(experiment.design.conditions().count(), "condition"),
        ways_in_words(experiment).join("; "),
        counted(experiment.design.repeats(), "repeat"),
        cluster_words(experiment),
        results.counting().count(),
        planned.count(),
    )
}

/// The ways that were run, each with its name.
fn ways_in_words(experiment: &Experiment) -> Vec<String> {
    let mut ways: Vec<String> = Vec::new();
    for condition in experiment.design.conditions() {
        let way = format!("{} ({})", condition.way.name(), condition.way.words());
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

/// What ran on what.
fn subject(experiment: &Experiment, results: &Results) -> Vec<Fact> {
    let Experiment {
        job,
        scenes,
        design,
        ..
    } = experiment;
    let cpus = job.cpus.iter().map(|(role, cpus)| format!("{role} {cpus}"));
    let cpus: Vec<String> = cpus.collect();
    let ways = ways_in_words(experiment);
    let steps = match &experiment.steps {
        StepSource::Lines { pattern } => format!("lines of the workers' logs that match {pattern}"),
        StepSource::Metric { name } => format!("the counter {name}"),
    };
    let planned = experiment.order.iter().filter(|run| run.block.is_some());
    let mut facts = vec![
        Fact::new("Job", format!("{} ({})", job.name, job.format)),
        Fact::new("Image", job.image.clone()),
        Fact::new("Command", job.command.join(" ")),
        Fact::new("CPUs of a task", cpus.join(", ")),
    ];
    facts.extend(layouts(scenes));
    facts.extend([
        Fact::new("Ways", ways.join("; ")),
        Fact::new("Steps from", steps),
        Fact::new("Nodes", cluster_words(experiment)),
        Fact::new("API server", experiment.cluster.server.clone()),
        Fact::new(
            "Runs",
            format!(
                "{} of {} count, in {}; the order is random with seed {}",
                results.counting().count(),
                planned.count(),
                counted(design.repeats(), "repeat"),
                experiment.seed
            ),
        ),
        Fact::new(
            "Began",
            format!("{}, with Pinfold {}", experiment.began, experiment.version),
        ),
        Fact::new("Experiment", experiment.id.clone()),
    ]);
    facts.retain(|fact| !fact.value.is_empty());
    facts
}

/// Each scene with the layouts of its cases.
fn layouts(scenes: &[SceneFacts]) -> Vec<Fact> {
    let of = |scene: &SceneFacts| {
        let cases = scene.cases.iter().filter(|case| case.servers > 0);
        let cases: Vec<String> = cases
            .map(|case| format!("case {}: {}", case.case, case.layout()))
            .collect();
        Fact::new(
            &format!("Layout of scene {}", scene.scene),
            cases.join(". "),
        )
    };
    scenes.iter().map(of).collect()
}

/// The cluster in a line: how many nodes of which kind.
fn cluster_words(experiment: &Experiment) -> String {
    let nodes = &experiment.cluster.nodes;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let cpus = node
            .allocatable_millicpus
            .map(|millis| format!("{} CPUs", millis as f64 / 1000.0));
        let parts = [
            cpus,
            node.kernel
                .as_ref()
                .map(|kernel| format!("kernel {kernel}")),
            node.enforcement
                .as_ref()
                .map(|way| format!("enforcement {way}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        *kinds.entry(parts.join(", ")).or_default() += 1;
    }
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(kind, many)| match kind.as_str() {
            "" => counted(many, "node"),
            kind => format!("{} with {kind}", counted(many, "node")),
        })
        .collect();
    let version = experiment.cluster.kubernetes.as_deref();
    let version = version.map_or_else(String::new, |version| {
        format!(", under Kubernetes {version}")
    });
    format!("{}{version}", kinds.join("; "))
}
