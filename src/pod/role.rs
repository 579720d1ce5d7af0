//! [`recognise`]: a pod's role in a training job.
//!
//! Operators mark their pods differently, and old operators are still in use. So a table of
//! recognizers is tried in order, and the first match decides. Marks of operators come first, then
//! hand-written labels, then command lines, which are guesses.
//!
//! | mark | role from | training |
//! |---|---|---|
//! | Training operator ≥ 1.6, TFJob, PyTorchJob and so on | `training.kubeflow.org/replica-type` | yes |
//! | Training operator 1.2 to 1.5 | `replica-type`, with `group-name: kubeflow.org` | yes |
//! | TFJob ≤ 1.0 | `tf-replica-type` | yes |
//! | any distributed TensorFlow | `TF_CONFIG`'s `task.type` | yes |
//! | Ray | `ray.io/node-type`: head is the chief | a RayService serves: no |
//! | Volcano | `volcano.sh/task-spec`, if the user's name for the task is a role's | yes |
//! | JobSet, and Kubeflow Trainer 2, which makes JobSets | `jobset.sigs.k8s.io/replicatedjob-name`, if the name is a role's, or the container `node` | the Trainer's initializers: no |
//! | MPI operator | `training.kubeflow.org/job-role`, before 0.4 `mpi-job-role` | yes |
//! | LeaderWorkerSet | `leaderworkerset.sigs.k8s.io/worker-index`: 0 is the chief | no: mostly serves models |
//! | Spark | `spark-role`: the driver is the chief | no: mostly prepares data |
//! | manifests with `name`, `job` and `task` | label `job`: ps, worker, chief or evaluator | yes |
//! | command line | `--job_name` with `--task_index` | yes |
//! | command line | `run.sh PS_HOSTS WORKER_HOSTS ROLE INDEX PS_COUNT WORKER_COUNT` | yes |
//!
//! A pod that does not train still has a role, for metrics. An annotation or the configured
//! selector makes it a training pod. A port, even TensorFlow's 2222, is no evidence.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::command::words;
use super::operator_labels::{
    COMPLETION_INDEX, JOBSET_INDEX, JOBSET_JOB, JOBSET_NAME, JOBSET_REPLICAS, KUBEFLOW_INDEX,
    KUBEFLOW_JOB, KUBEFLOW_ROLE, KUBEFLOW_TYPE, KUEUE_GROUP, LWS_INDEX, LWS_NAME, MPI_JOB,
    MPI_ROLE, OPERATOR, RAY_CLUSTER, RAY_HOST, RAY_INDEX, RAY_SERVES, RAY_TYPE, TRAINER_CONTAINER,
    VOLCANO_INDEX, VOLCANO_JOB, VOLCANO_TASK,
};
use super::variables::{MPI_HOSTS, TF_CONFIG};
use super::{Container, ContainerKind, EnvSource, Pod};

/// A pod's part in a training job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodRole {
    /// Parameter server: holds variables, answers workers.
    Ps,
    /// Computes steps.
    Worker,
    /// The leading worker: saves checkpoints, decides the end. Also called master.
    Chief,
    /// Measures the model beside the training.
    Evaluator,
    /// Starts the job's processes, computes nothing.
    Launcher,
    /// A role outside this list, or an unknown role.
    Other,
}

impl fmt::Display for PodRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ps => "ps",
            Self::Worker => "worker",
            Self::Chief => "chief",
            Self::Evaluator => "evaluator",
            Self::Launcher => "launcher",
            Self::Other => "other",
        })
    }
}

/// A pod's role, and the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recognition {
    /// The role; [`PodRole::Other`] for an unrecognised pod.
    pub role: PodRole,
    /// The task's number among the tasks of the same role, if known.
    pub index: Option<u32>,
    pub job: Option<String>,
    /// The evidence, as the middle of a sentence: `label training.kubeflow.org/replica-type=worker`.
    pub evidence: String,
    /// Whether the pod trains a model.
    pub training: bool,
}

