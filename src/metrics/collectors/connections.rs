//! The collector `connections`: the number of the pods' TCP connections, their round-trip times, and their waiting times.
//!
//! A sample enters each pod's network namespace and asks the kernel for the connections. That takes
//! too long for a scrape, so a background task takes the samples, and a scrape writes the last one
//! and the totals of all of them.

mod connection_totals;
mod peer_directory;
mod pod_netns;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::families::{
    PEER_RECEIVE_BYTES, PEER_TRANSMIT_BYTES, POD_TCP_BUSY_SECONDS, POD_TCP_CONNECTIONS,
    POD_TCP_RTT_SECONDS, POD_TCP_RWND_LIMITED_SECONDS, POD_TCP_SNDBUF_LIMITED_SECONDS,
};
use super::super::page::Page;
use super::super::peer::{Peer, UnknownPeers};
use super::measured::{CollectOutcome, Host, Unsupported, measured_containers, pod_labels, pods};
use super::scrape::{Collector, Scrape};
use crate::host::cgroup::Unified;
use crate::host::netlink::diag::{SocketDiag, TcpConnection, TcpState};
use crate::host::{netns, proc};
use crate::pin::Snapshot;
use crate::pod::{ObjectName, PodRole};
use connection_totals::{BOUNDS, ConnectionTotals};
use peer_directory::PeerDirectory;
use pod_netns::{NetnsOwners, PodNetns, PodNetnsList};

/// The limit on sampled connections of a node; each takes about 500 bytes of memory. A namespace with more connections than
/// the remaining limit is left out.
const MAX_CONNECTIONS: usize = 50_000;

/// Takes the samples, and keeps the totals. The background task and the collector share it.
#[derive(Debug)]
pub(in crate::metrics) struct ConnectionSampler {
    unified: Option<Unified>,
    /// The limit on peers with own series per pod; 0 disables the peers.
    peers: usize,
    state: Mutex<SamplerState>,
}

#[derive(Debug)]
struct SamplerState {
    totals: ConnectionTotals,
    peers: PeerDirectory,
    /// The outcome of the last sample.
    outcome: CollectOutcome,
    /// CPU time of all samples.
    cpu_time: Duration,
}

// === impl ConnectionSampler ===

