//! Plans for enforcement `partition`: the kernel itself keeps all foreign tasks off an owner's
//! CPUs.
//!
//! An owner's cgroup becomes a *remote* partition: a partition below cgroups that are members. The
//! kernel allows one only if `cpuset.cpus.exclusive` holds the owner's CPUs in every cgroup from
//! the top of the hierarchy down to the owner. So the plan writes these files from the top down,
//! and then `root` or `isolated` to the owner's `cpuset.cpus.partition`, whereupon the kernel
//! removes the CPUs from all cgroups outside the partition. The plan writes to no other cgroup,
//! except to containers of the same pod whose `cpuset.cpus` overlaps the partition.
//!
//! CPUs are taken back in the opposite order: the owner becomes `member`, and then each cgroup
//! above gives up the CPUs, from the lowest up. If a cgroup above a partition gives up the CPUs
//! first, Linux 6.12 can lose them until the next boot.
//!
//! [`plan`] calls a method for each phase, so the order of the methods is the order of the steps,
//! and each method continues from the state after the earlier phases. Because the kernel refuses a
//! second owner of a CPU, a wrong order leads to a refusal, never to an overlap.

mod state;

use state::{Leaf, PartitionState, PodTarget};

use super::super::desired::IDLE_CGROUP;
use super::memory;
use super::records::{give_back_quota, lift_quota, remove_record, write_record};
use super::release::{member, restored_cpus};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Partition, PartitionKind, is_below};
use crate::pin::{AssignmentRecord, Desired, Observed, PodPlan, Reason, Step};

pub(super) fn plan(observed: &Observed, desired: &Desired) -> Vec<Step> {
    let none = PodPlan::default();
    let mut state = PartitionState::new(observed, desired, &none);
    state.restore_ancestors();
    state.end_invalid_partitions();
    state.restore_load_balancing();
    state.record_owners();
    state.make_idle_cgroups();
    state.separate_containers();
    state.shrink_partitions();
    state.restore_released_pods();
    state.trim_ancestors(AncestorTrim::KeepWanted);
    state.restore_quotas_and_record_losses();
    state.move_partitions();
    state.grow_partitions();
    state.trim_ancestors(AncestorTrim::ToTarget);
    state.settle();
    state.steps
}

/// How far the cgroups above partitions give up CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AncestorTrim {
    /// A cgroup keeps those of its CPUs that a later phase needs again.
    KeepWanted,
    /// A cgroup ends with exactly the needed CPUs.
    ToTarget,
}

// === impl PartitionState ===

impl<'a> PartitionState<'a> {
    /// Cgroups above partitions regain CPUs removed by a foreign program. Otherwise Linux 6.12 can
    /// lose the CPUs of a partition, even of an invalid one about to become a member.
    fn restore_ancestors(&mut self) {
        let pods = self.pod_targets().into_iter().map(|(path, _)| path);
        for path in self.ancestors().chain(pods) {
            let needed = self.needed(path).union(&self.invalid_below(path));
            self.hold(path, self.held(path).union(&needed));
        }
    }

    /// Invalid partitions become members before any cgroup gives up CPUs, because Linux 6.12 can
    /// lose the CPUs of a partition left invalid.
    fn end_invalid_partitions(&mut self) {
        for leaf in &self.leaves {
            let cgroup = &leaf.container.cgroup;
            if matches!(cgroup.cpuset.partition, Partition::Invalid(_)) {
                self.steps.push(member(&cgroup.path));
            }
        }
    }

    /// Isolated partitions become `root`, with load balancing, if the pod does not ask for
    /// isolation, or if the work queues have yet to leave CPUs that the partition gains.
    fn restore_load_balancing(&mut self) {
        for (path, kind, target) in self.leaf_targets() {
            let gives_up = self.live.get(path) == Some(&PartitionKind::Isolated)
                && kind == PartitionKind::Root;
            if gives_up && !target.is_empty() {
                self.become_kind(path, PartitionKind::Root, &self.held(path));
            }
        }
    }

