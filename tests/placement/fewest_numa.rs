//! Placements on the fewest NUMA nodes.

use pinfold::cpu::{Cores, CpuSet, Order, Owner, PlacementRefusal, Placer, Request, Topology};

use crate::brute_request::Machine;
use crate::machines::{cpu, even, machine};
use crate::random::Random;
use crate::{small_machines, some_of};

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn fewest(cpus: usize) -> Request {
    Request {
        cpus,
        fewest_numa: true,
        ..Request::default()
    }
}

/// 8 CPUs on each of some NUMA nodes, all in one socket and LLC.
fn eights(numa: u32) -> Topology {
    even(8 * numa, 1, 8 * numa, 8, 8 * numa)
}

/// The text of a refusal appears in the container's note.
#[test]
fn a_refusal_names_the_numbers() {
    let placer = Placer::new(&eights(3));
    let refused = |free: &str, request: &Request| {
        placer
            .place_as(&cpus(free), request)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused("0-2,8-9", &fewest(4)),
        "4 CPUs need 1 NUMA node, and no NUMA node has more than 3 free CPUs: 3 on 0, 2 on 1"
    );
    assert_eq!(
        refused("0-4,8-12,16-20", &fewest(12)),
        "12 CPUs need 2 NUMA nodes, and no 2 NUMA nodes have more than 10 free CPUs together: \
         5 on 0, 5 on 1, 5 on 2"
    );
    assert!(
        placer
            .place_as(
                &cpus("0-4,8-12,16-20"),
                &Request {
                    fewest_numa: false,
                    ..fewest(12)
                }
            )
            .is_ok()
    );
    assert_eq!(
        refused("0-1", &fewest(4)),
        "too few free CPUs: 4 wanted, 2 free"
    );
    let grown = |own: &str, free: &str, more| {
        placer
            .place_beside(&cpus(free), &cpus(own), &fewest(more))
            .map(|placement| placement.cpus)
    };
    assert_eq!(grown("0-3", "6-15", 2), Ok(cpus("6-7")));
    assert_eq!(
        grown("0-3", "6-15", 3).unwrap_err().to_string(),
        "7 CPUs need 1 NUMA node, and with the 4 that it has on 1, there are no more than 2 free CPUs: \
         2 on 0, 8 on 1"
    );
    assert_eq!(grown("0-3", "6-15", 5), Ok(cpus("8-12")), "9 CPUs need two");
    assert_eq!(
        grown("0,8", "1-7", 2).unwrap_err().to_string(),
        "4 CPUs need 1 NUMA node, and the 2 that it has are on 2: 7 on 0"
    );
}

/// Whole cores of different sizes may need more NUMA nodes than the same number of single CPUs.
#[test]
fn needed_numa_nodes_are_counted_with_usable_cpus() {
    // Each NUMA node has two cores of three threads.
    let topology = machine(
        (0..12)
            .map(|id: u32| {
                let core = id.cast_signed() / 3;
                cpu(id, core, 0, core / 2, 0)
            })
            .collect(),
    );
    let placer = Placer::new(&topology);
    let placed = |n, cores| placer.place_as(&topology.online, &Request { cores, ..fewest(n) });
    assert_eq!(placed(9, Cores::Whole).unwrap().cost.numa, 2);
    assert_eq!(placed(2, Cores::Single).unwrap().cost.numa, 1);
    assert_eq!(
        placed(3, Cores::Single).unwrap().cost.numa,
        2,
        "a third core is on another NUMA node"
    );
    let free = cpus("0-2,6-8");
    let refusal = placer
        .place_as(
            &free,
            &Request {
                cores: Cores::Whole,
                ..fewest(6)
            },
        )
        .unwrap_err();
    assert!(
        matches!(
            refusal,
            PlacementRefusal::TooFewOnNuma {
                needs: 1,
                most: 3,
                ..
            }
        ),
        "{refusal:?}"
    );
}

/// The rule is stronger than split cores, which come before NUMA nodes otherwise.
#[test]
fn a_core_is_split_before_a_container() {
    // Three cores on each NUMA node, siblings 6 apart.
    let placer = Placer::new(&even(6, 2, 3, 3, 3));
    let free = cpus("0-2,6,3,9");
    let usual = placer
        .place_as(
            &free,
            &Request {
                fewest_numa: false,
                ..fewest(4)
            },
        )
        .unwrap();
    assert_eq!(
        (usual.cpus, usual.cost.split_cores, usual.cost.numa),
        (cpus("0,3,6,9"), 0, 2)
    );
    let placement = placer.place_as(&free, &fewest(4)).unwrap();
    assert_eq!(
        (
            placement.cpus,
            placement.cost.split_cores,
            placement.cost.numa
        ),
        (cpus("0-2,6"), 2, 1)
    );
    let refusal = placer
        .place_as(
            &free,
            &Request {
                cores: Cores::Whole,
                ..fewest(4)
            },
        )
        .unwrap_err();
    assert!(
        matches!(
            refusal,
            PlacementRefusal::TooFewOnNuma {
                needs: 1,
                most: 2,
                ..
            }
        ),
        "{refusal:?}"
    );
}

