//! [`render`]: a plan and a job's parameters become the objects of a training cluster.
//!
//! | format | objects | where each task goes |
//! |---|---|---|
//! | [`WorkloadFormat::Native`] | a headless Service and a Job for each worker, chief and evaluator, a Service and a Deployment for each parameter server; a ConfigMap with the hosts, if they are many | its own INDEX, by node affinity |
//! | [`WorkloadFormat::Volcano`] | one Job of Volcano with a task for each, a Service, a ConfigMap with the hosts | the same |
//! | [`WorkloadFormat::Jobset`] | one JobSet with a replicated job for each, a ConfigMap with the hosts | the same |
//! | [`WorkloadFormat::Tfjob`] | one TFJob of the Kubeflow training operator | an even share for each INDEX, by a spread constraint: its replicas have one template |
//!
//! Objects are values until they are written, not templates of text: a user's name can't change the structure of an
//! object. The environment tells a task its place, and Kubernetes expands `$(NAME)` in commands.

mod amounts;
mod cluster;
mod faults;
mod folder;
mod gang;
mod hosts;
mod job;
mod names;
mod native;
mod operators;
mod pod;
mod task;
mod words;

use std::collections::BTreeMap;

use serde_json::Value;

use super::statistics::Way;
use crate::scene::{Amounts, NoSuchCase, ScenePlan};
use crate::text::counted;
pub use amounts::{TaskResources, requested_resources};
use cluster::{Hosts, ResolvedJob};
pub use cluster::{Slice, WorkloadFormat};
pub use faults::Faults;
pub use job::{Folder, Gang, Reclaim, SuccessPolicy, TaskOf, TrainingJob};
pub use task::{JobTask, ROLES, RoleTasks, TaskShare, roles, tasks};

/// The port of each task where the job names none.
const PORT: u16 = 2222;

/// More than this can't be applied by `kubectl apply`, which keeps a copy in an annotation.
const LARGEST_APPLIED: usize = 256 << 10;

/// More than this may be refused by the API server's store, which takes 1.5 MiB: with it go defaults, the fields' managers, and
/// later the status.
const LARGEST_STORED: usize = 900_000;

/// What is rendered: a training job in one case of a plan.
#[derive(Debug, Clone, Copy)]
pub struct RenderRequest<'a> {
    pub plan: &'a ScenePlan,
    pub scene: &'a str,
    pub case: &'a str,
    pub job: &'a TrainingJob,
    pub format: WorkloadFormat,
    pub slice: &'a Slice,
    /// The run of an experiment that the objects belong to, if any.
    pub run: Option<&'a RunTag>,
    pub amounts: Amounts,
}

/// A run of an experiment: the objects carry it as labels, and its way decides about CPUs and threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTag {
    /// The experiment's id: lower-case letters and digits.
    pub experiment: String,
    pub way: Way,
    /// The number of the run, from 1.
    pub run: u32,
}

/// A training cluster's objects, in the order in which they are to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The training job's name in the cluster: the value of the label `name`, with which all objects' names begin.
    pub name: String,
    pub objects: Vec<Value>,
    /// Warnings for the person who applies the objects.
    pub warnings: Vec<String>,
}

/// The training cluster of a job in one case of a plan.
///
/// # Errors
/// Everything that is missing or impossible, at once.
pub fn render(request: &RenderRequest<'_>) -> Result<Rendered, Faults> {
    let RenderRequest {
        plan,
        scene,
        case,
        job,
        format,
        slice,
        amounts,
        ..
    } = *request;
    let roles =
        roles(plan, scene, case).map_err(|error: NoSuchCase| Faults(vec![error.to_string()]))?;
    let (mut faults, mut warnings) = (Faults::default(), Vec::new());
    check_settings(plan, (scene, case), job, &roles, &mut faults);
    words::check(job, &roles, &mut faults);
    folder::check(job, amounts, &mut faults);
    let requested = resources_by_role(
        plan,
        (scene, case),
        job,
        &roles,
        amounts,
        &mut faults,
        &mut warnings,
    );
    let mut cluster = ResolvedJob {
        plan,
        job,
        format,
        name: job.name.as_deref().unwrap_or_default(),
        image: job.image.as_deref().unwrap_or_default(),
        port: job.port.unwrap_or(PORT),
        scene,
        case,
        roles,
        requested,
        hosts: Hosts::default(),
    };
    cluster.check_names(&mut faults);
    let before = faults.0.len();
    cluster.check_lengths(&mut faults);
    if faults.0.len() > before {
        // A case of this size is refused before its tasks are counted.
        return Err(faults);
    }
    let chosen = cluster.chosen(slice, &mut faults);
    if !faults.0.is_empty() {
        return Err(faults);
    }
    cluster.hosts = cluster.written();
    cluster.check_gang(&mut warnings);
    cluster.check_claims(&mut warnings);
    let made = match format {
        WorkloadFormat::Native => cluster.native(&chosen),
        WorkloadFormat::Tfjob => cluster.tfjob(&mut warnings),
        WorkloadFormat::Volcano => cluster.volcano(&mut warnings),
        WorkloadFormat::Jobset => cluster.jobset(&mut warnings),
    };
    let objects = made.map_err(|what| Faults(vec![what]))?;
    check_sizes(&objects, &mut warnings)?;
    Ok(Rendered {
        name: cluster.name.to_owned(),
        objects,
        warnings,
    })
}

