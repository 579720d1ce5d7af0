//! The best placement for a request by trying every set of CPUs, straight from the rules in the documentation of
//! placement, with nothing of its method.

use std::collections::BTreeMap;

use pinfold::cpu::{CoreKind, CoreKinds, Cores, CpuSet, Isolated, Order, Request, Topology};

/// The numbers that rank a placement for a request, in order, and the ids.
type Rank = (Vec<usize>, Vec<u32>);

/// Every CPU with its groups, by ascending id.
pub(crate) struct Machine<'a> {
    topology: &'a Topology,
    cores: Vec<u32>,
    /// NUMA nodes, sockets, LLCs.
    groups: [Vec<u32>; 3],
    isolated: u32,
    /// The CPUs of each kind of core.
    kinds: Vec<u32>,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(topology: &'a Topology) -> Self {
        let masks = |key: &dyn Fn(usize) -> (Option<u32>, Option<u32>)| -> Vec<u32> {
            let mut masks = BTreeMap::new();
            for index in 0..topology.cpus.len() {
                *masks.entry(key(index)).or_insert(0) |= 1 << index;
            }
            masks.into_values().collect()
        };
        let cpu = |index: usize| topology.cpus[index];
        let alone = |i: usize| {
            if cpu(i).core.is_none() {
                Some(cpu(i).id)
            } else {
                None
            }
        };
        let mut machine = Self {
            topology,
            cores: masks(&|i| (cpu(i).core, alone(i))),
            groups: [
                masks(&|i| (cpu(i).numa, None)),
                masks(&|i| (cpu(i).socket, None)),
                masks(&|i| (cpu(i).llc, None)),
            ],
            isolated: 0,
            kinds: Vec::new(),
        };
        machine.isolated = machine.mask(&topology.isolated);
        let of_kind = |kind: Option<CoreKind>| {
            let cpus = topology.cpus.iter().filter(|cpu| cpu.kind == kind);
            machine.mask(&cpus.map(|cpu| cpu.id).collect())
        };
        machine.kinds = [
            None,
            Some(CoreKind::Performance),
            Some(CoreKind::Efficiency),
            Some(CoreKind::LowPower(0)),
        ]
        .map(of_kind)
        .to_vec();
        machine
    }

    pub(crate) fn mask(&self, cpus: &CpuSet) -> u32 {
        self.topology
            .cpus
            .iter()
            .zip(0..)
            .filter(|(cpu, _)| cpus.contains(cpu.id))
            .map(|(_, b)| 1 << b)
            .sum()
    }

    pub(crate) fn set(&self, mask: u32) -> CpuSet {
        self.ids(mask).into_iter().collect()
    }

    fn ids(&self, mask: u32) -> Vec<u32> {
        let held = self
            .topology
            .cpus
            .iter()
            .zip(0..)
            .filter(|(_, bit)| mask & (1 << bit) != 0);
        held.map(|(cpu, _)| cpu.id).collect()
    }

    /// For each count, the best placement; `None` where the request cannot be met.
    pub(crate) fn best(&self, free: u32, request: &Request) -> Vec<Option<Rank>> {
        self.best_beside(free, 0, request)
    }

    /// As `best`, for a container that already has CPUs.
    pub(crate) fn best_beside(&self, free: u32, own: u32, request: &Request) -> Vec<Option<Rank>> {
        let needs = self.numa_needed(request.cores);
        let own_count = own.count_ones() as usize;
        let few = |taken: u32| {
            let needed = needs
                .get(own_count + taken.count_ones() as usize)
                .copied()
                .flatten();
            taken == 0
                || !request.fewest_numa
                || needed.is_some_and(|needed| self.numa(own | taken) <= needed)
        };
        let distances: Vec<usize> = (0..self.topology.cpus.len())
            .map(|cpu| self.distance(cpu, &request.near))
            .collect();
        let mut best: Vec<Option<Rank>> = vec![None; free.count_ones() as usize + 1];
        let mut subset = free;
        loop {
            if self.allowed(free, subset, request.cores) && few(subset) {
                let slot = &mut best[subset.count_ones() as usize];
                let mut numbers = self.numbers(free, subset, request, &distances);
                if request.core_kinds == CoreKinds::Same {
                    let all = own | subset;
                    let kinds = self.kinds.iter().filter(|&&kind| kind & all != 0);
                    numbers.insert(1, usize::from(kinds.count() > 1));
                }
                if slot.as_ref().is_none_or(|(least, _)| numbers <= *least) {
                    let rank = (numbers, self.ids(subset));
                    if slot.as_ref().is_none_or(|best| rank < *best) {
                        *slot = Some(rank);
                    }
                }
            }
            if subset == 0 {
                return best;
            }
            subset = (subset - 1) & free;
        }
    }

    fn allowed(&self, free: u32, taken: u32, cores: Cores) -> bool {
        self.cores
            .iter()
            .filter(|&core| core & taken != 0)
            .all(|core| match cores {
                Cores::Preferred => true,
                Cores::Whole => core & taken == *core,
                Cores::Single => core & free == *core && (core & taken).count_ones() == 1,
            })
    }

    /// How many NUMA nodes a set touches.
    fn numa(&self, cpus: u32) -> usize {
        self.groups[0]
            .iter()
            .filter(|&numa| numa & cpus != 0)
            .count()
    }

    /// For each count, the fewest NUMA nodes that hold this many CPUs on the empty machine; `None` where no set exists.
    pub(crate) fn numa_needed(&self, cores: Cores) -> Vec<Option<usize>> {
        let all = self.topology.cpus.len();
        let mut needed: Vec<Option<usize>> = vec![None; all + 1];
        let everything = (1_u32 << all) - 1;
        for subset in (0..=everything).filter(|&subset| self.allowed(everything, subset, cores)) {
            let slot = &mut needed[subset.count_ones() as usize];
            let numa = self.numa(subset);
            *slot = Some(slot.map_or(numa, |least| least.min(numa)));
        }
        needed
    }

    /// The largest number of CPUs below a limit for which the container, with its own CPUs, touches no more than the given
    /// NUMA nodes.
    pub(crate) fn most_on(
        &self,
        free: u32,
        own: u32,
        cores: Cores,
        numa: usize,
        below: usize,
    ) -> usize {
        let mut most = 0;
        let mut subset = free;
        loop {
            let count = subset.count_ones() as usize;
            let counts = count > most && count < below && self.numa(own | subset) <= numa;
            if counts && self.allowed(free, subset, cores) {
                most = count;
            }
            if subset == 0 {
                return most;
            }
            subset = (subset - 1) & free;
        }
    }

    /// The siblings of single CPUs.
    pub(crate) fn siblings(&self, taken: u32) -> u32 {
        self.cores
            .iter()
            .filter(|&core| core & taken != 0)
            .map(|core| core & !taken)
            .sum()
    }

    fn distance(&self, cpu: usize, near: &CpuSet) -> usize {
        let nodes = &self.topology.numa;
        let Some(from) = self.topology.cpus[cpu].numa else {
            return 20;
        };
        let position = |id: u32| nodes.iter().position(|node| node.id == id);
        let distance_to = |to: u32| {
            let distance = |from: u32, to: u32| {
                nodes
                    .get(position(from)?)?
                    .distances
                    .get(position(to)?)
                    .copied()
            };
            distance(from, to)
                .or(distance(to, from))
                .unwrap_or(if from == to { 10 } else { 20 })
        };
        near.iter().map(distance_to).min().unwrap_or(20) as usize
    }

    fn numbers(&self, free: u32, taken: u32, request: &Request, distances: &[usize]) -> Vec<usize> {
        let count = |mask: u32| mask.count_ones() as usize;
        let unwanted = match request.isolated {
            Isolated::Avoid => count(taken & self.isolated),
            Isolated::Prefer => count(taken & !self.isolated),
            Isolated::Ignore => 0,
        };
        let single = request.cores == Cores::Single;
        let in_part = |core: &&u32| *core & taken != 0 && *core & taken != **core;
        let split_cores = if single {
            0
        } else {
            self.cores.iter().filter(in_part).count()
        };
        let far = distances
            .iter()
            .enumerate()
            .filter(|(cpu, _)| taken & (1 << cpu) != 0);
        let mut numbers = vec![
            unwanted,
            split_cores,
            far.map(|(_, distance)| distance).sum(),
        ];
        let touched = |groups: &[u32]| groups.iter().filter(|&group| group & taken != 0).count();
        let squares =
            |groups: &[u32], of: u32| groups.iter().map(|group| count(group & of).pow(2)).sum();
        let broken = |groups: &[u32]| {
            groups
                .iter()
                .filter(|&group| group & taken != 0 && group & free == *group)
                .count()
        };
        let remain = |groups: &[u32]| {
            let left = |group: &u32| count(group & free & !taken);
            groups
                .iter()
                .filter(|&group| group & taken != 0)
                .map(left)
                .sum()
        };
        let idle_or_broken = if single {
            count(self.siblings(taken))
        } else {
            broken(&self.cores)
        };
        let [numa, sockets, llcs] = &self.groups;
        numbers.extend(match request.order {
            Order::Pack => vec![
                touched(numa),
                touched(sockets),
                touched(llcs),
                broken(numa),
                broken(llcs),
                idle_or_broken,
                remain(numa),
                remain(llcs),
            ],
            Order::Spread => vec![
                squares(numa, taken),
                squares(sockets, taken),
                squares(llcs, taken),
                idle_or_broken,
                squares(numa, free & !taken),
                squares(llcs, free & !taken),
            ],
        });
        numbers
    }
}
