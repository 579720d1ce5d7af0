//! The choice of CPUs with hardware counters, and the totals of each container: the decisions behind [`super::events`].

use std::collections::{BTreeMap, HashMap};

use crate::cpu::CpuSet;
use crate::host::counters::perf::{EVENTS, GroupCounts};

/// A container with exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CountedOwner<'a> {
    pub(super) cgroup: &'a str,
    /// The exclusive CPUs, as the kernel enforces them.
    pub(super) cpus: CpuSet,
}

/// The counters to close and to open, so that they follow the owners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CounterPlan {
    /// CPUs whose counters are closed. A new owner's counters may open on the same CPU.
    pub(super) close: Vec<u32>,
    /// CPUs whose counters are opened, each with the index of the owner.
    pub(super) open: Vec<(u32, usize)>,
    /// The number of owners without counters: too few descriptors, or a CPU with two owners.
    pub(super) short: usize,
}

/// Plans the counters of the owners. `open` maps each counted CPU to the owner's cgroup. At most `most` CPUs are counted.
///
/// An owner is counted on all of its CPUs or on none, since a partial count has no meaning. Owners with open counters come
/// first, so that no running counter ends in favor of a new owner.
pub(super) fn plan(
    open: &BTreeMap<u32, String>,
    owners: &[CountedOwner<'_>],
    most: usize,
) -> CounterPlan {
    let is_open =
        |owner: &CountedOwner<'_>, cpu| open.get(&cpu).is_some_and(|cgroup| cgroup == owner.cgroup);
    let mut order: Vec<(usize, &CountedOwner<'_>)> = owners
        .iter()
        .enumerate()
        .filter(|(_, owner)| !owner.cpus.is_empty())
        .collect();
    order.sort_by_key(|(_, owner)| !owner.cpus.iter().any(|cpu| is_open(owner, cpu)));
    let mut plan = CounterPlan::default();
    let mut chosen: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, owner) in order {
        let taken = owner.cpus.iter().any(|cpu| chosen.contains_key(&cpu));
        if taken || chosen.len() + owner.cpus.len() > most {
            plan.short += 1;
            continue;
        }
        chosen.extend(owner.cpus.iter().map(|cpu| (cpu, index)));
    }
    let stays = |cpu: u32| {
        chosen
            .get(&cpu)
            .and_then(|index| owners.get(*index))
            .is_some_and(|owner| is_open(owner, cpu))
    };
    plan.close = open.keys().copied().filter(|cpu| !stays(*cpu)).collect();
    plan.open = chosen
        .iter()
        .map(|(cpu, index)| (*cpu, *index))
        .filter(|(cpu, _)| !stays(*cpu))
        .collect();
    plan
}

/// Chooses at most `most` containers on shared CPUs. The lowest rank comes first, and among equal
/// ranks the containers with open counters.
pub(super) fn choose<'a>(
    is_open: impl Fn(&str) -> bool,
    wanted: &[(&'a str, u8)],
    most: usize,
) -> Vec<&'a str> {
    let mut order: Vec<&(&str, u8)> = wanted.iter().collect();
    order.sort_by_key(|(cgroup, rank)| (*rank, !is_open(cgroup)));
    order
        .into_iter()
        .take(most)
        .map(|(cgroup, _)| *cgroup)
        .collect()
}

/// The event totals of each container.
#[derive(Debug, Default)]
pub(super) struct EventTotals {
    totals: HashMap<String, ContainerTotals>,
    last: BTreeMap<u64, LastReading>,
}

/// The totals of a container on all of its CPUs, including earlier CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ContainerTotals {
    /// Nanoseconds for which the counters were enabled.
    pub(super) enabled: u64,
    /// Nanoseconds for which the counters ran. The counts of the remaining time are estimated.
    pub(super) running: u64,
    pub(super) counts: [u64; EVENTS],
}

/// The latest reading of a slot. A slot is a CPU, or a CPU for one cgroup.
#[derive(Debug, Clone, Copy, Default)]
struct LastReading {
    reading: GroupCounts,
    /// Nanoseconds without an estimate yet, because the counters have not run since.
    waiting: u64,
}

// === impl EventTotals ===

impl EventTotals {
    /// Drops the last reading of closed counters. The counts since then belong to no container, because the time at which
    /// the CPU changed owners is unknown.
    pub(super) fn forget(&mut self, slot: u64) {
        self.last.remove(&slot);
    }

    /// Adds a container with zero counts.
    pub(super) fn add_container(&mut self, cgroup: &str) {
        self.totals.entry(cgroup.to_owned()).or_default();
    }

