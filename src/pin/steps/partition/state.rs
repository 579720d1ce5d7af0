//! The state of a partition plan in the making: the observed cgroups and their targets.

use std::collections::BTreeMap;

use super::super::super::assignment::union;
use super::super::records::{container_record, cpus_to_record, pod_record};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Partition, PartitionKind, is_below};
use crate::pin::{
    AssignmentRecord, Desired, Observed, ObservedContainer, ObservedPod, PodAssignment, PodPlan,
    Step,
};

/// A container's cgroup and its target.
pub(super) struct Leaf<'a> {
    pub container: &'a ObservedContainer,
    pub plan: &'a PodPlan,
    pub pod: usize,
    /// The CPUs of the wanted partition, offline CPUs included; empty without a partition.
    pub target: CpuSet,
    pub kind: PartitionKind,
    /// Whether the pod's assignment has CPUs for the cgroup; false for an init container inside the
    /// pod's set.
    pub owner: bool,
}

/// A pod's cgroup and its target.
pub(super) struct PodTarget<'a> {
    pub pod: &'a ObservedPod,
    pub plan: &'a PodPlan,
    /// The exclusive CPUs that the pod shall hold: its assignment, and the CPUs of cgroups that the
    /// plan leaves alone.
    pub target: CpuSet,
    pub left_alone: bool,
}

/// The cgroups and their targets, and the plan so far.
pub(super) struct PartitionState<'a> {
    pub observed: &'a Observed,
    pub desired: &'a Desired,
    pub pods: Vec<PodTarget<'a>>,
    pub leaves: Vec<Leaf<'a>>,
    /// The exclusive CPUs of each cgroup after the steps so far.
    pub held: BTreeMap<&'a str, CpuSet>,
    /// The kind of each live partition after the steps so far.
    pub live: BTreeMap<&'a str, PartitionKind>,
    /// Exclusive CPUs outside the plan, each set with its cgroup or the cgroup above. The plan
    /// never takes them away.
    pub unknown: Vec<(&'a str, CpuSet)>,
    pub steps: Vec<Step>,
}

// === impl PartitionState ===

impl<'a> PartitionState<'a> {
    /// The state before the first step. `none` is the plan of a pod that has none.
    pub(super) fn new(observed: &'a Observed, desired: &'a Desired, none: &'a PodPlan) -> Self {
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
        for above in &observed.surroundings.above {
            state
                .held
                .insert(&above.path, above.cpuset.exclusive.clone());
            state
                .unknown
                .push((&above.path, above.other_exclusive.clone()));
        }
        for pod in &observed.pods {
            state.enter(pod, desired.pod(&pod.cgroup.uid).unwrap_or(none));
        }
        state
    }

    /// Plans the exclusive CPUs of a cgroup, if they differ from the held ones.
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

    /// The exclusive CPUs that a cgroup must keep now: those of live partitions below, and those
    /// outside the plan.
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

