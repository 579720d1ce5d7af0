//! [`Mirror`]: the pods' cgroups as last read, each once.
//!
//! A pod is *dirty* when it must be read again, because its folder has changed or Pinfold has
//! written there. The timer makes all pods dirty, which begins a *sweep*. Written values change
//! only where somebody writes, and inotify reports that. Effective CPUs are different: a write to a
//! partition, or to a cgroup above, silently changes those of other cgroups. So after such a step
//! the mirror reads the effective CPUs of all pods again.
//!
//! Where only CPUs were written, only the CPUs and the records are read again, which needs a third
//! of the calls. It matters because with 250 pods on cgroup v1, a new owner takes CPUs from all of
//! them, and a StartContainer that comes at once waits until they are read.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::changes::{CgroupChange, CgroupChanges};
use super::kernel::Kernel;
use super::pod_store::PodStore;
use crate::host::cgroup::{PodCgroup, PodSurroundings, is_below, is_within};
use crate::pin::{AppliedStep, AssignmentRecord, Observed, ObservedPod, Step};
use crate::pod::RecognizedPod;

/// How a reading of the dirty pods ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Complete,
    /// Dirty pods are left, because an urgent event waits.
    Interrupted,
}

/// What is to be read again of a pod, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Dirt {
    since: Instant,
    change: CgroupChange,
}

/// What the mirror keeps about a pod besides its cgroups.
#[derive(Debug, Default)]
struct MirrorEntry {
    dirty: Option<Dirt>,
    /// When the pod was read; `None` if it was never read.
    read: Option<Instant>,
    /// When at least its CPUs and records were read.
    cpus_read: Option<Instant>,
    /// The description with which the cgroups were matched.
    described: Option<Arc<RecognizedPod>>,
}

/// The pods' cgroups as last read.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    observed: Observed,
    /// An entry for each pod in `observed`.
    entries: Vec<MirrorEntry>,
    /// Whether the list of pods is up to date.
    is_listed: bool,
    /// Whether all pods were read at least once.
    is_complete: bool,
    /// Whether a sweep has begun and not yet ended.
    is_sweeping: bool,
    /// Whether a sweep has ended since the last [`Mirror::take_swept`].
    has_swept: bool,
    /// Whether a step may have changed effective CPUs anywhere.
    is_effective_stale: bool,
    /// Whether something that was read differs from what was there before, since the last [`Mirror::take_changed`].
    has_changed: bool,
}

// === impl MirrorEntry ===

impl MirrorEntry {
    fn note(&mut self, change: CgroupChange, now: Instant) {
        let dirt = self.dirty.get_or_insert(Dirt { since: now, change });
        dirt.change = dirt.change.max(change);
    }

    /// When the pod was last read, at least as far as `change` goes.
    fn last_read(&self, change: CgroupChange) -> Option<Instant> {
        match change {
            CgroupChange::Cpus => self.cpus_read,
            CgroupChange::Any => self.read,
        }
    }
}

// === impl Mirror ===

impl Mirror {
    pub(super) fn observed(&self) -> &Observed {
        &self.observed
    }

    pub(super) fn observed_mut(&mut self) -> &mut Observed {
        &mut self.observed
    }

    /// Whether all pods were read at least once. Before then nothing is decided.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether something has changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether a sweep has ended since the last call: every pod was read after it began. Pods that
    /// change later do not prolong it.
    pub(super) fn take_swept(&mut self) -> bool {
        std::mem::take(&mut self.has_swept)
    }

    pub(super) fn pod(&self, uid: &str) -> Option<&ObservedPod> {
        self.observed.pod(uid)
    }

    fn index(&self, uid: &str) -> Option<usize> {
        let mut pods = self.observed.pods.iter();
        pods.position(|pod| pod.cgroup.uid == uid)
    }

