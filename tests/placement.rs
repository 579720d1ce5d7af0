//! Placement against brute force, against the kubelet's own cases, and under churn.
//!
//! | what holds | tests |
//! |---|---|
//! | A placement is the best one, as every set of CPUs shows. | `requests`, `churn` |
//! | Repacking moves no more owners than it must. | `repack` |
//! | The kubelet's own cases have answers that are as good. | `kubelet` |
//! | The CPUs of a container are divided among its processes. | this file |
//! | `pinfold place` answers people and programs. | `command` |

// A helper function that cannot do its work fails the calling test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "placement/brute.rs"]
mod brute;
#[path = "placement/brute_request.rs"]
mod brute_request;
#[path = "placement/churn.rs"]
mod churn;
#[path = "placement/command.rs"]
mod command;
#[path = "placement/kubelet.rs"]
mod kubelet;
#[path = "placement/machines.rs"]
mod machines;
#[path = "placement/random.rs"]
mod random;
#[path = "placement/repack.rs"]
mod repack;
#[path = "support/repository.rs"]
mod repository;
#[path = "placement/requests.rs"]
mod requests;
#[path = "placement/rival.rs"]
mod rival;

use std::collections::BTreeMap;
use std::fs;

use churn::{Chooser, Sizes};
use kubelet::Cases;
use machines::{cpu, even, machine};
use pinfold::cpu::{CpuSet, Placer, RankCpus, TooFewCpus, Topology};
use proptest::prelude::*;

/// Machines of 8 CPUs, each with a shape that a search could get wrong.
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
        (
            "two threads per core, one LLC over two NUMA nodes",
            even(4, 2, 4, 1, 2),
        ),
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

/// Compares every count out of one free set with every subset of that size.
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

/// CPUs with sparse ids, in groups that are independent of each other.
fn wild() -> impl Strategy<Value = Topology> {
    let cpu_fields = (1_u32..40, -1_i32..6, -1_i32..3, -1_i32..4, -1_i32..4);
    proptest::collection::vec(cpu_fields, 1..=10).prop_map(|cpus| {
        let mut id = 0;
        let new_cpu = |(step, core, socket, numa, llc): (u32, i32, i32, i32, i32)| {
            id += step;
            cpu(id, core, socket, numa, llc)
        };
        machine(cpus.into_iter().map(new_cpu).collect())
    })
}

/// Cores of 1 to 4 threads, in order, in groups of next neighbours; ids shuffled.
fn orderly() -> impl Strategy<Value = Topology> {
    let cores = proptest::collection::vec(1_usize..=4, 1..=8);
    (
        cores,
        1_i32..5,
        1_i32..5,
        1_i32..5,
        Just((0..12).collect::<Vec<u32>>()).prop_shuffle(),
    )
        .prop_map(|(cores, per_socket, per_numa, per_llc, ids)| {
            let threads = cores
                .iter()
                .zip(0..)
                .flat_map(|(&threads, core)| std::iter::repeat_n(core, threads));
            let new_cpu = |(core, &id): (i32, &u32)| {
                cpu(id, core, core / per_socket, core / per_numa, core / per_llc)
            };
            machine(threads.zip(&ids).map(new_cpu).collect())
        })
}

fn some_of(topology: &Topology, bits: u32) -> CpuSet {
    topology
        .cpus
        .iter()
        .zip(0..)
        .filter(|(_, bit)| bits & (1 << bit) != 0)
        .map(|(cpu, _)| cpu.id)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn best_where_groups_are_independent(topology in wild(), bits in any::<u32>()) {
        check("wild", &topology, &Placer::new(&topology), &some_of(&topology, bits));
        check("wild", &topology, &Placer::new(&topology), &topology.online);
    }

    #[test]
    fn best_on_cores_of_all_sizes(topology in orderly(), bits in any::<u32>()) {
        check("orderly", &topology, &Placer::new(&topology), &some_of(&topology, bits));
        check("orderly", &topology, &Placer::new(&topology), &topology.online);
    }
}

