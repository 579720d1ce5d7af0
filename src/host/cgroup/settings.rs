//! Settings of cgroups beside their CPUs: the CPU quota, the NUMA nodes of the memory, and extended attributes.
//!
//! The attributes are the assignment record of a pod's or container's cgroup, and notes about the
//! whole node. The kernel keeps an attribute as long as its cgroup.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use cgroups_rs::fs::cpu::CpuController;

use super::cgroups::{
    CgroupError, CgroupVersion, Cgroups, Quota, Result, cpu_list, cpu_list_optional,
};
use super::systemd::ALLOWED_MEMORY_NODES;
use crate::cpu::CpuSet;
use crate::host::file::read_value_optional;

/// A cgroup's memory as the kernel reports it. Sets of NUMA nodes have the notation of CPU sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupMemory {
    /// The written NUMA nodes (`cpuset.mems`); empty on v2 if nothing was written.
    pub numa: CpuSet,
    /// Bytes that the kernel would move between NUMA nodes if other nodes were written; `None` if
    /// the number is unknown.
    pub bytes_to_move: Option<u64>,
}

/// The extended attribute of an assignment record.
const RECORD: &str = "trusted.pinfold";

/// What a note is about. Each subject has an extended attribute of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteSubject {
    /// The settings from before CPU isolation moved the kernel's own work.
    CpuIsolation,
    /// The node's last slot in a scene.
    SceneSlot,
    /// The set of a cgroup of v1 from before CPUs were taken.
    NarrowedSet,
}

// === impl NoteSubject ===

impl NoteSubject {
    fn attribute(self) -> &'static str {
        match self {
            Self::CpuIsolation => "trusted.pinfold.cpu-isolation",
            Self::SceneSlot => "trusted.pinfold.slot",
            Self::NarrowedSet => "trusted.pinfold.narrowed",
        }
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// Reads the NUMA nodes allowed for a cgroup's memory.
    pub fn memory(&self, path: &str) -> Result<CgroupMemory> {
        let dir = self.root().join(path);
        let numa = cpu_list(&dir.join("cpuset.mems"))?;
        let bytes_to_move = match self.version {
            // On v1 the kernel moves pages only if `cpuset.memory_migrate` is 1, and Pinfold never
            // writes that file.
            CgroupVersion::V1 => {
                let moves = read_value_optional(&dir.join("cpuset.memory_migrate"))?;
                (moves.as_deref() == Some("0")).then_some(0)
            }
            CgroupVersion::V2 => {
                let used = read_value_optional(&dir.join("memory.current"))?;
                used.and_then(|used| used.parse().ok())
            }
        };
        Ok(CgroupMemory {
            numa,
            bytes_to_move,
        })
    }

    /// Sets the NUMA nodes allowed for a cgroup's memory.
    pub fn set_memory_nodes(&self, path: &str, numa: &CpuSet) -> Result<()> {
        let file = self.file(path, "cpuset.mems");
        self.write_set(path, &file, ALLOWED_MEMORY_NODES, numa)
    }

    /// The NUMA nodes whose memory every pod may use: those with memory, as far as the cgroups
    /// above the pods allow them. cgroup v1 refuses any other NUMA node in a pod's set.
    ///
    /// A missing tree has no pods, and a tree without a set (v1) has none yet. Both limit nothing.
    pub fn memory_nodes(&self, trees: &[String]) -> Result<CpuSet> {
        let name = match self.version {
            CgroupVersion::V1 => "cpuset.mems",
            CgroupVersion::V2 => "cpuset.mems.effective",
        };
        let mut nodes = cpu_list(&self.file("", name))?;
        for tree in trees {
            let allowed = cpu_list_optional(&self.file(tree, name))?.unwrap_or_default();
            if !allowed.is_empty() {
                nodes = nodes.intersection(&allowed);
            }
        }
        Ok(nodes)
    }

    /// Reads the CFS quota of a cgroup; `None` without a CPU controller.
    pub fn quota(&self, path: &str) -> Result<Option<Quota>> {
        let Some(cpu) = &self.cpu else {
            return Ok(None);
        };
        read(&cpu.join(path), self.cpu_version())
    }

