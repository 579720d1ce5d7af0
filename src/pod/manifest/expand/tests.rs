use std::error::Error;

use super::*;
use crate::pod::{Processes, Qos, processes, qos, recognise};

/// The spec of a pod, in flow style.
const SPEC: &str =
    "spec: {containers: [{name: main, image: i, resources: {limits: {cpu: 2, memory: 1Gi}}}]}";

/// The texts' pods, or the error with its cause.
fn pods(texts: &[&str]) -> Result<Vec<Pod>, String> {
    let chain = |error: ManifestError| {
        let source = error.source().map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    };
    let mut manifests = Manifests::default();
    for (text, number) in texts.iter().zip(1..) {
        let text = text.replace("TEMPLATE", &format!("template: {{{SPEC}}}"));
        let text = text.replace("SPEC", SPEC);
        manifests
            .read(&text, &format!("{number}.yaml"))
            .map_err(chain)?;
    }
    manifests.pods().map_err(chain)
}

/// An object in flow style.
fn object(kind: &str, api_version: &str, spec: &str) -> String {
    format!("{{kind: {kind}, apiVersion: {api_version}, metadata: {{name: a}}, spec: {{{spec}}}}}")
}

/// Names and roles, as `name role index of job`; an asterisk stands for a training pod.
fn names(text: &str) -> String {
    let name = |pod: &Pod| {
        let found = recognise(pod);
        let star = if found.training { "*" } else { "" };
        let index = found.index.map(|index| format!(" {index}"));
        let job = found.job.map(|job| format!(" of {job}"));
        let (index, job) = (index.unwrap_or_default(), job.unwrap_or_default());
        format!("{} {}{star}{index}{job}", pod.name, found.role)
    };
    let pods = pods(&[text]).unwrap_or_else(|error| panic!("{text}: {error}"));
    for pod in &pods {
        let main = pod.containers.last().unwrap();
        assert_eq!(main.resources.cpu_limit, Some(2000));
        assert_eq!((pod.namespace.as_str(), &pod.uid), ("default", &None));
    }
    pods.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn refused(text: &str) -> String {
    let error = pods(&[text]).unwrap_err();
    error
        .strip_prefix("1.yaml: document 1, ")
        .unwrap_or(&error)
        .to_owned()
}

/// Two pods of a template.
const TWO: &str = "TEMPLATE, replicas: 2";

/// Kinds, their API versions, specs, and the pods.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("Deployment", "apps/v1", "TEMPLATE", "a other"),
    ("Deployment", "apps/v1", TWO, "a-0 other, a-1 other"),
    ("ReplicaSet", "apps/v1", TWO, "a-0 other, a-1 other"),
    ("ReplicationController", "v1", TWO, "a-0 other, a-1 other"),
    ("StatefulSet", "apps/v1", "TEMPLATE", "a-0 other"),
    ("DaemonSet", "apps/v1", "TEMPLATE", "a other"),
    ("Job", "batch/v1", "TEMPLATE", "a other"),
    (
        "Job",
        "batch/v1",
        "parallelism: 2, TEMPLATE",
        "a-0 other, a-1 other",
    ),
    // Not all completions run at once, and no more pods run than completions are left.
    ("Job", "batch/v1", "completions: 5, TEMPLATE", "a other"),
    (
        "Job",
        "batch/v1",
        "parallelism: 5, completions: 2, completionMode: Indexed, TEMPLATE",
        "a-0 other, a-1 other",
    ),
    (
        "CronJob",
        "batch/v1",
        "schedule: x, jobTemplate: {spec: {parallelism: 2, TEMPLATE}}",
        "a-0 other, a-1 other",
    ),
    (
        "TFJob",
        "kubeflow.org/v1",
        "tfReplicaSpecs: {PS: {TEMPLATE}, Worker: {replicas: 2, TEMPLATE}}",
        "a-ps-0 ps* 0 of a, a-worker-0 worker* 0 of a, a-worker-1 worker* 1 of a",
    ),
    (
        "PyTorchJob",
        "kubeflow.org/v1",
        "pytorchReplicaSpecs: {Master: {TEMPLATE}, Worker: {TEMPLATE}}",
        "a-master-0 chief* 0 of a, a-worker-0 worker* 0 of a",
    ),
    (
        "MPIJob",
        "kubeflow.org/v2beta1",
        "mpiReplicaSpecs: {Launcher: {TEMPLATE}, Worker: {TEMPLATE}}",
        "a-launcher launcher* of a, a-worker-0 worker* 0 of a",
    ),
    (
        "MPIJob",
        "kubeflow.org/v1",
        "mpiReplicaSpecs: {Launcher: {TEMPLATE}, Worker: {TEMPLATE}}",
        "a-launcher launcher* of a, a-worker-0 worker* 0 of a",
    ),
    (
        "MPIJob",
        "kubeflow.org/v2beta1",
        "runLauncherAsWorker: true, mpiReplicaSpecs: {Launcher: {TEMPLATE}, Worker: {TEMPLATE}}",
        "a-launcher chief* 0 of a, a-worker-0 worker* 1 of a",
    ),
    (
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "replicatedJobs: [{name: ps, template: {spec: {TEMPLATE}}}, {name: worker, replicas: 2, template: {spec: \
             {parallelism: 2, completionMode: Indexed, TEMPLATE}}}]",
        "a-ps-0-0 ps* 0 of a, a-worker-0-0 worker* 0 of a, a-worker-0-1 worker* 0 of a, a-worker-1-0 worker* 1 of a, \
             a-worker-1-1 worker* 1 of a",
    ),
    (
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "replicatedJobs: [{name: worker, template: {spec: {parallelism: 2, TEMPLATE}}}]",
        "a-worker-0-0 worker* 0 of a, a-worker-0-1 worker* 1 of a",
    ),
    (
        "Job",
        "batch.volcano.sh/v1alpha1",
        "minAvailable: 2, tasks: [{TEMPLATE}, {name: worker, replicas: 2, TEMPLATE}]",
        "a-default0-0 other, a-worker-0 worker* 0 of a, a-worker-1 worker* 1 of a",
    ),
    (
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io/v1",
        "replicas: 2, leaderWorkerTemplate: {size: 2, workerTemplate: {SPEC}}",
        "a-0 chief 0 of a, a-0-1 worker 1 of a, a-1 chief 0 of a, a-1-1 worker 1 of a",
    ),
    (
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io/v1",
        "leaderWorkerTemplate: {size: 3, leaderTemplate: {SPEC}, workerTemplate: {SPEC}}",
        "a-0 chief 0 of a, a-0-1 worker 1 of a, a-0-2 worker 2 of a",
    ),
    (
        "RayCluster",
        "ray.io/v1",
        "headGroupSpec: {TEMPLATE}, workerGroupSpecs: [{groupName: g, replicas: 2, numOfHosts: 2, TEMPLATE}]",
        "a-head chief* of a, a-g-worker-0 worker* of a, a-g-worker-1 worker* of a, a-g-worker-2 worker* of a, \
             a-g-worker-3 worker* of a",
    ),
    (
        "RayJob",
        "ray.io/v1",
        "entrypoint: x, rayClusterSpec: {headGroupSpec: {TEMPLATE}}",
        "a-head chief* of a",
    ),
    ("Deployment", "apps/v1", "replicas: 0, TEMPLATE", ""),
    ("Job", "batch/v1", "parallelism: 0, TEMPLATE", ""),
    ("Service", "v1", "ports: [{port: 1}]", ""),
    (
        "PodGroup",
        "scheduling.volcano.sh/v1beta1",
        "minMember: 2",
        "",
    ),
];

