#![allow(clippy::needless_pass_by_value, reason = "json! makes values")]
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::cluster::own_node::OwnNode;
use crate::cluster::scenes::{Plans, RunningPod, RunningPods};

mod leaving;

/// The input of [`decide()`], with owned values.
struct World {
    plans: Plans,
    node: OwnNode,
    claims: BTreeSet<String>,
    lost: BTreeSet<String>,
    pods: RunningPods,
    memory: DecisionState,
}

fn plan(name: &str, active: Option<(&str, &str)>, more: Value) -> ScenePlan {
    let mut spec = json!({
        "nodes": {"selector": {"matchLabels": {"pool": "train"}}},
        "scenes": [
            {"scene": "1", "groups": [{"name": "m"}], "cases": [{"case": "1", "nodes": {"m": 2}}, {"case": "2", "nodes": {"m": 3}}]},
            {"scene": "2", "groups": [{"name": "s", "type": "ps"}], "cases": [{"case": "1", "nodes": {"s": 2}}]},
        ],
    });
    if let Some((scene, case)) = active {
        spec["active"] = json!({"scene": scene, "case": case});
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan",
        "metadata": {"name": name, "generation": 1}, "spec": spec,
    }))
    .unwrap()
}

impl World {
    fn new(plans: Vec<ScenePlan>) -> Self {
        let labels = BTreeMap::from([("pool".to_owned(), "train".to_owned())]);
        Self {
            plans: Plans {
                plans,
                unreadable: BTreeMap::new(),
                degraded: None,
                terminal: false,
                ended: Vec::new(),
            },
            node: OwnNode {
                name: "n".to_owned(),
                uid: "u".to_owned(),
                labels,
                ..OwnNode::default()
            },
            claims: BTreeSet::new(),
            lost: BTreeSet::new(),
            pods: Some(Vec::new()),
            memory: DecisionState::default(),
        }
    }

    /// Adds applied labels, and replaces the claims.
    fn having(mut self, labels: &[(&str, &str)], claims: &[&str]) -> Self {
        for (key, value) in labels {
            self.node
                .labels
                .insert((*key).to_owned(), (*value).to_owned());
            self.node.own_labels.insert((*key).to_owned());
        }
        self.claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        self
    }

    fn busy(mut self) -> Self {
        self.pods = Some(vec![RunningPod {
            name: "train/w".to_owned(),
            keys: None,
        }]);
        self
    }

    fn decide(&self) -> SlotDecision {
        let input = SlotDecisionInput {
            plans: &self.plans,
            node: &self.node,
            claims: &self.claims,
            lost: &self.lost,
            pods: &self.pods,
        };
        decide(input, &self.memory)
    }

    /// Carries out actions until none is left, as with a server that refuses nothing. Returns the actions as texts.
    fn settle(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..20 {
            let verdict = self.decide();
            match verdict.action {
                None => return done,
                Some(SlotAction::Claim { slots, .. }) => {
                    let name = slots.get(0).unwrap().lease_name(&verdict.plan.unwrap().0);
                    done.push(format!("claim {name}"));
                    self.claims.insert(name);
                }
                Some(SlotAction::Label(labels)) => {
                    let own_labels = std::mem::take(&mut self.node.own_labels);
                    self.node.labels.retain(|key, _| !own_labels.contains(key));
                    let text: Vec<String> = labels
                        .iter()
                        .map(|(key, value)| format!("{key}={value}"))
                        .collect();
                    done.push(format!("label {}", text.join(" ")));
                    self.node.own_labels = labels.keys().cloned().collect();
                    self.node.labels.extend(labels);
                }
                Some(SlotAction::Taint(taints)) => {
                    let keys: Vec<&str> = taints.iter().map(|taint| taint.key.as_str()).collect();
                    done.push(format!("taint {}", keys.join(" ")));
                    self.node.taints = taints;
                }
                Some(SlotAction::Release(name)) => {
                    done.push(format!("release {name}"));
                    self.claims.remove(&name);
                }
            }
        }
        panic!("the actions never end: {done:?}");
    }
}

const OLD: [(&str, &str); 3] = [("SCENCE", "1"), ("CASE", "1"), ("INDEX", "0")];

