//! What containers hold of the last-level caches and move to and from memory: monitoring groups on their own CPUs.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use super::super::families::{CONTAINER_LLC_OCCUPANCY_BYTES, CONTAINER_MEMORY_BANDWIDTH_BYTES};
use super::super::page::{Lines, Page};
use super::monitors::{Moved, Plan, Step, Wanted, name, plan};
use super::{Outcome, Scrape, Subject};
use crate::cpu::CpuSet;
use crate::host::resctrl::{CacheCounters, Count, Resctrl, ResctrlError};
use crate::pin::Enforcement;
use crate::pod::Role;

/// How long a group that the kernel refused is not tried again with the same CPUs: each try takes a monitor for a moment, which
/// may not be free again at once.
const AGAIN: Duration = Duration::from_secs(60);

/// Why containers are left out.
const EXHAUSTED: &str = "all RMIDs are in use, or wait until what they counted has left the cache";
const CONTROLLED: &str = "somebody else's control group has some of its CPUs";
const UNAVAILABLE: &str = "the hardware can't tell it (Unavailable)";

/// What must last from one scrape to the next. The groups themselves are the kernel's.
#[derive(Debug)]
pub(in crate::metrics) struct Monitors {
    resctrl: Resctrl,
    moved: Moved,
    /// The groups that the kernel refused, when, on which CPUs, and why.
    refused: BTreeMap<String, (Instant, CpuSet, String)>,
}

/// A container's group.
struct Group<'a, 'b> {
    subject: &'a Subject<'b>,
    wanted: Wanted,
}

// === impl Monitors ===

impl Monitors {
    pub(in crate::metrics) fn new(resctrl: Resctrl) -> Self {
        Self {
            resctrl,
            moved: Moved::default(),
            refused: BTreeMap::new(),
        }
    }

