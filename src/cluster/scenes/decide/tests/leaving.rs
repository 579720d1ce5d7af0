//! A node that gives up its slot without a plan, or because another node has claimed it.

use serde_json::{Value, json};

use super::{DecisionState, Phase, World, plan};

#[test]
fn an_ordered_removal_outlives_the_plan() {
    let tainted = json!({"taint": {}});
    let mut world = World::new(vec![plan("p", Some(("1", "1")), tainted.clone())]);
    world.settle();
    // The active case is removed while a pod runs, and then the plan.
    world = world.busy();
    world.plans.plans = vec![plan("p", None, tainted.clone())];
    assert_eq!(
        world.settle(),
        ["label CASE=1 INDEX=0 SCENCE=1 pinfold.io/leaving=p"]
    );
    assert_eq!(world.decide().phase, Phase::Waiting);
    world.plans.plans.clear();
    for _ in 0..2 {
        let verdict = world.decide();
        assert_eq!((verdict.phase, &verdict.action), (Phase::Waiting, &None));
        assert!(verdict.says.contains("train/w"), "{}", verdict.says);
        // A restarted agent knows only the Node and the claims.
        world.memory = DecisionState::default();
    }
    world.pods = None;
    assert_eq!(
        world.decide().phase,
        Phase::Waiting,
        "unknown pods may still run"
    );
    world.pods = Some(Vec::new());
    assert_eq!(
        world.settle(),
        [
            "taint ",
            "label pinfold.io/leaving=p",
            "release scene.p.1.1.0",
            "label "
        ]
    );
    assert_eq!(world.decide().phase, Phase::Free);

    // A plan that wants the node again takes the order back, even while the pod runs.
    let mut world = World::new(vec![plan("p", Some(("1", "1")), tainted.clone())]);
    world.settle();
    world = world.busy();
    world.plans.plans = vec![plan("p", None, tainted.clone())];
    world.settle();
    world.plans.plans = vec![plan("p", Some(("1", "1")), tainted)];
    assert_eq!(world.settle(), ["label CASE=1 INDEX=0 SCENCE=1"]);
    world.plans.plans.clear();
    world.pods = Some(Vec::new());
    assert_eq!(
        world.decide().phase,
        Phase::Unknown,
        "a deleted plan removes nothing"
    );
}

/// A person removes the active case and deletes the plan at once. The node hears of both before it acts.
#[test]
fn a_plan_deleted_right_after_its_order_still_counts() {
    let mut world = World::new(vec![plan("p", Some(("1", "1")), Value::Null)]);
    world.settle();
    world.plans.plans.clear();
    assert_eq!(world.decide().phase, Phase::Unknown);
    world.plans.ended = vec![plan("other", None, Value::Null)];
    world.memory = DecisionState::default();
    assert_eq!(
        world.decide().phase,
        Phase::Unknown,
        "the order was for other nodes"
    );
    world.plans.ended.push(plan("p", None, Value::Null));
    let mut busy = world.busy();
    assert_eq!(
        busy.settle(),
        ["label CASE=1 INDEX=0 SCENCE=1 pinfold.io/leaving=p"]
    );
    busy.pods = Some(Vec::new());
    assert_eq!(
        busy.settle(),
        [
            "label pinfold.io/leaving=p",
            "release scene.p.1.1.0",
            "label "
        ]
    );
}

#[test]
fn a_slot_claimed_by_another_node_is_given_up_at_once() {
    let world = |full: bool| {
        let plans = vec![plan("p", Some(("1", "1")), Value::Null)];
        let labels = [("SCENCE", "1"), ("CASE", "1"), ("INDEX", "1")];
        let mut world = World::new(plans).having(&labels, &[]).busy();
        world.memory.full = full.then(|| ("p".to_owned(), "1".to_owned()));
        world
    };
    // The claim was only deleted: the node takes its slot again, or waits until it can.
    assert_eq!(world(true).decide().phase, Phase::Waiting);
    // Another node holds the claim on index 1. The pod that runs here does not matter.
    let mut lost = world(true);
    lost.lost.insert("scene.p.1.1.1".to_owned());
    assert_eq!(lost.settle(), ["label "]);
    assert_eq!(lost.decide().phase, Phase::Spare);
    let mut lost = world(false);
    lost.lost.insert("scene.p.1.1.1".to_owned());
    assert_eq!(
        lost.settle(),
        ["claim scene.p.1.1.0", "label CASE=1 INDEX=0 SCENCE=1"]
    );
}
