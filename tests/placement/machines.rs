//! Machines as values.

use pinfold::cpu::{Cpu, CpuSet, Topology};

/// A CPU; group ids below 0 are unknown.
pub(crate) fn cpu(id: u32, core: i32, socket: i32, numa: i32, llc: i32) -> Cpu {
    let known = |id| u32::try_from(id).ok();
    Cpu {
        id,
        core: known(core),
        socket: known(socket),
        numa: known(numa),
        llc: known(llc),
        ..Cpu::default()
    }
}

/// The machine with the given CPUs, all online.
pub(crate) fn machine(mut cpus: Vec<Cpu>) -> Topology {
    cpus.sort_by_key(|cpu| cpu.id);
    let online: CpuSet = cpus.iter().map(|cpu| cpu.id).collect();
    Topology {
        online,
        cpus,
        ..Topology::default()
    }
}

/// A machine of equal cores, counted through sockets. The second threads of all cores follow the
/// first ones, as Linux counts on most servers. The last three numbers say how many neighbouring
/// cores make one group; 0 is unknown.
pub(crate) fn even(
    cores: u32,
    threads: u32,
    per_socket: u32,
    per_numa: u32,
    per_llc: u32,
) -> Topology {
    let group = |core: u32, per: u32| core.checked_div(per).map_or(-1, u32::cast_signed);
    let cpus = (0..cores * threads).map(|id| {
        let core = id % cores;
        cpu(
            id,
            core.cast_signed(),
            group(core, per_socket),
            group(core, per_numa),
            group(core, per_llc),
        )
    });
    machine(cpus.collect())
}

/// Two sockets of 64 cores, each with one NUMA node; 16 LLCs.
pub(crate) fn epyc_nps1() -> Topology {
    even(128, 2, 64, 64, 8)
}

/// Two sockets of 64 cores, four NUMA nodes each, 16 LLCs.
pub(crate) fn epyc_nps4() -> Topology {
    even(128, 2, 64, 16, 8)
}

/// Two sockets of 56 cores, each with two NUMA nodes and one LLC: an LLC spans two NUMA nodes.
pub(crate) fn xeon_snc2() -> Topology {
    even(112, 2, 56, 28, 56)
}
