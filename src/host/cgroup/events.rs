//! In which hierarchy the kernel tells cgroups apart when it counts events.

use std::fs;
use std::path::PathBuf;

use super::{Cgroups, Version};

impl Cgroups {
    /// The folder that stands for a cgroup when events are counted for it: in the unified hierarchy, or in that of the controller
    /// `perf_event` where it is mounted by itself. `None` where the cgroup has no processes there.
    pub fn event_folder(&self, path: &str) -> Option<PathBuf> {
        let top = match self.version {
            Version::V2 => self.cpuset.clone(),
            Version::V1 => {
                let mounts = self.cpuset.parent()?;
                let own = mounts.join("perf_event");
                if own.is_dir() {
                    own
                } else {
                    mounts.join("unified")
                }
            }
        };
        let folder = top.join(path);
        // What runs may have made cgroups of its own below, and be in these; version 2 tells it at once.
        if let Ok(events) = fs::read_to_string(folder.join("cgroup.events")) {
            return events
                .lines()
                .any(|line| line == "populated 1")
                .then_some(folder);
        }
        let processes = fs::read_to_string(folder.join("cgroup.procs")).ok()?;
        (!processes.trim().is_empty()).then_some(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_counts_where_its_processes_are() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |hierarchy: &str, text: &str| {
            let folder = root.join(hierarchy).join("kubepods/a");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), text).unwrap();
            folder
        };
        put("cpuset", "7\n");
        fs::write(root.join("cpuset/cpuset.cpus"), "0-1\n").unwrap();
        let cgroups = Cgroups::detect(root).unwrap();
        assert_eq!(
            (cgroups.version, cgroups.event_folder("kubepods/a")),
            (Version::V1, None)
        );
        put("unified", "");
        assert_eq!(cgroups.event_folder("kubepods/a"), None, "nobody is in it");
        let unified = put("unified", "7\n");
        assert_eq!(cgroups.event_folder("kubepods/a").as_ref(), Some(&unified));
        for (populated, expected) in [("populated 1\n", Some(&unified)), ("populated 0\n", None)] {
            fs::write(unified.join("cgroup.events"), populated).unwrap();
            assert_eq!(cgroups.event_folder("kubepods/a").as_ref(), expected);
        }
        let own = put("perf_event", "7\n");
        assert_eq!(
            cgroups.event_folder("kubepods/a"),
            Some(own),
            "then the unified one does not count"
        );
    }
}
