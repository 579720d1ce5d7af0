//! The resource control file system (resctrl): cache occupancy and memory traffic of sets of CPUs.
//!
//! Pinfold makes and removes only its own monitoring groups, recognized by a prefix, below the root
//! group. Pinfold binds a group to CPUs and never to tasks. The group monitors all tasks on the
//! CPUs, except tasks in groups of other programs. Monitoring limits nothing and moves nothing.
//! Pinfold never mounts the file system, because a mount would put limits of other programs into
//! force.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::file::{self, FileError};
use crate::cpu::CpuSet;

/// The prefix of the names of Pinfold's groups.
pub const GROUP_PREFIX: &str = "pinfold-";

/// Why monitoring is impossible, or why an operation on a group failed.
#[derive(Debug, thiserror::Error)]
pub enum ResctrlError {
    /// The kernel lacks the file system, mostly because the CPU has no resources to control.
    #[error(
        "there is no {}: this CPU or kernel offers no monitoring of caches and memory bandwidth (Intel RDT, AMD QoS, Arm MPAM)",
        .0.display()
    )]
    NotOffered(PathBuf),
    /// The file system is not mounted, or the mount is invisible in the container.
    #[error(
        "nothing is mounted on {path}: run \"mount -t resctrl resctrl {path}\" on the node; a pod has to be given the \
         folder as a volume, too", path = .0.display()
    )]
    NotMounted(PathBuf),
    /// The file system offers control without monitoring.
    #[error("{} lacks info/L3_MON: this CPU can't monitor its last-level cache", .0.display())]
    NotMonitoring(PathBuf),
    /// The file system does not let Pinfold make groups.
    #[error("{} can't be written to: mount it read-write, for root", .0.display())]
    ReadOnly(PathBuf),
    /// All hardware monitors are in use, or wait until data of a former group has left the cache.
    #[error("no monitoring group can be made now: all RMIDs are in use ({})", .0.display())]
    Exhausted(PathBuf),
    /// A group can't be made or removed, or the groups can't be listed.
    #[error("can't make, remove or list {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refuses to bind a group to the CPUs.
    #[error("the kernel does not bind a monitoring group to {}: {says}", cpus.in_words())]
    Refused {
        /// The CPUs.
        cpus: CpuSet,
        /// The kernel's reason, from `info/last_cmd_status`.
        says: String,
    },
    /// A file can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds unexpected text.
    #[error("{} holds {text:?}, which can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The file's text.
        text: String,
    },
}

/// The value of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// A number of bytes.
    Bytes(u64),
    /// No hardware counter is assigned to the group at the moment.
    Unassigned,
    /// The hardware could not read the counter at the moment.
    Unknown,
}

/// The counters of a group for a single last-level cache. `None` marks a counter that the CPU lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheCounters {
    /// The cache's id.
    pub id: String,
    /// Bytes of the cache in use by the group.
    pub occupancy: Option<Count>,
    /// Bytes moved to and from all memory, since the group was made.
    pub total: Option<Count>,
    /// Like `total`, for memory on the cache's own NUMA node only.
    pub local: Option<Count>,
}

/// The operations on the folders of groups. Tests replace the operations, because only the kernel
/// fills new folders and refuses CPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folders {
    pub(crate) make: fn(&Path) -> io::Result<()>,
    pub(crate) remove: fn(&Path) -> io::Result<()>,
    pub(crate) bind: fn(&Path, &str) -> Result<(), FileError>,
}

/// The resctrl file system below a root.
#[derive(Debug, Clone)]
pub struct Resctrl {
    top: PathBuf,
    folders: Folders,
}

// === impl Resctrl ===

impl Resctrl {
    /// The file system of the machine with `sys` below `root`.
    pub fn new(root: &Path) -> Self {
        let folders = Folders {
            make: |path| fs::create_dir(path),
            remove: |path| fs::remove_dir(path),
            bind: file::write,
        };
        Self {
            top: root.join("sys/fs/resctrl"),
            folders,
        }
    }

    #[cfg(test)]
    pub(crate) fn with_folders(root: &Path, folders: Folders) -> Self {
        Self {
            folders,
            ..Self::new(root)
        }
    }

