//! [`AgentStatus`] and the other answers of a node's agent, read through port-forwards, because the
//! API server's proxy would get only the short form of `/status`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use kube::api::ListParams;
use pinfold::cluster::Api;
use pinfold::cluster::agents::{AgentPod, AgentRoute, Agents};
use pinfold::cpu::CpuSet;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{Cluster, name_of, text};

/// The label of all objects of the agent.
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=pinfold";

/// The longest time of an exchange with an agent.
const EXCHANGE: Duration = Duration::from_secs(30);

/// The parts of `/status` that the cases need.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentStatus {
    pub(crate) enforcement: String,
    pub(crate) enforcement_reason: String,
    pub(crate) placement_source: String,
    pub(crate) reserved: CpuSet,
    pub(crate) shared: CpuSet,
    pub(crate) exclusive: CpuSet,
    pub(crate) lost: CpuSet,
    pub(crate) containers: Vec<Container>,
    pub(crate) drift: Vec<Value>,
    pub(crate) unexplained: Vec<String>,
    pub(crate) errors: Vec<String>,
    #[serde(default)]
    pub(crate) cluster: Value,
    #[serde(default)]
    pub(crate) runtime: Value,
}

/// A container in `/status`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) assigned: Option<CpuSet>,
    pub(crate) effective: Option<CpuSet>,
    pub(crate) running: bool,
    pub(crate) note: Option<String>,
}

// === impl AgentStatus ===

impl AgentStatus {
    /// A container, by names.
    pub(crate) fn container(&self, namespace: &str, pod: &str, name: &str) -> Result<&Container> {
        let found = self
            .containers
            .iter()
            .find(|of| (&*of.namespace, &*of.pod, &*of.container) == (namespace, pod, name));
        found.with_context(|| format!("/status does not list container {name} of pod {pod}"))
    }

    /// The CPUs that a new container could get exclusively.
    pub(crate) fn free(&self) -> CpuSet {
        self.shared.difference(&self.reserved)
    }

    /// Whether the container runtime asks the agent before a container starts.
    pub(crate) fn runtime_asks(&self) -> bool {
        self.runtime["state"] == "synchronized"
    }

    /// The phase of the node's slot; empty without a connection to the API.
    pub(crate) fn phase(&self) -> &str {
        text(&self.cluster["scene"]["phase"])
    }

    /// Requires a node without errors, drift, unexplained CPUs and lost CPUs.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.errors.is_empty(),
            "errors in /status: {:?}",
            self.errors
        );
        ensure!(self.drift.is_empty(), "drift in /status: {:?}", self.drift);
        ensure!(
            self.unexplained.is_empty(),
            "unexplained exclusive CPUs in /status: {:?}",
            self.unexplained
        );
        ensure!(self.lost.is_empty(), "lost CPUs in /status: {}", self.lost);
        Ok(())
    }
}

/// The running agent's pod on a node.
pub(crate) async fn agent(cluster: &Cluster, node: &str) -> Result<Value> {
    let params = ListParams::default()
        .labels(SELECTOR)
        .fields(&format!("spec.nodeName={node}"));
    let pods = cluster
        .list("v1", "Pod", Some(&cluster.settings.namespace), &params)
        .await?;
    let alive = |pod: &&Value| {
        pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
    };
    let found = pods.iter().find(alive).cloned();
    found.with_context(|| {
        let namespace = &cluster.settings.namespace;
        format!("node {node} has no running agent in the namespace {namespace}")
    })
}

/// The answer of a node's agent to a request.
pub(crate) async fn ask(cluster: &Cluster, node: &str, path: &str) -> Result<String> {
    let pod = agent(cluster, node).await?;
    let ports = pod["spec"]["containers"][0]["ports"].as_array();
    let metrics = ports.and_then(|ports| ports.iter().find(|port| port["name"] == "metrics"));
    let port = metrics
        .and_then(|port| port["containerPort"].as_u64())
        .context("the agent's pod has no port with the name metrics")?;
    let pod = AgentPod {
        name: name_of(&pod).to_owned(),
        node: node.to_owned(),
        port: u16::try_from(port)?,
    };
    let answer = tokio::time::timeout(EXCHANGE, exchange(cluster, pod, path)).await;
    let answer = answer.context("the exchange took too long").flatten();
    answer.with_context(|| format!("the agent of node {node} does not answer /{path}"))
}

/// Sends a request through a port-forward, and returns the body of a successful answer.
async fn exchange(cluster: &Cluster, pod: AgentPod, path: &str) -> Result<String> {
    let (client, namespace) = (&cluster.client, &cluster.settings.namespace);
    let agents = Agents::new(
        Api::new(client.clone(), EXCHANGE),
        client.clone(),
        namespace,
    );
    let forward = AgentRoute::new(agents, pod).connect().await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(forward)).await?;
    // The task ends with the sender.
    tokio::spawn(connection);
    let request = Request::get(format!("/{path}"))
        .header(HOST, "agent")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let body = String::from_utf8(body.to_vec())?;
    ensure!(status.is_success(), "{status}: {body}");
    Ok(body)
}

/// The status of a node.
pub(crate) async fn status(cluster: &Cluster, node: &str) -> Result<AgentStatus> {
    let answer = ask(cluster, node, "status").await?;
    serde_json::from_str(&answer).context("/status has an unexpected form")
}

/// The sum of all series of a metric family whose labels pass the filter.
pub(crate) fn sum(metrics: &str, family: &str, wanted: impl Fn(&str) -> bool) -> f64 {
    let series = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(family)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value = value.split(' ').next()?.parse::<f64>().ok()?;
        wanted(labels).then_some(value)
    });
    series.sum()
}
