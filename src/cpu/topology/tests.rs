use proptest::prelude::*;

use super::*;
use crate::cpu::MAX_CPU;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn sets(lists: &[&str]) -> Vec<CpuSet> {
    lists.iter().map(|list| set(list)).collect()
}

fn numa(id: u32, list: &str) -> NumaNode {
    NumaNode {
        id,
        cpus: set(list),
        memory_bytes: None,
        distances: Vec::new(),
    }
}

const TWO_SOCKETS: Shape = Shape {
    sockets: 2,
    numa_per_socket: 2,
    llcs_per_numa: 1,
    cores_per_llc: 2,
    threads_per_core: 2,
    numbering: Numbering::SiblingsLast,
};

#[test]
fn groups_are_counted_by_their_lowest_cpu_and_numa_nodes_keep_their_id() {
    let topology = Topology::from_facts(TopologyFacts {
        online: set("0-7"),
        cores: sets(&["3,7", "1,5", "0,4", "2,6"]),
        sockets: sets(&["1,3,5,7", "0,2,4,6"]),
        llcs: sets(&["0-7"]),
        numa: vec![numa(8, "1,3,5,7"), numa(0, "0,2,4,6"), numa(250, "")],
        ..TopologyFacts::default()
    });
    let of = |id: u32| topology.cpu(id).unwrap();
    assert_eq!(
        [0, 1, 2, 3, 4].map(|id| of(id).core),
        [Some(0), Some(1), Some(2), Some(3), Some(0)]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|id| of(id).socket),
        [Some(0), Some(1), Some(0), Some(1)]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|id| of(id).numa),
        [Some(0), Some(8), Some(0), Some(8)]
    );
    assert_eq!(
        topology.numa.iter().map(|n| n.id).collect::<Vec<_>>(),
        [0, 8, 250]
    );
    assert_eq!(topology.numa_nodes(), sets(&["0,2,4,6", "1,3,5,7"]));
    assert_eq!(topology.numa_of(&set("0-1")), Some(set("0,8")));
    assert_eq!(topology.numa_of(&set("2,4")), Some(set("0")));
    assert_eq!(topology.cpu(8), None);
}

#[test]
fn lists_are_cut_to_the_online_cpus() {
    let topology = Topology::from_facts(TopologyFacts {
        online: set("0-1,3"),
        offline: set("1-2"),
        cores: sets(&["0,2", "1,3", "2"]),
        numa: vec![numa(0, "0-87")],
        ..TopologyFacts::default()
    });
    assert_eq!(topology.offline, set("2"), "a CPU is not both on and off");
    assert_eq!(topology.cores(), sets(&["0", "1,3"]));
    assert_eq!(topology.numa[0].cpus, set("0-1,3"));
    assert_eq!(
        (
            topology.core_of(0),
            topology.core_of(3),
            topology.core_of(2)
        ),
        (set("0"), set("1,3"), set(""))
    );
}

#[test]
fn unknown_levels_of_a_topology_are_none_or_coarse() {
    let topology = Topology::from_facts(TopologyFacts {
        online: set("0-3"),
        cores: sets(&["0-1"]),
        ..TopologyFacts::default()
    });
    assert_eq!(
        topology.cores(),
        sets(&["0-1", "2", "3"]),
        "an unknown core is the CPU alone"
    );
    assert_eq!(topology.core_of(3), set("3"));
    for groups in [topology.llcs(), topology.numa_nodes(), topology.sockets()] {
        assert_eq!(groups, sets(&["0-3"]), "unknown groups are one");
    }
    assert_eq!(topology.numa_of(&set("0")), None);
    assert_eq!(topology.numa_of(&set("")), Some(set("")));
    assert_eq!(
        topology.numa_of(&set("9")),
        Some(set("")),
        "only online CPUs count"
    );
}

#[test]
fn cpus_without_a_group_are_one_group_beside_the_known_ones() {
    let topology = Topology::from_facts(TopologyFacts {
        online: set("0-5"),
        llcs: sets(&["1,3"]),
        ..TopologyFacts::default()
    });
    assert_eq!(topology.llcs(), sets(&["0,2,4-5", "1,3"]));
}

#[test]
fn lists_that_disagree_become_one_group() {
    let lists = sets(&["0-1", "2-3", "1-2", "4"]);
    let topology = Topology::from_facts(TopologyFacts {
        online: set("0-4"),
        cores: lists,
        ..TopologyFacts::default()
    });
    assert_eq!(topology.cores(), sets(&["0-3", "4"]));
}

#[test]
fn a_cpu_of_several_numa_nodes_counts_with_the_lowest() {
    let facts = TopologyFacts {
        online: set("0-1"),
        numa: vec![numa(1, "0-1"), numa(0, "0-1")],
        ..TopologyFacts::default()
    };
    assert_eq!(
        Topology::from_facts(facts).numa_of(&set("0-1")),
        Some(set("0"))
    );
}

