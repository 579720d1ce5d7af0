//! Being events of changes in directories: manifests that come and go, cgroups that are made and removed.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use super::file;

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
    /// A file in each directory whose changes count too: those that the kernel itself tells of.
    file: Option<&'static str>,
    events: EventStream<[u8; 4096]>,
    watches: Watches,
    covered: HashMap<PathBuf, WatchedFolder>,
    /// Which directory each watch is of.
    places: HashMap<WatchDescriptor, PathBuf>,
    /// A directory could not be watched: the user's limit of watches may have been reached for a while.
    missed: bool,
}

/// A directory that is watched.
struct WatchedFolder {
    inode: u64,
    /// Its own watch, and that of the file in it.
    watched: Vec<WatchDescriptor>,
    /// The only name in it that matters, where it lies above the root.
    only: Option<OsString>,
}

impl WatchedFolder {
    /// Takes its watches off.
    fn let_go(&mut self, watches: &mut Watches, places: &mut HashMap<WatchDescriptor, PathBuf>) {
        for watched in self.watched.drain(..) {
            places.remove(&watched);
            // Of one that the kernel ended by itself it knows nothing any more.
            let _ = watches.remove(watched);
        }
    }
}

/// What events tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WatchEvents {
    /// Something that the watch is for has changed.
    change: bool,
    /// Where there may be other directories than before; the root stands for all.
    directories: BTreeSet<PathBuf>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("root", &self.root)
            .field("covered", &self.covered.len())
            .finish()
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
        Self::with_file(root, depth, None)
    }

    /// As [`Watch::new`], and `file` in each directory is watched for changes that the kernel makes by itself.
    ///
    /// # Errors
    /// As [`Watch::new`].
    pub fn with_file(root: &Path, depth: usize, file: Option<&'static str>) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream([0; 4096])?;
        let mut watch = Self {
            root: root.to_owned(),
            depth,
            file,
            events,
            watches,
            covered: HashMap::new(),
            places: HashMap::new(),
            missed: false,
        };
        while watch.cover(&watch.root.clone()) {}
        Ok(watch)
    }

    /// Waits until something has changed. Several changes at once may be reported as one.
    ///
    /// Cancel safe: an event is taken only when this returns, or when it says nothing.
    ///
    /// # Errors
    /// What inotify says; the watch is of no more use then.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut events = WatchEvents::default();
            match self.events.next().await {
                Some(event) => self.note(&event?, &mut events),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            // A burst is one change: what is in the queue already needs no look of its own.
            while let Some(Some(event)) = self.events.next().now_or_never() {
                self.note(&event?, &mut events);
            }
            if !events.directories.is_empty() && std::mem::take(&mut self.missed) {
                events.directories.insert(self.root.clone());
            }
            for directory in &events.directories {
                // One made before its watch was set may hold others already, hence until nothing new is found.
                while self.cover(directory) {}
            }
            if events.change {
                return Ok(());
            }
        }
    }

    fn note(&mut self, event: &EventOwned, events: &mut WatchEvents) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            events.change = true;
            events.directories.insert(self.root.clone());
            return;
        }
        let place = self.places.get(&event.wd).cloned();
        let Some((place, covered)) =
            place.and_then(|place| Some((place.clone(), self.covered.get_mut(&place)?)))
        else {
            // The last word of a watch that we took off.
            return;
        };
        let ended = event.mask.contains(EventMask::IGNORED);
        if covered.only.is_some() && covered.only != event.name && !ended {
            return;
        }
        events.change = true;
        let above = covered.only.is_some();
        if ended {
            // What is there now may have the same inode; it wants a watch of its own. A kernel may end the watch of a
            // removed cgroup's file and not that of the cgroup itself.
            covered.watched.retain(|watched| *watched != event.wd);
            covered.let_go(&mut self.watches, &mut self.places);
            self.places.remove(&event.wd);
            self.covered.remove(&place);
            events
                .directories
                .insert(if above { self.root.clone() } else { place });
        } else if above {
            events.directories.insert(self.root.clone());
        } else if event.mask.contains(EventMask::ISDIR)
            && let Some(name) = &event.name
        {
            events.directories.insert(place.join(name));
        }
    }

    /// Watches the directories that are there at and below one, and no others; says whether one was new.
    ///
    /// The kernel keeps the watch of a removed cgroup, and the memory behind it, until it is events to let go: of their end
    /// it says nothing.
    fn cover(&mut self, below: &Path) -> bool {
        let mut found = HashMap::new();
        let all = below == self.root;
        let above = self
            .root
            .ancestors()
            .skip(1)
            .find(|path| path.is_dir())
            .filter(|_| all);
        if let Some(above) = above
            && let Ok(inode) = above.metadata().map(|metadata| metadata.ino())
        {
            let rest = self.root.strip_prefix(above).ok();
            let only = rest.and_then(|rest| Some(rest.components().next()?.as_os_str().to_owned()));
            found.insert(above.to_owned(), (inode, only));
        }
        let level = below
            .strip_prefix(&self.root)
            .map_or(0, |rest| rest.components().count());
        // A link is followed to the root, and nowhere else.
        let metadata = if all {
            below.metadata()
        } else {
            below.symlink_metadata()
        };
        if let (Ok(metadata), Some(depth)) = (metadata, self.depth.checked_sub(level))
            && metadata.is_dir()
        {
            descend(below, metadata.ino(), depth, &mut found);
        }
        let (watches, places) = (&mut self.watches, &mut self.places);
        self.covered.retain(|path, covered| {
            let stays = !(all || path.starts_with(below))
                || found.get(path) == Some(&(covered.inode, covered.only.clone()));
            if !stays {
                covered.let_go(watches, places);
            }
            stays
        });
        let mut new = false;
        for (path, (inode, only)) in found {
            if self.covered.contains_key(&path) {
                continue;
            }
            let watched = match self.watches.add(&path, CHANGES) {
                Ok(watched) => watched,
                Err(error) => {
                    self.missed |= error.kind() != io::ErrorKind::NotFound;
                    continue;
                }
            };
            let mut watched = vec![watched];
            // A kernel without such a file, or one for which this cgroup has none, is fine.
            let file = self.file.filter(|_| only.is_none());
            watched.extend(
                file.and_then(|file| self.watches.add(path.join(file), WatchMask::MODIFY).ok()),
            );
            for watched in &watched {
                // One that was renamed has kept its watch, and the place that it had is nobody's.
                let before = self.places.insert(watched.clone(), path.clone());
                if let Some(before) = before.filter(|before| *before != path) {
                    self.covered.remove(&before);
                }
            }
            self.covered.insert(
                path,
                WatchedFolder {
                    inode,
                    watched,
                    only,
                },
            );
            new = true;
        }
        new
    }
}

