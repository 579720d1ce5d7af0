//! `pinfold scene render`: every case in every format, read strictly, taken by kubectl, and what the pods would be told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use pinfold::experiment::{RenderRequest, Rendered, Slice, TrainingJob, WorkloadFormat, render};
use pinfold::pod::{self, Entitlement, PodRole, Policy};
use pinfold::scene::ScenePlan;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::kubectl::dry_run;
use super::render_operators::{JobSet, PodGroup, TfJob, Volcano};
use super::strict::strictly;
use super::tools::program;
use super::{AMOUNTS, example, here, plan};

/// Scene, case, servers that run workers, workers, servers that run parameter servers, parameter servers: as the articles
/// mean them.
pub(crate) const CASES: [(&str, &str, u32, u32, u32, u32); 8] = [
    ("1", "1", 1, 10, 1, 1),
    ("1", "2", 5, 50, 5, 5),
    ("1", "3", 10, 100, 10, 10),
    ("1", "4", 20, 200, 20, 20),
    ("2", "1", 1, 10, 1, 1),
    ("2", "2", 5, 50, 5, 5),
    ("2", "3", 10, 100, 10, 10),
    ("2", "4", 20, 200, 20, 20),
];

pub(crate) const FORMATS: [WorkloadFormat; 4] = [
    WorkloadFormat::Native,
    WorkloadFormat::Tfjob,
    WorkloadFormat::Volcano,
    WorkloadFormat::Jobset,
];

pub(crate) fn job(text: &str) -> TrainingJob {
    TrainingJob::read(text, "job.yaml")
        .unwrap()
        .unwrap_or_else(|findings| panic!("{findings:?}"))
}

/// A request for the objects of a job in a case, outside any experiment.
pub(crate) fn request<'a>(
    plan: &'a ScenePlan,
    (scene, case): (&'a str, &'a str),
    job: &'a TrainingJob,
    format: WorkloadFormat,
    slice: &'a Slice,
) -> RenderRequest<'a> {
    RenderRequest {
        plan,
        scene,
        case,
        job,
        format,
        slice,
        run: None,
        amounts: AMOUNTS,
    }
}

pub(crate) fn rendered(
    job: &TrainingJob,
    scene: &str,
    case: &str,
    format: WorkloadFormat,
) -> Rendered {
    render(&request(
        &plan(&example()),
        (scene, case),
        job,
        format,
        &Slice::default(),
    ))
    .unwrap()
}

/// TensorFlow takes a cluster of one worker for a distributed job. The training operator leaves TF_CONFIG out, too.
#[test]
fn a_job_of_one_task_has_no_tf_config() {
    let text = "
apiVersion: pinfold.io/v1alpha1
kind: ScenePlan
metadata: {name: kf}
spec:
  nodes: {selector: {matchLabels: {pool: train}}}
  active: {scene: solo, case: '1'}
  scenes:
  - scene: solo
    groups: [{name: w, type: worker, perNode: {worker: 1}}]
    cases: [{case: '1', nodes: {w: 1}, totals: {servers: 1, worker: 1}}]
  - scene: watched
    groups: [{name: w, type: worker, perNode: {chief: 1, evaluator: 1}}]
    cases: [{case: '1', nodes: {w: 1}, totals: {servers: 1, chief: 1, evaluator: 1}}]
";
    let job = job("{name: tj, namespace: lab, image: 'tf:2', script: /opt/train.py}");
    for (scene, has_config) in [("solo", false), ("watched", true)] {
        for format in [
            WorkloadFormat::Native,
            WorkloadFormat::Volcano,
            WorkloadFormat::Jobset,
        ] {
            let case = (scene, "1");
            let rendered =
                render(&request(&plan(text), case, &job, format, &Slice::default())).unwrap();
            let pods = pods(&rendered.objects);
            assert!(!pods.is_empty());
            for pod in &pods {
                let env = pod.template["spec"]["containers"][0]["env"]
                    .as_array()
                    .unwrap();
                let has = |name: &str| env.iter().any(|variable| variable["name"] == name);
                assert_eq!(has("TF_CONFIG"), has_config, "{scene} {format:?}");
                assert!(
                    has("WORKER_HOSTS") && has("TASK_INDEX"),
                    "{scene} {format:?}"
                );
                assert!(has_config || !has("CLUSTER_SPEC"), "{scene} {format:?}");
            }
        }
    }
}

