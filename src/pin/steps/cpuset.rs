//! Plans for enforcement `cpuset`, which writes only `cpuset.cpus`.
//!
//! The kernel does not keep other tasks off an owner's CPUs, so Pinfold writes `cpuset.cpus` of
//! every container: the owner gets its exclusive CPUs, and every other container gets the CPUs
//! without an owner, the shared CPUs. A container can only run on CPUs of its pod's cgroup, so that
//! one gets the CPUs of all its containers.
//!
//! [`CpusetPhase`] documents the order of the steps. Records come before writes, and other
//! containers leave a CPU before its owner gets it. After every single step, no two containers own
//! the same CPU, and every container has a CPU.

use std::collections::BTreeMap;

use super::memory;
use super::records::{
    container_record, cpus_to_record, give_back_quota, lift_quota, pod_record, remove_record,
    write_record,
};
use super::release::undo_partitions;
use crate::cpu::CpuSet;
use crate::host::cgroup::Cpuset;
use crate::pin::{
    AssignmentRecord, Desired, Ledger, Observed, ObservedContainer, ObservedPod, PodPlan, Reason,
    Step,
};

/// The phases of a plan, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CpusetPhase {
    /// Cgroups above the pods get back the CPUs that were offline, from the top down.
    ReturnAbove,
    /// Records of pods that gain CPUs, changed records of owners, and first records of other
    /// containers. If the agent crashes after this, its next start carries the assignment out.
    RecordGains,
    /// Pods get the union of all CPUs that their containers have during the plan and after it.
    WidenPods,
    /// Containers give up CPUs. An owner keeps those that it still has afterwards. A non-owner, or
    /// an owner without such a CPU, gets the CPUs shared both before and after the plan. If there
    /// are none, the container gets its target at once.
    Narrow,
    /// Pods get their earlier quotas back, before their containers: cgroup v1 refuses a quota below
    /// the quota of a child, and the container of a pod that was resized meanwhile may still have
    /// the larger, earlier quota to restore.
    RestorePodQuotas,
    /// Former owners get their earlier quotas and NUMA nodes back. Pods without an assignment get
    /// their earlier CPUs back, because by now their containers have sets without the CPUs of
    /// owners.
    RestoreReleased,
    /// Records of pods and former owners that lost CPUs. Obsolete records are removed here if the plan ends no partition.
    RecordLosses,
    /// Owners get their assigned CPUs.
    AssignOwners,
    /// Shared containers get the newly freed CPUs.
    WidenShared,
    /// Partitions of an earlier enforcement become members. By now, every other container is off
    /// their CPUs.
    EndPartitions,
    /// Obsolete records are removed here if the plan ends partitions. A pod without a record keeps
    /// its exclusive CPUs, so the record must last until the partitions have ended.
    RemoveRecords,
    /// Pods give up the CPUs that no container in the pod holds.
    NarrowPods,
    /// Owners lose their quotas, and their memory is bound to NUMA nodes.
    LiftLimits,
    /// Cgroups go that an earlier enforcement made for idle CPUs.
    RemoveIdleCgroups,
}

pub(super) fn plan(observed: &Observed, ledger: &Ledger, desired: &Desired) -> Vec<Step> {
    let shared = desired.shared();
    let ended = undo_partitions(observed);
    let mut planner = CpusetPlanner {
        desired,
        available: desired.available(),
        writable: observed.writable(&desired.online),
        sets_are_nested: observed.surroundings.sets_are_nested,
        always_shared: shared.difference(&ledger.exclusive()),
        shared,
        ends_partitions: !ended.is_empty(),
        steps: BTreeMap::from([
            (CpusetPhase::ReturnAbove, return_above(observed, desired)),
            (CpusetPhase::EndPartitions, ended),
        ]),
    };
    for pod in &observed.pods {
        planner.plan_pod(pod);
    }
    planner.steps.into_values().flatten().collect()
}

/// The steps that give the cgroups above the pods the CPUs back that were offline.
fn return_above(observed: &Observed, desired: &Desired) -> Vec<Step> {
    let returning = observed.returning_above(&desired.online).into_iter();
    let steps = returning.map(|(path, cpus)| Step::cpus(path, cpus, Reason::Return));
    steps.collect()
}

