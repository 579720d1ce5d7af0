//! [`decide`] turns pods, policy and ledger into the desired owner of each exclusive CPU.
//!
//! Running containers stay on their CPUs. The ledger's assignment stays as long as the container is
//! entitled to as many CPUs. [`Placer`](crate::cpu::Placer) alone chooses the CPUs of a new
//! assignment. The containers of a pod are placed together first and then divided, so that they
//! share cores with each other rather than with foreign containers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assignment::union;
use super::{Desired, Ledger, Observed, PodAssignment};
use crate::cpu::{CpuSet, Topology};
use crate::pod::{
    Balancing, Container, ContainerKey, ContainerKind, Entitlement, MemoryPolicy, Qos, Recognition,
    RecognizedPod,
};

pub use input::{
    ContainerMove, DecisionContext, DecisionInput, IN_SHARED_POOL, RefusalSource, reason_in,
};
use input::{NO_PARTITION, Notes, PodRequest};
pub use known::{Description, KnownPod, KnownPods};
pub use kubelet_entitlement::KubeletCpus;
pub use shrink::{AnnouncedShrinks, WaitingShrinks};

/// The decision about a container of a known pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The pod's index among the pods of the input.
    pub pod: usize,
    /// The container's index in the pod.
    pub container: usize,
    pub qos: Qos,
    /// The pod's role and the evidence for it.
    pub recognition: Recognition,
    /// The entitlement according to policy.
    pub entitlement: Entitlement,
    /// The CPUs of an owner, or for an init container those CPUs of the pod that it may use; `None`
    /// for the shared pool.
    pub cpus: Option<CpuSet>,
    /// The NUMA nodes that an owner's memory shall come from; `None` if Pinfold does not choose them.
    pub memory: Option<CpuSet>,
    /// Why the container got fewer CPUs than its entitlement, or which of the pod's annotations does not count.
    pub note: Option<String>,
    pub refused: Option<RefusalSource>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decisions {
    /// The decision for each container of the known pods, in the pods' order.
    pub containers: Vec<Decision>,
    /// The desired state of the kernel.
    pub desired: Desired,
    /// The moves of running containers to make room, in order.
    pub moves: Vec<ContainerMove>,
    /// The containers that keep CPUs until their shrink was announced for long enough.
    pub waiting: WaitingShrinks,
}

// === impl Decision ===

impl Decision {
    /// A test's decision that the first container of a pod runs on shared CPUs. `index` is the pod's.
    #[cfg(test)]
    pub(crate) fn shared(pod: &RecognizedPod, index: usize) -> Self {
        Self {
            pod: index,
            container: 0,
            qos: pod.qos(),
            recognition: pod.recognition().clone(),
            entitlement: Entitlement::Shared {
                reason: String::new(),
                obstacle: None,
            },
            cpus: None,
            memory: None,
            note: None,
            refused: None,
        }
    }
}

// === impl Decisions ===

impl Decisions {
    /// What a shrink that waits will leave a container; the empty set for the shared CPUs.
    pub fn upcoming(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        if self.waiting.is_empty() {
            return None;
        }
        self.waiting.get(&ContainerKey::new(uid, container))
    }

    /// Reduces the decisions to the assignments already in the ledger, for enforcement `observe`,
    /// because Pinfold assigns no CPUs that it cannot enforce.
    pub fn keep_ledger_assignments(&mut self, pods: &[Arc<RecognizedPod>], ledger: &Ledger) {
        for decision in &mut self.containers {
            let owned = || {
                let pod = pods.get(decision.pod)?;
                let recorded = ledger.assignments.get(pod.cgroup_uid()?)?;
                let container = pod.containers.get(decision.container)?;
                match decision.entitlement {
                    Entitlement::Inherit { .. } => Some(recorded.cpus()),
                    _ => recorded.containers.get(&container.name).cloned(),
                }
            };
            let owned = owned().unwrap_or_default();
            if decision
                .cpus
                .take_if(|cpus| !cpus.is_subset(&owned))
                .is_some()
            {
                decision.note = Some(format!(
                    "{IN_SHARED_POOL}Pinfold only observes on this node"
                ));
                decision.refused = None;
                decision.memory = None;
            }
        }
        for plan in self.desired.pods.values_mut() {
            plan.assignment = PodAssignment::default();
            plan.memory.clear();
            plan.free_memory = false;
        }
        self.desired.set_assignments(ledger.assignments.clone());
    }

