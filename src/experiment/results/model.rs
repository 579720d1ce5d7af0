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
use crate::text::counted;

/// The version of the files' form. A change that older programs would misread increases it.
pub const FORM: u32 = 1;

/// The roles that train.
pub(crate) const TRAINING: [&str; 3] = ["worker", "chief", "master"];

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
    /// The groups of nodes, which are what distinguishes the same case of two scenes.
    #[serde(default)]
    pub groups: Vec<GroupFacts>,
}

/// A group of nodes with the same tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupFacts {
    /// The value of the nodes' label TYPE, if the scene has types.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The number of nodes.
    pub servers: u32,
    /// The tasks on each node, by role; empty where the job fills the nodes evenly.
    pub per_node: BTreeMap<String, u32>,
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
    #[serde(flatten)]
    pub measured: MeasuredRun,
}

/// What was measured of a run, whoever carried it out: `pinfold scene run`, or somebody whose runs a Prometheus has watched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredRun {
    /// When the first of its containers began (RFC 3339): as the kubelets report, or when a Prometheus saw it first.
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
    /// The number within the role. Pods that somebody else created may have none.
    pub index: Option<u32>,
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
    /// Instructions, and misses of the last-level cache, on nodes with hardware counters.
    pub instructions: Option<f64>,
    pub llc_misses: Option<f64>,
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
        let Self {
            planned, measured, ..
        } = self;
        planned.block.is_some() && self.failure.is_none() && measured.steps_per_second.is_some()
    }
}

// === impl CaseFacts ===

impl CaseFacts {
    /// The tasks that train.
    pub fn workers(&self) -> u32 {
        let tasks = self.tasks.iter();
        let training = tasks.filter(|(role, _)| TRAINING.contains(&role.as_str()));
        training.map(|(_, tasks)| tasks).sum()
    }

    /// The tasks and how they lie on the nodes, in words.
    pub fn layout(&self) -> String {
        let counts = |tasks: &BTreeMap<String, u32>| {
            let tasks = tasks.iter();
            let tasks: Vec<String> = tasks.map(|(role, many)| format!("{many} {role}")).collect();
            tasks.join(" and ")
        };
        let group = |group: &GroupFacts| {
            let each = if group.servers == 1 {
                "with"
            } else {
                "each with"
            };
            let kind = group.kind.as_ref();
            let kind = kind.map_or_else(String::new, |kind| format!(" of type {kind}"));
            let nodes = counted(group.servers, "node");
            format!("{nodes}{kind}{each} {}", counts(&group.per_node))
        };
        let groups = self.groups.iter().filter(|group| group.servers > 0);
        if groups.clone().all(|group| !group.per_node.is_empty()) && groups.clone().count() > 0 {
            return groups.map(group).collect::<Vec<String>>().join("; ");
        }
        format!(
            "{} on {}",
            counts(&self.tasks),
            counted(self.servers, "node")
        )
    }
}

// === impl TaskRecord ===

impl TaskRecord {
    /// Whether the task makes steps. Parameter servers and evaluators don't.
    pub fn trains(&self) -> bool {
        TRAINING.contains(&self.role.as_str())
    }

    /// The role with the index, as in `ps 0`; the pod's name where no index is known.
    pub fn name(&self) -> String {
        match self.index {
            Some(index) => format!("{} {index}", self.role),
            None => self.pod.clone(),
        }
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
