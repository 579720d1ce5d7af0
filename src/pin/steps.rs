//! [`plan`]: observed and desired in, steps out.
//!
//! How a plan looks depends on the enforcement, and each is made by a file of its own: [`partition`] where the kernel
//! itself keeps others off, [`cpuset`] where every other container is to be narrowed by us. [`release`](release()) hands
//! everything back, however it was enforced.

mod cpuset;
mod marks;
mod memory;
mod partition;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::Enforcement;
use super::ledger::{Ledger, Observed};
use super::mark::{Mark, union};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Kind, Quota};

pub use release::release;

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes a cgroup in which nothing runs: its partition keeps CPUs idle.
    Make {
        /// The cgroup.
        path: String,
    },
    /// Removes such a cgroup.
    Remove {
        /// The cgroup.
        path: String,
    },
    /// Puts a mark on a cgroup, or takes it off.
    Mark {
        /// The cgroup.
        path: String,
        /// What to note.
        mark: Option<Mark>,
    },
    /// Sets a cgroup's CPUs.
    Cpus {
        /// The cgroup.
        path: String,
        /// The CPUs.
        cpus: CpuSet,
        /// Why.
        reason: Reason,
    },
    /// Sets the CPUs that a cgroup may hold as exclusive; none clears them.
    Exclusive {
        /// The cgroup.
        path: String,
        /// The CPUs.
        cpus: CpuSet,
        /// What must be in force afterwards, where the cgroup is a partition.
        in_force: Option<CpuSet>,
    },
    /// Makes a cgroup a partition, or a member again.
    Partition {
        /// The cgroup.
        path: String,
        /// What it becomes.
        kind: Kind,
        /// What must be in force afterwards; nothing is asked of a member.
        in_force: Option<CpuSet>,
    },
    /// Sets the NUMA nodes that a cgroup's memory may come from.
    Memory {
        /// The cgroup.
        path: String,
        /// The NUMA nodes.
        numa: CpuSet,
    },
    /// Sets a cgroup's quota.
    Quota {
        /// The cgroup.
        path: String,
        /// The quota.
        quota: Quota,
    },
}

/// Why a cgroup's CPUs are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// A pod's cgroup must hold what its containers get.
    Pod,
    /// Others will own some of its CPUs.
    Narrow,
    /// It owns them.
    Own,
    /// They are shared.
    Share,
    /// It must not touch the partition of another container of its pod.
    Apart,
    /// They are handed back.
    Release,
}

/// What should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Online CPUs: nothing else can be in force.
    pub online: CpuSet,
    /// Who shall own what, per pod uid and container name; pods that nobody told us of keep what they have.
    pub claims: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// Namespace and name of each pod in `claims`, where known.
    pub names: BTreeMap<String, (String, String)>,
    /// Static pods in `claims` whose names the container runtime has told.
    pub confirmed: BTreeSet<String>,
    /// Containers that run inside the set of their pod, per uid: init containers.
    pub inside: BTreeMap<String, Vec<String>>,
    /// Pods all of whose containers own CPUs: their own quota is lifted too.
    pub whole: Vec<String>,
    /// The NUMA nodes that containers' memory shall come from, as in `claims`; those that are not named keep theirs.
    pub memory: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// All NUMA nodes that have memory.
    pub all_memory: CpuSet,
    /// Pods whose running containers may be moved, their memory included.
    pub movable: BTreeSet<String>,
    /// Pods whose containers bind their own threads: their partitions have no load balancing.
    pub isolated: BTreeSet<String>,
    /// Those of them whose CPUs the kernel's unbound work queues have yet to leave: no partition may become isolated, or gain
    /// CPUs as one, before that.
    pub balanced_yet: BTreeSet<String>,
    /// Cgroups whose partition the kernel refused a moment ago: not tried now.
    pub held_back: BTreeSet<String>,
}

// === impl Step ===

impl Step {
    /// The cgroup it writes to.
    pub fn path(&self) -> &str {
        let (Self::Make { path }
        | Self::Remove { path }
        | Self::Mark { path, .. }
        | Self::Cpus { path, .. }
        | Self::Exclusive { path, .. }
        | Self::Partition { path, .. }
        | Self::Memory { path, .. }
        | Self::Quota { path, .. }) = self;
        path
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make { path } => write!(f, "{path}: make"),
            Self::Remove { path } => write!(f, "{path}: remove"),
            Self::Mark {
                path,
                mark: Some(mark),
            } if mark.claims.is_empty() => {
                write!(f, "{path}: note what was")
            }
            Self::Mark {
                path,
                mark: Some(mark),
            } => write!(f, "{path}: claim {}", mark.cpus()),
            Self::Mark { path, mark: None } => write!(f, "{path}: forget"),
            Self::Cpus { path, cpus, .. } => write!(f, "{path}: {}", cpus.in_words()),
            Self::Exclusive { path, cpus, .. } if cpus.is_empty() => {
                write!(f, "{path}: exclusive none")
            }
            Self::Exclusive { path, cpus, .. } => write!(f, "{path}: exclusive {cpus}"),
            Self::Partition {
                path,
                kind,
                in_force: Some(cpus),
            } => {
                write!(f, "{path}: {kind} on {}", cpus.in_words())
            }
            Self::Partition {
                path,
                kind,
                in_force: None,
            } => write!(f, "{path}: {kind}"),
            Self::Memory { path, numa } => {
                let plural = if numa.len() == 1 { "" } else { "s" };
                write!(f, "{path}: memory of NUMA node{plural} {numa}")
            }
            Self::Quota { path, quota } => write!(f, "{path}: quota {quota}"),
        }
    }
}

impl Desired {
    /// Whether the name in a pod's record is the container runtime's word. The record of a pod that nobody describes stays.
    fn is_confirmed(&self, uid: &str, record: Option<&Mark>) -> bool {
        match self.names.contains_key(uid) {
            true => self.confirmed.contains(uid),
            false => record.is_some_and(|record| record.confirmed),
        }
    }

    /// CPUs that nobody shall own.
    pub fn shared(&self) -> CpuSet {
        self.online
            .difference(&union(self.claims.values().flat_map(BTreeMap::values)))
    }
}

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

fn cpus(path: &str, cpus: CpuSet, reason: Reason) -> Step {
    Step::Cpus {
        path: path.to_owned(),
        cpus,
        reason,
    }
}
