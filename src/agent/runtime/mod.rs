//! The agent's side of the container runtime: its questions to the owner, the owner's answers to it.
//!
//! ```text
//!  runtime ── create ──> CPUs, memory nodes, environment ──> the container's own configuration
//!          ── start  ──> the gate: what was promised is in force, by the kernel's word, before the program begins
//!          ── all else ─> the owner's pods: which container is which, before any API tells
//! ```
//!
//! While there is no runtime the agent goes on with what the cgroups tell; [`Link`] says so.

mod answers;
mod api_wait;
mod link;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::cluster::{Asked, Running};
use super::event::Event;
use super::node::Node;
use super::tasks::Tasks;
use crate::metrics::AgentMetrics;
use crate::nri;
use crate::pin::Snapshot;

pub(super) use link::{Link, LinkState};

/// The name by which runtimes know us.
const NAME: &str = "pinfold";

/// How the container runtime is spoken with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Runtime {
    /// Whether NRI is used; `auto`: where the folder of its socket is there when the agent starts.
    pub nri: Asked,
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The place among its plugins, 0 to 99: the later ones see, and overrule, what the earlier ones chose.
    pub index: u8,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            nri: Asked::Auto,
            socket: PathBuf::from(nri::SOCKET),
            index: 90,
        }
    }
}

// === impl Runtime ===

impl Runtime {
    /// Whether it is used.
    pub fn wanted(&self) -> bool {
        match self.nri {
            Asked::Always => true,
            Asked::Never => false,
            Asked::Auto => self.socket.parent().is_some_and(std::path::Path::is_dir),
        }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.index <= 99,
            "runtime.index is {}: use 0 to 99",
            self.index
        );
        anyhow::ensure!(
            self.socket.is_absolute(),
            "runtime.socket {:?} is no absolute path: write it like {}",
            self.socket,
            nri::SOCKET
        );
        Ok(())
    }
}

/// How the connection to the runtime ends.
pub(super) struct Stop {
    /// Cancelled from outside: no further request is read.
    pub(super) asked: CancellationToken,
    /// Cancelled by the connection's task, after each request that was read has its answer.
    pub(super) answered: CancellationToken,
}

/// Starts the task that speaks with the runtime.
pub(super) fn start(
    node: &Node,
    tasks: &mut Tasks,
    owner: mpsc::Sender<Event>,
    cluster: Option<&Running>,
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    metrics: &AgentMetrics,
    stop: Stop,
) -> anyhow::Result<Link> {
    let wanted = &node.config.runtime;
    let mut settings = nri::PluginSettings::new(NAME, wanted.index)?;
    settings.socket.clone_from(&wanted.socket);
    let (state, seen) = watch::channel(nri::ConnectionState::default());
    let first = snapshot.clone();
    let described = cluster.map(|cluster| answers::Described {
        link: cluster.link.clone(),
        pods: cluster.pods.clone(),
    });
    let (queue, mut queued) = mpsc::unbounded_channel();
    // Ends when the connection's task has dropped the queue, so that each request that was read reaches the owner.
    tasks.spawn_to_its_end(async move {
        while let Some(event) = queued.recv().await {
            if owner.send(event).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    let answers = Arc::new(answers::Answers::new(
        queue,
        described,
        snapshot,
        metrics.clone(),
    ));
    let Stop {
        asked: ended,
        answered,
    } = stop;
    tasks.spawn_to_its_end(async move {
        // The reconciler ends with this task, whichever way this task ends.
        let _answered = answered.drop_guard();
        // Before the pods are known there is no good answer: containers go their way as if there were no agent yet.
        let mut first = first;
        tokio::select! {
            () = ended.cancelled() => return Ok(()),
            known = first.wait_for(Option::is_some) => if known.is_err() { return Ok(()) },
        }
        nri::serve(settings, answers, state, ended).await;
        Ok(())
    });
    Ok(Link::new(seen, &wanted.socket, wanted.nri == Asked::Always))
}
