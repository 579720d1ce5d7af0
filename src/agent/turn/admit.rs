//! [`admit`]: the turn that answers one CreateContainer.

use std::sync::Arc;

use super::{
    NeedsAllPods, TurnContext, TurnResult, decision, keep_assignment, lacks, may_free_cpus,
};
use crate::agent::kernel::Kernel;
use crate::agent::world::World;
use crate::host::cgroup::PodCgroup;
use crate::pin::decide::{Decisions, KubeletCpus};
use crate::pin::{self, Enforcement, Step};
use crate::pod::{self, ContainerKind, PodList, RecognizedPod};

/// Decides about the container of a CreateContainer request, and writes the pod's assignment
/// record. Nothing else is written, because neither the container's cgroup nor its program exists
/// yet.
///
/// # Errors
/// The pod is unknown, it lacks CPUs that other pods may free, or a running container would move to make room.
pub fn admit(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    (uid, container): (&str, &str),
) -> Result<TurnResult, NeedsAllPods> {
    let pod = world.pods().pod(uid).ok_or(NeedsAllPods)?;
    if !world.mirror.is_complete() {
        return Err(NeedsAllPods);
    }
    if let Some(kubelet) = context.node.kubelet {
        return Ok(size(world, context, (pod, uid), kubelet));
    }
    world.heartbeat.begin("read the pod's cgroup");
    let enforcement = context.node.enforcement;
    if !is_current(world, kernel, context, &pod, container) {
        // A new pod may have no cgroup yet.
        world.read_pod(uid, kernel).map_err(|_| NeedsAllPods)?;
    }
    world.heartbeat.begin("decide what the container gets");
    let moves = world.moves_left(enforcement, context.moves_per_hour);
    let pods = if moves > 0 {
        world.pods_list()
    } else {
        PodList::from([pod])
    };
    let decide = |world: &World| {
        // A move may affect any pod. Without one, the request's pod is enough.
        let only = || world.observed().only(uid).unwrap_or_default();
        if moves > 0 {
            world.decide(context.node, (&pods, world.observed()), moves)
        } else {
            world.decide(context.node, (&pods, &only()), moves)
        }
    };
    let mut decisions = decide(world);
    let is_lacking =
        |decisions: &Decisions| decision(&pods, uid, container, decisions).is_some_and(lacks);
    // Owners of CPUs may have ended since they were last read.
    if is_lacking(&decisions) && world.forget_ended_owners(kernel) {
        decisions = decide(world);
    }
    // A delay ends only if nothing else can give the container its CPUs.
    if !decisions.moves.is_empty()
        || is_lacking(&decisions)
            && (may_free_cpus(world, kernel, context)
                || end_delays_if_enough(world, context, (uid, container)))
    {
        return Err(NeedsAllPods);
    }
    let mut errors = Vec::new();
    let gets = decision(&pods, uid, container, &decisions);
    if gets.is_some_and(|decision| decision.cpus.is_some()) && enforcement != Enforcement::Observe {
        errors = record(world, kernel, context, uid, &decisions)?;
    }
    keep_assignment(world, uid, &pods, &decisions);
    let observed = world.mirror.observed();
    world.note_refusals(&pods, observed, &mut decisions);
    Ok(TurnResult {
        pods,
        before: None,
        decisions,
        drift: Vec::new(),
        errors,
        has_released: false,
        ended_delays: false,
    })
}

/// Ends the delays of shrinks if the container gets all its CPUs by that. Returns whether any has ended.
pub(super) fn end_delays_if_enough(
    world: &mut World,
    context: &TurnContext<'_>,
    (uid, container): (&str, &str),
) -> bool {
    let delay = context.node.policy.shrink_delay;
    if delay.is_zero() {
        return false;
    }
    // A shrink may be so new that no turn has announced it.
    let pods = world.pods_list();
    let decisions = world.decide(context.node, (&pods, world.observed()), 0);
    world.note_shrinks(&decisions, None, delay);
    world.end_oldest_delays_until(|world, ended| {
        // One turn gives up the CPUs, also those of idle siblings, and the next one assigns them, perhaps to other containers
        // that want them, too.
        let about = (&*pods, world.observed());
        let gives_up = world.decide(context.node, about, 0);
        let mut ledger = world.ledger.clone();
        for key in ended {
            let left = gives_up.desired.assignment(key.uid.as_str());
            ledger.assignments.insert(key.uid.to_string(), left);
        }
        let decisions = world.decide_with(context.node, about, 0, &ledger);
        let gets = decision(&pods, uid, container, &decisions);
        gets.is_some_and(|decision| !lacks(decision))
    })
}

