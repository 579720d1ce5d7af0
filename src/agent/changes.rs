//! [`ChangedCgroups`]: the watches of the pods' trees, and the changes that no turn has taken yet.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::host::watch::{Watch, WatchChanges};

/// What has changed in a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupChange {
    /// Nothing but its CPUs, or its assignment record.
    Cpus,
    /// Anything else, for example which cgroups are inside.
    Any,
}

/// What has changed in the watched trees, as the kernel reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupChanges {
    /// Cgroups in which a file was written, or a cgroup appeared or ended.
    pub paths: BTreeMap<String, CgroupChange>,
    /// Whether any cgroup may have changed: the kernel's queue was full, or a part of the trees is not watched.
    pub all: bool,
}

/// The watched trees, and their changes that no turn has taken so far.
///
/// A task waits for the changes of each tree, so that the reconciler wakes up. A turn does not rely
/// on these tasks: it also reads the kernel's queue itself, so it knows of everything that is
/// queued when it asks. After its own steps it takes the events that they have caused. Otherwise
/// these would start another turn, which reads the same cgroups again: with 250 pods on cgroup v1,
/// one creation then cost two readings of the node, and a start in between took 51 ms instead of 2
/// ms.
#[derive(Debug, Default)]
pub(super) struct ChangedCgroups {
    trees: Vec<WatchedTree>,
    changes: Mutex<CgroupChanges>,
    has_changed: Notify,
    /// Wakes the task that asks the kubelet, after each change.
    appeared: Arc<Notify>,
}

/// A tree of pods: the path of its cgroup, and its folder in one of the hierarchies.
#[derive(Debug)]
pub(super) struct WatchedTree {
    cgroup: String,
    pub(super) folder: PathBuf,
    watch: Mutex<Watch>,
    /// Wakes the tree's task when a turn has met a new problem of the watch, or when the problem
    /// has ended.
    problem_changed: Notify,
}

/// Locks a value. It is valid even after a panic elsewhere, because no method panics while it changes the value.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl CgroupChanges ===

impl CgroupChanges {
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
        for (path, change) in later.paths {
            let known = self.paths.entry(path).or_insert(change);
            *known = change.max(*known);
        }
        self.all |= later.all;
    }
}

// === impl WatchedTree ===

impl WatchedTree {
    pub(super) fn new(cgroup: String, folder: PathBuf, watch: Watch) -> Self {
        Self {
            cgroup,
            folder,
            watch: Mutex::new(watch),
            problem_changed: Notify::new(),
        }
    }

    /// Why some changes are not noticed, as a sentence.
    pub(super) fn problem(&self) -> Option<String> {
        lock(&self.watch).problem().map(str::to_owned)
    }

    /// Waits until there may be changes, or the problem has changed.
    ///
    /// # Errors
    /// Inotify reports an error.
    pub(super) async fn wait(&self) -> io::Result<()> {
        let changed = lock(&self.watch).wait();
        tokio::select! {
            changed = changed => changed,
            () = self.problem_changed.notified() => Ok(()),
        }
    }

    fn cgroups(&self, changes: &WatchChanges) -> CgroupChanges {
        let cgroup = |(directory, only_written): (&PathBuf, &Option<OsString>)| {
            let below = directory.strip_prefix(&self.folder).ok()?;
            let path = match below.to_str()? {
                "" => self.cgroup.clone(),
                below => format!("{}/{below}", self.cgroup),
            };
            let change = match only_written {
                Some(file) if file == "cpuset.cpus" => CgroupChange::Cpus,
                _ => CgroupChange::Any,
            };
            Some((path, change))
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

    /// Is notified after each change. One notification may stand for several changes.
    pub(super) fn appeared(&self) -> Arc<Notify> {
        Arc::clone(&self.appeared)
    }

    /// Collects the changes of a tree, and wakes the reconciler if there are any.
    ///
    /// # Errors
    /// Inotify reports an error.
    pub(super) fn read(&self, tree: &WatchedTree) -> io::Result<()> {
        if self.collect(tree)? {
            self.has_changed.notify_one();
        }
        Ok(())
    }

    /// Takes all changes so far. Those that only this call reads from the kernel don't wake the
    /// reconciler.
    pub(super) fn take(&self) -> CgroupChanges {
        for tree in &self.trees {
            // If the error lasts, the task that follows the tree ends the agent.
            if self.collect(tree).is_err() {
                lock(&self.changes).add(CgroupChanges::unknown());
            }
        }
        std::mem::take(&mut *lock(&self.changes))
    }

    /// Adds the changes that the kernel has queued. Returns whether there are any.
    ///
    /// The watch stays locked until they are added, so a turn that asks meanwhile waits for them.
    fn collect(&self, tree: &WatchedTree) -> io::Result<bool> {
        let mut watch = lock(&tree.watch);
        let problem = watch.problem().map(str::to_owned);
        let changes = watch.take()?;
        if watch.problem() != problem.as_deref() {
            tree.problem_changed.notify_one();
        }
        let Some(changes) = changes else {
            return Ok(false);
        };
        lock(&self.changes).add(tree.cgroups(&changes));
        self.appeared.notify_one();
        Ok(true)
    }

    /// Waits until there is a change that no turn has taken.
    pub(super) async fn changed(&self) {
        loop {
            self.has_changed.notified().await;
            if !lock(&self.changes).is_empty() {
                return;
            }
        }
    }
}
