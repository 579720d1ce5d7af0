//! Machines of every kind, including impossible machines, and placements.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use pinfold::cpu::{
    CoreKind, CoreKinds, Cores, CpuSet, Isolated, NumaNode, Order, Placer, Request, Topology,
    TopologyFacts,
};
use pinfold_fuzz::{check_groups, check_places};

/// The content of a machine's files. Bit `i` of a set is the CPU `i * stride`.
#[derive(Arbitrary, Debug)]
struct Machine {
    stride: u8,
    online: u64,
    offline: u64,
    isolated: u64,
    /// The numbers of CPUs in a core, LLC, socket and NUMA node, if regular; 0 for none.
    regular: [u8; 4],
    /// Further groups, which may overlap the regular groups and each other.
    cores: Vec<u64>,
    llcs: Vec<u64>,
    sockets: Vec<u64>,
    kinds: Vec<(bool, u64)>,
    numa: Vec<Node>,
    free: u64,
    requests: Vec<PlacementInput>,
}

#[derive(Arbitrary, Debug)]
struct Node {
    id: u8,
    cpus: u64,
    memory_bytes: Option<u64>,
    distances: Vec<u16>,
}

#[derive(Arbitrary, Debug)]
struct PlacementInput {
    cpus: u8,
    /// Each option comes from two bits.
    choices: u8,
    near: u8,
}

fuzz_target!(|machine: Machine| {
    let stride = u32::from(machine.stride % 128).max(1);
    let set = |bits: u64| -> CpuSet {
        (0..64)
            .filter(|bit| bits >> bit & 1 == 1)
            .map(|bit| bit * stride)
            .collect()
    };
    let sets = |size: u8, more: &[u64]| -> Vec<CpuSet> {
        let regular = (0..64_u64)
            .step_by(usize::from(size).max(1))
            .filter(|_| size > 0)
            .map(|from| {
                (from..64.min(from + u64::from(size))).fold(0, |bits, bit| bits | 1_u64 << bit)
            });
        regular
            .chain(more.iter().take(16).copied())
            .map(set)
            .collect()
    };
    let [core, llc, socket, numa] = machine.regular;
    let nodes = machine.numa.iter().take(16).map(|node| NumaNode {
        id: node.id.into(),
        cpus: set(node.cpus),
        memory_bytes: node.memory_bytes,
        distances: node
            .distances
            .iter()
            .map(|&distance| distance.into())
            .collect(),
    });
    let regular = sets(numa, &[])
        .into_iter()
        .zip(0..)
        .map(|(cpus, id)| NumaNode {
            id,
            cpus,
            memory_bytes: None,
            distances: Vec::new(),
        });
    let kind = |&(fast, cpus): &(bool, u64)| {
        (
            if fast {
                CoreKind::Performance
            } else {
                CoreKind::Efficiency
            },
            set(cpus),
        )
    };
    let topology = Topology::from_facts(TopologyFacts {
        online: set(machine.online),
        offline: set(machine.offline),
        isolated: set(machine.isolated),
        cores: sets(core, &machine.cores),
        llcs: sets(llc, &machine.llcs),
        sockets: sets(socket, &machine.sockets),
        kinds: machine.kinds.iter().take(4).map(kind).collect(),
        numa: regular.chain(nodes).collect(),
    });
    check_groups(&topology);
    let requests: Vec<Request> = machine.requests.iter().take(6).map(request).collect();
    check_places(
        &topology,
        &Placer::new(&topology),
        &set(machine.free),
        &requests,
    );
});

fn request(ask: &PlacementInput) -> Request {
    let order = if ask.choices & 1 == 0 {
        Order::Pack
    } else {
        Order::Spread
    };
    let cores = match ask.choices >> 2 & 3 {
        1 => Cores::Whole,
        2 => Cores::Single,
        _ => Cores::Preferred,
    };
    let isolated = match ask.choices >> 4 & 3 {
        1 => Isolated::Prefer,
        2 => Isolated::Ignore,
        _ => Isolated::Avoid,
    };
    let near = (0..8).filter(|bit| ask.near >> bit & 1 == 1).collect();
    Request {
        cpus: usize::from(ask.cpus % 70),
        order,
        cores,
        near,
        isolated,
        core_kinds: if ask.choices >> 6 & 1 == 1 {
            CoreKinds::Any
        } else {
            CoreKinds::Same
        },
        fewest_numa: ask.choices >> 1 & 1 == 1,
    }
}
