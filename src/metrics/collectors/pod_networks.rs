//! [`PodNetworks`]: the network namespace of each pod. The counters of a namespace count for a pod only if no other pod can
//! have caused them.

use std::collections::{BTreeMap, HashMap};

use super::super::page::Labels;
use super::measured::{MeasuredContainer, pod_labels};
use crate::host::proc::{NetnsHandles, NetnsKey, Proc};

/// The owner of a pod's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkScope {
    /// The pod alone.
    Pod,
    /// The node.
    Host,
    /// The namespace is unreadable, or several pods share it.
    Unknown,
}

/// The network of a pod with a process.
#[derive(Debug)]
pub(super) struct PodNetwork {
    /// The labels of the pod's series.
    pub(super) labels: Labels,
    /// A process of the pod.
    pub(super) process: NetnsKey,
    /// The number of the network namespace.
    pub(super) namespace: Option<u64>,
    pub(super) scope: NetworkScope,
}

/// The networks of all pods.
#[derive(Debug)]
pub(super) struct PodNetworks {
    pub(super) pods: Vec<PodNetwork>,
    /// Whether all process lists were readable, and the time was enough for all pods.
    pub(super) complete: bool,
}

/// A pod whose namespace is looked up.
struct NetworkCandidate {
    labels: Labels,
    host_network: bool,
    /// Whether the process lists of all containers were readable.
    readable: bool,
    process: Option<NetnsKey>,
    namespace: Option<u64>,
}

// === impl NetworkScope ===

impl NetworkScope {
    pub(super) const ALL: [Self; 3] = [Self::Pod, Self::Host, Self::Unknown];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Unknown => "unknown",
        }
    }
}

// === impl PodNetworks ===

impl PodNetworks {
    /// Looks up the namespace of one process of each pod, until the time is up. An unreadable pod does not change the scope
    /// of other pods.
    pub(super) fn find(
        containers: &[MeasuredContainer<'_>],
        proc: &Proc,
        handles: &mut NetnsHandles,
        is_late: impl Fn() -> bool,
    ) -> Self {
        let host = host_namespace(proc);
        let mut pods = candidates(containers);
        let mut users: HashMap<u64, usize> = HashMap::new();
        for pod in pods.values_mut() {
            let process = pod.process.filter(|_| !is_late());
            // A pod that was not reached in time counts as unreadable.
            pod.readable &= process == pod.process;
            pod.namespace = process.and_then(|process| handles.network_namespace(proc, process));
            if let Some(namespace) = pod.namespace {
                *users.entry(namespace).or_default() += 1;
            }
        }
        let complete = pods
            .values()
            .all(|pod| pod.readable || pod.namespace.is_some());
        let network = |pod: NetworkCandidate| {
            // It would be wrong to repeat the node's counters for each pod on the node's network,
            // or those of a namespace for each of the pods that share it.
            let scope = match (host, pod.namespace) {
                _ if pod.host_network => NetworkScope::Host,
                (Some(host), Some(namespace)) if host == namespace => NetworkScope::Host,
                (_, Some(namespace)) if users.get(&namespace) == Some(&1) => NetworkScope::Pod,
                _ => NetworkScope::Unknown,
            };
            Some(PodNetwork {
                labels: pod.labels,
                process: pod.process?,
                namespace: pod.namespace,
                scope,
            })
        };
        let pods = pods.into_values().filter_map(network).collect();
        Self { pods, complete }
    }
}

/// The pods by namespace and name, each with its first process.
fn candidates<'a>(
    containers: &'a [MeasuredContainer<'_>],
) -> BTreeMap<(&'a str, &'a str), NetworkCandidate> {
    let mut pods: BTreeMap<(&str, &str), NetworkCandidate> = BTreeMap::new();
    // The containers of a pod mostly follow each other.
    let same_pod = |one: &MeasuredContainer<'_>, other: &MeasuredContainer<'_>| {
        one.state.pod == other.state.pod && one.state.namespace == other.state.namespace
    };
    for containers in containers.chunk_by(same_pod) {
        let Some(MeasuredContainer { state, .. }) = containers.first() else {
            continue;
        };
        let new = || NetworkCandidate {
            labels: pod_labels(state),
            host_network: false,
            readable: true,
            process: None,
            namespace: None,
        };
        let pod = pods
            .entry((&state.namespace, &state.pod))
            .or_insert_with(new);
        for container in containers {
            pod.host_network |= container.state.host_network;
            pod.readable &= container.processes.is_some();
            let process = || {
                let pid = *container.processes.as_ref()?.first()?;
                let number = container.number;
                Some(NetnsKey { pid, number })
            };
            pod.process = pod.process.or_else(process);
        }
    }
    pods
}

/// The node's network namespace: that of process 1, or the agent's own if process 1 is unreadable.
/// A pod's specification says, too, whether it uses the node's network.
fn host_namespace(proc: &Proc) -> Option<u64> {
    let own = || proc.network_namespace(i32::try_from(std::process::id()).ok()?);
    proc.network_namespace(1).or_else(own)
}
