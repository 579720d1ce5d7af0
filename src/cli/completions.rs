//! `pinfold completions`: shell completions for commands and flags.

use std::process::ExitCode;

use clap::{Args, Command};
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
    /// Prints the completions of `command`, the program's full command.
    pub(super) fn run(&self, command: &Command) -> anyhow::Result<ExitCode> {
        // Hidden commands get no completion. The generators do not know the difference, so those
        // are removed first.
        let visible = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .cloned();
        let mut offered = Command::new("pinfold")
            .version(env!("CARGO_PKG_VERSION"))
            .subcommands(visible.collect::<Vec<_>>());
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut offered, "pinfold", &mut text);
        super::document(&String::from_utf8_lossy(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}
