//! Metric families, collectors and exposition: the page that Prometheus scrapes.
//!
//! A scrape is synchronous: it reads the latest [`Snapshot`] and the kernel's counters, and keeps no state of deleted pods.
//! Each collector reports its duration, CPU time and success. A failed collector does not fail the scrape. A feature that the
//! machine lacks has no series and never looks like zero; a series of its own gives the reason. Scrapes within a second share
//! a page. [`AgentMetrics`] holds the agent's own counters.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod agent;
pub mod build;
mod collectors;
pub(crate) mod families;
mod page;
mod peer;
mod process;
#[cfg(feature = "reclaim")]
mod reclaim;
mod value;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use collectors::{Collectors, ConnectionSampler, Host};

pub use agent::AgentMetrics;
pub use collectors::COLLECTORS;
pub use families::{
    AGENT_FAMILIES, API_FAMILIES, FAMILIES, Family, FamilyKind, RECLAIM_FAMILIES, RUNTIME_FAMILIES,
};
pub use page::{Chunk, Format, Labels, Lines, Page};
pub use peer::{Peer, UnknownPeers};
#[cfg(feature = "reclaim")]
pub use reclaim::ReclaimMetrics;
pub use value::Value;

use crate::host::cgroup::Cgroups;
use crate::host::counters::perf;
use crate::host::proc::Proc;
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use crate::pod::{ObjectName, ThreadStatus};

/// The time limit of a page if the scraper gives no limit: Prometheus's default timeout with a margin.
pub const PAGE_TIME: Duration = Duration::from_millis(9500);

/// The time for which scrapes share a page.
const PAGE_REUSE: Duration = Duration::from_secs(1);

/// Makes pages: the collectors, and access to the node's counters.
#[derive(Debug)]
pub struct Sources {
    host: Host,
    /// The namespaces of the pods that have series. An empty set means all namespaces.
    namespaces: BTreeSet<String>,
    /// The switched-off collectors.
    disabled: BTreeSet<String>,
    /// Present if the connections are sampled.
    connections: Option<Arc<ConnectionSampler>>,
    pages: Mutex<PageMaker>,
}

/// The collectors and the latest page.
#[derive(Debug)]
struct PageMaker {
    collectors: Collectors,
    last: Option<LastPage>,
}

#[derive(Debug)]
struct LastPage {
    at: Instant,
    snapshot: Arc<Snapshot>,
    page: Page,
}

// === impl Sources ===

impl Sources {
    /// Sources for the machine whose `proc` and `sys` lie below `root`.
    pub fn new(cgroups: Cgroups, proc: Proc, root: &Path) -> Self {
        let host = Host::new(cgroups, proc, root);
        let pages = Mutex::new(PageMaker {
            collectors: Collectors::new(&host),
            last: None,
        });
        Self {
            host,
            namespaces: BTreeSet::new(),
            disabled: BTreeSet::new(),
            connections: None,
            pages,
        }
    }

    /// Switches collectors off. The names are in [`COLLECTORS`].
    #[must_use]
    pub fn without(mut self, collectors: impl IntoIterator<Item = String>) -> Self {
        self.disabled.extend(collectors);
        let all = &mut self.pages.get_mut().collectors;
        self.disabled.iter().for_each(|name| all.remove(name));
        self
    }

    /// Limits the series of pods and containers to these namespaces. An empty list means all namespaces.
    #[must_use]
    pub fn in_namespaces(mut self, namespaces: impl IntoIterator<Item = String>) -> Self {
        self.namespaces = namespaces.into_iter().collect();
        self
    }

    /// Counts these events instead of the hardware's, for tests on machines without hardware
    /// counters.
    #[must_use]
    pub fn counting(mut self, events: perf::PerfEvents) -> Self {
        self.pages.get_mut().collectors.set_events(events, 0);
        self
    }

    /// Also counts the events of containers on shared CPUs, with at most this many descriptors.
    /// Each event of a container needs a descriptor per CPU, and the counters make each switch
    /// between containers slower.
    #[must_use]
    pub fn counting_shared(mut self, events: perf::PerfEvents, descriptors: usize) -> Self {
        let collectors = &mut self.pages.get_mut().collectors;
        collectors.set_events(events, descriptors);
        self
    }

