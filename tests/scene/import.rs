//! Commands that become plans.

use pinfold::scene::{Imported, import};

fn imported(text: &str) -> Imported {
    import(text, "x").unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

fn refused(text: &str) -> Vec<String> {
    match import(text, "x") {
        Ok(imported) => panic!("{text}: {imported:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn names(imported: &Imported, plan: usize) -> Vec<String> {
    imported.plans[plan].spec.nodes.names.clone().unwrap()
}

#[test]
fn the_keys_that_were_used_are_the_plans() {
    let plan = imported("kubectl label no a SCENE=1 SCENCE=1 example.com/case=b INDEX=0")
        .plans
        .remove(0);
    let keys = &plan.spec.labels;
    assert_eq!(keys.keys(), ["SCENCE", "example.com/case", "INDEX", "TYPE"]);
    assert_eq!(
        keys.aliases.get("SCENCE").map(String::as_str),
        Some("SCENE")
    );

    let errors = refused("kubectl label no a SCENE=1 SCENCE=2 CASE=1 INDEX=0");
    assert!(errors[0].contains("SCENE should be 2"), "{errors:?}");
    let errors = refused("kubectl label no a SCENE=1 SCENCE=1 scene=1 CASE=1 INDEX=0");
    assert!(errors[0].contains("third key"), "{errors:?}");
}

#[test]
fn places_are_listed_by_type_and_index_whatever_the_order() {
    let imported = imported(
        "kubectl label no c SCENCE=2 CASE=1 TYPE=worker INDEX=1\n\
         kubectl label no a SCENCE=2 CASE=1 TYPE=ps INDEX=0\n\
         kubectl label no b SCENCE=2 CASE=1 TYPE=worker INDEX=0\n\
         kubectl label no d SCENCE=10 CASE=1 INDEX=0",
    );
    assert_eq!(names(&imported, 0), ["b", "c", "a"]);
    assert_eq!(names(&imported, 1), ["d"]);
    let name = |plan: usize| imported.plans[plan].metadata.name.clone().unwrap();
    assert_eq!((name(0), name(1)), ("x-1".to_owned(), "x-2".to_owned()));
}

#[test]
fn what_kubectl_would_do_is_done() {
    // A value may be given again without --overwrite; a label that isn't there may be removed.
    let text = "kubectl label no a SCENCE=1 CASE=1 INDEX=0\r\nkubectl label no a CASE=1 TYPE-\r\n";
    assert_eq!(names(&imported(text), 0), ["a"]);
    // The last of two counts.
    assert_eq!(
        names(
            &imported("oc label no a SCENCE=1 CASE=1 INDEX=5 INDEX=0"),
            0
        ),
        ["a"]
    );
    // A try changes nothing.
    let dry = imported(
        "kubectl label no a SCENCE=1 CASE=1 INDEX=0\nkubectl label no a CASE=2 --overwrite --dry-run=client",
    );
    assert_eq!(dry.plans[0].spec.active.as_ref().unwrap().case, "1");
    assert!(
        dry.notes[0]
            .to_string()
            .starts_with("line 2: with --dry-run"),
        "{:?}",
        dry.notes
    );
    // --overwrite=false is no --overwrite.
    let errors = refused(
        "kubectl label no a SCENCE=1 CASE=1 INDEX=0\nkubectl label no a CASE=2 --overwrite=false",
    );
    assert!(
        errors[0].starts_with("line 2: a already has CASE=1 (line 1)"),
        "{errors:?}"
    );
    assert_eq!(
        refused("# nothing here\n\n"),
        ["line 2: no command gives a node a slot: SCENCE, CASE and INDEX are needed"]
    );
}
