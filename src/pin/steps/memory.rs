//! Memory follows the CPUs if the write moves few pages, or if the pod allows moves.

use crate::cpu::CpuSet;
use crate::pin::{AssignmentRecord, ObservedContainer, PodPlan, Step};

/// The most bytes that a single write may move between NUMA nodes. This many take some
/// milliseconds.
const MOVABLE: u64 = 64 << 20;

/// The NUMA nodes to write to a container's cgroup; `None` if no write is necessary or allowed.
///
/// On cgroup v2, the kernel moves pages at once when a cgroup loses a NUMA node, so a container
/// with much memory keeps its NUMA nodes. There are two exceptions for containers already bound by
/// Pinfold: such a container may gain NUMA nodes, because then no page moves, and its pod can allow
/// moves of its memory.
fn wanted(container: &ObservedContainer, plan: &PodPlan) -> Option<CpuSet> {
    let memory = &container.cgroup.memory;
    let now = &memory.numa;
    let numa = chosen(container, plan)?;
    let bound = container.has_bound_memory();
    let only_gains = bound && !now.is_empty() && now.is_subset(numa);
    let moves_little = memory.bytes_to_move.is_some_and(|bytes| bytes <= MOVABLE);
    let may_move = bound && plan.movable;
    (now != numa && (only_gains || moves_little || may_move)).then(|| numa.clone())
}

fn chosen<'a>(container: &ObservedContainer, plan: &'a PodPlan) -> Option<&'a CpuSet> {
    plan.memory.get(container.name.as_deref()?)
}

/// Adds the earlier NUMA nodes to a container's next record before Pinfold binds the memory for the
/// first time. `all` are the NUMA nodes with memory that pods may use.
pub(super) fn record_earlier_memory(
    mut next: AssignmentRecord,
    container: &ObservedContainer,
    plan: &PodPlan,
    all: &CpuSet,
) -> AssignmentRecord {
    if next.before.numa.is_some() {
        if plan.free_memory && give_back(container, all).is_none() {
            // The earlier NUMA nodes are back, so from now on a foreign write to them stays.
            next.before.numa = None;
        }
        return next;
    }
    let now = &container.cgroup.memory.numa;
    if wanted(container, plan).is_some() {
        next.before.numa = Some(now.clone());
    } else if container.record.is_none() && chosen(container, plan) == Some(now) && now != all {
        // The container runtime wrote the NUMA nodes at Pinfold's request, so there is no earlier
        // setting.
        next.before.numa = Some(CpuSet::new());
    }
    next
}

/// The step to bind an owner's memory, or to free it if the pod wants it free, if needed.
pub(super) fn bind(container: &ObservedContainer, plan: &PodPlan, all: &CpuSet) -> Option<Step> {
    if plan.free_memory {
        return give_back(container, all);
    }
    let numa = wanted(container, plan)?;
    Some(Step::Memory {
        path: container.cgroup.path.clone(),
        numa,
    })
}

/// Restores a container's earlier NUMA nodes. Pages move only from NUMA nodes outside the earlier
/// set.
pub(super) fn give_back(container: &ObservedContainer, all: &CpuSet) -> Option<Step> {
    let earlier = container.record.as_ref()?.before.numa.as_ref()?;
    // The kernel refuses an empty set for a cgroup with processes, and on v1 a set with NUMA nodes
    // that the cgroups above no longer allow. All NUMA nodes have the same effect as an empty set.
    let allowed = earlier.intersection(all);
    let numa = if allowed.is_empty() {
        all.clone()
    } else {
        allowed
    };
    let path = container.cgroup.path.clone();
    (container.cgroup.memory.numa != numa && !numa.is_empty())
        .then_some(Step::Memory { path, numa })
}