    /// Takes the CPUs of the pod's other existing containers from each init container.
    ///
    /// A sidecar owns its CPUs alone, even while later init containers run. If all CPUs of the pod
    /// are taken, the init container runs on shared CPUs.
    pub fn keep_init_containers_off_others(
        &mut self,
        pods: &[Arc<RecognizedPod>],
        observed: &Observed,
    ) {
        for decision in &mut self.containers {
            let (Entitlement::Inherit { .. }, Some(cpus), Some(pod)) = (
                &decision.entitlement,
                &decision.cpus,
                pods.get(decision.pod),
            ) else {
                continue;
            };
            let container = pod.containers.get(decision.container);
            let uid = pod.cgroup_uid();
            let (Some(container), Some(uid), Some(cgroups)) =
                (container, uid, uid.and_then(|uid| observed.pod(uid)))
            else {
                continue;
            };
            let assignment = self.desired.assignment(uid);
            let taken = cgroups.cpus_of_others(&container.name, &assignment);
            let rest = cpus.difference(&taken);
            if rest.is_empty() {
                decision.cpus = None;
                let reason = "an init container runs on the CPUs of the pod's other containers, and those that already \
                              exist hold all of them";
                decision.entitlement = Entitlement::Shared {
                    reason: reason.to_owned(),
                    obstacle: None,
                };
            } else {
                decision.cpus = Some(rest);
            }
        }
    }

    /// Makes no partition of CPUs that the set of another running container of the pod meets. On
    /// Linux 6.12 the set would make the partition invalid, and the CPUs could be lost; and where
    /// the kubelet chooses, Pinfold does not write that set. A container that the runtime no
    /// longer lists is no obstacle, because the plan writes its set.
    pub fn keep_apart_from_mates(&mut self, pods: &[Arc<RecognizedPod>], observed: &Observed) {
        for pod in &observed.pods {
            let assignment = self.desired.assignment(&pod.cgroup.uid);
            for container in &pod.containers {
                let name = container.name.as_deref().unwrap_or_default();
                if !assignment.by_kubelet.contains(name) {
                    continue;
                }
                let Some(cpus) = assignment.containers.get(name) else {
                    continue;
                };
                let mate = pod.containers.iter().find(|mate| {
                    let is_other = mate.cgroup.path != container.cgroup.path;
                    is_other
                        && mate.kubelet_writes_set()
                        && !mate.cgroup.cpuset.cpus.is_disjoint(cpus)
                });
                let Some(mate) = mate else { continue };
                let path = container.cgroup.path.clone();
                self.desired.met_by_mates.insert(path);
                let mate = mate.name.as_deref().unwrap_or("another container");
                let decision = self.containers.iter_mut().find(|decision| {
                    let pod_of = pods.get(decision.pod);
                    let pod_of =
                        pod_of.filter(|pod_of| pod_of.cgroup_uid() == Some(&pod.cgroup.uid));
                    let named = pod_of.and_then(|pod| pod.containers.get(decision.container));
                    named.is_some_and(|named| named.name == name)
                });
                if let Some(decision) = decision {
                    decision.note = Some(format!(
                        "{NO_PARTITION}the set of {mate} of its pod includes some of its CPUs"
                    ));
                    decision.refused = Some(RefusalSource::Kernel);
                }
            }
        }
    }
}

/// The default reserved CPUs: the lowest core without an exclusive CPU. If every core has one, they
/// are the free CPUs of the lowest core with a free CPU, and if every online CPU is exclusive,
/// there are none.
///
/// CPUs isolated at boot come last: everything on this node that owns no CPUs runs on the reserved
/// CPUs, and on isolated CPUs the kernel would not spread it.
pub fn default_reserved(topology: &Topology, owned: &CpuSet) -> CpuSet {
    let among = |cpus: CpuSet| {
        let free = cpus.difference(owned);
        let cores = || cpus.iter().map(|cpu| topology.core_of(cpu));
        let whole = cores().find(|core| core.is_subset(&free));
        let part = || {
            cores()
                .map(|core| core.intersection(&free))
                .find(|rest| !rest.is_empty())
        };
        whole.or_else(part)
    };
    among(topology.balanced())
        .or_else(|| among(topology.online.clone()))
        .unwrap_or_default()
}