    /// Records of pods that gain CPUs, changed records of owners, and new records of other
    /// containers that the plan writes to. If the agent crashes after this, its next start carries
    /// the assignment out.
    fn record_owners(&mut self) {
        let pods = self.pods.iter().filter_map(|pod_target| {
            let next = pod_target.next_record()?;
            let gains = !next.cpus().is_subset(&pod_target.pod.recorded_cpus());
            gains.then(|| write_record(&pod_target.pod.cgroup.path, next))
        });
        let leaves = self.leaves.iter().filter_map(|leaf| {
            let next = self.next_leaf_record(leaf)?;
            let path = &leaf.container.cgroup.path;
            (leaf.container.record.as_ref() != Some(&next)).then(|| write_record(path, next))
        });
        let steps: Vec<Step> = pods.chain(leaves).collect();
        self.steps.extend(steps);
    }

    /// The record of an owner, or of a container with a write in the plan; `None` if the present
    /// one stays.
    fn next_leaf_record(&self, leaf: &Leaf<'_>) -> Option<AssignmentRecord> {
        let is_written =
            !leaf.target.is_empty() || leaf.is_former_owner() || self.separated(leaf).is_some();
        let newer = self.newer_setting(leaf);
        let is_recorded = leaf.container.record.is_some() && newer.is_none();
        if !leaf.owner && (!is_written || is_recorded) {
            return None;
        }
        let mut next = leaf.next_record();
        if let Some(newer) = newer {
            next.before.cpus = newer;
        }
        if leaf.owner {
            let all = &self.desired.all_memory;
            next = memory::record_earlier_memory(next, leaf.container, leaf.plan, all);
        }
        Some(next)
    }

    /// Pods with idle CPUs get a cgroup for them. Creating it triggers the next plan, which makes
    /// it a partition.
    fn make_idle_cgroups(&mut self) {
        let with_idle = |pod: &&PodTarget<'_>| !pod.plan.assignment.idle.is_empty();
        for pod_target in self.pods.iter().filter(with_idle) {
            let pod = pod_target.pod;
            if !pod.containers.iter().any(|container| container.idle) {
                let path = format!("{}/{IDLE_CGROUP}", pod.cgroup.path);
                self.steps.push(Step::Make { path });
            }
        }
    }

    /// The set a container needs to stay off the partitions of its pod; `None` if it overlaps none
    /// of them.
    ///
    /// Where the kubelet chooses the CPUs, it also writes the sets of running containers, except that
    /// a partition from before keeps its CPUs. Nobody writes the set of an ended container, or of
    /// one that the runtime no longer lists, and it could be in the way of the next run.
    fn separated(&self, leaf: &Leaf<'_>) -> Option<CpuSet> {
        let own = &leaf.container.cgroup.cpuset.cpus;
        let is_running = leaf.container.cgroup.populated;
        let is_left_over = is_running && leaf.container.unlisted;
        let others = if self.desired.beside_kubelet && !is_left_over {
            let is_written =
                |mate: &&Leaf<'_>| mate.pod == leaf.pod && !(is_running && mate.is_of_kubelet());
            let mates = self.leaves.iter().filter(is_written);
            mates.fold(CpuSet::new(), |all, mate| all.union(&mate.target))
        } else {
            self.pods.get(leaf.pod)?.target.clone()
        };
        let others = others.difference(&leaf.target);
        if own.is_disjoint(&others) {
            return None;
        }
        // Offline CPUs are left out, because the next plan would remove them again.
        let rest = own.difference(&others).intersection(&self.desired.online);
        let shared = self.desired.shared();
        Some(match (leaf.target.is_empty(), rest.is_empty()) {
            (false, _) => leaf.target.intersection(&self.desired.online),
            (true, false) => rest,
            (true, true) => shared,
        })
    }

    /// The present set of a container that overlaps a partition of its pod. It dates from before
    /// Pinfold's first write, or a foreign program wrote it later. The release restores it.
    fn newer_setting(&self, leaf: &Leaf<'_>) -> Option<CpuSet> {
        let written = &leaf.container.cgroup.cpuset.cpus;
        let is_newer = !leaf.owner && !leaf.container.has_given_cpus();
        (is_newer && self.separated(leaf).is_some()).then(|| written.clone())
    }