/// A job with all settings.
pub(crate) fn full() -> TrainingJob {
    job(r#"
name: wide-deep
namespace: train
image: registry.example/tensorflow:1.15
script: /opt/train.py
args: ["--ps=$(PS_HOSTS)", "--index=$(TASK_INDEX)", "--log=$(LOG_DIR)/$(RUN)"]
env: {RUN: a, LEVEL: "3"}
data: {size: 10Gi, storageClass: shared}
log: {claim: logs}
gang: {queue: research}
reclaim: {after: 45s}
serviceAccount: trainer
imagePullSecrets: [pull]
retries: 3
roles:
  worker: {env: {LEVEL: "4"}}
"#)
}

/// The mistakes of an object, by the type of its kind.
pub(crate) fn faults(object: &Value) -> Vec<String> {
    match (
        object["apiVersion"].as_str().unwrap_or_default(),
        object["kind"].as_str().unwrap_or_default(),
    ) {
        ("v1", "Service") => strictly::<Service>(object),
        ("v1", "ConfigMap") => strictly::<ConfigMap>(object),
        ("v1", "PersistentVolumeClaim") => strictly::<PersistentVolumeClaim>(object),
        ("apps/v1", "Deployment") => strictly::<Deployment>(object),
        ("batch/v1", "Job") => strictly::<Job>(object),
        ("kubeflow.org/v1", "TFJob") => strictly::<TfJob>(object),
        ("batch.volcano.sh/v1alpha1", "Job") => strictly::<Volcano>(object),
        ("jobset.x-k8s.io/v1alpha2", "JobSet") => strictly::<JobSet>(object),
        ("scheduling.volcano.sh/v1beta1", "PodGroup") => strictly::<PodGroup>(object),
        (version, kind) => vec![format!("{version} {kind} is not expected here")],
    }
}

/// A pod of a rendered cluster, and the pod's host name.
#[derive(Debug)]
pub(crate) struct RenderedPod {
    pub(crate) host: String,
    pub(crate) template: Value,
    /// The kind that makes the pod.
    pub(crate) kind: String,
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|one| one["kind"] == kind).collect()
}

fn fits(selector: &Value, template: &Value) -> bool {
    let labels = &template["metadata"]["labels"];
    selector
        .as_object()
        .unwrap()
        .iter()
        .all(|(key, value)| labels[key] == *value)
}

