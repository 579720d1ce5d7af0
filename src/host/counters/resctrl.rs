//! The resource control file system (resctrl): cache occupancy and memory traffic of sets of CPUs.
//!
//! Pinfold makes and removes only its own monitoring groups, recognized by a prefix, below the root
//! group. It binds a group to CPUs and never to tasks, so the group monitors all tasks on the CPUs,
//! except those in groups of other programs. Monitoring limits nothing and moves nothing. Pinfold
//! never mounts the file system, because a mount would put limits of other programs into force.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cpu::CpuSet;
use crate::host::file::{self, FileError};

/// The prefix of the names of Pinfold's groups.
pub const GROUP_PREFIX: &str = "pinfold-";

/// Why monitoring is impossible, or why an operation on a group failed.
#[derive(Debug, thiserror::Error)]
pub enum ResctrlError {
    /// The machine offers no monitoring, or doesn't let Pinfold monitor. The text has the reason
    /// and the remedy.
    #[error("{0}")]
    Unsupported(String),
    /// All hardware monitors are in use, or wait until the data of a former group has left the
    /// cache.
    #[error("can't make another monitoring group: all RMIDs are in use ({})", .0.display())]
    Exhausted(PathBuf),
    /// A group can't be made or removed, or the groups can't be listed.
    #[error("can't make, remove or list {}", path.display())]
    Directory {
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refuses to bind a group to the CPUs.
    #[error("the kernel does not bind a monitoring group to {}: {says}", cpus.in_words())]
    Refused {
        cpus: CpuSet,
        /// The kernel's reason, from `info/last_cmd_status`.
        says: String,
    },
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds unexpected text.
    #[error("{} holds {text:?}, which can't be read", path.display())]
    Unreadable {
        path: PathBuf,
        /// The file's text.
        text: String,
    },
}

type Result<T, E = ResctrlError> = std::result::Result<T, E>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// A number of bytes.
    Bytes(u64),
    /// No hardware counter is assigned to the group at the moment.
    Unassigned,
    /// The hardware could not read the counter at the moment.
    Unknown,
}

/// The counters of a group for a single last-level cache; `None` for those that the CPU lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheCounters {
    pub id: String,
    /// Bytes of the cache in use by the group.
    pub occupancy: Option<Count>,
    /// Bytes moved to and from all memory, since the group was made.
    pub total: Option<Count>,
    /// Like `total`, for memory on the cache's own NUMA node only.
    pub local: Option<Count>,
}

/// The operations on the directories of groups. Tests replace them, because only the kernel fills
/// new directories and refuses CPUs.
#[derive(Debug, Clone, Copy)]
struct DirectoryOperations {
    make: fn(&Path) -> io::Result<()>,
    remove: fn(&Path) -> io::Result<()>,
    bind: fn(&Path, &str) -> Result<(), FileError>,
}

/// The resctrl file system below a root.
#[derive(Debug, Clone)]
pub struct Resctrl {
    top: PathBuf,
    operations: DirectoryOperations,
}

// === impl Resctrl ===

impl Resctrl {
    /// The file system of the machine with `sys` below `root`.
    pub fn new(root: &Path) -> Self {
        let operations = DirectoryOperations {
            make: |path| fs::create_dir(path),
            remove: |path| fs::remove_dir(path),
            bind: file::write,
        };
        Self {
            top: root.join("sys/fs/resctrl"),
            operations,
        }
    }

    /// The largest possible number of Pinfold's groups: the number of hardware monitors (RMIDs)
    /// without those of all other groups.
    ///
    /// # Errors
    /// Monitoring is impossible. The error says why, and what to do about it.
    pub fn available_groups(&self) -> Result<usize> {
        let (top, unsupported) = (self.top.display(), |text| {
            Err(ResctrlError::Unsupported(text))
        });
        if !self.top.is_dir() {
            return unsupported(format!(
                "{top} is missing: this CPU or kernel does not support monitoring of caches and memory bandwidth \
                 (Intel RDT, AMD QoS, Arm MPAM)"
            ));
        }
        if !self.top.join("info").is_dir() {
            return unsupported(format!(
                "nothing is mounted on {top}: run \"mount -t resctrl resctrl {top}\" on the node; a pod needs the \
                 folder as a volume, too"
            ));
        }
        let path = self.top.join("info/L3_MON/num_rmids");
        let Some(text) = file::read_value_optional(&path)? else {
            return unsupported(format!(
                "{top} lacks info/L3_MON: this CPU can't monitor its last-level cache"
            ));
        };
        let Ok(all) = text.parse::<usize>() else {
            return Err(ResctrlError::Unreadable { path, text });
        };
        // The root group, each control group and each monitoring group use one monitor each.
        let mut others = 1;
        others += self
            .names(&self.monitoring())?
            .iter()
            .filter(|name| !name.starts_with(GROUP_PREFIX))
            .count();
        for name in self.names(&self.top)? {
            if !matches!(name.as_str(), "info" | "mon_data" | "mon_groups") {
                others += 1 + self.names(&self.top.join(name).join("mon_groups"))?.len();
            }
        }
        Ok(all.saturating_sub(others))
    }

