//! `pinfold place`: which CPUs a container would get.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

use super::OutputFormat;
use crate::cpu::{
    CoreKinds, Cores, Cost, CpuSet, Isolated, Numa, Order, ParseCpuSetError, Placement,
    PlacementRefusal, Placer, Request,
};
use crate::host::topology;
use crate::text::counted;
use crate::text::values::whole;

/// Show which CPUs a container would get on this machine, and how far they spread.
///
/// The choice is exact: it shares as few cores as possible with others, then takes as few NUMA nodes, sockets and last-level
/// caches (LLCs) as possible, and then leaves as much as possible whole for the next container. The command changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold place 8                         choose 8 CPUs on this machine, with all CPUs free
  pinfold place 8 --free 2-15,18-31       choose among these CPUs
  pinfold place 8 --root-dir ./machine    use a machine whose sys/ was copied to ./machine
  pinfold place 8 --cores whole --near 1  choose whole cores near NUMA node 1
  pinfold place 8 --numa fewest           refuse more NUMA nodes than 8 CPUs need
  pinfold place 8 -o json                 print the choice for programs

Exit codes: 0 placed, 1 too few suitable CPUs, 2 bad input.")]
pub(super) struct PlaceArgs {
    /// Number of CPUs.
    #[arg(value_name = "N", value_parser = whole::<usize>(0..=u64::MAX))]
    count: usize,
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root_dir: PathBuf,
    /// CPUs to choose from, as a list like 0-3,8 [default: all online CPUs]
    #[arg(long, value_name = "LIST")]
    free: Option<String>,
    /// Close together, or spread evenly over NUMA nodes and LLCs.
    #[arg(long, value_enum, value_name = "ORDER", default_value_t)]
    placement: Order,
    /// Whole cores if the count allows, only whole cores, or a single CPU of each core with the siblings idle.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    cores: Cores,
    /// NUMA nodes to stay close to, for example those of the GPUs, as a list like 0,2.
    #[arg(long, value_name = "LIST", default_value = "")]
    near: CpuSet,
    /// As few NUMA nodes as the free CPUs allow, or only as few as the count needs on an empty machine; if the free CPUs don't
    /// allow that, the command refuses.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    numa: Numa,
    /// How to treat CPUs that were isolated at boot.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    isolated: Isolated,
    /// On hybrid machines: cores of one kind if enough are free, or all cores alike.
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    core_kinds: CoreKinds,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

pub(super) fn run(args: &PlaceArgs) -> anyhow::Result<ExitCode> {
    let topology = topology::read(&args.root_dir)?;
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
    let numa: CpuSet = topology.numa.iter().map(|node| node.id).collect();
    let unknown = args.near.difference(&numa);
    ensure!(
        unknown.is_empty(),
        "--near names NUMA nodes that this machine does not have: {unknown} ({})",
        if numa.is_empty() {
            "it reports none".to_owned()
        } else {
            format!("it has {numa}")
        }
    );
    let request = Request {
        cpus: args.count,
        order: args.placement,
        cores: args.cores,
        near: args.near.clone(),
        isolated: args.isolated,
        core_kinds: args.core_kinds,
        fewest_numa: args.numa == Numa::Fewest,
    };
    match Placer::new(&topology).place_as(&free, &request) {
        Ok(placement) => {
            match args.output {
                OutputFormat::Text => super::emit(placed(&placement))?,
                form => form.print(&placement)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            refuse(&refusal, args.output)?;
            Ok(ExitCode::from(1))
        }
    }
}

fn parse_free(list: &str) -> Result<CpuSet, ParseCpuSetError> {
    list.parse()
}

/// A placement in words.
fn placed(placement: &Placement) -> Vec<String> {
    if placement.cpus.is_empty() {
        return vec!["0 CPUs requested, no CPUs chosen".to_owned()];
    }
    let mut words = in_words(placement.cost);
    if !placement.idle.is_empty() {
        words += &format!("; idle: {}", placement.idle);
    }
    vec![placement.cpus.to_string(), words]
}

/// The cost of a placement in words.
pub(super) fn in_words(cost: Cost) -> String {
    let shared = match cost.split_cores {
        0 => "no core shared with others".to_owned(),
        some => format!("{} shared with others", counted(some, "core")),
    };
    let (numa, sockets, llcs) = (
        counted(cost.numa, "NUMA node"),
        counted(cost.sockets, "socket"),
        counted(cost.llcs, "LLC"),
    );
    format!("{numa}, {sockets}, {llcs}; {shared}")
}

/// Programs read a refusal on standard output, like every answer, while people read it on standard
/// error, like every error.
fn refuse(refusal: &PlacementRefusal, form: OutputFormat) -> anyhow::Result<()> {
    match form {
        OutputFormat::Text => {
            super::complain(refusal);
            Ok(())
        }
        form => form.print(&json!({ "error": refusal.to_string() })),
    }
}
