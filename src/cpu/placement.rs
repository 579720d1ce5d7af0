//! [`Placer`]: which CPUs a container gets, exactly and always the same.
//!
//! # The best placement
//!
//! A *core* is the set of online CPUs with the same [`Cpu::core`](super::Cpu); a CPU without one is a core of its own. CPUs without
//! a NUMA node, socket or LLC form one group of that kind together. A placement *touches* the groups it has a CPU of. A
//! group is *entirely free* when all its online CPUs are in the free set. Among all sets of `n` free CPUs, the best is
//! the one with the least of these, compared from first to last:
//!
//! 1. strangers: cores that it holds some and not all CPUs of;
//! 2. NUMA nodes touched;
//! 3. sockets touched;
//! 4. LLCs touched;
//! 5. what is left over, five numbers:
//!    1. entirely free NUMA nodes touched,
//!    2. entirely free LLCs touched,
//!    3. entirely free cores touched,
//!    4. free CPUs that remain in the NUMA nodes touched,
//!    5. free CPUs that remain in the LLCs touched;
//! 6. the ascending list of its CPU ids, compared as lists are.
//!
//! # Why it is exact and quick
//!
//! Every number of 1 to 5 is a sum of fixed prices: so much for touching a group, whatever is taken from it (and one
//! for holding a core in part). Such sums, compared from first to last, are one ordered number: [`price`]. So the cheapest
//! way to take `j` CPUs from two disjoint blocks is the cheapest split of `j` between them, and a table per block
//! (`j` → price) is enough: [`search`]. The blocks form a tree that is planned once per machine: [`plan`]. Where the
//! groups of a machine nest in any order (LLCs in NUMA nodes, NUMA nodes in LLCs, sockets in NUMA nodes), each group is one
//! block of the tree. Where they cross, a block's table also tells which of the crossing groups are touched.
//! What no placement can do better than keeps the tables short: [`limits`]. At last the lowest ids are chosen among all
//! cheapest splits: [`recover`].
//!
//! Where groups nest, the work is at most a few times the free CPUs times `n`, whatever the free set looks like. Only
//! where groups cross each other wildly, which no real machine does, could it grow beyond reason; there
//! [`Placer::new`] lets go of LLCs, then sockets, then NUMA nodes, until it does not, and [`Placer::is_exact`] says
//! no.

mod limits;
mod plan;
mod price;
mod recover;
mod search;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CpuSet, Topology};
use plan::Plan;
use search::Search;

/// What a placement shares and how far it spreads, in the order in which it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
pub struct Cost {
    /// Cores held in part, so that others can run on a sibling.
    pub strangers: usize,
    /// NUMA nodes spanned.
    pub numa: usize,
    /// Sockets spanned.
    pub sockets: usize,
    /// LLCs spanned.
    pub llcs: usize,
}

/// The CPUs chosen and what they cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The CPUs chosen.
    pub cpus: CpuSet,
    /// What they share and how far they spread.
    pub cost: Cost,
}

/// A request for more CPUs than are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too few free CPUs: {wanted} wanted, {free} free")]
pub struct TooFewCpus {
    /// CPUs asked for.
    pub wanted: usize,
    /// Online CPUs that are free.
    pub free: usize,
}

/// Places containers on one machine. Making it takes longer than a decision: keep it while the topology stays the same.
#[derive(Debug, Clone)]
pub struct Placer {
    plan: Plan,
    exact: bool,
    /// For each online CPU by ascending id, its group of each kind, counted from 0.
    membership: Vec<Membership>,
    /// How many online CPUs each core has.
    core_sizes: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Membership {
    core: usize,
    numa: usize,
    socket: usize,
    llc: usize,
}

// === impl Placer ===

impl Placer {
    /// Plans the search for a machine.
    pub fn new(topology: &Topology) -> Self {
        let (plan, exact) = Plan::new(topology);
        let mut cpus = topology.cpus.clone();
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        cpus.dedup_by_key(|cpu| cpu.id);
        let (mut numa, mut socket, mut llc) =
            (Numbering::default(), Numbering::default(), Numbering::default());
        let mut cores = Numbering::default();
        let mut core_sizes = vec![0; cpus.len()];
        let mut membership = Vec::with_capacity(cpus.len());
        for cpu in &cpus {
            let alone = if cpu.core.is_none() { Some(cpu.id) } else { None };
            let core = cores.of((cpu.core, alone));
            core_sizes[core] += 1;
            let (numa, socket, llc) = (numa.of(cpu.numa), socket.of(cpu.socket), llc.of(cpu.llc));
            membership.push(Membership { core, numa, socket, llc });
        }
        Self { plan, exact, membership, core_sizes }
    }

    /// The best placement of `n` CPUs out of a free set; CPUs in it that are not online are ignored.
    ///
    /// # Errors
    ///
    /// [`TooFewCpus`] when fewer than `n` online CPUs are free.
    pub fn place(&self, free: &CpuSet, n: usize) -> Result<Placement, TooFewCpus> {
        let is_free: Vec<bool> = self.plan.ids.iter().map(|&id| free.contains(id)).collect();
        let count = is_free.iter().filter(|&&free| free).count();
        if count < n {
            return Err(TooFewCpus { wanted: n, free: count });
        }
        let cpus = Search::new(&self.plan, &is_free, n).run();
        let cost = self.cost(&cpus);
        Ok(Placement { cpus, cost })
    }

    /// What a set of CPUs shares and how far it spreads; CPUs in it that are not online are ignored.
    pub fn cost(&self, cpus: &CpuSet) -> Cost {
        let mut held = vec![0; self.core_sizes.len()];
        let (mut numa, mut sockets, mut llcs) = (Tally::default(), Tally::default(), Tally::default());
        for (member, &id) in self.membership.iter().zip(&self.plan.ids) {
            if cpus.contains(id) {
                held[member.core] += 1;
                numa.add(member.numa);
                sockets.add(member.socket);
                llcs.add(member.llc);
            }
        }
        let strangers =
            held.iter().zip(&self.core_sizes).filter(|&(&held, &size)| held > 0 && held < size).count();
        Cost { strangers, numa: numa.count, sockets: sockets.count, llcs: llcs.count }
    }

    /// Whether placements are the best by all the rules: no only where the machine's groups cross each other wildly.
    pub fn is_exact(&self) -> bool {
        self.exact
    }
}

/// The best placement for a single decision: plans the machine anew, see [`Placer`] for more than one.
///
/// # Errors
///
/// [`TooFewCpus`] when fewer than `n` online CPUs are free.
pub fn place(topology: &Topology, free: &CpuSet, n: usize) -> Result<Placement, TooFewCpus> {
    Placer::new(topology).place(free, n)
}

/// Group ids in the order in which they are met, as 0, 1, 2…
#[derive(Debug)]
struct Numbering<K>(BTreeMap<K, usize>);

impl<K: Ord> Default for Numbering<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Numbering<K> {
    fn of(&mut self, id: K) -> usize {
        let next = self.0.len();
        *self.0.entry(id).or_insert(next)
    }
}

/// Counts distinct small numbers.
#[derive(Debug, Default)]
struct Tally {
    seen: Vec<bool>,
    count: usize,
}

impl Tally {
    fn add(&mut self, number: usize) {
        if self.seen.len() <= number {
            self.seen.resize(number + 1, false);
        }
        if !self.seen[number] {
            self.seen[number] = true;
            self.count += 1;
        }
    }
}
