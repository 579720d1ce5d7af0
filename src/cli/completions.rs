//! `pinfold completions`: what a shell needs to complete commands and flags.

use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
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
        // Commands that the help hides are not offered either; the generators know no such difference.
        let command = super::Cli::command();
        let visible = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .cloned();
        let mut offered = Command::new("pinfold")
            .version(env!("CARGO_PKG_VERSION"))
            .subcommands(visible.collect::<Vec<_>>());
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut offered, "pinfold", &mut text);
        super::emit(&String::from_utf8_lossy(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}
