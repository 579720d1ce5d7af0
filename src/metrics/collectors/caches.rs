//! What containers do with their own CPUs, as the hardware counts it: cycles, instructions, the last-level cache.
//!
//! The CPUs are counted, not the cgroups, since they are the containers' own; what others did there all the same is in the
//! counts, and foreign time says how much it was. Containers in the shared pool have no series, unless there is a budget for
//! counters that the kernel switches with their cgroups.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::super::families::{
    CONTAINER_CPU_CYCLES, CONTAINER_INSTRUCTIONS, CONTAINER_L2_MISSES, CONTAINER_L2_REFERENCES,
    CONTAINER_LLC_MISSES, CONTAINER_LLC_REFERENCES, CONTAINER_PERF_ENABLED_SECONDS,
    CONTAINER_PERF_RUNNING_SECONDS, Family,
};
use super::super::page::{Lines, Page};
use super::shared::Shared;
use super::tally::{Owner, Tally, plan};
use super::{Outcome, Scrape};
use crate::host::perf::{self, CounterGroup, EVENTS, Event, Events, PerfError};

/// How often a machine without counters is asked again.
const AGAIN: Duration = Duration::from_secs(60);

/// Why owners have no counters.
const TOO_FEW: &str = "counters take more descriptors than the process may open (LimitNOFILE=)";
const NOT_OPENED: &str = "counters can't be opened on all of its CPUs";

/// The family of each event.
static COUNTED: [&Family; EVENTS] = [
    &CONTAINER_CPU_CYCLES,
    &CONTAINER_INSTRUCTIONS,
    &CONTAINER_LLC_REFERENCES,
    &CONTAINER_LLC_MISSES,
];
static SECOND_LEVEL: [&Family; 2] = [&CONTAINER_L2_REFERENCES, &CONTAINER_L2_MISSES];
static TIMES: [&Family; 2] = [
    &CONTAINER_PERF_ENABLED_SECONDS,
    &CONTAINER_PERF_RUNNING_SECONDS,
];

/// What must last from one scrape to the next.
#[derive(Debug)]
pub(in crate::metrics) struct Caches {
    events: Vec<Event>,
    /// The family of each.
    families: &'static [&'static Family],
    /// The families of the two times, where they are told.
    times: &'static [&'static Family],
    /// The open counters of each CPU.
    groups: BTreeMap<u32, CounterGroup>,
    /// For whom each of them is open.
    counted: BTreeMap<u32, String>,
    /// Those of containers that share their CPUs.
    shared: Shared,
    tally: Tally,
    /// Whether counters could ever be opened here.
    offered: bool,
    /// When it was found that there are none, and why.
    unsupported: Option<(Instant, String)>,
}

// === impl Caches ===

impl Caches {
    /// Of these events, with so many descriptors for containers that share their CPUs.
    pub(in crate::metrics) fn new(events: Events, shared: usize) -> Self {
        Self {
            shared: Shared::new(shared),
            times: &TIMES,
            ..Self::of(events.to_vec(), &COUNTED)
        }
    }

    /// Of the second-level cache.
    pub(in crate::metrics) fn second_level(
        events: Result<[Event; 2], String>,
    ) -> Result<Self, String> {
        events.map(|events| Self::of(events.to_vec(), &SECOND_LEVEL))
    }