/// The LLCs of a set of CPUs.
fn llcs_of(topology: &Topology, cpus: &CpuSet) -> Vec<u32> {
    let mut llcs: Vec<u32> = topology
        .cpus
        .iter()
        .filter(|cpu| cpus.contains(cpu.id))
        .filter_map(|cpu| cpu.llc)
        .collect();
    llcs.sort_unstable();
    llcs.dedup();
    llcs
}

#[test]
fn never_worse_than_the_kubelet_on_its_own_cases() {
    let cases = Cases::load();
    let (mut equal, mut better, mut without_cpus, mut llcs_equal, mut llcs_better) =
        (0, Vec::new(), 0, 0, 0);
    for case in &cases.cases {
        let topology = cases.topology(case);
        let placer = Placer::new(&topology);
        let name = &case.name;
        if let Some(error) = &case.expected_error {
            panic!("{name}: the kubelet answers {error:?}, which no case in this file did");
        }
        let served = case.serve(&topology, |request| {
            placer.place(&request.free, request.n).unwrap().cpus
        });
        let (request, ours) = served.last().unwrap();
        assert!(
            case.expected.is_some() || case.expected_uncore_ids.is_some(),
            "{name}: nothing to compare with"
        );
        if let Some(expected) = &case.expected {
            let theirs: CpuSet = expected.iter().copied().collect();
            if theirs.is_empty() {
                assert_eq!((request.n, ours), (0, &theirs), "{name}");
                without_cpus += 1;
                continue;
            }
            let (our_cost, their_cost) = (placer.cost(ours), placer.cost(&theirs));
            assert!(
                our_cost <= their_cost,
                "{name}: {ours} costs {our_cost:?}, {theirs} costs {their_cost:?}"
            );
            if our_cost == their_cost {
                equal += 1;
            } else {
                better.push(format!("  {name}: {our_cost:?} instead of {their_cost:?}"));
            }
        }
        if let Some(expected) = &case.expected_uncore_ids {
            let all = served
                .iter()
                .fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
            let ours = llcs_of(&topology, &all);
            assert!(
                ours.len() <= expected.len(),
                "{name}: LLCs {ours:?}, the kubelet {expected:?}"
            );
            if ours.len() == expected.len() {
                llcs_equal += 1;
            } else {
                llcs_better += 1;
            }
        }
    }
    println!("{} cases", cases.cases.len());
    println!(
        "CPUs given: cost equal in {equal}, better in {}, {without_cpus} requests for no CPU",
        better.len()
    );
    println!("LLCs given: equal in {llcs_equal}, fewer in {llcs_better}; no case expects an error");
    println!("better:\n{}", better.join("\n"));
}

/// The churn benchmark measures against the kubelet's algorithm, so `rival` must give the kubelet's own answers.
#[test]
fn the_reimplementation_answers_as_the_kubelet() {
    let cases = Cases::load();
    let (mut same, mut different) = (0, Vec::new());
    for case in &cases.cases {
        let Some(expected) = &case.expected else {
            continue;
        };
        if case.option("distribute-cpus-across-numa") || case.option("distribute-cpus-across-cores")
        {
            continue;
        }
        let topology = cases.topology(case);
        let by_llc = case.option("prefer-align-cpus-by-uncorecache");
        let served = case.serve(&topology, |request| {
            let (free, n) = (
                request.free.difference(&request.first),
                request.n - request.first.len(),
            );
            request
                .first
                .union(&rival::packed(&topology, &free, n, by_llc).unwrap())
        });
        let (_, ours) = served.last().unwrap();
        if *ours == expected.iter().copied().collect() {
            same += 1;
        } else {
            different.push(format!("{}: {ours} instead of {expected:?}", case.name));
        }
    }
    assert!(
        different.is_empty(),
        "{same} as the kubelet, {} not:\n{}",
        different.len(),
        different.join("\n")
    );
}

