//! [`PendingCreate`]: a waiting CreateContainer request.

use tokio::sync::oneshot;

use super::event::CreateAnswer;
use super::release_backoff::ReleaseBackoff;
use crate::cpu::CpuSet;
use crate::pin::decide::{Decision, Decisions};
use crate::pod::{Entitlement, Pod};

/// An unanswered CreateContainer request.
pub(super) struct PendingCreate<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a str,
    pub(super) reply: oneshot::Sender<CreateAnswer>,
    /// Whether the request may wait for a second pass, for CPUs given up by the first pass.
    pub(super) patient: bool,
}

// === impl PendingCreate ===

impl PendingCreate<'_> {
    /// The decision about the container; `None` for a container outside the pod's description.
    pub(super) fn decided<'d>(
        &self,
        pods: &[Pod],
        decisions: &'d Decisions,
    ) -> Option<&'d Decision> {
        decisions.containers.iter().find(|decision| {
            let pod = pods
                .get(decision.pod)
                .filter(|pod| pod.cgroup_uid() == self.pod.cgroup_uid());
            let container = pod.and_then(|pod| pod.containers.get(decision.container));
            container.is_some_and(|container| container.name == self.container)
        })
    }

    /// Whether the container gets fewer exclusive CPUs than its entitlement.
    pub(super) fn lacks(&self, pods: &[Pod], decisions: &Decisions) -> bool {
        self.decided(pods, decisions).is_some_and(|decision| {
            let gets = decision.cpus.as_ref().map_or(0, CpuSet::len);
            match decision.entitlement {
                Entitlement::Exclusive { cpus, .. } => gets < cpus as usize,
                Entitlement::Inherit { .. } => gets == 0,
                Entitlement::Shared { .. } => false,
            }
        })
    }

    /// Whether the answer must wait for a second pass: the container lacks CPUs, and the first pass gave up CPUs.
    pub(super) fn waits(
        &self,
        pods: &[Pod],
        decisions: &Decisions,
        release_backoff: &ReleaseBackoff,
    ) -> bool {
        self.patient && release_backoff.due().is_some() && self.lacks(pods, decisions)
    }
}
