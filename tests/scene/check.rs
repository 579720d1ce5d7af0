//! Mistakes in plans: each is named with place and correction.

use pinfold::scene::{Node, STARTUP_TAINT, Severity, TAINT_PREFIX, definition};

use super::{SMALL, example, findings, here, node, nodes, report};

/// Replaces a text that occurs exactly once.
pub(crate) fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

#[test]
fn the_example_has_nothing_wrong() {
    assert_eq!(report(&example(), None), "");
    assert_eq!(report(&example(), Some(&nodes(40, "12", "44Gi"))), "");
    assert_eq!(report(SMALL, None), "");
    for taint in ["{}", "{key: pinfold.io/case, value: a}"] {
        assert_eq!(
            report(
                &with(SMALL, "spec:\n", &format!("spec:\n  taint: {taint}\n")),
                None
            ),
            ""
        );
    }
}

#[test]
fn the_totals_as_they_were_printed_are_rejected_with_the_right_ones() {
    let printed = with(
        &example(),
        "{servers: 10, worker: 50, ps: 5}}\n    - {case: \"3\", nodes: {w",
        "{servers: 10, worker: 20, ps: 5}}\n    - {case: \"3\", nodes: {w",
    );
    let printed = with(
        &printed,
        "nodes: {w: 10, p: 10}, totals: {servers: 20, worker: 100, ps: 10}",
        "nodes: {w: 10, p: 10}, totals: {servers: 20, worker: 50, ps: 10}",
    );
    let found = findings(&printed, None);
    let seen: Vec<(&str, &str)> = found
        .iter()
        .map(|one| (one.place.path.as_str(), one.fix.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (
                "spec.scenes[1].cases[1].totals.worker",
                "write worker: 50 (or, for 20 tasks, write w: 2 in nodes)"
            ),
            (
                "spec.scenes[1].cases[2].totals.worker",
                "write worker: 100 (or, for 50 tasks, write w: 5 in nodes)"
            ),
        ]
    );
    for finding in &found {
        assert_eq!(finding.severity, Severity::Error);
        let line = printed
            .lines()
            .nth(usize::try_from(finding.place.line.unwrap()).unwrap() - 1)
            .unwrap();
        assert!(
            line.contains(finding.text.split(' ').nth(2).unwrap()),
            "{finding}: {line}"
        );
    }
}

/// A change of the tests' plan, and what must be said: what is replaced by what, severity, path, and words of text or fix.
pub(crate) type Mistake = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

