//! A turn observes, decides, plans and applies. The reconciler then publishes the result.
//!
//! There are three kinds. [`reconcile`] is about all pods. [`admit`] answers one CreateContainer
//! and [`start`] one StartContainer. These two look at the request's pod, and ask for a turn about
//! all pods with [`NeedsAllPods`] if this is not enough. This module has the stages that they
//! share.

mod admit;
mod reconcile;
mod start;
#[cfg(test)]
mod test_node;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use admit::admit;
pub use reconcile::{TurnEnd, reconcile, reconcile_for};
pub use start::start;

use super::kernel::Kernel;
use super::world::World;
use crate::cpu::CpuSet;
use crate::pin::decide::{Decision, DecisionContext, Decisions};
use crate::pin::{Drift, Observed};
use crate::pod::{Entitlement, PodList, RecognizedPod};

/// How many turns about all pods may follow the first one for a creation:
/// 1. one assigns what the first turn gave up, and if that is too little ends delays of shrinks;
/// 2. the next one gives up the CPUs of those;
/// 3. the last one assigns them.
const MAX_FURTHER_TURNS: usize = 3;

/// What a turn needs to know about the node.
#[derive(Debug, Clone, Copy)]
pub struct TurnContext<'a> {
    /// The node as decisions see it. If no reserved CPUs are configured, the world chooses them.
    pub node: DecisionContext<'a>,
    /// How many running containers may move in an hour.
    pub moves_per_hour: usize,
    /// The time between two sweeps.
    pub interval: Duration,
}

/// A turn about a single pod can't answer the request, so one about all pods is necessary. By then,
/// `admit` may have written the pod's record, and `start` its cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedsAllPods;

#[derive(Debug, Default)]
pub struct TurnResult {
    /// The known pods. For most requests only the request's pod.
    pub pods: PodList,
    /// The cgroups before the first step; `None` without steps. For most requests only the request's pod.
    pub before: Option<Observed>,
    /// The decisions about `pods`, with the kernel's refusals.
    pub decisions: Decisions,
    /// The drift found before the first step.
    pub drift: Vec<Drift>,
    /// Failed steps, as sentences.
    pub errors: Vec<String>,
    /// Whether the turn has given up CPUs that the next one can assign.
    pub has_released: bool,
    /// Whether delays of shrinks have ended for the container of a CreateContainer request, so that the next turn takes the CPUs.
    pub ended_delays: bool,
}

// === impl TurnResult ===

impl TurnResult {
    /// `None` for a container outside the pod's description.
    pub fn decision(&self, uid: &str, container: &str) -> Option<&Decision> {
        decision(&self.pods, uid, container, &self.decisions)
    }

    /// Whether another turn about all pods may give more CPUs to a container that is being created.
    fn may_get_more(&self, (uid, container): (&str, &str)) -> bool {
        (self.has_released || self.ended_delays) && self.lacks(uid, container)
    }

    /// Whether a container gets fewer exclusive CPUs than its entitlement.
    fn lacks(&self, uid: &str, container: &str) -> bool {
        self.decision(uid, container).is_some_and(lacks)
    }
}

/// Decides about all pods for a CreateContainer request to which [`admit`] found no answer. `run_turn` runs [`reconcile_for`], and
/// returns `None` if the turn did not come to its end. Returns the result of the last turn.
pub fn admit_with_all_pods(
    request: (&str, &str),
    mut run_turn: impl FnMut() -> Option<TurnResult>,
) -> Option<TurnResult> {
    let mut result = run_turn()?;
    for _ in 0..MAX_FURTHER_TURNS {
        if !result.may_get_more(request) {
            break;
        }
        let Some(next) = run_turn() else { break };
        result = next;
    }
    Some(result)
}

fn decision<'d>(
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
fn lacks(decision: &Decision) -> bool {
    let gets = decision.cpus.as_ref().map_or(0, CpuSet::len);
    match decision.entitlement {
        Entitlement::Exclusive { cpus, .. } => gets < cpus as usize,
        Entitlement::Inherit { .. } => gets == 0,
        Entitlement::Shared { .. } => false,
    }
}

/// Whether a turn about all pods may free CPUs for a container that lacks some, according to the mirror.
///
/// With 250 pods, a turn about all pods takes 30 to 100 ms, and a creation that is answered after
/// this check 2 ms, the check included. Without it, each container of a burst on a full node would
/// wait for such a turn.
fn may_free_cpus(world: &mut World, kernel: &impl Kernel, context: &TurnContext<'_>) -> bool {
    if !world.ledger.excluded.is_empty() || world.has_ended_owner(kernel) {
        return true;
    }
    // If the lists lack a pod, only its existing containers keep CPUs, and it may have lost some
    // since it was read.
    let owners = world.ledger.assignments.keys().cloned();
    let missing: Vec<String> = owners.filter(|uid| world.pods().is_missing(uid)).collect();
    for uid in missing {
        if !matches!(world.read_pod(&uid, kernel), Ok(true)) {
            return true;
        }
    }
    let moves = world.moves_left(context.node.enforcement, context.moves_per_hour);
    let pods = world.pods_list();
    let decisions = world.decide(context.node, (&pods, world.observed()), moves);
    let kept = decisions.desired.exclusive();
    let gives_up = !world.ledger.exclusive().is_subset(&kept);
    gives_up || !decisions.moves.is_empty()
}

/// Notes the CPUs chosen for the pod's containers until the pod's assignment record has them. Where the kubelet has chosen them, it
/// also keeps them.
fn keep_assignment(world: &mut World, uid: &str, pods: &PodList, decisions: &Decisions) {
    if decisions.desired.beside_kubelet {
        return;
    }
    for decision in &decisions.containers {
        let pod = pods.get(decision.pod);
        let pod = pod.filter(|pod| pod.cgroup_uid() == Some(uid));
        let container = pod.and_then(|pod| pod.containers.get(decision.container));
        // An init container runs on the CPUs of its pod's later containers, and needs no assignment.
        let cpus = decision.cpus.as_ref();
        if let (Some(container), Some(cpus)) =
            (container, cpus.filter(|_| decision.entitlement.cpus() > 0))
        {
            world.pending.add(uid, &container.name, cpus.clone());
            world.recently_assigned = world.recently_assigned.union(cpus);
        }
    }
    world.pending.enter(&mut world.ledger);
}

/// Logs and counts the moves of a plan before its first step.
fn note_moves(world: &mut World, decisions: &Decisions) {
    for moved in &decisions.moves {
        tracing::info!(
            "{}/{}: container {} moves from {} to {} to make room",
            moved.namespace,
            moved.pod,
            moved.container,
            moved.from,
            moved.to
        );
        world.metrics.moves.inc();
        world.moved.push(Instant::now());
    }
}
