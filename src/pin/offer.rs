//! The CPUs that pods can use: what the cgroups above the pods offer.
//!
//! An online CPU is not always available. An administrator may have limited the pods' top cgroup, and another program may hold
//! CPUs as exclusive.

use super::assignment::union;
use super::{Ledger, Observed};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Cpuset, is_within};

// === impl Observed ===

impl Observed {
    /// The CPUs of the live partitions.
    pub fn live(&self) -> CpuSet {
        let cpusets = self.containers().map(|container| &container.cgroup.cpuset);
        let live = cpusets.filter(|cpuset| cpuset.partition.is_live());
        union(live.map(|cpuset| &cpuset.effective))
    }

    /// The CPUs that the cgroups above the pods offer; `None` if none of these has a set.
    ///
    /// The kernel takes a partition's CPUs out of the effective sets above, so the CPUs of the
    /// pods' own partitions count as well. Missing CPUs are in no set, which says nothing about a
    /// limit. A pod can be in any tree, so with several trees only the CPUs that each of them
    /// offers count.
    pub(super) fn offered(&self, missing: &CpuSet) -> Option<CpuSet> {
        let trees = self.surroundings.trees.iter();
        let offers = trees.filter_map(|tree| self.offered_by(tree, missing));
        offers.reduce(|one, other| one.intersection(&other))
    }

    fn offered_by(&self, tree: &str, missing: &CpuSet) -> Option<CpuSet> {
        let above = &self.surroundings.above;
        let own = above.iter().find(|above| above.path == tree)?;
        // On v1 no process can be in a cgroup without CPUs, so the kubelet has yet to write this
        // set.
        if own.cpuset.effective.is_empty() {
            return None;
        }
        let pods = self
            .pods
            .iter()
            .filter(|pod| is_within(&pod.cgroup.path, tree));
        let cpusets = pods
            .flat_map(|pod| &pod.containers)
            .map(|one| &one.cgroup.cpuset);
        let live = cpusets.filter(|cpuset| cpuset.partition.is_live());
        let partitions = union(live.map(|cpuset| &cpuset.effective));
        // CPUs that return from being offline are on offer as soon as they are online, because the
        // plan widens the tree first.
        let returning = |cpuset: &Cpuset| cpuset.narrowed_from.clone().unwrap_or_default();
        let mut offered = own.cpuset.effective.union(&partitions).union(missing);
        offered = offered.union(&returning(&own.cpuset));
        // A partition of earlier times may lie outside a later limit. And on v2, a cgroup has its
        // parent's CPUs in force while none of its written CPUs is free, which makes no more CPUs
        // available.
        let limits = above.iter().filter(|above| is_within(tree, &above.path));
        for limit in limits.map(|above| &above.cpuset) {
            if !limit.cpus.is_empty() {
                offered = offered.intersection(&limit.cpus.union(&returning(limit)));
            }
        }
        Some(offered)
    }

    /// The online CPUs that may be written to a cgroup of the pods.
    pub fn writable(&self, online: &CpuSet) -> CpuSet {
        let surroundings = &self.surroundings;
        let returning = self.returning_above(online);
        let trees = surroundings.above.iter().filter(|above| {
            surroundings.sets_are_nested && surroundings.trees.contains(&above.path)
        });
        let sets = trees.map(|tree| {
            let wider = returning.iter().find(|(path, _)| *path == tree.path);
            wider.map_or(&tree.cpuset.cpus, |(_, wider)| wider)
        });
        let sets = sets.filter(|set| !set.is_empty());
        sets.fold(online.clone(), |all, set| all.intersection(set))
    }
}

// === impl Ledger ===

impl Ledger {
    /// The online CPUs that pods may use at all, shared or exclusive.
    pub fn available(&self, online: &CpuSet) -> CpuSet {
        match &self.offered {
            Some(offered) => online.intersection(offered),
            None => online.clone(),
        }
    }

    /// The CPUs that no new assignment may have, whether owned or not.
    pub fn unassignable(&self, online: &CpuSet) -> CpuSet {
        let withheld = online.difference(&self.available(online));
        self.exclusive().union(&self.excluded).union(&withheld)
    }

