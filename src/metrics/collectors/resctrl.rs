//! The collector `resctrl`: cache occupancy and memory bandwidth, from monitoring groups on the owners' exclusive CPUs.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::families::{CONTAINER_LLC_OCCUPANCY_BYTES, CONTAINER_MEMORY_BANDWIDTH_BYTES};
use super::super::page::{Lines, Page};
use super::measured::{CollectOutcome, MeasuredContainer};
use super::monitor_plan::{BandwidthTotals, MonitorPlan, MonitorStep, WantedGroup, name, plan};
use super::scrape::{Collector, Scrape};
use crate::cpu::CpuSet;
use crate::host::counters::resctrl::{CacheCounters, Count, Resctrl, ResctrlError};
use crate::pin::Enforcement;
use crate::pod::PodRole;

/// The time after which a refused group is tried again with the same CPUs. Each attempt takes a monitor, which may not be free
/// again at once.
const RETRY: Duration = Duration::from_secs(60);

/// Reasons for containers without series, as label values. `no_monitors`: all RMIDs are in use, or wait until their data has
/// left the cache. `other_control_group`: a control group of another program has some of the CPUs. `bind_refused`: the kernel
/// refuses the CPUs for another reason. `unavailable`: the hardware reports no value.
const NO_MONITORS: &str = "no_monitors";
const OTHER_CONTROL_GROUP: &str = "other_control_group";
const BIND_REFUSED: &str = "bind_refused";
const UNAVAILABLE: &str = "unavailable";

/// The kernel keeps the groups themselves.
#[derive(Debug)]
pub(super) struct ResctrlCollector {
    resctrl: Resctrl,
    totals: BandwidthTotals,
    /// Groups that the kernel has refused, by name.
    refused: BTreeMap<String, RefusedGroup>,
}

#[derive(Debug)]
struct RefusedGroup {
    at: Instant,
    cpus: CpuSet,
    reason: &'static str,
}

/// A container's group.
struct ResctrlGroup<'a, 'b> {
    container: &'a MeasuredContainer<'b>,
    wanted: WantedGroup,
}

impl Collector for ResctrlCollector {
    fn name(&self) -> &'static str {
        "resctrl"
    }

    /// Writes the two families of every owner with a group.
    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        if !self.totals.is_empty() {
            let live: HashSet<&str> = scrape
                .containers
                .iter()
                .map(|container| container.cgroup)
                .collect();
            self.totals.retain(|cgroup| live.contains(cgroup));
        }
        let most = match self.resctrl.available_groups() {
            Ok(most) => most,
            Err(error) => return failure(&error),
        };
        // Under `observe`, the agent makes no groups, and removes those of an earlier agent.
        let enforced = scrape.snapshot.enforcement != Enforcement::Observe;
        let containers = scrape.containers.iter().filter(|_| enforced);
        let groups: Vec<ResctrlGroup<'_, '_>> = containers.filter_map(group).collect();
        let mut left_out: BTreeMap<&'static str, usize> = BTreeMap::new();
        let in_time = match self.update_groups(scrape, &groups, most, &mut left_out) {
            Ok(in_time) => in_time,
            Err(error) => return failure(&error),
        };
        for refused in self.refused.values() {
            *left_out.entry(refused.reason).or_default() += 1;
        }
        let (read, unavailable) = self.read(page, scrape, &groups);
        if unavailable > 0 {
            left_out.insert(UNAVAILABLE, unavailable);
        }
        CollectOutcome::LeftOut {
            complete: in_time && read,
            reasons: left_out,
        }
    }
}

// === impl ResctrlCollector ===

impl ResctrlCollector {
    pub(super) fn new(root: &Path) -> Self {
        Self::with_resctrl(Resctrl::new(root))
    }

    fn with_resctrl(resctrl: Resctrl) -> Self {
        Self {
            resctrl,
            totals: BandwidthTotals::default(),
            refused: BTreeMap::new(),
        }
    }

    /// Makes, binds and removes groups, so that they follow the owners. Returns whether all steps
    /// were carried out.
    ///
    /// # Errors
    /// The machine does not let Pinfold monitor, or the groups can't be listed.
    fn update_groups(
        &mut self,
        scrape: &Scrape<'_>,
        groups: &[ResctrlGroup<'_, '_>],
        most: usize,
        left_out: &mut BTreeMap<&'static str, usize>,
    ) -> Result<bool, ResctrlError> {
        self.refused.retain(|name, refused| {
            let is_wanted = |group: &ResctrlGroup<'_, '_>| {
                group.wanted.name == *name && group.wanted.cpus == refused.cpus
            };
            refused.at.elapsed() < RETRY && groups.iter().any(is_wanted)
        });
        let wanted: Vec<WantedGroup> = groups
            .iter()
            .filter(|group| !self.refused.contains_key(&group.wanted.name))
            .map(|group| group.wanted.clone())
            .collect();
        let MonitorPlan { steps, short } = plan(&self.resctrl.groups()?, &wanted, most);
        if short > 0 {
            *left_out.entry(NO_MONITORS).or_default() += short;
        }
        let mut complete = true;
        let mut not_made: Vec<String> = Vec::new();
        for step in steps {
            if scrape.deadline.is_over() {
                return Ok(false);
            }
            if matches!(&step, MonitorStep::Bind(name, _) if not_made.contains(name)) {
                continue;
            }
            match (self.carry_out(&step, groups), &step) {
                (Ok(()), _) => {}
                (Err(error @ ResctrlError::Unsupported(_)), _) => return Err(error),
                // The next scrape tries again, since a monitor may be free by then.
                (Err(ResctrlError::Exhausted(_)), MonitorStep::Make(name)) => {
                    not_made.push(name.clone());
                    *left_out.entry(NO_MONITORS).or_default() += 1;
                }
                (Err(ResctrlError::Refused { says, .. }), MonitorStep::Bind(name, cpus)) => {
                    complete &= self.refuse(name, cpus, &says);
                }
                (Err(error), _) => {
                    tracing::debug!("{error}");
                    complete = false;
                }
            }
        }
        Ok(complete)
    }

