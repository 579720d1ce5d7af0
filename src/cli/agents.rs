//! `--cluster`: the agents of a cluster, reached by port-forwards with the user's kubeconfig.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::api_failure::explained;
use crate::client::targets::{MAX_TARGETS, Target};
use crate::client::{Endpoint, MAX_REQUESTS, Opening, Route, Stream, full_status};
use crate::cluster::agents::{AgentPod, AgentRoute, Agents};
use crate::cluster::connect::connect_user;
use crate::cluster::{Api, ErrorKind, Failure};

/// How long the API server may take to answer a request.
const DEADLINE: Duration = Duration::from_secs(15);

/// The longest name of a namespace or pod, in characters.
const MAX_NAME_CHARS: usize = 253;

/// The program's name as a plugin of kubectl.
const PLUGIN: &str = "kubectl-pinfold";

/// Whether a command reaches the agents of a cluster.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterArgs {
    /// Ask the cluster's agents through port-forwards, with the rights of your kubeconfig; the default of kubectl pinfold
    #[arg(long)]
    pub(super) cluster: bool,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// [`ClusterArgs`] for a command without other options of the Kubernetes API.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterAccess {
    #[command(flatten)]
    pub(super) args: ClusterArgs,
    /// Kubeconfig for --cluster [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the agents and of their objects
    #[arg(long, value_name = "NAMESPACE", default_value = "pinfold", value_parser = object_name)]
    agent_namespace: String,
}

/// A cluster with agents.
pub(super) struct ClusterAgents {
    agents: Agents,
    /// The namespace of the agents' pods.
    agent_namespace: String,
    /// The namespace of the kubeconfig's context.
    pub(super) namespace: String,
    server: String,
}

/// Whether kubectl has started the program as a plugin.
pub(super) fn is_plugin() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program)
        .file_name()
        .is_some_and(|name| name == PLUGIN)
}

/// Checks a name that becomes a part of an API path: lower-case letters, digits, `-` and `.`.
///
/// # Errors
/// The text is no name of a namespace or a pod.
pub(super) fn object_name(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_name = text.starts_with(plain)
        && text.ends_with(plain)
        && text.len() <= MAX_NAME_CHARS
        && text
            .chars()
            .all(|letter| plain(letter) || matches!(letter, '-' | '.'));
    if is_name {
        Ok(text.to_owned())
    } else {
        Err("write lower-case letters, digits, '-' and '.'".to_owned())
    }
}

// === impl ClusterArgs ===

impl ClusterArgs {
    /// Whether the command reaches the cluster's agents. `elsewhere`: options outside
    /// [`ClusterArgs`] name agents or manifests.
    ///
    /// # Errors
    /// The options contradict each other.
    pub(super) fn is_wanted(&self, elsewhere: bool) -> anyhow::Result<bool> {
        let is_wanted = self.cluster || (is_plugin() && !elsewhere);
        anyhow::ensure!(
            !(self.cluster && elsewhere),
            "--cluster reaches the cluster's agents, but other options name agents or manifests: remove --cluster, or the \
             other options"
        );
        anyhow::ensure!(
            is_wanted || self.context.is_none(),
            "--context has an effect only with --cluster: remove --context, or add --cluster"
        );
        Ok(is_wanted)
    }

    /// Prepares the connection to the cluster without sending a request. Must be called within an
    /// asynchronous runtime.
    ///
    /// # Errors
    /// The kubeconfig can't be used, or `agent_namespace` is no name.
    pub(super) async fn connect(
        &self,
        kubeconfig: Option<&Path>,
        agent_namespace: &str,
    ) -> anyhow::Result<ClusterAgents> {
        object_name(agent_namespace).map_err(|remedy| {
            anyhow::anyhow!("--agent-namespace {agent_namespace:?} is no name: {remedy}")
        })?;
        let environment = |name: &str| std::env::var(name).ok();
        let connection = connect_user(kubeconfig, self.context.as_deref(), environment).await?;
        let api = Api::new(connection.client.clone(), DEADLINE);
        Ok(ClusterAgents {
            agents: Agents::new(api, connection.client, agent_namespace),
            agent_namespace: agent_namespace.to_owned(),
            namespace: connection.namespace,
            server: connection.server,
        })
    }
}

// === impl ClusterAccess ===

impl ClusterAccess {
    /// As [`ClusterArgs::connect`].
    pub(super) async fn connect(&self) -> anyhow::Result<ClusterAgents> {
        let kubeconfig = self.kubeconfig.as_deref();
        self.args.connect(kubeconfig, &self.agent_namespace).await
    }
}

// === impl ClusterAgents ===

