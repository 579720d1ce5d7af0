//! The collector `sockets`: the traffic of the pods' sockets, including pods on the node's network.
//! For these, it also reports the TCP counters, which other pods have from their own network
//! namespace.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::families::{
    Family, POD_NETWORK_SOCKET_RECEIVE_BYTES, POD_NETWORK_SOCKET_RECEIVE_PACKETS,
    POD_NETWORK_SOCKET_TRANSMIT_BYTES, POD_NETWORK_SOCKET_TRANSMIT_PACKETS,
    POD_TCP_RETRANSMITTED_SEGMENTS, POD_TCP_SENT_SEGMENTS, POD_TCP_TIMEOUTS,
};
use super::super::page::{Labels, Page};
use super::measured::{CollectOutcome, Unsupported, pod_labels, pods};
use super::pod_networks::NetworkScope;
use super::scrape::{Collector, Scrape};
use crate::host::bpf::sockets::{
    DEFAULT_ENTRIES, SocketCounter, SocketSample, SocketTraffic, SocketsError,
};
use crate::pin::snapshot::ContainerState;

type TrafficCounter = fn(&SocketTraffic) -> u64;

const FAMILIES: [(&Family, TrafficCounter); 4] = [
    (&POD_NETWORK_SOCKET_RECEIVE_BYTES, |traffic| {
        traffic.receive.bytes
    }),
    (&POD_NETWORK_SOCKET_RECEIVE_PACKETS, |traffic| {
        traffic.receive.packets
    }),
    (&POD_NETWORK_SOCKET_TRANSMIT_BYTES, |traffic| {
        traffic.transmit.bytes
    }),
    (&POD_NETWORK_SOCKET_TRANSMIT_PACKETS, |traffic| {
        traffic.transmit.packets
    }),
];

const TCP_FAMILIES: [(&Family, TrafficCounter); 3] = [
    (&POD_TCP_SENT_SEGMENTS, |traffic| traffic.tcp.sent),
    (&POD_TCP_RETRANSMITTED_SEGMENTS, |traffic| {
        traffic.tcp.retransmitted
    }),
    (&POD_TCP_TIMEOUTS, |traffic| traffic.tcp.timeouts),
];

#[derive(Debug)]
pub(super) struct SocketsCollector {
    cgroup_root: PathBuf,
    trees: Vec<String>,
    /// `Ok(None)`: the next scrape tries to start the counter. An error is final.
    counter: Result<Option<SocketCounter>, Unsupported>,
    /// The latest logged reason.
    logged: Option<String>,
}

// === impl SocketsCollector ===

impl SocketsCollector {
    pub(super) fn new(cgroup_root: &Path, trees: &[String]) -> Self {
        let mut sockets = Self {
            cgroup_root: cgroup_root.to_owned(),
            trees: trees.to_vec(),
            counter: Ok(None),
            logged: None,
        };
        sockets.start();
        sockets
    }

    /// Starts the counter, if an earlier attempt failed for lack of memory or descriptors.
    fn start(&mut self) {
        if !matches!(self.counter, Ok(None)) {
            return;
        }
        self.counter = match SocketCounter::new(&self.cgroup_root, &self.trees, DEFAULT_ENTRIES) {
            Ok(counter) => Ok(Some(counter)),
            Err(error) => {
                let unsupported = unsupported(&error);
                if self.logged.as_ref() != Some(&unsupported.detail) {
                    let detail = &unsupported.detail;
                    tracing::warn!("the pods' sockets are not counted: {detail}");
                    self.logged = Some(detail.clone());
                }
                if error.is_terminal() {
                    Err(unsupported)
                } else {
                    Ok(None)
                }
            }
        };
    }
}

impl Collector for SocketsCollector {
    fn name(&self) -> &'static str {
        "sockets"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        self.start();
        let counter = match &mut self.counter {
            Ok(Some(counter)) => counter,
            Ok(None) => return CollectOutcome::Partial,
            Err(unsupported) => return CollectOutcome::Unsupported(unsupported.clone()),
        };
        let pods = pods(&scrape.containers);
        let paths: HashSet<&str> = pods.values().map(|(path, _)| *path).collect();
        let attached = counter.attach();
        let sample = match counter.sample(&scrape.host.cgroups, &paths) {
            Ok(sample) => sample,
            Err(error) => return failure(&error),
        };
        if !pods.is_empty() && sample.pods.is_empty() {
            return match attached {
                Err(error) => failure(&error),
                Ok(()) => {
                    CollectOutcome::unsupported("no_cgroup_v2", "the pods have no v2 cgroups")
                }
            };
        }
        let networks = scrape.networks();
        let on_host: HashSet<&Labels> = networks
            .pods
            .iter()
            .filter(|pod| pod.scope == NetworkScope::Host)
            .map(|pod| &pod.labels)
            .collect();
        write(page, &pods, &sample, &on_host);
        let complete = attached.is_ok() && !sample.overflowed;
        CollectOutcome::from_complete(complete && networks.complete)
    }
}

fn write(
    page: &mut Page,
    pods: &BTreeMap<(&str, &str), (&str, &ContainerState)>,
    sample: &SocketSample,
    on_host: &HashSet<&Labels>,
) {
    let mut lines = FAMILIES.map(|(family, _)| page.lines(family));
    let mut tcp_lines = TCP_FAMILIES.map(|(family, _)| page.more_lines(family));
    for (path, state) in pods.values() {
        let Some(traffic) = sample.pods.get(*path) else {
            continue;
        };
        let labels = pod_labels(state);
        for (lines, (_, counter)) in lines.iter_mut().zip(FAMILIES) {
            lines.put(&labels, counter(traffic));
        }
        // A pod keeps the same source of TCP counters, because a change would look like a jump or a
        // restart.
        if !on_host.contains(&labels) {
            continue;
        }
        for (lines, (_, counter)) in tcp_lines.iter_mut().zip(TCP_FAMILIES) {
            lines.put(&labels, counter(traffic));
        }
    }
    lines
        .into_iter()
        .chain(tcp_lines)
        .for_each(|lines| page.add(lines));
}

fn failure(error: &SocketsError) -> CollectOutcome {
    if error.is_terminal() {
        CollectOutcome::Unsupported(unsupported(error))
    } else {
        CollectOutcome::Partial
    }
}

/// The error as a reason, with all causes in the detail.
fn unsupported(error: &SocketsError) -> Unsupported {
    let reason = match error {
        SocketsError::NoHierarchy { .. } => "no_cgroup_v2",
        SocketsError::Part { .. } => "cgroup_namespace",
        SocketsError::Bpf(_) => "bpf_refused",
        SocketsError::Cgroups(_) => "cgroup_unreadable",
    };
    let mut detail = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        detail = format!("{detail}: {cause}");
        source = cause.source();
    }
    Unsupported { reason, detail }
}
