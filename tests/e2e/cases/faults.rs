//! Outages: agents, runtimes, kubelets and the API server. Running containers keep their CPUs.
//!
//! The hook of the cluster (`PINFOLD_E2E_HOOK`) causes an outage that no API request can cause.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pinfold::cpu::CpuSet;
use pinfold::text::counted;
use serde_json::Value;

use super::pinning::size;
use crate::agent;
use crate::cluster::name_of;
use crate::report::Verdict;
use crate::scene;
use crate::site::Site;

/// The duration of an outage of the API server.
const AWAY: Duration = Duration::from_secs(30);

/// A pinned pod before an outage.
struct Pinned {
    cpus: CpuSet,
    count: usize,
    /// The number of reports before the outage.
    reports: usize,
    /// Whether the runtime asked the agent.
    runtime_asks: bool,
}

/// Starts a training pod for an outage.
async fn begin(site: &Site<'_>) -> Result<Pinned> {
    let count = size(site).await?;
    site.start(&site.training_pod("train", count)).await?;
    let cpus = site.pinned("train", "main", count).await?;
    Ok(Pinned {
        reports: site.reading("train", "main").await?.cpus.len(),
        runtime_asks: site.status().await?.runtime_asks(),
        cpus,
        count,
    })
}

/// Requires that the container kept its CPUs during the outage, that the node is in order, and that
/// the agent pins a new pod.
async fn finish(site: &Site<'_>, before: &Pinned) -> Result<()> {
    let again = site.pinned("train", "main", before.count).await?;
    ensure!(
        again == before.cpus,
        "the container moved from {} to {again}",
        before.cpus
    );
    site.cluster
        .wait("the node is in order after the outage", async || {
            let status = site.status().await?;
            status.check()?;
            ensure!(
                status.runtime_asks() == before.runtime_asks,
                "the runtime's state is {}",
                status.runtime["state"]
            );
            Ok(())
        })
        .await?;
    let reading = site.reading("train", "main").await?;
    ensure!(
        reading.cpus.len() > before.reports,
        "the container has stopped reporting"
    );
    reading.constant(&before.cpus, before.reports)?;
    site.end("train").await?;
    site.start(&site.training_pod("later", 1)).await?;
    site.pinned("later", "main", 1).await.map(drop)
}

/// The uid of the agent's pod, and the number of its restarts.
async fn instance(site: &Site<'_>) -> Result<(Value, Value)> {
    let pod = agent::agent(site.cluster, site.node).await?;
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].clone();
    Ok((pod["metadata"]["uid"].clone(), restarts))
}

/// Waits until the agent has started again.
async fn agent_started(site: &Site<'_>, before: &(Value, Value)) -> Result<()> {
    site.cluster
        .wait("the agent has started again", async || {
            let now = instance(site).await?;
            ensure!(now != *before, "the agent is the same instance as before");
            agent::ask(site.cluster, site.node, "readyz")
                .await
                .map(drop)
        })
        .await
}

/// A deleted agent comes back, and changes no assignment.
pub(super) async fn agent_restart(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let before = begin(site).await?;
    let old = instance(site).await?;
    let pod = agent::agent(site.cluster, site.node).await?;
    let namespace = &site.cluster.settings.namespace;
    site.cluster
        .delete("v1", "Pod", Some(namespace), name_of(&pod))
        .await?;
    agent_started(site, &old).await?;
    finish(site, &before).await?;
    Ok(Verdict::Passed(format!("CPUs {} stay", before.cpus)))
}

/// An agent that is killed at once comes back, and changes no assignment.
pub(super) async fn agent_killed(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let before = begin(site).await?;
    let old = instance(site).await?;
    if let Some(reason) = site.cluster.hook("agent-kill", site.node).await? {
        return Ok(Verdict::Skipped(reason));
    }
    agent_started(site, &old).await?;
    finish(site, &before).await?;
    Ok(Verdict::Passed(format!("CPUs {} stay", before.cpus)))
}

