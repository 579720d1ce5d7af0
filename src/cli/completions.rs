//! `pinfold completions`: what a shell needs to complete commands and flags.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print the completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  pinfold completions bash > /etc/bash_completion.d/pinfold")]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut super::Cli::command(), "pinfold", &mut text);
        super::emit(&String::from_utf8_lossy(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}
