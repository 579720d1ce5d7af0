//! `pinfold scene`: plans of scenes and cases, before and after they are in a cluster.

mod check;
mod import;
mod labels;
mod live;
#[cfg(feature = "reclaim")]
mod reclaim;
mod render;
mod report;
mod simulate;
mod status;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use crate::experiment::{AMOUNTS, TrainingJob, check};
use crate::scene::{
    Document, Node, ScenePlan, Severity, Slots, definition, read, read_nodes, slots,
};

/// Check plans of scenes and cases, and show which node gets which labels.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene check plan.yaml                       print each mistake with its correction
  pinfold scene check plan.yaml --nodes nodes.yaml    check also the number and size of the nodes
  pinfold scene labels plan.yaml --nodes nodes.yaml   print which node gets which labels
  pinfold scene status plan.yaml --nodes nodes.yaml   compare the nodes' labels with the active case
  pinfold scene status --live                         use the plan, the nodes and the claims of the cluster
  pinfold scene import --live > plan.yaml             make a plan from the labels of the nodes
  pinfold scene simulate plan.yaml --count 10         show the node of each task, for 10 invented nodes
  pinfold scene render plan.yaml --job job.yaml       print the objects of a training cluster
  pinfold scene reclaim --watch                       delete the parameter servers of ended jobs
  pinfold scene report --prometheus URL               report the resource use of the jobs
  pinfold scene crd | kubectl apply -f -              install the definition of ScenePlan

  kubectl get nodes -o yaml > nodes.yaml              make the file for --nodes")]
pub(super) struct SceneArgs {
    #[command(subcommand)]
    command: SceneCommand,
}

#[derive(Debug, Subcommand)]
enum SceneCommand {
    Check(check::Check),
    Labels(labels::LabelsArgs),
    Status(status::StatusArgs),
    Import(import::Import),
    Render(Box<render::RenderArgs>),
    Simulate(simulate::SimulateArgs),
    #[cfg(feature = "reclaim")]
    Reclaim(reclaim::ReclaimArgs),
    Report(Box<report::ReportArgs>),
    /// Print the custom resource definition of ScenePlan.
    Crd,
}

/// The choice of a plan and a case.
#[derive(Debug, Args)]
struct CaseOf {
    /// File with a ScenePlan (YAML or JSON); - is the standard input [default with --live: the cluster's plan]
    #[arg(value_name = "FILE", required_unless_present = "live")]
    file: Option<PathBuf>,
    #[command(flatten)]
    live: live::Live,
    /// The plan's name, if the file or the cluster has several plans.
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// The scene [default: the plan's active scene]
    #[arg(long, value_name = "SCENE", requires = "case")]
    scene: Option<String>,
    /// The case [default: the plan's active case]
    #[arg(long, value_name = "CASE", requires = "scene")]
    case: Option<String>,
}

/// Whether the standard input was read.
static STDIN: AtomicBool = AtomicBool::new(false);

// === impl SceneArgs ===

impl SceneArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            SceneCommand::Check(args) => args.run(),
            SceneCommand::Labels(args) => args.run(),
            SceneCommand::Status(args) => args.run(),
            SceneCommand::Import(args) => args.run(),
            SceneCommand::Render(args) => args.run(),
            SceneCommand::Simulate(args) => args.run(),
            #[cfg(feature = "reclaim")]
            SceneCommand::Reclaim(args) => args.run(),
            SceneCommand::Report(args) => args.run(),
            SceneCommand::Crd => {
                super::emit(&yaml(&definition())?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

// === impl CaseOf ===

impl CaseOf {
    /// The chosen plan. An invalid plan is refused with its first mistake.
    fn choose(&self, documents: &[Document], origin: &str) -> anyhow::Result<ScenePlan> {
        let names: Vec<&str> = documents.iter().map(Document::name).collect();
        let names = names.join(", ");
        let mut chosen = documents.iter().filter(|document| {
            self.plan
                .as_ref()
                .is_none_or(|name| document.name() == name)
        });
        let document = chosen.next().with_context(|| {
            format!(
                "{origin} has no plan {}: choose one of {names}",
                self.plan.as_deref().unwrap_or_default()
            )
        })?;
        ensure!(
            chosen.next().is_none(),
            "{origin} has several plans ({names}): choose one with --plan NAME"
        );
        // Too few nodes for a different case do not matter for the chosen case.
        let wrong = check(std::slice::from_ref(document), None, AMOUNTS)
            .into_iter()
            .find(|one| one.severity == Severity::Error && one.place.path != "spec.nodes.names");
        if let Some(finding) = wrong {
            anyhow::bail!("{finding} (pinfold scene check prints all mistakes)");
        }
        document
            .plan
            .clone()
            .with_context(|| format!("{origin} holds no valid ScenePlan"))
    }

    /// The slots of the chosen case.
    fn slots(&self, plan: &ScenePlan) -> anyhow::Result<Slots> {
        let (scene, case) = self.names(plan, &TrainingJob::default())?;
        Ok(slots(plan, &scene, &case)?)
    }

    /// The chosen scene and case: from the flags, or else the job, or else the plan's active case.
    fn names(&self, plan: &ScenePlan, job: &TrainingJob) -> anyhow::Result<(String, String)> {
        let active = plan.spec.active.as_ref();
        let named = [
            (self.scene.as_ref(), self.case.as_ref()),
            (job.scene.as_ref(), job.case.as_ref()),
            (
                active.map(|active| &active.scene),
                active.map(|active| &active.case),
            ),
        ];
        match named
            .into_iter()
            .find(|(scene, case)| scene.is_some() || case.is_some())
        {
            Some((Some(scene), Some(case))) => Ok((scene.clone(), case.clone())),
            Some(_) => anyhow::bail!(
                "the job names only a scene or only a case: name both, or remove both for the active case"
            ),
            None => anyhow::bail!(
                "plan {} has no active case: choose one with --scene and --case",
                plan.metadata.name.as_deref().unwrap_or_default()
            ),
        }
    }
}

/// The text of a file, or of the standard input.
fn text(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        // The second reader would find the standard input empty.
        ensure!(
            !STDIN.swap(true, Ordering::Relaxed),
            "the standard input (-) stands for two files: name one of the files"
        );
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .context("can't read the standard input")?;
        return Ok(text);
    }
    fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
}

fn documents(path: &Path) -> anyhow::Result<Vec<Document>> {
    Ok(read(&text(path)?, &path.display().to_string())?)
}

fn nodes(path: &Path) -> anyhow::Result<Vec<Node>> {
    Ok(read_nodes(&text(path)?, &path.display().to_string())?)
}

/// An object as YAML.
fn yaml(object: &impl serde::Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("can't write YAML")
}

use crate::text::counted as many;