#[test]
fn a_claim_is_made_before_labelling_and_released_after_label_removal() {
    let tainted = json!({"taint": {}});
    let mut world = World::new(vec![plan("p", Some(("1", "1")), tainted.clone())]);
    assert_eq!(
        world.settle(),
        [
            "claim scene.p.1.1.0",
            "label CASE=1 INDEX=0 SCENCE=1",
            "taint pinfold.io/scene"
        ]
    );
    assert_eq!(world.decide().phase, Phase::Placed);
    world.plans.plans = vec![plan("p", Some(("2", "1")), tainted.clone())];
    assert_eq!(
        world.settle(),
        [
            "claim scene.p.2.1.ps.0",
            "label CASE=1 INDEX=0 SCENCE=2 TYPE=ps",
            "release scene.p.1.1.0"
        ]
    );
    world.plans.plans = vec![plan("p", None, tainted)];
    assert_eq!(
        world.settle(),
        ["taint ", "label ", "release scene.p.2.1.ps.0"]
    );
    assert_eq!(
        (world.decide().phase, world.decide().says.as_str()),
        (Phase::Free, "the plan has no active case")
    );
}

#[test]
fn decisions_after_a_crash_complete_the_change_of_slot() {
    // The two intermediate states of a change of slot.
    let plans = || vec![plan("p", Some(("1", "2")), Value::Null)];
    let claimed = World::new(plans()).having(&OLD, &["scene.p.1.1.0", "scene.p.1.2.1"]);
    let labelled = World::new(plans()).having(
        &[("SCENCE", "1"), ("CASE", "2"), ("INDEX", "1")],
        &["scene.p.1.1.0", "scene.p.1.2.1"],
    );
    for mut world in [claimed, labelled] {
        world.settle();
        assert_eq!(world.node.labels["INDEX"], "1");
        assert_eq!(world.claims, BTreeSet::from(["scene.p.1.2.1".to_owned()]));
    }
    // Two claims on the active case: the claim that the labels name stays. No order of Pinfold's actions leads to this state.
    let mut world = World::new(plans()).having(
        &[("SCENCE", "1"), ("CASE", "2"), ("INDEX", "2")],
        &["scene.p.1.2.0", "scene.p.1.2.2"],
    );
    assert_eq!(world.settle(), ["release scene.p.1.2.0"]);
    // A claim without labels.
    let mut world = World::new(vec![plan("p", None, Value::Null)]).having(&[], &["scene.p.1.1.0"]);
    assert_eq!(world.settle(), ["release scene.p.1.1.0"]);
}

#[test]
fn labels_and_claims_stay_without_a_readable_plan_for_the_node() {
    let held = |plans| World::new(plans).having(&OLD, &["scene.p.1.1.0"]);
    let stays = |world: &World, reason: &str| {
        let verdict = world.decide();
        assert_eq!(
            (verdict.phase, verdict.action),
            (Phase::Unknown, None),
            "{reason}"
        );
        assert!(verdict.says.contains(reason), "{}", verdict.says);
    };
    let mut unreachable = held(vec![plan("p", None, Value::Null)]);
    unreachable.plans.degraded = Some("the server is away".to_owned());
    stays(&unreachable, "nothing is changed: the server is away");
    stays(&held(vec![]), "no other plan covers this node");
    // A plan for other nodes, with other scenes.
    let elsewhere = json!({"nodes": {"names": ["x"]}, "scenes": [{"scene": "7", "groups": [{"name": "m"}], "cases": [{"case": "1", "nodes": {"m": 1}}]}]});
    stays(
        &held(vec![plan("other", Some(("7", "1")), elsewhere.clone())]),
        "no other plan",
    );
    // The labels may come from a plan that was never readable, for any content of the readable plans.
    for plans in [
        vec![],
        vec![plan("other", None, Value::Null)],
        vec![plan("other", Some(("1", "2")), Value::Null)],
    ] {
        let mut world = held(plans);
        world
            .plans
            .unreadable
            .insert("p".to_owned(), "no spec".to_owned());
        stays(&world, "plan p can't be read");
    }
    let mut wrong = plan("p", Some(("1", "1")), Value::Null);
    wrong.spec.active.as_mut().unwrap().case = "9".to_owned();
    stays(&held(vec![wrong]), "has no scene 1 with a case 9");

    // Labels go by a plan with the node as a candidate, by the plan of the claim, or by a plan that knows the labels.
    let mut other = plan("other", None, Value::Null);
    let first = |world: &World| world.decide().action;
    assert_eq!(
        first(&held(vec![other.clone()])),
        Some(SlotAction::Label(BTreeMap::new()))
    );
    other.spec.nodes.selector = None;
    other.spec.nodes.names = Some(vec!["x".to_owned()]);
    stays(&held(vec![other.clone()]), "no other plan");
    let listed = World::new(vec![other]).having(&OLD, &[]);
    assert_eq!(
        first(&listed),
        Some(SlotAction::Label(BTreeMap::new())),
        "the plan has scene 1 case 1, and the node has no claim"
    );
    let claiming = plan("p", Some(("7", "1")), elsewhere);
    assert_eq!(
        first(&held(vec![claiming])),
        Some(SlotAction::Label(BTreeMap::new())),
        "the claim belongs to the plan"
    );
}

