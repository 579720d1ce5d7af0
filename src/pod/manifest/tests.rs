use std::error::Error;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::pod::{ApiUid, ContainerKind, EnvSource};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: team, uid: u-1, labels: {app: train}, annotations: {pinfold.io/cpus: z, x: z}}
spec:
  hostNetwork: true
  initContainers:
  - {name: first, image: busybox}
  - {name: beside, restartPolicy: Always}
  containers:
  - name: main
    image: example.com/train:1
    command: [python, train.py]
    args: [--fast]
    env:
    - {name: PET_A, value: '1'}
    - {name: PET_B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: PET_C}
    - {name: PET_A, value: '2'}
    envFrom: [{configMapRef: {name: m}}]
    resources: {limits: {cpu: '2', memory: 1Gi}, requests: {memory: 512Mi}}
";

fn chain(error: &ManifestError) -> String {
    let source = error
        .source()
        .map_or_else(String::new, |source| format!(": {source}"));
    format!("{error}{source}")
}

fn refused(text: &str) -> String {
    chain(&parse(text, "pods.yaml").unwrap_err())
}

#[test]
fn restart_policies_are_those_of_kubernetes() {
    let pod = |policies: [&str; 3]| {
        let [whole, init, app] = policies;
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{{whole} \
             initContainers: [{{name: i, {init}}}], containers: [{{name: c, {app}}}]}}}}"
        )
    };
    let policy = |word: &str| format!("restartPolicy: {word},");
    for word in ["Always", "OnFailure", "Never", "''"] {
        let word = policy(word);
        assert!(
            parse(&pod([&word, &word, &word]), "pods.yaml").is_ok(),
            "{word}"
        );
    }
    let wrong = policy("Sometimes");
    for (at, path) in [
        (0, "spec"),
        (1, "spec.initContainers[0]"),
        (2, "spec.containers[0]"),
    ] {
        let mut policies = ["", "", ""];
        policies[at] = &wrong;
        let mistake =
            format!("{path}.restartPolicy is \"Sometimes\": write Always, OnFailure or Never");
        let message = refused(&pod(policies));
        assert!(message.ends_with(&mistake), "{message}");
    }
    // The API server knows what it stores.
    let stored = document::read::<PodObject>(&pod([&wrong, "", ""]), MAX_TEXT)
        .unwrap()
        .0;
    assert!(Pod::from_k8s(stored.into_iter().next().unwrap()).is_ok());
}

#[test]
fn two_pods_of_one_name_are_an_error() {
    let pod =
        |name: &str, namespace: &str| POD.replace("name: a,", name).replace("team", namespace);
    let both = |first: &str, second: &str| format!("{first}---\n{second}");
    let twice = both(POD, &pod("name: a,", "team"));
    assert_eq!(
        refused(&twice),
        "pods.yaml: a second Pod has the name team/a; the first is in pods.yaml: name each file once, and give each Pod of a \
         namespace its own name"
    );
    let list = "{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [ITEM, ITEM]}".replace(
        "ITEM",
        "{\"metadata\": {\"name\": \"x\"}, \"spec\": {\"containers\": [{\"name\": \"c\"}]}}",
    );
    assert!(refused(&list).contains("a second Pod has the name default/x"));
    for several in [
        both(POD, &pod("name: b,", "team")),
        both(POD, &pod("name: a,", "other")),
        // Each of these gets a name of its own.
        both(
            &pod("generateName: a-,", "team"),
            &pod("generateName: a-,", "team"),
        ),
    ] {
        assert_eq!(parse(&several, "pods.yaml").unwrap().len(), 2, "{several}");
    }
}

#[test]
fn every_field_is_read() {
    let pods = parse(POD, "pods.yaml").unwrap();
    let [pod] = &pods[..] else { panic!("{pods:?}") };
    assert_eq!(
        (
            pod.namespace.as_str(),
            pod.name.as_str(),
            pod.api_uid.as_ref().map(ApiUid::as_str)
        ),
        ("team", "a", Some("u-1"))
    );
    assert_eq!(pod.cgroup_uid(), Some("u-1"));
    assert_eq!(pod.labels["app"], "train");
    assert_eq!(pod.annotations["pinfold.io/cpus"], "z");
    assert_eq!(pod.annotations.len(), 1, "no rule reads the other one");
    assert!(pod.host_network && !pod.finished);
    assert!(pod.resources.is_empty());
    let kinds: Vec<_> = pod
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("first", ContainerKind::Init),
            ("beside", ContainerKind::Sidecar),
            ("main", ContainerKind::App)
        ]
    );
    let main = pod.container("main").unwrap();
    assert_eq!(main.image, "example.com/train:1");
    assert_eq!(*main.args, ["python", "train.py", "--fast"]);
    assert!(main.env_from);
    assert_eq!(main.env.len(), 3);
    assert_eq!(main.env["PET_A"], EnvSource::Value("2".into()));
    assert_eq!(main.env["PET_B"], EnvSource::Reference);
    assert_eq!(main.env["PET_C"], EnvSource::Value(String::new()));
    assert_eq!(main.resources.cpu_request, Some(2000));
    assert_eq!(main.resources.cpu_limit, Some(2000));
    assert_eq!(main.resources.memory_request, Some(512 << 20));
    assert_eq!(main.resources.memory_limit, Some(1 << 30));
    assert_eq!(main.runtime_id, None);
}

