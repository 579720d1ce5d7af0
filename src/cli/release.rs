//! `pinfold release`: hand everything back.

mod cluster;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::OutputFormat;
use crate::agent::config::{Config, Overrides};
use crate::agent::{AgentNode, lock};
use crate::cpu::CpuSet;
use crate::host::cgroup::NoteSubject;
use crate::host::container_files::ContainerFolders;
use crate::host::counters::resctrl::Resctrl;
use crate::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator, IsolationInput};
use crate::pin::{self, AppliedStep, Step};

/// Hand every CPU back: restore the CPUs and the quota of each cgroup, and remove every assignment record.
///
/// Stop the agent first, because a running one would pin the pods and claim a slot again. With --cluster, the command also
/// removes the node's scene labels, taint and claims.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold release --dry-run      print what would be written, and write nothing
  pinfold release --cluster      hand back the CPUs, and remove labels, taint and claims
  pinfold release                hand back only the CPUs
  pinfold release --cluster-only --node-name n1 --kubeconfig admin.conf
                                 remove labels and claims of an unreachable node
  pinfold release --cluster --stay
                                 run in a DaemonSet's pod, which is ready after the release

Exit codes: 0 done, 1 a write failed or a record can't be read, 2 bad input, or the cluster can't be
reached (the CPUs are handed back nevertheless).")]
pub(super) struct Release {
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    cluster: cluster::SceneReleaseArgs,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// After the release, accept connections on the listen address until SIGTERM, for a readiness probe.
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

/// The result of a release on this machine.
struct Released {
    /// The steps, each with its error if it failed.
    steps: Vec<(Step, Option<String>)>,
    /// The removed monitoring groups of resctrl.
    groups: Vec<String>,
    /// Settings that could not be restored, a sentence each.
    not_restored: Vec<String>,
}

// === impl Released ===

impl Released {
    /// The number of failed steps and of settings that could not be restored.
    fn failures(&self) -> usize {
        let failed = self.steps.iter().filter(|(_, error)| error.is_some());
        failed.count() + self.not_restored.len()
    }

    fn json(&self, dry_run: bool, cluster: Option<&cluster::NodeRemoval>) -> serde_json::Value {
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|(step, error)| serde_json::json!({ "step": step.to_string(), "error": error }))
            .collect();
        let mut object = serde_json::json!({
            "dryRun": dry_run, "steps": steps, "monitoringGroups": self.groups, "notRestored": self.not_restored
        });
        if let (Some(cluster), Some(fields)) = (cluster, object.as_object_mut()) {
            fields.insert("cluster".to_owned(), serde_json::json!(cluster));
        }
        object
    }

    fn lines(&self, dry_run: bool, cluster: Option<&cluster::NodeRemoval>) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        lines.extend(self.steps.iter().map(|(step, error)| match error {
            Some(error) => format!("FAILED: {error}"),
            None => step.to_string(),
        }));
        let groups = self.groups.iter();
        lines.extend(groups.map(|group| format!("remove monitoring group {group}")));
        let not_restored = self.not_restored.iter();
        lines.extend(not_restored.map(|error| format!("FAILED: {error}")));
        let failed = self.steps.iter().filter(|(_, error)| error.is_some());
        // Without a write, the failures above are all that there is to say.
        if !self.steps.is_empty() || self.failures() == 0 {
            lines.push(summary(self.steps.len(), failed.count(), dry_run));
        }
        lines.extend(
            cluster
                .into_iter()
                .flat_map(|cluster| cluster.lines(dry_run)),
        );
        lines
    }
}

/// How many writes were done, or would be done.
fn summary(writes: usize, failed: usize, dry_run: bool) -> String {
    let all = crate::text::counted(writes, "write");
    match (writes, failed) {
        (0, _) => "nothing is pinned here".to_owned(),
        _ if dry_run => format!("{all} would be done"),
        (_, 0) => format!("{all} done"),
        _ => format!(
            "{} of {all} done, {failed} failed",
            writes.saturating_sub(failed)
        ),
    }
}

// === impl Release ===

