//! A plan's status, from the plans, the nodes and the claims of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use pinfold::scene::{
    ClusterView, Node, ScenePlan, ScenePlanStatus, SlotCounts, is_hashed_lease, plan_status, slots,
    unreadable_status,
};

use super::{SMALL, node, plan};

/// A plan with the slots worker 0, worker 1 and ps 0.
fn small() -> ScenePlan {
    let mut plan = plan(SMALL);
    plan.metadata.generation = Some(3);
    plan
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

/// A candidate with the labels of a slot: `worker 0`, or no slot for an empty text.
fn on(name: &str, slot: &str) -> Node {
    let mut labels = vec![("pool", "train")];
    if let Some((kind, index)) = slot.split_once(' ') {
        labels.extend([
            ("SCENCE", "2"),
            ("CASE", "1"),
            ("TYPE", kind),
            ("INDEX", index),
        ]);
    }
    node(name, &labels)
}

/// Claims by slot and node.
fn claims(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter()
        .map(|(slot, node)| {
            let lease = format!("scene.small.2.1.{}", slot.replace(' ', "."));
            (lease, (*node).to_owned())
        })
        .collect()
}

fn status_of(
    plans: &[ScenePlan],
    nodes: &[Node],
    claims: &BTreeMap<String, String>,
) -> ScenePlanStatus {
    plan_status(
        &plans[0],
        &ClusterView::new(plans, nodes, claims),
        None,
        &at(100),
    )
}

/// The conditions as texts: status and reason.
fn states(status: &ScenePlanStatus) -> [String; 3] {
    ["Accepted", "Placed", "Conflicted"].map(|kind| {
        let condition = status.condition(kind).unwrap();
        assert_eq!(condition.observed_generation, Some(3), "{kind}");
        format!("{} {}", condition.status, condition.reason)
    })
}

/// Slots, nodes, counts, and the conditions.
struct Case {
    what: &'static str,
    claims: &'static [(&'static str, &'static str)],
    nodes: &'static [(&'static str, &'static str)],
    claimed: &'static str,
    ready: u32,
    placed: &'static str,
    conflicted: &'static str,
}

const FREE: &str = "False NoConflict";

const CASES: &[Case] = &[
    Case {
        what: "no node has asked yet",
        claims: &[],
        nodes: &[("a", ""), ("b", ""), ("c", "")],
        claimed: "0/3",
        ready: 0,
        placed: "False Claiming",
        conflicted: FREE,
    },
    Case {
        what: "the cluster has too few nodes",
        claims: &[("worker 0", "a")],
        nodes: &[("a", "worker 0"), ("b", "")],
        claimed: "1/3",
        ready: 1,
        placed: "False TooFewNodes",
        conflicted: FREE,
    },
    Case {
        what: "a node has the claim and not yet the labels",
        claims: &[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")],
        nodes: &[("a", "worker 0"), ("b", ""), ("c", "ps 0")],
        claimed: "3/3",
        ready: 2,
        placed: "False Labelling",
        conflicted: FREE,
    },
    Case {
        what: "a node keeps the labels of a former case while pods run",
        claims: &[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")],
        nodes: &[("a", "worker 0"), ("b", "worker 7"), ("c", "ps 0")],
        claimed: "3/3",
        ready: 2,
        placed: "False Labelling",
        conflicted: FREE,
    },
    Case {
        what: "all slots have their nodes, and a node is spare",
        claims: &[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")],
        nodes: &[
            ("a", "worker 0"),
            ("b", "worker 1"),
            ("c", "ps 0"),
            ("d", ""),
        ],
        claimed: "3/3",
        ready: 3,
        placed: "True AllReady",
        conflicted: FREE,
    },
    Case {
        what: "a node has labels without a claim",
        claims: &[("worker 0", "a"), ("worker 1", "b")],
        nodes: &[("a", "worker 0"), ("b", "worker 1"), ("c", "ps 0")],
        claimed: "2/3",
        ready: 2,
        placed: "False Claiming",
        conflicted: "True WrongLabels",
    },
    Case {
        what: "a second node has the labels of a claimed slot",
        claims: &[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")],
        nodes: &[
            ("a", "worker 0"),
            ("b", "worker 1"),
            ("c", "ps 0"),
            ("d", "ps 0"),
        ],
        claimed: "3/3",
        ready: 2,
        placed: "False Labelling",
        conflicted: "True WrongLabels",
    },
    Case {
        what: "a node holds every claim, and the claim on the slot of its labels counts",
        claims: &[("worker 0", "a"), ("worker 1", "a"), ("ps 0", "a")],
        nodes: &[("a", "worker 1"), ("b", ""), ("c", "")],
        claimed: "1/3",
        ready: 1,
        placed: "False Claiming",
        conflicted: "True SurplusClaims",
    },
    Case {
        what: "a node without labels holds two claims",
        claims: &[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "a")],
        nodes: &[("a", ""), ("b", "worker 1"), ("c", "")],
        claimed: "2/3",
        ready: 1,
        placed: "False Claiming",
        conflicted: "True SurplusClaims",
    },
    Case {
        what: "a node holds a claim of a former case while pods run",
        claims: &[
            ("worker 7", "a"),
            ("worker 0", "a"),
            ("worker 1", "b"),
            ("ps 0", "c"),
        ],
        nodes: &[("a", "worker 7"), ("b", "worker 1"), ("c", "ps 0")],
        claimed: "3/3",
        ready: 2,
        placed: "False Labelling",
        conflicted: FREE,
    },
    Case {
        what: "claims of other cases do not count",
        claims: &[("worker 2", "a"), ("worker 3", "b")],
        nodes: &[("a", ""), ("b", ""), ("c", "")],
        claimed: "0/3",
        ready: 0,
        placed: "False Claiming",
        conflicted: FREE,
    },
];

#[test]
fn claims_and_labels_decide_the_conditions() {
    for case in CASES {
        let nodes: Vec<Node> = case
            .nodes
            .iter()
            .map(|(name, slot)| on(name, slot))
            .collect();
        let status = status_of(&[small()], &nodes, &claims(case.claims));
        let expected = ["True Valid", case.placed, case.conflicted].map(str::to_owned);
        assert_eq!(states(&status), expected, "{}", case.what);
        assert_eq!(status.claimed, case.claimed, "{}", case.what);
        let counts = status.slots.unwrap();
        assert_eq!(
            (counts.wanted, counts.ready),
            (3, case.ready),
            "{}",
            case.what
        );
        assert_eq!(status.observed_generation, Some(3));
    }
}

#[test]
fn the_messages_name_slot_and_node() {
    let message = |nodes: &[Node], claims: &BTreeMap<String, String>, kind: &str| {
        let status = status_of(&[small()], nodes, claims);
        status.condition(kind).unwrap().message.clone()
    };
    let three = [on("a", "worker 0"), on("b", ""), on("c", "")];
    assert_eq!(
        message(&three, &claims(&[("worker 0", "a")]), "Placed"),
        "1 of 3 slots claimed; the first free slot is scene 2 case 1 type worker index 1"
    );
    assert_eq!(
        message(&three[..1], &claims(&[("worker 0", "a")]), "Placed"),
        "scene 2 case 1 has 3 slots, but the plan has only 1 node"
    );
    // A busy node keeps its labels, whether it has a claim of the new case or not. Both sentences say why the slot has no node.
    let busy = node(
        "b",
        &[
            ("pool", "train"),
            ("SCENCE", "2"),
            ("CASE", "2"),
            ("TYPE", "worker"),
            ("INDEX", "0"),
        ],
    );
    let text = SMALL.replace(
        "    - {case: \"1\"",
        "    - {case: \"2\", nodes: {w: 1, p: 0}}\n    - {case: \"1\"",
    );
    let two_cases = [plan(&text)];
    let placed = |claims: &BTreeMap<String, String>| {
        let nodes = [on("a", "worker 0"), busy.clone(), on("c", "ps 0")];
        let status = status_of(&two_cases, &nodes, claims);
        status.condition("Placed").unwrap().message.clone()
    };
    let kept = "keeps the labels of scene 2 case 2 type worker index 0 until its pods have ended";
    assert_eq!(
        placed(&claims(&[("worker 0", "a"), ("ps 0", "c")])),
        format!(
            "2 of 3 slots claimed; the first free slot is scene 2 case 1 type worker index 1; node b {kept}"
        )
    );
    let all = claims(&[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")]);
    assert_eq!(
        placed(&all),
        format!(
            "2 of 3 slots labelled; node b holds scene 2 case 1 type worker index 1, but {kept}"
        )
    );
    let text = message(&three, &all, "Placed");
    assert!(
        text.starts_with("1 of 3 slots labelled; node b holds scene 2 case 1 type worker index 1"),
        "{text}"
    );
    assert_eq!(
        message(&three, &claims(&[("worker 0", "b")]), "Conflicted"),
        "node a has the labels of scene 2 case 1 type worker index 0, but node b holds the claim: remove the labels from the wrong node"
    );
    let twice = [on("a", "ps 0"), on("b", "ps 0"), on("c", "worker 0")];
    assert_eq!(
        message(&twice, &claims(&[("ps 0", "a")]), "Conflicted"),
        "node c has the labels of scene 2 case 1 type worker index 0, but no node holds the claim: remove the labels from the wrong node \
         (2 conflicts in all)"
    );
}

/// The claims that the reclaimer removes, of a plan and its nodes.
fn surplus(plan: ScenePlan, nodes: &[Node], claims: &BTreeMap<String, String>) -> Vec<String> {
    let plans = [plan];
    ClusterView::new(&plans, nodes, claims).surplus(&plans[0])
}

#[test]
fn one_claim_of_each_node_counts() {
    let all = claims(&[("worker 0", "a"), ("worker 1", "a"), ("ps 0", "b")]);
    let lease = |slot: &str| vec![format!("scene.small.2.1.{slot}")];
    for (labels, removed) in [
        ("worker 0", "worker.1"),
        ("worker 1", "worker.0"),
        // The labels name a slot of a former case, or a slot that the node does not hold: the first claim by name counts.
        ("worker 7", "worker.1"),
        ("ps 0", "worker.1"),
        ("", "worker.1"),
    ] {
        let nodes = [on("a", labels), on("b", "ps 0")];
        assert_eq!(surplus(small(), &nodes, &all), lease(removed), "{labels}");
    }
    // A Node that is gone, and a claim without a readable holder.
    assert_eq!(surplus(small(), &[], &all), lease("worker.1"));
    let unreadable = claims(&[("worker 0", ""), ("worker 1", ""), ("ps 0", "b")]);
    assert_eq!(surplus(small(), &[], &unreadable), [""; 0]);
    // Labels from before the addition of an alias still name the slot.
    let mut aliased = small();
    aliased.spec.labels.aliases = [("SCENCE".to_owned(), "SCENE".to_owned())].into();
    let nodes = [on("a", "worker 1")];
    assert_eq!(surplus(aliased, &nodes, &all), lease("worker.0"));
    let mut listed = small();
    (listed.spec.nodes.names, listed.spec.nodes.selector) = (Some(vec!["a".to_owned()]), None);
    assert_eq!(surplus(listed, &nodes, &all), [""; 0]);
    let mut inactive = small();
    inactive.spec.active = None;
    assert_eq!(surplus(inactive, &nodes, &all), [""; 0]);
    let status = status_of(&[small()], &nodes, &all);
    assert_eq!(
        status.condition("Conflicted").unwrap().message,
        "node a holds 2 claims of the case, and only scene.small.2.1.worker.1 counts: the reclaimer removes the others; if they \
         come back, somebody else has the token of the node's agent"
    );
}

/// A hash replaces a long name, and groups of the same type share their slots: neither hides a claim nor counts it twice.
#[test]
fn hashed_and_shared_names_of_claims_count_once() {
    let mut long = small();
    long.metadata.name = Some("p".repeat(250));
    let case = slots(&long, "2", "1").unwrap();
    let leases: Vec<String> = case
        .iter()
        .map(|slot| slot.lease_name(&"p".repeat(250)))
        .collect();
    assert!(leases.iter().all(|lease| is_hashed_lease(lease)));
    let of_a = |leases: &[String]| -> BTreeMap<String, String> {
        leases
            .iter()
            .map(|lease| (lease.clone(), "a".to_owned()))
            .collect()
    };
    let worker = case
        .iter()
        .position(|slot| slot.kind.as_deref() == Some("worker"));
    let own = leases[worker.unwrap()].clone();
    let removed = surplus(long.clone(), &[on("a", "worker 0")], &of_a(&leases));
    assert_eq!(removed.len(), 2);
    assert!(!removed.contains(&own), "{removed:?}");

    // The definition refuses such a plan, but a server may have it from an earlier definition.
    let mut shared = long;
    for group in &mut shared.spec.scenes[0].groups {
        group.kind = Some("worker".to_owned());
    }
    assert_eq!(
        surplus(shared, &[on("a", "worker 0")], &of_a(&[own])),
        [""; 0]
    );
}

/// The nodes of an explicit list need no claims.
#[test]
fn a_listed_node_counts_as_claimed_if_the_node_exists() {
    let mut listed = small();
    listed.spec.nodes.selector = None;
    listed.spec.nodes.names = Some(["a", "b", "c", "d"].map(str::to_owned).to_vec());
    let nodes = [on("a", "worker 0"), on("b", ""), on("d", "")];
    let status = status_of(std::slice::from_ref(&listed), &nodes, &claims(&[]));
    assert_eq!(
        status.slots,
        Some(SlotCounts {
            wanted: 3,
            claimed: 2,
            ready: 1
        })
    );
    assert_eq!(
        states(&status),
        ["True Valid", "False Claiming", FREE].map(str::to_owned)
    );
    let nodes = [on("a", "worker 0"), on("b", "worker 1"), on("c", "ps 0")];
    let status = status_of(&[listed], &nodes, &claims(&[]));
    assert_eq!(
        (status.claimed.as_str(), states(&status)[1].as_str()),
        ("3/3", "True AllReady")
    );
}

#[test]
fn a_plan_without_a_usable_case_has_no_slots() {
    let mut idle = small();
    idle.spec.active = None;
    let status = status_of(&[idle], &[on("a", "")], &claims(&[]));
    assert_eq!(
        states(&status),
        ["True NoActiveCase", "False NoActiveCase", FREE].map(str::to_owned)
    );
    assert_eq!((status.slots, status.claimed.as_str()), (None, ""));

    let mut wrong = small();
    wrong.spec.active.as_mut().unwrap().case = "7".to_owned();
    let status = status_of(&[wrong], &[on("a", "")], &claims(&[]));
    assert_eq!(
        states(&status),
        ["False UnknownCase", "False NotAccepted", FREE].map(str::to_owned)
    );
    let message = &status.condition("Accepted").unwrap().message;
    assert!(message.contains("no scene 2 with a case 7"), "{message}");
}

/// The API server refuses a status with a message that is too long.
#[test]
fn a_message_about_many_nodes_is_cut() {
    let nodes: Vec<Node> = (0..5000)
        .map(|number| on(&format!("node-{number}"), "worker 0"))
        .collect();
    let status = status_of(&[small()], &nodes, &claims(&[]));
    let message = &status.condition("Conflicted").unwrap().message;
    assert!(message.contains("node-0 and node-1"), "{message}");
    assert_eq!(message.chars().count(), 1025);
    assert!(message.ends_with('…'), "{message}");
    let status = unreadable_status(Some(3), &"漢".repeat(40_000), None, &at(1));
    let message = &status.condition("Accepted").unwrap().message;
    assert_eq!(message.chars().count(), 1025);
}

/// Two active plans that want a node leave the node unchanged, so both plans report the conflict.
#[test]
fn two_active_plans_with_a_common_node_conflict() {
    let mut second = small();
    second.metadata.name = Some("second".to_owned());
    let nodes = [on("a", ""), on("b", "")];
    let none = claims(&[]);
    let both = [small(), second.clone()];
    let view = ClusterView::new(&both, &nodes, &none);
    for plan in &both {
        let status = plan_status(plan, &view, None, &at(1));
        let condition = status.condition("Conflicted").unwrap();
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("True", "PlansOverlap")
        );
        assert_eq!(
            condition.message,
            "the plans small and second all want node a, so the node stays unchanged: correct the plans (2 conflicts in all)"
        );
    }
    // A plan without an active case, and a list whose nodes are beyond the case, want no node.
    second.spec.active = None;
    assert_eq!(
        states(&status_of(&[small(), second.clone()], &nodes, &none))[2],
        FREE
    );
    second.spec.active = small().spec.active;
    second.spec.nodes.selector = None;
    second.spec.nodes.names = Some(["x", "y", "z", "a"].map(str::to_owned).to_vec());
    assert_eq!(
        states(&status_of(&[small(), second], &nodes, &none))[2],
        FREE
    );
}

#[test]
fn the_transition_time_changes_only_with_the_status() {
    let plans = [small()];
    let nodes = [on("a", "worker 0"), on("b", ""), on("c", "")];
    let some = claims(&[("worker 0", "a")]);
    let view = ClusterView::new(&plans, &nodes, &some);
    let first = plan_status(&plans[0], &view, None, &at(100));
    // The same state at a later time is the same status: nothing has to be written.
    assert_eq!(plan_status(&plans[0], &view, Some(&first), &at(200)), first);
    // The message changes, and the status stays False.
    let more = claims(&[("worker 0", "a"), ("worker 1", "b")]);
    let view = ClusterView::new(&plans, &nodes, &more);
    let second = plan_status(&plans[0], &view, Some(&first), &at(300));
    let since = |status: &ScenePlanStatus, kind: &str| {
        status.condition(kind).unwrap().last_transition_time.clone()
    };
    assert_ne!(second, first);
    assert_eq!(since(&second, "Placed"), at(100));
    let nodes = [on("a", "worker 0"), on("b", "worker 1"), on("c", "ps 0")];
    let all = claims(&[("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")]);
    let view = ClusterView::new(&plans, &nodes, &all);
    let third = plan_status(&plans[0], &view, Some(&second), &at(400));
    assert_eq!(since(&third, "Placed"), at(400));
    assert_eq!(since(&third, "Accepted"), at(100));
}

#[test]
fn an_unreadable_plan_is_not_accepted() {
    let status = unreadable_status(Some(3), "spec.scenes is a text", None, &at(1));
    assert_eq!(
        states(&status),
        ["False Unreadable", "False NotAccepted", FREE].map(str::to_owned)
    );
    assert_eq!(
        status.condition("Accepted").unwrap().message,
        "the plan can't be read: spec.scenes is a text"
    );
}

/// `kubectl get -o yaml` prints the status. A copy of the plan is a valid file, whatever the status says.
#[test]
fn a_status_in_a_file_is_ignored() {
    for status in ["{claimed: 1/3}", "{conditions: later}", "soon"] {
        let text = format!("{}\nstatus: {status}\n", SMALL.trim_end());
        assert_eq!(plan(&text), plan(SMALL), "{status}");
    }
}
