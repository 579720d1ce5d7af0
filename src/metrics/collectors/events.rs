//! The collectors `caches` and `l2`: the hardware's counts of cycles, instructions and cache accesses.
//!
//! The counters belong to exclusive CPUs, not to cgroups, so other tasks on an exclusive CPU are
//! counted, too; the collector `interference` reports their time. Containers on shared CPUs have
//! series only within the budget of `metrics.maxSharedCounters`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::super::families::{
    CONTAINER_CPU_CYCLES, CONTAINER_INSTRUCTIONS, CONTAINER_L2_MISSES, CONTAINER_L2_REFERENCES,
    CONTAINER_LLC_MISSES, CONTAINER_LLC_REFERENCES, CONTAINER_PERF_ENABLED_SECONDS,
    CONTAINER_PERF_RUNNING_SECONDS, Family,
};
use super::super::page::{Lines, Page};
use super::event_totals::{CountedOwner, EventTotals, plan};
use super::measured::CollectOutcome;
use super::scrape::{Collector, Scrape};
use super::shared_events::SharedCounters;
use crate::host::counters::perf::{self, CounterGroup, EVENTS, PerfError, PerfEvent, PerfEvents};

/// The time after which a machine without counters is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Reasons for owners without counters, as label values: the limit on open files (`LimitNOFILE=`) is too low; the counters of
/// some CPU can't be opened.
const FD_LIMIT: &str = "fd_limit";
const OPEN_FAILED: &str = "open_failed";

/// The family of each event.
static HARDWARE_FAMILIES: [&Family; EVENTS] = [
    &CONTAINER_CPU_CYCLES,
    &CONTAINER_INSTRUCTIONS,
    &CONTAINER_LLC_REFERENCES,
    &CONTAINER_LLC_MISSES,
];
static SECOND_LEVEL_FAMILIES: [&Family; 2] = [&CONTAINER_L2_REFERENCES, &CONTAINER_L2_MISSES];
static TIME_FAMILIES: [&Family; 2] = [
    &CONTAINER_PERF_ENABLED_SECONDS,
    &CONTAINER_PERF_RUNNING_SECONDS,
];

/// The counters of a set of events.
#[derive(Debug)]
pub(super) struct EventCollector {
    name: &'static str,
    /// The events, or the reason for their absence.
    events: Result<Vec<PerfEvent>, String>,
    /// The family of each event.
    families: &'static [&'static Family],
    /// The families of the enabled and the running time, if exported.
    time_families: &'static [&'static Family],
    /// The open counters of each CPU.
    groups: BTreeMap<u32, CounterGroup>,
    /// The owner's cgroup for each CPU with open counters.
    owners: BTreeMap<u32, String>,
    shared: SharedCounters,
    totals: EventTotals,
    /// Whether any counter was ever opened.
    supported: bool,
    /// The time and the cause of the last failed attempt.
    unsupported: Option<(Instant, CollectOutcome)>,
}

// === impl EventCollector ===

impl EventCollector {
    /// The collector `caches`. `descriptors` limits the counters of containers on shared CPUs.
    pub(super) fn hardware(events: PerfEvents, descriptors: usize) -> Self {
        Self {
            shared: SharedCounters::new(descriptors),
            time_families: &TIME_FAMILIES,
            ..Self::new("caches", Ok(events.to_vec()), &HARDWARE_FAMILIES)
        }
    }

    /// The collector `l2`.
    pub(super) fn second_level(events: Result<[PerfEvent; 2], String>) -> Self {
        let events = events.map(|events| events.to_vec());
        Self::new("l2", events, &SECOND_LEVEL_FAMILIES)
    }