pub(crate) const MISTAKES: &[Mistake] = &[
    // The schema.
    (
        "active:",
        "aktive:",
        "error",
        "spec.aktive",
        "did you mean active?",
    ),
    (
        "spec:\n",
        "spec:\n  replicas: 3\n",
        "error",
        "spec.replicas",
        "remove the field; the known fields are",
    ),
    (
        "spec:\n",
        "spec:\n  onBusy: maybe\n",
        "error",
        "spec.onBusy",
        "write one of wait, force, refuse",
    ),
    (
        "case: \"1\", nodes",
        "case: 1, nodes",
        "error",
        "spec.scenes[0].cases[0].case",
        "write it in quotes: \"1\"",
    ),
    (
        "case: \"1\", nodes",
        "case: yes, nodes",
        "error",
        "spec.scenes[0].cases[0].case",
        "is a boolean, but the field needs a text",
    ),
    (
        "case: \"1\", nodes",
        "nodes",
        "error",
        "spec.scenes[0].cases[0]",
        "case is missing",
    ),
    (
        "p: 1}, totals",
        "p: \"1\"}, totals",
        "error",
        "spec.scenes[0].cases[0].nodes.p",
        "write it without quotes: 1",
    ),
    (
        "p: 1}, totals",
        "p: -1}, totals",
        "error",
        "spec.scenes[0].cases[0].nodes.p",
        "from 0 to 10000",
    ),
    (
        "p: 1}, totals",
        "p: 20000}, totals",
        "error",
        "spec.scenes[0].cases[0].nodes.p",
        "from 0 to 10000",
    ),
    (
        "totals: {servers: 3, worker: 6, ps: 1}",
        "totals: [3]",
        "error",
        "spec.scenes[0].cases[0].totals",
        "a list is not allowed here; write a map",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: [1]}",
        "error",
        "spec.roles.worker.limits.cpu",
        "write a quantity",
    ),
    // Names and labels.
    (
        "name: small",
        "name: Small",
        "error",
        "metadata.name",
        "can't be a plan's name",
    ),
    (
        "{name: small}",
        "{}",
        "error",
        "metadata.name",
        "the plan has no name",
    ),
    (
        "{name: small}",
        "{name: small, namespace: x}",
        "warning",
        "metadata.namespace",
        "remove the namespace",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {case: SCENCE}\n",
        "error",
        "spec.labels.case",
        "the label scene has the same key",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {case: a b}\n",
        "error",
        "spec.labels.case",
        "can't be a label's key",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {case: x.k8s.io/c}\n",
        "error",
        "spec.labels.case",
        "which Kubernetes reserves",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {aliases: {SCENE: SCENCE}}\n",
        "error",
        "spec.labels.aliases.SCENE",
        "write one of SCENCE, CASE, INDEX, TYPE",
    ),
    (
        "spec:\n",
        "spec:\n  labels: {aliases: {SCENCE: CASE}}\n",
        "error",
        "spec.labels.aliases.SCENCE",
        "CASE is already a key",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {key: 'a b'}\n",
        "error",
        "spec.taint.key",
        "can't be a taint's key",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {key: x.io/case}\n",
        "error",
        "spec.taint.key",
        "write pinfold.io/case, or",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {key: pinfold.io/agent-not-ready}\n",
        "error",
        "spec.taint.key",
        "the startup taint, which agents remove",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {key: gpu}\n",
        "error",
        "spec.taint.key",
        "must start with pinfold.io/",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {key: xpinfold.io/a}\n",
        "error",
        "spec.taint.key",
        "write pinfold.io/a, or",
    ),
    (
        "spec:\n",
        "spec:\n  taint: {value: '-'}\n",
        "error",
        "spec.taint.value",
        "can't be a taint's value",
    ),
    (
        "- scene: \"2\"",
        "- scene: two scenes",
        "error",
        "spec.scenes[0].scene",
        "' ' is not allowed",
    ),
    (
        "case: \"1\", nodes",
        "case: \"-1\", nodes",
        "error",
        "spec.scenes[0].cases[0].case",
        "the first and the last character must be a letter or a digit",
    ),
    (
        "type: worker",
        "type: wörker",
        "error",
        "spec.scenes[0].groups[0].type",
        "'ö' is not allowed",
    ),
    // Scenes, groups, cases.
    (
        "scene: \"2\", case",
        "scene: \"3\", case",
        "error",
        "spec.active.scene",
        "write one of 2",
    ),
    (
        "scene: \"2\", case: \"1\"",
        "scene: \"2\", case: \"7\"",
        "error",
        "spec.active.case",
        "write one of 1",
    ),
    (
        "type: ps, ",
        "",
        "error",
        "spec.scenes[0].groups[1]",
        "write type: p, or remove the type of every group",
    ),
    (
        "type: ps, ",
        "type: worker, ",
        "error",
        "spec.scenes[0].groups[1].type",
        "also has the type worker",
    ),
    (
        "name: p, ",
        "name: w, ",
        "error",
        "spec.scenes[0].groups[1].name",
        "has the same name",
    ),
    (
        "{w: 2, p: 1}",
        "{w: 2, q: 1}",
        "error",
        "spec.scenes[0].cases[0].nodes.q",
        "write one of w, p",
    ),
    (
        "{w: 2, p: 1}",
        "{w: 2}",
        "error",
        "spec.scenes[0].cases[0].nodes",
        "the case has no number of servers for group p",
    ),
    (
        "{w: 2, p: 1}, totals: {servers: 3, worker: 6, ps: 1}",
        "{w: 0, p: 0}",
        "error",
        "spec.scenes[0].cases[0].nodes",
        "has no servers",
    ),
    (
        "servers: 3",
        "servers: 4",
        "error",
        "spec.scenes[0].cases[0].totals.servers",
        "write servers: 3",
    ),
    (
        "worker: 6",
        "worker: 7",
        "error",
        "spec.scenes[0].cases[0].totals.worker",
        "write worker: 6",
    ),
    (
        "worker: 6, ps: 1}}",
        "worker: 6, ps: 2}}",
        "error",
        "spec.scenes[0].cases[0].totals.ps",
        "write ps: 1 (or, for 2 tasks, write p: 2 in nodes)",
    ),
    (
        "worker: 6, ps: 1}}",
        "worker: 6, pss: 1}}",
        "error",
        "spec.scenes[0].cases[0].totals.pss",
        "write one of ps, worker, servers",
    ),
    (
        "perNode: {ps: 1}",
        "perNode: {ps: 1, servers: 1}",
        "error",
        "spec.scenes[0].groups[1].perNode.servers",
        "give the role another name",
    ),
    // Candidates.
    (
        "{selector: {matchLabels: {pool: train}}}",
        "{}",
        "error",
        "spec.nodes",
        "neither selector nor names",
    ),
    (
        "{selector: {matchLabels: {pool: train}}}",
        "{selector: {}, names: [a, b, c]}",
        "error",
        "spec.nodes",
        "remove one of them",
    ),
    (
        "{pool: train}",
        "{INDEX: \"1\"}",
        "error",
        "spec.nodes.selector.matchLabels.INDEX",
        "choose nodes by another label",
    ),
    (
        "{pool: train}",
        "{pool: a/b}",
        "error",
        "spec.nodes.selector.matchLabels.pool",
        "correct the value",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: In}]}",
        "error",
        "spec.nodes.selector.matchExpressions[0]",
        "add values",
    ),
    (
        "{matchLabels: {pool: train}}",
        "{matchExpressions: [{key: pool, operator: Exists, values: [a]}]}",
        "error",
        "spec.nodes.selector.matchExpressions[0]",
        "remove values",
    ),
    (
        "{selector: {matchLabels: {pool: train}}}",
        "{names: [a, b]}",
        "error",
        "spec.nodes.names",
        "the list has 2 nodes, but scene 2 case 1 needs 3; add 1 node",
    ),
    (
        "{selector: {matchLabels: {pool: train}}}",
        "{names: [a, b, c, a]}",
        "error",
        "spec.nodes.names[3]",
        "a repeats names[0]",
    ),
    (
        "{selector: {matchLabels: {pool: train}}}",
        "{names: [a, b, C]}",
        "error",
        "spec.nodes.names[2]",
        "can't be a node's name",
    ),
    // Resources.
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "requests: {cpu: 300m, memory: 4Gi}",
        "warning",
        "spec.roles.worker.requests.cpu",
        "Burstable and can't get exclusive CPUs: the cpu limit is missing; write requests and limits cpu: 1, memory: 4Gi",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "pin: true, requests: {cpu: 300m}",
        "error",
        "spec.roles.worker.requests.cpu",
        "or pin: false",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}",
        "warning",
        "spec.roles.worker.requests.cpu",
        "the cpu request 1 differs from the limit 2",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: 1}",
        "warning",
        "spec.roles.worker.limits.memory",
        "the memory limit is missing",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: 1500m, memory: 4Gi}",
        "warning",
        "spec.roles.worker.limits.cpu",
        "the CPU limit 1500m is not a whole number; write requests and limits cpu: 2",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "pin: true",
        "error",
        "spec.roles.worker",
        "role worker has pin: true, but no CPU limit",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "limits: {cpu: one}",
        "error",
        "spec.roles.worker.limits.cpu",
        "write a quantity",
    ),
    (
        "limits: {cpu: 1, memory: 4Gi}",
        "requests: {cpu: 2}, limits: {cpu: 1}",
        "error",
        "spec.roles.worker.requests.cpu",
        "write 1 or less",
    ),
    (
        "roles:\n",
        "roles:\n    chief: {}\n",
        "warning",
        "spec.roles.chief",
        "no group runs the role chief",
    ),
    (
        "roles:\n",
        "roles:\n    servers: {}\n",
        "error",
        "spec.roles.servers",
        "give the role another name",
    ),
];

