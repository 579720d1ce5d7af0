//! [`Snapshot`]: entitlements, assignments and effective CPUs at a single moment, for readers.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use super::cpu_isolation::IsolationReport;
use super::decide::{Decision, Decisions, RefusalSource};
use super::{
    Drift, DriftCause, Enforcement, EnforcementCause, Ledger, Neighbour, Observed, ObservedPod,
    PlacementSource,
};
use crate::cpu::{CpuSet, Layout, Topology};
use crate::host::cgroup::{ContainerCgroup, Partition};
use crate::pod::{
    self, ContainerKind, Entitlement, PodRole, Qos, RankEnvironment, RecognizedPod,
    ThreadEnvironment, ThreadStatus,
};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub enforcement: Enforcement,
    #[serde(skip)]
    pub enforcement_cause: EnforcementCause,
    /// Why the node has this enforcement, as a sentence.
    pub enforcement_reason: String,
    /// Who chooses the exclusive CPUs.
    pub placement_source: PlacementSource,
    pub online: CpuSet,
    /// CPUs excluded from assignments.
    pub reserved: CpuSet,
    /// CPUs that pods can use and that have no owner, including the reserved CPUs.
    pub shared: CpuSet,
    /// CPUs owned by pods.
    pub exclusive: CpuSet,
    /// Online CPUs that the cgroups above the pods do not offer: for other programs.
    pub withheld: CpuSet,
    /// CPUs that a cgroup holds as exclusive without a record of Pinfold: another program's.
    #[serde(skip)]
    pub held_by_others: CpuSet,
    /// Lost CPUs: online CPUs in no cgroup's set until the next boot.
    pub lost: CpuSet,
    /// The layout of the CPUs: which CPUs belong together.
    pub layout: Arc<Layout>,
    /// The result of CPU isolation; `None` if it is off, no knob is moved and no knob failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_isolation: Option<IsolationReport>,
    /// Containers of the known pods.
    pub containers: Vec<ContainerState>,
    /// Unknown pods with exclusive CPUs.
    pub unknown_owners: Vec<UnknownOwner>,
    /// Unrepaired differences between the kernel and the ledger.
    pub drift: Vec<Drift>,
    /// Unexplained exclusive CPUs and records. Pinfold leaves their cgroups alone.
    pub unexplained: Vec<String>,
    /// Errors of the last turn of the reconciler.
    pub errors: Vec<String>,
    /// Whether the turn knew the first list of every source of pods.
    #[serde(skip)]
    pub pods_listed: bool,
}