/// Builder of a plan: collects the steps of each phase.
struct CpusetPlanner<'a> {
    desired: &'a Desired,
    /// The CPUs that can be in force for a pod.
    available: CpuSet,
    /// The CPUs that a set may name, whether in force or not.
    writable: CpuSet,
    /// Whether an offline CPU leaves the sets for good, as on cgroup v1.
    sets_are_nested: bool,
    /// CPUs without an owner after the plan.
    shared: CpuSet,
    /// CPUs without an owner both before and after the plan.
    always_shared: CpuSet,
    /// Whether the plan ends partitions of an earlier enforcement.
    ends_partitions: bool,
    steps: BTreeMap<CpusetPhase, Vec<Step>>,
}

/// CPUs a pod's cgroup must hold for its containers.
#[derive(Default)]
struct HeldCpus {
    during: CpuSet,
    after: CpuSet,
}

/// A container's cgroup with its desired CPUs.
struct CpusetTarget<'a> {
    container: &'a ObservedContainer,
    plan: &'a PodPlan,
    cpus: CpuSet,
    /// `Own` for an owner and for an init container inside its pod's set; `Share` otherwise.
    reason: Reason,
    /// Whether the pod's assignment gives the container at least one CPU that can be in force.
    is_owner: bool,
}

// === impl CpusetPlanner ===

impl<'a> CpusetPlanner<'a> {
    fn add(&mut self, phase: CpusetPhase, steps: impl IntoIterator<Item = Step>) {
        self.steps.entry(phase).or_default().extend(steps);
    }

    fn plan_pod(&mut self, pod: &'a ObservedPod) {
        if pod.has_unreadable_record() {
            return;
        }
        let none = PodPlan::default();
        let desired = self.desired;
        let plan = desired.pod(&pod.cgroup.uid).unwrap_or(&none);
        let held = self.plan_containers(pod, plan);
        if plan.assignment.is_empty() {
            self.release_pod(pod, &held);
        } else {
            self.record_pod(pod, plan);
            self.resize_pod(pod, held);
            self.limit_pod(pod, plan);
        }
    }

    /// Plans the containers of a pod. Returns the CPUs that the pod's cgroup must hold for them.
    fn plan_containers(&mut self, pod: &ObservedPod, plan: &PodPlan) -> HeldCpus {
        let own = &pod.cgroup.cpuset.cpus;
        let mut held = HeldCpus {
            during: own.clone(),
            after: plan.assignment.cpus().intersection(&self.available),
        };
        for container in &pod.containers {
            let written = &container.cgroup.cpuset.cpus;
            if container.has_unreadable_record() {
                held.after = held.after.union(written);
                continue;
            }
            let cpus = self.plan_container(container, pod, plan);
            held.after = held.after.union(&cpus.after);
            held.during = held.during.union(&cpus.during);
            if own.is_empty() {
                // On v2, a pod's first written set must hold every set already written below it.
                held.during = held.during.union(written);
            }
        }
        held
    }

    /// Gives a pod without an assignment its earlier CPUs back, plus the CPUs of its containers.
    ///
    /// A container without a written set inherits the pod's set, so the pod first gets only the
    /// CPUs of the narrowed containers.
    fn release_pod(&mut self, pod: &ObservedPod, held: &HeldCpus) {
        let Some(record) = &pod.record else {
            let returned = self.returned(&pod.cgroup.cpuset, &self.writable);
            let steps = returned.map(|cpus| Step::cpus(&pod.cgroup.path, cpus, Reason::Return));
            self.add(CpusetPhase::WidenPods, steps);
            return;
        };
        let (path, mut own) = (&pod.cgroup.path, &pod.cgroup.cpuset.cpus);
        let before = record.before.cpus.intersection(&self.writable);
        let restored = if before.is_empty() {
            self.writable.clone()
        } else {
            before.union(&held.after)
        };
        if !own.is_empty() && !held.during.is_subset(own) {
            self.add(
                CpusetPhase::WidenPods,
                [Step::cpus(path, held.during.clone(), Reason::Pod)],
            );
            own = &held.during;
        }
        if *own != restored {
            self.add(
                CpusetPhase::RestoreReleased,
                [Step::cpus(path, restored, Reason::Pod)],
            );
        }
        let quota = give_back_quota(path, pod.cgroup.quota, Some(record));
        self.add(CpusetPhase::RestorePodQuotas, quota);
        let phase = if self.ends_partitions {
            CpusetPhase::RemoveRecords
        } else {
            CpusetPhase::RecordLosses
        };
        // Without the record, nothing else would know which offline CPUs the pod had.
        let lacks_cpus = self.sets_are_nested && !record.before.cpus.is_subset(&self.writable);
        if lacks_cpus {
            let earlier = Some(record.before.cpus.clone());
            let path = path.clone();
            self.add(phase, [Step::Narrowed { path, earlier }]);
        }
        self.add(phase, [remove_record(path)]);
    }

