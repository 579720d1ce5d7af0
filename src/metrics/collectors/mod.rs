//! One scrape: the collectors one after the other, each timed, with a deadline, and none able to fail the others.

mod cpu;
mod memory;
mod namespaces;
mod network;
mod pressure;
mod state;
mod tcp;
mod threads;

pub(super) mod caches;
pub(super) mod connections;
pub(super) mod foreign;
mod monitors;
pub(super) mod resctrl;
pub(super) mod sockets;
pub(super) mod switches;
mod tally;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::families::{
    COLLECTOR_CPU_SECONDS, COLLECTOR_DURATION_SECONDS, COLLECTOR_SUCCESS, COLLECTOR_UNSUPPORTED,
};
use super::page::{Labels, Lines, Page};
use super::{Sources, lock};
use crate::cpu::CpuSet;
use crate::host::proc;
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use namespaces::Networks;

/// How long a collector may take. What it has not come to by then is missing from the scrape, and the others are not.
const DEADLINE: Duration = Duration::from_secs(1);

/// A container that has a cgroup, with the labels of its lines.
struct Subject<'a> {
    state: &'a ContainerState,
    cgroup: &'a str,
    labels: Labels,
    /// Its processes, where they could be read.
    processes: Option<Vec<i32>>,
}

/// What is measured in a scrape.
struct Scrape<'a> {
    snapshot: &'a Snapshot,
    sources: &'a Sources,
    subjects: Vec<Subject<'a>>,
    /// Whose network the pods use; found by the first collector that asks.
    networks: OnceCell<Networks>,
    /// When the collector that runs now must come to its end.
    until: Instant,
}

/// How a collector has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Complete,
    /// Something could not be read, or not in time.
    Partial,
    /// The machine does not offer it, for this reason.
    Unsupported(String),
}

// === impl Outcome ===

impl Outcome {
    fn of(complete: bool) -> Self {
        if complete { Self::Complete } else { Self::Partial }
    }
}

// === impl Subject ===

impl Subject<'_> {
    /// The CPUs that it owns and runs on, which are those that it owns less what is offline; nothing in the shared pool. Where
    /// it may run on others, too, the kernel does not hold what was assigned, and there is no telling who else is on them.
    fn in_force(&self) -> Option<CpuSet> {
        let effective = self.state.effective.as_ref()?;
        self.state.own().filter(|own| effective.is_subset(own)).map(|_| effective.clone())
    }
}

// === impl Scrape ===

impl Scrape<'_> {
    /// Whether the collector has to come to its end.
    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whose network each pod uses.
    fn networks(&self) -> &Networks {
        self.networks.get_or_init(|| Networks::of(&self.subjects, &self.sources.proc))
    }
}

/// Runs every collector.
pub(super) fn collect(snapshot: &Snapshot, sources: &Sources) -> Page {
    let mut scrape = Scrape {
        snapshot,
        sources,
        subjects: subjects(snapshot),
        networks: OnceCell::new(),
        until: Instant::now(),
    };
    let mut run = Run::new(sources);
    run.collector("state", &mut scrape, state::collect);
    run.collector("cgroup", &mut scrape, cpu::collect);
    run.collector("threads", &mut scrape, threads::collect);
    run.collector("pressure", &mut scrape, pressure::collect);
    run.collector("memory", &mut scrape, memory::collect);
    run.collector("foreign", &mut scrape, |page, scrape| lock(&sources.foreign).collect(page, scrape));
    run.collector("caches", &mut scrape, |page, scrape| lock(&sources.caches).collect(page, scrape));
    run.collector("resctrl", &mut scrape, |page, scrape| lock(&sources.resctrl).collect(page, scrape));
    run.collector("network", &mut scrape, network::collect);
    run.collector("tcp", &mut scrape, tcp::collect);
    if let Some(connections) = &sources.connections {
        run.collector("connections", &mut scrape, |page, scrape| connections.collect(page, scrape));
    }
    if let Some(sockets) = &sources.sockets {
        run.collector("sockets", &mut scrape, |page, scrape| lock(sockets).collect(page, scrape));
    }
    run.page()
}

/// The containers that have a cgroup. Of a pod that is replaced by one of the same name, both may be there for a while: then
/// those that run are meant.
fn subjects(snapshot: &Snapshot) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    let mut places = HashMap::new();
    for state in &snapshot.containers {
        let Some(cgroup) = state.cgroup.as_deref() else { continue };
        let new = Subject { state, cgroup, labels: of_container(state), processes: None };
        let name = (&state.namespace, &state.pod, &state.container);
        match places.get(&name).and_then(|at: &usize| subjects.get_mut(*at)) {
            Some(there) if there.state.running => {}
            Some(there) => *there = new,
            None => {
                places.insert(name, subjects.len());
                subjects.push(new);
            }
        }
    }
    subjects
}

/// The collectors so far, and what they have cost.
struct Run<'a> {
    sources: &'a Sources,
    page: Page,
    duration: Lines,
    cpu: Lines,
    success: Lines,
    unsupported: Lines,
}

// === impl Run ===

impl<'a> Run<'a> {
    fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            page: Page::default(),
            duration: Lines::of(&COLLECTOR_DURATION_SECONDS),
            cpu: Lines::of(&COLLECTOR_CPU_SECONDS),
            success: Lines::of(&COLLECTOR_SUCCESS),
            unsupported: Lines::of(&COLLECTOR_UNSUPPORTED),
        }
    }

    fn collector<'s>(
        &mut self,
        name: &'static str,
        scrape: &mut Scrape<'s>,
        collector: impl FnOnce(&mut Page, &mut Scrape<'s>) -> Outcome,
    ) {
        let (start, used) = (Instant::now(), proc::thread_cpu_time());
        scrape.until = start + DEADLINE;
        let outcome = collector(&mut self.page, scrape);
        let used = proc::thread_cpu_time().saturating_sub(used);
        let labels = Labels::new(&[("collector", name)]);
        self.duration.put(&labels, start.elapsed().as_secs_f64());
        self.cpu.put(&labels, self.sources.cost(name, used).as_secs_f64());
        self.success.put(&labels, outcome != Outcome::Partial);
        if let Outcome::Unsupported(reason) = outcome {
            self.unsupported.put_with(&labels, &[("reason", &reason)], true);
        }
    }

    fn page(self) -> Page {
        let Self { mut page, duration, cpu, success, unsupported, .. } = self;
        [duration, cpu, success, unsupported].into_iter().for_each(|lines| page.add(lines));
        page
    }
}

/// The labels of a pod's series.
fn of_pod(state: &ContainerState) -> Labels {
    Labels::new(&[("namespace", &state.namespace), ("pod", &state.pod)])
}

fn of_container(state: &ContainerState) -> Labels {
    Labels::new(&[("namespace", &state.namespace), ("pod", &state.pod), ("container", &state.container)])
}
