//! [`release`]: the steps to hand back all CPUs, quotas and NUMA nodes, for each enforcement.

use super::super::ledger::{Observed, ObservedContainer, ObservedPod};
use super::super::model::{Reason, Step, union};
use super::super::record::AssignmentRecord;
use super::memory;
use super::records::{forget, give_back_quota};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Partition, PartitionKind, is_below};

/// The steps to restore CPUs, quotas and NUMA nodes, and to remove all records.
pub fn release(observed: &Observed, online: &CpuSet, all_memory: &CpuSet) -> Vec<Step> {
    let mut steps = undo_partitions(observed);
    let mut back = Vec::new();
    for pod in &observed.pods {
        let Some(mark) = &pod.record else { continue };
        back.extend(wide(
            &pod.cgroup.path,
            &pod.cgroup.cpuset.cpus,
            mark,
            online,
        ));
        back.extend(give_back_quota(
            &pod.cgroup.path,
            pod.cgroup.quota,
            Some(mark),
        ));
    }
    for container in observed.containers() {
        let Some(mark) = &container.record else {
            continue;
        };
        let cgroup = &container.cgroup;
        back.extend(give_back_quota(&cgroup.path, cgroup.quota, Some(mark)));
        back.extend(wide(&cgroup.path, &cgroup.cpuset.cpus, mark, online));
        back.extend(memory::give_back(container, all_memory));
    }
    // The records go last: an interrupted release can start again while the records exist.
    let pods = observed
        .pods
        .iter()
        .filter(|pod| pod.record.is_some())
        .map(|pod| &pod.cgroup.path);
    let containers = observed
        .containers()
        .filter(|container| container.record.is_some());
    let marked = pods.chain(containers.map(|container| &container.cgroup.path));
    let idle = observed.containers().filter(|container| container.idle);
    let gone = idle.map(|container| Step::Remove {
        path: container.cgroup.path.clone(),
    });
    steps.append(&mut back);
    steps.extend(marked.map(|path| forget(path)));
    steps.extend(gone);
    steps
}

/// Restores the earlier CPUs of a cgroup.
fn wide(path: &str, now: &CpuSet, mark: &AssignmentRecord, online: &CpuSet) -> Option<Step> {
    let back = had(mark, online);
    // A cgroup without a written set, now and before Pinfold's first write, needs no write.
    let untouched = now.is_empty() && mark.before.cpus.is_empty();
    (*now != back && !untouched).then(|| Step::cpus(path, back, Reason::Release))
}

/// The online part of a cgroup's CPUs from before Pinfold's first write. All online CPUs if the
/// online part is empty.
///
/// On v2, the kernel refuses to clear the set of a cgroup with processes. All CPUs have the same
/// effect as an empty set.
pub(super) fn had(mark: &AssignmentRecord, online: &CpuSet) -> CpuSet {
    let had = mark.before.cpus.intersection(online);
    if had.is_empty() { online.clone() } else { had }
}

/// The steps to end all partitions made by Pinfold. From the containers up, each cgroup becomes
/// `member` before its exclusive CPUs are cleared.
///
/// In any different order, Linux 6.12 can lose CPUs until the next boot. Linux 6.12 can also lose
/// CPUs if a foreign program has narrowed a cgroup above a live partition. For safety, the first
/// steps restore the CPUs of the cgroups above.
pub(super) fn undo_partitions(observed: &Observed) -> Vec<Step> {
    let (mut steps, mut undo) = (Vec::new(), Vec::new());
    let live_below = |path: &str| {
        let below = observed
            .pods
            .iter()
            .filter(|pod| is_below(&pod.cgroup.path, path));
        below
            .map(live)
            .fold(CpuSet::new(), |all, cpus| all.union(&cpus))
    };
    for above in &observed.around.above {
        steps.extend(reach(
            &above.path,
            &above.cpuset.exclusive,
            &live_below(&above.path),
        ));
    }
    // The exclusive CPUs each pod's cgroup keeps: CPUs of foreign partitions, and all CPUs of pods
    // without a record.
    let mut kept: Vec<(&str, CpuSet)> = Vec::new();
    for pod in &observed.pods {
        let mut in_pod = CpuSet::new();
        for container in &pod.containers {
            let cpuset = &container.cgroup.cpuset;
            if !is_ours(pod, container) {
                in_pod = in_pod.union(&cpuset.exclusive);
                continue;
            }
            if !matches!(
                cpuset.partition,
                Partition::Valid(PartitionKind::Member) | Partition::Unsupported
            ) {
                undo.push(member(&container.cgroup.path));
            }
            undo.extend(trim(
                &container.cgroup.path,
                &cpuset.exclusive,
                &CpuSet::new(),
            ));
        }
        let mut now = pod.cgroup.cpuset.exclusive.clone();
        let mut left = now.clone();
        if pod.record.is_some() {
            let live = live(pod);
            steps.extend(reach(&pod.cgroup.path, &now, &live));
            (now, left) = (now.union(&live), in_pod);
        }
        undo.extend(trim(&pod.cgroup.path, &now, &left));
        kept.push((&pod.cgroup.path, left));
    }
    for above in observed.around.above.iter().rev() {
        let now = above.cpuset.exclusive.union(&live_below(&above.path));
        let below = kept
            .iter()
            .filter(|(path, _)| is_below(path, &above.path))
            .map(|(_, cpus)| cpus);
        let further = observed
            .around
            .above
            .iter()
            .filter(|other| is_below(&other.path, &above.path));
        let left = union(below)
            .union(&above.other_exclusive)
            .union(&union(further.map(|other| &other.other_exclusive)));
        undo.extend(trim(&above.path, &now, &left));
    }
    steps.append(&mut undo);
    steps
}

/// The CPUs of a pod's live partitions.
fn live(pod: &ObservedPod) -> CpuSet {
    let cpusets = pod
        .containers
        .iter()
        .map(|container| &container.cgroup.cpuset);
    union(
        cpusets
            .filter(|cpuset| cpuset.partition.is_live())
            .map(|cpuset| &cpuset.exclusive),
    )
}

/// Restores the CPUs of live partitions to a cgroup above them.
fn reach(path: &str, now: &CpuSet, live: &CpuSet) -> Option<Step> {
    let cpus = now.union(live);
    (cpus != *now).then(|| Step::Exclusive {
        path: path.to_owned(),
        cpus,
        in_force: None,
    })
}

/// Whether Pinfold made the container's partition. An unrecorded cgroup also counts if the pod's
/// record covers all its exclusive CPUs.
pub(super) fn is_ours(pod: &ObservedPod, container: &ObservedContainer) -> bool {
    let claimed = pod
        .record
        .as_ref()
        .map(AssignmentRecord::cpus)
        .unwrap_or_default();
    let held = &container.cgroup.cpuset.exclusive;
    container.record.is_some()
        || (container.cgroup.record_text.is_none() && held.is_subset(&claimed))
}

pub(super) fn member(path: &str) -> Step {
    Step::Partition {
        path: path.to_owned(),
        kind: PartitionKind::Member,
        in_force: None,
    }
}

/// Removes exclusive CPUs outside `left` from a cgroup.
fn trim(path: &str, now: &CpuSet, left: &CpuSet) -> Option<Step> {
    let cpus = now.intersection(left);
    (cpus != *now).then(|| Step::Exclusive {
        path: path.to_owned(),
        cpus,
        in_force: None,
    })
}
