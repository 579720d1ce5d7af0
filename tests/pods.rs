//! The `pod` module with complete manifests: see `tests/data/pods/README.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/repository.rs"]
mod repository;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pinfold::pod::{
    self, Container, ContainerKind, ContainerWish, Entitlement, EnvSource, Pod, PodRole, Policy,
    Processes, Qos, RecognizedPod, Resources, ThreadBasis, ThreadPolicy,
};
use proptest::prelude::*;
use serde_json::Value;

fn data() -> PathBuf {
    repository::here("tests/data/pods")
}

fn read(name: &str) -> Vec<Pod> {
    let text = fs::read_to_string(data().join(name)).unwrap();
    pod::parse(&text, name)
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)))
}

fn entitlements(pod: &Pod, policy: &Policy) -> String {
    let pod = RecognizedPod::from(pod.clone());
    let word = |container: &Container| {
        let granted = match pod::entitlement(&pod, container, policy) {
            Entitlement::Exclusive { cpus, .. } => cpus.to_string(),
            Entitlement::Shared { .. } => "shared".to_owned(),
            Entitlement::Inherit { .. } => "pod".to_owned(),
        };
        format!("{}={granted}", container.name)
    };
    pod.containers
        .iter()
        .map(word)
        .collect::<Vec<_>>()
        .join(" ")
}

fn role(pod: &Pod) -> String {
    let found = pod::recognise(pod);
    let index = found
        .index
        .map_or_else(String::new, |index| format!(" {index}"));
    let job = found
        .job
        .map_or_else(String::new, |job| format!(" of {job}"));
    let training = if found.training {
        "training"
    } else {
        "not training"
    };
    format!("{}{index}{job}, {training}", found.role)
}

/// The number of processes of each app container; a question mark if it is unknown.
fn processes(pod: &Pod) -> String {
    let apps = pod
        .containers
        .iter()
        .filter(|container| container.kind == ContainerKind::App);
    let number = |container: &Container| match pod::processes(pod, container) {
        Processes::Known { count, .. } => format!("{}={count}", container.name),
        Processes::Unknown { .. } => format!("{}=?", container.name),
    };
    apps.map(number).collect::<Vec<_>>().join(" ")
}

/// The annotations of each pod in a file, by the pod's name. The agent keeps only those that a rule uses.
fn annotations(name: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let text = fs::read_to_string(data().join(name)).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let items = |document: Value| match document["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![document],
    };
    let pods = documents.into_iter().flat_map(items);
    let metadata = pods.map(|pod| pod["metadata"].clone());
    metadata
        .filter_map(|metadata| {
            let name = metadata["name"].as_str()?.to_owned();
            let annotations = metadata["annotations"].clone();
            Some((
                name,
                serde_json::from_value(annotations).unwrap_or_default(),
            ))
        })
        .collect()
}

#[test]
fn manifests_meet_the_expectations_in_their_annotations() {
    let mut checked = 0;
    for entry in fs::read_dir(data()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".yaml") {
            continue;
        }
        let annotations = annotations(&name);
        for pod in read(&name) {
            let mut expectations = 0;
            let mut check = |key: &str, actual: String| {
                if let Some(expected) = annotations[&pod.name].get(key) {
                    assert_eq!(&actual, expected, "{key} of {} in {name}", pod.name);
                    expectations += 1;
                }
            };
            check("expect/qos", pod::qos(&pod).to_string());
            check("expect/role", role(&pod));
            check("expect/evidence", pod::recognise(&pod).evidence);
            check("expect/processes", processes(&pod));
            check("expect/cpus", entitlements(&pod, &Policy::default()));
            assert!(expectations > 0, "{} in {name} expects nothing", pod.name);
            checked += 1;
        }
    }
    assert!(checked >= 90, "only {checked} pods");
}

