//! [`start`]: the turn that answers one StartContainer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::{NeedsAllPods, TurnContext, TurnResult};
use crate::agent::kernel::Kernel;
use crate::agent::world::World;
use crate::cpu::CpuSet;
use crate::pin::decide::RefusalSource;
use crate::pin::{self, Enforcement, Step};
use crate::pod::RecognizedPod;

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
    world.heartbeat.begin("read the pod's cgroups");
    let rivals = rivals(world, context, uid);
    read(world, kernel, (uid, &rivals))?;
    world.read_above(kernel).map_err(|_| NeedsAllPods)?;
    let mut result = put_in_force(world, kernel, context, (&pod, uid, &rivals))?;
    let lacks_reported = lacks_reported(context, uid, &result);
    let were_given_up = result.before.is_some() && lacks_reported;
    let lacks_some = lacks_reported || lacks_partition(world, context, uid, &result);
    let have_returned = lacks_some && {
        let awaited = world.await_missing_cpus(kernel);
        awaited.map_err(|_| NeedsAllPods)?
    };
    if were_given_up || have_returned {
        // Earlier owners had the CPUs, or the kernel did, and now nobody has them.
        world.read_above(kernel).map_err(|_| NeedsAllPods)?;
        let second = put_in_force(world, kernel, context, (&pod, uid, &rivals))?;
        result = TurnResult {
            before: result.before.or(second.before),
            errors: [result.errors, second.errors].concat(),
            ..second
        };
    }
    Ok(result)
}

/// The uids of other pods that have CPUs which the kubelet has meanwhile given to this one, by their
/// records or only by what an agent that was killed has left in their cgroups.
fn rivals(world: &World, context: &TurnContext<'_>, uid: &str) -> BTreeSet<String> {
    let Some(reported) = context.node.kubelet.and_then(|kubelet| kubelet.get(uid)) else {
        return BTreeSet::new();
    };
    let meets = |other: &CpuSet| reported.values().any(|cpus| !cpus.is_disjoint(other));
    let owners = world.ledger.assignments.iter();
    let owners = owners.filter(|(_, own)| meets(&own.cpus()));
    let pods = world.observed().pods.iter();
    let holders = pods.filter(|pod| meets(&pod.cgroup.cpuset.exclusive));
    let holders = holders.map(|pod| &pod.cgroup.uid);
    let all = owners.map(|(other, _)| other).chain(holders);
    all.filter(|other| *other != uid).cloned().collect()
}

/// Whether the turn has not assigned all that the kubelet reports for the pod.
fn lacks_reported(context: &TurnContext<'_>, uid: &str, result: &TurnResult) -> bool {
    let Some(reported) = context.node.kubelet.and_then(|kubelet| kubelet.get(uid)) else {
        return false;
    };
    let assigned = result.decisions.desired.assignment(uid);
    let mut reported = reported.iter();
    reported.any(|(name, cpus)| assigned.containers.get(name) != Some(cpus))
}

/// Whether an owner of the pod has no partition.
fn lacks_partition(
    world: &World,
    context: &TurnContext<'_>,
    uid: &str,
    result: &TurnResult,
) -> bool {
    if context.node.enforcement != Enforcement::Partition {
        return false;
    }
    result.decisions.containers.iter().any(|decision| {
        let pod = result.pods.get(decision.pod);
        let pod = pod.filter(|pod| pod.cgroup_uid() == Some(uid));
        let container = pod.and_then(|pod| pod.containers.get(decision.container));
        let is_owner = decision.cpus.is_some() && decision.entitlement.cpus() > 0;
        let cgroup = container
            .filter(|_| is_owner)
            .and_then(|container| world.observed().container(uid, &container.name));
        cgroup.is_some_and(|one| !one.cgroup.cpuset.partition.is_live())
    })
}

/// Reads the request's pod and its rivals, of which some may have ended.
fn read(
    world: &mut World,
    kernel: &impl Kernel,
    (uid, rivals): (&str, &BTreeSet<String>),
) -> Result<(), NeedsAllPods> {
    for rival in rivals {
        world.read_pod(rival, kernel).map_err(|_| NeedsAllPods)?;
    }
    match world.read_pod(uid, kernel) {
        Ok(true) => Ok(()),
        _ => Err(NeedsAllPods),
    }
}

