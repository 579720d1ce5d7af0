//! Properties of random plans, nodes and texts.

use std::collections::{BTreeMap, BTreeSet};

use pinfold::experiment::import;
use pinfold::scene::{
    Active, Case, Group, Holding, Node, NodeLabels, Pool, Scene, ScenePlan, ScenePlanSpec, Slot,
    assign, read, read_nodes, slots, try_order,
};
use proptest::prelude::*;

use super::{AMOUNTS, SMALL, documents, example};

/// A label's value, also of letters that a Lease's name can't have.
fn value() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9]", "[A-Za-z0-9]([A-Za-z0-9_.z-]{0,6}[A-Za-z0-9])?"]
}

/// A scene of one group, or of several with a type each.
fn scene() -> impl Strategy<Value = Scene> {
    let kinds = prop::collection::btree_set(value(), 0..4);
    let counts = prop::collection::vec(0u32..6, 4);
    let cases = prop::collection::btree_map(value(), counts, 1..4);
    (value(), kinds, cases).prop_map(|(scene, kinds, cases)| {
        let kinds: Vec<Option<String>> = if kinds.is_empty() {
            vec![None]
        } else {
            kinds.into_iter().map(Some).collect()
        };
        let groups: Vec<Group> = kinds
            .into_iter()
            .enumerate()
            .map(|(index, kind)| Group {
                name: format!("g{index}"),
                kind,
                per_node: BTreeMap::new(),
            })
            .collect();
        let cases = cases
            .into_iter()
            .map(|(case, counts)| Case {
                case,
                nodes: groups
                    .iter()
                    .map(|group| group.name.clone())
                    .zip(counts)
                    .collect(),
                totals: BTreeMap::new(),
            })
            .collect();
        Scene {
            scene,
            groups,
            cases,
        }
    })
}

/// A valid plan whose active case is its first, for all nodes or for a list.
fn plan() -> impl Strategy<Value = ScenePlan> {
    let names = prop::option::of(
        Just(
            (0..24)
                .map(|index| format!("node-{index}"))
                .collect::<Vec<_>>(),
        )
        .prop_shuffle(),
    );
    let scenes = prop::collection::vec(scene(), 1..4);
    let alias = prop::option::of(Just(("SCENCE".to_owned(), "SCENE".to_owned())));
    ("[a-z]([a-z.]{0,6}[a-z])?", names, scenes, alias).prop_map(
        |(name, names, mut scenes, alias)| {
            scenes.sort_by(|a, b| a.scene.cmp(&b.scene));
            scenes.dedup_by(|a, b| a.scene == b.scene);
            let active = Active {
                scene: scenes[0].scene.clone(),
                case: scenes[0].cases[0].case.clone(),
            };
            let selector = names.is_none().then(Default::default);
            let mut spec = ScenePlanSpec {
                nodes: Pool { selector, names },
                active: Some(active),
                labels: Default::default(),
                on_busy: Default::default(),
                taint: None,
                roles: BTreeMap::new(),
                scenes,
            };
            spec.labels.aliases.extend(alias);
            ScenePlan::new(&name, spec)
        },
    )
}

fn all_slots(plan: &ScenePlan) -> Vec<Slot> {
    let cases = plan.spec.scenes.iter().flat_map(|scene| {
        scene.cases.iter().flat_map(|case| {
            slots(plan, &scene.scene, &case.case)
                .unwrap()
                .iter()
                .collect::<Vec<_>>()
        })
    });
    cases.collect()
}

fn dns_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|part| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

/// The labels after `kubectl label` of each node.
fn apply(
    nodes: &mut [Node],
    given: &[(Slot, Option<String>)],
    plan: &ScenePlan,
) -> BTreeMap<String, NodeLabels> {
    let mut all = BTreeMap::new();
    for (slot, name) in given {
        let Some(name) = name else { continue };
        let labels = plan.spec.labels.labels(slot);
        let node = nodes.iter_mut().find(|node| node.name == *name).unwrap();
        node.labels.extend(labels.clone());
        all.insert(name.clone(), labels);
    }
    all
}

fn fresh(count: usize) -> Vec<Node> {
    (0..count)
        .map(|index| super::node(&format!("node-{index}"), &[]))
        .collect()
}

