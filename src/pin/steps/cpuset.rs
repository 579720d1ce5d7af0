//! Plans for enforcement `cpuset`: an exclusive set on the owner's cgroup, the shared CPUs on every other.
//!
//! The steps are ordered so that at no moment two containers own one CPU, or a container has no CPU at all:
//!
//! 1. marks of those who gain: a crash right after leaves a claim that the next start carries out;
//! 2. pods that must hold more for what follows;
//! 3. everyone who loses CPUs is narrowed, to what is left of his own or to the CPUs that are shared before *and* after;
//! 4. quotas put back, then marks of those who lost;
//! 5. owners get their CPUs, then the shared containers whatever came free;
//! 6. partitions, left from another enforcement, become members: everybody is off their CPUs by now;
//! 7. pods are narrowed, quotas lifted, and marks of no more use taken off.

use super::super::ledger::{Ledger, Observed, ObservedContainer, ObservedPod};
use super::super::mark::Mark;
use super::super::model::{Desired, PodAssignment, PodPlan, Reason, Step};
use super::cpus;
use super::marks::{forget, give_back_quota, lift_quota, next_mark, unreadable, written_before};
use super::memory;
use super::release::undo_partitions;
use crate::cpu::CpuSet;

pub(super) fn plan(observed: &Observed, ledger: &Ledger, desired: &Desired) -> Vec<Step> {
    let shared = desired.shared();
    let common = shared.difference(&ledger.exclusive());
    let mut plan = Phases {
        common,
        shared,
        undo: undo_partitions(observed),
        ..Phases::default()
    };
    for pod in &observed.pods {
        plan.pod(pod, desired);
    }
    plan.steps()
}

/// Steps by phase, in the order of the module's description.
#[derive(Default)]
struct Phases {
    /// CPUs that nobody owns afterwards.
    shared: CpuSet,
    /// CPUs that nobody owns before or afterwards.
    common: CpuSet,
    gain: Vec<Step>,
    pods_wide: Vec<Step>,
    narrow: Vec<Step>,
    quotas_back: Vec<Step>,
    lost: Vec<Step>,
    own: Vec<Step>,
    share: Vec<Step>,
    undo: Vec<Step>,
    pods_narrow: Vec<Step>,
    lift: Vec<Step>,
    forget: Vec<Step>,
}

// === impl Phases ===

impl Phases {
    fn steps(self) -> Vec<Step> {
        let phases = [
            self.gain,
            self.pods_wide,
            self.narrow,
            self.quotas_back,
            self.lost,
            self.own,
            self.share,
            self.undo,
            self.pods_narrow,
            self.lift,
            self.forget,
        ];
        phases.into_iter().flatten().collect()
    }

    fn pod(&mut self, pod: &ObservedPod, desired: &Desired) {
        let uid = &pod.cgroup.uid;
        let none = PodPlan::default();
        let plan = desired.pod(uid).unwrap_or(&none);
        let (assignment, names) = (&plan.assignment, plan.name.as_ref());
        if unreadable(pod.mark.as_ref(), pod.cgroup.mark.as_deref()) {
            return;
        }
        // The pod's cgroup holds whatever its containers hold, on the way and in the end.
        let mut on_the_way = pod.cgroup.cpuset.cpus.clone();
        let mut held = assignment.cpus().intersection(&desired.online);
        for container in &pod.containers {
            if unreadable(container.mark.as_ref(), container.cgroup.mark.as_deref()) {
                held = held.union(&container.cgroup.cpuset.cpus);
                continue;
            }
            let (target, way) = self.container(container, pod, plan, desired);
            held = held.union(&target);
            on_the_way = on_the_way.union(&way);
            if pod.cgroup.cpuset.cpus.is_empty() {
                // On v2, one that keeps none of its CPUs in what is written above it for the first time would have all of that.
                on_the_way = on_the_way.union(&container.cgroup.cpuset.cpus);
            }
        }
        on_the_way = on_the_way.union(&held);
        let path = &pod.cgroup.path;
        let own = &pod.cgroup.cpuset.cpus;
        let marked = pod.mark.as_ref();
        if assignment.is_empty() {
            // Nothing is owned here: the pod gets back what it had, wide enough for its containers.
            if let Some(mark) = marked {
                let wide = mark.before.cpus.intersection(&desired.online);
                let wide = if wide.is_empty() {
                    desired.online.clone()
                } else {
                    wide.union(&held)
                };
                if *own != wide {
                    self.pods_wide.push(cpus(path, wide, Reason::Pod));
                }
                self.quotas_back
                    .extend(give_back_quota(path, pod.cgroup.quota, marked));
                self.lost.push(forget(path));
            }
            return;
        }
        let lift = plan.whole;
        let mut next = next_mark(
            marked,
            assignment.clone(),
            names,
            own,
            pod.cgroup.quota.filter(|_| lift),
        );
        next.confirmed = plan.is_confirmed(marked);
        if marked != Some(&next) {
            let gains = !next
                .cpus()
                .is_subset(&marked.map(Mark::cpus).unwrap_or_default());
            let step = Step::Mark {
                path: path.clone(),
                mark: Some(next),
            };
            if gains {
                self.gain.push(step);
            } else {
                self.lost.push(step);
            }
        }
        if !on_the_way.is_subset(own) {
            self.pods_wide
                .push(cpus(path, on_the_way.clone(), Reason::Pod));
        }
        let wide = if on_the_way.is_subset(own) {
            own
        } else {
            &on_the_way
        };
        if held != *wide {
            self.pods_narrow.push(cpus(path, held, Reason::Pod));
        }
        if lift {
            self.lift.extend(lift_quota(path, pod.cgroup.quota));
        } else if names.is_some() {
            // Of a pod that nobody told us of it isn't known whether all its containers own CPUs.
            self.quotas_back
                .extend(give_back_quota(path, pod.cgroup.quota, marked));
        }
    }

