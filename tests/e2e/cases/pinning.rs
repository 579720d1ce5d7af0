//! Training pods: exclusive CPUs, variables, and other pods on the node.

use anyhow::{Context, Result, ensure};
use pinfold::text::counted;
use serde_json::json;

use crate::cluster::text;
use crate::report::Verdict;
use crate::site::Site;

/// The number of exclusive CPUs for a test pod: two, if the node has enough.
pub(super) async fn size(site: &Site<'_>) -> Result<usize> {
    let free = site.status().await?.free().len();
    Ok(if free >= 4 { 2 } else { 1 })
}

/// A training pod runs on its exclusive CPUs, with NRI from the first instruction.
pub(super) async fn pinning(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    let status = site.status().await?;
    site.start(&site.training_pod("train", count)).await?;
    let cpus = site.pinned("train", "main", count).await?;
    ensure!(
        cpus.is_disjoint(&status.reserved),
        "the pod has the CPUs {cpus}, and the node reserves {}",
        status.reserved
    );
    if status.runtime_asks() {
        let reading = site.reading("train", "main").await?;
        let first = reading.first()?;
        ensure!(
            first == cpus,
            "the first instruction ran on {first}, and the assignment is {cpus}"
        );
        reading.constant(&cpus, 0)?;
    }
    let note = site.event("train", "Pinned").await?;
    ensure!(
        note.contains(&cpus.to_string()),
        "the Event Pinned does not name {cpus}: {note}"
    );
    site.status().await?.check()?;
    site.end("train").await?;
    site.cluster
        .wait("the CPUs of an ended pod are shared", async || {
            let shared = site.status().await?.shared;
            ensure!(
                cpus.is_subset(&shared),
                "the shared CPUs are {shared}, without {cpus}"
            );
            Ok(())
        })
        .await?;
    let seen = if status.runtime_asks() {
        " from the first instruction"
    } else {
        ""
    };
    Ok(Verdict::Passed(format!(
        "{}: CPUs {cpus}{seen}",
        status.enforcement
    )))
}

/// The agent adds the CPUs and the thread counts to the environment of a training pod.
pub(super) async fn environment(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    if let Some(skipped) = site.lacks_runtime().await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    site.start(&site.training_pod("train", count)).await?;
    let cpus = site.pinned("train", "main", count).await?;
    let reading = site.environment("train", "main").await?;
    let named = reading.variable("PINFOLD_CPUS")?;
    ensure!(
        named == cpus.to_string(),
        "PINFOLD_CPUS is {named}, and the assignment is {cpus}"
    );
    for name in [
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
        "OMP_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ] {
        let value = reading.variable(name)?;
        // No inter-op pool is smaller than two threads.
        let size = match name {
            "TF_NUM_INTEROP_THREADS" => count.max(2),
            _ => count,
        };
        ensure!(
            value == size.to_string(),
            "{name} is {value}, and the pod has {count} CPUs"
        );
    }
    Ok(Verdict::Passed(format!(
        "PINFOLD_CPUS={cpus}, 4 thread counts for {}",
        counted(count, "CPU")
    )))
}

/// A value that the pod sets stays, and so do the variables that would overrule the value.
pub(super) async fn own_values(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    if let Some(skipped) = site.lacks_runtime().await? {
        return Ok(skipped);
    }
    let mut pod = site.training_pod("train", 1);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "OMP_NUM_THREADS", "value": "7"}]);
    site.start(&pod).await?;
    site.pinned("train", "main", 1).await?;
    let reading = site.environment("train", "main").await?;
    let own = reading.variable("OMP_NUM_THREADS")?;
    ensure!(own == "7", "OMP_NUM_THREADS is {own}, and the pod sets 7");
    ensure!(
        !reading.env.contains_key("NUMEXPR_NUM_THREADS"),
        "NUMEXPR_NUM_THREADS is set, which overrules the pod's OMP_NUM_THREADS"
    );
    let intra = reading.variable("TF_NUM_INTRAOP_THREADS")?;
    ensure!(
        intra == "1",
        "TF_NUM_INTRAOP_THREADS is {intra}, and the pod has 1 CPU"
    );
    let note = site.event("train", "ValueKept").await?;
    ensure!(
        note.contains("OMP_NUM_THREADS"),
        "the Event ValueKept says: {note}"
    );
    Ok(Verdict::Passed("OMP_NUM_THREADS=7 stays".to_owned()))
}