    /// Records that the kernel refuses the CPUs, and frees the group's monitor. Returns false if the removal failed.
    fn refuse(&mut self, name: &str, cpus: &CpuSet, kernel_says: &str) -> bool {
        let reason = if kernel_says.contains("belong to parent") {
            OTHER_CONTROL_GROUP
        } else {
            BIND_REFUSED
        };
        tracing::debug!("{name} on {}: {reason}: {kernel_says}", cpus.in_words());
        let refused = RefusedGroup {
            at: Instant::now(),
            cpus: cpus.clone(),
            reason,
        };
        self.refused.insert(name.to_owned(), refused);
        self.resctrl
            .remove(name)
            .inspect_err(|error| tracing::debug!("{error}"))
            .is_ok()
    }

    fn carry_out(
        &mut self,
        step: &MonitorStep,
        groups: &[ResctrlGroup<'_, '_>],
    ) -> Result<(), ResctrlError> {
        match step {
            MonitorStep::Remove(name) => self.resctrl.remove(name),
            MonitorStep::Make(name) => {
                self.resctrl.make(name)?;
                let of_name = groups.iter().filter(|group| group.wanted.name == *name);
                of_name.for_each(|group| self.totals.restart(group.container.cgroup));
                Ok(())
            }
            MonitorStep::Bind(name, cpus) => self.resctrl.bind(name, cpus),
        }
    }

    /// Writes the counters of the groups. A cache without a value has no series in this scrape. Returns whether all counters
    /// were readable, and the number of containers with a missing value.
    fn read(
        &mut self,
        page: &mut Page,
        scrape: &Scrape<'_>,
        groups: &[ResctrlGroup<'_, '_>],
    ) -> (bool, usize) {
        let mut occupancy = Lines::of(&CONTAINER_LLC_OCCUPANCY_BYTES);
        let mut bandwidth = Lines::of(&CONTAINER_MEMORY_BANDWIDTH_BYTES);
        let (mut complete, mut unavailable) = (true, 0);
        // A group that was not made, or not bound to all of its CPUs, has no meaningful counters.
        let existing = self.resctrl.groups().unwrap_or_default();
        for ResctrlGroup { container, wanted } in groups {
            if existing.get(&wanted.name) != Some(&wanted.cpus) {
                continue;
            }
            let late = scrape.deadline.is_over();
            let (false, Ok(domains)) = (late, self.resctrl.read(&wanted.name)) else {
                complete = false;
                continue;
            };
            // An unassigned counter is a matter of configuration, and does not count as missing.
            let has_values = |domain: &CacheCounters| {
                [domain.occupancy, domain.total, domain.local]
                    .iter()
                    .all(|count| *count != Some(Count::Unknown))
            };
            unavailable += usize::from(!domains.iter().all(has_values));
            for domain in &domains {
                self.write_domain(&mut occupancy, &mut bandwidth, container, domain);
            }
        }
        page.add(occupancy);
        page.add(bandwidth);
        (complete, unavailable)
    }

    /// Writes a container's counters for a single last-level cache. A missing value has no series.
    fn write_domain(
        &mut self,
        occupancy: &mut Lines,
        bandwidth: &mut Lines,
        container: &MeasuredContainer<'_>,
        domain: &CacheCounters,
    ) {
        let id = domain.id.as_str();
        if let Some(Count::Bytes(bytes)) = domain.occupancy {
            occupancy.put_with(&container.labels, &[("l3_domain", id)], bytes);
        }
        for (scope, count) in [("total", domain.total), ("local", domain.local)] {
            if let Some(Count::Bytes(bytes)) = count {
                let key = (domain.id.clone(), scope);
                let total = self.totals.add(container.cgroup, key, bytes);
                let labels = [("l3_domain", id), ("scope", scope)];
                bandwidth.put_with(&container.labels, &labels, total);
            }
        }
    }
}

fn failure(error: &ResctrlError) -> CollectOutcome {
    if let ResctrlError::Unsupported(detail) = error {
        return CollectOutcome::unsupported("no_resctrl_monitoring", detail.clone());
    }
    tracing::debug!("{error}");
    CollectOutcome::Partial
}

/// The group for a container with enforced exclusive CPUs.
fn group<'a, 'b>(container: &'a MeasuredContainer<'b>) -> Option<ResctrlGroup<'a, 'b>> {
    let cpus = container.enforced_cpus()?;
    let name = name(container.state.uid.as_deref()?, &container.state.container)?;
    let preferred = container.state.role == PodRole::Ps;
    let wanted = WantedGroup {
        name,
        cpus,
        preferred,
    };
    Some(ResctrlGroup { container, wanted })
}

#[cfg(test)]
mod tests;
