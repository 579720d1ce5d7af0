//! [`plan`] turns the observed and the desired state into steps.
//!
//! Each enforcement has a module for its plans. With [`partition`], the kernel itself keeps all
//! foreign tasks off an owner's CPUs, and with [`cpuset`], Pinfold narrows every non-owner's
//! cgroup. [`release`](release()) hands all CPUs back, whatever the enforcement was.

mod cpuset;
mod memory;
mod partition;
mod records;
mod release;

use super::{Desired, Enforcement, Ledger, Observed, Step};

pub use release::release;

/// The steps from the observed to the desired state. Empty if the states match, or with enforcement
/// `observe`.
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
