//! Where the kubelet chooses the CPUs.

use std::collections::HashSet;

use super::*;
use crate::pin::PodAssignment;
use crate::pin::decide::known::KnownPod;

/// What the kubelet reports: the pod's uid, the container and its CPUs.
fn report(entries: &[(&str, &str, &str)]) -> KubeletCpus {
    let mut report = KubeletCpus::new();
    for (uid, name, cpus) in entries {
        let of_pod = report.entry((*uid).to_owned()).or_default();
        of_pod.insert((*name).to_owned(), set(cpus));
    }
    report
}

/// Assignments: the pod's uid, the container, its CPUs and whether the kubelet chose them.
fn ledger(entries: &[(&str, &str, &str, bool)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (uid, name, cpus, by_kubelet) in entries {
        let pod = ledger.assignments.entry((*uid).to_owned()).or_default();
        if *by_kubelet {
            pod.add_of_kubelet(name, set(cpus));
        } else {
            pod.containers.insert((*name).to_owned(), set(cpus));
        }
    }
    ledger
}

/// The decisions about pods of which the containers in `running` exist.
fn decided(
    pods: &[Pod],
    kubelet: Option<&KubeletCpus>,
    ledger: &Ledger,
    running: &[(&str, &str)],
) -> Decisions {
    let pods = recognized(pods.iter().cloned());
    let node = TestNode::new(machine(), set("0-1"));
    let here: HashSet<&str> = ["a", "b", "c"].into();
    let cpus = CpuSet::new();
    let mut known = KnownPods::new();
    for uid in &here {
        let running = running.iter().filter(|(of, _)| of == uid);
        let running = running.map(|(_, name)| (*name, &cpus)).collect();
        known.insert(
            uid,
            KnownPod {
                running,
                ..KnownPod::default()
            },
        );
    }
    let input = node.input(&pods);
    let inputs = DecisionInput {
        context: DecisionContext {
            kubelet,
            ..input.context
        },
        here: Some(&here),
        known: Some(&known),
        ..input
    };
    decide(&inputs, ledger)
}

/// The CPUs of each owner, like `a/main 2-3`. A star marks those that the kubelet chose.
fn owners(decisions: &Decisions) -> Vec<String> {
    let assignments = decisions.desired.assignments();
    let mut owners = Vec::new();
    for (uid, pod) in assignments {
        for (name, cpus) in &pod.containers {
            let star = if pod.by_kubelet.contains(name) {
                "*"
            } else {
                ""
            };
            owners.push(format!("{uid}/{name} {cpus}{star}"));
        }
    }
    owners
}

fn note(decisions: &Decisions, index: usize) -> (String, Option<RefusalSource>) {
    let decision = &decisions.containers[index];
    (decision.note.clone().unwrap_or_default(), decision.refused)
}

#[test]
fn a_container_gets_exactly_what_the_kubelet_reports() {
    // A pod that does not train, and is Guaranteed: the kubelet decides who is pinned.
    let plain = Pod {
        labels: BTreeMap::new().into(),
        ..app("b", 3)
    };
    let reported = report(&[("a", "main", "2,5"), ("b", "main", "8-10")]);
    let decisions = decided(
        &[app("a", 2), plain],
        Some(&reported),
        &Ledger::default(),
        &[],
    );
    assert_eq!(owners(&decisions), ["a/main 2,5*", "b/main 8-10*"]);
    let plan = decisions.desired.pod("a").unwrap();
    assert!(!plan.lifts_pod_quota, "quotas are the kubelet's");
    assert!(plan.memory.is_empty(), "memory is the kubelet's");
    assert_eq!(decisions.desired.shared(), set("0-1,3-4,6-7,11-15"));
}

#[test]
fn pinfold_chooses_nothing_and_follows_each_change() {
    let reported = report(&[("a", "main", "4-6")]);
    let had = ledger(&[("a", "main", "2-3", true)]);
    let decisions = decided(
        &[app("a", 2), app("b", 2)],
        Some(&reported),
        &had,
        &[("a", "main")],
    );
    assert_eq!(owners(&decisions), ["a/main 4-6*"]);
    let (note, refused) = note(&decisions, 1);
    assert!(note.contains("reported no exclusive CPUs"), "{note}");
    assert_eq!(refused, None);
    assert!(decisions.containers[1].cpus.is_none());
}

#[test]
fn an_init_container_stays_on_the_kubelets_set() {
    let pod = pod(
        "a",
        &[
            ("init", ContainerKind::Init, 2000),
            ("side", ContainerKind::Sidecar, 1000),
            ("main", ContainerKind::App, 2000),
        ],
    );
    // The kubelet gives the container the CPUs of the init container.
    let reported = report(&[
        ("a", "init", "4-5"),
        ("a", "side", "2"),
        ("a", "main", "4-5"),
    ]);
    let decisions = decided(&[pod], Some(&reported), &Ledger::default(), &[]);
    assert_eq!(owners(&decisions), ["a/main 4-5*", "a/side 2*"]);
    assert_eq!(decisions.containers[0].cpus, None);
    assert!(
        decisions
            .desired
            .pod("a")
            .unwrap()
            .init_containers
            .is_empty()
    );
}

/// The set of the second container would break the partition of the first, so there is none from the beginning.
#[test]
fn containers_with_one_set_get_no_partition() {
    let kinds = ["first", "second", "own"].map(|name| (name, ContainerKind::App, 2000));
    let pods = [pod("a", &kinds)];
    let cpus = [
        ("a", "first", "2-3"),
        ("a", "second", "3-4"),
        ("a", "own", "6-7"),
    ];
    let had = ledger(&[("a", "first", "2-3", true)]);
    for (ledger, running) in [(Ledger::default(), &[][..]), (had, &[("a", "first")])] {
        let decisions = decided(&pods, Some(&report(&cpus)), &ledger, running);
        assert_eq!(owners(&decisions), ["a/own 6-7*"]);
        let (note, refused) = note(&decisions, 0);
        assert_eq!(
            note,
            "gets no partition: the kubelet has given some of its CPUs to container second of the pod, too"
        );
        assert_eq!(refused, Some(RefusalSource::Room));
    }
    // The kubelet reports an ended container until its pod ends.
    let [mut pod] = pods;
    pod.containers[1].ended = true;
    let decisions = decided(&[pod], Some(&report(&cpus)), &Ledger::default(), &[]);
    assert_eq!(owners(&decisions)[0], "a/first 2-3*");
}

#[test]
fn the_newest_owner_wins_once_the_earlier_one_has_given_up() {
    let pods = [app("a", 2), app("b", 2)];
    let reported = report(&[("b", "main", "2-3")]);
    let had = ledger(&[("a", "main", "2-3", true)]);
    // The kubelet no longer reports the ended container of pod a, whose cgroup still stands.
    for running in [&[("a", "main")][..], &[]] {
        let first = decided(&pods, Some(&reported), &had, running);
        assert_eq!(owners(&first), [""; 0], "first nobody has them");
        let (note, refused) = note(&first, 1);
        assert!(
            note.contains("when container main of train/a has given them up"),
            "{note}"
        );
        assert_eq!(refused, None);
    }
    let second = decided(&pods, Some(&reported), &Ledger::default(), &[]);
    assert_eq!(owners(&second), ["b/main 2-3*"]);
}

#[test]
fn two_containers_whose_cpus_the_kubelet_exchanges_give_up_first() {
    let pods = [app("a", 2), app("b", 2)];
    let reported = report(&[("a", "main", "4-5"), ("b", "main", "2-3")]);
    let had = ledger(&[("a", "main", "2-3", true), ("b", "main", "4-5", true)]);
    let running = [("a", "main"), ("b", "main")];
    let first = decided(&pods, Some(&reported), &had, &running);
    assert_eq!(owners(&first), [""; 0]);
    let second = decided(&pods, Some(&reported), &Ledger::default(), &running);
    assert_eq!(owners(&second), ["a/main 4-5*", "b/main 2-3*"]);
    // What stays with a container is not given up on the way.
    let reported = report(&[("a", "main", "3-4"), ("b", "main", "2,5")]);
    let first = decided(&pods, Some(&reported), &had, &running);
    assert_eq!(owners(&first), ["a/main 3*", "b/main 5*"]);
}

#[test]
fn what_the_kubelet_does_not_report_stays_while_it_runs() {
    let had = ledger(&[("a", "main", "2-3", true)]);
    let nothing = KubeletCpus::new();
    let pods = [app("a", 2)];
    let running = decided(&pods, Some(&nothing), &had, &[("a", "main")]);
    assert_eq!(owners(&running), ["a/main 2-3*"]);
    let gone = decided(&pods, Some(&nothing), &had, &[]);
    assert_eq!(owners(&gone), [""; 0]);
    let ended = Pod {
        finished: true,
        ..app("a", 2)
    };
    let ended = decided(&[ended], Some(&nothing), &had, &[("a", "main")]);
    assert_eq!(owners(&ended), [""; 0]);
}

#[test]
fn a_switch_of_the_source_moves_nothing() {
    let plain = Pod {
        labels: BTreeMap::new().into(),
        ..app("a", 2)
    };
    let pods = [plain, app("b", 2)];
    let had = ledger(&[("a", "main", "2-3", true), ("b", "main", "4-5", false)]);
    let running = [("a", "main"), ("b", "main")];
    // The kubelet stops: even a pod that does not train keeps what the kubelet gave it.
    let pinfold = decided(&pods, None, &had, &running);
    assert_eq!(owners(&pinfold), ["a/main 2-3*", "b/main 4-5"]);
    // The kubelet begins: it has chosen other CPUs for Pinfold's pod, which keeps its own.
    let reported = report(&[("a", "main", "2-3"), ("b", "main", "8-9")]);
    let kubelet = decided(&pods, Some(&reported), &had, &running);
    assert_eq!(owners(&kubelet), ["a/main 2-3*", "b/main 4-5"]);
}

#[test]
fn cpus_of_a_pod_that_pinfold_pinned_are_not_taken() {
    let pods = [app("a", 2), app("b", 2)];
    let had = ledger(&[("a", "main", "2-3", false)]);
    let reported = report(&[("b", "main", "3-4")]);
    let decisions = decided(&pods, Some(&reported), &had, &[("a", "main")]);
    assert_eq!(owners(&decisions), ["a/main 2-3"]);
    let (note, refused) = note(&decisions, 1);
    assert!(
        note.contains("includes CPU 3, which container main of train/a keeps until it ends"),
        "{note}"
    );
    assert_eq!(refused, Some(RefusalSource::Room));
}

#[test]
fn an_answer_that_contradicts_itself_moves_nothing() {
    let pods = [app("a", 2), app("b", 2)];
    let reported = report(&[("a", "main", "2-3"), ("b", "main", "3-4")]);
    let had = ledger(&[("a", "main", "2-3", true)]);
    let decisions = decided(&pods, Some(&reported), &had, &[("a", "main")]);
    assert_eq!(owners(&decisions), ["a/main 2-3*"]);
}

#[test]
fn cpus_isolated_at_boot_are_a_partition_only_among_themselves() {
    let mut topology = machine();
    topology.isolated = set("8-11");
    let pods = recognized([app("a", 2), app("b", 2)]);
    let reported = report(&[("a", "main", "8-9"), ("b", "main", "7,10")]);
    let node = TestNode::new(topology, set("0-1"));
    let input = node.input(&pods);
    let inputs = DecisionInput {
        context: DecisionContext {
            kubelet: Some(&reported),
            ..input.context
        },
        ..input
    };
    let decisions = decide(&inputs, &Ledger::default());
    assert_eq!(owners(&decisions), ["a/main 8-9*"]);
    assert_eq!(decisions.desired.isolated_at_boot, set("8-11"));
    let (note, refused) = note(&decisions, 1);
    assert!(
        note.contains("10 are isolated at boot and 7 are not"),
        "{note}"
    );
    assert_eq!(refused, Some(RefusalSource::Kernel));
}

#[test]
fn the_annotation_shared_wins() {
    let mut shared = app("a", 2);
    shared
        .annotations
        .insert(pod::CPUS_ANNOTATION.to_owned(), "shared".to_owned());
    let reported = report(&[("a", "main", "2-3")]);
    let decisions = decided(&[shared], Some(&reported), &Ledger::default(), &[]);
    assert_eq!(owners(&decisions), [""; 0]);
}

#[test]
fn the_last_shared_cpu_stays_shared() {
    let reported = report(&[("a", "main", "0-15")]);
    let decisions = decided(&[app("a", 16)], Some(&reported), &Ledger::default(), &[]);
    assert_eq!(owners(&decisions), [""; 0]);
    assert_eq!(note(&decisions, 0).1, Some(RefusalSource::Room));
}

/// Whatever the kubelet says, and whatever was before: no CPU has two owners, and what the kernel
/// has for one pod is never given to another in the same turn.
#[test]
fn no_report_gives_a_cpu_to_two_owners() {
    use proptest::prelude::*;
    let uids = ["a", "b", "c"];
    let entry = || (0_u32..12, 1_u32..5, 0_u8..3);
    let case = prop::collection::vec((entry(), entry()), 3);
    proptest!(ProptestConfig::with_cases(300), |(case in case, chooses in any::<bool>())| {
        let cpus = |(first, count, _): (u32, u32, u8)| -> CpuSet { (first..first + count).collect() };
        let (mut ledger, mut reported) = (Ledger::default(), KubeletCpus::new());
        let mut owned = CpuSet::new();
        for (uid, (had, now)) in uids.iter().zip(&case) {
            let own = cpus(*had).difference(&owned);
            if had.2 > 0 && !own.is_empty() {
                owned = owned.union(&own);
                let mut pod = PodAssignment::default();
                pod.containers.insert("main".to_owned(), own);
                if had.2 > 1 {
                    pod.by_kubelet.insert("main".to_owned());
                }
                ledger.assignments.insert((*uid).to_owned(), pod);
            }
            if now.2 > 0 {
                let of_main = [("main".to_owned(), cpus(*now))];
                reported.insert((*uid).to_owned(), of_main.into());
            }
        }
        let pods: Vec<Pod> = uids.iter().map(|uid| app(uid, 2)).collect();
        let running = [("a", "main"), ("c", "main")];
        let kubelet = chooses.then_some(&reported);
        let decisions = decided(&pods, kubelet, &ledger, &running);
        let mut all = CpuSet::new();
        for (uid, pod) in decisions.desired.assignments() {
            prop_assert!(pod.cpus().is_disjoint(&all), "two owners");
            all = all.union(&pod.cpus());
            for (other, had) in &ledger.assignments {
                prop_assert!(*other == uid || pod.cpus().is_disjoint(&had.cpus()), "{uid} takes from {other}");
            }
            let had = ledger.of(&uid);
            if had.by_kubelet.is_empty() && !had.is_empty() && chooses {
                prop_assert_eq!(had.cpus(), pod.cpus(), "Pinfold's own assignments stay");
            }
        }
    });
}