/// 64 cores of two threads; every NUMA node has a quarter of every LLC.
fn grid() -> Topology {
    let new_cpu = |id: u32| {
        let core = id.cast_signed() % 64;
        cpu(id, core, 0, core / 16, core % 4)
    };
    machine((0..128).map(new_cpu).collect())
}

#[test]
fn no_placement_under_churn_is_worse_than_the_optimum() {
    for (name, topology) in [
        ("EPYC NPS1", machines::epyc_nps1()),
        ("EPYC NPS4", machines::epyc_nps4()),
        ("Xeon SNC2", machines::xeon_snc2()),
        ("four sockets in each NUMA node", even(64, 2, 4, 16, 8)),
        ("a grid of NUMA nodes and LLCs", grid()),
    ] {
        for sizes in [Sizes::Even, Sizes::Any] {
            let outcome = churn::run(&topology, Chooser::Pinfold, sizes, 200, 7);
            assert!(
                outcome.placements > 50,
                "{name}: only {} placements",
                outcome.placements
            );
            assert_eq!(
                outcome.worse, 0,
                "{name}, {sizes:?}: of {} placements",
                outcome.placements
            );
        }
    }
}

/// The churn comparison can find differences: the kubelet's algorithm does worse under the same requests.
#[test]
fn the_kubelet_is_worse_under_churn() {
    for chooser in [Chooser::KubeletPacked, Chooser::KubeletPackedByLlc] {
        let outcome = churn::run(&machines::epyc_nps4(), chooser, Sizes::Any, 200, 7);
        assert!(
            outcome.worse > 0 && outcome.worse_numa > 0,
            "{chooser:?}: {outcome:?}"
        );
    }
}

/// The groups of the machines in tests/machines, as recorded in truth.json.
fn real_machines() -> Vec<(String, Topology)> {
    type Groups = Option<Vec<Vec<u32>>>;
    #[derive(serde::Deserialize)]
    struct Truth {
        online: Vec<u32>,
        cores: Groups,
        sockets: Groups,
        numa: Groups,
        llc: Groups,
    }
    let path = repository::here("tests/machines/truth.json");
    let truth: BTreeMap<String, Truth> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let group = |groups: &Groups, id: u32| {
        let position = groups
            .iter()
            .flatten()
            .position(|group| group.contains(&id));
        position.map_or(-1, |number| i32::try_from(number).unwrap())
    };
    let topology = |truth: &Truth| {
        let (core, socket) = (|id| group(&truth.cores, id), |id| group(&truth.sockets, id));
        let (numa, llc) = (|id| group(&truth.numa, id), |id| group(&truth.llc, id));
        machine(
            truth
                .online
                .iter()
                .map(|&id| cpu(id, core(id), socket(id), numa(id), llc(id)))
                .collect(),
        )
    };
    truth
        .iter()
        .map(|(name, truth)| (name.clone(), topology(truth)))
        .collect()
}

#[test]
fn never_worse_than_the_kubelet_on_real_machines() {
    let mut random = random::Random(11);
    let mut better = 0;
    let machines = real_machines();
    assert!(machines.len() > 10);
    for (name, topology) in machines {
        let placer = Placer::new(&topology);
        assert!(placer.is_exact(), "{name}");
        for _ in 0..40 {
            let share = random.below(100) + 1;
            let free: CpuSet = topology
                .online
                .iter()
                .filter(|_| random.below(100) < share)
                .collect();
            let n = random.below(free.len() + 1);
            let ours = placer.place(&free, n).unwrap();
            assert!(
                ours.cpus.len() == n && ours.cpus.is_subset(&free),
                "{name}: {n} of {free}"
            );
            for by_llc in [false, true] {
                let theirs = placer.cost(&rival::packed(&topology, &free, n, by_llc).unwrap());
                assert!(
                    ours.cost <= theirs,
                    "{name}: {n} of {free}: {:?} and {theirs:?}",
                    ours.cost
                );
                better += usize::from(ours.cost < theirs);
            }
        }
    }
    assert!(better > 0);
}

