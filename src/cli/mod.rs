//! Arguments, subcommands, and what a person sees.

mod output;
mod place;
mod topology;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use output::Format;

/// A node agent that gives training pods CPUs of their own and the right thread counts.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Place(place::PlaceArgs),
    Topology(topology::TopologyArgs),
}

/// Runs the program with the process's own arguments.
///
/// Exit codes: 0 for success, 1 where the answer is no (too few CPUs, pinning can't work), 2 for bad input.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done: anyhow::Result<ExitCode> = match cli.command {
        Command::Place(args) => place::run(&args),
        Command::Topology(args) => topology::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pinfold: {error:#}");
            ExitCode::from(2)
        }
    }
}
