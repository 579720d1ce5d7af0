//! Requests of every kind, against brute force.

#[path = "fewest_numa.rs"]
mod fewest_numa;

use pinfold::cpu::{
    CoreKind, CoreKinds, Cores, Cpu, CpuSet, Isolated, NumaNode, Order, PlacementRefusal, Placer,
    Request, TooFewCpus, Topology,
};
use proptest::prelude::*;

use crate::brute_request::Machine;
use crate::machines::{even, machine};
use crate::random::Random;
use crate::{orderly, small_machines, some_of, wild};

const ORDERS: [Order; 2] = [Order::Pack, Order::Spread];
const CORES: [Cores; 3] = [Cores::Preferred, Cores::Whole, Cores::Single];
const ISOLATED: [Isolated; 3] = [Isolated::Avoid, Isolated::Prefer, Isolated::Ignore];

/// The machine with distances between the NUMA nodes, a NUMA node without CPUs, and some isolated CPUs.
fn with_numa_distances(mut topology: Topology, isolated: CpuSet) -> Topology {
    let mut ids: Vec<u32> = topology.cpus.iter().filter_map(|cpu| cpu.numa).collect();
    ids.push(7);
    ids.sort_unstable();
    ids.dedup();
    let distance = |a: u32, b: u32| {
        if a == b {
            10
        } else {
            11 + 10 * a.abs_diff(b) + a
        }
    };
    let node = |&id: &u32| NumaNode {
        id,
        cpus: topology
            .cpus
            .iter()
            .filter(|cpu| cpu.numa == Some(id))
            .map(|cpu| cpu.id)
            .collect(),
        memory_bytes: None,
        // NUMA node 1 reports no distances.
        distances: if id == 1 {
            Vec::new()
        } else {
            ids.iter().map(|&to| distance(id, to)).collect()
        },
    };
    topology.numa = ids.iter().map(node).collect();
    topology.isolated = isolated;
    topology
}

/// Compares every count out of one free set, for one request, with every subset of that size.
fn check(name: &str, topology: &Topology, placer: &Placer, free: &CpuSet, request: &Request) {
    assert!(placer.is_exact_for(request.order), "{name}: {topology:?}");
    let brute = Machine::new(topology);
    let mask = brute.mask(free);
    let all = brute.best(mask, request);
    let anywhere = if request.fewest_numa {
        brute.best(
            mask,
            &Request {
                fewest_numa: false,
                ..request.clone()
            },
        )
    } else {
        all.clone()
    };
    for (n, best) in all.iter().enumerate() {
        let request = Request {
            cpus: n,
            ..request.clone()
        };
        let ours = placer.place_as(free, &request);
        let context = || format!("{name}: {request:?} of {free} of {topology:?}");
        match (best, ours) {
            (Some((_, ids)), Ok(ours)) => {
                let cpus: CpuSet = ids.iter().copied().collect();
                assert_eq!(ours.cpus, cpus, "{}", context());
                let single = request.cores == Cores::Single;
                let idle = if single {
                    brute.siblings(brute.mask(&cpus))
                } else {
                    0
                };
                assert_eq!(ours.idle, brute.set(idle), "{}", context());
                assert_eq!(ours.cost.numa, placer.cost(&cpus).numa);
                assert_eq!(
                    ours.cost.split_cores,
                    placer.cost(&cpus.union(&ours.idle)).split_cores
                );
            }
            (None, Err(refusal)) => {
                if let PlacementRefusal::NotWholeCores { wanted, less, more } = refusal {
                    let works = |count: usize| anywhere.get(count).is_some_and(Option::is_some);
                    assert!(
                        wanted == n && less < n && n < more && works(less) && works(more),
                        "{}",
                        context()
                    );
                    assert!(!(less + 1..more).any(works), "{refusal:?}: {}", context());
                } else if let PlacementRefusal::TooFewOnNuma {
                    wanted,
                    needs,
                    held,
                    held_on,
                    most,
                    ..
                } = &refusal
                {
                    assert!(
                        request.fewest_numa && anywhere[n].is_some(),
                        "{refusal:?}: {}",
                        context()
                    );
                    assert_eq!((*wanted, *held, *held_on), (n, 0, 0));
                    assert_eq!(
                        Some(*needs),
                        brute.numa_needed(request.cores)[n],
                        "{}",
                        context()
                    );
                    let expected = brute.most_on(mask, 0, request.cores, *needs, n);
                    assert_eq!(*most, expected, "{refusal:?}: {}", context());
                } else {
                    assert!(anywhere[n].is_none(), "{refusal:?}: {}", context());
                }
            }
            (best, ours) => panic!("{best:?} and {ours:?}: {}", context()),
        }
    }
}

