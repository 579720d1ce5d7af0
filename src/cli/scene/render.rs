//! `pinfold scene render`: a training cluster's objects from a plan and a job's parameters.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::case::CaseArgs;
use super::files;
use crate::cli::output::Several;
use crate::experiment::{
    AMOUNTS, Faults, Preset, Reclaim, RenderRequest, Slice, TrainingJob, WorkloadFormat, render,
};
use crate::text::values::whole;

/// Print the objects of a training cluster for one case of a plan.
///
/// Node affinity places each task's pod on the server of the task's index. The pod's environment has PS_HOSTS,
/// WORKER_HOSTS, TASK_TYPE, TASK_INDEX and TF_CONFIG. Commands refer to them like $(PS_HOSTS), which Kubernetes expands.
///
/// All names begin with NAME-sSCENE-cCASE, so two cases never want the same object. A namespace with the Pod Security
/// Standard restricted takes the pods, unless the job asks for runAsUser 0 or a hostPath.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene render plan.yaml --job job.yaml | kubectl apply -f -
  pinfold scene render plan.yaml --job job.yaml --scene 2 --case 2 --format volcano
  pinfold scene render plan.yaml --name mnist --image mnist:1 --script /opt/train.py
  pinfold scene render plan.yaml --name mnist --script /opt/train.py --preset article
  pinfold scene render plan.yaml --name mnist --image mnist:1 -- \\
    python train.py '--ps_hosts=$(PS_HOSTS)' '--worker_hosts=$(WORKER_HOSTS)' \\
    '--job_name=$(TASK_TYPE)' '--task_index=$(TASK_INDEX)'
  pinfold scene render plan.yaml --job job.yaml --role worker --from 10 --to 19
  pinfold scene render --schema > job.schema.json     print the schema of job.yaml, for an editor

Exit codes: 0 done (warnings are possible), 2 missing or wrong settings, all of which the output lists.")]
pub(super) struct RenderArgs {
    #[command(flatten)]
    case: CaseArgs,
    /// File with the job's parameters (YAML or JSON); - is the standard input. Flags overrule the file.
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// The job's name. The names of its objects add the scene and the case: NAME-s1-c1.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Take the image and the resources from here where neither the job nor a flag says.
    #[arg(long, value_enum, value_name = "PRESET")]
    preset: Option<PresetName>,
    /// The namespace of the job's objects.
    #[arg(long, value_name = "NAMESPACE")]
    job_namespace: Option<String>,
    /// The image of all containers.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The training script, in the image or on a volume.
    #[arg(long, value_name = "PATH")]
    script: Option<String>,
    /// Whether tasks get exclusive CPUs; if so, their requests equal their limits.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pin: Option<bool>,
    /// Label the job so that pinfold scene reclaim deletes its parameter servers after its end.
    #[arg(long)]
    reclaim: bool,
    /// The kind of the rendered objects.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: WorkloadKind,
    /// Render only the tasks of this role.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// The first task of each role to render; tasks count from 0.
    #[arg(long, value_name = "TASK", value_parser = whole::<u32>(0..=u64::MAX))]
    from: Option<u32>,
    /// The last task of each role to render.
    #[arg(long, value_name = "TASK", value_parser = whole::<u32>(0..=u64::MAX))]
    to: Option<u32>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: RenderOutput,
    /// Print the JSON schema of the job's parameters, and nothing else.
    #[arg(long, exclusive = true)]
    pub(super) schema: bool,
    /// The program and its arguments, run without a shell.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The kind of the objects.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum WorkloadKind {
    /// Jobs, Deployments and a Service.
    #[default]
    Native,
    /// A TFJob of the Kubeflow training operator (kubeflow.org/v1).
    Tfjob,
    /// A Job of Volcano (batch.volcano.sh/v1alpha1).
    Volcano,
    /// A JobSet (jobset.x-k8s.io/v1alpha2).
    Jobset,
}

/// Values with a name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PresetName {
    /// As in the article that compared shared and separate servers: TensorFlow 1, 300m for a worker, 2 CPUs for a parameter server.
    Article,
}

/// The form of the output.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum RenderOutput {
    /// Documents for kubectl and people.
    #[default]
    Yaml,
    /// One List.
    Json,
}

// === impl WorkloadKind ===

impl From<WorkloadKind> for WorkloadFormat {
    fn from(kind: WorkloadKind) -> Self {
        match kind {
            WorkloadKind::Native => Self::Native,
            WorkloadKind::Tfjob => Self::Tfjob,
            WorkloadKind::Volcano => Self::Volcano,
            WorkloadKind::Jobset => Self::Jobset,
        }
    }
}

// === impl RenderArgs ===

impl RenderArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.schema {
            super::super::document(&serde_json::to_string_pretty(&TrainingJob::schema())?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut job = self
            .job
            .as_deref()
            .map(job)
            .transpose()?
            .unwrap_or_default();
        let given = [
            (&mut job.name, self.name),
            (&mut job.namespace, self.job_namespace),
            (&mut job.image, self.image),
            (&mut job.script, self.script),
        ];
        for (field, flag) in given {
            *field = flag.or(field.take());
        }
        job.pin = self.pin.or(job.pin);
        let preset = self.preset.map(|PresetName::Article| Preset::Article);
        job.preset = preset.or(job.preset);
        if self.reclaim {
            job.reclaim.get_or_insert_with(Reclaim::default);
        }
        if !self.command.is_empty() {
            job.command = self.command;
        }
        let (plan, _) = self.case.with_cluster(false)?;
        let (scene, case) = self.case.names(&plan, &job)?;
        let format = WorkloadFormat::from(self.format);
        let slice = Slice {
            role: self.role,
            from: self.from,
            to: self.to,
        };
        let rendered = match render(&RenderRequest {
            plan: &plan,
            scene: &scene,
            case: &case,
            job: &job,
            format,
            slice: &slice,
            run: None,
            amounts: AMOUNTS,
        }) {
            Ok(rendered) => rendered,
            Err(faults) => return Err(refused("rendered", &faults)),
        };
        match self.output {
            RenderOutput::Yaml => {
                let documents: Result<Vec<String>, _> =
                    rendered.objects.iter().map(files::yaml).collect();
                super::super::document(&documents?.join("---\n"))?;
            }
            RenderOutput::Json => {
                let list: Value =
                    json!({"apiVersion": "v1", "kind": "List", "items": rendered.objects});
                super::super::json(&list)?;
            }
        }
        for warning in &rendered.warnings {
            super::super::warn(warning);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The faults, a line each.
pub(super) fn refused(what: &str, faults: &Faults) -> anyhow::Error {
    let all = faults.iter().map(ToString::to_string).collect();
    let heading = format!("the job can't be {what}");
    Several { heading, all }.into()
}

/// The parameters in a file.
pub(super) fn job(path: &Path) -> anyhow::Result<TrainingJob> {
    match TrainingJob::read(&files::text(path)?, &path.display().to_string())? {
        Ok(job) => Ok(job),
        Err(findings) => {
            let heading = "the job's parameters can't be read".to_owned();
            let all = findings.iter().map(ToString::to_string).collect();
            Err(Several { heading, all }.into())
        }
    }
}
