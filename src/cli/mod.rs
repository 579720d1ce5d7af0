//! Arguments, subcommands and output.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

#[cfg(feature = "portforward")]
mod agents;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "portforward")]
mod cluster_doctor;
mod completions;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
#[cfg(any(feature = "bench", feature = "experiments"))]
mod draft;
mod explain;
#[cfg(any(feature = "demo", feature = "bench"))]
mod interrupt;
#[cfg(any(feature = "top", feature = "experiments"))]
mod interval;
mod local_agent;
mod log;
#[cfg(any(feature = "demo", feature = "bench"))]
mod logged_errors;
mod output;
mod place;
mod plan;
#[doc(hidden)]
pub mod printed;
mod release;
mod rights;
mod run;
#[cfg(feature = "experiments")]
mod scene;
#[cfg(feature = "portforward")]
mod status;
#[cfg(feature = "top")]
mod top;
mod topology;
#[cfg(any(feature = "demo", feature = "bench"))]
mod train;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::LazyLock;

#[cfg(feature = "portforward")]
use clap::FromArgMatches;
use clap::{CommandFactory, Parser, Subcommand};

#[cfg(any(feature = "bench", feature = "experiments"))]
pub(crate) use draft::Draft;
pub(crate) use output::{Line, OutputFormat, complain, document, emit, json, table};

use crate::metrics::build;

/// The commands for a first look. A binary without some Cargo features has only a part of them.
const START: &str = if cfg!(all(feature = "demo", feature = "bench", feature = "top")) {
    "Start here:
  pinfold demo                         run a training job in turns shared and pinned (needs root)
  pinfold bench                        measure the benefit of pinning and sizing (needs root)
  pinfold doctor                       check the features of this node, with remedies
  pinfold topology                     draw the machine and the owners of CPUs
  pinfold top                          watch the node's pods, CPUs, threads and traffic
  pinfold run --manifest-dir ./pods    run the agent on the manifests in a folder

The agent's options may also come from a file (see pinfold config) or from the environment."
} else {
    "Start here:
  pinfold doctor                       check the features of this node, with remedies
  pinfold topology                     draw the machine and the owners of CPUs
  pinfold run --manifest-dir ./pods    run the agent on the manifests in a folder

The agent's options may also come from a file (see pinfold config) or from the environment."
};

/// The output of `--version`, of which `-V` prints only the first line.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\ncommit: {}\nfeatures: {}",
        build::VERSION,
        build::COMMIT,
        build::features()
    )
});

/// A node agent that gives training pods exclusive CPUs and the right thread counts.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, long_version = LONG_VERSION.as_str(), max_term_width = 100)]
#[command(after_help = START)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    #[cfg(feature = "bench")]
    Bench(bench::BenchArgs),
    Topology(topology::TopologyArgs),
    #[cfg(feature = "top")]
    Top(top::TopArgs),
    #[cfg(feature = "portforward")]
    Status(status::StatusArgs),
    Place(place::PlaceArgs),
    Plan(plan::PlanArgs),
    Explain(explain::Explain),
    Doctor(doctor::Doctor),
    Release(release::Release),
    #[cfg(feature = "experiments")]
    Scene(scene::SceneArgs),
    Config(config::ConfigArgs),
    Completions(completions::Completions),
    #[cfg(any(feature = "demo", feature = "bench"))]
    #[command(hide = true)]
    Train(train::Train),
}

/// The definition of the command line: the subcommands and their arguments.
///
/// A caller can parse a command line with it, without running the command.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the process's own arguments. For a plugin of kubectl, the help texts begin with `kubectl
/// pinfold`.
fn parse() -> Cli {
    #[cfg(feature = "portforward")]
    if agents::is_plugin() {
        let matches = Cli::command().bin_name("kubectl pinfold").get_matches();
        return Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    }
    Cli::parse()
}

/// Runs the program with the process's own arguments.
///
/// Exit codes: 0 for success, 1 where the answer is no (too few CPUs, pinning can't work), 2 for bad input.
pub fn main() -> ExitCode {
    let done = match parse().command {
        Command::Run(args) => args.run(),
        #[cfg(feature = "demo")]
        Command::Demo(args) => args.run(),
        #[cfg(feature = "bench")]
        Command::Bench(args) => args.run(),
        Command::Topology(args) => topology::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => args.run(),
        #[cfg(feature = "portforward")]
        Command::Status(args) => args.run(),
        Command::Place(args) => place::run(&args),
        Command::Plan(args) => args.run(),
        Command::Explain(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Release(args) => args.run(),
        #[cfg(feature = "experiments")]
        Command::Scene(args) => args.run(),
        Command::Config(args) => args.run(),
        Command::Completions(args) => args.run(&Cli::command()),
        #[cfg(any(feature = "demo", feature = "bench"))]
        Command::Train(args) => args.run(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // Without standard error, nobody could be told of the failure.
            let _ = std::io::stderr().write_all(output::complaint(&error).as_bytes());
            ExitCode::from(2)
        }
    }
}
