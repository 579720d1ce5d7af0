//! The collectors of a page. They run one after the other, each with a time limit. A failed collector does not affect the
//! series of the others.

mod cgroup;
mod cgroup_numbers;
mod connections;
mod event_totals;
mod events;
mod interference;
mod measured;
mod memory;
mod monitor_plan;
mod network;
mod pod_networks;
mod pressure;
mod rdma;
mod resctrl;
mod scheduler_totals;
mod scrape;
mod shared_events;
mod sockets;
mod state;
mod tasks;
mod tcp;
mod thread_records;
mod threads;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::families::{
    COLLECTOR_CONTAINERS_LEFT_OUT, COLLECTOR_CPU_SECONDS, COLLECTOR_DURATION_SECONDS,
    COLLECTOR_SUCCESS, COLLECTOR_UNSUPPORTED,
};
use super::page::{Labels, Lines, Page};
use crate::host::cgroup::{Cgroups, Counters};
use crate::host::machine::Machine;
use crate::host::proc::{self, NetnsHandles, Proc, Reader};
use crate::host::{counters::perf, limits};
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use crate::pod::ThreadStatus;
use cgroup_numbers::CgroupNumbers;
use measured::{CollectOutcome, Deadline, Unsupported};
use scrape::{Collector, Scrape, SharedState};

use thread_records::ThreadRecords;

pub(super) use connections::ConnectionSampler;
pub(super) use measured::Host;

/// The time limit of a collector, within the time limit of the page. Series that a collector has not written by then are
/// missing from the page. Unit tests have more time, because their machine may be busy.
const COLLECTOR_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// The names of all collectors, in the order in which they run: the keys of `metrics.collectors`.
pub const COLLECTORS: [&str; 15] = [
    "state",
    "cgroup",
    "threads",
    "tasks",
    "pressure",
    "memory",
    "interference",
    "caches",
    "l2",
    "resctrl",
    "network",
    "tcp",
    "rdma",
    "connections",
    "sockets",
];

/// The enabled collectors and the state that lasts between pages. One lock guards all of it.
#[derive(Debug)]
pub(super) struct Collectors {
    state: SharedState,
    /// In the order of [`COLLECTORS`].
    enabled: Vec<EnabledCollector>,
}

/// A collector that is switched on.
#[derive(Debug)]
struct EnabledCollector {
    collector: Box<dyn Collector>,
    /// CPU time of all scrapes so far.
    cpu_time: Duration,
    /// The latest logged reason for missing support.
    logged: Option<Unsupported>,
}

// === impl Host ===

impl Host {
    pub(super) fn new(cgroups: Cgroups, proc: Proc, root: &std::path::Path) -> Self {
        Self {
            cgroups,
            proc,
            root: root.to_owned(),
        }
    }
}

// === impl Collectors ===

impl Collectors {
    /// All collectors without `connections` and `sockets`, which cost the pods something.
    pub(super) fn new(host: &Host) -> Self {
        let limits = limits::raise_open_file_limit();
        let root = host.root.as_path();
        let collectors: [Box<dyn Collector>; 13] = [
            Box::new(state::StateCollector(Machine::read(root))),
            Box::new(cgroup::CgroupCollector),
            Box::new(threads::ThreadsCollector::new(root)),
            Box::new(tasks::TasksCollector),
            Box::new(pressure::PressureCollector),
            Box::new(memory::MemoryCollector),
            Box::new(interference::InterferenceCollector::new(root)),
            Box::new(events::EventCollector::hardware(
                perf::hardware_events(root),
                0,
            )),
            Box::new(events::EventCollector::second_level(
                perf::second_level_cache_events(root),
            )),
            Box::new(resctrl::ResctrlCollector::new(root)),
            Box::new(network::NetworkCollector),
            Box::new(tcp::TcpCollector::default()),
            Box::new(rdma::RdmaCollector),
        ];
        let mut all = Self {
            state: SharedState {
                numbers: CgroupNumbers::default(),
                counters: Counters::new(host.cgroups.clone(), limits.cgroups),
                netns_handles: NetnsHandles::new(limits.proc_handles),
                reader: Reader::default(),
                threads: ThreadRecords::default(),
            },
            enabled: Vec::new(),
        };
        collectors.into_iter().for_each(|one| all.put(one));
        all
    }

    /// Adds a collector, or replaces the one with the same name.
    fn put(&mut self, collector: Box<dyn Collector>) {
        let rank = |name: &str| COLLECTORS.iter().position(|known| *known == name);
        let name = collector.name();
        self.remove(name);
        let at = self
            .enabled
            .partition_point(|earlier| rank(earlier.collector.name()) < rank(name));
        let enabled = EnabledCollector {
            collector,
            cpu_time: Duration::ZERO,
            logged: None,
        };
        self.enabled.insert(at, enabled);
    }

    /// Switches a collector off.
    pub(super) fn remove(&mut self, name: &str) {
        self.enabled
            .retain(|enabled| enabled.collector.name() != name);
    }

    /// Replaces the hardware events of the collector `caches`, if it is on. `descriptors` limits the counters of containers
    /// on shared CPUs.
    pub(super) fn set_events(&mut self, events: perf::PerfEvents, descriptors: usize) {
        let collector = events::EventCollector::hardware(events, descriptors);
        if self.is_enabled(collector.name()) {
            self.put(Box::new(collector));
        }
    }

