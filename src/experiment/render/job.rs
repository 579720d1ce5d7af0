//! [`TrainingJob`]: the parameters of a training cluster, from a file, with the line of each mistake.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::scene::{Amount, Finding, Place, ReadError, Tree, amounts_schema, violations_of};
use crate::text::{self, Form};

/// The longest text of parameters that is read, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The parameters of a training cluster. What is left out has a default, comes from the plan, or is named as missing.
///
/// In `command`, `args` and `env`, `$(NAME)` stands for a variable, as Kubernetes writes it: one of `env`, or `PS_HOSTS`,
/// `WORKER_HOSTS`, `CHIEF_HOSTS`, `PS_COUNT`, `WORKER_COUNT`, `TASK_TYPE`, `TASK_INDEX`, `TASK_PORT`, `TRAINING_JOB`, `SCRIPT`,
/// `DATA_DIR`, `LOG_DIR`.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TrainingJob {
    /// The job's name: the names of all objects begin with it.
    pub name: Option<String>,
    /// The namespace; that of `kubectl apply` if not given.
    pub namespace: Option<String>,
    /// The scene; the plan's active one if not given.
    pub scene: Option<String>,
    /// The case; the plan's active one if not given.
    pub case: Option<String>,
    /// The image of all containers.
    pub image: Option<String>,
    /// The training script: a path in the image or on a volume. Without a command, `python` runs it.
    pub script: Option<String>,
    /// The program and the arguments, a text each; no shell interprets the texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Further arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of all containers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The port that each task listens on; 2222 if not given.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// What differs from the plan and from other roles, by role: `ps`, `worker`, `chief`, `evaluator`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, TaskOf>,
    /// Whether tasks are to have CPUs of their own: their requests then equal their limits. The plan's word if not given.
    pub pin: Option<bool>,
    /// The folder with the training data.
    pub data: Option<Folder>,
    /// The folder for logs and checkpoints.
    pub log: Option<Folder>,
    /// A scheduler that starts all tasks together.
    pub gang: Option<Gang>,
    /// That the parameter servers are taken away when the job has ended (`pinfold scene reclaim`), and tasks that still run
    /// with them.
    pub reclaim: Option<Reclaim>,
    /// When the job has ended. `AllWorkers`: when the chief and every worker have succeeded. If not given, the chief's success
    /// ends the job; without a chief every worker has to succeed.
    pub success_policy: Option<SuccessPolicy>,
    /// The service account of the pods.
    pub service_account: Option<String>,
    /// Secrets with credentials for the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// How often a worker that fails is started again, before its job fails; 6 if not given. A TFJob counts the restarts of all
    /// tasks together, and has no limit if not given.
    #[schemars(range(max = 10000))]
    pub retries: Option<u32>,
}

/// The resources and the program of a role's task, where the role differs.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TaskOf {
    /// Requests by resource, over the plan's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub requests: BTreeMap<String, Amount>,
    /// Limits by resource, over the plan's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub limits: BTreeMap<String, Amount>,
    /// Whether the tasks are to have CPUs of their own.
    pub pin: Option<bool>,
    /// Another image.
    pub image: Option<String>,
    /// Another command.
    pub command: Option<Vec<String>>,
    /// Other arguments.
    pub args: Option<Vec<String>>,
    /// Further variables, or overridden values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// A folder that all tasks see: on the node, or on a volume that many nodes can mount.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Folder {
    /// Where the containers see it; /data and /log if not given.
    pub path: Option<String>,
    /// An existing PersistentVolumeClaim; with `size`, the name of a new one (`NAME-data`, `NAME-log` if not given).
    pub claim: Option<String>,
    /// The size of a PersistentVolumeClaim that is to be made, like 10Gi.
    pub size: Option<String>,
    /// The storage class; the cluster's default if not given.
    pub storage_class: Option<String>,
    /// The access mode; ReadWriteMany if not given, since tasks on several nodes use the volume.
    pub access_mode: Option<String>,
    /// A folder of the nodes, instead of a claim.
    pub host_path: Option<String>,
    /// Whether the folder is read-only.
    pub read_only: bool,
}

/// A scheduler that starts all tasks of a group together.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Gang {
    /// The scheduler's name; volcano if not given.
    pub scheduler: Option<String>,
    /// The group's name; the job's if not given.
    pub group: Option<String>,
    /// The queue, where the scheduler has queues.
    pub queue: Option<String>,
}

/// Whose success ends a job, where the chief's alone does not.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SuccessPolicy {
    /// All workers have to succeed, the chief among them.
    AllWorkers,
}

/// When parameter servers are taken away.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Reclaim {
    /// The time after the job's end, in whole seconds, like `30s`; the reclaimer's own setting (30s) if not given.
    #[schemars(regex(pattern = "^[0-9]+[smh]$"))]
    pub after: Option<String>,
}

fn generated() -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    generator.into_root_schema_for::<TrainingJob>()
}

// === impl TrainingJob ===

impl TrainingJob {
    /// The schema of a file of parameters, for editors.
    pub fn schema() -> Schema {
        let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
        settings.into_generator().into_root_schema_for::<Self>()
    }

    /// The parameters in a text, YAML or JSON. `origin` names the text in findings.
    ///
    /// # Errors
    /// What can't be read at all, or everything that the schema has against it.
    pub fn read(text: &str, origin: &str) -> Result<Result<Self, Vec<Finding>>, ReadError> {
        let trees = text::read_as::<Tree>(text, Form::PlainYaml, MAX_TEXT);
        let trees = trees.map_err(|mistake| ReadError::syntax(origin, mistake))?;
        let mut trees = trees.into_iter().filter(|tree| !tree.is_null());
        let fail = |what: &str| Err(ReadError::new(origin, 0, None, what.to_owned()));
        let Some(tree) = trees.next() else {
            return fail("the text has no parameters: write name:, image: and script: at least");
        };
        if trees.next().is_some() {
            return fail("the text has several documents: one file describes one job");
        }
        let schema: Option<JSONSchemaProps> = serde_json::from_value(generated().to_value()).ok();
        let place = |path: String, line: Option<u64>| Place {
            file: origin.to_owned(),
            line,
            plan: String::new(),
            path,
        };
        let found = schema
            .map(|schema| violations_of(&tree, &schema))
            .unwrap_or_default();
        let findings: Vec<Finding> = found
            .into_iter()
            .map(|(path, text, fix)| {
                Finding::error(place(path.to_string(), tree.line_of(&path)), text, fix)
            })
            .collect();
        if !findings.is_empty() {
            return Ok(Err(findings));
        }
        Ok(serde_json::from_value(tree.value()).map_err(|error| {
            let text = format!("the document has no valid parameters of a job: {error}");
            let fix =
                "compare the document with the schema of pinfold scene render --schema".to_owned();
            vec![Finding::error(place("the job".to_owned(), None), text, fix)]
        }))
    }
}
