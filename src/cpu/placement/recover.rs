//! From prices back to CPUs: the lowest ids among all cheapest placements.
//!
//! Of two different sets of equal size, the set with the smallest differing CPU has the lower list
//! of ids, and a union with a disjoint set keeps the order. Therefore each table entry has a single
//! best set. Only entries on a cheapest path are computed.

use std::ops::Range;

use super::class::Class;
use super::plan::PlacementPlan;
use super::price::Price;
use super::request::Cores;
use super::search::{ListPair, NodeShape, Search, SearchNode};
use crate::cpu::CpuSet;

const BITS: usize = 64;

#[derive(Debug)]
struct ComputedSets {
    /// Words per set.
    width: usize,
    /// The words of all sets in sequence. The first set is empty.
    words: Vec<u64>,
    /// For each table entry, the number of its best set, or 0.
    known: Vec<usize>,
}

impl<P: Price> Search<'_, P> {
    /// The placement of a table entry.
    pub(super) fn recover(&self, node: usize, entry: usize) -> CpuSet {
        let width = self.plan.ids.len().div_ceil(BITS);
        let mut sets = ComputedSets {
            width,
            words: vec![0; width],
            known: vec![0; self.counts.len()],
        };
        let best = self.best(&mut sets, node, entry);
        sets.cpus(self.plan, best)
    }

    /// The number of the best set of a table entry.
    #[inline]
    fn best(&self, sets: &mut ComputedSets, node: usize, entry: usize) -> usize {
        match sets.known[entry] {
            0 => self.find(sets, node, entry),
            known => known,
        }
    }

    /// Computes the best set of a table entry, and of those below.
    fn find(&self, sets: &mut ComputedSets, node: usize, entry: usize) -> usize {
        let count = self.counts[entry];
        let set = match &self.nodes[node].shape {
            NodeShape::Empty => 0,
            NodeShape::Class { class, threads } => {
                self.best_of_class(sets, *class, &self.threads[threads.clone()], count)
            }
            NodeShape::Piece { threads } => sets.add(&self.threads[threads.clone()][..count]),
            NodeShape::Join { pairs, .. } => {
                self.best_of_join(sets, node, entry, &self.pairs[pairs.clone()])
            }
        };
        sets.known[entry] = set;
        set
    }

    /// The best set of `count` CPUs from the cores of a class.
    fn best_of_class(
        &self,
        sets: &mut ComputedSets,
        class: Class,
        threads: &[usize],
        count: usize,
    ) -> usize {
        let Class {
            size,
            each,
            unwanted,
        } = class;
        let wanted = each - unwanted;
        if self.terms.cores == Cores::Single {
            sets.add(&threads[..count])
        } else if self.terms.cores == Cores::Preferred && unwanted > 0 && wanted > 0 {
            match count.checked_sub(threads.len() / each * wanted) {
                None | Some(0) => sets.of_part_cores(threads, each, wanted, count),
                Some(extra) => sets.of_mixed_cores(threads, class, extra),
            }
        } else if each == size {
            sets.of_whole_cores(threads, size, count)
        } else {
            sets.of_part_cores(threads, each, each, count)
        }
    }

    /// The best union of a set from one part of a join and a set from the other.
    fn best_of_join(
        &self,
        sets: &mut ComputedSets,
        node: usize,
        entry: usize,
        pairs: &[ListPair<P>],
    ) -> usize {
        let count = self.counts[entry];
        let NodeShape::Join { a, b, .. } = self.nodes[node].shape else {
            return 0;
        };
        let pattern = self.pattern(node, entry);
        let shared = self.shared(self.nodes[node].shared, count);
        let mut best = None;
        for pair in pairs.iter().filter(|pair| pair.pattern == pattern) {
            // A pair whose charge alone exceeds the entry's price did not lead there.
            let Some(price) = self.costs[entry].without(pair.charge + shared) else {
                continue;
            };
            let (part, list) = match (pair.a, pair.b) {
                (Some(list_a), Some(list_b)) => {
                    for (one, other) in self.splits(list_a, list_b, count, price) {
                        let split = (self.best(sets, a, one), self.best(sets, b, other));
                        best = sets.better(best, split);
                    }
                    continue;
                }
                (Some(list), None) => (a, list),
                (None, Some(list)) => (b, list),
                (None, None) => continue,
            };
            let one = self.at(list, count);
            if let Some(one) = one.filter(|&one| self.costs[one] == price) {
                let set = self.best(sets, part, one);
                best = sets.better(best, (set, 0));
            }
        }
        best.map_or(0, |(a, b)| sets.unite(a, b))
    }

    /// The pairs of entries from two lists with a total count and a total price.
    fn splits(
        &self,
        list_a: usize,
        list_b: usize,
        count: usize,
        price: P,
    ) -> impl Iterator<Item = (usize, usize)> {
        let entries = |list: usize| -> Range<usize> { self.lists[list].entries.clone() };
        let (list_a, list_b) = (entries(list_a), entries(list_b));
        let (ones, others) = (&self.counts[list_a.clone()], &self.counts[list_b.clone()]);
        let most = others.last().copied().unwrap_or_default();
        let from = ones.partition_point(|&taken| taken + most < count);
        let to = ones.partition_point(|&taken| taken < count);
        // The more CPUs the first node gives, the fewer the second gives, so `end` only moves down.
        let mut end = others.len();
        let candidates = (list_a.start + from..).zip(&ones[from..to]);
        candidates.filter_map(move |(one, &taken)| {
            while end > 0 && taken + others[end - 1] > count {
                end -= 1;
            }
            let last = end.checked_sub(1)?;
            let other = list_b.start + last;
            let fits =
                taken + others[last] == count && self.costs[one] + self.costs[other] == price;
            fits.then_some((one, other))
        })
    }

    fn pattern(&self, node: usize, entry: usize) -> u64 {
        let SearchNode {
            lists, is_split, ..
        } = &self.nodes[node];
        if *is_split {
            return 0;
        }
        let lists = &self.lists[lists.clone()];
        lists
            .iter()
            .find(|list| list.entries.contains(&entry))
            .map_or(0, |list| list.pattern)
    }

    fn at(&self, list: usize, count: usize) -> Option<usize> {
        let entries = self.lists[list].entries.clone();
        self.counts[entries.clone()]
            .binary_search(&count)
            .ok()
            .map(|place| entries.start + place)
    }
}

