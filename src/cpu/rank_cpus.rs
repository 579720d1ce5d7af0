//! [`RankCpus`]: a container's CPUs, divided among its local processes.
//!
//! Processes that run side by side, as torchrun and mpirun start them, disturb each other least if each keeps to CPUs of its
//! own. A *slice* is the CPUs of one process. Of all divisions into slices, the best has the least of these numbers, compared
//! from first to last:
//!
//! 1. cuts through cores, because two processes on one core share its execution units and its first caches;
//! 2. groups that slices touch beyond the first, from the coarsest kind to the finest: sockets, NUMA nodes and LLCs on most
//!    machines;
//! 3. the sum of the squares of the slices' sizes, so that the sizes are even.
//!
//! Each slice has at least N / P CPUs for N CPUs and P processes, since that is the number of threads that each process gets.
//! It has at most one whole core more, so two slices differ by a core at most.
//!
//! The CPUs are put in a row in which those of a core, of an LLC and of a NUMA node are neighbours, and the row is cut. Groups
//! that whole slices fill come first, so that no slice takes a part of them only because a smaller group came before. Within
//! this row, the choice is exact, unless it takes too many steps: see [`MOST_STEPS`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{CpuSet, Topology};

/// The most steps of the search: the processes times the CPUs that are left over times the CPUs of a core. A machine with 2048
/// CPUs takes at most three million. The number of processes is the pod's author's, who must not take the agent's time, so beyond
/// the limit the sizes are only even.
const MOST_STEPS: usize = 4_000_000;

/// The CPUs of each local process of a container, by its local rank. There are at least two processes.
///
/// The text form has a list for each process in the kernel's format, with `;` between: `0-3;4-7`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankCpus(Vec<CpuSet>);

/// The price of a division, most important number first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Price {
    split_cores: u32,
    /// By kind of group, from the coarsest to the finest.
    groups: [u32; KINDS],
    squares: u64,
}

/// The kinds of groups: NUMA nodes, sockets, LLCs.
const KINDS: usize = 3;

/// A core's groups by kind; [`OUTSIDE`] for none.
type Groups = [u32; KINDS];

/// The number of no group.
const OUTSIDE: u32 = u32::MAX;

/// A CPU in the row, and whether a group begins with it.
#[derive(Debug, Clone, Copy)]
struct Place {
    cpu: u32,
    begins_core: bool,
    begins: [bool; KINDS],
}

/// The cheapest way to cut the rest of the row.
#[derive(Debug, Clone, Copy)]
struct Cheapest {
    price: Price,
    /// How many CPUs beyond the least number the next slice has.
    beyond: usize,
}

// === impl RankCpus ===

impl RankCpus {
    /// Divides a container's CPUs among its processes, always in the same way. The slices are disjoint, and together they are
    /// all of the CPUs. Their order is that of the lowest CPU.
    ///
    /// `None` for fewer than two processes, and for more processes than CPUs.
    pub fn of(cpus: &CpuSet, topology: &Topology, processes: usize) -> Option<Self> {
        if processes < 2 || processes > cpus.len() {
            return None;
        }
        let least = cpus.len() / processes;
        let row = row(cpus, topology, least);
        let mut rest = row.as_slice();
        let mut slices = Vec::with_capacity(processes);
        for beyond in cuts(&row, processes) {
            let (slice, after) = rest.split_at_checked(least + beyond)?;
            slices.push(slice.iter().map(|place| place.cpu).collect());
            rest = after;
        }
        slices.sort_by_key(CpuSet::first);
        Some(Self(slices))
    }

    /// The CPUs of each process, by its local rank.
    pub fn slices(&self) -> &[CpuSet] {
        &self.0
    }
}

impl fmt::Display for RankCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for slice in &self.0 {
            write!(f, "{between}{slice}")?;
            between = ";";
        }
        Ok(())
    }
}

/// The CPUs in an order in which groups are neighbours. A group comes before others of its kind if slices of `least` CPUs fill
/// it, and else by its lowest CPU.
fn row(cpus: &CpuSet, topology: &Topology, least: usize) -> Vec<Place> {
    let mut cores: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for id in cpus.iter() {
        let core = topology.cpu(id).and_then(|cpu| cpu.core);
        let core = core.map_or((1, id), |core| (0, core));
        cores.entry(core).or_default().push(id);
    }
    // A core that lies in several groups counts with its lowest CPU, so that it stays together.
    let groups = |lowest: u32| -> Groups {
        let cpu = topology.cpu(lowest).copied().unwrap_or_default();
        [cpu.numa, cpu.socket, cpu.llc].map(|group| group.unwrap_or(OUTSIDE))
    };
    let cores: Vec<(u32, Vec<u32>)> = cores
        .into_values()
        .filter_map(|core| Some((*core.first()?, core)))
        .collect();
    let all: Vec<Groups> = cores.iter().map(|(lowest, _)| groups(*lowest)).collect();
    let kinds = coarsest_first(&all);
    let cores: Vec<(Groups, u32, Vec<u32>)> = cores
        .into_iter()
        .zip(all)
        .map(|((lowest, core), groups)| {
            let groups = kinds.map(|kind| groups.get(kind).copied().unwrap_or(OUTSIDE));
            (groups, lowest, core)
        })
        .collect();
    let mut found: BTreeMap<&[u32], (usize, u32)> = BTreeMap::new();
    for (groups, lowest, core) in &cores {
        for kinds in 1..=KINDS {
            let group = groups.get(..kinds).unwrap_or_default();
            let (size, first) = found.entry(group).or_insert((0, *lowest));
            *size += core.len();
            *first = (*first).min(*lowest);
        }
    }
    let order = |groups: &Groups| {
        let order = |kinds: usize| {
            let group = groups.get(..kinds).and_then(|group| found.get(group));
            group.map(|&(size, first)| (size % least.max(1) != 0, first))
        };
        [order(1), order(2), order(3)]
    };
    let mut order: Vec<_> = cores
        .iter()
        .enumerate()
        .map(|(at, (groups, lowest, _))| (order(groups), *lowest, at))
        .collect();
    order.sort_unstable();
    let order: Vec<usize> = order.into_iter().map(|(_, _, at)| at).collect();
    let mut before = None;
    let mut row = Vec::with_capacity(cpus.len());
    for at in order {
        let Some((groups, _, core)) = cores.get(at) else {
            continue;
        };
        let last: Option<Groups> = before.replace(*groups);
        let begins =
            std::array::from_fn(|kind| last.is_none_or(|last| last.get(kind) != groups.get(kind)));
        row.extend(core.iter().enumerate().map(|(at, &cpu)| Place {
            cpu,
            begins_core: at == 0,
            begins: begins.map(|begins| begins && at == 0),
        }));
    }
    row
}

