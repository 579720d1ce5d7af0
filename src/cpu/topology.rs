//! [`Topology`]: which CPUs share a core, a last-level cache, a NUMA node, a socket.
//!
//! [`Topology::from_facts`] builds a topology from [`TopologyFacts`], the lists in the kernel's
//! files. No group is computed by dividing counts, because offline siblings, hybrid cores, 4-way
//! SMT, sparse ids and NUMA nodes without CPUs would make that wrong.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::CpuSet;

/// An online CPU and its groups; `None` if the machine does not report the group.
///
/// Group ids are unique in the machine: two CPUs have the same `core` if and only if both are on
/// the same core. `numa` is the kernel's id. Cores, sockets and LLCs are counted 0, 1, 2… by the
/// lowest CPU of each group, because the kernel's ids are not usable: on many machines they repeat
/// from socket to socket, are sparse, or are -1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Cpu {
    /// The kernel's id.
    pub id: u32,
    pub core: Option<u32>,
    pub socket: Option<u32>,
    /// The CPU's NUMA node, by the kernel's id.
    pub numa: Option<u32>,
    /// The CPU's last-level cache.
    pub llc: Option<u32>,
    /// The kind of the CPU's core, on hybrid machines.
    pub kind: Option<CoreKind>,
}

/// The kind of a core on a hybrid machine, by speed. Most hybrid machines have two kinds, and some have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoreKind {
    /// The fastest cores of the machine.
    Performance,
    /// Slower cores with lower power consumption.
    Efficiency,
    /// Still slower cores: 0 for the third kind, 1 for the fourth, and so on.
    LowPower(u8),
}

/// A NUMA node. It may have memory and no CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The kernel's id.
    pub id: u32,
    pub cpus: CpuSet,
    /// The NUMA node's memory in bytes; 0 if it has only CPUs, `None` if the machine does not tell.
    pub memory_bytes: Option<u64>,
    /// The kernel's distance to each NUMA node, in the order of [`Topology::numa`]; empty if the
    /// machine reports no distances. A NUMA node is at distance 10 from itself.
    pub distances: Vec<u32>,
}

/// The CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Topology {
    pub online: CpuSet,
    /// Present, but offline CPUs.
    pub offline: CpuSet,
    /// Online CPUs that were isolated at boot by `isolcpus=`. The kernel moves no threads to, from
    /// or between them.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub isolated: CpuSet,
    /// The online CPUs by ascending id.
    pub cpus: Vec<Cpu>,
    /// The NUMA nodes by ascending id; empty if the machine reports no NUMA nodes.
    pub numa: Vec<NumaNode>,
}

/// The CPUs of each group, for drawings of the machine. A kind of group that the machine does not
/// report is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Layout {
    pub cores: Vec<CpuSet>,
    /// The CPUs of each last-level cache.
    pub llcs: Vec<CpuSet>,
    /// The CPUs of each NUMA node with CPUs, by the kernel's id.
    pub numa: BTreeMap<u32, CpuSet>,
    pub sockets: Vec<CpuSet>,
}

/// The contents of a machine's topology files.
///
/// Lists may be in any order and repeat, and may name CPUs that are not online.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyFacts {
    pub online: CpuSet,
    /// Present, but offline CPUs.
    pub offline: CpuSet,
    pub isolated: CpuSet,
    /// Sets of CPUs on the same core.
    pub cores: Vec<CpuSet>,
    /// Sets of CPUs in the same socket.
    pub sockets: Vec<CpuSet>,
    /// Sets of CPUs with the same last-level cache.
    pub llcs: Vec<CpuSet>,
    /// CPUs by the kind of core.
    pub kinds: Vec<(CoreKind, CpuSet)>,
    pub numa: Vec<NumaNode>,
}

// === impl CoreKind ===

impl CoreKind {
    /// The kind with this number of faster kinds.
    pub fn of_rank(rank: usize) -> Self {
        match rank {
            0 => Self::Performance,
            1 => Self::Efficiency,
            rank => Self::LowPower(u8::try_from(rank - 2).unwrap_or(u8::MAX)),
        }
    }
}

impl fmt::Display for CoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Performance => f.write_str("performance"),
            Self::Efficiency => f.write_str("efficiency"),
            Self::LowPower(0) => f.write_str("low-power"),
            Self::LowPower(further) => write!(f, "low-power-{}", u16::from(*further) + 1),
        }
    }
}

impl Serialize for CoreKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl NumaNode ===

impl NumaNode {
    /// Whether the NUMA node has memory. A machine that does not tell counts as one with memory everywhere.
    pub fn has_memory(&self) -> bool {
        self.memory_bytes != Some(0)
    }
}

// === impl Topology ===

