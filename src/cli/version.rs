//! `pinfold version`: version, commit and features of the program.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::OutputFormat;
use crate::metrics::build;

/// Print the version, the commit and the features of this program.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold version
  pinfold version -o json    print the same for programs")]
pub(super) struct VersionArgs {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl VersionArgs ===

impl VersionArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.output {
            OutputFormat::Text => super::document(&format!("pinfold {}", build::description()))?,
            form => {
                let features = build::features();
                let features = features.split(',').filter(|name| *name != "none");
                let features: Vec<&str> = features.collect();
                form.print(&json!({
                    "version": build::VERSION,
                    "commit": build::COMMIT,
                    "features": features,
                }))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
