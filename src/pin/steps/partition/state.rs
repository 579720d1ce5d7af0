//! The state of a partition plan in the making: the observed cgroups and their targets.

use std::collections::BTreeMap;

use super::super::super::ledger::{Observed, ObservedContainer, ObservedPod};
use super::super::super::model::{Desired, PodAssignment, PodPlan, Step, union};
use super::super::super::record::AssignmentRecord;
use super::super::records::{earlier_cpus, next_record, unreadable};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Partition, PartitionKind, is_below};

/// A container's cgroup and its target.
pub(super) struct Leaf<'a> {
    pub(super) container: &'a ObservedContainer,
    pub(super) pod: usize,
    /// The CPUs of the wanted partition, offline CPUs included; empty without a partition.
    pub(super) target: CpuSet,
    pub(super) kind: PartitionKind,
    /// Whether the pod's assignment names the cgroup; false for an init container inside the pod's set.
    pub(super) owner: bool,
}

/// A pod's cgroup and its target.
pub(super) struct PodTarget<'a> {
    pub(super) pod: &'a ObservedPod,
    pub(super) plan: PodPlan,
    /// The exclusive CPUs that the pod shall hold: its assignment, and the CPUs of unknown owners below it.
    pub(super) target: CpuSet,
    pub(super) left_alone: bool,
}

pub(super) struct PartitionState<'a> {
    pub(super) observed: &'a Observed,
    pub(super) desired: &'a Desired,
    pub(super) pods: Vec<PodTarget<'a>>,
    pub(super) leaves: Vec<Leaf<'a>>,
    /// What each cgroup holds as exclusive, as the steps so far will have left it.
    pub(super) held: BTreeMap<&'a str, CpuSet>,
    /// The cgroups that are live partitions then, and of which kind.
    pub(super) live: BTreeMap<&'a str, PartitionKind>,
    /// Cgroups with the CPUs of unknown owners below; the plan never takes these CPUs away.
    pub(super) unknown: Vec<(&'a str, CpuSet)>,
    pub(super) steps: Vec<Step>,
}

// === impl PartitionState ===

impl<'a> PartitionState<'a> {
    pub(super) fn new(observed: &'a Observed, desired: &'a Desired) -> Self {
        let mut state = Self {
            observed,
            desired,
            pods: Vec::new(),
            leaves: Vec::new(),
            held: BTreeMap::new(),
            live: BTreeMap::new(),
            unknown: Vec::new(),
            steps: Vec::new(),
        };
        for above in &observed.around.above {
            state
                .held
                .insert(&above.path, above.cpuset.exclusive.clone());
            state
                .unknown
                .push((&above.path, above.other_exclusive.clone()));
        }
        for pod in &observed.pods {
            state.enter(pod);
        }
        state
    }

    /// Sets the exclusive CPUs of a cgroup, if they differ.
    pub(super) fn hold(&mut self, path: &'a str, cpus: CpuSet) {
        if self.held.get(path).is_some_and(|held| *held == cpus) {
            return;
        }
        let live = self.live.contains_key(path);
        let in_force = live.then(|| cpus.intersection(&self.desired.online));
        self.steps.push(Step::Exclusive {
            path: path.to_owned(),
            cpus: cpus.clone(),
            in_force,
        });
        self.held.insert(path, cpus);
    }

    pub(super) fn held(&self, path: &str) -> CpuSet {
        self.held.get(path).cloned().unwrap_or_default()
    }

    /// What a cgroup can't be without now: live partitions below it, and what strangers hold.
    pub(super) fn needed(&self, path: &str) -> CpuSet {
        let live = self
            .live
            .keys()
            .filter(|leaf| is_below(leaf, path))
            .filter_map(|leaf| self.held.get(leaf));
        let unknown = self
            .unknown
            .iter()
            .filter(|(other, _)| *other == path || is_below(other, path));
        union(live).union(&union(unknown.map(|(_, cpus)| cpus)))
    }

    /// The exclusive CPUs of the invalid partitions below a cgroup.
    pub(super) fn invalid_below(&self, path: &str) -> CpuSet {
        let invalid = self.leaves.iter().filter(|leaf| {
            let cgroup = &leaf.container.cgroup;
            matches!(cgroup.cpuset.partition, Partition::Invalid(_)) && is_below(&cgroup.path, path)
        });
        union(invalid.map(|leaf| &leaf.container.cgroup.cpuset.exclusive))
    }

    /// What a cgroup above the pods shall hold in the end.
    pub(super) fn wanted_above(&self, path: &str) -> CpuSet {
        let pods = self
            .pods
            .iter()
            .filter(|pod_target| is_below(&pod_target.pod.cgroup.path, path));
        union(pods.map(|pod_target| &pod_target.target)).union(&self.needed(path))
    }

    pub(super) fn ancestors(&self) -> impl DoubleEndedIterator<Item = &'a str> + use<'a> {
        let observed: &'a Observed = self.observed;
        observed
            .around
            .above
            .iter()
            .map(|above| above.path.as_str())
    }

    /// Makes a cgroup a live partition of the given kind, unless the kind is already right.
    pub(super) fn become_kind(&mut self, path: &'a str, kind: PartitionKind, cpus: &CpuSet) {
        if self.live.get(path) != Some(&kind) {
            let in_force = Some(cpus.intersection(&self.desired.online));
            self.steps.push(Step::Partition {
                path: path.to_owned(),
                kind,
                in_force,
            });
            self.live.insert(path, kind);
        }
    }

