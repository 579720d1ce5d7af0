//! [`Scrape`]: the state that all collectors of a page share, and [`Collector`], the interface of a collector.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::super::page::Page;
use super::cgroup_numbers::CgroupNumbers;
use super::measured::{CollectOutcome, Deadline, Host, MeasuredContainer, measured_containers};
use super::pod_networks::PodNetworks;
use super::thread_records::ThreadRecords;
use crate::host::cgroup::Counters;
use crate::host::proc::{NetnsHandles, Reader};
use crate::pin::Snapshot;

/// A part of a page: reads some counters and writes their families.
///
/// It is called once per page, under the lock that all collectors share, and may keep state between
/// pages. State that several collectors need belongs into [`Scrape`].
pub(super) trait Collector: fmt::Debug + Send {
    /// The value of the label `collector`, and the key of its switch.
    fn name(&self) -> &'static str;

    /// Writes the collector's families to the page. Returns before the scrape's deadline.
    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome;

    /// Drops the state of a container whose cgroup is gone, because another cgroup may get the same
    /// number later.
    fn forget(&mut self, _number: usize) {}

    /// CPU time spent for the collector outside of scrapes.
    fn background_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// The number of containers or pods with kept state.
    #[cfg(test)]
    fn kept(&self) -> usize {
        0
    }
}

/// State that several collectors share and that outlives a scrape.
#[derive(Debug)]
pub(in crate::metrics) struct SharedState {
    pub(super) numbers: CgroupNumbers,
    /// The open counter files of the cgroups.
    pub(super) counters: Counters,
    /// Open handles on the pods' network namespaces.
    pub(super) netns_handles: NetnsHandles,
    /// A buffer for files that are not kept open.
    pub(super) reader: Reader,
    pub(super) threads: ThreadRecords,
}

/// The input of a scrape: the snapshot, the containers and the shared state.
pub(super) struct Scrape<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) host: &'a Host,
    pub(super) state: &'a mut SharedState,
    /// The namespaces of the pods that have series. An empty set means all namespaces.
    pub(super) namespaces: &'a BTreeSet<String>,
    pub(super) containers: Vec<MeasuredContainer<'a>>,
    pub(super) deadline: Deadline,
    /// Whether the collector `threads` is on.
    pub(super) has_thread_counts: bool,
    networks: Option<Rc<PodNetworks>>,
}

// === impl Scrape ===

impl<'a> Scrape<'a> {
    /// Numbers the containers. Also returns the numbers of the cgroups that are gone: their state must be dropped.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        host: &'a Host,
        state: &'a mut SharedState,
        namespaces: &'a BTreeSet<String>,
        deadline: Deadline,
    ) -> (Self, Vec<usize>) {
        let mut containers = measured_containers(snapshot, namespaces);
        let mut gone = Vec::new();
        let numbers = state.numbers.assign(
            containers.iter().map(|container| container.cgroup),
            |number| gone.push(number),
        );
        for (container, number) in containers.iter_mut().zip(numbers) {
            container.number = number;
        }
        for number in &gone {
            state.counters.forget(*number);
            state.netns_handles.forget(*number);
            state.threads.forget(*number);
        }
        let scrape = Self {
            snapshot,
            host,
            state,
            namespaces,
            containers,
            deadline,
            has_thread_counts: true,
            networks: None,
        };
        (scrape, gone)
    }

    /// Reads the process ids of the containers, as far as no earlier collector has.
    pub(super) fn list_processes(&mut self) {
        let missing = |container: &&mut MeasuredContainer<'_>| container.processes.is_none();
        for container in self.containers.iter_mut().filter(missing) {
            if self.deadline.is_over() {
                break;
            }
            let mut cgroup = self.state.counters.of(container.number, container.cgroup);
            container.list_processes(&mut cgroup);
        }
    }

    /// The network of each pod. The first caller finds them, and later callers share the result.
    pub(super) fn networks(&mut self) -> Rc<PodNetworks> {
        if let Some(networks) = &self.networks {
            return Rc::clone(networks);
        }
        self.list_processes();
        let deadline = self.deadline;
        let networks = Rc::new(PodNetworks::find(
            &self.containers,
            &self.host.proc,
            &mut self.state.netns_handles,
            || deadline.is_over(),
        ));
        self.networks = Some(Rc::clone(&networks));
        networks
    }
}