    /// Adds the increase since the last reading, or since the counters were opened. Returns false if the counters have
    /// stopped: the enabled time of an online CPU grows even while the counters do not run.
    pub(super) fn add(&mut self, cgroup: &str, slot: u64, reading: &GroupCounts) -> bool {
        let last = self.last.entry(slot).or_default();
        let enabled = reading.enabled.saturating_sub(last.reading.enabled);
        let running = reading.running.saturating_sub(last.reading.running);
        if enabled == 0 {
            return false;
        }
        let total = self.totals.entry(cgroup.to_owned()).or_default();
        total.enabled = total.enabled.saturating_add(enabled);
        total.running = total.running.saturating_add(running);
        last.waiting = last.waiting.saturating_add(enabled);
        if running > 0 {
            let values = reading.values.iter().zip(&last.reading.values);
            for (count, (now, before)) in total.counts.iter_mut().zip(values) {
                let raw = now
                    .unwrap_or_default()
                    .saturating_sub(before.unwrap_or_default());
                *count = count.saturating_add(scaled(raw, last.waiting, running));
            }
            last.waiting = 0;
        }
        last.reading = *reading;
        true
    }

    pub(super) fn get(&self, cgroup: &str) -> Option<&ContainerTotals> {
        self.totals.get(cgroup)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }

    /// Drops the totals of removed cgroups.
    pub(super) fn retain(&mut self, is_live: impl Fn(&str) -> bool) {
        self.totals.retain(|cgroup, _| is_live(cgroup));
    }
}

