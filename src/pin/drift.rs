//! [`drift`]: differences between assigned and effective CPUs, each with a cause.

use std::fmt;

use serde::Serialize;

use super::{AssignmentRecord, Enforcement, Ledger, Observed, ObservedContainer};
use crate::cpu::CpuSet;

/// A difference between the ledger and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The container's cgroup.
    pub path: String,
    /// The cause of the difference.
    pub cause: DriftCause,
    /// The assigned CPUs.
    pub assigned: CpuSet,
    /// The effective CPUs.
    pub effective: CpuSet,
    /// Neighbours with processes: containers that may run on a drifted owner's CPUs, and owners
    /// whose CPUs the drifted container may use. At most 8, which keeps the node's state small.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Neighbour>,
}

/// The maximum number of neighbours per drift.
const NAMED: usize = 8;

/// The maximum number of drifts per scan with a list of neighbours. If many containers drift at
/// once, the neighbours are drifted containers themselves.
const LISTED: usize = 16;

/// A container that shares CPUs with a drifted container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// The neighbour's cgroup.
    pub path: String,
    /// Namespace and name of the pod, from its assignment record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The CPUs open to both containers.
    pub cpus: CpuSet,
}

named! {
    /// Why effective and assigned CPUs differ.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DriftCause {
        /// A foreign program wrote the owner's `cpuset.cpus`, or with partitions the owner's
        /// `cpuset.cpus.exclusive`.
        Written => "written",
        /// A cgroup above the owner's was narrowed.
        Ancestor => "ancestor",
        /// Some of the owner's CPUs are offline.
        Offline => "offline",
        /// A non-owner's cgroup was widened onto an owner's CPUs. The drift's path is the non-owner's
        /// cgroup.
        Overlap => "overlap",
        /// The owner's partition has ended, or the kernel has made the partition invalid.
        Partition => "partition",
    }
}

// === impl Drift ===

impl Drift {
    /// Whether both values describe the same drift. The comparison ignores the neighbours, which
    /// may have changed meanwhile.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.path, self.cause, &self.assigned, &self.effective)
            == (&other.path, other.cause, &other.assigned, &other.effective)
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            cause,
            assigned,
            effective,
            others,
        } = self;
        let cause = cause.name();
        let assigned = match assigned.is_empty() {
            true => "shared CPUs".to_owned(),
            false => assigned.to_string(),
        };
        write!(
            f,
            "drift ({cause}): {path} should run on {assigned} and runs on {effective}"
        )?;
        let mut before = "; also on these CPUs:";
        for other in others {
            write!(f, "{before} {other}")?;
            before = ",";
        }
        Ok(())
    }
}

// === impl Neighbour ===

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pod, &self.container) {
            (Some(pod), Some(container)) => {
                write!(f, "{pod}/{container} ({}) on {}", self.path, self.cpus)
            }
            (Some(pod), None) => write!(f, "{pod} ({}) on {}", self.path, self.cpus),
            (None, _) => write!(f, "{} on {}", self.path, self.cpus),
        }
    }
}

/// Compares the kernel with the ledger.
///
/// Cgroups without an assignment record are new, not drifted. The `recently_assigned` CPUs got their owners after the last
/// complete node pass. The owners' sets may be unwritten, and other containers may still run on the CPUs. Neither is drift.
pub fn drift(
    observed: &Observed,
    ledger: &Ledger,
    (online, recently_assigned): (&CpuSet, &CpuSet),
    enforcement: Enforcement,
) -> Vec<Drift> {
    let exclusive = ledger.exclusive().difference(recently_assigned);
    let available = ledger.available(online);
    let returning = returning(observed);
    let mut drifts = Vec::new();
    for pod in &observed.pods {
        let own = ledger.of(&pod.cgroup.uid).cpus();
        let foreign = exclusive.difference(&own);
        for container in &pod.containers {
            let Some(record) = &container.record else {
                continue;
            };
            let now = &container.cgroup.cpuset;
            let assigned = record.cpus();
            if !assigned.is_disjoint(recently_assigned) {
                continue;
            }
            let assigned_online = assigned.intersection(online);
            let partition = enforcement == Enforcement::Partition;
            let cause = if assigned.is_empty() {
                // With partitions, the kernel keeps members off all partitions. A member's written
                // set has no effect on partition CPUs.
                (!partition && !now.effective.is_disjoint(&foreign)).then_some(DriftCause::Overlap)
            } else if partition && !now.partition.is_live() {
                Some(if assigned_online.is_empty() {
                    DriftCause::Offline
                } else {
                    DriftCause::Partition
                })
            } else if now.effective == assigned {
                None
            } else if partition && now.exclusive == assigned
                || !partition && now.effective == assigned_online
                || !partition && now.effective == assigned_online.difference(&returning)
            {
                Some(DriftCause::Offline)
            } else if !partition && now.effective == assigned.intersection(&available) {
                // All that the cgroups above still offer.
                Some(DriftCause::Ancestor)
            } else if partition || (now.cpus != assigned && now.cpus != assigned_online) {
                Some(DriftCause::Written)
            } else {
                Some(DriftCause::Ancestor)
            };
            if let Some(cause) = cause {
                let others = if drifts.len() < LISTED {
                    others(observed, container, &assigned, &foreign)
                } else {
                    Vec::new()
                };
                let path = container.cgroup.path.clone();
                drifts.push(Drift {
                    path,
                    cause,
                    assigned,
                    effective: now.effective.clone(),
                    others,
                });
            }
        }
    }
    drifts
}

/// CPUs of cgroup v1 that were offline and that the cgroups above the pods still lack.
fn returning(observed: &Observed) -> CpuSet {
    let above = observed
        .surroundings
        .above
        .iter()
        .map(|above| &above.cpuset);
    let lacking = above.filter_map(|set| Some(set.narrowed_from.as_ref()?.difference(&set.cpus)));
    lacking.fold(CpuSet::new(), |all, set| all.union(&set))
}

/// Containers that may run on a container's assigned CPUs, and owners whose CPUs the container may
/// use.
fn others(
    observed: &Observed,
    drifted: &ObservedContainer,
    assigned: &CpuSet,
    foreign: &CpuSet,
) -> Vec<Neighbour> {
    let all = observed
        .pods
        .iter()
        .flat_map(|pod| pod.containers.iter().map(move |other| (pod, other)));
    let others =
        all.filter(|(_, other)| other.cgroup.path != drifted.cgroup.path && other.cgroup.populated);
    let concerned = others.filter_map(|(pod, other)| {
        let mut other_cpus = other
            .record
            .as_ref()
            .map(AssignmentRecord::cpus)
            .unwrap_or_default();
        if assigned.is_empty() {
            // An overlap with the drifted container's pod mates is no drift.
            other_cpus = other_cpus.intersection(foreign);
        }
        let on_assigned = other.cgroup.cpuset.effective.intersection(assigned);
        let cpus = on_assigned.union(&other_cpus.intersection(&drifted.cgroup.cpuset.effective));
        let record = pod.record.as_ref().filter(|record| !record.pod.is_empty());
        (!cpus.is_empty()).then(|| Neighbour {
            path: other.cgroup.path.clone(),
            pod: record.map(|record| format!("{}/{}", record.namespace, record.pod)),
            container: other.name.clone(),
            cpus,
        })
    });
    concerned.take(NAMED).collect()
}
