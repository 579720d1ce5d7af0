//! CPU time by cgroup, in nanoseconds, as exactly as the kernel counts it.

use std::path::Path;
use std::time::Duration;

use super::{CgroupError, Cgroups, file};

/// CPU time that a cgroup's tasks have used since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// By CPU, from CPU 0 on (cgroup v1).
    PerCpu(Vec<Duration>),
    /// On all CPUs together (cgroup v2).
    Total(Duration),
}

impl Cgroups {
    /// The CPU time of a cgroup; `""` is the root, which on v1 holds every task of the node. `None` where nothing counts it.
    ///
    /// # Errors
    /// The cgroup is gone, or its file can't be read.
    pub fn usage(&self, path: &str) -> Result<Option<Usage>, CgroupError> {
        let Some(cpuacct) = &self.cpuacct else {
            return Ok(None);
        };
        let dir = cpuacct.join(path);
        if let Some(text) = file::read_optional(&dir.join("cpuacct.usage_percpu"))? {
            let times = text
                .split_whitespace()
                .map(|ns| ns.parse().ok().map(Duration::from_nanos));
            return Ok(times.collect::<Option<Vec<_>>>().map(Usage::PerCpu));
        }
        total(&dir)
    }
}

fn total(dir: &Path) -> Result<Option<Usage>, CgroupError> {
    let text = file::read(&dir.join("cpu.stat"))?;
    let used = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
    Ok(used.map(|us| Usage::Total(Duration::from_micros(us))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_count() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        let cgroups = Cgroups::detect(dir.path()).unwrap();
        assert!(cgroups.usage("").unwrap_err().is_gone());
        std::fs::write(
            dir.path().join("cpu.stat"),
            "usage_usec 1500\nuser_usec 1000\n",
        )
        .unwrap();
        assert_eq!(
            cgroups.usage("").unwrap(),
            Some(Usage::Total(Duration::from_micros(1500)))
        );
        std::fs::write(dir.path().join("cpuacct.usage_percpu"), "12 34 \n").unwrap();
        let both = vec![Duration::from_nanos(12), Duration::from_nanos(34)];
        assert_eq!(cgroups.usage("").unwrap(), Some(Usage::PerCpu(both)));
        std::fs::write(dir.path().join("cpuacct.usage_percpu"), "12 x\n").unwrap();
        assert_eq!(cgroups.usage("").unwrap(), None);
    }
}