    /// The set that a cgroup without a record can have again within `limit`, if CPUs were taken
    /// from it and the set would change.
    fn returned(&self, cpuset: &Cpuset, limit: &CpuSet) -> Option<CpuSet> {
        let earlier = cpuset.narrowed_from.as_ref()?.intersection(limit);
        (earlier != cpuset.cpus && !earlier.is_empty()).then_some(earlier)
    }

    /// Records the assignment on the pod's cgroup.
    fn record_pod(&mut self, pod: &ObservedPod, plan: &PodPlan) {
        let next = pod_record(pod, plan);
        if pod.record.as_ref() == Some(&next) {
            return;
        }
        let phase = if next.cpus().is_subset(&pod.recorded_cpus()) {
            CpusetPhase::RecordLosses
        } else {
            CpusetPhase::RecordGains
        };
        self.add(phase, [write_record(&pod.cgroup.path, next)]);
    }

    /// Widens a pod's cgroup to the CPUs held during the plan, then narrows it to those held after
    /// the plan.
    fn resize_pod(&mut self, pod: &ObservedPod, held: HeldCpus) {
        let (path, own) = (&pod.cgroup.path, &pod.cgroup.cpuset.cpus);
        let during = held.during.union(&held.after);
        let mut widened = own;
        if !during.is_subset(own) {
            widened = &during;
            self.add(
                CpusetPhase::WidenPods,
                [Step::cpus(path, during.clone(), Reason::Pod)],
            );
        }
        if held.after != *widened {
            self.add(
                CpusetPhase::NarrowPods,
                [Step::cpus(path, held.after, Reason::Pod)],
            );
        }
    }

    /// Lifts a pod's quota if the plan says so, and restores the earlier one otherwise.
    fn limit_pod(&mut self, pod: &ObservedPod, plan: &PodPlan) {
        let (path, quota) = (&pod.cgroup.path, pod.cgroup.quota);
        if plan.lifts_pod_quota {
            self.add(CpusetPhase::LiftLimits, lift_quota(path, quota));
        } else if plan.name.is_some() {
            // Nobody can tell what limits the other containers of an unknown pod, so the quota stays.
            let back = give_back_quota(path, quota, pod.record.as_ref());
            self.add(CpusetPhase::RestorePodQuotas, back);
        }
    }

    /// Plans a container's cgroup. Returns the CPUs that the pod's cgroup must hold for it.
    fn plan_container(
        &mut self,
        container: &ObservedContainer,
        pod: &ObservedPod,
        plan: &PodPlan,
    ) -> HeldCpus {
        if container.idle {
            // Enforcement `cpuset` keeps no CPUs idle.
            let path = container.cgroup.path.clone();
            self.add(CpusetPhase::RemoveIdleCgroups, [Step::Remove { path }]);
            return HeldCpus::default();
        }
        let target = self.target(container, pod, plan);
        if target.cpus.is_empty() {
            let own = &container.cgroup.cpuset.cpus;
            return HeldCpus {
                during: own.clone(),
                after: own.clone(),
            };
        }
        if let Some(cpus) = self.return_container(&target) {
            return HeldCpus {
                during: CpuSet::new(),
                after: cpus,
            };
        }
        let reachable = self.reachable(&target, pod);
        let is_settled = target.is_settled(&reachable);
        self.record_container(&target, is_settled);
        let during = if is_settled {
            CpuSet::new()
        } else {
            self.move_container(&target, &reachable)
        };
        self.limit_container(&target);
        HeldCpus {
            during,
            after: target.cpus,
        }
    }