    /// Containers are narrowed until they overlap no partition of their pod but their own.
    fn separate_containers(&mut self) {
        let narrow = |leaf: &Leaf<'_>| {
            let separated = self.separated(leaf).filter(|cpus| !cpus.is_empty())?;
            let path = &leaf.container.cgroup.path;
            Some(Step::cpus(path, separated, Reason::Separate))
        };
        let steps: Vec<Step> = self.leaves.iter().filter_map(narrow).collect();
        self.steps.extend(steps);
    }

    fn shrink_partitions(&mut self) {
        for (path, _, target) in self.leaf_targets() {
            let rest = self.held(path).intersection(&target);
            if self.live.contains_key(path) {
                if target.is_empty() {
                    self.live.remove(path);
                    self.steps.push(member(path));
                } else if rest.is_disjoint(&self.desired.online) {
                    // No online CPU of the partition stays, so a later phase moves it.
                    continue;
                }
            }
            self.hold(path, rest);
        }
    }

    /// Pods without an assignment get their earlier CPUs back before they give up exclusive CPUs. A
    /// foreign program may have confined the pod to the CPUs of another owner, and the kernel then
    /// refuses to clear the pod's exclusive CPUs.
    fn restore_released_pods(&mut self) {
        let pods = self.pods.iter().filter(|pod| !pod.left_alone);
        let released = pods.filter(|pod| pod.plan.assignment.is_empty());
        let steps: Vec<Step> = released
            .filter_map(|pod| self.restored_pod_cpus(pod))
            .collect();
        self.steps.extend(steps);
    }

    /// The step that gives a pod its earlier CPUs back, if an earlier enforcement or a foreign
    /// program has narrowed it. Offline CPUs in the pod's set are no reason for a write.
    fn restored_pod_cpus(&self, pod_target: &PodTarget<'_>) -> Option<Step> {
        let cgroup = &pod_target.pod.cgroup;
        let record = pod_target.pod.record.as_ref()?;
        if self.desired.beside_kubelet || record.is_of_kubelet() {
            return None;
        }
        let mut restored = restored_cpus(record, &self.desired.online);
        // While other pods hold all CPUs of the pod's set, the kernel refuses to clear its
        // exclusive CPUs, because without them the pod would have no CPU.
        let is_released = pod_target.plan.assignment.is_empty();
        if is_released && restored.is_subset(&self.exclusive_of_others(&cgroup.path)) {
            restored = self.desired.online.clone();
        }
        let online = cgroup.cpuset.cpus.intersection(&self.desired.online);
        let is_narrowed = !cgroup.cpuset.cpus.is_empty() && online != restored;
        is_narrowed.then(|| Step::cpus(&cgroup.path, restored, Reason::Share))
    }

    /// The exclusive CPUs of the other pods, now or after the plan.
    fn exclusive_of_others(&self, path: &str) -> CpuSet {
        let pods = self.pods.iter();
        let others = pods.filter(|other| other.pod.cgroup.path != path);
        let cpus = others.map(|other| self.held(&other.pod.cgroup.path).union(&other.target));
        cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
    }

    /// Cgroups above partitions give up CPUs, from the lowest cgroup up. Each always keeps the CPUs
    /// of the live partitions below it.
    fn trim_ancestors(&mut self, trim: AncestorTrim) {
        for (path, target) in self.pod_targets() {
            let wanted = target.union(&self.needed(path));
            self.trim_ancestor(path, wanted, trim);
        }
        for path in self.ancestors().rev() {
            let wanted = self.wanted_above(path);
            self.trim_ancestor(path, wanted, trim);
        }
    }

    fn trim_ancestor(&mut self, path: &'a str, wanted: CpuSet, trim: AncestorTrim) {
        let cpus = if trim == AncestorTrim::KeepWanted {
            self.held(path).intersection(&wanted)
        } else {
            wanted
        };
        self.hold(path, cpus);
    }

    /// Former owners get their quotas back. Then the plan writes the records of pods and containers
    /// that lost CPUs.
    fn restore_quotas_and_record_losses(&mut self) {
        let mut steps = Vec::new();
        for pod_target in self.pods.iter().filter(|pod| !pod.left_alone) {
            let cgroup = &pod_target.pod.cgroup;
            let (plan, record) = (pod_target.plan, pod_target.pod.record.as_ref());
            // Nobody can tell what limits the other containers of an unknown pod, so the quota stays.
            if plan.assignment.is_empty() || (!plan.lifts_pod_quota && plan.name.is_some()) {
                steps.extend(give_back_quota(&cgroup.path, cgroup.quota, record));
            }
            // The last phase removes the records of pods without an assignment.
            if let Some(next) = pod_target.next_record()
                && next.cpus().is_subset(&pod_target.pod.recorded_cpus())
                && record != Some(&next)
            {
                steps.push(write_record(&cgroup.path, next));
            }
        }
        let without = |leaf: &&Leaf<'_>| !leaf.owner || leaf.target.is_empty();
        for leaf in self.leaves.iter().filter(without) {
            let cgroup = &leaf.container.cgroup;
            let record = leaf.container.record.as_ref();
            steps.extend(give_back_quota(&cgroup.path, cgroup.quota, record));
            // A former owner keeps a record until its earlier CPUs are restored.
            if let Some(record) = record
                && !record.assignment.is_empty()
                && !leaf.owner
                && !self.has_earlier_cpus(leaf)
            {
                steps.push(write_record(&cgroup.path, leaf.next_record()));
            }
        }
        self.steps.append(&mut steps);
    }

    /// A partition moves if its old and new CPUs are disjoint, as soon as the new ones are free.
    fn move_partitions(&mut self) {
        let mut waiting: Vec<(&'a str, &'a str, CpuSet)> = Vec::new();
        for leaf in &self.leaves {
            let path = leaf.container.cgroup.path.as_str();
            let Some(pod_target) = self.pods.get(leaf.pod) else {
                continue;
            };
            let stays = self.held(path).intersection(&leaf.target);
            if self.live.contains_key(path) && stays.is_disjoint(&self.desired.online) {
                let pod = pod_target.pod.cgroup.path.as_str();
                waiting.push((path, pod, leaf.target.clone()));
            }
        }
        while !waiting.is_empty() {
            let free = |(path, pod, target): &(&str, &str, CpuSet)| {
                let mut others = self
                    .held
                    .iter()
                    .filter(|(other, _)| *other != path && *other != pod && !is_below(path, other));
                others.all(|(_, held)| held.is_disjoint(target))
            };
            let Some(next) = waiting.iter().position(free) else {
                // The partitions wait for each other in a ring. The first waiting one ends now, and
                // the next phase makes it again.
                let (path, _, _) = waiting.swap_remove(0);
                self.live.remove(path);
                self.steps.push(member(path));
                self.hold(path, CpuSet::new());
                self.trim_ancestors(AncestorTrim::KeepWanted);
                continue;
            };
            let (path, pod, target) = waiting.swap_remove(next);
            let way: Vec<&'a str> = self
                .ancestors()
                .filter(|above| is_below(pod, above))
                .collect();
            for cgroup in way.into_iter().chain([pod]) {
                self.hold(cgroup, self.held(cgroup).union(&target));
            }
            self.hold(path, target);
            self.trim_ancestors(AncestorTrim::KeepWanted);
        }
    }

    /// Cgroups above partitions gain CPUs, from the top down. Then partitions grow or start.
    fn grow_partitions(&mut self) {
        for path in self.ancestors() {
            self.hold(path, self.held(path).union(&self.wanted_above(path)));
        }
        for (path, target) in self.pod_targets() {
            self.hold(path, self.held(path).union(&target));
        }
        let mut leaves = self.leaf_targets();
        leaves.retain(|(_, _, target)| !target.is_empty());
        for (path, kind, target) in leaves {
            self.hold(path, target.clone());
            self.become_kind(path, kind, &target);
        }
    }

    /// Whether a container without a partition has the CPUs from before Pinfold's first write, or
    /// needs no restoration.
    fn has_earlier_cpus(&self, leaf: &Leaf<'_>) -> bool {
        let (now, record) = (&leaf.container.cgroup.cpuset.cpus, &leaf.container.record);
        if leaf.is_of_kubelet() {
            return leaf.target.is_empty();
        }
        let is_restored = |record: &AssignmentRecord| {
            let untouched = record.before.cpus.is_empty() && now.is_empty();
            untouched || *now == restored_cpus(record, &self.desired.online)
        };
        let is_restored = record.as_ref().map(is_restored);
        leaf.target.is_empty() && is_restored.unwrap_or(!leaf.is_former_owner())
    }

    /// The plan restores the settings of cgroups without an assignment, lifts quotas, and removes
    /// obsolete records at the very end.
    fn settle(&mut self) {
        let mut last = LastPhase::default();
        for leaf in &self.leaves {
            if leaf.owner {
                self.settle_owner(leaf, &mut last);
            } else {
                self.settle_other(leaf, &mut last);
            }
        }
        for pod_target in self.pods.iter().filter(|pod| !pod.left_alone) {
            self.settle_pod(pod_target, &mut last);
        }
        self.steps.append(&mut last.writes);
        self.steps.append(&mut last.removals);
    }

    fn settle_owner(&self, leaf: &Leaf<'_>, last: &mut LastPhase) {
        let cgroup = &leaf.container.cgroup;
        if leaf.is_of_kubelet() {
            return;
        }
        // Without CPUs in force, an owner runs on shared CPUs, and its quota protects the other
        // containers.
        if !leaf.target.is_empty() {
            last.writes.extend(lift_quota(&cgroup.path, cgroup.quota));
        }
        last.writes.extend(memory::bind(
            leaf.container,
            leaf.plan,
            &self.desired.all_memory,
        ));
    }

    /// Restores the memory and the CPUs of a non-owner, except those of its pod's partitions. A
    /// former owner without a record had no set of its own.
    fn settle_other(&self, leaf: &Leaf<'_>, last: &mut LastPhase) {
        let cgroup = &leaf.container.cgroup;
        let numa = memory::give_back(leaf.container, &self.desired.all_memory);
        last.writes.extend(numa);
        if leaf.container.idle {
            let path = cgroup.path.clone();
            last.removals.push(Step::Remove { path });
            return;
        }
        let record = leaf.container.record.as_ref();
        // The set is the kubelet's, which may have changed it meanwhile.
        if leaf.is_of_kubelet() || self.is_set_by_kubelet(leaf) {
            last.removals
                .extend(record.map(|_| remove_record(&cgroup.path)));
            return;
        }
        if !leaf.target.is_empty() || record.is_none() && !leaf.is_former_owner() {
            return;
        }
        let partitions = self.pods.get(leaf.pod).map(|pod| pod.target.clone());
        let partitions = partitions.unwrap_or_default();
        let earlier = match self.newer_setting(leaf) {
            Some(newer) => newer.intersection(&self.desired.online),
            None => record.map_or_else(
                || self.desired.online.clone(),
                |record| restored_cpus(record, &self.desired.online),
            ),
        };
        let is_separate = cgroup.cpuset.cpus.is_empty() || earlier.is_disjoint(&partitions);
        if self.has_earlier_cpus(leaf) && is_separate {
            last.removals.push(remove_record(&cgroup.path));
            return;
        }
        let mut back = earlier.difference(&partitions);
        if back.is_empty() {
            back = self.desired.shared();
        }
        if back == earlier {
            last.removals.push(remove_record(&cgroup.path));
        }
        if cgroup.cpuset.cpus != back
            && !back.is_empty()
            && self.separated(leaf).as_ref() != Some(&back)
        {
            last.writes
                .push(Step::cpus(&cgroup.path, back, Reason::Share));
        }
    }

    /// Whether the set of a container without CPUs of its own is the kubelet's affair alone: no
    /// partition of Pinfold's choice in the pod has to be kept off it.
    fn is_set_by_kubelet(&self, leaf: &Leaf<'_>) -> bool {
        let assignment = &leaf.plan.assignment;
        let mut names = assignment.containers.keys();
        self.desired.beside_kubelet
            && leaf.container.kubelet_writes_set()
            && names.all(|name| assignment.by_kubelet.contains(name))
    }

    fn settle_pod(&self, pod_target: &PodTarget<'_>, last: &mut LastPhase) {
        let cgroup = &pod_target.pod.cgroup;
        let plan = pod_target.plan;
        if plan.lifts_pod_quota && !plan.assignment.is_empty() {
            last.writes.extend(lift_quota(&cgroup.path, cgroup.quota));
        }
        if !plan.assignment.is_empty() {
            last.writes.extend(self.restored_pod_cpus(pod_target));
        } else if pod_target.pod.record.is_some() {
            last.removals.push(remove_record(&cgroup.path));
        }
    }
}

#[derive(Default)]
struct LastPhase {
    writes: Vec<Step>,
    /// Removals of records and of idle cgroups, after all writes.
    removals: Vec<Step>,
}

#[cfg(test)]
mod tests;
