//! `pinfold place`: which CPUs a container would get.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

use super::Format;
use crate::cpu::{Cost, CpuSet, ParseCpuSetError, Placement, TooFewCpus, place};
use crate::host::topology;

/// Show which CPUs a container would get on this machine, and how far they spread.
///
/// The choice is exact: as few cores as possible shared with others, then as few NUMA nodes, sockets and last-level
/// caches (LLCs), then as much as possible left whole for the next container. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold place 8                         place 8 CPUs on this machine, all of it free
  pinfold place 8 --free 2-15,18-31       place them on what is free
  pinfold place 8 --root ./machine        place them on the machine whose sys/ was copied to ./machine
  pinfold place 8 -o json                 print the answer for programs

Exit codes: 0 placed, 1 too few CPUs are free, 2 bad input.")]
pub(super) struct PlaceArgs {
    /// How many CPUs.
    #[arg(value_name = "N")]
    count: usize,
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// CPUs that may be taken, as a list like 0-3,8; all online CPUs if not given.
    #[arg(long, value_name = "LIST")]
    free: Option<String>,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// Reads the machine, chooses, and prints the choice.
pub(super) fn run(args: &PlaceArgs) -> anyhow::Result<ExitCode> {
    let topology = topology::read(&args.root)?;
    let free = match &args.free {
        None => topology.online.clone(),
        Some(list) => parse_free(list).context("can't read --free")?,
    };
    let unknown = free.difference(&topology.online);
    ensure!(
        unknown.is_empty(),
        "--free names CPUs that are not online: {unknown} (online are {})",
        topology.online
    );
    match place(&topology, &free, args.count) {
        Ok(placement) => {
            super::emit(&placed(&placement, args.output)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            refuse(refusal, args.output)?;
            Ok(ExitCode::from(1))
        }
    }
}

fn parse_free(list: &str) -> Result<CpuSet, ParseCpuSetError> {
    list.parse()
}

/// What is printed of a placement.
fn placed(placement: &Placement, form: Format) -> anyhow::Result<String> {
    Ok(match form {
        Format::Json => serde_json::to_string(placement).context("can't write the placement as JSON")?,
        Format::Text if placement.cpus.is_empty() => "no CPUs wanted, none taken".to_owned(),
        Format::Text => format!("{}\n{}", placement.cpus, in_words(placement.cost)),
    })
}

fn in_words(cost: Cost) -> String {
    let many = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let shared = match cost.strangers {
        0 => "no core shared with others".to_owned(),
        some => format!("{} shared with others", many(some, "core")),
    };
    let (numa, sockets, llcs) =
        (many(cost.numa, "NUMA node"), many(cost.sockets, "socket"), many(cost.llcs, "LLC"));
    format!("{numa}, {sockets}, {llcs}; {shared}")
}

/// Programs read the answer where they read every answer; people find it beside the other complaints.
fn refuse(refusal: TooFewCpus, form: Format) -> anyhow::Result<()> {
    match form {
        Format::Json => super::emit(&json!({ "error": refusal.to_string() }).to_string()),
        Format::Text => {
            eprintln!("pinfold: {refusal}");
            Ok(())
        }
    }
}
