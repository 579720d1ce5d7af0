//! The types that the other files of the module share, and the reading of their files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::systemd::{Systemd, SystemdError};
use crate::cpu::CpuSet;
use crate::host::file::{self, FileError};

/// The version of the hierarchy with the cpuset controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// A separate hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The mounted hierarchies that Pinfold uses.
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// Version of the cpuset hierarchy.
    pub version: CgroupVersion,
    pub(super) cpuset: PathBuf,
    pub(super) cpu: Option<PathBuf>,
    pub(super) cpuacct: Option<PathBuf>,
    pub(super) memory: Option<PathBuf>,
    pub(super) pids: Option<PathBuf>,
    /// systemd, if it owns slices and scopes. Their CPUs are then set through it.
    pub(super) systemd: Option<Arc<Systemd>>,
    /// Further hierarchies in which [`Cgroups::create`] makes a container's cgroup.
    pub(super) others: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error(
        "no cgroup hierarchy with the cpuset controller below {}: mount cgroup v2 there, or cgroup v1 with cpuset at \
         {}/cpuset, or name the right folder with --cgroup-dir", root.display(), root.display()
    )]
    NoCpuset {
        /// The searched directory.
        root: PathBuf,
    },
    #[error(transparent)]
    File(#[from] FileError),
    /// A CPU list from the kernel can't be parsed.
    #[error("{} holds no CPU list", path.display())]
    Malformed {
        path: PathBuf,
        /// The parser's error.
        source: crate::cpu::ParseCpuSetError,
    },
    #[error("can't {operation} the CPU quota of cgroup {}", path.display())]
    Quota {
        operation: &'static str,
        path: PathBuf,
        is_gone: bool,
        /// The kernel's error, or the parser's.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The kernel accepted the write of a partition, but made no partition.
    #[error("the kernel made no partition: {} contains {says:?}", path.display())]
    Partition {
        path: PathBuf,
        /// The file's text.
        says: String,
    },
    /// A directory could not be made, listed or removed, or an attribute could not be read or set.
    #[error("can't {operation} cgroup {}", path.display())]
    Directory {
        operation: &'static str,
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

pub(super) type Result<T, E = CgroupError> = std::result::Result<T, E>;

/// A cgroup's CPUs as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cpuset {
    /// The written CPUs (`cpuset.cpus`); empty on v2 if nothing was written.
    pub cpus: CpuSet,
    pub effective: CpuSet,
    /// The CPUs that the cgroup may hold as exclusive (`cpuset.cpus.exclusive`); empty if nothing
    /// was written.
    pub exclusive: CpuSet,
    pub partition: Partition,
    /// On v1: the set from before the cgroup lost CPUs without an assignment record, because a
    /// cgroup above was narrowed or CPUs went offline. `None` if the cgroup lacks nothing, or has
    /// been written since.
    pub narrowed_from: Option<CpuSet>,
}

impl Cpuset {
    /// The written CPUs, or what they were before CPUs were taken from the cgroup.
    pub fn earlier(&self) -> &CpuSet {
        self.narrowed_from.as_ref().unwrap_or(&self.cpus)
    }
}

/// A CFS bandwidth limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time per period in microseconds; `None` for no limit.
    pub quota: Option<u64>,
    /// Length of a period in microseconds.
    pub period: u64,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota {
            Some(quota) => write!(f, "{quota}/{}", self.period),
            None => f.write_str("none"),
        }
    }
}

named! {
    /// The kinds of partition, with the words to write to `cpuset.cpus.partition`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PartitionKind {
        /// No partition: the cgroup shares CPUs with its siblings.
        Member => "member",
        /// A partition with a separate scheduling domain.
        Root => "root",
        /// A partition without load balancing, for programs that bind every thread.
        Isolated => "isolated",
    }
}