    /// Each pod, and whether it is clean: no known change is newer than the reading.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&ObservedPod, bool)> {
        let entries = self.entries.iter().map(|entry| entry.dirty.is_none());
        self.observed.pods.iter().zip(entries)
    }

    pub(super) fn is_clean(&self, uid: &str) -> bool {
        let entry = self.index(uid).and_then(|index| self.entries.get(index));
        entry.is_some_and(|entry| entry.dirty.is_none())
    }

    /// Makes all pods dirty: a sweep begins.
    pub(super) fn sweep(&mut self, now: Instant) {
        (self.is_listed, self.is_sweeping) = (false, true);
        for entry in &mut self.entries {
            entry.note(CgroupChange::Any, now);
        }
    }

    /// Trusts nothing any more: the cgroups could not be read. Until a sweep is complete, nothing is decided.
    pub(super) fn distrust(&mut self, now: Instant) {
        self.is_complete = false;
        self.sweep(now);
    }

    pub(super) fn touch(&mut self, uid: &str, now: Instant) {
        let index = self.index(uid);
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.note(CgroupChange::Any, now);
        }
    }

    /// Makes the pods dirty that have changed.
    pub(super) fn note(&mut self, changes: &CgroupChanges, now: Instant) {
        if changes.all {
            return self.sweep(now);
        }
        for (path, change) in &changes.paths {
            let mut is_in_pod = false;
            for (pod, entry) in self.observed.pods.iter().zip(&mut self.entries) {
                if is_within(path, &pod.cgroup.path) {
                    is_in_pod = true;
                    entry.note(change_in_pod(pod, path, *change), now);
                }
            }
            // A change outside the known pods means that a pod may have come or gone.
            self.is_listed &= is_in_pod;
        }
    }

    /// Makes the pods dirty that were not read since `turn` began. Returns whether there are any.
    pub(super) fn mark_older(&mut self, turn: Instant) -> bool {
        self.mark_older_where(turn, |_| Some(CgroupChange::Any))
    }

    /// Makes the pods dirty to which a plan will write, unless they were read since `turn` began. Returns whether there are any.
    pub(super) fn mark_planned(&mut self, steps: &[Step], turn: Instant) -> bool {
        self.mark_older_where(turn, |pod| {
            let steps = steps.iter().filter(|step| is_within(step.path(), pod));
            steps.map(change_by_step).max()
        })
    }

    /// `change` says what must be read again of the pod with a path; `None` for nothing.
    fn mark_older_where(
        &mut self,
        turn: Instant,
        change: impl Fn(&str) -> Option<CgroupChange>,
    ) -> bool {
        let mut any = false;
        for (pod, entry) in self.observed.pods.iter().zip(&mut self.entries) {
            let is_older = |change: &CgroupChange| {
                let read = entry.last_read(*change);
                read.is_none_or(|read| read < turn)
            };
            if let Some(change) = change(&pod.cgroup.path).filter(is_older) {
                entry.note(change, turn);
                any = true;
            }
        }
        any
    }

    /// Makes the pods dirty that steps may have changed.
    pub(super) fn note_steps<'a>(&mut self, steps: impl Iterator<Item = &'a Step>, now: Instant) {
        for step in steps {
            let path = step.path();
            let changes_below = !matches!(step, Step::Exclusive { .. });
            for (pod, entry) in self.observed.pods.iter().zip(&mut self.entries) {
                let pod = &pod.cgroup.path;
                if is_within(path, pod) || changes_below && is_below(pod, path) {
                    entry.note(change_by_step(step), now);
                }
            }
            self.is_effective_stale |=
                matches!(step, Step::Partition { .. } | Step::Exclusive { .. });
        }
    }

    /// Reads the list of pods, if it may have changed, and then the dirty pods, the oldest first.
    pub(super) fn read(
        &mut self,
        kernel: &impl Kernel,
        store: &PodStore,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Reading> {
        if !self.is_listed {
            self.list(kernel)?;
        }
        let dirty = self.entries.iter().enumerate();
        let dirty = dirty.filter_map(|(index, entry)| Some((entry.dirty?, index)));
        let mut dirty: Vec<(Dirt, usize)> = dirty.collect();
        dirty.sort_unstable();
        for (dirt, index) in dirty {
            if is_urgent() {
                return Ok(Reading::Interrupted);
            }
            match dirt.change {
                CgroupChange::Cpus => self.read_cpus_at(index, kernel, store)?,
                CgroupChange::Any => self.read_at(index, kernel, store)?,
            }
        }
        self.drop_ended();
        self.match_all_again(store);
        self.has_swept |= self.is_sweeping || !self.is_complete;
        (self.is_complete, self.is_sweeping) = (true, false);
        Ok(Reading::Complete)
    }

    /// Reads which pods there are. New ones are dirty.
    fn list(&mut self, kernel: &impl Kernel) -> anyhow::Result<()> {
        let paths = kernel.pod_paths()?;
        let pods = std::mem::take(&mut self.observed.pods);
        let entries = std::mem::take(&mut self.entries);
        let before = pods.len();
        let mut known: HashMap<(String, String), (ObservedPod, MirrorEntry)> = pods
            .into_iter()
            .zip(entries)
            .map(|(pod, entry)| {
                let key = (pod.cgroup.path.clone(), pod.cgroup.uid.clone());
                (key, (pod, entry))
            })
            .collect();
        let mut stayed = 0;
        for (path, uid) in paths {
            let key = (path, uid);
            let (pod, entry) = match known.remove(&key) {
                Some(known) => {
                    stayed += 1;
                    known
                }
                None => new_entry(key.0, key.1),
            };
            self.observed.pods.push(pod);
            self.entries.push(entry);
        }
        self.has_changed |= stayed != before || stayed != self.entries.len();
        self.is_listed = true;
        Ok(())
    }

    /// Reads a pod. A pod that is gone keeps its place until [`Mirror::drop_ended`], with an empty path.
    fn read_at(
        &mut self,
        index: usize,
        kernel: &impl Kernel,
        store: &PodStore,
    ) -> anyhow::Result<()> {
        let (Some(pod), Some(entry)) = (
            self.observed.pods.get_mut(index),
            self.entries.get_mut(index),
        ) else {
            return Ok(());
        };
        let Some(now) = kernel.pod(&pod.cgroup.path, &pod.cgroup.uid)? else {
            self.has_changed = true;
            *pod = ObservedPod::default();
            *entry = MirrorEntry::default();
            return Ok(());
        };
        entry.read = Some(Instant::now());
        self.take_reading(index, now, store);
        Ok(())
    }

    /// Reads only the CPUs and the records of a pod's cgroups, or the whole pod where these are not
    /// enough.
    fn read_cpus_at(
        &mut self,
        index: usize,
        kernel: &impl Kernel,
        store: &PodStore,
    ) -> anyhow::Result<()> {
        let pod = self.observed.pods.get(index);
        match pod.and_then(|pod| with_cpus_of(pod.clone().into_cgroup(), kernel)) {
            Some(now) => self.take_reading(index, now, store),
            None => self.read_at(index, kernel, store)?,
        }
        Ok(())
    }

    fn take_reading(&mut self, index: usize, now: PodCgroup, store: &PodStore) {
        let (Some(pod), Some(entry)) = (
            self.observed.pods.get_mut(index),
            self.entries.get_mut(index),
        ) else {
            return;
        };
        (entry.dirty, entry.cpus_read) = (None, Some(Instant::now()));
        let described = store.pod(&now.uid);
        let is_matched = is_same_description(entry.described.as_ref(), described.as_ref());
        self.has_changed |= !is_matched || !is_as_read(pod, &now);
        *pod = ObservedPod::new(now, described.as_deref());
        entry.described = described;
    }

    fn drop_ended(&mut self) {
        let ended = |pod: &ObservedPod| pod.cgroup.path.is_empty();
        let mut there = self.observed.pods.iter().map(|pod| !ended(pod));
        self.entries.retain(|_| there.next().unwrap_or_default());
        self.observed.pods.retain(|pod| !ended(pod));
    }

    /// Matches those of the pods again whose description has changed.
    pub(super) fn match_again(&mut self, store: &PodStore, uids: &BTreeSet<String>) {
        let is_meant = |uid: &str| uids.contains(uid);
        self.match_where(store, is_meant);
    }

    /// Matches all pods again whose description has changed.
    pub(super) fn match_all_again(&mut self, store: &PodStore) {
        self.match_where(store, |_| true);
    }

    fn match_where(&mut self, store: &PodStore, is_meant: impl Fn(&str) -> bool) {
        for (pod, entry) in self.observed.pods.iter_mut().zip(&mut self.entries) {
            if !is_meant(&pod.cgroup.uid) {
                continue;
            }
            let described = store.pod(&pod.cgroup.uid);
            if !is_same_description(entry.described.as_ref(), described.as_ref()) {
                let cgroup = std::mem::take(pod).into_cgroup();
                *pod = ObservedPod::new(cgroup, described.as_deref());
                entry.described = described;
                self.has_changed = true;
            }
        }
    }

    /// Reads a single pod now. If the mirror does not have it, it is searched in the pods' trees.
    /// Returns false if it has no cgroup.
    pub(super) fn read_pod(
        &mut self,
        uid: &str,
        kernel: &impl Kernel,
        store: &PodStore,
    ) -> anyhow::Result<bool> {
        let index = match self.index(uid) {
            Some(index) => index,
            None => {
                let Some(path) = kernel.find_pod(uid)? else {
                    return Ok(false);
                };
                let (pod, entry) = new_entry(path, uid.to_owned());
                self.observed.pods.push(pod);
                self.entries.push(entry);
                self.has_changed = true;
                self.entries.len() - 1
            }
        };
        self.read_at(index, kernel, store)?;
        self.drop_ended();
        Ok(self.index(uid).is_some())
    }

    /// Reads the CPUs of the cgroups above the pods. Returns whether they have changed.
    pub(super) fn read_above(&mut self, kernel: &impl Kernel) -> anyhow::Result<bool> {
        let mut now = self.observed.surroundings.clone();
        for above in &mut now.above {
            above.cpuset = kernel.cpuset(&above.path)?;
        }
        Ok(self.take_surroundings(now))
    }

    /// Reads the cgroups above and around the pods.
    pub(super) fn read_surroundings(&mut self, kernel: &impl Kernel) -> anyhow::Result<()> {
        self.take_surroundings(kernel.surroundings()?);
        Ok(())
    }

    /// A change above the pods may have changed the effective CPUs below. Returns whether there is one.
    fn take_surroundings(&mut self, now: PodSurroundings) -> bool {
        let is_changed = self.observed.surroundings != now;
        self.has_changed |= is_changed;
        self.is_effective_stale |= is_changed;
        self.observed.surroundings = now;
        is_changed
    }

    /// Reads the effective CPUs of all pods again, if a step may have changed them.
    pub(super) fn read_effective(
        &mut self,
        kernel: &impl Kernel,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Reading> {
        if !self.is_effective_stale {
            return Ok(Reading::Complete);
        }
        for pod in &mut self.observed.pods {
            if is_urgent() {
                return Ok(Reading::Interrupted);
            }
            let containers = pod.containers.iter_mut();
            let containers = containers.map(|one| (&one.cgroup.path, &mut one.cgroup.cpuset));
            let own = (&pod.cgroup.path, &mut pod.cgroup.cpuset);
            for (path, cpuset) in containers.chain([own]) {
                // If a cgroup has ended, its folder reports that.
                if let Some(now) = kernel.effective(path)?
                    && now != cpuset.effective
                {
                    self.has_changed = true;
                    cpuset.effective = now;
                }
            }
        }
        self.is_effective_stale = false;
        Ok(Reading::Complete)
    }

    /// Takes the pod's record as a step has written it.
    pub(super) fn note_record(&mut self, uid: &str, record: &AssignmentRecord) {
        let index = self.index(uid);
        if let Some(pod) = index.and_then(|index| self.observed.pods.get_mut(index)) {
            pod.cgroup.record_text = Some(record.text());
            pod.record = Some(record.clone());
        }
    }

    /// Reads the pods again whose record one of the steps has written, because the ledger must know
    /// of them before the next decision.
    pub(super) fn read_recorded(
        &mut self,
        applied: &[AppliedStep],
        kernel: &impl Kernel,
        store: &PodStore,
    ) -> anyhow::Result<()> {
        let records = applied.iter().map(|done| &done.step);
        let records = records.filter(|step| matches!(step, Step::Record { .. }));
        let paths: Vec<&str> = records.map(Step::path).collect();
        for index in 0..self.entries.len() {
            let pod = self.observed.pods.get(index);
            let is_in = |pod: &ObservedPod| {
                let mut paths = paths.iter();
                paths.any(|path| is_within(path, &pod.cgroup.path))
            };
            if pod.is_some_and(is_in) {
                self.read_at(index, kernel, store)?;
            }
        }
        self.drop_ended();
        Ok(())
    }

    /// Forgets the pods whose cgroups were removed.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&ObservedPod) -> bool) {
        for (pod, entry) in self.observed.pods.iter_mut().zip(&mut self.entries) {
            if is_gone(pod) {
                (*pod, *entry) = Default::default();
                self.has_changed = true;
            }
        }
        self.drop_ended();
    }
}

