//! Experiments on a cluster: `pinfold scene run`.
//!
//! ```text
//!  begin ── checks, preview ──> Experiment + Settings ──> ResultsFolder
//!                                                            │
//!  Lab::conduct: take the plan ─> for each run: switch ─ create ─ watch ─ collect ─ delete ─> put back
//! ```
//!
//! Everything that the lab makes in the cluster has the experiment's id, in the label (or, on the plan, the annotation)
//! [`EXPERIMENT_LABEL`], and only what has it is changed or deleted. The folder is written before the first change of the cluster, so a
//! killed experiment can be continued or cleaned up from it. A run counts as done when its record is in the folder; everything
//! before that can be done again.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod begin;
mod cluster_state;
mod conduct;
mod fit;
mod folder;
mod objects;
mod order;
mod pages;
mod pods;
mod preview;
mod request;
mod rights;
mod run;
mod series;
mod settings;
mod steps;
mod switch;
mod usage;

pub use begin::{PreparedExperiment, begin, check_plan};
pub use conduct::{Conclusion, Lab, LabTools};
pub use folder::ResultsFolder;
pub use order::{extension, order};
pub use request::Request;
pub use settings::{Before, Limits, Settings};
pub use steps::{StepPattern, USUAL_PATTERN};

/// The label of everything that belongs to an experiment. Its value is the experiment's id.
pub const EXPERIMENT_LABEL: &str = "pinfold.io/experiment";

/// The length of an experiment's id.
const ID_LENGTH: usize = 6;
