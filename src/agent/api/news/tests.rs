use super::*;
use crate::cluster::pods::PodsEvent;
use crate::pin::EnforcementCause;
use crate::pin::snapshot::Repaired;
use crate::pod::{ContainerKind, Entitlement, Mirror, PodRole, Profile, Qos, ThreadEnvironment};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn exclusive(cpus: u32) -> Entitlement {
    Entitlement::Exclusive {
        cpus,
        reason: "a training pod".to_owned(),
    }
}

fn shared(reason: &str) -> Entitlement {
    Entitlement::Shared {
        reason: reason.to_owned(),
        obstacle: None,
    }
}

fn pod(name: &str) -> Pod {
    Pod {
        namespace: "train".to_owned(),
        name: name.to_owned(),
        uid: Some(format!("u-{name}").into()),
        api_uid: Some(format!("u-{name}").into()),
        ..Pod::default()
    }
}

/// A container of pod `p` that waits for two CPUs.
fn waiting() -> ContainerState {
    ContainerState {
        namespace: "train".to_owned(),
        pod: "p".to_owned(),
        container: "main".to_owned(),
        uid: Some("u-p".to_owned()),
        kind: ContainerKind::App,
        role: PodRole::Worker,
        job: None,
        index: None,
        evidence: String::new(),
        qos: Qos::Guaranteed,
        host_network: false,
        entitlement: exclusive(2),
        assigned: None,
        effective: Some(set("0-3")),
        partition: None,
        numa: Some(set("0")),
        memory: None,
        api_uid: None,
        cgroup: Some("kubepods/podu-p/c1".to_owned()),
        running: true,
        threads: ThreadEnvironment {
            caution: None,
            profile: Profile::Off,
            threads: None,
            variables: BTreeMap::new(),
            kept: Vec::new(),
            by_command: Vec::new(),
            reason: String::new(),
            expected_threads: None,
            cpus: None,
            software: crate::pod::Software::Unknown,
        },
        note: None,
        bindings: Vec::new(),
        ranks: None,
        unpinned_seconds: None,
        injected: None,
        required: false,
        refused: None,
        created: true,
        finished: false,
        at_start: None,
        repaired: None,
        upcoming: None,
        observed: None,
    }
}

/// Pods of the API.
fn api<const N: usize>(pods: [Pod; N]) -> ApiPods {
    let mut known = ApiPods::default();
    known.take(&PodsEvent::Listed {
        pods: pods.map(Arc::new).into(),
        unreadable: BTreeMap::new(),
    });
    known
}

fn owns(cpus: &str) -> ContainerState {
    ContainerState {
        assigned: Some(set(cpus)),
        effective: Some(set(cpus)),
        ..waiting()
    }
}

fn refused(refused: RefusalSource, note: &str) -> ContainerState {
    ContainerState {
        refused: Some(refused),
        note: Some(note.to_owned()),
        ..waiting()
    }
}

fn snapshot(enforcement: Enforcement, containers: &[ContainerState]) -> Snapshot {
    Snapshot {
        enforcement,
        enforcement_cause: EnforcementCause::Configuration,
        enforcement_reason: String::new(),
        placement_source: crate::pin::PlacementSource::Pinfold,
        online: set("0-3"),
        reserved: set("0"),
        shared: set("0-3"),
        exclusive: CpuSet::new(),
        withheld: CpuSet::new(),
        held_by_others: CpuSet::new(),
        lost: CpuSet::new(),
        layout: Arc::default(),
        cpu_isolation: None,
        containers: containers.to_vec(),
        unknown_owners: Vec::new(),
        drift: Vec::new(),
        unexplained: Vec::new(),
        errors: Vec::new(),
        pods_listed: true,
    }
}

/// The notes of the Events that follow from successive states of the container, with the reason in front.
fn notes_of(states: &[ContainerState]) -> Vec<Vec<String>> {
    let mut reported = ReportedStates::default();
    let notes = |state: &ContainerState| {
        let enforcement = if state.partition.is_some() {
            Enforcement::Partition
        } else {
            Enforcement::Cpuset
        };
        let news = reported.note(
            &snapshot(enforcement, std::slice::from_ref(state)),
            &api([pod("p")]),
        );
        news.into_iter()
            .map(|news| format!("{}: {}", news.reason, news.note))
            .collect()
    };
    states.iter().map(notes).collect()
}