impl fmt::Display for PartitionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The partition state that the kernel reports for a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Partition {
    /// The kernel has no partitions below the top of the hierarchy.
    #[default]
    Unsupported,
    /// The requested kind is in force.
    Valid(PartitionKind),
    /// The requested kind is not in force. The text is the kernel's, like `root invalid (Parent is
    /// not a partition root)`.
    Invalid(String),
}

impl Partition {
    /// Whether the kernel now reserves the cgroup's exclusive CPUs for it.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// The kind of a partition in force; `None` for a member and for an invalid partition.
    pub fn live(&self) -> Option<PartitionKind> {
        match self {
            Self::Valid(kind @ (PartitionKind::Root | PartitionKind::Isolated)) => Some(*kind),
            _ => None,
        }
    }

    pub(super) fn read(text: &str) -> Self {
        let kind = PartitionKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text);
        kind.map_or_else(|| Self::Invalid(text.to_owned()), Self::Valid)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("unsupported"),
            Self::Valid(kind) => kind.fmt(f),
            Self::Invalid(text) => f.write_str(text),
        }
    }
}

// === impl CgroupError ===

impl CgroupError {
    /// Whether the cgroup is gone, which happens in normal operation.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::File(error) => error.is_gone(),
            Self::Quota { is_gone, .. } => *is_gone,
            Self::Directory { source, .. } => file::is_gone(source),
            _ => false,
        }
    }

    /// Adds the operation and the cgroup's directory to an error.
    pub(in crate::host) fn directory(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Directory {
            operation,
            path: path.to_owned(),
            source,
        }
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// The path of a cgroup's file in the hierarchy with the cpuset controller.
    pub(super) fn file(&self, path: &str, name: &str) -> PathBuf {
        self.cpuset.join(path).join(name)
    }

    /// The version of the hierarchy with the CPU controller.
    pub(super) fn cpu_version(&self) -> CgroupVersion {
        // On a hybrid machine cpuset may be on v2 and cpu on v1.
        match &self.cpu {
            Some(cpu) if *cpu != self.cpuset => CgroupVersion::V1,
            _ => self.version,
        }
    }
}

/// Whether cgroup v2 reports a process in the cgroup at `directory`, or below; `None` without `cgroup.events`.
pub(super) fn populated(directory: &Path) -> Result<Option<bool>, FileError> {
    let events = file::read_value_optional(&directory.join("cgroup.events"))?;
    Ok(events.map(|events| events.lines().any(|line| line == "populated 1")))
}

pub(super) fn cpu_list(path: &Path) -> Result<CpuSet> {
    parse(path, &file::read_value(path)?)
}

/// A CPU list; `None` if the file does not exist.
pub(super) fn cpu_list_optional(path: &Path) -> Result<Option<CpuSet>> {
    let text = file::read_value_optional(path)?;
    text.map(|text| parse(path, &text)).transpose()
}

fn parse(path: &Path, text: &str) -> Result<CpuSet> {
    text.parse().map_err(|source| CgroupError::Malformed {
        path: path.to_owned(),
        source,
    })
}

pub(super) fn directories(path: &Path) -> Result<Vec<String>> {
    let entries = file::list(path).map_err(CgroupError::directory("list", path))?;
    Ok(file::directory_names(entries))
}

/// Turns the error of a vanished cgroup into `None`.
pub(in crate::host) fn ignore_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_gone() => Ok(None),
        result => result.map(Some),
    }
}

/// Whether a list of words separated by white space contains a word.
pub(super) fn contains_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|other| other == word)
}

/// The path of the cgroup `name` directly below `parent`, where the empty path is the top.
pub(super) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words() {
        assert!(Partition::read("root").is_live());
        assert!(Partition::read("isolated").is_live());
        assert_eq!(
            Partition::read("member"),
            Partition::Valid(PartitionKind::Member)
        );
        let invalid = "root invalid (Parent is not a partition root)";
        assert_eq!(
            Partition::read(invalid),
            Partition::Invalid(invalid.to_owned())
        );
        assert!(!Partition::read(invalid).is_live());
    }
}
