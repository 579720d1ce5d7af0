//! The hierarchies in which the kernel looks up the cgroup of a socket or of a performance event.
//! For a socket that is always [`Unified`], the hierarchy of version 2, even if all controllers are
//! on version 1. For an event it is the hierarchy of `perf_event`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cgroups::{CgroupVersion, Cgroups, populated};
use crate::host::file;

/// The hierarchy of version 2.
#[derive(Debug, Clone)]
pub struct Unified {
    root: PathBuf,
}

// === impl Unified ===

impl Unified {
    /// The hierarchy mounted at `cgroup_root`, or at `unified` beside the controllers of version 1.
    pub fn find(cgroup_root: &Path) -> Option<Self> {
        let directories = [cgroup_root.to_owned(), cgroup_root.join("unified")];
        let root = directories
            .into_iter()
            .find(|directory| directory.join("cgroup.controllers").exists())?;
        Some(Self { root })
    }

    /// The hierarchy's mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether processes run in a cgroup or below it.
    pub fn is_populated(&self, path: &str) -> bool {
        matches!(populated(&self.root.join(path)), Ok(Some(true)))
    }

    /// The ids of a cgroup and of all cgroups below; empty if it does not exist. An id is a
    /// directory's inode number.
    ///
    /// # Errors
    /// A directory can't be read.
    pub fn ids(&self, path: &str) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut left = vec![self.root.join(path)];
        while let Some(dir) = left.pop() {
            let read = || -> io::Result<_> { Ok((file::list(&dir)?, fs::metadata(&dir)?.ino())) };
            let (entries, id) = match read() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read?,
            };
            found.push(id);
            let directories = entries.iter().filter(|entry| entry.is_directory);
            left.extend(directories.map(|entry| dir.join(&entry.name)));
        }
        Ok(found)
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// The cgroup's directory for counting events. It lies in the unified hierarchy, or in that of
    /// `perf_event` if the controller is mounted separately. `None` if the cgroup has no processes
    /// there.
    pub fn event_directory(&self, path: &str) -> Option<PathBuf> {
        let top = match self.version {
            CgroupVersion::V2 => self.cpuset.clone(),
            CgroupVersion::V1 => {
                let mounts = self.cpuset.parent()?;
                let own = mounts.join("perf_event");
                if own.is_dir() {
                    own
                } else {
                    mounts.join("unified")
                }
            }
        };
        let directory = top.join(path);
        // A container may keep its processes in cgroups below. On version 2, `cgroup.events` covers
        // those at once.
        if let Ok(Some(populated)) = populated(&directory) {
            return populated.then_some(directory);
        }
        let processes = fs::read_to_string(directory.join("cgroup.procs")).ok()?;
        (!processes.trim().is_empty()).then_some(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_where_either_version_has_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(Unified::find(root.path()).is_none());
        let beside = root.path().join("unified");
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("cgroup.controllers"), "").unwrap();
        assert_eq!(Unified::find(root.path()).unwrap().root(), beside);
        fs::write(root.path().join("cgroup.controllers"), "cpuset\n").unwrap();
        assert_eq!(Unified::find(root.path()).unwrap().root(), root.path());
    }

    #[test]
    fn a_cgroup_has_a_number_and_so_have_those_below() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let unified = Unified::find(root.path()).unwrap();
        let below = root.path().join("pod/c1/init.scope");
        fs::create_dir_all(&below).unwrap();
        fs::write(
            root.path().join("pod/cgroup.events"),
            "populated 1\nfrozen 0\n",
        )
        .unwrap();
        fs::write(
            root.path().join("pod/c1/cgroup.events"),
            "populated 0\nfrozen 1\n",
        )
        .unwrap();
        let ids = unified.ids("pod").unwrap();
        assert_eq!(ids.len(), 3);
        assert!(ids.contains(&fs::metadata(&below).unwrap().ino()));
        assert!(unified.ids("other").unwrap().is_empty());
        let populated = ["pod", "pod/c1", "other"].map(|path| unified.is_populated(path));
        assert_eq!(populated, [true, false, false]);
    }

    #[test]
    fn a_cgroup_counts_where_its_processes_are() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |hierarchy: &str, text: &str| {
            let directory = root.join(hierarchy).join("kubepods/a");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), text).unwrap();
            directory
        };
        put("cpuset", "7\n");
        fs::write(root.join("cpuset/cpuset.cpus"), "0-1\n").unwrap();
        let cgroups = Cgroups::detect(root).unwrap();
        assert_eq!(
            (cgroups.version, cgroups.event_directory("kubepods/a")),
            (CgroupVersion::V1, None)
        );
        put("unified", "");
        assert_eq!(
            cgroups.event_directory("kubepods/a"),
            None,
            "nobody is in it"
        );
        let unified = put("unified", "7\n");
        assert_eq!(
            cgroups.event_directory("kubepods/a").as_ref(),
            Some(&unified)
        );
        for (populated, expected) in [("populated 1\n", Some(&unified)), ("populated 0\n", None)] {
            fs::write(unified.join("cgroup.events"), populated).unwrap();
            assert_eq!(cgroups.event_directory("kubepods/a").as_ref(), expected);
        }
        let own = put("perf_event", "7\n");
        assert_eq!(
            cgroups.event_directory("kubepods/a"),
            Some(own),
            "then the unified one does not count"
        );
    }
}
