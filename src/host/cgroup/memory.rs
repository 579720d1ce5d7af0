//! Where a cgroup's memory may come from.

use super::{CgroupError, Cgroups, Version, cpu_list, file, systemd};
use crate::cpu::CpuSet;

/// What the kernel says of one cgroup's memory. Sets of NUMA nodes are written as sets of CPUs are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// The NUMA nodes that were written (`cpuset.mems`); empty on v2 where nothing was.
    pub numa: CpuSet,
    /// Bytes that the kernel would move between NUMA nodes if others were written; `None` where that isn't known.
    pub bytes_to_move: Option<u64>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Reads the NUMA nodes that a cgroup's memory may come from.
    pub fn memory(&self, path: &str) -> Result<Memory, CgroupError> {
        let dir = self.root().join(path);
        let numa = cpu_list(&dir.join("cpuset.mems"))?;
        let bytes_to_move = match self.version {
            // There the kernel moves pages only if it was told to, and it is never told here.
            Version::V1 => {
                let moves = file::read_value_optional(&dir.join("cpuset.memory_migrate"))?;
                (moves.as_deref() == Some("0")).then_some(0)
            }
            Version::V2 => {
                let used = file::read_value_optional(&dir.join("memory.current"))?;
                used.and_then(|used| used.parse().ok())
            }
        };
        Ok(Memory { numa, bytes_to_move })
    }

    /// Sets the NUMA nodes that a cgroup's memory may come from.
    pub fn set_memory(&self, path: &str, numa: &CpuSet) -> Result<(), CgroupError> {
        let file = self.root().join(path).join("cpuset.mems");
        if let Some(unit) = systemd::unit(path).filter(|_| self.systemd) {
            // One that is gone is no unit any more, and systemd would say nothing.
            file::read(&file)?;
            return Ok(systemd::set(unit, systemd::Property::Memory, numa, &file)?);
        }
        Ok(file::write(&file, &numa.to_string())?)
    }

    /// The NUMA nodes that have memory.
    pub fn all_memory(&self) -> Result<CpuSet, CgroupError> {
        cpu_list(&self.root().join(match self.version {
            Version::V1 => "cpuset.mems",
            Version::V2 => "cpuset.mems.effective",
        }))
    }
}
