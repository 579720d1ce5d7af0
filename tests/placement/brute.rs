//! The best placement by trying every set of CPUs, straight from the rules in the documentation of placement, with
//! nothing of its method.

use std::collections::{BTreeMap, BTreeSet};

use pinfold::cpu::{Cost, CpuSet, Topology};

/// The numbers of rules 1 to 5, in order.
type Rank = [usize; 9];

/// For each count, the best placement out of the free set: every subset is looked at.
pub(crate) fn best(topology: &Topology, free: &CpuSet) -> Vec<(Cost, CpuSet)> {
    let machine = Machine::new(topology);
    let free = machine.mask(free);
    let mut best: Vec<Option<(Rank, Vec<u32>)>> = vec![None; free.count_ones() as usize + 1];
    let mut subset = free;
    loop {
        let rank = machine.rank(free, subset);
        let slot = &mut best[subset.count_ones() as usize];
        if slot.as_ref().is_none_or(|(least, _)| rank <= *least) {
            let candidate = (rank, machine.ids(subset));
            if slot.as_ref().is_none_or(|best| candidate < *best) {
                *slot = Some(candidate);
            }
        }
        if subset == 0 {
            break;
        }
        subset = (subset - 1) & free;
    }
    best.into_iter()
        .map(|best| {
            let ([split_cores, numa, sockets, llcs, ..], ids) = best.unwrap();
            (
                Cost {
                    split_cores,
                    numa,
                    sockets,
                    llcs,
                },
                ids.into_iter().collect(),
            )
        })
        .collect()
}

/// Groups as bit masks over the CPUs by ascending id.
struct Machine {
    ids: Vec<u32>,
    cores: Vec<u32>,
    numa: Vec<u32>,
    sockets: Vec<u32>,
    llcs: Vec<u32>,
}

impl Machine {
    fn new(topology: &Topology) -> Self {
        let masks = |key: &dyn Fn(usize) -> (Option<u32>, Option<u32>)| -> Vec<u32> {
            let mut masks = BTreeMap::new();
            for index in 0..topology.cpus.len() {
                *masks.entry(key(index)).or_insert(0) |= 1 << index;
            }
            masks.into_values().collect()
        };
        let cpu = |index: usize| topology.cpus[index];
        Self {
            ids: topology.cpus.iter().map(|cpu| cpu.id).collect(),
            cores: masks(&|i| {
                if cpu(i).core.is_some() {
                    (cpu(i).core, None)
                } else {
                    (None, Some(cpu(i).id))
                }
            }),
            numa: masks(&|i| (cpu(i).numa, None)),
            sockets: masks(&|i| (cpu(i).socket, None)),
            llcs: masks(&|i| (cpu(i).llc, None)),
        }
    }

    fn mask(&self, cpus: &CpuSet) -> u32 {
        self.ids
            .iter()
            .zip(0..)
            .filter(|(id, _)| cpus.contains(**id))
            .map(|(_, bit)| 1 << bit)
            .sum()
    }

    fn ids(&self, subset: u32) -> Vec<u32> {
        let ids: BTreeSet<u32> = self
            .ids
            .iter()
            .zip(0..)
            .filter(|(_, bit)| subset & (1 << bit) != 0)
            .map(|(&id, _)| id)
            .collect();
        ids.into_iter().collect()
    }

    fn rank(&self, free: u32, taken: u32) -> Rank {
        let touched = |groups: &[u32]| groups.iter().filter(|&group| group & taken != 0).count();
        let broken = |groups: &[u32]| {
            groups
                .iter()
                .filter(|&group| group & taken != 0 && group & free == *group)
                .count()
        };
        let remain = |groups: &[u32]| {
            let left = |group: &u32| (group & free & !taken).count_ones() as usize;
            groups
                .iter()
                .filter(|&group| group & taken != 0)
                .map(left)
                .sum()
        };
        let in_part = |core: &&u32| *core & taken != 0 && *core & taken != **core;
        [
            self.cores.iter().filter(in_part).count(),
            touched(&self.numa),
            touched(&self.sockets),
            touched(&self.llcs),
            broken(&self.numa),
            broken(&self.llcs),
            broken(&self.cores),
            remain(&self.numa),
            remain(&self.llcs),
        ]
    }
}
