//! What the pods' sockets send and receive, those of pods on the node's own network too; and of the latter what TCP does, which
//! those with a network of their own have from that.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::families::{
    Family, POD_NETWORK_SOCKET_RECEIVE_BYTES, POD_NETWORK_SOCKET_RECEIVE_PACKETS,
    POD_NETWORK_SOCKET_TRANSMIT_BYTES, POD_NETWORK_SOCKET_TRANSMIT_PACKETS,
    POD_TCP_RETRANSMITTED_SEGMENTS, POD_TCP_SENT_SEGMENTS, POD_TCP_TIMEOUTS,
};
use super::super::page::{Labels, Page};
use super::namespaces::Scope;
use super::{Outcome, Scrape, Subject, of_pod};
use crate::host::sockets::{
    DEFAULT_ENTRIES, SocketCounter, SocketSample, SocketTraffic, SocketsError,
};
use crate::pin::snapshot::ContainerState;

type Count = fn(&SocketTraffic) -> u64;

const FAMILIES: [(&Family, Count); 4] = [
    (&POD_NETWORK_SOCKET_RECEIVE_BYTES, |counts| {
        counts.receive.bytes
    }),
    (&POD_NETWORK_SOCKET_RECEIVE_PACKETS, |counts| {
        counts.receive.packets
    }),
    (&POD_NETWORK_SOCKET_TRANSMIT_BYTES, |counts| {
        counts.transmit.bytes
    }),
    (&POD_NETWORK_SOCKET_TRANSMIT_PACKETS, |counts| {
        counts.transmit.packets
    }),
];

const TCP_FAMILIES: [(&Family, Count); 3] = [
    (&POD_TCP_SENT_SEGMENTS, |counts| counts.tcp.sent),
    (&POD_TCP_RETRANSMITTED_SEGMENTS, |counts| {
        counts.tcp.retransmitted
    }),
    (&POD_TCP_TIMEOUTS, |counts| counts.tcp.timeouts),
];

/// What sockets are counted by.
#[derive(Debug)]
pub(in crate::metrics) struct Sockets {
    cgroup_root: PathBuf,
    trees: Vec<String>,
    /// Where there is none yet, the next scrape tries again; why there will be none, else.
    counter: Result<Option<SocketCounter>, String>,
    /// The last reason that the log has.
    logged: Option<String>,
}

// === impl Sockets ===

impl Sockets {
    pub(in crate::metrics) fn new(cgroup_root: &Path, trees: &[String]) -> Self {
        let (cgroup_root, trees) = (cgroup_root.to_owned(), trees.to_vec());
        let mut sockets = Self {
            cgroup_root,
            trees,
            counter: Ok(None),
            logged: None,
        };
        sockets.begin();
        sockets
    }

    /// Begins to count, where that was not to be had so far: the kernel may have been short of memory, or we of descriptors.
    fn begin(&mut self) {
        if !matches!(self.counter, Ok(None)) {
            return;
        }
        self.counter = match SocketCounter::new(&self.cgroup_root, &self.trees, DEFAULT_ENTRIES) {
            Ok(counter) => Ok(Some(counter)),
            Err(error) => {
                let reason = said(&error);
                if self.logged.as_ref() != Some(&reason) {
                    tracing::warn!("the pods' sockets are not counted: {reason}");
                    self.logged = Some(reason.clone());
                }
                if error.is_terminal() {
                    Err(reason)
                } else {
                    Ok(None)
                }
            }
        };
    }

    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        self.begin();
        let counter = match &mut self.counter {
            Ok(Some(counter)) => counter,
            Ok(None) => return Outcome::Partial,
            Err(reason) => return Outcome::Unsupported(reason.clone()),
        };
        let pods = pods(&scrape.subjects);
        let paths: HashSet<&str> = pods.values().map(|(path, _)| *path).collect();
        let attached = counter.attach();
        let look = match counter.sample(&scrape.sources.cgroups, &paths) {
            Ok(look) => look,
            Err(error) => return failed(&error),
        };
        let complete = attached.is_ok() && !look.overflowed;
        if !pods.is_empty() && look.pods.is_empty() {
            return match attached {
                Err(error) => failed(&error),
                Ok(()) => Outcome::Unsupported("the pods have no cgroups of version 2".to_owned()),
            };
        }
        let networks = scrape.networks();
        let on_host = networks.pods.iter().filter(|pod| pod.scope == Scope::Host);
        let on_host: HashSet<&Labels> = on_host.map(|pod| &pod.labels).collect();
        write(page, &pods, &look, &on_host);
        Outcome::of(complete && networks.complete)
    }
}

fn write(
    page: &mut Page,
    pods: &BTreeMap<(&str, &str), (&str, &ContainerState)>,
    look: &SocketSample,
    on_host: &HashSet<&Labels>,
) {
    let mut lines = FAMILIES.map(|(family, _)| page.lines(family));
    let mut of_tcp = TCP_FAMILIES.map(|(family, _)| page.more_lines(family));
    for (path, state) in pods.values() {
        let Some(counts) = look.pods.get(*path) else {
            continue;
        };
        let labels = of_pod(state);
        lines
            .iter_mut()
            .zip(FAMILIES)
            .for_each(|(lines, (_, count))| lines.put(&labels, count(counts)));
        // A pod has either source for as long as it is there: another one would look like a jump, or like a new start.
        if on_host.contains(&labels) {
            let of_tcp = of_tcp.iter_mut().zip(TCP_FAMILIES);
            of_tcp.for_each(|(lines, (_, count))| lines.put(&labels, count(counts)));
        }
    }
    lines
        .into_iter()
        .chain(of_tcp)
        .for_each(|lines| page.add(lines));
}

/// The pods by name, each with its cgroup. Of two with one name, the one that runs is meant.
pub(super) fn pods<'a>(
    subjects: &[Subject<'a>],
) -> BTreeMap<(&'a str, &'a str), (&'a str, &'a ContainerState)> {
    let mut pods: BTreeMap<_, (&str, &ContainerState)> = BTreeMap::new();
    for subject in subjects {
        let Some(cgroup) = subject.state.cgroup.as_deref() else {
            continue;
        };
        let Some((pod, _)) = cgroup.rsplit_once('/') else {
            continue;
        };
        let name = (subject.state.namespace.as_str(), subject.state.pod.as_str());
        let there = pods.entry(name).or_insert((pod, subject.state));
        if subject.state.running && !there.1.running {
            *there = (pod, subject.state);
        }
    }
    pods
}

fn failed(error: &SocketsError) -> Outcome {
    if error.is_terminal() {
        Outcome::Unsupported(said(error))
    } else {
        Outcome::Partial
    }
}

/// An error with what is behind it.
fn said(error: &SocketsError) -> String {
    let mut said = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        said = format!("{said}: {inner}");
        source = inner.source();
    }
    said
}
