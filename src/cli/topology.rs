//! `pinfold topology`: the machine, as the agent reads it.

mod drawing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{Line, OutputFormat};
use crate::agent::config::{Config, Overrides};
use crate::cpu::CpuSet;
use crate::host::cgroup::Cgroups;
use crate::host::proc::Proc;
use crate::host::topology;
use crate::pin::{Observed, Scan};

pub(crate) use drawing::{CpuUses, render};

/// Draw which CPUs share a core, a last-level cache (LLC), a NUMA node and a socket.
///
/// CPUs in brackets are the threads of one core. On hybrid machines, P marks performance cores, E efficiency cores and L still slower cores.
/// What the machine does not report is left out of the drawing, and null in the JSON.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold topology                         draw this machine
  pinfold topology --root-dir ./machine    draw the machine whose sys/ was copied to ./machine
  pinfold topology -o json                 print the topology for programs")]
pub(super) struct TopologyArgs {
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root_dir: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

/// Reads and prints the machine.
pub(super) fn run(args: &TopologyArgs) -> anyhow::Result<ExitCode> {
    let topology = topology::read(&args.root_dir)?;
    match args.output {
        OutputFormat::Text => {
            let uses = CpuUses::read(&args.root_dir, &topology.online)?;
            let drawing = render(&topology, &uses);
            super::emit(drawing.lines().map(Line::drawn))?;
        }
        form => form.print(&topology)?,
    }
    Ok(ExitCode::SUCCESS)
}

// === impl CpuUses ===

impl CpuUses {
    /// Reads the assignment records and the sets above the pods from this machine's cgroups. A copy
    /// of another machine has no uses.
    fn read(root: &Path, online: &CpuSet) -> anyhow::Result<Self> {
        if root != Path::new("/") {
            return Ok(Self::default());
        }
        let config = Config::load(Overrides::default())?;
        // A machine without cgroups still has a topology to draw.
        let Ok(cgroups) = Cgroups::detect(&config.cgroup_dir) else {
            return Ok(Self::default());
        };
        let mut scan = Scan::default();
        for tree in &config.pod_cgroups {
            scan.pods.extend(cgroups.scan(tree)?);
        }
        if !scan.pods.is_empty() && !Proc::new(root).may_administer() {
            super::warn(
                "the drawing shows no owners of CPUs, because only root can read assignment records: run the command with sudo",
            );
            return Ok(Self::default());
        }
        scan.surroundings = cgroups.surroundings(&config.pod_cgroups)?;
        let (observed, ledger) = Observed::new(scan, &[]);
        let mut owners = BTreeMap::new();
        for record in observed.pods.into_iter().filter_map(|pod| pod.record) {
            for (container, cpus) in record.assignment.entries() {
                let pod = format!("{}/{}", record.namespace, record.pod);
                let label = match container {
                    Some(container) => format!("{pod}/{container}"),
                    None => format!("{pod} (idle)"),
                };
                owners.insert(label, cpus.clone());
            }
        }
        let withheld = online.difference(&ledger.available(online));
        Ok(Self { owners, withheld })
    }
}