/// Decides which container shall own which CPUs.
pub fn decide(inputs: &DecisionInput<'_>, ledger: &Ledger) -> Decisions {
    let pods = inputs.pods.iter().enumerate();
    let requests: Vec<PodRequest> = pods
        .map(|(index, pod)| PodRequest::new(index, pod, inputs, ledger))
        .collect();
    let (assignments, notes, moves, waiting) = match inputs.context.kubelet {
        Some(kubelet) => {
            let (assignments, notes) = kubelet::assign(inputs, ledger, &requests, kubelet);
            (assignments, notes, Vec::new(), WaitingShrinks::new())
        }
        None => place(inputs, ledger, &requests),
    };
    let mut decisions = Decisions {
        moves,
        waiting,
        ..Decisions::default()
    };
    let online = &inputs.context.topology.online;
    decisions.desired.online = online.clone();
    decisions.desired.beside_kubelet = inputs.context.kubelet.is_some();
    decisions.desired.isolated_at_boot = online.difference(&inputs.context.topology.balanced());
    decisions.desired.withheld = online.difference(&ledger.available(online));
    let mut memory = memory::follow(&requests, &assignments, ledger, inputs);
    for pod in &requests {
        let memory = memory.remove(&pod.key).unwrap_or_default();
        pod.conclude(assignments.get(&pod.key), memory, &notes, &mut decisions);
    }
    decisions.desired.all_memory = inputs.context.memory_nodes.clone();
    // No owner has a reserved CPU, so a set with one belongs to a container that shares its CPUs.
    let sets = ledger.unreadable_sets.iter();
    let of_owners = sets.filter(|cpus| cpus.is_disjoint(inputs.context.reserved));
    decisions.desired.perhaps_owned = union(of_owners);
    decisions.desired.set_assignments(assignments);
    if inputs.context.kubelet.is_none() {
        keep_undescribed_inheriting(inputs, ledger, &requests, &mut decisions.desired);
    }
    decisions
}

/// The CPUs of each pod, the notes of containers that lack some, the moves to make room, and the shrinks that wait.
type Placed = (
    BTreeMap<String, PodAssignment>,
    Notes,
    Vec<ContainerMove>,
    WaitingShrinks,
);

/// What becomes of the CPUs where Pinfold chooses them.
fn place(inputs: &DecisionInput<'_>, ledger: &Ledger, requests: &[PodRequest<'_>]) -> Placed {
    let mut placing = place::PlacementPass::new(inputs, ledger, requests);
    // Pods first keep or give up CPUs. What a pod gives up becomes free in the next turn only.
    placing.keep_undescribed();
    for pod in requests {
        placing.keep(pod);
    }
    // A container that only grows can go on with the CPUs that it has, so those that have none are served first.
    let without: Vec<_> = requests
        .iter()
        .map(|pod| placing.without_cpus(pod))
        .collect();
    for (pod, without) in requests.iter().zip(&without) {
        placing.take_spare(pod, without);
    }
    for is_first in [true, false] {
        for (pod, without) in requests.iter().zip(&without) {
            placing.gain(pod, |name| without.contains(name) == is_first);
        }
    }
    let place::PlacementPass {
        mut assignments,
        notes,
        moves,
        waiting,
        ..
    } = placing;
    assignments.retain(|_, mine| !mine.is_empty());
    for (uid, mine) in &mut assignments {
        mine.inherit_choices(&ledger.of(uid));
    }
    (assignments, notes, moves, waiting)
}