    /// The assignments with withheld CPUs, a sentence each. They stay, because Pinfold moves no
    /// running container.
    pub fn on_withheld_cpus(&self, observed: &Observed, online: &CpuSet) -> Vec<String> {
        let available = self.available(online);
        let mut found = Vec::new();
        for (uid, assignment) in &self.assignments {
            let pod = observed.pods.iter().find(|pod| pod.cgroup.uid == *uid);
            let record = pod.and_then(|pod| pod.record.as_ref());
            let named = record.filter(|record| !record.pod.is_empty());
            let pod = match named {
                Some(record) => format!("{}/{}", record.namespace, record.pod),
                None => format!("pod {uid}"),
            };
            let trees = observed.surroundings.trees.join(" and ");
            for (container, cpus) in &assignment.containers {
                let outside = cpus.intersection(online).difference(&available);
                if !outside.is_empty() {
                    found.push(format!(
                        "{pod}: container {container} owns {}, but {trees} now limits pods to the CPUs {available}; the \
                         assignment stays until the pod ends: delete the pod, or add these CPUs to cpuset.cpus again",
                        outside.in_words()
                    ));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::{
        AncestorCgroup, ContainerCgroup, Partition, PartitionKind, PodCgroup, PodSurroundings,
    };
    use crate::pin::{AssignmentRecord, EarlierSettings, Scan};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A tree of pods with the written and the effective CPUs, and a pod that owns `partition` as a live partition.
    fn scan_of(tree: &str, (cpus, effective): (&str, &str), partition: &str) -> Scan {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        record
            .assignment
            .containers
            .insert("main".to_owned(), set(partition));
        (record.namespace, record.pod) = ("train".to_owned(), "worker-0".to_owned());
        let record_text = (!partition.is_empty()).then(|| record.text());
        let container = ContainerCgroup {
            path: format!("{tree}/poduid/c0ffee"),
            id: "c0ffee".to_owned(),
            cpuset: Cpuset {
                effective: set(partition),
                exclusive: set(partition),
                partition: Partition::Valid(PartitionKind::Root),
                ..Cpuset::default()
            },
            record_text: record_text.clone(),
            ..ContainerCgroup::default()
        };
        let pod = PodCgroup {
            path: format!("{tree}/poduid"),
            uid: "uid".to_owned(),
            record_text,
            containers: vec![container],
            ..PodCgroup::default()
        };
        let above = AncestorCgroup {
            path: tree.to_owned(),
            cpuset: Cpuset {
                cpus: set(cpus),
                effective: set(effective),
                ..Cpuset::default()
            },
            ..AncestorCgroup::default()
        };
        Scan {
            pods: if partition.is_empty() {
                Vec::new()
            } else {
                vec![pod]
            },
            surroundings: PodSurroundings {
                above: vec![above],
                trees: vec![tree.to_owned()],
                ..PodSurroundings::default()
            },
            missing: CpuSet::new(),
        }
    }

    fn offered(scan: &Scan) -> String {
        let (_, ledger) = Observed::new(scan.clone(), &[]);
        ledger.available(&set("0-7")).to_string()
    }

    #[test]
    fn pods_can_use_what_their_top_cgroup_offers_and_their_own_partitions() {
        for (sets, partition, expected) in [
            (("", "0-7"), "", "0-7"),
            // An administrator's limit.
            (("0-5", "0-5"), "", "0-5"),
            (("0-5", "0-1"), "2-5", "0-5"),
            // The kernel takes a partition's CPUs out of the sets above.
            (("", "0-3"), "4-7", "0-7"),
            (("0-7", "0-3"), "4-7", "0-7"),
            // The limit came after the partition.
            (("0-5", "0-3"), "4-7", "0-5"),
            // The whole set is taken, so the kernel puts the parent's CPUs in force.
            (("6-7", "0-5"), "6-7", "6-7"),
            // Another program has a partition.
            (("", "0-3"), "4-5", "0-5"),
            // A cgroup of v1 that the kubelet has yet to set up.
            (("", ""), "", "0-7"),
        ] {
            let scan = scan_of("kubepods", sets, partition);
            assert_eq!(offered(&scan), expected, "{sets:?} {partition}");
        }
        assert_eq!(offered(&Scan::default()), "0-7", "no cgroup of pods yet");
        let mut scan = scan_of("kubepods", ("", "0-5"), "");
        scan.missing = set("6-7");
        assert_eq!(offered(&scan), "0-7", "a missing CPU is no limit");
    }

    #[test]
    fn limits_of_outer_cgroups_and_of_all_trees_count() {
        let mut scan = scan_of("a/kubepods", ("", "0-3"), "4-7");
        let above = AncestorCgroup {
            path: "a".to_owned(),
            cpuset: Cpuset {
                cpus: set("0-4"),
                effective: set("0-3"),
                ..Cpuset::default()
            },
            ..AncestorCgroup::default()
        };
        scan.surroundings.above.insert(0, above);
        assert_eq!(offered(&scan), "0-4");
        let mut scan = scan_of("kubepods", ("0-5", "0-5"), "");
        let other = scan_of("kubepods.slice", ("2-7", "2-7"), "");
        scan.surroundings.above.extend(other.surroundings.above);
        scan.surroundings.trees.extend(other.surroundings.trees);
        assert_eq!(offered(&scan), "2-5");
    }

    #[test]
    fn an_assignment_outside_the_offer_is_reported() {
        let online = set("0-7");
        let reported = |sets, online: &CpuSet| {
            let (observed, ledger) = Observed::new(scan_of("kubepods", sets, "4-7"), &[]);
            ledger.on_withheld_cpus(&observed, online)
        };
        assert_eq!(reported(("0-7", "0-3"), &online), Vec::<String>::new());
        let found = reported(("0-5", "0-3"), &online);
        assert_eq!(found.len(), 1);
        let says = "train/worker-0: container main owns CPUs 6-7, but kubepods now limits pods to the CPUs 0-5";
        assert!(found[0].starts_with(says), "{found:?}");
        // An offline CPU is a different matter.
        assert_eq!(reported(("0-5", "0-3"), &set("0-5")), Vec::<String>::new());
    }
}