/// The kinds of groups, those with the fewest groups first. On most machines, a socket has several NUMA nodes, but a NUMA node may
/// have several LLCs or an LLC several NUMA nodes.
fn coarsest_first(cores: &[Groups]) -> [usize; KINDS] {
    let count = |kind: &usize| {
        let ids = cores.iter().filter_map(|groups| groups.get(*kind));
        ids.collect::<BTreeSet<_>>().len()
    };
    let mut kinds = std::array::from_fn(|kind| kind);
    kinds.sort_by_key(count);
    kinds
}

/// For each slice, how many CPUs it has beyond the least number.
fn cuts(row: &[Place], processes: usize) -> Vec<usize> {
    let (least, left_over) = (row.len() / processes, row.len() % processes);
    let most = largest_core(row).min(left_over);
    if processes.saturating_mul(left_over).saturating_mul(most) > MOST_STEPS {
        return (0..processes)
            .map(|index| usize::from(index < left_over))
            .collect();
    }
    // How many groups begin before each place of the row.
    let mut begun = vec![[0u32; KINDS]];
    begun.extend(row.iter().scan([0u32; KINDS], |sums, place| {
        for (sum, begins) in sums.iter_mut().zip(place.begins) {
            *sum += u32::from(begins);
        }
        Some(*sums)
    }));
    // The first CPU of a slice is in a group, whether that begins there or not.
    let between = |start: usize, end: usize| {
        let at = |place: usize| begun.get(place).copied().unwrap_or_default();
        let (from, to) = (at(start + 1), at(end));
        std::array::from_fn(|kind| {
            let of = |sums: &[u32; KINDS]| sums.get(kind).copied().unwrap_or_default();
            of(&to).saturating_sub(of(&from))
        })
    };
    let slice = |start: usize, end: usize| Price {
        split_cores: u32::from(row.get(end).is_some_and(|place| !place.begins_core)),
        groups: between(start, end),
        squares: ((end - start) as u64).pow(2),
    };
    // From the last slice to the first: for each number of left-over CPUs that the slices before have taken, the cheapest way to
    // cut the rest. Those after the last slice must all be taken.
    let mut later: Vec<Option<Price>> = vec![None; left_over + 1];
    if let Some(all) = later.last_mut() {
        *all = Some(Price::default());
    }
    let mut table: Vec<Vec<u16>> = Vec::with_capacity(processes);
    for index in (0..processes).rev() {
        let cheapest = |taken: usize| {
            let start = index * least + taken;
            let ways = (0..=most.min(left_over - taken)).filter_map(|beyond| {
                let rest = (*later.get(taken + beyond)?)?;
                let price = slice(start, start + least + beyond).plus(rest);
                Some(Cheapest { price, beyond })
            });
            // Of equal ways, the larger slice comes first.
            ways.min_by_key(|way| (way.price, std::cmp::Reverse(way.beyond)))
        };
        let ways: Vec<Option<Cheapest>> = (0..=left_over).map(cheapest).collect();
        later = ways.iter().map(|way| Some((*way)?.price)).collect();
        let beyond = |way: &Option<Cheapest>| way.map_or(0, |way| way.beyond);
        table.push(
            ways.iter()
                .map(|way| u16::try_from(beyond(way)).unwrap_or(u16::MAX))
                .collect(),
        );
    }
    let mut taken = 0;
    let chosen = table.iter().rev().map(|ways| {
        let beyond = ways.get(taken).map_or(0, |&beyond| usize::from(beyond));
        taken += beyond;
        beyond
    });
    chosen.collect()
}

/// The CPUs of the largest core in the row.
fn largest_core(row: &[Place]) -> usize {
    let mut largest = 0;
    let mut size = 0;
    for place in row {
        size = if place.begins_core { 1 } else { size + 1 };
        largest = largest.max(size);
    }
    largest
}

// === impl Price ===

impl Price {
    fn plus(self, other: Self) -> Self {
        Self {
            split_cores: self.split_cores.saturating_add(other.split_cores),
            groups: std::array::from_fn(|kind| {
                let of = |price: &Self| price.groups.get(kind).copied().unwrap_or_default();
                of(&self).saturating_add(of(&other))
            }),
            squares: self.squares.saturating_add(other.squares),
        }
    }
}

#[cfg(test)]
mod tests;
