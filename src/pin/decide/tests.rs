use super::*;
use crate::cpu::{NumaNode, Numbering, PlacementRefusal, Placer, Shape};
use crate::pod::{self, CpuPreferences, Policy, Resources};

/// 16 CPUs: 2 NUMA nodes of 4 cores with 2 threads each, siblings adjacent.
fn machine() -> Topology {
    Topology::from_shape(Shape {
        sockets: 2,
        numa_per_socket: 1,
        llcs_per_numa: 1,
        cores_per_llc: 4,
        threads_per_core: 2,
        numbering: Numbering::SiblingsAdjacent,
    })
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A worker whose containers have the given names, kinds and CPU limits in thousandths.
fn pod(uid: &str, containers: &[(&str, ContainerKind, u64)]) -> Pod {
    let container = |&(name, kind, cpu): &(&str, ContainerKind, u64)| Container {
        name: name.to_owned(),
        kind,
        resources: Resources {
            cpu_request: Some(cpu),
            cpu_limit: Some(cpu),
            memory_request: Some(1 << 20),
            memory_limit: Some(1 << 20),
        },
        ..Container::default()
    };
    Pod {
        namespace: "train".to_owned(),
        name: uid.to_owned(),
        uid: Some(uid.into()),
        labels: [(
            "training.kubeflow.org/replica-type".to_owned(),
            "worker".to_owned(),
        )]
        .into(),
        containers: containers.iter().map(container).collect(),
        ..Pod::default()
    }
}

fn app(uid: &str, cpus: u64) -> Pod {
    pod(uid, &[("main", ContainerKind::App, cpus * 1000)])
}

/// Each pod looks at all assignments, so pods without CPUs must not be among them.
#[test]
fn only_owners_have_an_assignment_while_pods_are_placed() {
    let topology = machine();
    let placer = Placer::new(&topology);
    let pods: Vec<Pod> = (0..40)
        .map(|number| app(&format!("p{number}"), 2))
        .collect();
    let (policy, preferences, devices) = (
        Policy::default(),
        CpuPreferences::default(),
        BTreeMap::new(),
    );
    let inputs = DecisionInput {
        topology: &topology,
        placer: &placer,
        memory_nodes: &topology.memory_nodes(),
        reserved: &set("0-1"),
        policy: &policy,
        preferences: &preferences,
        pods: &pods,
        here: None,
        devices: &devices,
        moves: 0,
        ids_settled: true,
        suspended: None,
    };
    let requests = pods.iter().enumerate();
    let requests: Vec<PodRequest<'_>> = requests
        .map(|(index, pod)| PodRequest::new(index, pod, &inputs))
        .collect();
    let mut placing = place::PlacementPass::new(&inputs, &Ledger::default(), &requests);
    for pod in &requests {
        placing.keep(pod);
    }
    assert!(placing.assignments.is_empty());
    for pod in &requests {
        placing.gain(pod);
    }
    assert_eq!((placing.assignments.len(), placing.notes.len()), (7, 33));
}

fn decided(pods: &[Pod], ledger: &Ledger) -> Decisions {
    decided_on(&machine(), pods, ledger)
}

fn decided_on(topology: &Topology, pods: &[Pod], ledger: &Ledger) -> Decisions {
    let placer = Placer::new(topology);
    let reserved = default_reserved(topology, &CpuSet::new());
    let policy = Policy::default();
    let here = ["a", "b", "c"].into();
    decide(
        &DecisionInput {
            topology,
            placer: &placer,
            memory_nodes: &topology.memory_nodes(),
            reserved: &reserved,
            policy: &policy,
            preferences: &CpuPreferences::default(),
            devices: &BTreeMap::new(),
            moves: 0,
            ids_settled: true,
            suspended: None,
            pods,
            here: Some(&here),
        },
        ledger,
    )
}

/// The pods in which every container owns CPUs.
fn whole(decisions: &Decisions) -> Vec<&str> {
    let pods = decisions.desired.pods.iter();
    pods.filter(|(_, plan)| plan.all_own_cpus)
        .map(|(uid, _)| uid.as_str())
        .collect()
}

fn ledger(claims: &[(&str, &str, &str)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (uid, name, cpus) in claims {
        ledger.add_if_missing(uid, name, &set(cpus));
    }
    ledger
}

fn cpus(decisions: &Decisions) -> Vec<String> {
    let list = |decision: &Decision| {
        decision
            .cpus
            .as_ref()
            .map_or_else(|| "shared".to_owned(), CpuSet::to_string)
    };
    decisions.containers.iter().map(list).collect()
}

#[test]
fn the_reserved_core_is_kept_and_the_rest_is_dealt() {
    let decisions = decided(&[app("a", 8), app("b", 6), app("c", 1)], &Ledger::default());
    assert_eq!(cpus(&decisions), ["8-15", "2-7", "shared"]);
    assert_eq!(decisions.desired.shared(), set("0-1"));
    assert!(
        decisions.containers[2]
            .note
            .as_deref()
            .unwrap()
            .contains("1 wanted, 0 free")
    );
    assert_eq!(whole(&decisions), ["a", "b"]);
}

#[test]
fn what_runs_stays_wherever_it_is() {
    // No placement would spread the CPUs like this, and CPU 0 is even reserved. Moving the container would be worse.
    let decisions = decided(
        &[app("b", 2), app("a", 3)],
        &ledger(&[("a", "main", "0,5,9")]),
    );
    assert_eq!(cpus(&decisions)[1], "0,5,9");
    assert!(
        decisions.containers[0]
            .cpus
            .as_ref()
            .unwrap()
            .is_disjoint(&set("0-1,5,9"))
    );
}

#[test]
fn a_stranger_keeps_its_claim() {
    let decisions = decided(&[app("a", 6)], &ledger(&[("gone", "main", "2-7")]));
    assert_eq!(
        decisions.desired.assignment("gone").containers["main"],
        set("2-7")
    );
    assert_eq!(cpus(&decisions), ["8-13"]);
}

#[test]
fn a_claim_that_is_owed_no_more_is_dropped() {
    let mut shared = app("a", 6);
    shared
        .annotations
        .insert(pod::CPUS_ANNOTATION.to_owned(), "shared".to_owned());
    let pods = [shared, app("b", 10)];
    let decisions = decided(&pods, &ledger(&[("a", "main", "8-13")]));
    assert!(decisions.desired.assignment("a").is_empty());
    // Pod `b` gets the CPUs only in the next pass, when no pod owns them.
    assert_eq!(cpus(&decisions), ["shared", "shared"]);
    assert_eq!(
        cpus(&decided(&pods, &Ledger::default()))[1]
            .parse::<CpuSet>()
            .unwrap()
            .len(),
        10
    );
}

#[test]
fn a_claim_grows_and_shrinks_where_it_is() {
    let held = ledger(&[("a", "main", "8-11")]);
    let grown = decided(&[app("a", 6)], &held);
    assert!(
        set("8-11").is_subset(grown.containers[0].cpus.as_ref().unwrap()),
        "{:?}",
        cpus(&grown)
    );
    assert_eq!(grown.containers[0].cpus.as_ref().unwrap().len(), 6);
    let shrunk = decided(&[app("a", 2)], &held);
    assert_eq!(cpus(&shrunk), ["8-9"]);
}

#[test]
fn pod_mates_share_a_core_rather_than_two_with_strangers() {
    let pair = pod(
        "a",
        &[
            ("one", ContainerKind::App, 1000),
            ("two", ContainerKind::App, 1000),
        ],
    );
    assert_eq!(cpus(&decided(&[pair], &Ledger::default())), ["2", "3"]);
}

#[test]
fn init_containers_run_inside_and_sidecars_count() {
    let mixed = pod(
        "a",
        &[
            ("fetch", ContainerKind::Init, 8000),
            ("proxy", ContainerKind::Sidecar, 1000),
            ("main", ContainerKind::App, 3000),
            ("log", ContainerKind::App, 500),
        ],
    );
    let decisions = decided(&[mixed], &Ledger::default());
    assert_eq!(cpus(&decisions), ["2-5", "2", "3-5", "shared"]);
    assert_eq!(decisions.desired.pods["a"].init_containers, ["fetch"]);
    // The pod's quota must still limit the shared container.
    assert!(whole(&decisions).is_empty());
}

#[test]
fn a_pod_that_fits_in_part_gets_a_part() {
    let two = pod(
        "a",
        &[
            ("big", ContainerKind::App, 12_000),
            ("small", ContainerKind::App, 4000),
        ],
    );
    let decisions = decided(&[two], &Ledger::default());
    assert_eq!(decisions.containers[0].cpus.as_ref().unwrap().len(), 12);
    assert_eq!(decisions.containers[1].cpus, None);
    assert!(decisions.containers[1].note.is_some());
}

#[test]
fn a_pod_whose_cgroup_cannot_be_found_takes_nothing() {
    let mut nameless = app("a", 2);
    nameless.uid = None;
    let decisions = decided(&[nameless], &Ledger::default());
    assert_eq!(cpus(&decisions), ["shared"]);
    assert!(
        decisions.containers[0]
            .note
            .as_deref()
            .unwrap()
            .contains("metadata.uid")
    );
    assert_eq!(decisions.desired.shared(), machine().online);
}

#[test]
fn a_pod_that_is_not_here_yet_takes_nothing() {
    let decisions = decided(&[app("later", 8), app("a", 8)], &Ledger::default());
    assert_eq!(cpus(&decisions), ["shared", "8-15"]);
    assert!(
        decisions.containers[0]
            .note
            .as_deref()
            .unwrap()
            .contains("when its first container exists")
    );
}

/// Pod `a` on two NUMA nodes with 6 and 4 free CPUs.
fn fewest(containers: &[(&str, ContainerKind, u64)], more: &[(&str, &str, &str)]) -> Decisions {
    let mut pod = pod("a", containers);
    pod.annotations
        .insert("pinfold.io/numa".to_owned(), "fewest".to_owned());
    decided(
        &[pod],
        &ledger(&[&[("gone", "main", "8-11")], more].concat()),
    )
}

#[test]
fn who_wants_the_fewest_numa_nodes_shares_rather_than_being_split() {
    let one = |cpus: u64| fewest(&[("main", ContainerKind::App, cpus * 1000)], &[]);
    assert_eq!(cpus(&one(6)), ["2-7"]);
    let refused = one(7);
    assert_eq!(cpus(&refused), ["shared"]);
    let note = "stays in the shared pool: 7 CPUs need 1 NUMA node, \
                and no NUMA node has more than 6 free CPUs: 6 on 0, 4 on 1";
    assert_eq!(refused.containers[0].note.as_deref(), Some(note));
    assert_eq!(
        cpus(&one(10)),
        ["2-7,12-15"],
        "nobody has 10 CPUs on one NUMA node"
    );
    // Without the preference the container is split.
    assert_eq!(
        cpus(&decided(
            &[app("a", 7)],
            &ledger(&[("gone", "main", "8-11")])
        )),
        ["2-7,12"]
    );
}

#[test]
fn growth_counts_with_what_is_there() {
    let grown = |to: u64| {
        fewest(
            &[("main", ContainerKind::App, to * 1000)],
            &[("a", "main", "4-7")],
        )
    };
    assert_eq!(cpus(&grown(6)), ["2-7"]);
    let refused = grown(8);
    assert_eq!(cpus(&refused), ["4-7"]);
    let note = refused.containers[0].note.as_deref().unwrap();
    assert!(
        note.starts_with("keeps the 4 CPUs that it has") && note.contains("more than 2 free"),
        "{note}"
    );
    assert_eq!(
        cpus(&grown(9))[0].parse::<CpuSet>().unwrap().len(),
        9,
        "nobody has 9 on one NUMA node"
    );
    assert_eq!(
        cpus(&fewest(
            &[("main", ContainerKind::App, 2000)],
            &[("a", "main", "6-7,12-13")]
        )),
        ["6-7"]
    );
    // The container was split before it had the preference. It gives CPUs back as without the preference, and gets no
    // more CPUs.
    assert_eq!(
        cpus(&fewest(
            &[("main", ContainerKind::App, 3000)],
            &[("a", "main", "6-7,12-13")]
        )),
        ["6-7,12"]
    );
    let stuck = fewest(
        &[("main", ContainerKind::App, 6000)],
        &[("a", "main", "6-7,12-13")],
    );
    assert_eq!(cpus(&stuck), ["6-7,12-13"]);
    assert!(
        stuck.containers[0]
            .note
            .as_deref()
            .unwrap()
            .contains("the 4 that it has are on 2")
    );
}

#[test]
fn notes_of_one_cpu_are_in_the_singular() {
    // Of the 14 assignable CPUs, all but CPU 3 have an owner.
    let others = [("gone", "main", "4-15"), ("a", "main", "2")];
    let grown = decided(&[app("a", 3)], &ledger(&others));
    let note = grown.containers[0].note.as_deref().unwrap();
    assert!(
        note.starts_with("keeps the 1 CPU that it has, and gets no more: "),
        "{note}"
    );
    let whole = |wanted: usize| {
        PlacementRefusal::NotWholeCores {
            wanted,
            less: 0,
            more: 2,
        }
        .to_string()
    };
    assert!(
        whole(1).starts_with("1 CPU is no sum of") && whole(3).starts_with("3 CPUs are no sum of")
    );
}

#[test]
fn each_container_of_a_pod_has_the_fewest_numa_nodes_of_its_own() {
    let pair = |one: u64, two: u64| {
        let kind = ContainerKind::App;
        fewest(&[("one", kind, one * 1000), ("two", kind, two * 1000)], &[])
    };
    assert_eq!(cpus(&pair(6, 4)), ["2-7", "12-15"]);
    // Together the containers fit one NUMA node, and no node has enough: each container is placed alone.
    assert_eq!(cpus(&pair(4, 4)), ["12-15", "2-5"]);
    let one_stays = pair(5, 5);
    assert_eq!(cpus(&one_stays), ["2-6", "shared"]);
    assert!(
        one_stays.containers[1]
            .note
            .as_deref()
            .unwrap()
            .contains("no NUMA node has more than 4")
    );
}

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
        let placer = Placer::new(&topology);
        let inputs = DecisionInput {
            topology: &topology,
            placer: &placer,
            memory_nodes: &topology.memory_nodes(),
            reserved: &set(reserved),
            policy: &Policy::default(),
            preferences: &CpuPreferences::default(),
            devices: &BTreeMap::new(),
            moves: 0,
            ids_settled: true,
            suspended: None,
            pods: &[app("a", cpus)],
            here: None,
        };
        decide(&inputs, &Ledger::default()).desired.shared()
    };
    // The administrator reserves isolated CPUs. All other pods would run unbalanced without the eighth CPU.
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
    let placer = Placer::new(&topology);
    let pods = [app("a", 4), app("b", 2)];
    let inputs = |memory_nodes: &str| {
        let inputs = DecisionInput {
            topology: &topology,
            placer: &placer,
            memory_nodes: &set(memory_nodes),
            reserved: &set("0-1"),
            policy: &Policy::default(),
            preferences: &CpuPreferences::default(),
            devices: &BTreeMap::new(),
            moves: 0,
            ids_settled: true,
            suspended: None,
            pods: &pods,
            here: None,
        };
        let owners = ledger(&[("a", "main", "6-9"), ("b", "main", "10-11")]);
        memory(&decide(&inputs, &owners))
    };
    let words = |texts: [&str; 2]| texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
    assert_eq!(inputs("0-1,8"), words(["0-1,8", "1,8"]));
    assert_eq!(inputs("0-1"), words(["0-1", "1"]));
    assert_eq!(
        inputs("0,8"),
        words(["0,8", ""]),
        "NUMA node 1 is not for pods"
    );
}

#[test]
fn the_last_shared_cpu_is_never_assigned() {
    let topology = machine();
    let placer = Placer::new(&topology);
    // The configured reserved CPU is offline.
    let reserved = set("1000");
    let pods = [app("a", topology.online.len() as u64 - 1), app("b", 1)];
    let here = ["a", "b"].into();
    let inputs = DecisionInput {
        topology: &topology,
        placer: &placer,
        memory_nodes: &topology.memory_nodes(),
        reserved: &reserved,
        policy: &Policy::default(),
        preferences: &CpuPreferences::default(),
        devices: &BTreeMap::new(),
        moves: 0,
        ids_settled: true,
        suspended: None,
        pods: &pods,
        here: Some(&here),
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
fn init_containers_leave_the_cpus_of_existing_pod_mates() {
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
        let (observed, _) = Observed::new(scan, &pods);
        let mut decisions = decided(&pods, &Ledger::default());
        decisions.keep_init_containers_off_mates(&pods, &observed);
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
    let Entitlement::Shared { reason } = entitlement else {
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
