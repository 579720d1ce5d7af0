//! cgroups: the mounted hierarchies, the cgroups of pods and containers, and the CPUs of each
//! cgroup.
//!
//! Paths of cgroups are relative to the hierarchy's mount point, without a slash in front:
//! `kubepods/pod1/c0ffee`. On cgroup v1 the same path is looked up in each controller's hierarchy.

mod counters;
mod layout;
mod memory;
mod namespace;
mod note;
mod partition;
mod quota;
mod systemd;
mod tree;
mod unified;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use nix::errno::Errno;
use serde::Serialize;

use super::file::{self, FileError};
use crate::cpu::CpuSet;

pub use counters::{Counters, CpuStat, OfCgroup, Pressure, RESOURCES, Usage};
pub use layout::{is_below, is_within};
pub use memory::{Memory, Pages};
pub use namespace::join_host;
pub use note::About;
pub use partition::{Above, Kind, PARTITION, Partition, Surroundings};
pub use quota::{Quota, QuotaError, lifted};
use systemd::Systemd;
pub use systemd::SystemdError;
pub use tree::{ContainerCgroup, PodCgroup};
pub use unified::Unified;

/// The version of the hierarchy with the cpuset controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// A separate hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The mounted hierarchies that Pinfold uses.
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// Version of the cpuset hierarchy.
    pub version: Version,
    cpuset: PathBuf,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    /// systemd, if systemd owns slices and scopes. The CPUs of slices and scopes are then set
    /// through systemd.
    systemd: Option<Arc<Systemd>>,
    /// Further hierarchies in which [`Cgroups::create`] makes a container's cgroup.
    others: Vec<PathBuf>,
}

/// The reason why cgroups can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No hierarchy has the cpuset controller.
    #[error(
        "no cgroup hierarchy with the cpuset controller below {}: mount cgroup v2 there, or cgroup v1 with cpuset at \
         {}/cpuset, or name the right folder with --cgroup-root", root.display(), root.display()
    )]
    NoCpuset {
        /// The searched folder.
        root: PathBuf,
    },
    /// A file of a cgroup can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A CPU list from the kernel can't be parsed.
    #[error("{} holds no CPU list", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: crate::cpu::ParseCpuSetError,
    },
    /// The CPU quota can't be read or written.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// systemd did not set a property of a unit.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The kernel accepted the write of a partition and made no partition.
    #[error("the kernel makes no partition: {} says {says:?}", path.display())]
    Partition {
        /// The file.
        path: PathBuf,
        /// The file's text.
        says: String,
    },
    /// A directory could not be made, listed or removed, or an attribute could not be read or set.
    #[error("can't {operation} cgroup {}", path.display())]
    Directory {
        /// The operation.
        operation: &'static str,
        /// The cgroup.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The limit of attempts to write a set while new cgroups are in the way.
const TRIES: usize = 4;

impl CgroupError {
    /// Whether the cgroup is gone, which happens in normal operation.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::File(error) => error.is_gone(),
            Self::Quota(error) => error.gone,
            Self::Directory { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(Errno::ENODEV as i32)
            }
            _ => false,
        }
    }
}

