//! Placement against brute force, against the kubelet's own cases, and under churn.

#[path = "placement/brute.rs"]
mod brute;
#[path = "placement/machines.rs"]
mod machines;

use machines::{cpu, even, machine};
use pinfold::cpu::{Cpu, CpuSet, Placer, Topology};
use proptest::prelude::*;

/// Machines of 8 CPUs, one of each shape that a search could get wrong.
fn small_machines() -> Vec<(&'static str, Topology)> {
    let list = |cpus: [(i32, i32, i32, i32); 8]| {
        machine(
            cpus.iter()
                .zip(0..)
                .map(|(&(core, socket, numa, llc), id)| cpu(id, core, socket, numa, llc))
                .collect(),
        )
    };
    vec![
        ("one thread per core, two NUMA nodes", even(8, 1, 4, 4, 2)),
        ("two threads per core, two NUMA nodes", even(4, 2, 2, 2, 1)),
        ("two threads per core, one LLC over two NUMA nodes", even(4, 2, 4, 1, 2)),
        ("four threads per core", even(2, 4, 1, 1, 1)),
        ("eight threads in one core", even(1, 8, 1, 1, 1)),
        ("sockets in NUMA nodes", even(4, 2, 1, 2, 2)),
        ("nothing known but the cores", even(4, 2, 0, 0, 0)),
        ("nothing known", list([(-1, -1, -1, -1); 8])),
        (
            "two big cores and four small",
            list([
                (0, 0, 0, 0),
                (0, 0, 0, 0),
                (1, 0, 0, 0),
                (1, 0, 0, 0),
                (2, 0, 0, 1),
                (3, 0, 0, 1),
                (4, 0, 0, 1),
                (5, 0, 0, 1),
            ]),
        ),
        (
            "three threads, two, two and one",
            list([
                (0, 0, 0, 0),
                (1, 0, 0, 0),
                (2, 0, 1, 1),
                (3, 0, 1, 1),
                (0, 0, 0, 0),
                (1, 0, 0, 0),
                (2, 0, 1, 1),
                (0, 0, 0, 0),
            ]),
        ),
        (
            "LLCs, NUMA nodes and sockets that cross",
            list([
                (0, 0, 0, 0),
                (1, 0, 0, 0),
                (2, 0, 0, 0),
                (3, 0, 1, 1),
                (4, 0, 1, 1),
                (5, 1, 1, 1),
                (6, 1, 2, 1),
                (7, 1, 2, 2),
            ]),
        ),
        (
            "a grid of NUMA nodes and LLCs",
            list([
                (0, 0, 0, 0),
                (1, 0, 0, 1),
                (2, 0, 0, 2),
                (3, 0, 0, 3),
                (4, 1, 1, 0),
                (5, 1, 1, 1),
                (6, 1, 1, 2),
                (7, 1, 1, 3),
            ]),
        ),
        (
            "cores in pieces",
            list([
                (0, 0, 0, 0),
                (0, 0, 0, 0),
                (0, 0, 1, 0),
                (1, 0, 1, 0),
                (1, 1, 1, 1),
                (2, 1, 1, 1),
                (2, 1, 0, 1),
                (3, 1, 0, 1),
            ]),
        ),
        (
            "some groups unknown",
            list([
                (0, 0, 0, 0),
                (0, 0, 0, 0),
                (1, 0, 0, -1),
                (1, 0, 0, -1),
                (2, -1, 1, -1),
                (2, -1, 1, -1),
                (-1, 1, -1, 1),
                (-1, 1, -1, 1),
            ]),
        ),
    ]
}

/// Every count out of one free set, against every subset of it.
fn check(name: &str, topology: &Topology, placer: &Placer, free: &CpuSet) {
    assert!(placer.is_exact(), "{name}: {topology:?}");
    for (n, (cost, cpus)) in brute::best(topology, free).into_iter().enumerate() {
        let ours = placer.place(free, n).unwrap();
        assert_eq!(
            (&ours.cpus, ours.cost),
            (&cpus, cost),
            "{name}: {n} out of {free} of {:?}",
            topology.cpus
        );
    }
}

#[test]
fn best_for_every_free_set_and_count_on_small_machines() {
    for (name, topology) in small_machines() {
        let placer = Placer::new(&topology);
        for free in 0_u32..1 << topology.cpus.len() {
            let free = (0..8).filter(|bit| free & (1 << bit) != 0).collect();
            check(name, &topology, &placer, &free);
        }
    }
}

/// CPUs with sparse ids, each in groups that have nothing to do with each other.
fn wild() -> impl Strategy<Value = Topology> {
    let one = (1_u32..40, -1_i32..6, -1_i32..3, -1_i32..4, -1_i32..4);
    proptest::collection::vec(one, 1..=10).prop_map(|cpus| {
        let mut id = 0;
        let place = |(step, core, socket, numa, llc): (u32, i32, i32, i32, i32)| {
            id += step;
            cpu(id, core, socket, numa, llc)
        };
        machine(cpus.into_iter().map(place).collect())
    })
}

/// Cores of 1 to 4 threads, in order, in groups of next neighbours; ids shuffled.
fn orderly() -> impl Strategy<Value = Topology> {
    let cores = proptest::collection::vec(1_usize..=4, 1..=8);
    (cores, 1_i32..5, 1_i32..5, 1_i32..5, Just((0..12).collect::<Vec<u32>>()).prop_shuffle()).prop_map(
        |(cores, per_socket, per_numa, per_llc, ids)| {
            let threads =
                cores.iter().zip(0..).flat_map(|(&threads, core)| std::iter::repeat_n(core, threads));
            let place =
                |(core, &id): (i32, &u32)| cpu(id, core, core / per_socket, core / per_numa, core / per_llc);
            machine(threads.zip(&ids).map(place).collect())
        },
    )
}

fn some_of(topology: &Topology, bits: u32) -> CpuSet {
    topology.cpus.iter().zip(0..).filter(|(_, bit)| bits & (1 << bit) != 0).map(|(cpu, _)| cpu.id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn best_where_groups_have_nothing_to_do_with_each_other(topology in wild(), bits in any::<u32>()) {
        check("wild", &topology, &Placer::new(&topology), &some_of(&topology, bits));
        check("wild", &topology, &Placer::new(&topology), &topology.online);
    }

    #[test]
    fn best_on_cores_of_all_sizes(topology in orderly(), bits in any::<u32>()) {
        check("orderly", &topology, &Placer::new(&topology), &some_of(&topology, bits));
        check("orderly", &topology, &Placer::new(&topology), &topology.online);
    }
}