#[test]
fn a_restarted_agent_finds_the_plan_of_a_claim_with_a_hashed_name() {
    let name = "p".repeat(250);
    let mut left = plan(&name, Some(("1", "1")), Value::Null);
    let slot = slots(&left, "1", "1").unwrap().get(0).unwrap();
    let lease = slot.lease_name(&name);
    assert!(is_hashed_lease(&lease), "{lease}");
    // The plan no longer covers the node, and the memory of the agent is empty.
    left.spec.nodes.selector = None;
    left.spec.nodes.names = Some(vec!["x".to_owned()]);
    let release = format!("release {lease}");
    for (labels, actions) in [
        (&OLD[..], vec!["label ".to_owned(), release.clone()]),
        (&OLD[..0], vec![release.clone()]),
    ] {
        let mut world = World::new(vec![left.clone()]).having(labels, &[&lease]);
        assert_eq!(world.settle(), actions);
        // A claim of an unrelated plan with the same slots tells nothing.
        let other = plan("other", Some(("1", "1")), Value::Null);
        let mut unrelated = World::new(vec![other]).having(labels, &[&lease]);
        unrelated.plans.plans[0].spec = left.spec.clone();
        assert!(unrelated.settle().is_empty());
    }
}

#[test]
fn on_busy_decides_whether_a_node_with_running_pods_changes() {
    let world = |rule: &str, active| {
        World::new(vec![plan("p", active, json!({"onBusy": rule}))])
            .having(&OLD, &["scene.p.1.1.0"])
            .busy()
    };
    for active in [Some(("2", "1")), None] {
        let verdict = world("wait", active).decide();
        assert_eq!(
            (verdict.phase, without_note(verdict.action)),
            (Phase::Waiting, None)
        );
        assert!(world("force", active).decide().action.is_some());
        let mut refusing = world("refuse", active);
        let verdict = refusing.decide();
        assert_eq!((verdict.phase, verdict.action), (Phase::Refused, None));
        // After the pods' end, the change stays refused until the plan changes.
        refusing.memory.refused = verdict.plan;
        refusing.pods = Some(Vec::new());
        assert_eq!(refusing.decide().phase, Phase::Refused);
        refusing.plans.plans[0].metadata.generation = Some(2);
        assert!(refusing.decide().action.is_some());
        // A node with unknown pods waits.
        for (rule, phase) in [("wait", Phase::Waiting), ("refuse", Phase::Waiting)] {
            let mut unknown = world(rule, active);
            unknown.pods = None;
            assert_eq!(
                (
                    unknown.decide().phase,
                    without_note(unknown.decide().action)
                ),
                (phase, None)
            );
        }
    }
    // The new case is full, and pods of the old case run.
    let mut spare = world("wait", Some(("2", "1")));
    spare.memory.full = Some(("p".to_owned(), "1".to_owned()));
    assert_eq!(spare.decide().phase, Phase::Waiting);
    spare.pods = Some(Vec::new());
    assert_eq!(spare.settle(), ["label ", "release scene.p.1.1.0"]);
    assert_eq!(
        spare.decide().says,
        "all 2 slots of scene 2 case 1 are taken"
    );
}

/// The action of a node that keeps its labels; `None` for the note that the node is to give them up later.
fn without_note(action: Option<SlotAction>) -> Option<SlotAction> {
    action.filter(
        |action| !matches!(action, SlotAction::Label(labels) if labels.contains_key(LEAVING_LABEL)),
    )
}

