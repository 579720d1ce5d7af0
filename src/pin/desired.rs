//! The values passed between the stages of a turn: assignments, the desired state, the steps of a
//! plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::assignment::union;
use super::{AssignmentRecord, PodAssignment};
use crate::cpu::CpuSet;
use crate::host::cgroup::{PartitionKind, Quota};
use crate::pod::{ObjectName, PodUid};

/// The name of the cgroup for idle CPUs, beside the containers' cgroups of a pod.
pub(super) const IDLE_CGROUP: &str = "pinfold-idle";

named! {
    /// How assignments are enforced.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Enforcement {
        /// With cpuset partitions: the kernel keeps all foreign tasks off an owner's CPUs.
        Partition => "partition",
        /// With writes to `cpuset.cpus` of pods' and containers' cgroups.
        Cpuset => "cpuset",
        /// Without any enforcement: Pinfold only observes.
        Observe => "observe",
    }
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EnforcementCause {
        /// The configuration names the enforcement.
        Configuration => "configuration",
        /// The kernel supports cpuset partitions.
        PartitionsSupported => "partitions_supported",
        /// The machine has cgroup v1, which lacks cpuset partitions.
        CgroupV1 => "cgroup_v1",
        /// The kernel supports no cpuset partitions below the root of the hierarchy.
        PartitionsUnsupported => "partitions_unsupported",
        /// The kubelet's CPU Manager assigns CPUs.
        CpuManager => "cpu_manager",
    }
}

named! {
    /// Who chooses the exclusive CPUs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PlacementSource {
        Pinfold => "pinfold",
        /// The kubelet's CPU Manager. Pinfold keeps the CPUs that it reports.
        Kubelet => "kubelet",
    }
}

/// A single write to a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes an empty cgroup, whose partition keeps CPUs idle.
    Make { path: String },
    /// Removes a cgroup for idle CPUs.
    Remove { path: String },
    /// Writes or removes a cgroup's assignment record.
    Record {
        path: String,
        /// The record; `None` removes the present record.
        record: Option<AssignmentRecord>,
    },
    /// Notes a cgroup's set from before its CPUs went offline; `None` removes the note.
    Narrowed {
        path: String,
        earlier: Option<CpuSet>,
    },
    /// Sets a cgroup's CPUs.
    Cpus {
        path: String,
        cpus: CpuSet,
        reason: Reason,
    },
    /// Sets the CPUs a cgroup may hold as exclusive; an empty set clears them.
    Exclusive {
        path: String,
        cpus: CpuSet,
        /// The CPUs that must be in force afterwards, if the cgroup is a partition.
        in_force: Option<CpuSet>,
    },
    /// Makes a cgroup a partition, or turns it back into a member.
    Partition {
        path: String,
        kind: PartitionKind,
        /// The CPUs that must be in force afterwards; `None` for a member.
        in_force: Option<CpuSet>,
    },
    /// Sets the NUMA nodes for a cgroup's memory.
    Memory { path: String, numa: CpuSet },
    /// Sets a cgroup's quota.
    Quota { path: String, quota: Quota },
}

/// Why a cgroup's CPUs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// A pod's cgroup must hold the CPUs of its containers.
    Pod,
    /// The container gives up CPUs, for a new owner or because its assignment shrinks.
    Narrow,
    /// The container owns the CPUs.
    Own,
    Share,
    /// The container must not overlap the partition of another container of the pod.
    #[serde(rename = "apart")]
    Separate,
    /// CPUs that went offline are online again.
    Return,
    /// The CPUs are handed back.
    Release,
}

