//! [`Agents`]: the pods of a cluster's agents, and port-forwards to them. Only commands use this
//! module.
//!
//! A port-forward ends on the loopback address of the agent's pod. RBAC on `pods/portforward` in
//! the agents' namespace decides who may open one.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use k8s_openapi::api::core::v1::Pod;
use kube::core::params::{GetParams, ListParams};
use kube::core::request;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Semaphore;

use super::call::words;
use super::list::{List, list};
use super::{Api, Call, ErrorKind, Failure};

/// The labels of the agents' pods, which are the same for all values of the chart.
const SELECTOR: &str = "app.kubernetes.io/part-of=pinfold,app.kubernetes.io/component=agent";

/// The name of the port in the agent's container.
const PORT_NAME: &str = "metrics";

const DEFAULT_PORT: u16 = 9470;

/// The limit on port-forwards that are opened at the same time, because the API server and a
/// kubelet have to set up each one.
const AT_ONCE: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    /// The name of the pod's Node.
    pub node: String,
    /// The port of metrics, health and status.
    pub port: u16,
}

/// The agents of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Agents {
    api: Api,
    client: kube::Client,
    namespace: String,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct AgentObject {
    metadata: AgentMetadata,
    spec: AgentSpec,
    #[serde(default)]
    status: AgentPodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentMetadata {
    name: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentSpec {
    node_name: Option<String>,
    #[serde(default)]
    containers: Vec<AgentContainer>,
}

#[derive(Deserialize)]
struct AgentContainer {
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
}

#[derive(Default, Deserialize)]
struct AgentPodStatus {
    phase: Option<String>,
}

// === impl AgentObject ===

impl AgentObject {
    /// The agent's pod; `None` for a pod that does not run, or is about to end.
    fn agent(self) -> Option<AgentPod> {
        let runs = self.status.phase.as_deref() == Some("Running")
            && self.metadata.deletion_timestamp.is_none();
        let ports = self
            .spec
            .containers
            .iter()
            .flat_map(|container| &container.ports);
        let port = ports
            .flatten()
            .find(|port| port.name.as_deref() == Some(PORT_NAME))
            .map_or(DEFAULT_PORT, |port| port.container_port);
        let node = self.spec.node_name.filter(|_| runs)?;
        Some(AgentPod {
            name: self.metadata.name,
            node,
            port,
        })
    }
}

// === impl Agents ===

impl Agents {
    /// Creates a client for the agents whose pods are in `namespace`. No request is sent.
    pub fn new(api: Api, client: kube::Client, namespace: &str) -> Self {
        Self {
            api,
            client,
            namespace: namespace.to_owned(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// The running pods of agents in the order of the nodes. With `node`, only the pods on this node.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn list(&self, node: Option<&str>) -> Result<Vec<AgentPod>, Failure> {
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let mut params = ListParams::default().labels(SELECTOR).match_any();
        if let Some(node) = node {
            params = params.fields(&format!("spec.nodeName={node}"));
        }
        let wanted = List::new(Call::Other, &path, "PodList").with(params);
        let mut agents = Vec::new();
        list(&self.api, wanted, |object| {
            let object: AgentObject =
                serde_json::from_str(object.get()).map_err(Failure::invalid)?;
            agents.extend(object.agent());
            Ok(())
        })
        .await?;
        agents.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
        Ok(agents)
    }

    /// The name of a pod's Node; `None` for a pod without a Node. The caller must check both names,
    /// because they become parts of a path.
    ///
    /// # Errors
    /// Any [`Failure`], for example for a missing pod.
    pub async fn node_of(&self, namespace: &str, pod: &str) -> Result<Option<String>, Failure> {
        let request = request::Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
            .get(pod, &GetParams::default())
            .map_err(|error| self.api.unbuilt(error))?;
        let object: AgentObject = self.api.ask(Call::Other, request).await?;
        Ok(object.spec.node_name)
    }

    /// Opens a port-forward to the agent's port.
    async fn open(&self, pod: &AgentPod) -> Result<PortForward, Failure> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let pods = kube::Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let mut forwarder = pods
            .portforward(&pod.name, &[pod.port])
            .await
            .map_err(failure)?;
        let stream = forwarder.take_stream(pod.port);
        let stream = stream.ok_or_else(|| Failure::invalid("the port-forward has no stream"))?;
        let error = forwarder.take_error(pod.port);
        Ok(PortForward {
            stream,
            error: error.map(|error| Box::pin(error) as ReportedError),
        })
    }
}

fn failure(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => Failure::refused(*status),
        error => Failure::Connection(words(&error)),
    }
}

/// Connects to the agent of a Node. The route stays valid after the DaemonSet has replaced the agent's pod.
#[derive(Debug)]
pub struct AgentRoute {
    agents: Agents,
    pod: Mutex<AgentPod>,
}

// === impl AgentRoute ===

impl AgentRoute {
    /// Creates a route to the agent of the pod's Node. No request is sent.
    pub fn new(agents: Agents, pod: AgentPod) -> Self {
        Self {
            agents,
            pod: Mutex::new(pod),
        }
    }

    /// Opens a port-forward to the agent. If the pod is gone, it goes to the Node's new agent pod.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn connect(&self) -> Result<PortForward, Failure> {
        let pod = self.pod().clone();
        match self.agents.open(&pod).await {
            Err(failure) if failure.kind() == ErrorKind::NotFound => {
                let pods = self.agents.list(Some(&pod.node)).await?;
                let Some(next) = pods.into_iter().next_back() else {
                    return Err(failure);
                };
                *self.pod() = next.clone();
                self.agents.open(&next).await
            }
            opened => opened,
        }
    }

    fn pod(&self) -> MutexGuard<'_, AgentPod> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kubelet's error about a port. The future ends without a text if it reports none.
type ReportedError = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// A connection to an agent through the API server. If the kubelet reports an error, a read fails
/// with it.
pub struct PortForward {
    stream: DuplexStream,
    error: Option<ReportedError>,
}

impl fmt::Debug for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortForward").finish_non_exhaustive()
    }
}

impl AsyncRead for PortForward {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if read.is_ok() && buffer.filled().len() > before {
            return Poll::Ready(Ok(()));
        }
        // The stream has ended. The kubelet's error arrives before the end, so one poll of the future is enough.
        let error = self.error.take();
        let reported = error.map(|mut error| error.as_mut().poll(context));
        Poll::Ready(match reported {
            Some(Poll::Ready(Some(text))) => Err(io::Error::other(text)),
            _ => read,
        })
    }
}

impl AsyncWrite for PortForward {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
