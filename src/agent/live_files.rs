//! [`LiveFiles`]: the files from which a running program learns its CPUs, in the folder that its container sees as [`MOUNT`].
//!
//! Pinfold itself never lets a container run on a CPU that `cpus` does not name: before an assignment grows the file is written
//! first, and after it has shrunk the file is written last. `upcoming-cpus` names what an announced shrink will leave, so that
//! the program learns of it before the CPUs go. A file that can't be written is removed, because a missing one promises nothing.

use std::collections::BTreeMap;
use std::fmt;

use super::kernel::Kernel;
use crate::cpu::{CpuSet, RankCpus};
use crate::host::container_files::ListedFolders;
use crate::pod::ContainerKey;

/// Where the container sees its folder.
pub(super) const MOUNT: &str = "/run/pinfold";

/// A file's name and its text; `None` for a file without a value, which does not exist.
type LiveFile = (&'static str, Option<String>);

/// What the files of a container say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveValues {
    /// The CPUs on which the container may run now.
    pub cpus: CpuSet,
    /// The CPUs that it will have after an announced shrink; mostly `cpus`.
    pub upcoming: CpuSet,
    /// The NUMA nodes that its memory may come from.
    pub memory_nodes: CpuSet,
    /// The intra-op threads of each process that would be right on the upcoming CPUs; `None` if the thread profile has no number.
    pub threads: Option<usize>,
    /// The upcoming CPUs, divided among the container's processes; `None` for a single process, and for an unknown number.
    pub ranks: Option<RankCpus>,
}

/// The containers with a folder, and what their files say.
#[derive(Debug, Default)]
pub(super) struct LiveFiles {
    written: BTreeMap<ContainerKey, BTreeMap<&'static str, Option<String>>>,
    /// Whether all folders from before the agent's start are in `written`.
    is_listed: bool,
    /// The folders that could not be read, as sentences.
    unreadable: Vec<String>,
    /// What could not be written, as sentences.
    failures: BTreeMap<ContainerKey, String>,
}

// === impl LiveValues ===

impl LiveValues {
    /// The files about CPUs, whose order in time matters.
    fn of_cpus(&self) -> Vec<LiveFile> {
        vec![
            ("cpus", Some(line(&self.cpus))),
            ("upcoming-cpus", Some(line(&self.upcoming))),
        ]
    }

    /// The other files, which follow at the end of a turn.
    fn others(&self) -> Vec<LiveFile> {
        vec![
            ("memory-nodes", Some(line(&self.memory_nodes))),
            ("threads", self.threads.as_ref().map(line)),
            ("rank-cpus", self.ranks.as_ref().map(rank_lines)),
        ]
    }
}

fn line(value: &impl fmt::Display) -> String {
    format!("{value}\n")
}

/// A line for each process, by its local rank.
fn rank_lines(ranks: &RankCpus) -> String {
    ranks.slices().iter().map(line).collect()
}

// === impl LiveFiles ===

impl LiveFiles {
    /// Makes the folder of a container that is being created, and writes its files.
    ///
    /// # Errors
    /// The folder or a file can't be written, as a sentence.
    pub(super) fn open(
        &mut self,
        kernel: &impl Kernel,
        key: &ContainerKey,
        values: &LiveValues,
    ) -> Result<(), String> {
        let (uid, container) = (key.uid.as_str(), key.container.as_str());
        let made = kernel.make_live_folder(uid, container);
        let written = made.and_then(|()| {
            // The folder may be a new one.
            self.written.insert(key.clone(), BTreeMap::new());
            self.write(kernel, key, values.of_cpus())?;
            self.write(kernel, key, values.others())
        });
        if written.is_err() {
            // It isn't mounted.
            self.written.remove(key);
        }
        self.note(key, written.as_ref().err());
        written
    }

