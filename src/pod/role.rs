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
//! | Volcano | `volcano.sh/task-spec`, if the user's name for the task is a role's | yes |
//! | Kubeflow Trainer 2 | `trainer.kubeflow.org/trainjob-ancestor-step` | its initializers: no |
//! | JobSet | `jobset.sigs.k8s.io/replicatedjob-name`, if the name is a role's | yes |
//! | MPI operator | `training.kubeflow.org/job-role` | yes |
//! | LeaderWorkerSet | `leaderworkerset.sigs.k8s.io/worker-index`: 0 is the chief | no: mostly serves models |
//! | Ray | `ray.io/node-type`: head is the chief | yes |
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
use super::variables::TF_CONFIG;
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

/// The keys of labels, and of annotations, that show a role, an index or a job.
pub(super) const ROLE_KEYS: [&str; 30] = [
    KUBEFLOW_TYPE,
    KUBEFLOW_INDEX,
    KUBEFLOW_JOB,
    KUBEFLOW_ROLE,
    OPERATOR,
    COMPLETION_INDEX,
    JOBSET_NAME,
    JOBSET_JOB,
    JOBSET_INDEX,
    TRAINER_STEP,
    "replica-type",
    "group-name",
    "replica-index",
    "job-name",
    "tf-job-name",
    "tf-replica-type",
    "tf-replica-index",
    VOLCANO_TASK,
    "volcano.sh/task-index",
    "volcano.sh/job-name",
    LWS_INDEX,
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/node-type",
    "ray.io/cluster",
    "spark-role",
    "spark-exec-id",
    "spark-app-name",
    "name",
    "job",
    "task",
];

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
    let recognizers: [fn(&Pod) -> Option<Recognition>; 13] = [
        training_operator,
        old_training_operator,
        first_tfjob,
        tf_config,
        volcano,
        trainer,
        jobset,
        mpi,
        leader_worker_set,
        ray,
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

pub(super) const KUBEFLOW_TYPE: &str = "training.kubeflow.org/replica-type";
pub(super) const KUBEFLOW_INDEX: &str = "training.kubeflow.org/replica-index";
pub(super) const KUBEFLOW_JOB: &str = "training.kubeflow.org/job-name";
const KUBEFLOW_ROLE: &str = "training.kubeflow.org/job-role";
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
pub(super) const JOBSET_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
pub(super) const JOBSET_INDEX: &str = "jobset.sigs.k8s.io/job-index";
pub(super) const VOLCANO_TASK: &str = "volcano.sh/task-spec";
const LWS_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// The label with the name of the operator that made the pod.
pub(super) const OPERATOR: &str = "training.kubeflow.org/operator-name";
const TRAINER_STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

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
    let label_match =
        by_label(pod, known_role(value)?, key, value).numbered("volcano.sh/task-index");
    let recognition = label_match.of_job("volcano.sh/job-name").recognition;
    Some(Recognition {
        evidence: format!("{noun} {key}={value}"),
        ..recognition
    })
}

fn trainer(pod: &Pod) -> Option<Recognition> {
    let step = label(pod, TRAINER_STEP)?;
    let role = match step {
        "trainer" if label(pod, JOBSET_JOB) == Some("launcher") => PodRole::Launcher,
        "trainer" => PodRole::Worker,
        _ => PodRole::Other,
    };
    let mut label_match = by_label(pod, role, TRAINER_STEP, step)
        .numbered(COMPLETION_INDEX)
        .of_job(JOBSET_NAME);
    label_match.recognition.training = step == "trainer";
    Some(label_match.into())
}

fn jobset(pod: &Pod) -> Option<Recognition> {
    let name = label(pod, JOBSET_JOB)?;
    let label_match = by_label(pod, known_role(name)?, JOBSET_JOB, name);
    Some(
        label_match
            .numbered(COMPLETION_INDEX)
            .numbered(JOBSET_INDEX)
            .of_job(JOBSET_NAME)
            .into(),
    )
}

fn mpi(pod: &Pod) -> Option<Recognition> {
    let name = label(pod, KUBEFLOW_ROLE)?;
    let label_match = by_label(pod, known_role(name)?, KUBEFLOW_ROLE, name);
    Some(
        label_match
            .numbered(KUBEFLOW_INDEX)
            .of_job(KUBEFLOW_JOB)
            .into(),
    )
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
        .of_job("leaderworkerset.sigs.k8s.io/name");
    Some(label_match.no_training())
}

fn ray(pod: &Pod) -> Option<Recognition> {
    let key = "ray.io/node-type";
    let kind = label(pod, key)?;
    let role = match kind {
        "head" => PodRole::Chief,
        "worker" => PodRole::Worker,
        _ => return None,
    };
    Some(
        by_label(pod, role, key, kind)
            .of_job("ray.io/cluster")
            .into(),
    )
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
        "job-name",
        "volcano.sh/job-name",
        JOBSET_NAME,
        "leaderworkerset.sigs.k8s.io/name",
        "ray.io/cluster",
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
        "chief" | "master" => PodRole::Chief,
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
            job: plain_manifest(pod).and_then(|labels| labels.job),
            evidence: format!(
                "task {kind}{number} in TF_CONFIG of container {}",
                container.name
            ),
            training: true,
        })
    })
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