#[test]
fn every_kind_makes_the_pods_of_its_controller() {
    for &(kind, api_version, spec, expected) in KINDS {
        let text = object(kind, api_version, spec);
        assert_eq!(names(&text), expected, "{text}");
    }
}

#[test]
fn lists_hold_workloads() {
    let job = object("Job", "batch/v1", "TEMPLATE");
    let deployment = object("Deployment", "apps/v1", "TEMPLATE");
    let list = format!("{{kind: List, apiVersion: v1, items: [{job}, {deployment}]}}");
    // Both controllers would add random letters to the same name.
    assert_eq!(names(&list), "a other, a-0 other");
    let items =
        "{kind: JobList, apiVersion: batch/v1, items: [{metadata: {name: a}, spec: {TEMPLATE}}]}";
    assert_eq!(names(items), "a other");
}

#[test]
fn labels_and_annotations_of_the_template_are_the_pods() {
    let text = "{kind: Job, apiVersion: batch/v1, metadata: {generateName: run-, namespace: lab, labels: {of: job}}, spec: \
         {completionMode: Indexed, template: {metadata: {name: x, labels: {job-name: mine, app: b}, annotations: \
         {pinfold.io/cpus: shared}}, SPEC}}}";
    let pods = pods(&[text]).unwrap();
    let [pod] = &pods[..] else { panic!("{pods:?}") };
    assert_eq!(
        (pod.namespace.as_str(), pod.name.as_str()),
        ("lab", "run-0")
    );
    let labels: Vec<_> = pod
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(
        labels,
        [
            "app=b",
            "batch.kubernetes.io/job-completion-index=0",
            "batch.kubernetes.io/job-name=run",
            "job-name=run"
        ]
    );
    assert_eq!(pod.annotations["pinfold.io/cpus"], "shared");
}

