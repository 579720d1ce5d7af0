//! Reserved CPUs, memory, init containers, and the CPUs on offer.

use super::*;

#[test]
fn default_reserved_cpus_are_a_core_that_nobody_owns() {
    let topology = machine();
    let reserved = |owned: &str| default_reserved(&topology, &set(owned)).to_string();
    // Each core has two CPUs with adjacent numbers.
    let core = |number: u32| topology.core_of(2 * number);
    assert_eq!(reserved(""), core(0).to_string());
    assert_eq!(reserved(&core(0).to_string()), core(1).to_string());
    let half = core(0).first().unwrap().to_string();
    assert_eq!(
        reserved(&half),
        core(1).to_string(),
        "a whole core before a part of a lower one"
    );
    let rest = topology
        .online
        .difference(&core(1))
        .union(&set(&core(1).first().unwrap().to_string()));
    assert_eq!(
        reserved(&rest.to_string()),
        core(1).iter().last().unwrap().to_string()
    );
    assert_eq!(
        reserved(&topology.online.to_string()),
        "",
        "every CPU is owned"
    );
}

#[test]
fn default_reserved_cpus_are_balanced_by_the_kernel() {
    // Cores are pairs of adjacent CPUs.
    let reserved = |isolated: &str, owned: &str| {
        let topology = Topology {
            isolated: set(isolated),
            ..machine()
        };
        default_reserved(&topology, &set(owned)).to_string()
    };
    assert_eq!(reserved("0-7", ""), "8-9");
    assert_eq!(reserved("0-3,6-15", ""), "4-5");
    assert_eq!(
        reserved("0-14", ""),
        "15",
        "a part of a core before isolated CPUs"
    );
    assert_eq!(
        reserved("0-2,8-15", ""),
        "4-5",
        "a whole balanced core before a lower part"
    );
    assert_eq!(reserved("0-7", "8-9"), "10-11");
    assert_eq!(reserved("0-7", "8-14"), "15");
    assert_eq!(
        reserved("0-7", "8-15"),
        "0-1",
        "every balanced CPU is owned"
    );
    assert_eq!(reserved("0-15", ""), "0-1", "no CPU is balanced");
}

#[test]
fn one_balanced_cpu_stays_shared_beside_isolated_reserved_cpus() {
    let topology = Topology {
        isolated: set("0-7"),
        ..machine()
    };
    let decided = |reserved: &str, cpus: u64| {
        let node = TestNode::new(topology.clone(), set(reserved));
        let pods = recognized([app("a", cpus)]);
        let inputs = node.input(&pods);
        decide(&inputs, &Ledger::default()).desired.shared()
    };
    // The administrator reserves isolated CPUs. All other pods would run unbalanced without the
    // eighth CPU.
    assert_eq!(
        decided("0-1", 8).intersection(&topology.balanced()).len(),
        1
    );
    assert_eq!(decided("0-1", 13).len(), 3);
    assert_eq!(
        decided("0-1", 14),
        topology.online,
        "the last balanced CPU is not for sale"
    );
    // A shared balanced CPU is enough.
    assert_eq!(decided("8", 15), set("8"));
}

/// The machine of these tests with a third NUMA node, and with memory in GiB.
fn with_memory(memory: [u64; 3]) -> Topology {
    let mut topology = machine();
    topology.numa.push(NumaNode {
        id: 8,
        cpus: CpuSet::new(),
        memory_bytes: None,
        distances: Vec::new(),
    });
    for (numa, gib) in topology.numa.iter_mut().zip(memory) {
        numa.memory_bytes = Some(gib << 30);
    }
    topology
}

/// The NUMA nodes for the memory of each container.
fn memory(decisions: &Decisions) -> Vec<Option<String>> {
    let memory = decisions.containers.iter().map(|one| &one.memory);
    memory
        .map(|numa| numa.as_ref().map(CpuSet::to_string))
        .collect()
}

