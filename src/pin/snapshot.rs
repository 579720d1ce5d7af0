//! [`Snapshot`]: entitlements, assignments and effective CPUs at one moment, for readers.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::Enforcement;
use super::cpu_isolation::IsolationReport;
use super::decide::{Decisions, Refused};
use super::drift::{Drift, DriftCause, Neighbour};
use super::ledger::{Ledger, Observed, ObservedPod};
use crate::cpu::{CpuSet, Layout, Topology};
use crate::host::cgroup::Partition;
use crate::pod::{self, ContainerKind, Entitlement, Pod, Qos, Role, ThreadEnvironment};

/// The state of the node at one moment.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// How assignments are enforced.
    pub enforcement: Enforcement,
    /// Why so, in a sentence.
    pub enforcement_reason: String,
    /// Online CPUs.
    pub online: CpuSet,
    /// CPUs that are never assigned.
    pub reserved: CpuSet,
    /// CPUs that no pod owns, the reserved CPUs among them.
    pub shared: CpuSet,
    /// CPUs that a pod owns.
    pub exclusive: CpuSet,
    /// Online CPUs that the kernel has lost: no cgroup has them until the next boot.
    pub lost: CpuSet,
    /// Which CPUs are together.
    #[serde(serialize_with = "inside")]
    pub layout: Arc<Layout>,
    /// What became of the kernel's own work, where it is kept off exclusive CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<IsolationReport>,
    /// Containers of the known pods.
    pub containers: Vec<ContainerState>,
    /// Unknown pods that own CPUs.
    #[serde(rename = "strangers")]
    pub unknown_owners: Vec<UnknownOwner>,
    /// Where the kernel differs from the ledger, and could not be repaired.
    pub drift: Vec<Drift>,
    /// What can't be explained and is left alone.
    pub unexplained: Vec<String>,
    /// What went wrong in the last reconcile.
    pub errors: Vec<String>,
}

fn inside<S: Serializer>(layout: &Arc<Layout>, serializer: S) -> Result<S::Ok, S::Error> {
    layout.serialize(serializer)
}

/// One container of a known pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerState {
    /// The pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// The uid of its pod, where known.
    pub uid: Option<String>,
    /// When it runs.
    pub kind: ContainerKind,
    /// Its pod's role.
    pub role: Role,
    /// The training job of the pod, if known.
    pub job: Option<String>,
    /// The pod's number among the pods of its role, if known.
    pub index: Option<u32>,
    /// The evidence for the role.
    pub evidence: String,
    /// The pod's QoS class.
    pub qos: Qos,
    /// Whether its pod uses the node's own network.
    pub host_network: bool,
    /// What policy grants, and why.
    pub entitlement: Entitlement,
    /// The assigned CPUs; `None` in the shared pool.
    pub assigned: Option<CpuSet>,
    /// The CPUs it may run on by the kernel's word; `None` while it has no cgroup.
    pub effective: Option<CpuSet>,
    /// The kernel's word for the cgroup: `root`, `isolated`, `member`, or the reason for an invalid partition; `None`
    /// without partitions in the kernel, or without a cgroup.
    pub partition: Option<String>,
    /// NUMA nodes of its CPUs, where the machine tells.
    pub numa: Option<CpuSet>,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// Whether it has a process.
    pub running: bool,
    /// Whether it was ever created, by its cgroup or by the word of the runtime or the API.
    pub created: bool,
    /// The thread environment it is owed.
    pub threads: ThreadEnvironment,
    /// Variables that a container runtime has put into its environment on our word; `None` where no runtime tells.
    pub injected: Option<Vec<String>>,
    /// Whether it must not run without CPUs of its own.
    pub required: bool,
    /// Why the container got fewer CPUs than its entitlement.
    pub note: Option<String>,
    /// Seconds from the first instruction to the assignment in force, if observed.
    #[serde(rename = "windowSeconds")]
    pub unpinned_seconds: Option<f64>,
    /// What has refused it CPUs, if anything has; `note` or the entitlement's reason says why.
    pub refused: Option<Refused>,
    /// The CPUs that the container owned, in force, at the agent's start; `None` for a later container.
    pub at_start: Option<CpuSet>,
    /// Drift that was repaired since the agent's start.
    pub repaired: Option<Repaired>,
}

