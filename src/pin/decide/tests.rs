use super::*;
use crate::cpu::{NumaNode, Numbering, PlacementRefusal, Placer, Shape, SharedMinimum};
use crate::pin::Enforcement;
use crate::pod::ObjectName;
use crate::pod::{self, CpuPreferences, Pod, Policy, Resources, recognized};

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
    let pods = recognized((0..40).map(|number| app(&format!("p{number}"), 2)));
    let node = TestNode::new(machine(), set("0-1"));
    let inputs = node.input(&pods);
    let requests = pods.iter().enumerate();
    let requests: Vec<PodRequest<'_>> = requests
        .map(|(index, pod)| PodRequest::new(index, pod, &inputs, &Ledger::default()))
        .collect();
    let mut placing = place::PlacementPass::new(&inputs, &Ledger::default(), &requests);
    for pod in &requests {
        placing.keep(pod);
    }
    assert!(placing.assignments.is_empty());
    for pod in &requests {
        placing.gain(pod, |_| true);
    }
    assert_eq!((placing.assignments.len(), placing.notes.len()), (7, 33));
}

struct TestNode {
    topology: Topology,
    placer: Placer,
    memory_nodes: CpuSet,
    reserved: CpuSet,
    shared_minimum: SharedMinimum,
    policy: Policy,
    preferences: CpuPreferences,
    devices: BTreeMap<ObjectName, CpuSet>,
}

// === impl TestNode ===

impl TestNode {
    fn new(topology: Topology, reserved: CpuSet) -> Self {
        Self {
            placer: Placer::new(&topology),
            memory_nodes: topology.memory_nodes(),
            topology,
            reserved,
            shared_minimum: SharedMinimum::default(),
            policy: Policy::default(),
            preferences: CpuPreferences::default(),
            devices: BTreeMap::new(),
        }
    }

    /// The input of decisions about pods that all have containers.
    fn input<'a>(&'a self, pods: &'a [Arc<RecognizedPod>]) -> DecisionInput<'a> {
        DecisionInput {
            context: DecisionContext {
                topology: &self.topology,
                placer: &self.placer,
                memory_nodes: &self.memory_nodes,
                reserved: &self.reserved,
                shared_minimum: self.shared_minimum,
                policy: &self.policy,
                preferences: &self.preferences,
                devices: &self.devices,
                ids_settled: true,
                suspended: None,
                kubelet: None,
                enforcement: Enforcement::Partition,
            },
            pods,
            here: None,
            known: None,
            moves: 0,
            shrinks: None,
        }
    }
}

fn decided(pods: &[Pod], ledger: &Ledger) -> Decisions {
    decided_on(&machine(), pods, ledger)
}

fn decided_on(topology: &Topology, pods: &[Pod], ledger: &Ledger) -> Decisions {
    decided_about(topology, &recognized(pods.iter().cloned()), ledger)
}

fn decided_about(topology: &Topology, pods: &[Arc<RecognizedPod>], ledger: &Ledger) -> Decisions {
    let reserved = default_reserved(topology, &CpuSet::new());
    let node = TestNode::new(topology.clone(), reserved);
    let here = ["a", "b", "c"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        ..node.input(pods)
    };
    decide(&inputs, ledger)
}

/// The pods whose quotas are lifted.
fn lifted(decisions: &Decisions) -> Vec<&str> {
    let pods = decisions.desired.pods.iter();
    pods.filter(|(_, plan)| plan.lifts_pod_quota)
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
    assert_eq!(lifted(&decisions), ["a", "b"]);
}

#[test]
fn a_running_container_stays_even_on_bad_cpus() {
    // No placement would spread the CPUs like this, and CPU 0 is even reserved. But moving the
    // container would be worse.
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
    // Pod `b` gets the CPUs only in the next turn, when no pod owns them.
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
fn containers_of_a_pod_share_a_core_rather_than_two_with_strangers() {
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
    // The shared container has a limit of its own.
    assert_eq!(lifted(&decisions), ["a"]);
}

/// The quota of a pod stays if nothing else limits a container without CPUs of its own.
#[test]
fn the_pods_quota_is_lifted_only_if_nobody_needs_it() {
    let containers = [
        ("main", ContainerKind::App, 2000),
        ("log", ContainerKind::App, 500),
    ];
    let named = |change: &dyn Fn(&mut Pod)| {
        let mut pod = pod("a", &containers);
        let annotation = "main=exclusive,log=shared".to_owned();
        pod.annotations
            .insert(pod::CONTAINER_CPUS_ANNOTATION.to_owned(), annotation);
        change(&mut pod);
        let decisions = decided(&[pod], &Ledger::default());
        assert_eq!(cpus(&decisions), ["2-3", "shared"]);
        lifted(&decisions).len()
    };
    let unlimited = |pod: &mut Pod| pod.containers[1].resources.cpu_limit = None;
    let of_pod = |pod: &mut Pod| pod.resources.cpu_limit = Some(3000);
    assert_eq!(named(&|_| {}), 1);
    assert_eq!(named(&unlimited), 0);
    assert_eq!(named(&of_pod), 0);
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
fn with_fewest_numa_nodes_required_a_container_is_shared_rather_than_split() {
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
    // The container was split before it had the preference. It gives CPUs back as without the
    // preference, and gets no more.
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
    // Together the containers fit one NUMA node, and no node has enough, so each container is
    // placed alone.
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

mod known;
mod kubelet;
mod reserve;
mod shrink;

/// A pod's author decides how long the texts of the pod are. Decisions about all pods of the node
/// use what the texts say, so they are read when the pod becomes known, and only to a limit.
#[test]
fn long_texts_of_one_pod_delay_no_decision() {
    let started = std::time::Instant::now();
    let container = |number: usize| {
        let script = format!(
            "{} --job_name=worker --task_index={number}",
            "word ".repeat(2400)
        );
        let limits = serde_json::json!({"cpu": "1", "memory": "1Gi"});
        serde_json::json!({
            "name": format!("c{number}"), "args": ["sh", "-c", script], "resources": {"limits": limits},
            "env": [{"name": "TF_CONFIG", "value": format!("{{\"x\": \"{}\"}}", "y".repeat(1000))}],
        })
    };
    let containers: Vec<_> = (0..100).map(container).collect();
    let manifest = serde_json::json!({
        "kind": "Pod", "metadata": {"name": "long", "uid": "a"}, "spec": {"containers": containers},
    });
    let pods = recognized(pod::parse(&manifest.to_string(), "test").unwrap());
    // A turn decides each time anew, and asks for the threads of each container.
    for _ in 0..10 {
        let decisions = decided_about(&machine(), &pods, &Ledger::default());
        assert_eq!(decisions.containers.len(), 100);
        for index in 0..100 {
            let (policy, threads) = (Policy::default(), pod::ThreadPolicy::default());
            pod::thread_environment(&pods[0], index, &policy, &threads, None);
        }
    }
    assert!(
        started.elapsed().as_millis() < 3000,
        "{:?}",
        started.elapsed()
    );
}