const PINNED: &str =
    "Pinned: Container main runs on exclusive CPUs 2-3 on NUMA node 0 (enforcement cpuset)";

#[test]
fn pinned_is_reported_once_per_container_and_assignment() {
    let next = ContainerState {
        cgroup: Some("kubepods/podu-p/c2".to_owned()),
        ..owns("2-3")
    };
    let states = [
        waiting(),
        owns("2-3"),
        owns("2-3"),
        next.clone(),
        next,
        waiting(),
    ];
    assert_eq!(
        notes_of(&states),
        [vec![], vec![PINNED], vec![], vec![PINNED], vec![], vec![]]
    );
    let moved = notes_of(&[owns("2-3"), owns("1-2")]);
    assert_eq!(
        moved[1],
        [
            "Pinned: Container main runs on exclusive CPUs 1-2 on NUMA node 0, and no longer on 2-3 (enforcement cpuset)"
        ]
    );
    // Between two containers no cgroup exists, and no Event follows.
    let gone = ContainerState {
        cgroup: None,
        effective: None,
        ..owns("2-3")
    };
    assert_eq!(
        notes_of(&[owns("2-3"), gone, owns("2-3")])[1..],
        [Vec::<String>::new(), vec![]]
    );
}

#[test]
fn ineffective_cpus_are_not_reported() {
    let ineffective = ContainerState {
        effective: Some(set("0-3")),
        ..owns("2-3")
    };
    assert_eq!(notes_of(&[ineffective]), [Vec::<String>::new()]);
    let kernel = |partition: &str| ContainerState {
        partition: Some(partition.to_owned()),
        ..owns("2-3")
    };
    let invalid = kernel("root invalid (Cpu list in cpuset.cpus not exclusive)");
    let notes = notes_of(&[kernel("member"), invalid, kernel("isolated")]);
    assert_eq!(
        (notes[0].len(), notes[1].len(), notes[2].len()),
        (0, 0, 1),
        "{notes:?}"
    );
}

#[test]
fn a_restart_reports_no_older_state() {
    let at_start = |cpus: &str, state: ContainerState| ContainerState {
        at_start: Some(set(cpus)),
        ..state
    };
    let nothing: [Vec<String>; 2] = [vec![], vec![]];
    let had = at_start("2-3", owns("2-3"));
    assert_eq!(notes_of(&[had.clone(), had]), nothing);
    let note = "stays in the shared pool: too few free CPUs: 2 wanted, 0 free";
    let refused = at_start("", refused(RefusalSource::Room, note));
    assert_eq!(notes_of(&[refused.clone(), refused.clone()]), nothing);
    let mut kept = at_start("", waiting());
    kept.threads.kept = vec!["OMP_NUM_THREADS".to_owned()];
    assert_eq!(notes_of(&[kept.clone(), kept]), nothing);
    // A later change causes an Event, and so does a change of a container from before the agent's start.
    assert_eq!(notes_of(&[refused, at_start("", owns("2-3"))])[1], [PINNED]);
    assert_eq!(notes_of(&[at_start("", owns("2-3"))]), [vec![PINNED]]);
    assert_eq!(notes_of(&[at_start("2-3", owns("1-2"))])[0].len(), 1);
    // A repair of drift from before the agent's start causes a single Event.
    let repaired = Repaired {
        count: 1,
        cause: DriftCause::Written,
        effective: set("0-3"),
        others: Vec::new(),
    };
    let drifted = at_start(
        "2-3",
        ContainerState {
            effective: Some(set("0-3")),
            ..owns("2-3")
        },
    );
    let again = ContainerState {
        repaired: Some(repaired),
        ..at_start("2-3", owns("2-3"))
    };
    let notes = notes_of(&[drifted, again]);
    assert_eq!((notes[0].len(), notes[1].len()), (0, 1), "{notes:?}");
    assert!(notes[1][0].starts_with("DriftRepaired: "), "{notes:?}");
}