    /// The exclusive CPUs that a cgroup above the pods shall hold after the plan.
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
            .surroundings
            .above
            .iter()
            .map(|above| above.path.as_str())
    }

    /// The cgroup, the kind of partition, and the target of each container.
    pub(super) fn leaf_targets(&self) -> Vec<(&'a str, PartitionKind, CpuSet)> {
        let target = |leaf: &Leaf<'a>| {
            let path = leaf.container.cgroup.path.as_str();
            (path, leaf.kind, leaf.target.clone())
        };
        self.leaves.iter().map(target).collect()
    }

    /// The cgroup and the exclusive CPUs of each pod, without the pods that the plan leaves alone.
    pub(super) fn pod_targets(&self) -> Vec<(&'a str, CpuSet)> {
        let pods = self.pods.iter().filter(|pod| !pod.left_alone);
        let targets = pods.map(|pod| (pod.pod.cgroup.path.as_str(), pod.target.clone()));
        targets.collect()
    }

    /// Makes a cgroup a live partition of the given kind, unless it is one already.
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

    /// Adds a pod with its containers.
    fn enter(&mut self, pod: &'a ObservedPod, plan: &'a PodPlan) {
        let path = pod.cgroup.path.as_str();
        let exclusive = &pod.cgroup.cpuset.exclusive;
        // Without a record and without an assignment, a pod's exclusive CPUs are not from Pinfold.
        let left_alone =
            pod.has_unreadable_record() || (pod.record.is_none() && plan.assignment.is_empty());
        let mut target = if left_alone {
            exclusive.clone()
        } else {
            plan.assignment.cpus()
        };
        self.held.insert(path, exclusive.clone());
        let init_cpus = init_container_cpus(pod, &plan.assignment);
        let init_cgroup = init_container_cgroup(pod, plan);
        for container in &pod.containers {
            let path = container.cgroup.path.as_str();
            let cpuset = &container.cgroup.cpuset;
            let kind = cpuset.partition.live();
            self.live.extend(kind.map(|kind| (path, kind)));
            // What the container runtime wrote on a former owner is Pinfold's affair in any pod
            // whose record it can read.
            let is_foreign =
                pod.has_unreadable_record() || left_alone && !container.has_given_cpus();
            if is_foreign || is_left_alone(container, plan) {
                target = target.union(&cpuset.exclusive);
                self.unknown.push((path, cpuset.exclusive.clone()));
                continue;
            }
            self.held.insert(path, cpuset.exclusive.clone());
            let mut own = own_part(&plan.assignment, container);
            // The kubelet may widen the set of another container of the pod to the CPUs of an ended
            // one. On Linux 6.12 that would make a partition invalid, whose CPUs are lost with its
            // cgroup.
            if self.desired.beside_kubelet
                && !container.cgroup.populated
                && !own.by_kubelet.is_empty()
            {
                own = PodAssignment::default();
            }
            let owner = !own.is_empty();
            let wanted = if !owner && init_cgroup == Some(path) {
                init_partition_cpus(container, &init_cpus)
            } else {
                own.cpus()
            };
            let target = self.partition_target(container, wanted);
            let leaf = Leaf {
                container,
                plan,
                pod: self.pods.len(),
                kind: partition_kind((pod, container), plan, &target, self.desired),
                target,
                owner,
            };
            self.leaves.push(leaf);
        }
        self.pods.push(PodTarget {
            pod,
            plan,
            target,
            left_alone,
        });
    }

    /// The CPUs of a container's partition: `wanted`, or fewer for a refused one. Empty if no
    /// partition is possible.
    fn partition_target(&self, container: &ObservedContainer, wanted: CpuSet) -> CpuSet {
        let cpuset = &container.cgroup.cpuset;
        let path = &container.cgroup.path;
        if self.desired.met_by_mates.contains(path) {
            return CpuSet::new();
        }
        let is_held_back =
            self.desired.starts_no_partition || self.desired.held_back.contains(path);
        let target = if !is_held_back {
            wanted
        } else if cpuset.partition.is_live() {
            // A partition that is held back keeps the CPUs that it already has.
            wanted.intersection(&cpuset.exclusive.union(&cpuset.effective))
        } else {
            CpuSet::new()
        };
        if target.is_disjoint(&self.desired.online) {
            CpuSet::new()
        } else {
            target
        }
    }
}

/// The CPUs of a pod's init container: the pod's CPUs without the CPUs of existing containers.
fn init_container_cpus(pod: &ObservedPod, assignment: &PodAssignment) -> CpuSet {
    let exists = |name: Option<&str>| {
        pod.containers.iter().any(|container| match name {
            Some(name) => container.name.as_deref() == Some(name),
            None => container.idle,
        })
    };
    let existing = assignment.entries().filter(|(name, _)| exists(*name));
    let taken = union(existing.map(|(_, cpus)| cpus));
    assignment.usable().difference(&taken)
}

/// The CPUs of an init container's partition, out of those that it may use. A live partition takes
/// no others, because they come from another container that has ended, and the container runtime
/// may be about to write them to that container's next cgroup. On Linux 6.12 this write would make
/// the partition invalid.
fn init_partition_cpus(container: &ObservedContainer, init_cpus: &CpuSet) -> CpuSet {
    let cpuset = &container.cgroup.cpuset;
    let kept = init_cpus.intersection(&cpuset.exclusive);
    if cpuset.partition.is_live() && !kept.is_empty() {
        kept
    } else {
        init_cpus.clone()
    }
}