impl ClusterAgents {
    /// All agents of the cluster, in the order of their nodes.
    ///
    /// # Errors
    /// The pods can't be listed, or no agent runs.
    pub(super) async fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let pods = self.agents.list(None).await;
        let pods = pods.map_err(|failure| self.explained(&failure, "list the agents' pods"))?;
        anyhow::ensure!(
            !pods.is_empty(),
            "no agent runs in the namespace {} of {}: name the namespace of the agents with --agent-namespace",
            self.agent_namespace,
            self.server
        );
        anyhow::ensure!(
            pods.len() <= MAX_TARGETS,
            "the cluster has {} agents, and a command reaches at most {MAX_TARGETS}: name some of the agents \
            with top --node or status --node",
            pods.len()
        );
        Ok(pods.into_iter().map(|pod| self.target(pod)).collect())
    }

    /// The agent of the node on which a pod runs.
    ///
    /// # Errors
    /// The pod is missing or has no node, or no agent runs there.
    pub(super) async fn target_of(&self, namespace: &str, pod: &str) -> anyhow::Result<Target> {
        let node = self.agents.node_of(namespace, pod).await;
        let node = node.map_err(|failure| {
            self.explained(&failure, &format!("read the pod {namespace}/{pod}"))
        })?;
        let node = node.with_context(|| {
            format!("the pod {namespace}/{pod} has no node yet: wait until the scheduler has chosen a node")
        })?;
        let pods = self.agents.list(Some(&node)).await;
        let pods = pods.map_err(|failure| self.explained(&failure, "list the agents' pods"))?;
        let agent = pods.into_iter().next_back().with_context(|| {
            format!(
                "no agent runs on the node {node} in the namespace {}: read the state of the DaemonSet, or name the \
                 namespace with --agent-namespace",
                self.agent_namespace
            )
        })?;
        Ok(self.target(agent))
    }

    fn target(&self, pod: AgentPod) -> Target {
        let node = pod.node.clone();
        let route = Arc::new(AgentRoute::new(self.agents.clone(), pod));
        Target {
            endpoint: Endpoint::behind(route, &node),
            name: node,
            named_by_user: false,
        }
    }

    /// A failure with the remedy.
    fn explained(&self, failure: &Failure, action: &str) -> anyhow::Error {
        let doing = format!("can't {action} at {}", self.server);
        if failure.kind() == ErrorKind::NotFound {
            return anyhow::anyhow!("{doing}: {failure}; check the name and the namespace (-n)");
        }
        let rights = format!(
            "ask an administrator for the right; for agents, the Role pinfold-portforward in the namespace {} has the rights",
            self.agent_namespace
        );
        explained(failure, &doing, &rights)
    }
}

impl Route for AgentRoute {
    fn open(&self) -> Opening<'_> {
        Box::pin(async move {
            let forward = self.connect().await;
            forward
                .map(|forward| Box::new(forward) as Box<dyn Stream>)
                .map_err(not_forwarded)
        })
    }
}

/// The error for a port-forward that could not be opened.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the function is the argument of map_err"
)]
fn not_forwarded(failure: Failure) -> anyhow::Error {
    let remedy = match failure.kind() {
        ErrorKind::Forbidden => {
            "; ask for the verbs create and get on pods/portforward (the Role pinfold-portforward)"
        }
        _ => "",
    };
    anyhow::anyhow!("no port-forward: {failure}{remedy}")
}

/// Requests `/status` of each agent, in the order of the targets.
///
/// # Errors
/// A request ends without a result.
pub(super) async fn statuses(
    targets: &[Target],
) -> anyhow::Result<Vec<anyhow::Result<hyper::body::Bytes>>> {
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut requests = JoinSet::new();
    for (index, target) in targets.iter().enumerate() {
        let (endpoint, permits) = (target.endpoint.clone(), Arc::clone(&permits));
        requests.spawn(async move {
            let _permit = permits.acquire().await;
            (index, full_status::request(&endpoint).await)
        });
    }
    let mut bodies = Vec::with_capacity(targets.len());
    while let Some(body) = requests.join_next().await {
        bodies.push(body.context("a request to an agent ended unexpectedly")?);
    }
    bodies.sort_by_key(|(index, _)| *index);
    Ok(bodies.into_iter().map(|(_, body)| body).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_leave_its_place_in_a_path() {
        for name in ["train", "worker-0", "a.b-c", "0"] {
            assert_eq!(object_name(name).unwrap(), name);
        }
        let long = "a".repeat(254);
        for name in ["", "a/b", "..", "-a", "a-", "A", "a?b", "a%2fb", &long] {
            assert!(object_name(name).is_err(), "{name}");
        }
    }
}
