//! Counters of containers that share their CPUs: one group for each container and CPU, which the kernel switches with the
//! cgroups. That costs every switch between cgroups something, so there is a budget, and none unless one is set.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use super::tally::{Tally, choose};
use super::{Scrape, Subject};
use crate::cpu::CpuSet;
use crate::host::perf::{CounterGroup, EVENTS, Event, PerfError};
use crate::pod::Role;

/// Why containers have no counters.
pub(super) const OVER_BUDGET: &str =
    "metrics.sharedCounters is too small for all containers that share their CPUs";
const NO_CGROUP: &str =
    "its cgroup is in no hierarchy by which events are counted (cgroup v2, or perf_event)";
const NOT_OPENED: &str = "its counters can't be opened on all CPUs";

/// The bits of a slot's number that tell the CPU.
const CPU_BITS: u32 = 32;

/// The open counters of containers in the shared pool.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// How many descriptors they may take.
    budget: usize,
    /// The CPUs that were online when they were opened.
    online: CpuSet,
    open: BTreeMap<String, Counted>,
    /// Numbers the containers, so that no two use the same slots of the tally.
    number: u64,
}

#[derive(Debug)]
struct Counted {
    number: u64,
    groups: BTreeMap<u32, CounterGroup>,
}

// === impl Counted ===

impl Counted {
    fn slot(&self, cpu: u32) -> u64 {
        self.number << CPU_BITS | u64::from(cpu)
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// Closes and opens counters so that they are those of the containers that come first. Says whether it came to its end, and
    /// who is left out, and why.
    pub(super) fn follow(
        &mut self,
        scrape: &Scrape<'_>,
        events: &[Event],
        tally: &mut Tally,
    ) -> (bool, BTreeMap<String, usize>) {
        let (mut complete, mut left_out) = (true, BTreeMap::new());
        let online = &scrape.snapshot.online;
        if self.online != *online {
            // Counters on a CPU that was offline meanwhile count no more.
            let all: Vec<String> = self.open.keys().cloned().collect();
            all.iter().for_each(|cgroup| self.close(cgroup, tally));
            self.online = online.clone();
        }
        let each = online.len().saturating_mul(events.len()).max(1);
        let wanted: Vec<(&str, u8)> = match self.budget {
            0 => Vec::new(),
            _ => scrape
                .subjects
                .iter()
                .filter_map(|one| Some((one.cgroup, rank(one)?)))
                .collect(),
        };
        let chosen = choose(
            |cgroup| self.open.contains_key(cgroup),
            &wanted,
            self.budget / each,
        );
        let stay: HashSet<&str> = chosen.iter().copied().collect();
        let ended: Vec<String> = self
            .open
            .keys()
            .filter(|cgroup| !stay.contains(cgroup.as_str()))
            .cloned()
            .collect();
        ended.iter().for_each(|cgroup| self.close(cgroup, tally));
        let mut leave =
            |reason: &str, count: usize| *left_out.entry(reason.to_owned()).or_default() += count;
        if wanted.len() > chosen.len() {
            leave(OVER_BUDGET, wanted.len() - chosen.len());
        }
        for cgroup in chosen {
            if self.open.contains_key(cgroup) {
                continue;
            }
            if scrape.is_late() {
                complete = false;
                break;
            }
            let directory = scrape.sources.cgroups.event_directory(cgroup);
            let Some(directory) = directory.and_then(|path| File::open(path).ok()) else {
                leave(NO_CGROUP, 1);
                continue;
            };
            let groups: Result<BTreeMap<u32, CounterGroup>, PerfError> = online
                .iter()
                .map(|cpu| Ok((cpu, CounterGroup::open_in(Some(&directory), cpu, events)?)))
                .collect();
            match groups {
                Ok(groups) => {
                    self.number += 1;
                    tally.begin(cgroup);
                    self.open.insert(
                        cgroup.to_owned(),
                        Counted {
                            number: self.number,
                            groups,
                        },
                    );
                }
                Err(error) => {
                    tracing::debug!("{cgroup}: {error}");
                    leave(NOT_OPENED, 1);
                }
            }
        }
        (complete, left_out)
    }

    fn close(&mut self, cgroup: &str, tally: &mut Tally) {
        if let Some(counted) = self.open.remove(cgroup) {
            counted
                .groups
                .keys()
                .for_each(|cpu| tally.forget(counted.slot(*cpu)));
        }
    }

    /// Reads all open counters. A container one of whose counters has ended is opened anew by the next scrape.
    pub(super) fn read(&mut self, scrape: &Scrape<'_>, tally: &mut Tally) -> bool {
        let mut ended = Vec::new();
        for (cgroup, counted) in &self.open {
            if scrape.is_late() {
                return false;
            }
            for (cpu, group) in &counted.groups {
                match group.read() {
                    // Its time stands still while none of its threads is on that CPU.
                    Ok(Some(reading)) => drop(tally.note(cgroup, counted.slot(*cpu), &reading)),
                    _ => ended.push(cgroup.clone()),
                }
            }
        }
        ended.iter().for_each(|cgroup| self.close(cgroup, tally));
        ended.is_empty()
    }

    /// Which events are counted for each container on all CPUs.
    pub(super) fn has(&self) -> impl Iterator<Item = (&str, [bool; EVENTS])> {
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

/// Who comes first where not all can be counted: parameter servers, then what trains, then the rest. Who owns CPUs is counted
/// on them, without this.
fn rank(subject: &Subject<'_>) -> Option<u8> {
    if subject.in_force().is_some_and(|cpus| !cpus.is_empty()) {
        return None;
    }
    Some(match subject.state.role {
        Role::Ps => 0,
        Role::Worker | Role::Chief | Role::Evaluator => 1,
        Role::Launcher | Role::Other => 2,
    })
}
