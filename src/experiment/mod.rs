//! Experiments with scenes: checks of plans, training clusters, simulations, and reports. The agent uses nothing of this module.
//!
//! 1. [`check`] names the mistakes of plans, with the place and the correction.
//! 2. [`import`] makes plans of the labels that nodes already have.
//! 3. [`tasks`] says which task of a training job belongs to which slot. [`render()`] makes the job's objects from the tasks.
//! 4. [`simulate()`] shows which node each task would get.
//! 5. [`results`] is what an experiment leaves in a folder, and what that says.
//! 6. [`series`] says the same of runs that only a Prometheus has watched.
//! 7. [`statistics`] says how sure a comparison of runs is. The bench uses it, too.
//! 8. [`page()`] shows what an experiment or a bench found, as HTML.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod amounts;
mod check;
mod import;
mod page;
mod render;
pub mod results;
pub mod series;
mod simulate;
pub mod statistics;

pub use amounts::AMOUNTS;
pub use check::check;
pub use import::{ImportError, Imported, import};
pub use page::page;
#[cfg(feature = "bench")]
pub(crate) use page::round_step;
pub use render::{
    Faults, Folder, Gang, JobTask, Preset, ROLES, Reclaim, RenderRequest, Rendered, RoleTasks,
    RunTag, Slice, SuccessPolicy, TaskOf, TaskResources, TaskShare, TrainingJob, WorkloadFormat,
    render, requested_resources, roles, settle, settle_run, tasks,
};
pub use simulate::{Simulation, claimed, invented, simulate, too_few_cpus};