/// Decides about the pod of the request and its rivals, and carries the plan out.
fn put_in_force(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    (pod, uid, rivals): (&Arc<RecognizedPod>, &str, &BTreeSet<String>),
) -> Result<TurnResult, NeedsAllPods> {
    let (node, enforcement) = (context.node, context.node.enforcement);
    // With enforcement `cpuset`, it is Pinfold that takes the pod's CPUs from the other containers.
    let takes_from_others = enforcement == Enforcement::Cpuset && !world.is_alone(uid);
    let (pods, observed) = if takes_from_others {
        let read = world.read_dirty(kernel, &mut || false);
        read.map_err(|_| NeedsAllPods)?;
        (world.pods_list(), world.observed().clone())
    } else {
        let only = world.observed().only_with(uid, rivals);
        let others = rivals.iter().filter_map(|rival| world.pods().pod(rival));
        let pods = [Arc::clone(pod)].into_iter().chain(others).collect();
        (pods, only.ok_or(NeedsAllPods)?)
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
    // The kubelet frees CPUs, and says so in its next answer.
    let is_of_pinfold = node.kubelet.is_none();
    if lacks && is_of_pinfold && super::may_free_cpus(world, kernel, context) {
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
    let meant: Vec<&str> = pods.iter().filter_map(|pod| pod.cgroup_uid()).collect();
    world.note_shrinks(&decisions, Some(&meant), node.policy.shrink_delay);
    world.write_live_cpus(kernel, (&decisions, &steps), Some(&meant));
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
        read(world, kernel, (uid, rivals))?;
        world.write_live_cpus(kernel, (&decisions, &[]), Some(&[uid]));
    }
    world.note_refusals(&pods, world.observed(), &mut decisions);
    Ok(TurnResult {
        pods,
        before,
        decisions,
        drift,
        errors,
        has_released: false,
        ended_delays: false,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::time::Duration;

    use super::super::test_node::TestNode;
    use super::*;
    use crate::agent::event::{RuntimePod, RuntimeUpdate};
    use crate::agent::fake_kernel::{FakeKernel, set};
    use crate::agent::world::{Heartbeat, PodStore};
    use crate::cpu::{Topology, TopologyFacts};
    use crate::host::cgroup::{Partition, PartitionKind};
    use crate::metrics::AgentMetrics;
    use crate::pod::{Container, ContainerIds, Pod, Resources};

    /// A training pod whose container asks for so many CPUs.
    fn described(cpus: u64) -> RuntimeUpdate {
        let (cpus, memory) = (Some(1000 * cpus), Some(1 << 20));
        let container = Container {
            name: "main".to_owned(),
            runtime_id: Some("c".to_owned()),
            resources: Resources {
                cpu_request: cpus,
                cpu_limit: cpus,
                memory_request: memory,
                memory_limit: memory,
            },
            ..Container::default()
        };
        let exclusive = ("pinfold.io/cpus".to_owned(), "exclusive".to_owned());
        RuntimeUpdate::Pod(Box::new(RuntimePod::new(Pod {
            uid: Some("a".into()),
            annotations: [exclusive].into(),
            containers: vec![container],
            ..Pod::default()
        })))
    }

    /// Starts the container of a pod while CPU 3 is missing, and returns how often the start has waited a moment for the CPU.
    fn pauses(cpus: u64, partition: Partition) -> usize {
        let kernel = FakeKernel::with_pods(&["a"]);
        kernel.above.borrow_mut().effective = set("0-1");
        kernel.change("a", |cpuset| {
            cpuset.effective = set("2");
            cpuset.partition = partition;
        });
        let mut store = PodStore::new(ContainerIds::Awaited);
        store.take_runtime(described(cpus));
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let mut world = World::new(store, AgentMetrics::new().unwrap(), heartbeat);
        world.read_dirty(&kernel, &mut || false).unwrap();
        assert!(world.lost_cpus.may_return());

        let topology = Topology::from_facts(TopologyFacts {
            online: set("0-3"),
            ..TopologyFacts::default()
        });
        let node = TestNode::new(topology, set("0"));
        start(&mut world, &kernel, &node.context(), "a").unwrap();
        kernel.pauses.get()
    }

    #[test]
    fn only_a_start_that_lacks_a_partition_waits_for_missing_cpus() {
        let stands = Partition::Valid(PartitionKind::Root);
        let member = Partition::Valid(PartitionKind::Member);
        assert_eq!(pauses(0, member.clone()), 0, "on shared CPUs");
        assert_eq!(pauses(1, stands), 0, "its partition stands");
        assert_ne!(pauses(1, member), 0, "it lacks a partition");
    }
}
