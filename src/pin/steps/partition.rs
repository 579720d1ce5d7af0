//! Plans for enforcement `partition`: the kernel itself keeps everybody else off an owner's CPUs.
//!
//! A container's exclusive CPUs must be held by every cgroup from the top of the hierarchy down to it; its own cgroup is
//! then made a partition. Nobody else needs a write, with one exception: containers of the same pod whose written CPUs
//! touch the owner's. In this order:
//!
//! 1. partitions that the kernel has made invalid become members at once, cgroups above live ones hold again what
//!    somebody has taken from them: left so, Linux 6.12 can lose their CPUs; and isolated ones that can't stay so, or not
//!    with what they get, have load balancing again;
//! 2. marks of those who gain: a crash right after leaves a claim that the next start carries out;
//! 3. pod mates are narrowed until they touch no partition of the pod;
//! 4. partitions shrink or end, then the cgroups above them, from below: none is ever less than what is live below it;
//! 5. quotas put back, then marks of those who lost;
//! 6. partitions move whose new CPUs have nothing in common with their old ones, each when its new ones are free;
//! 7. cgroups hold more, from above, then partitions grow or are made;
//! 8. cgroups hold no more than is needed, from below;
//! 9. what was written to those who own nothing now is undone, quotas are lifted, marks of no more use are taken off.
//!
//! The kernel refuses a second owner of a CPU, so an overlap can't come from a wrong order here; a refusal could.

mod survey;

use std::collections::BTreeMap;

use survey::{Leaf, Place};

use super::super::ledger::{Observed, ObservedContainer, ObservedPod};
use super::super::mark::Mark;
use super::super::model::{Desired, IDLE_CGROUP, Reason, Step, union};
use super::cpus;
use super::marks::{forget, give_back_quota, lift_quota};
use super::memory;
use super::release::{had, member};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Kind, Partition, is_below, is_within};

pub(super) fn plan(observed: &Observed, desired: &Desired) -> Vec<Step> {
    let mut planner = Planner::new(observed, desired);
    planner.mend();
    planner.reach();
    planner.balance();
    planner.gain();
    planner.apart();
    planner.shrink();
    planner.trim(true);
    planner.lose();
    planner.moves();
    planner.grow();
    planner.trim(false);
    planner.settle();
    planner.steps
}

struct Planner<'a> {
    observed: &'a Observed,
    desired: &'a Desired,
    pods: Vec<Place<'a>>,
    leaves: Vec<Leaf<'a>>,
    /// What each cgroup holds as exclusive, as the steps so far will have left it.
    held: BTreeMap<&'a str, CpuSet>,
    /// The cgroups that are live partitions then, and of which kind.
    live: BTreeMap<&'a str, Kind>,
    /// Cgroups below which strangers hold CPUs, with those CPUs: nobody may take them away.
    strangers: Vec<(&'a str, CpuSet)>,
    steps: Vec<Step>,
}

// === impl Planner ===

