//! Scenes: labels and claims of the active case, a change of the case, taints and conflicts.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::text;
use crate::report::Verdict;
use crate::scene::{
    self, OTHER_MANAGER, SCENE, apply, claims, has_labels, label_node, labelled, phase, plan,
};
use crate::site::Site;

/// The time in which labels must not change.
const QUIET: Duration = Duration::from_secs(8);

/// The node gets the slot of the active case, and gives it up without one.
pub(super) async fn labels(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    apply(site, &plan(site, Some("1"), "wait")).await?;
    labelled(site, Some("1")).await?;
    phase(site, "placed").await?;
    let held = claims(site).await?;
    ensure!(held.len() == 1, "the plan has {} claims", held.len());
    let (claim, owner) = (&held[0], &held[0]["metadata"]["ownerReferences"][0]);
    ensure!(
        claim["spec"]["holderIdentity"] == site.node && owner["name"] == site.node,
        "the claim belongs to another node: {claim}"
    );
    site.start(&site.training_pod("train", 1)).await?;
    if site.status().await?.runtime_asks() {
        let reading = site.environment("train", "main").await?;
        for (name, wanted) in [("SCENCE", SCENE), ("CASE", "1"), ("INDEX", "0")] {
            let value = reading.variable(name)?;
            ensure!(
                value == wanted,
                "{name} is {value} in the pod, and the slot has {wanted}"
            );
        }
    }
    site.end("train").await?;
    apply(site, &plan(site, None, "wait")).await?;
    labelled(site, None).await?;
    site.cluster
        .wait("the claim is gone", async || {
            let left = claims(site).await?.len();
            ensure!(left == 0, "{left} claims are left");
            Ok(())
        })
        .await?;
    Ok(Verdict::Passed(
        "labels and claim of a slot, then none".to_owned(),
    ))
}

/// Starts a pod that needs the label of case 1, with case 1 active.
async fn busy(site: &Site<'_>, on_busy: &str) -> Result<()> {
    apply(site, &plan(site, Some("1"), on_busy)).await?;
    labelled(site, Some("1")).await?;
    let mut pod = site.shared_pod("busy", "10m");
    pod["spec"]["nodeSelector"] = json!({"SCENCE": SCENE, "CASE": "1"});
    site.start(&pod).await
}

/// With `wait`, the labels stay until the pods of the old case have ended.
pub(super) async fn wait(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    busy(site, "wait").await?;
    apply(site, &plan(site, Some("2"), "wait")).await?;
    phase(site, "waiting").await?;
    site.cluster
        .hold("the labels of the old case", QUIET, async || {
            has_labels(site, Some("1")).await
        })
        .await?;
    site.end("busy").await?;
    labelled(site, Some("2")).await?;
    phase(site, "placed").await?;
    Ok(Verdict::Passed("the labels waited for the pod".to_owned()))
}

/// With `force`, the labels change while a pod of the old case runs.
pub(super) async fn force(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    busy(site, "force").await?;
    apply(site, &plan(site, Some("2"), "force")).await?;
    labelled(site, Some("2")).await?;
    let pod = site.existing("Pod", "busy").await?;
    ensure!(
        pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null(),
        "the pod of the old case does not run any more: {}",
        pod["status"]
    );
    Ok(Verdict::Passed(
        "the labels changed, and the pod runs on".to_owned(),
    ))
}

/// With `refuse`, the labels stay after the pod's end, until the plan changes again.
pub(super) async fn refuse(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    busy(site, "refuse").await?;
    apply(site, &plan(site, Some("2"), "refuse")).await?;
    phase(site, "refused").await?;
    site.end("busy").await?;
    site.cluster
        .hold("the labels of the old case", QUIET, async || {
            has_labels(site, Some("1")).await
        })
        .await?;
    apply(site, &plan(site, Some("3"), "refuse")).await?;
    labelled(site, Some("3")).await?;
    Ok(Verdict::Passed(
        "refused, then changed by the next plan".to_owned(),
    ))
}

/// The suite's taint on the Node, if any.
fn tainted(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    let wanted = |taint: &Value| {
        taint["key"] == "pinfold.io/scene" && text(&taint["effect"]) == "NoSchedule"
    };
    taints.is_some_and(|taints| taints.iter().any(wanted))
}

/// A plan's taint keeps pods without a toleration away, and goes with the slot.
pub(super) async fn taint(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    let with_taint = |case: Option<&str>| {
        let mut plan = plan(site, case, "wait");
        plan["spec"]["taint"] = json!({"key": "pinfold.io/scene", "effect": "NoSchedule"});
        plan
    };
    apply(site, &with_taint(Some("1"))).await?;
    labelled(site, Some("1")).await?;
    site.cluster
        .wait("the Node has the taint", async || {
            let node = site.node().await?;
            ensure!(tainted(&node), "the taints are {}", node["spec"]["taints"]);
            Ok(())
        })
        .await?;
    let mut pod = site.shared_pod("stranger", "10m");
    pod["spec"]["tolerations"] = json!([]);
    site.cluster.apply(&pod).await?;
    site.cluster
        .wait(
            "the scheduler keeps a pod without a toleration away",
            async || {
                let pod = site.existing("Pod", "stranger").await?;
                let conditions = pod["status"]["conditions"].as_array();
                let all = conditions.context("the pod has no conditions yet")?;
                let scheduled = all.iter().find(|of| of["type"] == "PodScheduled");
                let scheduled = scheduled.context("the scheduler has not looked at the pod yet")?;
                ensure!(scheduled["reason"] == "Unschedulable", "{scheduled}");
                Ok(())
            },
        )
        .await?;
    apply(site, &with_taint(None)).await?;
    labelled(site, None).await?;
    site.cluster
        .wait("the taint is gone", async || {
            ensure!(
                !tainted(&site.node().await?),
                "the Node still has the taint"
            );
            Ok(())
        })
        .await?;
    site.running("stranger").await?;
    Ok(Verdict::Passed(
        "a pod waited for the end of the taint".to_owned(),
    ))
}

/// A label of another field manager stays, and the agent reports the conflict. The slot follows
/// when the label is gone.
pub(super) async fn conflict(site: &Site<'_>) -> Result<Verdict> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Verdict::Skipped(reason));
    }
    label_node(site, OTHER_MANAGER, &json!({"CASE": "other"})).await?;
    apply(site, &plan(site, Some("1"), "wait")).await?;
    phase(site, "conflict").await?;
    site.cluster
        .hold("the other manager's label", QUIET, async || {
            let node = site.node().await?;
            let case = &node["metadata"]["labels"]["CASE"];
            ensure!(case == "other", "CASE is {case}");
            Ok(())
        })
        .await?;
    label_node(site, OTHER_MANAGER, &json!({})).await?;
    labelled(site, Some("1")).await?;
    phase(site, "placed").await?;
    Ok(Verdict::Passed(
        "reported, left alone, then placed".to_owned(),
    ))
}
