//! [`ResolvedJob`]: a job in a case of a plan, with all settings resolved.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::amounts::TaskResources;
use super::faults::Faults;
use super::job::TrainingJob;
use super::model::{RunTag, Slice, WorkloadFormat};
use super::task::{JobTask, RoleTasks};
use crate::scene::{CHIEF, EVALUATOR, PS, ScenePlan};

/// The restarts of a failed worker in a job without a number: the default of Kubernetes.
pub(super) const RETRIES: u32 = 6;

/// The addresses of all tasks, as the tasks are told them.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// The addresses of each role with a variable: the variable, the key of the ConfigMap, the addresses.
    pub(super) lists: Vec<(&'static str, &'static str, String)>,
    /// TensorFlow's cluster specification, as JSON.
    pub(super) cluster: String,
}

/// A job in a case of a plan, with all settings resolved.
pub(super) struct ResolvedJob<'a> {
    pub(super) plan: &'a ScenePlan,
    pub(super) job: &'a TrainingJob,
    pub(super) format: WorkloadFormat,
    /// The stem of all names, and the value of the label `name`.
    pub(super) name: String,
    /// What follows the job's own name in it.
    pub(super) suffix: String,
    /// The labels of all objects and pods that tell the plan, the case and the run.
    pub(super) origin: BTreeMap<String, String>,
    pub(super) run: Option<&'a RunTag>,
    pub(super) image: &'a str,
    pub(super) port: u16,
    pub(super) scene: &'a str,
    pub(super) case: &'a str,
    pub(super) roles: Vec<RoleTasks>,
    pub(super) requested: BTreeMap<String, TaskResources>,
    pub(super) hosts: Hosts,
}

/// An object as a value. All rendered maps have texts as keys, so the conversion does not fail in practice.
pub(super) fn value(object: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| format!("an object can't be written: {error}"))
}

// === impl ResolvedJob ===

impl ResolvedJob<'_> {
    pub(super) fn tasks(&self) -> impl Iterator<Item = JobTask> {
        self.roles
            .iter()
            .flat_map(|role| role.tasks(self.scene, self.case))
    }

    /// How many tasks a role has.
    pub(super) fn count(&self, role: &str) -> u32 {
        self.roles
            .iter()
            .find(|entry| entry.role == role)
            .map_or(0, RoleTasks::count)
    }

    /// The number of tasks that have to succeed where all workers have to: the chief counts as a worker.
    pub(super) fn workers(&self) -> u32 {
        let workers = self
            .roles
            .iter()
            .filter(|role| role.role != PS && role.role != EVALUATOR);
        workers.map(RoleTasks::count).fold(0, u32::saturating_add)
    }

    /// Whether the chief's success ends the job.
    pub(super) fn ends_with_chief(&self) -> bool {
        self.count(CHIEF) > 0 && self.job.success_policy.is_none()
    }

    /// Whether the job has ended when the tasks of this role have succeeded.
    pub(super) fn decides(&self, role: &str) -> bool {
        if self.ends_with_chief() {
            role == CHIEF
        } else {
            role != PS && role != EVALUATOR
        }
    }

    pub(super) fn all(&self) -> u32 {
        self.roles
            .iter()
            .map(RoleTasks::count)
            .fold(0, u32::saturating_add)
    }

    /// The name of a task's objects.
    pub(super) fn task_name(&self, role: &str, index: u32) -> String {
        format!("{}-{role}-{index}", self.name)
    }

    /// The host name of a task within the namespace.
    pub(super) fn host(&self, role: &str, index: u32) -> String {
        let name = self.task_name(role, index);
        match self.format {
            // The training operator makes a Service for each task.
            WorkloadFormat::Tfjob => name,
            WorkloadFormat::Native | WorkloadFormat::Volcano => format!("{name}.{}", self.name),
            WorkloadFormat::Jobset => format!("{name}-0-0.{}", self.name),
        }
    }

    /// The addresses of all tasks of a role, by number.
    pub(super) fn addresses(&self, role: &str) -> Vec<String> {
        (0..self.count(role))
            .map(|index| format!("{}:{}", self.host(role, index), self.port))
            .collect()
    }

    pub(super) fn chosen(&self, slice: &Slice, faults: &mut Faults) -> Vec<JobTask> {
        if *slice == Slice::default() {
            return self.tasks().collect();
        }
        if self.format != WorkloadFormat::Native {
            faults.say("--role, --from and --to need the format native: in this format the whole job is one \
             object".to_owned());
            return Vec::new();
        }
        if let Some(role) = slice.role.as_ref().filter(|role| self.count(role) == 0) {
            let known: Vec<&str> = self.roles.iter().map(|role| role.role.as_str()).collect();
            faults.say(format!(
                "scene {} case {} has no task of role {role:?}: choose one of {}",
                self.scene,
                self.case,
                known.join(", ")
            ));
            return Vec::new();
        }
        let chosen: Vec<JobTask> = self
            .tasks()
            .filter(|task| slice.role.as_ref().is_none_or(|role| task.role == *role))
            .filter(|task| slice.from.is_none_or(|from| task.index >= from))
            .filter(|task| slice.to.is_none_or(|to| task.index <= to))
            .collect();
        if chosen.is_empty() {
            faults.say(
                "--from and --to select no task: tasks count from 0, and --to is the last rendered task"
                    .to_owned(),
            );
        }
        chosen
    }
}
