//! [`History`]: what the kernel doesn't keep: how containers were at the start, and what has happened to them since.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::node::Node;
use crate::cpu::CpuSet;
use crate::metrics::AgentMetrics;
use crate::pin::snapshot::{ContainerState, Repaired};
use crate::pin::{self, Drift, Enforcement, Observed, ObservedContainer};

/// What has happened to containers, by their cgroups.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Containers that were there at the start, and what was their own and in force then.
    old: BTreeMap<String, CpuSet>,
    /// How long containers ran before what they own was in force.
    windows: BTreeMap<String, f64>,
    /// The containers whose programs wait for us to let them begin, from their creation on: the uid of the pod and the name.
    /// What runs in them until then is the runtime's.
    waiting: BTreeSet<(String, String)>,
    /// Drift that was put right.
    repaired: BTreeMap<String, Repaired>,
}

fn own(container: &ObservedContainer) -> CpuSet {
    container
        .record
        .as_ref()
        .map(pin::AssignmentRecord::cpus)
        .unwrap_or_default()
}

/// The CPUs that are a container's own, in force; none where what it owns is not.
pub(super) fn own_in_force(container: &ObservedContainer, enforcement: Enforcement) -> CpuSet {
    let (own, cpuset) = (own(container), &container.cgroup.cpuset);
    let live = enforcement != Enforcement::Partition || cpuset.partition.is_live();
    if live && cpuset.effective == own {
        own
    } else {
        CpuSet::new()
    }
}

// === impl History ===

impl History {
    /// Takes note of what is there at the start.
    pub(super) fn begin(&mut self, observed: &Observed, enforcement: Enforcement) {
        let so_far = |container: &ObservedContainer| own_in_force(container, enforcement);
        self.old = observed
            .containers()
            .map(|container| (container.cgroup.path.clone(), so_far(container)))
            .collect();
    }

    /// A container's program waits for us to let it begin.
    pub(super) fn waits(&mut self, uid: &str, container: &str) {
        self.waiting.insert((uid.to_owned(), container.to_owned()));
    }

    /// It may begin.
    pub(super) fn begins(&mut self, uid: &str, container: &str) {
        self.waiting.remove(&(uid.to_owned(), container.to_owned()));
    }

    /// Those that the runtime does not have any more never begin.
    pub(super) fn only_waiting(&mut self, is_there: impl Fn(&str, &str) -> bool) {
        self.waiting
            .retain(|(uid, container)| is_there(uid, container));
    }

    /// Notes how long containers ran before what they own was in force; not for those that were there at the start.
    pub(super) fn note_windows(
        &mut self,
        before: &Observed,
        after: &Observed,
        node: &Node,
        metrics: &AgentMetrics,
    ) {
        let waiting = self
            .waiting
            .iter()
            .filter_map(|(uid, name)| after.container(uid, name));
        let waiting: BTreeSet<&String> = waiting.map(|container| &container.cgroup.path).collect();
        for container in after.containers() {
            let path = &container.cgroup.path;
            let own = own_in_force(container, node.enforcement);
            if own.is_empty() || self.old.contains_key(path) || self.windows.contains_key(path) {
                continue;
            }
            // One that is made in a pod's cgroup which holds no other CPUs has its own from the first instruction on.
            let had = waiting.contains(path)
                || before.containers().any(|other| {
                    other.cgroup.path == *path && other.cgroup.cpuset.effective == own
                });
            let processes = node.cgroups.processes(path).unwrap_or_default();
            let ages = processes
                .iter()
                .filter_map(|pid| node.proc.age_seconds(*pid));
            let window = if had { 0.0 } else { ages.fold(0.0, f64::max) };
            metrics.window_seconds.observe(window);
            self.windows.insert(path.clone(), window);
        }
    }

    /// Notes drift that is gone after a repair.
    pub(super) fn note_repairs(&mut self, found: &[Drift], left: &[Drift]) {
        let gone = |drift: &&Drift| !left.iter().any(|other| other.path == drift.path);
        for drift in found.iter().filter(gone) {
            let count = self
                .repaired
                .get(&drift.path)
                .map_or(1, |before| before.count + 1);
            let (effective, others) = (drift.effective.clone(), drift.others.clone());
            let repaired = Repaired {
                count,
                cause: drift.cause,
                effective,
                others,
            };
            self.repaired.insert(drift.path.clone(), repaired);
        }
    }

    /// Forgets containers whose cgroups are gone.
    pub(super) fn forget(&mut self, observed: &Observed) {
        let there: HashSet<&String> = observed
            .containers()
            .map(|container| &container.cgroup.path)
            .collect();
        self.old.retain(|path, _| there.contains(path));
        self.windows.retain(|path, _| there.contains(path));
        self.repaired.retain(|path, _| there.contains(path));
    }

    /// Adds to a container's state what is known of its past.
    pub(super) fn tell(&self, container: &mut ContainerState) {
        let Some(path) = &container.cgroup else {
            return;
        };
        container.unpinned_seconds = self.windows.get(path).copied();
        container.at_start = self.old.get(path).cloned();
        container.repaired = self.repaired.get(path).cloned();
    }
}
