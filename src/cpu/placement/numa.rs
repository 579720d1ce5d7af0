//! Placements on the fewest NUMA nodes: [`Request::fewest_numa`](super::Request::fewest_numa).
//!
//! A set that touches at most `k` NUMA nodes lies in a union of `k` NUMA nodes, and every set in
//! the union touches at most `k`. The best allowed set is therefore the best of all unions' best
//! sets. The usual search finds the best set of a union when only the union's CPUs are open. The
//! free set stays the whole free set, because remaining free CPUs are part of the price.
//!
//! Three facts keep the number of searches low:
//!
//! - The best set without the rule comes first. If it touches few enough NUMA nodes, no search
//!   remains.
//! - Only unions with the minimum of unwanted CPUs and split cores are searched, and the minimum is
//!   known without a search.
//! - Of [alike](Placer::alike) NUMA nodes the lowest are taken first: exchanging two alike NUMA
//!   nodes, CPU by CPU, changes no number, and lower ids are better.
//!
//! On real machines, that leaves a few unions. If each of many NUMA nodes is fragmented
//! differently, only [`MOST_UNIONS`] are searched, beginning with the NUMA nodes with the most
//! CPUs. The answer then keeps the rule, but may not be the best.

use std::collections::BTreeMap;

use super::fewest::{Minimum, least, nearest_sums};
use super::kinds::Found;
use super::plan::PlacementPlan;
use super::price::Price;
use super::request::{Cores, PlacementRefusal, SearchInput};
use super::search::Search;
use super::{Membership, Placer};
use crate::cpu::CpuSet;

/// The most unions of NUMA nodes searched per request. Each search may take some ten microseconds.
const MOST_UNIONS: usize = 2_000;

/// The NUMA nodes that a union must contain, and optional NUMA nodes.
#[derive(Debug)]
struct NumaChoice {
    /// For each NUMA node, whether every union contains it.
    held: Vec<bool>,
    /// Optional NUMA nodes with CPUs to give, in lists of alike ones, lowest first. The list with
    /// the most CPUs per NUMA node comes first.
    classes: Vec<Vec<usize>>,
    /// For each NUMA node, the most available CPUs.
    gives: Vec<usize>,
}

/// A union of NUMA nodes, and the NUMA nodes that may still be added.
#[derive(Debug)]
struct PartialUnion<'a> {
    /// For each NUMA node, whether the union contains it.
    contains: Vec<bool>,
    /// The most CPUs available in the union.
    given: usize,
    /// The number of NUMA nodes still to add.
    more: usize,
    /// The classes of the NUMA nodes that may be added.
    classes: &'a [Vec<usize>],
}

/// The properties of a CPU that must be equal in alike NUMA nodes.
#[derive(Debug, PartialEq, Eq)]
struct CpuTraits {
    core: GroupKey,
    socket: GroupKey,
    llc: GroupKey,
    free: bool,
    open: bool,
    unwanted: bool,
    distance: usize,
}

/// The key of a CPU's group: for a group inside a NUMA node, its position there; for a group across
/// NUMA nodes, its number on the machine.
#[derive(Debug, PartialEq, Eq)]
enum GroupKey {
    Inside(usize),
    Across(usize),
}

// === impl Placer ===

impl Placer {
    /// The best CPUs under the rule, which counts the container's present CPUs and the new ones
    /// together: all of them touch no more NUMA nodes than as many CPUs need on the empty machine.
    /// `usual` is the best placement without the rule.
    pub(super) fn on_fewest_numa<P: Price>(
        &self,
        plan: &PlacementPlan,
        terms: &SearchInput<'_>,
        own: &CpuSet,
        usual: Found<P>,
    ) -> Result<Found<P>, PlacementRefusal> {
        if terms.wanted == 0 {
            return Ok(usual);
        }
        let held = self.numa_groups(own);
        let held_cpus = self.plan.ids.iter().filter(|&&id| own.contains(id)).count();
        let total = held_cpus + terms.wanted;
        let needs = self.numa_needed(plan, terms, total);
        if count(&self.numa_groups(&own.union(&usual.cpus))) <= needs {
            return Ok(usual);
        }
        let held_on = count(&held);
        let choice = self.choice(terms, held);
        let mut most = 0;
        if let Some(more) = needs.checked_sub(held_on) {
            if let Some(found) = self.best_union::<P>(plan, terms, &choice, more) {
                return Ok(found);
            }
            for union in choice.unions(more, 0) {
                most = most.max(self.given(terms, &union));
            }
        }
        let numbered = choice
            .gives
            .iter()
            .enumerate()
            .filter(|(_, gives)| **gives > 0);
        let free = numbered
            .map(|(group, &gives)| (self.numa_id(group), gives))
            .collect();
        let cores = terms.cores;
        Err(PlacementRefusal::TooFewOnNuma {
            wanted: total,
            needs,
            held: held_cpus,
            held_on,
            most,
            free,
            cores,
        })
    }