#[test]
fn mistakes_are_named_with_place_and_correction() {
    for &(old, new, severity, path, words) in MISTAKES {
        let text = with(SMALL, old, new);
        let found = findings(&text, None);
        let hit = found
            .iter()
            .find(|one| one.place.path == path && one.to_string().contains(words));
        let Some(hit) = hit else {
            panic!(
                "{old} -> {new}: no {words:?} at {path} in\n{}",
                report(&text, None)
            )
        };
        assert_eq!(hit.severity.to_string(), severity, "{hit}");
        assert!(hit.place.line.is_some(), "{hit}");
        assert!(
            !hit.fix.is_empty() && hit.place.file == "plan.yaml",
            "{hit}"
        );
    }
}

/// A task becomes an object with the addresses of all others, so a plan within each limit can still be too large.
#[test]
fn a_case_has_no_more_tasks_than_a_cluster() {
    let large = with(
        SMALL,
        "nodes: {w: 2, p: 1}, totals: {servers: 3, worker: 6, ps: 1}",
        "nodes: {w: 10000, p: 1}",
    );
    let text = report(&with(&large, "{worker: 3}", "{worker: 10}"), None);
    assert!(
        text.contains(
            "spec.scenes[0].cases[0].nodes: scene 2 case 1 has 100001 tasks; the maximum is 100000"
        ),
        "{text}"
    );
    let text = report(
        &with(
            &large,
            "{worker: 3}",
            "{worker: 9, chief: 1, evaluator: 10000}",
        ),
        None,
    );
    assert!(text.contains("100100001 tasks"), "{text}");
    let text = report(&with(&large, "{worker: 3}", "{worker: 9}"), None);
    assert!(!text.contains("the maximum is"), "{text}");
}

