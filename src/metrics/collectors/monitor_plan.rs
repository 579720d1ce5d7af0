//! The choice of monitoring groups, and the bandwidth totals: the decisions behind the collector `resctrl`.

use std::collections::{BTreeMap, HashMap};

use crate::cpu::CpuSet;
use crate::host::counters::resctrl::GROUP_PREFIX;

/// The limit on a group's name; the kernel's limit is 255 bytes.
const MAX_NAME: usize = 200;

/// The monitoring group of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedGroup {
    pub(super) name: String,
    pub(super) cpus: CpuSet,
    /// Whether the group is preferred if the monitors are too few.
    pub(super) preferred: bool,
}

/// A change of the existing groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MonitorStep {
    Remove(String),
    Make(String),
    Bind(String, CpuSet),
}

/// The changes, and the number of containers without a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MonitorPlan {
    pub(super) steps: Vec<MonitorStep>,
    pub(super) short: usize,
}

/// The name of a container's group; `None` for a name that the kernel might refuse.
pub(super) fn name(uid: &str, container: &str) -> Option<String> {
    let name = format!("{GROUP_PREFIX}{uid}-{container}");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (name.len() <= MAX_NAME && name.bytes().all(plain)).then_some(name)
}

/// Plans the changes from the existing groups to the wanted ones, with at most `most` groups.
///
/// Preferred groups come first, then existing ones. Pinfold's groups without a container are left
/// over from a deleted pod or an earlier agent, and are removed.
pub(super) fn plan(
    existing: &BTreeMap<String, CpuSet>,
    wanted: &[WantedGroup],
    most: usize,
) -> MonitorPlan {
    let mut order: Vec<&WantedGroup> = wanted
        .iter()
        .filter(|wanted| !wanted.cpus.is_empty())
        .collect();
    order.sort_by_key(|wanted| (!wanted.preferred, !existing.contains_key(&wanted.name)));
    let mut plan = MonitorPlan::default();
    let mut chosen: BTreeMap<&str, &CpuSet> = BTreeMap::new();
    for group in order {
        // A CPU belongs to a single group.
        let taken = chosen.contains_key(group.name.as_str())
            || chosen.values().any(|cpus| !cpus.is_disjoint(&group.cpus));
        if taken || chosen.len() >= most {
            plan.short += 1;
        } else {
            chosen.insert(&group.name, &group.cpus);
        }
    }
    // Removals come first, because they free monitors.
    let orphans = existing
        .keys()
        .filter(|name| !chosen.contains_key(name.as_str()));
    plan.steps.extend(orphans.cloned().map(MonitorStep::Remove));
    for (name, cpus) in chosen {
        let current = existing.get(name);
        if current.is_none() {
            plan.steps.push(MonitorStep::Make(name.to_owned()));
        }
        // A CPU leaves its group when it goes offline.
        if current != Some(cpus) {
            plan.steps
                .push(MonitorStep::Bind(name.to_owned(), cpus.clone()));
        }
    }
    plan
}