/// A killed container runtime comes back, and no container moves.
pub(super) async fn runtime_killed(site: &Site<'_>) -> Result<Verdict> {
    killed(site, "runtime-kill").await
}

/// A killed kubelet comes back, and no container moves.
pub(super) async fn kubelet_killed(site: &Site<'_>) -> Result<Verdict> {
    killed(site, "kubelet-kill").await
}

async fn killed(site: &Site<'_>, action: &str) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let before = begin(site).await?;
    if let Some(reason) = site.cluster.hook(action, site.node).await? {
        return Ok(Verdict::Skipped(reason));
    }
    node_ready(site).await?;
    finish(site, &before).await?;
    Ok(Verdict::Passed(format!("CPUs {} stay", before.cpus)))
}

async fn node_ready(site: &Site<'_>) -> Result<()> {
    site.cluster
        .wait("the Node is ready", async || {
            let node = site.node().await?;
            let conditions = node["status"]["conditions"].as_array();
            let all = conditions.context("the Node has no conditions")?;
            let ready = all.iter().find(|of| of["type"] == "Ready");
            let ready = ready.context("the Node has no condition Ready")?;
            ensure!(ready["status"] == "True", "{ready}");
            Ok(())
        })
        .await
}

/// Beside the kubelet's static policy the agent keeps the CPUs that the kubelet chose, or only
/// observes without partitions. When the policy is gone, it chooses again.
pub(super) async fn kubelet_static(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let enforcement = site.status().await?.enforcement;
    if let Some(reason) = site.cluster.hook("kubelet-static", site.node).await? {
        return Ok(Verdict::Skipped(reason));
    }
    site.undo.borrow_mut().push("kubelet-none");
    node_ready(site).await?;
    let has_partitions = enforcement == "partition";
    let beside = if has_partitions {
        "partition"
    } else {
        "observe"
    };
    enforces(site, beside, "kubelet").await?;
    if has_partitions {
        site.start(&site.training_pod("kept", 1)).await?;
        site.pinned("kept", "main", 1).await?;
    }
    let reason = site.cluster.hook("kubelet-none", site.node).await?;
    ensure!(
        reason.is_none(),
        "the hook can't switch the kubelet back: {reason:?}"
    );
    site.undo.borrow_mut().clear();
    node_ready(site).await?;
    enforces(site, &enforcement, "pinfold").await?;
    site.start(&site.training_pod("train", 1)).await?;
    let cpus = site.pinned("train", "main", 1).await?;
    Ok(Verdict::Passed(format!(
        "{enforcement}, {beside} beside the kubelet, {enforcement}; CPUs {cpus}"
    )))
}

async fn enforces(site: &Site<'_>, enforcement: &str, source: &str) -> Result<()> {
    let what = format!("the agent's enforcement is {enforcement}, with source {source}");
    site.cluster
        .wait(&what, async || {
            let status = site.status().await?;
            ensure!(
                status.enforcement == enforcement && status.placement_source == source,
                "the enforcement is {} with source {}: {}",
                status.enforcement,
                status.placement_source,
                status.enforcement_reason
            );
            Ok(())
        })
        .await
}

/// While the API server is away, nothing changes. The agent stays the same instance, and connects again.
pub(super) async fn api_away(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let before = begin(site).await?;
    let old = instance(site).await?;
    let labels = scene::labels(site).await?;
    if let Some(reason) = site.cluster.hook("api-stop", site.node).await? {
        return Ok(Verdict::Skipped(reason));
    }
    site.undo.borrow_mut().push("api-start");
    tokio::time::sleep(AWAY).await;
    let reason = site.cluster.hook("api-start", site.node).await?;
    ensure!(
        reason.is_none(),
        "the hook can't start the API server: {reason:?}"
    );
    site.undo.borrow_mut().clear();
    site.cluster
        .wait("the agent is connected to the API server", async || {
            let status = site.status().await?;
            ensure!(status.cluster["connected"] == true, "{}", status.cluster);
            Ok(())
        })
        .await?;
    let now = instance(site).await?;
    ensure!(now == old, "the agent has restarted");
    let found = scene::labels(site).await?;
    ensure!(
        found == labels,
        "the Node's labels changed from {labels:?} to {found:?}"
    );
    finish(site, &before).await?;
    let seconds = AWAY.as_secs();
    Ok(Verdict::Passed(format!(
        "CPUs {} stay for {seconds} s",
        before.cpus
    )))
}