/// The number of processes of each pod; 0 if it is unknown.
fn numbers(kind: &str, spec: &str) -> Vec<usize> {
    let version = if kind == "MPIJob" { "v2beta1" } else { "v1" };
    let pods = pods(&[&object(kind, &format!("kubeflow.org/{version}"), spec)]).unwrap();
    let number = |pod: &Pod| match processes(pod, pod.containers.last().unwrap()) {
        Processes::Known { count, .. } => count.get(),
        Processes::Unknown { .. } => 0,
    };
    pods.iter().map(number).collect()
}

/// The operator sets torchrun's variable in all containers.
#[test]
fn a_pytorchjob_has_the_operators_number_of_processes() {
    let number = |spec: &str| numbers("PyTorchJob", spec);
    let master = "pytorchReplicaSpecs: {Master: {TEMPLATE}}";
    let worker = "pytorchReplicaSpecs: {Worker: {TEMPLATE}}";
    assert_eq!(number(master), [0], "auto is the default");
    assert_eq!(number(worker), [0]);
    assert_eq!(number(&format!("nprocPerNode: '2', {master}")), [2]);
    assert_eq!(
        number(&format!("elasticPolicy: {{nProcPerNode: 3}}, {worker}")),
        [3]
    );
}

/// The operator lets the workers wait in a container that is not Guaranteed.
#[test]
fn a_worker_of_a_pytorchjob_with_a_master_is_burstable() {
    let classes = |roles: &str| {
        let spec = format!("pytorchReplicaSpecs: {{{roles}}}");
        let pods = pods(&[&object("PyTorchJob", "kubeflow.org/v1", &spec)]).unwrap();
        pods.iter().map(qos).collect::<Vec<_>>()
    };
    let both = classes("Master: {TEMPLATE}, Worker: {TEMPLATE}");
    assert_eq!(both, [Qos::Guaranteed, Qos::Burstable]);
    assert_eq!(classes("Worker: {TEMPLATE}"), [Qos::Guaranteed]);
}

/// mpirun starts the processes on the hosts of a file, which names the launcher only if it is a worker, too.
#[test]
fn an_mpijob_starts_its_processes_in_the_workers() {
    let spec = "slotsPerWorker: 4, mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: main, command: [mpirun, -np, \
         '8', x]}]}}}, Worker: {TEMPLATE}}";
    assert_eq!(numbers("MPIJob", spec), [1, 0]);
    let both = format!("runLauncherAsWorker: true, {spec}");
    assert_eq!(numbers("MPIJob", &both), [4, 0]);
    assert_eq!(
        numbers("MPIJob", &format!("mpiImplementation: Intel, {both}")),
        [4, 0]
    );
    assert_eq!(
        numbers("MPIJob", &format!("mpiImplementation: MPICH, {both}")),
        [0, 0]
    );
}