#[test]
fn one_mistake_does_not_hide_another() {
    let text = with(SMALL, "case: \"1\", nodes", "case: 1, nodes");
    let text = with(&text, "worker: 6", "worker: 7");
    let text = with(&text, "spec:\n", "spec:\n  onBusy: never\n");
    let report = report(&text, None);
    for words in [
        "write it in quotes",
        "write worker: 6",
        "write one of wait, force, refuse",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
}

#[test]
fn nodes_must_be_there_enough_and_large_enough() {
    let pool = |count, cpu, memory| {
        let mut nodes = nodes(count, cpu, memory);
        for node in &mut nodes {
            node.labels.insert("pool".to_owned(), "train".to_owned());
        }
        nodes
    };
    assert_eq!(report(SMALL, Some(&pool(3, "3", "12Gi"))), "");

    let few = report(SMALL, Some(&pool(2, "3", "12Gi")));
    assert!(
        few.contains(
            "spec.nodes.selector: 2 nodes match the selector, but scene 2 case 1 needs 3; add 1 node"
        ),
        "{few}"
    );
    let none = report(SMALL, Some(&nodes(9, "3", "12Gi")));
    assert!(none.contains("0 nodes match the selector"), "{none}");

    let small = report(SMALL, Some(&pool(3, "2900m", "12Gi")));
    assert!(
        small.contains("groups[0].perNode: a server of group w in scene 2 needs 3 of cpu, but node-0 has 2900m; 0 candidates can hold such a server, but the group needs 2 servers"),
        "{small}"
    );
    let memory = report(SMALL, Some(&pool(3, "8", "11Gi")));
    assert!(
        memory.contains("needs 12Gi of memory, but node-0 has 11Gi"),
        "{memory}"
    );

    // Two nodes suffice for the group; the third node might get an unsuitable slot.
    let mut mixed = pool(3, "3", "12Gi");
    mixed[2] = pool(3, "1", "12Gi")[2].clone();
    let found = findings(SMALL, Some(&mixed));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].fix.contains("narrow the selector"), "{}", found[0]);

    // A node's resources are unknown: no finding.
    let unknown: Vec<Node> = (0..3)
        .map(|index| node(&format!("n{index}"), &[("pool", "train")]))
        .collect();
    assert_eq!(report(SMALL, Some(&unknown)), "");

    let mut cordoned = pool(4, "3", "12Gi");
    cordoned[0].cordoned = true;
    let found = findings(SMALL, Some(&cordoned));
    assert!(
        found.len() == 1 && found[0].to_string().contains("uncordon"),
        "{found:?}"
    );

    // A list: each slot has its node.
    let list = with(
        SMALL,
        "{selector: {matchLabels: {pool: train}}}",
        "{names: [node-2, node-1, node-0]}",
    );
    assert_eq!(report(&list, Some(&mixed)), report(&list, Some(&mixed)));
    let listed = report(&list, Some(&mixed));
    assert!(
        listed.contains("a server of group w needs 3 of cpu, but node-2 has 1"),
        "{listed}"
    );
    let right = with(
        &list,
        "[node-2, node-1, node-0]",
        "[node-0, node-1, node-2]",
    );
    assert_eq!(report(&right, Some(&mixed)), "");
    let absent = with(&list, "node-0]", "node-7]");
    let absent = report(&absent, Some(&nodes(3, "3", "12Gi")));
    assert!(
        absent.contains("spec.nodes.names[2]: the cluster has no node node-7"),
        "{absent}"
    );
}

