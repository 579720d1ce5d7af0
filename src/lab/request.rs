//! [`Request`]: what the user asks for.

use super::settings::Limits;
use crate::experiment::results::StepSource;
use crate::experiment::statistics::{DesignOptions, Way};
use crate::experiment::{TrainingJob, WorkloadFormat};
use crate::scene::ScenePlan;

/// The experiment that the user asks for.
#[derive(Debug, Clone)]
pub struct Request {
    pub plan: ScenePlan,
    /// Whether the plan is the cluster's.
    pub use_plan: bool,
    pub job: TrainingJob,
    pub format: WorkloadFormat,
    /// The scenes, by name; empty for all of the plan.
    pub scenes: Vec<String>,
    /// The cases, by name; empty for all of the scenes.
    pub cases: Vec<String>,
    pub ways: Vec<Way>,
    pub options: DesignOptions,
    pub seed: u64,
    pub steps: StepSource,
    pub agent_namespace: String,
    pub retries: u32,
    pub limits: Limits,
    /// Whether a Prometheus tells of usage, so that the agents are not asked during the runs.
    pub has_prometheus: bool,
}