    fn enter(&mut self, pod: &'a ObservedPod) {
        let uid = &pod.cgroup.uid;
        let path = pod.cgroup.path.as_str();
        let plan = self.desired.pod(uid).cloned().unwrap_or_default();
        let assignment = &plan.assignment;
        let held = &pod.cgroup.cpuset.exclusive;
        // Without a mark and without a claim, what a pod holds is not ours.
        let alone = unreadable(pod.record.as_ref(), pod.cgroup.record_text.as_deref())
            || (pod.record.is_none() && assignment.is_empty());
        let mut target = if alone {
            held.clone()
        } else {
            assignment.cpus()
        };
        self.held.insert(path, held.clone());
        let index = self.pods.len();
        let there = |entry: Option<&str>| {
            pod.containers.iter().any(|other| match entry {
                Some(name) => other.name.as_deref() == Some(name),
                None => other.idle,
            })
        };
        let taken = union(
            assignment
                .entries()
                .filter(|(entry, _)| there(*entry))
                .map(|(_, cpus)| cpus),
        );
        for container in &pod.containers {
            let path = container.cgroup.path.as_str();
            let cpuset = &container.cgroup.cpuset;
            let name = container.name.as_deref().unwrap_or_default();
            let inside = plan.inside.iter().any(|inside| inside == name);
            let own = own_part(assignment, container);
            let owner = !own.is_empty();
            let known = owner || inside || container.record.is_some();
            let stranger = !cpuset.exclusive.is_subset(&assignment.cpus()) && !known;
            let unreadable = unreadable(
                container.record.as_ref(),
                container.cgroup.record_text.as_deref(),
            );
            if alone || unreadable || stranger {
                target = target.union(&cpuset.exclusive);
                self.unknown.push((path, cpuset.exclusive.clone()));
                self.live
                    .extend(cpuset.partition.live().map(|kind| (path, kind)));
                continue;
            }
            self.held.insert(path, cpuset.exclusive.clone());
            self.live
                .extend(cpuset.partition.live().map(|kind| (path, kind)));
            let wanted = if !owner && inside {
                // An init container has what no other container of its pod has at the time.
                assignment.usable().difference(&taken)
            } else {
                own.cpus()
            };
            let wanted = match self.desired.held_back.contains(path) {
                // A refused partition keeps the CPUs that it already has.
                true if cpuset.partition.is_live() => {
                    wanted.intersection(&cpuset.exclusive.union(&cpuset.effective))
                }
                true => CpuSet::new(),
                false => wanted,
            };
            let possible = !wanted.is_disjoint(&self.desired.online);
            let target = if possible { wanted } else { CpuSet::new() };
            let isolated = plan.isolated;
            let kind = match &cpuset.partition {
                // The wishes of an unknown pod are unknown: its partition stays isolated.
                Partition::Valid(PartitionKind::Isolated) if pod.known.is_none() => {
                    PartitionKind::Isolated
                }
                Partition::Valid(PartitionKind::Isolated)
                    if isolated && target.is_subset(&cpuset.exclusive) =>
                {
                    PartitionKind::Isolated
                }
                _ if isolated && !plan.balanced_yet => PartitionKind::Isolated,
                _ => PartitionKind::Root,
            };
            self.leaves.push(Leaf {
                container,
                pod: index,
                target,
                kind,
                owner,
            });
        }
        self.pods.push(PodTarget {
            pod,
            plan,
            target,
            left_alone: alone,
        });
    }
}

/// The part of a pod's assignment that belongs to one cgroup.
fn own_part(assignment: &PodAssignment, container: &ObservedContainer) -> PodAssignment {
    if container.idle {
        assignment.only_idle()
    } else {
        assignment.of_container(container.name.as_deref().unwrap_or_default())
    }
}

// === impl PodTarget ===

impl PodTarget<'_> {
    /// The mark its cgroup shall have; `None` where it owns nothing, or is left alone.
    pub(super) fn next_record(&self) -> Option<AssignmentRecord> {
        if self.left_alone || self.plan.assignment.is_empty() {
            return None;
        }
        let cgroup = &self.pod.cgroup;
        let limited = cgroup.quota.filter(|_| self.plan.whole);
        let marked = self.pod.record.as_ref();
        let mut next = next_record(
            marked,
            self.plan.assignment.clone(),
            self.plan.name.as_ref(),
            &cgroup.cpuset.cpus,
            limited,
        );
        next.confirmed = self.plan.is_confirmed(marked);
        Some(next)
    }
}

// === impl Leaf ===

impl Leaf<'_> {
    pub(super) fn next_record(&self, pod_target: &PodTarget<'_>) -> AssignmentRecord {
        let cgroup = &self.container.cgroup;
        let claimed = if self.owner {
            own_part(&pod_target.plan.assignment, self.container)
        } else {
            PodAssignment::default()
        };
        let quota = cgroup.quota.filter(|_| self.owner);
        let none = CpuSet::new();
        let before = earlier_cpus(&cgroup.cpuset.cpus, &self.target, &none);
        let mut next = next_record(
            self.container.record.as_ref(),
            claimed,
            pod_target.plan.name.as_ref(),
            before,
            quota,
        );
        next.by_id = self.owner && self.container.by_id;
        next
    }
}
