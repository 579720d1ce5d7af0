//! [`preview`]: what an experiment is going to do, and with which job.

use std::collections::BTreeMap;

use super::fit::Sizes;
use super::request::Request;
use super::run::{pause, readings_a_minute};
use super::settings::Before;
use crate::experiment::results::{Experiment, JobFacts, SceneFacts};
use crate::experiment::{AMOUNTS, TrainingJob, settle_run};
use crate::text::counted;

/// The job, for the report.
///
/// # Errors
/// Its amounts can't be read.
pub(super) fn job_facts(
    request: &Request,
    job: &TrainingJob,
    scenes: &[SceneFacts],
) -> anyhow::Result<JobFacts> {
    let first = scenes.iter().find_map(|scene| {
        let case = scene.cases.iter().find(|case| case.servers > 0)?;
        Some((scene.scene.as_str(), case.case.as_str()))
    });
    let requested = match first {
        Some(named) => settle_run(&request.plan, named, job, AMOUNTS)?,
        None => BTreeMap::new(),
    };
    let cpus = requested.iter().filter_map(|(role, resources)| {
        let amounts = resources.requested();
        Some((role.clone(), amounts.get("cpu")?.0.clone()))
    });
    let command = job
        .roles
        .get("worker")
        .and_then(|own| own.command.clone())
        .unwrap_or_else(|| job.command.clone());
    Ok(JobFacts {
        name: job.name.clone().unwrap_or_default(),
        image: job.image.clone().unwrap_or_default(),
        command,
        cpus: cpus.collect(),
        shared_roles: requested
            .iter()
            .filter(|(_, resources)| resources.pin != Some(true))
            .map(|(role, _)| role.clone())
            .collect(),
        format: request.format.name().to_owned(),
    })
}

/// What the experiment is going to do.
pub(super) fn preview(
    experiment: &Experiment,
    request: &Request,
    before: &Before,
    sizes: &Sizes,
) -> Vec<String> {
    let nodes = experiment.cluster.nodes.len();
    let ways: Vec<&str> = request.ways.iter().map(|way| way.name()).collect();
    let runs = experiment.order.len();
    let mut lines = vec![
        format!(
            "experiment {} on {}, {}",
            experiment.id,
            experiment.cluster.server,
            counted(nodes, "candidate node")
        ),
        format!(
            "plan {} ({}), namespace {} ({})",
            experiment.plan,
            if before.had_plan {
                "the cluster's, put back at the end"
            } else {
                "created, deleted at the end"
            },
            experiment.namespace,
            if before.had_namespace {
                "kept"
            } else {
                "created, deleted at the end"
            },
        ),
    ];
    lines.extend(sizes.lines.iter().cloned());
    lines.push(format!(
        "ways: {}; {} of {}, and a warm-up: {} in random order (seed {})",
        ways.join(", "),
        counted(request.options.repeats, "repeat"),
        counted(experiment.design.conditions().count(), "condition"),
        counted(runs, "run"),
        experiment.seed
    ));
    lines.push(format!(
        "API requests: about {} a run, and {} a minute while it runs",
        requests_of_a_run(sizes),
        requests_of_a_minute(experiment, sizes, request.has_prometheus)
    ));
    lines.push(format!(
        "time: the job's own, and about a minute for each change; at most {} min a run",
        ((request.limits.switch * 2 + request.limits.start + request.limits.run)
            * u64::from(request.retries + 1))
        .div_ceil(60)
    ));
    lines
}

/// Requests of a run: the switch, the creation of each object, the logs, the deletion by kind, and the lists around them.
fn requests_of_a_run(sizes: &Sizes) -> usize {
    let pods = usize::try_from(sizes.pods).unwrap_or(usize::MAX);
    sizes.objects.saturating_add(pods).saturating_add(60)
}

/// Requests of a minute of training: the list of the pods, and the port-forwards to the agents.
fn requests_of_a_minute(experiment: &Experiment, sizes: &Sizes, has_prometheus: bool) -> usize {
    let servers = experiment.scenes.iter().flat_map(|scene| &scene.cases);
    let servers = servers.map(|case| case.servers).max().unwrap_or_default() as usize;
    let look = pause(sizes.pods as usize).as_secs().max(1);
    let pages = if has_prometheus {
        0
    } else {
        servers * readings_a_minute(servers)
    };
    60 / usize::try_from(look).unwrap_or(60) + pages
}
