//! Which monitoring groups there are to be, and what their counters add up to: the decisions behind the `resctrl` collector.

use std::collections::{BTreeMap, HashMap};

use crate::cpu::CpuSet;
use crate::host::resctrl::GROUP_PREFIX;

/// The longest name that a group is given; the kernel takes 255.
const LONGEST: usize = 200;

/// A group that shall be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) cpus: CpuSet,
    /// Whether it comes before others, where there are not monitors for all.
    pub(super) first: bool,
}

/// A change of the groups that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Remove(String),
    Make(String),
    Bind(String, CpuSet),
}

/// What is to be done, and how many are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) short: usize,
}

/// The name of a container's group; `None` for one that the kernel might not take.
pub(super) fn name(uid: &str, container: &str) -> Option<String> {
    let name = format!("{GROUP_PREFIX}{uid}-{container}");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (name.len() <= LONGEST && name.bytes().all(plain)).then_some(name)
}

/// Says what makes the groups that are there, with their CPUs, those that shall be, of which there can be no more than `room`.
///
/// Those that come first come first; among equals, those that are there already. Groups of ours that nobody wants are what a
/// pod has left that is gone, or an agent that has ended.
pub(super) fn plan(there: &BTreeMap<String, CpuSet>, wanted: &[Wanted], room: usize) -> Plan {
    let mut order: Vec<&Wanted> = wanted
        .iter()
        .filter(|wanted| !wanted.cpus.is_empty())
        .collect();
    order.sort_by_key(|wanted| (!wanted.first, !there.contains_key(&wanted.name)));
    let mut plan = Plan::default();
    let mut chosen: BTreeMap<&str, &CpuSet> = BTreeMap::new();
    for one in order {
        // A CPU is in one group at a time.
        let taken = chosen.contains_key(one.name.as_str())
            || chosen.values().any(|cpus| !cpus.is_disjoint(&one.cpus));
        if taken || chosen.len() >= room {
            plan.short += 1;
        } else {
            chosen.insert(&one.name, &one.cpus);
        }
    }
    // Monitors are free before they are asked for.
    let orphans = there
        .keys()
        .filter(|name| !chosen.contains_key(name.as_str()));
    plan.steps.extend(orphans.cloned().map(Step::Remove));
    for (name, cpus) in chosen {
        let now = there.get(name);
        if now.is_none() {
            plan.steps.push(Step::Make(name.to_owned()));
        }
        // A CPU that was offline is not in its group any more when it comes back.
        if now != Some(cpus) {
            plan.steps.push(Step::Bind(name.to_owned(), cpus.clone()));
        }
    }
    plan
}

