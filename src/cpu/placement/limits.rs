//! [`Limits`]: what no placement can do better than, so that tables stay short.

use super::fewest::Minimum;
use super::plan::{GroupKind, Plan, Rules, SPANNED};
use super::price::Price;
use super::request::{Cores, Order, Terms};

/// How far a placement with the fewest split cores must spread at least.
#[derive(Debug)]
pub(super) struct Limits {
    wanted: usize,
    /// Whether groups cost by the number of them that is touched.
    by_number: bool,
    /// Whether tight bounds are worth trying.
    tight: bool,
    /// For each group of the plan, the most CPUs that it gives.
    most: Vec<usize>,
    /// For each of [`SPANNED`] and each count, the fewest groups that give so many.
    fewest: [Vec<usize>; 3],
}

/// For each of [`SPANNED`], what may come from groups that a block touches and doesn't contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings([Supply; 3]);

#[derive(Debug, Clone, Copy)]
struct Supply {
    /// At most so many CPUs besides those of the block.
    besides: usize,
    /// At most so many together with those of the block.
    together: usize,
}

// === impl Limits ===

impl Limits {
    /// The limits of placements with no more than the least.
    pub(super) fn new(plan: &Plan, terms: &Terms<'_>, least: Minimum) -> Self {
        let Terms {
            wanted,
            open: is_free,
            ..
        } = *terms;
        let split_cores = least.split_cores;
        if terms.order == Order::Spread {
            let fewest = [Vec::new(), Vec::new(), Vec::new()];
            return Self {
                wanted,
                by_number: false,
                tight: false,
                most: vec![0; plan.groups.len()],
                fewest,
            };
        }
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
        let in_pieces = plan
            .groups
            .iter()
            .any(|group| group.kind == GroupKind::Core);
        if terms.cores == Cores::Single && in_pieces {
            // A core whose pieces lie on several NUMA nodes gives a CPU also where only some of these may be used.
            is_whole.copy_from_slice(is_free);
        } else if terms.cores == Cores::Single {
            is_whole.fill(false);
            for cpu in plan.cores.iter().filter_map(|core| terms.lowest(core)) {
                is_whole[cpu] = true;
            }
        }
        let most = |cpus: &Vec<usize>| {
            let free = cpus.iter().filter(|&&cpu| is_free[cpu]).count();
            let whole = cpus.iter().filter(|&&cpu| is_whole[cpu]).count();
            free.min(whole + split_cores * most_of_part)
        };
        let most: Vec<usize> = plan.groups.iter().map(|group| most(&group.cpus)).collect();
        let fewest = SPANNED.map(|kind| {
            let groups = plan
                .groups
                .iter()
                .zip(&most)
                .filter(|(group, _)| group.kind == kind);
            let mut sizes: Vec<usize> = groups.map(|(_, &most)| most).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let mut fewest = vec![0];
            for (&size, groups) in sizes.iter().zip(1..) {
                fewest.extend(std::iter::repeat_n(
                    groups,
                    size.min(wanted + 1 - fewest.len()),
                ));
            }
            // A kind that the plan has let go of has no groups and costs nothing.
            fewest.resize(wanted + 1, sizes.len());
            fewest
        });
        // With more split cores than an odd rest makes, whole cores have run out, and where the last of them are decides
        // how far a placement spreads: then tight bounds hardly ever hold. No more do they where distances come first.
        let tight = split_cores <= 1 && terms.distances.is_empty();
        Self {
            wanted,
            by_number: true,
            tight,
            most,
            fewest,
        }
    }

    /// Bounds to try on the price, from the tightest to the one that must hold.
    pub(super) fn bounds<P: Price>(&self, least: Minimum) -> impl Iterator<Item = P> + use<P> {
        let split_cores =
            P::UNWANTED.times(least.unwanted) + P::SPLIT_CORE.times(least.split_cores);
        let [numa, sockets, llcs] = [P::NUMA, P::SOCKET, P::LLC];
        let fewest = |kind: usize| {
            self.fewest[kind]
                .get(self.wanted)
                .copied()
                .unwrap_or_default()
        };
        let (numa, sockets, llcs) = (
            numa.times(fewest(0)),
            sockets.times(fewest(1)),
            llcs.times(fewest(2)),
        );
        let tight = [
            split_cores + numa + sockets + llcs + P::LLC.just_below(),
            split_cores + numa + P::NUMA.just_below(),
        ];
        let worth_trying = if self.tight { tight.len() } else { 0 };
        tight
            .into_iter()
            .take(worth_trying)
            .chain([split_cores + P::SPLIT_CORE.just_below()])
    }

    /// What may come from around a block.
    pub(super) fn around(&self, rules: &Rules) -> Surroundings {
        let most = |groups: &Vec<usize>| groups.iter().map(|&group| self.most[group]).sum();
        Surroundings(rules.astride.each_ref().map(|astride| match astride[..] {
            // A block that is not in one group of a kind is astride of several or of none.
            [group] if rules.outer.contains(&group) => Supply {
                besides: 0,
                together: self.most[group],
            },
            _ => Supply {
                besides: most(astride),
                together: 0,
            },
        }))
    }

    /// The same for a part of a cell, where `own` are the groups that are exactly the cell.
    pub(super) fn around_part(&self, rules: &Rules, own: &[usize]) -> Surroundings {
        let within = own.iter().chain(&rules.outer);
        let together = within
            .map(|&group| self.most[group])
            .max()
            .unwrap_or_default();
        Surroundings(
            [Supply {
                besides: 0,
                together: together.max(1),
            }; 3],
        )
    }

    /// The least price of all groups that must still be touched when so many CPUs are taken.
    #[inline]
    pub(super) fn rest<P: Price>(&self, count: usize, around: Surroundings) -> P {
        if !self.by_number {
            return P::NOTHING;
        }
        let fewest = |kind: usize| {
            let Supply { besides, together } = around.0[kind];
            self.fewest[kind][self.wanted.saturating_sub((count + besides).max(together))]
        };
        P::NUMA.times(fewest(0)) + P::SOCKET.times(fewest(1)) + P::LLC.times(fewest(2))
    }
}