/// Kinds, their API versions, wrong specs, and the beginnings of the errors.
const WRONG: &[(&str, &str, &str, &str)] = &[
    (
        "Deployment",
        "apps/v1",
        "",
        "Deployment a: spec.template is missing: write the template of the pods",
    ),
    (
        "Deployment",
        "apps/v1",
        "replicas: -1, TEMPLATE",
        "Deployment a: spec.replicas is -1: write 0 or more",
    ),
    (
        "Job",
        "batch/v1",
        "parallelism: -2, TEMPLATE",
        "Job a: spec.parallelism is -2: write 0 or more",
    ),
    (
        "CronJob",
        "batch/v1",
        "schedule: x",
        "CronJob a: spec.jobTemplate.spec is missing",
    ),
    (
        "CronJob",
        "batch/v1",
        "jobTemplate: {spec: {template: {spec: {containers: [{image: i}]}}}}",
        "the pod template spec.jobTemplate.spec.template of CronJob a, is not valid: spec.containers[0].name is missing",
    ),
    (
        "DaemonSet",
        "apps/v1",
        "template: {}",
        "the pod template spec.template of DaemonSet a, is not valid: spec.containers is empty",
    ),
    (
        "TFJob",
        "kubeflow.org/v1",
        "tfReplicaSpecs: {}",
        "TFJob a: spec.tfReplicaSpecs is missing",
    ),
    (
        "TFJob",
        "kubeflow.org/v1",
        "tfReplicaSpecs: {Worker: {replicas: 2}}",
        "TFJob a: spec.tfReplicaSpecs.Worker.template is missing",
    ),
    (
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "replicatedJobs: [{name: w, template: {spec: {TEMPLATE}}}, {template: {spec: {TEMPLATE}}}]",
        "JobSet a: spec.replicatedJobs[1] has no name",
    ),
    (
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        "replicatedJobs: [{name: w, template: {spec: {}}}]",
        "JobSet a: spec.replicatedJobs[0].template.spec.template is missing",
    ),
    (
        "RayCluster",
        "ray.io/v1",
        "headGroupSpec: {TEMPLATE}, workerGroupSpecs: [{groupName: g, numOfHosts: -3, TEMPLATE}]",
        "RayCluster a: spec.workerGroupSpecs[0].numOfHosts is -3",
    ),
    (
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io/v1",
        "leaderWorkerTemplate: {size: 2}",
        "LeaderWorkerSet a: spec.leaderWorkerTemplate.workerTemplate is missing: write the template of the pods",
    ),
    (
        "RayJob",
        "ray.io/v1",
        "clusterSelector: {}",
        "RayJob a: spec.rayClusterSpec is missing: give the RayCluster",
    ),
    (
        "TrainJob",
        "trainer.kubeflow.org/v1alpha1",
        "runtimeRef: {name: torch-distributed}",
        "TrainJob a: a TrainJob has no pod template, because its runtime torch-distributed holds it: give the JobSet that the \
             Trainer makes of both (kubectl get jobset a -o yaml)",
    ),
    (
        "Widget",
        "example.com/v1",
        "TEMPLATE",
        "1.yaml: document 1 is a Widget (example.com/v1): supported are Pods, Deployments,",
    ),
    // The kinds of other groups, and of versions that are gone.
    (
        "Deployment",
        "extensions/v1beta1",
        "TEMPLATE",
        "1.yaml: document 1 is a Deployment (extensions/v1beta1): supported",
    ),
];

#[test]
fn what_is_missing_or_wrong_is_named() {
    for &(kind, api_version, spec, expected) in WRONG {
        let error = refused(&object(kind, api_version, spec));
        assert!(error.starts_with(expected), "{error}");
    }
    let nameless = "{kind: Job, apiVersion: batch/v1, spec: {TEMPLATE}}";
    assert_eq!(
        refused(nameless),
        "a Job without a name: metadata.name is missing: give it a name"
    );
    let without_version = "{kind: Job, metadata: {name: a}, spec: {TEMPLATE}}";
    assert!(refused(without_version).contains("is a Job (no apiVersion): supported"));
    let number = object("Deployment", "apps/v1", "replicas: many, TEMPLATE");
    let error = refused(&number);
    assert!(
        error.contains("line 1, can't be read: write a whole number, like 3"),
        "{error}"
    );
    let json = r#"{"kind": "Job", "apiVersion": "batch/v1", "spec": {"completions": 2.5}}"#;
    let error = refused(json);
    assert!(error.contains("write a whole number"), "{error}");
}