    /// Gives a shared container that Pinfold has not written to the CPUs back that were taken from
    /// it, if no owner has one of them. Returns the container's set afterwards. If one has an
    /// owner, the container gets a record and the shared CPUs.
    fn return_container(&mut self, target: &CpusetTarget<'_>) -> Option<CpuSet> {
        let (container, cpuset) = (target.container, &target.container.cgroup.cpuset);
        let earlier = cpuset.narrowed_from.as_ref()?;
        let wanted = earlier.intersection(&self.available);
        let is_simple = target.reason == Reason::Share
            && container.record.is_none()
            && cpuset.cpus.union(&wanted).is_subset(&self.shared);
        if !is_simple {
            return None;
        }
        let returned = self.returned(cpuset, &self.available);
        let path = &container.cgroup.path;
        let step = returned.map(|cpus| Step::cpus(path, cpus, Reason::Return));
        self.add(CpusetPhase::WidenShared, step);
        Some(wanted)
    }

    /// The CPUs desired for a container; empty if no CPU is left.
    fn target<'t>(
        &self,
        container: &'t ObservedContainer,
        pod: &ObservedPod,
        plan: &'t PodPlan,
    ) -> CpusetTarget<'t> {
        let available = &self.available;
        let name = container.name.as_deref().unwrap_or_default();
        let own = plan.assignment.containers.get(name);
        let own = own
            .map(|own| own.intersection(available))
            .filter(|own| !own.is_empty());
        let is_owner = own.is_some();
        let is_init = container.is_init(plan);
        // An init container uses those CPUs of its pod that no existing container owns. If none is
        // left or can be in force, it uses the shared CPUs.
        let taken = pod.cpus_of_others(name, &plan.assignment);
        let usable = plan.assignment.usable().intersection(available);
        let mut pod_cpus = usable.difference(&taken);
        // A container that nobody has named may be an owner of some of the CPUs that it has, so it
        // takes no others.
        if container.name.is_none() {
            pod_cpus = pod_cpus.intersection(&container.cgroup.cpuset.effective);
        }
        let (cpus, reason) = match own {
            Some(own) => (own, Reason::Own),
            None if is_init && !pod_cpus.is_empty() => (pod_cpus, Reason::Own),
            None => (self.shared.clone(), Reason::Share),
        };
        CpusetTarget {
            container,
            plan,
            cpus,
            reason,
            is_owner,
        }
    }

    /// The effective CPUs of the container, and all CPUs that the plan makes effective for it
    /// without a write.
    fn reachable(&self, target: &CpusetTarget<'_>, pod: &ObservedPod) -> CpuSet {
        let cpuset = &target.container.cgroup.cpuset;
        let is_released = target.plan.assignment.is_empty() && pod.record.is_some();
        let resizes_pod = is_released || !target.plan.assignment.is_empty();
        let unwritten = cpuset.cpus.is_empty() && resizes_pod;
        let may_gain = match target.reason {
            Reason::Share => unwritten || self.ends_partitions,
            _ => unwritten && self.widens(pod, target.plan),
        };
        if !may_gain {
            return cpuset.effective.clone();
        }
        // The plan ends partitions or widens the pod, and afterwards only a written set keeps the
        // container off owned CPUs.
        let written = if cpuset.cpus.is_empty() {
            &self.available
        } else {
            &cpuset.cpus
        };
        cpuset.effective.union(written)
    }

    /// Whether the pod has a set, and the plan adds CPUs of the pod's owners to it.
    fn widens(&self, pod: &ObservedPod, plan: &PodPlan) -> bool {
        let written = &pod.cgroup.cpuset.cpus;
        let assigned = plan.assignment.cpus().intersection(&self.available);
        !written.is_empty() && !assigned.is_subset(written)
    }

    /// Records the container's CPUs, and the cgroup's values from before Pinfold's first write.
    fn record_container(&mut self, target: &CpusetTarget<'_>, is_settled: bool) {
        let record = target.container.record.as_ref();
        let next = target.next_record(self.desired);
        // A container with its target set needs no record unless Pinfold has narrowed it.
        let is_needed = target.is_owner || record.is_some() || !is_settled;
        if record == Some(&next) || !is_needed {
            return;
        }
        let phase = if target.is_owner || record.is_none() {
            CpusetPhase::RecordGains
        } else {
            CpusetPhase::RecordLosses
        };
        self.add(phase, [write_record(&target.container.cgroup.path, next)]);
    }

    /// Narrows a container that loses CPUs, then writes its target. Returns the intermediate CPUs,
    /// if any.
    fn move_container(&mut self, target: &CpusetTarget<'_>, reachable: &CpuSet) -> CpuSet {
        let path = &target.container.cgroup.path;
        let narrowed = self.narrowed(target, reachable);
        if let Some(narrowed) = &narrowed {
            self.add(
                CpusetPhase::Narrow,
                [Step::cpus(path, narrowed.clone(), Reason::Narrow)],
            );
        }
        if narrowed.as_ref() != Some(&target.cpus) {
            let phase = if target.reason == Reason::Own {
                CpusetPhase::AssignOwners
            } else {
                CpusetPhase::WidenShared
            };
            self.add(
                phase,
                [Step::cpus(path, target.cpus.clone(), target.reason)],
            );
        }
        narrowed.unwrap_or_default()
    }

    /// The container's CPUs between its old set and its target; `None` if it needs no intermediate
    /// set.
    fn narrowed(&self, target: &CpusetTarget<'_>, reachable: &CpuSet) -> Option<CpuSet> {
        let own = &target.container.cgroup.cpuset.cpus;
        if reachable.union(own).is_subset(&target.cpus) {
            return None;
        }
        let rest = own.intersection(&target.cpus);
        let narrowed = match target.is_owner && !rest.is_empty() {
            true => rest,
            false if self.always_shared.is_empty() => target.cpus.clone(),
            false => self.always_shared.clone(),
        };
        (*own != narrowed || !reachable.is_subset(&narrowed)).then_some(narrowed)
    }

    /// Lifts an owner's quota and binds its memory. Restores both for a non-owner.
    fn limit_container(&mut self, target: &CpusetTarget<'_>) {
        let container = target.container;
        let (path, quota) = (&container.cgroup.path, container.cgroup.quota);
        if target.is_owner {
            let bind = memory::bind(container, target.plan, &self.desired.all_memory);
            self.add(CpusetPhase::LiftLimits, bind);
            self.add(CpusetPhase::LiftLimits, lift_quota(path, quota));
        } else {
            let numa = memory::give_back(container, &self.desired.all_memory);
            self.add(CpusetPhase::RestoreReleased, numa);
            let quota = give_back_quota(path, quota, container.record.as_ref());
            self.add(CpusetPhase::RestoreReleased, quota);
        }
    }
}