impl Topology {
    /// Builds a topology from the contents of the machine's files.
    ///
    /// Lists are cut to the online CPUs. Overlapping lists become a single group, because two files
    /// may disagree for a moment while a CPU comes online: CPUs are then in the same group if
    /// either file lists both. A CPU in no list has no group. A CPU of several NUMA nodes, as with
    /// `numa=fake`, counts with the lowest.
    pub fn from_facts(facts: TopologyFacts) -> Self {
        let TopologyFacts {
            online,
            offline,
            isolated,
            cores,
            sockets,
            llcs,
            kinds,
            mut numa,
        } = facts;
        let [core, socket, llc] = [cores, sockets, llcs].map(|lists| number(&lists, &online));
        let kind = |id| {
            kinds
                .iter()
                .find(|(_, cpus)| cpus.contains(id))
                .map(|&(kind, _)| kind)
        };
        numa.sort_by_key(|node| node.id);
        for node in &mut numa {
            node.cpus = node.cpus.intersection(&online);
        }
        let cpus = online
            .iter()
            .map(|id| Cpu {
                id,
                core: core.get(&id).copied(),
                socket: socket.get(&id).copied(),
                numa: numa
                    .iter()
                    .find(|node| node.cpus.contains(id))
                    .map(|node| node.id),
                llc: llc.get(&id).copied(),
                kind: kind(id),
            })
            .collect();
        let offline = offline.difference(&online);
        let isolated = isolated.intersection(&online);
        Self {
            online,
            offline,
            isolated,
            cpus,
            numa,
        }
    }

    /// The groups of an online CPU.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus
            .binary_search_by_key(&id, |cpu| cpu.id)
            .ok()
            .and_then(|index| self.cpus.get(index))
    }

    /// The online CPUs of each core, ordered by lowest CPU. A CPU without a known core is a core by
    /// itself.
    pub fn cores(&self) -> Vec<CpuSet> {
        self.groups(|cpu| cpu.core.map_or(GroupId::Alone(cpu.id), GroupId::Known))
    }

    /// The online CPUs of each LLC, ordered by lowest CPU. CPUs without a known LLC are one group.
    pub fn llcs(&self) -> Vec<CpuSet> {
        self.groups(|cpu| cpu.llc.map_or(GroupId::Unknown, GroupId::Known))
    }

    /// The online CPUs of each NUMA node that has any, ordered by lowest CPU. CPUs without a known
    /// NUMA node are one group.
    pub fn numa_nodes(&self) -> Vec<CpuSet> {
        self.groups(|cpu| cpu.numa.map_or(GroupId::Unknown, GroupId::Known))
    }

    /// The online CPUs of each socket, ordered by lowest CPU. CPUs without a known socket are one
    /// group.
    pub fn sockets(&self) -> Vec<CpuSet> {
        self.groups(|cpu| cpu.socket.map_or(GroupId::Unknown, GroupId::Known))
    }

    /// The online CPUs of a CPU's core, including the CPU itself; only that one if the core is
    /// unknown, and none for an offline CPU.
    pub fn core_of(&self, id: u32) -> CpuSet {
        match self.cpu(id) {
            None => CpuSet::new(),
            Some(&Cpu { core: None, .. }) => CpuSet::from_iter([id]),
            Some(&Cpu { core, .. }) => self
                .cpus
                .iter()
                .filter(|c| c.core == core)
                .map(|c| c.id)
                .collect(),
        }
    }

    /// The online CPUs among which the kernel balances load: all but those isolated at boot. If
    /// every CPU is isolated, none is better than another, and all of them count.
    pub fn balanced(&self) -> CpuSet {
        let balanced = self.online.difference(&self.isolated);
        if balanced.is_empty() {
            self.online.clone()
        } else {
            balanced
        }
    }

    /// The ids of the NUMA nodes with memory.
    pub fn memory_nodes(&self) -> CpuSet {
        let with_memory = self.numa.iter().filter(|numa| numa.has_memory());
        with_memory.map(|numa| numa.id).collect()
    }

    /// The ids of the NUMA nodes that have memory and no CPU: HBM, memory behind CXL, the memory of
    /// some GPUs. Such memory is near no CPU in particular, and programs that want it bind
    /// themselves to it.
    pub fn memory_only_nodes(&self) -> CpuSet {
        let apart = self.numa.iter().filter(|numa| numa.cpus.is_empty());
        apart
            .filter(|numa| numa.has_memory())
            .map(|numa| numa.id)
            .collect()
    }

    /// The ids of the NUMA nodes of a set's online CPUs, some of which may have no memory.
    ///
    /// `None` if the NUMA node of any CPU is unknown.
    pub fn numa_of(&self, cpus: &CpuSet) -> Option<CpuSet> {
        self.cpus
            .iter()
            .filter(|cpu| cpus.contains(cpu.id))
            .map(|cpu| cpu.numa)
            .collect()
    }

    pub fn layout(&self) -> Layout {
        let known_groups = |of: fn(&Cpu) -> Option<u32>, groups: Vec<CpuSet>| {
            if self.cpus.iter().any(|cpu| of(cpu).is_some()) {
                groups
            } else {
                Vec::new()
            }
        };
        let mut numa: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            if let Some(id) = cpu.numa {
                numa.entry(id).or_default().insert(cpu.id);
            }
        }
        Layout {
            cores: known_groups(|cpu| cpu.core, self.cores()),
            llcs: known_groups(|cpu| cpu.llc, self.llcs()),
            numa,
            sockets: known_groups(|cpu| cpu.socket, self.sockets()),
        }
    }

    fn groups(&self, of: impl Fn(&Cpu) -> GroupId) -> Vec<CpuSet> {
        let mut groups: BTreeMap<GroupId, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            groups.entry(of(cpu)).or_default().insert(cpu.id);
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(CpuSet::first);
        groups
    }
}