#[test]
fn the_number_of_pods_has_a_limit() {
    let deployment = |replicas: u64| {
        object(
            "Deployment",
            "apps/v1",
            &format!("replicas: {replicas}, TEMPLATE"),
        )
    };
    for replicas in [MOST_PODS + 1, 1_000_000_000, i64::MAX.unsigned_abs()] {
        let error = refused(&deployment(replicas));
        let expected = format!(
            "Deployment a: spec.template makes {replicas} pods, and {MOST_PODS} are the most for all templates together"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
    let most = pods(&[&deployment(MOST_PODS)]).unwrap();
    assert_eq!(most.len() as u64, MOST_PODS);
    // The limit holds for all files together, and for products.
    let half = deployment(MOST_PODS / 2 + 1);
    let other = half.replace("name: a", "name: b");
    assert!(
        pods(&[&half, &other])
            .unwrap_err()
            .contains("2.yaml: document 1, Deployment b: spec.template makes")
    );
    let huge = i64::MAX;
    let product = object(
        "JobSet",
        "jobset.x-k8s.io/v1alpha2",
        &format!(
            "replicatedJobs: [{{name: w, replicas: {huge}, template: {{spec: {{parallelism: {huge}, TEMPLATE}}}}}}]"
        ),
    );
    assert!(refused(&product).contains("are the most for all templates together"));
}

#[test]
fn an_object_counts_once() {
    let deployment = object("Deployment", "apps/v1", "TEMPLATE");
    let again = pods(&[&deployment, &deployment]).unwrap_err();
    assert_eq!(
        again,
        "2.yaml: a second Deployment has the name default/a; the first is in 1.yaml: name each file once, and give each Deployment \
         of a namespace its own name"
    );
    // As in the output of `kubectl get all`.
    let with_uid = |text: &str, uid: &str, owner: &str| {
        let metadata = format!("metadata: {{uid: {uid}, ownerReferences: [{{uid: {owner}}}], ");
        text.replace("metadata: {", &metadata)
    };
    let whole = with_uid(
        &object("Deployment", "apps/v1", "replicas: 2, TEMPLATE"),
        "u1",
        "u0",
    );
    let set = with_uid(
        &object("ReplicaSet", "apps/v1", "replicas: 2, TEMPLATE"),
        "u2",
        "u1",
    );
    let pod = |uid: &str| {
        with_uid("{kind: Pod, metadata: {name: a-UID}, SPEC}", uid, "u2").replace("UID", uid)
    };
    let names = |texts: &[&str]| {
        let pods = pods(texts).unwrap();
        pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&[&whole, &set, &pod("u3"), &pod("u4")]),
        ["a-u3", "a-u4"]
    );
    assert_eq!(names(&[&whole, &set]), ["a-0", "a-1"]);
    // A name that somebody wrote goes before one that a controller makes up.
    let taken = "{kind: Pod, metadata: {name: a}, SPEC}";
    assert_eq!(names(&[&deployment, taken]), ["a-0", "a"]);
}

#[test]
fn texts_from_elsewhere_are_read() {
    let yaml = "\u{feff}# a Job\r\nkind: Job\r\napiVersion: batch/v1\r\nmetadata:\r\n  name: a\r\nspec:\r\n  template:\r\n    spec:\r\n      \
         initContainers:\r\n      - name: first\r\n      containers:\r\n      - name: main\r\n---\r\n# nothing\r\n---\r\n";
    let found = pods(&[yaml]).unwrap();
    let containers: Vec<_> = found[0].containers.iter().map(|one| one.kind).collect();
    assert_eq!(containers, [ContainerKind::Init, ContainerKind::App]);
    let json = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 2,
        "template": {"spec": {"containers": [{"name": "main"}]}}}, "status": {"replicas": 2}}"#;
    assert_eq!(pods(&[json]).unwrap().len(), 2);
    let mut manifests = Manifests::default();
    for nothing in [
        "",
        "# nothing\n---\n# nothing\n",
        "null",
        "kind: List\nitems: []\n",
    ] {
        assert_eq!(manifests.read(nothing, "nothing"), Ok(0), "{nothing:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,100}|[-{}\\[\\]:,&*!|>'\"#%@ \na-d0-9]{0,100}", at in 0usize..300) {
        let _ = pods(&[&text]);
        let jobset = object(
            "JobSet",
            "jobset.x-k8s.io/v1alpha2",
            "replicatedJobs: [{name: w, replicas: 2, template: {spec: {parallelism: 2, TEMPLATE}}}]",
        );
        let mut changed = jobset;
        let at = at.min(changed.len());
        changed.insert_str(at, &text);
        let _ = pods(&[&changed]);
    }
}
