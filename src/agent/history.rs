//! [`History`]: what the kernel does not keep about containers: their state at the agent's start,
//! unpinned time, repairs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::agent_node::AgentNode;
use crate::cpu::CpuSet;
use crate::metrics::AgentMetrics;
use crate::pin::snapshot::{ContainerState, Repaired};
use crate::pin::{self, Drift, Enforcement, Observed, ObservedContainer, ObservedPod};
use crate::pod::ContainerKey;

/// By cgroup path.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The containers at the agent's start, with the exclusive CPUs in force then.
    old: BTreeMap<String, CpuSet>,
    /// In seconds.
    unpinned: BTreeMap<String, f64>,
    /// Created containers whose StartContainer has no answer so far. Until then, only the runtime's
    /// own processes run in them.
    waiting: BTreeSet<ContainerKey>,
    repaired: BTreeMap<String, Repaired>,
}

fn own(container: &ObservedContainer) -> CpuSet {
    container
        .record
        .as_ref()
        .map(pin::AssignmentRecord::cpus)
        .unwrap_or_default()
}

/// Whether a pod's record has these CPUs.
fn was_assigned(pod: &ObservedPod, cpus: &CpuSet) -> bool {
    let record = pod.record.as_ref();
    record.is_some_and(|record| cpus.is_subset(&record.cpus()))
}

/// The exclusive CPUs on which alone a container runs; none while it may run elsewhere, too. An
/// offline CPU is not among them, and does not keep the others from being in force.
pub(super) fn own_in_force(container: &ObservedContainer, enforcement: Enforcement) -> CpuSet {
    let (own, cpuset) = (own(container), &container.cgroup.cpuset);
    let live = enforcement != Enforcement::Partition || cpuset.partition.is_live();
    if live && cpuset.effective.is_subset(&own) {
        cpuset.effective.clone()
    } else {
        CpuSet::new()
    }
}

// === impl History ===

impl History {
    /// Takes the containers at the agent's start.
    pub(super) fn begin(&mut self, observed: &Observed, enforcement: Enforcement) {
        let so_far = |container: &ObservedContainer| own_in_force(container, enforcement);
        self.old = observed
            .containers()
            .map(|container| (container.cgroup.path.clone(), so_far(container)))
            .collect();
    }

    /// Notes that a container's program waits for the answer to StartContainer.
    pub(super) fn waits(&mut self, uid: &str, container: &str) {
        self.waiting.insert(ContainerKey::new(uid, container));
    }

    /// Notes that a container's program may begin.
    pub(super) fn begins(&mut self, uid: &str, container: &str) {
        self.waiting.remove(&ContainerKey::new(uid, container));
    }

    pub(super) fn is_waiting(&self, uid: &str, container: &str) -> bool {
        self.waiting.contains(&ContainerKey::new(uid, container))
    }

    /// Forgets waiting containers that the runtime has removed.
    pub(super) fn only_waiting(&mut self, is_there: impl Fn(&str, &str) -> bool) {
        self.waiting
            .retain(|key| is_there(key.uid.as_str(), &key.container));
    }

    /// Notes the unpinned time of containers whose assignment came into force in a turn. `before`
    /// are the cgroups that the turn was about. Containers that are older than the agent have no
    /// unpinned time.
    pub(super) fn note_unpinned_time(
        &mut self,
        before: &Observed,
        after: &Observed,
        node: &AgentNode,
        metrics: &AgentMetrics,
    ) {
        let waiting = self
            .waiting
            .iter()
            .filter_map(|key| after.container(key.uid.as_str(), &key.container));
        let waiting: BTreeSet<&String> = waiting.map(|container| &container.cgroup.path).collect();
        let pods: HashSet<&String> = before.pods.iter().map(|pod| &pod.cgroup.path).collect();
        let seen = after
            .pods
            .iter()
            .filter(|pod| pods.contains(&pod.cgroup.path));
        for container in seen.flat_map(|pod| &pod.containers) {
            let path = &container.cgroup.path;
            let own = own_in_force(container, node.enforcement);
            if own.is_empty() || self.old.contains_key(path) || self.unpinned.contains_key(path) {
                continue;
            }
            // The unpinned time is zero if the program has not begun, or if the container ran only
            // on exclusive CPUs before. A new cgroup does so from the start if its pod has only the
            // container's CPUs. But another program, such as a kubelet, may have narrowed the
            // container to the same CPUs, so the pod's record tells whether it was Pinfold that had
            // assigned them. CPUs that the kubelet chose are exclusive only once they are a
            // partition, because the kubelet's set keeps no other program off them.
            let is_of_kubelet = container
                .record
                .as_ref()
                .is_some_and(|record| !record.assignment.by_kubelet.is_empty());
            let had = waiting.contains(path)
                || before
                    .pods
                    .iter()
                    .filter(|pod| was_assigned(pod, &own))
                    .any(|pod| {
                        let mut containers = pod.containers.iter().map(|other| &other.cgroup);
                        containers.any(|other| {
                            let was_exclusive = !is_of_kubelet || other.cpuset.partition.is_live();
                            other.path == *path && other.cpuset.effective == own && was_exclusive
                        })
                    });
            let processes = node.cgroups.processes(path).unwrap_or_default();
            let ages = processes
                .iter()
                .filter_map(|pid| node.proc.age_seconds(*pid));
            let unpinned = if had { 0.0 } else { ages.fold(0.0, f64::max) };
            metrics.unpinned_seconds.observe(unpinned);
            self.unpinned.insert(path.clone(), unpinned);
        }
    }

    /// Counts repaired drift: drift of `found` without drift at the same path in `left`.
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

    /// Forgets containers whose cgroups were removed.
    pub(super) fn forget(&mut self, observed: &Observed) {
        let there: HashSet<&String> = observed
            .containers()
            .map(|container| &container.cgroup.path)
            .collect();
        self.old.retain(|path, _| there.contains(path));
        self.unpinned.retain(|path, _| there.contains(path));
        self.repaired.retain(|path, _| there.contains(path));
    }

    /// Adds what is known of a container's past to its state.
    pub(super) fn complete(&self, container: &mut ContainerState) {
        let Some(path) = &container.cgroup else {
            return;
        };
        container.unpinned_seconds = self.unpinned.get(path).copied();
        container.at_start = self.old.get(path).cloned();
        container.repaired = self.repaired.get(path).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::{Partition, PartitionKind};
    use crate::pin::{AssignmentRecord, EarlierSettings};

    #[test]
    fn an_offline_cpu_ends_the_assignment_in_force_for_itself_only() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let cpus = &mut record.assignment.containers;
        cpus.insert("main".to_owned(), set("4-7"));
        let mut container = ObservedContainer {
            record: Some(record),
            ..ObservedContainer::default()
        };
        let in_force = |container: &ObservedContainer, enforcement| {
            own_in_force(container, enforcement).to_string()
        };
        container.cgroup.cpuset.partition = Partition::Valid(PartitionKind::Root);
        for (effective, expected) in [
            ("4-7", "4-7"),
            ("4,6-7", "4,6-7"),
            ("7", "7"),
            // It may run elsewhere, too.
            ("3-7", ""),
            ("0-3", ""),
        ] {
            container.cgroup.cpuset.effective = set(effective);
            for enforcement in [Enforcement::Partition, Enforcement::Cpuset] {
                assert_eq!(in_force(&container, enforcement), expected, "{effective}");
            }
        }
        container.cgroup.cpuset.effective = set("4-7");
        container.cgroup.cpuset.partition = Partition::Valid(PartitionKind::Member);
        assert_eq!(in_force(&container, Enforcement::Partition), "");
    }
}
