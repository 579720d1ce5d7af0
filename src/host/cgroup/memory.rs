//! The NUMA nodes of a cgroup's memory.

use std::collections::BTreeMap;

use super::model::{Cgroups, Result, Version, cpu_list};
use super::systemd::ALLOWED_MEMORY_NODES;
use crate::cpu::CpuSet;
use crate::host::file;

/// A cgroup's memory on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumaUsage {
    /// The NUMA node.
    pub numa: u32,
    /// Bytes of files held in memory.
    pub file: u64,
    /// Bytes of the tasks' own memory.
    pub anonymous: u64,
}

/// A cgroup's memory as the kernel reports it. Sets of NUMA nodes have the notation of CPU sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupMemory {
    /// The written NUMA nodes (`cpuset.mems`); empty on v2 if nothing was written.
    pub numa: CpuSet,
    /// Bytes that the kernel would move between NUMA nodes after a write of other nodes; `None` if the number is
    /// unknown.
    pub bytes_to_move: Option<u64>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Reads the NUMA nodes allowed for a cgroup's memory.
    pub fn memory(&self, path: &str) -> Result<CgroupMemory> {
        let dir = self.root().join(path);
        let numa = cpu_list(&dir.join("cpuset.mems"))?;
        let bytes_to_move = match self.version {
            // On v1 the kernel moves pages only if `cpuset.memory_migrate` is 1. Pinfold never writes the file.
            Version::V1 => {
                let moves = file::read_value_optional(&dir.join("cpuset.memory_migrate"))?;
                (moves.as_deref() == Some("0")).then_some(0)
            }
            Version::V2 => {
                let used = file::read_value_optional(&dir.join("memory.current"))?;
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

    /// The NUMA nodes with memory.
    pub fn memory_nodes(&self) -> Result<CpuSet> {
        cpu_list(&self.root().join(match self.version {
            Version::V1 => "cpuset.mems",
            Version::V2 => "cpuset.mems.effective",
        }))
    }
}

/// Parses `memory.numa_stat`, which counts in units of `unit` bytes.
pub(super) fn numa_usage(text: &str, unit: u64) -> Vec<NumaUsage> {
    let mut found: BTreeMap<u32, NumaUsage> = BTreeMap::new();
    for line in text.lines() {
        // Examples of a line: `anon N0=4096 N1=0` (v2), `anon=1 N0=1 N1=0` (v1).
        let mut fields = line.split(' ');
        let first = fields.next().unwrap_or_default();
        let memory_type = first.split_once('=').map_or(first, |(name, _)| name);
        let count_of_node = |field: &str| -> Option<(u32, u64)> {
            let (numa, count) = field.strip_prefix('N')?.split_once('=')?;
            Some((numa.parse().ok()?, count.parse().ok()?))
        };
        for (numa, count) in fields.filter_map(count_of_node) {
            let usage = found.entry(numa).or_default();
            usage.numa = numa;
            match memory_type {
                "anon" => usage.anonymous = count.saturating_mul(unit),
                "file" => usage.file = count.saturating_mul(unit),
                _ => {}
            }
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_where_memory_lies() {
        let v1 =
            "total=7 N0=3 N1=4\nfile=2 N0=2 N1=0\nanon=5 N0=1 N1=4\nhierarchical_anon=9 N0=9 N1=0";
        let v2 = "anon N0=4096 N1=16384\nfile N0=8192 N1=0\nkernel_stack N0=1 N1=1";
        let expected = [
            NumaUsage {
                numa: 0,
                file: 8192,
                anonymous: 4096,
            },
            NumaUsage {
                numa: 1,
                file: 0,
                anonymous: 16_384,
            },
        ];
        assert_eq!(numa_usage(v1, 4096), expected);
        assert_eq!(numa_usage(v2, 1), expected);
        assert_eq!(numa_usage("anon Nx=1 N1 =2 N2=x\n\nN0=1", 1), []);
    }
}
