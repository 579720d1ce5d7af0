//! ScenePlans of a case, and the labels, taints and claims that follow.

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{name_of, text};
use crate::site::Site;

/// The API version of a ScenePlan.
pub(crate) const PLANS: &str = "pinfold.io/v1alpha1";

/// The label by which a plan selects the node of a case.
const NODE_LABEL: &str = "pinfold-e2e";

/// The label keys that a case reads.
const KEYS: [&str; 3] = ["SCENCE", "CASE", "INDEX"];

/// The scene of all plans of the suite.
pub(crate) const SCENE: &str = "e2e";

/// A plan for the node with this active case and this rule for busy nodes.
pub(crate) fn plan(site: &Site<'_>, case: Option<&str>, on_busy: &str) -> Value {
    let cases: Vec<Value> = ["1", "2", "3"]
        .iter()
        .map(|case| json!({"case": case, "nodes": {"all": 1}}))
        .collect();
    let mut plan = json!({
        "apiVersion": PLANS, "kind": "ScenePlan", "metadata": {"name": site.namespace},
        "spec": {
            "nodes": {"selector": {"matchLabels": {NODE_LABEL: site.namespace}}}, "onBusy": on_busy,
            "scenes": [{"scene": SCENE, "groups": [{"name": "all"}], "cases": cases}],
        },
    });
    if let Some(case) = case {
        plan["spec"]["active"] = json!({"scene": SCENE, "case": case});
    }
    plan
}

/// Applies a plan, and the label by which it selects the node.
pub(crate) async fn apply(site: &Site<'_>, plan: &Value) -> Result<()> {
    site.has_plan.set(true);
    let labels = json!({NODE_LABEL: site.namespace});
    label_node(site, crate::cluster::MANAGER, &labels).await?;
    site.cluster.apply(plan).await.map(drop)
}

/// Applies the labels of a field manager to the Node. The manager's other labels disappear.
pub(crate) async fn label_node(site: &Site<'_>, manager: &str, labels: &Value) -> Result<()> {
    site.has_plan.set(true);
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": site.node, "labels": labels},
    });
    site.cluster.apply_as(manager, &node).await.map(drop)
}

/// The scene, case and index of the Node's labels; `None` without any of the labels.
pub(crate) async fn labels(site: &Site<'_>) -> Result<Option<[String; 3]>> {
    let node = site.node().await?;
    let labels = &node["metadata"]["labels"];
    let values = KEYS.map(|key| text(&labels[key]).to_owned());
    Ok(values
        .iter()
        .any(|value| !value.is_empty())
        .then_some(values))
}

/// Fails unless the Node has the labels of slot 0 of the case or, with `None`, no label of a scene.
pub(crate) async fn has_labels(site: &Site<'_>, case: Option<&str>) -> Result<()> {
    let wanted = case.map(|case| [SCENE, case, "0"].map(str::to_owned));
    let found = labels(site).await?;
    ensure!(
        found == wanted,
        "the Node has {found:?}, and the plan wants {wanted:?}"
    );
    Ok(())
}

/// Waits until the Node has the labels of slot 0 of the case or, with `None`, no label of a scene.
pub(crate) async fn labelled(site: &Site<'_>, case: Option<&str>) -> Result<()> {
    let what = format!(
        "the labels of Node {} for case {}",
        site.node,
        case.unwrap_or("none")
    );
    site.cluster
        .wait(&what, async || {
            let phase = site.status().await?;
            let scene = &phase.cluster["scene"];
            has_labels(site, case)
                .await
                .with_context(|| format!("{scene}"))
        })
        .await
}

/// Waits for a phase of the node's slot.
pub(crate) async fn phase(site: &Site<'_>, phase: &str) -> Result<()> {
    let what = format!("the phase {phase} of node {}", site.node);
    site.cluster
        .wait(&what, async || {
            let status = site.status().await?;
            ensure!(status.phase() == phase, "{}", status.cluster["scene"]);
            Ok(())
        })
        .await
}

/// The claims of the case's plan.
pub(crate) async fn claims(site: &Site<'_>) -> Result<Vec<Value>> {
    let params = ListParams::default().labels(&format!("pinfold.io/plan={}", site.namespace));
    site.cluster
        .list(
            "coordination.k8s.io/v1",
            "Lease",
            Some(&site.cluster.settings.namespace),
            &params,
        )
        .await
}

/// Why a case about scenes can't run on the node.
pub(crate) async fn lacks(site: &Site<'_>) -> Result<Option<String>> {
    let status = site
        .cluster
        .wait("the node's agent knows the plans", async || {
            let status = site.status().await?;
            let scene = &status.cluster["scene"];
            ensure!(status.phase() != "unknown", "{scene}");
            Ok(status)
        })
        .await?;
    if status.cluster["scene"].is_null() {
        return Ok(Some(
            "the agent does not label the node (cluster.scenes is false)".to_owned(),
        ));
    }
    if status.phase() != "free" {
        let says = text(&status.cluster["scene"]["says"]);
        return Ok(Some(format!(
            "a plan of the cluster already wants the node: {says}"
        )));
    }
    let found = labels(site).await?;
    Ok(found.map(|found| format!("the Node already has labels of a scene: {found:?}")))
}

/// Removes the plan, and the labels of the node that the case has made.
pub(crate) async fn remove(site: &Site<'_>) -> Result<()> {
    let existing = site
        .cluster
        .get(PLANS, "ScenePlan", None, &site.namespace)
        .await?;
    if let Some(existing) = existing {
        // An agent keeps the labels of a deleted plan. A plan without an active case removes the labels.
        site.cluster.apply(&plan(site, None, "force")).await?;
        label_node(site, OTHER_MANAGER, &json!({})).await?;
        labelled(site, None).await?;
        site.cluster
            .delete(PLANS, "ScenePlan", None, name_of(&existing))
            .await?;
    }
    label_node(site, OTHER_MANAGER, &json!({})).await?;
    label_node(site, crate::cluster::MANAGER, &json!({})).await
}

/// The field manager of labels that do not belong to Pinfold.
pub(crate) const OTHER_MANAGER: &str = "pinfold-e2e-other";
