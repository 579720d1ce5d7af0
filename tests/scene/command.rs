//! `pinfold scene` on the command line.

use std::fs;
use std::path::PathBuf;

use assert_cmd::Command;
use pinfold::scene::definition;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SMALL, example, here};

fn pinfold(args: &[&str]) -> (Option<i32>, String, String) {
    with_input(args, "")
}

fn with_input(args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .arg("scene")
        .args(args)
        .write_stdin(input)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn data(name: &str) -> String {
    here("tests/data/scene")
        .join(name)
        .to_str()
        .unwrap()
        .to_owned()
}

fn scenes() -> String {
    here("deploy/examples/scenes.yaml")
        .to_str()
        .unwrap()
        .to_owned()
}

/// Files in a temporary folder.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A List of the given number of nodes, unsorted, as kubectl prints.
fn node_list(count: usize) -> String {
    let mut items: Vec<Value> = (0..count)
        .map(|index| {
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": format!("node-{index}"), "labels": {"kubernetes.io/os": "linux"}},
                "spec": {},
                "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
            })
        })
        .collect();
    items.reverse();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn the_example_checks_and_no_other_total_does() {
    let (code, out, error) = pinfold(&["check", &scenes()]);
    assert_eq!(
        (code, out.as_str(), error.as_str()),
        (Some(0), "1 plan: 0 errors, 0 warnings\n", "")
    );

    let text = example();
    let files = Files::new();
    let mut changed = 0;
    for (number, line) in text.lines().enumerate() {
        let Some((head, totals)) = line.split_once("totals: {") else {
            continue;
        };
        for field in totals.trim_end_matches('}').split(", ") {
            let (name, right) = field.split_once(": ").unwrap();
            let right: u32 = right.parse().unwrap();
            for wrong in [right + 1, right * 2, right - 1] {
                let line_of = |value| {
                    totals.replace(&format!("{name}: {right}"), &format!("{name}: {value}"))
                };
                let changed_line = format!("{head}totals: {{{}", line_of(wrong));
                let plan = files.put("plan.yaml", &text.replace(line, &changed_line));
                let (code, out, error) = pinfold(&["check", &plan]);
                assert_eq!(
                    (code, error.as_str()),
                    (Some(1), ""),
                    "{changed_line}: {out}"
                );
                assert!(
                    out.contains(&format!("plan.yaml:{}: error: spec.scenes[", number + 1)),
                    "{out}"
                );
                assert!(
                    out.contains(&format!(".totals.{name}: totals say {wrong} ")),
                    "{out}"
                );
                assert!(out.contains(&format!("; write {name}: {right}")), "{out}");
                assert!(out.ends_with("1 plan: 1 error, 0 warnings\n"), "{out}");
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 8 * 3 * 3);
}

#[test]
fn findings_for_programs() {
    let (code, out, _) = with_input(
        &["check", "-", "-o", "json"],
        &SMALL.replace("worker: 6", "worker: 5"),
    );
    assert_eq!(code, Some(1));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        answer,
        json!({
            "plans": ["small"],
            "errors": 1,
            "warnings": 0,
            "findings": [{
                "severity": "error",
                "file": "-",
                "line": 15,
                "plan": "small",
                "path": "spec.scenes[0].cases[0].totals.worker",
                "text": "totals say 5 tasks of role worker, but scene 2 case 1 has 6: 2 servers of group w with 3 each",
                "fix": "write worker: 6",
            }],
        })
    );
}

#[test]
fn input_that_cannot_be_read_is_no_mistake_of_a_plan() {
    let files = Files::new();
    for (text, words) in [
        ("a: [", "line 1"),
        ("", "the text has no ScenePlan"),
        ("# nothing\n---\n", "the text has no ScenePlan"),
        (
            "kind: Pod\napiVersion: v1\n",
            "the document is Pod (v1); the file may contain only ScenePlans",
        ),
        (
            "apiVersion: pinfold.io/v1\nkind: ScenePlan\n",
            "ScenePlan (pinfold.io/v1)",
        ),
        ("- a\n- b\n", "not a Kubernetes object"),
        ("kind: List\nitems:\n- kind: Node\n", "Node (no apiVersion)"),
    ] {
        let plan = files.put("plan.yaml", text);
        let (code, out, error) = pinfold(&["check", &plan]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{text:?}");
        assert!(
            error.contains(words) && error.contains("plan.yaml"),
            "{text:?}: {error}"
        );
    }
    let (code, _, error) = pinfold(&["check", "/no/such/file"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("can't read /no/such/file"), "{error}");
    for (text, words) in [
        (
            "kind: Pod\n",
            "the document is a Pod; the file may contain only Nodes",
        ),
        ("metadata: {name: a}\n", "the document has no kind"),
        ("kind: List\nitems: [{kind: Pod}]\n", "items[0] is a Pod"),
        (
            "{\"kind\": \"List\", \"items\": [{\"metadata\": {}}]}",
            "items[0] has no name",
        ),
        (
            "kind: Node\nmetadata: {name: a, labels: {CASE: 2}}\n",
            "line 2",
        ),
        (
            "{\"kind\": \"Node\", \"metadata\": {\"name\": 3}}",
            "line 1",
        ),
        (
            "kind: Node\nmetadata: {name: a}\n---\nkind: Node\nmetadata: {name: a}\n",
            "node a appears twice",
        ),
    ] {
        let nodes = files.put("nodes.yaml", text);
        let (code, _, error) = pinfold(&["check", &scenes(), "--nodes", &nodes]);
        assert_eq!(code, Some(2), "{text:?}");
        assert!(
            error.contains(words) && error.contains("nodes.yaml"),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn labels_as_json_in_the_order_of_the_places() {
    let files = Files::new();
    let nodes = files.put("nodes.json", &node_list(12));
    let args = [
        "labels",
        &scenes(),
        "--scene",
        "2",
        "--case",
        "2",
        "--nodes",
        &nodes,
        "-o",
        "json",
    ];
    let (code, out, error) = pinfold(&args);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let mut expected = String::from("{");
    for place in 0..10 {
        let (kind, index) = if place < 5 {
            ("worker", place)
        } else {
            ("ps", place - 5)
        };
        let comma = if place == 0 { "" } else { "," };
        expected += &format!(
            r#"{comma}"node-{place}":{{"SCENCE":"2","CASE":"2","INDEX":"{index}","TYPE":"{kind}"}}"#
        );
    }
    expected += "}\n";
    assert_eq!(out, expected);

    // The order in the file says nothing, and the form neither.
    let yaml: String = (0..12)
        .map(|index| format!("---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{index}}}\n"))
        .collect();
    let nodes = files.put("nodes.yaml", &yaml);
    let (code, again, _) = pinfold(&[
        "labels",
        &scenes(),
        "--scene",
        "2",
        "--case",
        "2",
        "--nodes",
        &nodes,
        "-o",
        "json",
    ]);
    assert_eq!((code, again), (Some(0), out));

    // The active case without --scene and --case; scene 1 has no TYPE.
    let (code, out, _) = pinfold(&["labels", &scenes(), "--nodes", &nodes, "-o", "json"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        "{\"node-0\":{\"SCENCE\":\"1\",\"CASE\":\"1\",\"INDEX\":\"0\"}}\n"
    );

    let (code, out, error) = pinfold(&[
        "labels",
        &scenes(),
        "--scene",
        "2",
        "--case",
        "3",
        "--nodes",
        &nodes,
        "-o",
        "json",
    ]);
    assert_eq!(code, Some(1));
    let given: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(given.as_object().unwrap().len(), 12);
    assert!(
        error.contains("scene 2 case 3 has 20 slots, but 8 get no node"),
        "{error}"
    );
}

#[test]
fn labels_as_commands_change_only_what_differs() {
    let files = Files::new();
    let plan = files.put("plan.yaml", SMALL);
    let node = |name: &str, labels: &str| {
        format!(
            "---\nkind: Node\napiVersion: v1\nmetadata: {{name: {name}, labels: {{pool: train{labels}}}}}\n"
        )
    };
    let text = [
        // The node keeps the slot, although further nodes come first by name.
        node("z", ", SCENCE: '2', CASE: '1', TYPE: worker, INDEX: '0'"),
        // The same slot: the second node by name gets a different slot.
        node("zz", ", SCENCE: '2', CASE: '1', TYPE: worker, INDEX: '0'"),
        node("b", ", SCENCE: '1', CASE: '1', INDEX: '4'"),
        node("c", ", SCENCE: '1', CASE: '1', INDEX: '5', TYPE: old"),
        node("a", ""),
    ]
    .concat();
    let nodes = files.put("nodes.yaml", &text);
    let (code, out, error) = pinfold(&["labels", &plan, "--nodes", &nodes, "-o", "kubectl"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "kubectl label node c CASE- INDEX- SCENCE- TYPE-\n\
         kubectl label node zz CASE- INDEX- SCENCE- TYPE-\n\
         kubectl label --overwrite node z SCENCE=2 CASE=1 INDEX=0 TYPE=worker\n\
         kubectl label --overwrite node a SCENCE=2 CASE=1 INDEX=1 TYPE=worker\n\
         kubectl label --overwrite node b SCENCE=2 CASE=1 INDEX=0 TYPE=ps\n"
    );
    let (_, table, _) = pinfold(&["labels", &plan, "--nodes", &nodes]);
    let words: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(words, ["a", "2", "1", "1", "worker"], "{table}");
    assert!(
        table.contains("2 further candidates have no slot"),
        "{table}"
    );
}

#[test]
fn status_shows_claimed_missing_and_double() {
    let plan = Files::new();
    let plan = (plan.put("plan.yaml", SMALL), plan);
    let args = [
        "status",
        &plan.0,
        "--nodes",
        &data("labelled-nodes.yaml"),
        "-o",
        "json",
    ];
    let (code, out, error) = pinfold(&args);
    assert_eq!((code, error.as_str()), (Some(1), ""));
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap(),
        json!({
            "scene": "2",
            "case": "1",
            "slots": 3,
            "claimed": [{"scene": "2", "case": "1", "type": "worker", "index": 0, "node": "node-1"}],
            "missing": [{"scene": "2", "case": "1", "type": "ps", "index": 0}],
            "double": [{"scene": "2", "case": "1", "type": "worker", "index": 1, "nodes": ["node-2", "stranger"]}],
            "waiting": [],
            "mismatches": [
                {"node": "node-3", "why": "has the labels of scene 1 case 1 index 0, which the plan does not have"},
                {"node": "node-4", "why": "missing CASE and INDEX"},
                {"node": "stranger", "why": "has the labels of scene 2 case 1 type worker index 1, but is not a candidate of the plan"},
            ],
            "spare": ["node-10"],
        })
    );
    let (code, out, _) = pinfold(&args[..4]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("scene 2 case 1: 3 slots, 1 claimed, 1 missing, 1 double; 0 waiting, 1 spare"),
        "{out}"
    );
    assert!(out.contains("node-4: missing CASE and INDEX"), "{out}");

    let files = Files::new();
    let well: String = [("a", "worker", 0), ("b", "worker", 1), ("c", "ps", 0)]
        .map(|(name, kind, index)| {
            format!(
                "---\nkind: Node\nmetadata: {{name: {name}, labels: {{pool: train, SCENCE: '2', CASE: '1', TYPE: {kind}, INDEX: '{index}'}}}}\n"
            )
        })
        .concat();
    let (code, _, _) = pinfold(&[
        "status",
        &plan.0,
        "--nodes",
        &files.put("nodes.yaml", &well),
    ]);
    assert_eq!(code, Some(0));
}

/// After a change of the active case, a busy node keeps its labels: it waits, and its labels are no mistake.
#[test]
fn status_shows_nodes_that_wait_for_their_pods() {
    let files = Files::new();
    let two = SMALL.replace(
        "    - {case: \"1\"",
        "    - {case: \"2\", nodes: {w: 1, p: 0}}\n    - {case: \"1\"",
    );
    let plan = |on_busy: &str| {
        let text = two.replace("spec:\n", &format!("spec:\n  onBusy: {on_busy}\n"));
        files.put(&format!("{on_busy}.yaml"), &text)
    };
    let node = |name: &str, case: u8, index: u8, more: &str| {
        format!(
            "---\nkind: Node\nmetadata: {{name: {name}, labels: {{SCENCE: '2', CASE: '{case}', TYPE: worker, INDEX: '{index}'{more}}}}}\n"
        )
    };
    let nodes = [
        node("a", 1, 0, ", pool: train"),
        node("b", 2, 0, ", pool: train"),
        // The plan wants this node no more, and it gives up its slot of the active case.
        node("c", 1, 1, ", pinfold.io/leaving: small"),
        // Without the note, nobody knows why the node has these labels.
        node("d", 1, 1, ""),
    ];
    let nodes = files.put("nodes.yaml", &nodes.concat());
    let status = |plan: &str, more: &[&str]| {
        let args = [&["status", plan, "--nodes", &nodes][..], more].concat();
        let (code, out, error) = pinfold(&args);
        assert_eq!((code, error.as_str()), (Some(1), ""), "{out}");
        out
    };
    let mismatch = |node: &str, why: &str| json!({"node": node, "why": why});
    let stranger = mismatch(
        "d",
        "has the labels of scene 2 case 1 type worker index 1, but is not a candidate of the plan",
    );
    let wait = plan("wait");
    let answer: Value = serde_json::from_str(&status(&wait, &["-o", "json"])).unwrap();
    let slot = |case: &str, index: u8, node: &str| json!({"scene": "2", "case": case, "type": "worker", "index": index, "node": node});
    assert_eq!(
        answer["waiting"],
        json!([slot("2", 0, "b"), slot("1", 1, "c")])
    );
    assert_eq!(answer["mismatches"], json!([stranger]));
    let out = status(&wait, &[]);
    for line in [
        "1 claimed, 1 missing, 1 double; 2 waiting, 0 spare",
        "\nb keeps the labels of scene 2 case 2 type worker index 0 until its pods have ended\n",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(!out.contains("does not have"), "{out}");
    // Of another case than the active one, no node waits for it, and with another rule for busy nodes neither.
    let other = mismatch(
        "b",
        "has the labels of scene 2 case 2 type worker index 0, another case of the plan",
    );
    let answer: Value = serde_json::from_str(&status(&plan("refuse"), &["-o", "json"])).unwrap();
    assert_eq!(answer["waiting"], json!([slot("1", 1, "c")]));
    assert_eq!(answer["mismatches"], json!([other, stranger]));
    let of_other = ["--scene", "2", "--case", "2", "-o", "json"];
    let answer: Value = serde_json::from_str(&status(&wait, &of_other)).unwrap();
    assert_eq!(answer["waiting"], json!([slot("1", 1, "c")]));
}

#[test]
fn a_choice_of_plan_or_case_must_be_named() {
    let files = Files::new();
    let nodes = files.put("nodes.json", &node_list(1));
    let run = |text: &str, more: &[&str]| {
        let plan = files.put("plan.yaml", text);
        let mut args = vec!["labels", &plan, "--nodes", &nodes];
        args.extend(more);
        let (code, _, error) = pinfold(&args);
        assert_eq!(code, Some(2), "{more:?}: {error}");
        error
    };
    let two = format!(
        "{SMALL}---\n{}",
        SMALL.replace("name: small", "name: other")
    );
    assert!(run(&two, &[]).contains("several plans (small, other): choose one with --plan NAME"));
    assert!(run(&two, &["--plan", "x"]).contains("no plan x: choose one of small, other"));
    assert!(
        run(SMALL, &["--scene", "2", "--case", "7"]).contains("choose one of scene 2 with case 1")
    );
    assert!(run(SMALL, &["--scene", "2"]).contains("--case"));
    let idle = SMALL.replace("  active: {scene: \"2\", case: \"1\"}\n", "");
    assert!(run(&idle, &[]).contains("no active case: choose one with --scene and --case"));
    let wrong = run(&SMALL.replace("type: ps", "type: worker"), &[]);
    assert!(
        wrong.contains("groups[0] of scene 2 also has the type worker"),
        "{wrong}"
    );
}

#[test]
fn the_definition_is_printed() {
    let (code, out, error) = pinfold(&["crd"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(serde_saphyr::to_string(&definition()).unwrap(), out);
    let read: Value = serde_saphyr::from_str(&out).unwrap();
    assert_eq!(read, serde_json::to_value(definition()).unwrap());
}

#[test]
fn labelled_nodes_become_a_plan_that_gives_the_same_labels() {
    const NODES: &str = "kind: List
items:
- {kind: Node, metadata: {name: a, labels: {SCENCE: '2', CASE: '1', TYPE: ps, INDEX: '0'}}}
- {kind: Node, metadata: {name: b, labels: {SCENCE: '2', CASE: '1', TYPE: worker, INDEX: '0'}}}
- {kind: Node, metadata: {name: c, labels: {TYPE: virtual}}}
- {kind: Node, metadata: {name: d}}
";
    let files = Files::new();
    let nodes = files.put("nodes.yaml", NODES);
    let (code, out, error) = pinfold(&["import", &nodes, "--name", "locality"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        error.contains("node c has TYPE and no other label of a scene"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    let plan = files.put("plan.yaml", &out);
    let (code, checked, _) = pinfold(&["check", &plan]);
    assert_eq!(
        (code, checked.as_str()),
        (Some(0), "1 plan: 0 errors, 0 warnings\n")
    );
    let (code, status, _) = pinfold(&["status", &plan, "--nodes", &nodes]);
    assert_eq!(code, Some(0), "{status}");

    // JSON on the standard input gives the same plan.
    let json: Value = serde_saphyr::from_str(NODES).unwrap();
    let again = with_input(&["import", "-", "--name", "locality"], &json.to_string());
    assert_eq!((again.0, again.1), (Some(0), out));
}

#[test]
fn nodes_that_no_plan_can_reproduce_are_refused_with_a_remedy() {
    let refused = |args: &[&str], input: &str, text: &str| {
        let (code, out, error) = with_input(args, input);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(text), "{error}");
    };
    let import = ["import", "-"];
    let node = "kind: Node\nmetadata: {name: a, labels: {SCENCE: '1', CASE: '1'}}\n";
    refused(
        &import,
        node,
        "the labels of node a describe no slot: missing INDEX; correct",
    );
    refused(
        &import,
        "kind: Pod\nmetadata: {name: a}\n",
        "the document is a Pod; the file may contain only Nodes",
    );
    refused(&import, "kubectl label node a SCENCE=1", "-");
    refused(
        &import,
        "kind: List\nitems: []\n",
        "no node has a slot: label nodes with SCENCE, CASE and INDEX",
    );
    refused(
        &["import", "-", "--name", "No Name"],
        "",
        "can't be a plan's name",
    );
    refused(&["import"], "", "FILE");
    refused(&["import", "-", "--live"], "", "--live");
}

#[test]
fn more_nodes_than_a_cluster_has_are_refused() {
    for count in ["4294967295", "100001", "4294967296", "many"] {
        let (code, out, error) = pinfold(&[
            "simulate",
            &scenes(),
            "--scene",
            "2",
            "--case",
            "2",
            "--count",
            count,
        ]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{count}");
        assert!(
            error.contains("--count") && !error.contains("panicked"),
            "{error}"
        );
    }
}

#[test]
fn a_plan_cannot_act_on_a_terminal() {
    let plan = "apiVersion: pinfold.io/v1alpha1\nkind: ScenePlan\nmetadata: {name: p}\nspec: {\"a\\e[2J\\nforged\\x9b1m\": 1}\n";
    for args in [&["check", "-"][..], &["simulate", "-", "--count", "1"]] {
        let (code, out, error) = with_input(args, plan);
        let all = out + &error;
        assert!(code.is_some_and(|code| code > 0), "{all}");
        assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{all:?}");
        assert!(!all.lines().any(|line| line.starts_with("forged")), "{all}");
    }
}
