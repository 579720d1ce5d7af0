//! [`decide`] turns pods, policy and ledger into the desired owner of each exclusive CPU.
//!
//! Running containers stay on their CPUs. The ledger's assignment stays as long as the container is
//! entitled to as many CPUs. [`Placer`] alone chooses the CPUs of a new assignment. The containers
//! of a pod are placed together first and then divided. Containers then share cores with containers
//! of the same pod rather than with foreign containers.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Serialize;

use super::ledger::Ledger;
use super::model::{Desired, PodAssignment};
use crate::cpu::{CpuSet, Placer, Topology};
use crate::pod::{
    self, Balancing, Container, ContainerKind, CpuPreferences, Entitlement, Pod, Policy, Qos,
    Recognition,
};

/// The input of decisions, besides the ledger.
#[derive(Debug, Clone, Copy)]
pub struct DecisionInput<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The machine's placer.
    pub placer: &'a Placer,
    /// CPUs excluded from assignments.
    pub reserved: &'a CpuSet,
    /// The rules for entitlements.
    pub policy: &'a Policy,
    /// The default preferences, for pods without preferences.
    pub wishes: &'a CpuPreferences,
    /// The pods of the node. Earlier pods are served first.
    pub pods: &'a [Pod],
    /// The uids of pods with a container, now or soon: only these pods own CPUs. `None` in a plan
    /// on paper: every pod counts as begun.
    pub here: Option<&'a HashSet<&'a str>>,
    /// NUMA nodes of the pods' devices, by namespace and name.
    pub devices: &'a BTreeMap<(String, String), CpuSet>,
    /// How many running containers may be moved now to make room.
    pub moves: usize,
    /// Whether the container runtime or the API has had time to report the existing containers.
    /// Before then, a pod without a known container keeps its CPUs.
    pub ids_settled: bool,
    /// The reason to assign no further CPUs now. Existing assignments stay.
    pub suspended: Option<&'a str>,
}

/// The decision about a container of a known pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The pod's index among the pods of the input.
    pub pod: usize,
    /// The container's index in the pod.
    pub container: usize,
    /// The pod's QoS class.
    pub qos: Qos,
    /// The pod's role and the evidence for the role.
    pub recognition: Recognition,
    /// The entitlement according to policy.
    pub entitlement: Entitlement,
    /// The CPUs of an owner, or the pod's CPUs for an init container; `None` for the shared pool.
    pub cpus: Option<CpuSet>,
    /// Why the container got fewer CPUs than its entitlement.
    pub note: Option<String>,
    /// The source of a refusal, if any.
    pub refused: Option<Refused>,
}

/// The source of an unexpected refusal: the pod's owner could expect CPUs for the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Refused {
    /// Policy: the pod is a training pod, or its CPU annotation is unknown. The entitlement's
    /// reason explains the refusal.
    Policy,
    /// Too few CPUs are free.
    Room,
    /// The kernel: the container's partition was refused.
    Kernel,
}

/// All decisions of a reconcile pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decisions {
    /// The decision for each container of the known pods, in the pods' order.
    pub containers: Vec<Decision>,
    /// The desired state of the kernel.
    pub desired: Desired,
    /// The moves of running containers to make room, in order.
    pub moves: Vec<ContainerMove>,
}

/// A move of a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerMove {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// The CPUs before the move.
    pub from: CpuSet,
    /// The CPUs after the move.
    pub to: CpuSet,
}

// === impl Decisions ===

impl Decisions {
    /// Keeps only the assignments already in the ledger, for enforcement `observe`. Pinfold claims
    /// no unenforced CPUs.
    pub fn only_what_is(&mut self, pods: &[Pod], ledger: &Ledger) {
        for decision in &mut self.containers {
            let uid = pods.get(decision.pod).and_then(Pod::cgroup_uid);
            let owned = uid.map(|uid| ledger.of(uid)).unwrap_or_default().cpus();
            if decision
                .cpus
                .take_if(|cpus| !cpus.is_subset(&owned))
                .is_some()
            {
                decision.note =
                    Some("stays in the shared pool: Pinfold only looks here".to_owned());
                decision.refused = None;
            }
        }
        for plan in self.desired.pods.values_mut() {
            plan.assignment = PodAssignment::default();
            plan.memory.clear();
        }
        self.desired.set_assignments(ledger.assignments.clone());
    }
}

/// The default reserved CPUs.
///
/// The default is the lowest core without an exclusive CPU. If every core has an exclusive CPU, the
/// default is the free CPUs of the lowest core with a free CPU. If every online CPU is exclusive,
/// the default is empty.
pub fn default_reserved(topology: &Topology, owned: &CpuSet) -> CpuSet {
    let cores = || topology.online.iter().map(|cpu| topology.core_of(cpu));
    let whole = cores().find(|core| core.is_disjoint(owned));
    let part = || {
        cores()
            .map(|core| core.difference(owned))
            .find(|rest| !rest.is_disjoint(&topology.online))
    };
    whole.or_else(part).unwrap_or_default()
}

/// Decides which container shall own which CPUs.
pub fn decide(inputs: &DecisionInput<'_>, ledger: &Ledger) -> Decisions {
    decide_while(inputs, ledger, || true).unwrap_or_default()
}