    /// The best placement in any union of the NUMA nodes held and `more` others.
    fn best_union<P: Price>(
        &self,
        plan: &PlacementPlan,
        terms: &SearchInput<'_>,
        choice: &NumaChoice,
        more: usize,
    ) -> Option<Found<P>> {
        let mut lowest: Option<Minimum> = None;
        let mut worth: Vec<Vec<bool>> = Vec::new();
        for union in choice.unions(more, terms.wanted) {
            let open = self.open_in(terms, &union);
            let Some(least) = least(
                plan,
                &SearchInput {
                    open: &open,
                    ..*terms
                },
            ) else {
                continue;
            };
            // The numbers in `Minimum` count first, so the best placement is in a union with the
            // lowest minimum.
            if lowest.is_none_or(|lowest| least < lowest) {
                lowest = Some(least);
                worth.clear();
            }
            if lowest == Some(least) {
                worth.push(open);
            }
        }
        let mut best: Option<(P, CpuSet)> = None;
        for open in &worth {
            let found = Search::<P>::new(plan, SearchInput { open, ..*terms }, lowest?).run();
            let is_better = |(price, cpus): &(P, CpuSet)| {
                (found.0, found.1.iter().collect::<Vec<_>>()) < (*price, cpus.iter().collect())
            };
            if found.1.len() == terms.wanted && best.as_ref().is_none_or(is_better) {
                best = Some(found);
            }
        }
        let minimum = lowest?;
        best.map(|(price, cpus)| Found {
            minimum,
            price,
            cpus,
        })
    }

    /// The fewest NUMA nodes for `wanted` CPUs if all online CPUs are free.
    ///
    /// Because of the container's present CPUs, `wanted` may be no sum of whole cores. CPUs are
    /// then counted instead of cores.
    fn numa_needed(&self, plan: &PlacementPlan, terms: &SearchInput<'_>, wanted: usize) -> usize {
        let all = vec![true; self.membership.len()];
        let nothing = SearchInput {
            wanted,
            free: &all,
            open: &all,
            unwanted: &[],
            distances: &[],
            ..*terms
        };
        let none = vec![false; self.numa_count()];
        let choice = self.choice(&nothing, none);
        let mut sizes = choice.gives.clone();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let enough = |gives: &usize| {
            sum += gives;
            sum >= wanted
        };
        let at_least = sizes
            .iter()
            .position(enough)
            .map_or(sizes.len(), |last| last + 1);
        if terms.cores == Cores::Preferred {
            return at_least;
        }
        let holds = |union: Vec<bool>| {
            let open = self.open_in(&nothing, &union);
            least(
                plan,
                &SearchInput {
                    open: &open,
                    ..nothing
                },
            )
            .is_some()
        };
        let mut counts = at_least..=sizes.len();
        counts
            .find(|&count| choice.unions(count, wanted).into_iter().any(holds))
            .unwrap_or(at_least)
    }

    fn choice(&self, terms: &SearchInput<'_>, held: Vec<bool>) -> NumaChoice {
        let mut cores: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (member, _) in self
            .membership
            .iter()
            .zip(terms.open)
            .filter(|(_, open)| **open)
        {
            *cores.entry((member.numa, member.core)).or_default() += 1;
        }
        let mut gives = vec![0; held.len()];
        for ((numa, _), cpus) in cores {
            gives[numa] += if terms.cores == Cores::Single {
                1
            } else {
                cpus
            };
        }
        let others: Vec<usize> = (0..held.len())
            .filter(|&numa| !held[numa] && gives[numa] > 0)
            .collect();
        let mut classes = self.alike(terms, &others);
        classes.sort_by_key(|class| std::cmp::Reverse(gives[class[0]]));
        NumaChoice {
            held,
            classes,
            gives,
        }
    }

    /// NUMA nodes in lists of alike ones, which can exchange their CPUs in the order of ids: every
    /// group stays a group, and every CPU keeps the properties in [`CpuTraits`]. In each list, each
    /// CPU of a NUMA node has a lower id than the same CPU of the next NUMA node.
    fn alike(&self, terms: &SearchInput<'_>, groups: &[usize]) -> Vec<Vec<usize>> {
        let mut classes: Vec<(Vec<CpuTraits>, Vec<usize>)> = Vec::new();
        for &group in groups {
            let members = self.members(group);
            let traits = self.traits(terms, &members);
            let same = classes.iter_mut().find(|(known, list)| {
                let last = list
                    .last()
                    .map(|&last| self.members(last))
                    .unwrap_or_default();
                *known == traits
                    && last
                        .iter()
                        .zip(&members)
                        .all(|(last, member)| last < member)
            });
            match same {
                Some((_, list)) => list.push(group),
                None => classes.push((traits, vec![group])),
            }
        }
        classes.into_iter().map(|(_, list)| list).collect()
    }

