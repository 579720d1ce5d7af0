//! [`Limits`]: the lowest price of the groups still to be touched, and upper bounds on the best price.
//! Both keep the tables short.

use super::fewest::Minimum;
use super::plan::{GroupKind, PlacementPlan, Rules, SPANNED};
use super::price::Price;
use super::request::{Cores, Order, SearchInput};

/// The least spread of a placement with the fewest split cores.
#[derive(Debug)]
pub(super) struct Limits {
    wanted: usize,
    /// Whether the price counts touched groups, as opposed to squares of CPUs taken.
    by_number: bool,
    /// Whether tight bounds are likely to hold.
    tight: bool,
    /// For each group of the plan, the most CPUs that it gives.
    most: Vec<usize>,
    /// For each of [`SPANNED`] and each count, the fewest groups that can give it.
    fewest: [Vec<usize>; 3],
}

/// For each of [`SPANNED`], the CPUs that groups across a block's border can give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings([Supply; 3]);

#[derive(Debug, Clone, Copy)]
struct Supply {
    /// The most CPUs from outside the block.
    besides: usize,
    /// The most CPUs from outside and inside the block together.
    together: usize,
}

// === impl Limits ===

impl Limits {
    /// The limits of placements with the minimum of unwanted CPUs and split cores.
    pub(super) fn new(plan: &PlacementPlan, terms: &SearchInput<'_>, least: Minimum) -> Self {
        let SearchInput {
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
        let (is_whole, most_of_part) = whole_cores(plan, terms);
        let most = |cpus: &Vec<usize>| {
            let free = cpus.iter().filter(|&&cpu| is_free[cpu]).count();
            let whole = cpus.iter().filter(|&&cpu| is_whole[cpu]).count();
            free.min(whole + split_cores * most_of_part)
        };
        let most: Vec<usize> = plan.groups.iter().map(|group| most(&group.cpus)).collect();
        let fewest = SPANNED.map(|kind| {
            let groups = plan.groups.iter().zip(&most);
            let sizes = groups.filter(|(group, _)| group.kind == kind);
            fewest_groups(sizes.map(|(_, &most)| most).collect(), wanted)
        });
        // With more than one split core, whole cores have run out, and the positions of the last
        // ones decide the spread, so tight bounds rarely hold. Neither do they with distances,
        // which count before the spread.
        let tight = split_cores <= 1 && terms.distances.is_empty();
        Self {
            wanted,
            by_number: true,
            tight,
            most,
            fewest,
        }
    }

    /// Upper bounds on the best placement's price, from the tightest to the loosest. A tight bound
    /// may be too low, but the loosest always holds.
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

    /// The CPUs that groups across the block's border can give.
    pub(super) fn around(&self, rules: &Rules) -> Surroundings {
        let most = |groups: &Vec<usize>| groups.iter().map(|&group| self.most[group]).sum();
        Surroundings(rules.astride.each_ref().map(|astride| match astride[..] {
            // A block inside one group of the kind touches only that group. Any other block has
            // CPUs of several groups of the kind, or of none.
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

    /// As [`Self::around`], for a part of a cell; `own` are the groups equal to the cell.
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

    /// The least price of all groups still to be touched after `count` CPUs are taken.
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

/// For each CPU, whether a placement without split cores can have it, and the most CPUs that a
/// split core can give.
fn whole_cores(plan: &PlacementPlan, terms: &SearchInput<'_>) -> (Vec<bool>, usize) {
    let is_free = terms.open;
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
    let mut groups = plan.groups.iter();
    let in_pieces = groups.any(|group| group.kind == GroupKind::Core);
    if terms.cores == Cores::Single && in_pieces {
        // A core may have pieces on several NUMA nodes, of which the request may use only one. It
        // still gives a CPU.
        is_whole.copy_from_slice(is_free);
    } else if terms.cores == Cores::Single {
        is_whole.fill(false);
        for cpu in plan.cores.iter().filter_map(|core| terms.lowest(core)) {
            is_whole[cpu] = true;
        }
    }
    (is_whole, most_of_part)
}

/// For each count up to `wanted`, the fewest groups that can give it. `sizes` holds the most CPUs
/// that each group gives.
fn fewest_groups(mut sizes: Vec<usize>, wanted: usize) -> Vec<usize> {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut fewest = vec![0];
    for (&size, groups) in sizes.iter().zip(1..) {
        let counts = size.min(wanted + 1 - fewest.len());
        fewest.extend(std::iter::repeat_n(groups, counts));
    }
    // If the plan ignores a kind, it has no groups and costs nothing.
    fewest.resize(wanted + 1, sizes.len());
    fewest
}
