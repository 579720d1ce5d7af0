//! `pinfold scene`: plans of scenes and cases, before and after they are in a cluster.

mod case;
mod check;
mod files;
mod import;
mod labels;
mod live;
#[cfg(feature = "reclaim")]
mod reclaim;
mod render;
mod report;
mod results;
#[cfg(feature = "lab")]
mod run;
mod simulate;
mod status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::scene::definition;

/// Check plans of scenes and cases, and show which node gets which labels.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene check plan.yaml                       print each mistake with its correction
  pinfold scene check plan.yaml --nodes nodes.yaml    also check the number and size of the nodes
  pinfold scene labels plan.yaml --nodes nodes.yaml   print which node gets which labels
  pinfold scene status plan.yaml --nodes nodes.yaml   compare the nodes' labels with the active case
  pinfold scene status --live                         use plan, nodes and claims of the cluster
  pinfold scene import --live > plan.yaml             make a plan from the labels of the nodes
  pinfold scene simulate plan.yaml --count 10         show each task's node, with 10 invented nodes
  pinfold scene render plan.yaml --job job.yaml       print the objects of a training cluster
  pinfold scene run plan.yaml --job job.yaml          run the whole experiment, with every case and way
  pinfold scene reclaim --watch                       delete the parameter servers of ended jobs
  pinfold scene report results                        say what an experiment found, from its folder
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
    Status(status::SceneStatusArgs),
    Import(import::Import),
    Render(Box<render::RenderArgs>),
    Simulate(simulate::SimulateArgs),
    #[cfg(feature = "lab")]
    Run(Box<run::SceneRunArgs>),
    #[cfg(feature = "reclaim")]
    Reclaim(reclaim::ReclaimArgs),
    Report(Box<report::ReportArgs>),
    /// Print the custom resource definition of ScenePlan.
    Crd,
}

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
            #[cfg(feature = "lab")]
            SceneCommand::Run(args) => args.run(),
            #[cfg(feature = "reclaim")]
            SceneCommand::Reclaim(args) => args.run(),
            SceneCommand::Report(args) => args.run(),
            SceneCommand::Crd => {
                super::document(&files::yaml(&definition())?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