fn random_set(random: &mut Random, topology: &Topology) -> CpuSet {
    topology
        .online
        .iter()
        .filter(|_| random.below(2) == 0)
        .collect()
}

#[test]
fn best_for_every_free_set_and_order_on_small_machines() {
    for (name, topology) in small_machines() {
        let placer = Placer::new(&topology);
        for free in 0_u32..256 {
            let free = some_of(&topology, free);
            for (order, cores) in ORDERS
                .into_iter()
                .flat_map(|order| CORES.map(|cores| (order, cores)))
            {
                for fewest_numa in [false, true] {
                    let request = Request {
                        order,
                        cores,
                        fewest_numa,
                        ..Request::default()
                    };
                    check(name, &topology, &placer, &free, &request);
                }
            }
        }
    }
}

/// All wishes together are too many for every free set: a sample, the same on every run.
#[test]
fn best_with_devices_and_isolated_cpus_on_small_machines() {
    let mut random = Random(5);
    for (name, topology) in small_machines() {
        for round in 0..60 {
            // In every fourth round, siblings of first threads, as with `isolcpus=4-7`.
            let isolated = if round % 4 == 0 {
                "4-7".parse().unwrap()
            } else {
                random_set(&mut random, &topology)
            };
            let topology = with_numa_distances(topology.clone(), isolated);
            let placer = Placer::new(&topology);
            for _ in 0..40 {
                let free =
                    random_set(&mut random, &topology).union(&random_set(&mut random, &topology));
                let near = (0..9).filter(|_| random.below(4) == 0).collect();
                let request = Request {
                    cpus: 0,
                    order: ORDERS[random.below(2)],
                    cores: CORES[random.below(3)],
                    near,
                    isolated: ISOLATED[random.below(3)],
                    fewest_numa: random.below(2) == 0,
                    ..Request::default()
                };
                check(name, &topology, &placer, &free, &request);
            }
        }
    }
}

/// The machine with a kind for each core, from two bits of a number.
fn with_kinds(mut topology: Topology, kinds: u64) -> Topology {
    for cpu in &mut topology.cpus {
        let core = cpu.core.unwrap_or(cpu.id) % 32;
        cpu.kind = match kinds >> (2 * core) & 3 {
            0 => Some(CoreKind::Performance),
            1 => Some(CoreKind::Efficiency),
            2 => Some(CoreKind::LowPower(0)),
            _ => None,
        };
    }
    topology
}

#[test]
fn best_on_one_kind_of_core_on_small_hybrid_machines() {
    let mut random = Random(11);
    for (name, topology) in small_machines() {
        for _ in 0..20 {
            let kinds = (0..32).fold(0, |kinds, _| kinds << 2 | random.below(4) as u64);
            let isolated = match random.below(3) {
                0 => random_set(&mut random, &topology),
                _ => CpuSet::new(),
            };
            let topology = with_kinds(with_numa_distances(topology.clone(), isolated), kinds);
            let placer = Placer::new(&topology);
            for _ in 0..40 {
                let free =
                    random_set(&mut random, &topology).union(&random_set(&mut random, &topology));
                let request = Request {
                    order: ORDERS[random.below(2)],
                    cores: CORES[random.below(3)],
                    near: (0..9).filter(|_| random.below(6) == 0).collect(),
                    isolated: ISOLATED[random.below(3)],
                    core_kinds: [CoreKinds::Same, CoreKinds::Any][random.below(4) / 3],
                    fewest_numa: random.below(3) == 0,
                    ..Request::default()
                };
                check(name, &topology, &placer, &free, &request);
                check_growth(
                    &topology,
                    &placer,
                    &free,
                    &random_set(&mut random, &topology),
                    &request,
                );
            }
        }
    }
}

