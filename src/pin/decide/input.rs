//! The input of decisions, and the values passed between the steps of a decision.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde::Serialize;

use super::known::{Description, KnownPod, KnownPods};
use super::kubelet_entitlement::{self as kubelet, KubeletCpus};
use super::shrink::{self, AnnouncedShrinks};
use crate::cpu::{CpuSet, Placer, SharedMinimum, Topology};
use crate::pin::{Enforcement, Ledger};
use crate::pod::{
    self, Container, ContainerKey, ContainerKind, CpuPreferences, Entitlement, ObjectName, Policy,
    Qos, Recognition, RecognizedPod,
};

/// How the note of a container begins that runs in the shared pool; the reason follows.
pub const IN_SHARED_POOL: &str = "stays in the shared pool: ";

/// How the note of a container begins that runs on the CPUs which the kubelet has assigned, without a partition.
pub(super) const NO_PARTITION: &str = "gets no partition: ";

/// The reason in a note of a container without exclusive CPUs.
pub fn reason_in(note: &str) -> &str {
    let reason = note.strip_prefix(IN_SHARED_POOL);
    reason
        .or_else(|| note.strip_prefix(NO_PARTITION))
        .unwrap_or(note)
}

/// What decisions need to know about the node, apart from its pods.
#[derive(Debug, Clone, Copy)]
pub struct DecisionContext<'a> {
    pub topology: &'a Topology,
    pub placer: &'a Placer,
    /// The NUMA nodes with memory that pods may use.
    pub memory_nodes: &'a CpuSet,
    /// CPUs excluded from assignments.
    pub reserved: &'a CpuSet,
    /// How many CPUs exclusive assignments leave to everybody else.
    pub shared_minimum: SharedMinimum,
    pub policy: &'a Policy,
    /// The default preferences, for pods without preferences.
    pub preferences: &'a CpuPreferences,
    /// NUMA nodes of the pods' devices.
    pub devices: &'a BTreeMap<ObjectName, CpuSet>,
    /// Whether the container runtime or the API has had time to report the existing containers.
    /// Until then, a pod without a known container keeps its CPUs.
    pub ids_settled: bool,
    /// Why no further CPUs are assigned now. Existing assignments stay.
    pub suspended: Option<&'a str>,
    pub enforcement: Enforcement,
    /// The exclusive CPUs that the kubelet reports, if it chooses the CPUs of this node; `None` if Pinfold does.
    pub kubelet: Option<&'a KubeletCpus>,
}

/// The input of decisions, besides the ledger.
#[derive(Debug, Clone, Copy)]
pub struct DecisionInput<'a> {
    pub context: DecisionContext<'a>,
    /// The pods of the node. Containers without CPUs are served before those that grow, and among equals those of earlier pods
    /// first.
    pub pods: &'a [Arc<RecognizedPod>],
    /// The uids of pods with a container, now or soon, because only these own CPUs. With `None`, as
    /// in a dry run, every pod may own CPUs.
    pub here: Option<&'a HashSet<&'a str>>,
    /// How far the descriptions can be trusted, and which containers exist. Without it, as in a dry
    /// run, each description counts as complete, and a pod without a description keeps its CPUs.
    pub known: Option<&'a KnownPods<'a>>,
    /// How many running containers may be moved now to make room.
    pub moves: usize,
    /// The shrinks that were announced to running programs. With `None`, as in a dry run, the CPUs go without a delay.
    pub shrinks: Option<&'a AnnouncedShrinks>,
}

// === impl DecisionInput ===

