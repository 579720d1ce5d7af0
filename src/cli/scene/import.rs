//! `pinfold scene import`: a plan of the labels that nodes already have.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::files;
use super::live::LiveArgs;
use crate::experiment::import;

/// Read the labels of nodes, and print a plan that gives them the same labels.
///
/// The labels are SCENCE, CASE, INDEX and TYPE, and SCENE counts as an alias of SCENCE. If the nodes belong to several cases,
/// the command prints a plan for each.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kubectl get nodes -o yaml | pinfold scene import - > plan.yaml
  pinfold scene import nodes.yaml --name locality
  pinfold scene import --live > plan.yaml             use the nodes of the cluster

Exit codes: 0 done, 2 the nodes can't be read, or no plan can reproduce their labels.")]
pub(super) struct Import {
    /// File with the Nodes (YAML or JSON), as kubectl get nodes -o yaml prints them; - is the standard input.
    #[arg(
        value_name = "FILE",
        required_unless_present = "live",
        conflicts_with = "live"
    )]
    file: Option<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    /// The plan's name.
    #[arg(long, value_name = "NAME", default_value = "imported")]
    name: String,
}

// === impl Import ===

impl Import {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(fault) = crate::scene::subdomain_fault(&self.name) {
            anyhow::bail!("--name {:?} can't be a plan's name: {fault}", self.name);
        }
        let (nodes, origin) = match (&self.file, self.live.ask(false, false)?) {
            (Some(file), _) => (files::nodes(file)?, file.display().to_string()),
            (None, cluster) => {
                let cluster = cluster.context("name a file with nodes, or use --live")?;
                (cluster.nodes, format!("the cluster at {}", cluster.origin))
            }
        };
        match import(&nodes, &self.name) {
            Ok(imported) => {
                for note in &imported.notes {
                    super::super::warn(format_args!("{origin}: {note}"));
                }
                let plans: Result<Vec<String>, _> =
                    imported.plans.iter().map(files::yaml).collect();
                super::super::document(&plans?.join("---\n"))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(errors) => {
                for error in errors {
                    super::super::complain(format_args!("{origin}: {error}"));
                }
                Ok(ExitCode::from(2))
            }
        }
    }
}
