//! [`Placer`]: the CPUs that a container gets. The choice is exact, and the same for the same input.
//!
//! # The best placement
//!
//! A *core* is the set of online CPUs with the same [`Cpu::core`](super::Cpu); a CPU without a
//! known core is a core of its own. CPUs without a NUMA node, socket or LLC form one group of that
//! kind together. A placement *touches* each group that contains one of its CPUs. It *splits* a
//! core if it has some of the core's CPUs, but not all. A group is *entirely free* if the free set
//! contains all its online CPUs. Of all sets of `n` free CPUs, the best has the least of these
//! numbers, compared from first to last:
//!
//! 1. split cores;
//! 2. NUMA nodes touched;
//! 3. sockets touched;
//! 4. LLCs touched;
//! 5. fragmentation, five numbers:
//!    1. entirely free NUMA nodes touched,
//!    2. entirely free LLCs touched,
//!    3. entirely free cores touched,
//!    4. free CPUs that remain in the NUMA nodes touched,
//!    5. free CPUs that remain in the LLCs touched;
//! 6. the ascending list of CPU ids, in the order of lists.
//!
//! # Preferences of a request
//!
//! A [`Request`] may have preferences. The numbers are then, again compared from first to last:
//!
//! 1. isolated CPUs taken ([`Isolated::Avoid`]), or CPUs taken that are not isolated
//!    ([`Isolated::Prefer`]). This comes first because the kernel leaves all threads of a program
//!    on one isolated CPU, and nothing else here does as much harm;
//! 2. whether cores of several [kinds](super::CoreKind) are touched ([`CoreKinds::Same`]). Threads
//!    that wait for each other wait for the slowest core, so one kind of core comes before
//!    undivided cores: [`kinds`];
//! 3. split cores;
//! 4. the sum of each CPU's distance to the nearest NUMA node in [`near`](Request::near). If the
//!    machine reports no distances, the kernel's defaults count: 10 within a NUMA node, 20 between
//!    two;
//! 5. the rest of the list above; or, for [`Order::Spread`]:
//!    1. for NUMA nodes, the sum of the squares of the CPUs taken from each. The least sum is the
//!       most even spread. A NUMA node with too few free CPUs makes the spread less even, not
//!       impossible,
//!    2. the same for sockets,
//!    3. the same for LLCs,
//!    4. entirely free cores touched,
//!    5. for NUMA nodes, the sum of the squares of the free CPUs that remain in each, touched or
//!       not,
//!    6. the same for LLCs;
//! 6. the ascending list of CPU ids.
//!
//! With [`Cores::Whole`] only sets without split cores are allowed, and with [`Cores::Single`] only
//! sets with one CPU from each of `n` entirely free cores. In the latter case no core is split, and
//! the cores' remaining CPUs stay idle. The number of idle CPUs then replaces the number of
//! entirely free cores touched, and idle CPUs count as free CPUs that remain.
//!
//! With [`fewest_numa`](Request::fewest_numa) the number of NUMA nodes touched has a limit: the
//! number that the request needs if all online CPUs are free. See [`numa`].
//!
//! Spreading covers the whole machine, even for few CPUs, because its purpose is memory bandwidth.
//! The kubelet's `distribute-cpus-across-numa`, in contrast, spreads over the fewest NUMA nodes
//! that can hold the request.
//!
//! # Why the search is exact and fast
//!
//! Each of the numbers 1 to 5 is a sum of fixed prices: one for touching a group, whatever the
//! number of CPUs taken, and one for a split core. The sums, compared from first to last, fit into
//! one ordered number: [`price`]. The cheapest way to take `j` CPUs from two disjoint blocks is
//! therefore the cheapest division of `j` between them, and one table per block (`j` → price) is
//! enough: [`search`]. The blocks form a tree, which is planned once per machine: [`plan`]. Groups
//! may nest in any order (LLCs in NUMA nodes, NUMA nodes in LLCs, sockets in NUMA nodes). If they
//! all nest, each is one block of the tree. If some cross, the tables of a block also tell which
//! crossing groups are touched. Bounds on the price keep the tables short: [`limits`]. Of all
//! cheapest sets, the last step chooses the one with the lowest ids: [`recover`].
//!
//! Preferences are sums, too: a price for each distant or isolated CPU, and for each group the
//! square of the number of CPUs taken. For the group of a block, this number is the table's `j`.
//! For a crossing group, the CPUs taken from it must be counted, so a second plan has patterns that
//! count them.
//!
//! If groups nest, the work is at most a few times the free CPUs times `n`, for every free set.
//! Only groups that cross each other wildly, as on no real machine, could make it too large.
//! [`Placer::new`] then ignores LLCs, then sockets, then NUMA nodes, until the work is small
//! enough, and [`Placer::is_exact`] is false. Patterns that count reach that point sooner:
//! [`Placer::is_exact_for`].