/// A single pod, with the label keys `keys` in the node selector.
fn bound(keys: &[&str]) -> RunningPods {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    Some(vec![RunningPod {
        name: "train/w".to_owned(),
        keys: Some(keys),
    }])
}

/// The claim on the slot that [`OLD`] names.
const CLAIM: &[&str] = &["scene.p.1.1.0"];

/// A node with the labels [`OLD`] and a pod with the label keys `keys`, under a plan with the label settings `labels`.
fn relabelled(
    active: Option<(&str, &str)>,
    labels: Value,
    claims: &[&str],
    keys: &[&str],
) -> World {
    let mut world =
        World::new(vec![plan("p", active, json!({"labels": labels}))]).having(&OLD, claims);
    world.pods = bound(keys);
    world
}

/// Label settings with another key for the scene.
fn renamed() -> Value {
    json!({"scene": "SCENE"})
}

/// Label settings with a second key for the scene.
fn alias() -> Value {
    json!({"aliases": {"SCENCE": "SCENE"}})
}

/// The slot that [`OLD`] names.
fn old_slot() -> Slot {
    Slot {
        scene: "1".to_owned(),
        case: "1".to_owned(),
        kind: None,
        index: 0,
    }
}

/// Checks that the node waits for the reason. Returns the slot of the verdict.
fn waits(world: &World, reason: &str) -> Option<Slot> {
    let verdict = world.decide();
    assert_eq!(
        (verdict.phase, without_note(verdict.action)),
        (Phase::Waiting, None),
        "{reason}"
    );
    assert!(
        verdict.says.contains(reason),
        "{} has no {reason}",
        verdict.says
    );
    verdict.slot
}

#[test]
fn on_busy_applies_when_the_case_and_the_label_keys_change() {
    // The labels or the claim name the node's slot.
    for active in [Some(("1", "2")), None] {
        for (labels, claims) in [(alias(), CLAIM), (alias(), &[]), (renamed(), CLAIM)] {
            let held = waits(
                &relabelled(active, labels, claims, &["CASE"]),
                "train/w still runs here and needs the labels of scene 1 case 1 index 0",
            );
            assert_eq!(held, Some(old_slot()));
        }
        // The memory names the slot if the plan lists the nodes and the node has no claims.
        let mut listed = relabelled(active, renamed(), &[], &["SCENCE"]);
        listed.plans.plans[0].spec.nodes.names = Some(vec!["n".to_owned()]);
        listed.memory.last = Some(("p".to_owned(), old_slot()));
        assert_eq!(
            waits(
                &listed,
                "train/w still runs here and needs the labels of scene 1 case 1 index 0"
            ),
            Some(old_slot())
        );
        // After a restart, the memory is empty. Pods may still depend on applied labels that name no slot.
        listed.memory = DecisionState::default();
        assert_eq!(
            waits(
                &listed,
                "train/w still runs here and needs the labels of the place CASE=1 INDEX=0 SCENCE=1"
            ),
            None
        );
        listed.pods = bound(&["zone"]);
        assert!(listed.decide().action.is_some());
        listed.pods = None;
        waits(&listed, "the pods of this node are not known yet");
    }
}

#[test]
fn on_busy_applies_when_only_the_label_keys_change() {
    let same = Some(("1", "1"));
    // Pods that select a removed label block the change. An added label changes nothing for pods.
    let mut keys = relabelled(same, renamed(), CLAIM, &["SCENCE"]);
    assert_eq!(
        waits(&keys, "label SCENCE stays: pod train/w"),
        Some(old_slot())
    );
    keys.plans.plans[0].spec.on_busy = OnBusy::Refuse;
    let refused = keys.decide();
    assert_eq!((refused.phase, refused.action), (Phase::Refused, None));
    keys.plans.plans[0].spec.on_busy = OnBusy::Force;
    assert_eq!(keys.settle(), ["label CASE=1 INDEX=0 SCENE=1"]);
    let mut unaffected = relabelled(same, renamed(), CLAIM, &["CASE", "INDEX"]);
    assert_eq!(unaffected.settle(), ["label CASE=1 INDEX=0 SCENE=1"]);
    let mut more = relabelled(same, alias(), CLAIM, &["SCENCE"]);
    assert_eq!(more.settle(), ["label CASE=1 INDEX=0 SCENCE=1 SCENE=1"]);
    more.plans.plans = vec![plan("p", same, Value::Null)];
    assert_eq!(
        more.settle(),
        ["label CASE=1 INDEX=0 SCENCE=1"],
        "no pod depends on the alias"
    );
    let mut fewer = relabelled(same, alias(), CLAIM, &["SCENE"]);
    fewer.settle();
    fewer.plans.plans = vec![plan("p", same, Value::Null)];
    waits(&fewer, "label SCENE stays");
    fewer.pods = Some(Vec::new());
    assert_eq!(fewer.settle(), ["label CASE=1 INDEX=0 SCENCE=1"]);
}

