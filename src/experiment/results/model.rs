//! What an experiment leaves behind: [`Experiment`] is fixed before the first run, and each run adds a [`RunRecord`].
//!
//! | file of the results folder | content |
//! |---|---|
//! | `experiment.json` | the [`Experiment`] |
//! | `runs/0007.json` | the [`RunRecord`] of run 7, written once it has ended |
//!
//! What nobody measured is `None`, and never 0.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::experiment::statistics::{Condition, Design, Way};

/// The version of the files' form. A change that older programs would misread increases it.
pub const FORM: u32 = 1;

/// What is fixed before the first run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Experiment {
    /// [`FORM`] of the program that wrote the file.
    pub form: u32,
    /// A random name of a few letters and digits. Objects in the cluster carry it as a label.
    pub id: String,
    /// The version of Pinfold.
    pub version: String,
    /// When the experiment began (RFC 3339).
    pub began: String,
    pub cluster: ClusterFacts,
    /// The name of the ScenePlan.
    pub plan: String,
    /// The namespace of the job's objects.
    pub namespace: String,
    /// The scenes and cases, in the numbering of [`Condition`].
    pub scenes: Vec<SceneFacts>,
    pub job: JobFacts,
    /// Where the steps come from.
    pub steps: StepSource,
    pub design: Design,
    /// The seed of the order.
    pub seed: u64,
    /// All runs, in their order.
    pub order: Vec<PlannedRun>,
}

/// The cluster, as it was when the experiment began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterFacts {
    /// The API server's address.
    pub server: String,
    /// The uid of the namespace kube-system, by which the cluster is known again.
    #[serde(default)]
    pub id: Option<String>,
    /// The version of Kubernetes, as in v1.36.2.
    pub kubernetes: Option<String>,
    /// The candidate nodes of the plan, by name.
    pub nodes: Vec<NodeFacts>,
}

/// A candidate node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeFacts {
    pub name: String,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The CPUs that pods may request, in thousandths.
    pub allocatable_millicpus: Option<u64>,
    /// How the agent enforces exclusive CPUs: `partition`, `cpuset` or `observe`.
    pub enforcement: Option<String>,
    /// The CPUs' model, as in /proc/cpuinfo.
    #[serde(default)]
    pub cpu_model: Option<String>,
    /// Whether the node's CPUs are emulated, so that its times mean nothing.
    pub emulated: Option<bool>,
}

/// A scene with its cases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SceneFacts {
    pub scene: String,
    pub cases: Vec<CaseFacts>,
}

/// A case. Every scene has the same number of cases; the n-th case of two scenes is compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaseFacts {
    pub case: String,
    /// The number of nodes.
    pub servers: u32,
    /// The number of tasks by role.
    pub tasks: BTreeMap<String, u32>,
}

/// The training job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobFacts {
    pub name: String,
    pub image: String,
    /// What the workers run, for people.
    pub command: Vec<String>,
    /// The CPU limit or request of a task, by role, as written in the plan or the job.
    pub cpus: BTreeMap<String, String>,
    /// The roles whose tasks stay on shared CPUs in every way, because the plan or the job says so.
    #[serde(default)]
    pub shared_roles: BTreeSet<String>,
    /// The kind of objects: native, tfjob, volcano or jobset.
    pub format: String,
}

/// Where the steps of a run come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum StepSource {
    /// Lines of the workers' logs that match the pattern, with the runtime's time of each line.
    Lines { pattern: String },
    /// A counter in a Prometheus.
    Metric { name: String },
}