    /// Writes what the files about CPUs say, as far as it has changed. `values` has no more than CPUs.
    pub(super) fn set_cpus(
        &mut self,
        kernel: &impl Kernel,
        key: &ContainerKey,
        values: &LiveValues,
    ) {
        let written = self.write(kernel, key, values.of_cpus());
        self.note(key, written.as_ref().err());
    }

    /// Writes what the other files say, as far as it has changed.
    pub(super) fn set_others(
        &mut self,
        kernel: &impl Kernel,
        key: &ContainerKey,
        values: &LiveValues,
    ) {
        if let Err(failure) = self.write(kernel, key, values.others()) {
            self.note(key, Some(&failure));
        }
    }

    fn write(
        &mut self,
        kernel: &impl Kernel,
        key: &ContainerKey,
        files: Vec<LiveFile>,
    ) -> Result<(), String> {
        let Some(written) = self.written.get_mut(key) else {
            return Ok(());
        };
        let of = (key.uid.as_str(), key.container.as_str());
        let mut result = Ok(());
        for (name, text) in files {
            if written.get(name) == Some(&text) {
                continue;
            }
            if let Err(mut failure) = kernel.write_live_file(of, name, text.as_deref()) {
                // On a full file system, a file can still be removed.
                if let Err(stays) = kernel.write_live_file(of, name, None) {
                    failure = format!("{failure}; the file {name} stays as it was: {stays}");
                }
                written.remove(name);
                result = result.and(Err(failure));
            } else {
                written.insert(name, text);
            }
        }
        result
    }

    fn note(&mut self, key: &ContainerKey, failure: Option<&String>) {
        match failure {
            Some(failure) => self.failures.insert(key.clone(), failure.clone()),
            None => self.failures.remove(key),
        };
    }

    /// Finds the folders from before the agent's start, until all could be read once. Returns the failures, which are also
    /// among [`failures`](Self::failures).
    pub(super) fn list(&mut self, kernel: &impl Kernel) -> &[String] {
        if !self.is_listed {
            let ListedFolders { pods, unreadable } = kernel.live_folders();
            self.is_listed = unreadable.is_empty();
            for (uid, containers) in pods {
                for container in containers {
                    let key = ContainerKey::new(&uid, container);
                    self.written.entry(key).or_default();
                }
            }
            let stays =
                |line| format!("{line}; until that works, live files in it stay as they are");
            self.unreadable = unreadable.into_iter().map(stays).collect();
        }
        &self.unreadable
    }

    /// The containers with a folder.
    pub(super) fn containers(&self) -> impl Iterator<Item = &ContainerKey> {
        self.written.keys()
    }

    /// Removes the folders of the pods that are gone.
    pub(super) fn retain(&mut self, kernel: &impl Kernel, is_there: impl Fn(&str) -> bool) {
        // A folder may be there although its files could not be written.
        let keys = self.written.keys().chain(self.failures.keys());
        let uids = keys.map(|key| key.uid.clone());
        let mut gone: Vec<_> = uids.filter(|uid| !is_there(uid.as_str())).collect();
        gone.sort_unstable();
        gone.dedup();
        for uid in gone {
            if let Err(failure) = kernel.remove_live_folders(uid.as_str()) {
                // The next turn tries again.
                let key = self.written.keys().find(|key| key.uid == uid).cloned();
                if let Some(key) = key {
                    self.note(&key, Some(&failure));
                }
                continue;
            }
            self.written.retain(|key, _| key.uid != uid);
        }
        let written = &self.written;
        self.failures
            .retain(|key, _| written.contains_key(key) || is_there(key.uid.as_str()));
    }

    /// What could not be read or written, as sentences.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        let of_containers = self.failures.iter().map(|(key, failure)| {
            let (container, uid) = (&key.container, key.uid.as_str());
            if self.written.contains_key(key) {
                format!(
                    "the files in {MOUNT} of container {container} of pod {uid} are not up to date: {failure}"
                )
            } else {
                format!("container {container} of pod {uid} has no files in {MOUNT}: {failure}")
            }
        });
        self.unreadable.iter().cloned().chain(of_containers)
    }
}
