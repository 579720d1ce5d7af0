//! [`MpiRanks`]: whether the ranks of MPI can be given CPUs by a variable of the container.

use std::num::NonZeroUsize;

use super::super::variables::INTEL_PIN;
use super::super::{Container, Pod};
use super::numbers::{Launch, Options, are_all_here, option_name, ranks};
use super::table::Launcher;

/// What the command line tells about the ranks that MPI starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MpiRanks {
    /// MPI starts none.
    None,
    /// Each launcher of MPI starts this number of ranks in this container, and none elsewhere. Nothing binds them to CPUs.
    Here(NonZeroUsize),
    /// Ranks run elsewhere, too, or the user binds them, or their number is unknown.
    Other,
}

// === impl MpiRanks ===

impl MpiRanks {
    /// The ranks of a launcher with these options, which begins several programs if there is a `:` between them.
    pub(super) fn of(
        pod: &Pod,
        container: &Container,
        launcher: &Launcher,
        words: &[String],
    ) -> Self {
        let parts = words.split(|word| word == ":").map(|part| {
            let options = Options::read(launcher, part);
            let own = part.len().saturating_sub(options.program.len());
            let binds = |word: &String| {
                word.contains(INTEL_PIN)
                    || option_name(word).is_some_and(|name| name.contains("bind"))
            };
            if part.iter().take(own).any(binds) || !are_all_here(pod, container, &options) {
                return None;
            }
            match ranks(pod, container, "", &options) {
                Some(Launch::Processes { count, .. }) => Some(count.get()),
                _ => None,
            }
        });
        let sum = parts
            .reduce(|sum, count| sum?.checked_add(count?))
            .flatten();
        sum.and_then(NonZeroUsize::new)
            .map_or(Self::Other, Self::Here)
    }

    /// The ranks of two launchers, one of which runs after the other.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, only) | (only, Self::None) => only,
            (one, other) if one == other => one,
            _ => Self::Other,
        }
    }

    pub(crate) fn here(self) -> Option<NonZeroUsize> {
        match self {
            Self::Here(count) => Some(count),
            Self::None | Self::Other => None,
        }
    }
}