#[test]
fn memory_follows_cpus_to_numa_nodes_with_memory() {
    let owners = ledger(&[
        ("a", "main", "6-9"),
        ("b", "main", "10-11"),
        ("c", "main", "2-3"),
    ]);
    let pods = [app("a", 4), app("b", 2), app("c", 2)];
    let on = |gib| memory(&decided_on(&with_memory(gib), &pods, &owners));
    let words = |texts: [&str; 3]| texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
    assert_eq!(on([4, 4, 0]), words(["0-1", "1", "0"]));
    assert_eq!(
        on([4, 0, 4]),
        words(["0,8", "", "0,8"]),
        "NUMA node 1 has no memory"
    );
    assert_eq!(
        on([4, 4, 4]),
        words(["0-1,8", "1,8", "0,8"]),
        "NUMA node 8 has only memory"
    );
    assert_eq!(
        on([4, 0, 0]),
        [None, None, None],
        "there is nothing to choose"
    );
}

#[test]
fn memory_comes_only_from_numa_nodes_that_the_pods_may_use() {
    let topology = with_memory([4, 4, 4]);
    let pods = recognized([app("a", 4), app("b", 2)]);
    let inputs = |memory_nodes: &str| {
        let mut node = TestNode::new(topology.clone(), set("0-1"));
        node.memory_nodes = set(memory_nodes);
        let inputs = node.input(&pods);
        let owners = ledger(&[("a", "main", "6-9"), ("b", "main", "10-11")]);
        memory(&decide(&inputs, &owners))
    };
    let words = |texts: [&str; 2]| texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
    assert_eq!(inputs("0-1,8"), words(["0-1,8", "1,8"]));
    assert_eq!(inputs("0-1"), words(["0-1", "1"]));
    assert_eq!(inputs("0,8"), words(["0,8", ""]), "NUMA node 1 is withheld");
}

#[test]
fn the_last_shared_cpu_is_never_assigned() {
    let topology = machine();
    let pods = recognized([app("a", topology.online.len() as u64 - 1), app("b", 1)]);
    // The configured reserved CPU is offline.
    let node = TestNode::new(topology.clone(), set("1000"));
    let here = ["a", "b"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        ..node.input(&pods)
    };
    let decisions = decide(&inputs, &Ledger::default());
    let owned: Vec<usize> = decisions
        .containers
        .iter()
        .map(|one| one.cpus.as_ref().map_or(0, CpuSet::len))
        .collect();
    assert_eq!(owned, [topology.online.len() - 1, 0]);
    assert_eq!(decisions.desired.shared().len(), 1);
}

#[test]
fn init_containers_leave_the_cpus_of_existing_containers_of_the_pod() {
    use crate::host::cgroup::{ContainerCgroup, PodCgroup};
    use crate::pin::Scan;
    use ContainerKind::{App, Init, Sidecar};

    let beside = |main: u64, existing: &[&str]| {
        let containers = [
            ("fetch", Init, 1000),
            ("side", Sidecar, 2000),
            ("late", Init, 1000),
            ("main", App, main),
        ];
        let mut pod = pod("a", &containers);
        for container in &mut pod.containers {
            container.runtime_id = Some(container.name.clone());
        }
        let pods = [pod];
        let cgroups = existing.iter().map(|name| ContainerCgroup {
            id: (*name).to_owned(),
            ..ContainerCgroup::default()
        });
        let cgroup = PodCgroup {
            uid: "a".to_owned(),
            containers: cgroups.collect(),
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![cgroup],
            ..Scan::default()
        };
        let (observed, _) = Observed::new(scan, &recognized(pods.clone()));
        let mut decisions = decided(&pods, &Ledger::default());
        decisions.keep_init_containers_off_others(&recognized(pods), &observed);
        let own = decisions.desired.assignment("a");
        let late = &decisions.containers[2];
        (own, late.cpus.clone(), late.entitlement.clone())
    };
    let (own, late, _) = beside(4000, &["fetch"]);
    assert_eq!(late, Some(own.usable()), "nobody owns CPUs yet");
    let (own, late, _) = beside(4000, &["side"]);
    assert_eq!(late.as_ref(), own.containers.get("main"));
    let (own, late, entitlement) = beside(500, &["side", "late"]);
    assert_eq!((own.usable().len(), late), (2, None));
    let Entitlement::Shared { reason, .. } = entitlement else {
        panic!("{entitlement:?}");
    };
    assert!(reason.contains("already exist"), "{reason}");
    // The CPUs of a container that has not come yet are free to use.
    let (own, late, _) = beside(500, &["late"]);
    assert_eq!(late, Some(own.usable()));
}

