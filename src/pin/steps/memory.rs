//! Memory follows the CPUs, where that moves hardly any page or the pod allows it.

use super::super::ledger::ObservedContainer;
use super::super::model::{Desired, Step};
use super::super::record::AssignmentRecord;
use crate::cpu::CpuSet;

/// So much may be moved between NUMA nodes by a write of ours; some milliseconds' worth.
const MOVABLE: u64 = 64 << 20;

/// The NUMA nodes to write to a container's cgroup; `None` where nothing is to be written.
///
/// On cgroup v2 the kernel moves pages at once when a NUMA node is taken away. A container that uses much memory
/// already keeps what it has; one that only gains NUMA nodes loses no page.
pub(super) fn wanted(
    container: &ObservedContainer,
    uid: &str,
    desired: &Desired,
) -> Option<CpuSet> {
    let now = &container.cgroup.memory.numa;
    let numa = chosen(container, uid, desired)?;
    let bound = container
        .record
        .as_ref()
        .is_some_and(|mark| mark.before.numa.is_some());
    let only_gains = bound && !now.is_empty() && now.is_subset(numa);
    let moves_little = container
        .cgroup
        .memory
        .bytes_to_move
        .is_some_and(|bytes| bytes <= MOVABLE);
    let may_move = bound && desired.pod(uid).is_some_and(|plan| plan.movable);
    (now != numa && (only_gains || moves_little || may_move)).then(|| numa.clone())
}

fn chosen<'a>(
    container: &ObservedContainer,
    uid: &str,
    desired: &'a Desired,
) -> Option<&'a CpuSet> {
    desired.pod(uid)?.memory.get(container.name.as_deref()?)
}

/// Notes in a container's next mark what it had before its memory is bound for the first time.
pub(super) fn note(
    mut next: AssignmentRecord,
    container: &ObservedContainer,
    uid: &str,
    desired: &Desired,
) -> AssignmentRecord {
    if next.before.numa.is_some() {
        return next;
    }
    let now = &container.cgroup.memory.numa;
    if wanted(container, uid, desired).is_some() {
        next.before.numa = Some(now.clone());
    } else if container.record.is_none()
        && chosen(container, uid, desired) == Some(now)
        && *now != desired.all_memory
    {
        // A runtime wrote it, on our word.
        next.before.numa = Some(CpuSet::new());
    }
    next
}

/// Binds a container's memory.
pub(super) fn bind(container: &ObservedContainer, uid: &str, desired: &Desired) -> Option<Step> {
    let numa = wanted(container, uid, desired)?;
    Some(Step::Memory {
        path: container.cgroup.path.clone(),
        numa,
    })
}

/// Gives a container its earlier NUMA nodes back; no page moves.
pub(super) fn give_back(container: &ObservedContainer, all: &CpuSet) -> Option<Step> {
    let had = container.record.as_ref()?.before.numa.as_ref()?;
    // An empty set cannot be restored while the cgroup has processes; all NUMA nodes mean the same.
    let numa = if had.is_empty() { all } else { had };
    let path = container.cgroup.path.clone();
    (container.cgroup.memory.numa != *numa && !numa.is_empty()).then(|| Step::Memory {
        path,
        numa: numa.clone(),
    })
}