/// A container of a known pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerState {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// The uid in the name of the pod's cgroup, if known.
    pub uid: Option<String>,
    /// The uid of the Pod object, if the API server or a manifest tells it. For a static pod, that
    /// is its mirror pod, and the cgroup has another uid.
    #[serde(skip)]
    pub api_uid: Option<String>,
    /// The container's kind, which decides when it runs.
    pub kind: ContainerKind,
    pub role: PodRole,
    /// The training job of the pod, if known.
    pub job: Option<String>,
    /// The pod's number among the pods of its role, if known.
    pub index: Option<u32>,
    pub evidence: String,
    pub qos: Qos,
    pub host_network: bool,
    /// The entitlement according to policy, with the reason.
    pub entitlement: Entitlement,
    /// The assigned CPUs; `None` in the shared pool.
    pub assigned: Option<CpuSet>,
    /// The CPUs that are left after an announced shrink; the empty set for the shared pool; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upcoming: Option<CpuSet>,
    /// The CPUs effective for the container according to the kernel; `None` without a cgroup.
    pub effective: Option<CpuSet>,
    /// The partition state according to the kernel: `root`, `isolated`, `member`, or the reason for
    /// an invalid partition. `None` without a cgroup, or on a kernel without partitions.
    pub partition: Option<String>,
    /// NUMA nodes of the container's CPUs, if the machine reports NUMA nodes.
    pub numa: Option<CpuSet>,
    /// The NUMA nodes that the container's memory may come from, as written to its cgroup; `None` without a cgroup, and if
    /// nothing was written.
    pub memory: Option<CpuSet>,
    pub cgroup: Option<String>,
    pub running: bool,
    /// Whether the container was ever created, by the evidence of a cgroup, the container runtime,
    /// or the API.
    pub created: bool,
    /// Whether the pod has ended, in which case it only waits for its deletion.
    #[serde(skip)]
    pub finished: bool,
    pub threads: ThreadEnvironment,
    /// The assigned CPUs of each local process; `None` without assigned CPUs, and unless several processes are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankEnvironment>,
    /// Environment variables injected by the container runtime at Pinfold's request; `None` without
    /// a report.
    pub injected: Option<Vec<String>>,
    /// Whether the container must not run without exclusive CPUs.
    pub required: bool,
    /// Why the container got fewer CPUs than its entitlement.
    pub note: Option<String>,
    /// What the program should do differently on its assigned CPUs: where it counts CPUs on the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bindings: Vec<String>,
    /// Seconds from the first instruction to the assignment in force, if observed.
    pub unpinned_seconds: Option<f64>,
    /// The source of a refusal, if any. `note` or the entitlement's reason explains it.
    pub refused: Option<RefusalSource>,
    /// The container's exclusive CPUs in force at the agent's start; `None` for a later container.
    pub at_start: Option<CpuSet>,
    /// Drift that was repaired since the agent's start.
    pub repaired: Option<Repaired>,
    /// The threads of the running container. Reading them takes a scrape, so only `/status` fills them in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<ThreadStatus>,
}

// === impl ContainerState ===

impl ContainerState {
    /// Whether the container runs without the thread variables that Pinfold computes for it, because the container runtime
    /// created it without asking an agent that computed them. Unknown counts as no.
    pub fn lacks_variables(&self) -> bool {
        let is_without = self.injected.as_ref().is_some_and(Vec::is_empty);
        self.running && !self.finished && is_without && !self.threads.variables.is_empty()
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Why a pod that should have exclusive CPUs lacks some of them, as an identifier; `None` for a pod that has them, or is
    /// meant to share. `pod` are the pod's containers; the reason is that of the first one without its CPUs.
    ///
    /// An identifier is the name of an [`Obstacle`](pod::Obstacle), or `too_few_cpus` (none are free, or too few would stay shared), `kernel` (it refused
    /// the partition), `observe` (the agent pins nothing), or `waiting` (the next turns may pin it).
    pub fn not_pinned(&self, pod: &[ContainerState]) -> Option<&'static str> {
        // In a pod with exclusive CPUs, policy means to refuse them to the other containers.
        let entitled = pod.iter().any(|container| container.entitlement.cpus() > 0);
        pod.iter().find_map(|container| match container.refused {
            Some(RefusalSource::Room) => Some("too_few_cpus"),
            Some(RefusalSource::Kernel) => Some("kernel"),
            Some(RefusalSource::Policy) => {
                let obstacle = container.entitlement.obstacle().filter(|_| !entitled);
                obstacle.map(pod::Obstacle::name)
            }
            None => self.unassigned(container),
        })
    }

    /// Why a running container that is entitled to CPUs has none, although nothing refused them.
    fn unassigned(&self, container: &ContainerState) -> Option<&'static str> {
        if container.entitlement.cpus() == 0 || !container.running || container.own().is_some() {
            return None;
        }
        match (self.enforcement, self.enforcement_cause) {
            // The kubelet pins the same containers.
            (Enforcement::Observe, EnforcementCause::CpuManager) => None,
            (Enforcement::Observe, _) => Some("observe"),
            (Enforcement::Partition | Enforcement::Cpuset, _) => Some("waiting"),
        }
    }
}

// === impl ContainerState ===