#[test]
fn only_cpus_on_offer_are_assigned_and_one_of_them_stays_shared() {
    let mut ledger = Ledger {
        offered: Some(set("4-11")),
        ..Ledger::default()
    };
    // The reserved core 0-1 is not on offer, so another CPU stays shared.
    let decisions = decided(&[app("a", 6), app("b", 1), app("c", 1)], &ledger);
    let desired = &decisions.desired;
    assert!(desired.exclusive().is_subset(&set("4-11")));
    assert_eq!((desired.exclusive().len(), desired.shared().len()), (7, 1));
    assert!(desired.shared().is_subset(&set("4-11")));
    assert_eq!(desired.withheld, set("0-3,12-15"));
    assert_eq!(cpus(&decisions)[2], "shared");
    // An assignment from before the limit stays, and gives up the CPUs outside first.
    ledger.add_if_missing("a", "main", &set("2-7"));
    let decisions = decided(&[app("a", 6)], &ledger);
    assert_eq!(cpus(&decisions), ["2-7"]);
    assert_eq!(decisions.desired.shared(), set("8-11"));
    let decisions = decided(&[app("a", 3)], &ledger);
    assert!(decisions.desired.exclusive().is_subset(&set("4-7")));
}

#[test]
fn a_pod_with_too_few_cpus_on_offer_gets_none() {
    let ledger = Ledger {
        offered: Some(set("2-5")),
        ..Ledger::default()
    };
    let decisions = decided(&[app("a", 4)], &ledger);
    assert_eq!(cpus(&decisions), ["shared"]);
    assert_eq!(decisions.containers[0].refused, Some(RefusalSource::Room));
}

/// Decides about pods on the machine of these tests, on which at least `minimum` CPUs stay shared.
fn leaving(minimum: &str, pods: &[Pod], ledger: &Ledger) -> Decisions {
    let mut node = TestNode::new(machine(), set("0-1"));
    node.shared_minimum = minimum.parse().unwrap();
    let pods = recognized(pods.iter().cloned());
    decide(&node.input(&pods), ledger)
}

fn single(uid: &str, cpus: u64) -> Pod {
    let mut pod = app(uid, cpus);
    let cores = ("pinfold.io/cores".to_owned(), "single".to_owned());
    pod.annotations.extend([cores]);
    pod
}

#[test]
fn enough_cpus_stay_with_everybody_else() {
    let none = Ledger::default();
    for (minimum, cpus, given) in [
        ("0", 14, true),
        ("2", 14, true),
        ("3", 14, false),
        ("25%", 12, true),
        ("25%", 13, false),
        ("100%", 1, false),
        ("4000000000", 1, false),
    ] {
        let decisions = leaving(minimum, &[app("a", cpus)], &none);
        let one = &decisions.containers[0];
        assert_eq!(
            one.cpus.is_some(),
            given,
            "{minimum} {cpus}: {:?}",
            one.note
        );
        assert_eq!(one.refused, (!given).then_some(RefusalSource::Room));
    }
    let decisions = leaving("25%", &[app("a", 13)], &none);
    let note = "stays in the shared pool: 13 CPUs would leave 3 to everybody else, and at least 4 must stay shared \
                (sharedMinimum is 25%); a container of 12 CPUs would fit";
    assert_eq!(decisions.containers[0].note.as_deref(), Some(note));
}

/// The note of an only container with so many CPUs, on a machine whose CPUs 0-1 are reserved, of 16.
fn note_of(minimum: &str, pod: Pod) -> String {
    let decisions = leaving(minimum, &[pod], &Ledger::default());
    decisions.containers[0].note.clone().unwrap_or_default()
}