// === impl ContainerState ===

impl ContainerState {
    /// The container's own CPUs; `None` in the shared pool, and for a container inside the set of its pod.
    pub fn own(&self) -> Option<&CpuSet> {
        self.assigned
            .as_ref()
            .filter(|_| self.entitlement.cpus() > 0)
    }
}

/// Drift that was put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Repaired {
    /// How often.
    pub count: u64,
    /// Why there was drift, the last time.
    pub cause: DriftCause,
    /// What was in force then.
    pub effective: CpuSet,
    /// The neighbours at the time; see [`Drift::others`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Neighbour>,
}

/// An unknown pod that owns CPUs and keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnknownOwner {
    /// Its cgroup.
    pub cgroup: String,
    /// Its namespace, as it was when the CPUs were given.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The pod's CPUs.
    pub cpus: CpuSet,
}

/// Describes the containers of known pods as they are decided and observed.
///
/// `threads` computes a container's thread environment from the CPUs it owns.
pub fn containers(
    pods: &[Pod],
    topology: &Topology,
    decisions: &Decisions,
    observed: &Observed,
    mut threads: impl FnMut(&Pod, usize, Option<&CpuSet>) -> ThreadEnvironment,
) -> Vec<ContainerState> {
    let mut states = Vec::with_capacity(decisions.containers.len());
    let by_uid: HashMap<&str, &ObservedPod> = observed
        .pods
        .iter()
        .rev()
        .map(|pod| (pod.cgroup.uid.as_str(), pod))
        .collect();
    for decision in &decisions.containers {
        let Some(pod) = pods.get(decision.pod) else {
            continue;
        };
        let Some(container) = pod.containers.get(decision.container) else {
            continue;
        };
        let seen = pod
            .cgroup_uid()
            .and_then(|uid| by_uid.get(uid)?.container(&container.name));
        let effective = seen.map(|seen| seen.cgroup.cpuset.effective.clone());
        let cpus = decision.cpus.as_ref().unwrap_or(&topology.online);
        states.push(ContainerState {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
            uid: pod.cgroup_uid().map(str::to_owned),
            kind: container.kind,
            role: decision.recognition.role,
            job: decision.recognition.job.clone(),
            index: decision.recognition.index,
            evidence: decision.recognition.evidence.clone(),
            qos: decision.qos,
            host_network: pod.host_network,
            entitlement: decision.entitlement.clone(),
            assigned: decision.cpus.clone(),
            effective,
            partition: seen
                .map(|seen| &seen.cgroup.cpuset.partition)
                .filter(|partition| **partition != Partition::Unsupported)
                .map(ToString::to_string),
            numa: topology.numa_of(cpus),
            cgroup: seen.map(|seen| seen.cgroup.path.clone()),
            running: seen.is_some_and(|seen| seen.cgroup.populated),
            created: seen.is_some() || container.runtime_id.is_some() || pod.finished,
            threads: threads(pod, decision.container, decision.cpus.as_ref()),
            injected: None,
            required: pod::is_required(pod),
            note: decision.note.clone(),
            unpinned_seconds: None,
            refused: decision.refused,
            at_start: None,
            repaired: None,
        });
    }
    states
}

/// The pods in the ledger that are not among the known ones.
pub fn unknown_owners(observed: &Observed, ledger: &Ledger) -> Vec<UnknownOwner> {
    let unknown = observed.pods.iter().filter(|pod| pod.known.is_none());
    let owners = unknown.filter_map(|pod| {
        let cpus = ledger.of(&pod.cgroup.uid).cpus();
        let named = |pick: fn(&super::AssignmentRecord) -> &String| {
            pod.record.as_ref().map(pick).cloned().unwrap_or_default()
        };
        (!cpus.is_empty()).then(|| UnknownOwner {
            cgroup: pod.cgroup.path.clone(),
            namespace: named(|mark| &mark.namespace),
            pod: named(|mark| &mark.pod),
            cpus,
        })
    });
    owners.collect()
}
