//! The agent's side of the container runtime: its requests to the reconciler, and the reconciler's
//! answers.
//!
//! ```text
//!  runtime ── create ──> CPUs, memory nodes, environment ──> the container's own configuration
//!          ── start  ──> the check that the kernel reports the assignment as effective, before the program begins
//!          ── all else ─> the reconciler's pods: which container is which, before the API server reports the pod
//! ```
//!
//! Without a runtime the agent relies on the cgroups, and [`RuntimeLink`] reports the problem.

mod api_wait;
mod link;
mod live_mount;
mod plugin_handler;
mod reduced;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::agent_node::AgentNode;
use super::api::ApiTasks;
use super::config::{AutoSwitch, Runtime};
use super::event::AgentEvent;
use super::kubelet::KubeletLink;
use super::tasks::Tasks;
use crate::metrics::AgentMetrics;
use crate::nri;
use crate::pin::Snapshot;

pub(super) use link::{RuntimeLink, RuntimeLinkState};

/// How the plugin registers with the runtime.
const NAME: &str = "pinfold";

/// The two steps that end the connection to the runtime.
pub(super) struct ShutdownSignals {
    /// Cancelled at shutdown. The plugin then reads no further request.
    pub(super) requested: CancellationToken,
    /// Cancelled by the connection's task, after each request that was read has an answer.
    pub(super) all_answered: CancellationToken,
}

/// The link of an agent that found no NRI at its start. `None` if that is no problem, because the
/// configuration forbids NRI, or because the node belongs to no cluster and may have no container
/// runtime.
fn unused(wanted: &Runtime, has_cluster: bool) -> Option<RuntimeLink> {
    let may_use = wanted.nri != AutoSwitch::Never && has_cluster;
    may_use.then(|| RuntimeLink::unused(&wanted.socket))
}

/// Starts the task that serves the connection to the runtime, if the configuration or a socket asks
/// for one. `None` if nobody misses the connection.
pub(super) fn start(
    node: &AgentNode,
    tasks: &mut Tasks,
    reconciler: mpsc::UnboundedSender<AgentEvent>,
    (cluster, kubelet): (Option<&ApiTasks>, KubeletLink),
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    metrics: &AgentMetrics,
    shutdown: ShutdownSignals,
) -> Option<RuntimeLink> {
    let wanted = &node.config.runtime;
    if !wanted.wanted() {
        return unused(wanted, cluster.is_some());
    }
    let mut settings = nri::PluginSettings::new(NAME, wanted.index);
    settings.socket.clone_from(&wanted.socket);
    let (state, connection) = watch::channel(nri::ConnectionState::default());
    let mut first = snapshot;
    let api_source = cluster.map(|cluster| plugin_handler::ApiSource {
        link: cluster.link.clone(),
        pods: cluster.pods.clone(),
    });
    let handler = Arc::new(plugin_handler::PluginHandler::new(
        reconciler,
        api_source,
        kubelet,
        metrics.clone(),
    ));
    let ShutdownSignals {
        requested,
        all_answered,
    } = shutdown;
    tasks.spawn_to_its_end(async move {
        // The reconciler ends with the connection's task, even after an error.
        let _all_answered = all_answered.drop_guard();
        // Before the first snapshot there is no good answer, so until then containers start as if
        // no agent ran.
        tokio::select! {
            () = requested.cancelled() => return Ok(()),
            known = first.wait_for(Option::is_some) => if known.is_err() { return Ok(()) },
        }
        nri::serve(settings, handler, state, requested).await;
        Ok(())
    });
    let is_expected = wanted.nri == AutoSwitch::Always;
    Some(RuntimeLink::new(connection, &wanted.socket, is_expected))
}
