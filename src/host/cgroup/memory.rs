//! The NUMA nodes of a cgroup's memory.

use super::{CgroupError, Cgroups, Version, cpu_list, file, systemd};
use crate::cpu::CpuSet;

/// A cgroup's memory on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages {
    /// The NUMA node.
    pub numa: u32,
    /// Bytes of files held in memory.
    pub file: u64,
    /// Bytes of the tasks' own memory.
    pub anonymous: u64,
}

/// A cgroup's memory as the kernel reports it. Sets of NUMA nodes have the notation of CPU sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// The written NUMA nodes (`cpuset.mems`); empty on v2 if nothing was written.
    pub numa: CpuSet,
    /// Bytes that the kernel would move between NUMA nodes after a write of other nodes; `None` if the number is
    /// unknown.
    pub bytes_to_move: Option<u64>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Reads the NUMA nodes allowed for a cgroup's memory.
    pub fn memory(&self, path: &str) -> Result<Memory, CgroupError> {
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
        Ok(Memory {
            numa,
            bytes_to_move,
        })
    }

    /// Sets the NUMA nodes allowed for a cgroup's memory.
    pub fn set_memory(&self, path: &str, numa: &CpuSet) -> Result<(), CgroupError> {
        let file = self.root().join(path).join("cpuset.mems");
        if let Some((systemd, unit)) = self.systemd.as_ref().zip(systemd::unit(path)) {
            // The read fails if the cgroup is gone. Callers may ignore the read's error.
            file::read(&file)?;
            return Ok(systemd.set(unit, systemd::Property::Memory, numa, &file)?);
        }
        Ok(file::write(&file, &numa.to_string())?)
    }

    /// The NUMA nodes with memory.
    pub fn all_memory(&self) -> Result<CpuSet, CgroupError> {
        cpu_list(&self.root().join(match self.version {
            Version::V1 => "cpuset.mems",
            Version::V2 => "cpuset.mems.effective",
        }))
    }
}

pub(super) fn pages(text: &str, unit: u64) -> Vec<Pages> {
    let mut found: Vec<Pages> = Vec::new();
    for line in text.lines() {
        // Examples of a line: `anon N0=4096 N1=0` (v2), `anon=1 N0=1 N1=0` (v1).
        let mut fields = line.split(' ');
        let what = fields.next().unwrap_or_default();
        let what = what.split_once('=').map_or(what, |(what, _)| what);
        for field in fields {
            let Some((node, count)) = field
                .strip_prefix('N')
                .and_then(|field| field.split_once('='))
            else {
                continue;
            };
            let (Ok(numa), Ok(count)) = (node.parse::<u32>(), count.parse::<u64>()) else {
                continue;
            };
            let at = found
                .iter()
                .position(|pages| pages.numa == numa)
                .unwrap_or_else(|| {
                    found.push(Pages {
                        numa,
                        ..Pages::default()
                    });
                    found.len() - 1
                });
            let Some(pages) = found.get_mut(at) else {
                continue;
            };
            match what {
                "anon" => pages.anonymous = count.saturating_mul(unit),
                "file" => pages.file = count.saturating_mul(unit),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_where_memory_lies() {
        let v1 =
            "total=7 N0=3 N1=4\nfile=2 N0=2 N1=0\nanon=5 N0=1 N1=4\nhierarchical_anon=9 N0=9 N1=0";
        let v2 = "anon N0=4096 N1=16384\nfile N0=8192 N1=0\nkernel_stack N0=1 N1=1";
        let lies = [
            Pages {
                numa: 0,
                file: 8192,
                anonymous: 4096,
            },
            Pages {
                numa: 1,
                file: 0,
                anonymous: 16_384,
            },
        ];
        assert_eq!(pages(v1, 4096), lies);
        assert_eq!(pages(v2, 1), lies);
        assert_eq!(pages("anon Nx=1 N1 =2 N2=x\n\nN0=1", 1), []);
    }
}
