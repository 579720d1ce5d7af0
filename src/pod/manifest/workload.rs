//! [`pod_templates`]: the pod templates of an object, with what its controller makes of each.
//!
//! | kind | number of pods | names |
//! |---|---|---|
//! | Deployment, ReplicaSet, ReplicationController | `replicas` | made up |
//! | StatefulSet | `replicas` | `NAME-0`, … |
//! | DaemonSet | 1: a plan is for one node | made up |
//! | Job, and the Job of a CronJob | `parallelism`, but at most `completions` | made up; `NAME-0`, … if it is indexed |
//! | TFJob, PyTorchJob and their relatives | `replicas` of each type | `NAME-TYPE-0`, … |
//! | JobSet | `replicas` of each Job, times the pods of the Job | `NAME-JOB-0-0`, … |
//! | Volcano's Job | `replicas` of each task | `NAME-TASK-0`, … |
//! | RayCluster, and the cluster of a RayJob | 1 head; `replicas` of each group, times `numOfHosts` | made up |
//!
//! A controller that makes up names takes random letters. Here these pods have the object's name, and numbers if there are several.
//! A missing number counts as 1, the API server's default. Only Ray's groups default to 0, and there a plan without workers would say
//! nothing about them.

use super::object::{ManifestObject, ManifestSpec, PodGroup};
use crate::pod::role::{
    COMPLETION_INDEX, JOBSET_INDEX, JOBSET_JOB, JOBSET_NAME, KUBEFLOW_INDEX, KUBEFLOW_JOB,
    KUBEFLOW_TYPE, OPERATOR, VOLCANO_TASK,
};

/// What an object has to do with pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Pod,
    Workload(Workload),
    /// An object that people keep beside their workloads.
    WithoutPods,
}

/// A kind whose objects create pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// Interchangeable pods.
    Replicas,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    /// A kind of Kubeflow's training operator, with the field of its replicas.
    TrainingOperator(&'static str),
    JobSet,
    VolcanoJob,
    RayCluster,
    RayJob,
    TrainJob,
}

/// The kinds that are known not to create pods.
const WITHOUT_PODS: [&str; 24] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterTrainingRuntime",
    "ConfigMap",
    "HorizontalPodAutoscaler",
    "Ingress",
    "LimitRange",
    "LocalQueue",
    "Namespace",
    "NetworkPolicy",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodGroup",
    "PriorityClass",
    "Queue",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "TrainingRuntime",
];

/// The kinds that lead to pods, for people.
pub(super) const SUPPORTED: &str = "supported are Pods, Deployments, StatefulSets, DaemonSets, ReplicaSets (apps), Jobs, \
    CronJobs (batch), TFJobs, PyTorchJobs, MPIJobs (kubeflow.org), JobSets (jobset.x-k8s.io), Volcano's Jobs (batch.volcano.sh), \
    RayClusters, RayJobs (ray.io) and lists of these; remove the object, or give the pods that it creates (kubectl get pods -o yaml)";

