//! `pinfold config`: the effective configuration.

use std::process::ExitCode;

use clap::Args;

use super::OutputFormat;
use crate::agent::config::{Config, Overrides};

/// Print the effective configuration: defaults, then the file, then environment and flags.
///
/// The output is a complete configuration file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold config > /etc/pinfold.yaml           start a configuration file
  PINFOLD_RESERVED=0-1 pinfold config          see what a setting does")]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    overrides: Overrides,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

impl ConfigArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        match self.output {
            OutputFormat::Text => super::document(&config.to_yaml()?)?,
            form => form.print(&config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
