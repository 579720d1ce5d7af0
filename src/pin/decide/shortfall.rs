//! [`Shortfall`]: why a container gets fewer CPUs than its entitlement.

use super::input::IN_SHARED_POOL;
use crate::cpu::{CpuSet, PlacementRefusal, SharedMinimum, cpu_count};

/// Why a container gets none of its missing CPUs.
#[derive(Debug, thiserror::Error)]
pub(super) enum Shortfall {
    #[error(transparent)]
    Placement(#[from] PlacementRefusal),
    /// Too few CPUs would be left to everybody else.
    #[error(
        "{}{} would leave {left} to everybody else, and at least {minimum} must stay shared (sharedMinimum is {configured})",
        cpu_count(*.cpus),
        with_idle(*.idle)
    )]
    SharedMinimum {
        cpus: usize,
        /// The siblings that would be kept idle.
        idle: usize,
        left: usize,
        minimum: usize,
        configured: SharedMinimum,
        /// How many CPUs fewer than these would fit; 0 if none, or if that is unknown.
        possible: usize,
    },
}

fn with_idle(siblings: usize) -> String {
    match siblings {
        0 => String::new(),
        1 => " and an idle sibling".to_owned(),
        siblings => format!(" and {siblings} idle siblings"),
    }
}

/// The note of a container that could not get all of its CPUs.
pub(super) fn shortfall(own: &CpuSet, error: &Shortfall) -> String {
    let possible = match error {
        Shortfall::SharedMinimum { possible, .. } => *possible,
        Shortfall::Placement(_) => 0,
    };
    match (own.len(), possible) {
        (0, 0) => format!("{IN_SHARED_POOL}{error}"),
        (0, possible) => format!(
            "{IN_SHARED_POOL}{error}; a container of {} would fit",
            cpu_count(possible)
        ),
        (count, possible) => {
            let more = match possible {
                0 => String::new(),
                possible => format!("; {possible} more would fit"),
            };
            format!(
                "keeps the {} that it has, and gets no more: {error}{more}",
                cpu_count(count)
            )
        }
    }
}
