//! [`IsolatedPartitionGate`]: when a partition may become isolated.
//!
//! The kernel's unbound work queues must leave the partition's CPUs first, for the reason given at
//! [`IsolationInput::isolated`]. Their worker threads end only a moment after a change of the work
//! queues' mask, and until the last one has ended, Linux before 7 may hang. So the gate waits for
//! [`SETTLED`] after a change.
//!
//! [`IsolationInput::isolated`]: crate::pin::cpu_isolation::IsolationInput::isolated

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::host::cgroup::PartitionKind;
use crate::pin::{Desired, Observed};

/// How long the worker threads of work queues may take to end after a change of the mask.
const SETTLED: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct IsolatedPartitionGate {
    /// The CPUs of pods that want an isolated partition, by uid.
    wanted: BTreeMap<String, CpuSet>,
    /// The pods that wait for the work queues to leave their CPUs, by uid.
    waiting: BTreeSet<String>,
    /// The CPUs to keep free of work queues.
    kept_off: CpuSet,
    /// The CPUs allowed for work queues, and when the mask was first known to be stable.
    allowed: Option<(CpuSet, Instant)>,
}

// === impl IsolatedPartitionGate ===

impl IsolatedPartitionGate {
    /// The note of a pod whose partition can't become isolated.
    pub(super) const STAYS_ROOT: &str = "its partitions stay root instead of isolated, because Pinfold can't write \
         /sys/devices/virtual/workqueue/cpumask: Linux before 7 may hang if unbound workqueues use the CPUs of a \
         partition that becomes isolated";

    /// Takes the pods that want an isolated partition, and sets `isolation_pending` for those that
    /// must wait. In a turn about one pod, `of` is this pod, and the others stay noted.
    pub(super) fn note_wanted(&mut self, desired: &mut Desired, of: Option<&str>, now: Instant) {
        self.wanted.retain(|uid, _| of.is_some_and(|of| of != uid));
        self.waiting.retain(|uid| of.is_some_and(|of| of != uid));
        for (uid, plan) in desired.pods.iter_mut().filter(|(_, plan)| plan.isolated) {
            let cpus = plan.assignment.cpus();
            if !self.is_safe(&cpus, now) {
                plan.isolation_pending = true;
                self.waiting.insert(uid.to_string());
            }
            self.wanted.insert(uid.to_string(), cpus);
        }
    }

    /// The CPUs to keep free of work queues. `isolated` are the CPUs of all isolated partitions according to the kernel.
    ///
    /// Work queues may return to CPUs only once `isolated` lacks them, because a removed cgroup
    /// stays a partition for a moment.
    pub(super) fn keep_off(&mut self, observed: &Observed, isolated: &CpuSet) -> &CpuSet {
        let mut keep = self.kept_off.intersection(isolated);
        for cpus in self.wanted.values() {
            keep = keep.union(cpus);
        }
        for container in observed
            .containers()
            .filter(|container| container.record.is_some())
        {
            let cpuset = &container.cgroup.cpuset;
            if cpuset.partition.live() == Some(PartitionKind::Isolated) {
                keep = keep.union(&cpuset.exclusive);
            }
        }
        self.kept_off = keep;
        &self.kept_off
    }

    pub(super) fn any(&self) -> bool {
        !self.kept_off.is_empty()
    }

    /// Takes the CPUs allowed for work queues, if read, and whether the turn has changed the mask. After a change, worker threads
    /// begin and end, so the waiting time starts anew.
    pub(super) fn note_allowed(&mut self, allowed: Option<(&CpuSet, bool)>, now: Instant) {
        let same = |before: &CpuSet| allowed == Some((before, false));
        let since = self.allowed.take().filter(|(before, _)| same(before));
        self.allowed = since.or_else(|| Some((allowed?.0.clone(), now)));
    }

    /// Compares the present mask with the noted one. If they differ, nobody knows since when, so
    /// the gate forgets the noted one.
    pub(super) fn check(&mut self, allowed: Option<&CpuSet>) {
        self.allowed.take_if(|(last, _)| Some(&*last) != allowed);
    }

    /// When a turn about all pods is due because the waiting time of a pod has ended. A pod whose
    /// CPUs the work queues do not leave gets no such time and waits for the timer, because turns
    /// would otherwise follow each other without a pause.
    pub(super) fn due(&self) -> Option<Instant> {
        let (allowed, since) = self.allowed.as_ref()?;
        let mut waiting = self.waiting.iter().filter_map(|uid| self.wanted.get(uid));
        waiting
            .any(|cpus| cpus.is_disjoint(allowed))
            .then_some(*since + SETTLED)
    }