#[test]
fn a_refusal_is_reported_once_despite_changing_numbers() {
    let note =
        |free: usize| format!("stays in the shared pool: too few free CPUs: 2 wanted, {free} free");
    let room = |free| refused(RefusalSource::Room, &note(free));
    let kernel = "stays in the shared pool: kubepods/podu-p/c1: root on CPUs 2-3: the kernel says \"root invalid\"";
    let notes = notes_of(&[
        room(0),
        room(1),
        refused(RefusalSource::Kernel, kernel),
        refused(RefusalSource::Kernel, kernel),
        owns("2-3"),
        room(1),
    ]);
    assert_eq!(
        notes,
        [
            vec![format!("Refused: Container main {}", note(0))],
            vec![],
            vec![format!("PartitionRefused: Container main {kernel}")],
            vec![],
            vec![PINNED.to_owned()],
            vec![format!("Refused: Container main {}", note(1))],
        ]
    );
    // A container with some CPUs is refused more: a single Event.
    let some = ContainerState {
        refused: Some(RefusalSource::Room),
        ..owns("2-3")
    };
    let notes = notes_of(&[owns("2-3"), some.clone(), some]);
    assert_eq!((notes[1].len(), notes[2].len()), (1, 0), "{notes:?}");
}

#[test]
fn policy_is_reported_if_no_container_of_the_pod_gets_cpus() {
    let denied = ContainerState {
        entitlement: shared("QoS class Burstable, not Guaranteed"),
        refused: Some(RefusalSource::Policy),
        ..waiting()
    };
    let notes = notes_of(&[denied.clone(), denied.clone()]);
    let expected =
        "NotPinned: Container main gets no exclusive CPUs: QoS class Burstable, not Guaranteed";
    assert_eq!(notes, [vec![expected], vec![]]);
    let beside = ContainerState {
        container: "logger".to_owned(),
        ..denied
    };
    let news = ReportedStates::default().note(
        &snapshot(Enforcement::Cpuset, &[owns("2-3"), beside]),
        &api([pod("p")]),
    );
    assert_eq!(news.len(), 1, "{news:?}");
}

#[test]
fn a_release_is_reported_except_for_a_finished_pod() {
    let annotated = ContainerState {
        entitlement: shared("annotation pinfold.io/cpus=shared"),
        ..waiting()
    };
    let notes = notes_of(&[
        owns("2-3"),
        annotated.clone(),
        annotated.clone(),
        owns("2-3"),
    ]);
    let expected = "Released: Container main runs on shared CPUs from now on: annotation pinfold.io/cpus=shared";
    assert_eq!(notes, [vec![PINNED], vec![expected], vec![], vec![PINNED]]);
    let mut reported = ReportedStates::default();
    reported.note(
        &snapshot(Enforcement::Cpuset, &[owns("2-3")]),
        &api([pod("p")]),
    );
    let finished = Pod {
        finished: true,
        ..pod("p")
    };
    assert_eq!(
        reported.note(
            &snapshot(Enforcement::Cpuset, &[annotated]),
            &api([finished])
        ),
        []
    );
}

#[test]
fn drift_is_reported_after_its_repair() {
    let repaired = |count| {
        let repaired = Repaired {
            count,
            cause: DriftCause::Written,
            effective: set("0-1"),
            others: Vec::new(),
        };
        ContainerState {
            repaired: Some(repaired),
            ..owns("2-3")
        }
    };
    let drifted = ContainerState {
        effective: Some(set("0-1")),
        ..owns("2-3")
    };
    let expected = "DriftRepaired: Container main ran on CPUs 0-1 instead of 2-3, because another program wrote other CPUs to its cgroup; Pinfold restored the CPUs";
    let notes = notes_of(&[owns("2-3"), drifted, repaired(1), repaired(1), repaired(3)]);
    assert_eq!(
        notes,
        [vec![PINNED], vec![], vec![expected], vec![], vec![expected]]
    );
    // The partition became invalid: the CPUs stayed the same, and others could use them.
    let mut shared_for_a_time = repaired(1);
    shared_for_a_time.repaired = shared_for_a_time.repaired.map(|repaired| Repaired {
        cause: DriftCause::Partition,
        effective: set("2-3"),
        ..repaired
    });
    assert_eq!(
        notes_of(&[owns("2-3"), shared_for_a_time])[1],
        [
            "DriftRepaired: Container main did not have CPUs 2-3 for itself alone, because its partition ended or became invalid; \
          Pinfold made them exclusive again"
        ]
    );
    // A container without exclusive CPUs was only kept off other containers' CPUs.
    let bystander = ContainerState {
        entitlement: shared("not a training pod"),
        assigned: None,
        ..repaired(1)
    };
    assert_eq!(notes_of(&[bystander]), [Vec::<String>::new()]);
}