    /// Writes the two families of every owner that has a group.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        if !self.moved.is_empty() {
            let there: HashSet<&str> = scrape
                .subjects
                .iter()
                .map(|subject| subject.cgroup)
                .collect();
            self.moved.keep(|cgroup| there.contains(cgroup));
        }
        let room = match self.resctrl.available_groups() {
            Ok(room) => room,
            Err(ResctrlError::Unsupported(reason)) => return Outcome::Unsupported(reason),
            Err(error) => return partial(&error),
        };
        // An agent that only looks makes no groups; those that another one has made are taken off.
        let enforced = scrape.snapshot.enforcement != Enforcement::Observe;
        let subjects = scrape.subjects.iter().filter(|_| enforced);
        let groups: Vec<Group<'_, '_>> = subjects.filter_map(group).collect();
        let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
        self.refused.retain(|name, (at, cpus, _)| {
            at.elapsed() < AGAIN
                && groups
                    .iter()
                    .any(|it| it.wanted.name == *name && it.wanted.cpus == *cpus)
        });
        let asked = groups
            .iter()
            .filter(|group| !self.refused.contains_key(&group.wanted.name));
        let wanted: Vec<Wanted> = asked.map(|group| group.wanted.clone()).collect();
        let Plan { steps, short } = match self.resctrl.groups() {
            Ok(there) => plan(&there, &wanted, room),
            Err(error) => return partial(&error),
        };
        let mut leave =
            |reason: &str, count: usize| *left_out.entry(reason.to_owned()).or_default() += count;
        if short > 0 {
            leave(EXHAUSTED, short);
        }
        let mut complete = true;
        let mut not_made: Vec<String> = Vec::new();
        for step in steps {
            if scrape.is_late() {
                complete = false;
                break;
            }
            if matches!(&step, Step::Bind(name, _) if not_made.contains(name)) {
                continue;
            }
            match (self.carry_out(&step, &groups), &step) {
                (Ok(()), _) => {}
                (Err(ResctrlError::Unsupported(reason)), _) => {
                    return Outcome::Unsupported(reason);
                }
                // It is asked for again by the next scrape, and may be had then.
                (Err(ResctrlError::Exhausted(_)), Step::Make(name)) => {
                    not_made.push(name.clone());
                    leave(EXHAUSTED, 1);
                }
                (Err(ResctrlError::Refused { says, .. }), Step::Bind(name, cpus)) => {
                    complete &= self.refuse(name, cpus, &says);
                }
                (Err(error), _) => complete &= partial(&error) == Outcome::Complete,
            }
        }
        for (_, _, reason) in self.refused.values() {
            leave(reason, 1);
        }
        let (read, unknown) = self.read(page, scrape, &groups);
        if unknown > 0 {
            leave(UNAVAILABLE, unknown);
        }
        Outcome::LeftOut {
            complete: complete && read,
            reasons: left_out,
        }
    }

    /// Takes note of a group that can't have these CPUs, and gives its monitor back; says whether that went well.
    fn refuse(&mut self, name: &str, cpus: &CpuSet, says: &str) -> bool {
        let theirs = says.contains("belong to parent");
        let reason = if theirs {
            CONTROLLED.to_owned()
        } else {
            format!("the kernel does not bind its CPUs: {says}")
        };
        tracing::debug!("{name} on {}: {reason}", cpus.in_words());
        self.refused
            .insert(name.to_owned(), (Instant::now(), cpus.clone(), reason));
        self.resctrl
            .remove(name)
            .inspect_err(|error| tracing::debug!("{error}"))
            .is_ok()
    }

    fn carry_out(&mut self, step: &Step, groups: &[Group<'_, '_>]) -> Result<(), ResctrlError> {
        match step {
            Step::Remove(name) => self.resctrl.remove(name),
            Step::Make(name) => {
                self.resctrl.make(name)?;
                let of_name = groups.iter().filter(|group| group.wanted.name == *name);
                of_name.for_each(|group| self.moved.restart(group.subject.cgroup));
                Ok(())
            }
            Step::Bind(name, cpus) => self.resctrl.bind(name, cpus),
        }
    }

    /// Writes what the groups have counted. A cache that can't be told has no series in this scrape, and the others have. Says
    /// whether all could be read, and of how many containers the hardware did not tell all.
    fn read(
        &mut self,
        page: &mut Page,
        scrape: &Scrape<'_>,
        groups: &[Group<'_, '_>],
    ) -> (bool, usize) {
        let mut occupancy = Lines::of(&CONTAINER_LLC_OCCUPANCY_BYTES);
        let mut bandwidth = Lines::of(&CONTAINER_MEMORY_BANDWIDTH_BYTES);
        let (mut complete, mut unknown) = (true, 0);
        // Read back: a group that could not be made, or bound to all of its CPUs, has nothing to tell.
        let there = self.resctrl.groups().unwrap_or_default();
        for Group { subject, wanted } in groups {
            if there.get(&wanted.name) != Some(&wanted.cpus) {
                continue;
            }
            let (false, Ok(domains)) = (scrape.is_late(), self.resctrl.read(&wanted.name)) else {
                complete = false;
                continue;
            };
            // Where the hardware has too few counters, it is a setting who gets one, and nothing is lacking.
            let tells = |domain: &CacheCounters| {
                [domain.occupancy, domain.total, domain.local]
                    .iter()
                    .all(|it| *it != Some(Count::Unknown))
            };
            unknown += usize::from(!domains.iter().all(tells));
            for domain in domains {
                let id = domain.id;
                if let Some(Count::Bytes(bytes)) = domain.occupancy {
                    occupancy.put_with(&subject.labels, &[("l3_domain", &id)], bytes);
                }
                for (scope, count) in [("total", domain.total), ("local", domain.local)] {
                    if let Some(Count::Bytes(bytes)) = count {
                        let bytes = self.moved.note(subject.cgroup, (id.clone(), scope), bytes);
                        bandwidth.put_with(
                            &subject.labels,
                            &[("l3_domain", &id), ("scope", scope)],
                            bytes,
                        );
                    }
                }
            }
        }
        page.add(occupancy);
        page.add(bandwidth);
        (complete, unknown)
    }
}

fn partial(error: &ResctrlError) -> Outcome {
    tracing::debug!("{error}");
    Outcome::Partial
}

/// The group that a container is owed, if it owns CPUs.
fn group<'a, 'b>(subject: &'a Subject<'b>) -> Option<Group<'a, 'b>> {
    let cpus = subject.in_force()?;
    let name = name(subject.state.uid.as_deref()?, &subject.state.container)?;
    Some(Group {
        subject,
        wanted: Wanted {
            name,
            cpus,
            first: subject.state.role == Role::Ps,
        },
    })
}

#[cfg(test)]
mod tests;
