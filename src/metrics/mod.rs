//! Families, collectors, exposition: what Prometheus scrapes.
//!
//! A scrape is synchronous: it reads the latest [`Snapshot`] and the kernel's counters, and keeps nothing that a vanished
//! pod would leave behind. Counters of the agent's own doings live in [`AgentMetrics`]. Every collector reports its own
//! duration and success, and one failing never fails the scrape. What a node doesn't offer has no series, not a zero.

mod agent;
mod api;
mod collect;
mod families;
mod foreign;
mod runtime;
mod switches;

use std::path::Path;
use std::sync::Mutex;

use prometheus::{Encoder, TextEncoder};

pub use agent::AgentMetrics;
pub use api::{ApiNumbers, PlaceNumbers};
pub use families::{API_FAMILIES, FAMILIES, Family, Kind, RUNTIME_FAMILIES};
pub use runtime::RuntimeNumbers;

use crate::host::cgroup::Cgroups;
use crate::host::proc::Proc;
use crate::pin::Snapshot;

/// What a scrape may read.
#[derive(Debug)]
pub struct Sources {
    /// The cgroups, for CPU time and throttling.
    pub cgroups: Cgroups,
    /// The processes, for threads, context switches and network counters.
    pub proc: Proc,
    /// What must last from one scrape to the next so that no counter goes back.
    switches: Mutex<switches::Switchboard>,
    foreign: Mutex<foreign::Foreign>,
}

// === impl Sources ===

impl Sources {
    /// Sources on these hierarchies and this /proc, of the machine whose `proc` and `sys` lie below `root`.
    pub fn new(cgroups: Cgroups, proc: Proc, root: &Path) -> Self {
        let foreign = Mutex::new(foreign::Foreign::new(root));
        Self { cgroups, proc, switches: Mutex::default(), foreign }
    }
}

/// The content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Collects everything and writes it in Prometheus' text format; of the API and of the container runtime where they are used.
///
/// # Errors
/// A family that contradicts itself, which the tests rule out.
pub fn render(
    snapshot: &Snapshot,
    sources: &Sources,
    agent: &AgentMetrics,
    api: Option<&ApiNumbers>,
    runtime: Option<&RuntimeNumbers>,
) -> prometheus::Result<String> {
    let mut families = collect::collect(snapshot, sources)?;
    families.extend(agent.gather());
    if let Some(api) = api {
        families.extend(api.gather()?);
    }
    if let Some(runtime) = runtime {
        families.extend(runtime.gather()?);
    }
    families.sort_by(|one, other| one.name().cmp(other.name()));
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
