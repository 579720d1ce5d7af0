//! [`PodAssignment`]: the exclusive CPUs of a pod.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use crate::cpu::CpuSet;

/// The exclusive CPUs of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodAssignment {
    /// The CPUs of each container, by name.
    pub containers: BTreeMap<String, CpuSet>,
    /// The idle CPUs: siblings of the containers' CPUs, kept free of programs.
    pub idle: CpuSet,
    /// The names of the containers whose CPUs the kubelet's CPU Manager chose. Their quota, memory
    /// and `cpuset.cpus` are the kubelet's, too.
    pub by_kubelet: BTreeSet<String>,
}

// === impl PodAssignment ===

impl PodAssignment {
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.idle.is_empty()
    }

    /// The idle CPUs, if any, without a name, and then the name and CPUs of each container.
    pub fn entries(&self) -> impl Iterator<Item = (Option<&str>, &CpuSet)> {
        let idle = Some(&self.idle).filter(|idle| !idle.is_empty());
        let containers = self.containers.iter();
        idle.map(|idle| (None, idle))
            .into_iter()
            .chain(containers.map(|(name, cpus)| (Some(name.as_str()), cpus)))
    }

    /// All CPUs of the pod, including the idle CPUs.
    pub fn cpus(&self) -> CpuSet {
        union(self.entries().map(|(_, cpus)| cpus))
    }

    /// The CPUs usable by the pod's containers.
    pub fn usable(&self) -> CpuSet {
        union(self.containers.values())
    }

    pub(super) fn of_container(&self, name: &str) -> Self {
        let own = self.containers.get_key_value(name);
        Self {
            containers: own
                .map(|(name, cpus)| (name.clone(), cpus.clone()))
                .into_iter()
                .collect(),
            idle: CpuSet::new(),
            by_kubelet: self.by_kubelet.get(name).cloned().into_iter().collect(),
        }
    }

    /// Adds CPUs that the kubelet has chosen for a container.
    pub(super) fn add_of_kubelet(&mut self, name: &str, cpus: CpuSet) {
        self.containers.insert(name.to_owned(), cpus);
        self.by_kubelet.insert(name.to_owned());
    }

    /// Notes which of the CPUs the kubelet has chosen, according to an earlier assignment: those that have not changed.
    pub(super) fn inherit_choices(&mut self, earlier: &Self) {
        let has_same = |name: &&String| {
            let cpus = self.containers.get(*name);
            cpus.is_some() && cpus == earlier.containers.get(*name)
        };
        let same: Vec<String> = earlier
            .by_kubelet
            .iter()
            .filter(has_same)
            .cloned()
            .collect();
        self.by_kubelet.extend(same);
    }
}

pub(super) fn union(sets: impl Iterator<Item = impl Borrow<CpuSet>>) -> CpuSet {
    sets.fold(CpuSet::new(), |all, set| all.union(set.borrow()))
}
