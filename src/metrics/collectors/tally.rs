//! Which CPUs are counted for whom, and what containers have counted so far: the decisions behind the `caches` collector.

use std::collections::{BTreeMap, HashMap};

use crate::cpu::CpuSet;
use crate::host::perf::{EVENTS, GroupCounts};

/// A container with CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub(super) cgroup: &'a str,
    /// The CPUs that it owns and that nobody else can be on.
    pub(super) cpus: CpuSet,
}

/// What is to be done so that what is counted is what is owned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// CPUs whose counters are closed; some of them are opened again for somebody else.
    pub(super) close: Vec<u32>,
    /// CPUs whose counters are opened, each with the place of its owner.
    pub(super) open: Vec<(u32, usize)>,
    /// How many owners are left out, because there are not counters enough, or another has one of their CPUs.
    pub(super) short: usize,
}

/// Says what to open and to close, where `open` tells for whom each CPU is counted, and no more than `most` CPUs may be.
///
/// An owner is counted on all of its CPUs or on none: a part of them would tell something, and nobody could say what. Those
/// that are counted already come first, so that nobody's counters begin anew for the sake of somebody else's.
pub(super) fn plan(open: &BTreeMap<u32, String>, owners: &[Owner<'_>], most: usize) -> Plan {
    let is_open =
        |owner: &Owner<'_>, cpu| open.get(&cpu).is_some_and(|cgroup| cgroup == owner.cgroup);
    let mut order: Vec<(usize, &Owner<'_>)> = owners
        .iter()
        .enumerate()
        .filter(|(_, owner)| !owner.cpus.is_empty())
        .collect();
    order.sort_by_key(|(_, owner)| !owner.cpus.iter().any(|cpu| is_open(owner, cpu)));
    let mut plan = Plan::default();
    let mut chosen: BTreeMap<u32, usize> = BTreeMap::new();
    for (place, owner) in order {
        let taken = owner.cpus.iter().any(|cpu| chosen.contains_key(&cpu));
        if taken || chosen.len() + owner.cpus.len() > most {
            plan.short += 1;
            continue;
        }
        chosen.extend(owner.cpus.iter().map(|cpu| (cpu, place)));
    }
    let stays = |cpu: u32| {
        chosen
            .get(&cpu)
            .and_then(|place| owners.get(*place))
            .is_some_and(|it| is_open(it, cpu))
    };
    plan.close = open.keys().copied().filter(|cpu| !stays(*cpu)).collect();
    plan.open = chosen
        .iter()
        .map(|(cpu, place)| (*cpu, *place))
        .filter(|(cpu, _)| !stays(*cpu))
        .collect();
    plan
}

/// Says which containers are counted for themselves, where no more than `most` can be: those of the lowest rank, and among equals
/// those that are counted already.
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

/// What containers have counted so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    totals: HashMap<String, Totals>,
    last: BTreeMap<u64, Last>,
}

/// What one container has counted on all of its CPUs, the present ones and those that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    /// Nanoseconds of a CPU in which there was to be counted.
    pub(super) enabled: u64,
    /// Nanoseconds in which there was; the rest is estimated.
    pub(super) running: u64,
    pub(super) counts: [u64; EVENTS],
}

/// The latest reading of a slot: a CPU, or a CPU for one cgroup.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    reading: GroupCounts,
    /// Nanoseconds for which nothing has been estimated yet, since the counters have not run in them.
    waiting: u64,
}

// === impl Tally ===

impl Tally {
    /// The counters of a CPU are closed: what they counted since they were last read is nobody's, since nobody knows when in
    /// that time the CPU changed hands.
    pub(super) fn forget(&mut self, slot: u64) {
        self.last.remove(&slot);
    }

    /// From now on there is counted for a container, which may do nothing for a while.
    pub(super) fn begin(&mut self, cgroup: &str) {
        self.totals.entry(cgroup.to_owned()).or_default();
    }

    /// Adds what a CPU has counted for a container since it was last read, or since its counters were opened. Says whether it
    /// still counts: the time goes on as long as the CPU is online, whether or not it was the counters' turn.
    pub(super) fn note(&mut self, cgroup: &str, slot: u64, reading: &GroupCounts) -> bool {
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

    /// What a container has counted.
    pub(super) fn totals(&self, cgroup: &str) -> Option<&Totals> {
        self.totals.get(cgroup)
    }

    /// Whether nothing was counted for anybody yet.
    pub(super) fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }

    /// Forgets the cgroups that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.totals.retain(|cgroup, _| is_there(cgroup));
    }
}