    /// The names of Pinfold's groups; empty where nothing is mounted.
    ///
    /// # Errors
    /// The groups can't be listed.
    pub fn own_groups(&self) -> Result<Vec<String>> {
        let mut names = self.names(&self.monitoring())?;
        names.retain(|name| name.starts_with(GROUP_PREFIX));
        Ok(names)
    }

    /// Pinfold's groups, each with the CPUs bound to it.
    ///
    /// # Errors
    /// The groups can't be listed, or the CPUs of a group can't be read.
    pub fn groups(&self) -> Result<BTreeMap<String, CpuSet>> {
        let mut groups = BTreeMap::new();
        for name in self.own_groups()? {
            let path = self.group(&name).join("cpus_list");
            let Some(text) = file::read_value_optional(&path)? else {
                continue;
            };
            let Ok(cpus) = text.parse() else {
                return Err(ResctrlError::Unreadable { path, text });
            };
            groups.insert(name, cpus);
        }
        Ok(groups)
    }

    /// Makes a group without CPUs, which monitors nothing before [`Resctrl::bind`].
    ///
    /// # Errors
    /// All monitors are in use, perhaps only for a while, or groups can't be made.
    pub fn make(&self, name: &str) -> Result<()> {
        let path = self.group(name);
        (self.operations.make)(&path).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::ResourceBusy => {
                ResctrlError::Exhausted(self.monitoring())
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                let top = self.top.display();
                ResctrlError::Unsupported(format!(
                    "can't write to {top}: mount it read-write, and run the agent as root"
                ))
            }
            _ => ResctrlError::Directory { path, source },
        })
    }

    /// Binds a group to exactly the given CPUs, which leave their former group.
    ///
    /// # Errors
    /// Some CPU is offline, or belongs to a control group of another program.
    pub fn bind(&self, name: &str, cpus: &CpuSet) -> Result<()> {
        let path = self.group(name).join("cpus_list");
        match (self.operations.bind)(&path, &cpus.to_string()) {
            Err(error) if error.kernel_error().kind() == io::ErrorKind::InvalidInput => {}
            bound => return Ok(bound?),
        }
        let says = file::read_value(&self.top.join("info/last_cmd_status")).ok();
        let says = says.filter(|says| !says.is_empty() && says != "ok");
        Err(ResctrlError::Refused {
            cpus: cpus.clone(),
            says: says.unwrap_or_else(|| "no reason given".to_owned()),
        })
    }

    /// Removes a group of Pinfold. A missing group is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.group(name);
        match (self.operations.remove)(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ResctrlError::Directory { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Reads a group's counters, for each cache. With sub-NUMA clusters, the sum of a cache
    /// includes all of them, and none is reported separately.
    ///
    /// # Errors
    /// The group is missing, or a file can't be read.
    pub fn read(&self, name: &str) -> Result<Vec<CacheCounters>> {
        let data = self.group(name).join("mon_data");
        let mut domains = Vec::new();
        for directory in self.names(&data)? {
            let Some(number) = directory.strip_prefix("mon_L3_") else {
                continue;
            };
            let count = |file: &str| count(&data.join(&directory).join(file));
            domains.push(CacheCounters {
                // The number without leading zeros, like the kernel's `id` of the cache.
                id: number
                    .parse::<u32>()
                    .map_or_else(|_| number.to_owned(), |number| number.to_string()),
                occupancy: count("llc_occupancy")?,
                total: count("mbm_total_bytes")?,
                local: count("mbm_local_bytes")?,
            });
        }
        Ok(domains)
    }

    fn monitoring(&self) -> PathBuf {
        self.top.join("mon_groups")
    }

    fn group(&self, name: &str) -> PathBuf {
        self.monitoring().join(name)
    }

    /// The names of the directories in a directory; empty if that is missing.
    fn names(&self, path: &Path) -> Result<Vec<String>> {
        let entries = file::list_optional(path).map_err(|source| ResctrlError::Directory {
            path: path.to_owned(),
            source,
        })?;
        Ok(file::directory_names(entries))
    }
}

fn count(path: &Path) -> Result<Option<Count>> {
    let Some(text) = file::read_value_optional(path)? else {
        return Ok(None);
    };
    Ok(Some(match text.as_str() {
        "Unassigned" => Count::Unassigned,
        // The text is "Unavailable" or "Error", or a new word of a later kernel.
        other => other.parse().map_or(Count::Unknown, Count::Bytes),
    }))
}

#[cfg(test)]
pub(crate) mod tests;
