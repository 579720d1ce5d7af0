//! [`CachedState`]: the last observed state, for pod passes; and the rules for yielding a node pass.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::pass_model::PassNode;
use crate::cpu::CpuSet;
use crate::host::cgroup::{ContainerCgroup, PodCgroup, is_within};
use crate::pin::{
    AppliedStep, AssignmentRecord, Enforcement, Ledger, Observed, ObservedContainer, ObservedPod,
    PodAssignment, Reason, Scan, Step, StepOutcome,
};
use crate::pod::{ContainerKind, Pod, RecognizedPod};

/// The last observed state, and the ledger of all assignments.
#[derive(Debug, Clone)]
pub(super) struct CachedState {
    pub(super) observed: Observed,
    pub(super) ledger: Ledger,
    /// Pods whose state after a step is not completely known here. A stale pod is read again before its next plan.
    pub(super) stale: BTreeSet<String>,
}

/// The cgroups written to by a plan's steps.
pub(super) struct WrittenCgroups<'a> {
    /// The written cgroups, and all cgroups above.
    within: HashSet<&'a str>,
    /// The written cgroups whose children may have changed.
    handed_down: HashSet<&'a str>,
}

/// A cgroup and all cgroups above.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(path.rsplit_once('/')?.0))
}

/// Whether a pass may yield after the step. After any other step, for example on a partition, the pass runs to its end: only a
/// complete pass notes when an owner's CPUs came into force.
pub(super) fn permits_yield(step: &Step) -> bool {
    matches!(
        step,
        Step::Record { .. }
            | Step::Cpus {
                reason: Reason::Pod | Reason::Narrow | Reason::Share | Reason::Return,
                ..
            }
    )
}

// === impl CachedState ===

impl CachedState {
    pub(super) fn new(observed: Observed, ledger: Ledger) -> Self {
        Self {
            observed,
            ledger,
            stale: BTreeSet::new(),
        }
    }

    fn pod(&self, uid: &str) -> Option<&ObservedPod> {
        self.observed.pod(uid)
    }

    pub(super) fn has_pod(&self, uid: &str) -> bool {
        self.pod(uid).is_some()
    }

    /// The assignment in a pod's record.
    pub(super) fn recorded(&self, uid: &str) -> Option<&PodAssignment> {
        Some(&self.pod(uid)?.record.as_ref()?.assignment)
    }

    /// Whether cgroups of the pod may have partitions that the answer to a CreateContainer request must leave alone. Only
    /// the kernel knows which of them still exist.
    pub(super) fn has_partitions_in_the_way(&self, pod: &Pod, container: &str) -> bool {
        let is_init = pod
            .container(container)
            .is_some_and(|container| container.kind == ContainerKind::Init);
        let cgroups = pod.cgroup_uid().and_then(|uid| self.pod(uid));
        is_init || cgroups.is_some_and(|pod| !pod.partitions_of_others(container).is_empty())
    }

    /// Whether the kernel still has the pod's record as cached. A recreated cgroup has a different record, or none. With
    /// enforcement `cpuset`, the pod's CPUs must be unchanged, too, because the record keeps the earlier CPUs.
    pub(super) fn is_current(
        &self,
        uid: &str,
        enforcement: Enforcement,
        node: &impl PassNode,
    ) -> bool {
        let Some(ObservedPod { cgroup, .. }) = self.pod(uid) else {
            return false;
        };
        let same_cpus = || {
            let cpuset = node.cpuset(&cgroup.path);
            cpuset.is_ok_and(|cpuset| cpuset.cpus == cgroup.cpuset.cpus)
        };
        let text = node.record_text(&cgroup.path);
        text.is_ok_and(|text| text == cgroup.record_text)
            && (enforcement != Enforcement::Cpuset || same_cpus())
    }

