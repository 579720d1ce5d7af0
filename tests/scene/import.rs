//! Plans of the labels that nodes already have.

use std::collections::BTreeMap;

use pinfold::experiment::{Imported, import};
use pinfold::scene::{Group, Node, ScenePlan};

/// Nodes with labels like `SCENCE=1 CASE=1 INDEX=0`.
fn nodes(labels: &[(&str, &str)]) -> Vec<Node> {
    let node = |(name, labels): &(&str, &str)| Node {
        name: (*name).to_owned(),
        labels: labels
            .split_whitespace()
            .map(|label| label.split_once('=').unwrap())
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        ..Node::default()
    };
    labels.iter().map(node).collect()
}

fn imported(labels: &[(&str, &str)]) -> Imported {
    import(&nodes(labels), "x").unwrap_or_else(|errors| panic!("{labels:?}: {errors:?}"))
}

fn refused(labels: &[(&str, &str)]) -> Vec<String> {
    match import(&nodes(labels), "x") {
        Ok(imported) => panic!("{labels:?}: {imported:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn names(plan: &ScenePlan) -> Vec<String> {
    plan.spec.nodes.names.clone().unwrap()
}

#[test]
fn the_key_scene_is_an_alias_or_the_key() {
    let both = imported(&[("a", "SCENE=1 SCENCE=1 CASE=b INDEX=0")]);
    let keys = &both.plans[0].spec.labels;
    assert_eq!(keys.keys(), ["SCENCE", "CASE", "INDEX", "TYPE"]);
    assert_eq!(
        keys.aliases.get("SCENCE").map(String::as_str),
        Some("SCENE")
    );

    let alone = imported(&[("a", "SCENE=1 CASE=b INDEX=0 role=x example.com/index=7")]);
    let keys = &alone.plans[0].spec.labels;
    assert_eq!(keys.keys(), ["SCENE", "CASE", "INDEX", "TYPE"]);
    assert_eq!(keys.aliases, BTreeMap::new());

    let errors = refused(&[("a", "SCENE=1 SCENCE=2 CASE=1 INDEX=0")]);
    assert!(errors[0].contains("SCENE should be 2"), "{errors:?}");
}

#[test]
fn nodes_are_listed_by_type_and_index() {
    let imported = imported(&[
        ("c", "SCENCE=2 CASE=1 TYPE=worker INDEX=1"),
        ("b", "SCENCE=2 CASE=1 TYPE=ps INDEX=0"),
        ("a", "SCENCE=2 CASE=1 TYPE=worker INDEX=0"),
    ]);
    let plan = &imported.plans[0];
    assert_eq!(names(plan), ["b", "a", "c"]);
    let active = plan.spec.active.as_ref().unwrap();
    assert_eq!((active.scene.as_str(), active.case.as_str()), ("2", "1"));
    let scene = &plan.spec.scenes[0];
    let kind = |group: &Group| group.kind.clone().unwrap();
    assert_eq!(
        scene.groups.iter().map(kind).collect::<Vec<_>>(),
        ["ps", "worker"]
    );
    let case = &scene.cases[0];
    assert_eq!(
        case.nodes,
        BTreeMap::from([("ps".to_owned(), 1), ("worker".to_owned(), 2)])
    );
    assert_eq!(case.totals["servers"], 3);
}

#[test]
fn every_case_gets_a_plan_in_the_order_of_numbers() {
    let imported = imported(&[
        ("a", "SCENCE=1 CASE=10 INDEX=0"),
        ("b", "SCENCE=1 CASE=2 INDEX=0"),
        ("c", "TYPE=virtual"),
        ("d", ""),
    ]);
    let found: Vec<_> = imported
        .plans
        .iter()
        .map(|plan| (plan.metadata.name.clone().unwrap(), names(plan)))
        .collect();
    assert_eq!(
        found,
        [
            ("x-1".to_owned(), vec!["b".to_owned()]),
            ("x-2".to_owned(), vec!["a".to_owned()])
        ]
    );
    assert_eq!(
        imported.notes,
        ["node c has TYPE and no other label of a scene: the plan leaves the node out"]
    );
}

#[test]
fn labels_that_no_plan_can_give_are_named_with_a_remedy() {
    for (labels, expected) in [
        (
            &[
                ("a", "SCENCE=1 CASE=1 INDEX=0"),
                ("b", "SCENCE=1 CASE=1 INDEX=0"),
            ][..],
            "give one of the nodes another INDEX",
        ),
        (
            &[("a", "SCENCE=1 CASE=1 INDEX=1")],
            "number the nodes from 0, without gaps",
        ),
        (
            &[("a", "SCENCE=1 CASE=1 INDEX=01")],
            "INDEX=01 is not a number, or has leading zeros",
        ),
        (
            &[("a", "CASE=1 INDEX=0")],
            "missing SCENCE; correct the labels, or remove SCENCE, CASE, INDEX and TYPE",
        ),
        (
            &[("a", "SCENCE= CASE=1 INDEX=0")],
            "the label SCENCE has no value",
        ),
        (
            &[
                ("a", "SCENCE=1 CASE=1 INDEX=0"),
                ("b", "SCENCE=1 CASE=1 INDEX=0 TYPE=ps"),
            ],
            "label all of these nodes with TYPE, or none",
        ),
        (&[("a", "role=x")], "no node has a slot"),
        (&[], "no node has a slot"),
    ] {
        let errors = refused(labels);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?}");
    }
    let several = refused(&[
        ("a", "CASE=1"),
        ("b", "SCENCE=1"),
        ("c", "SCENCE=1 CASE=1 INDEX=2"),
    ]);
    assert_eq!(several.len(), 3, "{several:?}");
}
