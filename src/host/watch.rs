//! Inotify watches that report changes in directories: that of the pod manifests, or the tree of
//! cgroups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inotify::{EventMask, EventOwned, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::file;

const CHANGES: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ONLYDIR);

/// A watch of a directory tree, down to a chosen depth.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    depth: usize,
    /// The name of a file to watch in each directory, for changes made by the kernel.
    file: Option<&'static str>,
    inotify: Inotify,
    /// A copy of inotify's descriptor, on which a task waits for events.
    readable: Arc<AsyncFd<OwnedFd>>,
    watches: Watches,
    covered: BTreeMap<PathBuf, WatchedDirectory>,
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// Why a directory could not be watched, for example because the limit of inotify watches was
    /// reached. The next change of the directories triggers another attempt, and so does [`RETRY`].
    problem: Option<String>,
    /// When the last attempt to watch a directory failed.
    failed_at: Instant,
}

/// The pause between two attempts to watch directories beyond the limit of inotify watches. The
/// limit may be raised, or another program may end, without any change of the directories.
const RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct WatchedDirectory {
    inode: u64,
    /// The inotify watches of the directory and of the file in it.
    watched: Vec<WatchDescriptor>,
    /// Whether the file is watched, too, as far as there is one.
    is_complete: bool,
    /// In a directory above the root, the only name whose events matter.
    only: Option<OsString>,
}

/// The inode of each found directory, each before those inside it, and the only name whose events matter (see [`WatchedDirectory`]).
type FoundDirectories = BTreeMap<PathBuf, (u64, Option<OsString>)>;

impl WatchedDirectory {
    fn remove_watches(
        &mut self,
        watches: &mut Watches,
        directories: &mut HashMap<WatchDescriptor, PathBuf>,
    ) {
        for watched in self.watched.drain(..) {
            directories.remove(&watched);
            // The kernel may already have ended the watch, so an error is harmless.
            let _ = watches.remove(watched);
        }
    }
}

#[derive(Debug, Default)]
pub struct WatchChanges {
    /// The directories in which a file was written, or an entry came or went. The value names the file
    /// if it alone was written.
    pub directories: BTreeMap<PathBuf, Option<OsString>>,
    /// Whether any directory may have changed: the kernel dropped events, or directories were not watched for a while.
    pub all: bool,
}

/// A summary of several events.
#[derive(Default)]
struct WatchEvents {
    changes: WatchChanges,
    /// Directories below which the set of directories may have changed. The root stands for the
    /// whole tree.
    directories: BTreeSet<PathBuf>,
}

// === impl WatchChanges ===

impl WatchChanges {
    fn add(&mut self, directory: PathBuf, only_written: Option<&OsStr>) {
        let only_written = only_written.map(OsStr::to_owned);
        let known = self.directories.entry(directory);
        known
            .and_modify(|known| {
                if *known != only_written {
                    *known = None;
                }
            })
            .or_insert_with(|| only_written.clone());
    }
}

// === impl Watch ===

impl Watch {
    /// Watches `root` and directories up to `depth` levels below it.
    ///
    /// If `root` does not exist yet, the watch waits at the nearest existing directory above it.
    ///
    /// # Errors
    /// Inotify reports an error, for example because the limit of instances is reached.
    pub fn new(root: &Path, depth: usize) -> io::Result<Self> {
        Self::with_file(root, depth, None)
    }

    /// Like [`Watch::new`], and also watches `file` in each directory for changes made by the
    /// kernel.
    ///
    /// # Errors
    /// As [`Watch::new`].
    pub fn with_file(root: &Path, depth: usize, file: Option<&'static str>) -> io::Result<Self> {
        let inotify = Inotify::init().map_err(|error| limit_named(error, "instances"))?;
        let watches = inotify.watches();
        let descriptor = inotify.as_fd().try_clone_to_owned()?;
        let mut watch = Self {
            root: root.to_owned(),
            depth,
            file,
            inotify,
            readable: Arc::new(registered(descriptor)?),
            watches,
            covered: BTreeMap::new(),
            directories: HashMap::new(),
            problem: None,
            failed_at: Instant::now(),
        };
        while watch.cover(&watch.root.clone()) {}
        Ok(watch)
    }

    /// Waits for a change, and returns all changes so far.
    ///
    /// Cancel safe: no change is lost, because nothing is awaited between a change and the return.
    ///
    /// # Errors
    /// Inotify reports an error. The watch is unusable afterwards.
    pub async fn changed(&mut self) -> io::Result<WatchChanges> {
        loop {
            self.wait().await?;
            if let Some(changes) = self.take()? {
                return Ok(changes);
            }
        }
    }