/// The key by which CPUs are grouped.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum GroupId {
    Known(u32),
    Alone(u32),
    Unknown,
}

/// The group number of each listed online CPU. Overlapping lists are a single group. Groups are
/// numbered by lowest CPU.
fn number(lists: &[CpuSet], online: &CpuSet) -> BTreeMap<u32, u32> {
    let mut groups: Vec<CpuSet> = Vec::new();
    for list in lists {
        let mut group = list.intersection(online);
        // Nearly every list is a repetition, because the kernel has a file with the group's list
        // for each CPU.
        if group.is_empty() || groups.contains(&group) {
            continue;
        }
        groups.retain(|other| {
            let apart = other.is_disjoint(&group);
            if !apart {
                group = group.union(other);
            }
            apart
        });
        groups.push(group);
    }
    groups.sort_by_key(CpuSet::first);
    let numbered = groups.iter().zip(0u32..);
    numbered
        .flat_map(|(group, number)| group.iter().map(move |cpu| (cpu, number)))
        .collect()
}

/// An invented machine with groups of equal size, for tests, benches and the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub sockets: u32,
    pub numa_per_socket: u32,
    /// LLCs in a NUMA node.
    pub llcs_per_numa: u32,
    pub cores_per_llc: u32,
    pub threads_per_core: u32,
    /// The order of CPU ids.
    pub numbering: Numbering,
}

/// The order of CPU ids on an invented machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numbering {
    /// The first CPU of every core, then the second CPU of every core, and onwards, as on x86.
    #[default]
    SiblingsLast,
    /// All CPUs of a core in a row, as on POWER.
    SiblingsAdjacent,
}

impl Topology {
    /// An invented machine with all CPUs online, without memory sizes and without distances.
    ///
    /// CPUs beyond [`MAX_CPU`](super::MAX_CPU) are left out.
    pub fn from_shape(shape: Shape) -> Self {
        let Shape {
            sockets,
            numa_per_socket,
            llcs_per_numa,
            cores_per_llc,
            threads_per_core,
            numbering,
        } = shape;
        let numas = sockets.saturating_mul(numa_per_socket);
        let llcs = numas.saturating_mul(llcs_per_numa);
        let cores = llcs.saturating_mul(cores_per_llc);
        let mut facts = TopologyFacts::default();
        let mut numa: BTreeMap<u32, CpuSet> = BTreeMap::new();
        let mut llc: BTreeMap<u32, CpuSet> = BTreeMap::new();
        let mut socket: BTreeMap<u32, CpuSet> = BTreeMap::new();
        // In either numbering, a core whose index is above the largest CPU id has no CPU.
        for core in 0..cores.min(super::MAX_CPU.saturating_add(1)) {
            let cpus: CpuSet = (0..threads_per_core.min(super::MAX_CPU))
                .map(|thread| match numbering {
                    Numbering::SiblingsLast => thread.saturating_mul(cores).saturating_add(core),
                    Numbering::SiblingsAdjacent => {
                        core.saturating_mul(threads_per_core).saturating_add(thread)
                    }
                })
                .collect();
            // The divisors are not zero: otherwise `cores` would be zero, and the loop would not
            // run.
            let in_llc = core / cores_per_llc;
            let in_numa = in_llc / llcs_per_numa;
            let in_socket = in_numa / numa_per_socket;
            for (groups, index) in [
                (&mut llc, in_llc),
                (&mut numa, in_numa),
                (&mut socket, in_socket),
            ] {
                groups.entry(index).or_default().extend(cpus.iter());
            }
            facts.online.extend(cpus.iter());
            facts.cores.push(cpus);
        }
        facts.llcs = llc.into_values().collect();
        facts.sockets = socket.into_values().collect();
        facts.numa = numa
            .into_iter()
            .map(|(id, cpus)| NumaNode {
                id,
                cpus,
                memory_bytes: None,
                distances: Vec::new(),
            })
            .collect();
        Self::from_facts(facts)
    }
}

#[cfg(test)]
mod tests;
