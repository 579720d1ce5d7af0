//! [`pod_templates`]: the pod templates of an object, with what its controller makes of each.
//!
//! | kind | number of pods | names |
//! |---|---|---|
//! | Deployment, ReplicaSet, ReplicationController | `replicas` | made up |
//! | StatefulSet | `replicas` | `NAME-0`, … |
//! | DaemonSet | 1: a plan is for one node | made up |
//! | Job, and the Job of a CronJob | `parallelism`, but at most `completions` | made up; `NAME-0`, … if it is indexed |
//! | TFJob, PyTorchJob and their relatives | `replicas` of each type | `NAME-TYPE-0`, …; `NAME-launcher` of an MPIJob |
//! | JobSet | `replicas` of each Job, times the pods of the Job | `NAME-JOB-0-0`, … |
//! | Volcano's Job | `replicas` of each task | `NAME-TASK-0`, … |
//! | LeaderWorkerSet | `replicas`, times the `size` of each | `NAME-0`, `NAME-0-1`, … |
//! | RayCluster, and the cluster of a RayJob | 1 head; `replicas` of each group, times `numOfHosts` | made up |
//!
//! A controller that makes up names takes random letters. Here these pods have the object's name, and numbers if there are several.
//! A missing number counts as 1, the API server's default. Only Ray's groups default to 0, and there a plan without workers would say
//! nothing about them.

use super::object::{ManifestObject, ManifestSpec, PodGroup};
use crate::pod::operator_labels::{
    COMPLETION_INDEX, JOBSET_INDEX, JOBSET_JOB, JOBSET_NAME, JOBSET_REPLICAS, KUBEFLOW_INDEX,
    KUBEFLOW_JOB, KUBEFLOW_ROLE, KUBEFLOW_TYPE, LWS_INDEX, LWS_NAME, OPERATOR, RAY_CLUSTER,
    RAY_TYPE, VOLCANO_INDEX, VOLCANO_JOB, VOLCANO_TASK,
};
use crate::pod::variables::{MPI_SLOTS, NPROC};
use crate::pod::{Container, ContainerKind, Resources};

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
    MpiJob(MpiOperator),
    JobSet,
    VolcanoJob,
    LeaderWorkerSet,
    RayCluster,
    RayJob,
    TrainJob,
}

/// Who makes the pods of an MPIJob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MpiOperator {
    /// The training operator, with the API `kubeflow.org/v1`.
    Training,
    /// The MPI operator, with the API `kubeflow.org/v2beta1`.
    Own,
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
    LeaderWorkerSets (leaderworkerset.x-k8s.io), RayClusters, RayJobs (ray.io) and lists of these; remove the object, or give the pods that it creates (kubectl get pods -o yaml)";

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
    /// The variables that the controller adds to every container.
    pub(super) variables: Vec<(&'static str, String)>,
    /// The command of the first container if it has none.
    pub(super) command: &'static [&'static str],
    /// The init container that the controller adds.
    pub(super) init: Option<Container>,
}

