//! `pinfold topology`: the machine as the agent sees it.

mod drawing;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::Format;
use crate::host::topology;

pub(crate) use drawing::render;

/// Draw which CPUs share a core, a last-level cache (LLC), a NUMA node and a socket.
///
/// CPUs in brackets are the threads of one core. On hybrid machines, P marks performance cores and E efficiency cores.
/// What the machine does not tell is left out of the drawing and null in the JSON.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold topology                     draw this machine
  pinfold topology --root ./machine    draw the machine whose sys/ was copied to ./machine
  pinfold topology -o json             print it for programs")]
pub(super) struct TopologyArgs {
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// Reads the machine and prints it.
pub(super) fn run(args: &TopologyArgs) -> anyhow::Result<ExitCode> {
    let topology = topology::read(&args.root)?;
    let mut text = match args.output {
        Format::Text => render(&topology, &BTreeMap::new()),
        Format::Json => serde_json::to_string(&topology).context("can't write the topology as JSON")?,
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads the output, such as `head`, may have seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("can't write the topology")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