/// The cgroup of the pod's present init container. Init containers run one after another, and some
/// runtimes remove an ended container's cgroup only later. The cgroup with a process counts, else
/// the last one.
fn init_container_cgroup<'a>(pod: &'a ObservedPod, plan: &PodPlan) -> Option<&'a str> {
    let inits = || {
        let containers = pod.containers.iter();
        containers.filter(|container| container.is_init(plan))
    };
    let present = inits().rfind(|container| container.cgroup.populated);
    let chosen = present.or_else(|| inits().next_back())?;
    Some(chosen.cgroup.path.as_str())
}

/// Whether the plan leaves a container's cgroup alone, because its record is unreadable, or its
/// exclusive CPUs are not from Pinfold.
fn is_left_alone(container: &ObservedContainer, plan: &PodPlan) -> bool {
    let assignment = &plan.assignment;
    let is_explained = container.record.is_some()
        || !own_part(assignment, container).is_empty()
        || container.is_init(plan)
        || container
            .cgroup
            .cpuset
            .exclusive
            .is_subset(&assignment.cpus());
    !is_explained || container.has_unreadable_record()
}

/// The kind of a container's partition with the CPUs `target`. The kernel takes CPUs that are isolated at boot into an isolated
/// partition only.
fn partition_kind(
    (pod, container): (&ObservedPod, &ObservedContainer),
    plan: &PodPlan,
    target: &CpuSet,
    desired: &Desired,
) -> PartitionKind {
    let cpuset = &container.cgroup.cpuset;
    let is_isolated = cpuset.partition == Partition::Valid(PartitionKind::Isolated);
    // The kernel keeps workqueues off an isolated partition, so one that gains no CPU needs no check.
    let is_isolated_already = is_isolated && target.is_subset(&cpuset.exclusive);
    let is_of_kubelet = !own_part(&plan.assignment, container).by_kubelet.is_empty();
    // The target keeps CPUs that are offline, which say nothing about the kind.
    let online = target.intersection(&desired.online);
    if is_of_kubelet
        && !online.is_empty()
        && online.is_subset(&desired.isolated_at_boot)
        && (is_isolated_already || online.is_disjoint(&desired.used_by_workqueues))
    {
        return PartitionKind::Isolated;
    }
    // What an unknown pod prefers is unknown, too, so its partition stays isolated.
    let stays = is_isolated && !pod.is_known;
    let may_isolate = !plan.isolation_pending || is_isolated_already;
    if stays || plan.isolated && may_isolate {
        PartitionKind::Isolated
    } else {
        PartitionKind::Root
    }
}

/// The part of a pod's assignment that belongs to one cgroup.
fn own_part(assignment: &PodAssignment, container: &ObservedContainer) -> PodAssignment {
    if container.idle {
        PodAssignment {
            idle: assignment.idle.clone(),
            ..PodAssignment::default()
        }
    } else {
        assignment.of_container(container.name.as_deref().unwrap_or_default())
    }
}

// === impl PodTarget ===

impl PodTarget<'_> {
    /// The desired record of the pod's cgroup; `None` for a pod without CPUs, and for one that the
    /// plan leaves alone.
    pub(super) fn next_record(&self) -> Option<AssignmentRecord> {
        let has_assignment = !self.left_alone && !self.plan.assignment.is_empty();
        has_assignment.then(|| pod_record(self.pod, self.plan))
    }
}

// === impl Leaf ===

impl Leaf<'_> {
    /// Whether the kubelet chose the container's CPUs, now or according to its record. Its set, its
    /// quota and its memory are the kubelet's, too.
    pub(super) fn is_of_kubelet(&self) -> bool {
        let record = self.container.record.as_ref();
        match self.owner {
            true => !own_part(&self.plan.assignment, self.container)
                .by_kubelet
                .is_empty(),
            false => record.is_some_and(AssignmentRecord::is_of_kubelet),
        }
    }

    /// Whether the container owns no CPUs any longer, and still has the set that Pinfold gave it at
    /// its creation. The container runtime remembers that set, and writes it with every change of
    /// the container that no agent answers.
    pub(super) fn is_former_owner(&self) -> bool {
        !self.owner && self.target.is_empty() && self.container.has_given_cpus()
    }

    pub(super) fn next_record(&self) -> AssignmentRecord {
        let (container, plan) = (self.container, self.plan);
        let assignment = self.owner.then(|| own_part(&plan.assignment, container));
        let earlier = cpus_to_record(container, &self.target);
        container_record(container, plan, assignment, &earlier)
    }
}