/// What is to be read again of the pod after a change of its cgroup `path`. One that the mirror
/// does not know may be a new container.
fn change_in_pod(pod: &ObservedPod, path: &str, change: CgroupChange) -> CgroupChange {
    let mut containers = pod.containers.iter();
    let is_known =
        path == pod.cgroup.path || containers.any(|container| container.cgroup.path == path);
    if is_known { change } else { CgroupChange::Any }
}

/// A pod with the CPUs and the records that its cgroups have now. `None` if one of them can't be
/// read, for example because it is gone, if a write to a container may also have changed cgroups
/// inside it, or if a container had no process so far.
fn with_cpus_of(mut pod: PodCgroup, kernel: &impl Kernel) -> Option<PodCgroup> {
    let read = |path: &str| Some((kernel.cpuset(path).ok()?, kernel.record_text(path).ok()?));
    for container in &mut pod.containers {
        // No event tells of the first process.
        if !container.nested.is_empty() || !container.populated {
            return None;
        }
        (container.cpuset, container.record_text) = read(&container.path)?;
    }
    // As in a whole reading, the pod comes after its containers.
    (pod.cpuset, pod.record_text) = read(&pod.path)?;
    Some(pod)
}

/// What a step changes in the cgroup to which it writes.
fn change_by_step(step: &Step) -> CgroupChange {
    match step {
        Step::Cpus { .. } | Step::Record { .. } => CgroupChange::Cpus,
        _ => CgroupChange::Any,
    }
}