proptest! {
    #[test]
    fn no_two_slots_share_a_name_or_labels(one in plan(), other in plan()) {
        let mut names = BTreeSet::new();
        let plans: BTreeMap<_, _> = [one, other].into_iter().map(|plan| (plan.metadata.name.clone(), plan)).collect();
        for (name, plan) in &plans {
            let mut labels = BTreeSet::new();
            for slot in all_slots(plan) {
                let lease = slot.lease_name(name.as_deref().unwrap());
                prop_assert!(dns_name(&lease), "{lease}");
                prop_assert!(names.insert(lease.clone()), "{lease} twice");
                prop_assert!(labels.insert(plan.spec.labels.labels(&slot)), "{slot} twice");
            }
        }
    }

    #[test]
    fn every_node_tries_every_slot_once(count in 0usize..300, node in "[a-z0-9.-]{1,20}", last in prop::option::of(0usize..400)) {
        let order: Vec<usize> = try_order(count, &node, last).collect();
        let distinct: BTreeSet<usize> = order.iter().copied().collect();
        prop_assert_eq!(order.len(), count);
        prop_assert_eq!(distinct, (0..count).collect::<BTreeSet<_>>());
        if let Some(last) = last.filter(|&last| last < count) {
            prop_assert_eq!(order[0], last);
        }
        prop_assert_eq!(order, try_order(count, &node, last).collect::<Vec<_>>());
    }

    #[test]
    fn a_slot_is_found_where_it_stands(plan in plan()) {
        for scene in &plan.spec.scenes {
            for case in &scene.cases {
                let slots = slots(&plan, &scene.scene, &case.case).unwrap();
                prop_assert_eq!(slots.iter().count(), slots.len());
                for (place, slot) in slots.iter().enumerate() {
                    prop_assert_eq!(slots.position(&slot), Some(place));
                    let labels = plan.spec.labels.labels(&slot).into_iter().collect();
                    prop_assert_eq!(plan.spec.labels.read(&labels), Holding::Slot(slot));
                }
                prop_assert_eq!(slots.get(slots.len()), None);
            }
        }
    }

    #[test]
    fn assignment_is_complete_stable_and_blind_to_order(plan in plan(), count in 0usize..24, turn in 0usize..24) {
        let active = plan.spec.active.clone().unwrap();
        let slots = slots(&plan, &active.scene, &active.case).unwrap();
        let mut nodes = fresh(count);
        let assignment = assign(&plan, &slots, &nodes);
        let mut turned = nodes.clone();
        turned.rotate_left(if count == 0 { 0 } else { turn % count });
        turned.reverse();
        prop_assert_eq!(&assignment, &assign(&plan, &slots, &turned));

        let given: Vec<&String> = assignment.given.iter().filter_map(|(_, node)| node.as_ref()).collect();
        let distinct: BTreeSet<&&String> = given.iter().collect();
        prop_assert_eq!(distinct.len(), given.len(), "a node has two slots");
        // A list names all 24 nodes; a selector chooses the existing nodes.
        let there = if plan.spec.nodes.names.is_some() { 24 } else { count };
        prop_assert_eq!(given.len() + assignment.absent.len(), slots.len().min(there));
        prop_assert_eq!(given.len() + assignment.spare.len(), count);

        // Labelled nodes keep their slots, and a node that goes leaves a single slot.
        apply(&mut nodes, &assignment.given, &plan);
        prop_assert_eq!(&assignment, &assign(&plan, &slots, &nodes));
        if plan.spec.nodes.names.is_none() && count > 0 {
            let gone = nodes.remove(turn % count);
            let after = assign(&plan, &slots, &nodes);
            for ((slot, before), (_, now)) in assignment.given.iter().zip(&after.given) {
                prop_assert!(before == now || before.as_ref() == Some(&gone.name), "{slot} moved");
            }
        }
    }

    #[test]
    fn an_imported_plan_gives_the_same_labels(plan in plan()) {
        let active = plan.spec.active.clone().unwrap();
        let slots = slots(&plan, &active.scene, &active.case).unwrap();
        prop_assume!(!slots.is_empty());
        let mut nodes = fresh(24);
        let assignment = assign(&plan, &slots, &nodes);
        let labels = apply(&mut nodes, &assignment.given, &plan);
        let imported = import(&nodes, "again").unwrap();
        prop_assert!(imported.notes.is_empty());
        prop_assert_eq!(imported.plans.len(), 1);
        let again = &imported.plans[0];
        let written = serde_saphyr::to_string(again).unwrap();
        let found = pinfold::experiment::check(&documents(&written), None, AMOUNTS);
        prop_assert!(found.is_empty(), "{found:?}\n{written}");
        prop_assert_eq!(&super::plan(&written), again);
        let slots = pinfold::scene::slots(again, &active.scene, &active.case).unwrap();
        let mut fresh = fresh(24);
        let given = assign(again, &slots, &fresh).given;
        let mut back = apply(&mut fresh, &given, again);
        let mut labels = labels;
        for list in labels.values_mut().chain(back.values_mut()) {
            list.sort();
        }
        prop_assert_eq!(labels, back);
    }

    #[test]
    fn a_plan_survives_being_written(plan in plan()) {
        let text = serde_saphyr::to_string(&plan).unwrap();
        prop_assert_eq!(&super::plan(&text), &plan, "{}", text);
    }

    /// Lines and words of real plans, dropped, doubled, exchanged and bent.
    #[test]
    fn no_plan_makes_it_panic(seed in prop::collection::vec((any::<prop::sample::Index>(), 0u8..6, any::<prop::sample::Index>(), "\\PC{0,4}"), 1..8), large in any::<bool>()) {
        let mut words: Vec<String> = (if large { example() } else { SMALL.to_owned() })
            .split_inclusive([' ', '\n', '{', '}', '[', ']', ',', ':'])
            .map(str::to_owned)
            .collect();
        for (place, kind, other, text) in seed {
            if words.is_empty() {
                break;
            }
            let (place, other) = (place.index(words.len()), other.index(words.len()));
            match kind {
                0 => drop(words.remove(place)),
                1 => words.insert(place, words[other].clone()),
                2 => words.swap(place, other),
                3 => words[place].push_str(&text),
                4 => words[place] = text,
                _ => words.truncate(place),
            }
        }
        survive(&words.concat());
    }

    #[test]
    fn no_text_makes_it_panic(text in "(\\PC|\n|[-:{}\\[\\]\"'#&*!|> ]|kind: ScenePlan\n){0,60}") {
        survive(&text);
        survive(&format!("apiVersion: pinfold.io/v1alpha1\nkind: ScenePlan\nspec:\n  {text}"));
        let _ = read_nodes(&text, "x");
        if let Ok(nodes) = read_nodes(&format!("kind: Node\nmetadata:\n  {text}"), "x") {
            let _ = import(&nodes, "x");
        }
    }
}

