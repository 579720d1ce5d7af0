//! What is rendered, and what comes out: [`RenderRequest`], [`Rendered`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::TrainingJob;
use crate::experiment::statistics::Way;
use crate::scene::{Amounts, ScenePlan};

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

/// Which objects are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadFormat {
    /// Jobs, Deployments and a Service.
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
    pub role: Option<String>,
    /// The first task of the slice.
    pub from: Option<u32>,
    /// The last task of the slice.
    pub to: Option<u32>,
}

// === impl WorkloadFormat ===

impl WorkloadFormat {
    /// The format's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Tfjob => "tfjob",
            Self::Volcano => "volcano",
            Self::Jobset => "jobset",
        }
    }
}
