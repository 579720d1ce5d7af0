//! [`release`]: the steps to hand back all CPUs, quotas and NUMA nodes, for each enforcement.

use super::super::assignment::union;
use super::memory;
use super::records::{give_back_quota, remove_record};
use crate::cpu::CpuSet;
use crate::host::cgroup::{AncestorCgroup, Cpuset, Partition, PartitionKind, is_below};
use crate::pin::{AssignmentRecord, Observed, ObservedContainer, ObservedPod, Reason, Step};

/// The steps to restore CPUs, quotas and NUMA nodes, and to remove all records.
pub fn release(observed: &Observed, online: &CpuSet, all_memory: &CpuSet) -> Vec<Step> {
    let writable = &observed.writable(online);
    let mut steps = undo_partitions(observed);
    let mut recorded = Vec::new();
    let returning = observed.returning_above(online).into_iter();
    steps.extend(returning.map(|(path, cpus)| Step::cpus(path, cpus, Reason::Return)));
    for pod in &observed.pods {
        let cgroup = &pod.cgroup;
        let Some(record) = &pod.record else {
            steps.extend(return_cpus(&cgroup.path, &cgroup.cpuset, writable));
            continue;
        };
        steps.extend(restore_cpus(
            &cgroup.path,
            &cgroup.cpuset.cpus,
            record,
            writable,
        ));
        steps.extend(give_back_quota(&cgroup.path, cgroup.quota, Some(record)));
        recorded.push(&cgroup.path);
    }
    for container in observed.containers() {
        let (cgroup, cpus) = (&container.cgroup, &container.cgroup.cpuset.cpus);
        let Some(record) = &container.record else {
            steps.extend(return_cpus(&cgroup.path, &cgroup.cpuset, writable));
            continue;
        };
        steps.extend(give_back_quota(&cgroup.path, cgroup.quota, Some(record)));
        let back = restore_cpus(&cgroup.path, cpus, record, writable);
        // A write of the same set widens the cgroups inside.
        let inside = || Step::cpus(&cgroup.path, cpus.clone(), Reason::Release);
        let back = back.or_else(|| cgroup.has_narrowed_cgroups().then(inside));
        steps.extend(back);
        steps.extend(memory::give_back(container, all_memory));
        recorded.push(&cgroup.path);
    }
    // The records are removed after all writes, because an interrupted release can start again
    // while they exist.
    steps.extend(recorded.into_iter().map(|path| remove_record(path)));
    steps.extend(forget_offline(observed));
    let idle = observed.containers().filter(|container| container.idle);
    steps.extend(idle.map(|container| Step::Remove {
        path: container.cgroup.path.clone(),
    }));
    steps
}

/// Gives a cgroup without a record the CPUs back that were taken from it.
fn return_cpus(path: &str, cpuset: &Cpuset, writable: &CpuSet) -> Option<Step> {
    let back = cpuset.narrowed_from.as_ref()?.intersection(writable);
    (back != cpuset.cpus && !back.is_empty()).then(|| Step::cpus(path, back, Reason::Return))
}

/// Removes the notes of cgroups that lack CPUs because these are offline. Only a running agent
/// could widen their sets.
fn forget_offline(observed: &Observed) -> Vec<Step> {
    let mut paths = Vec::new();
    let mut note = |path: &String, narrowed_from: &Option<CpuSet>| {
        if narrowed_from.is_some() {
            paths.push(path.clone());
        }
    };
    for above in &observed.surroundings.above {
        note(&above.path, &above.cpuset.narrowed_from);
    }
    for pod in &observed.pods {
        note(&pod.cgroup.path, &pod.cgroup.cpuset.narrowed_from);
    }
    for container in observed.containers() {
        note(
            &container.cgroup.path,
            &container.cgroup.cpuset.narrowed_from,
        );
        for nested in &container.cgroup.nested {
            note(&nested.path, &nested.narrowed_from);
        }
    }
    let paths = paths.into_iter();
    let steps = paths.map(|path| Step::Narrowed {
        path,
        earlier: None,
    });
    steps.collect()
}

/// Restores the earlier CPUs of a cgroup.
fn restore_cpus(
    path: &str,
    now: &CpuSet,
    record: &AssignmentRecord,
    writable: &CpuSet,
) -> Option<Step> {
    // The set of a container with CPUs of the kubelet's choice is the kubelet's, too.
    if record.is_of_kubelet() {
        return None;
    }
    let back = restored_cpus(record, writable);
    // A cgroup without a written set, both now and before Pinfold's first write, needs no write.
    let untouched = now.is_empty() && record.before.cpus.is_empty();
    (*now != back && !untouched).then(|| Step::cpus(path, back, Reason::Release))
}

