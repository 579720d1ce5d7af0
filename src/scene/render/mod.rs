//! [`render`]: a plan and a job's parameters become the objects of a training cluster.
//!
//! | format | objects | where each task goes |
//! |---|---|---|
//! | [`Format::Native`] | a headless Service and a Job for each worker, chief and evaluator, a Service and a Deployment for each parameter server; a ConfigMap with the hosts, if they are many | its own INDEX, by node affinity |
//! | [`Format::Volcano`] | one Job of Volcano with a task for each, a Service, a ConfigMap with the hosts | the same |
//! | [`Format::Jobset`] | one JobSet with a replicated job for each, a ConfigMap with the hosts | the same |
//! | [`Format::Tfjob`] | one TFJob of the Kubeflow training operator | an even share for each INDEX, by a spread constraint: its replicas have one template |
//!
//! Nothing here is a template of text: objects are values until they are written, so what a user names can't become anything
//! else than a name. What a task must know is in its environment, and `$(NAME)` in commands is expanded by Kubernetes.

mod amounts;
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
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use self::hosts::Hosts;
use super::{Amounts, NoSuchCase, ScenePlan};
use crate::text::counted;
pub use amounts::{Asked, asked};
pub use job::{Folder, Gang, Reclaim, SuccessPolicy, TaskOf, TrainingJob};
pub use task::{CHIEF, EVALUATOR, PS, ROLES, RoleTasks, Share, Task, roles, tasks};

/// The label by which a native job asks that its parameter servers be taken away; its value is [`PS`].
pub const RECLAIM_LABEL: &str = "pinfold.io/reclaim";

/// The annotation that says how many workers the job has, on everything that may be taken away and on every worker.
pub const WORKERS: &str = "pinfold.io/workers";

/// The annotation with the seconds to wait after the last worker, where the job says.
pub const RECLAIM_AFTER: &str = "pinfold.io/reclaim-after-seconds";

/// The annotation that says whose success ends the job, where the job says: [`ALL_WORKERS`].
pub const SUCCESS_POLICY: &str = "pinfold.io/success-policy";

/// The success policy by which all workers have to succeed, although there is a chief.
pub const ALL_WORKERS: &str = "AllWorkers";

/// The labels of each task's objects: the job's name, the role, the task's number.
pub const TASK_LABELS: [&str; 3] = ["name", "job", "task"];

/// The port of each task where the job names none.
const PORT: u16 = 2222;

/// How often a worker that fails is started again where the job doesn't say: what Kubernetes does by itself.
const RETRIES: u32 = 6;

/// More than this can't be applied by `kubectl apply`, which keeps a copy in an annotation.
const LARGEST_APPLIED: usize = 256 << 10;

/// More than this may be refused by the API server's store, which takes 1.5 MiB: with it go defaults, the fields' managers, and
/// later the status.
const LARGEST_STORED: usize = 900_000;

/// Which objects are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Jobs, Deployments and Services.
    #[default]
    Native,
    /// A TFJob (`kubeflow.org/v1`).
    Tfjob,
    /// A Volcano Job (`batch.volcano.sh/v1alpha1`).
    Volcano,
    /// A JobSet (`jobset.x-k8s.io/v1alpha2`).
    Jobset,
}

/// Which part of a cluster is made; everything, if nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// One role alone.
    pub role: Option<String>,
    /// From this task on.
    pub from: Option<u32>,
    /// Up to this task, itself included.
    pub to: Option<u32>,
}

/// A training cluster's objects, in the order in which they are to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The objects.
    pub objects: Vec<Value>,
    /// What may surprise whoever applies them.
    pub warnings: Vec<String>,
}

/// Why there is no cluster: everything that is missing or can't be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<String>);

/// A job in one case of a plan, with all that was settled.
struct Cluster<'a> {
    plan: &'a ScenePlan,
    job: &'a TrainingJob,
    format: Format,
    name: &'a str,
    image: &'a str,
    port: u16,
    scene: &'a str,
    case: &'a str,
    roles: Vec<RoleTasks>,
    asked: BTreeMap<String, Asked>,
    hosts: Hosts,
}

/// The training cluster of a job in one case of a plan.
///
/// # Errors
/// Everything that is missing or can't be, at once.
pub fn render(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    format: Format,
    slice: &Slice,
    amounts: Amounts,
) -> Result<Rendered, Faults> {
    let roles =
        roles(plan, scene, case).map_err(|error: NoSuchCase| Faults(vec![error.to_string()]))?;
    let (mut faults, mut warnings) = (Faults::default(), Vec::new());
    let named = [
        ("name", "--name NAME", &job.name),
        ("image", "--image IMAGE", &job.image),
        // A role may have a command of its own; then all must.
        (
            "script (or command)",
            "--script PATH, or -- COMMAND",
            if has_commands(job, &roles) {
                &job.name
            } else {
                &job.script
            },
        ),
    ];
    for (what, flag, value) in named {
        if value.as_ref().is_none_or(String::is_empty) {
            faults.say(format!(
                "{what} is missing: give it in the job's file or with {flag}"
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
    words::check(job, &roles, &mut faults);
    folder::check(job, amounts, &mut faults);
    let settled = settled(
        plan,
        (scene, case),
        job,
        &roles,
        amounts,
        &mut faults,
        &mut warnings,
    );
    let mut cluster = Cluster {
        plan,
        job,
        format,
        name: job.name.as_deref().unwrap_or_default(),
        image: job.image.as_deref().unwrap_or_default(),
        port: job.port.unwrap_or(PORT),
        scene,
        case,
        roles,
        asked: settled,
        hosts: Hosts::default(),
    };
    cluster.check_names(&mut faults);
    let before = faults.0.len();
    cluster.check_lengths(&mut faults);
    if faults.0.len() > before {
        // Nobody counts the tasks of such a case one by one.
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
        Format::Native => cluster.native(&chosen),
        Format::Tfjob => cluster.tfjob(&mut warnings),
        Format::Volcano => cluster.volcano(&mut warnings),
        Format::Jobset => cluster.jobset(&mut warnings),
    };
    let objects = made.map_err(|what| Faults(vec![what]))?;
    for object in &objects {
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
                "the {}, and an API server stores no more than 1.5 MiB with all that is added to it: render it as native, \
                 whose tasks are objects of their own, in parts if need be (--role, --from, --to)",
                what()
            )]));
        }
        if size > LARGEST_APPLIED {
            warnings.push(format!(
                "the {}: apply it with kubectl apply --server-side",
                what()
            ));
        }
    }
    Ok(Rendered { objects, warnings })
}

