//! Hardware counters of containers on shared CPUs: a group per container and CPU. The kernel switches the groups with the
//! cgroups, which makes each switch slower. A budget limits the groups, and the default budget is zero.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use super::event_totals::{EventTotals, choose};
use super::model::MeasuredContainer;
use super::scrape::Scrape;
use crate::cpu::CpuSet;
use crate::host::perf::{CounterGroup, EVENTS, Event, PerfError};
use crate::pod::Role;

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

    /// Closes and opens counters, so that the containers with the lowest ranks have counters. Returns whether the time was
    /// enough, and the number of containers without counters by reason.
    pub(super) fn follow(
        &mut self,
        scrape: &Scrape<'_>,
        events: &[Event],
        totals: &mut EventTotals,
    ) -> (bool, BTreeMap<&'static str, usize>) {
        let (mut complete, mut left_out) = (true, BTreeMap::new());
        let online = &scrape.snapshot.online;
        if self.online != *online {
            // Counters on a CPU that was offline have stopped.
            let all: Vec<String> = self.open.keys().cloned().collect();
            all.iter().for_each(|cgroup| self.close(cgroup, totals));
            self.online = online.clone();
        }
        let events_per_container = online.len().saturating_mul(events.len()).max(1);
        let wanted: Vec<(&str, u8)> = match self.budget {
            0 => Vec::new(),
            _ => scrape
                .containers
                .iter()
                .filter_map(|container| Some((container.cgroup, rank(container)?)))
                .collect(),
        };
        let chosen = choose(
            |cgroup| self.open.contains_key(cgroup),
            &wanted,
            self.budget / events_per_container,
        );
        let keep: HashSet<&str> = chosen.iter().copied().collect();
        let ended: Vec<String> = self
            .open
            .keys()
            .filter(|cgroup| !keep.contains(cgroup.as_str()))
            .cloned()
            .collect();
        ended.iter().for_each(|cgroup| self.close(cgroup, totals));
        let mut leave_out =
            |reason: &'static str, count: usize| *left_out.entry(reason).or_default() += count;
        if wanted.len() > chosen.len() {
            leave_out(SHARED_COUNTER_LIMIT, wanted.len() - chosen.len());
        }
        for cgroup in chosen {
            if self.open.contains_key(cgroup) {
                continue;
            }
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            let directory = scrape.host.cgroups.event_directory(cgroup);
            let Some(directory) = directory.and_then(|path| File::open(path).ok()) else {
                leave_out(NO_EVENT_CGROUP, 1);
                continue;
            };
            let groups: Result<BTreeMap<u32, CounterGroup>, PerfError> = online
                .iter()
                .map(|cpu| Ok((cpu, CounterGroup::open_in(Some(&directory), cpu, events)?)))
                .collect();
            match groups {
                Ok(groups) => {
                    self.number += 1;
                    totals.add_container(cgroup);
                    self.open.insert(
                        cgroup.to_owned(),
                        CountedContainer {
                            number: self.number,
                            groups,
                        },
                    );
                }
                Err(error) => {
                    tracing::debug!("{cgroup}: {error}");
                    leave_out(OPEN_FAILED, 1);
                }
            }
        }
        (complete, left_out)
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
        Role::Ps => 0,
        Role::Worker | Role::Chief | Role::Evaluator => 1,
        Role::Launcher | Role::Other => 2,
    })
}