    /// Whether the isolated partition that a pod wants is impossible, because work queues stay on
    /// its CPUs, or because the mask is unknown.
    pub(super) fn stays_root(&self, uid: &str) -> bool {
        let stays = |allowed: &CpuSet| {
            self.wanted
                .get(uid)
                .is_some_and(|cpus| !cpus.is_disjoint(allowed))
        };
        self.wanted.contains_key(uid)
            && self
                .allowed
                .as_ref()
                .is_none_or(|(allowed, _)| stays(allowed))
    }

    fn is_safe(&self, cpus: &CpuSet, now: Instant) -> bool {
        self.allowed.as_ref().is_some_and(|(allowed, since)| {
            cpus.is_disjoint(allowed) && now.saturating_duration_since(*since) >= SETTLED
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn wishes(claims: &[(&str, &str)]) -> Desired {
        let mut desired = Desired::default();
        for (uid, cpus) in claims {
            let plan = desired.pod_mut(uid);
            plan.assignment
                .containers
                .insert("main".to_owned(), set(cpus));
            plan.isolated = true;
        }
        desired
    }

    fn waits(isolation: &mut IsolatedPartitionGate, claims: &[(&str, &str)], now: Instant) -> bool {
        let mut desired = wishes(claims);
        isolation.note_wanted(&mut desired, None, now);
        desired.pods.values().any(|plan| plan.isolation_pending)
    }

    #[test]
    fn work_queues_leave_first() {
        let (mut isolation, start) = (IsolatedPartitionGate::default(), Instant::now());
        assert!(waits(&mut isolation, &[("a", "2-3")], start));
        assert_eq!(
            (isolation.due(), isolation.stays_root("a")),
            (None, true),
            "nothing is known"
        );
        assert_eq!(
            isolation.keep_off(&Observed::default(), &CpuSet::new()),
            &set("2-3")
        );
        isolation.note_allowed(Some((&set("0-7"), false)), start);
        assert_eq!(
            (isolation.due(), isolation.stays_root("a")),
            (None, true),
            "they stay"
        );
        isolation.note_allowed(Some((&set("0-1,4-7"), true)), start);
        let left = start + SETTLED;
        assert_eq!(
            (isolation.due(), isolation.stays_root("a")),
            (Some(left), false)
        );
        assert!(waits(&mut isolation, &[("a", "2-3")], start + SETTLED / 2));
        isolation.note_allowed(Some((&set("0-1,4-7"), false)), start + SETTLED / 2);
        assert!(!waits(&mut isolation, &[("a", "2-3")], left));
        assert_eq!(isolation.due(), None);
        // Another program lets the work queues back, and Pinfold moves them off again. The waiting
        // time starts anew.
        isolation.check(Some(&set("0-1,4-7")));
        assert!(!waits(&mut isolation, &[("a", "2-3")], left));
        isolation.check(Some(&set("0-7")));
        assert!(waits(&mut isolation, &[("a", "2-3")], left));
        isolation.note_allowed(Some((&set("0-1,4-7"), true)), left);
        assert_eq!(isolation.due(), Some(left + SETTLED));
        let left = left + SETTLED;
        assert!(!waits(&mut isolation, &[("a", "2-3")], left));
        // A turn about one pod forgets no other pod. A change of the mask for more CPUs restarts the waiting time.
        let mut more = wishes(&[("b", "4")]);
        isolation.note_wanted(&mut more, Some("b"), left);
        assert_eq!(
            isolation.keep_off(&Observed::default(), &CpuSet::new()),
            &set("2-4")
        );
        isolation.note_allowed(Some((&set("0-1,5-7"), true)), left);
        assert!(
            waits(&mut isolation, &[("a", "2-3")], left),
            "threads end again"
        );
    }

    #[test]
    fn a_pod_whose_cpus_the_work_queues_keep_waits_for_the_timer() {
        let (mut isolation, start) = (IsolatedPartitionGate::default(), Instant::now());
        isolation.note_allowed(Some((&set("0-1,4-7"), false)), start);
        let left = start + SETTLED;
        // The pod `a` is ready, and the work queues stay on the CPUs of `b`.
        let pods = [("a", "2-3"), ("b", "4")];
        assert!(waits(&mut isolation, &pods, left));
        assert!(isolation.stays_root("b") && !isolation.stays_root("a"));
        assert_eq!(isolation.due(), None);
    }

    #[test]
    fn they_come_back_when_the_kernel_is_done() {
        let (mut isolation, start) = (IsolatedPartitionGate::default(), Instant::now());
        waits(&mut isolation, &[("a", "2-3")], start);
        isolation.keep_off(&Observed::default(), &CpuSet::new());
        waits(&mut isolation, &[], start);
        assert_eq!(
            isolation.keep_off(&Observed::default(), &set("2-3,7")),
            &set("2-3")
        );
        assert!(isolation.any());
        assert_eq!(
            isolation.keep_off(&Observed::default(), &set("7")),
            &CpuSet::new()
        );
        assert!(!isolation.any());
    }
}