    /// Waits until [`Watch::take`] may return changes. The future does not borrow the watch, so
    /// others can take the changes meanwhile, and [`Watch::take`] may then return `None`.
    pub fn wait(&self) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let readable = Arc::clone(&self.readable);
        let has_problem = self.problem.is_some();
        async move {
            // The readiness is cleared before the events are read, so an event that comes meanwhile
            // makes the descriptor ready again.
            let is_readable = async {
                let mut ready = readable.readable().await?;
                ready.clear_ready();
                Ok(())
            };
            match has_problem {
                false => is_readable.await,
                true => tokio::time::timeout(RETRY, is_readable)
                    .await
                    .unwrap_or(Ok(())),
            }
        }
    }

    /// Returns all changes so far without waiting; `None` if there are none. Every creation,
    /// removal and close that has returned before this call is included. The kernel tells of its
    /// own changes, for example to a partition, a little later.
    ///
    /// # Errors
    /// Inotify reports an error. The watch is unusable afterwards.
    pub fn take(&mut self) -> io::Result<Option<WatchChanges>> {
        let mut events = WatchEvents::default();
        for event in self.queued_events()? {
            self.note(&event, &mut events);
        }
        if !events.directories.is_empty() && self.problem.take().is_some() {
            // Nobody knows what happened in the directories without a watch.
            events.changes.all = true;
            events.directories.insert(self.root.clone());
        }
        if events.directories.contains(&self.root) {
            events.directories = BTreeSet::from([self.root.clone()]);
        }
        for directory in &events.directories {
            // A new directory may get subdirectories before it is watched, so this goes on until no
            // new directory is found.
            while self.cover(directory) {}
        }
        if self.problem.is_some() && self.failed_at.elapsed() >= RETRY {
            events.changes.all |= self.cover_again();
        }
        let WatchChanges { directories, all } = &events.changes;
        Ok((*all || !directories.is_empty()).then_some(events.changes))
    }

    fn queued_events(&mut self) -> io::Result<Vec<EventOwned>> {
        let (mut events, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.inotify.read_events(&mut buffer) {
                Ok(read) => events.extend(read.map(|event| event.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(events),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Why changes in some directories are not noticed, with the remedy; `None` if all are watched.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Tries again to watch all directories. Returns whether one was added, or the problem has
    /// ended.
    fn cover_again(&mut self) -> bool {
        let had = self.problem.take();
        let mut new = false;
        while self.cover(&self.root.clone()) {
            new = true;
        }
        new || self.problem.is_none() && had.is_some()
    }

    fn note(&mut self, event: &EventOwned, events: &mut WatchEvents) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            events.changes.all = true;
            events.directories.insert(self.root.clone());
            return;
        }
        // A late event of a removed watch has no directory.
        let Some(directory) = self.directories.get(&event.wd).cloned() else {
            return;
        };
        let Some(covered) = self.covered.get_mut(&directory) else {
            return;
        };
        let ended = event.mask.contains(EventMask::IGNORED);
        let above = covered.only.is_some();
        if above && covered.only != event.name && !ended {
            return;
        }
        events.changes.all |= above;
        let is_written = event.mask.contains(EventMask::CLOSE_WRITE);
        let only_written = event.name.as_deref().filter(|_| is_written);
        events.changes.add(directory.clone(), only_written);
        if ended {
            // A new directory at the same path may have the same inode, and needs a new watch. When
            // a cgroup is removed, a kernel may end only the watch of the file, and keep that of
            // the cgroup.
            covered.watched.retain(|watched| *watched != event.wd);
            covered.remove_watches(&mut self.watches, &mut self.directories);
            self.directories.remove(&event.wd);
            self.covered.remove(&directory);
            events
                .directories
                .insert(if above { self.root.clone() } else { directory });
        } else if above {
            events.directories.insert(self.root.clone());
        } else if event.mask.contains(EventMask::ISDIR)
            && let Some(name) = &event.name
        {
            // Whatever happens inside before the new directory is watched counts as a change of the
            // directory.
            events.changes.add(directory.join(name), None);
            events.directories.insert(directory.join(name));
        }
    }

    /// Watches all existing directories at and below `below`, and removes the watches of missing
    /// ones. Returns whether a directory was new.
    ///
    /// The kernel keeps the watch of a removed cgroup, and the memory behind it, until Pinfold
    /// removes it, and sends no event about the end of the cgroup itself.
    fn cover(&mut self, below: &Path) -> bool {
        let found = self.find(below);
        for path in self.covered_at(below) {
            let covered = self.covered.get(&path);
            let is_same = |covered: &WatchedDirectory| {
                found.get(&path) == Some(&(covered.inode, covered.only.clone()))
            };
            if !covered.is_some_and(is_same)
                && let Some(mut gone) = self.covered.remove(&path)
            {
                gone.remove_watches(&mut self.watches, &mut self.directories);
            }
        }
        let mut new = false;
        for (path, (inode, only)) in found {
            let is_complete = self.covered.get(&path).map(|covered| covered.is_complete);
            if is_complete != Some(true) {
                new |= self.add(path, inode, only) && is_complete.is_none();
            }
        }
        new
    }

    /// The watched directories at and below `below`. The root stands for all of them, those above it included.
    fn covered_at(&self, below: &Path) -> Vec<PathBuf> {
        if below == self.root {
            return self.covered.keys().cloned().collect();
        }
        let from = (Bound::Included(below), Bound::Unbounded);
        let covered = self.covered.range::<Path, _>(from).map(|(path, _)| path);
        covered
            .take_while(|path| path.starts_with(below))
            .cloned()
            .collect()
    }

    /// The existing directories at and below `below`. If that is the root, the nearest existing
    /// directory above it is included.
    fn find(&self, below: &Path) -> FoundDirectories {
        let mut found = BTreeMap::new();
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
        // Only the root may be a symbolic link.
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
        found
    }

    /// Notes why a directory is not watched. One that has ended needs no watch.
    fn note_failure(&mut self, error: io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.failed_at = Instant::now();
            let error = limit_named(error, "watches");
            // The sentence is the same for all directories, so that a reader can tell a new problem from an old one.
            self.problem = Some(format!(
                "some changes below {} are not noticed: {error}",
                self.root.display()
            ));
        }
    }

    /// Watches a directory. Returns whether that was possible.
    fn add(&mut self, path: PathBuf, inode: u64, only: Option<OsString>) -> bool {
        let mut watched = match self.watches.add(&path, CHANGES) {
            Ok(watched) => vec![watched],
            Err(error) => {
                self.note_failure(error);
                return false;
            }
        };
        let mut is_complete = true;
        // Some kernels and some cgroups lack the file. Then the watch of the directory is enough.
        if let Some(file) = self.file.filter(|_| only.is_none()) {
            match self.watches.add(path.join(file), WatchMask::MODIFY) {
                Ok(file) => watched.push(file),
                Err(error) => {
                    is_complete = error.kind() == io::ErrorKind::NotFound;
                    self.note_failure(error);
                }
            }
        }
        for watched in &watched {
            // A renamed directory keeps the same watch, and the old path is no longer covered.
            let before = self.directories.insert(watched.clone(), path.clone());
            if let Some(before) = before.filter(|before| *before != path) {
                self.covered.remove(&before);
            }
        }
        let directory = WatchedDirectory {
            inode,
            watched,
            is_complete,
            only,
        };
        self.covered.insert(path, directory);
        true
    }
}

/// Registers a descriptor, so that tasks can wait until it is readable.
fn registered(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open, and an `OwnedFd` keeps it open, and the same, until it is
    // dropped.
    #[allow(unsafe_code)]
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    Ok(registered?)
}

/// An error of inotify. The kernel reports its limits as a full disk and as too many open files.
fn limit_named(error: io::Error, limit: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::StorageFull => {}
        _ if limit == "instances" && error.raw_os_error() == Some(nix::libc::EMFILE) => {}
        _ => return error,
    }
    io::Error::other(format!(
        "the limit of inotify {limit} is reached: raise fs.inotify.max_user_{limit} with sysctl, or end programs that \
         watch many files"
    ))
}