/// A counter of a group: the cache, and the scope `total` or `local`.
pub(super) type CounterKey = (String, &'static str);

/// The memory traffic of each container in bytes. The counters of a new group, or of a new mount,
/// begin at zero, but the totals never decrease.
#[derive(Debug, Default)]
pub(super) struct BandwidthTotals {
    containers: HashMap<String, HashMap<CounterKey, MonitorCounter>>,
}

#[derive(Debug, Clone, Copy)]
struct MonitorCounter {
    total: u64,
    last: u64,
}

// === impl BandwidthTotals ===

impl BandwidthTotals {
    /// Adds a counter's increase since the last reading, and returns the total since the first.
    pub(super) fn add(&mut self, cgroup: &str, key: CounterKey, now: u64) -> u64 {
        let counters = self.containers.entry(cgroup.to_owned()).or_default();
        let counter = counters.entry(key).or_insert(MonitorCounter {
            total: 0,
            last: now,
        });
        // A decrease means that the counter began again at zero.
        let increase = now.checked_sub(counter.last).unwrap_or(now);
        *counter = MonitorCounter {
            total: counter.total.saturating_add(increase),
            last: now,
        };
        counter.total
    }

    /// Records that a container's group is new, and that its counters begin at zero.
    pub(super) fn restart(&mut self, cgroup: &str) {
        let counters = self.containers.entry(cgroup.to_owned()).or_default();
        counters.values_mut().for_each(|counter| counter.last = 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty()
    }

    /// Drops the totals of removed cgroups.
    pub(super) fn retain(&mut self, is_live: impl Fn(&str) -> bool) {
        self.containers.retain(|cgroup, _| is_live(cgroup));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn wanted(list: &[(&str, &str, bool)]) -> Vec<WantedGroup> {
        let group = |&(name, cpus, preferred): &(&str, &str, bool)| WantedGroup {
            name: name.to_owned(),
            cpus: set(cpus),
            preferred,
        };
        list.iter().map(group).collect()
    }

    fn group_map(list: &[(&str, &str)]) -> BTreeMap<String, CpuSet> {
        list.iter()
            .map(|(name, cpus)| ((*name).to_owned(), set(cpus)))
            .collect()
    }

    fn carry_out(existing: &mut BTreeMap<String, CpuSet>, plan: &MonitorPlan) {
        for step in plan.steps.clone() {
            match step {
                MonitorStep::Remove(name) => drop(existing.remove(&name)),
                MonitorStep::Make(name) => assert_eq!(existing.insert(name, CpuSet::new()), None),
                MonitorStep::Bind(name, cpus) => {
                    // Like the kernel: CPUs leave their earlier group.
                    existing
                        .values_mut()
                        .for_each(|others| *others = others.difference(&cpus));
                    *existing.get_mut(&name).unwrap() = cpus;
                }
            }
        }
    }

    #[test]
    fn groups_follow_the_owners() {
        let mut groups = group_map(&[("gone", "1"), ("a", "2-3")]);
        let plan_ = plan(
            &groups,
            &wanted(&[("a", "3-4", false), ("b", "2", false), ("c", "", false)]),
            9,
        );
        let steps = [
            MonitorStep::Remove("gone".to_owned()),
            MonitorStep::Bind("a".to_owned(), set("3-4")),
            MonitorStep::Make("b".to_owned()),
            MonitorStep::Bind("b".to_owned(), set("2")),
        ];
        assert_eq!(
            plan_,
            MonitorPlan {
                steps: steps.to_vec(),
                short: 0
            }
        );
        carry_out(&mut groups, &plan_);
        assert_eq!(groups, group_map(&[("a", "3-4"), ("b", "2")]));
    }

    #[test]
    fn preferred_groups_come_first_and_then_existing_groups() {
        let groups = group_map(&[("z", "9")]);
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
    fn names_are_valid_for_the_kernel() {
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
    fn bandwidth_totals_never_decrease() {
        let mut totals = BandwidthTotals::default();
        let key = || ("0".to_owned(), "total");
        assert_eq!(
            totals.add("a", key(), 500),
            0,
            "the first reading may include earlier traffic"
        );
        assert_eq!(totals.add("a", key(), 700), 200);
        assert_eq!(totals.add("a", ("1".to_owned(), "total"), 5), 0);
        assert_eq!(
            totals.add("a", key(), 50),
            250,
            "the file system was mounted again"
        );
        totals.restart("a");
        assert_eq!(
            totals.add("a", key(), 60),
            310,
            "the new group's counter exceeds the old value"
        );
        totals.retain(|_| false);
        assert!(totals.containers.is_empty());
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
            let wanted: Vec<WantedGroup> = (1..6)
                .map(|owner| WantedGroup { name: format!("g{owner}"), cpus: cpus(&of_cpu, owner), preferred: first[owner] })
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
