//! [`start`]: the turn that answers one StartContainer.

use std::time::Instant;

use super::{NeedsAllPods, TurnContext, TurnResult};
use crate::agent::kernel::Kernel;
use crate::agent::world::World;
use crate::pin::decide::RefusalSource;
use crate::pin::{self, Enforcement, Step};
use crate::pod::PodList;

/// Puts the CPUs of the pod of a StartContainer request in force. The container's cgroup exists by
/// now, but its program does not run.
///
/// # Errors
/// The pod or its cgroup is unknown, it has drifted, or it lacks CPUs that other pods may free. By
/// then, its cgroups may have been written.
pub fn start(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    uid: &str,
) -> Result<TurnResult, NeedsAllPods> {
    let pod = world.pods().pod(uid).ok_or(NeedsAllPods)?;
    if !world.mirror.is_complete() {
        return Err(NeedsAllPods);
    }
    let (node, enforcement) = (context.node, context.node.enforcement);
    world.heartbeat.begin("read the pod's cgroups");
    let is_there = world.read_pod(uid, kernel).map_err(|_| NeedsAllPods)?;
    if !is_there {
        return Err(NeedsAllPods);
    }
    world.read_above(kernel).map_err(|_| NeedsAllPods)?;
    // With enforcement `cpuset`, it is Pinfold that takes the pod's CPUs from the other containers.
    let takes_from_others = enforcement == Enforcement::Cpuset && !world.is_alone(uid);
    let (pods, observed) = if takes_from_others {
        let read = world.read_dirty(kernel, &mut || false);
        read.map_err(|_| NeedsAllPods)?;
        (world.pods_list(), world.observed().clone())
    } else {
        let only = world.observed().only(uid).ok_or(NeedsAllPods)?;
        (PodList::from([pod]), only)
    };
    let drift = world.find_drift_in(&observed, node.topology, enforcement);
    if !drift.is_empty() {
        return Err(NeedsAllPods);
    }
    world.heartbeat.begin("decide what each container gets");
    let mut decisions = world.decide(node, (&pods, &observed), 0);
    let lacks = decisions.containers.iter().any(|decision| {
        let pod = pods.get(decision.pod);
        decision.refused == Some(RefusalSource::Room)
            && pod.is_some_and(|pod| pod.cgroup_uid() == Some(uid))
    });
    if lacks && super::may_free_cpus(world, kernel, context) {
        return Err(NeedsAllPods);
    }
    let only = (!takes_from_others).then_some(uid);
    world.gate_isolated_partitions(&mut decisions, (kernel, enforcement), only);
    // CreateContainer has recorded all CPUs of the pod. Another container may run on CPUs outside
    // the record, so these need a turn about all pods.
    let wanted = decisions.desired.assignment(uid).cpus();
    if enforcement == Enforcement::Cpuset && !wanted.is_subset(&world.ledger.of(uid).cpus()) {
        return Err(NeedsAllPods);
    }
    let steps = pin::plan(&observed, &world.ledger, &decisions.desired, enforcement);
    let before = (!steps.is_empty()).then_some(observed);
    let heartbeat = world.heartbeat.clone();
    let applied = kernel.apply(steps, &mut |next: &Step| {
        heartbeat.begin(next.to_string());
        true
    });
    let errors = world.account(&applied);
    if !applied.is_empty() {
        // The next turn about all pods publishes what came of the steps.
        world.decide_again();
        world
            .heartbeat
            .begin("read again the cgroups that were written");
        let steps = applied.iter().map(|done| &done.step);
        world.mirror.note_steps(steps, Instant::now());
        world.note_changes(&kernel.changes());
        let is_there = world.read_pod(uid, kernel).map_err(|_| NeedsAllPods)?;
        if !is_there {
            return Err(NeedsAllPods);
        }
    }
    world.note_refusals(&pods, world.observed(), &mut decisions);
    Ok(TurnResult {
        pods,
        before,
        decisions,
        drift,
        lost: world.ledger.lost.clone(),
        errors,
    })
}
