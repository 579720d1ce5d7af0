//! What every enforcement shares: marks and quotas.

use super::super::model::{PodAssignment, Step};
use super::super::record::{AssignmentRecord, EarlierSettings};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Quota, lifted};

/// The mark a cgroup shall have: claims as they shall be, and what was before as it was noted first.
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
    // A quota that is in force again was written by the kubelet since: it is what to put back.
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

/// What was written to a container before we had a say in it: just what it is to have was written by a runtime, on our word.
pub(super) fn earlier_cpus<'a>(own: &'a CpuSet, target: &CpuSet, none: &'a CpuSet) -> &'a CpuSet {
    if own == target { none } else { own }
}

/// Whether a cgroup has an unreadable record. Such a cgroup is left alone.
pub(super) fn unreadable(mark: Option<&AssignmentRecord>, text: Option<&str>) -> bool {
    mark.is_none() && text.is_some()
}

/// Lifts a quota that limits.
pub(super) fn lift_quota(path: &str, now: Option<Quota>) -> Option<Step> {
    let quota = now.filter(|quota| quota.quota.is_some())?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota: lifted(quota),
    })
}

/// Puts back a quota that was lifted.
pub(super) fn give_back_quota(
    path: &str,
    now: Option<Quota>,
    mark: Option<&AssignmentRecord>,
) -> Option<Step> {
    // A limiting quota was written later by the kubelet, so the newer value stays.
    let limited = now.is_some_and(|quota| quota.quota.is_some());
    let quota = mark
        .and_then(|mark| mark.before.quota)
        .filter(|_| !limited)?;
    Some(Step::Quota {
        path: path.to_owned(),
        quota,
    })
}

/// Writes a record.
pub(super) fn mark(path: &str, mark: AssignmentRecord) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: Some(mark),
    }
}

/// Takes a mark off.
pub(super) fn forget(path: &str) -> Step {
    Step::Record {
        path: path.to_owned(),
        record: None,
    }
}