    fn of(events: Vec<Event>, families: &'static [&'static Family]) -> Self {
        Self {
            events,
            families,
            times: &[],
            groups: BTreeMap::new(),
            counted: BTreeMap::new(),
            shared: Shared::default(),
            tally: Tally::default(),
            offered: false,
            unsupported: None,
        }
    }

    /// Writes the families of every owner.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        if !self.tally.is_empty() {
            let there: HashSet<&str> = scrape
                .subjects
                .iter()
                .map(|subject| subject.cgroup)
                .collect();
            self.tally.keep(|cgroup| there.contains(cgroup));
        }
        if let Some((at, reason)) = &self.unsupported
            && at.elapsed() < AGAIN
        {
            return Outcome::Unsupported(reason.clone());
        }
        self.unsupported = None;
        let owners: Vec<Owner<'_>> = scrape
            .subjects
            .iter()
            .filter_map(|subject| {
                Some(Owner {
                    cgroup: subject.cgroup,
                    cpus: subject.in_force()?,
                })
            })
            .collect();
        let opened = self
            .follow(scrape, &owners)
            .and_then(|left_out| self.probe(scrape).map(|()| left_out));
        match opened {
            Ok((complete, mut left_out)) => {
                let (opened, without) = self.shared.follow(scrape, &self.events, &mut self.tally);
                left_out.extend(without);
                let own = self.read(scrape);
                let shared = self.shared.read(scrape, &mut self.tally) && opened;
                self.write(page, scrape);
                Outcome::LeftOut {
                    complete: complete && own && shared,
                    reasons: left_out,
                }
            }
            Err(error) => {
                let reason = error.to_string();
                self.unsupported = Some((Instant::now(), reason.clone()));
                Outcome::Unsupported(reason)
            }
        }
    }

    /// Closes and opens counters so that they are those of the owners. Says whether it came to its end, and how many owners
    /// are left out for which reason.
    ///
    /// # Errors
    /// The machine has no counters, or none that we may use.
    fn follow(
        &mut self,
        scrape: &Scrape<'_>,
        owners: &[Owner<'_>],
    ) -> Result<(bool, BTreeMap<String, usize>), PerfError> {
        // The second-level cache has its own.
        let plan = plan(
            &self.counted,
            owners,
            perf::descriptor_limit() / (EVENTS + SECOND_LEVEL.len()),
        );
        plan.close.into_iter().for_each(|cpu| self.close(cpu));
        let mut left_out = BTreeMap::new();
        if plan.short > 0 {
            left_out.insert(TOO_FEW.to_owned(), plan.short);
        }
        let mut failed: BTreeSet<&str> = BTreeSet::new();
        for (cpu, place) in plan.open {
            let Some(owner) = owners.get(place).filter(|_| !scrape.is_late()) else {
                return Ok((false, left_out));
            };
            match CounterGroup::open(cpu, &self.events) {
                Ok(group) => {
                    self.offered = true;
                    self.groups.insert(cpu, group);
                    self.counted.insert(cpu, owner.cgroup.to_owned());
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
        // A part of an owner's CPUs would tell something, and nobody could say what.
        let part = self
            .counted
            .iter()
            .filter(|(_, cgroup)| failed.contains(cgroup.as_str()));
        let part: Vec<u32> = part.map(|(cpu, _)| *cpu).collect();
        part.into_iter().for_each(|cpu| self.close(cpu));
        if !failed.is_empty() {
            left_out.insert(NOT_OPENED.to_owned(), failed.len());
        }
        Ok((true, left_out))
    }

    /// Opens counters for a moment, so that it is known what is offered here before there is an owner.
    fn probe(&mut self, scrape: &Scrape<'_>) -> Result<(), PerfError> {
        let Some(cpu) = scrape.snapshot.online.first().filter(|_| !self.offered) else {
            return Ok(());
        };
        match CounterGroup::open(cpu, &self.events) {
            Err(error @ (PerfError::NoCounters | PerfError::NotPermitted)) => return Err(error),
            opened => self.offered = opened.is_ok(),
        }
        Ok(())
    }

    fn close(&mut self, cpu: u32) {
        self.groups.remove(&cpu);
        self.counted.remove(&cpu);
        self.tally.forget(u64::from(cpu));
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
            if !reading.is_some_and(|reading| self.tally.note(cgroup, u64::from(*cpu), &reading)) {
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
        let mut counts: Vec<Lines> = self
            .families
            .iter()
            .map(|family| page.lines(family))
            .collect();
        let mut times: Vec<Lines> = self.times.iter().map(|family| page.lines(family)).collect();
        let mut has: HashMap<&str, [bool; EVENTS]> = self.shared.has().collect();
        for (group, cgroup) in self.groups.values().zip(self.counted.values()) {
            let all = has.entry(cgroup).or_insert([true; EVENTS]);
            all.iter_mut()
                .zip(group.has())
                .for_each(|(all, has)| *all &= has);
        }
        for subject in &scrape.subjects {
            let (Some(has), Some(totals)) =
                (has.get(subject.cgroup), self.tally.totals(subject.cgroup))
            else {
                continue;
            };
            for ((lines, count), _) in counts
                .iter_mut()
                .zip(totals.counts)
                .zip(has)
                .filter(|(_, has)| **has)
            {
                lines.put(&subject.labels, count);
            }
            for (lines, time) in times.iter_mut().zip([totals.enabled, totals.running]) {
                lines.put(&subject.labels, Duration::from_nanos(time));
            }
        }
        counts
            .into_iter()
            .chain(times)
            .for_each(|lines| page.add(lines));
    }
}
