//! [`plan`]: observed and desired in, steps out.
//!
//! The steps are ordered so that at no moment two containers own one CPU, or a container has no CPU at all:
//!
//! 1. marks of those who gain: a crash right after leaves a claim that the next start carries out;
//! 2. pods that must hold more for what follows;
//! 3. everyone who loses CPUs is narrowed, to what is left of his own or to the CPUs that are shared before *and* after;
//! 4. quotas put back, then marks of those who lost;
//! 5. owners get their CPUs, then the shared containers whatever came free;
//! 6. pods are narrowed, quotas lifted, and marks of no more use taken off.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::ledger::{Ledger, Observed, ObservedContainer, ObservedPod};
use super::mark::{Before, Mark, union};
use crate::cpu::CpuSet;
use crate::host::cgroup::{Quota, lifted};

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Puts a mark on a cgroup, or takes it off.
    Mark {
        /// The cgroup.
        path: String,
        /// What to note.
        mark: Option<Mark>,
    },
    /// Sets a cgroup's CPUs.
    Cpus {
        /// The cgroup.
        path: String,
        /// The CPUs.
        cpus: CpuSet,
        /// Why.
        reason: Reason,
    },
    /// Sets a cgroup's quota.
    Quota {
        /// The cgroup.
        path: String,
        /// The quota.
        quota: Quota,
    },
}

/// Why a cgroup's CPUs are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// A pod's cgroup must hold what its containers get.
    Pod,
    /// Others will own some of its CPUs.
    Narrow,
    /// It owns them.
    Own,
    /// They are shared.
    Share,
    /// They are handed back.
    Release,
}

/// What should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Online CPUs: nothing else can be written.
    pub online: CpuSet,
    /// Who shall own what, per pod uid and container name; pods that nobody told us of keep what they have.
    pub claims: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// Namespace and name of each pod in `claims`, where known.
    pub names: BTreeMap<String, (String, String)>,
    /// Containers that run inside the set of their pod, per uid: init containers.
    pub inside: BTreeMap<String, Vec<String>>,
    /// Pods all of whose containers own CPUs: their own quota is lifted too.
    pub whole: Vec<String>,
}

// === impl Step ===

impl Step {
    /// The cgroup it writes to.
    pub fn path(&self) -> &str {
        let (Self::Mark { path, .. } | Self::Cpus { path, .. } | Self::Quota { path, .. }) = self;
        path
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark { path, mark: Some(mark) } if mark.claims.is_empty() => {
                write!(f, "{path}: note what was")
            }
            Self::Mark { path, mark: Some(mark) } => write!(f, "{path}: claim {}", mark.cpus()),
            Self::Mark { path, mark: None } => write!(f, "{path}: forget"),
            Self::Cpus { path, cpus, .. } => write!(f, "{path}: CPUs {cpus}"),
            Self::Quota { path, quota } => write!(f, "{path}: quota {quota}"),
        }
    }
}

impl Desired {
    /// CPUs that nobody shall own.
    pub fn shared(&self) -> CpuSet {
        self.online.difference(&union(self.claims.values().flat_map(BTreeMap::values)))
    }
}

/// The steps from what is to what should be; none where they are the same.
pub fn plan(observed: &Observed, ledger: &Ledger, desired: &Desired) -> Vec<Step> {
    let shared = desired.shared();
    let mut plan = Phases { common: shared.difference(&ledger.exclusive()), shared, ..Phases::default() };
    for pod in &observed.pods {
        plan.pod(pod, desired);
    }
    plan.steps()
}

