//! The results of an experiment, as `pinfold scene run` leaves them in a folder.

mod model;

pub use model::{
    CaseFacts, ClusterFacts, EvidenceSource, Experiment, FORM, JobFacts, NodeFacts, PlannedRun,
    RunRecord, SceneFacts, StepSource, TaskRecord, TaskUsage,
};
