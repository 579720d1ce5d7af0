//! What containers do with their own CPUs, as the hardware counts it: cycles, instructions, the last-level cache.
//!
//! The CPUs are counted, not the cgroups, since they are the containers' own; what others did there all the same is in the
//! counts, and foreign time says how much it was. Containers in the shared pool have no series.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::super::families::{
    CONTAINER_CPU_CYCLES, CONTAINER_INSTRUCTIONS, CONTAINER_LLC_MISSES, CONTAINER_LLC_REFERENCES,
    CONTAINER_PERF_ENABLED_SECONDS, CONTAINER_PERF_RUNNING_SECONDS, Family,
};
use super::super::page::{Lines, Page};
use super::tally::{Owner, Tally, plan};
use super::{Outcome, Scrape};
use crate::host::perf::{self, EVENTS, Events, Group, PerfError};

/// How often a machine without counters is asked again.
const AGAIN: Duration = Duration::from_secs(60);

/// The family of each event.
static COUNTED: [&Family; EVENTS] =
    [&CONTAINER_CPU_CYCLES, &CONTAINER_INSTRUCTIONS, &CONTAINER_LLC_REFERENCES, &CONTAINER_LLC_MISSES];

/// What must last from one scrape to the next.
#[derive(Debug)]
pub(in crate::metrics) struct Caches {
    events: Events,
    /// The open counters of each CPU.
    groups: BTreeMap<u32, Group>,
    /// For whom each of them is open.
    counted: BTreeMap<u32, String>,
    tally: Tally,
    /// Whether counters could ever be opened here.
    offered: bool,
    /// When it was found that there are none, and why.
    unsupported: Option<(Instant, String)>,
}

// === impl Caches ===

impl Caches {
    pub(in crate::metrics) fn new(events: Events) -> Self {
        Self {
            events,
            groups: BTreeMap::new(),
            counted: BTreeMap::new(),
            tally: Tally::default(),
            offered: false,
            unsupported: None,
        }
    }

    /// Writes the families of every owner.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        self.tally.keep(|cgroup| scrape.subjects.iter().any(|subject| subject.cgroup == cgroup));
        if let Some((at, reason)) = &self.unsupported
            && at.elapsed() < AGAIN
        {
            return Outcome::Unsupported(reason.clone());
        }
        self.unsupported = None;
        let owners: Vec<Owner<'_>> = scrape
            .subjects
            .iter()
            .filter_map(|subject| Some(Owner { cgroup: subject.cgroup, cpus: subject.in_force()? }))
            .collect();
        let opened = self.follow(scrape, &owners).and_then(|complete| self.probe(scrape).map(|()| complete));
        match opened {
            Ok(complete) => {
                let read = self.read(scrape);
                self.write(page, scrape);
                Outcome::of(complete && read)
            }
            Err(error) => {
                let reason = error.to_string();
                self.unsupported = Some((Instant::now(), reason.clone()));
                Outcome::Unsupported(reason)
            }
        }
    }

    /// Closes and opens counters so that they are those of the owners. Says whether they all are.
    ///
    /// # Errors
    /// The machine has no counters, or none that we may use.
    fn follow(&mut self, scrape: &Scrape<'_>, owners: &[Owner<'_>]) -> Result<bool, PerfError> {
        let plan = plan(&self.counted, owners, perf::descriptors() / EVENTS);
        plan.close.into_iter().for_each(|cpu| self.close(cpu));
        let mut complete = !plan.short;
        for (cpu, place) in plan.open {
            let Some(owner) = owners.get(place).filter(|_| !scrape.is_late()) else { return Ok(false) };
            match Group::open(cpu, &self.events) {
                Ok(group) => {
                    self.offered = true;
                    self.groups.insert(cpu, group);
                    self.counted.insert(cpu, owner.cgroup.to_owned());
                }
                Err(error @ (PerfError::NotHere | PerfError::NotPermitted)) if self.groups.is_empty() => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    complete = false;
                }
            }
        }
        Ok(complete)
    }

    /// Opens counters for a moment, so that it is known what is offered here before there is an owner.
    fn probe(&mut self, scrape: &Scrape<'_>) -> Result<(), PerfError> {
        let Some(cpu) = scrape.snapshot.online.first().filter(|_| !self.offered) else { return Ok(()) };
        match Group::open(cpu, &self.events) {
            Err(error @ (PerfError::NotHere | PerfError::NotPermitted)) => return Err(error),
            opened => self.offered = opened.is_ok(),
        }
        Ok(())
    }

    fn close(&mut self, cpu: u32) {
        self.groups.remove(&cpu);
        self.counted.remove(&cpu);
        self.tally.forget(cpu);
    }

    /// Reads all open counters. Those that have ended are closed; the next scrape opens them anew.
    fn read(&mut self, scrape: &Scrape<'_>) -> bool {
        let mut ended = Vec::new();
        for ((cpu, group), cgroup) in self.groups.iter().zip(self.counted.values()) {
            if scrape.is_late() {
                return false;
            }
            let reading = group.read().unwrap_or_else(|error| {
                tracing::debug!("{error}");
                None
            });
            if !reading.is_some_and(|reading| self.tally.note(cgroup, *cpu, &reading)) {
                ended.push(*cpu);
            }
        }
        let complete = ended.is_empty();
        ended.into_iter().for_each(|cpu| self.close(cpu));
        complete
    }

    /// Writes the totals of those that are counted now. Of an event that one of a container's CPUs doesn't have, it has no
    /// series: the others' sum would be taken for all of them.
    fn write(&self, page: &mut Page, scrape: &Scrape<'_>) {
        let mut counts = COUNTED.map(Lines::of);
        let mut enabled = Lines::of(&CONTAINER_PERF_ENABLED_SECONDS);
        let mut running = Lines::of(&CONTAINER_PERF_RUNNING_SECONDS);
        let mut has: HashMap<&str, [bool; EVENTS]> = HashMap::new();
        for (group, cgroup) in self.groups.values().zip(self.counted.values()) {
            let all = has.entry(cgroup).or_insert([true; EVENTS]);
            all.iter_mut().zip(group.has()).for_each(|(all, has)| *all &= has);
        }
        for subject in &scrape.subjects {
            let (Some(has), Some(totals)) = (has.get(subject.cgroup), self.tally.totals(subject.cgroup))
            else {
                continue;
            };
            for ((lines, count), _) in counts.iter_mut().zip(totals.counts).zip(has).filter(|(_, has)| **has)
            {
                lines.put(&subject.labels, count);
            }
            enabled.put(&subject.labels, Duration::from_nanos(totals.enabled));
            running.put(&subject.labels, Duration::from_nanos(totals.running));
        }
        counts.into_iter().chain([enabled, running]).for_each(|lines| page.add(lines));
    }
}
