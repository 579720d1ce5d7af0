use super::*;
use crate::cpu::{Numbering, Shape, Topology, TopologyFacts};

/// A machine of one socket, its reserved core, and the node's settings.
struct TestNode {
    topology: Topology,
    available: CpuSet,
    reserved: CpuSet,
    preference: Cores,
    minimum: SharedMinimum,
    owned: CpuSet,
    idle: CpuSet,
}

fn node(cores: u32, threads: u32) -> TestNode {
    let topology = Topology::from_shape(Shape {
        sockets: 1,
        numa_per_socket: 1,
        llcs_per_numa: 1,
        cores_per_llc: cores,
        threads_per_core: threads,
        numbering: Numbering::SiblingsAdjacent,
    });
    on(topology)
}

fn on(topology: Topology) -> TestNode {
    TestNode {
        available: topology.online.clone(),
        reserved: topology.core_of(topology.online.first().unwrap_or_default()),
        topology,
        preference: Cores::Preferred,
        minimum: SharedMinimum::default(),
        owned: CpuSet::new(),
        idle: CpuSet::new(),
    }
}

impl TestNode {
    fn capacity(&self) -> Capacity {
        Capacity::new(&CapacityInput {
            online: &self.topology.online,
            offered: &self.topology.online,
            available: &self.available,
            reserved: &self.reserved,
            cores: &self.topology.cores(),
            preference: self.preference,
            single_cores: true,
            shared_minimum: self.minimum,
            owned: &self.owned,
            idle: &self.idle,
        })
    }

    fn reserving(&self, millicores: u64) -> CapacityFinding {
        let online = u64::try_from(self.topology.online.len()).unwrap() * 1000;
        self.capacity().compare(Some(&Allocatable {
            millicores: online.saturating_sub(millicores),
            capacity: Some(online),
            source: AllocatableSource::Node,
        }))
    }
}

#[test]
fn reserved_cpus_and_the_shared_minimum_are_not_given() {
    for (node, assignable, single) in [
        (node(40, 1), 38, None),
        (node(32, 2), 61, Some(30)),
        (node(4, 1), 3, None),
        (node(8, 4), 28, Some(7)),
        (node(2, 1), 1, None),
        // All CPUs are on one core, and the core is reserved.
        (node(1, 2), 0, Some(0)),
        (node(1, 1), 0, None),
    ] {
        let capacity = node.capacity();
        let cpus = node.topology.online.len();
        assert_eq!(
            (capacity.assignable, capacity.single),
            (assignable, single),
            "{cpus} CPUs"
        );
    }
}

#[test]
fn a_node_that_divides_no_core_gives_fewer_cpus() {
    let mut machine = node(32, 2);
    machine.preference = Cores::Whole;
    assert_eq!(machine.capacity().assignable, 60);
    machine.preference = Cores::Single;
    let capacity = machine.capacity();
    assert_eq!((capacity.assignable, capacity.single), (30, None));
    assert_eq!(machine.reserving(0).kubelet_reserve, Some(34));
}

#[test]
fn offline_siblings_make_a_core_smaller() {
    let topology = Topology::from_facts(TopologyFacts {
        online: "0-2,4,6-7".parse().unwrap(),
        offline: "3,5".parse().unwrap(),
        cores: ["0-1", "2-3", "4-5", "6-7"]
            .map(|cpus| cpus.parse().unwrap())
            .into(),
        ..TopologyFacts::default()
    });
    let capacity = on(topology).capacity();
    assert_eq!((capacity.assignable, capacity.single), (4, Some(3)));
}

#[test]
fn withheld_and_idle_cpus_are_not_given() {
    let mut machine = node(8, 2);
    machine.available = "0-7".parse().unwrap();
    assert_eq!(
        (machine.capacity().cpus, machine.capacity().assignable),
        (8, 6)
    );
    // The kubelet counts the withheld CPUs, too.
    assert_eq!(machine.reserving(2000).kubelet_reserve, Some(10));
    // No reserved CPU is on offer, so another CPU stays shared.
    machine.available = "8-15".parse().unwrap();
    assert_eq!(
        (machine.capacity().reserved, machine.capacity().assignable),
        (0, 7)
    );
    machine.available = CpuSet::new();
    assert_eq!(machine.capacity().assignable, 0);
    let mut machine = node(8, 2);
    (machine.owned, machine.idle) = ("2,4,6".parse().unwrap(), "3,5,7".parse().unwrap());
    assert_eq!(machine.capacity().assignable, 11);
    let finding = machine.reserving(2000);
    assert_eq!(finding.kubelet_reserve, Some(5));
    assert!(
        finding.sentence.contains("3 idle siblings"),
        "{}",
        finding.sentence
    );
    // What containers own now counts, even if they would not get it now.
    (machine.owned, machine.idle) = ("0-15".parse().unwrap(), CpuSet::new());
    assert_eq!(machine.capacity().assignable, 16);
}