#[test]
fn plans_must_leave_each_other_alone() {
    let two = |first: &str, second: &str| {
        let other = with(
            &with(SMALL, "name: small", "name: other"),
            "{matchLabels: {pool: train}}",
            second,
        );
        // A second case, with different labels.
        let other = with(
            &with(
                &other,
                "scene: \"2\", case: \"1\"",
                "scene: \"2\", case: \"9\"",
            ),
            "case: \"1\", nodes",
            "case: \"9\", nodes",
        );
        format!(
            "{}---\n{other}",
            with(SMALL, "{matchLabels: {pool: train}}", first)
        )
    };
    let check = |text: &str, nodes: Option<&[Node]>, words: &str| {
        let report = report(text, nodes);
        assert!(
            report.contains(words) && report.lines().count() == 1,
            "{words}: {report}"
        );
    };
    let same = two("{matchLabels: {pool: a}}", "{matchLabels: {pool: a}}");
    check(
        &same,
        None,
        "error: spec.nodes: plan small has the same selector, and both are active",
    );
    let apart = [
        ("{matchLabels: {pool: a}}", "{matchLabels: {pool: b}}"),
        (
            "{matchLabels: {pool: a}}",
            "{matchExpressions: [{key: pool, operator: NotIn, values: [a]}]}",
        ),
        (
            "{matchLabels: {pool: a}}",
            "{matchExpressions: [{key: pool, operator: DoesNotExist}]}",
        ),
        (
            "{matchExpressions: [{key: x, operator: Exists}]}",
            "{matchExpressions: [{key: x, operator: DoesNotExist}]}",
        ),
        (
            "{matchExpressions: [{key: x, operator: In, values: [a, b]}]}",
            "{matchExpressions: [{key: x, operator: In, values: [c]}]}",
        ),
    ];
    for (first, second) in apart {
        assert_eq!(report(&two(first, second), None), "", "{first} {second}");
        assert_eq!(report(&two(second, first), None), "", "{second} {first}");
    }
    let perhaps = two("{matchLabels: {pool: a}}", "{matchLabels: {zone: a}}");
    check(
        &perhaps,
        None,
        "warning: spec.nodes: a node may also be a candidate of plan small",
    );
    let both: Vec<Node> = ["a", "b", "c"]
        .iter()
        .map(|name| node(name, &[("pool", "a"), ("zone", "a")]))
        .collect();
    check(
        &perhaps,
        Some(&both),
        "error: spec.nodes: a, b, c are also candidates of plan small",
    );
    let apart: Vec<Node> = (0..6)
        .map(|index| {
            node(
                &format!("n{index}"),
                &[(if index < 3 { "pool" } else { "zone" }, "a")],
            )
        })
        .collect();
    assert_eq!(report(&perhaps, Some(&apart)), "");

    let selector = "{selector: {matchLabels: {pool: train}}}";
    let lists = format!(
        "{}---\n{}",
        with(SMALL, selector, "{names: [a, b, c]}"),
        with(
            &with(
                &with(SMALL, selector, "{names: [d, e, a]}"),
                "name: small",
                "name: other"
            ),
            "  active: {scene: \"2\", case: \"1\"}\n",
            ""
        )
    );
    check(
        &lists,
        None,
        "warning: spec.nodes.names[2]: a is also a candidate of plan small; leave each node to one plan",
    );

    // The same case is active twice, on disjoint nodes: pods can't distinguish the nodes.
    let labels = with(
        &with(SMALL, "name: small", "name: other"),
        "pool: train",
        "pool: other",
    );
    check(
        &format!("{SMALL}---\n{labels}"),
        None,
        "error: spec.active: plan small activates the same scene and case",
    );
    let name = with(SMALL, "pool: train", "pool: other");
    let name = report(&format!("{SMALL}---\n{name}"), None);
    assert!(
        name.contains("metadata.name: plan.yaml also has a plan with the name small"),
        "{name}"
    );
}

