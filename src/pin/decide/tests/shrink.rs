//! Shrinks that wait until the program was told.

use super::*;
use crate::cpu::TopologyFacts;
use crate::pod::{ContainerKey, Entitlement};

/// The decisions about pod `a`, whose container runs on 4 CPUs. `announced` are CPUs that were announced to be left, and whether
/// the delay is over.
fn decided_after(pod: Pod, announced: Option<(&str, bool)>) -> Decisions {
    decided_with(pod, announced, &ledger(&[("a", "main", "4-7")]))
}

fn decided_with(pod: Pod, announced: Option<(&str, bool)>, ledger: &Ledger) -> Decisions {
    let node = TestNode::new(machine(), set("0-1"));
    decided_on_node(&node, pod, announced, ledger)
}

fn decided_on_node(
    node: &TestNode,
    pod: Pod,
    announced: Option<(&str, bool)>,
    ledger: &Ledger,
) -> Decisions {
    let mut shrinks = AnnouncedShrinks::default();
    if let Some((left, is_due)) = announced {
        shrinks.add(ContainerKey::new("a", "main"), set(left), is_due);
    }
    let cpus = set("4-7");
    let known = KnownPod {
        running: [("main", &cpus)].into(),
        populated: ["main"].into(),
        ..KnownPod::default()
    };
    let known = [("a", known)].into();
    let pods = recognized([pod]);
    let here = ["a"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        known: Some(&known),
        shrinks: Some(&shrinks),
        ..node.input(&pods)
    };
    decide(&inputs, ledger)
}

fn waiting(decisions: &Decisions) -> Option<String> {
    let key = ContainerKey::new("a", "main");
    decisions.waiting.get(&key).map(CpuSet::to_string)
}

fn of_millis(millis: u64) -> Pod {
    pod("a", &[("main", ContainerKind::App, millis)])
}

#[test]
fn the_cpus_stay_until_the_program_was_told_for_long_enough() {
    for (millis, left) in [(2000, "4-5"), (3000, "4-6"), (1500, "")] {
        let first = decided_after(of_millis(millis), None);
        assert_eq!(cpus(&first), ["4-7"], "{millis}");
        assert_eq!(waiting(&first).as_deref(), Some(left), "{millis}");
        let reason = first.containers[0].entitlement.reason();
        assert!(reason.contains("policy.shrinkDelay"), "{reason}");
        assert_eq!(decided_after(of_millis(millis), Some((left, false))), first);
        let then = decided_after(of_millis(millis), Some((left, true)));
        let expected = if left.is_empty() { "shared" } else { left };
        assert_eq!(cpus(&then), [expected], "{millis}");
        assert_eq!(waiting(&then), None);
    }
}

/// What was announced is what stays, although another choice may be better by now.
#[test]
fn the_announced_cpus_stay() {
    let then = decided_after(of_millis(2000), Some(("6-7", true)));
    assert_eq!(cpus(&then), ["6-7"]);
    // Not if they are no part of the container's CPUs, or another number.
    for other in ["5-6,8", "8-9"] {
        let then = decided_after(of_millis(2000), Some((other, true)));
        assert!(
            cpus(&then)[0] == "4-5" || waiting(&then).is_some(),
            "{other}"
        );
    }
}

/// They may have gone offline during the delay, or no longer be on offer.
#[test]
fn announced_cpus_that_are_gone_do_not_stay() {
    let mut ledger = ledger(&[("a", "main", "4-7")]);
    ledger.offered = Some(set("0-3,6-15"));
    let then = decided_with(of_millis(2000), Some(("4-5", true)), &ledger);
    assert_eq!(cpus(&then), ["6-7"]);
}

#[test]
fn a_further_shrink_is_announced_anew() {
    let then = decided_after(of_millis(1000), Some(("4-5", true)));
    assert_eq!(
        (cpus(&then)[0].as_str(), waiting(&then).as_deref()),
        ("4-7", Some("4"))
    );
}

#[test]
fn nothing_waits_for_a_container_that_grows_ends_or_is_finished() {
    for millis in [4000, 6000] {
        let same = decided_after(of_millis(millis), None);
        assert_eq!(waiting(&same), None);
        assert_eq!(
            same.containers[0].entitlement.cpus() * 1000,
            u32::try_from(millis).unwrap()
        );
    }
    let mut ended = of_millis(4000);
    ended.containers[0].ended = true;
    let mut finished = of_millis(4000);
    finished.finished = true;
    for gone in [ended, finished] {
        let decisions = decided_after(gone, None);
        assert_eq!(
            (waiting(&decisions), cpus(&decisions)[0].as_str()),
            (None, "shared")
        );
        assert!(matches!(
            decisions.containers[0].entitlement,
            Entitlement::Shared { .. }
        ));
    }
}

/// Growth stays in the last-level cache, then in the NUMA node, and leaves neither while they have room.
#[test]
fn growth_takes_the_nearest_cpus() {
    let grown = |own: &str, others: &str, to: u64| {
        let ledger = ledger(&[("a", "main", own), ("b", "main", others)]);
        cpus(&decided(&[app("a", to)], &ledger))[0].clone()
    };
    // The sibling first, then the neighbours, on either NUMA node; the other one only when this one is full.
    assert_eq!(grown("10", "4-5", 2), "10-11");
    assert_eq!(grown("10-11", "4-5", 4), "8-11");
    assert_eq!(grown("4-5", "8-9", 6), "2-7");
    assert_eq!(grown("12-13", "8-11", 5), "2,12-15");
}