/// The estimated count for the enabled time, at the rate of the running time.
fn scaled(raw: u64, enabled: u64, running: u64) -> u64 {
    // The kernel measures the two times one after the other, so the running time may be a little longer.
    if running >= enabled {
        return raw;
    }
    u64::try_from(u128::from(raw) * u128::from(enabled) / u128::from(running)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owners<'a>(list: &[(&'a str, &str)]) -> Vec<CountedOwner<'a>> {
        list.iter()
            .map(|(cgroup, cpus)| CountedOwner {
                cgroup,
                cpus: cpus.parse().unwrap(),
            })
            .collect()
    }

    fn carry_out(
        open: &mut BTreeMap<u32, String>,
        owners: &[CountedOwner<'_>],
        most: usize,
    ) -> CounterPlan {
        let plan = plan(open, owners, most);
        plan.close.iter().for_each(|cpu| drop(open.remove(cpu)));
        for (cpu, index) in &plan.open {
            assert_eq!(
                open.insert(*cpu, owners[*index].cgroup.to_owned()),
                None,
                "{cpu} was open"
            );
        }
        plan
    }

    fn reading(enabled: u64, running: u64, count: u64) -> GroupCounts {
        GroupCounts {
            enabled,
            running,
            values: [Some(count), Some(2 * count), None, Some(0)],
        }
    }

    #[test]
    fn counters_follow_the_owners() {
        let mut open = BTreeMap::new();
        let first = owners(&[("a", "2-3"), ("b", "4")]);
        let plan = carry_out(&mut open, &first, 9);
        assert_eq!(
            plan,
            CounterPlan {
                close: vec![],
                open: vec![(2, 0), (3, 0), (4, 1)],
                short: 0
            }
        );
        assert_eq!(
            carry_out(&mut open, &first, 9),
            CounterPlan::default(),
            "a second plan is empty"
        );
        // CPU 3 goes from a to b, and CPU 2 gets no owner.
        let plan = carry_out(&mut open, &owners(&[("a", ""), ("b", "3-4")]), 9);
        assert_eq!(
            plan,
            CounterPlan {
                close: vec![2, 3],
                open: vec![(3, 1)],
                short: 0
            }
        );
        assert_eq!(carry_out(&mut open, &[], 9).close, [3, 4]);
    }

    #[test]
    fn an_owner_is_counted_completely_and_open_counters_come_first() {
        let mut open = BTreeMap::new();
        let plan = carry_out(
            &mut open,
            &owners(&[("a", "0-3"), ("b", "4-5"), ("c", "6")]),
            3,
        );
        assert_eq!((plan.open, plan.short), (vec![(4, 1), (5, 1), (6, 2)], 1));
        let plan = carry_out(
            &mut open,
            &owners(&[("a", "0"), ("b", "4-5"), ("c", "6")]),
            3,
        );
        assert_eq!(
            (plan.open, plan.short),
            (vec![], 1),
            "nobody's counters end for a's"
        );
        let plan = carry_out(&mut open, &owners(&[("a", "0"), ("c", "6")]), 3);
        assert_eq!(
            (plan.close, plan.open, plan.short),
            (vec![4, 5], vec![(0, 0)], 0)
        );
    }

    #[test]
    fn a_cpu_with_two_owners_is_counted_for_one() {
        let plan = plan(&BTreeMap::new(), &owners(&[("a", "0-1"), ("b", "1-2")]), 9);
        assert_eq!((plan.open, plan.short), (vec![(0, 0), (1, 0)], 1));
    }

    #[test]
    fn the_lowest_rank_gets_the_budget() {
        let wanted = [("web", 2), ("w0", 1), ("ps", 0), ("w1", 1)];
        let open = |cgroup: &str| cgroup == "w1" || cgroup == "web";
        assert_eq!(choose(open, &wanted, 2), ["ps", "w1"]);
        assert_eq!(choose(open, &wanted, 9), ["ps", "w1", "w0", "web"]);
        assert_eq!(choose(open, &wanted, 0), [""; 0]);
    }

    #[test]
    fn counts_are_scaled_to_the_enabled_time() {
        let mut totals = EventTotals::default();
        assert!(totals.add("a", 0, &reading(100, 50, 10)));
        assert_eq!(totals.get("a").unwrap().counts, [20, 40, 0, 0]);
        // Each period has its own ratio, because one over the whole life would decrease the count
        // to 80.
        assert!(totals.add("a", 0, &reading(200, 150, 60)));
        let expected = ContainerTotals {
            enabled: 200,
            running: 150,
            counts: [70, 140, 0, 0],
        };
        assert_eq!(totals.get("a"), Some(&expected));
        // The counters have not run. The time counts at once, and the count waits until they run
        // again.
        assert!(totals.add("a", 0, &reading(300, 150, 60)));
        assert_eq!(
            totals.get("a"),
            Some(&ContainerTotals {
                enabled: 300,
                ..expected
            })
        );
        assert!(totals.add("a", 0, &reading(400, 250, 160)));
        assert_eq!(
            totals.get("a"),
            Some(&ContainerTotals {
                enabled: 400,
                running: 250,
                counts: [270, 540, 0, 0]
            })
        );
    }

    #[test]
    fn counts_stay_with_their_container_and_never_decrease() {
        let mut totals = EventTotals::default();
        totals.add("a", 0, &reading(100, 100, 1000));
        // The CPU goes to b, whose counters begin at nothing.
        totals.forget(0);
        totals.add("b", 0, &reading(10, 10, 7));
        assert_eq!(totals.get("b").unwrap().counts[0], 7);
        assert_eq!(totals.get("a").unwrap().counts[0], 1000);
        // The counters in slot 0 return to a, together with those in slot 1.
        totals.forget(0);
        totals.add("a", 0, &reading(10, 10, 5));
        totals.add("a", 1, &reading(20, 20, 3));
        assert_eq!(
            totals.get("a"),
            Some(&ContainerTotals {
                enabled: 130,
                running: 130,
                counts: [1008, 2016, 0, 0]
            })
        );
        totals.retain(|cgroup| cgroup == "b");
        assert_eq!(totals.get("a"), None);
    }

    #[test]
    fn a_cpu_that_went_offline_counts_no_more() {
        let mut totals = EventTotals::default();
        assert!(totals.add("a", 0, &reading(100, 100, 10)));
        assert!(
            !totals.add("a", 0, &reading(100, 100, 10)),
            "its time stands still"
        );
        assert_eq!(totals.get("a").unwrap().counts[0], 10);
        totals.forget(0);
        assert!(totals.add("a", 0, &reading(50, 50, 4)), "opened anew");
        assert_eq!(totals.get("a").unwrap().counts[0], 14);
    }

    proptest! {
        #[test]
        fn plans_are_within_bounds_and_end(
            rounds in prop::collection::vec((prop::collection::vec(0_usize..5, 12), 0_usize..14), 1..12),
        ) {
            let names = ["nobody", "a", "b", "c", "d"];
            let mut open = BTreeMap::new();
            for (of_cpu, most) in rounds {
                let of = |owner: usize| (0..12_u32).zip(&of_cpu).filter(move |(_, it)| **it == owner);
                let owners: Vec<CountedOwner<'_>> = (1..5)
                    .map(|owner| CountedOwner { cgroup: names[owner], cpus: of(owner).map(|(cpu, _)| cpu).collect() })
                    .collect();
                let plan = carry_out(&mut open, &owners, most);
                prop_assert!(open.len() <= most);
                for owner in &owners {
                    let counted: CpuSet =
                        open.iter().filter(|(_, of)| *of == owner.cgroup).map(|(cpu, _)| *cpu).collect();
                    prop_assert!(counted.is_empty() || counted == owner.cpus);
                    prop_assert!(plan.short > 0 || counted == owner.cpus);
                }
                let again = carry_out(&mut open, &owners, most);
                prop_assert_eq!((again.close, again.open), (vec![], vec![]));
            }
        }

        #[test]
        fn totals_never_go_back_and_hold_at_least_what_was_counted(
            spans in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 40, 0_u64..1 << 50), 1..40),
        ) {
            let mut totals = EventTotals::default();
            let (mut now, mut before) = (GroupCounts::default(), ContainerTotals::default());
            let mut raw = 0;
            for (enabled, share, count) in spans {
                let running = share.min(enabled);
                now.enabled += enabled;
                now.running += running;
                // Nothing is counted in no time.
                raw += if running > 0 { count } else { 0 };
                now.values = [Some(raw); EVENTS];
                totals.add("a", 0, &now);
                let after = totals.get("a").copied().unwrap_or_default();
                prop_assert!(after.counts.iter().zip(&before.counts).all(|(after, before)| after >= before));
                prop_assert!(after.counts.iter().all(|count| *count >= raw));
                prop_assert_eq!((after.enabled, after.running), (now.enabled, now.running));
                before = after;
            }
        }
    }
}