/// The writable part of a cgroup's CPUs from before Pinfold's first write, or all writable CPUs if
/// that part is empty.
///
/// On v2, the kernel refuses to clear the set of a cgroup with processes. All CPUs have the same
/// effect as an empty set.
pub(super) fn restored_cpus(record: &AssignmentRecord, writable: &CpuSet) -> CpuSet {
    let earlier = record.before.cpus.intersection(writable);
    if earlier.is_empty() {
        writable.clone()
    } else {
        earlier
    }
}

/// The steps to end all partitions made by Pinfold. From the containers up, each cgroup becomes
/// `member` before its exclusive CPUs are cleared.
///
/// In any other order, Linux 6.12 can lose CPUs until the next boot. It can also lose CPUs if a
/// foreign program has narrowed a cgroup above a live partition, so the first steps restore the
/// CPUs of the cgroups above.
pub(super) fn undo_partitions(observed: &Observed) -> Vec<Step> {
    let ancestors = &observed.surroundings.above;
    let pods_below = |path: &str| {
        let path = path.to_owned();
        let pods = observed.pods.iter();
        pods.filter(move |pod| is_below(&pod.cgroup.path, &path))
    };
    let with_live = |above: &AncestorCgroup| {
        let live = union(pods_below(&above.path).map(live));
        above.cpuset.exclusive.union(&live)
    };
    let mut steps = Vec::new();
    for above in ancestors {
        let now = &above.cpuset.exclusive;
        steps.extend(set_exclusive(&above.path, now, with_live(above)));
    }
    for pod in observed.pods.iter().filter(|pod| pod.record.is_some()) {
        let now = &pod.cgroup.cpuset.exclusive;
        steps.extend(set_exclusive(&pod.cgroup.path, now, now.union(&live(pod))));
    }
    steps.extend(observed.pods.iter().flat_map(end_partitions));
    for above in ancestors.iter().rev() {
        let inner = ancestors
            .iter()
            .filter(|other| is_below(&other.path, &above.path));
        let kept = union(pods_below(&above.path).map(kept_cpus))
            .union(&above.other_exclusive)
            .union(&union(inner.map(|other| &other.other_exclusive)));
        let now = with_live(above);
        steps.extend(set_exclusive(&above.path, &now, now.intersection(&kept)));
    }
    steps
}

/// The steps to end the partitions of a pod, whose cgroup then gives up the CPUs.
fn end_partitions(pod: &ObservedPod) -> Vec<Step> {
    let mut steps = Vec::new();
    let containers = pod.containers.iter();
    for container in containers.filter(|container| is_made_by_pinfold(pod, container)) {
        let (path, cpuset) = (&container.cgroup.path, &container.cgroup.cpuset);
        if !matches!(
            cpuset.partition,
            Partition::Valid(PartitionKind::Member) | Partition::Unsupported
        ) {
            steps.push(member(path));
        }
        steps.extend(set_exclusive(path, &cpuset.exclusive, CpuSet::new()));
    }
    if pod.record.is_some() {
        let now = pod.cgroup.cpuset.exclusive.union(&live(pod));
        let kept = now.intersection(&kept_cpus(pod));
        steps.extend(set_exclusive(&pod.cgroup.path, &now, kept));
    }
    steps
}

/// The exclusive CPUs that a pod's cgroup keeps: those of foreign partitions, and all of a pod
/// without a record.
fn kept_cpus(pod: &ObservedPod) -> CpuSet {
    if pod.record.is_none() {
        return pod.cgroup.cpuset.exclusive.clone();
    }
    let containers = pod.containers.iter();
    let foreign = containers.filter(|container| !is_made_by_pinfold(pod, container));
    union(foreign.map(|container| &container.cgroup.cpuset.exclusive))
}

/// The CPUs of a pod's live partitions.
fn live(pod: &ObservedPod) -> CpuSet {
    let containers = pod.containers.iter();
    let cpusets = containers.map(|container| &container.cgroup.cpuset);
    let live = cpusets.filter(|cpuset| cpuset.partition.is_live());
    union(live.map(|cpuset| &cpuset.exclusive))
}

/// The step to change a cgroup's exclusive CPUs from `now` to `cpus`, if they differ.
fn set_exclusive(path: &str, now: &CpuSet, cpus: CpuSet) -> Option<Step> {
    (cpus != *now).then(|| Step::Exclusive {
        path: path.to_owned(),
        cpus,
        in_force: None,
    })
}

/// Whether Pinfold made the container's partition. An unrecorded cgroup also counts if the pod's
/// record covers all its exclusive CPUs.
fn is_made_by_pinfold(pod: &ObservedPod, container: &ObservedContainer) -> bool {
    let exclusive = &container.cgroup.cpuset.exclusive;
    container.record.is_some()
        || (container.cgroup.record_text.is_none() && exclusive.is_subset(&pod.recorded_cpus()))
}

pub(super) fn member(path: &str) -> Step {
    Step::Partition {
        path: path.to_owned(),
        kind: PartitionKind::Member,
        in_force: None,
    }
}
