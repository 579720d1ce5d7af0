//! [`TrainingJob`]: the parameters of a training cluster, from a file, with the line of each mistake.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::preset::Preset;
use crate::scene::{
    Amount, Finding, Path, ReadError, SourcePlace, Tree, amounts_schema, violations_of,
};
use crate::text::document::{self, TextForm};
use crate::text::duration;

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
    /// The namespace. The default is the namespace of `kubectl apply`.
    pub namespace: Option<String>,
    /// The scene. The default is the plan's active scene.
    pub scene: Option<String>,
    /// The case. The default is the plan's active case.
    pub case: Option<String>,
    /// Values by name, for what neither the job nor a flag says: `article`.
    pub preset: Option<Preset>,
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
    /// The port of each task. The default is 2222.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Settings by role, which overrule the plan and the job: `ps`, `worker`, `chief`, `evaluator`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, TaskOf>,
    /// Whether tasks need exclusive CPUs: the requests then equal the limits. The default is the plan's `pin`.
    pub pin: Option<bool>,
    /// The folder with the training data.
    pub data: Option<Folder>,
    /// The folder for logs and checkpoints. Without a volume, each pod has an empty folder that ends with it.
    pub log: Option<Folder>,
    /// A scheduler that starts all tasks together.
    pub gang: Option<Gang>,
    /// The deletion of the parameter servers and of running tasks after the job's end, by `pinfold scene reclaim`.
    pub reclaim: Option<Reclaim>,
    /// The condition of the job's end. `AllWorkers`: the chief and every worker have succeeded. By default, the chief's success
    /// ends the job. Without a chief, every worker must succeed.
    pub success_policy: Option<SuccessPolicy>,
    /// The user id of all containers. The default is 1000. The Pod Security Standard `restricted` refuses 0, which is root.
    #[schemars(range(max = 2_147_483_647))]
    pub run_as_user: Option<u32>,
    /// The service account of the pods, whose token they get. Without an account, pods get no token.
    pub service_account: Option<String>,
    /// Secrets with credentials for the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// The number of restarts of a failed worker before the job fails. The default is 6. A TFJob counts the restarts of all
    /// tasks together, without a default limit.
    #[schemars(range(max = 10000))]
    pub retries: Option<u32>,
}

/// The resources and the program of a task of the role.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TaskOf {
    /// Requests by resource, which overrule the plan.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub requests: BTreeMap<String, Amount>,
    /// Limits by resource, which overrule the plan.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub limits: BTreeMap<String, Amount>,
    /// Whether the tasks need exclusive CPUs.
    pub pin: Option<bool>,
    /// The image, instead of the job's.
    pub image: Option<String>,
    /// The command, instead of the job's.
    pub command: Option<Vec<String>>,
    /// The arguments, instead of the job's.
    pub args: Option<Vec<String>>,
    /// Further variables, or overridden values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// A folder: on a volume that many nodes can mount, or on the node.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Folder {
    /// The path in the containers. The default is /data or /log.
    pub path: Option<String>,
    /// An existing PersistentVolumeClaim. With `size`, the name of a new claim, by default `NAME-data` or `NAME-log`.
    pub claim: Option<String>,
    /// The size of a new PersistentVolumeClaim, like 10Gi.
    pub size: Option<String>,
    /// The storage class. The default is the cluster's default class.
    pub storage_class: Option<String>,
    /// The access mode. The default is ReadWriteMany, since tasks on several nodes use the volume.
    pub access_mode: Option<String>,
    /// A folder of the nodes, instead of a claim. Namespaces with the Pod Security Standard `baseline` or `restricted` refuse it.
    pub host_path: Option<String>,
    /// Whether the folder is read-only.
    pub read_only: bool,
}

/// A scheduler that starts all tasks of a group together.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Gang {
    /// The scheduler's name. The default is volcano.
    pub scheduler: Option<String>,
    /// The group's name. The default is the job's name.
    pub group: Option<String>,
    /// The queue, if the scheduler has queues.
    pub queue: Option<String>,
}

/// The tasks whose success ends a job, if not only the chief.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SuccessPolicy {
    /// All workers must succeed, including the chief.
    AllWorkers,
}

/// The time of the deletion of parameter servers.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Reclaim {
    /// The time after the job's end, in whole seconds, like `30s`. The default is the reclaimer's setting (30s).
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
    /// The image of all containers: the job's, or its preset's.
    pub(super) fn image(&self) -> Option<&str> {
        let preset = self.preset.map(Preset::image);
        self.image.as_deref().or(preset)
    }

    /// Whether a command, an argument or a variable's value contains the text.
    pub(super) fn mentions(&self, text: &str) -> bool {
        let roles = self.roles.values();
        let of_roles = roles.flat_map(|own| {
            let lists = [own.command.as_ref(), own.args.as_ref()];
            let words = lists.into_iter().flatten().flatten();
            words.chain(own.env.values())
        });
        let own = self.command.iter().chain(&self.args);
        let mut all = own.chain(self.env.values()).chain(of_roles);
        all.any(|word| word.contains(text))
    }

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
        let trees = document::read_as::<Tree>(text, TextForm::PlainYaml, MAX_TEXT);
        let trees = trees.map_err(|mistake| ReadError::syntax(origin, mistake))?;
        let mut trees = trees.into_iter().filter(|tree| !tree.is_null());
        let fail = |what: &str| Err(ReadError::new(origin, 0, None, what.to_owned()));
        let Some(tree) = trees.next() else {
            return fail("the text has no parameters: write at least name, image and script");
        };
        if trees.next().is_some() {
            return fail("the text has several documents: one file describes one job");
        }
        let schema: Option<JSONSchemaProps> = serde_json::from_value(generated().to_value()).ok();
        let place = |path: String, line: Option<u64>| SourcePlace {
            file: origin.to_owned(),
            line,
            plan: String::new(),
            path,
        };
        let found = schema
            .map(|schema| violations_of(&tree, &schema))
            .unwrap_or_default();
        let mut findings: Vec<Finding> = found
            .into_iter()
            .map(|(path, text, fix)| {
                Finding::error(place(path.to_string(), tree.line_of(&path)), text, fix)
            })
            .collect();
        let after = tree.value().pointer("/reclaim/after").cloned();
        if let Some(serde_json::Value::String(after)) = after
            && let Err(remedy) = duration::read_seconds(&after)
        {
            let path = Path::of(&["reclaim", "after"]);
            let place = place(path.to_string(), tree.line_of(&path));
            findings.push(Finding::error(
                place,
                format!("{after:?} is not allowed"),
                remedy,
            ));
        }
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