/// The desired state of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Online CPUs, because no others can be in force.
    pub online: CpuSet,
    /// Online CPUs that the cgroups above the pods do not offer, so that no pod can use them.
    pub withheld: CpuSet,
    /// The NUMA nodes with memory that pods may use.
    pub all_memory: CpuSet,
    /// CPUs that probably belong to owners with an unreadable record.
    pub perhaps_owned: CpuSet,
    /// The plan of each known pod, and of each unknown pod with exclusive CPUs.
    pub pods: BTreeMap<PodUid, PodPlan>,
    /// Cgroups whose partition the kernel refused a moment ago. The plan starts no partition on
    /// them, and adds no CPUs to a live one.
    pub held_back: BTreeSet<String>,
    /// Whether the plan holds all cgroups back, because the kernel has lost CPUs and may crash when the next partition is
    /// made.
    pub starts_no_partition: bool,
    /// Whether the kubelet chooses the CPUs. The plan then writes neither the set of a pod nor that
    /// of a container with a process.
    pub beside_kubelet: bool,
    /// The cgroups of owners whose CPUs are also in the set of another running container of the pod, which Pinfold
    /// does not write. They become no partitions.
    pub met_by_mates: BTreeSet<String>,
    /// The online CPUs that were isolated at boot. The kernel takes such CPUs into an isolated partition only.
    pub isolated_at_boot: CpuSet,
    /// Those of them that the kernel's unbound workqueues use now. No partition newly becomes isolated on these.
    pub used_by_workqueues: CpuSet,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPlan {
    /// The exclusive CPUs. An unknown pod keeps its CPUs.
    pub assignment: PodAssignment,
    /// Namespace and name; `None` for an unknown pod.
    pub name: Option<ObjectName>,
    /// Whether the container runtime has told the name of a static pod.
    pub confirmed: bool,
    /// Names of the init containers, which run on the CPUs of their pod. Without a description of
    /// the pod, these are the containers that do so, by their ids if nobody has told their names.
    pub init_containers: Vec<String>,
    /// Whether the plan lifts the pod's own quota, too: each container except init containers owns CPUs, or has a limit of its own
    /// while none applies to the pod as a whole.
    pub lifts_pod_quota: bool,
    /// The NUMA nodes of each container's memory. An owner without an entry keeps its NUMA nodes.
    pub memory: BTreeMap<String, CpuSet>,
    /// Whether the pod wants memory from anywhere. Owners that Pinfold has bound get their earlier NUMA nodes back.
    pub free_memory: bool,
    /// Whether the pod allows moves of running containers, including their memory.
    pub movable: bool,
    /// Whether the pod asks for isolated partitions, which have no load balancing, because its
    /// containers bind their own threads.
    pub isolated: bool,
    /// Whether the kernel's unbound work queues have yet to leave the CPUs of an isolated pod.
    /// Until then, no partition of the pod may become isolated, and no isolated partition may gain
    /// CPUs.
    pub isolation_pending: bool,
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

    /// The path of the written cgroup.
    pub fn path(&self) -> &str {
        let (Self::Make { path }
        | Self::Remove { path }
        | Self::Record { path, .. }
        | Self::Narrowed { path, .. }
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
        write!(f, "{}: ", self.path())?;
        match self {
            Self::Make { .. } => f.write_str("make"),
            Self::Remove { .. } => f.write_str("remove"),
            Self::Record { record: None, .. } => f.write_str("remove record"),
            Self::Record {
                record: Some(record),
                ..
            } if record.assignment.is_empty() => f.write_str("record earlier settings"),
            Self::Record {
                record: Some(record),
                ..
            } => write!(f, "record CPUs {}", record.cpus()),
            Self::Narrowed {
                earlier: Some(earlier),
                ..
            } => write!(f, "note CPUs {earlier} from before CPUs went offline"),
            Self::Narrowed { earlier: None, .. } => f.write_str("remove note of earlier CPUs"),
            Self::Cpus { cpus, .. } => write!(f, "{}", cpus.in_words()),
            Self::Exclusive { cpus, .. } if cpus.is_empty() => f.write_str("exclusive none"),
            Self::Exclusive { cpus, .. } => write!(f, "exclusive {cpus}"),
            Self::Partition {
                kind,
                in_force: Some(cpus),
                ..
            } => write!(f, "{kind} on {}", cpus.in_words()),
            Self::Partition { kind, .. } => write!(f, "{kind}"),
            Self::Memory { numa, .. } => {
                let plural = if numa.len() == 1 { "" } else { "s" };
                write!(f, "memory of NUMA node{plural} {numa}")
            }
            Self::Quota { quota, .. } => write!(f, "quota {quota}"),
        }
    }
}

impl Desired {
    pub fn pod(&self, uid: &str) -> Option<&PodPlan> {
        self.pods.get(uid)
    }

    /// The CPUs of a pod; empty for a pod without CPUs.
    pub fn assignment(&self, uid: &str) -> PodAssignment {
        self.pod(uid)
            .map(|pod| pod.assignment.clone())
            .unwrap_or_default()
    }

    /// The plan of the pod with the given uid, for a change. A missing one is added.
    pub fn pod_mut(&mut self, uid: &str) -> &mut PodPlan {
        self.pods.entry(uid.into()).or_default()
    }

    /// Sets the CPUs of each listed pod.
    pub fn set_assignments(&mut self, assignments: BTreeMap<String, PodAssignment>) {
        for (uid, assignment) in assignments {
            self.pod_mut(&uid).assignment = assignment;
        }
    }

    /// The desired exclusive CPUs of all pods.
    pub fn exclusive(&self) -> CpuSet {
        union(self.pods.values().map(|pod| pod.assignment.cpus()))
    }

    /// The online CPUs that pods can use.
    pub fn available(&self) -> CpuSet {
        self.online.difference(&self.withheld)
    }

    /// The CPUs that pods can use and that have no desired owner. CPUs of an unreadable record are
    /// shared only if nothing else is left.
    pub fn shared(&self) -> CpuSet {
        let unowned = self.available().difference(&self.exclusive());
        let shared = unowned.difference(&self.perhaps_owned);
        if shared.is_empty() { unowned } else { shared }
    }

    /// The CPUs of every desired owner. After the plan, the ledger holds the same assignments.
    pub fn assignments(&self) -> BTreeMap<String, PodAssignment> {
        let assignments = self.pods.iter().map(|(uid, pod)| (uid, &pod.assignment));
        let owners = assignments.filter(|(_, assignment)| !assignment.is_empty());
        owners
            .map(|(uid, assignment)| (uid.to_string(), assignment.clone()))
            .collect()
    }
}

// === impl PodPlan ===

impl PodPlan {
    /// Whether the container runtime has confirmed the pod's name in the record. That of an unknown
    /// pod keeps its value.
    pub(super) fn is_confirmed(&self, record: Option<&AssignmentRecord>) -> bool {
        if self.name.is_some() {
            self.confirmed
        } else {
            record.is_some_and(|record| record.confirmed)
        }
    }
}
