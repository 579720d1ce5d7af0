//! `pinfold scene import`: a plan from `kubectl label` commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::scene::import;

/// Read kubectl label commands and print a plan that gives nodes the same labels.
///
/// The commands are followed as a shell and kubectl would: several nodes or commands in a line, --overwrite, removals
/// (KEY-), comments, continued lines. Where they give several cases, there is a plan for each.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene import labels.sh > plan.yaml
  history | grep -o 'kubectl label.*' | pinfold scene import - --name locality

Exit codes: 0 done, 1 the commands have mistakes, which are named with their lines, 2 the input can't be read.")]
pub(super) struct Import {
    /// File with the commands; - is the standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The plan's name.
    #[arg(long, value_name = "NAME", default_value = "imported")]
    name: String,
}

// === impl Import ===

impl Import {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = super::text(&self.file)?;
        if let Some(fault) = crate::scene::subdomain_fault(&self.name) {
            anyhow::bail!("--name {:?} can't be a plan's name: {fault}", self.name);
        }
        let file = self.file.display();
        match import(&text, &self.name) {
            Ok(imported) => {
                for note in &imported.notes {
                    eprintln!("pinfold: {file}, {note}");
                }
                let plans: Result<Vec<String>, _> =
                    imported.plans.iter().map(super::yaml).collect();
                super::super::emit(&plans?.join("---\n"))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(errors) => {
                for error in errors {
                    eprintln!("pinfold: {file}, {error}");
                }
                Ok(ExitCode::from(1))
            }
        }
    }
}
