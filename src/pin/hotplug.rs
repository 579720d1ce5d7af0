//! cgroup v1: CPUs that leave the cgroups by going offline, and return.
//!
//! The kernel takes a CPU that goes offline out of every set and does not put it back. [`SeenSets`]
//! compares each scan with the one before, and notes the earlier set on each cgroup that lost a CPU
//! in this way; an administrator's narrower set lacks CPUs that are still online, and stays. The
//! plan then widens the noted sets once the CPUs are online again.

use std::collections::BTreeMap;

use super::{Observed, Step};
use crate::cpu::CpuSet;
use crate::host::cgroup::Cpuset;

/// The sets of all cgroups of the last scan, by path.
#[derive(Debug, Default)]
pub struct SeenSets {
    sets: BTreeMap<String, CpuSet>,
    /// Notes that could not be written. The CPUs may come back before a note is written, and return all the same.
    unwritten: BTreeMap<String, CpuSet>,
}

// === impl SeenSets ===

impl SeenSets {
    /// Compares the cgroups with the last call's. Returns the notes to write, and adds them to the
    /// cgroups. `online` are the CPUs of the top of the hierarchy, read after the cgroups.
    ///
    /// A cgroup with an assignment record needs no note, because the record has the earlier set.
    pub fn notes(&mut self, observed: &mut Observed, online: &CpuSet) -> Vec<Step> {
        let seen = std::mem::take(&mut self.sets);
        let mut unwritten = std::mem::take(&mut self.unwritten);
        let mut steps = Vec::new();
        let mut look = |path: &str, now: &CpuSet, from: &mut Option<CpuSet>, is_recorded: bool| {
            let before = seen.get(path);
            let gone = before.map(|before| before.difference(now));
            let offline = gone.unwrap_or_default().difference(online);
            // Another program may have written the set since.
            let is_kept = before.is_some_and(|before| before.difference(&offline) == *now);
            let unwritten = unwritten.remove(path).filter(|_| is_kept);
            // A note tells the set that the cgroup had left. When one more CPU goes, it must tell
            // the new one.
            let is_further = from.is_some() && (!offline.is_empty() || unwritten.is_some());
            let missing = offline.union(&unwritten.unwrap_or_default());
            let is_first = from.is_none() && !missing.is_subset(now);
            if (is_first || is_further) && !is_recorded {
                let earlier = from.clone().unwrap_or_else(|| now.union(&missing));
                *from = Some(earlier.clone());
                steps.push(Step::Narrowed {
                    path: path.to_owned(),
                    earlier: Some(earlier),
                });
            }
            self.sets.insert(path.to_owned(), now.clone());
        };
        let mut cgroup = |path: &str, cpuset: &mut Cpuset, is_recorded: bool| {
            look(path, &cpuset.cpus, &mut cpuset.narrowed_from, is_recorded);
        };
        for above in &mut observed.surroundings.above {
            cgroup(&above.path, &mut above.cpuset, false);
        }
        for pod in &mut observed.pods {
            let (recorded, containers) = (pod.cgroup.record_text.is_some(), &mut pod.containers);
            cgroup(&pod.cgroup.path, &mut pod.cgroup.cpuset, recorded);
            for container in containers.iter_mut().map(|container| &mut container.cgroup) {
                let is_recorded = container.record_text.is_some();
                cgroup(&container.path, &mut container.cpuset, is_recorded);
            }
        }
        let containers = observed.pods.iter_mut().flat_map(|pod| &mut pod.containers);
        for nested in containers.flat_map(|container| &mut container.cgroup.nested) {
            look(&nested.path, &nested.cpus, &mut nested.narrowed_from, false);
        }
        steps
    }

    /// Remembers a note that could not be written, so that the next scan tries again.
    pub fn keep_note(&mut self, path: &str, earlier: &CpuSet) {
        self.unwritten.insert(path.to_owned(), earlier.clone());
    }
}

// === impl Observed ===