/// Like [`decide`], but calls `on` before each pod. Returns `None` once `on` returns false.
pub fn decide_while(
    inputs: &DecisionInput<'_>,
    ledger: &Ledger,
    mut on: impl FnMut() -> bool,
) -> Option<Decisions> {
    let pods = inputs.pods.iter().enumerate();
    let requests = pods.map(|(index, pod)| on().then(|| PodRequest::new(index, pod, inputs)));
    let requests: Vec<PodRequest> = requests.collect::<Option<_>>()?;
    let mut placing = place::PlacementPass::new(inputs, ledger, &requests);
    // Pods first keep or give up CPUs. CPUs given up by a pod become free in the next pass only.
    for pod in &requests {
        placing.keep(pod);
    }
    for pod in &requests {
        placing.gain(pod);
    }
    let place::PlacementPass {
        mut assignments,
        notes,
        moves,
        ..
    } = placing;
    assignments.retain(|_, mine| !mine.is_empty());
    let mut decisions = Decisions {
        moves,
        ..Decisions::default()
    };
    decisions.desired.online = inputs.topology.online.clone();
    for pod in &requests {
        pod.conclude(assignments.get(&pod.key), &notes, &mut decisions);
    }
    for (key, memory) in memory::follow(&requests, &assignments, ledger, inputs.topology) {
        decisions.desired.pod_mut(&key).memory = memory;
    }
    decisions.desired.all_memory = inputs
        .topology
        .numa
        .iter()
        .filter(|numa| numa.memory_bytes != Some(0))
        .map(|numa| numa.id)
        .collect();
    decisions.desired.set_assignments(assignments);
    Some(decisions)
}

/// A pod with its containers' entitlements.
struct PodRequest<'a> {
    index: usize,
    pod: &'a Pod,
    /// The uid, as in the ledger. A pod without a uid has no known cgroup and gets a made-up key.
    key: String,
    qos: Qos,
    recognition: Recognition,
    entitlements: Vec<Entitlement>,
    /// Indices of containers without exclusive CPUs by policy, against the pod owner's wish.
    denied: BTreeSet<usize>,
    wishes: CpuPreferences,
    /// Mistakes in the pod's annotations.
    mistakes: Vec<String>,
}

// === impl PodRequest ===

impl<'a> PodRequest<'a> {
    fn new(index: usize, pod: &'a Pod, inputs: &DecisionInput<'_>) -> Self {
        let entitlement = |container| pod::entitlement(pod, container, inputs.policy);
        let (wishes, mistakes) = pod::cpu_preferences(pod, inputs.wishes);
        Self {
            index,
            pod,
            key: pod.cgroup_uid().map_or_else(
                || format!("{}/{}#{index}", pod.namespace, pod.name),
                str::to_owned,
            ),
            qos: pod::qos(pod),
            recognition: pod::recognise(pod),
            entitlements: pod.containers.iter().map(entitlement).collect(),
            denied: (0..)
                .zip(&pod.containers)
                .filter(|(_, container)| pod::is_denied(pod, container, inputs.policy))
                .map(|(index, _)| index)
                .collect(),
            wishes,
            mistakes,
        }
    }

    fn owed(&self) -> impl Iterator<Item = (&'a Container, usize)> {
        let cpus = self
            .entitlements
            .iter()
            .map(|entitlement| entitlement.cpus() as usize);
        self.pod
            .containers
            .iter()
            .zip(cpus)
            .filter(|(_, cpus)| *cpus > 0)
    }

    fn wanted(&self, name: &str) -> Option<usize> {
        self.owed()
            .find(|(container, _)| container.name == name)
            .map(|(_, cpus)| cpus)
    }

    /// Remarks for a person, besides the entitlement's reason.
    fn note(&self, note: Option<&String>) -> Option<String> {
        let all: Vec<&str> = note
            .into_iter()
            .chain(&self.mistakes)
            .map(String::as_str)
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn conclude(
        &self,
        mine: Option<&PodAssignment>,
        notes: &BTreeMap<(usize, String), place::ShortfallNote>,
        decisions: &mut Decisions,
    ) {
        let all = mine.map(PodAssignment::usable);
        let mut inside = Vec::new();
        for (index, (container, entitlement)) in self
            .pod
            .containers
            .iter()
            .zip(&self.entitlements)
            .enumerate()
        {
            let cpus = match entitlement {
                Entitlement::Exclusive { .. } => mine
                    .and_then(|mine| mine.containers.get(&container.name))
                    .cloned(),
                Entitlement::Inherit { .. } => {
                    inside.push(container.name.clone());
                    all.clone()
                }
                Entitlement::Shared { .. } => None,
            };
            let note = notes.get(&(self.index, container.name.clone()));
            let refused = match note {
                Some(note) => note.refused.then_some(Refused::Room),
                None => self.denied.contains(&index).then_some(Refused::Policy),
            };
            decisions.containers.push(Decision {
                pod: self.index,
                container: index,
                qos: self.qos,
                recognition: self.recognition.clone(),
                entitlement: entitlement.clone(),
                cpus,
                note: self.note(note.map(|note| &note.text)),
                refused,
            });
        }
        let lasting = || {
            self.pod
                .containers
                .iter()
                .filter(|container| container.kind != ContainerKind::Init)
        };
        let owns = |container: &Container| {
            mine.is_some_and(|mine| mine.containers.contains_key(&container.name))
        };
        let plan = decisions.desired.pod_mut(&self.key);
        plan.name = Some((self.pod.namespace.clone(), self.pod.name.clone()));
        plan.isolated |= self.wishes.partition == Balancing::Isolated;
        plan.movable |= self.wishes.movable;
        plan.confirmed |= self.pod.confirmed;
        plan.whole |= lasting().all(owns) && lasting().next().is_some();
        if !inside.is_empty() {
            plan.inside = inside;
        }
    }
}

mod memory;
mod place;
#[cfg(test)]
mod tests;