/// The creation of a container must not fail for the growth of another one.
#[test]
fn a_container_without_cpus_is_served_before_one_that_grows() {
    let ledger = ledger(&[("a", "main", "2-7"), ("c", "main", "8-13")]);
    let decisions = decided(&[app("a", 8), app("b", 2), app("c", 6)], &ledger);
    assert_eq!(cpus(&decisions), ["2-7", "14-15", "8-13"]);
}

/// A container is replaced while its shrink waits: nobody has to be told, and the runtime may write only what stays.
#[test]
fn nothing_waits_while_only_a_former_cgroup_runs() {
    let cpus_of_former = set("4-7");
    let known = KnownPod {
        running: [("main", &cpus_of_former)].into(),
        ..KnownPod::default()
    };
    let (shrinks, known) = (AnnouncedShrinks::default(), [("a", known)].into());
    let node = TestNode::new(machine(), set("0-1"));
    let pods = recognized([of_millis(2000)]);
    let here = ["a"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        known: Some(&known),
        shrinks: Some(&shrinks),
        ..node.input(&pods)
    };
    let decisions = decide(&inputs, &ledger(&[("a", "main", "4-7")]));
    assert_eq!(cpus(&decisions), ["4-5"]);
}

fn machine_with_offline(offline: &str) -> Topology {
    let (whole, offline) = (machine(), set(offline));
    Topology::from_facts(TopologyFacts {
        online: whole.online.difference(&offline),
        offline,
        cores: whole.cores(),
        llcs: whole.llcs(),
        sockets: whole.sockets(),
        numa: whole.numa,
        ..TopologyFacts::default()
    })
}

/// What is left has the right number of CPUs also if too few are online or on offer. It would never be due otherwise.
#[test]
fn as_many_cpus_stay_as_wanted_although_some_can_not_be_used() {
    let held = ledger(&[("a", "main", "4-7")]);
    let node = TestNode::new(machine_with_offline("4,6-7"), set("0-1"));
    let first = decided_on_node(&node, of_millis(2000), None, &held);
    assert_eq!(waiting(&first).as_deref(), Some("4-5"));
    let then = decided_on_node(&node, of_millis(2000), Some(("4-5", true)), &held);
    assert_eq!((waiting(&then), &*cpus(&then)[0]), (None, "4-5"));
    // What was announced before they went offline stays announced.
    let same = decided_on_node(&node, of_millis(2000), Some(("5,7", false)), &held);
    assert_eq!(waiting(&same).as_deref(), Some("5,7"));
    let mut limited = held.clone();
    limited.offered = Some(set("0-3,6,8-15"));
    let first = decided_with(of_millis(2000), None, &limited);
    assert_eq!(waiting(&first).as_deref(), Some("6-7"));
}

/// Fewer CPUs go than were announced, and the best choice would be another one: CPUs 6 and 7 are on the first NUMA node.
#[test]
fn what_was_announced_to_stay_stays_if_fewer_cpus_go() {
    let held = ledger(&[("a", "main", "6-10")]);
    let first = decided_with(of_millis(3000), None, &held);
    assert_eq!(waiting(&first).as_deref(), Some("8-10"));
    for is_due in [false, true] {
        let then = decided_with(of_millis(3000), Some(("6-7", is_due)), &held);
        let left = waiting(&then).unwrap_or_else(|| cpus(&then)[0].clone());
        assert_eq!((&*left, waiting(&then).is_none()), ("6-7,10", is_due));
    }
}

#[test]
fn what_was_announced_to_go_does_not_stay_if_more_cpus_go() {
    let then = decided_after(of_millis(2000), Some(("5-7", true)));
    assert_eq!(waiting(&then).as_deref(), Some("6-7"));
}

/// Also before a container that grows in an earlier pod, beside another one without CPUs.
#[test]
fn growth_waits_for_all_containers_without_cpus() {
    let containers = [
        ("x", ContainerKind::App, 6000),
        ("y", ContainerKind::App, 1000),
    ];
    let held = ledger(&[("a", "x", "2-5"), ("c", "main", "6-12")]);
    let decisions = decided(&[pod("a", &containers), app("b", 2), app("c", 7)], &held);
    assert_eq!(cpus(&decisions), ["2-5", "13", "14-15", "6-12"]);
}

/// The CPUs of a container that is gone pass to one that has none, and not to one that grows.
#[test]
fn growth_waits_for_the_pods_container_without_cpus() {
    let own = set("2-3");
    let known = KnownPod {
        running: [("x", &own)].into(),
        populated: ["x"].into(),
        ..KnownPod::default()
    };
    let known = [("a", known)].into();
    let node = TestNode::new(machine(), set("0-1"));
    let containers = [
        ("x", ContainerKind::App, 3000),
        ("y", ContainerKind::App, 1000),
    ];
    let pods = recognized([pod("a", &containers), app("c", 11)]);
    let here = ["a", "c"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        known: Some(&known),
        ..node.input(&pods)
    };
    let held = ledger(&[("a", "x", "2-3"), ("a", "z", "4"), ("c", "main", "5-15")]);
    assert_eq!(cpus(&decide(&inputs, &held)), ["2-3", "4", "5-15"]);
}