/// What the tasks of each role ask for by plan and job, as [`render`] writes it.
///
/// # Errors
/// Roles that are none of a training cluster's, or not in the case, and amounts that can't be.
pub fn settle(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    amounts: Amounts,
) -> Result<BTreeMap<String, Asked>, Faults> {
    let roles =
        roles(plan, scene, case).map_err(|error: NoSuchCase| Faults(vec![error.to_string()]))?;
    let mut faults = Faults::default();
    let settled = settled(
        plan,
        (scene, case),
        job,
        &roles,
        amounts,
        &mut faults,
        &mut Vec::new(),
    );
    if faults.0.is_empty() {
        Ok(settled)
    } else {
        Err(faults)
    }
}

fn settled(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    job: &TrainingJob,
    roles: &[RoleTasks],
    amounts: Amounts,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> BTreeMap<String, Asked> {
    for role in roles {
        if !ROLES.contains(&role.role.as_str()) {
            faults.say(format!(
                "the plan has {} of role {}, and a training cluster is made of {}",
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
    let mut settled = BTreeMap::new();
    for role in roles {
        let asked = asked(plan, job, &role.role);
        let asked = amounts::settled(&role.role, asked, amounts, faults, warnings);
        settled.insert(role.role.clone(), asked);
    }
    settled
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

/// An object as a value. Maps with texts as keys, which is all there is, always become one.
fn value(object: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| format!("an object can't be written: {error}"))
}

// === impl Faults ===

impl Faults {
    fn say(&mut self, what: String) {
        self.0.push(what);
    }

    /// Each of them, in words.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Faults {}

// === impl Cluster ===

impl Cluster<'_> {
    /// All tasks.
    fn tasks(&self) -> impl Iterator<Item = Task> {
        self.roles
            .iter()
            .flat_map(|role| role.tasks(self.scene, self.case))
    }

    /// How many tasks a role has.
    fn count(&self, role: &str) -> u32 {
        self.roles
            .iter()
            .find(|one| one.role == role)
            .map_or(0, RoleTasks::count)
    }

    /// The number of tasks that have to succeed where all workers have to: the chief counts as a worker.
    fn workers(&self) -> u32 {
        let workers = self
            .roles
            .iter()
            .filter(|role| role.role != PS && role.role != EVALUATOR);
        workers.map(RoleTasks::count).fold(0, u32::saturating_add)
    }

    /// Whether the chief's success ends the job.
    fn ends_with_chief(&self) -> bool {
        self.count(CHIEF) > 0 && self.job.success_policy.is_none()
    }

    /// Whether the job has ended when the tasks of this role have succeeded.
    fn decides(&self, role: &str) -> bool {
        if self.ends_with_chief() {
            role == CHIEF
        } else {
            role != PS && role != EVALUATOR
        }
    }

    fn all(&self) -> u32 {
        self.roles
            .iter()
            .map(RoleTasks::count)
            .fold(0, u32::saturating_add)
    }

    /// A task's name, which its objects have.
    fn task_name(&self, role: &str, index: u32) -> String {
        format!("{}-{role}-{index}", self.name)
    }

    /// The name under which other tasks find a task, in their own namespace.
    fn host(&self, role: &str, index: u32) -> String {
        let name = self.task_name(role, index);
        match self.format {
            Format::Native | Format::Tfjob => name,
            Format::Volcano => format!("{name}.{}", self.name),
            Format::Jobset => format!("{name}-0-0.{}", self.name),
        }
    }

    /// The addresses of all tasks of a role, by number.
    fn addresses(&self, role: &str) -> Vec<String> {
        (0..self.count(role))
            .map(|index| format!("{}:{}", self.host(role, index), self.port))
            .collect()
    }

    /// The tasks of a slice.
    fn chosen(&self, slice: &Slice, faults: &mut Faults) -> Vec<Task> {
        if *slice == Slice::default() {
            return self.tasks().collect();
        }
        if self.format != Format::Native {
            faults.say("one role or some tasks alone can be rendered as native only: here the whole job is one object".to_owned());
            return Vec::new();
        }
        if let Some(role) = slice.role.as_ref().filter(|role| self.count(role) == 0) {
            let known: Vec<&str> = self.roles.iter().map(|role| role.role.as_str()).collect();
            faults.say(format!(
                "scene {} case {} has no task of role {role:?}: it has {}",
                self.scene,
                self.case,
                known.join(", ")
            ));
            return Vec::new();
        }
        let chosen: Vec<Task> = self
            .tasks()
            .filter(|task| slice.role.as_ref().is_none_or(|role| task.role == *role))
            .filter(|task| slice.from.is_none_or(|from| task.index >= from))
            .filter(|task| slice.to.is_none_or(|to| task.index <= to))
            .collect();
        if chosen.is_empty() {
            faults.say(
                "no task is left: --from and --to count from 0, and --to is the last one that is rendered"
                    .to_owned(),
            );
        }
        chosen
    }
}
