//! [`Question`]: what a container gets that a runtime is about to create.

use tokio::sync::oneshot;

use super::event::Admission;
use super::given_up::GivenUp;
use crate::cpu::CpuSet;
use crate::pin::decide::{Decision, Decisions};
use crate::pod::{Entitlement, Pod};

/// What a container gets that is about to be created.
pub(super) struct Question<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a str,
    pub(super) reply: oneshot::Sender<Admission>,
    /// Whether it may wait for CPUs that others are giving up now.
    pub(super) patient: bool,
}

// === impl Question ===

impl Question<'_> {
    /// What was decided on its container; `None` for one that its pod's description does not have.
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

    /// Whether it is owed CPUs that it does not get, or not all.
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

    /// Whether its answer is better after another look: it lacks CPUs, and some were given up.
    pub(super) fn waits(&self, pods: &[Pod], decisions: &Decisions, given_up: &GivenUp) -> bool {
        self.patient && given_up.due().is_some() && self.lacks(pods, decisions)
    }
}
