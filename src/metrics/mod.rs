//! Families, collectors, exposition: what Prometheus scrapes.
//!
//! A scrape is synchronous: it reads the latest [`Snapshot`] and the kernel's counters, and keeps nothing that a vanished
//! pod would leave behind. Counters of the agent's own doings live in [`AgentMetrics`]. Every collector reports its own
//! duration, CPU time and success, and one failing never fails the scrape. What a machine doesn't offer has no series, not a
//! zero, and the reason is a series of its own. Scrapes within a second share what was collected: two servers cost as much
//! as one.

mod agent;
mod api;
mod collectors;
mod families;
mod number;
mod page;
mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use collectors::{caches, connections, foreign, places, resctrl, sockets, switches, tasks, tcp};

pub use agent::AgentMetrics;
pub use api::{ApiNumbers, PlaceNumbers};
pub use collectors::tasks::ThreadTruth;
pub use families::{AGENT_FAMILIES, API_FAMILIES, FAMILIES, Family, Kind, RUNTIME_FAMILIES};
pub use page::{Chunk, Format, Page};
pub use runtime::RuntimeNumbers;

use crate::host::cgroup::{Cgroups, Counters};
use crate::host::proc::{NetnsHandles, Proc, Reader};
use crate::host::resctrl::Resctrl;
use crate::host::taskstats::Taskstats;
use crate::host::{limits, perf};
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use crate::pod::Role;

/// Training jobs, by namespace and name, with addresses at the other ends of their pods' connections that are no known pod's.
pub type Unknown = BTreeMap<(String, String), BTreeSet<IpAddr>>;

/// A pod at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its name; its namespace is that of the training job.
    pub pod: String,
    /// Its role in the job.
    pub role: Role,
}

/// How long a page may take where the scraper does not limit the time: Prometheus's own default, less the margin.
pub const PAGE_TIME: Duration = Duration::from_millis(9500);

/// For how long scrapes share what was collected.
const SHARED: Duration = Duration::from_secs(1);

/// What a scrape may read.
#[derive(Debug)]
pub struct Sources {
    /// The cgroups, for CPU time and throttling.
    pub cgroups: Cgroups,
    /// The processes, for threads, context switches and network counters.
    pub proc: Proc,
    places: Mutex<places::Places>,
    counters: Mutex<Counters>,
    /// To what the pods' networks count.
    ways: Mutex<NetnsHandles>,
    /// Where the kernel lets us ask for processes rather than threads.
    taskstats: Mutex<Option<Taskstats>>,
    /// What must last from one scrape to the next so that no counter goes back.
    switches: Mutex<switches::Switchboard>,
    timeouts: Mutex<tcp::Timeouts>,
    tasks: Mutex<tasks::Tasks>,
    foreign: Mutex<foreign::Foreign>,
    caches: Mutex<caches::Caches>,
    /// Or why the second-level cache is not counted.
    second_level: Mutex<Result<caches::Caches, String>>,
    resctrl: Mutex<resctrl::Monitors>,
    /// Reads what is not kept open.
    reader: Mutex<Reader>,
    /// Below which the node's devices are: this machine's own, or a tree of files.
    root: PathBuf,
    /// Where they are asked for.
    connections: Option<connections::Connections>,
    /// Where they are asked for.
    sockets: Option<Mutex<sockets::Sockets>>,
    /// CPU time of each collector so far.
    costs: Mutex<BTreeMap<&'static str, Duration>>,
    last: parking_lot::Mutex<Option<Collected>>,
}

/// What was collected last.
#[derive(Debug)]
struct Collected {
    at: Instant,
    snapshot: Arc<Snapshot>,
    page: Page,
}

// === impl Sources ===

impl Sources {
    /// Sources on these hierarchies and this /proc, of the machine whose `proc` and `sys` lie below `root`.
    pub fn new(cgroups: Cgroups, proc: Proc, root: &Path) -> Self {
        let foreign = Mutex::new(foreign::Foreign::new(root));
        let room = limits::raise_open_file_limit();
        let counters = Mutex::new(Counters::new(cgroups.clone(), room.cgroups));
        let ways = Mutex::new(NetnsHandles::new(room.proc_handles));
        let taskstats = Mutex::new(taskstats(root));
        let (places, switches, timeouts) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (reader, costs) = (Mutex::default(), Mutex::default());
        let caches = Mutex::new(caches::Caches::new(perf::hardware_events(root), 0));
        let second_level = Mutex::new(caches::Caches::second_level(
            perf::second_level_cache_events(root),
        ));
        let resctrl = Mutex::new(resctrl::Monitors::new(Resctrl::new(root)));
        Self {
            cgroups,
            proc,
            places,
            counters,
            ways,
            taskstats,
            switches,
            timeouts,
            tasks: Mutex::default(),
            foreign,
            caches,
            second_level,
            resctrl,
            reader,
            root: root.to_owned(),
            connections: None,
            sockets: None,
            costs,
            last: parking_lot::Mutex::default(),
        }
    }

    /// Counts these events on exclusive CPUs instead of the hardware's, in the families of those: what a machine without
    /// such counters shows of how they are read.
    #[must_use]
    pub fn counting(mut self, events: perf::Events) -> Self {
        self.caches = Mutex::new(caches::Caches::new(events, 0));
        self
    }