#[test]
fn the_json_is_what_programs_read() {
    let mut facts = TopologyFacts {
        online: set("0-1"),
        offline: set("2"),
        cores: sets(&["0", "1"]),
        ..TopologyFacts::default()
    };
    facts.kinds = vec![
        (CoreKind::Performance, set("0")),
        (CoreKind::Efficiency, set("1")),
    ];
    facts.numa = vec![NumaNode {
        memory_bytes: Some(4096),
        distances: vec![10],
        ..numa(3, "0-1")
    }];
    let json = serde_json::to_string(&Topology::from_facts(facts)).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"online":"0-1","offline":"2","cpus":["#,
            r#"{"id":0,"core":0,"socket":null,"numa":3,"llc":null,"kind":"performance"},"#,
            r#"{"id":1,"core":1,"socket":null,"numa":3,"llc":null,"kind":"efficiency"}],"#,
            r#""numa":[{"id":3,"cpus":"0-1","memory_bytes":4096,"distances":[10]}]}"#,
        )
    );
}

#[test]
fn made_up_machines_number_their_cpus_as_real_ones_do() {
    let last = Topology::from_shape(TWO_SOCKETS);
    assert_eq!(
        last.cores(),
        sets(&["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"])
    );
    assert_eq!(last.sockets(), sets(&["0-3,8-11", "4-7,12-15"]));
    assert_eq!(
        last.numa_nodes(),
        sets(&["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"])
    );
    assert_eq!(last.llcs(), last.numa_nodes());
    assert_eq!(last.numa_of(&set("3,4")), Some(set("1-2")));

    let adjacent = Topology::from_shape(Shape {
        numbering: Numbering::SiblingsAdjacent,
        ..TWO_SOCKETS
    });
    assert_eq!(
        adjacent.cores(),
        sets(&["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"])
    );
    assert_eq!(adjacent.sockets(), sets(&["0-7", "8-15"]));
    assert_eq!(adjacent.llcs(), sets(&["0-3", "4-7", "8-11", "12-15"]));
}

#[test]
fn a_shape_without_cpus_or_with_too_many_is_no_trouble() {
    for none in [
        Shape {
            sockets: 0,
            ..TWO_SOCKETS
        },
        Shape {
            numa_per_socket: 0,
            ..TWO_SOCKETS
        },
        Shape {
            llcs_per_numa: 0,
            ..TWO_SOCKETS
        },
        Shape {
            cores_per_llc: 0,
            ..TWO_SOCKETS
        },
        Shape {
            threads_per_core: 0,
            ..TWO_SOCKETS
        },
    ] {
        let topology = Topology::from_shape(none);
        assert!(
            topology.online.is_empty() && topology.cpus.is_empty(),
            "{none:?}"
        );
    }
    let huge = Topology::from_shape(Shape {
        cores_per_llc: u32::MAX,
        threads_per_core: 3,
        ..TWO_SOCKETS
    });
    assert_eq!(huge.online, (0..=MAX_CPU).collect());
}

proptest! {
    /// For all lists, each kind of group is a partition of the online CPUs, and ids are dense.
    #[test]
    fn groups_partition_the_online_cpus(
        online in prop::collection::btree_set(0..40u32, 1..30),
        lists in prop::collection::vec(prop::collection::btree_set(0..45u32, 0..6), 0..20),
    ) {
        let online: CpuSet = online.into_iter().collect();
        let lists: Vec<CpuSet> = lists.into_iter().map(|l| l.into_iter().collect()).collect();
        let topology = Topology::from_facts(TopologyFacts {
            online: online.clone(),
            cores: lists.clone(),
            sockets: lists.clone(),
            llcs: lists.clone(),
            ..TopologyFacts::default()
        });
        for groups in [topology.cores(), topology.sockets(), topology.llcs(), topology.numa_nodes()] {
            let all = groups.iter().fold(CpuSet::new(), |all, group| all.union(group));
            prop_assert_eq!(&all, &online);
            prop_assert_eq!(groups.iter().map(CpuSet::len).sum::<usize>(), online.len());
        }
        let ids: CpuSet = topology.cpus.iter().filter_map(|cpu| cpu.core).collect();
        prop_assert_eq!(ids.len(), ids.iter().last().map_or(0, |last| last as usize + 1));
        for list in &lists {
            let list = list.intersection(&online);
            if let Some(first) = list.first() {
                prop_assert!(list.is_subset(&topology.core_of(first)));
            }
        }
        for cpu in online.iter() {
            prop_assert!(topology.cores().contains(&topology.core_of(cpu)));
        }
    }
}
