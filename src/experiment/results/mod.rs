//! The results of an experiment, as `pinfold scene run` leaves them in a folder, and what they say.
//!
//! 1. [`Results`] reads the folder's texts: an [`Experiment`] and its [`RunRecord`]s.
//! 2. [`analyze`] makes an [`Outcome`] of them: verdicts, findings, and the numbers behind both. The bench and the report of a
//!    Prometheus make an [`Outcome`], too.
//! 3. [`outcome_markdown`] and [`page()`](crate::experiment::page()) show it; JSON is the [`Outcome`] itself.

mod analysis;
mod markdown;
mod model;
mod outcome;
mod read;

pub use analysis::{Comparisons, Names, analyze};
pub(crate) use analysis::{
    ConditionRuns, CountedRun, change_of_margin, evidence, findings, next_steps, percent, roles,
    tasks, traffic,
};
pub use markdown::outcome_markdown;
pub(crate) use model::TRAINING;
pub use model::{
    CaseFacts, ClusterFacts, EvidenceSource, Experiment, FORM, GroupFacts, JobFacts, MeasuredRun,
    NodeFacts, PlannedRun, RunRecord, SceneFacts, StepSource, TaskRecord, TaskUsage,
};
pub use outcome::{
    Answer, ConditionName, ConditionOutcome, CurvePoint, Evidence, Fact, Finding, FindingFigure,
    FindingKind, LostRun, OtherFigure, Outcome, RoleOutcome, RunValue, Seen, SpeedupCurve,
    TaskOutcome, TrafficMatrix,
};
pub use read::{EXPERIMENT_FILE, RUNS_FOLDER, ReadError, Results};
