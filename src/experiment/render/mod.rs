//! [`render`]: a plan and a job's parameters become the objects of a training cluster.
//!
//! | format | objects | where each task goes |
//! |---|---|---|
//! | [`WorkloadFormat::Native`] | a headless Service, a Job for each worker, chief and evaluator, a Deployment for each parameter server | its own INDEX, by node affinity |
//! | [`WorkloadFormat::Volcano`] | a headless Service, one Job of Volcano with a task for each | the same |
//! | [`WorkloadFormat::Jobset`] | one JobSet with a replicated job for each | the same |
//! | [`WorkloadFormat::Tfjob`] | one TFJob of the Kubeflow training operator | an even share for each INDEX, by a spread constraint: its replicas have one template |
//!
//! With each format comes a ConfigMap with the hosts, and all objects carry the plan, the scene and the case as labels.
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
mod model;
mod names;
mod native;
mod operators;
mod pod;
mod preset;
mod security;
mod task;
mod words;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::scene::{Amounts, CHIEF, NoSuchCase, ScenePlan};
use crate::text::counted;
pub use amounts::{TaskResources, requested_resources};
use cluster::{Hosts, ResolvedJob};
pub use faults::Faults;
pub use job::{Folder, Gang, Reclaim, SuccessPolicy, TaskOf, TrainingJob};
pub use model::{RenderRequest, Rendered, RunTag, Slice, WorkloadFormat};
pub use preset::Preset;
pub use task::{JobTask, ROLES, RoleTasks, TaskShare, roles, tasks};

/// The port of each task where the job names none.
const PORT: u16 = 2222;

/// More than this can't be applied by `kubectl apply`, which keeps a copy in an annotation.
const LARGEST_APPLIED: usize = 256 << 10;

/// More than this may be refused by the API server's store, which takes 1.5 MiB: with it go defaults, the fields' managers, and
/// later the status.
const LARGEST_STORED: usize = 900_000;

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
        run,
        amounts,
    } = *request;
    let roles =
        roles(plan, scene, case).map_err(|error: NoSuchCase| Faults(vec![error.to_string()]))?;
    let (mut faults, mut warnings) = (Faults::default(), Vec::new());
    check_settings(plan, (scene, case), job, &roles, &mut faults);
    words::check(job, &roles, &mut faults);
    folder::check(job, amounts, &mut faults);
    let mut requested = resources_by_role(
        plan,
        (scene, case),
        job,
        &roles,
        amounts,
        &mut faults,
        &mut warnings,
    );
    if run.is_some() {
        amounts::vary(&mut requested, amounts, &mut faults);
    }
    let suffix = names::suffix(request);
    let mut cluster = ResolvedJob {
        plan,
        job,
        format,
        name: format!("{}{suffix}", job.name.as_deref().unwrap_or_default()),
        suffix,
        origin: names::origin(request, &mut faults),
        run,
        image: job.image().unwrap_or_default(),
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
    let objects = objects(&cluster, &chosen, &mut warnings)?;
    Ok(Rendered {
        name: cluster.name,
        objects,
        warnings,
    })
}

/// The objects of a job without faults.
fn objects(
    cluster: &ResolvedJob<'_>,
    chosen: &[JobTask],
    warnings: &mut Vec<String>,
) -> Result<Vec<Value>, Faults> {
    cluster.check_gang(warnings);
    cluster.check_claims(warnings);
    cluster.check_logs(warnings);
    cluster.check_security(warnings);
    let made = match cluster.format {
        WorkloadFormat::Native => cluster.native(chosen),
        WorkloadFormat::Tfjob => cluster.tfjob(warnings),
        WorkloadFormat::Volcano => cluster.volcano(warnings),
        WorkloadFormat::Jobset => cluster.jobset(warnings),
    };
    let objects = made.map_err(|what| Faults(vec![what]))?;
    check_sizes(&objects, warnings)?;
    Ok(objects)
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
        ("name", "--name NAME", job.name.as_deref()),
        ("image", "--image IMAGE", job.image()),
        // A role may have a command of its own; then all must.
        (
            "script (or command)",
            "--script PATH, or -- COMMAND",
            if has_commands(job, roles) {
                job.name.as_deref()
            } else {
                job.script.as_deref()
            },
        ),
    ];
    for (what, flag, value) in named {
        if value.is_none_or(str::is_empty) {
            faults.say(format!(
                "{what} is missing: add the value to the job's file, or use {flag}"
            ));
        }
    }
    let chiefs = roles.iter().find(|role| role.role == CHIEF);
    if let Some(count) = chiefs.map(RoleTasks::count).filter(|count| *count > 1) {
        faults.say(format!(
            "scene {scene} case {case} has {count} chiefs, but TensorFlow starts no cluster with more than one: give a group of \
             one server perNode: {{chief: 1}}"
        ));
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

/// As [`settle`], for a run of an experiment: the roles whose CPUs its ways decide have `pin: true`, and all others keep theirs in
/// every way.
///
/// # Errors
/// As [`settle`], and a case without a role that can be pinned.
pub fn settle_run(
    plan: &ScenePlan,
    named: (&str, &str),
    job: &TrainingJob,
    amounts: Amounts,
) -> Result<BTreeMap<String, TaskResources>, Faults> {
    let mut requested = settle(plan, named, job, amounts)?;
    let mut faults = Faults::default();
    amounts::vary(&mut requested, amounts, &mut faults);
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