/// Tries the recognizers of the module's table in order.
pub fn recognise(pod: &Pod) -> Recognition {
    let recognizers: [fn(&Pod) -> Option<Recognition>; 12] = [
        training_operator,
        old_training_operator,
        first_tfjob,
        tf_config,
        ray,
        volcano,
        jobset,
        mpi,
        leader_worker_set,
        spark,
        plain_manifest,
        command_line,
    ];
    recognizers.iter().find_map(|recognizer| recognizer(pod)).unwrap_or_else(|| Recognition {
        role: PodRole::Other,
        index: None,
        job: None,
        evidence: format!(
            "no operator's label, {}, no labels \"name\", \"job\" and \"task\", no --job_name with --task_index, and no run.sh with hosts",
            useless_tf_config(pod)
        ),
        training: false,
    })
}

// === labels ===

fn training_operator(pod: &Pod) -> Option<Recognition> {
    let kind = label(pod, KUBEFLOW_TYPE)?;
    Some(
        by_label(pod, operator_role(kind), KUBEFLOW_TYPE, kind)
            .numbered(KUBEFLOW_INDEX)
            .of_job(KUBEFLOW_JOB)
            .into(),
    )
}

fn old_training_operator(pod: &Pod) -> Option<Recognition> {
    let kind =
        label(pod, "replica-type").filter(|_| label(pod, "group-name") == Some("kubeflow.org"))?;
    let label_match =
        by_label(pod, operator_role(kind), "replica-type", kind).numbered("replica-index");
    Some(label_match.of_job("job-name").of_job("tf-job-name").into())
}

fn first_tfjob(pod: &Pod) -> Option<Recognition> {
    let kind = label(pod, "tf-replica-type")?;
    let label_match = by_label(pod, operator_role(kind), "tf-replica-type", kind);
    Some(
        label_match
            .numbered("tf-replica-index")
            .of_job("tf-job-name")
            .into(),
    )
}

fn volcano(pod: &Pod) -> Option<Recognition> {
    let key = VOLCANO_TASK;
    let (value, noun) = label(pod, key).map(|value| (value, "label")).or_else(|| {
        pod.annotations
            .get(key)
            .map(|value| (value.as_str(), "annotation"))
    })?;
    // The plugin `mpi` calls the task that starts the ranks of the others master, unless its arguments name another.
    let starts_others = apps(pod).any(|container| container.env.contains_key(MPI_HOSTS));
    let (role, and) = match known_role(value)? {
        PodRole::Chief if starts_others => (PodRole::Launcher, " with the variable MPI_HOST"),
        role => (role, ""),
    };
    let label_match = by_label(pod, role, key, value).numbered(VOLCANO_INDEX);
    let recognition = label_match.of_job(VOLCANO_JOB).recognition;
    Some(Recognition {
        evidence: format!("{noun} {key}={value}{and}"),
        ..recognition
    })
}

fn jobset(pod: &Pod) -> Option<Recognition> {
    let name = label(pod, JOBSET_JOB)?;
    let is_trainers = apps(pod).any(|container| container.name == TRAINER_CONTAINER);
    let role = match known_role(name) {
        // Where the launcher is a node, too, it runs the first ranks.
        Some(PodRole::Launcher) if is_trainers => PodRole::Chief,
        Some(role) => role,
        None if is_trainers => PodRole::Worker,
        None if matches!(name, "dataset-initializer" | "model-initializer") => PodRole::Other,
        None => return None,
    };
    // The completion index counts within a Job, so it says nothing where each pod is a Job.
    let is_one_of_many = label(pod, JOBSET_REPLICAS).is_some_and(|replicas| replicas != "1");
    let index = if is_one_of_many {
        JOBSET_INDEX
    } else {
        COMPLETION_INDEX
    };
    let mut label_match = by_label(pod, role, JOBSET_JOB, name)
        .numbered(index)
        .numbered(JOBSET_INDEX)
        .of_job(JOBSET_NAME);
    let found = &mut label_match.recognition;
    found.training = role != PodRole::Other;
    if is_trainers {
        found.evidence += " with the container node of Kubeflow Trainer";
    }
    Some(label_match.into())
}

