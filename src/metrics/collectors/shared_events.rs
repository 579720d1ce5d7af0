//! Hardware counters of containers on shared CPUs: a group per container and CPU. The kernel
//! switches the groups with the cgroups, which makes each switch slower. A budget therefore limits
//! the groups, and is zero by default.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use super::event_totals::{EventTotals, choose};
use super::measured::MeasuredContainer;
use super::scrape::Scrape;
use crate::cpu::CpuSet;
use crate::host::counters::perf::{CounterGroup, EVENTS, PerfError, PerfEvent};
use crate::pod::PodRole;

/// Reasons for missing counters, as label values: `metrics.maxSharedCounters` is too small; the cgroup has no hierarchy for
/// events (cgroup v2 or `perf_event`); the counters of a CPU can't be opened.
const SHARED_COUNTER_LIMIT: &str = "shared_counter_limit";
const NO_EVENT_CGROUP: &str = "no_event_cgroup";
const OPEN_FAILED: &str = "open_failed";

/// The number of bits for the CPU in a slot's number.
const CPU_BITS: u32 = 32;

/// The open counters of containers on shared CPUs.
#[derive(Debug, Default)]
pub(super) struct SharedCounters {
    /// The limit on descriptors.
    budget: usize,
    /// The online CPUs at the time of opening.
    online: CpuSet,
    open: BTreeMap<String, CountedContainer>,
    /// The number of the latest container. Each container has its own slots.
    number: u64,
}

#[derive(Debug)]
struct CountedContainer {
    number: u64,
    groups: BTreeMap<u32, CounterGroup>,
}

// === impl CountedContainer ===

impl CountedContainer {
    fn slot(&self, cpu: u32) -> u64 {
        self.number << CPU_BITS | u64::from(cpu)
    }
}

// === impl SharedCounters ===

impl SharedCounters {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// Closes and opens counters, so that the containers with the lowest ranks have them. Returns
    /// whether the time was enough, and the number of containers without counters by reason.
    pub(super) fn follow(
        &mut self,
        scrape: &Scrape<'_>,
        events: &[PerfEvent],
        totals: &mut EventTotals,
    ) -> (bool, BTreeMap<&'static str, usize>) {
        self.close_after_cpu_change(&scrape.snapshot.online, totals);
        let wanted = self.wanted(scrape);
        let groups_per_container = self.online.len().saturating_mul(events.len()).max(1);
        let chosen = choose(
            |cgroup| self.open.contains_key(cgroup),
            &wanted,
            self.budget / groups_per_container,
        );
        self.close_all_except(&chosen, totals);
        let mut left_out = BTreeMap::new();
        if wanted.len() > chosen.len() {
            left_out.insert(SHARED_COUNTER_LIMIT, wanted.len() - chosen.len());
        }
        for cgroup in chosen {
            if self.open.contains_key(cgroup) {
                continue;
            }
            if scrape.deadline.is_over() {
                return (false, left_out);
            }
            match open_groups(scrape, cgroup, events) {
                Ok(groups) => self.add(cgroup, groups, totals),
                Err(reason) => *left_out.entry(reason).or_default() += 1,
            }
        }
        (true, left_out)
    }

    /// Closes all counters if other CPUs are online than before, because counters on a CPU that was
    /// offline have stopped.
    fn close_after_cpu_change(&mut self, online: &CpuSet, totals: &mut EventTotals) {
        if self.online != *online {
            self.close_all_except(&[], totals);
            self.online = online.clone();
        }
    }

    /// The containers on shared CPUs with their ranks. Without a budget, no container is counted.
    fn wanted<'s>(&self, scrape: &'s Scrape<'_>) -> Vec<(&'s str, u8)> {
        match self.budget {
            0 => Vec::new(),
            _ => scrape
                .containers
                .iter()
                .filter_map(|container| Some((container.cgroup, rank(container)?)))
                .collect(),
        }
    }

    fn close_all_except(&mut self, kept: &[&str], totals: &mut EventTotals) {
        let kept: HashSet<&str> = kept.iter().copied().collect();
        let ended: Vec<String> = self
            .open
            .keys()
            .filter(|cgroup| !kept.contains(cgroup.as_str()))
            .cloned()
            .collect();
        ended.iter().for_each(|cgroup| self.close(cgroup, totals));
    }

    fn add(&mut self, cgroup: &str, groups: BTreeMap<u32, CounterGroup>, totals: &mut EventTotals) {
        self.number += 1;
        totals.add_container(cgroup);
        let counted = CountedContainer {
            number: self.number,
            groups,
        };
        self.open.insert(cgroup.to_owned(), counted);
    }

    fn close(&mut self, cgroup: &str, totals: &mut EventTotals) {
        if let Some(counted) = self.open.remove(cgroup) {
            counted
                .groups
                .keys()
                .for_each(|cpu| totals.forget(counted.slot(*cpu)));
        }
    }

    /// Reads all open counters. Stopped counters are closed, and the next scrape opens them again.
    pub(super) fn read(&mut self, scrape: &Scrape<'_>, totals: &mut EventTotals) -> bool {
        let mut ended = Vec::new();
        for (cgroup, counted) in &self.open {
            if scrape.deadline.is_over() {
                return false;
            }
            for (cpu, group) in &counted.groups {
                match group.read() {
                    // The enabled time stands still while no thread of the container is on the CPU.
                    Ok(Some(reading)) => drop(totals.add(cgroup, counted.slot(*cpu), &reading)),
                    _ => ended.push(cgroup.clone()),
                }
            }
        }
        ended.iter().for_each(|cgroup| self.close(cgroup, totals));
        ended.is_empty()
    }

    /// For each container, whether each event is counted on all CPUs.
    pub(super) fn counted_events(&self) -> impl Iterator<Item = (&str, [bool; EVENTS])> {
        self.open.iter().map(|(cgroup, counted)| {
            let mut all = [true; EVENTS];
            for group in counted.groups.values() {
                all.iter_mut()
                    .zip(group.has())
                    .for_each(|(all, has)| *all &= has);
            }
            (cgroup.as_str(), all)
        })
    }
}

/// Opens the counters of a container on each online CPU. The error is the reason for the missing counters, as a label value.
fn open_groups(
    scrape: &Scrape<'_>,
    cgroup: &str,
    events: &[PerfEvent],
) -> Result<BTreeMap<u32, CounterGroup>, &'static str> {
    let directory = scrape
        .host
        .cgroups
        .event_directory(cgroup)
        .and_then(|path| File::open(path).ok())
        .ok_or(NO_EVENT_CGROUP)?;
    let groups: Result<BTreeMap<u32, CounterGroup>, PerfError> = scrape
        .snapshot
        .online
        .iter()
        .map(|cpu| Ok((cpu, CounterGroup::open_in(Some(&directory), cpu, events)?)))
        .collect();
    groups.map_err(|error| {
        tracing::debug!("{cgroup}: {error}");
        OPEN_FAILED
    })
}

/// The rank of a container for the budget: parameter servers, then training containers, then the rest. `None` for an owner
/// of exclusive CPUs, whose CPUs are counted without the budget.
fn rank(container: &MeasuredContainer<'_>) -> Option<u8> {
    if container
        .enforced_cpus()
        .is_some_and(|cpus| !cpus.is_empty())
    {
        return None;
    }
    Some(match container.state.role {
        PodRole::Ps => 0,
        PodRole::Worker | PodRole::Chief | PodRole::Evaluator => 1,
        PodRole::Launcher | PodRole::Other => 2,
    })
}
