//! `pinfold release`: hand everything back.

mod cluster;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Format;
use crate::agent::config::{Config, Overrides};
use crate::agent::{Node, lock};
use crate::cpu::CpuSet;
use crate::host::cgroup::NoteSubject;
use crate::host::proc::Proc;
use crate::host::resctrl::Resctrl;
use crate::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator, IsolationInput};
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
  pinfold release --cluster --stay
                                 as a DaemonSet's pod, which is ready once all is handed back

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
    /// When all is handed back, take connections on the listen address until SIGTERM, so that a probe sees that it is.
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

impl Release {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        let cluster = config.cluster.clone();
        if self.cluster.only() {
            let left = self.cluster.leave(self.dry_run, &cluster)?;
            match self.output {
                Format::Json => {
                    super::json(&serde_json::json!({ "dryRun": self.dry_run, "cluster": left }))?;
                }
                Format::Text => super::emit(&left.text(self.dry_run))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        // The marks are in attributes that only root can see: to anyone else nothing would seem to be pinned.
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "release needs root, to see marks and to write: run it with sudo"
        );
        anyhow::ensure!(
            Proc::new(&config.root_dir).may_administer(),
            "release needs CAP_SYS_ADMIN, to see marks and to write: without it nothing would seem to be pinned; run it with \
             the rights of an agent that pins"
        );
        super::run::join_host(&config);
        let node = Node::new(config)?;
        let listen = node.config.listen;
        let (observed, _) = node.observe(&[])?;
        let steps = pin::release(
            &observed,
            &node.topology.online,
            &node.cgroups.memory_nodes()?,
        );
        let applied = if self.dry_run {
            steps.into_iter().map(|step| (step, None)).collect()
        } else {
            let _lock = lock(node.cgroups.root())?;
            pin::apply(steps, &node.cgroups)
                .into_iter()
                .map(outcome)
                .collect::<Vec<_>>()
        };
        // Interrupts, work queues and slices that could not be put back as they were.
        let mut left_over: Vec<String> = Vec::new();
        if !self.dry_run {
            let mut keeper = CpuIsolator::new(&node.config.root_dir)
                .with_slices(&node.cgroups, &node.config.pod_cgroups);
            let nobody = CpuSet::new();
            let (options, online) = (CpuIsolationOptions::default(), &node.topology.online);
            let situation = IsolationInput {
                options,
                exclusive: &nobody,
                isolated: &nobody,
                online,
            };
            let quiet = keeper.isolate(&situation, &node.cgroups, "");
            // Nothing of ours is to be left, and it is no more than a preference.
            let _ = node.cgroups.set_note("", NoteSubject::SceneSlot, None);
            for restored in &quiet.restored {
                tracing::info!("put back: {restored}");
            }
            let failed = quiet.failed.iter();
            left_over = failed
                .map(|one| format!("not put back: {} {}", one.what.join(", "), one.reason))
                .collect();
        }
        let (groups, refused) =
            monitoring_groups(&Resctrl::new(&node.config.root_dir), self.dry_run);
        left_over.extend(refused);
        let failed = applied.iter().filter(|(_, error)| error.is_some()).count() + left_over.len();
        // CPUs first: they are handed back whatever the cluster says.
        let left = self
            .cluster
            .wanted()
            .then(|| self.cluster.leave(self.dry_run, &cluster))
            .transpose();
        match self.output {
            Format::Json => {
                let steps: Vec<_> = applied
                    .iter()
                    .map(|(step, error)| serde_json::json!({ "step": step.to_string(), "error": error }))
                    .collect();
                let mut object = serde_json::json!({
                    "dryRun": self.dry_run, "steps": steps, "monitoringGroups": groups, "notPutBack": left_over
                });
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
                for group in &groups {
                    super::emit(&format!("remove monitoring group {group}"))?;
                }
                for says in &left_over {
                    super::emit(&format!("FAILED: {says}"))?;
                }
                let done = if self.dry_run {
                    "would be done"
                } else {
                    "done"
                };
                super::emit(&match applied.len() {
                    0 => "nothing is pinned here".to_owned(),
                    writes => format!(
                        "{} {done}, {failed} failed",
                        crate::text::counted(writes, "write")
                    ),
                })?;
                if let Ok(Some(left)) = &left {
                    super::emit(&left.text(self.dry_run))?;
                }
            }
        }
        left?;
        if failed > 0 {
            return Ok(ExitCode::from(1));
        }
        if self.stay {
            super::run::runtime()?.block_on(stay(listen))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Removes our groups that monitor caches, or only names them. Says which, and what could not be removed.
fn monitoring_groups(resctrl: &Resctrl, dry_run: bool) -> (Vec<String>, Vec<String>) {
    let mut groups = match resctrl.own_groups() {
        Ok(groups) => groups,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let mut refused = Vec::new();
    if !dry_run {
        groups.retain(|group| {
            let removed = resctrl.remove(group);
            refused.extend(removed.as_ref().err().map(ToString::to_string));
            removed.is_ok()
        });
    }
    (groups, refused)
}

/// Takes connections, and closes them, until SIGTERM or an interrupt.
async fn stay(listen: SocketAddr) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(listen).await.with_context(|| {
        format!("can't listen on {listen}: if another program has the port, name a free one with --listen")
    })?;
    super::emit(&format!(
        "handed back; waiting for SIGTERM on {}",
        listener.local_addr()?
    ))?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            accepted = listener.accept() => {
                if accepted.is_err() {
                    // Out of file descriptors, for example: waiting is all that helps.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
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