    /// Plans one container's cgroup and returns the CPUs it shall have, and those it has on the way.
    fn container(
        &mut self,
        container: &ObservedContainer,
        pod: &ObservedPod,
        plan: &PodPlan,
        desired: &Desired,
    ) -> (CpuSet, CpuSet) {
        let (assignment, names) = (&plan.assignment, plan.name.as_ref());
        let path = &container.cgroup.path;
        if container.idle {
            // Left from another enforcement: here nobody is given what is to be idle.
            self.forget.push(Step::Remove { path: path.clone() });
            return (CpuSet::new(), CpuSet::new());
        }
        let name = container.name.as_deref().unwrap_or_default();
        let own = &container.cgroup.cpuset.cpus;
        let marked = container.mark.as_ref();
        let inside = plan.inside.iter().any(|inside| inside == name);
        let claim = assignment
            .containers
            .get(name)
            .map(|claim| claim.intersection(&desired.online))
            .filter(|claim| !claim.is_empty());
        let owner = claim.is_some();
        let (target, reason) = match claim {
            Some(claim) => (claim, Reason::Own),
            None if inside && !assignment.is_empty() => (
                assignment.usable().intersection(&desired.online),
                Reason::Own,
            ),
            None => (self.shared.clone(), Reason::Share),
        };
        if target.is_empty() {
            return (own.clone(), own.clone());
        }
        let mut in_force = container.cgroup.cpuset.effective.clone();
        let unwritten = own.is_empty() && !assignment.is_empty();
        if reason == Reason::Share && (unwritten || !self.undo.is_empty()) {
            // Where partitions end or its pod is widened, it is kept off others' CPUs by nothing but what is written to it.
            in_force = in_force.union(if own.is_empty() { &desired.online } else { own });
        }
        let settled = if reason == Reason::Share && marked.is_none() {
            // Nobody's CPUs are in its reach, so whoever chose its set may keep it.
            in_force.is_subset(&target) && own.is_subset(&target)
        } else {
            // On v2 an unwritten cgroup has what its pod has, so what is in force counts as well as what was written.
            *own == target && in_force.is_subset(&target)
        };
        let claimed = if owner {
            assignment.of_container(name)
        } else {
            PodAssignment::default()
        };
        let quota = container.cgroup.quota.filter(|_| owner);
        let none = CpuSet::new();
        let before = if reason == Reason::Own {
            written_before(own, &target, &none)
        } else {
            own
        };
        let mut next = next_mark(marked, claimed, names, before, quota);
        next.by_id = owner && container.by_id;
        if owner {
            next = memory::note(next, container, &pod.cgroup.uid, desired);
            self.lift
                .extend(memory::bind(container, &pod.cgroup.uid, desired));
        } else {
            self.quotas_back
                .extend(memory::give_back(container, &desired.all_memory));
            next.before.numa = None;
        }
        let loses = !in_force.union(own).is_subset(&target);
        // A container that nobody ever narrowed and that has its set already needs no mark.
        if marked != Some(&next) && (owner || marked.is_some() || !settled) {
            let gains = owner || marked.is_none();
            let step = Step::Mark {
                path: path.clone(),
                mark: Some(next),
            };
            if gains {
                self.gain.push(step);
            } else {
                self.lost.push(step);
            }
        }
        let mut now = None;
        if !settled {
            if loses {
                let rest = own.intersection(&target);
                let way = if owner && !rest.is_empty() {
                    rest
                } else {
                    self.common.clone()
                };
                let way = if way.is_empty() { target.clone() } else { way };
                if *own != way || !in_force.is_subset(&way) {
                    self.narrow.push(cpus(path, way.clone(), Reason::Narrow));
                    now = Some(way);
                }
            }
            if now.as_ref() != Some(&target) {
                let last = if reason == Reason::Own {
                    &mut self.own
                } else {
                    &mut self.share
                };
                last.push(cpus(path, target.clone(), reason));
            }
        }
        if owner {
            self.lift.extend(lift_quota(path, container.cgroup.quota));
        } else {
            self.quotas_back
                .extend(give_back_quota(path, container.cgroup.quota, marked));
        }
        (target, now.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