    /// The largest possible number of Pinfold's groups: the number of hardware monitors (RMIDs)
    /// without the monitors of all other groups.
    ///
    /// # Errors
    /// Monitoring is impossible. The error states the reason and the remedy.
    pub fn available_groups(&self) -> Result<usize, ResctrlError> {
        if !self.top.is_dir() {
            return Err(ResctrlError::NotOffered(self.top.clone()));
        }
        if !self.top.join("info").is_dir() {
            return Err(ResctrlError::NotMounted(self.top.clone()));
        }
        let path = self.top.join("info/L3_MON/num_rmids");
        let Some(text) = file::read_value_optional(&path)? else {
            return Err(ResctrlError::NotMonitoring(self.top.clone()));
        };
        let Ok(all) = text.parse::<usize>() else {
            return Err(ResctrlError::Unreadable { path, text });
        };
        // The root group, each control group and each monitoring group use a monitor each.
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
    pub fn own_groups(&self) -> Result<Vec<String>, ResctrlError> {
        let mut names = self.names(&self.monitoring())?;
        names.retain(|name| name.starts_with(GROUP_PREFIX));
        Ok(names)
    }

    /// Pinfold's groups, each with the CPUs bound to the group.
    ///
    /// # Errors
    /// The groups can't be listed, or the CPUs of a group can't be read.
    pub fn groups(&self) -> Result<BTreeMap<String, CpuSet>, ResctrlError> {
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

    /// Makes a group without CPUs. The group monitors nothing before [`Resctrl::bind`].
    ///
    /// # Errors
    /// All monitors are in use, perhaps only for a while, or groups can't be made.
    pub fn make(&self, name: &str) -> Result<(), ResctrlError> {
        let path = self.group(name);
        (self.folders.make)(&path).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::ResourceBusy => {
                ResctrlError::Exhausted(self.monitoring())
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                ResctrlError::ReadOnly(self.top.clone())
            }
            _ => ResctrlError::Folder { path, source },
        })
    }

    /// Binds a group to exactly the given CPUs. The CPUs leave their former group.
    ///
    /// # Errors
    /// Some CPU is offline, or belongs to a control group of another program.
    pub fn bind(&self, name: &str, cpus: &CpuSet) -> Result<(), ResctrlError> {
        let written = (self.folders.bind)(&self.group(name).join("cpus_list"), &cpus.to_string());
        let Err(FileError::Write { path, data, source }) = written else {
            return Ok(written?);
        };
        if source.kind() != io::ErrorKind::InvalidInput {
            return Err(FileError::Write { path, data, source }.into());
        }
        let says = file::read_value_optional(&self.top.join("info/last_cmd_status"))
            .ok()
            .flatten();
        let says = says.filter(|says| !says.is_empty() && says != "ok");
        Err(ResctrlError::Refused {
            cpus: cpus.clone(),
            says: says.unwrap_or_else(|| "it does not say why".to_owned()),
        })
    }