mod class;
mod fewest;
mod kinds;
mod leaves;
mod limits;
mod numa;
mod plan;
mod price;
mod recover;
mod repack;
mod request;
mod search;
mod weights;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CoreKind, Cpu, CpuSet, NumaNode, Topology};
pub use repack::{Move, Owner, Repacking};
pub use request::{CoreKinds, Cores, Isolated, Numa, Order, PlacementRefusal, Request, TooFewCpus};

use fewest::nearest_sums;
use plan::PlacementPlan;
use price::WidePrice;
use request::SearchInput;

/// The kernel's default distances: `HERE` from a NUMA node to itself, `THERE` between two NUMA nodes.
const HERE: u32 = 10;
const THERE: u32 = 20;

/// The greatest distance. Greater ones count as `FAR`; kernels report at most 255.
const FAR: u32 = 1000;

/// The split cores and the spread of a placement, most important number first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Cores of which the placement has only a part, so that other containers can run on the
    /// remaining siblings.
    pub split_cores: usize,
    /// NUMA nodes touched.
    pub numa: usize,
    pub sockets: usize,
    /// LLCs touched.
    pub llcs: usize,
}

/// The chosen CPUs and their cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    pub cpus: CpuSet,
    /// CPUs kept idle: the siblings of the chosen CPUs, for [`Cores::Single`]; otherwise empty.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub idle: CpuSet,
    /// Split cores and spread of the CPUs chosen.
    pub cost: Cost,
}

