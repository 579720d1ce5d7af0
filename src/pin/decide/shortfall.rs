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
        "{}{} would leave {left} to everybody else, and at least {minimum} must stay shared (sharedMinimum is {configured}){}",
        cpu_count(*.cpus),
        with_idle(*.idle),
        possible_cpus(*.possible)
    )]
    SharedMinimum {
        cpus: usize,
        /// The siblings that would be kept idle.
        idle: usize,
        left: usize,
        minimum: usize,
        configured: SharedMinimum,
        /// How many CPUs could be given instead; 0 if none, or if that is unknown.
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

fn possible_cpus(cpus: usize) -> String {
    match cpus {
        0 => String::new(),
        cpus => format!("; {} can be given", cpu_count(cpus)),
    }
}

/// The note of a container that could not get all of its CPUs.
pub(super) fn shortfall(own: &CpuSet, error: &Shortfall) -> String {
    match own.len() {
        0 => format!("{IN_SHARED_POOL}{error}"),
        count => format!(
            "keeps the {} that it has, and gets no more: {error}",
            cpu_count(count)
        ),
    }
}
