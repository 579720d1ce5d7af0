//! One scrape: the collectors one after the other, each timed, with a deadline, and none able to fail the others.

mod cpu;
mod memory;
mod namespaces;
mod network;
mod pressure;
mod rdma;
mod shared;
mod state;
mod threads;

pub(super) mod caches;
pub(super) mod connections;
pub(super) mod foreign;
mod looks;
mod monitors;
pub(super) mod places;
pub(super) mod resctrl;
pub(super) mod sockets;
pub(super) mod switches;
mod tally;
pub(super) mod tasks;
pub(super) mod tcp;

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::families::{
    COLLECTOR_CONTAINERS_LEFT_OUT, COLLECTOR_CPU_SECONDS, COLLECTOR_DURATION_SECONDS,
    COLLECTOR_SUCCESS, COLLECTOR_UNSUPPORTED,
};
use super::page::{Labels, Lines, Page};
use super::{Sources, lock};
use crate::cpu::CpuSet;
use crate::host::proc;
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use namespaces::Networks;

/// How long a collector may take, within the time for the whole page. The series that it has not reached by then are missing
/// from the page; other collectors' series are not.
const DEADLINE: Duration = Duration::from_secs(1);

/// A container that has a cgroup, with the labels of its lines.
struct Subject<'a> {
    state: &'a ContainerState,
    cgroup: &'a str,
    /// Its number, for as long as it is there.
    number: usize,
    labels: Labels,
    /// Its processes, where they could be read.
    processes: Option<Vec<i32>>,
    /// How many threads these have, where one cgroup counts them.
    threads: Option<usize>,
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
    /// Some containers are left out, and it is known why: how many for each reason. The others are complete, or not.
    LeftOut {
        complete: bool,
        reasons: BTreeMap<String, usize>,
    },
}

// === impl Outcome ===

impl Outcome {
    fn of(complete: bool) -> Self {
        if complete {
            Self::Complete
        } else {
            Self::Partial
        }
    }
}

// === impl Subject ===

impl Subject<'_> {
    /// The CPUs that it owns and runs on, which are those that it owns less what is offline; nothing in the shared pool. Where
    /// it may run on others, too, the kernel does not hold what was assigned, and there is no telling who else is on them.
    fn in_force(&self) -> Option<CpuSet> {
        let effective = self.state.effective.as_ref()?;
        self.state
            .own()
            .filter(|own| effective.is_subset(own))
            .map(|_| effective.clone())
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
        let of = || {
            let mut ways = lock(&self.sources.ways);
            Networks::of(&self.subjects, &self.sources.proc, &mut ways, || {
                self.is_late()
            })
        };
        self.networks.get_or_init(of)
    }
}

/// Runs every collector, on an empty page that must be complete at `until`.
pub(super) fn collect(snapshot: &Snapshot, sources: &Sources, page: Page, until: Instant) -> Page {
    let mut scrape = Scrape {
        snapshot,
        sources,
        subjects: numbered(subjects(snapshot), sources),
        networks: OnceCell::new(),
        until,
    };
    let mut run = Run::new(sources, page, until);
    run.collector("state", &mut scrape, state::collect);
    run.collector("cgroup", &mut scrape, cpu::collect);
    run.collector("threads", &mut scrape, threads::collect);
    run.collector("tasks", &mut scrape, |page, scrape| {
        lock(&sources.tasks).collect(page, scrape)
    });
    run.collector("pressure", &mut scrape, pressure::collect);
    run.collector("memory", &mut scrape, memory::collect);
    run.collector("foreign", &mut scrape, |page, scrape| {
        lock(&sources.foreign).collect(page, scrape)
    });
    run.collector("caches", &mut scrape, |page, scrape| {
        lock(&sources.caches).collect(page, scrape)
    });
    run.collector("l2", &mut scrape, |page, scrape| {
        match &mut *lock(&sources.second_level) {
            Ok(second_level) => second_level.collect(page, scrape),
            Err(reason) => Outcome::Unsupported(reason.clone()),
        }
    });
    run.collector("resctrl", &mut scrape, |page, scrape| {
        lock(&sources.resctrl).collect(page, scrape)
    });
    run.collector("network", &mut scrape, network::collect);
    run.collector("tcp", &mut scrape, |page, scrape| {
        lock(&sources.timeouts).collect(page, scrape)
    });
    run.collector("rdma", &mut scrape, rdma::collect);
    if let Some(connections) = &sources.connections {
        run.collector("connections", &mut scrape, |page, scrape| {
            connections.collect(page, scrape)
        });
    }
    if let Some(sockets) = &sources.sockets {
        run.collector("sockets", &mut scrape, |page, scrape| {
            lock(sockets).collect(page, scrape)
        });
    }
    run.page()
}