/// Finds a directory and those up to `depth` levels below it, with their inodes.
fn descend(
    dir: &Path,
    inode: u64,
    depth: usize,
    found: &mut HashMap<PathBuf, (u64, Option<OsString>)>,
) {
    found.insert(dir.to_owned(), (inode, None));
    if depth == 0 {
        return;
    }
    let entries = file::list(dir).unwrap_or_default();
    for entry in entries.iter().filter(|entry| entry.is_folder) {
        descend(&dir.join(&entry.name), entry.inode, depth - 1, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_gone_is_let_go_of() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubepods");
        std::fs::create_dir(&root).unwrap();
        let mut watch = Watch::new(&root, 2).unwrap();
        let few = watch.covered.len();
        for turn in 0..20 {
            let pod = root.join(format!("pod{}", turn % 3));
            std::fs::create_dir_all(pod.join("c0ffee")).unwrap();
            watch.changed().await.unwrap();
            std::fs::remove_dir_all(&pod).unwrap();
            while watch.covered.len() > few {
                tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed())
                    .await
                    .unwrap()
                    .unwrap();
            }
        }
        // The root itself goes and comes back.
        std::fs::remove_dir(&root).unwrap();
        std::fs::create_dir(&root).unwrap();
        watch.changed().await.unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(watch.covered.len(), few);
        // What stands beside it is nobody's business.
        std::fs::create_dir(dir.path().join("other")).unwrap();
        let events =
            tokio::time::timeout(std::time::Duration::from_millis(100), watch.changed()).await;
        assert!(events.is_err(), "{events:?}");
    }

    #[tokio::test]
    async fn what_is_renamed_stays_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("x")).unwrap();
        let mut watch = Watch::new(root, 2).unwrap();
        // Before and behind its old name.
        for (from, to) in [("x", "b"), ("b", "y")] {
            std::fs::rename(root.join(from), root.join(to)).unwrap();
            watch.changed().await.unwrap();
            let inside = root.join(to).join("inside");
            std::fs::create_dir(&inside).unwrap();
            while !watch.covered.contains_key(&inside) {
                tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed())
                    .await
                    .unwrap()
                    .unwrap();
            }
            assert_eq!(watch.covered.len(), 4, "{:?}", watch.covered.keys());
            std::fs::remove_dir(&inside).unwrap();
            watch.changed().await.unwrap();
            assert_eq!(watch.covered.len(), watch.places.len());
        }
    }

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
            tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed())
                .await
                .unwrap()
                .unwrap();
            if watch.covered.contains_key(&root.join("burstable/pod1")) {
                std::fs::create_dir(root.join("burstable/pod1/done")).unwrap();
            }
        }
        tokio::time::timeout(std::time::Duration::from_secs(5), watch.changed())
            .await
            .unwrap()
            .unwrap();
    }
}
