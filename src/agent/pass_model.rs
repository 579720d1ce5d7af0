//! The values around a reconcile pass: what a pass reads and writes, its scope and its result.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::schedule::PassExtent;
use crate::cpu::CpuSet;
use crate::host::cgroup::{Cpuset, PodCgroup, PodSurroundings};
use crate::pin::decide::{Decision, DecisionInput, Decisions};
use crate::pin::{AppliedStep, Drift, Enforcement, Ledger, Observed, Step};
use crate::pod::{Entitlement, PodList, RecognizedPod};

/// The node as a pass reads and writes it.
pub trait PassNode {
    /// The cgroups above and around the pods.
    fn surroundings(&self) -> anyhow::Result<PodSurroundings>;
    /// The path and the uid of each pod's cgroup.
    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>>;
    /// A pod's cgroup; `None` if the cgroup is gone.
    fn pod(&self, path: String, uid: String) -> anyhow::Result<Option<PodCgroup>>;
    /// A pod's cgroup, found by the pod's uid.
    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<PodCgroup>>;
    /// Online CPUs that no cgroup has.
    fn lost_cpus(&self, pods: &mut dyn Iterator<Item = &PodCgroup>) -> anyhow::Result<CpuSet>;
    /// The CPUs of a cgroup.
    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset>;
    /// The text of a cgroup's assignment record.
    fn record_text(&self, path: &str) -> anyhow::Result<Option<String>>;
    /// Whether a cgroup exists.
    fn exists(&self, path: &str) -> bool;
    /// The CPUs allowed for the kernel's work queues, if readable.
    fn workqueue_cpus(&self) -> Option<CpuSet>;
    /// Carries out steps in order, and stops before the first step for which `go_on` returns false.
    fn apply(&self, steps: Vec<Step>, go_on: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep>;
    /// Chooses the default reserved CPUs, if none are chosen.
    fn choose_reserved(&mut self, ledger: &Ledger);
    /// The topology and the policy for decisions about `pods`. `moves` is 0: the pass sets the limit.
    fn decision_input<'a>(
        &'a self,
        pods: &'a [Arc<RecognizedPod>],
        here: &'a HashSet<&'a str>,
    ) -> DecisionInput<'a>;
    /// How assignments are enforced.
    fn enforcement(&self) -> Enforcement;
    /// How many running containers may be moved in an hour.
    fn moves_per_hour(&self) -> usize;
    /// The time between two passes without any other trigger.
    fn reconcile_interval(&self) -> Duration;
}

/// A request of the container runtime.
#[derive(Debug, Clone, Copy)]
pub enum RuntimeRequest<'a> {
    /// CreateContainer.
    Create {
        /// The pod's uid.
        uid: &'a str,
        /// The container's name.
        container: &'a str,
    },
    /// StartContainer.
    Start {
        /// The pod's uid.
        uid: &'a str,
    },
}

/// What a pass reads, and the runtime request that waits for the pass.
#[derive(Debug, Clone, Copy)]
pub enum PassScope<'a> {
    /// The request's pod and the cgroups above. The remaining pods come from the last observed state.
    Pod(RuntimeRequest<'a>),
    /// All pods of the node.
    Node(Option<RuntimeRequest<'a>>),
}

/// How a pass ended.
#[derive(Debug)]
pub enum PassEnd {
    /// The pass has run to its end. [`PassResult::errors`] names the failed steps.
    Done(Box<PassResult>),
    /// A node pass is necessary. The pod pass may have written the pod's cgroups.
    NeedsNode,
    /// The pass yielded to an urgent event. The completed steps are safe. A later pass does the rest.
    Yielded,
    /// The node could not be read.
    Failed(anyhow::Error),
}

/// The result of a complete pass.
#[derive(Debug)]
pub struct PassResult {
    /// The known pods. For most pod passes only the request's pod.
    pub pods: PodList,
    /// The observed state before the first step; `None` without steps.
    pub before: Option<Observed>,
    /// The observed state after the last step. For most pod passes only the request's pod. Empty once cached.
    pub observed: Observed,
    /// The ledger of all assignments. Empty once cached.
    pub ledger: Ledger,
    /// The decisions about `pods`, with the kernel's refusals.
    pub decisions: Decisions,
    /// The drift found before the first step.
    pub drift: Vec<Drift>,
    /// CPUs that no cgroup had before the first step.
    pub lost: CpuSet,
    /// Failed steps, as sentences.
    pub errors: Vec<String>,
    /// Whether the publication may be postponed for an urgent event.
    pub may_yield: bool,
}

// === impl RuntimeRequest ===

impl<'a> RuntimeRequest<'a> {
    pub(super) fn uid(self) -> &'a str {
        let (Self::Create { uid, .. } | Self::Start { uid }) = self;
        uid
    }
}

// === impl PassScope ===

impl<'a> PassScope<'a> {
    pub(super) fn request(self) -> Option<RuntimeRequest<'a>> {
        match self {
            Self::Pod(request) => Some(request),
            Self::Node(request) => request,
        }
    }
    /// The scope in the terms of the schedule.
    pub(super) fn extent(self) -> PassExtent {
        match self {
            Self::Pod(_) => PassExtent::Pod,
            Self::Node(_) => PassExtent::Node,
        }
    }
}

// === impl PassResult ===

impl PassResult {
    /// The decision about a container; `None` for a container outside the pod's description.
    pub fn decision(&self, uid: &str, container: &str) -> Option<&Decision> {
        decision(&self.pods, uid, container, &self.decisions)
    }

    /// Whether a container gets fewer exclusive CPUs than its entitlement.
    pub fn lacks(&self, uid: &str, container: &str) -> bool {
        self.decision(uid, container).is_some_and(lacks)
    }
}

/// The decision about a container of `pods`.
pub(super) fn decision<'d>(
    pods: &[Arc<RecognizedPod>],
    uid: &str,
    container: &str,
    decisions: &'d Decisions,
) -> Option<&'d Decision> {
    decisions.containers.iter().find(|decision| {
        let pod = pods.get(decision.pod);
        let pod = pod.filter(|pod| pod.cgroup_uid() == Some(uid));
        let named = pod.and_then(|pod| pod.containers.get(decision.container));
        named.is_some_and(|named| named.name == container)
    })
}

/// Whether a container gets fewer exclusive CPUs than its entitlement.
pub(super) fn lacks(decision: &Decision) -> bool {
    let gets = decision.cpus.as_ref().map_or(0, CpuSet::len);
    match decision.entitlement {
        Entitlement::Exclusive { cpus, .. } => gets < cpus as usize,
        Entitlement::Inherit { .. } => gets == 0,
        Entitlement::Shared { .. } => false,
    }
}
