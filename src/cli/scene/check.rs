//! `pinfold scene check`: the mistakes of plans.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::OutputFormat;

use super::files;
use super::live::LiveArgs;
use crate::experiment::{AMOUNTS, check};
use crate::scene::Severity;
use crate::text::counted;

/// Check plans: print each mistake with its place and correction.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene check plan.yaml
  pinfold scene check plans/*.yaml                    also check for conflicts between the plans
  kubectl get nodes -o yaml | pinfold scene check plan.yaml --nodes -
  pinfold scene check plan.yaml --live                check the plan against the cluster's nodes
  pinfold scene check --live                          check the plans of the cluster

Exit codes: 0 no errors (warnings are possible), 1 errors, 2 the input can't be read.")]
pub(super) struct Check {
    /// Files with ScenePlans (YAML or JSON), one or more in each; - is the standard input [default with --live: the
    /// cluster's plans]
    #[arg(value_name = "FILE", required_unless_present = "live")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    /// File with the cluster's Nodes, to also check that the candidates exist, suffice and are large enough.
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    nodes: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl Check ===

impl Check {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut documents = Vec::new();
        for file in &self.files {
            documents.extend(files::documents(file)?);
        }
        let mut nodes = self.nodes.as_deref().map(files::nodes).transpose()?;
        if let Some(cluster) = self.live.ask(self.files.is_empty(), false)? {
            documents.extend(cluster.plans);
            nodes = Some(cluster.nodes);
        }
        let findings = check(&documents, nodes.as_deref(), AMOUNTS);
        let errors = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
            .count();
        match self.output {
            OutputFormat::Text => {
                let mut lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
                lines.push(format!(
                    "{}: {}, {}",
                    counted(documents.len(), "plan"),
                    counted(errors, "error"),
                    counted(findings.len() - errors, "warning")
                ));
                super::super::emit(lines)?;
            }
            form => form.print(&json!({
                "plans": documents.iter().map(|document| document.name()).collect::<Vec<_>>(),
                "errors": errors,
                "warnings": findings.len() - errors,
                "findings": findings,
            }))?,
        }
        Ok(if errors == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        })
    }
}
