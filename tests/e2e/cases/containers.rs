//! Containers that start or end apart from the pod: init containers, sidecars, crashes, missing images and debug containers.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::pinning::size;
use crate::cluster::text;
use crate::report::Verdict;
use crate::site::Site;

/// The output of a container that reports its CPUs once and ends.
const ONCE: &str = "sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus /p' /proc/self/status";

/// An init container runs on the CPUs of the pod's other containers.
pub(super) async fn init_container(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    let mut pod = site.training_pod("train", count);
    let mut init = site.container("init", &count.to_string());
    // The pause gives an agent without NRI time to find the init container.
    init["command"] = json!(["sh", "-c", format!("{ONCE}; sleep 8; {ONCE}")]);
    pod["spec"]["initContainers"] = json!([init]);
    site.start(&pod).await?;
    let cpus = site.pinned("train", "main", count).await?;
    let before = site.reading("train", "init").await?;
    let last = before.last()?;
    ensure!(
        last == cpus,
        "the init container ended on {last}, and the pod has {cpus}"
    );
    if site.status().await?.runtime_asks() {
        before.constant(&cpus, 0)?;
    }
    Ok(Verdict::Passed(format!(
        "init container and main on {cpus}"
    )))
}

/// A sidecar with a fraction of a CPU runs on the shared CPUs, beside a main container on exclusive CPUs.
pub(super) async fn sidecar(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    let mut pod = site.training_pod("train", count);
    let mut sidecar = site.container("sidecar", "100m");
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([sidecar]);
    site.start(&pod).await?;
    let cpus = site.pinned("train", "main", count).await?;
    site.cluster
        .wait("the sidecar is off the main container's CPUs", async || {
            let seen = site.reading("train", "sidecar").await?.last()?;
            ensure!(
                seen.is_disjoint(&cpus),
                "the sidecar may use {seen}, and main has {cpus}"
            );
            Ok(())
        })
        .await?;
    let status = site.status().await?;
    let state = status.container(&site.namespace, "train", "sidecar")?;
    ensure!(
        state.assigned.is_none(),
        "the sidecar has exclusive CPUs: {:?}",
        state.assigned
    );
    Ok(Verdict::Passed(format!(
        "main on {cpus}, the sidecar on shared CPUs"
    )))
}

/// A container that crashes keeps its CPUs, before and after each restart.
pub(super) async fn crash_loop(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let mut pod = site.training_pod("train", 1);
    let steps = format!("{ONCE}; sleep 6; {ONCE}; exit 1");
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", steps]);
    site.cluster.apply(&pod).await?;
    let assigned = site
        .cluster
        .wait("the first instance has a CPU", async || {
            let status = site.status().await?;
            let state = status.container(&site.namespace, "train", "main")?;
            let assigned = state.assigned.clone();
            assigned.with_context(|| format!("no assignment: {:?}", state.note))
        })
        .await?;
    site.cluster
        .wait(
            "two restarts, and a pause before the next restart",
            async || {
                let pod = site.existing("Pod", "train").await?;
                let state = &pod["status"]["containerStatuses"][0];
                let restarts = state["restartCount"].as_u64().unwrap_or_default();
                ensure!(restarts >= 2, "{restarts} restarts");
                let waiting = text(&state["state"]["waiting"]["reason"]);
                ensure!(waiting == "CrashLoopBackOff", "{}", state["state"]);
                Ok(())
            },
        )
        .await?;
    let status = site.status().await?;
    status.check()?;
    let state = status.container(&site.namespace, "train", "main")?;
    ensure!(
        state.assigned.as_ref() == Some(&assigned),
        "after the restarts the assignment is {:?}, and before it was {assigned}",
        state.assigned
    );
    let last = site.reading("train", "main").await?;
    ensure!(
        last.last()? == assigned,
        "the last instance ended on {}",
        last.last()?
    );
    if status.runtime_asks() {
        last.constant(&assigned, 0)?;
    }
    Ok(Verdict::Passed(format!(
        "CPUs {assigned} over two restarts"
    )))
}

/// A pod whose image is missing disturbs nothing, and gets its CPUs when the image becomes available.
pub(super) async fn missing_image(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let mut pod = site.training_pod("train", 1);
    pod["spec"]["containers"][0]["image"] = json!(site.cluster.settings.missing_image);
    site.cluster.apply(&pod).await?;
    site.cluster
        .wait("the kubelet can't pull the image", async || {
            let pod = site.existing("Pod", "train").await?;
            let state = &pod["status"]["containerStatuses"][0]["state"];
            let reason = text(&state["waiting"]["reason"]);
            ensure!(
                matches!(reason, "ErrImagePull" | "ImagePullBackOff"),
                "{state}"
            );
            Ok(())
        })
        .await?;
    let status = site.status().await?;
    status.check()?;
    let state = status.container(&site.namespace, "train", "main")?;
    ensure!(
        !state.running,
        "/status calls a container without an image running"
    );
    pod["spec"]["containers"][0]["image"] = json!(site.cluster.settings.shell_image);
    site.cluster.apply(&pod).await?;
    let cpus = site.pinned("train", "main", 1).await?;
    Ok(Verdict::Passed(format!(
        "CPUs {cpus} after the image was corrected"
    )))
}

/// A debug container gets no CPUs of its own, and the pod keeps those that it has.
pub(super) async fn ephemeral(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    site.start(&site.training_pod("train", count)).await?;
    let cpus = site.pinned("train", "main", count).await?;
    let mut debug = site.container("debug", "1");
    if let Some(fields) = debug.as_object_mut() {
        fields.remove("resources");
    }
    let pods: Api<Pod> = Api::namespaced(site.cluster.client.clone(), &site.namespace);
    let patch = json!({"spec": {"ephemeralContainers": [debug]}});
    pods.patch_ephemeral_containers("train", &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .context("the debug container can't be added")?;
    let seen = site
        .cluster
        .wait(
            "the debug container runs beside the pod's CPUs",
            async || {
                let seen = site.reading("train", "debug").await?.last()?;
                ensure!(
                    seen.is_disjoint(&cpus),
                    "the debug container may use {seen}"
                );
                Ok(seen)
            },
        )
        .await?;
    let again = site.pinned("train", "main", count).await?;
    ensure!(again == cpus, "the pod moved from {cpus} to {again}");
    site.status().await?.check()?;
    Ok(Verdict::Passed(format!(
        "main on {cpus}, the debug container on {seen}"
    )))
}