/// The container's own CPUs count: every free set is tried beside a random own set.
#[test]
fn growth_is_best_on_small_machines() {
    let mut random = Random(17);
    let (mut refused, mut grown, mut restricted) = (0, 0, 0);
    for (name, topology) in small_machines() {
        let placer = Placer::new(&topology);
        let brute = Machine::new(&topology);
        for _ in 0..150 {
            let bits = |random: &mut Random| u32::try_from(random.below(256)).unwrap();
            let own = some_of(&topology, bits(&mut random) & bits(&mut random));
            let free = some_of(&topology, bits(&mut random) | bits(&mut random)).difference(&own);
            // The container's own CPUs may be parts of cores. For whole cores the required NUMA nodes then follow another
            // rule.
            let cores = [Cores::Preferred, Cores::Single][random.below(2)];
            let order = [Order::Pack, Order::Spread][random.below(2)];
            let request = Request {
                order,
                cores,
                ..fewest(0)
            };
            let (own_mask, mask) = (brute.mask(&own), brute.mask(&free));
            let needs = brute.numa_needed(cores);
            for (n, best) in brute
                .best_beside(mask, own_mask, &request)
                .iter()
                .enumerate()
            {
                // The machine may have fewer whole cores than this count needs.
                let Some(needs) = needs.get(own.len() + n).copied().flatten() else {
                    continue;
                };
                let ours = placer.place_beside(
                    &free,
                    &own,
                    &Request {
                        cpus: n,
                        ..request.clone()
                    },
                );
                let context = format!("{name}: {n} of {free} beside {own}, {order:?}, {cores:?}");
                match (best, ours) {
                    (Some((_, ids)), Ok(ours)) => {
                        assert_eq!(ours.cpus, ids.iter().copied().collect(), "{context}");
                        grown += usize::from(n > 0);
                        let usual = Request {
                            cpus: n,
                            fewest_numa: false,
                            ..request.clone()
                        };
                        restricted += usize::from(placer.place_as(&free, &usual).unwrap() != ours);
                    }
                    (
                        None,
                        Err(PlacementRefusal::TooFewOnNuma {
                            wanted,
                            needs: ours,
                            held,
                            most,
                            ..
                        }),
                    ) => {
                        assert_eq!(
                            (wanted, ours, held),
                            (own.len() + n, needs, own.len()),
                            "{context}"
                        );
                        assert_eq!(
                            most,
                            brute.most_on(mask, own_mask, cores, needs, n),
                            "{context}"
                        );
                        refused += 1;
                    }
                    (None, Err(_)) => {}
                    (best, ours) => panic!("{best:?} and {ours:?}: {context}"),
                }
            }
        }
    }
    assert!(
        refused > 500 && grown > 500 && restricted > 100,
        "{refused} {grown} {restricted}"
    );
}

/// Equal NUMA nodes are not tried in every combination, and the placer takes the lowest ids first.
#[test]
fn many_equal_numa_nodes_are_fast_and_the_lowest_ids_are_chosen() {
    let topology = even(256, 1, 128, 8, 8);
    let placer = Placer::new(&topology);
    let spread = Request {
        order: Order::Spread,
        ..fewest(64)
    };
    let placement = placer.place_as(&topology.online, &spread).unwrap();
    // As even as eight whole NUMA nodes can be: four in each socket.
    assert_eq!(
        (placement.cpus, placement.cost.numa),
        (cpus("0-31,128-159"), 8)
    );
    // Each NUMA node is fragmented differently; the rule holds for every search order.
    let mut random = Random(23);
    for _ in 0..3 {
        let free: CpuSet = topology
            .online
            .iter()
            .filter(|_| random.below(4) > 0)
            .collect();
        for n in [8, 20, 40, 60] {
            for order in [Order::Pack, Order::Spread] {
                let request = Request { order, ..fewest(n) };
                let mut sizes: Vec<usize> = topology
                    .numa_nodes()
                    .iter()
                    .map(|numa| numa.intersection(&free).len())
                    .collect();
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                let fits = sizes.iter().take(n.div_ceil(8)).sum::<usize>() >= n;
                match placer.place_as(&free, &request) {
                    Ok(placement) => {
                        assert!(fits && placement.cpus.is_subset(&free), "{n} of {free}");
                        assert_eq!(
                            (placement.cpus.len(), placement.cost.numa),
                            (n, n.div_ceil(8))
                        );
                    }
                    Err(refusal) => assert!(!fits, "{n} of {free}: {refusal}"),
                }
            }
        }
    }
}

/// Repacking moves owners before a request is refused.
#[test]
fn owners_move_before_a_request_is_refused() {
    let placer = Placer::new(&eights(2));
    let owner = |list: &str| Owner {
        cpus: cpus(list),
        movable: Some(Request {
            cpus: 0,
            ..Request::default()
        }),
        ..Owner::default()
    };
    let (owners, free) = ([owner("0-3"), owner("8-11")], cpus("4-7,12-15"));
    assert!(placer.place_as(&free, &fewest(8)).is_err());
    let repacking = placer.repack(&free, &owners, &fewest(8), 1).unwrap();
    assert_eq!(
        (repacking.moves.len(), repacking.placement.cost.numa),
        (1, 1)
    );
    assert_eq!(placer.repack(&free, &owners, &fewest(4), 1), None, "fits");
    // An owner that wants the fewest NUMA nodes is not moved to more NUMA nodes.
    let strict = |list: &str| Owner {
        movable: Some(fewest(0)),
        ..owner(list)
    };
    let repacking = placer
        .repack(&free, &[strict("0-3"), strict("8-11")], &fewest(8), 1)
        .unwrap();
    assert_eq!(placer.cost(&repacking.moves[0].to.cpus).numa, 1);
    assert_eq!(
        placer.repack(
            &cpus("0-2,8-10"),
            &[owner("3-7"), owner("11-15")],
            &fewest(6),
            2
        ),
        None
    );
}
