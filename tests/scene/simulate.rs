//! `pinfold scene simulate`: the node of each task before any object exists, and the reasons of pending tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use pinfold::experiment::{
    Simulation, TaskResources, TrainingJob, claimed, invented, requested_resources, roles, simulate,
};
use pinfold::scene::{Node, ScenePlan, slots};
use serde_json::{Value, json};

use super::render::CASES;
use super::{AMOUNTS, example, here, node, nodes, plan};

fn run(plan: &ScenePlan, scene: &str, case: &str, nodes: &[Node]) -> Simulation {
    let job = TrainingJob::default();
    let roles = roles(plan, scene, case).unwrap();
    let requested: BTreeMap<String, TaskResources> = roles
        .iter()
        .map(|role| {
            (
                role.role.clone(),
                requested_resources(plan, &job, &role.role),
            )
        })
        .collect();
    simulate(plan, (scene, case), &requested, nodes, AMOUNTS).unwrap()
}

#[test]
fn the_108_nodes_of_all_cases() {
    let plan = plan(&example());
    let mut total = 0;
    for (scene, case, _, workers, _, servers) in CASES {
        let slots = slots(&plan, scene, case).unwrap();
        // A server with exactly the resources of the scene.
        let mut all = nodes(slots.len(), "12", "44Gi");
        all = claimed(&plan, &slots, &all);
        let simulation = run(&plan, scene, case, &all);
        assert_eq!(simulation.pending, [], "{scene}/{case}");
        assert_eq!(simulation.notes, Vec::<String>::new());
        assert_eq!(simulation.placed.len(), (workers + servers) as usize);
        let mut on: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (task, name) in &simulation.placed {
            let holder = all.iter().find(|node| node.name == *name).unwrap();
            let index = if task.role == "worker" {
                task.index / 10
            } else {
                task.index
            };
            assert_eq!(holder.labels["INDEX"], index.to_string(), "{task}");
            assert_eq!(
                holder.labels.get("TYPE"),
                (scene == "2").then_some(&task.role)
            );
            let counts = on.entry(name).or_default();
            if task.role == "ps" {
                counts.0 += 1;
            } else {
                counts.1 += 1;
            }
        }
        assert_eq!(on.len(), slots.len(), "every node is used");
        let kinds: BTreeSet<(usize, usize)> = on.values().copied().collect();
        let expected: &[(usize, usize)] = if scene == "1" {
            &[(1, 10)]
        } else {
            &[(0, 10), (1, 0)]
        };
        assert_eq!(kinds, expected.iter().copied().collect());
        total += on.len();
    }
    assert_eq!(total, 108);
}

#[test]
fn a_pending_task_has_a_reason() {
    let plan = plan(&example());
    let slots = slots(&plan, "1", "2").unwrap();
    let whole = claimed(&plan, &slots, &invented(&plan, 5, &BTreeMap::new()));
    assert_eq!(run(&plan, "1", "2", &whole).pending, []);
    let why = |change: &dyn Fn(&mut Vec<Node>)| {
        let mut nodes = whole.clone();
        change(&mut nodes);
        let simulation = run(&plan, "1", "2", &nodes);
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for (task, why) in simulation.pending {
            assert_eq!(task.slot.index, 3, "{task}");
            *reasons.entry(why).or_default() += 1;
        }
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        let (why, count) = reasons.pop_first().unwrap();
        format!("{count}: {why}")
    };
    assert_eq!(
        why(&|nodes| drop(nodes.remove(3))),
        "11: no node has SCENCE=1, CASE=2, INDEX=3"
    );
    assert_eq!(
        why(&|nodes| nodes[3].cordoned = true),
        "11: node-4 is cordoned"
    );
    let taint = |key: &str, effect: &str| pinfold::scene::NodeTaint {
        key: Some(key.to_owned()),
        value: Some("x".to_owned()),
        effect: Some(effect.to_owned()),
    };
    assert_eq!(
        why(&|nodes| nodes[3].taints.push(taint("gpu", "NoSchedule"))),
        "11: node-4 has the taint gpu=x:NoSchedule, which the pods don't tolerate"
    );
    let amount = |text: &str| pinfold::scene::Amount(text.to_owned());
    // 2 CPUs for the parameter server, and one for each of three workers.
    assert_eq!(
        why(&|nodes| drop(
            nodes[3]
                .allocatable
                .insert("cpu".to_owned(), amount("5500m"))
                .or(nodes[3]
                    .allocatable
                    .insert("memory".to_owned(), amount("64Gi")))
        )),
        "7: node-4 has too little cpu: 1 requested, 500m of 5500m left beside the job's other tasks"
    );
    // Unknown properties of a node are not checked.
    let mut nodes = whole.clone();
    nodes[3].allocatable.insert("cpu".to_owned(), amount("64"));
    assert_eq!(run(&plan, "1", "2", &nodes).pending, []);

    // Two nodes with the same labels: both are used, with a note. The parameter server exists once.
    let mut nodes = whole.clone();
    nodes.push(Node {
        name: "twin".to_owned(),
        ..whole[3].clone()
    });
    let simulation = run(&plan, "1", "2", &nodes);
    assert_eq!(
        simulation.notes,
        [
            "node-4 and twin have the same labels, scene 1 case 2 index 3: the scheduler may spread the tasks of this slot over these nodes"
        ]
    );
    let on_twin = simulation
        .placed
        .iter()
        .filter(|(_, name)| name == "twin")
        .count();
    assert!((5..=6).contains(&on_twin), "{on_twin}");

    // The plan's own taint is tolerated, a different value is not.
    let mut tainted = plan.clone();
    tainted.spec.taint = Some(pinfold::scene::CaseTaint {
        value: "x".to_owned(),
        ..Default::default()
    });
    for (value, pending) in [("x", 0), ("y", 11)] {
        let mut nodes = whole.clone();
        nodes[3].taints = vec![pinfold::scene::NodeTaint {
            value: Some(value.to_owned()),
            ..taint("pinfold.io/scene", "NoSchedule")
        }];
        assert_eq!(
            run(&tainted, "1", "2", &nodes).pending.len(),
            pending,
            "{value}"
        );
    }
}