fn mpi(pod: &Pod) -> Option<Recognition> {
    let (key, name) = [KUBEFLOW_ROLE, MPI_ROLE]
        .into_iter()
        .find_map(|key| Some((key, label(pod, key)?)))?;
    let mut label_match = by_label(pod, known_role(name)?, key, name)
        .numbered(KUBEFLOW_INDEX)
        .of_job(KUBEFLOW_JOB)
        .of_job(MPI_JOB);
    let found = &mut label_match.recognition;
    // Only a launcher that is a worker, too, has a number.
    if found.role == PodRole::Launcher && found.index.is_some() {
        found.role = PodRole::Chief;
        found.evidence += &format!(" with {KUBEFLOW_INDEX}, so it runs ranks, too");
    }
    Some(label_match.into())
}

/// Whether the pod is a worker of an MPIJob, whose launcher starts the processes of all workers.
pub(super) fn is_mpi_worker(pod: &Pod) -> bool {
    let is_worker = |key| label(pod, key) == Some("worker");
    let is_mpi = label(pod, OPERATOR) == Some("mpijob-controller");
    is_worker(KUBEFLOW_ROLE) || is_worker(MPI_ROLE) || is_mpi && is_worker(KUBEFLOW_TYPE)
}

fn leader_worker_set(pod: &Pod) -> Option<Recognition> {
    let key = LWS_INDEX;
    let index = label(pod, key)?;
    let role = if index == "0" {
        PodRole::Chief
    } else {
        PodRole::Worker
    };
    let label_match = by_label(pod, role, key, index)
        .numbered(key)
        .of_job(LWS_NAME);
    Some(label_match.no_training())
}

fn ray(pod: &Pod) -> Option<Recognition> {
    let key = RAY_TYPE;
    let kind = label(pod, key)?;
    let role = match kind {
        "head" => PodRole::Chief,
        "worker" => PodRole::Worker,
        _ => return None,
    };
    let mut label_match = by_label(pod, role, key, kind).of_job(RAY_CLUSTER);
    if label(pod, RAY_HOST).is_none() {
        label_match = label_match.numbered(RAY_INDEX);
    }
    if label(pod, RAY_SERVES).is_some() {
        label_match.recognition.evidence += " of a RayService";
        return Some(label_match.no_training());
    }
    Some(label_match.into())
}

fn spark(pod: &Pod) -> Option<Recognition> {
    let kind = label(pod, "spark-role")?;
    let role = match kind {
        "driver" => PodRole::Chief,
        "executor" => PodRole::Worker,
        _ => return None,
    };
    let label_match = by_label(pod, role, "spark-role", kind)
        .numbered("spark-exec-id")
        .of_job("spark-app-name");
    Some(label_match.no_training())
}

/// Manifests from the time before operators: one Service and one Job or Deployment for each task.
fn plain_manifest(pod: &Pod) -> Option<Recognition> {
    let role = match label(pod, "job")? {
        "ps" => PodRole::Ps,
        "worker" => PodRole::Worker,
        "chief" => PodRole::Chief,
        "evaluator" => PodRole::Evaluator,
        _ => return None,
    };
    let (name, task) = (label(pod, "name")?, label(pod, "task")?);
    let index = task.parse().ok()?;
    Some(Recognition {
        role,
        index: Some(index),
        job: Some(name.to_owned()),
        evidence: format!("labels name={name}, job={role} and task={task}"),
        training: true,
    })
}

/// The label that selects all pods of a job, if the pod belongs to it by a label.
pub fn job_label<'a>(pod: &'a Pod, job: &str) -> Option<(&'static str, &'a str)> {
    let keys = [
        KUBEFLOW_JOB,
        "tf-job-name",
        MPI_JOB,
        "job-name",
        VOLCANO_JOB,
        JOBSET_NAME,
        KUEUE_GROUP,
        LWS_NAME,
        RAY_CLUSTER,
        "spark-app-name",
        "name",
    ];
    let found = keys.into_iter().find_map(|key| {
        let value = label(pod, key).filter(|value| *value == job)?;
        Some((key, value))
    });
    // Only now are the pod's texts read, because most pods of a node belong to other jobs.
    found.filter(|_| recognise(pod).job.as_deref() == Some(job))
}

