//! Reading the node: the mirror follows the cgroups, and the ledger follows the mirror.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::World;
use crate::agent::kernel::Kernel;
use crate::agent::mirror::Reading;
use crate::cpu::CpuSet;
use crate::pin::{AppliedStep, Ledger};

/// How long a start waits for missing CPUs. All other requests wait meanwhile, too.
const RETURN_WAIT: Duration = Duration::from_millis(100);

// === impl World ===

impl World {
    /// Reads the ledger from the mirror, with the missing CPUs as known, and ends the pending
    /// assignments that are recorded by now.
    pub(in crate::agent) fn renew_ledger(&mut self, missing: CpuSet) {
        let observed = self.mirror.observed();
        self.ledger = Ledger::read(observed, missing);
        self.pending.end_recorded(observed);
        self.pending.enter(&mut self.ledger);
    }

    /// Reads a new pod, before the first CreateContainer of the pod.
    pub fn read_new_pod(&mut self, uid: &str, kernel: &impl Kernel) {
        if self.mirror.is_complete() && self.mirror.pod(uid).is_none() {
            // A request about the pod reads it again, and reports the error.
            let _ = self.mirror.read_pod(uid, kernel, &self.pods);
        }
    }

    /// Reads the dirty pods and what is around them. When nothing is left to read, the mirror and the ledger show the node.
    pub(in crate::agent) fn read_dirty(
        &mut self,
        kernel: &impl Kernel,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Reading> {
        let mut reading = self.mirror.read(kernel, &self.pods, is_urgent)?;
        if reading == Reading::Complete {
            // The sets above are read after the pods, so that the CPUs of a partition that ends
            // meanwhile count as offered.
            self.mirror.read_surroundings(kernel)?;
            reading = self.mirror.read_effective(kernel, is_urgent)?;
            if self.pods.note_records(self.mirror.observed()) {
                self.mirror.match_all_again(&self.pods);
            }
        }
        self.read_missing_cpus(kernel)?;
        if reading == Reading::Complete && self.mirror.take_swept() {
            self.metrics.set_swept();
        }
        Ok(reading)
    }

    /// Reads a single pod. Returns false if the pod has no cgroup.
    pub(in crate::agent) fn read_pod(
        &mut self,
        uid: &str,
        kernel: &impl Kernel,
    ) -> anyhow::Result<bool> {
        let live = self.mirror.observed().live();
        let is_there = self.mirror.read_pod(uid, kernel, &self.pods)?;
        if self.mirror.observed().live() != live {
            // The CPUs of an ended partition are on offer again.
            self.mirror.read_above(kernel)?;
        }
        self.read_missing_cpus(kernel)?;
        Ok(is_there)
    }

    /// Reads the missing CPUs, and the ledger anew. Each turn does so before its first step, because no partition may be made
    /// once a CPU is lost.
    fn read_missing_cpus(&mut self, kernel: &impl Kernel) -> anyhow::Result<()> {
        let missing = kernel.missing_cpus(&self.live_now(kernel))?;
        let (online, now) = (kernel.online(), Instant::now());
        self.must_decide |= self.lost_cpus.note((&missing, &online), now);
        self.renew_ledger(missing.all);
        Ok(())
    }

    /// The CPUs of the known partitions that are still live. Those of changed pods are read again, because the CPUs of a partition
    /// that has ended meanwhile may be lost.
    fn live_now(&self, kernel: &impl Kernel) -> CpuSet {
        let mut live = CpuSet::new();
        for (pod, is_clean) in self.mirror.pods() {
            let cgroups = pod.containers.iter().map(|container| &container.cgroup);
            for cgroup in cgroups.filter(|cgroup| cgroup.cpuset.partition.is_live()) {
                let read = (!is_clean).then(|| kernel.cpuset(&cgroup.path).unwrap_or_default());
                let cpuset = read.as_ref().unwrap_or(&cgroup.cpuset);
                if cpuset.partition.is_live() {
                    live = live.union(&cpuset.effective);
                }
            }
        }
        live
    }

    /// If missing CPUs may return, waits a moment for them: an ended partition's CPUs come back a little after the removal of its
    /// cgroup. Returns whether all have returned.
    pub(in crate::agent) fn await_missing_cpus(
        &mut self,
        kernel: &impl Kernel,
    ) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let mut awaited = false;
        while self.lost_cpus.may_return() && begun.elapsed() < RETURN_WAIT && kernel.pause() {
            self.read_missing_cpus(kernel)?;
            awaited = true;
        }
        Ok(awaited && self.lost_cpus.obstacle().is_none())
    }

