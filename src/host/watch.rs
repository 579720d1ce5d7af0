//! Being told of changes in directories: manifests that come and go, cgroups that are made and removed.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

/// What happens in a directory that a watch reports.
const CHANGES: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ONLYDIR);

/// Watches a directory and, if wanted, the ones below it.
pub struct Watch {
    root: PathBuf,
    depth: usize,
    events: EventStream<[u8; 4096]>,
    watches: Watches,
    covered: HashMap<PathBuf, WatchDescriptor>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("root", &self.root).field("covered", &self.covered.len()).finish()
    }
}

// === impl Watch ===

impl Watch {
    /// Watches `root` and directories up to `depth` levels below it. A root that is not there yet is waited for
    /// through the nearest directory above it that is.
    ///
    /// # Errors
    /// What inotify says, for example that the user's limit of instances is reached.
    pub fn new(root: &Path, depth: usize) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream([0; 4096])?;
        let mut watch = Self { root: root.to_owned(), depth, events, watches, covered: HashMap::new() };
        watch.cover();
        Ok(watch)
    }

    /// Waits until something has changed. Several changes at once may be reported as one.
    ///
    /// Cancel safe: an event is taken only when this returns.
    ///
    /// # Errors
    /// What inotify says; the watch is of no more use then.
    pub async fn changed(&mut self) -> io::Result<()> {
        match self.events.next().await {
            Some(event) => self.note(&event?),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        // A burst is one change: what is in the queue already needs no look of its own.
        while let Some(Some(event)) = self.events.next().now_or_never() {
            self.note(&event?);
        }
        // A directory made before its watch was set may hold others already, hence until nothing new is found.
        while self.cover() {}
        Ok(())
    }

    fn note(&mut self, event: &EventOwned) {
        if event.mask.contains(EventMask::IGNORED) {
            self.covered.retain(|_, watched| *watched != event.wd);
        }
    }

    /// Watches directories that are new; says whether there were any.
    fn cover(&mut self) -> bool {
        let mut found = Vec::new();
        if self.root.is_dir() {
            descend(&self.root, self.depth, &mut found);
        } else if let Some(above) = self.root.ancestors().find(|path| path.is_dir()) {
            found.push(above.to_owned());
        }
        let mut new = false;
        for path in found {
            if !self.covered.contains_key(&path)
                && let Ok(watched) = self.watches.add(&path, CHANGES)
            {
                self.covered.insert(path, watched);
                new = true;
            }
        }
        new
    }
}

fn descend(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    found.push(dir.to_owned());
    if depth == 0 {
        return;
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        descend(&entry.path(), depth - 1, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_root_that_comes_later_and_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubepods");
        let mut watch = Watch::new(&root, 2).unwrap();
        std::fs::create_dir_all(root.join("burstable/pod1")).unwrap();
        watch.changed().await.unwrap();
        std::fs::create_dir(root.join("burstable/pod1/c0ffee")).unwrap();
        // Events of the directories above may still be in the queue: wait for the state, not for an event.
        while !root.join("burstable/pod1/done").exists() {
            tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed()).await.unwrap().unwrap();
            if watch.covered.contains_key(&root.join("burstable/pod1")) {
                std::fs::create_dir(root.join("burstable/pod1/done")).unwrap();
            }
        }
        tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed()).await.unwrap().unwrap();
    }
}