#[test]
fn documents_and_lists() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n";
    let other = pod.replace("name: p", "name: q");
    let item = "{metadata: {name: i}, spec: {containers: [{name: c}]}}";
    let second = item.replace("name: i", "name: j");
    let cases = [
        (String::new(), 0),
        ("---\n---\n# nothing\n".to_owned(), 0),
        ("null\n".to_owned(), 0),
        (pod.to_owned(), 1),
        (format!("---\n{pod}---\n---\n{other}...\n"), 2),
        (format!("kind: PodList\nitems: [{item}, {second}]\n---\n{pod}"), 3),
        (format!("kind: List\napiVersion: v1\nitems: [{item}]\n"), 1),
        ("kind: PodList\n".to_owned(), 0),
        ("kind: PodList\nitems: null\n".to_owned(), 0),
        ("{kind: PodList, items: []}".to_owned(), 0),
        (
            r#"{"kind":"PodList","items":[{"metadata":{"name":"i"},"spec":{"containers":[{"name":"c"}]}}]}"#
                .into(),
            1,
        ),
        (
            format!(
                "\u{feff}{}\n{}",
                r#"{"kind":"Pod","metadata":{"name":"\ud83d\ude00"},"spec":{"containers":[{"name":"c"}]}}"#,
                r#"{"kind":"Pod","metadata":{"name":"o"},"spec":{"containers":[{"name":"c"}]}}"#
            ),
            2,
        ),
        (format!("\u{feff}{pod}"), 1),
        (pod.replace('\n', "\r\n"), 1),
    ];
    for (text, count) in cases {
        let pods =
            parse(&text, "pods.yaml").unwrap_or_else(|error| panic!("{text}: {}", chain(&error)));
        assert_eq!(pods.len(), count, "{text}");
        assert!(pods.iter().all(|pod| pod.namespace == "default"));
    }
}

#[test]
fn names() {
    let pod = |metadata: &str| {
        format!("kind: Pod\nmetadata: {metadata}\nspec: {{containers: [{{name: c}}]}}\n")
    };
    assert_eq!(
        parse(&pod("{generateName: job-}"), "p").unwrap()[0].name,
        "job-"
    );
    assert_eq!(
        parse(&pod("{name: a, generateName: job-}"), "p").unwrap()[0].name,
        "a"
    );
    assert_eq!(
        parse(&pod("{name: '', generateName: job-}"), "p").unwrap()[0].name,
        "job-"
    );
    assert_eq!(
        refused(&pod("{}")),
        "pods.yaml: document 1, a pod without a name, is not valid: metadata.name is missing: give the pod a name"
    );
}