/// The steps that hand everything back: CPUs, quotas, and no mark left.
pub fn release(observed: &Observed, online: &CpuSet) -> Vec<Step> {
    let mut plan = Phases::default();
    for pod in &observed.pods {
        let wide =
            pod.mark.as_ref().map_or(&pod.cgroup.cpuset.cpus, |mark| &mark.before.cpus).intersection(online);
        let wide = if wide.is_empty() { online.clone() } else { wide };
        if pod.mark.is_some() && pod.cgroup.cpuset.cpus != wide {
            plan.pods_wide.push(cpus(&pod.cgroup.path, wide, Reason::Release));
        }
        plan.give_back_quota(&pod.cgroup.path, pod.cgroup.quota, pod.mark.as_ref());
        plan.forget(&pod.cgroup.path, pod.mark.is_some());
        for container in &pod.containers {
            let Some(mark) = &container.mark else { continue };
            let cgroup = &container.cgroup;
            let back = mark.before.cpus.intersection(online);
            // A cgroup with processes can't be made empty again on v2; all CPUs mean the same.
            let back = if back.is_empty() { online.clone() } else { back };
            if cgroup.cpuset.cpus != back {
                plan.share.push(cpus(&cgroup.path, back, Reason::Release));
            }
            plan.give_back_quota(&cgroup.path, cgroup.quota, Some(mark));
            plan.forget(&cgroup.path, true);
        }
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
            self.pods_narrow,
            self.lift,
            self.forget,
        ];
        phases.into_iter().flatten().collect()
    }

    fn pod(&mut self, pod: &ObservedPod, desired: &Desired) {
        let uid = &pod.cgroup.uid;
        let none = BTreeMap::new();
        let claims = desired.claims.get(uid).unwrap_or(&none);
        let names = desired.names.get(uid);
        if unreadable(pod.mark.as_ref(), pod.cgroup.mark.as_deref()) {
            return;
        }
        // The pod's cgroup holds whatever its containers hold, on the way and in the end.
        let mut on_the_way = pod.cgroup.cpuset.cpus.clone();
        let mut held = union(claims.values()).intersection(&desired.online);
        for container in &pod.containers {
            if unreadable(container.mark.as_ref(), container.cgroup.mark.as_deref()) {
                held = held.union(&container.cgroup.cpuset.cpus);
                continue;
            }
            let (target, way) = self.container(container, pod, claims, names, desired);
            held = held.union(&target);
            on_the_way = on_the_way.union(&way);
        }
        on_the_way = on_the_way.union(&held);
        let path = &pod.cgroup.path;
        let own = &pod.cgroup.cpuset.cpus;
        let marked = pod.mark.as_ref();
        if claims.is_empty() {
            // Nothing is owned here: the pod gets back what it had, wide enough for its containers.
            if let Some(mark) = marked {
                let wide = mark.before.cpus.intersection(&desired.online);
                let wide = if wide.is_empty() { desired.online.clone() } else { wide.union(&held) };
                if *own != wide {
                    self.pods_wide.push(cpus(path, wide, Reason::Pod));
                }
                self.give_back_quota(path, pod.cgroup.quota, marked);
                self.lost.push(Step::Mark { path: path.clone(), mark: None });
            }
            return;
        }
        let lift = desired.whole.contains(uid);
        let next = next_mark(marked, claims.clone(), names, own, pod.cgroup.quota.filter(|_| lift));
        if marked != Some(&next) {
            let gains = !next.cpus().is_subset(&marked.map(Mark::cpus).unwrap_or_default());
            let step = Step::Mark { path: path.clone(), mark: Some(next) };
            if gains { self.gain.push(step) } else { self.lost.push(step) }
        }
        if !on_the_way.is_subset(own) {
            self.pods_wide.push(cpus(path, on_the_way.clone(), Reason::Pod));
        }
        let wide = if on_the_way.is_subset(own) { own } else { &on_the_way };
        if held != *wide {
            self.pods_narrow.push(cpus(path, held, Reason::Pod));
        }
        if lift {
            self.lift_quota(path, pod.cgroup.quota);
        } else if names.is_some() {
            // Of a pod that nobody told us of it isn't known whether all its containers own CPUs.
            self.give_back_quota(path, pod.cgroup.quota, marked);
        }
    }

    /// Plans one container's cgroup and returns the CPUs it shall have, and those it has on the way.
    fn container(
        &mut self,
        container: &ObservedContainer,
        pod: &ObservedPod,
        claims: &BTreeMap<String, CpuSet>,
        names: Option<&(String, String)>,
        desired: &Desired,
    ) -> (CpuSet, CpuSet) {
        let path = &container.cgroup.path;
        let name = container.name.as_deref().unwrap_or_default();
        let own = &container.cgroup.cpuset.cpus;
        let in_force = &container.cgroup.cpuset.effective;
        let marked = container.mark.as_ref();
        let inside =
            desired.inside.get(&pod.cgroup.uid).is_some_and(|inside| inside.iter().any(|one| one == name));
        let claim = claims
            .get(name)
            .map(|claim| claim.intersection(&desired.online))
            .filter(|claim| !claim.is_empty());
        let owner = claim.is_some();
        let (target, reason) = match claim {
            Some(claim) => (claim, Reason::Own),
            None if inside && !claims.is_empty() => {
                (union(claims.values()).intersection(&desired.online), Reason::Own)
            }
            None => (self.shared.clone(), Reason::Share),
        };
        if target.is_empty() {
            return (own.clone(), own.clone());
        }
        let settled = if reason == Reason::Share && marked.is_none() {
            // Nobody's CPUs are in its reach, so whoever chose its set may keep it.
            in_force.is_subset(&target) && own.is_subset(&target)
        } else {
            // On v2 an unwritten cgroup has what its pod has, so what is in force counts as well as what was written.
            *own == target && in_force.is_subset(&target)
        };
        let claimed: BTreeMap<String, CpuSet> = claims
            .iter()
            .filter(|(one, _)| owner && one.as_str() == name)
            .map(|(n, c)| (n.clone(), c.clone()))
            .collect();
        let quota = container.cgroup.quota.filter(|_| owner);
        let next = next_mark(marked, claimed, names, own, quota);
        let loses = !in_force.union(own).is_subset(&target);
        // A container that nobody ever narrowed and that has its set already needs no mark.
        if marked != Some(&next) && (owner || marked.is_some() || !settled) {
            let gains = owner || marked.is_none();
            let step = Step::Mark { path: path.clone(), mark: Some(next) };
            if gains { self.gain.push(step) } else { self.lost.push(step) }
        }
        let mut now = None;
        if !settled {
            if loses {
                let rest = own.intersection(&target);
                let way = if owner && !rest.is_empty() { rest } else { self.common.clone() };
                let way = if way.is_empty() { target.clone() } else { way };
                if *own != way || !in_force.is_subset(&way) {
                    self.narrow.push(cpus(path, way.clone(), Reason::Narrow));
                    now = Some(way);
                }
            }
            if now.as_ref() != Some(&target) {
                let last = if reason == Reason::Own { &mut self.own } else { &mut self.share };
                last.push(cpus(path, target.clone(), reason));
            }
        }
        if owner {
            self.lift_quota(path, container.cgroup.quota);
        } else {
            self.give_back_quota(path, container.cgroup.quota, marked);
        }
        (target, now.unwrap_or_default())
    }

    fn lift_quota(&mut self, path: &str, now: Option<Quota>) {
        if let Some(quota) = now.filter(|quota| quota.quota.is_some()) {
            self.lift.push(Step::Quota { path: path.to_owned(), quota: lifted(quota) });
        }
    }

    fn give_back_quota(&mut self, path: &str, now: Option<Quota>, mark: Option<&Mark>) {
        // One that is limited again was set by somebody else since, and that is the newer will.
        let limited = now.is_some_and(|quota| quota.quota.is_some());
        if let Some(quota) = mark.and_then(|mark| mark.before.quota).filter(|_| !limited) {
            self.quotas_back.push(Step::Quota { path: path.to_owned(), quota });
        }
    }

    fn forget(&mut self, path: &str, marked: bool) {
        if marked {
            self.forget.push(Step::Mark { path: path.to_owned(), mark: None });
        }
    }
}