    /// Counts these events in containers that share their CPUs, too, with so many descriptors at most; each of them is one
    /// event of one container on one CPU. It costs each switch between two containers something.
    #[must_use]
    pub fn counting_shared(mut self, events: perf::Events, descriptors: usize) -> Self {
        self.caches = Mutex::new(caches::Caches::new(events, descriptors));
        self
    }

    /// Counts what the sockets of the pods below these trees send and receive, from now on: it costs each of their packets
    /// something. Where cgroup v2 is mounted is looked for at `cgroup_root`.
    #[must_use]
    pub fn with_sockets(self, cgroup_root: &Path, trees: &[String]) -> Self {
        Self {
            sockets: Some(Mutex::new(sockets::Sockets::new(cgroup_root, trees))),
            ..self
        }
    }

    /// Tells of the pods' TCP connections what [`Sources::look_at_connections`] has seen, and of those of training pods how much
    /// went to and fro between each and this many others. Where cgroup v2 is mounted is looked for at `cgroup_root`.
    #[must_use]
    pub fn with_connections(self, cgroup_root: &Path, peers: usize) -> Self {
        Self {
            connections: Some(connections::Connections::new(cgroup_root, peers)),
            ..self
        }
    }

    /// The addresses at the other ends of training pods' connections whose pods the last look did not know.
    pub fn unknown_peers(&self) -> Unknown {
        self.connections
            .as_ref()
            .map(connections::Connections::unknown)
            .unwrap_or_default()
    }

    /// Takes what somebody knows of the pods of a training job on all nodes.
    pub fn know_peers(
        &self,
        job: (String, String),
        peers: impl IntoIterator<Item = (IpAddr, Peer)>,
    ) {
        if let Some(connections) = &self.connections {
            connections.know(job, peers);
        }
    }

    /// Looks at the TCP connections of all pods, where that was asked for. It takes the longer the more namespaces there are,
    /// so a scrape does not do it.
    pub fn look_at_connections(&self, snapshot: &Snapshot) {
        if let Some(connections) = &self.connections {
            connections.look(self, snapshot);
        }
    }

    /// Collects everything that belongs to the node's pods.
    pub fn collect(&self, snapshot: &Snapshot) -> Page {
        collectors::collect(snapshot, self, Page::default(), Instant::now() + PAGE_TIME)
    }

    /// The same; or, while nothing has changed on the node, what was collected less than a second ago. Whoever comes
    /// meanwhile waits for it, until its own deadline. Collectors that have not begun by `until` are left out and counted as
    /// failed. `None`: another page was being made until then.
    pub fn collect_shared(&self, snapshot: &Arc<Snapshot>, until: Instant) -> Option<Page> {
        let mut last = self.last.try_lock_until(until)?;
        let fresh =
            |last: &&Collected| last.at.elapsed() < SHARED && Arc::ptr_eq(&last.snapshot, snapshot);
        if let Some(last) = last.as_ref().filter(fresh) {
            return Some(last.page.clone());
        }
        let room = last
            .take()
            .map(|last| last.page.emptied())
            .unwrap_or_default();
        let page = collectors::collect(snapshot, self, room, until);
        let (at, snapshot) = (Instant::now(), Arc::clone(snapshot));
        // A page that was cut short is not shared with a scraper that has more time.
        if at < until {
            *last = Some(Collected {
                at,
                snapshot,
                page: page.clone(),
            });
        }
        Some(page)
    }

    /// What is known of the threads of a container, since the last scrape.
    pub fn truth(&self, state: &ContainerState, snapshot: &Snapshot) -> Option<ThreadTruth> {
        let number = lock(&self.places).number(state.cgroup.as_deref()?)?;
        lock(&self.tasks).truth(number, state, snapshot)
    }

    /// Adds to what a collector has cost, and returns it.
    fn cost(&self, collector: &'static str, used: Duration) -> Duration {
        let mut costs = lock(&self.costs);
        let cost = costs.entry(collector).or_default();
        *cost += used;
        *cost
    }
}

/// Adds what the agent, the API and the container runtime count to what was collected; the latter where they are used.
pub fn complete(
    mut page: Page,
    agent: &AgentMetrics,
    api: Option<&ApiNumbers>,
    runtime: Option<&RuntimeNumbers>,
) -> Page {
    page.add_registry(&agent.gather());
    if let Some(api) = api {
        api.write(&mut page);
    }
    if let Some(runtime) = runtime {
        runtime.write(&mut page);
    }
    page
}

/// The kernel's accounting of this machine's processes, where it may be asked.
fn taskstats(root: &Path) -> Option<Taskstats> {
    let opened = (root == Path::new("/")).then(Taskstats::open)?;
    let refused = |error: &io::Error| {
        tracing::info!(
            "a scrape reads two files for each thread, since the kernel's accounting can't be asked for processes \
             (it takes CAP_NET_ADMIN and the machine's own process ids): {error}"
        );
    };
    opened.inspect_err(refused).ok()
}

/// A scrape that died halfway leaves nothing that the next one could trip over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
