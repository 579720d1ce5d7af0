//! Whose network each pod uses: what its interfaces and its TCP count is told only where nobody else can have caused it.

use std::collections::{BTreeMap, HashMap};

use super::super::page::Labels;
use super::{Subject, of_pod};
use crate::host::proc::{NetnsHandles, NetnsKey, Proc};

/// Whose network a pod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Its own.
    Pod,
    /// The node's.
    Host,
    /// That can't be told, or several pods share it.
    Unknown,
}

/// A pod that has a process.
#[derive(Debug)]
pub(super) struct Network {
    /// The labels of the pod's lines.
    pub(super) labels: Labels,
    /// One of its processes.
    pub(super) process: NetnsKey,
    /// The number of its namespace.
    pub(super) namespace: Option<u64>,
    pub(super) scope: Scope,
}

/// The networks of all pods.
#[derive(Debug)]
pub(super) struct Networks {
    pub(super) pods: Vec<Network>,
    /// Whether the processes of all pods were read, and each pod was reached in time.
    pub(super) complete: bool,
}

/// What is known of a pod.
struct Seen {
    labels: Labels,
    host_network: bool,
    /// Whether the processes of all its containers could be read.
    known: bool,
    process: Option<NetnsKey>,
    namespace: Option<u64>,
}

// === impl Scope ===

impl Scope {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Unknown => "unknown",
        }
    }
}

// === impl Networks ===

impl Networks {
    /// Looks at a process of each pod, for as long as there is time. A pod that could not be read changes no other pod's
    /// scope.
    pub(super) fn of(
        subjects: &[Subject<'_>],
        proc: &Proc,
        ways: &mut NetnsHandles,
        is_late: impl Fn() -> bool,
    ) -> Self {
        let host = host(proc);
        let mut pods: BTreeMap<(&str, &str), Seen> = BTreeMap::new();
        // The containers of a pod mostly follow each other.
        let is_same = |one: &Subject<'_>, other: &Subject<'_>| {
            one.state.pod == other.state.pod && one.state.namespace == other.state.namespace
        };
        for containers in subjects.chunk_by(is_same) {
            let Some(Subject { state, .. }) = containers.first() else {
                continue;
            };
            let new = || Seen {
                labels: of_pod(state),
                host_network: false,
                known: true,
                process: None,
                namespace: None,
            };
            let pod = pods
                .entry((&state.namespace, &state.pod))
                .or_insert_with(new);
            for subject in containers {
                pod.host_network |= subject.state.host_network;
                pod.known &= subject.processes.is_some();
                let process = || {
                    let pid = *subject.processes.as_ref()?.first()?;
                    Some(NetnsKey {
                        pid,
                        number: subject.number,
                    })
                };
                pod.process = pod.process.or_else(process);
            }
        }
        let mut users: HashMap<u64, usize> = HashMap::new();
        for pod in pods.values_mut() {
            let process = pod.process.filter(|_| !is_late());
            // One that was not looked at is as unknown as one that can't be read.
            pod.known &= process == pod.process;
            pod.namespace = process.and_then(|process| ways.network_namespace(proc, process));
            if let Some(namespace) = pod.namespace {
                *users.entry(namespace).or_default() += 1;
            }
        }
        let complete = pods
            .values()
            .all(|pod| pod.known || pod.namespace.is_some());
        let network = |pod: Seen| {
            // The node's own counters repeated for each such pod would be a wrong number, so there is none; the same goes
            // for a namespace that several pods share.
            let scope = match (host, pod.namespace) {
                _ if pod.host_network => Scope::Host,
                (Some(host), Some(namespace)) if host == namespace => Scope::Host,
                (_, Some(namespace)) if users.get(&namespace) == Some(&1) => Scope::Pod,
                _ => Scope::Unknown,
            };
            Some(Network {
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

/// The node's network namespace: that of process 1, or the agent's own if process 1 cannot be read. A pod that asks for the
/// node's network is also known by its specification.
fn host(proc: &Proc) -> Option<u64> {
    let own = || proc.network_namespace(i32::try_from(std::process::id()).ok()?);
    proc.network_namespace(1).or_else(own)
}
