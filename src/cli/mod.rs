//! Arguments, subcommands and output.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

#[cfg(feature = "portforward")]
mod agents;
mod api_failure;
#[cfg(no_unwind_tables)]
mod backtraces;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "portforward")]
mod cluster_doctor;
mod completions;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod doctor_required;
#[cfg(any(feature = "bench", feature = "experiments"))]
mod draft;
mod environment;
mod explain;
#[cfg(any(feature = "demo", feature = "bench", feature = "lab"))]
mod interrupt;
#[cfg(any(feature = "top", feature = "experiments"))]
mod interval;
mod local_agent;
mod log;
#[cfg(any(feature = "demo", feature = "bench"))]
mod logged_errors;
#[cfg(feature = "man")]
mod man;
mod output;
mod place;
mod plan;
#[doc(hidden)]
pub mod printed;
mod release;
mod renamed;
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
mod version;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(any(feature = "bench", feature = "experiments"))]
pub(crate) use draft::Draft;
pub(crate) use output::{Line, OutputFormat, complain, document, emit, table, warn};
#[cfg(feature = "experiments")]
pub(crate) use output::{json, yaml};

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
static LONG_VERSION: LazyLock<String> = LazyLock::new(build::description);

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
    #[cfg(feature = "man")]
    Man(man::ManArgs),
    Version(version::VersionArgs),
    #[cfg(any(feature = "demo", feature = "bench"))]
    #[command(hide = true)]
    Train(train::Train),
}

// === impl Command ===

impl Command {
    /// Whether a variable that no option has gets a warning on standard error. The agent puts it into its log, and the
    /// remaining commands have no options with variables.
    fn warns_of_variables(&self) -> bool {
        match self {
            Self::Run(_) | Self::Completions(_) | Self::Version(_) => false,
            #[cfg(feature = "man")]
            Self::Man(_) => false,
            #[cfg(any(feature = "demo", feature = "bench"))]
            Self::Train(_) => false,
            _ => true,
        }
    }
}

/// The definition of the command line: the subcommands and their arguments.
///
/// A caller can parse a command line with it, without running the command.
pub fn command() -> clap::Command {
    renamed::refuse_earlier_options(taking_negative_numbers(Cli::command()))
}

/// Lets every option take `-1`, so that an error says what to write instead of calling it an unknown option.
fn taking_negative_numbers(command: clap::Command) -> clap::Command {
    let take = |argument: clap::Arg| {
        let takes = argument.get_action().takes_values();
        if takes {
            argument.allow_negative_numbers(true)
        } else {
            argument
        }
    };
    command
        .mut_args(take)
        .mut_subcommands(taking_negative_numbers)
}

/// Reads the process's own arguments, and which variables of the environment replace some of them. For a plugin of kubectl,
/// the help texts begin with `kubectl pinfold`.
fn parse(command: &clap::Command) -> (Cli, Vec<environment::Variable>) {
    let parsed = command.clone().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, environment::used(command, &matches)))
    });
    parsed.unwrap_or_else(|error| environment::named(error, command).exit())
}

/// [`command()`] under the name by which this process was started.
fn named_command() -> clap::Command {
    #[cfg(feature = "portforward")]
    if agents::is_plugin() {
        return command().bin_name("kubectl pinfold");
    }
    command()
}

/// Runs the program with the process's own arguments.
///
/// Exit codes: 0 for success, 1 where the answer is no (too few CPUs, pinning can't work), 2 for bad input.
pub fn main() -> ExitCode {
    #[cfg(no_unwind_tables)]
    backtraces::switch_off();
    let command = named_command();
    let (cli, variables) = parse(&command);
    let unknown = environment::unknown(&command);
    if cli.command.warns_of_variables() {
        unknown.iter().for_each(warn);
    }
    let done = match cli.command {
        Command::Run(args) => args.run(&unknown),
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
        Command::Completions(args) => args.run(&command),
        #[cfg(feature = "man")]
        Command::Man(args) => args.run(command),
        Command::Version(args) => args.run(),
        #[cfg(any(feature = "demo", feature = "bench"))]
        Command::Train(args) => args.run(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // Without standard error, nobody could be told of the failure.
            let complaint = output::complaint(&error);
            let behind = environment::behind(&complaint, &variables);
            let complaint = format!("{}{}\n", complaint.trim_end(), Line::from(behind));
            let _ = std::io::stderr().write_all(complaint.as_bytes());
            ExitCode::from(2)
        }
    }
}