/// How the pods of a template are named and numbered.
#[derive(Debug)]
pub(super) struct PodNames {
    pub(super) start: String,
    pub(super) numbers: PodNumbers,
    /// The labels with the pod's number.
    pub(super) labels: &'static [&'static str],
    /// The number in the labels of the first pod.
    pub(super) first: u64,
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
    /// The number of the pod's group, and the pod's number in the group, of which the template makes this many pods. The first pod of
    /// a group has the group's name.
    OfGroup {
        first: u64,
        pods: u64,
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
            ("kubeflow.org", "MPIJob") if version == "kubeflow.org/v1" => {
                Workload::MpiJob(MpiOperator::Training)
            }
            ("kubeflow.org", "MPIJob") => Workload::MpiJob(MpiOperator::Own),
            ("kubeflow.org", kind) => Workload::TrainingOperator(match kind {
                "TFJob" => "tfReplicaSpecs",
                "PyTorchJob" => "pytorchReplicaSpecs",
                "XGBoostJob" => "xgbReplicaSpecs",
                "PaddleJob" => "paddleReplicaSpecs",
                "JAXJob" => "jaxReplicaSpecs",
                _ => return None,
            }),
            ("jobset.x-k8s.io", "JobSet") => Workload::JobSet,
            ("batch.volcano.sh", "Job") => Workload::VolcanoJob,
            ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => Workload::LeaderWorkerSet,
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
            PodNumbers::OfGroup { first, pods } => {
                let (group, pod) = (number / pods.max(1), first + number % pods.max(1));
                let name = match pod {
                    0 => format!("{start}-{group}"),
                    _ => format!("{start}-{group}-{pod}"),
                };
                (name, Some(vec![(LWS_INDEX, pod)]))
            }
        };
        let counted = self.first.saturating_add(number);
        let own = self.labels.iter().map(|key| (*key, counted));
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
        Workload::MpiJob(operator) => of_mpi(spec, operator, name),
        Workload::JobSet => of_jobset(spec, name),
        Workload::VolcanoJob => of_volcano(spec, name),
        Workload::LeaderWorkerSet => of_leader_worker_set(spec, name),
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
    // The operator tells torchrun the number of processes, and this default is the operator's.
    let elastic = spec
        .elastic_policy
        .and_then(|policy| policy.n_proc_per_node);
    let processes = elastic
        .map(|count| count.to_string())
        .or(spec.nproc_per_node);
    let processes = (kind == "PyTorchJob").then(|| processes.unwrap_or_else(|| "auto".to_owned()));
    let waits = kind == "PyTorchJob"
        && groups
            .keys()
            .any(|role| role.eq_ignore_ascii_case("master"));
    let template = |(role, group): (String, PodGroup)| {
        let path = format!("{field}.{role}");
        let role = role.to_ascii_lowercase();
        let start = format!("{name}-{role}");
        let mut template = PodTemplate::of_group(group, &path, &start, PodNumbers::Ordered)?;
        template.names.labels = &[KUBEFLOW_INDEX];
        template.init = (waits && role == "worker").then(wait_for_master);
        template.labels = vec![
            (KUBEFLOW_TYPE, role),
            (KUBEFLOW_JOB, name.to_owned()),
            (OPERATOR, operator.clone()),
        ];
        template
            .variables
            .extend(processes.clone().map(|count| (NPROC, count)));
        Ok(template)
    };
    groups.into_iter().map(template).collect()
}

/// The container by which the training operator lets a worker of a PyTorchJob wait for the master. Its request differs from its
/// limit, so the pod is not Guaranteed, whatever its author wrote.
fn wait_for_master() -> Container {
    Container {
        name: "init-pytorch".to_owned(),
        kind: ContainerKind::Init,
        image: "alpine:3.10".to_owned(),
        resources: Resources {
            cpu_request: Some(50),
            cpu_limit: Some(100),
            memory_request: Some(10 << 20),
            memory_limit: Some(20 << 20),
        },
        ..Container::default()
    }
}