    /// Removes a group of Pinfold. A missing group is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, name: &str) -> Result<(), ResctrlError> {
        let path = self.group(name);
        match (self.folders.remove)(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ResctrlError::Folder { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Reads a group's counters, for each cache. With sub-NUMA clusters, the sum of a cache
    /// includes all clusters, and no cluster is reported separately.
    ///
    /// # Errors
    /// The group is missing, or a file can't be read.
    pub fn read(&self, name: &str) -> Result<Vec<CacheCounters>, ResctrlError> {
        let data = self.group(name).join("mon_data");
        let mut domains = Vec::new();
        for folder in self.names(&data)? {
            let Some(number) = folder.strip_prefix("mon_L3_") else {
                continue;
            };
            let count = |file: &str| count(&data.join(&folder).join(file));
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

    /// The names of the folders in a folder; empty where the folder is missing.
    fn names(&self, path: &Path) -> Result<Vec<String>, ResctrlError> {
        let entries = file::list_optional(path).map_err(|source| ResctrlError::Folder {
            path: path.to_owned(),
            source,
        })?;
        let folders = entries.into_iter().filter(|entry| entry.is_folder);
        Ok(folders.map(|entry| entry.name).collect())
    }
}

fn count(path: &Path) -> Result<Option<Count>, ResctrlError> {
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
pub(crate) mod tests {
    use super::*;

    /// A tree of files in which mkdir and rmdir behave as the kernel's documentation says. A new
    /// group gets files and takes a monitor. The file `limbo` holds the number of monitors in
    /// limbo.
    pub(crate) fn tree(root: &Path, rmids: usize) -> Resctrl {
        let top = root.join("sys/fs/resctrl");
        fs::create_dir_all(top.join("mon_groups")).unwrap();
        fs::create_dir_all(top.join("info/L3_MON")).unwrap();
        fs::write(top.join("info/L3_MON/num_rmids"), format!("{rmids}\n")).unwrap();
        Resctrl::with_folders(
            root,
            Folders {
                make,
                remove: |path| fs::remove_dir_all(path),
                bind,
            },
        )
    }

    /// Refuses CPUs listed in the file `refused`, as the kernel refuses CPUs of another control
    /// group.
    fn bind(path: &Path, cpus: &str) -> Result<(), FileError> {
        let top = path.ancestors().nth(3).unwrap();
        let refused = fs::read_to_string(top.join("refused")).unwrap_or_default();
        if !refused.is_empty() && !set(refused.trim()).is_disjoint(&set(cpus)) {
            let source = io::Error::from_raw_os_error(22);
            return Err(FileError::Write {
                path: path.to_owned(),
                data: cpus.to_owned(),
                source,
            });
        }
        file::write(path, cpus)
    }

    fn make(path: &Path) -> io::Result<()> {
        let top = path.parent().unwrap().parent().unwrap();
        let number = |file: &str| -> usize {
            fs::read_to_string(top.join(file))
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let used = 1 + fs::read_dir(path.parent().unwrap()).unwrap().count();
        if used >= number("info/L3_MON/num_rmids") {
            return Err(io::Error::from_raw_os_error(28));
        }
        if used + number("limbo") >= number("info/L3_MON/num_rmids") {
            return Err(io::Error::from_raw_os_error(16));
        }
        fs::create_dir(path)?;
        fs::write(path.join("cpus_list"), "\n")?;
        fs::write(path.join("tasks"), "")?;
        for domain in ["mon_L3_00", "mon_L3_01"] {
            let domain = path.join("mon_data").join(domain);
            fs::create_dir_all(&domain)?;
            for file in ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"] {
                fs::write(domain.join(file), "0\n")?;
            }
        }
        Ok(())
    }

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let resctrl = Resctrl::new(root.path());
        let says = || resctrl.available_groups().unwrap_err().to_string();
        assert!(says().contains("no monitoring of caches"), "{}", says());
        let top = root.path().join("sys/fs/resctrl");
        fs::create_dir_all(&top).unwrap();
        assert!(
            says().contains(&format!("mount -t resctrl resctrl {}", top.display())),
            "{}",
            says()
        );
        fs::create_dir_all(top.join("info")).unwrap();
        assert!(says().contains("info/L3_MON"), "{}", says());
        fs::create_dir_all(top.join("info/L3_MON")).unwrap();
        fs::write(top.join("info/L3_MON/num_rmids"), "many\n").unwrap();
        assert!(says().contains("\"many\""), "{}", says());
    }

    #[test]
    fn others_have_their_monitors() {
        let root = tempfile::tempdir().unwrap();
        let resctrl = tree(root.path(), 10);
        assert_eq!(
            resctrl.available_groups().unwrap(),
            9,
            "the root group has one"
        );
        let top = root.path().join("sys/fs/resctrl");
        for folder in [
            "mon_data",
            "gold/mon_groups/a",
            "gold/mon_groups/b",
            "mon_groups/theirs",
            "mon_groups/pinfold-a",
        ] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        assert_eq!(resctrl.available_groups().unwrap(), 5);
    }

    #[test]
    fn groups_come_and_go() {
        let root = tempfile::tempdir().unwrap();
        let resctrl = tree(root.path(), 3);
        resctrl.make("pinfold-a").unwrap();
        resctrl.bind("pinfold-a", &set("2-3,8")).unwrap();
        let top = root.path().join("sys/fs/resctrl");
        fs::create_dir_all(top.join("mon_groups/theirs")).unwrap();
        assert_eq!(
            resctrl.groups().unwrap(),
            BTreeMap::from([("pinfold-a".to_owned(), set("2-3,8"))])
        );
        assert!(
            matches!(resctrl.make("pinfold-b"), Err(ResctrlError::Exhausted(_))),
            "ENOSPC"
        );
        fs::remove_dir(top.join("mon_groups/theirs")).unwrap();
        fs::write(top.join("limbo"), "1").unwrap();
        assert!(
            matches!(resctrl.make("pinfold-b"), Err(ResctrlError::Exhausted(_))),
            "EBUSY"
        );
        resctrl.remove("pinfold-a").unwrap();
        resctrl.remove("pinfold-a").unwrap();
        assert!(resctrl.groups().unwrap().is_empty());
        assert!(matches!(
            resctrl.bind("pinfold-a", &set("2")),
            Err(ResctrlError::File(_))
        ));
    }

    #[test]
    fn domains_are_read_one_by_one() {
        let root = tempfile::tempdir().unwrap();
        let resctrl = tree(root.path(), 3);
        resctrl.make("pinfold-a").unwrap();
        let data = root
            .path()
            .join("sys/fs/resctrl/mon_groups/pinfold-a/mon_data");
        fs::write(data.join("mon_L3_00/llc_occupancy"), "4096\n").unwrap();
        fs::write(data.join("mon_L3_00/mbm_total_bytes"), "Unassigned\n").unwrap();
        fs::write(data.join("mon_L3_01/llc_occupancy"), "Unavailable\n").unwrap();
        fs::write(data.join("mon_L3_01/mbm_total_bytes"), "Error\n").unwrap();
        fs::remove_file(data.join("mon_L3_01/mbm_local_bytes")).unwrap();
        // Parts of a cache, and a different resource.
        for other in [
            "mon_L3_00/mon_sub_L3_00",
            "mon_sub_L3_01",
            "mon_PERF_PKG_00",
        ] {
            fs::create_dir_all(data.join(other)).unwrap();
            fs::write(data.join(other).join("llc_occupancy"), "4096\n").unwrap();
        }
        let zero = CacheCounters {
            id: "0".to_owned(),
            occupancy: Some(Count::Bytes(4096)),
            total: Some(Count::Unassigned),
            local: Some(Count::Bytes(0)),
        };
        let one = CacheCounters {
            id: "1".to_owned(),
            occupancy: Some(Count::Unknown),
            total: Some(Count::Unknown),
            local: None,
        };
        assert_eq!(resctrl.read("pinfold-a").unwrap(), [zero, one]);
    }
}
