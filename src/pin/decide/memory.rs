//! The NUMA nodes that an owner's memory shall come from.

use std::collections::BTreeMap;

use super::input::{DecisionInput, PodRequest};
use crate::cpu::CpuSet;
use crate::pin::{Ledger, PodAssignment};
use crate::pod::MemoryPolicy;

/// NUMA nodes by the pod's key and the container's name.
pub(super) type NumaNodes = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Chooses the NUMA nodes of owners' CPUs for their memory, if these have room for the memory
/// limits.
///
/// NUMA nodes without memory are left out: cgroup v1 refuses them, so a container runtime couldn't
/// create the container. NUMA nodes without CPUs stay allowed, because they are near no CPU in
/// particular, and a program may want to bind its data to them. They do not count as room.
///
/// Bound containers come first, so that a new one takes no room from them. Without at least two
/// NUMA nodes of known memory, nothing is bound, and neither is a container without a memory limit.
pub(super) fn follow(
    requests: &[PodRequest<'_>],
    assignments: &BTreeMap<String, PodAssignment>,
    ledger: &Ledger,
    inputs: &DecisionInput<'_>,
) -> NumaNodes {
    let (topology, allowed) = (inputs.context.topology, inputs.context.memory_nodes);
    let usable = topology.numa.iter().filter(|numa| numa.has_memory());
    let mut room: BTreeMap<u32, u64> = usable
        .filter(|numa| allowed.contains(numa.id))
        .filter_map(|numa| Some((numa.id, numa.memory_bytes?)))
        .collect();
    let apart = topology.memory_only_nodes().intersection(allowed);
    let mut nodes = NumaNodes::new();
    if room.len() < 2 {
        return nodes;
    }
    let mut wanted = Vec::new();
    for pod in requests
        .iter()
        .filter(|pod| pod.preferences.memory == MemoryPolicy::Follow)
    {
        let own = assignments.get(&pod.key);
        let bound = ledger.memory.get(&pod.key);
        for container in &pod.pod.containers {
            let name = &container.name;
            // Beside the kubelet's CPUs, memory is the affair of its Memory Manager.
            if own.is_some_and(|own| own.by_kubelet.contains(name)) {
                continue;
            }
            let assigned = own.and_then(|own| own.containers.get(name));
            let numa = assigned.and_then(|cpus| topology.numa_of(cpus));
            let numa = numa.map(|numa| numa.iter().filter(|id| room.contains_key(id)).collect());
            let numa = numa.filter(|numa: &CpuSet| !numa.is_empty());
            if let (Some(numa), Some(limit)) = (numa, container.resources.memory_limit) {
                let is_bound = bound.is_some_and(|bound| bound.contains_key(name));
                wanted.push((is_bound, &pod.key, name, numa, limit));
            }
        }
    }
    wanted.sort_by_key(|(is_bound, ..)| !is_bound);
    for (_, key, name, numa, limit) in wanted {
        if take(&mut room, &numa, limit) {
            let containers = nodes.entry(key.clone()).or_default();
            containers.insert(name.clone(), numa.union(&apart));
        }
    }
    nodes
}

/// Takes bytes from several NUMA nodes, in equal parts as far as each has room. Takes nothing if
/// there is too little room altogether.
fn take(room: &mut BTreeMap<u32, u64>, numa: &CpuSet, bytes: u64) -> bool {
    let mut free: Vec<(u32, u64)> = numa
        .iter()
        .map(|id| (id, room.get(&id).copied().unwrap_or(0)))
        .collect();
    let total = free
        .iter()
        .fold(0_u64, |sum, (_, free)| sum.saturating_add(*free));
    if total < bytes {
        return false;
    }
    // The NUMA node with the least room gives first, and the rest comes from those with more.
    free.sort_unstable_by_key(|&(_, free)| free);
    let mut left = bytes;
    let mut sharers = free.len() as u64;
    for (id, free) in free {
        let part = left.div_ceil(sharers.max(1)).min(free);
        left -= part;
        sharers -= 1;
        room.insert(id, free - part);
    }
    left == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numa_nodes_share_what_is_asked_of_them() {
        let both: CpuSet = "0-1".parse().unwrap();
        let mut room = BTreeMap::from([(0, 100), (1, 30)]);
        assert!(take(&mut room, &both, 80));
        assert_eq!(room, BTreeMap::from([(0, 50), (1, 0)]));
        assert!(!take(&mut room, &both, 51));
        assert_eq!(
            room,
            BTreeMap::from([(0, 50), (1, 0)]),
            "nothing is taken in vain"
        );
        assert!(take(&mut room, &both, 50));
    }
}