/// Leaves containers in place that run on the CPUs of their pod and that not even the container
/// runtime describes. Mostly they are init containers. Described containers have got an
/// entitlement.
fn keep_undescribed_inheriting(
    inputs: &DecisionInput<'_>,
    ledger: &Ledger,
    requests: &[PodRequest<'_>],
    desired: &mut Desired,
) {
    let known = inputs.known.into_iter().flatten();
    for (uid, known) in known.filter(|(_, known)| known.description != Description::Complete) {
        let Some(recorded) = ledger.assignments.get(*uid) else {
            continue;
        };
        let request = requests.iter().find(|request| request.key == *uid);
        let is_described = |name: &str| request.is_some_and(|request| request.has(name));
        let inheriting = known.inheriting(recorded).map(|(name, _)| name);
        let inheriting = inheriting.filter(|name| !is_described(name));
        let inheriting: Vec<String> = inheriting.map(str::to_owned).collect();
        if !inheriting.is_empty() {
            desired.pod_mut(uid).init_containers.extend(inheriting);
        }
    }
}

// === impl PodRequest ===

impl PodRequest<'_> {
    /// Adds the decision about each container, and the plan of the pod.
    fn conclude(
        &self,
        mine: Option<&PodAssignment>,
        memory: BTreeMap<String, CpuSet>,
        notes: &Notes,
        decisions: &mut Decisions,
    ) {
        let all = mine.map(PodAssignment::usable);
        let own = |container: &Container| mine?.containers.get(&container.name);
        let mut init_containers = Vec::new();
        for (index, (container, entitlement)) in self
            .pod
            .containers
            .iter()
            .zip(&self.entitlements)
            .enumerate()
        {
            let cpus = match entitlement {
                Entitlement::Exclusive { .. } => own(container).cloned(),
                Entitlement::Inherit { .. } => {
                    init_containers.push(container.name.clone());
                    all.clone()
                }
                Entitlement::Shared { .. } => None,
            };
            let note = notes.get(&(self.index, container.name.clone()));
            let refused = match note {
                Some(note) => note.refused,
                None => self
                    .denied
                    .contains(&index)
                    .then_some(RefusalSource::Policy),
            };
            decisions.containers.push(Decision {
                pod: self.index,
                container: index,
                qos: self.qos,
                recognition: self.recognition.clone(),
                entitlement: entitlement.clone(),
                cpus,
                memory: memory.get(&container.name).cloned(),
                note: self.note(note.map(|note| &note.text)),
                refused,
            });
        }
        let containers = self.pod.containers.iter().zip(&self.entitlements);
        let mut lasting = containers
            .filter(|(container, entitlement)| {
                let inherits = matches!(entitlement, Entitlement::Inherit { .. });
                container.kind != ContainerKind::Init && !container.ended && !inherits
            })
            .map(|(container, _)| container);
        let plan = decisions.desired.pod_mut(&self.key);
        // Without a name, the plan leaves the pod's quota and the name in its record alone.
        let is_known = self.description != Description::Awaited || !self.is_recorded;
        let name = || self.pod.object_name();
        plan.name = is_known.then(name);
        plan.isolated |= self.preferences.partition == Balancing::Isolated;
        plan.movable |= self.preferences.movable;
        plan.free_memory |= self.preferences.memory == MemoryPolicy::Free;
        plan.memory.extend(memory);
        plan.confirmed |= self.pod.confirmed;
        // The quotas of pods with CPUs of the kubelet's choice are the kubelet's, too.
        let is_of_pinfold = mine.is_none_or(|mine| mine.by_kubelet.is_empty());
        // A limit of the pod as a whole must stay. The runtime alone doesn't tell whose limit it reports.
        let knows_limits = self.description == Description::Complete
            && self.pod.resources.cpu_limit.unwrap_or_default() == 0;
        let limits_itself = |container: &&Container| {
            knows_limits && container.resources.cpu_limit.unwrap_or_default() > 0
        };
        let is_owner = mine.is_some_and(|mine| !mine.containers.is_empty());
        plan.lifts_pod_quota |= is_of_pinfold
            && is_owner
            && lasting.all(|container| own(container).is_some() || limits_itself(&container));
        if !init_containers.is_empty() {
            plan.init_containers = init_containers;
        }
    }
}

mod input;
mod known;
mod kubelet;
mod kubelet_entitlement;
mod memory;
mod place;
mod shortfall;
mod shrink;
#[cfg(test)]
mod tests;
