//! The agent's side of the Kubernetes API: whether it is used, who the agent is there, and the
//! tasks that use it.
//!
//! ```text
//!                     ┌─ follow ── PodsEvent ──> pods::take ── one changed pod ──> reconciler
//!  ClusterContext ────┤                              └── ClusterLink (the API's state for /status, /readyz and /metrics)
//!                     ├─ Recorder <── EventDetails ── news::tell <── Snapshot ── reconciler
//!                     └─ Scenes: this Node's labels and claims, by the ScenePlans
//! ```
//!
//! [`ClusterContext`] is the handle for every task that uses the API, and is cheap to clone.
//! `ClusterContext::start` starts the tasks. They end at once when the agent stops; only waiting
//! Events get a short time.

pub(super) mod context;
mod last_slot;
mod link;
mod news;
mod own_uid;
pub(super) mod peers;
mod pods;
mod scenes;

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::{AutoSwitch, Config};
use super::event::AgentEvent;
use super::tasks::Tasks;
use crate::cluster::Api;
use crate::cluster::connect::{self, ConnectError, Connection};
use crate::cluster::events::{self, Recorder};
use crate::cluster::node_reader::{InStep, NodeReader, NodeReports};
use crate::cluster::pods as followed;
use crate::cluster::scenes::{self as followed_scenes, Scenes};
use crate::host::cgroup::Cgroups;
use crate::pin::Snapshot;

use context::node_name;
pub use context::{ApiPods, ClusterContext};
pub(super) use link::{ClusterLink, ClusterLinkState};

/// How long the API server may take to answer a request.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct ApiTasks {
    pub(super) link: ClusterLink,
    /// This node's pods, as the API server lists them.
    pub(super) pods: watch::Receiver<ApiPods>,
    /// What the Node says.
    pub(super) node: NodeReports,
    /// Where the agent notes whether it is in step.
    pub(super) in_step: watch::Sender<InStep>,
    /// Writes the Events, and ends when all recorders are dropped.
    pub(super) writer: JoinHandle<()>,
}

/// Whether the API is used, judged by the configuration alone.
fn wanted(config: &Config) -> bool {
    match config.cluster.api {
        AutoSwitch::Always => true,
        AutoSwitch::Never => false,
        // A folder of manifests replaces the API, and neither KUBECONFIG in a shell nor a pod's
        // service account brings it back.
        AutoSwitch::Auto => config.manifest_dir.is_none() || config.cluster.kubeconfig.is_some(),
    }
}

// === impl ClusterContext ===