/// Decides how a container is sized where the kubelet chooses the CPUs. Nothing is written: the
/// kubelet keeps the CPUs for the container, and StartContainer puts them in force. Until then, an
/// earlier owner may still have some.
fn size(
    world: &World,
    context: &TurnContext<'_>,
    (pod, uid): (Arc<RecognizedPod>, &str),
    kubelet: &KubeletCpus,
) -> TurnResult {
    let pods = PodList::from([pod]);
    let only = world.observed().only(uid).unwrap_or_default();
    let mut decisions = world.decide(context.node, (&pods, &only), 0);
    let chosen = decisions.desired.assignment(uid).by_kubelet;
    for decision in &mut decisions.containers {
        let pod = pods.get(decision.pod);
        let container = pod.and_then(|pod| pod.containers.get(decision.container));
        let Some((reported, container)) = kubelet.get(uid).zip(container) else {
            continue;
        };
        let has_own = decision.cpus.is_some() && !chosen.contains(&container.name);
        let waits = !has_own && decision.refused.is_none() && decision.entitlement.cpus() > 0;
        if let Some(cpus) = reported.get(&container.name).filter(|_| waits) {
            decision.cpus = Some(cpus.clone());
        }
    }
    TurnResult {
        pods,
        before: None,
        decisions,
        drift: Vec::new(),
        errors: Vec::new(),
        has_released: false,
        ended_delays: false,
    }
}

/// Whether the mirror is good enough for the answer. If the pod has a new cgroup, this has another
/// record or none. With enforcement `cpuset`, the pod's CPUs must be unchanged, too, because the
/// record keeps the earlier CPUs. An init container must leave the CPUs of the pod's others alone,
/// and so must any container beside partitions of theirs. The pod is then read again to see which
/// of them still exist.
fn is_current(
    world: &World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    pod: &Arc<RecognizedPod>,
    container: &str,
) -> bool {
    let uid = pod.cgroup_uid().unwrap_or_default();
    let Some(cgroups) = world.mirror.pod(uid).filter(|_| world.mirror.is_clean(uid)) else {
        return false;
    };
    let mut containers = pod.containers.iter();
    let owns = |one| pod::entitlement(pod, one, context.node.policy).cpus() > 0;
    if !containers.any(owns) {
        return true;
    }
    let is_init = pod
        .container(container)
        .is_some_and(|container| container.kind == ContainerKind::Init);
    if is_init || !cgroups.partitions_of_others(container).is_empty() {
        return false;
    }
    let PodCgroup {
        path,
        cpuset,
        record_text,
        ..
    } = &cgroups.cgroup;
    let has_same_cpus = || {
        let now = kernel.cpuset(path);
        now.is_ok_and(|now| now.cpus == cpuset.cpus)
    };
    let text = kernel.record_text(path);
    text.is_ok_and(|text| text == *record_text)
        && (context.node.enforcement != Enforcement::Cpuset || has_same_cpus())
}

