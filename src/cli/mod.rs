//! Arguments, subcommands, and what a person sees.

mod agent;
mod bench;
mod completions;
mod config;
mod demo;
mod doctor;
mod explain;
mod output;
mod place;
mod plan;
mod release;
mod run;
mod scene;
mod top;
mod topology;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use output::{Draft, Format, emit, json, table};

/// A node agent that gives training pods CPUs of their own and the right thread counts.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, max_term_width = 100)]
#[command(after_help = "Start here:
  pinfold demo                 a real training job on this machine, shared, then pinned (needs root)
  pinfold bench                what pinning and sizing would buy on this machine (needs root)
  pinfold doctor               what this node offers, what it lacks, what to do
  pinfold topology             draw the machine and who owns which CPUs
  pinfold top                  watch the node's pods, CPUs, threads and traffic
  pinfold run --manifest-dir ./pods    run the agent on the manifests in a folder

Every setting of the agent can also stand in a file (see pinfold config) or in the environment.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Demo(demo::Demo),
    Bench(bench::Bench),
    Topology(topology::TopologyArgs),
    Top(top::Top),
    Place(place::PlaceArgs),
    Plan(plan::Plan),
    Explain(explain::Explain),
    Doctor(doctor::Doctor),
    Release(release::Release),
    Scene(scene::SceneArgs),
    Config(config::ConfigArgs),
    Completions(completions::Completions),
    #[command(hide = true)]
    Train(train::Train),
}

/// Runs the program with the process's own arguments.
///
/// Exit codes: 0 for success, 1 where the answer is no (too few CPUs, pinning can't work), 2 for bad input.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => args.run(),
        Command::Demo(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::Topology(args) => topology::run(&args),
        Command::Top(args) => args.run(),
        Command::Place(args) => place::run(&args),
        Command::Plan(args) => args.run(),
        Command::Explain(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Release(args) => args.run(),
        Command::Scene(args) => args.run(),
        Command::Config(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Train(args) => args.run(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pinfold: {error:#}");
            ExitCode::from(2)
        }
    }
}