/// Adds a fault for each missing setting of the job.
fn check_settings(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    roles: &[RoleTasks],
    faults: &mut Faults,
) {
    let named = [
        ("name", "--name NAME", &job.name),
        ("image", "--image IMAGE", &job.image),
        // A role may have a command of its own; then all must.
        (
            "script (or command)",
            "--script PATH, or -- COMMAND",
            if has_commands(job, roles) {
                &job.name
            } else {
                &job.script
            },
        ),
    ];
    for (what, flag, value) in named {
        if value.as_ref().is_none_or(String::is_empty) {
            faults.say(format!(
                "{what} is missing: add the value to the job's file, or use {flag}"
            ));
        }
    }
    if roles.is_empty() {
        faults.say(format!(
            "case {case} of scene {scene} in plan {} has no tasks: give its groups a count for each role in perNode, \
             for example perNode: {{worker: 1}}",
            plan.metadata.name.as_deref().unwrap_or("without a name")
        ));
    }
}

/// Refuses objects that are too large for the API server, and warns of objects that are too large for `kubectl apply`.
fn check_sizes(objects: &[Value], warnings: &mut Vec<String>) -> Result<(), Faults> {
    for object in objects {
        let size = object.to_string().len();
        let what = || {
            format!(
                "{} is {} KiB as JSON",
                object["kind"].as_str().unwrap_or("it"),
                size >> 10
            )
        };
        if size > LARGEST_STORED {
            return Err(Faults(vec![format!(
                "the {}, but an API server stores at most 1.5 MiB with all added fields: render the job as native, with \
                 separate objects for the tasks, in parts if necessary (--role, --from, --to)",
                what()
            )]));
        }
        if size > LARGEST_APPLIED {
            warnings.push(format!("the {}: use kubectl apply --server-side", what()));
        }
    }
    Ok(())
}

/// What the tasks of each role ask for by plan and job, as [`render`] writes it.
///
/// # Errors
/// Roles that are none of a training cluster's, or not in the case, and impossible amounts.
pub fn settle(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    amounts: Amounts,
) -> Result<BTreeMap<String, TaskResources>, Faults> {
    let roles =
        roles(plan, scene, case).map_err(|error: NoSuchCase| Faults(vec![error.to_string()]))?;
    let mut faults = Faults::default();
    let requested = resources_by_role(
        plan,
        (scene, case),
        job,
        &roles,
        amounts,
        &mut faults,
        &mut Vec::new(),
    );
    if faults.0.is_empty() {
        Ok(requested)
    } else {
        Err(faults)
    }
}

/// The final resources of the tasks of each role. Roles that can't be in a training cluster, or not in the case, are faults.
fn resources_by_role(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    roles: &[RoleTasks],
    amounts: Amounts,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, TaskResources> {
    for role in roles {
        if !ROLES.contains(&role.role.as_str()) {
            faults.say(format!(
                "the plan has {} of role {}, but a training cluster can have only {}",
                counted(role.count(), "task"),
                role.role,
                ROLES.join(", ")
            ));
        }
    }
    for name in job
        .roles
        .keys()
        .filter(|name| !roles.iter().any(|role| role.role == **name))
    {
        faults.say(format!(
            "roles.{name}: scene {scene} case {case} has no task of this role"
        ));
    }
    let mut resources = BTreeMap::new();
    for role in roles {
        let requested = requested_resources(plan, job, &role.role);
        let of_role = amounts::final_resources(&role.role, requested, amounts, faults, warnings);
        resources.insert(role.role.clone(), of_role);
    }
    resources
}

/// Whether every role has a command, so that no script is needed.
fn has_commands(job: &TrainingJob, roles: &[RoleTasks]) -> bool {
    let own = |role: &RoleTasks| {
        job.roles
            .get(&role.role)
            .and_then(|own| own.command.as_ref())
    };
    !job.command.is_empty()
        || roles
            .iter()
            .all(|role| own(role).is_some_and(|command| !command.is_empty()))
}
