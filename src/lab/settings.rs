//! [`Settings`]: what `--resume` and `--abort` must know beside the [`Experiment`](crate::experiment::results::Experiment).

use serde::{Deserialize, Serialize};

use crate::experiment::{TrainingJob, WorkloadFormat};
use crate::scene::{ActiveCase, ScenePlan};

/// How an experiment is carried out, and what was there before it. The file `settings.json` of the results folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    pub plan: ScenePlan,
    pub job: TrainingJob,
    pub format: WorkloadFormat,
    /// The namespace of the agents.
    pub agent_namespace: String,
    /// How often a failed run is tried again.
    pub retries: u32,
    pub limits: Limits,
    /// Whether a Prometheus tells what the tasks used.
    pub has_prometheus: bool,
    pub before: Before,
}

/// The longest times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// From a change of the case until the nodes have its labels, and from a deletion until the pods are gone.
    pub switch: u64,
    /// From the creation of the objects until every container has begun.
    pub start: u64,
    /// From then to the end of the job.
    pub run: u64,
}

/// What the experiment puts back at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Before {
    /// Whether the cluster had the plan. Otherwise the experiment creates and deletes it.
    pub had_plan: bool,
    /// The plan's active case.
    pub active: Option<ActiveCase>,
    /// Whether the cluster had the namespace. Otherwise the experiment creates and deletes it.
    pub had_namespace: bool,
}
