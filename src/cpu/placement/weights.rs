//! Sums over a whole plan, needed before a [`Search`](super::search::Search) starts: the CPUs
//! available, the price of each group, and how far each group lags behind in free CPUs.

use super::plan::{Cell, GroupKind, PlacementPlan, PriceGroup, SPANNED};
use super::price::Price;
use super::request::{Cores, SearchInput};

/// The total number of CPUs available from all leaves.
pub(super) fn given(plan: &PlacementPlan, terms: &SearchInput<'_>) -> usize {
    if terms.cores != Cores::Single {
        return terms.open.iter().filter(|&&open| open).count();
    }
    let gives = |cpus: &[usize]| terms.lowest(cpus).is_some();
    let of_cell = |cell: &Cell| match cell {
        Cell::Cores(cores) => cores
            .iter()
            .filter(|&&core| gives(&plan.cores[core]))
            .count(),
        Cell::Piece { cpus, .. } => usize::from(gives(cpus)),
    };
    plan.cells.iter().map(of_cell).sum()
}

/// The price of touching each group.
pub(super) fn prices<P: Price>(plan: &PlacementPlan, terms: &SearchInput<'_>) -> Vec<P> {
    let price = |group: &PriceGroup| {
        let free = group.cpus.iter().filter(|&&cpu| terms.free[cpu]).count();
        let if_entirely_free = |price| {
            if free == group.cpus.len() {
                price
            } else {
                P::NOTHING
            }
        };
        match group.kind {
            GroupKind::Numa => {
                P::NUMA + if_entirely_free(P::FREE_NUMA) + P::LEFT_IN_NUMA.times(free)
            }
            GroupKind::Socket => P::SOCKET,
            GroupKind::Llc => P::LLC + if_entirely_free(P::FREE_LLC) + P::LEFT_IN_LLC.times(free),
            GroupKind::Core if terms.cores == Cores::Single => {
                P::FREE_CORE.times(free.saturating_sub(1))
            }
            GroupKind::Core => if_entirely_free(P::FREE_CORE),
        }
    };
    plan.groups.iter().map(price).collect()
}

/// For each group, how many fewer free CPUs it has than the freest group of the same kind.
///
/// The numbers rank choices with the same sum of squares of CPUs taken. Each taken CPU adds the
/// number of its group. The choice with the lower sum leaves the free CPUs more even: the sum of
/// the squares of the remaining ones is lower.
pub(super) fn behind(plan: &PlacementPlan, is_free: &[bool]) -> Vec<usize> {
    let free: Vec<usize> = plan
        .groups
        .iter()
        .map(|group| group.cpus.iter().filter(|&&cpu| is_free[cpu]).count())
        .collect();
    let most = |kind| {
        let of_kind = plan
            .groups
            .iter()
            .zip(&free)
            .filter(|(group, _)| group.kind == kind);
        of_kind.map(|(_, &free)| free).max().unwrap_or_default()
    };
    let most = SPANNED.map(|kind| (kind, most(kind)));
    let behind = |(group, free): (&PriceGroup, &usize)| {
        most.iter()
            .find(|(kind, _)| *kind == group.kind)
            .map_or(0, |(_, most)| most - free)
    };
    plan.groups.iter().zip(&free).map(behind).collect()
}