    fn traits(&self, terms: &SearchInput<'_>, members: &[usize]) -> Vec<CpuTraits> {
        let keys = |kind: fn(&Membership) -> usize| -> Vec<GroupKey> {
            let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
            for member in &self.membership {
                *sizes.entry(kind(member)).or_default() += 1;
            }
            let mut here: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
            for &cpu in members {
                let next = here.len();
                here.entry(kind(&self.membership[cpu]))
                    .or_insert((next, 0))
                    .1 += 1;
            }
            let of = |&cpu: &usize| {
                let group = kind(&self.membership[cpu]);
                match here.get(&group) {
                    Some(&(number, size)) if sizes.get(&group) == Some(&size) => {
                        GroupKey::Inside(number)
                    }
                    _ => GroupKey::Across(group),
                }
            };
            members.iter().map(of).collect()
        };
        let cores = keys(|member| member.core);
        let sockets = keys(|member| member.socket);
        let llcs = keys(|member| member.llc);
        let group_keys = cores.into_iter().zip(sockets).zip(llcs);
        let one =
            |(&cpu, ((core, socket), llc)): (&usize, ((GroupKey, GroupKey), GroupKey))| CpuTraits {
                core,
                socket,
                llc,
                free: terms.free[cpu],
                open: terms.open[cpu],
                unwanted: terms.is_unwanted(cpu),
                distance: terms.distance(cpu),
            };
        members.iter().zip(group_keys).map(one).collect()
    }

    /// For each CPU, whether the request may get it from a union of NUMA nodes.
    fn open_in(&self, terms: &SearchInput<'_>, union: &[bool]) -> Vec<bool> {
        let inside = |(member, &open): (&Membership, &bool)| open && union[member.numa];
        let mut open: Vec<bool> = self.membership.iter().zip(terms.open).map(inside).collect();
        if terms.cores == Cores::Whole {
            // A core in pieces may have a piece outside of the union.
            let whole = self.on_whole_cores(&open);
            for (open, whole) in open.iter_mut().zip(whole) {
                *open &= whole;
            }
        }
        open
    }

    /// The most CPUs available to the request in a union that has too few CPUs.
    fn given(&self, terms: &SearchInput<'_>, union: &[bool]) -> usize {
        let open = self.open_in(terms, union);
        let terms = SearchInput {
            open: &open,
            ..*terms
        };
        match terms.cores {
            Cores::Preferred => count(&open),
            Cores::Single => self.open_cores(&terms).len(),
            Cores::Whole => nearest_sums(&self.open_cores(&terms), terms.wanted).0,
        }
    }

    fn numa_count(&self) -> usize {
        self.membership
            .iter()
            .map(|member| member.numa + 1)
            .max()
            .unwrap_or_default()
    }

    /// For each NUMA node, whether the set touches it.
    fn numa_groups(&self, cpus: &CpuSet) -> Vec<bool> {
        let mut touched = vec![false; self.numa_count()];
        let members = self.membership.iter().zip(&self.plan.ids);
        for (member, _) in members.filter(|(_, id)| cpus.contains(**id)) {
            touched[member.numa] = true;
        }
        touched
    }

    fn members(&self, numa: usize) -> Vec<usize> {
        (0..self.membership.len())
            .filter(|&cpu| self.membership[cpu].numa == numa)
            .collect()
    }

    /// The kernel's id of a NUMA node; none for CPUs without a known NUMA node.
    fn numa_id(&self, numa: usize) -> Option<u32> {
        let mut of = self.membership.iter().zip(&self.numa_of);
        of.find(|(member, _)| member.numa == numa)
            .and_then(|(_, id)| *id)
    }
}

// === impl NumaChoice ===

impl NumaChoice {
    /// Unions of the NUMA nodes held and `more` others (or all, if fewer exist), at most
    /// [`MOST_UNIONS`]. A union that gives fewer than `wanted` CPUs is left out, and of unions that
    /// differ only by alike NUMA nodes, there is a single one.
    fn unions(&self, more: usize, wanted: usize) -> Vec<Vec<bool>> {
        let given = self
            .gives
            .iter()
            .zip(&self.held)
            .filter(|(_, held)| **held)
            .map(|(gives, _)| gives)
            .sum();
        let held = PartialUnion {
            contains: self.held.clone(),
            given,
            more: more.min(self.classes.iter().map(Vec::len).sum()),
            classes: &self.classes,
        };
        let mut unions = Vec::new();
        self.extend(held, wanted, &mut unions);
        unions
    }

    /// Adds every completion of a partial union to `unions`.
    fn extend(&self, partial: PartialUnion<'_>, wanted: usize, unions: &mut Vec<Vec<bool>>) {
        if unions.len() >= MOST_UNIONS {
            return;
        }
        let PartialUnion {
            contains,
            given,
            more,
            classes,
        } = partial;
        let Some((class, rest)) = classes.split_first().filter(|_| more > 0) else {
            if more == 0 && given >= wanted {
                unions.push(contains);
            }
            return;
        };
        // Later classes give no more CPUs per NUMA node.
        let each = self.gives[class[0]];
        let left: usize = classes.iter().map(Vec::len).sum();
        if left < more || given + more * each < wanted {
            return;
        }
        for taken in (0..=more.min(class.len())).rev() {
            let mut contains = contains.clone();
            for &group in &class[..taken] {
                contains[group] = true;
            }
            let extended = PartialUnion {
                contains,
                given: given + taken * each,
                more: more - taken,
                classes: rest,
            };
            self.extend(extended, wanted, unions);
        }
    }
}

fn count(which: &[bool]) -> usize {
    which.iter().filter(|&&is| is).count()
}