#[test]
fn on_busy_applies_when_the_labels_are_incomplete() {
    let broken = |active| {
        let world = World::new(vec![plan("p", active, Value::Null)]);
        let mut world = world.having(&OLD[..2], &["scene.p.1.1.0"]);
        world.pods = bound(&["SCENCE"]);
        world
    };
    for active in [Some(("1", "2")), Some(("2", "1")), None] {
        let verdict = broken(active).decide();
        assert_eq!(
            (verdict.phase, without_note(verdict.action)),
            (Phase::Waiting, None),
            "{active:?}"
        );
        assert!(
            verdict.says.contains("scene 1 case 1 index 0"),
            "{}",
            verdict.says
        );
        let mut spare = broken(active);
        spare.memory.full = Some(("p".to_owned(), "1".to_owned()));
        assert_eq!(spare.decide().phase, Phase::Waiting);
        spare.pods = Some(Vec::new());
        assert!(spare.decide().action.is_some());
    }
    // A missing label comes back at once, since no label changes or goes.
    assert_eq!(
        broken(Some(("1", "1"))).settle(),
        ["label CASE=1 INDEX=0 SCENCE=1"]
    );
    // With two claims, the claim outside the active case names the former slot.
    let mut two = broken(Some(("1", "2")));
    two.claims.insert("scene.p.1.2.1".to_owned());
    assert_eq!(
        (two.decide().phase, two.decide().slot.unwrap().case),
        (Phase::Waiting, "1".to_owned())
    );
    // No pod depends on a claim without labels.
    let mut bare = World::new(vec![plan("p", None, Value::Null)]).having(&[], &["scene.p.1.1.0"]);
    bare.pods = bound(&["SCENCE"]);
    assert_eq!(bare.settle(), ["release scene.p.1.1.0"]);
}

#[test]
fn differing_labels_of_a_different_field_manager_are_a_conflict() {
    let world = |labels: &[(&str, &str)]| {
        let mut world = World::new(vec![plan("p", Some(("1", "2")), Value::Null)]);
        for (key, value) in labels {
            world
                .node
                .labels
                .insert((*key).to_owned(), (*value).to_owned());
            world
                .node
                .owners
                .insert((*key).to_owned(), "kubectl".to_owned());
        }
        world
    };
    for labels in [
        &[("SCENCE", "2")][..],
        &[("INDEX", "1")],
        &[("TYPE", "ps")],
        &[("SCENCE", "1"), ("CASE", "1"), ("INDEX", "0")],
    ] {
        let verdict = world(labels).decide();
        assert_eq!(
            (verdict.phase, verdict.action),
            (Phase::Conflict, None),
            "{labels:?}"
        );
        assert!(verdict.says.contains("set by kubectl"), "{}", verdict.says);
    }
    // Equal labels are no conflict. Labels that name a slot of the case allow only this slot.
    assert!(matches!(
        world(&[("SCENCE", "1")]).decide().action,
        Some(SlotAction::Claim { only: None, .. })
    ));
    let whole = world(&[("SCENCE", "1"), ("CASE", "2"), ("INDEX", "2")]);
    let Some(SlotAction::Claim {
        only: Some(slot), ..
    }) = whole.decide().action
    else {
        panic!()
    };
    assert_eq!(slot.index, 2);
    // Labels of another field manager stay if no plan wants the node.
    let mut idle = world(&[("SCENCE", "1"), ("CASE", "2"), ("INDEX", "2")]);
    idle.plans.plans = vec![plan("p", None, Value::Null)];
    assert_eq!(
        (idle.decide().phase, idle.decide().action),
        (Phase::Free, None)
    );
}