impl ContainerState {
    /// The uid of the Pod object, as in other metrics about pods. Empty if it is not known: the
    /// kubelet names the cgroup of a static pod after a hash of the manifest, which is no uid of an
    /// object.
    pub fn object_uid(&self) -> &str {
        let is_uid = |uid: &&String| uid.contains('-');
        let cgroup_uid = self.uid.as_ref().filter(is_uid);
        self.api_uid
            .as_ref()
            .or(cgroup_uid)
            .map_or("", String::as_str)
    }

    /// The container's own CPUs. `None` in the shared pool, and for an init container on its pod's
    /// CPUs.
    pub fn own(&self) -> Option<&CpuSet> {
        self.assigned
            .as_ref()
            .filter(|_| self.entitlement.cpus() > 0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    pub count: u64,
    pub cause: DriftCause,
    /// The effective CPUs during the last drift.
    pub effective: CpuSet,
    /// The neighbours during the last drift; see [`Drift::others`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Neighbour>,
}

/// An unknown pod with exclusive CPUs, which it keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnknownOwner {
    pub cgroup: String,
    /// The pod's namespace at the time of the assignment.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    pub cpus: CpuSet,
}

/// Describes the containers of known pods, from decisions and observed cgroups.
///
/// `threads` computes a container's thread environment from the CPUs that it keeps.
pub fn containers(
    pods: &[Arc<RecognizedPod>],
    topology: &Topology,
    decisions: &Decisions,
    observed: &Observed,
    mut threads: impl FnMut(&RecognizedPod, usize, Option<&CpuSet>) -> ThreadEnvironment,
) -> Vec<ContainerState> {
    let mut states = Vec::with_capacity(decisions.containers.len());
    let by_uid = observed.pods.iter().rev();
    let by_uid: HashMap<&str, &ObservedPod> =
        by_uid.map(|pod| (pod.cgroup.uid.as_str(), pod)).collect();
    for decision in &decisions.containers {
        let pod = pods.get(decision.pod);
        let container = pod.and_then(|pod| pod.containers.get(decision.container));
        let (Some(pod), Some(container)) = (pod, container) else {
            continue;
        };
        let uid = pod.cgroup_uid();
        let observed = uid.and_then(|uid| by_uid.get(uid)?.container(&container.name));
        let cgroup = observed.map(|observed| &observed.cgroup);
        let Decision {
            qos,
            recognition,
            entitlement,
            cpus: assigned,
            note,
            refused,
            ..
        } = decision.clone();
        let (upcoming, cpus_after) =
            cpus_after_shrink(decisions, (uid, &container.name), assigned.as_ref());
        states.push(ContainerState {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
            uid: uid.map(str::to_owned),
            api_uid: pod.api_uid.as_ref().map(ToString::to_string),
            kind: container.kind,
            role: recognition.role,
            job: recognition.job,
            index: recognition.index,
            evidence: recognition.evidence,
            qos,
            host_network: pod.host_network,
            entitlement,
            effective: cgroup.map(|cgroup| cgroup.cpuset.effective.clone()),
            partition: cgroup.and_then(partition_text),
            numa: topology.numa_of(
                assigned
                    .as_ref()
                    .or(cgroup.map(|cgroup| &cgroup.cpuset.effective))
                    .unwrap_or(&topology.online),
            ),
            memory: cgroup
                .map(|cgroup| cgroup.memory.numa.clone())
                .filter(|numa| !numa.is_empty()),
            cgroup: cgroup.map(|cgroup| cgroup.path.clone()),
            running: cgroup.is_some_and(|cgroup| cgroup.populated),
            created: cgroup.is_some() || container.runtime_id.is_some() || pod.finished,
            finished: pod.finished,
            threads: threads(pod, decision.container, cpus_after),
            upcoming: upcoming.cloned(),
            bindings: pod.binding_advice(decision.container, assigned.as_ref()),
            ranks: pod::rank_environment(pod, decision.container, cpus_after, topology),
            assigned,
            injected: None,
            required: pod::is_required(pod),
            note,
            unpinned_seconds: None,
            refused,
            at_start: None,
            repaired: None,
            observed: None,
        });
    }
    states
}

/// The partition state of a container's cgroup; `None` where the kernel has no partitions.
fn partition_text(cgroup: &ContainerCgroup) -> Option<String> {
    let partition = &cgroup.cpuset.partition;
    (*partition != Partition::Unsupported).then(|| partition.to_string())
}

/// Returns `upcoming`, and the CPUs for which a thread pool should be sized now.
fn cpus_after_shrink<'a>(
    decisions: &'a Decisions,
    (uid, container): (Option<&str>, &str),
    assigned: Option<&'a CpuSet>,
) -> (Option<&'a CpuSet>, Option<&'a CpuSet>) {
    let upcoming = uid.and_then(|uid| decisions.upcoming(uid, container));
    match upcoming {
        Some(left) => (upcoming, Some(left).filter(|left| !left.is_empty())),
        None => (None, assigned),
    }
}

