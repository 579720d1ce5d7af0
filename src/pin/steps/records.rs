//! Steps for assignment records and quotas, shared by all enforcements.

use crate::cpu::CpuSet;
use crate::host::cgroup::Quota;
use crate::pin::{
    AssignmentRecord, EarlierSettings, ObservedContainer, ObservedPod, PodAssignment, PodPlan, Step,
};
use crate::pod::ObjectName;

/// The desired record of a pod's cgroup.
pub(super) fn pod_record(pod: &ObservedPod, plan: &PodPlan) -> AssignmentRecord {
    let (record, cgroup) = (pod.record.as_ref(), &pod.cgroup);
    let (assignment, own) = (plan.assignment.clone(), cgroup.cpuset.earlier());
    let limited = cgroup.quota.filter(|_| plan.lifts_pod_quota);
    let mut next = next_record(record, assignment, plan.name.as_ref(), own, limited);
    next.confirmed = plan.is_confirmed(record);
    next
}

/// The desired record of a container's cgroup. `assignment` is the owner's part of the pod's
/// assignment; `None` for a container without CPUs. `own` are the CPUs to record as the container's
/// earlier set.
pub(super) fn container_record(
    container: &ObservedContainer,
    plan: &PodPlan,
    assignment: Option<PodAssignment>,
    own: &CpuSet,
) -> AssignmentRecord {
    let (record, names) = (container.record.as_ref(), plan.name.as_ref());
    // The quota of a container with CPUs of the kubelet's choice is the kubelet's, and so is its set.
    let is_of_pinfold = |assignment: &PodAssignment| assignment.by_kubelet.is_empty();
    let limited = assignment.as_ref().is_some_and(is_of_pinfold);
    let limited = container.cgroup.quota.filter(|_| limited);
    let by_id = assignment.is_some() && container.by_id;
    let mut next = next_record(record, assignment.unwrap_or_default(), names, own, limited);
    next.by_id = by_id;
    next
}

/// The desired record of a cgroup: the new assignment, with the earlier settings from the first
/// record.
fn next_record(
    present: Option<&AssignmentRecord>,
    assignment: PodAssignment,
    name: Option<&ObjectName>,
    own: &CpuSet,
    limited: Option<Quota>,
) -> AssignmentRecord {
    let first = || EarlierSettings {
        cpus: own.clone(),
        ..EarlierSettings::default()
    };
    let mut before = present.map_or_else(first, |record| record.before.clone());
    // A limit in force is the value to restore: the original one, or a newer one written by the
    // kubelet.
    let lifted = before.quota.filter(|_| !assignment.is_empty());
    let limited = limited.filter(|quota| quota.quota.is_some());
    before.quota = limited.or(lifted);
    let mut next = AssignmentRecord::new(before);
    let recorded = present.map(|present| (&present.namespace, &present.pod));
    let named = name.map(|name| (&name.namespace, &name.name));
    let named = named.or(recorded);
    if let Some((namespace, pod)) = named.filter(|_| !assignment.is_empty()) {
        (next.namespace, next.pod) = (namespace.clone(), pod.clone());
    }
    next.assignment = assignment;
    next
}

/// The CPUs to record as the container's earlier set. A set equal to the target, or to the CPUs
/// that the container was given at its creation, counts as unset, because the container runtime
/// wrote it at Pinfold's request.
pub(super) fn cpus_to_record(container: &ObservedContainer, target: &CpuSet) -> CpuSet {
    let own = container.cgroup.cpuset.earlier();
    if own == target || container.has_given_cpus() {
        CpuSet::new()
    } else {
        own.clone()
    }
}

/// Lifts a quota with a limit; `None` for a quota without one.
pub(super) fn lift_quota(path: &str, now: Option<Quota>) -> Option<Step> {
    let quota = now.filter(|quota| quota.quota.is_some())?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota: Quota {
            quota: None,
            ..quota
        },
    })
}

/// Restores a lifted quota.
pub(super) fn give_back_quota(
    path: &str,
    now: Option<Quota>,
    record: Option<&AssignmentRecord>,
) -> Option<Step> {
    // A present limit comes from a later write of the kubelet, and stays.
    let limited = now.is_some_and(|quota| quota.quota.is_some());
    let quota = record
        .and_then(|record| record.before.quota)
        .filter(|_| !limited)?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota,
    })
}

pub(super) fn write_record(path: &str, record: AssignmentRecord) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: Some(record),
    }
}

pub(super) fn remove_record(path: &str) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: None,
    }
}