/// The shipped definition equals the definition of the types.
#[test]
fn the_definition_in_deploy_is_that_of_the_types() {
    let text = std::fs::read_to_string(here("deploy/crd.yaml")).unwrap();
    let now = serde_saphyr::to_string(&definition()).unwrap();
    assert!(
        now == text,
        "write it anew: cargo run -- scene crd > deploy/crd.yaml"
    );
    let schema = serde_json::to_value(definition()).unwrap();
    let version = &schema["spec"]["versions"][0];
    assert_eq!(schema["spec"]["scope"], "Cluster");
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["jsonPath"].as_str().unwrap())
        .collect();
    assert_eq!(
        columns,
        [
            ".spec.active.scene",
            ".spec.active.case",
            ".status.claimed",
            ".status.conditions[?(@.type=='Placed')].status",
            ".spec.onBusy",
            ".metadata.creationTimestamp"
        ]
    );
    assert_eq!(version["subresources"], serde_json::json!({"status": {}}));
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(spec["labels"]["default"]["scene"], "SCENCE");
    assert_eq!(spec["onBusy"]["default"], "wait");
    // The same rule as in `check`, and as the admission policy has it.
    let key = &spec["taint"]["properties"]["key"];
    assert_eq!(
        key["x-kubernetes-validations"][0]["rule"],
        format!("self.startsWith('{TAINT_PREFIX}')")
    );
    assert_eq!(
        key["x-kubernetes-validations"][1]["rule"],
        format!("self != '{STARTUP_TAINT}'")
    );
    assert!(key["default"].as_str().unwrap().starts_with(TAINT_PREFIX));
    let policy = std::fs::read_to_string(here("deploy/base/node-policy.yaml")).unwrap();
    assert!(policy.contains(&format!("['{}']", key["default"].as_str().unwrap())));
    bounded(&version["schema"]["openAPIV3Schema"], "schema");
}

/// Whatever a rule may walk over has a bound: without one, the API server takes the rule for too expensive. And a
/// structural schema has a type everywhere, and says nothing of types within its logic.
fn bounded(schema: &serde_json::Value, path: &str) {
    let number = |key: &str| schema[key].as_u64().is_some();
    match schema["type"].as_str() {
        Some("array") => assert!(number("maxItems"), "{path} has no maxItems"),
        Some("object") if schema["additionalProperties"].is_object() => {
            assert!(number("maxProperties"), "{path} has no maxProperties");
        }
        Some("object" | "boolean" | "integer" | "string") => {}
        _ => assert_eq!(
            schema["x-kubernetes-int-or-string"], true,
            "{path} has no type"
        ),
    }
    for logic in ["anyOf", "oneOf", "allOf", "not", "$ref"] {
        assert!(schema[logic].is_null(), "{path} has {logic}");
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        bounded(property, &format!("{path}.{name}"));
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            bounded(&schema[inner], &format!("{path}.{inner}"));
        }
    }
}

/// The bounds whose product the API server takes for how often the rule on roles' totals looks at a group.
///
/// It refuses a definition with a rule that it estimates at more than 10 million. That rule's estimate is about half of it, and
/// doubling one of these bounds would reach it.
#[test]
fn the_bounds_that_make_the_cost_of_rules_stay() {
    let schema = serde_json::to_value(definition()).unwrap();
    let spec = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let scenes = &spec["properties"]["scenes"];
    let [groups, cases] = ["groups", "cases"].map(|list| &scenes["items"]["properties"][list]);
    let totals = &cases["items"]["properties"]["totals"];
    let bounds = [
        &scenes["maxItems"],
        &cases["maxItems"],
        &groups["maxItems"],
        &totals["maxProperties"],
    ];
    assert_eq!(bounds.map(|bound| bound.as_u64().unwrap()), [16, 64, 8, 17]);
}