/// Which of a group's counters: its cache, and the scope of what it counts.
pub(super) type Key = (String, &'static str);

/// Bytes that containers have moved so far. A group that is made anew counts from zero again, and so does a file system that is
/// mounted anew; what is told of a container never goes back.
#[derive(Debug, Default)]
pub(super) struct Moved {
    containers: HashMap<String, HashMap<Key, Counter>>,
}

#[derive(Debug, Clone, Copy)]
struct Counter {
    total: u64,
    last: u64,
}

// === impl Moved ===

impl Moved {
    /// Takes note of what a counter shows, and returns what it has added up to since it was first seen.
    pub(super) fn note(&mut self, cgroup: &str, key: Key, now: u64) -> u64 {
        let counters = self.containers.entry(cgroup.to_owned()).or_default();
        let counter = counters.entry(key).or_insert(Counter {
            total: 0,
            last: now,
        });
        // Less than before: it began again, and all that it shows has come since.
        let more = now.checked_sub(counter.last).unwrap_or(now);
        *counter = Counter {
            total: counter.total.saturating_add(more),
            last: now,
        };
        counter.total
    }

    /// A container's group was made just now: its counters begin at zero, whatever they showed before.
    pub(super) fn restart(&mut self, cgroup: &str) {
        let counters = self.containers.entry(cgroup.to_owned()).or_default();
        counters.values_mut().for_each(|counter| counter.last = 0);
    }

    /// Whether nothing was seen of anybody yet.
    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }

    /// Forgets the cgroups that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.containers.retain(|cgroup, _| is_there(cgroup));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn wanted(list: &[(&str, &str, bool)]) -> Vec<Wanted> {
        let one = |&(name, cpus, first): &(&str, &str, bool)| Wanted {
            name: name.to_owned(),
            cpus: set(cpus),
            first,
        };
        list.iter().map(one).collect()
    }

    fn there(list: &[(&str, &str)]) -> BTreeMap<String, CpuSet> {
        list.iter()
            .map(|(name, cpus)| ((*name).to_owned(), set(cpus)))
            .collect()
    }

    fn carry_out(there: &mut BTreeMap<String, CpuSet>, plan: &Plan) {
        for step in plan.steps.clone() {
            match step {
                Step::Remove(name) => drop(there.remove(&name)),
                Step::Make(name) => assert_eq!(there.insert(name, CpuSet::new()), None),
                Step::Bind(name, cpus) => {
                    // As the kernel does: CPUs leave the group that had them.
                    there
                        .values_mut()
                        .for_each(|others| *others = others.difference(&cpus));
                    *there.get_mut(&name).unwrap() = cpus;
                }
            }
        }
    }

    #[test]
    fn groups_follow_the_owners() {
        let mut groups = there(&[("gone", "1"), ("a", "2-3")]);
        let plan_ = plan(
            &groups,
            &wanted(&[("a", "3-4", false), ("b", "2", false), ("c", "", false)]),
            9,
        );
        let steps = [
            Step::Remove("gone".to_owned()),
            Step::Bind("a".to_owned(), set("3-4")),
            Step::Make("b".to_owned()),
            Step::Bind("b".to_owned(), set("2")),
        ];
        assert_eq!(
            plan_,
            Plan {
                steps: steps.to_vec(),
                short: 0
            }
        );
        carry_out(&mut groups, &plan_);
        assert_eq!(groups, there(&[("a", "3-4"), ("b", "2")]));
    }

    #[test]
    fn parameter_servers_come_first_and_then_those_that_are_there() {
        let groups = there(&[("z", "9")]);
        let all = wanted(&[("a", "1", false), ("ps", "2", true), ("z", "9", false)]);
        let names = |room| {
            let mut groups = groups.clone();
            let plan = plan(&groups, &all, room);
            carry_out(&mut groups, &plan);
            (groups.into_keys().collect::<Vec<_>>(), plan.short)
        };
        let owned = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(3), (owned(&["a", "ps", "z"]), 0));
        assert_eq!(names(2), (owned(&["ps", "z"]), 1));
        assert_eq!(names(1), (owned(&["ps"]), 2));
        assert_eq!(names(0), (vec![], 3));
    }

    #[test]
    fn names_are_what_the_kernel_takes() {
        assert_eq!(name("0a-1b", "main").as_deref(), Some("pinfold-0a-1b-main"));
        for (uid, container) in [
            ("../..", "main"),
            ("a", "b/c"),
            ("a", "b\n"),
            ("a", "ä"),
            ("a", &"x".repeat(200)),
        ] {
            assert_eq!(name(uid, container), None, "{uid} {container}");
        }
    }

    #[test]
    fn what_was_moved_never_goes_back() {
        let mut moved = Moved::default();
        let key = || ("0".to_owned(), "total");
        assert_eq!(
            moved.note("a", key(), 500),
            0,
            "what was there before is not the container's, or was told"
        );
        assert_eq!(moved.note("a", key(), 700), 200);
        assert_eq!(moved.note("a", ("1".to_owned(), "total"), 5), 0);
        assert_eq!(
            moved.note("a", key(), 50),
            250,
            "the file system was mounted anew"
        );
        moved.restart("a");
        assert_eq!(
            moved.note("a", key(), 60),
            310,
            "the group was made anew, and passed what it had"
        );
        moved.keep(|_| false);
        assert!(moved.containers.is_empty());
    }

    proptest! {
        #[test]
        fn plans_are_within_bounds_and_end(
            of_cpu in prop::collection::vec(0_usize..6, 16),
            before in prop::collection::vec(0_usize..6, 16),
            first in prop::collection::vec(any::<bool>(), 6),
            room in 0_usize..7,
        ) {
            let cpus = |of: &[usize], owner| (0..16_u32).zip(of).filter(|(_, it)| **it == owner).map(|(cpu, _)| cpu).collect::<CpuSet>();
            let mut groups: BTreeMap<String, CpuSet> =
                (1..6).map(|owner| (format!("g{}", owner * 2), cpus(&before, owner))).collect();
            let wanted: Vec<Wanted> = (1..6)
                .map(|owner| Wanted { name: format!("g{owner}"), cpus: cpus(&of_cpu, owner), first: first[owner] })
                .collect();
            let plan_ = plan(&groups, &wanted, room);
            carry_out(&mut groups, &plan_);
            prop_assert!(groups.len() <= room);
            let right = |(name, cpus): (&String, &CpuSet)| wanted.iter().any(|it| it.name == *name && it.cpus == *cpus);
            prop_assert!(groups.iter().all(right));
            prop_assert!(plan_.short > 0 || groups.len() == wanted.iter().filter(|it| !it.cpus.is_empty()).count());
            prop_assert_eq!(plan(&groups, &wanted, room).steps, vec![]);
        }
    }
}
