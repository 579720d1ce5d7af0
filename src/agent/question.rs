//! [`Question`]: what a container gets that a runtime is about to create.

use tokio::sync::oneshot;

use super::event::Admission;
use super::given_up::GivenUp;
use crate::pin::decide::{Decision, Decisions};
use crate::pod::Pod;

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
    /// Whether its answer is better after another look: it lacks CPUs, and some were given up.
    pub(super) fn waits(&self, pods: &[Pod], decisions: &Decisions, given_up: &GivenUp) -> bool {
        let lacks = |decision: &Decision| {
            let pod = pods.get(decision.pod).filter(|pod| pod.cgroup_uid() == self.pod.cgroup_uid());
            let container = pod.and_then(|pod| pod.containers.get(decision.container));
            let asked = container.is_some_and(|container| container.name == self.container);
            asked && decision.cpus.is_none() && decision.entitlement.cpus() > 0
        };
        self.patient && given_up.due().is_some() && decisions.containers.iter().any(lacks)
    }
}