/// A recognition by a label of the pod.
struct LabelMatch<'a> {
    pod: &'a Pod,
    recognition: Recognition,
}

fn by_label<'a>(pod: &'a Pod, role: PodRole, key: &str, value: &str) -> LabelMatch<'a> {
    let evidence = format!("label {key}={value}");
    LabelMatch {
        pod,
        recognition: Recognition {
            role,
            index: None,
            job: None,
            evidence,
            training: true,
        },
    }
}

impl LabelMatch<'_> {
    /// Takes the index from a label or an annotation, unless it is known.
    fn numbered(mut self, key: &str) -> Self {
        let text = self
            .pod
            .labels
            .get(key)
            .or_else(|| self.pod.annotations.get(key));
        self.recognition.index = self.recognition.index.or_else(|| text?.parse().ok());
        self
    }

    /// Takes the job's name from a label or an annotation, unless it is known.
    fn of_job(mut self, key: &str) -> Self {
        let text = self
            .pod
            .labels
            .get(key)
            .or_else(|| self.pod.annotations.get(key));
        self.recognition.job = self.recognition.job.or_else(|| text.cloned());
        self
    }

    fn no_training(mut self) -> Recognition {
        self.recognition.training = false;
        self.recognition
    }
}

impl From<LabelMatch<'_>> for Recognition {
    fn from(label_match: LabelMatch<'_>) -> Self {
        label_match.recognition
    }
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.labels.get(key).map(String::as_str)
}

/// The role for an operator's name of a replica type. An unknown name gives [`PodRole::Other`],
/// since all pods of a training operator train.
fn operator_role(name: &str) -> PodRole {
    // MXNet's parameter servers are called servers.
    if name.eq_ignore_ascii_case("server") {
        PodRole::Ps
    } else {
        known_role(name).unwrap_or(PodRole::Other)
    }
}

/// The role for a common name; none for any other name.
fn known_role(name: &str) -> Option<PodRole> {
    Some(match name.to_ascii_lowercase().as_str() {
        "ps" | "parameterserver" | "parameter-server" => PodRole::Ps,
        "worker" | "workers" | "mpiworker" => PodRole::Worker,
        "chief" | "master" | "leader" | "head" => PodRole::Chief,
        "evaluator" => PodRole::Evaluator,
        "launcher" | "mpimaster" => PodRole::Launcher,
        _ => return None,
    })
}

// === environment and command line ===

fn tf_config(pod: &Pod) -> Option<Recognition> {
    apps(pod).find_map(|container| {
        let Some(EnvSource::Value(text)) = container.env.get(TF_CONFIG) else {
            return None;
        };
        let config = parse_with_references(text)?;
        let task = config.get("task")?;
        let kind = task.get("type")?.as_str()?;
        let role = known_role(kind)?;
        let index = match task.get("index") {
            Some(serde_json::Value::Number(index)) => {
                index.as_u64().and_then(|index| u32::try_from(index).ok())
            }
            Some(serde_json::Value::String(index)) => index.parse().ok(),
            _ => None,
        };
        let number = index.map_or_else(String::new, |index| format!(" {index}"));
        Some(Recognition {
            role,
            index,
            job: job_of_tasks(pod),
            evidence: format!(
                "task {kind}{number} in TF_CONFIG of container {}",
                container.name
            ),
            training: true,
        })
    })
}

/// The name of the job by the labels of those who start the tasks of a cluster. The label `job-name` of a Job is none of them,
/// because a Job may be a single task.
fn job_of_tasks(pod: &Pod) -> Option<String> {
    let operators = [VOLCANO_JOB, JOBSET_NAME, KUEUE_GROUP];
    let named = |key| label(pod, key).map(str::to_owned);
    let plain = plain_manifest(pod).and_then(|labels| labels.job);
    plain.or_else(|| operators.into_iter().find_map(named))
}