#[test]
fn other_kinds_are_refused_by_name() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: c}]}}}\n";
    assert_eq!(
        refused(&format!("{POD}---\n{job}")),
        "pods.yaml: document 2 is a Job (batch/v1): only Pods and Lists of Pods (v1) are read"
    );
    assert_eq!(
        refused(
            "kind: List\nitems: [{kind: Pod, metadata: {name: a}}, {kind: Service, apiVersion: v1}]"
        ),
        "pods.yaml: document 1, items[1] is a Service (v1): only Pods and Lists of Pods (v1) are read"
    );
    assert!(refused("kind: Pod\napiVersion: example.com/v1").contains("a Pod (example.com/v1)"));
    assert!(
        refused("kind: List\nitems: [{kind: List, items: []}]")
            .contains("items[0] is a List (no apiVersion)")
    );
    assert!(refused("metadata: {name: a}").starts_with("pods.yaml: document 1 has no kind"));
    assert!(refused(r#"{"metadata": {}}"#).starts_with("pods.yaml: document 1 has no kind"));
}

#[test]
fn fields_are_named() {
    let of = |containers: &str| {
        refused(&format!(
            "{POD}---\nkind: Pod\nmetadata: {{name: b}}\nspec: {{{containers}}}\n"
        ))
        .replace("pods.yaml: document 2, pod b, is not valid: ", "")
    };
    let cases = [
        (
            "containers: []",
            "spec.containers is empty: a pod needs at least one container",
        ),
        (
            "containers: [{name: a}, {image: x}]",
            "spec.containers[1].name is missing: give the container a name that is unique in the pod",
        ),
        (
            "initContainers: [{name: a}], containers: [{name: a}]",
            "spec.containers[0].name repeats \"a\": names of containers, init containers included, are unique in a pod",
        ),
        (
            "containers: [{name: a, resources: {limits: {cpu: 1}, requests: {cpu: 1500m}}}]",
            "spec.containers[0].resources.requests.cpu is 1500m, more than the limit 1: lower it, or raise the limit",
        ),
        (
            "containers: [{name: a, resources: {limits: {memory: 1Gi}, requests: {memory: 2Gi}}}]",
            "spec.containers[0].resources.requests.memory is 2Gi, more than the limit 1Gi: lower it, or raise the limit",
        ),
        (
            "resources: {limits: {cpu: 1}}, containers: [{name: a, resources: {requests: {cpu: 2}}}]",
            "spec.resources.requests.cpu is 2, more than the limit 1: lower it, or raise the limit",
        ),
        (
            "initContainers: [{name: a, resources: {limits: {cpu: two}}}], containers: [{name: b}]",
            "spec.initContainers[0].resources.limits.cpu is not a quantity",
        ),
        (
            "containers: [{name: b, resources: {requests: {memory: -1Gi}}}]",
            "spec.containers[0].resources.requests.memory is not a quantity",
        ),
        (
            "containers: [{name: b, resources: {requests: {cpu: .inf}}}]",
            "pods.yaml: document 2, line 24, can't be read",
        ),
    ];
    for (containers, expected) in cases {
        let error = of(containers);
        assert!(error.starts_with(expected), "{error}");
    }
    let error = parse(
        "kind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c, resources: {limits: {cpu: -2}}}]}",
        "p",
    );
    let error = error.unwrap_err();
    let quantity = error.source().and_then(Error::source).unwrap().to_string();
    assert_eq!(quantity, "\"-2\" is negative: write zero or more");
}

#[test]
fn lines_are_named() {
    let line = |text: &str| match parse(text, "p") {
        Err(ManifestError::Syntax {
            document,
            line,
            source,
            ..
        }) => {
            assert!(!source.to_string().is_empty());
            (document, line)
        }
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(line("kind: Pod\nmetadata: [oops\n").0, 1);
    assert_eq!(
        line(&format!(
            "{POD}---\nkind: Pod\nmetadata:\n  labels:\n    CASE: 2\n"
        )),
        (2, Some(25))
    );
    assert_eq!(
        line("kind: Pod\nspec:\n  containers:\n  - name: a\n    args: [--steps, 100]\n"),
        (1, Some(5))
    );
    assert_eq!(
        line("kind: Pod\nspec:\n  hostNetwork: perhaps\n"),
        (1, Some(3))
    );
    assert_eq!(line("kind: Pod\nkind: Pod\n"), (1, Some(2)));
    assert_eq!(line("just text"), (1, Some(1)));
    assert_eq!(line("- a\n- b\n").0, 1);
    assert_eq!(line("{\"kind\": \"Pod\",\n\"metadata\": 5}"), (1, Some(2)));
    assert_eq!(line("{\"kind\": \"Pod\",\n").0, 1);
    assert_eq!(line("kind: Pod\n\tmetadata: {}\n").0, 1);
    assert_eq!(line("\u{0}").0, 1);
}

#[test]
fn yaml_bombs_are_refused_soon() {
    let mut laughs = "kind: Pod\nmetadata: {annotations: {x: &a0 lol}}\n".to_owned();
    for i in 1..30 {
        let previous = format!("*a{}, ", i - 1).repeat(9);
        laughs.push_str(&format!(
            "a{i}: &a{i} [{}]\n",
            previous.trim_end_matches(", ")
        ));
    }
    let deep = |open: &str, close: &str| {
        format!(
            "kind: Pod\nspec: {}{}\n",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    let indented: String = (0..5000)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    let json = format!("{{\"kind\":\"Pod\",\"spec\":{}", "{\"a\":".repeat(100_000));
    let texts = [
        laughs,
        deep("[", "]"),
        deep("{a: ", "}"),
        deep("[", ""),
        indented,
        json,
        "[".repeat(1 << 20),
        "- ".repeat(1 << 20),
    ];
    for text in texts {
        let start = Instant::now();
        let error = parse(&text, "bomb").unwrap_err();
        assert!(chain(&error).len() < 1000, "{}", chain(&error).len());
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "{:?} for {:.40}",
            start.elapsed(),
            text
        );
    }
    let long = " ".repeat(MAX_TEXT + 1);
    assert!(
        matches!(parse(&long, "long"), Err(ManifestError::TooLong { size, .. }) if size == MAX_TEXT + 1)
    );
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}|[-{}\\[\\]:,&*!|>'\"#%@ \na-d0-9]{0,200}") {
        let _ = parse(&text, "text");
    }

    #[test]
    fn no_change_to_a_manifest_makes_it_panic(
        at in 0usize..POD.len(),
        length in 0usize..20,
        text in "[-{}\\[\\]:,&*!|>'\"#%@ \na-d0-9]{0,6}|\\PC{0,3}",
    ) {
        let mut changed = POD.to_owned();
        changed.replace_range(at..(at + length).min(POD.len()), &text);
        if let Err(error) = parse(&changed, "changed") {
            prop_assert!(error.to_string().starts_with("changed: document "));
        }
        let json = serde_json::to_string(&serde_saphyr::from_str::<serde_json::Value>(POD).unwrap()).unwrap();
        let mut json = json;
        let at = at.min(json.len());
        json.replace_range(at..(at + length).min(json.len()), &text);
        let _ = parse(&json, "changed");
    }
}