/// A number that the note calls free is one that can be asked for.
#[test]
fn the_minimum_is_the_reason_wherever_it_is_what_limits() {
    let note = note_of("4", app("a", 15));
    let reason = "15 CPUs would leave 1 to everybody else, and at least 4 must stay shared (sharedMinimum is 4); a container of \
                  12 CPUs would fit";
    assert!(note.ends_with(reason), "{note}");
    assert_eq!(note_of("4", app("a", 12)), "");
    // Fewer CPUs are free than the minimum allows.
    let note = note_of("2", app("a", 15));
    assert!(
        note.ends_with("too few free CPUs: 15 wanted, 14 free"),
        "{note}"
    );
    // A core for each CPU.
    let note = note_of("6", single("a", 8));
    let reason = "8 CPUs and 8 idle siblings would leave 0 to everybody else, and at least 6 must stay shared (sharedMinimum is 6); \
                  a container of 5 CPUs would fit";
    assert!(note.ends_with(reason), "{note}");
    assert_eq!(note_of("6", single("a", 5)), "");
    let note = note_of("0", single("a", 8));
    assert!(note.contains("too few entirely free cores"), "{note}");
    let note = note_of("100%", app("a", 1));
    assert!(note.ends_with("(sharedMinimum is 100%)"), "{note}");
    // A container that grows is told how many more it can get.
    let owners = ledger(&[("a", "main", "2-5")]);
    let decisions = leaving("4", &[app("a", 16)], &owners);
    let note = decisions.containers[0].note.clone().unwrap();
    assert!(
        note.starts_with("keeps the 4 CPUs") && note.ends_with("8 more would fit"),
        "{note}"
    );
}

#[test]
fn idle_siblings_count_as_taken() {
    let pods: Vec<Pod> = (0..7)
        .map(|number| single(&format!("p{number}"), 1))
        .collect();
    let shared = |minimum: &str| {
        let decisions = leaving(minimum, &pods, &Ledger::default());
        let given = decisions.containers.iter();
        let given = given.filter(|one| one.cpus.is_some()).count();
        let note = decisions.containers.last().unwrap().note.clone();
        (given, decisions.desired.shared().len(), note)
    };
    assert_eq!(shared("0"), (7, 2, None));
    let (given, left, note) = shared("6");
    assert_eq!((given, left), (5, 6));
    assert!(
        note.unwrap()
            .contains("1 CPU and an idle sibling would leave 4 to everybody else"),
    );
    // An odd minimum leaves one more, because a core is taken whole.
    assert_eq!(shared("5").1, 6);
}

#[test]
fn what_runs_stays_when_the_minimum_grows() {
    let owners = ledger(&[("a", "main", "2-13")]);
    let decisions = leaving("50%", &[app("a", 12), app("b", 1)], &owners);
    assert_eq!(cpus(&decisions), ["2-13", "shared"]);
    // A resize gets no more, and a smaller limit gives back.
    let decisions = leaving("50%", &[app("a", 14)], &owners);
    let note = decisions.containers[0].note.as_deref().unwrap();
    assert!(note.starts_with("keeps the 12 CPUs that it has"), "{note}");
    assert_eq!(cpus(&leaving("50%", &[app("a", 8)], &owners)), ["2-9"]);
}

/// The withheld CPUs are for others, so the share is one of those that pods can use.
#[test]
fn a_share_is_one_of_the_cpus_that_pods_can_use() {
    let ledger = Ledger {
        offered: Some(set("0-7")),
        ..Ledger::default()
    };
    let given = |cpus| {
        leaving("50%", &[app("a", cpus)], &ledger).containers[0]
            .cpus
            .is_some()
    };
    assert_eq!([given(4), given(5)], [true, false]);
}