/// A run in the order of the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRun {
    /// The number in the order, from 1. A run that is repeated keeps its number.
    pub number: u32,
    /// The block, from 0; `None` for the warm-up, which counts for nothing.
    pub block: Option<usize>,
    pub condition: Condition,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    /// [`FORM`] of the program that wrote the file.
    pub form: u32,
    #[serde(flatten)]
    pub planned: PlannedRun,
    /// How often this run was tried, the recorded attempt included.
    pub attempts: u32,
    /// Why the earlier attempts failed.
    #[serde(default)]
    pub failures: Vec<String>,
    /// Why the run failed for good; `None` if it counts.
    pub failure: Option<String>,
    /// When the first of its containers began, as the kubelets report (RFC 3339).
    pub began: Option<String>,
    /// When the job ended: its chief, or the last worker (RFC 3339).
    pub ended: Option<String>,
    /// Seconds between both.
    pub seconds: Option<f64>,
    /// The progress of all workers together: the value that is compared.
    pub steps_per_second: Option<f64>,
    /// The tasks, by role and index.
    pub tasks: Vec<TaskRecord>,
    /// Where CPU, switches and traffic come from; `None` if nobody could be asked.
    pub evidence: Option<EvidenceSource>,
    /// What makes the run doubtful, in sentences.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Who reported CPU, switches and traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EvidenceSource {
    Prometheus,
    /// The agents' own pages, read every few seconds.
    Agents,
}

/// A task of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskRecord {
    /// ps, worker, chief or evaluator.
    pub role: String,
    pub index: u32,
    pub pod: String,
    pub node: Option<String>,
    /// When the container began and ended (RFC 3339). A server that still ran has no end.
    pub began: Option<String>,
    pub ended: Option<String>,
    /// How often its container was started again.
    pub restarts: u32,
    /// Its own steps, and the seconds from its first to its last step line without the warm-up.
    pub steps: Option<f64>,
    pub step_seconds: Option<f64>,
    #[serde(flatten)]
    pub usage: TaskUsage,
}

/// What a task used within the run's time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskUsage {
    /// The seconds that the figures below are about, which may be less than the task's life.
    pub observed_seconds: Option<f64>,
    pub cpu_seconds: Option<f64>,
    pub voluntary_switches: Option<f64>,
    pub involuntary_switches: Option<f64>,
    /// Seconds in which threads could run and had no CPU.
    pub run_delay_seconds: Option<f64>,
    pub sent_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    /// Scheduler periods under a quota, and those in which it ran out.
    pub quota_periods: Option<f64>,
    pub throttled_periods: Option<f64>,
    /// CPU time of others on the task's exclusive CPUs, as a lower bound.
    pub interference_seconds: Option<f64>,
    /// Bytes sent to each other task, by its pod's name.
    #[serde(default)]
    pub sent_to: BTreeMap<String, f64>,
    /// Exclusive CPUs of the task; 0 in the shared pool.
    pub exclusive_cpus: Option<f64>,
    /// Which CPUs these are, as a list.
    pub cpus: Option<String>,
    /// Threads of the task, and how many its CPUs call for.
    pub threads: Option<f64>,
    pub threads_expected: Option<f64>,
    /// The agent's verdict on the thread count.
    pub threads_verdict: Option<String>,
    /// Why the task should have exclusive CPUs and hasn't.
    pub not_pinned: Option<String>,
}

// === impl Experiment ===

impl Experiment {
    /// The scene and the case of a condition.
    pub fn names(&self, condition: Condition) -> Option<(&SceneFacts, &CaseFacts)> {
        let scene = self.scenes.get(condition.scene)?;
        Some((scene, scene.cases.get(condition.case)?))
    }
}

// === impl RunRecord ===

impl RunRecord {
    /// Whether the run counts: it is no warm-up, did not fail, and has a value.
    pub fn counts(&self) -> bool {
        self.planned.block.is_some() && self.failure.is_none() && self.steps_per_second.is_some()
    }
}

// === impl Way ===

impl Way {
    /// The way's name on the command line, in labels and in objects' names.
    pub fn name(self) -> &'static str {
        match (self.exclusive, self.sized) {
            (false, false) => "usual",
            (false, true) => "sized",
            (true, false) => "exclusive",
            (true, true) => "both",
        }
    }

    /// The way in words.
    pub fn words(self) -> &'static str {
        match (self.exclusive, self.sized) {
            (false, false) => "shared CPUs, the program's own thread counts",
            (false, true) => "shared CPUs, thread counts that fit",
            (true, false) => "exclusive CPUs, the program's own thread counts",
            (true, true) => "exclusive CPUs, thread counts that fit",
        }
    }
}
