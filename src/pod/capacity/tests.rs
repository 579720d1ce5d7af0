use super::*;
use crate::cpu::{Numbering, Shape, Topology, TopologyFacts};

/// A machine of one socket, its reserved core, and the node's settings.
struct TestNode {
    topology: Topology,
    withheld: CpuSet,
    lost: CpuSet,
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
        withheld: CpuSet::new(),
        lost: CpuSet::new(),
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
            withheld: &self.withheld,
            held_by_others: &CpuSet::new(),
            lost: &self.lost,
            reserved: &self.reserved,
            isolated: &self.topology.isolated,
            cores: &self.topology.cores(),
            preference: self.preference,
            single_cores: true,
            shared_minimum: self.minimum,
            owned: &self.owned,
            idle: &self.idle,
        })
    }

    fn reserving(&self, millicores: u64) -> CapacityFinding {
        self.reserving_in(millicores, AllocatableSource::Node)
    }

    fn reserving_in(&self, millicores: u64, source: AllocatableSource) -> CapacityFinding {
        let online = u64::try_from(self.topology.online.len()).unwrap() * 1000;
        self.capacity().compare(Some(&Allocatable {
            millicores: online.saturating_sub(millicores),
            capacity: Some(online),
            source,
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
    let finding = machine.reserving(0);
    assert_eq!(finding.kubelet_reserve, Some(34));
    assert!(
        finding
            .sentence
            .contains("2 of them reserved, one CPU of each core)"),
        "{}",
        finding.sentence
    );
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
    machine.withheld = "8-15".parse().unwrap();
    assert_eq!(
        (machine.capacity().cpus, machine.capacity().assignable),
        (8, 6)
    );
    // The kubelet counts the withheld CPUs, too.
    assert_eq!(machine.reserving(2000).kubelet_reserve, Some(10));
    // No reserved CPU is on offer, so another CPU stays shared.
    machine.withheld = "0-7".parse().unwrap();
    assert_eq!(
        (machine.capacity().reserved, machine.capacity().assignable),
        (0, 7)
    );
    machine.withheld = machine.topology.online.clone();
    assert_eq!(machine.capacity().assignable, 0);
    let mut machine = node(8, 2);
    (machine.owned, machine.idle) = ("2,4,6".parse().unwrap(), "3,5,7".parse().unwrap());
    let capacity = machine.capacity();
    assert_eq!((capacity.assignable, capacity.assignable_now), (14, 11));
    // What containers own now counts, even if they would not get it now.
    (machine.owned, machine.idle) = ("0-15".parse().unwrap(), CpuSet::new());
    assert_eq!(machine.capacity().assignable_now, 16);
}

/// The kubelet's reserve must not follow the pods that run: after their end, nobody could use what it took.
#[test]
fn the_reserve_does_not_change_with_the_pods_that_run() {
    let mut machine = node(32, 2);
    machine.owned = (2..32).map(|core| 2 * core).collect();
    machine.idle = (2..32).map(|core| 2 * core + 1).collect();
    assert_eq!(machine.capacity().assignable_now, 31);
    assert_eq!(machine.reserving(0).kubelet_reserve, Some(3));
    // With that reserve, only the pods are to blame.
    let finding = machine.reserving(3000);
    assert_eq!(
        (finding.promises_too_much, finding.kubelet_reserve),
        (Some(true), None)
    );
    assert!(
        finding.sentence.contains(
            "; with the pods here, only 31, because of 30 idle siblings: pods that find no free"
        ),
        "{}",
        finding.sentence
    );
    let remedy = finding.remedy.unwrap();
    for part in [
        "don't let the kubelet reserve more",
        "cpus.cores: single",
        "policy.singleCores: false",
        "topology spread constraint",
    ] {
        assert!(remedy.contains(part), "{remedy}");
    }
    assert_eq!(machine.reserving(33_000).promises_too_much, Some(false));
    // Parts of cores, on a node that gives whole ones.
    let mut machine = node(8, 2);
    machine.preference = Cores::Whole;
    machine.owned = "2,4,6".parse().unwrap();
    let finding = machine.reserving(2000);
    let remedy = finding.remedy.unwrap();
    assert!(
        finding
            .sentence
            .contains("because of 3 CPUs on partly owned cores")
            && remedy.contains("pinfold.io/cores: whole")
            && finding.kubelet_reserve.is_none(),
        "{} {remedy}",
        finding.sentence
    );
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
            (capacity.assignable_now, capacity.fragments),
            (assignable, fragments)
        );
    }
    machine.preference = Cores::Whole;
    let words = machine.capacity().in_words();
    assert!(words.contains("2 CPUs on partly owned cores"), "{words}");
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
                for reserve in [reserve, reserve - 500, reserve - 900] {
                    let after = machine.reserving(reserve);
                    assert_eq!((after.promises_too_much, after.remedy), (Some(false), None));
                }
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
        "the scheduler counts 40 CPUs (the Node's allocatable), but 38 of 40 CPUs can be exclusive (at least 2 stay shared, 1 of \
         them reserved): pods that find no free CPUs stay on shared ones"
    );
    assert_eq!(
        finding.remedy.unwrap(),
        "let the kubelet reserve 2 CPUs instead of 0: either systemReserved: {cpu: \"1500m\"}, with no cpu in kubeReserved and no \
         reservedSystemCPUs (half a CPU is left to DaemonSets), or reservedSystemCPUs: \"0-1\"; then restart it on the drained node"
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
        remedy.contains(
            "3 CPUs instead of 2: reservedSystemCPUs: \"0-3\" (4 CPUs, so that no core is divided);"
        ),
        "{remedy}"
    );
    assert!(!remedy.contains("kubeReserved"), "{remedy}");
}

