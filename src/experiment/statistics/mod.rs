//! Statistics of experiments with few and noisy runs, for the bench and for reports of scenes.
//!
//! The unit is the run: what varies within a run, its steps for example, says nothing about the next run. Runs come in blocks, the
//! repeats of an experiment, each of which holds every [`Condition`] once. A [`Contrast`] compares conditions within each
//! block, so that a slow hour of the machine affects both sides, and then asks what the blocks have in common:
//!
//! 1. A block's ratio is the geometric mean over all pairs of runs that differ in the factor alone.
//! 2. The [`Estimate`] is the geometric mean of the blocks' ratios, with the t interval of their logarithms.
//! 3. The [`Verdict`] names an effect if a t test does, and says "no effect" only if the whole interval lies within a margin
//!    of 10 % (Schuirmann's two one-sided tests). Everything else is "not distinguishable", beside the smallest effect that
//!    such an experiment would have named.
//!
//! A [`Design`] holds what must be fixed before the first run: the conditions, the number of blocks, the primary questions,
//! which share one probability of error (Holm's method), the margin, and whether the experiment may be extended. All other
//! contrasts have intervals and no verdict. [`Design::speedup`] gives the curve over the cases.
//!
//! How often the intervals and verdicts are right is measured on simulated experiments with normal, drifting, skewed and
//! disturbed values, in `statistics/tests/truth.rs`. One thing no statistics can mend: what slows one of 20 runs of one side only is not
//! seen in most experiments of six blocks, so their intervals are about the runs without it.

mod contrast;
mod design;
mod estimate;
mod questions;
mod speedup;
mod student;
mod summary;

pub use contrast::{Contrast, RunError, Verdict};
pub use design::{Design, DesignError, DesignOptions, ExtensionError, USUAL_MARGIN, USUAL_REPEATS};
pub use estimate::{Estimate, FEWEST_BLOCKS};
pub use questions::{Condition, Part, Question, Run, Way};
pub use speedup::SpeedupPoint;
pub use summary::{Summary, percentile, quantile};

#[cfg(test)]
mod tests;