/// The pods with CPUs in the ledger, except known pods.
pub fn unknown_owners(observed: &Observed, ledger: &Ledger) -> Vec<UnknownOwner> {
    let unknown = observed.pods.iter().filter(|pod| !pod.is_known);
    let owners = unknown.filter_map(|pod| {
        let cpus = ledger.of(&pod.cgroup.uid).cpus();
        let record = pod.record.as_ref();
        let names = record.map(|record| (record.namespace.clone(), record.pod.clone()));
        let (namespace, name) = names.unwrap_or_default();
        (!cpus.is_empty()).then(|| UnknownOwner {
            cgroup: pod.cgroup.path.clone(),
            namespace,
            pod: name,
            cpus,
        })
    });
    owners.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Numbering, Shape};
    use crate::host::cgroup::{ContainerCgroup, Cpuset, PodCgroup};
    use crate::pin::ObservedContainer;
    use crate::pod::{Container, Pod, Policy, ThreadPolicy, recognized, thread_environment};

    /// A container that another program, such as a kubelet, has put on CPUs of one NUMA node.
    #[test]
    fn the_numa_nodes_are_those_of_the_cpus_on_which_a_container_runs() {
        let topology = Topology::from_shape(Shape {
            sockets: 2,
            numa_per_socket: 1,
            llcs_per_numa: 1,
            cores_per_llc: 2,
            threads_per_core: 1,
            numbering: Numbering::SiblingsAdjacent,
        });
        let pods = recognized([Pod {
            uid: Some("u".into()),
            containers: vec![Container {
                name: "main".to_owned(),
                ..Container::default()
            }],
            ..Pod::default()
        }]);
        let pod = &pods[0];
        let decisions = Decisions {
            containers: vec![Decision::shared(pod, 0)],
            ..Decisions::default()
        };
        let numa_of = |effective: Option<&str>| {
            let container = effective.map(|cpus| ObservedContainer {
                name: Some("main".to_owned()),
                cgroup: ContainerCgroup {
                    cpuset: Cpuset {
                        effective: cpus.parse().unwrap(),
                        ..Cpuset::default()
                    },
                    ..ContainerCgroup::default()
                },
                ..ObservedContainer::default()
            });
            let observed = Observed {
                pods: vec![ObservedPod {
                    cgroup: PodCgroup {
                        uid: "u".to_owned(),
                        ..PodCgroup::default()
                    },
                    containers: container.into_iter().collect(),
                    ..ObservedPod::default()
                }],
                ..Observed::default()
            };
            let states = containers(&pods, &topology, &decisions, &observed, |pod, index, _| {
                let (policy, threads) = (Policy::default(), ThreadPolicy::default());
                thread_environment(pod, index, &policy, &threads, None)
            });
            states[0].numa.as_ref().unwrap().to_string()
        };
        assert_eq!(
            [numa_of(Some("2-3")), numa_of(Some("1-2")), numa_of(None)],
            ["1", "0-1", "0-1"]
        );
    }
}
