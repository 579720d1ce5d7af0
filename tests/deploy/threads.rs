//! The admission policy for thread counts computes the same variables as the agent does from a
//! limit, for each pod.

use std::collections::BTreeMap;
use std::fs;

use pinfold::pod::{
    Policy as EntitlementPolicy, RecognizedPod, Selector, THREAD_VARIABLES, ThreadBasis,
    ThreadPolicy, parse, thread_environment,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::evaluate::Policy;
use crate::tools::{documents, here};

fn policy() -> Policy {
    Policy::new(&documents("deploy/policies/threads.yaml")[0])
}

fn variables(container: &Value) -> BTreeMap<String, Value> {
    let entries = container["env"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            (
                entry["name"].as_str().unwrap().to_owned(),
                entry["value"].clone(),
            )
        })
        .collect()
}

/// The variables that the policy adds to each container.
fn added(policy: &Policy, pod: &Value) -> Vec<BTreeMap<String, String>> {
    let mutated = policy
        .mutate(pod)
        .unwrap_or_else(|error| panic!("{error}: {pod}"));
    let containers = |pod: &Value| pod["spec"]["containers"].as_array().unwrap().clone();
    let pairs = containers(pod).into_iter().zip(containers(&mutated));
    let changes = pairs.map(|(before, after)| {
        let (mut after, before) = (variables(&after), variables(&before));
        for (name, value) in before {
            assert_eq!(
                after.remove(&name),
                Some(value),
                "the policy changed {name}, which the pod sets"
            );
        }
        after
            .into_iter()
            .map(|(name, value)| (name, value.as_str().unwrap().to_owned()))
            .collect()
    });
    changes.collect()
}

/// The variables that the agent adds. For the agent, every pod of an opted-in namespace is a training pod. The policy
/// leaves out containers that share the pod's own limit with others.
fn computed(pod: &Value) -> Vec<BTreeMap<String, String>> {
    let pods =
        parse(&pod.to_string(), "generated").unwrap_or_else(|error| panic!("{error}: {pod}"));
    let policy = EntitlementPolicy {
        selector: Some("!nobody".parse::<Selector>().unwrap()),
        ..EntitlementPolicy::default()
    };
    let threads = ThreadPolicy::default();
    let pod = RecognizedPod::from(pods[0].clone());
    let each = pod.containers.iter().enumerate().map(|(index, container)| {
        let is_shared = pod.containers.len() > 1 && container.resources.cpu_limit.unwrap_or(0) == 0;
        let basis = ThreadBasis::of_quota(&pod, container, &threads).filter(|_| !is_shared);
        thread_environment(&pod, index, &policy, &threads, basis).variables
    });
    each.collect()
}

/// The variables that a pod's author may have set: those of thread pools, and one that is none.
fn names() -> Vec<&'static str> {
    [&THREAD_VARIABLES[..], &["PATH"]].concat()
}