/// Places containers on one machine. Building a placer takes longer than a decision, so keep it
/// while the topology stays the same.
#[derive(Debug, Clone)]
pub struct Placer {
    plan: PlacementPlan,
    exact: bool,
    /// The plan for [`Order::Spread`], and whether it keeps every group. None if `plan` also serves
    /// [`Order::Spread`].
    counting: Option<(PlacementPlan, bool)>,
    /// For each online CPU by ascending id, the number of its group of each kind, from 0.
    membership: Vec<Membership>,
    core_sizes: Vec<usize>,
    /// The NUMA nodes reported by the machine.
    numa: Vec<NumaNode>,
    /// The kernel's id of the NUMA node of each online CPU by ascending id.
    numa_of: Vec<Option<u32>>,
    isolated: CpuSet,
    /// The kind of the core of each online CPU by ascending id. All CPUs of a core count as the
    /// kind of the lowest one.
    kinds: Vec<Option<CoreKind>>,
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
        let (plan, exact) = PlacementPlan::new(topology, false);
        // Without crossing groups, patterns have nothing to count.
        let crosses = !exact || !plan.crossing.is_empty();
        let counting = crosses.then(|| PlacementPlan::new(topology, true));
        let mut cpus = topology.cpus.clone();
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        cpus.dedup_by_key(|cpu| cpu.id);
        let (mut numa, mut socket, mut llc) = (
            GroupNumbers::default(),
            GroupNumbers::default(),
            GroupNumbers::default(),
        );
        let mut cores = GroupNumbers::default();
        let mut core_sizes = vec![0; cpus.len()];
        let mut membership = Vec::with_capacity(cpus.len());
        for cpu in &cpus {
            let alone = if cpu.core.is_none() {
                Some(cpu.id)
            } else {
                None
            };
            let core = cores.of((cpu.core, alone));
            core_sizes[core] += 1;
            let (numa, socket, llc) = (numa.of(cpu.numa), socket.of(cpu.socket), llc.of(cpu.llc));
            membership.push(Membership {
                core,
                numa,
                socket,
                llc,
            });
        }
        let numa_of = cpus.iter().map(|cpu| cpu.numa).collect();
        let mut kind_of_core = BTreeMap::new();
        let kind = |(member, cpu): (&Membership, &Cpu)| {
            *kind_of_core.entry(member.core).or_insert(cpu.kind)
        };
        let kinds = membership.iter().zip(&cpus).map(kind).collect();
        let (numa, isolated) = (topology.numa.clone(), topology.isolated.clone());
        Self {
            plan,
            exact,
            counting,
            membership,
            core_sizes,
            numa,
            numa_of,
            isolated,
            kinds,
        }
    }

    /// The best placement of `n` CPUs out of a free set. CPUs that are not online are ignored.
    ///
    /// # Errors
    ///
    /// [`TooFewCpus`] when fewer than `n` online CPUs are free.
    pub fn place(&self, free: &CpuSet, n: usize) -> Result<Placement, TooFewCpus> {
        match self.place_as(
            free,
            &Request {
                cpus: n,
                ..Request::default()
            },
        ) {
            Ok(placement) => Ok(placement),
            Err(PlacementRefusal::TooFewCpus(refusal)) => Err(refusal),
            // These refusals occur only for requests with preferences.
            Err(
                PlacementRefusal::TooFewOnWholeCores { wanted, free }
                | PlacementRefusal::TooFewCores { wanted, free }
                | PlacementRefusal::NotWholeCores {
                    wanted, less: free, ..
                }
                | PlacementRefusal::TooFewOnNuma {
                    wanted, most: free, ..
                },
            ) => Err(TooFewCpus { wanted, free }),
        }
    }

    /// The best placement for a request out of a free set. CPUs that are not online are ignored.
    ///
    /// # Errors
    ///
    /// [`PlacementRefusal`] when no choice of free CPUs meets the request.
    pub fn place_as(
        &self,
        free: &CpuSet,
        request: &Request,
    ) -> Result<Placement, PlacementRefusal> {
        self.place_beside(free, &CpuSet::new(), request)
    }

    /// The best placement of further CPUs for a container that has CPUs. [`Request::fewest_numa`] and
    /// [`Request::core_kinds`] apply to all of the container's CPUs, every other preference to the new CPUs.
    ///
    /// # Errors
    ///
    /// [`PlacementRefusal`] when no choice of free CPUs meets the request.
    pub fn place_beside(
        &self,
        free: &CpuSet,
        own: &CpuSet,
        request: &Request,
    ) -> Result<Placement, PlacementRefusal> {
        let plan = match (&self.counting, request.order) {
            (Some((counting, _)), Order::Spread) => counting,
            _ => &self.plan,
        };
        let is_free: Vec<bool> = self.plan.ids.iter().map(|&id| free.contains(id)).collect();
        let unwanted = self.unwanted(&is_free, request.isolated);
        let distances = self.distances(&request.near);
        let whole = if request.cores == Cores::Preferred {
            Vec::new()
        } else {
            self.on_whole_cores(&is_free)
        };
        let terms = SearchInput {
            wanted: request.cpus,
            free: &is_free,
            open: if request.cores == Cores::Preferred {
                &is_free
            } else {
                &whole
            },
            unwanted: &unwanted,
            distances: &distances,
            order: request.order,
            cores: request.cores,
        };
        self.enough(&terms)?;
        let plain = terms.order == Order::Pack && unwanted.is_empty() && distances.is_empty();
        let cpus = if plain {
            self.best::<u128>(plan, &terms, own, request)?
        } else {
            self.best::<WidePrice>(plan, &terms, own, request)?
        };
        let (mut idle, mut cost) = (CpuSet::new(), self.cost(&cpus));
        if request.cores == Cores::Single {
            idle = self.siblings(&cpus);
            cost.split_cores = self.cost(&cpus.union(&idle)).split_cores;
        }
        Ok(Placement { cpus, idle, cost })
    }

    /// For each CPU, whether it is unwanted. Empty if no free CPU is unwanted, or all are.
    fn unwanted(&self, is_free: &[bool], isolated: Isolated) -> Vec<bool> {
        if self.isolated.is_empty() || isolated == Isolated::Ignore {
            return Vec::new();
        }
        let is_unwanted = |&id: &u32| self.isolated.contains(id) == (isolated == Isolated::Avoid);
        let unwanted: Vec<bool> = self.plan.ids.iter().map(is_unwanted).collect();
        let of_free = |unwanted_too: bool| {
            unwanted
                .iter()
                .zip(is_free)
                .any(|(&unwanted, &free)| free && unwanted == unwanted_too)
        };
        if of_free(true) && of_free(false) {
            unwanted
        } else {
            Vec::new()
        }
    }

    /// Each CPU's distance to the nearest of the NUMA nodes `near`, less the least of these; empty
    /// if all are equal.
    fn distances(&self, near: &CpuSet) -> Vec<usize> {
        let mut known: BTreeMap<Option<u32>, u32> = BTreeMap::new();
        for &numa in if near.is_empty() {
            &[][..]
        } else {
            &self.numa_of
        } {
            known.entry(numa).or_insert_with(|| {
                let to = |near| numa.map_or(THERE, |numa| self.distance(numa, near));
                near.iter().map(to).min().unwrap_or(THERE).min(FAR)
            });
        }
        let least = known.values().min().copied().unwrap_or_default();
        if known.values().all(|&distance| distance == least) {
            return Vec::new();
        }
        let steps = |numa| {
            known
                .get(numa)
                .map_or(0, |distance| (distance - least) as usize)
        };
        self.numa_of.iter().map(steps).collect()
    }

    /// The distance between two NUMA nodes, as reported by either of them.
    fn distance(&self, from: u32, to: u32) -> u32 {
        let position = |id| self.numa.iter().position(|node| node.id == id);
        let reported = match (position(from), position(to)) {
            (Some(from), Some(to)) => {
                let tells = |from: usize, to: usize| self.numa[from].distances.get(to).copied();
                tells(from, to).or_else(|| tells(to, from))
            }
            _ => None,
        };
        reported.unwrap_or(if from == to { HERE } else { THERE })
    }

    /// For each CPU, whether it is on an entirely free core.
    fn on_whole_cores(&self, is_free: &[bool]) -> Vec<bool> {
        let mut free = vec![0; self.core_sizes.len()];
        for (member, _) in self
            .membership
            .iter()
            .zip(is_free)
            .filter(|(_, free)| **free)
        {
            free[member.core] += 1;
        }
        self.membership
            .iter()
            .map(|member| free[member.core] == self.core_sizes[member.core])
            .collect()
    }

    fn enough(&self, terms: &SearchInput<'_>) -> Result<(), PlacementRefusal> {
        let wanted = terms.wanted;
        let count = |cpus: &[bool]| cpus.iter().filter(|&&is| is).count();
        let free = count(terms.free);
        let open = count(terms.open);
        match terms.cores {
            _ if free < wanted => Err(TooFewCpus { wanted, free }.into()),
            Cores::Whole if open < wanted => {
                Err(PlacementRefusal::TooFewOnWholeCores { wanted, free: open })
            }
            Cores::Single => match self.open_cores(terms).len() {
                free if free < wanted => Err(PlacementRefusal::TooFewCores { wanted, free }),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The sizes of the cores with open CPUs.
    fn open_cores(&self, terms: &SearchInput<'_>) -> Vec<usize> {
        let mut open = vec![false; self.core_sizes.len()];
        for (member, _) in self
            .membership
            .iter()
            .zip(terms.open)
            .filter(|(_, open)| **open)
        {
            open[member.core] = true;
        }
        self.core_sizes
            .iter()
            .zip(open)
            .filter(|(_, open)| *open)
            .map(|(&size, _)| size)
            .collect()
    }

    fn not_whole_cores(&self, terms: &SearchInput<'_>) -> PlacementRefusal {
        let (less, more) = nearest_sums(&self.open_cores(terms), terms.wanted);
        PlacementRefusal::NotWholeCores {
            wanted: terms.wanted,
            less,
            more,
        }
    }

    /// The siblings of a set's CPUs: the other CPUs of the same cores.
    fn siblings(&self, cpus: &CpuSet) -> CpuSet {
        let mut held = vec![false; self.core_sizes.len()];
        let members = || self.membership.iter().zip(&self.plan.ids);
        for (member, _) in members().filter(|(_, id)| cpus.contains(**id)) {
            held[member.core] = true;
        }
        let siblings = members().filter(|(member, id)| held[member.core] && !cpus.contains(**id));
        siblings.map(|(_, &id)| id).collect()
    }

    /// Split cores and spread of a set of CPUs. Offline CPUs are ignored.
    pub fn cost(&self, cpus: &CpuSet) -> Cost {
        let mut held = vec![0; self.core_sizes.len()];
        let (mut numa, mut sockets, mut llcs) = (
            DistinctCount::default(),
            DistinctCount::default(),
            DistinctCount::default(),
        );
        for (member, &id) in self.membership.iter().zip(&self.plan.ids) {
            if cpus.contains(id) {
                held[member.core] += 1;
                numa.add(member.numa);
                sockets.add(member.socket);
                llcs.add(member.llc);
            }
        }
        let split_cores = held
            .iter()
            .zip(&self.core_sizes)
            .filter(|&(&held, &size)| held > 0 && held < size)
            .count();
        Cost {
            split_cores,
            numa: numa.count,
            sockets: sockets.count,
            llcs: llcs.count,
        }
    }

    /// Whether packed placements are exact. False only on machines with wildly crossing groups.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether placements of an order are exact. Crossing groups make [`Order::Spread`] harder than [`Order::Pack`].
    ///
    /// [`Request::fewest_numa`] is exact, too, unless more than 2,000 choices of NUMA nodes differ
    /// in more than ids. The placement is then the best of the choices searched, and still touches
    /// no more NUMA nodes than allowed.
    pub fn is_exact_for(&self, order: Order) -> bool {
        match (&self.counting, order) {
            (Some((_, exact)), Order::Spread) => *exact,
            _ => self.exact,
        }
    }
}

/// The best placement for a single decision. The machine is planned anew each time, so use
/// [`Placer`] for several decisions.
///
/// # Errors
///
/// [`TooFewCpus`] when fewer than `n` online CPUs are free.
pub fn place(topology: &Topology, free: &CpuSet, n: usize) -> Result<Placement, TooFewCpus> {
    Placer::new(topology).place(free, n)
}

/// Numbers for group ids: 0, 1, 2… in order of first use.
#[derive(Debug)]
struct GroupNumbers<K>(BTreeMap<K, usize>);

impl<K: Ord> Default for GroupNumbers<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> GroupNumbers<K> {
    fn of(&mut self, id: K) -> usize {
        let next = self.0.len();
        *self.0.entry(id).or_insert(next)
    }
}

/// Counts distinct small numbers.
#[derive(Debug, Default)]
struct DistinctCount {
    counted: Vec<bool>,
    count: usize,
}

impl DistinctCount {
    fn add(&mut self, number: usize) {
        if self.counted.len() <= number {
            self.counted.resize(number + 1, false);
        }
        if !self.counted[number] {
            self.counted[number] = true;
            self.count += 1;
        }
    }
}
