//! [`analyze`]: the results of an experiment as an [`Outcome`].

mod comparisons;
mod findings;
mod names;
mod signs;
mod tasks;
mod usage;
mod warnings;

pub use comparisons::Comparisons;
pub(crate) use comparisons::{change_of_margin, percent};
pub use names::Names;

use std::collections::BTreeMap;

use super::model::{Experiment, PlannedRun, RunRecord, StepSource};
use super::outcome::{Fact, LostRun, Outcome};
use super::read::Results;
use crate::experiment::statistics::{Condition, Run, RunError};
use crate::text::counted;
use usage::RunsByCondition;

/// What an experiment found. Runs that failed or are missing are named and enter no average.
///
/// # Errors
/// A run that the design doesn't have.
pub fn analyze(results: &Results) -> Result<Outcome, RunError> {
    let Results { experiment, .. } = results;
    let names = Names::of(experiment);
    let runs: Vec<Run> = results.counting().filter_map(value).collect();
    let by_condition: RunsByCondition = experiment
        .design
        .conditions()
        .map(|condition| {
            let runs = results.counting();
            let runs = runs.filter(|run| run.planned.condition == condition);
            (condition, runs.collect())
        })
        .collect();
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
        cases.map(usage::workers).collect()
    };
    Ok(Outcome {
        title: format!(
            "{} in the scenes of {}",
            experiment.job.name, experiment.plan
        ),
        summary: summary(experiment, results),
        subject: subject(experiment, results),
        measure: "steps per second".to_owned(),
        repeats: experiment.design.repeats(),
        confidence: experiment.design.confidence(),
        margin: experiment.design.margin(),
        caution: warnings::caution(experiment),
        answers: comparisons.answers()?,
        others: comparisons.others()?,
        conditions: comparisons.conditions(number),
        figures: Vec::new(),
        speedup: comparisons.speedup(workers)?,
        findings: findings::findings(&by_condition, &names, &experiment.job.shared_roles),
        traffic: usage::traffic(&by_condition, &names),
        roles: usage::roles(experiment, &by_condition, &names),
        evidence: usage::evidence(&by_condition, &names),
        lost: lost(results, &names),
        warnings: warnings::warnings(results, &names),
    })
}

/// The value of a run that counts.
fn value(run: &RunRecord) -> Option<Run> {
    Some(Run {
        block: run.planned.block?,
        condition: run.planned.condition,
        value: run.steps_per_second?,
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

/// What ran on what, in a sentence.
fn summary(experiment: &Experiment, results: &Results) -> String {
    let planned = experiment.order.iter().filter(|run| run.block.is_some());
    format!(
        "The training job {} ran in {} (every scene and case in every way), with {} of each, on {}. {} of {} planned runs count. {}.",
        experiment.job.name,
        counted(experiment.design.conditions().count(), "condition"),
        counted(experiment.design.repeats(), "repeat"),
        cluster_words(experiment),
        results.counting().count(),
        planned.count(),
        ways_in_words(experiment).join("; ")
    )
}

/// The ways that were run, each with its name.
fn ways_in_words(experiment: &Experiment) -> Vec<String> {
    let mut ways: Vec<String> = Vec::new();
    for condition in experiment.design.conditions() {
        let way = format!("{} is {}", condition.way.name(), condition.way.words());
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
    let layouts = scenes.iter().flat_map(|scene| {
        scene.cases.iter().map(|case| {
            let tasks = case.tasks.iter();
            let tasks: Vec<String> = tasks.map(|(role, many)| format!("{many} {role}")).collect();
            format!(
                "scene {}, case {}: {} on {}",
                scene.scene,
                case.case,
                tasks.join(" + "),
                counted(case.servers, "node")
            )
        })
    });
    let layouts: Vec<String> = layouts.collect();
    let mut ways: Vec<String> = Vec::new();
    for condition in design.conditions() {
        let way = format!("{} ({})", condition.way.name(), condition.way.words());
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
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
        Fact::new("Layouts", layouts.join("; ")),
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
    ];
    facts.retain(|fact| !fact.value.is_empty());
    facts
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