/// What would have been counted in all the time, at the rate of the time in which there was.
fn scaled(raw: u64, enabled: u64, running: u64) -> u64 {
    // The two times are measured one after the other: a counter that never waits may seem to have run for longer.
    if running >= enabled {
        return raw;
    }
    u64::try_from(u128::from(raw) * u128::from(enabled) / u128::from(running)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owners<'a>(list: &[(&'a str, &str)]) -> Vec<Owner<'a>> {
        list.iter()
            .map(|(cgroup, cpus)| Owner {
                cgroup,
                cpus: cpus.parse().unwrap(),
            })
            .collect()
    }

    fn carry_out(open: &mut BTreeMap<u32, String>, owners: &[Owner<'_>], most: usize) -> Plan {
        let plan = plan(open, owners, most);
        plan.close.iter().for_each(|cpu| drop(open.remove(cpu)));
        for (cpu, place) in &plan.open {
            assert_eq!(
                open.insert(*cpu, owners[*place].cgroup.to_owned()),
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
            Plan {
                close: vec![],
                open: vec![(2, 0), (3, 0), (4, 1)],
                short: 0
            }
        );
        assert_eq!(
            carry_out(&mut open, &first, 9),
            Plan::default(),
            "a second plan is empty"
        );
        // One CPU goes from a to b, one to nobody.
        let plan = carry_out(&mut open, &owners(&[("a", ""), ("b", "3-4")]), 9);
        assert_eq!(
            plan,
            Plan {
                close: vec![2, 3],
                open: vec![(3, 1)],
                short: 0
            }
        );
        assert_eq!(carry_out(&mut open, &[], 9).close, [3, 4]);
    }

    #[test]
    fn an_owner_is_counted_whole_and_the_counted_come_first() {
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
    fn a_cpu_that_two_claim_is_counted_for_one() {
        let plan = plan(&BTreeMap::new(), &owners(&[("a", "0-1"), ("b", "1-2")]), 9);
        assert_eq!((plan.open, plan.short), (vec![(0, 0), (1, 0)], 1));
    }

    #[test]
    fn the_budget_is_for_those_who_come_first() {
        let wanted = [("web", 2), ("w0", 1), ("ps", 0), ("w1", 1)];
        let open = |cgroup: &str| cgroup == "w1" || cgroup == "web";
        assert_eq!(choose(open, &wanted, 2), ["ps", "w1"]);
        assert_eq!(choose(open, &wanted, 9), ["ps", "w1", "w0", "web"]);
        assert_eq!(choose(open, &wanted, 0), [""; 0]);
    }

    #[test]
    fn what_took_turns_is_estimated() {
        let mut tally = Tally::default();
        assert!(tally.note("a", 0, &reading(100, 50, 10)));
        assert_eq!(tally.totals("a").unwrap().counts, [20, 40, 0, 0]);
        // Each span has its own ratio: scaled over all its life, the count would now go down to 80.
        assert!(tally.note("a", 0, &reading(200, 150, 60)));
        let totals = Totals {
            enabled: 200,
            running: 150,
            counts: [70, 140, 0, 0],
        };
        assert_eq!(tally.totals("a"), Some(&totals));
        // No turn at all: the time is told, and the count waits for the next turn.
        assert!(tally.note("a", 0, &reading(300, 150, 60)));
        assert_eq!(
            tally.totals("a"),
            Some(&Totals {
                enabled: 300,
                ..totals
            })
        );
        assert!(tally.note("a", 0, &reading(400, 250, 160)));
        assert_eq!(
            tally.totals("a"),
            Some(&Totals {
                enabled: 400,
                running: 250,
                counts: [270, 540, 0, 0]
            })
        );
    }

    #[test]
    fn nobody_gets_what_another_did_and_nothing_goes_back() {
        let mut tally = Tally::default();
        tally.note("a", 0, &reading(100, 100, 1000));
        // The CPU goes to b, whose counters begin at nothing.
        tally.forget(0);
        tally.note("b", 0, &reading(10, 10, 7));
        assert_eq!(tally.totals("b").unwrap().counts[0], 7);
        assert_eq!(tally.totals("a").unwrap().counts[0], 1000);
        // It comes back to a, beside another.
        tally.forget(0);
        tally.note("a", 0, &reading(10, 10, 5));
        tally.note("a", 1, &reading(20, 20, 3));
        assert_eq!(
            tally.totals("a"),
            Some(&Totals {
                enabled: 130,
                running: 130,
                counts: [1008, 2016, 0, 0]
            })
        );
        tally.keep(|cgroup| cgroup == "b");
        assert_eq!(tally.totals("a"), None);
    }

    #[test]
    fn a_cpu_that_went_offline_counts_no_more() {
        let mut tally = Tally::default();
        assert!(tally.note("a", 0, &reading(100, 100, 10)));
        assert!(
            !tally.note("a", 0, &reading(100, 100, 10)),
            "its time stands still"
        );
        assert_eq!(tally.totals("a").unwrap().counts[0], 10);
        tally.forget(0);
        assert!(tally.note("a", 0, &reading(50, 50, 4)), "opened anew");
        assert_eq!(tally.totals("a").unwrap().counts[0], 14);
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
                let owners: Vec<Owner<'_>> = (1..5)
                    .map(|owner| Owner { cgroup: names[owner], cpus: of(owner).map(|(cpu, _)| cpu).collect() })
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
            let mut tally = Tally::default();
            let (mut now, mut before) = (GroupCounts::default(), Totals::default());
            let mut raw = 0;
            for (enabled, share, count) in spans {
                let running = share.min(enabled);
                now.enabled += enabled;
                now.running += running;
                // Nothing is counted in no time.
                raw += if running > 0 { count } else { 0 };
                now.values = [Some(raw); EVENTS];
                tally.note("a", 0, &now);
                let after = tally.totals("a").copied().unwrap_or_default();
                prop_assert!(after.counts.iter().zip(&before.counts).all(|(after, before)| after >= before));
                prop_assert!(after.counts.iter().all(|count| *count >= raw));
                prop_assert_eq!((after.enabled, after.running), (now.enabled, now.running));
                before = after;
            }
        }
    }
}