    /// Adds the collector `sockets`, and starts to count.
    pub(super) fn add_sockets(&mut self, cgroup_root: &std::path::Path, trees: &[String]) {
        self.put(Box::new(sockets::SocketsCollector::new(cgroup_root, trees)));
    }

    pub(super) fn add_connections(&mut self, sampler: std::sync::Arc<ConnectionSampler>) {
        self.put(Box::new(connections::ConnectionsCollector(sampler)));
    }

    fn is_enabled(&self, name: &str) -> bool {
        self.enabled
            .iter()
            .any(|enabled| enabled.collector.name() == name)
    }

    /// Runs every collector on an empty page. The page must be complete at `until`.
    pub(super) fn collect(
        &mut self,
        snapshot: &Snapshot,
        host: &Host,
        namespaces: &BTreeSet<String>,
        page: Page,
        until: Instant,
    ) -> Page {
        let Self { state, enabled } = self;
        let (mut scrape, gone) = Scrape::new(snapshot, host, state, namespaces, Deadline(until));
        scrape.has_thread_counts = enabled
            .iter()
            .any(|enabled| enabled.collector.name() == "threads");
        let mut report = ScrapeReport::new(page);
        for one in enabled {
            gone.iter().for_each(|number| one.collector.forget(*number));
            let (start, cpu_before) = (Instant::now(), proc::thread_cpu_time());
            scrape.deadline = Deadline(until.min(start + COLLECTOR_TIME));
            // A collector that starts after the page's deadline has failed.
            let outcome = if scrape.deadline.is_over() {
                CollectOutcome::Partial
            } else {
                one.collector.collect(&mut scrape, &mut report.page)
            };
            one.cpu_time += proc::thread_cpu_time().saturating_sub(cpu_before);
            one.log(&outcome);
            report.add(one, start.elapsed(), &outcome);
        }
        report.into_page()
    }

    /// The threads of a container, as of the last scrape.
    pub(super) fn thread_status(
        &self,
        container: &ContainerState,
        snapshot: &Snapshot,
    ) -> Option<ThreadStatus> {
        let number = self.state.numbers.number(container.cgroup.as_deref()?)?;
        tasks::thread_status(&self.state.threads, number, container, snapshot)
    }

    #[cfg(test)]
    fn collector(&mut self, name: &str) -> &mut dyn Collector {
        let of_name = |enabled: &&mut EnabledCollector| enabled.collector.name() == name;
        self.enabled
            .iter_mut()
            .find(of_name)
            .unwrap()
            .collector
            .as_mut()
    }
}

// === impl EnabledCollector ===

impl EnabledCollector {
    /// Logs the sentence behind the label `reason`, once per reason.
    fn log(&mut self, outcome: &CollectOutcome) {
        let unsupported = match outcome {
            CollectOutcome::Unsupported(unsupported) => Some(unsupported),
            _ => None,
        };
        if let Some(Unsupported { reason, detail }) = unsupported
            && self.logged.as_ref() != unsupported
        {
            let name = self.collector.name();
            tracing::info!("the collector {name} has no series here ({reason}): {detail}");
            self.logged = unsupported.cloned();
        }
    }
}

/// The page in progress, and the families about the collectors themselves.
struct ScrapeReport {
    page: Page,
    duration: Lines,
    cpu: Lines,
    success: Lines,
    unsupported: Lines,
    left_out: Lines,
}

// === impl ScrapeReport ===

impl ScrapeReport {
    fn new(page: Page) -> Self {
        Self {
            page,
            duration: Lines::of(&COLLECTOR_DURATION_SECONDS),
            cpu: Lines::of(&COLLECTOR_CPU_SECONDS),
            success: Lines::of(&COLLECTOR_SUCCESS),
            unsupported: Lines::of(&COLLECTOR_UNSUPPORTED),
            left_out: Lines::of(&COLLECTOR_CONTAINERS_LEFT_OUT),
        }
    }

    fn add(&mut self, enabled: &EnabledCollector, duration: Duration, outcome: &CollectOutcome) {
        let EnabledCollector {
            collector,
            cpu_time,
            ..
        } = enabled;
        let labels = Labels::new(&[("collector", collector.name())]);
        self.duration.put(&labels, duration.as_secs_f64());
        let cpu = *cpu_time + collector.background_cpu_time();
        self.cpu.put(&labels, cpu.as_secs_f64());
        self.success.put(&labels, !outcome.is_failure());
        match outcome {
            CollectOutcome::Unsupported(Unsupported { reason, .. }) => {
                self.unsupported
                    .put_with(&labels, &[("reason", reason)], true);
            }
            CollectOutcome::LeftOut { reasons, .. } => {
                for (reason, containers) in reasons {
                    self.left_out
                        .put_with(&labels, &[("reason", reason)], *containers);
                }
            }
            CollectOutcome::Complete | CollectOutcome::Partial => {}
        }
    }

    fn into_page(self) -> Page {
        let mut page = self.page;
        let families = [
            self.duration,
            self.cpu,
            self.success,
            self.unsupported,
            self.left_out,
        ];
        families.into_iter().for_each(|lines| page.add(lines));
        page.without_spare_buffers()
    }
}

#[cfg(test)]
mod tests;
