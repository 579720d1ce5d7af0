//! `pinfold release`: hand everything back.

mod cluster;

use std::process::ExitCode;

use clap::Args;

use super::Format;
use crate::agent::config::{Config, Overrides};
use crate::agent::{Node, lock};
use crate::cpu::CpuSet;
use crate::pin::quiet::{Keeper, Quiet};
use crate::pin::{self, Applied, Outcome, Step};

/// Hand every CPU back: each cgroup gets the CPUs and the quota it had, and no mark is left.
///
/// With --cluster, the node's scene labels, its taint and its claims are taken off, too: then nothing of Pinfold is left.
/// Stop the agent first; a running one would pin the pods and claim a slot again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold release --dry-run      see what would be written
  pinfold release --cluster      before removing Pinfold from a node of a cluster
  pinfold release                CPUs only
  pinfold release --cluster-only --node-name n1 --kubeconfig admin.conf
                                 labels and claims of a node that can't be reached any more

Exit codes: 0 done, 1 something could not be handed back, 2 bad input, or the cluster can't be reached (CPUs are handed back
all the same).")]
pub(super) struct Release {
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    cluster: cluster::Wanted,
    /// Print the writes and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

impl Release {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.cluster.only() {
            let left = self.cluster.leave(self.dry_run)?;
            match self.output {
                Format::Json => super::json(&serde_json::json!({ "dryRun": self.dry_run, "cluster": left }))?,
                Format::Text => super::emit(&left.text(self.dry_run))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        // The marks are in attributes that only root can see: to anyone else nothing would seem to be pinned.
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "release needs root, to see marks and to write: run it with sudo"
        );
        let node = Node::new(Config::load(self.overrides)?)?;
        let (observed, _) = node.observe(&[])?;
        let steps = pin::release(&observed, &node.topology.online, &node.cgroups.all_memory()?);
        let applied = if self.dry_run {
            steps.into_iter().map(|step| (step, None)).collect()
        } else {
            let _lock = lock(node.cgroups.root())?;
            pin::apply(steps, &node.cgroups).into_iter().map(outcome).collect::<Vec<_>>()
        };
        if !self.dry_run {
            let mut keeper = Keeper::new(&node.config.root).with_slices(&node.cgroups, &node.config.trees);
            let quiet =
                keeper.turn(Quiet::default(), &CpuSet::new(), &node.topology.online, &node.cgroups, "");
            for restored in &quiet.restored {
                tracing::info!("put back: {restored}");
            }
            for sentence in quiet.sentences() {
                tracing::error!("{sentence}");
            }
        }
        let failed = applied.iter().filter(|(_, error)| error.is_some()).count();
        // CPUs first: they are handed back whatever the cluster says.
        let left = self.cluster.wanted().then(|| self.cluster.leave(self.dry_run)).transpose();
        match self.output {
            Format::Json => {
                let steps: Vec<_> = applied
                    .iter()
                    .map(|(step, error)| serde_json::json!({ "step": step.to_string(), "error": error }))
                    .collect();
                let mut object = serde_json::json!({ "dryRun": self.dry_run, "steps": steps });
                if let (Ok(Some(left)), Some(fields)) = (&left, object.as_object_mut()) {
                    fields.insert("cluster".to_owned(), serde_json::json!(left));
                }
                super::json(&object)?;
            }
            Format::Text => {
                for (step, error) in &applied {
                    super::emit(&match error {
                        Some(error) => format!("FAILED: {error}"),
                        None => step.to_string(),
                    })?;
                }
                let done = if self.dry_run { "would be done" } else { "done" };
                super::emit(&match applied.len() {
                    0 => "nothing is pinned here".to_owned(),
                    writes => format!("{writes} writes {done}, {failed} failed"),
                })?;
                if let Ok(Some(left)) = &left {
                    super::emit(&left.text(self.dry_run))?;
                }
            }
        }
        left?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

fn outcome(applied: Applied) -> (Step, Option<String>) {
    // Others may have narrowed it since: what was there before is written, and that is all that is asked.
    let error = match applied.outcome {
        Outcome::NotInForce { .. } => None,
        _ => applied.error(),
    };
    (applied.step, error)
}
