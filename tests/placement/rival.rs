//! The kubelet's packed assignment (`static` CPU manager), rebuilt from its documented order as a measure for Pinfold.
//!
//! The algorithm takes whole free NUMA nodes and sockets that fit, then LLCs if alignment is on, then whole free cores, then
//! single CPUs. NUMA nodes come before sockets if the machine has no more NUMA nodes than sockets, else after them. At every
//! level, groups with the fewest free CPUs come first and equal groups by id. Lower levels are listed inside the upper
//! levels.

use std::collections::BTreeSet;

use pinfold::cpu::{Cpu, CpuSet, Topology};

/// A request while the algorithm serves it step by step.
struct Taking<'a> {
    topology: &'a Topology,
    free: CpuSet,
    taken: CpuSet,
    left: usize,
}

type Level = fn(&Cpu) -> u32;
const SOCKET: Level = |cpu| cpu.socket.unwrap_or_default();
const NUMA: Level = |cpu| cpu.numa.unwrap_or_default();
const LLC: Level = |cpu| cpu.llc.unwrap_or_default();
const CORE: Level = |cpu| cpu.core.unwrap_or(cpu.id + 100_000);

/// The CPUs that the kubelet would take, or `None` if too few are free.
pub(crate) fn packed(
    topology: &Topology,
    free: &CpuSet,
    n: usize,
    align_by_llc: bool,
) -> Option<CpuSet> {
    if free.len() < n {
        return None;
    }
    let all = |level: Level| {
        topology
            .cpus
            .iter()
            .map(level)
            .collect::<BTreeSet<u32>>()
            .len()
    };
    let numa_first = all(SOCKET) >= all(NUMA);
    let mut taking = Taking {
        topology,
        free: free.clone(),
        taken: CpuSet::new(),
        left: n,
    };
    let levels: [Level; 2] = if numa_first {
        [NUMA, SOCKET]
    } else {
        [SOCKET, NUMA]
    };
    for (depth, level) in levels.into_iter().enumerate() {
        let order = if depth == 0 {
            taking.ordered(&[level])
        } else {
            taking.ordered(&levels)
        };
        taking.whole(level, &order);
    }
    if align_by_llc {
        taking.llcs(&levels);
    }
    let path = [levels[0], levels[1], CORE];
    taking.whole(CORE, &taking.ordered(&path));
    for core in taking.ordered(&path) {
        for cpu in taking.free_in(CORE, core).iter() {
            if taking.left > 0 {
                taking.take(&CpuSet::from_iter([cpu]));
            }
        }
    }
    Some(taking.taken)
}

impl Taking<'_> {
    fn members(&self, level: Level, id: u32) -> CpuSet {
        self.topology
            .cpus
            .iter()
            .filter(|cpu| level(cpu) == id)
            .map(|cpu| cpu.id)
            .collect()
    }

    fn free_in(&self, level: Level, id: u32) -> CpuSet {
        self.members(level, id).intersection(&self.free)
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.free = self.free.difference(cpus);
        self.taken = self.taken.union(cpus);
        self.left -= cpus.len();
    }

    /// Ids of the last level that have free CPUs; each level is sorted inside the level above.
    fn ordered(&self, path: &[Level]) -> Vec<u32> {
        fn descend(taking: &Taking<'_>, path: &[Level], within: &CpuSet, out: &mut Vec<u32>) {
            let Some((&level, deeper)) = path.split_first() else {
                return;
            };
            let inside = taking
                .topology
                .cpus
                .iter()
                .filter(|cpu| within.contains(cpu.id));
            let ids: BTreeSet<u32> = inside.map(level).collect();
            let mut ids: Vec<(usize, u32)> = ids
                .into_iter()
                .map(|id| (taking.free_in(level, id).intersection(within).len(), id))
                .collect();
            ids.sort_unstable();
            for (_, id) in ids {
                if deeper.is_empty() {
                    if !out.contains(&id) {
                        out.push(id);
                    }
                } else {
                    descend(
                        taking,
                        deeper,
                        &taking.free_in(level, id).intersection(within),
                        out,
                    );
                }
            }
        }
        let mut out = Vec::new();
        descend(self, path, &self.free, &mut out);
        out
    }

    /// Takes every entirely free group of a level that still fits.
    fn whole(&mut self, level: Level, order: &[u32]) {
        for &id in order {
            let members = self.members(level, id);
            if members.is_subset(&self.free) && members.len() <= self.left && self.left > 0 {
                self.take(&members);
            }
        }
    }

    /// LLCs in order. While at least a full LLC is wanted, take entirely free LLCs. Then take the rest from one LLC, if the
    /// cores for the rest have exactly the wanted CPUs.
    fn llcs(&mut self, upper: &[Level; 2]) {
        let count = self
            .topology
            .cpus
            .iter()
            .map(LLC)
            .collect::<BTreeSet<u32>>()
            .len();
        let per_llc = self.topology.cpus.len() / count;
        let cores = self
            .topology
            .cpus
            .iter()
            .map(CORE)
            .collect::<BTreeSet<u32>>()
            .len();
        let per_core = self.topology.cpus.len() / cores;
        let path = [upper[0], upper[1], LLC];
        for llc in self.ordered(&path) {
            if self.left == 0 {
                return;
            }
            if self.left >= per_llc {
                let order = self.ordered(&path);
                self.whole(LLC, &order);
            }
            if self.left == 0 {
                return;
            }
            let free = self.free_in(LLC, llc);
            let cores: BTreeSet<u32> = self
                .topology
                .cpus
                .iter()
                .filter(|cpu| free.contains(cpu.id))
                .map(CORE)
                .collect();
            let wanted = self.left.div_ceil(per_core);
            let mut cpus: CpuSet = cores
                .into_iter()
                .take(wanted)
                .flat_map(|core| self.free_in(CORE, core).iter().collect::<Vec<_>>())
                .collect();
            // An odd rest needs one CPU less than the cores of the rest have.
            if cpus.len() == self.left + 1
                && let Some(last) = cpus.iter().last()
            {
                cpus.remove(last);
            }
            if cpus.len() == self.left {
                self.take(&cpus);
            }
        }
    }
}
