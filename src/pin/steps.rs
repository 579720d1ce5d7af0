//! [`plan`]: observed and desired in, steps out.
//!
//! How a plan looks depends on the enforcement, and each is made by a file of its own: [`partition`] where the kernel
//! itself keeps others off, [`cpuset`] where every other container is to be narrowed by us. [`release`](release()) hands
//! everything back, however it was enforced.

mod cpuset;
mod memory;
mod partition;
mod records;
mod release;

use super::ledger::{Ledger, Observed};
use super::model::{Desired, Enforcement, Step};

pub use release::release;

/// The steps from what is to what should be; none where they are the same, or where nothing is enforced.
pub fn plan(
    observed: &Observed,
    ledger: &Ledger,
    desired: &Desired,
    enforcement: Enforcement,
) -> Vec<Step> {
    match enforcement {
        Enforcement::Partition => partition::plan(observed, desired),
        Enforcement::Cpuset => cpuset::plan(observed, ledger, desired),
        Enforcement::Observe => Vec::new(),
    }
}
