//! [`Class`]: cores with equal prices, and the lowest cost of taking CPUs from them.

use super::price::Price;
use super::request::{Cores, SearchInput};

/// Cores with equal prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// Online CPUs of each core.
    pub(super) size: usize,
    /// The number of CPUs that each core can give.
    pub(super) each: usize,
    /// The number of unwanted CPUs among `each`.
    pub(super) unwanted: usize,
}

/// The cost of taking a number of CPUs from a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassCost {
    pub(super) unwanted: usize,
    /// Cores with some CPUs taken, but not all.
    pub(super) split_cores: usize,
    /// Entirely free cores touched. With `Cores::Single`: CPUs kept idle.
    free_cores: usize,
}

// === impl Class ===

impl Class {
    /// The class of a core; none if it gives no CPU.
    pub(super) fn of(core: &[usize], terms: &SearchInput<'_>) -> Option<Self> {
        let open = || core.iter().filter(|&&cpu| terms.open[cpu]);
        let mut each = open().count();
        let mut unwanted = 0;
        if !terms.unwanted.is_empty() {
            unwanted = open().filter(|&&cpu| terms.unwanted[cpu]).count();
        }
        if terms.cores == Cores::Single {
            // With `Cores::Single`, a core gives a single CPU: a wanted one, if any is open.
            (each, unwanted) = (each.min(1), usize::from(each == unwanted));
        }
        (each > 0).then_some(Self {
            size: core.len(),
            each,
            unwanted,
        })
    }

    /// The lowest cost of taking `count` CPUs from `cores` cores; none if the request does not
    /// allow `count`. The cheapest choice needs no search: from entirely free cores it is whole
    /// cores and at most one part, from partly free cores the fewest cores with enough CPUs.
    #[inline]
    pub(super) fn taken(self, cores: usize, mode: Cores, count: usize) -> Option<ClassCost> {
        let Self {
            size,
            each,
            unwanted,
        } = self;
        let wanted = each - unwanted;
        let is_free = each == size;
        match mode {
            Cores::Single => {
                let free_cores = count * (size - 1);
                return Some(ClassCost {
                    unwanted: count * unwanted,
                    split_cores: 0,
                    free_cores,
                });
            }
            Cores::Whole => {
                let free_cores = count / size;
                let taken = ClassCost {
                    unwanted: free_cores * unwanted,
                    split_cores: 0,
                    free_cores,
                };
                return count.is_multiple_of(size).then_some(taken);
            }
            Cores::Preferred => {}
        }
        let (unwanted, split_cores, touched) = if unwanted == 0 || wanted == 0 {
            let touched = count.div_ceil(each);
            let in_part = if is_free {
                usize::from(!count.is_multiple_of(size))
            } else {
                touched
            };
            (if unwanted == 0 { 0 } else { count }, in_part, touched)
        } else if count <= cores * wanted {
            // The wanted CPUs are enough. Every touched core is split, because its unwanted CPUs
            // stay.
            let touched = count.div_ceil(wanted);
            (0, touched, touched)
        } else {
            let extra = count - cores * wanted;
            let complete = if is_free { extra / unwanted } else { 0 };
            (extra, cores - complete, cores)
        };
        Some(ClassCost {
            unwanted,
            split_cores,
            free_cores: if is_free { touched } else { 0 },
        })
    }
}

// === impl ClassCost ===

impl ClassCost {
    #[inline]
    pub(super) fn price<P: Price>(self) -> P {
        P::UNWANTED.times(self.unwanted)
            + P::SPLIT_CORE.times(self.split_cores)
            + P::FREE_CORE.times(self.free_cores)
    }
}
