//! [`drift`]: where what is in force differs from what was assigned, and who is to blame.

use serde::Serialize;

use super::Enforcement;
use super::ledger::{Ledger, Observed};
use crate::cpu::CpuSet;

/// One difference between the ledger and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The cgroup.
    pub path: String,
    /// Why they differ.
    pub cause: Cause,
    /// What should be in force.
    pub assigned: CpuSet,
    /// What is.
    pub effective: CpuSet,
}

/// Why what is in force differs from what was assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Somebody wrote the owner's `cpuset.cpus`.
    Written,
    /// A cgroup above the owner's was narrowed.
    Ancestor,
    /// Some of its CPUs are offline.
    Offline,
    /// Another container's cgroup was widened onto the owner's CPUs.
    Overlap,
    /// The owner's partition was undone, or the kernel has made it invalid.
    Partition,
}

impl Cause {
    /// All causes, for metrics that show zeroes.
    pub const ALL: [Self; 5] = [Self::Written, Self::Ancestor, Self::Offline, Self::Overlap, Self::Partition];

    /// Its name as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Ancestor => "ancestor",
            Self::Offline => "offline",
            Self::Overlap => "overlap",
            Self::Partition => "partition",
        }
    }
}

/// Compares the kernel with the ledger. Cgroups that Pinfold never wrote to are new, not drifted, and so is it if others still
/// run on `fresh` CPUs, which were given away a moment ago.
pub fn drift(
    observed: &Observed,
    ledger: &Ledger,
    (online, fresh): (&CpuSet, &CpuSet),
    enforcement: Enforcement,
) -> Vec<Drift> {
    let exclusive = ledger.exclusive().difference(fresh);
    let mut found = Vec::new();
    for pod in &observed.pods {
        let own = super::mark::union(ledger.of(&pod.cgroup.uid).values());
        let foreign = exclusive.difference(&own);
        for container in &pod.containers {
            let Some(mark) = &container.mark else { continue };
            let now = &container.cgroup.cpuset;
            let assigned = mark.cpus();
            let there = assigned.intersection(online);
            let partition = enforcement == Enforcement::Partition;
            let cause = if assigned.is_empty() {
                // The kernel keeps members off partitions; whatever was written to them is not in force there.
                (!partition && !now.effective.is_disjoint(&foreign)).then_some(Cause::Overlap)
            } else if partition && !now.partition.is_live() {
                Some(if there.is_empty() { Cause::Offline } else { Cause::Partition })
            } else if now.effective == assigned {
                None
            } else if partition && now.exclusive == assigned || !partition && now.effective == there {
                Some(Cause::Offline)
            } else if partition || (now.cpus != assigned && now.cpus != there) {
                Some(Cause::Written)
            } else {
                Some(Cause::Ancestor)
            };
            if let Some(cause) = cause {
                let path = container.cgroup.path.clone();
                found.push(Drift { path, cause, assigned, effective: now.effective.clone() });
            }
        }
    }
    found
}