    /// Reads a pod. A pod outside the cached state is searched in the pods' trees. Returns false if the pod can't be read
    /// or explained.
    pub(super) fn read_pod(
        &mut self,
        uid: &str,
        pods: &[Arc<RecognizedPod>],
        node: &impl PassNode,
    ) -> bool {
        let at = self
            .observed
            .pods
            .iter()
            .position(|pod| pod.cgroup.uid == uid);
        let cgroup = match at.and_then(|at| self.observed.pods.get(at)) {
            Some(pod) => node.pod(pod.cgroup.path.clone(), uid.to_owned()),
            None => node.find_pod(uid),
        };
        let Ok(Some(cgroup)) = cgroup else {
            return false;
        };
        let scan = Scan {
            pods: vec![cgroup],
            ..Scan::default()
        };
        let (mut now, ledger) = Observed::new(scan, pods);
        let explained = self.ledger.replace_pod(uid, ledger);
        let Some(now) = now.pods.pop().filter(|_| explained) else {
            return false;
        };
        match at.and_then(|at| self.observed.pods.get_mut(at)) {
            Some(pod) => *pod = now,
            None => self.observed.pods.push(now),
        }
        self.stale.remove(uid);
        true
    }

    /// Whether no container of another pod runs on the pod's CPUs.
    pub(super) fn is_alone(&self, uid: &str) -> bool {
        let wanted = self.ledger.of(uid).cpus();
        let others = self
            .observed
            .pods
            .iter()
            .filter(|pod| pod.cgroup.uid != uid);
        let on = |container: &ObservedContainer| {
            container.cgroup.populated && !container.cgroup.cpuset.effective.is_disjoint(&wanted)
        };
        !others.flat_map(|pod| &pod.containers).any(on)
    }

    /// Whether the pod's cgroup of an owner was removed since the last read.
    pub(super) fn has_ended_owner(&self, node: &impl PassNode) -> bool {
        let mut owners = self.observed.pods.iter().map(|pod| &pod.cgroup);
        owners.any(|pod| self.ledger.assignments.contains_key(&pod.uid) && !node.exists(&pod.path))
    }

    /// Forgets owners whose pod cgroups were removed. Returns whether the owners' CPUs can be assigned.
    pub(super) fn forget_ended_owners(&mut self, node: &impl PassNode) -> bool {
        let Self {
            observed, ledger, ..
        } = self;
        let mut freed = CpuSet::new();
        observed.pods.retain(|pod| {
            let uid = &pod.cgroup.uid;
            let Some(assignment) = ledger.assignments.get(uid) else {
                return true;
            };
            if node.exists(&pod.cgroup.path) {
                return true;
            }
            freed = freed.union(&assignment.cpus());
            ledger.assignments.remove(uid);
            ledger.memory.remove(uid);
            false
        });
        if freed.is_empty() {
            return false;
        }
        let lost = node.lost_cpus(&mut observed.pods.iter().map(|pod| &pod.cgroup));
        let is_free = lost.is_ok_and(|lost| lost.is_empty());
        if !is_free {
            // The kernel has lost the CPUs, or returns the CPUs later. The next node pass reads the CPUs again.
            ledger.excluded = ledger.excluded.union(&freed);
        }
        is_free
    }

    /// Takes the values read back after each step. A pod becomes stale if its cached state is not complete after a step.
    pub(super) fn note_written(&mut self, applied: &[AppliedStep]) {
        let pod_paths = self.observed.pods.iter().map(|pod| &*pod.cgroup.path);
        let index_by_path: HashMap<&str, usize> = pod_paths.zip(0..).collect();
        let pod_of = |done: &AppliedStep| {
            let mut paths = upwards(done.step.path());
            paths.find_map(|path| index_by_path.get(path).copied())
        };
        let written: Vec<Option<usize>> = applied.iter().map(pod_of).collect();
        for (done, index) in applied.iter().zip(written) {
            let pods = &mut self.observed.pods;
            if let Some(pod) = index.and_then(|index| pods.get_mut(index)) {
                if !note_step(pod, done, &mut self.ledger) {
                    self.stale.insert(pod.cgroup.uid.clone());
                }
            } else if changes_cgroups_below(&done.step) {
                let below = |pod: &&PodCgroup| is_within(&pod.path, done.step.path());
                let pods_below = pods.iter().map(|pod| &pod.cgroup).filter(below);
                self.stale.extend(pods_below.map(|pod| pod.uid.clone()));
            }
        }
    }

    /// Takes the results of a plan for CreateContainer, which writes only the pod's record. The pod does not become stale:
    /// the caller compares the record with the wanted record.
    pub(super) fn note_written_pod(&mut self, uid: &str, applied: &[AppliedStep]) {
        let mut pods = self.observed.pods.iter_mut();
        if let Some(pod) = pods.find(|pod| pod.cgroup.uid == uid) {
            for done in applied {
                note_step(pod, done, &mut self.ledger);
            }
        }
    }