/// Other pods leave the CPUs of a training pod, and return after its end.
pub(super) async fn exclusion(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let count = size(site).await?;
    site.start(&site.shared_pod("before", "10m")).await?;
    let free = site.status().await?.free();
    site.reaches("before", &free).await?;
    site.start(&site.training_pod("train", count)).await?;
    let cpus = site.pinned("train", "main", count).await?;
    site.kept_off("before", &cpus).await?;
    site.start(&site.shared_pod("after", "10m")).await?;
    site.kept_off("after", &cpus).await?;
    let status = site.status().await?;
    if status.runtime_asks() || status.enforcement == "partition" {
        let first = site.reading("after", "main").await?.first()?;
        ensure!(
            first.is_disjoint(&cpus),
            "a later pod began on {first}, with {cpus} exclusive"
        );
    }
    site.end("train").await?;
    site.reaches("before", &free).await?;
    site.reaches("after", &free).await?;
    Ok(Verdict::Passed(format!(
        "two shared pods leave {cpus}, and return"
    )))
}

/// A training pod that can't have exclusive CPUs runs on the shared CPUs, and an Event gives the reason.
pub(super) async fn not_pinned(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let mut pod = site.shared_pod("train", "10m");
    pod["metadata"]["annotations"] = json!({"pinfold.io/cpus": "exclusive"});
    site.start(&pod).await?;
    let note = site.event("train", "NotPinned").await?;
    ensure!(
        note.contains("Burstable"),
        "the Event NotPinned does not name the QoS class: {note}"
    );
    let status = site.status().await?;
    let state = status.container(&site.namespace, "train", "main")?;
    ensure!(
        state.assigned.is_none(),
        "the pod has exclusive CPUs: {:?}",
        state.assigned
    );
    Ok(Verdict::Passed(note))
}

/// A pod with the annotation `required` gets exclusive CPUs like another training pod.
pub(super) async fn required(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(1).await? {
        return Ok(skipped);
    }
    let mut pod = site.training_pod("train", 1);
    pod["metadata"]["annotations"] = json!({"pinfold.io/cpus": "required"});
    site.start(&pod).await?;
    let cpus = site.pinned("train", "main", 1).await?;
    if site.status().await?.runtime_asks() {
        site.reading("train", "main").await?.constant(&cpus, 0)?;
    }
    Ok(Verdict::Passed(format!("CPUs {cpus}")))
}

/// The runtime refuses a container of a `required` pod without a right to exclusive CPUs. The pod's status has the reason.
pub(super) async fn required_refused(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = site.lacks(0).await? {
        return Ok(skipped);
    }
    if let Some(skipped) = site.lacks_runtime().await? {
        return Ok(skipped);
    }
    let mut pod = site.shared_pod("train", "10m");
    pod["metadata"]["annotations"] = json!({"pinfold.io/cpus": "required"});
    site.cluster.apply(&pod).await?;
    let said = site
        .cluster
        .wait("the runtime refuses the container", async || {
            let pod = site.existing("Pod", "train").await?;
            let state = &pod["status"]["containerStatuses"][0];
            ensure!(
                state["state"]["running"].is_null(),
                "the container runs: {state}"
            );
            let waiting = text(&state["state"]["waiting"]["message"]);
            let last = text(&state["lastState"]["terminated"]["message"]);
            let said = [waiting, last]
                .into_iter()
                .find(|said| said.contains("pinfold.io/cpus"));
            let said = said.with_context(|| format!("the status has no reason: {state}"))?;
            Ok(said.to_owned())
        })
        .await?;
    ensure!(
        said.contains("Burstable"),
        "the refusal does not name the obstacle: {said}"
    );
    let log = site.reading("train", "main").await;
    ensure!(
        log.map_or(true, |reading| reading.cpus.is_empty()),
        "the refused container has run"
    );
    Ok(Verdict::Passed(
        "the pod's status names the reason".to_owned(),
    ))
}