/// Why no `TF_CONFIG` of the pod shows the role, as the middle of a sentence.
fn useless_tf_config(pod: &Pod) -> String {
    let found = apps(pod).find_map(|container| Some((container, container.env.get(TF_CONFIG)?)));
    let Some((container, source)) = found else {
        return "no TF_CONFIG".to_owned();
    };
    let name = &container.name;
    match source {
        EnvSource::Reference => {
            format!(
                "a TF_CONFIG in container {name} that Pinfold can't read, because it comes from valueFrom or is longer than 16 KiB"
            )
        }
        EnvSource::Value(text) if parse_with_references(text).is_none() => {
            format!("a TF_CONFIG in container {name} that is no valid JSON")
        }
        EnvSource::Value(_) => {
            format!("a TF_CONFIG in container {name} without a task.type that is a known role")
        }
    }
}

/// Parses JSON in which `$(NAME)` may stand for a value, such as a cluster from a ConfigMap. Such a
/// value is unknown here, and counts as null.
fn parse_with_references(text: &str) -> Option<serde_json::Value> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let mut parts = text.split("$(");
    let mut resolved = parts.next()?.to_owned();
    for part in parts {
        let (_, rest) = part.split_once(')')?;
        resolved += "null";
        resolved += rest;
    }
    serde_json::from_str(&resolved).ok()
}

fn command_line(pod: &Pod) -> Option<Recognition> {
    apps(pod).find_map(|container| {
        let words = words(&container.args);
        by_options(container, &words).or_else(|| by_script(container, &words))
    })
}

fn by_options(container: &Container, words: &[String]) -> Option<Recognition> {
    let name = option(words, &["job_name", "job-name"])?;
    let role = known_role(name)?;
    let index = option(words, &["task_index", "task-index"])?;
    Some(Recognition {
        role,
        index: index.parse().ok(),
        job: None,
        evidence: format!(
            "--job_name={name} with --task_index in the command of container {}",
            container.name
        ),
        training: true,
    })
}

fn by_script(container: &Container, words: &[String]) -> Option<Recognition> {
    let is_script = |word: &String| word == "run.sh" || word.ends_with("/run.sh");
    let at = words.iter().position(is_script)?;
    let [
        ps_hosts,
        worker_hosts,
        kind,
        index,
        ps_count,
        worker_count,
        ..,
    ] = words.get(at + 1..)?
    else {
        return None;
    };
    let role = match kind.as_str() {
        "ps" => PodRole::Ps,
        "worker" => PodRole::Worker,
        _ => return None,
    };
    let counts = [ps_count, worker_count]
        .iter()
        .all(|count| count.parse::<u32>().is_ok());
    let hosts = [ps_hosts, worker_hosts]
        .iter()
        .all(|hosts| hosts.contains(':'));
    let index: u32 = index.parse().ok().filter(|_| counts && hosts)?;
    Some(Recognition {
        role,
        index: Some(index),
        job: None,
        evidence: format!(
            "run.sh with hosts, {kind} and {index} in the command of container {}",
            container.name
        ),
        training: true,
    })
}

/// The containers whose environment and command line show the pod's role.
fn apps(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.containers
        .iter()
        .filter(|container| container.kind == ContainerKind::App)
}

/// The value of `--name=value` or `--name value`, with one dash or two. The last value counts.
pub(super) fn option<'a>(words: &'a [String], names: &[&str]) -> Option<&'a str> {
    words.iter().enumerate().rev().find_map(|(at, word)| {
        let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
        match bare.split_once('=') {
            Some((name, value)) => names
                .contains(&name)
                .then(|| value.trim_matches(['"', '\''])),
            None => names
                .contains(&bare)
                .then(|| words.get(at + 1).map(String::as_str))?,
        }
    })
}