/// A pod that is to be read for the first time.
fn new_entry(path: String, uid: String) -> (ObservedPod, MirrorEntry) {
    let cgroup = PodCgroup {
        path,
        uid,
        ..PodCgroup::default()
    };
    let pod = ObservedPod {
        cgroup,
        ..ObservedPod::default()
    };
    let mut entry = MirrorEntry::default();
    entry.note(CgroupChange::Any, Instant::now());
    (pod, entry)
}

fn is_same_description(
    one: Option<&Arc<RecognizedPod>>,
    other: Option<&Arc<RecognizedPod>>,
) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Whether a pod's cgroups are as they were when they were last read. What changes while the
/// programs inside run does not count, because each turn would otherwise lead to the next.
fn is_as_read(pod: &ObservedPod, now: &PodCgroup) -> bool {
    let PodCgroup {
        path,
        uid,
        cpuset,
        quota,
        record_text,
        containers,
    } = now;
    let before = &pod.cgroup;
    let is_same = (path, uid, cpuset, quota, record_text)
        == (
            &before.path,
            &before.uid,
            &before.cpuset,
            &before.quota,
            &before.record_text,
        );
    let then = pod.containers.iter().map(|container| &container.cgroup);
    is_same
        && then.len() == containers.len()
        && then
            .zip(containers)
            .all(|(then, now)| then.has_same_settings(now))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