    /// Reads each pod again whose assignment the applied steps may have changed. Returns false if an existing pod can't be read
    /// or explained.
    pub(super) fn read_written_owners(
        &mut self,
        applied: &[AppliedStep],
        pods: &[Arc<RecognizedPod>],
        node: &impl PassNode,
    ) -> bool {
        let records = || {
            let steps = applied.iter().map(|done| &done.step);
            steps.filter(|step| matches!(step, Step::Record { .. }))
        };
        let assigns = |step: &&Step| matches!(step, Step::Record { record: Some(record), .. } if !record.assignment.is_empty());
        let new: Vec<&Step> = records().filter(assigns).collect();
        let is_written = |pod: &&ObservedPod| {
            let PodCgroup { path, uid, .. } = &pod.cgroup;
            let is_in_pod = |step: &Step| is_within(step.path(), path);
            let owns = self.ledger.assignments.contains_key(uid);
            new.iter().any(|step| is_in_pod(step)) || owns && records().any(is_in_pod)
        };
        let owners = self.observed.pods.iter().filter(is_written);
        let owners: Vec<(String, String)> = owners
            .map(|pod| (pod.cgroup.uid.clone(), pod.cgroup.path.clone()))
            .collect();
        owners
            .iter()
            .all(|(uid, path)| self.read_pod(uid, pods, node) || !node.exists(path))
    }
}

/// Whether a step on a cgroup may change the cgroups below. An `Exclusive` step permits a partition further down, and takes no
/// CPUs from any child.
fn changes_cgroups_below(step: &Step) -> bool {
    !matches!(step, Step::Exclusive { .. })
}

/// Takes the result of a step on a pod's cgroup or on a container's. Returns whether the cached state of the pod is complete
/// afterwards.
fn note_step(pod: &mut ObservedPod, done: &AppliedStep, ledger: &mut Ledger) -> bool {
    if done.step.path() == pod.cgroup.path {
        note_pod_step(pod, done, ledger);
        return false;
    }
    let has_assignment = ledger.assignments.contains_key(&pod.cgroup.uid);
    let mut containers = copies_of_containers(pod);
    let Some((cgroup, container)) = containers.find(|(cgroup, _)| cgroup.path == done.step.path())
    else {
        return false;
    };
    match (&done.step, &done.outcome) {
        (Step::Cpus { cpus, .. }, StepOutcome::Done) => {
            for cpuset in [&mut cgroup.cpuset, &mut container.cgroup.cpuset] {
                cpuset.cpus.clone_from(cpus);
                // With cgroup v2, the effective CPUs may be fewer. The cached set is then too large, which is safe.
                cpuset.effective.clone_from(cpus);
            }
        }
        (Step::Cpus { .. }, StepOutcome::NotInForce { effective }) => {
            for cpuset in [&mut cgroup.cpuset, &mut container.cgroup.cpuset] {
                cpuset.effective.clone_from(effective);
            }
            return false;
        }
        (Step::Record { record, .. }, StepOutcome::Done) => {
            let text = record.as_ref().map(AssignmentRecord::text);
            container.cgroup.record_text.clone_from(&text);
            cgroup.record_text = text;
            container.record.clone_from(record);
        }
        _ => return false,
    }
    // A step in a pod with assigned CPUs may change the ledger, so the pod is read again.
    let assigns = |record: &AssignmentRecord| !record.assignment.is_empty();
    !has_assignment && !container.record.as_ref().is_some_and(assigns)
}

/// The two copies of each container's cgroup in an observed pod.
fn copies_of_containers(
    pod: &mut ObservedPod,
) -> impl Iterator<Item = (&mut ContainerCgroup, &mut ObservedContainer)> {
    pod.cgroup.containers.iter_mut().zip(&mut pod.containers)
}