/// Writes the pod's assignment record, and compares it with the wanted one. Returns the errors of
/// the step.
fn record(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    uid: &str,
    decisions: &Decisions,
) -> Result<Vec<String>, NeedsAllPods> {
    let (desired, enforcement) = (&decisions.desired, context.node.enforcement);
    let wanted = desired.assignment(uid);
    // Another container of the pod gives up CPUs and may still run there. The record must have them until the step is done.
    if !world.ledger.of(uid).cpus().is_subset(&wanted.cpus()) {
        return Err(NeedsAllPods);
    }
    let observed = world.mirror.observed().only(uid).ok_or(NeedsAllPods)?;
    let pod = &observed.pods.first().ok_or(NeedsAllPods)?.cgroup;
    // The runtime can't give a container CPUs outside the pod's set.
    let pod_cpus = &pod.cpuset.cpus;
    if enforcement == Enforcement::Cpuset
        && !pod_cpus.is_empty()
        && !wanted.cpus().is_subset(pod_cpus)
    {
        return Err(NeedsAllPods);
    }
    let mut steps = pin::plan(&observed, &world.ledger, desired, enforcement);
    steps
        .retain(|step| matches!(step, Step::Record { path, record: Some(_) } if *path == pod.path));
    world.heartbeat.begin("write the pod's assignment record");
    let applied = kernel.apply(steps, &mut |_| true);
    let errors = world.account(&applied);
    for done in applied.iter().filter(|done| done.error().is_none()) {
        if let Step::Record {
            record: Some(record),
            ..
        } = &done.step
        {
            world.mirror.note_record(uid, record);
        }
    }
    world.renew_ledger(world.ledger.missing.clone());
    let record = world.mirror.pod(uid).and_then(|pod| pod.record.as_ref());
    if record.map(|record| &record.assignment) != Some(&wanted) {
        return Err(NeedsAllPods);
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::test_node::TestNode;
    use super::*;
    use crate::agent::event::{PodKey, PodSource, PodsChange, PodsUpdate};
    use crate::agent::world::{Heartbeat, PodStore};
    use crate::cpu::{CpuSet, Numbering, Shape, Topology};
    use crate::metrics::AgentMetrics;
    use crate::pin::{Observed, ObservedContainer, PodAssignment, Scan};
    use crate::pod::{Container, ContainerIds, Pod, Resources};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A training pod with a container of so many CPUs.
    fn pod(uid: &str, cpus: u64) -> Pod {
        let (cpus, memory) = (Some(1000 * cpus), Some(1 << 20));
        let container = Container {
            name: "main".to_owned(),
            resources: Resources {
                cpu_request: cpus,
                cpu_limit: cpus,
                memory_request: memory,
                memory_limit: memory,
            },
            ..Container::default()
        };
        let annotation = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut annotations = vec![annotation("pinfold.io/cpus", "exclusive")];
        if uid == "a" {
            annotations.push(annotation("pinfold.io/cores", "single"));
        }
        Pod {
            name: uid.to_owned(),
            uid: Some(uid.into()),
            api_uid: Some(uid.into()),
            annotations: annotations.into_iter().collect(),
            containers: vec![container],
            ..Pod::default()
        }
    }

    /// The pods are described, and their containers run on what the ledger holds.
    fn world(pods: impl IntoIterator<Item = Pod>, owners: &[(&str, &str, &str)]) -> World {
        let mut store = PodStore::new(ContainerIds::NoSource).listed_by(&[PodSource::Api]);
        let pods = pods.into_iter();
        let listed = pods.map(|pod| (PodKey::of_api(&pod), Arc::new(pod)));
        store.take_pods(PodsUpdate {
            source: PodSource::Api,
            change: Some(PodsChange::Listed(listed.collect())),
            errors: Vec::new(),
        });
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let mut world = World::new(store, AgentMetrics::new().unwrap(), heartbeat);
        let known = world.pods_list();
        let uids = known.iter().filter_map(|pod| pod.cgroup_uid());
        let cgroup = |uid: &str| PodCgroup {
            path: uid.to_owned(),
            uid: uid.to_owned(),
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: uids.map(cgroup).collect(),
            ..Scan::default()
        };
        let mut observed = Observed::new(scan, &known).0;
        for (uid, cpus, idle) in owners {
            let mut assignment = PodAssignment {
                idle: set(idle),
                ..PodAssignment::default()
            };
            let containers = &mut assignment.containers;
            containers.insert("main".to_owned(), set(cpus));
            world
                .ledger
                .assignments
                .insert((*uid).to_owned(), assignment);
            let mut container = ObservedContainer {
                name: Some("main".to_owned()),
                ..ObservedContainer::default()
            };
            container.cgroup.path = format!("{uid}/main");
            container.cgroup.populated = true;
            container.cgroup.cpuset.effective = set(cpus);
            let mut pods = observed.pods.iter_mut();
            let pod = pods.find(|pod| pod.cgroup.uid == *uid).unwrap();
            pod.containers.push(container);
        }
        let pods = observed.pods.iter_mut();
        pods.for_each(|pod| pod.may_own_cpus = true);
        *world.mirror.observed_mut() = observed;
        world
    }

    fn topology() -> Topology {
        Topology::from_shape(Shape {
            sockets: 1,
            numa_per_socket: 1,
            llcs_per_numa: 1,
            cores_per_llc: 4,
            threads_per_core: 2,
            numbering: Numbering::SiblingsAdjacent,
        })
    }

    /// Whether the delay of a shrink ends for the container of pod `b`, and whether it then gets its CPUs in the second turn.
    fn ends_delay(world: &mut World) -> bool {
        let node = TestNode::new(topology(), set("0-1"));
        end_delays_if_enough(world, &node.context(), ("b", "main"))
    }

    /// Of the CPUs 2 to 7, `a` has two cores for two CPUs, and shrinks to one.
    #[test]
    fn the_idle_siblings_of_a_shrink_count_for_a_creation() {
        let owners = [("a", "2,4", "3,5"), ("c", "6-7", "")];
        for (wanted, ends) in [(2, true), (3, false)] {
            let mut world = world([pod("a", 1), pod("b", wanted), pod("c", 2)], &owners);
            assert_eq!(ends_delay(&mut world), ends, "{wanted}");
            let is_waiting = world.shrinks.due() > Some(std::time::Instant::now());
            assert_eq!(is_waiting, !ends);
        }
    }

    /// An earlier owner still has a part of them, and gives it up before the container begins.
    #[test]
    fn a_container_that_restarts_is_sized_by_all_that_the_kubelet_reports() {
        let owners = [("b", "2-3", ""), ("c", "4-5", "")];
        let mut world = world([pod("b", 4), pod("c", 2)], &owners);
        for assignment in world.ledger.assignments.values_mut() {
            assignment.by_kubelet.insert("main".to_owned());
        }
        let of_main = [("main".to_owned(), set("2-5"))];
        let kubelet = KubeletCpus::from([("b".to_owned(), of_main.into())]);
        let node = TestNode::new(topology(), set("0-1"));
        let mut context = node.context();
        context.node.kubelet = Some(&kubelet);
        let pod = world.pods().pod("b").unwrap();
        let result = size(&world, &context, (pod, "b"), &kubelet);
        let decision = result.decision("b", "main").unwrap();
        assert_eq!(decision.cpus, Some(set("2-5")), "{:?}", decision.note);
    }
}