impl ConnectionSampler {
    pub(in crate::metrics) fn new(cgroup_root: &Path, peers: usize) -> Self {
        let state = Mutex::new(SamplerState {
            totals: ConnectionTotals::new(peers),
            peers: PeerDirectory::default(),
            outcome: CollectOutcome::Complete,
            cpu_time: Duration::ZERO,
        });
        Self {
            unified: Unified::find(cgroup_root),
            peers,
            state,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SamplerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::metrics) fn unknown_peers(&self) -> UnknownPeers {
        self.lock().peers.unknown()
    }

    pub(in crate::metrics) fn set_peers(
        &self,
        job: ObjectName,
        peers: impl IntoIterator<Item = (IpAddr, Peer)>,
    ) {
        self.lock().peers.set(job, peers);
    }

    /// Samples the connections of all pods in these namespaces.
    pub(in crate::metrics) fn sample(
        &self,
        host: &Host,
        snapshot: &Snapshot,
        namespaces: &BTreeSet<String>,
    ) {
        let start = proc::thread_cpu_time();
        let containers = measured_containers(snapshot, namespaces);
        let PodNetnsList {
            namespaces,
            mut unsupported,
            mut complete,
        } = pod_netns::find(&containers, host, self.unified.as_ref());
        let netns: Vec<_> = namespaces.iter().map(|one| one.netns.clone()).collect();
        let mut visit_time = Duration::ZERO;
        let mut found = Vec::with_capacity(namespaces.len());
        let mut remaining = MAX_CONNECTIONS;
        let mut visit = |index: usize| {
            match SocketDiag::open().and_then(|mut diag| diag.connections(remaining)) {
                Ok(connections) => {
                    remaining -= connections.len();
                    found.push((index, connections));
                }
                Err(error) if is_permanent(&error) => unsupported = Some(no_inet_diag(&error)),
                Err(_) => complete = false,
            }
            visit_time = proc::thread_cpu_time();
        };
        if let Err(error) = netns::for_each_netns(&netns, &mut visit) {
            unsupported = Some(Unsupported {
                reason: "netns_unreachable",
                detail: error.to_string(),
            });
        }
        let live: HashSet<&str> = containers
            .iter()
            .filter_map(|container| Some(container.cgroup.rsplit_once('/')?.0))
            .collect();
        let mut state = self.lock();
        let jobs = if self.peers > 0 {
            peer_directory::jobs(&containers)
        } else {
            HashMap::new()
        };
        state.peers.begin_sample(&jobs);
        let found = found
            .iter()
            .filter_map(|(index, connections)| Some((namespaces.get(*index)?, connections)));
        for (namespace, connections) in found.clone() {
            if let NetnsOwners::Single(pod) = &namespace.owners
                && let Some((job, peer)) = jobs.get(pod)
            {
                state.peers.learn(job, peer, connections);
            }
        }
        state.totals.begin_sample(live.iter().copied());
        for (namespace, connections) in found {
            unsupported = state.add(namespace, connections, &jobs).or(unsupported);
        }
        state.totals.finish_sample(|pod| live.contains(pod));
        state.outcome = match unsupported {
            Some(unsupported) => CollectOutcome::Unsupported(unsupported),
            None => CollectOutcome::from_complete(complete),
        };
        state.cpu_time += visit_time + proc::thread_cpu_time().saturating_sub(start);
    }

    fn write(&self, page: &mut Page, scrape: &Scrape<'_>) -> CollectOutcome {
        let sampler = self.lock();
        let mut connections = page.lines(&POD_TCP_CONNECTIONS);
        let mut rtt = page.lines(&POD_TCP_RTT_SECONDS);
        let mut busy = page.lines(&POD_TCP_BUSY_SECONDS);
        let mut receiver = page.lines(&POD_TCP_RWND_LIMITED_SECONDS);
        let mut buffer = page.lines(&POD_TCP_SNDBUF_LIMITED_SECONDS);
        let mut received = page.lines(&PEER_RECEIVE_BYTES);
        let mut sent = page.lines(&PEER_TRANSMIT_BYTES);
        for (path, state) in pods(&scrape.containers).into_values() {
            let Some(pod) = sampler.totals.get(path) else {
                continue;
            };
            let labels = pod_labels(state);
            for (state, count) in TcpState::ALL.iter().zip(pod.states) {
                // A state without any connection so far has no series.
                if let Some(count) = count.or((*state == TcpState::Established).then_some(0)) {
                    connections.put_with(&labels, &[("state", state.name())], count);
                }
            }
            rtt.put_histogram(&labels, &BOUNDS, &pod.rtt.counts, pod.rtt.sum.as_secs_f64());
            let lines = [
                (&mut busy, pod.busy),
                (&mut receiver, pod.receiver),
                (&mut buffer, pod.buffer),
            ];
            for (lines, micros) in lines {
                lines.put(&labels, micros as f64 / 1e6);
            }
            for (peer, bytes) in &pod.peers {
                let role = peer
                    .as_ref()
                    .map_or(PodRole::Other, |peer| peer.role)
                    .to_string();
                let (namespace, name) = match peer {
                    Some(peer) => (state.namespace.as_str(), peer.pod.as_str()),
                    None => ("", ""),
                };
                let more = [
                    ("peer_namespace", namespace),
                    ("peer_pod", name),
                    ("peer_role", &role),
                ];
                received.put_with(&labels, &more, bytes.received);
                sent.put_with(&labels, &more, bytes.sent);
            }
        }
        [connections, rtt, busy, receiver, buffer, received, sent]
            .into_iter()
            .for_each(|lines| page.add(lines));
        sampler.outcome.clone()
    }
}

// === impl SamplerState ===

impl SamplerState {
    /// Adds the connections of a namespace to their pods. Returns the reason if the pods are unknown.
    fn add(
        &mut self,
        namespace: &PodNetns,
        found: &[TcpConnection],
        jobs: &HashMap<String, (ObjectName, Peer)>,
    ) -> Option<Unsupported> {
        let Self { totals, peers, .. } = self;
        match &namespace.owners {
            NetnsOwners::Single(pod) => totals.add(pod, found.iter(), jobs.get(pod), peers),
            NetnsOwners::ByCgroup(pods) => {
                // The kernel reports the cgroup of all established connections, or of none.
                if found
                    .iter()
                    .any(|one| one.measured.is_some() && one.cgroup.is_none())
                {
                    return Some(Unsupported {
                        reason: "no_socket_cgroup",
                        detail: "the kernel does not report the cgroup of a socket: Linux 5.9 or newer is required"
                            .to_owned(),
                    });
                }
                for (pod, ids) in pods {
                    let own = |one: &&TcpConnection| one.cgroup.is_some_and(|id| ids.contains(&id));
                    totals.add(pod, found.iter().filter(own), jobs.get(pod), peers);
                }
            }
        }
        None
    }
}

/// Whether the kernel lacks the diagnosis of TCP, or denies permission.
fn is_permanent(error: &std::io::Error) -> bool {
    use nix::libc::{EACCES, ENOENT, EOPNOTSUPP, EPERM, EPROTONOSUPPORT};
    let permanent = [ENOENT, EOPNOTSUPP, EPROTONOSUPPORT, EPERM, EACCES];
    error
        .raw_os_error()
        .is_some_and(|code| permanent.contains(&code))
}

fn no_inet_diag(error: &std::io::Error) -> Unsupported {
    Unsupported {
        reason: "no_inet_diag",
        detail: format!(
            "the kernel does not list TCP connections (CONFIG_INET_DIAG is required): {error}"
        ),
    }
}

/// Writes the families of the sampler.
#[derive(Debug)]
pub(super) struct ConnectionsCollector(pub(super) Arc<ConnectionSampler>);

impl Collector for ConnectionsCollector {
    fn name(&self) -> &'static str {
        "connections"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        self.0.write(page, scrape)
    }

    fn background_cpu_time(&self) -> Duration {
        self.0.lock().cpu_time
    }
}