fn container(at: usize) -> impl Strategy<Value = Value> {
    let limit = prop_oneof![
        3 => Just(None),
        5 => (1u32..300).prop_map(|cpus| Some(cpus.to_string())),
        3 => (1u32..40_000).prop_map(|millis| Some(format!("{millis}m"))),
        1 => prop_oneof![Just("0"), Just("0.5"), Just("2.5"), Just("1500000u"), Just("1k")]
            .prop_map(|text| Some(text.to_owned())),
    ];
    let set = proptest::collection::btree_set(proptest::sample::select(names()), 0..4);
    let name = prop_oneof![8 => Just(format!("c{at}")), 1 => Just("istio-proxy".to_owned())];
    let image = prop_oneof![
        8 => Just("tensorflow/tensorflow:2"),
        1 => Just("registry/pause:3.10"),
        1 => Just("pause@sha256:00"),
        1 => Just("pausebox:1")
    ];
    let from = prop_oneof![8 => Just(false), 1 => Just(true)];
    let own = prop_oneof![4 => Just("7"), 1 => Just("100"), 1 => Just("0"), 1 => Just("many")];
    (limit, set, name, image, from, own).prop_map(|(limit, set, name, image, from, own)| {
        let mut container =
            json!({"name": name, "image": image, "command": ["python", "train.py"]});
        if let Some(limit) = limit {
            container["resources"] = json!({"limits": {"cpu": limit, "memory": "1Gi"}});
        }
        if !set.is_empty() {
            let env = set.iter().map(|name| json!({"name": name, "value": own}));
            container["env"] = env.collect();
        }
        if from {
            container["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
        }
        container
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let text =
        |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let labels = prop_oneof![
        4 => Just(json!({})),
        1 => proptest::sample::select(text(&["ps", "PS", "worker", "Chief", "server", "ParameterServer", "other"]))
            .prop_map(|kind| json!({"training.kubeflow.org/replica-type": kind})),
        1 => proptest::sample::select(text(&["ps", "worker"]))
            .prop_map(|kind| json!({"replica-type": kind, "group-name": "kubeflow.org"})),
        1 => Just(json!({"replica-type": "ps", "group-name": "example.io"})),
        1 => Just(json!({"tf-replica-type": "ps"})),
        1 => proptest::sample::select(text(&["ps", "server", "worker", "task"]))
            .prop_map(|kind| json!({"volcano.sh/task-spec": kind})),
        1 => proptest::sample::select(text(&["0", "17", "x", ""]))
            .prop_map(|task| json!({"name": "a", "job": "ps", "task": task})),
        1 => Just(json!({"job": "ps"})),
    ];
    let profile = proptest::sample::select(text(&[
        "",
        "",
        "limit",
        "openmp",
        "embedding",
        "ps",
        "off",
        "fast",
    ]));
    let processes = proptest::sample::select(text(&["", "", "", "1", "3", "16", "0", "many"]));
    let pod_limit = prop_oneof![4 => Just(None), 1 => (1u32..64).prop_map(Some)];
    let containers = (container(0), container(1), container(2));
    (labels, profile, processes, pod_limit, containers, 1usize..=3).prop_map(
        |(labels, profile, processes, pod_limit, (a, b, c), count)| {
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "namespace": "train", "uid": "u", "labels": labels, "annotations": {}},
                "spec": {"containers": [a, b, c]},
            });
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            containers.truncate(count);
            // Names are unique in a pod.
            let mut names = std::collections::BTreeSet::new();
            containers.retain(|container| names.insert(container["name"].to_string()));
            for (name, value) in [("pinfold.io/threads", profile), ("pinfold.io/processes", processes)] {
                if !value.is_empty() {
                    pod["metadata"]["annotations"][name] = json!(value);
                }
            }
            // The API refuses a pod limit below the sum of the containers' limits before any policy, so the pod limit
            // is large.
            if let Some(pod_limit) = pod_limit.map(|cpus| cpus + 10_000) {
                pod["spec"]["resources"] = json!({"limits": {"cpu": pod_limit.to_string()}});
            }
            pod
        },
    )
}

#[test]
fn the_policy_and_the_agent_add_the_same_variables() {
    let policy = policy();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&pod(), |pod| {
        let (admitted, agents) = (added(&policy, &pod), computed(&pod));
        prop_assert_eq!(&admitted, &agents, "{}", pod);
        // A second evaluation, as after a change by another policy, adds no variable.
        let again = policy.mutate(&policy.mutate(&pod).unwrap()).unwrap();
        prop_assert_eq!(again, policy.mutate(&pod).unwrap());
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// numexpr and the containers of a pod with a limit of its own, where random pods seldom meet the edges.
#[test]
fn numexpr_gets_a_number_that_it_takes() {
    let policy = policy();
    let pod = |limit: &str, env: Value, profile: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "train", "uid": "u", "annotations": {"pinfold.io/threads": profile}},
            "spec": {"containers": [{"name": "c", "image": "torch", "args": ["python", "t.py"], "env": env,
                "resources": {"limits": {"cpu": limit}}}]},
        })
    };
    let own = |value: &str| json!([{"name": "NUMEXPR_MAX_THREADS", "value": value}]);
    for (limit, env, profile, numexpr) in [
        ("64", json!([]), "limit", None),
        ("65", json!([]), "limit", Some("64")),
        ("8", json!([]), "embedding", Some("8")),
        ("96", json!([]), "ps", Some("64")),
        ("48", own("32"), "limit", Some("32")),
        ("96", own("128"), "limit", None),
        ("96", own("none"), "limit", None),
        (
            "96",
            json!([{"name": "OMP_NUM_THREADS", "value": "96"}]),
            "limit",
            None,
        ),
    ] {
        let pod = pod(limit, env, profile);
        let variables = &added(&policy, &pod)[0];
        assert_eq!(
            variables.get("NUMEXPR_NUM_THREADS").map(String::as_str),
            numexpr,
            "{pod}"
        );
        assert_eq!(*variables, computed(&pod)[0], "{pod}");
    }
}