/// A pod template.
#[derive(Debug)]
pub(super) struct PodTemplate {
    /// The field with the template, like `spec.template`.
    pub(super) path: String,
    pub(super) object: ManifestObject,
    pub(super) names: PodNames,
    pub(super) pods: u64,
    /// The labels that the controller adds to every pod.
    pub(super) labels: Vec<(&'static str, String)>,
    /// The variable that the controller adds to every container.
    pub(super) variable: Option<(&'static str, String)>,
}

/// How the pods of a template are named and numbered.
#[derive(Debug)]
pub(super) struct PodNames {
    pub(super) start: String,
    pub(super) numbers: PodNumbers,
    /// The labels with the pod's number.
    pub(super) labels: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodNumbers {
    /// The controller makes up names.
    Random,
    Ordered,
    /// The number of the pod's Job, and the pod's number in the Job, which has this many pods. An indexed Job also labels its pods.
    OfJob {
        pods: u64,
        indexed: bool,
    },
}

// === impl ObjectKind ===

impl ObjectKind {
    /// None for an unknown kind.
    pub(super) fn of(kind: &str, api_version: Option<&str>) -> Option<Self> {
        let version = api_version.unwrap_or("v1");
        let group = version.split_once('/').map_or("", |(group, _)| group);
        Some(Self::Workload(match (group, kind) {
            ("", "Pod") if version == "v1" => return Some(Self::Pod),
            ("", "ReplicationController") | ("apps", "Deployment" | "ReplicaSet") => {
                Workload::Replicas
            }
            ("apps", "StatefulSet") => Workload::StatefulSet,
            ("apps", "DaemonSet") => Workload::DaemonSet,
            ("batch", "Job") => Workload::Job,
            ("batch", "CronJob") => Workload::CronJob,
            ("kubeflow.org", kind) => Workload::TrainingOperator(match kind {
                "TFJob" => "tfReplicaSpecs",
                "PyTorchJob" => "pytorchReplicaSpecs",
                "MPIJob" => "mpiReplicaSpecs",
                "XGBoostJob" => "xgbReplicaSpecs",
                "PaddleJob" => "paddleReplicaSpecs",
                "JAXJob" => "jaxReplicaSpecs",
                _ => return None,
            }),
            ("jobset.x-k8s.io", "JobSet") => Workload::JobSet,
            ("batch.volcano.sh", "Job") => Workload::VolcanoJob,
            ("ray.io", "RayCluster") => Workload::RayCluster,
            ("ray.io", "RayJob") => Workload::RayJob,
            ("trainer.kubeflow.org", "TrainJob") => Workload::TrainJob,
            _ if WITHOUT_PODS.contains(&kind) => return Some(Self::WithoutPods),
            _ => return None,
        }))
    }
}

// === impl PodNames ===

impl PodNames {
    /// The name of one of some pods, and its labels with numbers.
    pub(super) fn of(&self, number: u64, pods: u64) -> (String, Vec<(&'static str, u64)>) {
        let start = &self.start;
        let (name, inner) = match self.numbers {
            PodNumbers::Random if pods == 1 => (start.clone(), None),
            PodNumbers::Random | PodNumbers::Ordered => (format!("{start}-{number}"), None),
            PodNumbers::OfJob { pods, indexed } => {
                let (job, pod) = (number / pods.max(1), number % pods.max(1));
                let labels = [(JOBSET_INDEX, job), (COMPLETION_INDEX, pod)];
                let kept = labels.into_iter().take(if indexed { 2 } else { 1 });
                (format!("{start}-{job}-{pod}"), Some(kept.collect()))
            }
        };
        let own = self.labels.iter().map(|key| (*key, number));
        (name, inner.unwrap_or_else(|| own.collect()))
    }
}

/// The pod templates of a workload, in the order of its fields.
///
/// # Errors
/// What is missing or wrong in the object, with the remedy.
pub(super) fn pod_templates(
    workload: Workload,
    (kind, name): (&str, &str),
    spec: ManifestSpec,
) -> Result<Vec<PodTemplate>, String> {
    let path = "spec";
    match workload {
        Workload::Replicas | Workload::StatefulSet | Workload::DaemonSet => {
            let pods = match workload {
                Workload::DaemonSet => 1,
                _ => count(spec.replicas, || "spec.replicas".to_owned())?,
            };
            let numbers = match workload {
                Workload::StatefulSet => PodNumbers::Ordered,
                _ => PodNumbers::Random,
            };
            let template = PodTemplate::new(spec.template, path, name, numbers)?;
            Ok(vec![PodTemplate { pods, ..template }])
        }
        Workload::Job => Ok(vec![of_job(spec, path, name)?]),
        Workload::CronJob => {
            let path = "spec.jobTemplate.spec";
            let job = spec.job_template.and_then(|template| template.spec);
            Ok(vec![of_job(job.ok_or_else(|| missing(path))?, path, name)?])
        }
        Workload::TrainingOperator(field) => of_training_operator(spec, field, (kind, name)),
        Workload::JobSet => of_jobset(spec, name),
        Workload::VolcanoJob => of_volcano(spec, name),
        Workload::RayCluster => of_ray(spec, path, name),
        Workload::RayJob => {
            let path = "spec.rayClusterSpec";
            let cluster = spec.ray_cluster_spec.ok_or_else(|| {
                format!("{path} is missing: give the RayCluster that runs the RayJob instead")
            })?;
            of_ray(*cluster, path, name)
        }
        Workload::TrainJob => {
            let runtime = spec.runtime_ref.and_then(|runtime| runtime.name);
            let runtime = runtime.map_or_else(String::new, |name| format!(" {name}"));
            Err(format!(
                "a TrainJob has no pod template, because its runtime{runtime} holds it: give the JobSet that the Trainer makes of \
                 both (kubectl get jobset {name} -o yaml)"
            ))
        }
    }
}

/// A number of the object; 1 if it is missing.
fn count(number: Option<i64>, path: impl FnOnce() -> String) -> Result<u64, String> {
    let number = number.unwrap_or(1);
    u64::try_from(number).map_err(|_| format!("{} is {number}: write 0 or more", path()))
}

fn missing(path: &str) -> String {
    format!("{path} is missing: write the template of the pods")
}

/// The template of a Job, whose spec is at `path`.
fn of_job(spec: ManifestSpec, path: &str, name: &str) -> Result<PodTemplate, String> {
    let parallelism = count(spec.parallelism, || format!("{path}.parallelism"))?;
    let completions = match spec.completions {
        None => parallelism,
        some => count(some, || format!("{path}.completions"))?,
    };
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let numbers = if indexed {
        PodNumbers::Ordered
    } else {
        PodNumbers::Random
    };
    let mut template = PodTemplate::new(spec.template, path, name, numbers)?;
    if indexed {
        template.names.labels = &[COMPLETION_INDEX];
    }
    let label = |key| (key, name.to_owned());
    Ok(PodTemplate {
        pods: parallelism.min(completions),
        labels: ["job-name", "batch.kubernetes.io/job-name"]
            .map(label)
            .to_vec(),
        ..template
    })
}

fn of_training_operator(
    spec: ManifestSpec,
    field: &str,
    (kind, name): (&str, &str),
) -> Result<Vec<PodTemplate>, String> {
    let field = format!("spec.{field}");
    let groups = spec.replica_specs.filter(|groups| !groups.is_empty());
    let groups = groups.ok_or_else(|| missing(&field))?;
    let operator = format!("{}-controller", kind.to_ascii_lowercase());
    // The operator tells torchrun the number of processes if the job has a master. The default is the operator's.
    let processes = (kind == "PyTorchJob" && groups.contains_key("Master"))
        .then(|| spec.nproc_per_node.unwrap_or_else(|| "auto".to_owned()));
    let template = |(role, group): (String, PodGroup)| {
        let path = format!("{field}.{role}");
        let role = role.to_ascii_lowercase();
        let start = format!("{name}-{role}");
        let mut template = PodTemplate::of_group(group, &path, &start, PodNumbers::Ordered)?;
        template.names.labels = &[KUBEFLOW_INDEX];
        template.labels = vec![
            (KUBEFLOW_TYPE, role),
            (KUBEFLOW_JOB, name.to_owned()),
            (OPERATOR, operator.clone()),
        ];
        template.variable = processes.clone().map(|count| ("PET_NPROC_PER_NODE", count));
        Ok(template)
    };
    groups.into_iter().map(template).collect()
}

fn of_jobset(spec: ManifestSpec, name: &str) -> Result<Vec<PodTemplate>, String> {
    let groups = named(spec.replicated_jobs, "spec.replicatedJobs")?;
    let template = |(path, group): (String, PodGroup)| {
        let job = group_name(&group, &path)?;
        let jobs = count(group.replicas, || format!("{path}.replicas"))?;
        let path = format!("{path}.template.spec");
        let spec = group.template.and_then(|template| template.spec);
        let spec = spec.ok_or_else(|| missing(&path))?;
        let template = of_job(spec, &path, &format!("{name}-{job}"))?;
        let indexed = template.names.numbers == PodNumbers::Ordered;
        let label = |key, value: &str| (key, value.to_owned());
        Ok(PodTemplate {
            names: PodNames {
                numbers: PodNumbers::OfJob {
                    pods: template.pods,
                    indexed,
                },
                ..template.names
            },
            pods: jobs.saturating_mul(template.pods),
            labels: vec![label(JOBSET_NAME, name), label(JOBSET_JOB, &job)],
            ..template
        })
    };
    groups.into_iter().map(template).collect()
}

fn of_volcano(spec: ManifestSpec, name: &str) -> Result<Vec<PodTemplate>, String> {
    let groups = named(spec.tasks, "spec.tasks")?;
    let template = |(number, (path, group)): (usize, (String, PodGroup))| {
        // Volcano names a task without a name by its number.
        let task = group_name(&group, &path).unwrap_or_else(|_| format!("default{number}"));
        let start = format!("{name}-{task}");
        let mut template = PodTemplate::of_group(group, &path, &start, PodNumbers::Ordered)?;
        template.names.labels = &["volcano.sh/task-index"];
        template.labels = vec![
            (VOLCANO_TASK, task),
            ("volcano.sh/job-name", name.to_owned()),
        ];
        Ok(template)
    };
    groups.into_iter().enumerate().map(template).collect()
}

/// The templates of a cluster of Ray, whose spec is at `path`.
fn of_ray(spec: ManifestSpec, path: &str, name: &str) -> Result<Vec<PodTemplate>, String> {
    let label = |kind: &str| {
        vec![
            ("ray.io/node-type", kind.to_owned()),
            ("ray.io/cluster", name.to_owned()),
        ]
    };
    let head_path = format!("{path}.headGroupSpec");
    let head = spec.head_group_spec.ok_or_else(|| missing(&head_path))?;
    let start = format!("{name}-head");
    let head = PodTemplate::new(head.template, &head_path, &start, PodNumbers::Random)?;
    let mut all = vec![PodTemplate {
        labels: label("head"),
        ..head
    }];
    for (group, index) in spec.worker_group_specs.into_iter().flatten().zip(0..) {
        let path = format!("{path}.workerGroupSpecs[{index}]");
        let start = format!("{name}-{}-worker", group_name(&group, &path)?);
        let hosts = count(group.num_of_hosts, || format!("{path}.numOfHosts"))?;
        let template = PodTemplate::of_group(group, &path, &start, PodNumbers::Random)?;
        all.push(PodTemplate {
            pods: template.pods.saturating_mul(hosts),
            labels: label("worker"),
            ..template
        });
    }
    Ok(all)
}

/// The groups of a list that must not be empty, each with its path.
fn named(groups: Option<Vec<PodGroup>>, field: &str) -> Result<Vec<(String, PodGroup)>, String> {
    let groups = groups.filter(|groups| !groups.is_empty());
    let groups = groups.ok_or_else(|| missing(field))?;
    let paths = (0..).map(|index: usize| format!("{field}[{index}]"));
    Ok(paths.zip(groups).collect())
}

fn group_name(group: &PodGroup, path: &str) -> Result<String, String> {
    let name = group.name.clone().filter(|name| !name.is_empty());
    name.ok_or_else(|| format!("{path} has no name: give it a name"))
}

// === impl PodTemplate ===

impl PodTemplate {
    /// The template of a single pod in the object at `path`.
    fn new(
        template: Option<Box<ManifestObject>>,
        path: &str,
        start: &str,
        numbers: PodNumbers,
    ) -> Result<Self, String> {
        let path = format!("{path}.template");
        Ok(Self {
            object: *template.ok_or_else(|| missing(&path))?,
            path,
            names: PodNames {
                start: start.to_owned(),
                numbers,
                labels: &[],
            },
            pods: 1,
            labels: Vec::new(),
            variable: None,
        })
    }

    fn of_group(
        group: PodGroup,
        path: &str,
        start: &str,
        numbers: PodNumbers,
    ) -> Result<Self, String> {
        let pods = count(group.replicas, || format!("{path}.replicas"))?;
        let template = Self::new(group.template, path, start, numbers)?;
        Ok(Self { pods, ..template })
    }
}