// === impl CpusetTarget ===

impl CpusetTarget<'_> {
    /// Whether the container already has its target, without another write.
    fn is_settled(&self, reachable: &CpuSet) -> bool {
        let own = &self.container.cgroup.cpuset.cpus;
        if self.container.cgroup.has_narrowed_cgroups() {
            return false;
        }
        let is_untouched = self.container.record.is_none()
            && self.container.cgroup.cpuset.narrowed_from.is_none()
            && !self.container.has_given_cpus();
        if self.reason == Reason::Share && is_untouched {
            // The container's set overlaps no exclusive CPU, so it keeps its own setting.
            reachable.is_subset(&self.cpus) && own.is_subset(&self.cpus)
        } else {
            // On v2, a cgroup without a written set inherits the pod's set, so its effective CPUs
            // are checked.
            *own == self.cpus && reachable.is_subset(&self.cpus)
        }
    }

    /// The desired record of the container's cgroup.
    fn next_record(&self, desired: &Desired) -> AssignmentRecord {
        let container = self.container;
        let name = container.name.as_deref().unwrap_or_default();
        let assignment = self
            .is_owner
            .then(|| self.plan.assignment.of_container(name));
        // A shared container may have had the shared CPUs as its own set before, so only the CPUs
        // given by Pinfold count as unset.
        let earlier = if self.reason == Reason::Own || container.has_given_cpus() {
            cpus_to_record(container, &self.cpus)
        } else {
            container.cgroup.cpuset.earlier().clone()
        };
        let mut next = container_record(container, self.plan, assignment, &earlier);
        if self.is_owner {
            memory::record_earlier_memory(next, container, self.plan, &desired.all_memory)
        } else {
            next.before.numa = None;
            next
        }
    }
}

#[cfg(test)]
mod tests;