/// The mark a cgroup shall have: claims as they shall be, and what was before as it was noted first.
fn next_mark(
    marked: Option<&Mark>,
    claims: BTreeMap<String, CpuSet>,
    names: Option<&(String, String)>,
    own: &CpuSet,
    limited: Option<Quota>,
) -> Mark {
    let noted = marked.map_or_else(|| Before { cpus: own.clone(), quota: None }, |mark| mark.before.clone());
    // A quota that is in force again was written by the kubelet since: it is what to put back.
    let quota = match limited.filter(|quota| quota.quota.is_some()) {
        Some(quota) => Some(quota),
        None if claims.is_empty() => None,
        None => noted.quota,
    };
    let mut mark = Mark::new(Before { cpus: noted.cpus, quota });
    if let Some((namespace, pod)) = names.filter(|_| !claims.is_empty()) {
        (mark.namespace, mark.pod) = (namespace.clone(), pod.clone());
    } else if let Some(marked) = marked.filter(|_| !claims.is_empty()) {
        (mark.namespace, mark.pod) = (marked.namespace.clone(), marked.pod.clone());
    }
    mark.claims = claims;
    mark
}

fn unreadable(mark: Option<&Mark>, text: Option<&str>) -> bool {
    mark.is_none() && text.is_some()
}

fn cpus(path: &str, cpus: CpuSet, reason: Reason) -> Step {
    Step::Cpus { path: path.to_owned(), cpus, reason }
}

#[cfg(test)]
mod tests;