impl<'a> Planner<'a> {
    /// Sets what a cgroup holds, if it is not so.
    fn hold(&mut self, path: &'a str, cpus: CpuSet) {
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

    fn held(&self, path: &str) -> CpuSet {
        self.held.get(path).cloned().unwrap_or_default()
    }

    /// What a cgroup can't be without now: live partitions below it, and what strangers hold.
    fn needed(&self, path: &str) -> CpuSet {
        let live = self
            .live
            .keys()
            .filter(|leaf| is_below(leaf, path))
            .filter_map(|leaf| self.held.get(leaf));
        let strangers = self
            .strangers
            .iter()
            .filter(|(other, _)| is_within(other, path));
        union(live).union(&union(strangers.map(|(_, cpus)| cpus)))
    }

    /// What a cgroup above the pods shall hold in the end.
    fn wanted_above(&self, path: &str) -> CpuSet {
        let pods = self
            .pods
            .iter()
            .filter(|place| is_below(&place.pod.cgroup.path, path));
        union(pods.map(|place| &place.target)).union(&self.needed(path))
    }

    fn aboves(&self) -> impl DoubleEndedIterator<Item = &'a str> + use<'a> {
        let observed: &'a Observed = self.observed;
        observed
            .around
            .above
            .iter()
            .map(|above| above.path.as_str())
    }

    fn mend(&mut self) {
        for leaf in &self.leaves {
            let cgroup = &leaf.container.cgroup;
            if matches!(cgroup.cpuset.partition, Partition::Invalid(_)) {
                self.steps.push(member(&cgroup.path));
            }
        }
    }

    /// Cgroups above live partitions hold again what somebody has taken from them.
    fn reach(&mut self) {
        for path in self.aboves() {
            self.hold(path, self.held(path).union(&self.needed(path)));
        }
        for index in 0..self.pods.len() {
            let Some(place) = self.pods.get(index).filter(|place| !place.alone) else {
                continue;
            };
            let pod: &'a ObservedPod = place.pod;
            let path = pod.cgroup.path.as_str();
            self.hold(path, self.held(path).union(&self.needed(path)));
        }
    }

    /// A live isolated partition becomes one with load balancing before it gets other CPUs.
    fn balance(&mut self) {
        for index in 0..self.leaves.len() {
            let Some(leaf) = self.leaves.get(index) else {
                continue;
            };
            let container: &'a ObservedContainer = leaf.container;
            let path = container.cgroup.path.as_str();
            let gives_up = self.live.get(path) == Some(&Kind::Isolated) && leaf.kind == Kind::Root;
            if gives_up && !leaf.target.is_empty() {
                self.become_kind(path, Kind::Root, &self.held(path));
            }
        }
    }

    /// A cgroup becomes a live partition of this kind, if it is none.
    fn become_kind(&mut self, path: &'a str, kind: Kind, cpus: &CpuSet) {
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

    fn gain(&mut self) {
        let mut steps = Vec::new();
        for place in &self.pods {
            if let Some(next) = place.next_mark()
                && !next
                    .cpus()
                    .is_subset(&place.pod.mark.as_ref().map(Mark::cpus).unwrap_or_default())
            {
                steps.push(Step::Mark {
                    path: place.pod.cgroup.path.clone(),
                    mark: Some(next),
                });
            }
        }
        for leaf in &self.leaves {
            let place = self.pods.get(leaf.pod);
            let touched = !leaf.target.is_empty() || self.too_near(leaf).is_some();
            let newer = self.newer(leaf);
            let noted = leaf.container.mark.is_some() && newer.is_none();
            let Some(place) = place.filter(|_| leaf.owner || (touched && !noted)) else {
                continue;
            };
            let uid = &place.pod.cgroup.uid;
            let mut next = leaf.next_mark(place);
            if let Some(newer) = newer {
                next.before.cpus = newer;
            }
            if leaf.owner {
                next = memory::note(next, leaf.container, uid, self.desired);
            }
            if leaf.container.mark.as_ref() != Some(&next) {
                steps.push(Step::Mark {
                    path: leaf.container.cgroup.path.clone(),
                    mark: Some(next),
                });
            }
        }
        self.steps.append(&mut steps);
        let with_idle = |place: &&Place<'_>| !place.plan.assignment.idle.is_empty();
        for place in self.pods.iter().filter(with_idle) {
            if !place.pod.containers.iter().any(|container| container.idle) {
                let path = format!("{}/{IDLE_CGROUP}", place.pod.cgroup.path);
                // It becomes a partition with the next plan, which the sight of it brings about.
                self.steps.push(Step::Make { path });
            }
        }
    }

    /// What a container must be given by name so that it touches no partition beside it; `None` if it touches none.
    fn too_near(&self, leaf: &Leaf<'_>) -> Option<CpuSet> {
        let own = &leaf.container.cgroup.cpuset.cpus;
        let others = self.pods.get(leaf.pod)?.target.difference(&leaf.target);
        if own.is_disjoint(&others) {
            return None;
        }
        // Of offline CPUs only those would be written that are taken away again by the next plan.
        let rest = own.difference(&others).intersection(&self.desired.online);
        let shared = self.desired.shared();
        Some(match (leaf.target.is_empty(), rest.is_empty()) {
            (false, _) => leaf.target.intersection(&self.desired.online),
            (true, false) => rest,
            (true, true) => shared,
        })
    }

    /// What somebody has written to a pod mate since we moved it off its pod's partitions: that is what to put back.
    fn newer(&self, leaf: &Leaf<'_>) -> Option<CpuSet> {
        let written = &leaf.container.cgroup.cpuset.cpus;
        (!leaf.owner && self.too_near(leaf).is_some()).then(|| written.clone())
    }

    fn apart(&mut self) {
        let near: Vec<Step> = self
            .leaves
            .iter()
            .filter_map(|leaf| {
                let apart = self.too_near(leaf).filter(|apart| !apart.is_empty())?;
                Some(cpus(&leaf.container.cgroup.path, apart, Reason::Apart))
            })
            .collect();
        self.steps.extend(near);
    }

    fn shrink(&mut self) {
        for index in 0..self.leaves.len() {
            let Some(leaf) = self.leaves.get(index) else {
                continue;
            };
            let container: &'a ObservedContainer = leaf.container;
            let path = container.cgroup.path.as_str();
            let rest = self.held(path).intersection(&leaf.target);
            if self.live.contains_key(path) {
                if leaf.target.is_empty() {
                    self.live.remove(path);
                    self.steps.push(member(path));
                } else if rest.is_disjoint(&self.desired.online) {
                    // It has nothing to stand on: it moves, in its turn.
                    continue;
                }
            }
            self.hold(path, rest);
        }
    }

    /// Cgroups above partitions let go of what is not needed, from below; `early`, they keep what they will need again.
    fn trim(&mut self, early: bool) {
        for index in 0..self.pods.len() {
            let Some(place) = self.pods.get(index).filter(|place| !place.alone) else {
                continue;
            };
            let pod: &'a ObservedPod = place.pod;
            let path = pod.cgroup.path.as_str();
            let wanted = place.target.union(&self.needed(path));
            let cpus = if early {
                self.held(path).intersection(&wanted)
            } else {
                wanted
            };
            self.hold(path, cpus);
        }
        for path in self.aboves().rev() {
            let wanted = self.wanted_above(path);
            let cpus = if early {
                self.held(path).intersection(&wanted)
            } else {
                wanted
            };
            self.hold(path, cpus);
        }
    }

    fn lose(&mut self) {
        let mut steps = Vec::new();
        for place in self.pods.iter().filter(|place| !place.alone) {
            let cgroup = &place.pod.cgroup;
            let marked = place.pod.mark.as_ref();
            let whole = place.plan.whole;
            // Of a pod that nobody told us of it isn't known whether all its containers own CPUs.
            if place.plan.assignment.is_empty() || (!whole && place.plan.name.is_some()) {
                steps.extend(give_back_quota(&cgroup.path, cgroup.quota, marked));
            }
            // Pods that own nothing now are forgotten at the very end.
            if let Some(next) = place.next_mark()
                && next
                    .cpus()
                    .is_subset(&marked.map(Mark::cpus).unwrap_or_default())
                && marked != Some(&next)
            {
                steps.push(Step::Mark {
                    path: cgroup.path.clone(),
                    mark: Some(next),
                });
            }
        }
        for leaf in self
            .leaves
            .iter()
            .filter(|leaf| !leaf.owner || leaf.target.is_empty())
        {
            let cgroup = &leaf.container.cgroup;
            steps.extend(give_back_quota(
                &cgroup.path,
                cgroup.quota,
                leaf.container.mark.as_ref(),
            ));
            // One that owned CPUs and does not now may still need to know what it had.
            if let (Some(mark), Some(place)) = (&leaf.container.mark, self.pods.get(leaf.pod))
                && !mark.assignment.is_empty()
                && !leaf.owner
                && !self.is_done(leaf)
            {
                let next = leaf.next_mark(place);
                steps.push(Step::Mark {
                    path: cgroup.path.clone(),
                    mark: Some(next),
                });
            }
        }
        self.steps.append(&mut steps);
    }

    fn moves(&mut self) {
        let mut waiting: Vec<(&'a str, &'a str, CpuSet)> = Vec::new();
        for leaf in &self.leaves {
            let container: &'a ObservedContainer = leaf.container;
            let path = container.cgroup.path.as_str();
            let Some(place) = self.pods.get(leaf.pod) else {
                continue;
            };
            let pod: &'a ObservedPod = place.pod;
            let stays = self.held(path).intersection(&leaf.target);
            if self.live.contains_key(path) && stays.is_disjoint(&self.desired.online) {
                waiting.push((path, pod.cgroup.path.as_str(), leaf.target.clone()));
            }
        }
        while !waiting.is_empty() {
            let free = |(path, pod, target): &(&str, &str, CpuSet)| {
                let mut others = self
                    .held
                    .iter()
                    .filter(|(other, _)| *other != pod && !is_within(path, other));
                others.all(|(_, held)| held.is_disjoint(target))
            };
            let Some(next) = waiting.iter().position(free) else {
                // They wait for each other in a ring: one steps aside, and is made anew with those that grow.
                let (path, _, _) = waiting.swap_remove(0);
                self.live.remove(path);
                self.steps.push(member(path));
                self.hold(path, CpuSet::new());
                self.trim(true);
                continue;
            };
            let (path, pod, target) = waiting.swap_remove(next);
            let way: Vec<&'a str> = self.aboves().filter(|above| is_below(pod, above)).collect();
            for cgroup in way.into_iter().chain([pod]) {
                self.hold(cgroup, self.held(cgroup).union(&target));
            }
            self.hold(path, target);
            self.trim(true);
        }
    }

    fn grow(&mut self) {
        for path in self.aboves() {
            self.hold(path, self.held(path).union(&self.wanted_above(path)));
        }
        for index in 0..self.pods.len() {
            let Some(place) = self.pods.get(index).filter(|place| !place.alone) else {
                continue;
            };
            let pod: &'a ObservedPod = place.pod;
            let path = pod.cgroup.path.as_str();
            let cpus = self.held(path).union(&place.target);
            self.hold(path, cpus);
        }
        for index in 0..self.leaves.len() {
            let Some(leaf) = self
                .leaves
                .get(index)
                .filter(|leaf| !leaf.target.is_empty())
            else {
                continue;
            };
            let (container, kind): (&'a ObservedContainer, _) = (leaf.container, leaf.kind);
            let path = container.cgroup.path.as_str();
            let target = leaf.target.clone();
            self.hold(path, target.clone());
            self.become_kind(path, kind, &target);
        }
    }

    /// Whether a container has what it had before our first write, or needs nothing back.
    fn is_done(&self, leaf: &Leaf<'_>) -> bool {
        let untouched = |mark: &Mark| {
            mark.before.cpus.is_empty() && leaf.container.cgroup.cpuset.cpus.is_empty()
        };
        leaf.target.is_empty()
            && leaf.container.mark.as_ref().is_none_or(|mark| {
                untouched(mark)
                    || leaf.container.cgroup.cpuset.cpus == had(mark, &self.desired.online)
            })
    }

    fn settle(&mut self) {
        let mut steps = Vec::new();
        let mut last = Vec::new();
        for leaf in &self.leaves {
            let cgroup = &leaf.container.cgroup;
            if leaf.owner {
                // One whose CPUs are not in force runs among others, and its quota is what they agreed to.
                if !leaf.target.is_empty() {
                    steps.extend(lift_quota(&cgroup.path, cgroup.quota));
                }
                let uid = self
                    .pods
                    .get(leaf.pod)
                    .map(|place| place.pod.cgroup.uid.as_str());
                steps.extend(memory::bind(
                    leaf.container,
                    uid.unwrap_or_default(),
                    self.desired,
                ));
                continue;
            }
            steps.extend(memory::give_back(leaf.container, &self.desired.all_memory));
            if leaf.container.idle {
                last.push(Step::Remove {
                    path: cgroup.path.clone(),
                });
                continue;
            }
            let (Some(mark), true) = (&leaf.container.mark, leaf.target.is_empty()) else {
                continue;
            };
            let near = self
                .pods
                .get(leaf.pod)
                .map(|place| place.target.clone())
                .unwrap_or_default();
            let had = match self.newer(leaf) {
                Some(newer) => newer.intersection(&self.desired.online),
                None => had(mark, &self.desired.online),
            };
            if self.is_done(leaf) && (cgroup.cpuset.cpus.is_empty() || had.is_disjoint(&near)) {
                last.push(forget(&cgroup.path));
                continue;
            }
            // What it had, but for its pod's partitions.
            let back = had.difference(&near);
            let back = if back.is_empty() {
                self.desired.shared()
            } else {
                back
            };
            let whole = back == had;
            if cgroup.cpuset.cpus != back
                && !back.is_empty()
                && self.too_near(leaf).as_ref() != Some(&back)
            {
                steps.push(cpus(&cgroup.path, back, Reason::Share));
            }
            if whole {
                last.push(forget(&cgroup.path));
            }
        }
        for place in self.pods.iter().filter(|place| !place.alone) {
            let cgroup = &place.pod.cgroup;
            if place.plan.whole && !place.plan.assignment.is_empty() {
                steps.extend(lift_quota(&cgroup.path, cgroup.quota));
            }
            let Some(mark) = &place.pod.mark else {
                continue;
            };
            // Another enforcement may have narrowed it.
            let had = had(mark, &self.desired.online);
            if !cgroup.cpuset.cpus.is_empty() && cgroup.cpuset.cpus != had {
                steps.push(cpus(&cgroup.path, had, Reason::Share));
            }
            if place.plan.assignment.is_empty() {
                last.push(forget(&cgroup.path));
            }
        }
        self.steps.append(&mut steps);
        self.steps.append(&mut last);
    }
}

#[cfg(test)]
mod tests;