impl ComputedSets {
    fn get(&self, set: usize) -> &[u64] {
        &self.words[set * self.width..(set + 1) * self.width]
    }

    fn add<'a>(&mut self, cpus: impl IntoIterator<Item = &'a usize>) -> usize {
        let start = self.words.len();
        self.words.resize(start + self.width, 0);
        for cpu in cpus {
            self.words[start + cpu / BITS] |= 1 << (cpu % BITS);
        }
        start / self.width
    }

    /// The number of the union of two sets; `a` if `b` is empty.
    fn unite(&mut self, a: usize, b: usize) -> usize {
        if b == 0 {
            return a;
        }
        let start = self.words.len();
        for word in 0..self.width {
            self.words
                .push(self.words[a * self.width + word] | self.words[b * self.width + word]);
        }
        start / self.width
    }

    /// The better of two unions: the union with the lower ids.
    fn better(&self, old: Option<(usize, usize)>, new: (usize, usize)) -> Option<(usize, usize)> {
        let Some(old) = old else { return Some(new) };
        let (old_a, old_b, new_a, new_b) = (
            self.get(old.0),
            self.get(old.1),
            self.get(new.0),
            self.get(new.1),
        );
        for ((old_a, old_b), (new_a, new_b)) in old_a.iter().zip(old_b).zip(new_a.iter().zip(new_b))
        {
            let new_word = new_a | new_b;
            let differ = (old_a | old_b) ^ new_word;
            if differ != 0 {
                let lowest = differ & differ.wrapping_neg();
                return Some(if new_word & lowest != 0 { new } else { old });
            }
        }
        Some(old)
    }

    /// From entirely free cores: as many whole cores as the count allows, and a part of one core
    /// for the rest. The cores are those with the lowest first CPUs, and the part comes from the
    /// one whose first omitted CPU has the highest id.
    fn of_whole_cores(&mut self, threads: &[usize], size: usize, count: usize) -> usize {
        let rest = count % size;
        let touched = &threads[..count.div_ceil(size) * size];
        let part = if rest == 0 {
            None
        } else {
            touched.chunks(size).max_by_key(|core| core[rest])
        };
        let left_out = part.map_or(&[][..], |core| &core[rest..]);
        self.add(touched.iter().filter(|cpu| !left_out.contains(cpu)))
    }

    /// From partly free cores: the fewest cores that hold the count, with the lowest first CPUs.
    /// Each gives its first CPU, and the lowest of their other CPUs complete the count. `threads`
    /// has `each` CPUs per core, of which only the first `wanted` are used.
    fn of_part_cores(
        &mut self,
        threads: &[usize],
        each: usize,
        wanted: usize,
        count: usize,
    ) -> usize {
        let touched = count.div_ceil(wanted);
        let cores = threads
            .chunks(each)
            .take(touched)
            .map(|core| &core[..wanted]);
        let mut others: Vec<usize> = cores.clone().flat_map(|core| &core[1..]).copied().collect();
        others.sort_unstable();
        others.truncate(count - touched);
        let firsts: Vec<usize> = cores.map(|core| core[0]).collect();
        self.add(firsts.iter().chain(&others))
    }

    /// From cores with wanted and unwanted CPUs: all wanted CPUs and `extra` unwanted ones, which
    /// complete as many cores as possible. Among the possible choices, the unwanted CPUs with the
    /// lowest ids are taken.
    fn of_mixed_cores(&mut self, threads: &[usize], class: Class, extra: usize) -> usize {
        let wanted = class.each - class.unwanted;
        let cores = || threads.chunks(class.each);
        let complete = if class.each == class.size {
            extra / class.unwanted
        } else {
            0
        };
        let numbered = cores().enumerate();
        let mut unwanted: Vec<(usize, usize)> = numbered
            .flat_map(|(core, cpus)| cpus[wanted..].iter().map(move |&cpu| (cpu, core)))
            .collect();
        unwanted.sort_unstable();
        let mut missing = vec![class.unwanted; cores().len()];
        let mut taken = Vec::with_capacity(extra);
        for (cpu, core) in unwanted {
            if taken.len() == extra {
                break;
            }
            missing[core] -= 1;
            let mut fullest = missing.clone();
            fullest.sort_unstable();
            if taken.len() + 1 + fullest[..complete].iter().sum::<usize>() <= extra {
                taken.push(cpu);
            } else {
                missing[core] += 1;
            }
        }
        self.add(cores().flat_map(|core| &core[..wanted]).chain(&taken))
    }

    fn cpus(&self, plan: &PlacementPlan, set: usize) -> CpuSet {
        let held = |cpu: &usize| self.get(set)[cpu / BITS] & (1 << (cpu % BITS)) != 0;
        (0..plan.ids.len())
            .filter(held)
            .map(|cpu| plan.ids[cpu])
            .collect()
    }
}