#[test]
fn a_recorded_list_of_pods_is_read_completely() {
    let pods = read("node-list.json");
    let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "fx-fails",
            "fx-guaranteed",
            "fx-init-sidecar",
            "fx-succeeds"
        ]
    );
    for pod in &pods {
        assert_eq!(Some(pod::qos(pod)), pod.qos_reported, "{pod}");
        assert_eq!(
            pod.finished,
            ["fx-fails", "fx-succeeds"].contains(&pod.name.as_str()),
            "{pod}"
        );
        assert!(pod.containers.iter().all(|container| {
            container
                .runtime_id
                .as_ref()
                .is_some_and(|id| id.len() == 64)
        }));
    }
    assert_eq!(
        pods[0].cgroup_uid(),
        Some("f88c6ea9-596d-4f3b-a6c3-b26e5f661743")
    );
    assert_eq!(
        pods[0].containers[0].runtime_id.as_deref(),
        Some("316258f0fede69eef4c5f07ed9a33f8a06a71226bce76de2eb78d28a07cb4ebf")
    );
    let kinds: Vec<_> = pods[2]
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.kind))
        .collect();
    use pod::ContainerKind::{App, Init, Sidecar};
    assert_eq!(kinds, [("init", Init), ("sidecar", Sidecar), ("c", App)]);
    assert_eq!(
        pods[1].containers[0].resources,
        Resources {
            cpu_request: Some(100),
            cpu_limit: Some(100),
            memory_request: Some(32 << 20),
            memory_limit: Some(32 << 20)
        }
    );

    // The same list as YAML, as printed by kubectl, gives the same pods.
    let json: Value =
        serde_json::from_str(&fs::read_to_string(data().join("node-list.json")).unwrap()).unwrap();
    let yaml = serde_saphyr::to_string(&json).unwrap();
    assert_eq!(pod::parse(&yaml, "list.yaml").unwrap(), pods);
}

#[test]
fn a_mirror_pod_names_its_static_pod() {
    let pods = read("static.yaml");
    let own = "7a1d9c52-8f0e-4c59-a8c2-09f2c1b0f001";
    assert_eq!(
        (pods[0].cgroup_uid(), pods[0].api_uid.clone()),
        (Some(own), Some(own.into()))
    );
    let (uid, node) = (
        "0c1d2e3f405162738495a6b7c8d9eaf0".into(),
        "4be0c4a1-3c6f-4c6d-8f57-0d1f8f6a9c11".into(),
    );
    assert_eq!(pods[0].mirror, Some(pod::Mirror { uid, node }));
    // A single annotation, different annotations, or a different owner make no mirror pod.
    let text = fs::read_to_string(data().join("static.yaml")).unwrap();
    let changes = [
        ("config.mirror: 0c1d", "config.mirror: 1c1d"),
        ("config.hash", "config.other"),
        ("kind: Node", "kind: Job"),
    ];
    for (before, after) in changes {
        let other = pod::parse(&text.replace(before, after), "static.yaml").unwrap();
        assert_eq!(
            (&other[0].mirror, other[0].cgroup_uid()),
            (&None, Some(own)),
            "{after}"
        );
    }
    assert!(pods[0].host_network);
}