#[test]
fn invented_nodes_are_candidates() {
    let mut plan = plan(super::SMALL);
    let slots = slots(&plan, "2", "1").unwrap();
    assert_eq!(
        invented(&plan, 3, &BTreeMap::new())[0],
        node("node-1", &[("pool", "train")])
    );
    assert_eq!(
        run(
            &plan,
            "2",
            "1",
            &claimed(&plan, &slots, &invented(&plan, 3, &BTreeMap::new()))
        )
        .pending,
        []
    );
    plan.spec.nodes.selector = None;
    plan.spec.nodes.names = Some(["c", "b", "a"].map(str::to_owned).to_vec());
    let simulation = run(
        &plan,
        "2",
        "1",
        &claimed(&plan, &slots, &invented(&plan, 3, &BTreeMap::new())),
    );
    let on: Vec<&str> = simulation
        .placed
        .iter()
        .map(|(_, name)| name.as_str())
        .collect();
    assert_eq!(on, ["a", "c", "c", "c", "b", "b", "b"]);
}

/// The scheduler places the tasks, because their requests fit, and one node can't give the last task its exclusive CPU.
#[test]
fn a_task_without_enough_exclusive_cpus_has_a_reason() {
    let scenes = here("deploy/examples/scenes.yaml");
    let scenes = scenes.to_str().unwrap();
    let case = [scenes, "--scene", "2", "--case", "1", "--count", "2"];
    let simulated = |more: &[&str]| printed(&[&case[..], more].concat());
    let (code, out, error) = simulated(&["--cpu", "11"]);
    assert_eq!((code, error.as_str()), (Some(1), ""), "{out}");
    assert!(
        out.ends_with(
            "0 pending\ntoo few exclusive CPUs: worker 9 is entitled to 1, and node-1 has 0 left: it can give 9 of its 11 (2 stay \
             shared), and the job's other tasks there own 9\n"
        ),
        "{out}"
    );
    let (_, out, _) = simulated(&["--cpu", "11", "-o", "json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    let too_few = answer["tooFewCpus"].as_array().unwrap();
    assert_eq!(
        (too_few.len(), &too_few[0]["task"]),
        (1, &json!(9)),
        "{answer}"
    );
    for (more, code) in [
        // The default is a core with two threads.
        (&["--cpu", "12"][..], 0),
        (&["--cpu", "11", "--reserved", "1"], 0),
        (&["--cpu", "12", "--reserved", "3"], 1),
        (&["--cpu", "12", "--shared-minimum", "25%"], 1),
        (&["--cpu", "12", "--shared-minimum", "2"], 0),
        // The kubelet has taken its reserve already, or chooses the CPUs.
        (
            &["--cpu", "10", "--reserved", "0", "--shared-minimum", "0"],
            0,
        ),
        // How many CPUs the nodes have is unknown.
        (&[], 0),
        (&["--cpu", "11", "--shared-minimum", "x"], 2),
    ] {
        assert_eq!(simulated(more).0, Some(code), "{more:?}");
    }
    // Tasks on shared CPUs need none.
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job.yaml");
    for text in [
        "pin: false\n",
        "roles: {worker: {pin: false, limits: {cpu: 900m, memory: 1Gi}}}\n",
    ] {
        fs::write(&job, text).unwrap();
        let job = job.to_str().unwrap();
        assert_eq!(
            simulated(&["--cpu", "10", "--job", job]).0,
            Some(0),
            "{text}"
        );
    }
}

fn printed(args: &[&str]) -> (Option<i32>, String, String) {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args(["scene", "simulate"])
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn as_people_and_programs_see_it() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let scenes = here("deploy/examples/scenes.yaml");
    let scenes = scenes.to_str().unwrap();
    let (code, out, error) = printed(&[
        scenes, "--scene", "2", "--case", "2", "--count", "9", "--cpu", "12", "--memory", "64Gi",
    ]);
    assert_eq!((code, error.as_str()), (Some(1), ""));
    let words: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words, ["node-1", "worker", "0", "worker", "0-9"], "{out}");
    assert!(out.ends_with(
        "scene 2 case 2: 54 tasks on 9 nodes, 1 pending\npending: ps 4: no node has SCENCE=2, CASE=2, INDEX=4, TYPE=ps\n"
    ), "{out}");
    let (code, out, _) = printed(&[scenes, "--count", "1", "-o", "json"]);
    assert_eq!(code, Some(0));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        answer["placed"][0],
        json!({"role": "ps", "task": 0, "index": 0, "node": "node-1"})
    );
    assert_eq!(
        (
            answer["placed"].as_array().unwrap().len(),
            &answer["pending"]
        ),
        (11, &json!([]))
    );

    // The nodes' present labels instead of the future labels; the job's requests instead of the plan's.
    let list = json!({"kind": "List", "items": [
        {"kind": "Node", "metadata": {"name": "a", "labels": {"SCENCE": "1", "CASE": "1", "INDEX": "0"}},
         "status": {"allocatable": {"cpu": "12", "memory": "64Gi", "pods": "110"}, "capacity": {"cpu": "14"}},
         "spec": {"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}},
        {"kind": "Node", "metadata": {"name": "b"}},
    ]});
    let nodes = put("nodes.json", &list.to_string());
    assert_eq!(printed(&[scenes, "--nodes", &nodes]).0, Some(0));
    let job = put(
        "job.yaml",
        "roles: {worker: {limits: {cpu: 2, memory: 4Gi}}}\n",
    );
    let (code, out, _) = printed(&[scenes, "--nodes", &nodes, "--job", &job]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("pending: worker 5-9: a has too little cpu: 2 requested, 0 of 12 left"),
        "{out}"
    );
    let (code, out, _) = printed(&[scenes, "--scene", "2", "--case", "1", "--nodes", &nodes]);
    assert_eq!(code, Some(1));
    assert!(out.contains("0 tasks on 0 nodes, 11 pending"), "{out}");
    assert_eq!(
        printed(&[
            scenes, "--scene", "2", "--case", "1", "--nodes", &nodes, "--claim"
        ])
        .0,
        Some(0)
    );
    let (code, _, error) = printed(&[scenes]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--nodes"), "{error}");
    let (code, _, error) = printed(&[scenes, "--count", "1", "--cpu", "many"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--cpu \"many\""), "{error}");
    // A job that render refuses is refused by simulate.
    for (text, words) in [
        (
            "roles: {worker: {limits: {cpu: two}}}\n",
            "worker: cpu \"two\"",
        ),
        (
            "roles: {worker: {requests: {memory: 9Gi}, limits: {memory: 1Gi}}}\n",
            "is more than the limit 1Gi",
        ),
        (
            "roles: {worker: {limits: {cpu: 1500m}}}\npin: true\n",
            "1500m is not a whole number of CPUs",
        ),
        (
            "roles: {chief: {}}\n",
            "roles.chief: scene 1 case 1 has no task of this role",
        ),
    ] {
        let job = put("wrong.yaml", text);
        let (code, out, error) = printed(&[scenes, "--count", "1", "--job", &job]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{text}");
        assert!(
            error.contains(words) && error.contains("can't be simulated"),
            "{error}"
        );
    }
    // Two files can't both be the standard input.
    for args in [
        &["-", "--job", "-", "--count", "1"][..],
        &["-", "--nodes", "-"],
    ] {
        let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pinfold"))
            .args(["scene", "simulate"])
            .args(args)
            .write_stdin(example())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{error}"
        );
    }
    let mut render = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pinfold"));
    let output = render
        .args(["scene", "render", "-", "--job", "-"])
        .write_stdin("name: a\n")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("the standard input (-) stands for two files"),
        "{error}"
    );
}