/// Containers on parts of cores leave siblings that a node which gives only whole cores can't use.
#[test]
fn fragments_count_where_cores_are_not_shared() {
    let mut machine = node(8, 2);
    machine.owned = "2,4,6-7".parse().unwrap();
    for (preference, assignable, fragments) in [
        (Cores::Preferred, 14, 0),
        (Cores::Whole, 4 + 8, 2),
        (Cores::Single, 4 + 4, 2),
    ] {
        machine.preference = preference;
        let capacity = machine.capacity();
        assert_eq!(
            (capacity.assignable, capacity.fragments),
            (assignable, fragments)
        );
    }
    let words = machine.capacity().in_words();
    assert!(words.contains("2 on partly owned cores"), "{words}");
}

/// With what the remedy says, the same node has nothing to complain about.
#[test]
fn the_named_reserve_makes_both_numbers_agree() {
    for cores in [2, 3, 10, 40, 64, 200] {
        for threads in [1, 2, 4] {
            for minimum in ["0", "5%", "10%", "3", "100%"] {
                let mut machine = node(cores, threads);
                machine.minimum = minimum.parse().unwrap();
                let finding = machine.reserving(0);
                let Some(reserve) = finding.kubelet_reserve else {
                    assert_eq!(
                        machine.capacity().assignable,
                        0,
                        "{cores} {threads} {minimum}"
                    );
                    continue;
                };
                let reserve = u64::try_from(reserve).unwrap() * 1000;
                let after = machine.reserving(reserve);
                assert_eq!((after.promises_too_much, after.remedy), (Some(false), None));
                let less = machine.reserving(reserve - 1000);
                assert_eq!(
                    less.promises_too_much,
                    Some(true),
                    "{cores} {threads} {minimum}"
                );
            }
        }
    }
}

#[test]
fn the_finding_names_both_numbers_and_what_to_set() {
    let finding = node(40, 1).reserving(0);
    assert_eq!(
        finding.sentence,
        "the scheduler counts 40 CPUs (the Node's allocatable), but 38 of 40 CPUs can be exclusive (1 reserved, at least 2 \
         shared): pods that are sent here for the others run on shared ones"
    );
    assert_eq!(
        finding.remedy.unwrap(),
        "let the kubelet reserve 2 CPUs in place of 0: kubeReserved and systemReserved together, for example systemReserved: \
         {cpu: \"2\"} without a cpu in kubeReserved, or reservedSystemCPUs: \"0-1\", which replaces both; then restart it on the drained node"
    );
    // A part of a CPU is no CPU that a container could own.
    let finding = node(40, 1).reserving(1100);
    assert_eq!(
        (finding.promises_too_much, finding.remedy),
        (Some(false), None)
    );
    assert!(
        finding
            .sentence
            .starts_with("the scheduler counts 38.9 CPUs"),
        "{}",
        finding.sentence
    );
    let finding = node(40, 1).reserving(40_000);
    assert!(
        finding
            .sentence
            .contains("no pod that requests a whole CPU"),
        "{}",
        finding.sentence
    );
    let finding = node(40, 1).capacity().compare(None);
    assert_eq!(
        (finding.promises_too_much, finding.kubelet_reserve),
        (None, None)
    );
    assert!(
        finding.sentence.contains("are unknown here"),
        "{}",
        finding.sentence
    );
}

#[test]
fn a_list_of_cpus_is_named_for_a_kubelet_that_has_one() {
    let finding = node(32, 2).capacity().compare(Some(&Allocatable {
        millicores: 62_000,
        capacity: Some(64_000),
        source: AllocatableSource::ReservedSystemCpus,
    }));
    let remedy = finding.remedy.unwrap();
    assert!(
        remedy.contains("3 CPUs in place of 2: reservedSystemCPUs: \"0-3\" (4 CPUs);"),
        "{remedy}"
    );
    assert!(!remedy.contains("kubeReserved"), "{remedy}");
}

/// A kubelet counts the CPUs at its start, and a user may give any number.
#[test]
fn allocatable_may_be_more_than_the_cpus() {
    let given = |millicores, capacity| {
        node(4, 1).capacity().compare(Some(&Allocatable {
            millicores,
            capacity,
            source: AllocatableSource::Given,
        }))
    };
    for (millicores, capacity) in [
        (8000, Some(8000)),
        (100_000, None),
        (100_000, Some(1)),
        (u64::MAX, Some(u64::MAX)),
    ] {
        // After its restart, the kubelet counts the 4 that are online.
        let finding = given(millicores, capacity);
        assert_eq!(finding.kubelet_reserve, Some(1));
        assert!(
            finding.sentence.contains("more than are online"),
            "{}",
            finding.sentence
        );
    }
    assert_eq!(given(0, None).promises_too_much, Some(false));
    let nothing = node(1, 1).capacity().compare(Some(&Allocatable {
        millicores: 1000,
        capacity: None,
        source: AllocatableSource::Given,
    }));
    assert_eq!(nothing.kubelet_reserve, None);
    assert!(
        nothing
            .remedy
            .unwrap()
            .contains("training pods off this node")
    );
}