impl ClusterContext {
    /// Prepares the connection to the API, if the API is used. No request is sent, so the server
    /// may be unreachable.
    ///
    /// # Errors
    /// The configuration can't be used, or no source of pods is configured.
    pub async fn open(
        config: &Config,
        environment: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<Self>> {
        if !wanted(config) {
            anyhow::ensure!(
                config.manifest_dir.is_some() || config.runtime.wanted(),
                "no source of pods is configured: name a folder of manifests with --manifest-dir, or allow the API (--api auto) or \
                 the container runtime (--nri auto)"
            );
            return Ok(None);
        }
        let connection = match connect::connect(config.cluster.kubeconfig.as_deref(), environment)
            .await
        {
            Err(ConnectError::Nowhere)
                if config.cluster.api == AutoSwitch::Auto && config.runtime.wanted() =>
            {
                tracing::info!(
                    "no Kubernetes API is configured: the container runtime is the only source of pods"
                );
                return Ok(None);
            }
            Err(ConnectError::Nowhere) if config.cluster.api == AutoSwitch::Auto => anyhow::bail!(
                "no source of pods is found: name a folder of manifests with --manifest-dir, or a kubeconfig with --kubeconfig or \
                 KUBECONFIG, or run in a pod with a service account (KUBERNETES_SERVICE_HOST is not set), or beside a \
                 container runtime with NRI ({})",
                config.runtime.socket.display()
            ),
            connection => connection?,
        };
        let node = node_name(config.cluster.node_name.as_deref())?;
        let cluster = Self::new(connection, node, config.cluster.namespace.clone());
        Ok(Some(Self {
            scenes: config.cluster.scenes,
            ..cluster
        }))
    }

    /// Creates the handle of the node with the given name.
    pub fn new(connection: Connection, node: String, namespace: String) -> Self {
        let Connection {
            client,
            server,
            origin,
            ..
        } = connection;
        Self {
            api: Api::new(client, DEADLINE).naming(&server),
            node,
            namespace,
            scenes: true,
            server,
            origin,
        }
    }

    pub(super) fn start(
        &self,
        cgroups: &Cgroups,
        tasks: &mut Tasks,
        reconciler: mpsc::Sender<AgentEvent>,
        snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
        kubelet_restarted: Arc<Notify>,
        stop: &CancellationToken,
    ) -> ApiTasks {
        let (pods, known) = watch::channel(ApiPods::default());
        let (running, running_pods) = watch::channel(None);
        let (place, state) = Scenes::new(
            self.api.clone(),
            &self.node,
            &self.namespace,
            running_pods,
            followed_scenes::SceneSettings::default(),
        );
        let slot_state = state.clone();
        let (in_step, known_step) = watch::channel(Err("the agent starts".to_owned()));
        let (reader, node) = NodeReader::new(
            self.api.clone(),
            &self.node,
            known_step.clone(),
            kubelet_restarted,
        );
        tasks.spawn(async move {
            reader.run().await;
            Ok(())
        });
        let startup_taint = (node.startup_taint.clone(), known_step);
        let (link, connection) = ClusterLink::new(self, state, startup_taint);

        let (out, pod_events) = mpsc::channel(64);
        let following = followed::follow(
            self.api.clone(),
            self.node.clone(),
            followed::PodWatchSettings::default(),
            out,
        );
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
        let (api, name) = (self.api.clone(), self.node.clone());
        tasks.spawn(own_uid::tell(api, name, known.clone(), reconciler.clone()));
        tasks.spawn(pods::take(pod_events, connection, pods, reconciler));

        let (recorder, writing) = Recorder::new(
            self.api.clone(),
            &self.node,
            events::EventSettings::default(),
        );
        let writer = tokio::spawn(writing);
        if self.scenes {
            let task = place
                .with_recorder(recorder.clone())
                .with_last(last_slot::last(cgroups));
            tasks.spawn(last_slot::keep(cgroups.clone(), slot_state));
            let cancel = stop.clone();
            tasks.spawn_to_its_end(async move {
                task.run(cancel).await;
                Ok(())
            });
            tasks.spawn(scenes::tell(known.clone(), running));
        }
        // The task still reads the last snapshot when the agent stops, and then ends on its own.
        tasks.spawn_to_its_end(news::tell(snapshots, known.clone(), recorder, stop.clone()));

        ApiTasks {
            link,
            pods: known,
            node,
            in_step,
            writer,
        }
    }
}

// === impl ApiTasks ===

impl ApiTasks {
    /// Lets waiting Events be written until `until`. This is called when the agent stops.
    pub(super) async fn finish(mut self, until: Instant) {
        if tokio::time::timeout_at(until, &mut self.writer)
            .await
            .is_err()
        {
            tracing::info!(
                "the agent stops without writing its last Events: the API server is slow or unreachable"
            );
            self.writer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_used_on_request_or_without_a_folder() {
        let cases = [
            (AutoSwitch::Auto, false, false, true),
            (AutoSwitch::Auto, true, false, false),
            (AutoSwitch::Auto, true, true, true),
            (AutoSwitch::Always, true, false, true),
            (AutoSwitch::Never, false, true, false),
        ];
        for (api, pods, kubeconfig, used) in cases {
            let named = |name: &str, is: bool| is.then(|| name.into());
            let mut config = Config {
                manifest_dir: named("pods", pods),
                ..Config::default()
            };
            (config.cluster.api, config.cluster.kubeconfig) =
                (api, named("kubeconfig", kubeconfig));
            assert_eq!(
                wanted(&config),
                used,
                "{api:?}, pods {pods}, kubeconfig {kubeconfig}"
            );
        }
    }
}
