//! What a training job did in a case, from the series that a Prometheus has.
//!
//! 1. [`cases`] asks which cases there were, [`presence`] who took part, [`QueriedPods`] what they used: texts in PromQL.
//! 2. [`read_answer`] makes [`Series`] of what is answered, [`Members`] the tasks' pods and the time in which they were seen.
//! 3. [`analyse`] sums up by task and by role, weighs the parameter servers, and says what stands out; [`compare`] puts several
//!    runs side by side.
//! 4. [`markdown()`] and [`pictures`] show it; JSON is the [`ExperimentReport`] itself. [`outcome()`] makes it a page's.
//!
//! Invariant: what no series tells of is `None`, is said to be missing, and is never 0.

mod analysis;
mod answer;
mod balance;
mod chart;
mod compare;
mod figures;
mod findings;
mod markdown;
mod members;
mod outcome;
mod picture;
mod query;
mod task_use;
mod usage;

pub use analysis::{Curve, ObservedRun, Points, RunReport, analyse};
pub use answer::{Answer, AnswerError, Series, read_answer};
pub use balance::{Balance, LoadShare};
pub use compare::{Efficiency, ExperimentReport, Pair, ProgressMeasure, compare};
pub use figures::{seconds_of, time};
pub(in crate::experiment) use findings::common_count;
pub use findings::{FindingKind, HOT, LAGS, LEAST_TRAFFIC, RunFinding, SAME_STEPS, THROTTLED};
pub use markdown::markdown;
pub use members::{Member, Members, NoMembers};
pub use outcome::outcome;
pub use picture::{Diagram, pictures};
pub use query::{
    Measure, QueriedPods, SCRAPES_OF_A_RATE, StepMetric, Subject, cases, presence, reaches_back,
    scrapes, whether,
};
pub use task_use::{RoleUse, ServerBalance, TaskUse};
pub use usage::{Totals, Traffic, Usage};