fn note_pod_step(pod: &mut ObservedPod, done: &AppliedStep, ledger: &mut Ledger) {
    let effective = match (&done.step, &done.outcome) {
        (Step::Cpus { cpus, .. }, StepOutcome::Done) => cpus,
        (Step::Cpus { .. }, StepOutcome::NotInForce { effective }) => effective,
        (
            Step::Record {
                record: Some(record),
                ..
            },
            StepOutcome::Done,
        ) => {
            pod.cgroup.record_text = Some(record.text());
            pod.record = Some(record.clone());
            if !record.assignment.is_empty() {
                let (uid, assignment) = (pod.cgroup.uid.clone(), record.assignment.clone());
                ledger.assignments.insert(uid, assignment);
            }
            return;
        }
        _ => return,
    };
    for (cgroup, container) in copies_of_containers(pod) {
        if cgroup.cpuset.cpus.is_empty() {
            // With cgroup v2, a container without a set of its own runs on the pod's CPUs.
            let all = cgroup.cpuset.effective.union(effective);
            container.cgroup.cpuset.effective.clone_from(&all);
            cgroup.cpuset.effective = all;
        }
    }
}

// === impl WrittenCgroups ===

impl<'a> WrittenCgroups<'a> {
    pub(super) fn new(steps: impl Iterator<Item = &'a Step> + Clone) -> Self {
        let handed_down = steps.clone().filter(|step| changes_cgroups_below(step));
        let handed_down = handed_down.map(Step::path).collect();
        let mut within = HashSet::new();
        for step in steps {
            // A known path means that all paths above are known, too.
            let _ = upwards(step.path()).all(|path| within.insert(path));
        }
        Self {
            within,
            handed_down,
        }
    }

    /// Whether the pod may have changed: a step wrote to the pod's cgroup, to a cgroup below, or to a cgroup above. `Exclusive`
    /// steps above the pod do not count.
    pub(super) fn touches(&self, pod: &str) -> bool {
        let mut above = upwards(pod).skip(1);
        self.within.contains(pod) || above.any(|path| self.handed_down.contains(path))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::pin::EarlierSettings;

    #[test]
    fn written_pods_and_pods_below_written_cgroups_are_touched() {
        let cpus = |path: &str| Step::Cpus {
            path: path.to_owned(),
            cpus: CpuSet::new(),
            reason: Reason::Share,
        };
        let room = |path: &str| Step::Exclusive {
            path: path.to_owned(),
            cpus: CpuSet::new(),
            in_force: None,
        };
        let steps = [
            cpus("kubepods/pod1-a"),
            cpus("kubepods/pod1/c"),
            cpus("kubepods/burstable"),
            room("kubepods"),
        ];
        let written = WrittenCgroups::new(steps.iter());
        for touched in [
            "kubepods/pod1",
            "kubepods/pod1-a",
            "kubepods/burstable/pod2",
        ] {
            assert!(written.touches(touched), "{touched}");
        }
        for other in [
            "kubepods/pod",
            "kubepods/pod2",
            "kubepods/besteffort/pod3",
            "kubepods/pod10",
        ] {
            assert!(!written.touches(other), "{other}");
        }
        let steps = [room("kubepods/pod1"), room("kubepods")];
        assert!(WrittenCgroups::new(steps.iter()).touches("kubepods/pod1"));
    }

    /// A cached state of the pods `a` and `b`, each with one container.
    fn two_pods() -> CachedState {
        let pod = |uid: &str| PodCgroup {
            path: format!("kubepods/pod{uid}"),
            uid: uid.to_owned(),
            containers: vec![ContainerCgroup {
                path: format!("kubepods/pod{uid}/c"),
                ..ContainerCgroup::default()
            }],
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![pod("a"), pod("b")],
            ..Scan::default()
        };
        let (observed, ledger) = Observed::new(scan, &[]);
        CachedState::new(observed, ledger)
    }

    #[test]
    fn a_pod_becomes_stale_if_its_state_after_a_step_is_not_known() {
        let cpus: CpuSet = "2-3".parse().unwrap();
        let effective: CpuSet = "2".parse().unwrap();
        let none = CpuSet::new();
        let cpus_step = |path: &str| Step::Cpus {
            path: path.to_owned(),
            cpus: cpus.clone(),
            reason: Reason::Share,
        };
        let not_in_force = || StepOutcome::NotInForce {
            effective: effective.clone(),
        };
        let room = Step::Exclusive {
            path: "kubepods".to_owned(),
            cpus: cpus.clone(),
            in_force: None,
        };
        let remove = Step::Remove {
            path: "kubepods/poda/c".to_owned(),
        };
        use StepOutcome::{Done, Gone};
        for (step, outcome, stale, in_force) in [
            (cpus_step("kubepods/poda/c"), Done, vec![], &cpus),
            (
                cpus_step("kubepods/poda/c"),
                not_in_force(),
                vec!["a"],
                &effective,
            ),
            (cpus_step("kubepods/poda/c"), Gone, vec!["a"], &none),
            (cpus_step("kubepods/poda"), Done, vec!["a"], &cpus),
            (cpus_step("kubepods"), Done, vec!["a", "b"], &none),
            (cpus_step("kubepods/poda/new"), Done, vec!["a"], &none),
            (room, Done, vec![], &none),
            (remove, Done, vec!["a"], &none),
        ] {
            let written = matches!(outcome, Done) && step.path() == "kubepods/poda/c";
            let mut cached = two_pods();
            let applied = [AppliedStep { step, outcome }];
            cached.note_written(&applied);
            assert_eq!(
                cached.stale.iter().collect::<Vec<_>>(),
                stale,
                "{applied:?}"
            );
            let pod = cached.observed.pods.first().unwrap();
            let container = &pod.containers.first().unwrap().cgroup;
            assert_eq!(
                pod.cgroup.containers.first().unwrap(),
                container,
                "{applied:?}"
            );
            assert_eq!(&container.cpuset.effective, in_force, "{applied:?}");
            let own = if written { in_force } else { &none };
            assert_eq!(&container.cpuset.cpus, own, "{applied:?}");
        }
    }

    #[test]
    fn a_pod_with_assigned_cpus_becomes_stale_after_each_step() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let step = |record: &AssignmentRecord| AppliedStep {
            step: Step::Record {
                path: "kubepods/poda/c".to_owned(),
                record: Some(record.clone()),
            },
            outcome: StepOutcome::Done,
        };
        let mut cached = two_pods();
        cached.note_written(&[step(&record)]);
        assert!(cached.stale.is_empty());
        let pod = cached.observed.pods.first().unwrap();
        assert_eq!(
            pod.containers.first().unwrap().record.as_ref(),
            Some(&record)
        );
        let text = pod.cgroup.containers.first().unwrap().record_text.clone();
        assert_eq!(text, Some(record.text()));

        let mut owner = two_pods();
        let assignment = PodAssignment::default();
        owner.ledger.assignments.insert("a".to_owned(), assignment);
        owner.note_written(&[step(&record)]);
        assert!(owner.stale.contains("a"));

        let cpus = "2-3".parse().unwrap();
        record.assignment.containers.insert("main".to_owned(), cpus);
        cached.note_written(&[step(&record)]);
        assert!(cached.stale.contains("a"));
    }

