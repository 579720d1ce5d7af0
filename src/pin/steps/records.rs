//! Steps for assignment records and quotas, shared by all enforcements.

use super::super::assignment::PodAssignment;
use super::super::model::Step;
use super::super::record::{AssignmentRecord, EarlierSettings};
use crate::cpu::CpuSet;
use crate::host::cgroup::Quota;

/// The desired record of a cgroup: the new assignment, with the earlier settings from the first
/// record.
pub(super) fn next_record(
    present: Option<&AssignmentRecord>,
    assignment: PodAssignment,
    names: Option<&(String, String)>,
    own: &CpuSet,
    limited: Option<Quota>,
) -> AssignmentRecord {
    let earlier = present.map_or_else(
        || EarlierSettings {
            cpus: own.clone(),
            ..EarlierSettings::default()
        },
        |record| record.before.clone(),
    );
    // A limit in force is the value to restore: the original limit, or a newer limit written by the
    // kubelet.
    let quota = match limited.filter(|quota| quota.quota.is_some()) {
        Some(quota) => Some(quota),
        None if assignment.is_empty() => None,
        None => earlier.quota,
    };
    let mut next = AssignmentRecord::new(EarlierSettings {
        cpus: earlier.cpus,
        quota,
        numa: earlier.numa,
    });
    if let Some((namespace, pod)) = names.filter(|_| !assignment.is_empty()) {
        (next.namespace, next.pod) = (namespace.clone(), pod.clone());
    } else if let Some(present) = present.filter(|_| !assignment.is_empty()) {
        (next.namespace, next.pod) = (present.namespace.clone(), present.pod.clone());
    }
    next.assignment = assignment;
    next
}

/// The CPUs to record as the container's earlier set. A set equal to the target counts as unset:
/// the container runtime wrote the set at Pinfold's request.
pub(super) fn cpus_to_record<'a>(own: &'a CpuSet, target: &CpuSet, none: &'a CpuSet) -> &'a CpuSet {
    if own == target { none } else { own }
}

/// Whether a cgroup has an unreadable record. Pinfold leaves the cgroup alone.
pub(super) fn unreadable(record: Option<&AssignmentRecord>, text: Option<&str>) -> bool {
    record.is_none() && text.is_some()
}

/// Lifts a quota with a limit. Returns `None` for a quota without a limit.
pub(super) fn lift_quota(path: &str, now: Option<Quota>) -> Option<Step> {
    let quota = now.filter(|quota| quota.quota.is_some())?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota: quota.without_limit(),
    })
}

/// Restores a lifted quota.
pub(super) fn give_back_quota(
    path: &str,
    now: Option<Quota>,
    record: Option<&AssignmentRecord>,
) -> Option<Step> {
    // A present limit comes from a later write of the kubelet, and the newer value stays.
    let limited = now.is_some_and(|quota| quota.quota.is_some());
    let quota = record
        .and_then(|record| record.before.quota)
        .filter(|_| !limited)?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota,
    })
}

/// The step to write a record.
pub(super) fn write_record(path: &str, record: AssignmentRecord) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: Some(record),
    }
}

/// The step to remove a record.
pub(super) fn remove_record(path: &str) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: None,
    }
}