/// Reads, checks and uses all plans of a text.
fn survive(text: &str) {
    let Ok(documents) = read(text, "x") else {
        return;
    };
    let nodes = super::nodes(3, "1", "1Gi");
    let findings = pinfold::experiment::check(&documents, Some(&nodes), AMOUNTS);
    for finding in &findings {
        assert!(!finding.to_string().is_empty() && !finding.fix.is_empty());
    }
    for plan in documents
        .iter()
        .filter_map(|document| document.plan.as_ref())
    {
        for node in &nodes {
            let _ = pinfold::scene::want(plan, node);
        }
        if let Some(active) = &plan.spec.active
            && let Ok(slots) = slots(plan, &active.scene, &active.case)
        {
            let _ = pinfold::scene::status(plan, &slots, &nodes);
            let _ = assign(plan, &slots, &nodes);
        }
    }
}

/// How evenly the first tries of many nodes spread, and how many tries it takes until every slot is held when all come at once.
#[test]
fn thousands_of_nodes_spread() {
    for (count, candidates) in [(10, 1_000), (40, 10_000), (1_000, 1_000), (1_000, 10_000)] {
        let mut first = vec![0usize; count];
        let mut held = BTreeSet::new();
        let mut tries = 0;
        for index in 0..candidates {
            let name = format!("ip-10-0-{}-{}.compute.internal", index / 250, index % 250);
            let mut order = try_order(count, &name, None);
            let start = order.next().unwrap();
            first[start] += 1;
            if held.len() < count {
                for slot in std::iter::once(start).chain(order) {
                    tries += 1;
                    if held.insert(slot) {
                        break;
                    }
                }
            }
        }
        let mean = candidates as f64 / count as f64;
        let most = *first.iter().max().unwrap() as f64;
        assert!(
            most < mean + 6.0 * mean.sqrt() + 3.0,
            "{count} slots, {candidates} nodes: {most} start at one"
        );
        assert_eq!(held.len(), count);
        // Open addressing: with as many nodes as slots, the last ones search long; the mean stays near ln n.
        assert!(tries < count * 12, "{count} slots: {tries} tries");
    }
}
