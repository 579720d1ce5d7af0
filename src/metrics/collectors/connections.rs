//! The pods' TCP connections: how many there are, how far away their other ends are, and what they wait for.
//!
//! A look goes through the pods' network namespaces and asks the kernel in each. That takes too long for a scrape, so it is
//! done beside them, and a scrape tells what the last look has seen and what all looks have counted.

mod peers;
mod places;
mod tally;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::super::families::{
    PEER_RECEIVE_BYTES, PEER_TRANSMIT_BYTES, POD_TCP_BUSY_SECONDS, POD_TCP_CONNECTIONS,
    POD_TCP_RTT_SECONDS, POD_TCP_RWND_LIMITED_SECONDS, POD_TCP_SNDBUF_LIMITED_SECONDS,
};
use super::super::{Page, Peer, Sources, Unknown, lock};
use super::{Outcome, Scrape, of_pod, sockets, subjects};
use crate::host::cgroup::Unified;
use crate::host::diag::{SocketDiag, TcpConnection, TcpState};
use crate::host::{netns, proc};
use crate::pin::Snapshot;
use crate::pod::Role;
use peers::{Book, Job};
use places::{Owners, Place, Places};
use tally::{BOUNDS, Tally};

/// How many connections of a node are looked at; each takes some 500 bytes of us. A namespace that has more than are left is
/// passed over.
const MOST: usize = 50_000;

/// What was seen of the connections.
#[derive(Debug)]
pub(in crate::metrics) struct Connections {
    unified: Option<Unified>,
    /// How many peers of a pod are told apart; with none, there is nothing to be known of them.
    peers: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    tally: Tally,
    book: Book,
    /// How the last look has ended.
    outcome: Outcome,
}

// === impl Connections ===

impl Connections {
    pub(in crate::metrics) fn new(cgroup_root: &Path, peers: usize) -> Self {
        let (tally, book) = (Tally::new(peers), Book::default());
        let seen = Mutex::new(Seen {
            tally,
            book,
            outcome: Outcome::Complete,
        });
        Self {
            unified: Unified::find(cgroup_root),
            peers,
            seen,
        }
    }

    pub(in crate::metrics) fn unknown(&self) -> Unknown {
        lock(&self.seen).book.unknown()
    }

    pub(in crate::metrics) fn know(
        &self,
        job: Job,
        peers: impl IntoIterator<Item = (IpAddr, Peer)>,
    ) {
        lock(&self.seen).book.tell(job, peers);
    }

    /// Looks at the connections of all pods.
    pub(in crate::metrics) fn look(&self, sources: &Sources, snapshot: &Snapshot) {
        let used = proc::thread_cpu_time();
        let subjects = subjects(snapshot);
        let Places {
            places,
            mut unsupported,
            mut complete,
        } = places::of(&subjects, sources, self.unified.as_ref());
        let stops: Vec<_> = places.iter().map(|place| place.stop.clone()).collect();
        let mut toured = Duration::ZERO;
        let mut found = Vec::with_capacity(places.len());
        let mut room = MOST;
        let mut visit = |at: usize| {
            match SocketDiag::open().and_then(|mut diag| diag.connections(room)) {
                Ok(connections) => {
                    room -= connections.len();
                    found.push((at, connections));
                }
                Err(error) if tells_nothing(&error) => unsupported = Some(said(&error)),
                Err(_) => complete = false,
            }
            toured = proc::thread_cpu_time();
        };
        if let Err(error) = netns::for_each_netns(&stops, &mut visit) {
            unsupported = Some(error.to_string());
        }
        let there: HashSet<&str> = subjects
            .iter()
            .filter_map(|subject| Some(subject.cgroup.rsplit_once('/')?.0))
            .collect();
        let mut seen = lock(&self.seen);
        let jobs = if self.peers > 0 {
            peers::jobs(&subjects)
        } else {
            HashMap::new()
        };
        seen.book.begin(&jobs);
        let found = found
            .iter()
            .filter_map(|(at, connections)| Some((places.get(*at)?, connections)));
        for (place, connections) in found.clone() {
            if let Owners::One(pod) = &place.owners
                && let Some((job, peer)) = jobs.get(pod)
            {
                seen.book.learn(job, peer, connections);
            }
        }
        for (place, connections) in found {
            unsupported = seen.note(place, connections, &jobs).or(unsupported);
        }
        seen.tally.end(|pod| there.contains(pod));
        seen.outcome = match unsupported {
            Some(reason) => Outcome::Unsupported(reason),
            None => Outcome::of(complete),
        };
        drop(seen);
        sources.cost(
            "connections",
            toured + proc::thread_cpu_time().saturating_sub(used),
        );
    }

    pub(super) fn collect(&self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        let seen = lock(&self.seen);
        let mut connections = page.lines(&POD_TCP_CONNECTIONS);
        let mut rtt = page.lines(&POD_TCP_RTT_SECONDS);
        let mut busy = page.lines(&POD_TCP_BUSY_SECONDS);
        let mut receiver = page.lines(&POD_TCP_RWND_LIMITED_SECONDS);
        let mut buffer = page.lines(&POD_TCP_SNDBUF_LIMITED_SECONDS);
        let mut received = page.lines(&PEER_RECEIVE_BYTES);
        let mut sent = page.lines(&PEER_TRANSMIT_BYTES);
        for (path, state) in sockets::pods(&scrape.subjects).into_values() {
            let Some(pod) = seen.tally.of(path) else {
                continue;
            };
            let labels = of_pod(state);
            for (state, count) in TcpState::ALL.iter().zip(pod.states) {
                // One that was there once goes down to zero; one that never was is left out.
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
                    .map_or(Role::Other, |peer| peer.role)
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
        seen.outcome.clone()
    }
}

// === impl Seen ===

impl Seen {
    /// Notes whose the connections of a namespace are; says why it can't be told, where it can't.
    fn note(
        &mut self,
        place: &Place,
        found: &[TcpConnection],
        jobs: &HashMap<String, (Job, Peer)>,
    ) -> Option<String> {
        let Self { tally, book, .. } = self;
        match &place.owners {
            Owners::One(pod) => tally.note(pod, found.iter(), jobs.get(pod), book),
            Owners::ByCgroup(pods) => {
                // What is told of the one whole connection is told of all.
                if found
                    .iter()
                    .any(|one| one.measured.is_some() && one.cgroup.is_none())
                {
                    return Some(
                        "the kernel does not tell whose a socket is: it takes Linux 5.9".to_owned(),
                    );
                }
                for (pod, ids) in pods {
                    let own = |one: &&TcpConnection| one.cgroup.is_some_and(|id| ids.contains(&id));
                    tally.note(pod, found.iter().filter(own), jobs.get(pod), book);
                }
            }
        }
        None
    }
}

/// Whether the kernel has no diagnosis of TCP, or this process may not ask for it.
fn tells_nothing(error: &std::io::Error) -> bool {
    use nix::libc::{EACCES, ENOENT, EOPNOTSUPP, EPERM, EPROTONOSUPPORT};
    let lasting = [ENOENT, EOPNOTSUPP, EPROTONOSUPPORT, EPERM, EACCES];
    error
        .raw_os_error()
        .is_some_and(|code| lasting.contains(&code))
}

fn said(error: &std::io::Error) -> String {
    format!("the kernel tells nothing of TCP connections (it takes CONFIG_INET_DIAG): {error}")
}