/// Finds a directory and those up to `depth` levels below, with their inodes.
fn descend(dir: &Path, inode: u64, depth: usize, found: &mut FoundDirectories) {
    found.insert(dir.to_owned(), (inode, None));
    if depth == 0 {
        return;
    }
    let entries = file::list(dir).unwrap_or_default();
    for entry in entries.iter().filter(|entry| entry.is_directory) {
        descend(&dir.join(&entry.name), entry.inode, depth - 1, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time limit for an event, which only a failure uses up.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_watches_of_removed_directories_end() {
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
                tokio::time::timeout(PATIENCE, watch.changed())
                    .await
                    .unwrap()
                    .unwrap();
            }
        }
        // The root is removed and created again.
        std::fs::remove_dir(&root).unwrap();
        std::fs::create_dir(&root).unwrap();
        watch.changed().await.unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        tokio::time::timeout(PATIENCE, watch.changed())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(watch.covered.len(), few);
        // A new directory beside the root causes no event.
        std::fs::create_dir(dir.path().join("other")).unwrap();
        let events = tokio::time::timeout(Duration::from_millis(100), watch.changed()).await;
        assert!(events.is_err(), "{events:?}");
    }

    /// Runs a test again as a process in a user namespace of its own, which has its own limit of
    /// watches. Returns whether this is that process.
    fn has_own_limit(test: &str) -> bool {
        const VARIABLE: &str = "PINFOLD_TEST_OWN_LIMIT";
        if std::env::var_os(VARIABLE).is_some() {
            return true;
        }
        let output = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("host::watch::tests::{test}"),
                "--nocapture",
            ])
            .env(VARIABLE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{output:?}"
        );
        false
    }

    fn limit_watches(count: u32) {
        std::fs::write("/proc/sys/user/max_inotify_watches", count.to_string()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn directories_beyond_the_limit_are_named_and_tried_again() {
        if !has_own_limit("directories_beyond_the_limit_are_named_and_tried_again") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for pod in ["a", "b", "c"] {
            std::fs::create_dir_all(dir.path().join(pod)).unwrap();
        }
        limit_watches(2);
        let mut watch = Watch::new(dir.path(), 1).unwrap();
        let problem = watch.problem().unwrap().to_owned();
        assert!(
            problem.contains("are not noticed: the limit of inotify watches is reached: raise fs.inotify.max_user_watches"),
            "{problem}"
        );
        // Nothing changes in the directories. Time passes, and the limit is still there.
        let waited = tokio::time::timeout(RETRY * 3, watch.changed()).await;
        assert!(waited.is_err() && watch.problem().is_some(), "{waited:?}");
        limit_watches(100);
        watch.changed().await.unwrap();
        assert_eq!(watch.problem(), None);
        assert_eq!(watch.covered.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_beyond_the_limit_is_named_and_tried_again() {
        if !has_own_limit("a_file_beyond_the_limit_is_named_and_tried_again") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("a");
        std::fs::create_dir(&pod).unwrap();
        std::fs::write(pod.join("state"), "").unwrap();
        // The root, the directory above it, and the pod, but not the pod's file.
        limit_watches(3);
        let mut watch = Watch::with_file(dir.path(), 1, Some("state")).unwrap();
        assert!(watch.problem().is_some());
        // Another directory changes, and the problem stays.
        std::fs::write(dir.path().join("other"), "").unwrap();
        watch.changed().await.unwrap();
        assert!(watch.problem().is_some());
        limit_watches(100);
        watch.changed().await.unwrap();
        assert_eq!(watch.problem(), None);
        assert!(watch.covered[&pod].is_complete);
    }

    #[tokio::test]
    async fn a_directory_tells_the_only_file_that_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("a");
        std::fs::create_dir(&pod).unwrap();
        let mut watch = Watch::new(dir.path(), 1).unwrap();
        for (written, expected) in [
            (&["cpus"][..], Some("cpus")),
            (&["cpus", "cpus"], Some("cpus")),
            (&["cpus", "mems"], None),
            (&["mems", "cpus"], None),
        ] {
            // The files exist, as in a cgroup.
            for file in ["cpus", "mems"] {
                std::fs::write(pod.join(file), "").unwrap();
            }
            watch.take().unwrap();
            for file in written {
                std::fs::write(pod.join(file), "1").unwrap();
            }
            let changes = watch.take().unwrap().unwrap();
            let only = changes.directories[&pod].as_deref();
            assert_eq!(only, expected.map(OsStr::new), "{written:?}");
        }
        // A directory that comes as well is more than a written file.
        std::fs::write(pod.join("cpus"), "1").unwrap();
        std::fs::create_dir(pod.join("inside")).unwrap();
        let changes = watch.take().unwrap().unwrap();
        assert_eq!(changes.directories[&pod], None);
    }

    #[tokio::test]
    async fn a_renamed_directory_stays_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("x")).unwrap();
        let mut watch = Watch::new(root, 2).unwrap();
        // The first new name sorts before the old name, the second new name after.
        for (from, to) in [("x", "b"), ("b", "y")] {
            std::fs::rename(root.join(from), root.join(to)).unwrap();
            watch.changed().await.unwrap();
            let inside = root.join(to).join("inside");
            std::fs::create_dir(&inside).unwrap();
            while !watch.covered.contains_key(&inside) {
                tokio::time::timeout(PATIENCE, watch.changed())
                    .await
                    .unwrap()
                    .unwrap();
            }
            assert_eq!(watch.covered.len(), 4, "{:?}", watch.covered.keys());
            std::fs::remove_dir(&inside).unwrap();
            watch.changed().await.unwrap();
            assert_eq!(watch.covered.len(), watch.directories.len());
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
        // Events of the directories above may still be queued, so the test waits for the state, not
        // for an event.
        while !root.join("burstable/pod1/done").exists() {
            tokio::time::timeout(PATIENCE, watch.changed())
                .await
                .unwrap()
                .unwrap();
            if watch.covered.contains_key(&root.join("burstable/pod1")) {
                std::fs::create_dir(root.join("burstable/pod1/done")).unwrap();
            }
        }
        tokio::time::timeout(PATIENCE, watch.changed())
            .await
            .unwrap()
            .unwrap();
    }
}