/// Compares every number of further CPUs for a container that has CPUs with every subset of that size.
fn check_growth(
    topology: &Topology,
    placer: &Placer,
    free: &CpuSet,
    own: &CpuSet,
    request: &Request,
) {
    let free = free.difference(own);
    let brute = Machine::new(topology);
    // `fewest_numa.rs` has the rule for containers whose CPUs are no sum of whole cores.
    let request = &Request {
        fewest_numa: request.fewest_numa && request.cores == Cores::Preferred,
        ..request.clone()
    };
    let best = brute.best_beside(brute.mask(&free), brute.mask(own), request);
    for (n, best) in best.iter().enumerate() {
        let request = Request {
            cpus: n,
            ..request.clone()
        };
        let ours = placer.place_beside(&free, own, &request).ok();
        let expected = best.as_ref().map(|(_, ids)| ids.iter().copied().collect());
        assert_eq!(
            ours.map(|ours| ours.cpus),
            expected,
            "{request:?} beside {own} out of {free} of {topology:?}"
        );
    }
}

/// Six performance cores with two threads, numbered in pairs, and eight efficiency cores; one LLC.
fn client() -> Topology {
    let cpu = |id: u32| Cpu {
        id,
        core: Some(if id < 12 { id / 2 } else { id - 6 }),
        socket: Some(0),
        numa: Some(0),
        llc: Some(0),
        kind: Some(if id < 12 {
            CoreKind::Performance
        } else {
            CoreKind::Efficiency
        }),
    };
    machine((0..20).map(cpu).collect())
}

/// The cores of a machine with three speeds, such as some Arm processors: a container gets one of them, not two slower ones.
#[test]
fn three_kinds_of_core_are_not_mixed() {
    let kind = |id: u32| match id {
        0 | 1 => CoreKind::Performance,
        2..=4 => CoreKind::Efficiency,
        _ => CoreKind::LowPower(0),
    };
    let cpu = |id: u32| Cpu {
        id,
        core: Some(id),
        socket: Some(0),
        numa: Some(0),
        llc: Some(0),
        kind: Some(kind(id)),
    };
    let topology = machine((0..9).map(cpu).collect());
    let placer = Placer::new(&topology);
    let place = |free: &str, n| {
        let request = Request {
            cpus: n,
            ..Request::default()
        };
        let placement = placer.place_as(&cpus(free), &request).unwrap();
        placement.cpus.to_string()
    };
    assert_eq!(place("1-8", 3), "2-4");
    assert_eq!(place("1-8", 4), "5-8");
    assert_eq!(place("1,4-6", 2), "5-6");
    assert_eq!(place("1-8", 5), "1-5", "no kind has five");
}

#[test]
fn one_kind_of_core_comes_first_and_can_be_switched_off() {
    let topology = client();
    let placer = Placer::new(&topology);
    let place = |free: &str, n, core_kinds| {
        let request = Request {
            cpus: n,
            core_kinds,
            ..Request::default()
        };
        let placement = placer.place_as(&cpus(free), &request).unwrap();
        placement.cpus.to_string()
    };
    let same = |free, n| place(free, n, CoreKinds::Same);
    assert_eq!(same("8-19", 6), "12-17");
    assert_eq!(place("8-19", 6, CoreKinds::Any), "8-13");
    assert_eq!(same("2-19", 9), "2-10", "one kind even with a divided core");
    assert_eq!(
        same("8-19", 9),
        place("8-19", 9, CoreKinds::Any),
        "no kind has nine"
    );
    // A container on efficiency cores grows on efficiency cores.
    let more = |own: &str| {
        let request = Request {
            cpus: 2,
            ..Request::default()
        };
        let free = cpus("2-11,14-19").difference(&cpus(own));
        let placement = placer.place_beside(&free, &cpus(own), &request).unwrap();
        placement.cpus.to_string()
    };
    assert_eq!(more("12-13"), "14-15");
    assert_eq!(more("0-1"), "2-3");
}