impl<'a> DecisionInput<'a> {
    pub(super) fn known_pod(&self, uid: &str) -> Option<&'a KnownPod<'a>> {
        self.known?.get(uid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerMove {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub from: CpuSet,
    pub to: CpuSet,
}

/// The source of an unexpected refusal: the pod's author could expect CPUs for the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalSource {
    /// Policy: the pod is a training pod, or its CPU annotation is unknown. The entitlement's
    /// reason explains why.
    Policy,
    /// Too few CPUs are free.
    Room,
    /// The kernel: the container's partition was refused.
    Kernel,
}

/// Why a container gets fewer CPUs than its entitlement.
pub(super) struct ShortfallNote {
    pub text: String,
    /// Who refused the CPUs; `None` if the container only waits.
    pub refused: Option<RefusalSource>,
}

/// The notes of containers, by pod index and container name.
pub(super) type Notes = BTreeMap<(usize, String), ShortfallNote>;

/// A pod with its containers' entitlements.
pub(super) struct PodRequest<'a> {
    pub index: usize,
    pub pod: &'a RecognizedPod,
    /// The uid, as in the ledger. A pod without one has no known cgroup and gets a made-up key.
    pub key: String,
    /// The source of the description, and what else is known of the pod.
    pub description: Description,
    pub known: Option<&'a KnownPod<'a>>,
    /// Whether the ledger has CPUs of the pod.
    pub is_recorded: bool,
    pub qos: Qos,
    pub recognition: Recognition,
    pub entitlements: Vec<Entitlement>,
    /// The containers that keep their CPUs until their shrink was announced for long enough, each with the number of CPUs that
    /// it will have then.
    pub waiting: BTreeMap<String, u32>,
    /// Indices of containers without exclusive CPUs by policy, although the pod's author could
    /// expect CPUs.
    pub denied: BTreeSet<usize>,
    pub preferences: CpuPreferences,
    /// Mistakes in the pod's annotations.
    pub mistakes: Vec<String>,
}

// === impl PodRequest ===

impl<'a> PodRequest<'a> {
    pub(super) fn new(
        index: usize,
        pod: &'a RecognizedPod,
        inputs: &DecisionInput<'a>,
        ledger: &Ledger,
    ) -> Self {
        let uid = pod.cgroup_uid();
        let key = uid.map_or_else(
            || format!("{}/{}#{index}", pod.namespace, pod.name),
            str::to_owned,
        );
        let known = uid.and_then(|uid| inputs.known_pod(uid));
        let recorded = ledger.assignments.get(&key);
        let mut waiting = BTreeMap::new();
        let entitlement = |container: &Container| {
            if let Some(kubelet) = inputs.context.kubelet {
                let facts = (kubelet, known, recorded);
                return kubelet::entitlement(pod, container, inputs.context.policy, facts);
            }
            if let Some(kept) = kubelet::kept(pod, container, recorded) {
                return kept;
            }
            let granted = pod::entitlement(pod, container, inputs.context.policy);
            let Some(known) = known else { return granted };
            let granted = known.entitlement(container, granted, recorded);
            let own = recorded.and_then(|recorded| recorded.containers.get(&container.name));
            let Some(own) = own.filter(|_| known.is_running(container) && !pod.finished) else {
                return granted;
            };
            let announced = inputs.shrinks.zip(uid);
            let announced = announced.map(|(shrinks, uid)| (shrinks, uid, &*container.name));
            let kept = announced.and_then(|of| shrink::kept_until_due(of, own, &granted));
            if kept.is_some() {
                waiting.insert(container.name.clone(), granted.cpus());
            }
            kept.unwrap_or(granted)
        };
        let entitlements: Vec<Entitlement> = pod.containers.iter().map(entitlement).collect();
        let is_shared =
            |index: usize| matches!(entitlements.get(index), Some(Entitlement::Shared { .. }));
        let denied = (0..).zip(&pod.containers).filter(|(index, container)| {
            is_shared(*index) && pod::is_denied(pod, container, inputs.context.policy)
        });
        let denied = denied.map(|(index, _)| index).collect();
        let (preferences, mut mistakes) = pod::cpu_preferences(pod, inputs.context.preferences);
        mistakes.extend_from_slice(pod.unread());
        Self {
            index,
            pod,
            key,
            description: known.map(|known| known.description).unwrap_or_default(),
            known,
            is_recorded: recorded.is_some(),
            qos: pod.qos(),
            recognition: pod.recognition().clone(),
            entitlements,
            waiting,
            denied,
            preferences,
            mistakes,
        }
    }

    /// The containers entitled to exclusive CPUs, each with the number of CPUs.
    pub(super) fn owed(&self) -> impl Iterator<Item = (&'a Container, usize)> {
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

    /// How many exclusive CPUs the container with this name is entitled to.
    pub(super) fn wanted(&self, name: &str) -> Option<usize> {
        self.owed()
            .find(|(container, _)| container.name == name)
            .map(|(_, cpus)| cpus)
    }

    pub(super) fn container_key(&self, name: &str) -> ContainerKey {
        ContainerKey::new(&self.key, name)
    }

    /// Whether the pod's description has the container.
    pub(super) fn has(&self, name: &str) -> bool {
        self.pod.container(name).is_some()
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.known.is_some_and(|known| known.exists(name))
    }

    /// The init containers that own CPUs until they end, because they got them before the pod's description came.
    pub(super) fn late_init_containers(&self) -> impl Iterator<Item = &'a Container> {
        let owed = self.owed().map(|(container, _)| container);
        owed.filter(|container| container.kind == ContainerKind::Init)
    }

    /// Remarks for a person, besides the entitlement's reason.
    pub(super) fn note(&self, note: Option<&String>) -> Option<String> {
        let all: Vec<&str> = note
            .into_iter()
            .chain(&self.mistakes)
            .map(String::as_str)
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