#[test]
fn no_container_moves_for_one_that_the_minimum_refuses() {
    let owners = ledger(&[("a", "main", "2-5"), ("b", "main", "8")]);
    let pods = recognized([app("a", 4), app("b", 1), single("c", 4)]);
    let moved = |minimum: &str| {
        let mut node = TestNode::new(machine(), set("0-1"));
        node.preferences.movable = true;
        node.shared_minimum = minimum.parse().unwrap();
        let input = DecisionInput {
            moves: 2,
            ..node.input(&pods)
        };
        !decide(&input, &owners).moves.is_empty()
    };
    assert_eq!([moved("0"), moved("50%")], [true, false]);
}

/// Also once its policy is `none`, and Pinfold chooses.
#[test]
fn no_container_leaves_the_cpus_that_the_kubelet_chose() {
    let mut owners = ledger(&[("a", "main", "2-5"), ("b", "main", "8")]);
    let pods = recognized([app("a", 4), app("b", 1), single("c", 4)]);
    let mut node = TestNode::new(machine(), set("0-1"));
    node.preferences.movable = true;
    node.shared_minimum = "0".parse().unwrap();
    let input = DecisionInput {
        moves: 2,
        ..node.input(&pods)
    };
    assert!(!decide(&input, &owners).moves.is_empty());
    for assignment in owners.assignments.values_mut() {
        assignment.by_kubelet.insert("main".to_owned());
    }
    assert!(decide(&input, &owners).moves.is_empty());
}

/// How many CPUs a node without pods promises to give.
fn assignable(node: &TestNode) -> usize {
    assignable_beside(node, &CpuSet::new())
}

/// The same where other programs hold some CPUs.
fn assignable_beside(node: &TestNode, held_by_others: &CpuSet) -> usize {
    use crate::pod::{Capacity, CapacityInput};

    let none = CpuSet::new();
    let capacity = Capacity::new(&CapacityInput {
        online: &node.topology.online,
        withheld: &none,
        held_by_others,
        lost: &none,
        reserved: &node.reserved,
        isolated: &node.topology.isolated,
        cores: &node.topology.cores(),
        preference: node.preferences.cores,
        single_cores: true,
        shared_minimum: node.shared_minimum,
        owned: &none,
        idle: &none,
    });
    capacity.assignable
}

/// What `doctor` and `status` promise is what pods get.
#[test]
fn the_capacity_is_what_decisions_give() {
    use crate::cpu::Cores;

    for (preference, each) in [(Cores::Preferred, 1), (Cores::Whole, 2), (Cores::Single, 1)] {
        for minimum in ["0", "5%", "3", "25%", "30%", "7", "99%", "100%"] {
            let mut node = TestNode::new(machine(), set("0-1"));
            node.shared_minimum = minimum.parse().unwrap();
            node.preferences.cores = preference;
            let pods = recognized((0..16).map(|number| app(&format!("p{number}"), each)));
            for held in ["", "8-11", "1,15", "0-1"] {
                let ledger = Ledger {
                    excluded: set(held),
                    held_by_others: set(held),
                    ..Ledger::default()
                };
                let decisions = decide(&node.input(&pods), &ledger);
                let given = decisions.containers.iter();
                let given = given.filter_map(|one| one.cpus.as_ref());
                let given: usize = given.map(CpuSet::len).sum();
                assert_eq!(
                    assignable_beside(&node, &ledger.held_by_others),
                    given,
                    "{preference:?} {minimum} {held}"
                );
            }
        }
    }
}

/// Also where the kernel balances load on none of the reserved CPUs.
#[test]
fn the_capacity_leaves_a_balanced_cpu_shared() {
    for isolated in ["", "0-1", "0-13", "2-3", "0-15"] {
        let topology = Topology {
            isolated: set(isolated),
            ..machine()
        };
        let node = TestNode::new(topology, set("0-1"));
        let pods = recognized((0..16).map(|number| app(&format!("p{number}"), 1)));
        let decisions = decide(&node.input(&pods), &Ledger::default());
        let given = decisions.containers.iter();
        let given = given.filter(|one| one.cpus.is_some()).count();
        assert_eq!(assignable(&node), given, "isolated {isolated:?}");
    }
}