/// A cgroup's CPUs as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cpuset {
    /// The written CPUs (`cpuset.cpus`); empty on v2 if nothing was written.
    pub cpus: CpuSet,
    /// The effective CPUs.
    pub effective: CpuSet,
    /// The CPUs that the cgroup may hold as exclusive (`cpuset.cpus.exclusive`); empty if nothing
    /// was written.
    pub exclusive: CpuSet,
    /// The cgroup's partition state.
    pub partition: Partition,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds the hierarchies mounted at or below `root` (`/sys/fs/cgroup` on a usual machine).
    ///
    /// # Errors
    /// [`CgroupError::NoCpuset`] where no hierarchy has the cpuset controller.
    pub fn detect(root: &Path) -> Result<Self, CgroupError> {
        let named = |names: &[&str]| {
            names
                .iter()
                .map(|name| root.join(name))
                .find(|path| path.is_dir())
        };
        let cpu = named(&["cpu", "cpu,cpuacct"]);
        let cpuacct = named(&["cpuacct", "cpu,cpuacct"]);
        let v1 = root.join("cpuset");
        if v1.join("cpuset.cpus").exists() {
            let others = ["memory", "pids", "freezer", "devices", "blkio", "unified"];
            let others = others
                .iter()
                .map(|name| root.join(name))
                .filter(|path| path.is_dir())
                .collect();
            let (memory, pids, systemd) = (named(&["memory"]), named(&["pids"]), None);
            return Ok(Self {
                version: Version::V1,
                cpuset: v1,
                cpu,
                cpuacct,
                memory,
                pids,
                systemd,
                others,
            });
        }
        for v2 in [root.to_owned(), root.join("unified")] {
            let controllers =
                file::read_optional(&v2.join("cgroup.controllers"))?.unwrap_or_default();
            let has = |controller: &str| {
                controllers
                    .split_whitespace()
                    .any(|name| name == controller)
            };
            if has("cpuset") {
                // In a hybrid set-up, further controllers may be v1 hierarchies.
                let place = |controller: &str, v1: Option<PathBuf>| {
                    if has(controller) {
                        Some(v2.clone())
                    } else {
                        v1
                    }
                };
                return Ok(Self {
                    version: Version::V2,
                    cpu: place("cpu", cpu),
                    cpuacct: place("cpu", cpuacct),
                    memory: place("memory", named(&["memory"])),
                    pids: place("pids", named(&["pids"])),
                    systemd: None,
                    others: Vec::new(),
                    cpuset: v2,
                });
            }
        }
        Err(CgroupError::NoCpuset {
            root: root.to_owned(),
        })
    }

    /// Detects whether systemd runs on the node. `run` is the node's `/run` directory.
    ///
    /// systemd matters on cgroup v2 only, where units have a property for their CPUs. On v1,
    /// systemd leaves cpusets alone.
    pub fn heed_systemd(&mut self, run: &Path) {
        let runs = self.version == Version::V2 && systemd::runs(run);
        self.systemd = runs.then(Arc::default);
    }

    /// Whether the CPUs of slices and scopes are set through systemd.
    pub fn through_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// The mount point of the hierarchy with the cpuset controller.
    pub fn root(&self) -> &Path {
        &self.cpuset
    }

    /// Reads the CPUs of a cgroup.
    pub fn cpuset(&self, path: &str) -> Result<Cpuset, CgroupError> {
        let dir = self.cpuset.join(path);
        let effective = match self.version {
            Version::V1 => "cpuset.effective_cpus",
            Version::V2 => "cpuset.cpus.effective",
        };
        let cpus = cpu_list(&dir.join("cpuset.cpus"))?;
        // Before Linux 3.17 a v1 cpuset has no file of effective CPUs: the written CPUs are in
        // force.
        let effective = match file::read_value_optional(&dir.join(effective))? {
            Some(text) => parse(&dir.join(effective), &text)?,
            None => cpus.clone(),
        };
        let (exclusive, partition) = match self.version {
            Version::V1 => (CpuSet::new(), Partition::Unsupported),
            Version::V2 => (self.exclusive(path)?, self.partition(path)?),
        };
        Ok(Cpuset {
            cpus,
            effective,
            exclusive,
            partition,
        })
    }

    /// Sets the CPUs of a cgroup, through systemd if systemd owns the cgroup.
    ///
    /// On v1 a cgroup's set must contain the sets of the cgroups below. If a container has made
    /// cgroups of its own, their sets are narrowed first.
    pub fn set_cpus(&self, path: &str, cpus: &CpuSet) -> Result<(), CgroupError> {
        let busy = |error: &CgroupError| {
            let CgroupError::File(FileError::Write { source, .. }) = error else {
                return false;
            };
            self.version == Version::V1 && source.kind() == io::ErrorKind::ResourceBusy
        };
        for _ in 1..TRIES {
            match self.write_cpus(path, cpus) {
                // EBUSY: a process has meanwhile made a cgroup below with the old CPUs. The write
                // is repeated.
                Err(error) if busy(&error) => {}
                done => return done,
            }
        }
        self.write_cpus(path, cpus)
    }

    fn write_cpus(&self, path: &str, cpus: &CpuSet) -> Result<(), CgroupError> {
        let file = self.cpuset.join(path).join("cpuset.cpus");
        if self.version == Version::V1 {
            let old = cpu_list(&file)?;
            let children = self.children(path)?;
            if !children.is_empty() && !old.is_subset(cpus) {
                file::write(&file, &old.union(cpus).to_string())?;
                for child in children {
                    let path = format!("{path}/{child}");
                    let kept = self.cpuset(&path)?.cpus.intersection(cpus);
                    let narrowed = if kept.is_empty() { cpus } else { &kept };
                    ignore_gone(self.set_cpus(&path, narrowed))?;
                }
            }
        }
        if let Some((systemd, unit)) = self.systemd.as_ref().zip(systemd::unit(path)) {
            // The read fails if the cgroup is gone. Callers may ignore the read's error.
            file::read(&file)?;
            return Ok(systemd.set(unit, systemd::Property::Cpus, cpus, &file)?);
        }
        Ok(file::write(&file, &cpus.to_string())?)
    }

    /// The folders for watching a tree's changes: the folder of the CPU sets, and the folder of the
    /// quotas.
    pub fn folders(&self, tree: &str) -> Vec<PathBuf> {
        let roots = [
            Some(&self.cpuset),
            self.cpu.as_ref().filter(|cpu| **cpu != self.cpuset),
        ];
        roots
            .into_iter()
            .flatten()
            .map(|root| root.join(tree))
            .collect()
    }

    /// Whether the cgroups directly below `path` have CPU sets. On v2, `path` must enable the
    /// cpuset controller for the cgroups below.
    pub fn hands_down(&self, path: &str) -> Result<bool, CgroupError> {
        if self.version == Version::V1 {
            return Ok(true);
        }
        let control = file::read_optional(&self.cpuset.join(path).join("cgroup.subtree_control"))?;
        Ok(control.is_none_or(|control| control.split_whitespace().any(|name| name == "cpuset")))
    }

    /// Whether a CPU controller exists, with quotas and their statistics.
    pub fn counts_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Reads the CFS quota of a cgroup; `None` without a CPU controller.
    pub fn quota(&self, path: &str) -> Result<Option<Quota>, CgroupError> {
        let Some(cpu) = &self.cpu else {
            return Ok(None);
        };
        Ok(quota::read(&cpu.join(path), self.cpu_version())?)
    }

    /// Writes the CFS quota of a cgroup.
    pub fn set_quota(&self, path: &str, quota: Quota) -> Result<(), CgroupError> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        Ok(quota::write(&cpu.join(path), self.cpu_version(), quota)?)
    }

    /// Whether a cgroup or a cgroup below holds a process.
    pub fn is_populated(&self, path: &str) -> Result<bool, CgroupError> {
        let dir = self.cpuset.join(path);
        if self.version == Version::V2
            && let Some(populated) = unified::populated(&dir)?
        {
            return Ok(populated);
        }
        if !file::read_value(&dir.join("cgroup.procs"))?.is_empty() {
            return Ok(true);
        }
        for child in self.children(path)? {
            if ignore_gone(self.is_populated(&format!("{path}/{child}")))? == Some(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The process ids in a cgroup and in the cgroups below.
    pub fn processes(&self, path: &str) -> Result<Vec<i32>, CgroupError> {
        let dir = self.cpuset.join(path);
        let text = match file::read_value(&dir.join("cgroup.procs")) {
            // The processes of a threaded cgroup are listed in the domain cgroup above, which was
            // read before.
            Err(FileError::Read { source, .. })
                if source.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) =>
            {
                String::new()
            }
            text => text?,
        };
        let mut found: Vec<i32> = text
            .lines()
            .filter_map(|line| i32::from_str(line).ok())
            .collect();
        // The links to a directory come from the directory itself, its parent and each
        // subdirectory.
        if fs::metadata(&dir).is_ok_and(|dir| dir.nlink() <= 2) {
            return Ok(found);
        }
        for child in self.children(path)? {
            found.extend(
                ignore_gone(self.processes(&format!("{path}/{child}")))?.unwrap_or_default(),
            );
        }
        Ok(found)
    }

    /// The names of the cgroups directly below `path`.
    pub fn children(&self, path: &str) -> Result<Vec<String>, CgroupError> {
        directories(&self.cpuset.join(path))
    }

    fn cpu_version(&self) -> Version {
        // On a hybrid machine cpuset may be on v2 and cpu on v1.
        match &self.cpu {
            Some(cpu) if *cpu != self.cpuset => Version::V1,
            _ => self.version,
        }
    }
}

fn cpu_list(path: &Path) -> Result<CpuSet, CgroupError> {
    parse(path, &file::read_value(path)?)
}

fn parse(path: &Path, text: &str) -> Result<CpuSet, CgroupError> {
    text.parse().map_err(|source| CgroupError::Malformed {
        path: path.to_owned(),
        source,
    })
}

fn directories(path: &Path) -> Result<Vec<String>, CgroupError> {
    let entries = file::list(path).map_err(|source| CgroupError::Directory {
        operation: "list",
        path: path.to_owned(),
        source,
    })?;
    let folders = entries.into_iter().filter(|entry| entry.is_folder);
    Ok(folders.map(|entry| entry.name).collect())
}

/// Turns the error of a vanished cgroup into `None`.
fn ignore_gone<T>(result: Result<T, CgroupError>) -> Result<Option<T>, CgroupError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
