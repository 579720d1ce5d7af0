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
use crate::pod::PodUid;

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

/// The state that the kernel shall be brought to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Online CPUs: no CPU outside them can be in force.
    pub online: CpuSet,
    /// All NUMA nodes that have memory.
    pub all_memory: CpuSet,
    /// The plan of each pod: of every known pod, and of every unknown pod that owns CPUs.
    pub pods: BTreeMap<PodUid, PodPlan>,
    /// Cgroups whose partition the kernel refused a moment ago: the plan leaves them out.
    pub held_back: BTreeSet<String>,
}

/// The desired state of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPlan {
    /// The CPUs of each container by name. An unknown pod keeps its CPUs.
    pub claims: BTreeMap<String, CpuSet>,
    /// Namespace and name; `None` for an unknown pod.
    pub name: Option<(String, String)>,
    /// Whether the container runtime has told the name of a static pod.
    pub confirmed: bool,
    /// Containers that run inside the set of their pod: init containers.
    pub inside: Vec<String>,
    /// Whether all containers own CPUs: the pod's own quota is lifted, too.
    pub whole: bool,
    /// The NUMA nodes of each container's memory; an unnamed container keeps its NUMA nodes.
    pub memory: BTreeMap<String, CpuSet>,
    /// Whether running containers may be moved, their memory included.
    pub movable: bool,
    /// Whether the containers bind their own threads: their partitions have no load balancing.
    pub isolated: bool,
    /// Whether the kernel's unbound work queues have yet to leave the CPUs of an isolated pod. Until then no partition of the
    /// pod may become isolated, or gain CPUs as an isolated one.
    pub balanced_yet: bool,
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
    /// The plan of the pod with this uid.
    pub fn pod(&self, uid: &str) -> Option<&PodPlan> {
        self.pods.get(uid)
    }

    /// The CPUs of all containers of one pod, by name; empty for a pod without CPUs.
    pub fn claims(&self, uid: &str) -> BTreeMap<String, CpuSet> {
        self.pod(uid)
            .map(|pod| pod.claims.clone())
            .unwrap_or_default()
    }

    /// Whether the pod with this uid shall own CPUs.
    pub fn is_owner(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(|plan| !plan.claims.is_empty())
    }

    /// The plan of the pod with this uid, to be changed.
    pub fn pod_mut(&mut self, uid: &str) -> &mut PodPlan {
        self.pods.entry(uid.into()).or_default()
    }

    /// Sets the CPUs of the pods' containers.
    pub fn set_claims(&mut self, claims: BTreeMap<String, BTreeMap<String, CpuSet>>) {
        for (uid, claims) in claims {
            self.pod_mut(&uid).claims = claims;
        }
    }

    /// The CPUs that the pods shall own.
    pub fn exclusive(&self) -> CpuSet {
        union(self.pods.values().flat_map(|pod| pod.claims.values()))
    }

    /// The CPUs that no pod shall own.
    pub fn shared(&self) -> CpuSet {
        self.online.difference(&self.exclusive())
    }

    /// The ledger's entries as they shall become: the CPUs of every pod that owns any.
    pub fn owners(&self) -> BTreeMap<String, BTreeMap<String, CpuSet>> {
        let owners = self.pods.iter().filter(|(_, pod)| !pod.claims.is_empty());
        owners
            .map(|(uid, pod)| (uid.to_string(), pod.claims.clone()))
            .collect()
    }
}

// === impl PodPlan ===

impl PodPlan {
    /// Whether the name in a pod's record is the container runtime's word. The record of a pod that nobody describes stays.
    fn is_confirmed(&self, record: Option<&Mark>) -> bool {
        if self.name.is_some() {
            self.confirmed
        } else {
            record.is_some_and(|record| record.confirmed)
        }
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
