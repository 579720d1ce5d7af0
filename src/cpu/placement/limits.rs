//! [`Limits`]: what no placement can do better than, so that tables stay short.

use super::plan::{Plan, Rules, SPANNED};
use super::price::{LLC, NUMA, Price, SOCKET, STRANGER, times};

/// The price of one group of each of [`SPANNED`].
const PRICES: [Price; 3] = [NUMA, SOCKET, LLC];

/// How far a placement with the fewest strangers must spread at least.
#[derive(Debug)]
pub(super) struct Limits {
    wanted: usize,
    /// For each group of the plan, the most CPUs that it gives.
    most: Vec<usize>,
    /// For each of [`SPANNED`] and each count, the fewest groups that give so many.
    fewest: [Vec<usize>; 3],
}

/// For each of [`SPANNED`], what may come from groups that a block touches and doesn't contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around([Source; 3]);

#[derive(Debug, Clone, Copy)]
struct Source {
    /// At most so many CPUs besides those of the block.
    besides: usize,
    /// At most so many together with those of the block.
    together: usize,
}

// === impl Limits ===

impl Limits {
    /// The limits of placements with so many strangers.
    pub(super) fn new(plan: &Plan, is_free: &[bool], wanted: usize, strangers: usize) -> Self {
        let mut is_whole = vec![false; is_free.len()];
        let mut most_of_part = 0;
        for core in &plan.cores {
            let free = core.iter().filter(|&&cpu| is_free[cpu]).count();
            most_of_part = most_of_part.max(free.min(core.len() - 1));
            if free == core.len() {
                for &cpu in core {
                    is_whole[cpu] = true;
                }
            }
        }
        let most = |cpus: &Vec<usize>| {
            let free = cpus.iter().filter(|&&cpu| is_free[cpu]).count();
            let whole = cpus.iter().filter(|&&cpu| is_whole[cpu]).count();
            free.min(whole + strangers * most_of_part)
        };
        let most: Vec<usize> = plan.groups.iter().map(|group| most(&group.cpus)).collect();
        let fewest = SPANNED.map(|kind| {
            let groups = plan.groups.iter().zip(&most).filter(|(group, _)| group.kind == kind);
            let mut sizes: Vec<usize> = groups.map(|(_, &most)| most).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let mut fewest = vec![0];
            for (&size, groups) in sizes.iter().zip(1..) {
                fewest.extend(std::iter::repeat_n(groups, size.min(wanted + 1 - fewest.len())));
            }
            // A kind that the plan has let go of has no groups and costs nothing.
            fewest.resize(wanted + 1, sizes.len());
            fewest
        });
        Self { wanted, most, fewest }
    }

    /// Bounds to try on the price, from the tightest to the one that must hold.
    pub(super) fn bounds(&self, strangers: usize) -> impl Iterator<Item = Price> + use<> {
        let least = times(strangers) * STRANGER;
        let [numa, sockets, llcs] =
            [0, 1, 2].map(|kind| times(self.fewest[kind][self.wanted]) * PRICES[kind]);
        let tight = [least + numa + sockets + llcs + (LLC - 1), least + numa + (NUMA - 1)];
        // With more strangers than an odd rest makes, whole cores have run out, and where the last of them are decides
        // how far a placement spreads: then tight bounds hardly ever hold.
        let worth_trying = if strangers > 1 { 0 } else { tight.len() };
        tight.into_iter().take(worth_trying).chain([least + (STRANGER - 1)])
    }

    /// What may come from around a block.
    pub(super) fn around(&self, rules: &Rules) -> Around {
        let most = |groups: &Vec<usize>| groups.iter().map(|&group| self.most[group]).sum();
        Around(rules.astride.each_ref().map(|astride| match astride[..] {
            // A block that is not in one group of a kind is astride of several or of none.
            [group] if rules.outer.contains(&group) => Source { besides: 0, together: self.most[group] },
            _ => Source { besides: most(astride), together: 0 },
        }))
    }

    /// The same for a part of a cell, where `own` are the groups that are exactly the cell.
    pub(super) fn around_part(&self, rules: &Rules, own: &[usize]) -> Around {
        let within = own.iter().chain(&rules.outer);
        let together = within.map(|&group| self.most[group]).max().unwrap_or_default();
        Around([Source { besides: 0, together: together.max(1) }; 3])
    }

    /// The least price of all groups that must still be touched when so many CPUs are taken.
    pub(super) fn rest(&self, count: usize, around: Around) -> Price {
        let price = |kind: usize| {
            let Source { besides, together } = around.0[kind];
            let wanted = self.wanted.saturating_sub((count + besides).max(together));
            times(self.fewest[kind][wanted]) * PRICES[kind]
        };
        price(0) + price(1) + price(2)
    }
}

/// The fewest cores held in part by any placement, wherever it is: bounds every table before the search begins.
pub(super) fn fewest_strangers(plan: &Plan, is_free: &[bool], wanted: usize) -> usize {
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
    // How many partly free cores, the fullest first, hold each count.
    partly.sort_unstable_by(|a, b| b.cmp(a));
    let mut of_partly = vec![0];
    for (&free, used) in partly.iter().zip(1..) {
        of_partly.extend(std::iter::repeat_n(used, free));
    }
    // The fewest strangers among entirely free cores for each count, one core size after the other.
    let mut of_whole = vec![Some(0)];
    for (&cores, size) in whole.iter().zip(1..).filter(|&(&cores, _)| cores > 0) {
        let mut next = vec![None; (of_whole.len() + cores * size).min(wanted + 1)];
        for (before, strangers) in of_whole.iter().enumerate().filter_map(|(count, s)| s.map(|s| (count, s)))
        {
            for (slot, count) in next[before..].iter_mut().zip(0..=cores * size) {
                let strangers = strangers + usize::from(count % size > 0);
                *slot = Some(slot.map_or(strangers, |least: usize| least.min(strangers)));
            }
        }
        of_whole = next;
    }
    let splits = of_whole.iter().enumerate().filter_map(|(count, &strangers)| {
        let rest = of_partly.get(wanted - count)?;
        Some(strangers? + rest)
    });
    splits.min().unwrap_or(plan.ids.len())
}