/// A new Node object under the old name gets the slot again, with a claim that it owns.
pub(super) async fn node_replaced(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    let plan = scene::plan(site, Some("1"), "wait");
    scene::apply(site, &plan).await?;
    scene::labelled(site, Some("1")).await?;
    let old = site.node().await?["metadata"]["uid"].clone();
    if let Some(reason) = site.cluster.hook("node-replace", site.node).await? {
        return Ok(Verdict::Skipped(reason));
    }
    let uid = site
        .cluster
        .wait("the Node is another object", async || {
            let uid = site.node().await?["metadata"]["uid"].clone();
            ensure!(uid != old, "the Node still has the uid {old}");
            Ok(uid)
        })
        .await?;
    node_ready(site).await?;
    // The new Node lacks the label by which the plan selects the node.
    scene::apply(site, &plan).await?;
    scene::labelled(site, Some("1")).await?;
    site.cluster
        .wait("the new Node owns the claim", async || {
            let held = scene::claims(site).await?;
            let owners: Vec<&Value> = held
                .iter()
                .map(|claim| &claim["metadata"]["ownerReferences"][0]["uid"])
                .collect();
            ensure!(
                owners == [&uid],
                "the owners of the claims are {owners:?}, and the Node is {uid}"
            );
            Ok(())
        })
        .await?;
    Ok(Verdict::Passed(
        "the new Node has the slot and the claim".to_owned(),
    ))
}

/// The numbers of all requests and of all writes that the node's agent has sent.
async fn requests(site: &Site<'_>) -> Result<(f64, f64)> {
    const FAMILY: &str = "pinfold_api_requests_total";
    const WRITES: [&str; 5] = ["create", "apply", "patch", "taint", "delete"];
    let is_write = |labels: &str| {
        let kind = labels.split_once("request=\"").map_or("", |(_, kind)| kind);
        WRITES.iter().any(|write| kind.starts_with(write))
    };
    let metrics = agent::ask(site.cluster, site.node, "metrics").await?;
    ensure!(metrics.contains(FAMILY), "/metrics has no family {FAMILY}");
    let all = agent::sum(&metrics, FAMILY, |_| true);
    Ok((all, agent::sum(&metrics, FAMILY, is_write)))
}

/// An idle agent writes nothing, and sends at most one request a minute.
pub(super) async fn at_rest(site: &Site<'_>) -> Result<Verdict> {
    let (cluster, rest) = (site.cluster, site.cluster.settings.rest);
    // The requests that the earlier cases have caused end first. A started agent lists the plans within 60 s.
    tokio::time::sleep(Duration::from_secs(60) + rest / 3).await;
    let what = "the agent counts its requests";
    let old = instance(site).await?;
    let before = cluster.wait(what, async || requests(site).await).await?;
    tokio::time::sleep(rest).await;
    let after = cluster.wait(what, async || requests(site).await).await?;
    ensure!(
        instance(site).await? == old,
        "the agent has restarted, and counts from 0"
    );
    let (all, writes) = (after.0 - before.0, after.1 - before.1);
    let seconds = rest.as_secs();
    ensure!(
        writes <= 0.0,
        "the idle agent has sent {writes} writes in {seconds} s"
    );
    let allowed = (rest.as_secs_f64() / 60.0).ceil();
    ensure!(
        all <= allowed,
        "the idle agent has sent {all} requests in {seconds} s"
    );
    Ok(Verdict::Passed(format!(
        "{} in {seconds} s, no write",
        counted(all, "request")
    )))
}
