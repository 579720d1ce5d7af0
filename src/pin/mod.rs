//! Who owns which CPUs, and the steps from what is to what should be.
//!
//! Nothing is kept in a file of ours. Each cgroup that Pinfold writes to carries a [`Mark`], an extended attribute that
//! the kernel keeps with the cgroup and drops with it: the pod's says which container owns which CPUs, as long as the
//! pod lives; the container's says what is assigned to it, and what it had before. So a restart reads the cgroups
//! ([`Observed`], [`Ledger`]) and knows everything.
//!
//! [`decide`](decide::decide) turns pods, policy and ledger into who shall own what. [`plan`] turns observed and desired
//! into [`Step`]s; it is a pure function, and on its own result it yields nothing. [`apply`] carries steps out and
//! reads back. [`drift`] says where the kernel was made to differ.
//!
//! Enforcement is `cpuset`: the exclusive set on the container's cgroup, what its containers hold on the pod's, the
//! shared set on every other container. Tasks outside the pods' tree are not moved: that takes partitions.

mod apply;
pub mod decide;
mod drift;
mod ledger;
mod mark;
pub mod snapshot;
mod steps;

use serde::{Deserialize, Serialize};

pub use apply::{Applied, Outcome, apply};
pub use drift::{Cause, Drift, drift};
pub use ledger::{Ledger, Observed, ObservedContainer, ObservedPod};
pub use mark::{Before, Mark, MarkError};
pub use snapshot::Snapshot;
pub use steps::{Desired, Reason, Step, plan, release};

/// How assignments are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// By writing `cpuset.cpus` of the pods' cgroups.
    Cpuset,
    /// Not at all: Pinfold only looks.
    Observe,
}

impl Enforcement {
    /// Its name, as in the configuration and as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpuset => "cpuset",
            Self::Observe => "observe",
        }
    }
}