    /// Counts the traffic of the pods' sockets below these trees. Each packet takes a little longer. `cgroup_root` is the folder
    /// in which cgroup v2 is mounted.
    #[must_use]
    pub fn with_sockets(mut self, cgroup_root: &Path, trees: &[String]) -> Self {
        if !self.disabled.contains("sockets") {
            let collectors = &mut self.pages.get_mut().collectors;
            collectors.add_sockets(cgroup_root, trees);
        }
        self
    }

    /// Exports the TCP connections that [`Sources::sample_connections`] reads. For training pods, also the traffic with each
    /// of this many peers. `cgroup_root` is the folder in which cgroup v2 is mounted.
    #[must_use]
    pub fn with_connections(mut self, cgroup_root: &Path, peers: usize) -> Self {
        if !self.disabled.contains("connections") {
            let sampler = Arc::new(ConnectionSampler::new(cgroup_root, peers));
            let collectors = &mut self.pages.get_mut().collectors;
            collectors.add_connections(Arc::clone(&sampler));
            self.connections = Some(sampler);
        }
        self
    }

    /// The remote addresses of training pods that had no known pod in the last sample.
    pub fn unknown_peers(&self) -> UnknownPeers {
        let connections = self.connections.as_ref();
        connections
            .map(|sampler| sampler.unknown_peers())
            .unwrap_or_default()
    }

    /// Sets the addresses of a training job's pods on all nodes.
    pub fn set_peers(&self, job: ObjectName, peers: impl IntoIterator<Item = (IpAddr, Peer)>) {
        if let Some(connections) = &self.connections {
            connections.set_peers(job, peers);
        }
    }

    /// Samples the TCP connections of all pods, if enabled. That enters every namespace and takes
    /// too long for a scrape.
    pub fn sample_connections(&self, snapshot: &Snapshot) {
        if let Some(connections) = &self.connections {
            connections.sample(&self.host, snapshot, &self.namespaces);
        }
    }

    /// Collects the families of the node's pods.
    pub fn collect(&self, snapshot: &Snapshot) -> Page {
        let until = Instant::now() + PAGE_TIME;
        let mut pages = self.pages.lock();
        self.run(&mut pages, snapshot, Page::default(), until)
    }

    /// Collects the families, or returns the page of the last second if the snapshot is the same. Collectors that have not
    /// started by `until` are left out and count as failed. `None`: another page was in progress until then.
    pub fn collect_shared(&self, snapshot: &Arc<Snapshot>, until: Instant) -> Option<Page> {
        let mut pages = self.pages.try_lock_until(until)?;
        Some(self.page(&mut pages, snapshot, until))
    }

    /// The threads of each container of the snapshot, from a page of the last second or a new page. `None` for a container
    /// whose threads are unknown, and for all containers if another page was in progress until `until`.
    pub fn thread_statuses(
        &self,
        snapshot: &Arc<Snapshot>,
        until: Instant,
    ) -> Vec<Option<ThreadStatus>> {
        let containers = snapshot.containers.iter();
        let Some(mut pages) = self.pages.try_lock_until(until) else {
            return containers.map(|_| None).collect();
        };
        self.page(&mut pages, snapshot, until);
        containers
            .map(|container| pages.collectors.thread_status(container, snapshot))
            .collect()
    }

    /// The threads of a container, as of the last scrape. Waits for a page in progress.
    pub fn thread_status(
        &self,
        container: &ContainerState,
        snapshot: &Snapshot,
    ) -> Option<ThreadStatus> {
        let pages = self.pages.lock();
        pages.collectors.thread_status(container, snapshot)
    }

    fn page(&self, pages: &mut PageMaker, snapshot: &Arc<Snapshot>, until: Instant) -> Page {
        let is_current = |last: &&LastPage| {
            last.at.elapsed() < PAGE_REUSE && Arc::ptr_eq(&last.snapshot, snapshot)
        };
        if let Some(last) = pages.last.as_ref().filter(is_current) {
            return last.page.clone();
        }
        let empty = pages.last.take().map(|last| last.page.emptied());
        let page = self.run(pages, snapshot, empty.unwrap_or_default(), until);
        let at = Instant::now();
        // A scraper with more time must not get a page that was cut short.
        if at < until {
            pages.last = Some(LastPage {
                at,
                snapshot: Arc::clone(snapshot),
                page: page.clone(),
            });
        }
        page
    }

    fn run(&self, pages: &mut PageMaker, snapshot: &Snapshot, page: Page, until: Instant) -> Page {
        pages
            .collectors
            .collect(snapshot, &self.host, &self.namespaces, page, until)
    }
}
