//! [`PendingAssignments`]: CPUs chosen for containers without a cgroup so far, and pods known only from runtime requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::pin::{Ledger, Observed};
use crate::pod::RecognizedPod;

/// How long a pending assignment or an announced pod lasts.
const LIFETIME: Duration = Duration::from_secs(120);

/// CPUs chosen for a container whose cgroup does not exist or has no assignment record yet.
#[derive(Debug)]
struct PendingAssignment {
    uid: String,
    container: String,
    cpus: CpuSet,
    until: Instant,
}

/// All pending assignments and announced pods.
#[derive(Debug, Default)]
pub(super) struct PendingAssignments {
    /// Pods known only from CreateContainer, each with its deadline.
    announced: Vec<(Arc<RecognizedPod>, Instant)>,
    pending: Vec<PendingAssignment>,
}

// === impl PendingAssignments ===

impl PendingAssignments {
    /// Adds a pod from CreateContainer, and restarts the pod's deadline.
    pub(super) fn announce(&mut self, pod: Arc<RecognizedPod>) {
        self.announced
            .retain(|(other, _)| other.cgroup_uid() != pod.cgroup_uid());
        self.announced.push((pod, Instant::now() + LIFETIME));
    }

    /// The announced pods before their deadline.
    pub(super) fn announced(&mut self) -> impl Iterator<Item = &Arc<RecognizedPod>> {
        let now = Instant::now();
        self.announced.retain(|(_, until)| *until > now);
        self.announced.iter().map(|(pod, _)| pod)
    }

    /// The uids of the announced pods.
    pub(super) fn uids(&self) -> impl Iterator<Item = &str> {
        self.announced
            .iter()
            .filter_map(|(pod, _)| pod.cgroup_uid())
    }

    /// The uids of pods with a pending assignment.
    pub(super) fn assigned_uids(&self) -> impl Iterator<Item = &str> {
        self.pending
            .iter()
            .map(|assignment| assignment.uid.as_str())
    }

    /// Adds a pending assignment. An earlier pending assignment of the container ends.
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

    /// Takes the runtime's containers of a pod. Pending assignments of further containers in the pod end, and the pod is no
    /// longer announced.
    pub(super) fn retain_containers(&mut self, uid: &str, containers: &[&str]) {
        self.announced
            .retain(|(pod, _)| pod.cgroup_uid() != Some(uid));
        self.pending.retain(|assignment| {
            assignment.uid != uid || containers.contains(&assignment.container.as_str())
        });
    }

    /// Adds the pending assignments to the ledger. A pending assignment ends at its deadline, or when the pod's assignment
    /// record names the container.
    pub(super) fn keep(&mut self, ledger: &mut Ledger, observed: &Observed) {
        let now = Instant::now();
        self.pending.retain(|assignment| {
            let marked = observed.pods.iter().any(|pod| {
                pod.cgroup.uid == assignment.uid
                    && pod.record.as_ref().is_some_and(|mark| {
                        mark.assignment
                            .containers
                            .contains_key(&assignment.container)
                    })
            });
            assignment.until > now && !marked
        });
        self.enter(ledger);
    }

    /// Adds the pending assignments to the ledger, and ends no pending assignment.
    pub(super) fn enter(&self, ledger: &mut Ledger) {
        for assignment in &self.pending {
            ledger.add_if_missing(&assignment.uid, &assignment.container, &assignment.cpus);
        }
    }
}