/// Guides say that Pinfold should reserve the CPUs in the kubelet's list. Idle siblings in it would be taken twice.
#[test]
fn a_list_is_named_only_if_pinfold_can_reserve_the_same() {
    for (cores, threads) in [(2, 1), (3, 2), (10, 4), (40, 1), (32, 2), (64, 4)] {
        for preference in [Cores::Preferred, Cores::Whole, Cores::Single] {
            for minimum in ["0", "5%", "3", "40%"] {
                let mut machine = node(cores, threads);
                (machine.preference, machine.minimum) = (preference, minimum.parse().unwrap());
                let capacity = machine.capacity();
                let Some(list) = capacity.system_cpus else {
                    continue;
                };
                machine.reserved = list.clone();
                let reserve = u64::try_from(list.len()).unwrap() * 1000;
                let after = machine.reserving(reserve);
                assert_eq!(
                    after.remedy, None,
                    "{cores} {threads} {preference:?} {minimum}"
                );
            }
        }
    }
    assert!(node(32, 2).capacity().system_cpus.is_some());
    let mut machine = node(32, 2);
    machine.preference = Cores::Single;
    // The kubelet would ignore the amount beside a list, which it may have without our knowledge.
    let amount = "systemReserved: {cpu: \"33500m\"}, with no cpu in kubeReserved and no reservedSystemCPUs (";
    for source in [
        AllocatableSource::Node,
        AllocatableSource::ReservedSystemCpus,
    ] {
        let remedy = machine.reserving_in(2000, source).remedy.unwrap();
        assert!(
            remedy.contains(amount) && !remedy.contains("reservedSystemCPUs: "),
            "{remedy}"
        );
    }
}

/// The reserve stays after the reboot that brings the CPUs back, so it must not count them.
#[test]
fn lost_cpus_ask_for_a_reboot_and_for_no_reserve() {
    let mut machine = node(40, 1);
    machine.lost = "38-39".parse().unwrap();
    let finding = machine.reserving(1500);
    assert_eq!(
        (finding.promises_too_much, finding.kubelet_reserve),
        (Some(true), None)
    );
    assert!(
        finding
            .sentence
            .contains("36 of 40 CPUs can be exclusive (2 lost, at least 2 stay shared"),
        "{}",
        finding.sentence
    );
    let reboot =
        "drain and reboot the node, which alone brings the 2 CPUs back that the kernel has lost";
    assert_eq!(finding.remedy.unwrap(), reboot);
    // The reboot would not be enough.
    let finding = machine.reserving(0);
    assert_eq!(finding.kubelet_reserve, Some(2));
    let remedy = finding.remedy.unwrap();
    let both = format!("{reboot}; and let the kubelet reserve 2 CPUs instead of 0: either");
    assert!(
        remedy.starts_with(&both) && remedy.contains("reservedSystemCPUs: \"0-1\""),
        "{remedy}"
    );
    // One lost thread costs a whole core.
    let mut machine = node(32, 2);
    (machine.preference, machine.minimum) = (Cores::Whole, SharedMinimum::Cpus(0));
    machine.lost = "3".parse().unwrap();
    let finding = machine.reserving(2000);
    assert_eq!(
        (finding.kubelet_reserve, finding.promises_too_much),
        (None, Some(true))
    );
    machine.preference = Cores::Single;
    machine.lost = "2-3".parse().unwrap();
    assert_eq!(machine.reserving(32_000).kubelet_reserve, Some(33));
    // Nothing is left without the lost ones.
    let mut machine = node(4, 1);
    machine.lost = "1-3".parse().unwrap();
    assert_eq!(machine.capacity().assignable, 0);
    let remedy = machine.reserving(1000).remedy.unwrap();
    assert!(remedy.starts_with("drain and reboot"), "{remedy}");
}

/// Where only isolated CPUs are reserved, decisions leave another one shared.
#[test]
fn a_balanced_cpu_stays_shared_beside_isolated_reserved_ones() {
    let mut machine = node(8, 1);
    machine.topology.isolated = "1-7".parse().unwrap();
    machine.reserved = "1".parse().unwrap();
    let capacity = machine.capacity();
    assert_eq!((capacity.assignable, capacity.shared_minimum), (6, 2));
    assert_eq!(machine.reserving(1000).kubelet_reserve, Some(2));
    // If all are isolated, none is better than another.
    machine.topology.isolated = "0-7".parse().unwrap();
    assert_eq!(machine.capacity().assignable, 7);
}

#[test]
fn a_node_that_can_give_none_says_why() {
    let remedy = |machine: &TestNode| {
        let finding = machine.reserving(0);
        assert_eq!(finding.kubelet_reserve, None);
        assert!(!finding.sentence.contains("single"), "{}", finding.sentence);
        finding.remedy.unwrap()
    };
    // One thread of the only core could be given.
    let one_core = remedy(&node(1, 2));
    assert!(one_core.contains("(reserved, sharedMinimum)"), "{one_core}");
    let mut machine = node(4, 1);
    machine.minimum = SharedMinimum::Cpus(4);
    assert!(remedy(&machine).contains("(reserved, sharedMinimum)"));
    // A smaller share would do, whatever is withheld.
    machine.withheld = "3".parse().unwrap();
    assert!(remedy(&machine).contains("(reserved, sharedMinimum)"));
    let one_cpu = remedy(&node(1, 1));
    assert!(one_cpu.contains("this node has too few CPUs"), "{one_cpu}");
    machine.withheld = "1-3".parse().unwrap();
    let withheld = remedy(&machine);
    assert!(
        withheld.contains("let pods use more CPUs of the node"),
        "{withheld}"
    );
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
    assert!(nothing.remedy.unwrap().contains("training pods off it"));
}