    /// Reads the CPUs of the cgroups above the pods, and the ledger anew if they have changed, because it has what they offer.
    pub(in crate::agent) fn read_above(&mut self, kernel: &impl Kernel) -> anyhow::Result<()> {
        if self.mirror.read_above(kernel)? {
            self.renew_ledger(self.ledger.missing.clone());
        }
        Ok(())
    }

    /// Reads the pods again whose records the steps have written, so that the ledger has their
    /// assignments.
    pub(in crate::agent) fn read_recorded(
        &mut self,
        applied: &[AppliedStep],
        kernel: &impl Kernel,
    ) -> anyhow::Result<()> {
        self.mirror.read_recorded(applied, kernel, &self.pods)?;
        self.renew_ledger(self.ledger.missing.clone());
        Ok(())
    }

    /// Notes the earlier sets of cgroups that lost CPUs because these went offline, which only
    /// cgroup v1 needs. Returns the errors.
    pub(in crate::agent) fn note_offline_cpus(
        &mut self,
        kernel: &impl Kernel,
    ) -> anyhow::Result<Vec<String>> {
        if !self.mirror.observed().surroundings.sets_are_nested {
            return Ok(Vec::new());
        }
        let online = kernel.cpuset("")?.effective;
        let notes = self.seen_sets.notes(self.mirror.observed_mut(), &online);
        if notes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = kernel.apply(notes, &mut |_| true);
        Ok(self.account_notes(&applied))
    }

    /// Whether the pod's cgroup of an owner was removed since the last read.
    pub(in crate::agent) fn has_ended_owner(&self, kernel: &impl Kernel) -> bool {
        let mut owners = self.mirror.observed().pods.iter().map(|pod| &pod.cgroup);
        owners
            .any(|pod| self.ledger.assignments.contains_key(&pod.uid) && !kernel.exists(&pod.path))
    }

    /// Forgets owners whose pod cgroups were removed. Returns whether their CPUs can be assigned.
    pub(in crate::agent) fn forget_ended_owners(&mut self, kernel: &impl Kernel) -> bool {
        let assignments = &self.ledger.assignments;
        let mut freed = CpuSet::new();
        let pods = self.mirror.observed().pods.iter().map(|pod| &pod.cgroup);
        let owners = pods.filter_map(|pod| Some((pod, assignments.get(&pod.uid)?)));
        let mut gone = HashSet::new();
        for (pod, assignment) in owners.filter(|(pod, _)| !kernel.exists(&pod.path)) {
            freed = freed.union(&assignment.cpus());
            gone.insert(pod.path.clone());
        }
        if gone.is_empty() {
            return false;
        }
        self.mirror.forget(|pod| gone.contains(&pod.cgroup.path));
        // The CPUs of an ended partition are on offer again.
        if self.mirror.read_above(kernel).is_err() {
            self.mirror.sweep(Instant::now());
        }
        let missing = kernel.missing_cpus(&self.live_now(kernel));
        let is_free = missing.is_ok_and(|missing| missing.all.is_empty());
        self.renew_ledger(self.ledger.missing.clone());
        if !is_free {
            // The kernel has lost the CPUs, or returns them later. The next turn of all pods reads
            // them again.
            self.ledger.excluded = self.ledger.excluded.union(&freed);
        }
        is_free
    }
}