    #[test]
    fn a_record_keeps_the_cpus_that_a_step_on_the_pod_has_added() {
        let cpus: CpuSet = "2-3".parse().unwrap();
        let widen = Step::Cpus {
            path: "kubepods/poda".to_owned(),
            cpus: cpus.clone(),
            reason: Reason::Pod,
        };
        let record = Step::Record {
            path: "kubepods/poda/c".to_owned(),
            record: None,
        };
        let applied = [widen, record].map(|step| AppliedStep {
            step,
            outcome: StepOutcome::Done,
        });
        let mut cached = two_pods();
        cached.note_written(&applied);
        let pod = cached.observed.pods.first().unwrap();
        let container = pod.containers.first().unwrap();
        assert_eq!(container.cgroup.cpuset.effective, cpus);
    }

    #[test]
    fn a_pass_yields_only_after_records_and_sets_of_pods_and_of_narrowed_or_shared_containers() {
        let path = || "kubepods/pod1/c".to_owned();
        let cpus = |reason| Step::Cpus {
            path: path(),
            cpus: CpuSet::new(),
            reason,
        };
        for (step, expected) in [
            (cpus(Reason::Pod), true),
            (cpus(Reason::Narrow), true),
            (cpus(Reason::Share), true),
            (cpus(Reason::Own), false),
            (cpus(Reason::Separate), false),
            (cpus(Reason::Release), false),
            (
                Step::Record {
                    path: path(),
                    record: None,
                },
                true,
            ),
            (Step::Remove { path: path() }, false),
            (
                Step::Exclusive {
                    path: path(),
                    cpus: CpuSet::new(),
                    in_force: None,
                },
                false,
            ),
        ] {
            assert_eq!(permits_yield(&step), expected, "{step:?}");
        }
    }
}