/// The containers that have a cgroup. Of a pod that is replaced by one of the same name, both may be there for a while: then
/// those that run are meant.
fn subjects(snapshot: &Snapshot) -> Vec<Subject<'_>> {
    let mut subjects: Vec<Subject<'_>> = Vec::with_capacity(snapshot.containers.len());
    let mut places = HashMap::with_capacity(snapshot.containers.len());
    for state in &snapshot.containers {
        let Some(cgroup) = state.cgroup.as_deref() else {
            continue;
        };
        let labels = of_container(state);
        let new = Subject {
            state,
            cgroup,
            number: 0,
            labels,
            processes: None,
            threads: None,
        };
        let name = (&state.namespace, &state.pod, &state.container);
        match places
            .get(&name)
            .and_then(|at: &usize| subjects.get_mut(*at))
        {
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

/// Gives each its number, and has forgotten what was kept of those that are not there any more.
fn numbered<'a>(mut subjects: Vec<Subject<'a>>, sources: &Sources) -> Vec<Subject<'a>> {
    let (mut counters, mut switches) = (lock(&sources.counters), lock(&sources.switches));
    let (mut tasks, mut ways) = (lock(&sources.tasks), lock(&sources.ways));
    let gone = |number| {
        counters.forget(number);
        switches.forget(number);
        tasks.forget(number);
        ways.forget(number);
    };
    let numbers = lock(&sources.places).assign(subjects.iter().map(|subject| subject.cgroup), gone);
    subjects
        .iter_mut()
        .zip(numbers)
        .for_each(|(subject, number)| subject.number = number);
    subjects
}

/// The collectors so far, and what they have cost.
struct Run<'a> {
    sources: &'a Sources,
    page: Page,
    /// When the page must be complete.
    until: Instant,
    duration: Lines,
    cpu: Lines,
    success: Lines,
    unsupported: Lines,
    left_out: Lines,
}

// === impl Run ===

impl<'a> Run<'a> {
    fn new(sources: &'a Sources, page: Page, until: Instant) -> Self {
        Self {
            sources,
            page,
            until,
            duration: Lines::of(&COLLECTOR_DURATION_SECONDS),
            cpu: Lines::of(&COLLECTOR_CPU_SECONDS),
            success: Lines::of(&COLLECTOR_SUCCESS),
            unsupported: Lines::of(&COLLECTOR_UNSUPPORTED),
            left_out: Lines::of(&COLLECTOR_CONTAINERS_LEFT_OUT),
        }
    }

    fn collector<'s>(
        &mut self,
        name: &'static str,
        scrape: &mut Scrape<'s>,
        collector: impl FnOnce(&mut Page, &mut Scrape<'s>) -> Outcome,
    ) {
        let (start, used) = (Instant::now(), proc::thread_cpu_time());
        scrape.until = self.until.min(start + DEADLINE);
        // The page's time is up: a collector that has not begun counts as failed.
        let outcome = if scrape.is_late() {
            Outcome::Partial
        } else {
            collector(&mut self.page, scrape)
        };
        let used = proc::thread_cpu_time().saturating_sub(used);
        let labels = Labels::new(&[("collector", name)]);
        self.duration.put(&labels, start.elapsed().as_secs_f64());
        self.cpu
            .put(&labels, self.sources.cost(name, used).as_secs_f64());
        let failed = matches!(
            outcome,
            Outcome::Partial
                | Outcome::LeftOut {
                    complete: false,
                    ..
                }
        );
        self.success.put(&labels, !failed);
        match outcome {
            Outcome::Unsupported(reason) => {
                self.unsupported
                    .put_with(&labels, &[("reason", &reason)], true);
            }
            Outcome::LeftOut { reasons, .. } => {
                for (reason, containers) in reasons {
                    self.left_out
                        .put_with(&labels, &[("reason", &reason)], containers);
                }
            }
            Outcome::Complete | Outcome::Partial => {}
        }
    }

    fn page(self) -> Page {
        let Self {
            mut page,
            duration,
            cpu,
            success,
            unsupported,
            left_out,
            ..
        } = self;
        [duration, cpu, success, unsupported, left_out]
            .into_iter()
            .for_each(|lines| page.add(lines));
        page.without_room()
    }
}

/// The labels of a pod's series.
fn of_pod(state: &ContainerState) -> Labels {
    Labels::new(&[("namespace", &state.namespace), ("pod", &state.pod)])
}

fn of_container(state: &ContainerState) -> Labels {
    Labels::new(&[
        ("namespace", &state.namespace),
        ("pod", &state.pod),
        ("container", &state.container),
    ])
}

#[cfg(test)]
mod tests;
