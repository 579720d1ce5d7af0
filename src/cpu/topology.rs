//! [`Topology`]: which CPUs share a core, a last-level cache, a NUMA node, a socket.

use serde::Serialize;

use super::CpuSet;

/// One online CPU and the groups it belongs to; `None` where the machine does not tell.
///
/// Group ids are unique in the machine: two CPUs with the same `core` share one core, wherever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The kernel's id.
    pub id: u32,
    /// Its core.
    pub core: Option<u32>,
    /// Its socket.
    pub socket: Option<u32>,
    /// Its NUMA node, by the kernel's id.
    pub numa: Option<u32>,
    /// Its last-level cache.
    pub llc: Option<u32>,
}

/// The CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Topology {
    /// CPUs that run tasks now.
    pub online: CpuSet,
    /// CPUs that are present and switched off.
    pub offline: CpuSet,
    /// The online CPUs by ascending id.
    pub cpus: Vec<Cpu>,
}
