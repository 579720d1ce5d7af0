//! [`ClusterState`]: what is known of the cluster before an experiment starts.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use kube::core::params::ListParams;
use serde_json::Value;

use super::pages::AgentPages;
use crate::cluster::agents::Agents;
use crate::cluster::patient::PatientApi;
use crate::cluster::{ErrorKind, scenes};
use crate::experiment::AMOUNTS;
use crate::experiment::results::{ClusterFacts, NodeFacts};
use crate::scene::{Node, ScenePlan, candidates};
use crate::text::exposition;

/// The most nodes whose agents are asked how many CPUs they can give.
const MOST_ASKED: usize = 64;

/// The family that tells what kind of machine a node is.
const MACHINE: &str = "pinfold_machine_info";

/// What is known of the cluster before the start.
pub(super) struct ClusterState {
    pub(super) nodes: Vec<Node>,
    pub(super) facts: ClusterFacts,
    /// The CPUs that the node's agent can give, by node.
    pub(super) givable: BTreeMap<String, u32>,
}

/// Looks at the candidate nodes and their agents.
///
/// # Errors
/// A request fails, there is no candidate, or none has an agent.
pub(super) async fn look_at_cluster(
    api: &PatientApi,
    agents: &Agents,
    server: &str,
    plan: &ScenePlan,
) -> anyhow::Result<ClusterState> {
    let nodes = scenes::nodes(api.api()).await.context("can't list nodes")?;
    let names: BTreeSet<String> = candidates(plan, &nodes)
        .into_iter()
        .map(|node| node.name.clone())
        .collect();
    ensure!(
        !names.is_empty(),
        "no node of {server} is a candidate of the plan: look at its spec.nodes, and at kubectl get nodes --show-labels"
    );
    let pages = AgentPages::find(agents, |node| names.contains(node)).await;
    let pages = pages.context("can't list the agents' pods")?;
    let without: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !pages.nodes().contains(name))
        .collect();
    ensure!(
        without.len() < names.len(),
        "no candidate node has a running agent: install Pinfold, or name the agents' namespace with --agent-namespace"
    );
    let read = if names.len() <= MOST_ASKED {
        pages.read().await
    } else {
        BTreeMap::new()
    };
    let mut facts = ClusterFacts {
        server: server.to_owned(),
        id: cluster_id(api).await?,
        kubernetes: version(api).await,
        nodes: Vec::new(),
    };
    let details = node_details(api).await?;
    let mut givable = BTreeMap::new();
    for name in &names {
        let page = read.get(name).map(String::as_str).unwrap_or_default();
        givable.extend(given_by(page).map(|cpus| (name.clone(), cpus)));
        let detail = details.get(name);
        facts.nodes.push(NodeFacts {
            name: name.clone(),
            kernel: detail.and_then(|detail| text_at(detail, "/status/nodeInfo/kernelVersion")),
            allocatable_millicpus: detail
                .and_then(|detail| text_at(detail, "/status/allocatable/cpu"))
                .and_then(|cpus| (AMOUNTS.read)("cpu", &cpus).ok()),
            enforcement: label_of(page, "pinfold_enforcement_info", "enforcement"),
            cpu_model: label_of(page, MACHINE, "cpu_model"),
            emulated: label_of(page, MACHINE, "emulated").map(|emulated| emulated == "true"),
        });
    }
    Ok(ClusterState {
        nodes: nodes
            .into_iter()
            .filter(|node| !without.contains(&node.name.as_str()))
            .collect(),
        facts,
        givable,
    })
}

/// The uid of the namespace kube-system, by which people tell clusters apart; `None` if the user may not read it.
///
/// # Errors
/// A request fails.
pub(super) async fn cluster_id(api: &PatientApi) -> anyhow::Result<Option<String>> {
    match api.get::<Value>("/api/v1/namespaces/kube-system").await {
        Ok(found) => Ok(found.and_then(|found| text_at(&found, "/metadata/uid"))),
        Err(failure) if failure.kind() == ErrorKind::Forbidden => Ok(None),
        Err(failure) => Err(failure).context("can't read the namespace kube-system"),
    }
}

async fn version(api: &PatientApi) -> Option<String> {
    let version: Option<Value> = api.get("/version").await.ok()?;
    version?["gitVersion"].as_str().map(str::to_owned)
}

/// All Nodes by name.
async fn node_details(api: &PatientApi) -> anyhow::Result<BTreeMap<String, Value>> {
    let nodes: Vec<Value> = api
        .list("/api/v1/nodes", "NodeList", ListParams::default())
        .await
        .context("can't list nodes")?;
    let named = nodes
        .into_iter()
        .filter_map(|node| Some((text_at(&node, "/metadata/name")?, node)));
    Ok(named.collect())
}

fn text_at(object: &Value, path: &str) -> Option<String> {
    object.pointer(path)?.as_str().map(str::to_owned)
}

/// A label of a family that has one series.
fn label_of(page: &str, family: &str, label: &str) -> Option<String> {
    let mut series = exposition::series(page, |name| name == family);
    series.find_map(|series| series.label(label).map(str::to_owned))
}

/// The CPUs that an agent can give. One that does not assign any, or of an earlier version, tells which are online and which it
/// reserves.
fn given_by(page: &str) -> Option<u32> {
    let assignable = exposition::series(page, |name| name == "pinfold_node_assignable_cpus").next();
    if let Some(assignable) = assignable {
        return Some(whole(assignable.value));
    }
    let mut cpus: BTreeMap<String, f64> = BTreeMap::new();
    for series in exposition::series(page, |name| name == "pinfold_node_cpus") {
        cpus.extend(
            series
                .label("state")
                .map(|state| (state.to_owned(), series.value)),
        );
    }
    Some(whole(cpus.get("online")? - cpus.get("reserved")?))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of CPUs"
)]
fn whole(cpus: f64) -> u32 {
    cpus.clamp(0.0, 1e6) as u32
}