impl Release {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        let cluster = config.cluster.clone();
        if self.cluster.only() {
            let left = self.cluster.leave(self.dry_run, &cluster)?;
            match self.output {
                OutputFormat::Text => super::emit(left.lines(self.dry_run))?,
                form => {
                    form.print(&serde_json::json!({ "dryRun": self.dry_run, "cluster": left }))?;
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        super::rights::check(
            &config,
            ("pinfold release", super::rights::READ_AND_WRITE),
            "run the command with sudo, or with the capabilities of the agent",
        )?;
        super::run::join_host(&config);
        let node = AgentNode::new(config)?;
        let released = release(&node, self.dry_run)?;
        // CPUs come first, because an error of the cluster does not affect them.
        let left = self
            .cluster
            .wanted()
            .then(|| self.cluster.leave(self.dry_run, &cluster))
            .transpose();
        let cluster = left.as_ref().ok().and_then(Option::as_ref);
        match self.output {
            OutputFormat::Text => super::emit(released.lines(self.dry_run, cluster))?,
            form => form.print(&released.json(self.dry_run, cluster))?,
        }
        left?;
        if released.failures() > 0 {
            return Ok(ExitCode::from(1));
        }
        if self.stay {
            super::run::runtime()?.block_on(stay(node.config.listen))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Hands the CPUs of the node back, or plans the steps in a dry run.
fn release(node: &AgentNode, dry_run: bool) -> anyhow::Result<Released> {
    // An agent that starts between the look and the writes would lose its assignments, so the lock comes first.
    let _lock = (!dry_run).then(|| lock(node.cgroups.root())).transpose()?;
    let (observed, ledger) = node.observe(&[])?;
    let memory_nodes = node.cgroups.memory_nodes(&node.config.pod_cgroups)?;
    let steps = pin::release(&observed, &node.topology.online, &memory_nodes);
    let mut not_restored = ledger.unreadable;
    let steps = if dry_run {
        steps.into_iter().map(|step| (step, None)).collect()
    } else {
        // First, because from the first step on nobody keeps the files true.
        let folders = ContainerFolders::new(&node.config.runtime.live_dir);
        not_restored.extend(folders.remove_all().err().map(|error| error.to_string()));
        let applied = pin::apply(steps, &node.cgroups);
        applied.into_iter().map(outcome).collect()
    };
    if !dry_run {
        not_restored.extend(restore_isolation(node));
    }
    let (groups, refused) = monitoring_groups(&Resctrl::new(&node.config.root_dir), dry_run);
    not_restored.extend(refused);
    Ok(Released {
        steps,
        groups,
        not_restored,
    })
}

/// Restores interrupts, work queues and slices. Returns a sentence for each setting that could not
/// be restored.
fn restore_isolation(node: &AgentNode) -> Vec<String> {
    let mut isolator = CpuIsolator::new(&node.config.root_dir)
        .with_slices(&node.cgroups, &node.config.pod_cgroups);
    let empty = CpuSet::new();
    let input = IsolationInput {
        options: CpuIsolationOptions::default(),
        exclusive: &empty,
        isolated: &empty,
        online: &node.topology.online,
    };
    let isolation = isolator.isolate(&input, &node.cgroups, "");
    // The slot's note is only a preference, so a failed removal is no error.
    let _ = node.cgroups.set_note("", NoteSubject::SceneSlot, None);
    for restored in &isolation.restored {
        tracing::info!("restored: {restored}");
    }
    let failed = isolation.failed.iter();
    failed
        .map(|failure| {
            format!(
                "not restored: {} {}",
                failure.what.join(", "),
                failure.reason
            )
        })
        .collect()
}

/// Removes Pinfold's monitoring groups of resctrl, or only lists them in a dry run. Returns the
/// groups and the errors.
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

/// Accepts and closes connections until SIGTERM or SIGINT.
async fn stay(listen: SocketAddr) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        anyhow::anyhow!(
            "can't listen on {listen}: {error}; if another program uses the port, choose a free port with --listen"
        )
    })?;
    super::emit([format!(
        "the release is complete; waiting for SIGTERM on {}",
        listener.local_addr()?
    )])?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            accepted = listener.accept() => {
                if accepted.is_err() {
                    // An error such as too many open files needs time to pass.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn outcome(applied: AppliedStep) -> (Step, Option<String>) {
    let error = applied.error();
    (applied.step, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_was_done() {
        for (writes, failed, dry_run, words) in [
            (0, 0, false, "nothing is pinned here"),
            (15, 0, true, "15 writes would be done"),
            (1, 0, false, "1 write done"),
            (15, 2, false, "13 of 15 writes done, 2 failed"),
        ] {
            assert_eq!(summary(writes, failed, dry_run), words);
        }
    }
}