#[test]
fn the_policy_sizes_multi_process_launchers_only_with_an_annotation() {
    let policy = policy();
    let pod = |command: &str, env: Value, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "train", "uid": "u", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "torch", "args": ["sh", "-c", command], "env": env,
                "resources": {"limits": {"cpu": "8"}}}]},
        })
    };
    for command in [
        "torchrun --nproc_per_node=4 t.py",
        "torchrun --nproc-per-node 4",
        "mpirun -np 4 python t.py",
        "horovodrun -np 4 python t.py",
        "accelerate launch --num_processes 4 t.py",
        "deepspeed --num_gpus 4 t.py",
        "exec /opt/ray start --head",
    ] {
        assert_eq!(
            added(&policy, &pod(command, json!([]), json!({}))),
            [BTreeMap::new()],
            "{command}"
        );
        let annotated = pod(command, json!([]), json!({"pinfold.io/processes": "4"}));
        assert_eq!(added(&policy, &annotated), computed(&annotated));
        assert_eq!(added(&policy, &annotated)[0]["OMP_NUM_THREADS"], "2");
    }
    let variable = json!([{"name": "PET_NPROC_PER_NODE", "value": "4"}]);
    assert_eq!(
        added(&policy, &pod("torchrun t.py", variable, json!({}))),
        [BTreeMap::new()]
    );
}

/// The evaluation equals a real server's, because the recorded policy and pods give the recorded
/// answers.
#[test]
fn recorded_pods_get_the_recorded_variables() {
    let policy = Policy::new(&documents("tests/data/policies/map-tf-threads.yaml")[0]);
    let mut checked = 0;
    for name in ["whole", "frac", "int", "mixed", "nolimit", "all-have-env"] {
        let text =
            fs::read_to_string(here(&format!("tests/data/policies/map-{name}.http"))).unwrap();
        let text = text.replace("\r\n", "\n");
        let (request, response) = text.split_once("### response\n").unwrap();
        let body = |text: &str| -> Value {
            serde_json::from_str(text.split_once("\n\n").unwrap().1.trim()).unwrap()
        };
        let (mut pod, recorded) = (body(request), body(response));
        // A policy gets the decoded object, in which a quantity is a string.
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            if let Some(cpu) = container
                .pointer_mut("/resources/limits/cpu")
                .filter(|cpu| cpu.is_number())
            {
                *cpu = json!(cpu.to_string());
            }
        }
        let mutated = policy.mutate(&pod).unwrap();
        let pairs = mutated["spec"]["containers"].as_array().unwrap().iter();
        for (container, recorded_container) in
            pairs.zip(recorded["spec"]["containers"].as_array().unwrap())
        {
            assert_eq!(
                variables(container),
                variables(recorded_container),
                "{name}"
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 13);
}

/// A server 1.36 accepts `JSONPatch` with `dyn([Object…])` as a value, and then panics on every matching pod.
#[test]
fn the_policy_avoids_the_mutation_that_panics_the_server() {
    let objects = documents("deploy/policies/threads.yaml");
    let spec = &objects[0]["spec"];
    assert_eq!(spec["failurePolicy"], "Ignore");
    let mutations = spec["mutations"].as_array().unwrap();
    assert_eq!(mutations.len(), 1);
    assert_eq!(mutations[0]["patchType"], "ApplyConfiguration");
    assert!(
        !objects[0].to_string().contains("dyn(") && !objects[0].to_string().contains("JSONPatch")
    );
    // Without a selector, a binding would match every pod of the cluster.
    for binding in &objects[1..] {
        let matching = &binding["spec"]["matchResources"];
        let chosen = ["namespaceSelector", "objectSelector"]
            .map(|key| &matching[key]["matchLabels"]["pinfold.io/threads"]);
        assert!(chosen.contains(&&json!("admit")), "{binding}");
    }
}
