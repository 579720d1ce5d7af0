//! What containers hold of the last-level caches and move to and from memory: monitoring groups on their own CPUs.

use super::super::families::{CONTAINER_LLC_OCCUPANCY_BYTES, CONTAINER_MEMORY_BANDWIDTH_BYTES};
use super::super::page::{Lines, Page};
use super::monitors::{Moved, Plan, Step, Wanted, name, plan};
use super::{Outcome, Scrape, Subject};
use crate::host::resctrl::{Count, Resctrl, ResctrlError};
use crate::pin::Enforcement;
use crate::pod::Role;

/// What must last from one scrape to the next. The groups themselves are the kernel's.
#[derive(Debug)]
pub(in crate::metrics) struct Monitors {
    resctrl: Resctrl,
    moved: Moved,
}

/// A container's group.
struct Group<'a, 'b> {
    subject: &'a Subject<'b>,
    wanted: Wanted,
}

// === impl Monitors ===

impl Monitors {
    pub(in crate::metrics) fn new(resctrl: Resctrl) -> Self {
        Self { resctrl, moved: Moved::default() }
    }

    /// Writes the two families of every owner that has a group.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        self.moved.keep(|cgroup| scrape.subjects.iter().any(|subject| subject.cgroup == cgroup));
        let room = match self.resctrl.room() {
            Ok(room) => room,
            Err(
                error @ (ResctrlError::NotOffered(_)
                | ResctrlError::NotMounted(_)
                | ResctrlError::NotMonitoring(_)),
            ) => return Outcome::Unsupported(error.to_string()),
            Err(error) => return partial(&error),
        };
        // An agent that only looks makes no groups; those that another one has made are taken off.
        let enforced = scrape.snapshot.enforcement != Enforcement::Observe;
        let subjects = scrape.subjects.iter().filter(|_| enforced);
        let groups: Vec<Group<'_, '_>> = subjects.filter_map(group).collect();
        let wanted: Vec<Wanted> = groups.iter().map(|group| group.wanted.clone()).collect();
        let Plan { steps, short } = match self.resctrl.groups() {
            Ok(there) => plan(&there, &wanted, room),
            Err(error) => return partial(&error),
        };
        let mut complete = !short;
        for step in steps {
            if scrape.is_late() {
                complete = false;
                break;
            }
            match self.carry_out(&step, &groups) {
                Ok(()) => {}
                Err(error @ ResctrlError::ReadOnly(_)) => return Outcome::Unsupported(error.to_string()),
                Err(error) => complete &= partial(&error) == Outcome::Complete,
            }
        }
        let read = self.read(page, scrape, &groups);
        Outcome::of(complete && read)
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

    /// Writes what the groups have counted. A cache that can't be told has no series in this scrape, and the others have.
    fn read(&mut self, page: &mut Page, scrape: &Scrape<'_>, groups: &[Group<'_, '_>]) -> bool {
        let mut occupancy = Lines::of(&CONTAINER_LLC_OCCUPANCY_BYTES);
        let mut bandwidth = Lines::of(&CONTAINER_MEMORY_BANDWIDTH_BYTES);
        let mut complete = true;
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
            for domain in domains {
                let id = domain.id;
                // Where the hardware has too few counters, it is a setting who gets one, and no failure.
                complete &= [domain.occupancy, domain.total, domain.local]
                    .iter()
                    .all(|it| *it != Some(Count::Unknown));
                if let Some(Count::Bytes(bytes)) = domain.occupancy {
                    occupancy.put_with(&subject.labels, &[("l3_domain", &id)], bytes);
                }
                for (scope, count) in [("total", domain.total), ("local", domain.local)] {
                    if let Some(Count::Bytes(bytes)) = count {
                        let bytes = self.moved.note(subject.cgroup, (id.clone(), scope), bytes);
                        bandwidth.put_with(&subject.labels, &[("l3_domain", &id), ("scope", scope)], bytes);
                    }
                }
            }
        }
        page.add(occupancy);
        page.add(bandwidth);
        complete
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
    Some(Group { subject, wanted: Wanted { name, cpus, first: subject.state.role == Role::Ps } })
}

#[cfg(test)]
mod tests;
