//! [`PendingAssignments`]: CPUs chosen for containers that are being created.

use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::pin::{Ledger, Observed};

/// How long a pending assignment lasts. It must end some time, because the container of an
/// unanswered request may never be created.
const LIFETIME: Duration = Duration::from_secs(120);

/// CPUs chosen for a container that is being created, until the assignment record of its pod has them.
#[derive(Debug)]
struct PendingAssignment {
    uid: String,
    container: String,
    cpus: CpuSet,
    until: Instant,
}

#[derive(Debug, Default)]
pub struct PendingAssignments {
    pending: Vec<PendingAssignment>,
}

// === impl PendingAssignments ===

impl PendingAssignments {
    pub(super) fn uids(&self) -> impl Iterator<Item = &str> {
        self.pending
            .iter()
            .map(|assignment| assignment.uid.as_str())
    }

    /// Adds a pending assignment, in place of the container's earlier one.
    pub(super) fn add(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.pending
            .retain(|assignment| assignment.uid != uid || assignment.container != container);
        let (uid, container) = (uid.to_owned(), container.to_owned());
        self.pending.push(PendingAssignment {
            uid,
            container,
            cpus,
            until: Instant::now() + LIFETIME,
        });
    }

    /// Ends the pending assignments of those of the pod's containers that the runtime lacks.
    pub(super) fn retain(&mut self, uid: &str, is_there: impl Fn(&str) -> bool) {
        self.pending
            .retain(|assignment| assignment.uid != uid || is_there(&assignment.container));
    }

    /// Ends the pending assignments that are past their deadline, or that the pod's assignment
    /// record has.
    pub(super) fn end_recorded(&mut self, observed: &Observed) {
        let now = Instant::now();
        self.pending.retain(|assignment| {
            let record = observed
                .pod(&assignment.uid)
                .and_then(|pod| pod.record.as_ref());
            let is_recorded = record.is_some_and(|record| {
                let recorded = &record.assignment.containers;
                recorded.contains_key(&assignment.container)
            });
            assignment.until > now && !is_recorded
        });
    }

    #[doc(hidden)]
    pub fn enter(&self, ledger: &mut Ledger) {
        for assignment in &self.pending {
            ledger.add_if_missing(&assignment.uid, &assignment.container, &assignment.cpus);
        }
    }
}