/// The launcher and the workers of an MPIJob. Only the API of the MPI operator lets the launcher be a worker, too.
fn of_mpi(
    spec: ManifestSpec,
    operator: MpiOperator,
    name: &str,
) -> Result<Vec<PodTemplate>, String> {
    let field = "spec.mpiReplicaSpecs";
    let groups = spec.replica_specs.filter(|groups| !groups.is_empty());
    let groups = groups.ok_or_else(|| missing(field))?;
    let slots = count(spec.slots_per_worker, || "spec.slotsPerWorker".to_owned())?;
    let is_own = operator == MpiOperator::Own;
    let computes = is_own && spec.run_launcher_as_worker == Some(true);
    let implementation = spec.mpi_implementation.filter(|_| is_own);
    let [open_mpi_slots, intel_slots] = MPI_SLOTS;
    let (hosts, slots_by) = match implementation.as_deref() {
        Some("Intel") => ("I_MPI_HYDRA_HOST_FILE", Some(intel_slots)),
        Some("MPICH") => ("HYDRA_HOST_FILE", None),
        _ => (
            "OMPI_MCA_orte_default_hostfile",
            Some(open_mpi_slots).filter(|_| is_own),
        ),
    };
    let (operator, type_key) = match operator {
        MpiOperator::Training => ("mpijob-controller", KUBEFLOW_TYPE),
        MpiOperator::Own => ("mpi-operator", KUBEFLOW_ROLE),
    };
    let template = |(role, group): (String, PodGroup)| {
        let path = format!("{field}.{role}");
        let role = role.to_ascii_lowercase();
        let is_launcher = role == "launcher";
        let numbers = if is_launcher {
            PodNumbers::Random
        } else {
            PodNumbers::Ordered
        };
        let mut template = PodTemplate::of_group(group, &path, &format!("{name}-{role}"), numbers)?;
        if is_launcher {
            let file = (hosts, "/etc/mpi/hostfile".to_owned());
            template.variables = vec![file];
            template
                .variables
                .extend(slots_by.map(|key| (key, slots.to_string())));
        } else {
            template.command = if is_own {
                &["/usr/sbin/sshd", "-De"]
            } else {
                &["sleep", "365d"]
            };
        }
        if !is_launcher || computes {
            template.names.labels = &[KUBEFLOW_INDEX];
            template.names.first = u64::from(!is_launcher && computes);
        }
        let label = |key, value: &str| (key, value.to_owned());
        template.labels = vec![
            label(type_key, &role),
            label(KUBEFLOW_JOB, name),
            label(OPERATOR, operator),
        ];
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
        let mut spec = spec.ok_or_else(|| missing(&path))?;
        // The default of a JobSet, other than of a Job.
        spec.completion_mode
            .get_or_insert_with(|| "Indexed".to_owned());
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
            labels: vec![
                label(JOBSET_NAME, name),
                label(JOBSET_JOB, &job),
                label(JOBSET_REPLICAS, &jobs.to_string()),
            ],
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
        template.names.labels = &[VOLCANO_INDEX];
        template.labels = vec![(VOLCANO_TASK, task), (VOLCANO_JOB, name.to_owned())];
        Ok(template)
    };
    groups.into_iter().enumerate().map(template).collect()
}

fn of_leader_worker_set(spec: ManifestSpec, name: &str) -> Result<Vec<PodTemplate>, String> {
    let field = "spec.leaderWorkerTemplate";
    let groups = count(spec.replicas, || "spec.replicas".to_owned())?;
    let pair = spec.leader_worker_template.ok_or_else(|| missing(field))?;
    let size = count(pair.size, || format!("{field}.size"))?.max(1);
    // Some pods of each group, from this number on.
    let of_group = |object: Option<Box<ManifestObject>>, role: &str, first: u64, pods: u64| {
        let path = format!("{field}.{role}Template");
        let object = object.ok_or_else(|| missing(&path))?;
        let numbers = PodNumbers::OfGroup { first, pods };
        Ok::<_, String>(PodTemplate {
            path,
            pods: groups.saturating_mul(pods),
            labels: vec![(LWS_NAME, name.to_owned())],
            ..PodTemplate::new(Some(object), field, name, numbers)?
        })
    };
    match pair.leader_template {
        None => Ok(vec![of_group(pair.worker_template, "worker", 0, size)?]),
        leader => Ok(vec![
            of_group(leader, "leader", 0, 1)?,
            of_group(pair.worker_template, "worker", 1, size - 1)?,
        ]),
    }
}

/// The templates of a cluster of Ray, whose spec is at `path`.
fn of_ray(spec: ManifestSpec, path: &str, name: &str) -> Result<Vec<PodTemplate>, String> {
    let label = |kind: &str| vec![(RAY_TYPE, kind.to_owned()), (RAY_CLUSTER, name.to_owned())];
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
                first: 0,
            },
            pods: 1,
            labels: Vec::new(),
            variables: Vec::new(),
            command: &[],
            init: None,
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