#[test]
fn a_kept_thread_variable_is_reported_once() {
    let mut state = owns("2-3");
    state.threads.kept = vec!["MKL_NUM_THREADS".to_owned(), "OMP_NUM_THREADS".to_owned()];
    let expected = "ValueKept: Container main sets MKL_NUM_THREADS, OMP_NUM_THREADS itself, and Pinfold keeps the container's value";
    assert_eq!(
        notes_of(&[state.clone(), state]),
        [vec![PINNED, expected], vec![]]
    );
}

#[test]
fn a_program_that_counts_on_the_machine_is_reported_once_it_is_pinned() {
    let advice = "taskset -c 0 counts on the machine".to_owned();
    let mut state = owns("2-3");
    state.bindings = vec![advice];
    let expected = "MachineCpuNumbers: Container main may not start or run as intended: taskset -c 0 counts on the machine";
    assert_eq!(
        notes_of(&[state.clone(), state]),
        [vec![PINNED, expected], vec![]]
    );
}

#[test]
fn events_are_only_on_pods_of_the_api() {
    let state = snapshot(Enforcement::Cpuset, &[owns("2-3")]);
    assert_eq!(ReportedStates::default().note(&state, &api([pod("q")])), []);
    let observing = snapshot(Enforcement::Observe, &[owns("2-3")]);
    assert_eq!(
        ReportedStates::default().note(&observing, &api([pod("p")])),
        []
    );
    // A static pod's cgroup and its mirror pod have different uids.
    let mut mirror = pod("p");
    (mirror.uid, mirror.api_uid) = (Some("of-the-api".into()), Some("of-the-api".into()));
    mirror.mirror = Some(Mirror {
        uid: "u-p".into(),
        node: "node".into(),
    });
    let news = ReportedStates::default().note(&state, &api([mirror]));
    assert_eq!(
        (news.len(), &*news[0].uid, news[0].warning),
        (1, "of-the-api", false)
    );
    // The state of a removed pod is forgotten.
    let mut reported = ReportedStates::default();
    assert_eq!(reported.note(&state, &api([pod("p")])).len(), 1);
    assert_eq!(
        reported.note(&snapshot(Enforcement::Cpuset, &[]), &api([pod("p")])),
        []
    );
    assert_eq!(reported, ReportedStates::default());
}

/// The container's environment stays as it is, so whoever can change a running program's threads is told.
#[test]
fn another_number_of_threads_is_reported_once_per_change() {
    let sized = |threads: usize, state: ContainerState| {
        let mut state = state;
        state.threads.threads = Some(threads);
        state
    };
    let will_have = |upcoming: &str| ContainerState {
        upcoming: Some(set(upcoming)),
        ..owns("1-3")
    };
    let states = [
        sized(3, owns("1-3")),
        sized(2, will_have("1-2")),
        sized(2, owns("1-2")),
        sized(3, owns("1-3")),
        // The pod's author has annotated another profile.
        sized(2, owns("1-3")),
        sized(1, will_have("")),
    ];
    let of_threads = |notes: Vec<String>| -> Vec<String> {
        let mut notes = notes;
        notes.retain(|note| note.starts_with("ThreadCountChanged"));
        notes
    };
    let notes: Vec<_> = notes_of(&states).into_iter().map(of_threads).collect();
    let counts: Vec<usize> = notes.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 1, 0, 1, 1, 1], "{notes:?}");
    for (note, words) in [
        (
            &notes[1][0],
            "2 intra-op threads in each process instead of 3, because it will keep only CPUs 1-2;",
        ),
        (&notes[3][0], "because it has CPUs 1-3;"),
        (
            &notes[4][0],
            "instead of 3, because its CPU limit or its pod's labels or annotations have changed;",
        ),
        (
            &notes[5][0],
            "1 intra-op thread in each process instead of 2, because it will run on shared CPUs;",
        ),
    ] {
        assert!(note.contains(words), "{note}");
    }
    // A container that was never pinned, and one without a number.
    let shared = notes_of(&[sized(2, waiting()), sized(1, waiting()), owns("2-3")]);
    assert_eq!(shared[..2], [Vec::<String>::new(), vec![]]);
}
