//! Steps for assignment records and quotas, shared by all enforcements.

use super::super::model::{PodAssignment, Step};
use super::super::record::{AssignmentRecord, EarlierSettings};
use crate::cpu::CpuSet;
use crate::host::cgroup::Quota;

/// The desired record of a cgroup: the new assignment, with the earlier settings from the first
/// record.
pub(super) fn next_record(
    marked: Option<&AssignmentRecord>,
    assignment: PodAssignment,
    names: Option<&(String, String)>,
    own: &CpuSet,
    limited: Option<Quota>,
) -> AssignmentRecord {
    let noted = marked.map_or_else(
        || EarlierSettings {
            cpus: own.clone(),
            ..EarlierSettings::default()
        },
        |mark| mark.before.clone(),
    );
    // A limit in force is the value to restore: the original limit, or a newer limit written by the
    // kubelet.
    let quota = match limited.filter(|quota| quota.quota.is_some()) {
        Some(quota) => Some(quota),
        None if assignment.is_empty() => None,
        None => noted.quota,
    };
    let mut mark = AssignmentRecord::new(EarlierSettings {
        cpus: noted.cpus,
        quota,
        numa: noted.numa,
    });
    if let Some((namespace, pod)) = names.filter(|_| !assignment.is_empty()) {
        (mark.namespace, mark.pod) = (namespace.clone(), pod.clone());
    } else if let Some(marked) = marked.filter(|_| !assignment.is_empty()) {
        (mark.namespace, mark.pod) = (marked.namespace.clone(), marked.pod.clone());
    }
    mark.assignment = assignment;
    mark
}

/// The CPUs to record as the container's earlier set. A set equal to the target counts as unset:
/// the container runtime wrote the set at Pinfold's request.
pub(super) fn earlier_cpus<'a>(own: &'a CpuSet, target: &CpuSet, none: &'a CpuSet) -> &'a CpuSet {
    if own == target { none } else { own }
}

/// Whether a cgroup has an unreadable record. Pinfold leaves the cgroup alone.
pub(super) fn unreadable(mark: Option<&AssignmentRecord>, text: Option<&str>) -> bool {
    mark.is_none() && text.is_some()
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
    mark: Option<&AssignmentRecord>,
) -> Option<Step> {
    // A present limit comes from a later write of the kubelet, and the newer value stays.
    let limited = now.is_some_and(|quota| quota.quota.is_some());
    let quota = mark
        .and_then(|mark| mark.before.quota)
        .filter(|_| !limited)?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota,
    })
}

/// The step to write a record.
pub(super) fn mark(path: &str, mark: AssignmentRecord) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: Some(mark),
    }
}

/// The step to remove a record.
pub(super) fn forget(path: &str) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: None,
    }
}
