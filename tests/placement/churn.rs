//! Containers come and go at random. Each placement is compared with the best possible one, found
//! by another method.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pinfold::cpu::{Cost, CpuSet, Placer, Topology};

use crate::random::Random;
use crate::rival;

/// The algorithm that chooses the CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chooser {
    Pinfold,
    KubeletPacked,
    KubeletPackedByLlc,
}

/// The sizes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// 2, 4, … 32: whole cores.
    Even,
    /// 2, 3, … 32.
    Any,
}

/// The results of one run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) placements: usize,
    /// Not the best, by split cores, NUMA nodes, sockets, LLCs.
    pub(crate) worse: usize,
    /// With more split cores than the best.
    pub(crate) worse_strangers: usize,
    /// Over more NUMA nodes than the best.
    pub(crate) worse_numa: usize,
    /// Over more LLCs than the best.
    pub(crate) worse_llcs: usize,
    /// How long each decision took.
    pub(crate) times: Vec<Duration>,
}

/// Runs one chooser. The same seed gives the same requests.
pub(crate) fn run(
    topology: &Topology,
    chooser: Chooser,
    sizes: Sizes,
    steps: usize,
    seed: u64,
) -> Outcome {
    let placer = Placer::new(topology);
    let optimum = Optimum::new(topology);
    let mut random = Random(seed);
    let first_core = topology.cpus[0].core;
    let usable: CpuSet = topology
        .cpus
        .iter()
        .filter(|cpu| cpu.core != first_core)
        .map(|cpu| cpu.id)
        .collect();
    let mut free = usable.clone();
    let mut held: Vec<CpuSet> = Vec::new();
    let mut outcome = Outcome::default();
    for _ in 0..steps {
        let (arrive, size, leaver) = (
            random.below(2) == 0,
            random.below(31) + 2,
            random.below(1 << 20),
        );
        let size = if sizes == Sizes::Even {
            size.next_multiple_of(2)
        } else {
            size
        };
        let used = usable.len() - free.len();
        let fits = (used + size) * 100 <= topology.cpus.len() * 80;
        if fits && (arrive || held.is_empty()) {
            let start = Instant::now();
            let cpus = match chooser {
                Chooser::Pinfold => placer.place(&free, size).unwrap().cpus,
                Chooser::KubeletPacked => rival::packed(topology, &free, size, false).unwrap(),
                Chooser::KubeletPackedByLlc => rival::packed(topology, &free, size, true).unwrap(),
            };
            outcome.times.push(start.elapsed());
            assert!(
                cpus.len() == size && cpus.is_subset(&free),
                "{chooser:?} took {cpus} for {size} of {free}"
            );
            let best = optimum.of(&free, size);
            let cost = placer.cost(&cpus);
            outcome.placements += 1;
            outcome.worse_strangers += usize::from(cost.split_cores > best.split_cores);
            outcome.worse_numa += usize::from(cost.numa > best.numa);
            outcome.worse_llcs += usize::from(cost.llcs > best.llcs);
            outcome.worse += usize::from(cost > best);
            free = free.difference(&cpus);
            held.push(cpus);
        } else if !held.is_empty() {
            let leaver = held.swap_remove(leaver % held.len());
            free = free.union(&leaver);
        }
    }
    outcome
}

/// The fewest split cores, then NUMA nodes, sockets and LLCs on machines with two threads per core. The search tries every
/// set of cells. A cell is the intersection of one NUMA node, one socket and one LLC; at most 16 cells are possible.
struct Optimum {
    /// The cell of each CPU, and the CPU's core.
    cells: Vec<(u32, usize, u32)>,
    count: usize,
    /// Every set of cells with the number of NUMA nodes, sockets and LLCs; the set with the fewest is first.
    sets: Vec<([usize; 3], usize)>,
}

impl Optimum {
    fn new(topology: &Topology) -> Self {
        let mut numbers = BTreeMap::new();
        let mut cells = Vec::new();
        for cpu in &topology.cpus {
            let next = numbers.len();
            let cell = *numbers
                .entry([cpu.numa, cpu.socket, cpu.llc])
                .or_insert(next);
            cells.push((cpu.id, cell, cpu.core.unwrap()));
        }
        let count = numbers.len();
        assert!(count <= 16);
        let spanned = |set: usize, kind: usize| {
            let inside = numbers.iter().filter(|(_, cell)| set & (1 << **cell) != 0);
            inside
                .map(|(groups, _)| groups[kind])
                .collect::<BTreeSet<_>>()
                .len()
        };
        let mut sets: Vec<_> = (0..1 << count)
            .map(|set| ([0, 1, 2].map(|kind| spanned(set, kind)), set))
            .collect();
        sets.sort_unstable();
        Self { cells, count, sets }
    }

    fn of(&self, free: &CpuSet, n: usize) -> Cost {
        let mut threads: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for &(id, cell, core) in &self.cells {
            if free.contains(id) {
                threads.entry(core).or_insert((cell, 0)).1 += 1;
            }
        }
        let mut whole_and_half = vec![(0, 0); self.count];
        for (cell, free) in threads.into_values() {
            if free == 2 {
                whole_and_half[cell].0 += 1;
            } else {
                whole_and_half[cell].1 += 1;
            }
        }
        let mut sums = vec![(0, 0); 1 << self.count];
        for set in 1_usize..sums.len() {
            let (cell, rest) = (set.trailing_zeros() as usize, set & (set - 1));
            sums[set] = (
                sums[rest].0 + whole_and_half[cell].0,
                sums[rest].1 + whole_and_half[cell].1,
            );
        }
        let least = split_cores(sums[sums.len() - 1], n).unwrap();
        let found = self
            .sets
            .iter()
            .find(|(_, set)| split_cores(sums[*set], n) == Some(least));
        found
            .map(|&([numa, sockets, llcs], _)| Cost {
                split_cores: least,
                numa,
                sockets,
                llcs,
            })
            .unwrap()
    }
}

/// The fewest partly held cores when `n` CPUs come from these whole and half cores; `None` if too few CPUs exist.
fn split_cores((whole, half): (usize, usize), n: usize) -> Option<usize> {
    let full = whole.min(n / 2);
    let rest = n - 2 * full;
    let in_part = half + if rest == 1 { whole - full } else { 0 };
    (rest <= in_part).then_some(rest)
}