    fn new(
        name: &'static str,
        events: Result<Vec<PerfEvent>, String>,
        families: &'static [&'static Family],
    ) -> Self {
        Self {
            name,
            events,
            families,
            time_families: &[],
            groups: BTreeMap::new(),
            owners: BTreeMap::new(),
            shared: SharedCounters::default(),
            totals: EventTotals::default(),
            supported: false,
            unsupported: None,
        }
    }

    /// Closes and opens counters, so that they follow the owners. Returns whether the time was
    /// enough, and the number of owners without counters by reason.
    ///
    /// # Errors
    /// The machine has no counters, or denies permission.
    fn follow_owners(
        &mut self,
        scrape: &Scrape<'_>,
        events: &[PerfEvent],
    ) -> Result<(bool, BTreeMap<&'static str, usize>), PerfError> {
        let owners: Vec<CountedOwner<'_>> = scrape
            .containers
            .iter()
            .filter_map(|container| {
                let (cgroup, cpus) = (container.cgroup, container.enforced_cpus()?);
                Some(CountedOwner { cgroup, cpus })
            })
            .collect();
        // The collectors `caches` and `l2` share the limit on descriptors.
        let max_cpus = perf::descriptor_limit() / (EVENTS + SECOND_LEVEL_FAMILIES.len());
        let plan = plan(&self.owners, &owners, max_cpus);
        plan.close.into_iter().for_each(|cpu| self.close(cpu));
        let mut left_out = BTreeMap::new();
        if plan.short > 0 {
            left_out.insert(FD_LIMIT, plan.short);
        }
        let mut failed: BTreeSet<&str> = BTreeSet::new();
        for (cpu, index) in plan.open {
            let Some(owner) = owners.get(index).filter(|_| !scrape.deadline.is_over()) else {
                return Ok((false, left_out));
            };
            match CounterGroup::open(cpu, events) {
                Ok(group) => {
                    self.supported = true;
                    self.groups.insert(cpu, group);
                    self.owners.insert(cpu, owner.cgroup.to_owned());
                }
                Err(error @ (PerfError::NoCounters | PerfError::NotPermitted))
                    if self.groups.is_empty() =>
                {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    failed.insert(owner.cgroup);
                }
            }
        }
        // The counts of a part of an owner's CPUs have no meaning.
        let partly_open = self
            .owners
            .iter()
            .filter(|(_, cgroup)| failed.contains(cgroup.as_str()));
        let partly_open: Vec<u32> = partly_open.map(|(cpu, _)| *cpu).collect();
        partly_open.into_iter().for_each(|cpu| self.close(cpu));
        if !failed.is_empty() {
            left_out.insert(OPEN_FAILED, failed.len());
        }
        Ok((true, left_out))
    }

    /// Opens counters for a moment, so that missing support is known before the first owner.
    fn probe(&mut self, scrape: &Scrape<'_>, events: &[PerfEvent]) -> Result<(), PerfError> {
        let Some(cpu) = scrape.snapshot.online.first().filter(|_| !self.supported) else {
            return Ok(());
        };
        match CounterGroup::open(cpu, events) {
            Err(error @ (PerfError::NoCounters | PerfError::NotPermitted)) => return Err(error),
            opened => self.supported = opened.is_ok(),
        }
        Ok(())
    }

    fn close(&mut self, cpu: u32) {
        self.groups.remove(&cpu);
        self.owners.remove(&cpu);
        self.totals.forget(u64::from(cpu));
    }

    /// Reads all open counters. Stopped counters are closed, and the next scrape opens them again.
    fn read(&mut self, scrape: &Scrape<'_>) -> bool {
        let mut stopped = Vec::new();
        for ((cpu, group), cgroup) in self.groups.iter().zip(self.owners.values()) {
            if scrape.deadline.is_over() {
                return false;
            }
            let reading = group.read().unwrap_or_else(|error| {
                tracing::debug!("{error}");
                None
            });
            let slot = u64::from(*cpu);
            if !reading.is_some_and(|reading| self.totals.add(cgroup, slot, &reading)) {
                stopped.push(*cpu);
            }
        }
        let complete = stopped.is_empty();
        stopped.into_iter().for_each(|cpu| self.close(cpu));
        complete
    }

    /// Writes the totals of the counted containers. An event that some CPU of a container lacks has
    /// no series, because the sum of the other CPUs would look like the sum of all.
    fn write(&self, page: &mut Page, scrape: &Scrape<'_>) {
        let lines = |families: &[&'static Family], page: &mut Page| -> Vec<Lines> {
            families.iter().map(|family| page.lines(family)).collect()
        };
        let mut counts = lines(self.families, page);
        let mut times = lines(self.time_families, page);
        let mut counted: HashMap<&str, [bool; EVENTS]> = self.shared.counted_events().collect();
        for (group, cgroup) in self.groups.values().zip(self.owners.values()) {
            let all = counted.entry(cgroup).or_insert([true; EVENTS]);
            all.iter_mut()
                .zip(group.has())
                .for_each(|(all, has)| *all &= has);
        }
        for container in &scrape.containers {
            let counted = counted.get(container.cgroup);
            let (Some(counted), Some(totals)) = (counted, self.totals.get(container.cgroup)) else {
                continue;
            };
            let values = counts.iter_mut().zip(totals.counts).zip(counted);
            for ((lines, count), _) in values.filter(|(_, counted)| **counted) {
                lines.put(&container.labels, count);
            }
            for (lines, time) in times.iter_mut().zip([totals.enabled, totals.running]) {
                lines.put(&container.labels, Duration::from_nanos(time));
            }
        }
        counts
            .into_iter()
            .chain(times)
            .for_each(|lines| page.add(lines));
    }
}

impl Collector for EventCollector {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the families of every owner, and of the containers within the budget.
    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let events = match &self.events {
            Ok(events) => events.clone(),
            Err(detail) => return CollectOutcome::unsupported("no_l2_events", detail.clone()),
        };
        if !self.totals.is_empty() {
            let live: HashSet<&str> = scrape
                .containers
                .iter()
                .map(|container| container.cgroup)
                .collect();
            self.totals.retain(|cgroup| live.contains(cgroup));
        }
        if let Some((at, outcome)) = &self.unsupported
            && at.elapsed() < RETRY
        {
            return outcome.clone();
        }
        self.unsupported = None;
        let opened = self
            .follow_owners(scrape, &events)
            .and_then(|opened| self.probe(scrape, &events).map(|()| opened));
        let (in_time, mut left_out) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let reason = match error {
                    PerfError::NotPermitted => "not_permitted",
                    _ => "no_hardware_counters",
                };
                let outcome = CollectOutcome::unsupported(reason, error.to_string());
                self.unsupported = Some((Instant::now(), outcome.clone()));
                return outcome;
            }
        };
        let (shared_in_time, shared_left_out) =
            self.shared.follow(scrape, &events, &mut self.totals);
        for (reason, containers) in shared_left_out {
            *left_out.entry(reason).or_default() += containers;
        }
        let own_read = self.read(scrape);
        let shared_read = self.shared.read(scrape, &mut self.totals);
        self.write(page, scrape);
        CollectOutcome::LeftOut {
            complete: in_time && shared_in_time && own_read && shared_read,
            reasons: left_out,
        }
    }
}
