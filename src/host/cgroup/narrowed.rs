//! cgroup v1: sets that lost CPUs without an assignment record, and what they were before.
//!
//! On v1 a set must lie within its parent's set, and once a CPU was offline, the set lacks it for
//! good. So two kinds of cgroups lose CPUs that nobody gives back: cgroups that a container has
//! made inside its own, which must give up CPUs before the container can, and every cgroup when a
//! CPU goes offline. An attribute of such a cgroup keeps the earlier set, so that a restarted agent
//! and a release know it, too.

use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::cgroups::{CgroupVersion, Cgroups, Result, cpu_list, ignore_gone, join};
use super::layout;
use super::settings::NoteSubject;
use crate::cpu::CpuSet;

/// A cgroup that a container has made inside its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NestedCgroup {
    /// The cgroup's path, relative to the hierarchy.
    pub path: String,
    /// The written CPUs.
    pub cpus: CpuSet,
    /// The set from before CPUs were taken, as in [`Cpuset::narrowed_from`](super::Cpuset::narrowed_from).
    pub narrowed_from: Option<CpuSet>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    version: u32,
    /// The set from before the first narrowing.
    earlier: CpuSet,
    /// The set after the last narrowing. If the cgroup has another set now, some other program has
    /// written it since, and it stays.
    narrowed: CpuSet,
}

/// The only format of notes so far.
const VERSION: u32 = 1;

/// What a cgroup with the set `earlier` can have below a cgroup with the set `limit`. If they have
/// no CPU in common, that is the whole limit, because processes need a CPU.
pub(super) fn within(earlier: &CpuSet, limit: &CpuSet) -> CpuSet {
    let both = earlier.intersection(limit);
    if both.is_empty() { limit.clone() } else { both }
}

// === impl Cgroups ===

impl Cgroups {
    /// The set of a cgroup from before CPUs were taken; `None` without a note, or if another
    /// program has written the set since. Always `None` on v2.
    pub(super) fn narrowed_from(&self, path: &str) -> Result<Option<CpuSet>> {
        if self.version != CgroupVersion::V1 {
            return Ok(None);
        }
        let Some(text) = self.note(path, NoteSubject::NarrowedSet)? else {
            return Ok(None);
        };
        let note: Option<Note> = serde_json::from_str(&text).ok();
        let Some(note) = note.filter(|note| note.version == VERSION) else {
            return Ok(None);
        };
        let now = cpu_list(&self.file(path, "cpuset.cpus"))?;
        // When a CPU goes offline, the kernel takes it out of the parent's set as well, and empties
        // a set that has no other CPU.
        let is_kept = now == note.narrowed || now.is_empty() || {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let limit = cpu_list(&self.file(parent, "cpuset.cpus"))?;
            now == note.narrowed.intersection(&limit)
        };
        Ok(is_kept.then_some(note.earlier))
    }

    /// Notes the set from before CPUs were taken from a cgroup, beside the present set.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn note_earlier_set(&self, path: &str, earlier: &CpuSet) -> Result<()> {
        let now = cpu_list(&self.file(path, "cpuset.cpus"))?;
        self.note_narrowing(path, earlier, &now)
    }

    pub(super) fn note_narrowing(
        &self,
        path: &str,
        earlier: &CpuSet,
        narrowed: &CpuSet,
    ) -> Result<()> {
        let note = Note {
            version: VERSION,
            earlier: earlier.clone(),
            narrowed: narrowed.clone(),
        };
        // Serialisation of numbers and strings always succeeds.
        let text = serde_json::to_string(&note).unwrap_or_default();
        self.set_note(path, NoteSubject::NarrowedSet, Some(&text))
    }

    /// Removes the note of a cgroup, if any.
    ///
    /// # Errors
    /// The cgroup is gone.
    pub fn forget_earlier_set(&self, path: &str) -> Result<()> {
        self.set_note(path, NoteSubject::NarrowedSet, None)
    }

    /// The cgroups inside a container's cgroup, from the top down. Empty on v2, where a container's
    /// set narrows everything below it.
    pub(super) fn nested(&self, container: &str) -> Result<Vec<NestedCgroup>> {
        let mut found = Vec::new();
        if self.version == CgroupVersion::V1 {
            self.collect_nested(container, &mut found)?;
        }
        Ok(found)
    }

    fn collect_nested(&self, path: &str, found: &mut Vec<NestedCgroup>) -> Result<()> {
        // The kernel counts two links for a cgroup, and one more for each cgroup inside. So one call,
        // instead of five, tells that nothing is inside, as in most containers. A file system that
        // counts none says 1, and is listed.
        let directory = self.root().join(path).metadata();
        if directory.is_ok_and(|directory| directory.nlink() == 2) {
            return Ok(());
        }
        for name in self.children_if_present(path)? {
            let path = join(path, &name);
            let read = || -> Result<NestedCgroup> {
                Ok(NestedCgroup {
                    cpus: cpu_list(&self.file(&path, "cpuset.cpus"))?,
                    narrowed_from: self.narrowed_from(&path)?,
                    path: path.clone(),
                })
            };
            if let Some(nested) = ignore_gone(read())? {
                found.push(nested);
                self.collect_nested(&path, found)?;
            }
        }
        Ok(())
    }

    /// The cgroups whose narrowed sets follow a new set of the cgroup `path`: those inside a
    /// container. A pod's containers are not among them, because the plan decides about each of
    /// them.
    pub(super) fn followers(&self, path: &str) -> Result<Vec<NestedCgroup>> {
        let mut nested = match layout::is_container(path) {
            true => self.nested(path)?,
            false => Vec::new(),
        };
        nested.retain(|nested| nested.narrowed_from.is_some());
        Ok(nested)
    }

    /// Gives cgroups inside a container the part of their earlier sets that the sets above now allow.
    pub(super) fn restore_followers(&self, followers: &[NestedCgroup]) -> Result<()> {
        for nested in followers {
            let Some(earlier) = &nested.narrowed_from else {
                continue;
            };
            let parent = nested
                .path
                .rsplit_once('/')
                .map_or("", |(parent, _)| parent);
            let restore = || -> Result<()> {
                let limit = cpu_list(&self.file(parent, "cpuset.cpus"))?;
                let target = within(earlier, &limit);
                self.set_cpus_from(&nested.path, &target, Some(earlier))
            };
            ignore_gone(restore())?;
        }
        Ok(())
    }
}
