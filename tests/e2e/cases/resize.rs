//! Resizes in place: at once, deferred and infeasible.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::text;
use crate::report::Verdict;
use crate::site::Site;

/// Asks for a number of CPUs for the pod `train`.
async fn resize(site: &Site<'_>, cpus: u64) -> Result<()> {
    let answer = request_resize(site, cpus).await;
    answer.with_context(|| format!("the resize to {cpus} CPUs is refused"))
}

/// Asks for a number of CPUs for the pod `train`, and returns the API server's answer.
async fn request_resize(site: &Site<'_>, cpus: u64) -> kube::Result<()> {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "32Mi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let pods: Api<Pod> = Api::namespaced(site.cluster.client.clone(), &site.namespace);
    pods.patch_resize("train", &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    Ok(())
}

/// A container grows in place, keeps its CPUs and gets further CPUs.
pub(super) async fn grow(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(2).await? {
        return Ok(skipped);
    }
    site.start(&site.training_pod("train", 1)).await?;
    let before = site.pinned("train", "main", 1).await?;
    resize(site, 2).await?;
    let after = site.pinned("train", "main", 2).await?;
    ensure!(
        before.is_subset(&after),
        "the container moved from {before} to {after}"
    );
    site.status().await?.check()?;
    Ok(Verdict::Passed(format!("CPUs {before}, then {after}")))
}

/// A container shrinks in place, and gives CPUs back.
pub(super) async fn shrink(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(2).await? {
        return Ok(skipped);
    }
    site.start(&site.training_pod("train", 2)).await?;
    let before = site.pinned("train", "main", 2).await?;
    resize(site, 1).await?;
    let after = site.pinned("train", "main", 1).await?;
    ensure!(
        after.is_subset(&before),
        "the container moved from {before} to {after}"
    );
    let rest = before.difference(&after);
    site.cluster
        .wait("the remaining CPUs are shared", async || {
            let shared = site.status().await?.shared;
            ensure!(
                rest.is_subset(&shared),
                "the shared CPUs are {shared}, without {rest}"
            );
            Ok(())
        })
        .await?;
    Ok(Verdict::Passed(format!("CPUs {before}, then {after}")))
}

/// The node's allocatable CPUs, in thousandths.
async fn allocatable(site: &Site<'_>) -> Result<u64> {
    let node = site.node().await?;
    let text = text(&node["status"]["allocatable"]["cpu"]).to_owned();
    let millis = match text.strip_suffix('m') {
        Some(millis) => millis.parse::<u64>().ok(),
        None => text.parse::<u64>().ok().map(|cpus| cpus * 1000),
    };
    millis.with_context(|| format!("the Node's allocatable CPUs are {text:?}"))
}

/// Waits until the kubelet reports the reason of a pending resize.
async fn pending(site: &Site<'_>, reason: &str) -> Result<()> {
    let what = format!("the resize is pending with the reason {reason}");
    site.cluster
        .wait(&what, async || {
            let pod = site.existing("Pod", "train").await?;
            let conditions = &pod["status"]["conditions"];
            let all = conditions.as_array().context("the pod has no conditions")?;
            let pending = |of: &&Value| of["type"] == "PodResizePending";
            let found = all.iter().find(pending);
            let found = found.with_context(|| conditions.to_string())?;
            ensure!(found["reason"] == reason, "{found}");
            Ok(())
        })
        .await
}

/// A resize that waits for another pod changes nothing before that pod ends.
pub(super) async fn deferred(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let millis = allocatable(site).await?;
    let whole = millis / 1000;
    if whole < 2 {
        let reason = format!("the node has {millis}m allocatable CPUs, and the case needs 2");
        return Ok(Verdict::Skipped(reason));
    }
    // The filler leaves less than the node's whole CPUs.
    let filler = format!("{}m", millis % 1000 + 100);
    site.start(&site.shared_pod("filler", &filler)).await?;
    site.start(&site.training_pod("train", 1)).await?;
    let cpus = site.pinned("train", "main", 1).await?;
    resize(site, whole).await?;
    pending(site, "Deferred").await?;
    let again = site.pinned("train", "main", 1).await?;
    ensure!(again == cpus, "the container moved from {cpus} to {again}");
    site.status().await?.check()?;
    // The pod takes its request back, and keeps its CPU.
    resize(site, 1).await?;
    let again = site.pinned("train", "main", 1).await?;
    ensure!(again == cpus, "the container moved from {cpus} to {again}");
    Ok(Verdict::Passed(format!(
        "CPUs {cpus} during a deferred resize to {whole}"
    )))
}

/// A resize beyond the node's size changes nothing. From Kubernetes 1.36 on, the API server refuses
/// it. Before, the kubelet reports it as infeasible.
pub(super) async fn infeasible(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let beyond = allocatable(site).await? / 1000 + 1000;
    site.start(&site.training_pod("train", 1)).await?;
    let cpus = site.pinned("train", "main", 1).await?;
    let by = match request_resize(site, beyond).await {
        Err(kube::Error::Api(status))
            if status.code == 403 && status.message.contains("allocatable") =>
        {
            "the API server"
        }
        answer => {
            answer?;
            pending(site, "Infeasible").await?;
            "the kubelet"
        }
    };
    let again = site.pinned("train", "main", 1).await?;
    ensure!(again == cpus, "the container moved from {cpus} to {again}");
    site.status().await?.check()?;
    Ok(Verdict::Passed(format!(
        "the container keeps CPUs {cpus}, and {by} refuses a resize to {beyond} CPUs"
    )))
}