#[test]
fn a_policy_chooses_more_pods() {
    let pod = |name: &str| {
        read("entitlements.yaml")
            .into_iter()
            .find(|pod| pod.name == name)
            .unwrap()
    };
    let mut ordinary = pod("ordinary");
    ordinary.labels.insert("app".to_owned(), "train".to_owned());
    let policy: Policy =
        serde_json::from_str(r#"{"selector": "app=train,tier notin (canary)"}"#).unwrap();
    let ordinary = RecognizedPod::from(ordinary);
    let granted = pod::entitlement(&ordinary, &ordinary.containers[0], &policy);
    assert_eq!(
        serde_json::to_value(&granted).unwrap(),
        serde_json::json!({
            "kind": "exclusive",
            "cpus": 2,
            "reason": "Guaranteed, CPU limit 2, and a training pod (selector app=train,tier!=canary)",
        })
    );
    let everything: Policy = serde_json::from_str(r#"{"trainingOnly": false}"#).unwrap();
    assert_eq!(entitlements(&pod("ordinary"), &everything), "c=2");
    assert_eq!(
        entitlements(&pod("shared-wins"), &everything),
        "i=shared c=shared"
    );
    assert!(serde_json::from_str::<Policy>(r#"{"selector": ""}"#).is_err());
    assert!(serde_json::from_str::<Policy>(r#"{"select": "a=b"}"#).is_err());
}

/// The identifiers in metrics: they name what a pod's author can change, and nothing else.
#[test]
fn obstacles_are_what_a_pods_author_can_change() {
    for (file, name, container, obstacle) in [
        ("roles.yaml", "mnist-worker-3", "tensorflow", None),
        ("roles.yaml", "mnist-ps-0", "tensorflow", Some("cpu_limit")),
        ("entitlements.yaml", "below-one", "c", Some("cpu_limit")),
        (
            "entitlements.yaml",
            "unknown-word",
            "c",
            Some("unknown_annotation"),
        ),
        ("entitlements.yaml", "finished", "c", None),
        ("entitlements.yaml", "ordinary", "c", None),
        ("entitlements.yaml", "shared-wins", "c", None),
        ("entitlements.yaml", "named", "logger", None),
        ("entitlements.yaml", "named", "mesh", None),
        ("entitlements.yaml", "named-shared", "logger", None),
        (
            "entitlements.yaml",
            "named-with-a-fraction",
            "trainer",
            Some("container_cpus"),
        ),
        (
            "entitlements.yaml",
            "named-with-a-smaller-request",
            "trainer",
            Some("container_cpus"),
        ),
        (
            "entitlements.yaml",
            "named-wrongly",
            "trainer",
            Some("container_cpus"),
        ),
        (
            "entitlements.yaml",
            "named-unreadably",
            "trainer",
            Some("unknown_annotation"),
        ),
        (
            "qos.yaml",
            "init-without-resources",
            "c",
            Some("not_guaranteed"),
        ),
    ] {
        let pods = read(file);
        let pod = pods.iter().find(|pod| pod.name == name).unwrap();
        let pod = RecognizedPod::from(pod.clone());
        let container = pod.container(container).unwrap();
        let found = pod::entitlement(&pod, container, &Policy::default()).obstacle();
        assert_eq!(found.map(pod::Obstacle::name), obstacle, "{name}");
        // Whoever can change something gets an Event.
        let denied = pod::is_denied(&pod, container, &Policy::default());
        assert_eq!(denied, obstacle.is_some(), "{name}");
    }
}

/// A pod that asks for idle siblings, on a node whose policy forbids them.
#[test]
fn a_policy_can_forbid_idle_siblings() {
    let forbidding: Policy = serde_json::from_str(r#"{"singleCores": false}"#).unwrap();
    let mut worker = read("roles.yaml")
        .into_iter()
        .find(|pod| pod.name == "mnist-worker-3")
        .unwrap();
    for (cores, policy, given) in [
        (None, &forbidding, 2),
        (Some("whole"), &forbidding, 2),
        (Some("single"), &Policy::default(), 2),
        (Some("single"), &forbidding, 0),
    ] {
        worker.annotations.remove("pinfold.io/cores");
        let cores = cores.map(|cores| ("pinfold.io/cores".to_owned(), cores.to_owned()));
        worker.annotations.extend(cores.clone());
        let pod = RecognizedPod::from(worker.clone());
        let container = &pod.containers[0];
        let granted = pod::entitlement(&pod, container, policy);
        assert_eq!(granted.cpus(), given, "{cores:?}");
        // The author could expect CPUs, so there is an Event, and a `required` container is refused.
        assert_eq!(pod::is_denied(&pod, container, policy), given == 0);
        let obstacle = granted.obstacle().map(pod::Obstacle::name);
        assert_eq!(obstacle, (given == 0).then_some("single_cores"));
        let says = granted.reason().contains("policy.singleCores");
        assert_eq!(says, given == 0, "{}", granted.reason());
    }
}

#[test]
fn reasons_name_the_remedy() {
    let reason = |file: &str, pod: &str, container: &str| {
        let pods = read(file);
        let pod = pods.iter().find(|candidate| candidate.name == pod).unwrap();
        let pod = RecognizedPod::from(pod.clone());
        let granted = pod::entitlement(&pod, pod.container(container).unwrap(), &Policy::default());
        granted.reason().to_owned()
    };
    let cases = [
        (
            "roles.yaml",
            "mnist-worker-3",
            "tensorflow",
            "Guaranteed, CPU limit 2, and a training pod (label training.kubeflow.org/replica-type=worker)",
        ),
        (
            "roles.yaml",
            "mnist-ps-0",
            "tensorflow",
            "CPU limit 1500m is not a whole number; set requests and limits to 1 or 2 CPUs",
        ),
        (
            "entitlements.yaml",
            "below-one",
            "c",
            "CPU limit 300m is not a whole number; set requests and limits to 1 CPU",
        ),
        (
            "entitlements.yaml",
            "unknown-word",
            "c",
            "annotation pinfold.io/cpus is \"Exclusive\", which is unknown: write exclusive, required or shared",
        ),
        (
            "entitlements.yaml",
            "finished",
            "c",
            "the pod has run to its end",
        ),
        (
            "entitlements.yaml",
            "more-than-linux-has",
            "c",
            "CPU limit 10000 is more than the 8192 CPUs that Linux can have; set the CPUs that the container needs",
        ),
        (
            "qos.yaml",
            "init-without-resources",
            "c",
            "QoS class Burstable, not Guaranteed: container prepare has no CPU limit and no memory limit; set equal CPU \
             and memory requests and limits everywhere",
        ),
        (
            "operators.yaml",
            "bert-worker-0",
            "pytorch",
            "QoS class Burstable, not Guaranteed: container init-pytorch has CPU request 50m and limit 100m, which differ; \
             the training operator adds init-pytorch, so give it equal requests and limits in the operator's \
             --pytorch-init-container-template-file",
        ),
        (
            "qos.yaml",
            "whole-pod",
            "a",
            "the container has no CPU limit of its own, only the pod has; set the container's requests and limits to 1 \
             CPU or more",
        ),
        (
            "qos.yaml",
            "whole-pod-unequal-container",
            "a",
            "CPU request 1 differs from the limit 2; set both to 2",
        ),
        (
            "qos.yaml",
            "init-and-sidecar",
            "prepare",
            "an init container runs on the CPUs of the pod's other containers",
        ),
    ];
    for (file, pod, container, expected) in cases {
        assert_eq!(reason(file, pod, container), expected, "{pod}");
    }
    assert!(
        reason("entitlements.yaml", "ordinary", "c")
            .starts_with("not a training pod: no operator's label, no TF_CONFIG")
    );
}

/// A TF_CONFIG that does not show the role is not called missing.
#[test]
fn a_useless_tf_config_is_named() {
    let evidence = |source: EnvSource| {
        let container = Container {
            name: "main".to_owned(),
            env: [("TF_CONFIG".to_owned(), source)].into(),
            ..Container::default()
        };
        let pod = Pod {
            containers: vec![container],
            ..Pod::default()
        };
        pod::recognise(&pod).evidence
    };
    let value = |text: &str| evidence(EnvSource::Value(text.to_owned()));
    let unknown = "a TF_CONFIG in container main without a task.type that is a known role";
    for (found, expected) in [
        (
            value("{'task': {'type': 'worker'}}"),
            "a TF_CONFIG in container main that is no valid JSON",
        ),
        (
            value(""),
            "a TF_CONFIG in container main that is no valid JSON",
        ),
        (value(r#"{"cluster": {}}"#), unknown),
        (
            value(r#"{"task": {"type": "gardener", "index": 0}}"#),
            unknown,
        ),
        (
            evidence(EnvSource::Reference),
            "a TF_CONFIG in container main that Pinfold can't read",
        ),
    ] {
        assert!(found.contains(expected), "{found}");
        assert!(!found.contains("no TF_CONFIG"), "{found}");
    }
}

// === any pod ===

fn amount() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        Just(None),
        Just(Some(0)),
        (1u64..5).prop_map(|n| Some(n * 500)),
        Just(Some(3000))
    ]
}

fn any_resources() -> impl Strategy<Value = Resources> {
    (amount(), amount(), amount(), amount(), any::<bool>()).prop_map(|(a, b, c, d, equal)| {
        let (cpu_limit, memory_limit) = (b, d);
        let (cpu_request, memory_request) = if equal { (b, d) } else { (a, c) };
        Resources {
            cpu_request,
            cpu_limit,
            memory_request,
            memory_limit,
        }
    })
}

const VARIABLES: [&str; 14] = [
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_GRPC_WORKER_CACHE_QUEUES",
    "GOTO_NUM_THREADS",
    "PET_NPROC_PER_NODE",
    "TF_CONFIG",
    "OMPI_MCA_orte_default_hostfile",
    "OMPI_MCA_orte_set_default_slots",
    "MPI_HOST",
    "KUBERNETES_SERVICE_HOST",
    "PATH",
];

fn any_container() -> impl Strategy<Value = Container> {
    let kind = prop_oneof![
        Just(ContainerKind::Init),
        Just(ContainerKind::Sidecar),
        Just(ContainerKind::App),
        Just(ContainerKind::App)
    ];
    let source = prop_oneof![
        Just(EnvSource::Reference),
        "[0-9]{1,3}|-1|x|".prop_map(EnvSource::Value),
    ];
    let env =
        proptest::collection::btree_map(proptest::sample::select(&VARIABLES[..]), source, 0..4);
    let args = proptest::sample::select(
        &[
            "",
            "--nproc_per_node=2",
            "--nproc-per-node auto",
            "mpirun -np 3 x",
        ][..],
    );
    (
        any_resources(),
        kind,
        env,
        proptest::bool::weighted(0.1),
        args,
    )
        .prop_map(|(resources, kind, env, env_from, args)| Container {
            name: "c".to_owned(),
            kind,
            resources,
            env: env
                .into_iter()
                .map(|(name, source)| (name.to_owned(), source))
                .collect(),
            env_from,
            args: vec![args.to_owned()].into(),
            ..Container::default()
        })
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let cpus = proptest::sample::select(&["", "exclusive", "shared", "required", "x"][..]);
    let threads =
        proptest::sample::select(&["", "limit", "openmp", "embedding", "ps", "off", "x"][..]);
    let role = proptest::sample::select(&["", "ps", "worker", "scheduler"][..]);
    let named =
        proptest::sample::select(&["", "", "c=exclusive", "c=shared", "d=exclusive", "c"][..]);
    let containers = proptest::collection::vec(any_container(), 1..4);
    (
        containers,
        any_resources(),
        proptest::bool::weighted(0.2),
        cpus,
        threads,
        role,
        named,
        any::<bool>(),
    )
        .prop_map(
            |(containers, whole, pod_level, cpus, threads, role, named, finished)| {
                let mut pod = Pod {
                    name: "p".to_owned(),
                    resources: if pod_level {
                        whole
                    } else {
                        Resources::default()
                    },
                    containers,
                    finished: finished && role.is_empty(),
                    ..Pod::default()
                };
                let mut annotate = |key: &str, value: &str| {
                    if !value.is_empty() {
                        pod.annotations.insert(key.to_owned(), value.to_owned());
                    }
                };
                annotate(pod::CPUS_ANNOTATION, cpus);
                annotate(pod::CONTAINER_CPUS_ANNOTATION, named);
                annotate(pod::THREADS_ANNOTATION, threads);
                if !role.is_empty() {
                    pod.labels.insert(
                        "training.kubeflow.org/replica-type".to_owned(),
                        role.to_owned(),
                    );
                }
                pod
            },
        )
}

proptest! {
    #[test]
    fn exclusive_means_whole_and_guaranteed_or_named(pod in any_pod()) {
        let pod = RecognizedPod::from(pod);
        for container in &pod.containers {
            if let Entitlement::Exclusive { cpus, .. } = pod::entitlement(&pod, container, &Policy::default()) {
                prop_assert!(cpus >= 1);
                let is_named = pod.container_cpus().wish(&container.name) == Some(ContainerWish::Exclusive);
                prop_assert!(is_named || pod::qos(&pod) == Qos::Guaranteed);
                prop_assert_eq!(container.resources.cpu_limit, Some(u64::from(cpus) * 1000));
                prop_assert_eq!(container.resources.cpu_request.unwrap_or(u64::from(cpus) * 1000), u64::from(cpus) * 1000);
                prop_assert!(!pod.finished);
                prop_assert_ne!(pod.annotations.get(pod::CPUS_ANNOTATION).map(String::as_str), Some("shared"));
            }
        }
    }

    #[test]
    fn variables_are_positive_and_never_the_container_s_own(pod in any_pod(), cpus in 0usize..300, cores in 0usize..200) {
        let policy = ThreadPolicy::default();
        let pod = RecognizedPod::from(pod);
        for (index, container) in pod.containers.iter().enumerate() {
            for basis in [Some(ThreadBasis::exclusive(cpus, cores, 2)), ThreadBasis::of_quota(&pod, container, &policy)] {
                let found = pod::thread_environment(&pod, index, &Policy::default(), &policy, basis);
                prop_assert!(!found.reason.is_empty());
                prop_assert!(basis.is_some() || found.variables.is_empty());
                for (name, value) in &found.variables {
                    prop_assert!(!container.env.contains_key(name), "{name} is set");
                    prop_assert!(!found.kept.contains(name), "{name} is kept");
                    prop_assert!(value.parse::<u32>().is_ok_and(|n| n > 0 && n.to_string() == *value), "{name}={value}");
                }
                prop_assert!(found.kept.iter().all(|name| container.env.contains_key(name)));
                prop_assert!(!container.env_from || found.variables.is_empty());
                if let (Some(threads), Some(basis)) = (found.threads, basis) {
                    prop_assert!(threads <= basis.cpus.max(basis.cores).max(1));
                }
            }
        }
    }

    #[test]
    fn variables_that_do_not_count_change_nothing(pod in any_pod(), cpus in 1usize..300) {
        let mut without = pod.clone();
        for container in &mut without.containers {
            container.env.retain(|name, _| pod::variable_counts(name));
        }
        prop_assert_eq!(pod::recognise(&pod), pod::recognise(&without));
        prop_assert_eq!(pod::cpu_preferences(&pod, &pod::CpuPreferences::default()), pod::cpu_preferences(&without, &pod::CpuPreferences::default()));
        let (policy, threads) = (Policy::default(), ThreadPolicy::default());
        let basis = Some(ThreadBasis::exclusive(cpus, cpus, 1));
        let (pod, without) = (RecognizedPod::from(pod), RecognizedPod::from(without));
        for (index, (one, other)) in pod.containers.iter().zip(&without.containers).enumerate() {
            prop_assert_eq!(pod::entitlement(&pod, one, &policy), pod::entitlement(&without, other, &policy));
            prop_assert_eq!(pod.software(index), without.software(index));
            prop_assert_eq!(
                pod::thread_environment(&pod, index, &policy, &threads, basis),
                pod::thread_environment(&without, index, &policy, &threads, basis)
            );
        }
    }

    #[test]
    fn a_reason_fits_one_line(pod in any_pod()) {
        let pod = RecognizedPod::from(pod);
        for container in &pod.containers {
            let granted = pod::entitlement(&pod, container, &Policy::default());
            prop_assert!(!granted.reason().is_empty() && !granted.reason().contains('\n'));
        }
    }
}

#[test]
fn thread_policy_in_configuration() {
    let policy: ThreadPolicy = serde_json::from_str(
        r#"{"profile": "openmp", "roles": {"ps": "off", "worker": "embedding"}, "rounding": "ceil", "noLimit": "request"}"#,
    )
    .unwrap();
    assert_eq!(policy.roles[&PodRole::Worker], pod::Profile::Embedding);
    assert_eq!(
        serde_json::from_str::<ThreadPolicy>("{}").unwrap(),
        ThreadPolicy::default()
    );
    let written = serde_saphyr::to_string(&policy).unwrap();
    assert_eq!(
        serde_saphyr::from_str::<ThreadPolicy>(&written).unwrap(),
        policy
    );
}

#[test]
fn denied_containers_are_recognized() {
    let pod = |annotation: &str, label: &str, limits: &str, phase: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, labels: {{{label}}}, annotations: {{{annotation}}}}}, \
             spec: {{containers: [{{name: main, image: tf, resources: {{limits: {{{limits}}}}}}}]}}, status: {{phase: {phase}}}}}"
        );
        pod::parse(&text, "p").unwrap().remove(0)
    };
    let worker = "training.kubeflow.org/job-name: job, training.kubeflow.org/replica-type: worker";
    for (annotation, label, limits, phase, denied) in [
        ("", worker, "cpu: 2, memory: 1Gi", "Running", false),
        ("", worker, "cpu: 2", "Running", true),
        ("", worker, "cpu: 1500m, memory: 1Gi", "Running", true),
        ("", worker, "cpu: 2", "Succeeded", false),
        ("", "", "cpu: 2", "Running", false),
        ("pinfold.io/cpus: exclusive", "", "cpu: 2", "Running", true),
        (
            "pinfold.io/cpus: shared",
            worker,
            "cpu: 2, memory: 1Gi",
            "Running",
            false,
        ),
        ("pinfold.io/cpus: exlusive", "", "cpu: 2", "Running", true),
    ] {
        let pod = RecognizedPod::from(pod(annotation, label, limits, phase));
        for training_only in [true, false] {
            let policy = Policy {
                training_only,
                ..Policy::default()
            };
            let is_denied = pod::is_denied(&pod, &pod.containers[0], &policy);
            assert_eq!(
                is_denied, denied,
                "{annotation} {label} {limits} {phase} {training_only}"
            );
        }
    }
}

/// `pinfold scene render` keeps a large cluster in a ConfigMap, so TF_CONFIG has a reference
/// instead of it.
#[test]
fn a_chief_with_a_reference_in_tf_config_is_recognised() {
    for (role, expected) in [("chief", PodRole::Chief), ("evaluator", PodRole::Evaluator)] {
        for labels in ["{name: wide-deep, job: ROLE, task: '0'}", "{app: x}"] {
            let manifest = format!(
                r#"
apiVersion: v1
kind: Pod
metadata: {{name: a, labels: {labels}}}
spec:
  containers:
  - name: train
    image: x
    env:
    - {{name: CLUSTER_SPEC, valueFrom: {{configMapKeyRef: {{name: c, key: cluster}}}}}}
    - {{name: TF_CONFIG, value: '{{"cluster":$(CLUSTER_SPEC),"task":{{"type":"ROLE","index":0}}}}'}}
"#
            )
            .replace("ROLE", role);
            let pod = pod::parse(&manifest, "pod").unwrap().remove(0);
            let recognition = pod::recognise(&pod);
            assert_eq!(
                (recognition.role, recognition.index, recognition.training),
                (expected, Some(0), true),
                "{recognition:?}"
            );
            let job = labels.contains("wide-deep").then_some("wide-deep");
            assert_eq!(recognition.job.as_deref(), job);
        }
    }
}
