//! The agent's decisions about a plan.

use pinfold::scene::{
    CaseTaint, Holding, Node, OnBusy, Slot, SlotDuty, SwitchDecision, WantedSlot, duty, slots,
    switch, want,
};
use serde_json::json;

use super::{SMALL, node, pairs, plan};

fn slot(kind: Option<&str>, index: u32) -> Slot {
    Slot {
        scene: "2".to_owned(),
        case: "1".to_owned(),
        kind: kind.map(str::to_owned),
        index,
    }
}

#[test]
fn a_candidate_claims_and_a_listed_node_has_its_place() {
    let small = plan(SMALL);
    assert!(
        matches!(want(&small, &node("a", &[])).unwrap(), WantedSlot::Nothing { reason } if reason.contains("not a candidate of the plan"))
    );
    let WantedSlot::Claim(slots) = want(&small, &node("a", &[("pool", "train")])).unwrap() else {
        panic!()
    };
    assert_eq!(
        slots.iter().collect::<Vec<_>>(),
        [
            slot(Some("worker"), 0),
            slot(Some("worker"), 1),
            slot(Some("ps"), 0)
        ]
    );
    assert_eq!(slots.group(2), Some("p"));

    let mut listed = small.clone();
    listed.spec.nodes.selector = None;
    listed.spec.nodes.names = Some(["c", "b", "a", "z"].map(str::to_owned).to_vec());
    assert_eq!(
        want(&listed, &node("a", &[])).unwrap(),
        WantedSlot::Slot(slot(Some("ps"), 0))
    );
    assert_eq!(
        want(&listed, &node("c", &[])).unwrap(),
        WantedSlot::Slot(slot(Some("worker"), 0))
    );
    assert!(
        matches!(want(&listed, &node("z", &[])).unwrap(), WantedSlot::Nothing { reason } if reason.contains("further down"))
    );

    let mut idle = small.clone();
    idle.spec.active = None;
    assert!(
        matches!(want(&idle, &node("a", &[("pool", "train")])).unwrap(), WantedSlot::Nothing { reason } if reason.contains("no active case"))
    );

    // A plan with an unknown active case takes nothing away.
    let mut wrong = small;
    wrong.spec.active.as_mut().unwrap().case = "7".to_owned();
    let error = want(&wrong, &node("a", &[("pool", "train")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plan small has no scene 2 with a case 7: choose one of scene 2 with case 1"
    );
}

#[test]
fn the_last_place_is_tried_first() {
    let small = plan(SMALL);
    let slots = slots(&small, "2", "1").unwrap();
    let keys = &small.spec.labels;
    for name in ["a", "b", "c", "d"] {
        let labelled = node(
            name,
            &[
                ("SCENCE", "2"),
                ("CASE", "1"),
                ("TYPE", "ps"),
                ("INDEX", "0"),
            ],
        );
        let order: Vec<usize> =
            WantedSlot::order(&slots, keys, &labelled, Some(&slot(Some("worker"), 1))).collect();
        assert_eq!((order[0], order.len()), (2, 3), "its labels say so");
        let order: Vec<usize> = WantedSlot::order(
            &slots,
            keys,
            &node(name, &[]),
            Some(&slot(Some("worker"), 1)),
        )
        .collect();
        assert_eq!((order[0], order.len()), (1, 3), "it remembers");
        let other = node(name, &[("SCENCE", "1"), ("CASE", "1"), ("INDEX", "0")]);
        let order: Vec<usize> = WantedSlot::order(&slots, keys, &other, None).collect();
        let fresh: Vec<usize> = WantedSlot::order(&slots, keys, &node(name, &[]), None).collect();
        assert_eq!(order, fresh, "another case's slot is none of this one's");
    }
}

#[test]
fn labels_of_a_place_and_back() {
    let mut small = plan(SMALL);
    let keys = &mut small.spec.labels;
    keys.aliases = pairs(&[("SCENCE", "SCENE")]);
    let labels = keys.labels(&slot(Some("ps"), 0));
    let written: Vec<(&str, &str)> = labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        written,
        [
            ("SCENCE", "2"),
            ("SCENE", "2"),
            ("CASE", "1"),
            ("INDEX", "0"),
            ("TYPE", "ps")
        ]
    );
    assert_eq!(
        keys.owned().into_iter().collect::<Vec<_>>(),
        ["CASE", "INDEX", "SCENCE", "SCENE", "TYPE"]
    );
    let read = |labels: &[(&str, &str)]| keys.read(&pairs(labels));
    assert_eq!(read(&written), Holding::Slot(slot(Some("ps"), 0)));
    assert_eq!(read(&[("zone", "a")]), Holding::Nothing);
    for (labels, words) in [
        (
            vec![("SCENCE", "2"), ("SCENE", "2"), ("CASE", "1")],
            "missing INDEX",
        ),
        (vec![("TYPE", "ps")], "missing SCENCE and CASE and INDEX"),
        (
            vec![
                ("SCENCE", "2"),
                ("SCENE", "2"),
                ("CASE", "1"),
                ("INDEX", "01"),
            ],
            "leading zeros",
        ),
        (
            vec![
                ("SCENCE", "2"),
                ("SCENE", "2"),
                ("CASE", "1"),
                ("INDEX", "-1"),
            ],
            "is not a number",
        ),
        (
            vec![
                ("SCENCE", "2"),
                ("SCENE", "3"),
                ("CASE", "1"),
                ("INDEX", "1"),
            ],
            "SCENE should be 2",
        ),
        (
            vec![("SCENCE", "2"), ("CASE", "1"), ("INDEX", "1")],
            "SCENE should be 2",
        ),
    ] {
        let Holding::Broken { reason } = read(&labels) else {
            panic!("{labels:?}")
        };
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn the_rule_decides_on_a_busy_node() {
    let has = slot(Some("ps"), 0).to_string();
    let pods = ["train/ps-0".to_owned(), "train/worker-1".to_owned()];
    for rule in [OnBusy::Wait, OnBusy::Force, OnBusy::Refuse] {
        assert!(
            matches!(switch(rule, &has, &[]), SwitchDecision::Change { .. }),
            "nothing runs"
        );
    }
    let SwitchDecision::Wait { reason } = switch(OnBusy::Wait, &has, &pods) else {
        panic!()
    };
    assert_eq!(
        reason,
        "2 pods still run here and need the labels of scene 2 case 1 type ps index 0, for example train/ps-0"
    );
    assert!(
        matches!(switch(OnBusy::Force, &has, &pods), SwitchDecision::Change { reason } if reason.contains("force"))
    );
    let SwitchDecision::Refuse { reason } = switch(OnBusy::Refuse, &has, &pods[..1]) else {
        panic!()
    };
    assert!(
        reason.starts_with(
            "pod train/ps-0 still runs here and needs the labels of scene 2 case 1 type ps index 0"
        ),
        "{reason}"
    );
}

#[test]
fn claims_have_names_that_an_object_can_have() {
    let name = |plan: &str, scene: &str, case: &str, kind: Option<&str>| {
        let kind = kind.map(str::to_owned);
        Slot {
            scene: scene.to_owned(),
            case: case.to_owned(),
            kind,
            index: 7,
        }
        .lease_name(plan)
    };
    assert_eq!(
        name("locality", "2", "2", Some("worker")),
        "scene.locality.2.2.worker.7"
    );
    assert_eq!(name("a.b", "PS_x", "1", None), "scene.az2b.zpzsz1x.1.7");
    let long = name(&"x".repeat(200), &"A".repeat(60), "1", None);
    assert!(long.starts_with("scene.long.") && long.len() < 64, "{long}");
    assert_ne!(long, name(&"x".repeat(200), &"A".repeat(61), "1", None));
}

#[test]
fn plans_are_asked_together() {
    let named = |name: &str, pool: &str| {
        plan(
            &SMALL
                .replace("name: small", &format!("name: {name}"))
                .replace("pool: train", &format!("pool: {pool}")),
        )
    };
    let (mine, other) = (named("mine", "a"), named("other", "b"));
    let here = node("n", &[("pool", "a")]);
    // A second plan without the node takes nothing from the node.
    for plans in [[mine.clone(), other.clone()], [other.clone(), mine.clone()]] {
        assert!(
            matches!(duty(&plans, &here).unwrap(), SlotDuty::Of(plan, WantedSlot::Claim(_)) if *plan == mine)
        );
    }
    let free = |plans: &[_], node: &Node| match duty(plans, node).unwrap() {
        SlotDuty::Free { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(free(&[], &here), "there is no plan");
    assert_eq!(
        free(&[mine.clone(), other.clone()], &node("n", &[])),
        "the node is not a candidate of the plan"
    );
    let mut idle = mine.clone();
    idle.spec.active = None;
    assert_eq!(
        free(&[idle, other.clone()], &here),
        "the plan has no active case"
    );
    let both = [mine.clone(), named("again", "a")];
    assert_eq!(
        duty(&both, &here).unwrap(),
        SlotDuty::Disputed {
            plans: vec!["mine".to_owned(), "again".to_owned()]
        }
    );
    // A mistake in a plan stops its own candidates only.
    let mut wrong = mine;
    wrong.spec.active.as_mut().unwrap().scene = "7".to_owned();
    let plans = [wrong, other];
    assert!(duty(&plans, &here).is_err());
    assert!(matches!(
        duty(&plans, &node("n", &[("pool", "b")])).unwrap(),
        SlotDuty::Of(..)
    ));
}

#[test]
fn api_objects_are_read_like_files() {
    let text = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"SCENCE": "1"}},
        "spec": {"unschedulable": true}, "status": {"allocatable": {"cpu": "3920m", "memory": "12Gi"}}}"#;
    let object: Node = serde_json::from_str(text).unwrap();
    assert!(object.cordoned && object.labels["SCENCE"] == "1");
    assert_eq!(pinfold::scene::read_nodes(text, "x").unwrap(), [object]);

    let taint = |text: &str| {
        serde_json::to_value(serde_json::from_str::<CaseTaint>(text).unwrap().to_k8s()).unwrap()
    };
    assert_eq!(
        taint("{}"),
        json!({"key": "pinfold.io/scene", "effect": "NoSchedule"})
    );
    assert_eq!(
        taint(r#"{"key": "pinfold.io/a", "value": "b", "effect": "PreferNoSchedule"}"#),
        json!({"key": "pinfold.io/a", "value": "b", "effect": "PreferNoSchedule"})
    );
}
