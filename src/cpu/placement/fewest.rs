//! [`Minimum`]: the fewest unwanted CPUs and split cores that a placement can have. It bounds every
//! table before the search begins.

use std::collections::BTreeMap;

use super::class::Class;
use super::plan::PlacementPlan;
use super::request::{Cores, SearchInput};

/// The most important numbers of the best placement, known before the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Minimum {
    /// The fewest unwanted CPUs.
    pub(super) unwanted: usize,
    /// The fewest split cores among placements with the fewest unwanted CPUs.
    pub(super) split_cores: usize,
}

/// The minimum for a request; none if no placement meets it.
pub(super) fn least(plan: &PlacementPlan, terms: &SearchInput<'_>) -> Option<Minimum> {
    if terms.unwanted.is_empty() && terms.cores != Cores::Single {
        let split_cores = split_cores(plan, terms.open, terms.wanted)?;
        let meets = terms.cores != Cores::Whole || split_cores == 0;
        return meets.then_some(Minimum {
            unwanted: 0,
            split_cores,
        });
    }
    let mut classes: BTreeMap<Class, usize> = BTreeMap::new();
    for class in plan.cores.iter().filter_map(|core| Class::of(core, terms)) {
        *classes.entry(class).or_default() += 1;
    }
    // The minimum for each count, extended class by class.
    let mut best = vec![Some(Minimum {
        unwanted: 0,
        split_cores: 0,
    })];
    for (class, cores) in classes {
        let most = class.each * cores;
        let ways: Vec<_> = (0..=most.min(terms.wanted))
            .filter_map(|count| {
                class
                    .taken(cores, terms.cores, count)
                    .map(|taken| (count, taken))
            })
            .collect();
        let mut next: Vec<Option<Minimum>> = vec![None; (best.len() + most).min(terms.wanted + 1)];
        for (before, sum) in best
            .iter()
            .enumerate()
            .filter_map(|(count, sum)| sum.map(|sum| (count, sum)))
        {
            for &(count, taken) in &ways {
                let Some(slot) = next.get_mut(before + count) else {
                    break;
                };
                let sum = Minimum {
                    unwanted: sum.unwanted + taken.unwanted,
                    split_cores: sum.split_cores + taken.split_cores,
                };
                *slot = Some(slot.map_or(sum, |least| least.min(sum)));
            }
        }
        best = next;
    }
    best.get(terms.wanted).copied().flatten()
}

/// For each count up to the total, whether some of the sizes add up to it.
fn sums(sizes: &[usize]) -> Vec<bool> {
    let mut sums = vec![true];
    for &size in sizes {
        let mut next = sums.clone();
        next.resize(sums.len() + size, false);
        for (slot, _) in next[size..]
            .iter_mut()
            .zip(&sums)
            .filter(|(_, reached)| **reached)
        {
            *slot = true;
        }
        sums = next;
    }
    sums
}

/// The nearest counts below and above `wanted` that are sums of whole cores of the given sizes.
pub(super) fn nearest_sums(sizes: &[usize], wanted: usize) -> (usize, usize) {
    let sums = sums(sizes);
    let is_sum = |count: &usize| sums.get(*count).copied().unwrap_or_default();
    let less = (0..wanted).rev().find(is_sum).unwrap_or_default();
    let more = (wanted + 1..sums.len())
        .find(is_sum)
        .unwrap_or(sums.len() - 1);
    (less, more)
}

/// The fewest split cores if no CPU is unwanted; none if fewer than `wanted` CPUs are free.
fn split_cores(plan: &PlacementPlan, is_free: &[bool], wanted: usize) -> Option<usize> {
    let mut partly: Vec<usize> = Vec::new();
    let mut whole: Vec<usize> = Vec::new();
    for core in &plan.cores {
        match core.iter().filter(|&&cpu| is_free[cpu]).count() {
            0 => {}
            free if free == core.len() => {
                if whole.len() < core.len() {
                    whole.resize(core.len(), 0);
                }
                whole[core.len() - 1] += 1;
            }
            free => partly.push(free),
        }
    }
    // For each count, the number of partly free cores needed. The freest are taken first.
    partly.sort_unstable_by(|a, b| b.cmp(a));
    let mut of_partly = vec![0];
    for (&free, used) in partly.iter().zip(1..) {
        of_partly.extend(std::iter::repeat_n(used, free));
    }
    // The fewest split cores among entirely free cores for each count, extended by each core size
    // in turn.
    let mut of_whole = vec![Some(0)];
    for (&cores, size) in whole.iter().zip(1..).filter(|&(&cores, _)| cores > 0) {
        let mut next = vec![None; (of_whole.len() + cores * size).min(wanted + 1)];
        for (before, split_cores) in of_whole
            .iter()
            .enumerate()
            .filter_map(|(count, s)| s.map(|s| (count, s)))
        {
            for (slot, count) in next[before..].iter_mut().zip(0..=cores * size) {
                let split_cores = split_cores + usize::from(count % size > 0);
                *slot = Some(slot.map_or(split_cores, |least: usize| least.min(split_cores)));
            }
        }
        of_whole = next;
    }
    let splits = of_whole
        .iter()
        .enumerate()
        .filter_map(|(count, &split_cores)| {
            let rest = of_partly.get(wanted - count)?;
            Some(split_cores? + rest)
        });
    splits.min()
}
