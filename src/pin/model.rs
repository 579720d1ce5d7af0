//! The values that the stages of a reconcile pass hand on: assignments, the desired state, the steps of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::record::AssignmentRecord;
use crate::cpu::CpuSet;
use crate::host::cgroup::{Kind, Quota};
use crate::pod::PodUid;

/// The name of the cgroup, beside a pod's containers, that keeps CPUs idle.
pub(super) const IDLE_CGROUP: &str = "pinfold-idle";

/// How assignments are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// By cpuset partitions: the kernel gives a CPU to nobody else.
    Partition,
    /// By writing `cpuset.cpus` of the pods' cgroups.
    Cpuset,
    /// Not at all: Pinfold only looks.
    Observe,
}

impl Enforcement {
    /// Its name, as in the configuration and as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Cpuset => "cpuset",
            Self::Observe => "observe",
        }
    }
}

/// The exclusive CPUs of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodAssignment {
    /// The CPUs of each container, by name.
    pub containers: BTreeMap<String, CpuSet>,
    /// The CPUs that stay idle: siblings of the containers' CPUs, on which no program shall run.
    pub idle: CpuSet,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes a cgroup in which nothing runs: its partition keeps CPUs idle.
    Make {
        /// The cgroup.
        path: String,
    },
    /// Removes a cgroup for idle CPUs.
    Remove {
        /// The cgroup.
        path: String,
    },
    /// Puts a mark on a cgroup, or takes it off.
    Record {
        /// The cgroup.
        path: String,
        /// The record; `None` removes the present record.
        record: Option<AssignmentRecord>,
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
    /// Sets the CPUs that a cgroup may hold as exclusive; an empty set clears them.
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
    /// A pod's cgroup must hold the CPUs of its containers.
    Pod,
    /// The container gives up CPUs: another container will own them, or the container's assignment shrinks.
    Narrow,
    /// It owns them.
    Own,
    /// They are shared.
    Share,
    /// The container must not overlap the partition of a pod mate.
    Apart,
    /// The CPUs are handed back.
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
    /// The exclusive CPUs. An unknown pod keeps its CPUs.
    pub assignment: PodAssignment,
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
    pub(super) fn cpus(path: &str, cpus: CpuSet, reason: Reason) -> Self {
        Self::Cpus {
            path: path.to_owned(),
            cpus,
            reason,
        }
    }

    /// The cgroup that the step writes to.
    pub fn path(&self) -> &str {
        let (Self::Make { path }
        | Self::Remove { path }
        | Self::Record { path, .. }
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
            Self::Record {
                path,
                record: Some(mark),
            } if mark.assignment.is_empty() => {
                write!(f, "{path}: note what was")
            }
            Self::Record {
                path,
                record: Some(mark),
            } => write!(f, "{path}: claim {}", mark.cpus()),
            Self::Record { path, record: None } => write!(f, "{path}: forget"),
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

    /// The CPUs of one pod; empty for a pod without CPUs.
    pub fn assignment(&self, uid: &str) -> PodAssignment {
        self.pod(uid)
            .map(|pod| pod.assignment.clone())
            .unwrap_or_default()
    }

    /// Whether the pod with this uid shall own CPUs.
    pub fn is_owner(&self, uid: &str) -> bool {
        self.pod(uid)
            .is_some_and(|plan| !plan.assignment.is_empty())
    }

    /// The plan of the pod with this uid, to be changed.
    pub fn pod_mut(&mut self, uid: &str) -> &mut PodPlan {
        self.pods.entry(uid.into()).or_default()
    }

    /// Sets the CPUs of each pod.
    pub fn set_assignments(&mut self, assignments: BTreeMap<String, PodAssignment>) {
        for (uid, assignment) in assignments {
            self.pod_mut(&uid).assignment = assignment;
        }
    }

    /// The CPUs that the pods shall own.
    pub fn exclusive(&self) -> CpuSet {
        let pods = self.pods.values();
        pods.fold(CpuSet::new(), |all, pod| all.union(&pod.assignment.cpus()))
    }

    /// The CPUs that no pod shall own.
    pub fn shared(&self) -> CpuSet {
        self.online.difference(&self.exclusive())
    }

    /// The CPUs of every pod that shall own any: the ledger, once the plan is carried out.
    pub fn assignments(&self) -> BTreeMap<String, PodAssignment> {
        let owners = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.assignment.is_empty());
        owners
            .map(|(uid, pod)| (uid.to_string(), pod.assignment.clone()))
            .collect()
    }
}

// === impl PodPlan ===

impl PodPlan {
    /// Whether the name in a pod's record is the container runtime's word. The record of a pod that nobody describes stays.
    pub(super) fn is_confirmed(&self, record: Option<&AssignmentRecord>) -> bool {
        if self.name.is_some() {
            self.confirmed
        } else {
            record.is_some_and(|record| record.confirmed)
        }
    }
}

// === impl PodAssignment ===

impl PodAssignment {
    /// Whether the pod owns no CPUs.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.idle.is_empty()
    }

    /// The idle CPUs, if any, without a name; then the CPUs of each container, with the container's name.
    pub fn entries(&self) -> impl Iterator<Item = (Option<&str>, &CpuSet)> {
        let idle = Some(&self.idle).filter(|idle| !idle.is_empty());
        let containers = self.containers.iter();
        idle.map(|idle| (None, idle))
            .into_iter()
            .chain(containers.map(|(name, cpus)| (Some(name.as_str()), cpus)))
    }

    /// All CPUs of the pod, the idle CPUs among them.
    pub fn cpus(&self) -> CpuSet {
        union(self.entries().map(|(_, cpus)| cpus))
    }

    /// The CPUs that the pod's containers can use.
    pub fn usable(&self) -> CpuSet {
        union(self.containers.values())
    }

    /// The part of one container.
    pub(super) fn of_container(&self, name: &str) -> Self {
        let own = self.containers.get_key_value(name);
        Self {
            containers: own
                .map(|(name, cpus)| (name.clone(), cpus.clone()))
                .into_iter()
                .collect(),
            idle: CpuSet::new(),
        }
    }

    /// The idle part.
    pub(super) fn only_idle(&self) -> Self {
        Self {
            containers: BTreeMap::new(),
            idle: self.idle.clone(),
        }
    }
}

/// The CPUs in any of several sets.
pub(super) fn union<'a>(sets: impl Iterator<Item = &'a CpuSet>) -> CpuSet {
    sets.fold(CpuSet::new(), |all, set| all.union(set))
}