    pub fn set_quota(&self, path: &str, quota: Quota) -> Result<()> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        write(&cpu.join(path), self.cpu_version(), quota)
    }

    /// The text of a cgroup's assignment record; `None` without a record.
    pub fn assignment_record(&self, path: &str) -> Result<Option<String>> {
        self.attribute(path, RECORD, "read the assignment record of")
    }

    /// Sets the text of a cgroup's assignment record; `None` removes the record.
    pub fn set_assignment_record(&self, path: &str, record: Option<&str>) -> Result<()> {
        self.set_attribute(path, RECORD, record, "set the assignment record of")?;
        // From now on, the record has the earlier set.
        if self.version == CgroupVersion::V1 && record.is_some() {
            self.forget_earlier_set(path)?;
        }
        Ok(())
    }

    /// Whether the kernel keeps extended attributes of cgroups, found out by setting a test
    /// attribute on the top cgroup, reading it back and removing it.
    ///
    /// The test makes no cgroup, because the top cgroup has mode 0555, so a new one inside would
    /// need `CAP_DAC_OVERRIDE`. An attribute needs only `CAP_SYS_ADMIN`.
    pub fn supports_attributes(&self) -> Result<bool> {
        let name = format!("{RECORD}.probe.{}", std::process::id());
        let tried = (|| {
            xattr::set(&self.cpuset, &name, b"probe")?;
            let kept = xattr::get(&self.cpuset, &name)?;
            xattr::remove(&self.cpuset, &name)?;
            Ok(kept.as_deref() == Some(b"probe".as_slice()))
        })();
        tried.map_err(CgroupError::directory("set an attribute of", &self.cpuset))
    }

    /// The note on a cgroup; `None` without a note.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn note(&self, path: &str, subject: NoteSubject) -> Result<Option<String>> {
        self.attribute(path, subject.attribute(), "read the note on")
    }

    /// Sets the note on a cgroup; `None` removes it, even if there is none.
    ///
    /// # Errors
    /// The cgroup is gone, the note is too long (64 KiB), or the write permission is missing.
    pub fn set_note(&self, path: &str, subject: NoteSubject, text: Option<&str>) -> Result<()> {
        self.set_attribute(path, subject.attribute(), text, "put a note on")
    }

    fn attribute(&self, path: &str, name: &str, operation: &'static str) -> Result<Option<String>> {
        let path = self.root().join(path);
        let value = xattr::get(&path, name).map_err(CgroupError::directory(operation, &path))?;
        Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn set_attribute(
        &self,
        path: &str,
        name: &str,
        value: Option<&str>,
        operation: &'static str,
    ) -> Result<()> {
        let path = self.root().join(path);
        let done = match value {
            Some(value) => xattr::set(&path, name, value.as_bytes()),
            None => xattr::get(&path, name).and_then(|value| match value {
                Some(_) => xattr::remove(&path, name),
                None => Ok(()),
            }),
        };
        done.map_err(CgroupError::directory(operation, &path))
    }
}

/// The file whose existence shows that a cgroup has a quota.
fn file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "cpu.cfs_quota_us",
        CgroupVersion::V2 => "cpu.max",
    }
}

/// The quota of the cgroup at `path`; `None` for a cgroup without a CPU controller.
fn read(path: &Path, version: CgroupVersion) -> Result<Option<Quota>> {
    // The crate `cgroups-rs` would need three times as many calls, for every cgroup in every turn
    // of the reconciler.
    let read = |name: &str| {
        read_value_optional(&path.join(name)).map_err(|error| failed("read", path, error))
    };
    let Some(limit) = read(file(version))? else {
        return Ok(None);
    };
    let (quota, period) = match version {
        CgroupVersion::V1 => (limit, read("cpu.cfs_period_us")?),
        CgroupVersion::V2 => {
            let mut words = limit.split_whitespace().map(str::to_owned);
            (words.next().unwrap_or_default(), words.next())
        }
    };
    let Some(period) = period.and_then(|period| period.parse().ok()) else {
        return Err(failed("read", path, "it has no period"));
    };
    // "No limit" is −1 on v1 and a word on v2.
    let quota = match quota.as_str() {
        "-1" | "max" => None,
        number => Some(
            number
                .parse()
                .map_err(|error| failed("read", path, error))?,
        ),
    };
    Ok(Some(Quota { quota, period }))
}

/// Writes the quota of the cgroup at `path`, whose file must exist: `cgroups-rs` would create a
/// missing one, even in a directory without a cgroup.
fn write(path: &Path, version: CgroupVersion, quota: Quota) -> Result<()> {
    if !path.join(file(version)).exists() {
        return Err(failed("write", path, Error::from(ErrorKind::NotFound)));
    }
    let limit = match quota.quota {
        Some(quota) => i64::try_from(quota).unwrap_or(i64::MAX),
        None => -1,
    };
    // With an empty root, the controller works on exactly the given directory.
    CpuController::new(
        path.to_owned(),
        PathBuf::new(),
        version == CgroupVersion::V2,
    )
    .set_cfs_quota_and_period(Some(limit), Some(quota.period))
    .map_err(|source| failed("write", path, source))
}

fn failed(
    operation: &'static str,
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> CgroupError {
    CgroupError::Quota {
        operation,
        path: path.to_owned(),
        is_gone: !path.exists(),
        source: source.into(),
    }
}