impl Observed {
    /// The sets that the cgroups above the pods can have again, from the top down. Nothing gets wider than its parent.
    pub(super) fn returning_above(&self, online: &CpuSet) -> Vec<(&str, CpuSet)> {
        let mut sets: BTreeMap<&str, CpuSet> = BTreeMap::new();
        let mut returning = Vec::new();
        for above in &self.surroundings.above {
            let (path, now) = (above.path.as_str(), &above.cpuset.cpus);
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let limit = sets.get(parent).unwrap_or(online);
            let earlier = above.cpuset.narrowed_from.as_ref();
            let next = now.union(&earlier.unwrap_or(now).intersection(limit));
            if next != *now {
                returning.push((path, next.clone()));
            }
            sets.insert(path, next);
        }
        returning
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::{AncestorCgroup, ContainerCgroup, NestedCgroup, PodCgroup};
    use crate::pin::{Ledger, Scan};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn cpuset(cpus: &str) -> Cpuset {
        Cpuset {
            cpus: set(cpus),
            effective: set(cpus),
            ..Cpuset::default()
        }
    }

    /// A tree with a pod and a container with a cgroup inside, all with the same set.
    fn scan(cpus: &str, record: Option<&str>) -> Observed {
        let above = |path: &str| AncestorCgroup {
            path: path.to_owned(),
            cpuset: cpuset(cpus),
            ..AncestorCgroup::default()
        };
        let mut scan = Scan::default();
        scan.surroundings.above = ["kubepods", "kubepods/burstable"].map(above).into();
        scan.surroundings.trees = vec!["kubepods".to_owned()];
        scan.surroundings.sets_are_nested = true;
        scan.pods.push(PodCgroup {
            path: "kubepods/podx".to_owned(),
            uid: "x".to_owned(),
            cpuset: cpuset(cpus),
            record_text: record.map(str::to_owned),
            containers: vec![ContainerCgroup {
                path: "kubepods/podx/c".to_owned(),
                id: "c".to_owned(),
                cpuset: cpuset(cpus),
                record_text: record.map(str::to_owned),
                nested: vec![NestedCgroup {
                    path: "kubepods/podx/c/a".to_owned(),
                    cpus: set(cpus),
                    narrowed_from: None,
                }],
                ..ContainerCgroup::default()
            }],
            ..PodCgroup::default()
        });
        Observed::new(scan, &[]).0
    }

    fn notes(seen: &mut SeenSets, cpus: &str, online: &str) -> Vec<String> {
        let mut scan = scan(cpus, None);
        let steps = seen.notes(&mut scan, &set(online));
        steps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_cpus_that_went_offline_are_noted() {
        let mut seen = SeenSets::default();
        assert_eq!(
            notes(&mut seen, "0-4,6-7", "0-4,6-7"),
            [""; 0],
            "the first scan"
        );
        // An administrator's limit.
        assert_eq!(notes(&mut seen, "0-3,6", "0-4,6-7"), [""; 0]);
        let all = [
            "kubepods",
            "kubepods/burstable",
            "kubepods/podx",
            "kubepods/podx/c",
            "kubepods/podx/c/a",
        ];
        let expected =
            all.map(|path| format!("{path}: note CPUs 0-3 from before CPUs went offline"));
        // CPU 1 is offline, and an administrator has taken CPU 6.
        assert_eq!(notes(&mut seen, "0,2-3", "0,2-7"), expected);
        assert_eq!(notes(&mut seen, "0,2-3", "0,2-7"), [""; 0]);
    }

    #[test]
    fn a_note_that_could_not_be_written_is_tried_again() {
        // Whether the CPU is offline or online again when the next scan comes.
        for online in ["0-6", "0-7"] {
            let mut seen = SeenSets::default();
            notes(&mut seen, "0-7", "0-7");
            assert_eq!(notes(&mut seen, "0-6", "0-6").len(), 5);
            seen.keep_note("kubepods/podx", &set("0-7"));
            let mut later = scan("0-6", None);
            let steps = seen.notes(&mut later, &set(online));
            let paths: Vec<&str> = steps.iter().map(Step::path).collect();
            assert_eq!(paths, ["kubepods/podx"], "{online}");
            // The note fails again, and a turn looks twice at the same cgroups.
            seen.keep_note("kubepods/podx", &set("0-7"));
            let steps = seen.notes(&mut later, &set(online));
            let again = Step::Narrowed {
                path: "kubepods/podx".to_owned(),
                earlier: Some(set("0-7")),
            };
            assert_eq!(steps, [again], "{online}");
            assert_eq!(later.pods[0].cgroup.cpuset.narrowed_from, Some(set("0-7")));
            // The note is written now, or somebody has given the CPU back.
            assert_eq!(notes(&mut seen, "0-6", online), [""; 0], "{online}");
            // Another program has written the set since.
            for written in ["0-7", "0-3"] {
                seen.keep_note("kubepods/podx", &set("0-7"));
                assert_eq!(notes(&mut seen, written, "0-7"), [""; 0], "{online}");
            }
        }
    }

    #[test]
    fn a_note_follows_when_a_further_cpu_goes_offline() {
        let mut seen = SeenSets::default();
        notes(&mut seen, "0-7", "0-7");
        assert_eq!(notes(&mut seen, "0,2-7", "0,2-7").len(), 5);
        let mut later = scan("0,2-5,7", None);
        let containers = later.pods.iter_mut().flat_map(|pod| &mut pod.containers);
        for cpuset in containers.map(|container| &mut container.cgroup.cpuset) {
            cpuset.narrowed_from = Some(set("6"));
        }
        // The earlier set stays the noted one: the cgroup may have had less than its present set.
        let steps = seen.notes(&mut later, &set("0,2-5,7"));
        let container = Step::Narrowed {
            path: "kubepods/podx/c".to_owned(),
            earlier: Some(set("6")),
        };
        assert!(steps.contains(&container), "{steps:?}");
        assert_eq!(seen.notes(&mut later, &set("0,2-5,7")), []);
    }

    #[test]
    fn records_have_the_earlier_set() {
        let mut seen = SeenSets::default();
        seen.notes(&mut scan("0-7", Some("")), &set("0-7"));
        let mut later = scan("0-6", Some(""));
        let steps = seen.notes(&mut later, &set("0-6"));
        let paths: Vec<&str> = steps.iter().map(Step::path).collect();
        assert_eq!(
            paths,
            ["kubepods", "kubepods/burstable", "kubepods/podx/c/a"]
        );
        assert_eq!(
            later.surroundings.above[0].cpuset.narrowed_from,
            Some(set("0-7"))
        );
    }

    #[test]
    fn nothing_returns_beyond_its_parent() {
        let mut seen = SeenSets::default();
        seen.notes(&mut scan("0-7", None), &set("0-7"));
        let mut later = scan("0,2-4,6-7", None);
        seen.notes(&mut later, &set("0,2-4,6-7"));
        let returning = |observed: &Observed, online: &str| {
            let ledger = Ledger::read(observed, CpuSet::new());
            let online = set(online);
            let sets = observed.returning_above(&online).into_iter();
            let sets: Vec<String> = sets.map(|(path, cpus)| format!("{path} {cpus}")).collect();
            (sets, ledger.available(&online).to_string())
        };
        let none = Vec::new();
        assert_eq!(
            returning(&later, "0,2-4,6-7"),
            (none, "0,2-4,6-7".to_owned())
        );
        let both =
            |cpus: &str| ["kubepods", "kubepods/burstable"].map(|path| format!("{path} {cpus}"));
        assert_eq!(
            returning(&later, "0-4,6-7"),
            (both("0-4,6-7").to_vec(), "0-4,6-7".to_owned())
        );
        // The tree has since been limited for good, so the class stays within it.
        later.surroundings.above[0].cpuset = cpuset("0,2-3");
        let mut limited = later.clone();
        limited.surroundings.above[1].cpuset = cpuset("0,2-3");
        limited.surroundings.above[1].cpuset.narrowed_from = Some(set("0-7"));
        assert_eq!(returning(&limited, "0-7"), (Vec::new(), "0,2-3".to_owned()));
    }
}