/// Groups that cross each other without order would take too long to search. The placer then answers fast with a good, not
/// always the best, placement.
#[test]
fn a_machine_without_order_gets_fast_inexact_placements() {
    let mut random = random::Random(3);
    let mut group = |count: usize| i32::try_from(random.below(count)).unwrap();
    let cpus = (0..512).map(|id: u32| cpu(id, group(200), group(16), group(16), group(64)));
    let topology = machine(cpus.collect());
    let placer = Placer::new(&topology);
    assert!(!placer.is_exact());
    for n in [0, 1, 2, 31, 300, 511, 512] {
        let placement = placer.place(&topology.online, n).unwrap();
        assert_eq!(
            (placement.cpus.len(), placer.cost(&placement.cpus)),
            (n, placement.cost)
        );
        assert_eq!(placer.place(&topology.online, n).unwrap(), placement);
    }
}

#[test]
fn only_free_cpus_that_are_online_count() {
    let topology = even(4, 2, 2, 2, 2);
    let placer = Placer::new(&topology);
    let free: CpuSet = "3,7,8-20".parse().unwrap();
    assert_eq!(placer.place(&free, 2).unwrap().cpus, "3,7".parse().unwrap());
    assert_eq!(
        placer.place(&free, 3),
        Err(TooFewCpus { wanted: 3, free: 2 })
    );
    assert_eq!(placer.cost(&free), placer.cost(&"3,7".parse().unwrap()));
    let placer = Placer::new(&Topology::default());
    assert_eq!(placer.place(&free, 0).unwrap().cpus, CpuSet::new());
    assert_eq!(
        placer.place(&free, 1),
        Err(TooFewCpus { wanted: 1, free: 0 })
    );
}

/// On the machines in tests/machines, every number of processes gets slices that are disjoint, complete and as equal as cores
/// allow, whatever CPUs the container has.
#[test]
fn the_cpus_of_real_machines_are_divided_among_processes() {
    let mut random = random::Random(45);
    for (name, topology) in real_machines() {
        for round in 0..20 {
            let share = if round == 0 {
                100
            } else {
                random.below(100) + 1
            };
            let cpus: CpuSet = topology
                .online
                .iter()
                .filter(|_| random.below(100) < share)
                .collect();
            let processes = random.below(cpus.len().min(64) + 1);
            let Some(ranks) = RankCpus::of(&cpus, &topology, processes) else {
                assert!(processes < 2, "{name}: {processes} on {cpus}");
                continue;
            };
            let sizes = || ranks.slices().iter().map(CpuSet::len);
            let all: CpuSet = ranks.slices().iter().flat_map(CpuSet::iter).collect();
            let cores = cpus
                .iter()
                .map(|cpu| topology.core_of(cpu).intersection(&cpus).len());
            assert_eq!(sizes().sum::<usize>(), cpus.len(), "{name}: {ranks}");
            assert_eq!(
                (all, sizes().count()),
                (cpus.clone(), processes),
                "{name}: {ranks}"
            );
            let (least, most) = (sizes().min().unwrap(), sizes().max().unwrap());
            assert!(
                least >= cpus.len() / processes && most - least <= cores.max().unwrap(),
                "{name}: {ranks}"
            );
        }
        // A process for each NUMA node, socket or LLC keeps to its own, where they are equal.
        for groups in [topology.numa_nodes(), topology.sockets(), topology.llcs()] {
            let is_even = groups.iter().all(|group| group.len() == groups[0].len());
            if is_even && let Some(ranks) = RankCpus::of(&topology.online, &topology, groups.len())
            {
                assert_eq!(ranks.slices(), groups, "{name}");
            }
        }
    }
}