/// Random tests found this case: a core in pieces gives one CPU, also where the rest of the core is on NUMA nodes that may
/// not be used.
#[test]
fn cores_in_pieces_on_the_fewest_numa_nodes() {
    let places = [
        (Some(2), 0, Some(0), 0),
        (Some(1), 0, Some(0), 1),
        (None, 1, None, 0),
        (Some(0), 0, Some(0), 1),
        (Some(0), 0, Some(1), 0),
        (Some(1), 0, None, 0),
        (Some(0), 0, Some(1), 0),
        (Some(1), 1, None, 0),
        (Some(2), 1, Some(0), 0),
    ];
    let cpus = places
        .iter()
        .zip(1..)
        .map(|(&(core, socket, numa, llc), id)| Cpu {
            id,
            core,
            socket: Some(socket),
            numa,
            llc: Some(llc),
            kind: None,
        });
    let topology = Topology {
        online: (1..=9).collect(),
        cpus: cpus.collect(),
        ..Topology::default()
    };
    for isolated in [CpuSet::new(), (5..=9).collect()] {
        let topology = with_numa_distances(topology.clone(), isolated);
        let placer = Placer::new(&topology);
        for (cores, order) in CORES
            .into_iter()
            .flat_map(|cores| ORDERS.map(|order| (cores, order)))
        {
            for isolated in ISOLATED {
                let near = CpuSet::new();
                let request = Request {
                    cpus: 0,
                    order,
                    cores,
                    near,
                    isolated,
                    fewest_numa: true,
                    ..Request::default()
                };
                check("pieces", &topology, &placer, &topology.online, &request);
            }
        }
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let choices = (
        0..2_usize,
        0..3_usize,
        any::<u8>(),
        0..3_usize,
        any::<bool>(),
        any::<bool>(),
    );
    choices.prop_map(
        |(order, cores, near, isolated, fewest_numa, any_kind)| Request {
            cpus: 0,
            order: ORDERS[order],
            cores: CORES[cores],
            near: (0..8)
                .filter(|bit| near & (near >> 1) & (1 << bit) != 0)
                .collect(),
            isolated: ISOLATED[isolated],
            core_kinds: if any_kind {
                CoreKinds::Any
            } else {
                CoreKinds::Same
            },
            fewest_numa,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn best_where_groups_are_independent(
        topology in wild(), bits in any::<u32>(), isolated in any::<u32>(), kinds in any::<u64>(),
        request in any_request()
    ) {
        let isolated = some_of(&topology, isolated);
        let topology = with_kinds(with_numa_distances(topology, isolated), kinds);
        let placer = Placer::new(&topology);
        check("wild", &topology, &placer, &some_of(&topology, bits), &request);
        check("wild", &topology, &placer, &topology.online, &request);
    }

    #[test]
    fn best_on_cores_of_all_sizes(
        topology in orderly(), bits in any::<u32>(), isolated in any::<u32>(), kinds in any::<u64>(),
        request in any_request()
    ) {
        let isolated = some_of(&topology, isolated);
        let topology = with_kinds(with_numa_distances(topology, isolated), kinds);
        let placer = Placer::new(&topology);
        check("orderly", &topology, &placer, &some_of(&topology, bits), &request);
        check("orderly", &topology, &placer, &topology.online, &request);
    }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn a_plain_request_is_placed_as_before() {
    let topology = crate::machines::epyc_nps4();
    let placer = Placer::new(&topology);
    let mut random = Random(9);
    for _ in 0..50 {
        let free = random_set(&mut random, &topology);
        let n = random.below(free.len() + 1);
        let request = Request {
            cpus: n,
            ..Request::default()
        };
        assert_eq!(
            placer.place_as(&free, &request).unwrap(),
            placer.place(&free, n).unwrap()
        );
    }
}

#[test]
fn spread_is_even_over_numa_nodes_and_llcs() {
    // Four NUMA nodes of two LLCs of two cores.
    let topology = even(16, 2, 8, 4, 2);
    let placer = Placer::new(&topology);
    let spread = |free: &CpuSet, n| {
        let request = Request {
            cpus: n,
            order: Order::Spread,
            ..Request::default()
        };
        let cpus = placer.place_as(free, &request).unwrap().cpus;
        let in_group = |group: &CpuSet| cpus.intersection(group).len();
        (
            topology
                .numa_nodes()
                .iter()
                .map(in_group)
                .collect::<Vec<_>>(),
            topology.llcs().iter().map(in_group).collect::<Vec<_>>(),
        )
    };
    assert_eq!(spread(&topology.online, 16), (vec![4; 4], vec![2; 8]));
    assert_eq!(
        spread(&topology.online, 4).0,
        [2, 0, 2, 0],
        "one core in each socket"
    );
    // A NUMA node with fewer free CPUs gives all of them, and a NUMA node without free CPUs gives none.
    let free = topology.online.difference(&cpus("4-7,20-23,8-10,24-26"));
    assert_eq!(spread(&free, 16).0, [8, 0, 2, 6]);
}

#[test]
fn the_remainder_comes_from_the_group_with_the_most_free_cpus() {
    let topology = even(8, 1, 4, 4, 4);
    let placer = Placer::new(&topology);
    let request = Request {
        cpus: 3,
        order: Order::Spread,
        ..Request::default()
    };
    let placement = placer.place_as(&cpus("1-2,4-7"), &request).unwrap();
    assert_eq!(placement.cpus, cpus("1,4-5"));
}

#[test]
fn whole_cores_or_a_refusal_with_the_nearest_counts() {
    // Cores 0-3 of two threads, core 3 without its sibling 7: CPUs 0-6.
    let mut topology = even(4, 2, 4, 4, 4);
    topology.cpus.retain(|cpu| cpu.id != 7);
    let placer = Placer::new(&machine(topology.cpus));
    let whole = |free: &str, n| {
        placer.place_as(
            &cpus(free),
            &Request {
                cpus: n,
                cores: Cores::Whole,
                ..Request::default()
            },
        )
    };
    assert_eq!(whole("0-6", 5).unwrap().cpus, cpus("0-1,3-5"));
    let refusal = whole("0-2,4-6", 3).unwrap_err();
    assert_eq!(
        refusal,
        PlacementRefusal::NotWholeCores {
            wanted: 3,
            less: 2,
            more: 4
        }
    );
    let sentence = "3 CPUs are no sum of whole free cores: the nearest sums are 2 and 4";
    assert_eq!(refusal.to_string(), sentence);
    assert_eq!(
        whole("0-1,4,6", 3),
        Err(PlacementRefusal::TooFewOnWholeCores { wanted: 3, free: 2 })
    );
    assert_eq!(
        whole("0-1,4,6", 5),
        Err(TooFewCpus { wanted: 5, free: 4 }.into())
    );
}

#[test]
fn siblings_of_single_cpus_are_idle() {
    let placer = Placer::new(&even(4, 2, 2, 2, 2));
    let single = |free: &str, n| {
        placer.place_as(
            &cpus(free),
            &Request {
                cpus: n,
                cores: Cores::Single,
                ..Request::default()
            },
        )
    };
    let placement = single("0-7", 2).unwrap();
    assert_eq!(
        (&placement.cpus, &placement.idle),
        (&cpus("0-1"), &cpus("4-5"))
    );
    assert_eq!((placement.cost.split_cores, placement.cost.numa), (0, 1));
    assert_eq!(
        single("0-6", 4),
        Err(PlacementRefusal::TooFewCores { wanted: 4, free: 3 })
    );
}

#[test]
fn devices_decide_before_the_number_of_numa_nodes() {
    let topology = with_numa_distances(even(12, 1, 6, 3, 3), CpuSet::new());
    let placer = Placer::new(&topology);
    let near = |free: &str, n, near: &str| {
        let request = Request {
            cpus: n,
            near: cpus(near),
            ..Request::default()
        };
        placer.place_as(&cpus(free), &request).unwrap().cpus
    };
    assert_eq!(near("0-11", 2, "3"), cpus("9-10"));
    assert_eq!(
        near("0-5,9", 2, "3"),
        cpus("3,9"),
        "NUMA node 1 reports no distance to 3, and 3 reports a large distance"
    );
    assert_eq!(
        near("0-11", 2, "7"),
        cpus("9-10"),
        "the nearest to a NUMA node without CPUs"
    );
    assert_eq!(near("0-11", 4, "0,3"), cpus("0-2,9"));
    assert_eq!(
        near("0-11", 2, "1000"),
        cpus("0-1"),
        "the same distance from every NUMA node"
    );
}

/// The whole-core rule together with every preference leaves no choice, and the placer must find the only placement.
#[test]
fn isolated_cpus_are_the_last_to_go() {
    let mut topology = even(8, 2, 8, 8, 8);
    topology.isolated = cpus("4-7");
    let placer = Placer::new(&topology);
    let with = |n, isolated| {
        placer
            .place_as(
                &topology.online,
                &Request {
                    cpus: n,
                    isolated,
                    ..Request::default()
                },
            )
            .unwrap()
            .cpus
    };
    assert_eq!(with(8, Isolated::Avoid), cpus("0-3,8-11"));
    assert_eq!(with(11, Isolated::Avoid), cpus("0-3,8-14"));
    assert_eq!(with(12, Isolated::Avoid), cpus("0-3,8-15"));
    assert_eq!(with(14, Isolated::Avoid), cpus("0-5,8-15"));
    assert_eq!(with(2, Isolated::Prefer), cpus("4-5"));
    assert_eq!(with(10, Isolated::Ignore), cpus("0-4,8-12"));
}