/// The pods of a cluster whose tasks have templates of their own; each is reachable by a Service or the format's controller.
pub(crate) fn pods(objects: &[Value]) -> Vec<RenderedPod> {
    let mut seen = Vec::new();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for object in objects {
        let (name, spec) = (&object["metadata"]["name"], &object["spec"]);
        match (
            object["apiVersion"].as_str().unwrap(),
            object["kind"].as_str().unwrap(),
        ) {
            ("apps/v1", "Deployment") | ("batch/v1", "Job") => {
                let template = &spec["template"];
                let services = of_kind(objects, "Service");
                assert_eq!(services.len(), 1, "one Service leads to each pod");
                let service = &services[0]["spec"];
                assert!(fits(&service["selector"], template));
                assert_eq!(service["clusterIP"], "None");
                assert_eq!(service["publishNotReadyAddresses"], true);
                let pod = &template["spec"];
                assert_eq!(services[0]["metadata"]["name"], pod["subdomain"]);
                assert_eq!(pod["hostname"], *name, "the host is the object's name");
                seen.push(RenderedPod {
                    host: format!("{}.{}", text(&pod["hostname"]), text(&pod["subdomain"])),
                    template: template.clone(),
                    kind: text(&object["kind"]),
                });
            }
            ("batch.volcano.sh/v1alpha1", _) => {
                for task in spec["tasks"].as_array().unwrap() {
                    let pod = &task["template"]["spec"];
                    let service = of_kind(objects, "Service")[0];
                    assert_eq!(service["metadata"]["name"], pod["subdomain"]);
                    assert!(fits(&service["spec"]["selector"], &task["template"]));
                    assert_eq!(task["replicas"], 1);
                    let host = format!("{}.{}", text(&pod["hostname"]), text(&pod["subdomain"]));
                    seen.push(RenderedPod {
                        host,
                        template: task["template"].clone(),
                        kind: "Job".to_owned(),
                    });
                }
            }
            ("jobset.x-k8s.io/v1alpha2", _) => {
                for job in spec["replicatedJobs"].as_array().unwrap() {
                    let subdomain = text(&spec["network"]["subdomain"]);
                    let host = format!("{}-{}-0-0.{subdomain}", text(name), text(&job["name"]));
                    assert_eq!(job["replicas"], 1);
                    let template = job["template"]["spec"]["template"].clone();
                    seen.push(RenderedPod {
                        host,
                        template,
                        kind: "Job".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
    seen
}

/// `$(NAME)` replaced as the kubelet does it: by the variables before, `$$` is a dollar sign, the unknown stays.
fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        out += &rest[..at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        {
            match env.get(name) {
                Some(value) => out += value,
                None => out += &format!("$({name})"),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

/// The environment and the command line that a container starts with.
pub(crate) fn started(
    objects: &[Value],
    template: &Value,
) -> (BTreeMap<String, String>, Vec<String>) {
    let container = &template["spec"]["containers"][0];
    let mut env = BTreeMap::new();
    for variable in container["env"].as_array().unwrap() {
        let from = &variable["valueFrom"]["configMapKeyRef"];
        let value = match variable["value"].as_str() {
            Some(text) => expand(text, &env),
            None => {
                let maps = of_kind(objects, "ConfigMap");
                let map = maps
                    .iter()
                    .find(|one| one["metadata"]["name"] == from["name"])
                    .unwrap();
                map["data"][from["key"].as_str().unwrap()]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
        };
        let old = env.insert(variable["name"].as_str().unwrap().to_owned(), value);
        assert_eq!(old, None, "{} is there twice", variable["name"]);
    }
    let words = [&container["command"], &container["args"]];
    let words = words
        .into_iter()
        .flat_map(|list| list.as_array().into_iter().flatten());
    let words = words
        .map(|word| expand(word.as_str().unwrap(), &env))
        .collect();
    (env, words)
}

/// The node labels that a pod requires.
pub(crate) fn wanted(template: &Value) -> BTreeMap<String, String> {
    let node = &template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = node["nodeSelectorTerms"].as_array().unwrap();
    assert_eq!(terms.len(), 1, "terms are alternatives");
    let all = terms[0]["matchExpressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            assert_eq!(
                (&one["operator"], one["values"].as_array().unwrap().len()),
                (&json!("In"), 1)
            );
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&one["key"]), text(&one["values"][0]))
        });
    all.collect()
}

#[test]
fn all_cases_in_all_formats_are_objects_of_todays_api() {
    let job = full();
    for (scene, case, ..) in CASES {
        for format in FORMATS {
            let rendered = rendered(&job, scene, case, format);
            let mut names = BTreeSet::new();
            for object in &rendered.objects {
                let what = format!(
                    "{format:?} {scene}/{case} {} {}",
                    object["kind"], object["metadata"]["name"]
                );
                assert_eq!(faults(object), Vec::<String>::new(), "{what}");
                assert_eq!(object["metadata"]["namespace"], "train", "{what}");
                assert!(names.insert(what.clone()), "{what} is there twice");
            }
        }
    }
    // The check itself.
    let mut wrong = rendered(&job, "1", "1", WorkloadFormat::Jobset)
        .objects
        .pop()
        .unwrap();
    wrong["spec"]["sucessPolicy"] = json!({});
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["replicas"] = json!(1);
    assert!(!faults(&wrong).is_empty());
}

#[test]
fn every_task_goes_to_its_index_and_knows_all_others() {
    let job = full();
    for (scene, case, _, workers, _, servers) in CASES {
        for format in [
            WorkloadFormat::Native,
            WorkloadFormat::Volcano,
            WorkloadFormat::Jobset,
        ] {
            let rendered = rendered(&job, scene, case, format);
            let pods = pods(&rendered.objects);
            assert_eq!(pods.len(), (workers + servers) as usize);
            let hosts: BTreeMap<(String, u32), String> = pods
                .iter()
                .map(|one| {
                    let labels = &one.template["metadata"]["labels"];
                    let role = labels["job"].as_str().unwrap().to_owned();
                    let task = labels["task"].as_str().unwrap().parse().unwrap();
                    ((role, task), format!("{}:2222", one.host))
                })
                .collect();
            assert_eq!(hosts.len(), pods.len(), "no two are the same task");
            let all = |role: &str, count: u32| -> Vec<String> {
                (0..count)
                    .map(|task| hosts[&(role.to_owned(), task)].clone())
                    .collect()
            };
            let (of_ps, of_workers) = (all("ps", servers), all("worker", workers));
            for one in &pods {
                let labels = &one.template["metadata"]["labels"];
                let role = labels["job"].as_str().unwrap();
                let task: u32 = labels["task"].as_str().unwrap().parse().unwrap();
                // The articles' rule: worker i on server i ÷ 10, parameter server i on server i.
                let index = if role == "worker" { task / 10 } else { task };
                let mut labels = BTreeMap::from(
                    [("SCENCE", scene), ("CASE", case)]
                        .map(|(key, value)| (key.to_owned(), value.to_owned())),
                );
                labels.insert("INDEX".to_owned(), index.to_string());
                if scene == "2" {
                    labels.insert("TYPE".to_owned(), role.to_owned());
                }
                assert_eq!(wanted(&one.template), labels, "{format:?} {role} {task}");

                let (env, words) = started(&rendered.objects, &one.template);
                let config: Value = serde_json::from_str(&env["TF_CONFIG"]).unwrap();
                let whole = json!({
                    "cluster": {"ps": of_ps, "worker": of_workers},
                    "task": {"type": role, "index": task},
                });
                assert_eq!(config, whole);
                assert_eq!(env["PS_HOSTS"], of_ps.join(","));
                assert_eq!(env["WORKER_HOSTS"], of_workers.join(","));
                assert_eq!(
                    (env["PS_COUNT"].as_str(), env["WORKER_COUNT"].as_str()),
                    (servers.to_string().as_str(), workers.to_string().as_str())
                );
                assert_eq!(env["LEVEL"], if role == "worker" { "4" } else { "3" });
                assert_eq!(
                    words,
                    [
                        "python".to_owned(),
                        "/opt/train.py".to_owned(),
                        format!("--ps={}", of_ps.join(",")),
                        format!("--index={task}"),
                        "--log=/log/a".to_owned(),
                    ]
                );
            }
        }
    }
}

#[test]
fn parameter_servers_keep_apart_from_each_other_and_from_nothing_else() {
    let job = full();
    for format in [
        WorkloadFormat::Native,
        WorkloadFormat::Volcano,
        WorkloadFormat::Jobset,
    ] {
        let pods = pods(&rendered(&job, "1", "2", format).objects);
        let labels: Vec<&Value> = pods
            .iter()
            .map(|one| &one.template["metadata"]["labels"])
            .collect();
        for one in &pods {
            let apart = &one.template["spec"]["affinity"]["podAntiAffinity"];
            if one.template["metadata"]["labels"]["job"] == "worker" {
                assert_eq!(*apart, Value::Null);
                continue;
            }
            let terms = apart["requiredDuringSchedulingIgnoredDuringExecution"]
                .as_array()
                .unwrap();
            assert_eq!(
                (terms.len(), &terms[0]["topologyKey"]),
                (1, &json!("kubernetes.io/hostname"))
            );
            let conditions = terms[0]["labelSelector"]["matchExpressions"]
                .as_array()
                .unwrap();
            let repels = |labels: &Value| {
                conditions.iter().all(|one| {
                    assert_eq!(one["operator"], "In");
                    one["values"]
                        .as_array()
                        .unwrap()
                        .contains(&labels[one["key"].as_str().unwrap()])
                })
            };
            for labels in &labels {
                assert_eq!(repels(labels), labels["job"] == "ps", "{labels}");
            }
            assert!(
                !repels(&json!({"name": "other", "job": "ps", "task": "0"})),
                "another job's"
            );
            assert!(!repels(&json!({})), "a pod without labels");
        }
    }
}

#[test]
fn the_agent_knows_the_pods_and_pins_them() {
    let mut job = full();
    job.pin = Some(true);
    job.roles.entry("worker".to_owned()).or_default().limits =
        BTreeMap::from([("cpu".to_owned(), pinfold::scene::Amount("3".to_owned()))]);
    let rendered = rendered(&job, "2", "1", WorkloadFormat::Native);
    let group = of_kind(&rendered.objects, "PodGroup");
    assert_eq!(
        (group.len(), &group[0]["spec"]),
        (1, &json!({"minMember": 11, "queue": "research"}))
    );
    for one in pods(&rendered.objects) {
        let mut manifest = one.template.clone();
        manifest["apiVersion"] = json!("v1");
        manifest["kind"] = json!("Pod");
        manifest["metadata"]["name"] = json!(one.host);
        let pod = pod::parse(&manifest.to_string(), "pod").unwrap().remove(0);
        let known = pod::recognise(&pod);
        let labels = &one.template["metadata"]["labels"];
        let (role, cpus) = if labels["job"] == "ps" {
            (PodRole::Ps, 2)
        } else {
            (PodRole::Worker, 3)
        };
        assert_eq!((known.role, known.training), (role, true));
        assert_eq!(
            known.index.map(|index| index.to_string()).as_deref(),
            labels["task"].as_str()
        );
        let pod = pod::RecognizedPod::from(pod);
        let granted = pod::entitlement(&pod, &pod.containers[0], &Policy::default());
        assert!(
            matches!(granted, Entitlement::Exclusive { cpus: n, .. } if n.to_string() == cpus.to_string()),
            "{granted:?}"
        );
        let resources = &one.template["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"], resources["limits"]);
        let spec = &one.template["spec"];
        assert_eq!(
            (&spec["schedulerName"], &spec["enableServiceLinks"]),
            (&json!("volcano"), &json!(false))
        );
        assert_eq!(
            one.template["metadata"]["annotations"]["scheduling.k8s.io/group-name"],
            "wide-deep-s2-c1"
        );
        assert_eq!(
            spec["restartPolicy"],
            if role == PodRole::Ps {
                "Always"
            } else {
                "OnFailure"
            }
        );
        assert_eq!(
            one.kind,
            if role == PodRole::Ps {
                "Deployment"
            } else {
                "Job"
            }
        );
    }
}

/// What the command prints can be given to `pinfold plan` and `pinfold explain`.
#[test]
fn every_format_is_read_back_as_the_same_pods() {
    let mut job = full();
    job.pin = Some(true);
    job.roles.entry("worker".to_owned()).or_default().limits =
        BTreeMap::from([("cpu".to_owned(), pinfold::scene::Amount("3".to_owned()))]);
    for (scene, case, _, workers, _, servers) in CASES {
        for format in FORMATS {
            let rendered = rendered(&job, scene, case, format);
            let list = json!({"apiVersion": "v1", "kind": "List", "items": rendered.objects});
            let mut manifests = pod::Manifests::default();
            let count = manifests.read(&list.to_string(), "list").unwrap();
            assert_eq!(count, rendered.objects.len());
            let pods: Vec<_> = manifests.pods().unwrap();
            let pods = pod::recognized(pods);
            let of = |role: PodRole| {
                let known = pods.iter().filter(|pod| pod.recognition().role == role);
                let indices: BTreeSet<_> = known.map(|pod| pod.recognition().index).collect();
                indices.len()
            };
            let found = (of(PodRole::Worker), of(PodRole::Ps), pods.len());
            let (workers, servers) = (workers as usize, servers as usize);
            assert_eq!(found, (workers, servers, workers + servers), "{format:?}");
            for pod in pods.iter() {
                let granted = pod::entitlement(pod, &pod.containers[0], &Policy::default());
                assert!(granted.cpus() > 0, "{format:?} {pod:?}");
                assert_eq!(pod.namespace, "train");
            }
        }
    }
}

#[test]
fn objects_carry_the_labels_of_reclaim() {
    let rendered = rendered(&full(), "2", "2", WorkloadFormat::Native);
    for kind in ["Job", "Deployment"] {
        for object in of_kind(&rendered.objects, kind) {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"]["pinfold.io/reclaim"], "ps");
            assert_eq!(metadata["annotations"]["pinfold.io/workers"], "50");
            assert_eq!(metadata["annotations"]["pinfold.io/reclaim-after"], "45s");
        }
    }
    let mut job = full();
    job.reclaim = None;
    let text = json!(self::rendered(&job, "2", "2", WorkloadFormat::Native).objects).to_string();
    assert!(!text.contains("pinfold.io/reclaim"), "only who asks for it");
}

#[test]
fn slices_are_parts_of_the_whole() {
    let (job, plan) = (full(), plan(&example()));
    let whole = rendered(&job, "2", "2", WorkloadFormat::Native).objects;
    let shared = ["PersistentVolumeClaim", "ConfigMap", "Service", "PodGroup"];
    let shared: usize = shared.map(|kind| of_kind(&whole, kind).len()).iter().sum();
    assert_eq!(shared, 4);
    let slice = |role: Option<&str>, from, to| {
        let slice = Slice {
            role: role.map(str::to_owned),
            from,
            to,
        };
        render(&request(
            &plan,
            ("2", "2"),
            &job,
            WorkloadFormat::Native,
            &slice,
        ))
    };
    for (role, from, to, tasks) in [
        (Some("ps"), None, None, 5),
        (Some("worker"), Some(10), Some(19), 10),
        (Some("worker"), Some(49), None, 1),
        (None, None, Some(0), 2),
    ] {
        let part = slice(role, from, to).unwrap().objects;
        assert_eq!(part.len(), shared + tasks, "{role:?} {from:?} {to:?}");
        assert!(part.iter().all(|object| whole.contains(object)));
    }
    let mut parts: Vec<Value> = slice(Some("ps"), None, None).unwrap().objects;
    for (from, to) in [(0, 24), (25, 49)] {
        parts.extend(
            slice(Some("worker"), Some(from), Some(to))
                .unwrap()
                .objects
                .split_off(shared),
        );
    }
    assert_eq!(parts, whole);
    assert!(
        slice(Some("chief"), None, None)
            .unwrap_err()
            .to_string()
            .contains("choose one of ps, worker")
    );
    assert!(
        slice(Some("worker"), Some(50), None)
            .unwrap_err()
            .to_string()
            .contains("select no task")
    );
    let all = Slice {
        role: Some("ps".to_owned()),
        ..Slice::default()
    };
    let refused = render(&request(
        &plan,
        ("2", "2"),
        &job,
        WorkloadFormat::Tfjob,
        &all,
    ))
    .unwrap_err();
    assert!(
        refused.to_string().contains("need the format native"),
        "{refused}"
    );
}

fn yaml(objects: &[Value]) -> String {
    objects
        .iter()
        .map(|object| serde_saphyr::to_string(object).unwrap())
        .collect::<Vec<_>>()
        .join("---\n")
}

/// The program's own output for an example.
pub(crate) fn printed(args: &[&str]) -> (Option<i32>, String, String) {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .arg("scene")
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

/// kubectl sends the rendered object. Fields that it adds, like `creationTimestamp: null`, are not
/// rendered.
fn same(ours: &[Value], theirs: &[Value], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(
            ours, theirs,
            "{what}: {} {}",
            ours["kind"], ours["metadata"]["name"]
        );
    }
}

#[test]
fn kubectl_takes_every_case_in_every_format_as_it_is() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let job = full();
    for (scene, case, ..) in CASES {
        for format in FORMATS {
            let objects = rendered(&job, scene, case, format).objects;
            let what = format!("{format:?} {scene}/{case}");
            same(
                &objects,
                &dry_run(&kubectl, &yaml(&objects), &objects),
                &what,
            );
        }
    }
}

#[test]
fn the_examples_are_what_they_say() {
    let scenes = here("deploy/examples/scenes.yaml");
    let run = |name: &str, more: &[&str]| {
        let job = here("deploy/examples").join(name);
        let mut args = vec![
            "render",
            scenes.to_str().unwrap(),
            "--job",
            job.to_str().unwrap(),
        ];
        args.extend(more);
        let (code, out, said) = printed(&args);
        assert_eq!(code, Some(0), "{name}: {said}");
        let objects: Vec<Value> = super::yaml::parse(&out, name);
        for object in &objects {
            assert_eq!(
                faults(object),
                Vec::<String>::new(),
                "{name}: {}",
                object["kind"]
            );
        }
        (objects, said)
    };
    let (objects, said) = run("job-locality.yaml", &["--scene", "2", "--case", "2"]);
    assert_eq!((objects.len(), said.as_str()), (2 + 55, ""));
    let last = pods(&objects).pop().unwrap();
    let (_, words) = started(&objects, &last.template);
    assert_eq!(words[..2], ["sh", "/opt/locality/run.sh"]);
    assert_eq!(words[4..], ["worker", "49", "5", "50"]);
    assert!(
        words[2].starts_with("locality-s2-c2-ps-0.locality-s2-c2:2222,")
            && words[3].ends_with(",locality-s2-c2-worker-49.locality-s2-c2:2222")
    );

    let (objects, said) = run("job-storage.yaml", &["--scene", "1", "--case", "1"]);
    assert_eq!((objects.len(), said.as_str()), (4 + 11, ""));
    for (object, name) in objects.iter().zip(["storage-data-pvc", "storage-log-pvc"]) {
        assert_eq!(
            (&object["kind"], &object["metadata"]["name"]),
            (&json!("PersistentVolumeClaim"), &json!(name))
        );
        assert_eq!(object["spec"]["accessModes"], json!(["ReadWriteMany"]));
        assert_eq!(object["spec"]["resources"]["requests"]["storage"], "10Gi");
    }
    let first = pods(&objects).remove(0);
    let (_, words) = started(&objects, &first.template);
    assert_eq!(
        words[4..],
        [
            "--job_name=ps",
            "--task_index=0",
            "--log_path=/log/storage-s1-c1/ps-0",
            "--data_dir=/data"
        ]
    );
    let mounts = &first.template["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(
        *mounts,
        json!([{"name": "data", "mountPath": "/data"}, {"name": "log", "mountPath": "/log"}])
    );

    let (objects, said) = run(
        "job-pinned.yaml",
        &["--scene", "1", "--case", "2", "--format", "tfjob"],
    );
    assert!(
        said.lines().count() == 1 && said.contains("the scheduler chooses the server"),
        "{said}"
    );
    let specs = &objects[1]["spec"]["tfReplicaSpecs"];
    for role in ["PS", "Worker"] {
        let resources = &specs[role]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(
            *resources,
            json!({"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "2", "memory": "4Gi"}})
        );
    }
    let (objects, _) = run(
        "job-gang.yaml",
        &["--scene", "2", "--case", "1", "--format", "volcano"],
    );
    assert_eq!(objects.last().unwrap()["spec"]["minAvailable"], 11);
}

/// Texts that would be something else in YAML, in a shell, or in Kubernetes' own expansion.
const NASTY: [&str; 14] = [
    "it's \"quoted\"",
    "a: b\n- c\n---\nkind: Secret",
    " leading and trailing ",
    "# no comment",
    "$(rm -rf /) `id` $HOME ${x} $$ $",
    "yes",
    "0x1F",
    "1e3",
    "~",
    "{a: b}",
    "*alias &anchor !tag",
    "line\r\nbreak\ttab\u{85}next\u{2028}line",
    "\u{1}\u{7f}\u{feff}\u{1F600}",
    "",
];

#[test]
fn arguments_and_variables_survive_rendering_unchanged() {
    let Some(kubectl) = program("kubectl") else {
        return;
    };
    let mut job = full();
    job.command = std::iter::once("sh".to_owned())
        .chain(NASTY.map(str::to_owned))
        .collect();
    job.args = Vec::new();
    job.env = NASTY
        .iter()
        .zip(0..)
        .map(|(text, at)| (format!("V{at}"), (*text).to_owned()))
        .collect();
    job.script = Some(NASTY.concat());
    job.log.as_mut().unwrap().path = Some("/a \"b\" 'c'\n# d".to_owned());
    for format in FORMATS {
        let objects = rendered(&job, "1", "1", format).objects;
        let sent = dry_run(&kubectl, &yaml(&objects), &objects);
        same(&objects, &sent, &format!("{format:?}"));
        for one in pods(&sent) {
            let (env, words) = started(&sent, &one.template);
            // Kubernetes reads two dollars as a single dollar.
            let plain = |text: &str| text.replace("$$", "$");
            assert_eq!(words[1..], NASTY.map(plain));
            assert_eq!(env["SCRIPT"], NASTY.concat());
            assert_eq!(env["LOG_DIR"], "/a \"b\" 'c'\n# d");
            for (text, at) in NASTY.iter().zip(0..) {
                assert_eq!(env[&format!("V{at}")], plain(text));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_survives(script in ".{1,40}", word in "(?s).{0,40}", value in "[ -~\n:'\"#\\\\-]{0,40}") {
        prop_assume!(!script.contains('\0') && !word.contains('\0'));
        let mut job = full();
        job.script = Some(script.clone());
        job.command = vec![word.replace('$', "$$")];
        job.env = BTreeMap::from([("RUN".to_owned(), value.replace('$', "$$"))]);
        job.args = Vec::new();
        let slice = Slice { role: Some("ps".to_owned()), ..Slice::default() };
        let objects = render(&request(&plan(&example()), ("1", "1"), &job, WorkloadFormat::Native, &slice)).unwrap().objects;
        let read = super::yaml::parse(&yaml(&objects), "rendered");
        prop_assert_eq!(&read, &objects);
        let (env, words) = started(&read, &pods(&read)[0].template);
        prop_assert_eq!(&env["SCRIPT"], &script);
        prop_assert_eq!(&env["RUN"], &value);
        prop_assert_eq!(words, [word]);
    }
}

/// The schema of parameters is that of the file of the examples.
#[test]
fn the_schema_names_every_field() {
    let (code, out, _) = printed(&["render", "--schema"]);
    assert_eq!(code, Some(0));
    let schema: Value = serde_json::from_str(&out).unwrap();
    let known: Vec<&str> = schema["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let written = serde_json::to_value(TrainingJob::default()).unwrap();
    for field in written.as_object().unwrap().keys() {
        assert!(known.contains(&field.as_str()), "{field}");
    }
    assert_eq!(schema["additionalProperties"], false);
    assert!(Path::new(&here("deploy/examples/job-gang.yaml")).exists());
}
