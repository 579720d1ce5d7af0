//! Placements on one kind of core: [`Request::core_kinds`](super::Request::core_kinds).
//!
//! The best set without the rule comes first. If its cores are of several kinds, each kind is
//! searched by itself, with only its CPUs open. Every set of one kind lies within one of these
//! searches, so the best of their results is the best set of one kind. The free set stays the whole
//! free set, because remaining free CPUs are part of the price. On a machine with one kind of core,
//! no search is added.

use super::fewest::{Minimum, least};
use super::plan::PlacementPlan;
use super::price::Price;
use super::request::{CoreKinds, PlacementRefusal, Request, SearchInput};
use super::search::Search;
use super::{CpuSet, Placer};
use crate::cpu::CoreKind;

/// A placement found by a search, with the numbers that rank it.
#[derive(Debug)]
pub(super) struct Found<P> {
    pub(super) minimum: Minimum,
    pub(super) price: P,
    pub(super) cpus: CpuSet,
}

// === impl Found ===

impl<P: Price> Found<P> {
    /// Whether the placement is better than another one of as many CPUs.
    fn is_better(&self, than: &Self) -> bool {
        let rank = |found: &Self| (found.minimum, found.price);
        rank(self)
            .cmp(&rank(than))
            .then_with(|| self.cpus.iter().cmp(than.cpus.iter()))
            .is_lt()
    }
}

// === impl Placer ===

impl Placer {
    /// Whether a set of CPUs touches cores of several kinds. Always false on a machine that is not hybrid.
    pub fn is_mixed(&self, cpus: &CpuSet) -> bool {
        self.kinds_of(cpus).len() > 1
    }

    /// The best CPUs for a request of a container that has the CPUs `own`.
    pub(super) fn best<P: Price>(
        &self,
        plan: &PlacementPlan,
        terms: &SearchInput<'_>,
        own: &CpuSet,
        request: &Request,
    ) -> Result<CpuSet, PlacementRefusal> {
        let any = self.best_within::<P>(plan, terms, own, request)?;
        if request.core_kinds == CoreKinds::Any || !self.is_mixed(&own.union(&any.cpus)) {
            return Ok(any.cpus);
        }
        let kinds = match self.kinds_of(own) {
            own if own.is_empty() => self.kinds_of(&self.plan.ids.iter().copied().collect()),
            own if own.len() == 1 => own,
            // Whatever is added, the container has several kinds.
            _ => return Ok(any.cpus),
        };
        let mut best: Option<Found<P>> = None;
        for kind in kinds {
            let open = self.open_of(terms, kind);
            let terms = SearchInput {
                open: &open,
                ..*terms
            };
            if self.enough(&terms).is_err() {
                continue;
            }
            let Ok(found) = self.best_within::<P>(plan, &terms, own, request) else {
                continue;
            };
            let is_wanted = found.minimum.unwanted <= any.minimum.unwanted;
            if is_wanted && best.as_ref().is_none_or(|best| found.is_better(best)) {
                best = Some(found);
            }
        }
        Ok(best.unwrap_or(any).cpus)
    }

    /// The best placement of the CPUs that the terms open.
    fn best_within<P: Price>(
        &self,
        plan: &PlacementPlan,
        terms: &SearchInput<'_>,
        own: &CpuSet,
        request: &Request,
    ) -> Result<Found<P>, PlacementRefusal> {
        let Some(minimum) = least(plan, terms) else {
            return Err(self.not_whole_cores(terms));
        };
        let (price, cpus) = Search::<P>::new(plan, *terms, minimum).run();
        let usual = Found {
            minimum,
            price,
            cpus,
        };
        if request.fewest_numa {
            return self.on_fewest_numa(plan, terms, own, usual);
        }
        Ok(usual)
    }

    /// The kinds of the cores that a set touches, each once.
    fn kinds_of(&self, cpus: &CpuSet) -> Vec<Option<CoreKind>> {
        let mut kinds = Vec::new();
        for (&kind, &id) in self.kinds.iter().zip(&self.plan.ids) {
            if !kinds.contains(&kind) && cpus.contains(id) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// For each CPU, whether the request may get it and its core is of the kind.
    fn open_of(&self, terms: &SearchInput<'_>, kind: Option<CoreKind>) -> Vec<bool> {
        let open = self.kinds.iter().zip(terms.open);
        open.map(|(of, &open)| open && *of == kind).collect()
    }
}
