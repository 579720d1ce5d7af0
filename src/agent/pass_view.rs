//! [`PassView`]: what a reconcile pass has read and decides about.

use super::pass_model::{RuntimeRequest, decision, lacks};
use crate::pin::decide::{Decision, Decisions, RefusalSource};
use crate::pin::{Ledger, Observed};
use crate::pod::PodList;

/// The pods and cgroups that a pass decides and plans for.
#[derive(Debug, Default)]
pub(super) struct PassView {
    pub(super) pods: PodList,
    pub(super) observed: Observed,
    /// The ledger of all assignments. Pending assignments are included until the pods are read again.
    pub(super) ledger: Ledger,
    pub(super) has_all_pods: bool,
}

// === impl PassView ===

impl PassView {
    /// The decision about a container; `None` for a container outside the pod's description.
    pub(super) fn decision<'d>(
        &self,
        uid: &str,
        container: &str,
        decisions: &'d Decisions,
    ) -> Option<&'d Decision> {
        decision(&self.pods, uid, container, decisions)
    }

    /// Whether the request's container gets too few CPUs.
    pub(super) fn lacks(&self, request: RuntimeRequest<'_>, decisions: &Decisions) -> bool {
        match request {
            RuntimeRequest::Create { uid, container } => {
                self.decision(uid, container, decisions).is_some_and(lacks)
            }
            RuntimeRequest::Start { uid } => decisions.containers.iter().any(|decision| {
                let pod = self.pods.get(decision.pod);
                decision.refused == Some(RefusalSource::Room)
                    && pod.is_some_and(|pod| pod.cgroup_uid() == Some(uid))
            }),
        }
    }
}
