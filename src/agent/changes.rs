//! [`ChangedCgroups`]: the watches of the pods' trees, and what they have seen since the reconciler last asked.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::host::watch::{Watch, WatchChanges};

/// What has changed in the watched trees, as the kernel reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupChanges {
    /// Cgroups in which a file was written, or a cgroup appeared or ended.
    pub paths: BTreeSet<String>,
    /// Whether any cgroup may have changed: the kernel's queue was full, or a part of the trees is not watched.
    pub all: bool,
}

/// The watched trees, and their changes that no turn has taken so far.
///
/// A task waits for the changes of each tree, so that the reconciler wakes up. A turn does not rely on the tasks: it reads the
/// kernel's queue itself. Therefore it knows of everything that has happened before, and after its own steps it takes their events,
/// too. They would otherwise make it read the same cgroups again: with 250 pods on cgroup v1, one creation then cost two readings
/// of the node, and a start that came in between took 51 ms instead of 2 ms.
#[derive(Debug, Default)]
pub(super) struct ChangedCgroups {
    trees: Vec<WatchedTree>,
    changes: Mutex<CgroupChanges>,
    has_changed: Notify,
    /// Wakes up whoever waits for new cgroups.
    appeared: Arc<Notify>,
}

/// A tree of pods: the path of its cgroup, and its folder in one of the hierarchies.
#[derive(Debug)]
pub(super) struct WatchedTree {
    pub(super) cgroup: String,
    pub(super) folder: PathBuf,
    pub(super) watch: Mutex<Watch>,
}

/// Locks a value. A panic of another thread has left it complete, because no method panics halfway.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl CgroupChanges ===

impl CgroupChanges {
    /// Anything may have changed.
    pub fn unknown() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        !self.all && self.paths.is_empty()
    }

    pub fn add(&mut self, later: Self) {
        self.paths.extend(later.paths);
        self.all |= later.all;
    }
}

// === impl WatchedTree ===

impl WatchedTree {
    /// Why some changes are not noticed, as a sentence.
    pub(super) fn problem(&self) -> Option<String> {
        lock(&self.watch).problem().map(str::to_owned)
    }

    /// Waits until there may be changes.
    ///
    /// # Errors
    /// Inotify reports an error.
    pub(super) async fn wait(&self) -> io::Result<()> {
        let wait = lock(&self.watch).wait();
        wait.await
    }

    fn take(&self) -> io::Result<Option<CgroupChanges>> {
        let changes = lock(&self.watch).take()?;
        Ok(changes.map(|changes| self.cgroups(&changes)))
    }

    fn cgroups(&self, changes: &WatchChanges) -> CgroupChanges {
        let cgroup = |directory: &PathBuf| {
            let below = directory.strip_prefix(&self.folder).ok()?;
            Some(match below.to_str()? {
                "" => self.cgroup.clone(),
                below => format!("{}/{below}", self.cgroup),
            })
        };
        let paths = changes.directories.iter().map(cgroup);
        match paths.collect() {
            Some(paths) if !changes.all => CgroupChanges { paths, all: false },
            _ => CgroupChanges::unknown(),
        }
    }
}

// === impl ChangedCgroups ===

impl ChangedCgroups {
    pub(super) fn of(trees: Vec<WatchedTree>) -> Self {
        Self {
            trees,
            ..Self::default()
        }
    }

    pub(super) fn trees(&self) -> &[WatchedTree] {
        &self.trees
    }

    /// Wakes up after each change. One wake-up may stand for several changes.
    pub(super) fn appeared(&self) -> Arc<Notify> {
        Arc::clone(&self.appeared)
    }

    /// Reads the changes of a tree, and wakes the reconciler if there are any.
    ///
    /// # Errors
    /// Inotify reports an error.
    pub(super) fn read(&self, tree: &WatchedTree) -> io::Result<()> {
        if let Some(changes) = tree.take()? {
            lock(&self.changes).add(changes);
            self.has_changed.notify_one();
            self.appeared.notify_one();
        }
        Ok(())
    }

    /// Takes all changes so far, including those that nobody has read from the kernel yet. The reconciler is not woken for the latter.
    pub(super) fn take(&self) -> CgroupChanges {
        let mut all = std::mem::take(&mut *lock(&self.changes));
        for tree in &self.trees {
            // The task that follows the tree gets the same error, and ends the agent.
            let changes = tree
                .take()
                .unwrap_or_else(|_| Some(CgroupChanges::unknown()));
            if let Some(changes) = changes {
                all.add(changes);
                self.appeared.notify_one();
            }
        }
        all
    }

    /// Waits for a change. One return may stand for several changes.
    pub(super) async fn changed(&self) {
        self.has_changed.notified().await;
    }
}
