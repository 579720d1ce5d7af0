//! `pinfold release --cluster`: what a Node has of ours at the API server.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::super::api_failure::explained;
use crate::agent::config;
use crate::cluster::connect::{connect, host_name, node_name};
use crate::cluster::{Api, ErrorKind, Failure, scenes};
use crate::scene::ScenePlan;

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Whether and for which Node the command removes labels and claims.
#[derive(Debug, Args)]
pub(super) struct SceneReleaseArgs {
    /// Also remove the Node's scene labels, taint and claims.
    #[arg(long)]
    cluster: bool,
    /// Remove only the labels, taint and claims, and leave this machine's CPUs alone; needs no root.
    #[arg(long)]
    cluster_only: bool,
}

/// The removed labels, taints and claims, and the Node.
#[derive(Debug, serde::Serialize)]
pub(super) struct NodeRemoval {
    node: String,
    #[serde(flatten)]
    found: Value,
    #[serde(skip)]
    lines: Vec<String>,
}

// === impl SceneReleaseArgs ===

impl SceneReleaseArgs {
    pub(super) fn only(&self) -> bool {
        self.cluster_only
    }

    pub(super) fn wanted(&self) -> bool {
        self.cluster
    }

    /// Takes it off.
    pub(super) fn leave(
        &self,
        dry_run: bool,
        config: &config::ClusterConfig,
    ) -> anyhow::Result<NodeRemoval> {
        let name = node_name(config.node_name.as_deref(), None, host_name().as_deref())?;
        let runtime = super::super::run::runtime()?;
        runtime.block_on(async {
            let way = connect(config.kubeconfig.as_deref(), |key| std::env::var(key).ok()).await?;
            let api = Api::new(way.client.clone(), DEADLINE);
            let leaving = async {
                let plans = plans(&api).await?;
                scenes::leave(&api, &name, &config.namespace, &plans, dry_run).await
            };
            let left = leaving.await.map_err(|failure| {
                let doing = format!(
                    "labels and claims of Node {name} may remain at {} (by {})",
                    way.server, way.origin
                );
                let rights = "allow the account get and patch on nodes, and list, get and delete on leases, or name a \
                              different --kubeconfig";
                explained(&failure, &doing, rights)
            })?;
            // Under a wrong name, the command would leave everything, and report a complete
            // release.
            anyhow::ensure!(
                left.node || config.node_name.is_some(),
                "the Node {name} does not exist, and {name} is this machine's host name: name the Node with --node-name or \
                 NODE_NAME"
            );
            anyhow::Ok(NodeRemoval::new(name.clone(), &left))
        })
        .context("the release in the cluster is incomplete")
    }
}

/// Plans may define other taint keys. Without plans, only taints with the default keys are removed.
async fn plans(api: &Api) -> Result<Vec<ScenePlan>, Failure> {
    let plans = match scenes::plans(api).await {
        Ok(plans) => plans,
        // Without the custom resource definition, there are no plans.
        Err(failure) if failure.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(failure) if failure.kind() == ErrorKind::Forbidden => {
            tracing::warn!(
                "can't read the plans, so a taint with a key from a plan may remain: {failure}"
            );
            return Ok(Vec::new());
        }
        Err(failure) => return Err(failure),
    };
    let read = plans.into_iter().filter_map(|plan| {
        let name = plan
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned();
        let read: Result<ScenePlan, _> = serde_json::from_value(plan);
        if let Err(error) = &read {
            tracing::warn!("can't read plan {name}, so its taint may remain: {error}");
        }
        read.ok()
    });
    Ok(read.collect())
}

// === impl NodeRemoval ===

impl NodeRemoval {
    fn new(node: String, left: &scenes::RemovedItems) -> Self {
        let labels = left
            .labels
            .iter()
            .map(|(key, value)| format!("label {key}={value}"));
        let taints = left.taints.iter().map(|taint| format!("taint {taint}"));
        let claims = left.claims.iter().map(|claim| format!("claim {claim}"));
        let mut lines: Vec<String> = labels.chain(taints).chain(claims).collect();
        if !left.node {
            lines.push(format!(
                "the Node {node} does not exist: Kubernetes deletes its claims with the Node"
            ));
        }
        let found = json!({ "exists": left.node, "labels": left.labels, "taints": left.taints, "claims": left.claims });
        Self { node, found, lines }
    }

    pub(super) fn lines(&self, dry_run: bool) -> Vec<String> {
        let done = if dry_run {
            "would be removed from"
        } else {
            "removed from"
        };
        if self.lines.is_empty() {
            return vec![format!(
                "Node {} has no labels, taints or claims of Pinfold",
                self.node
            )];
        }
        let lines = self.lines.iter().map(|line| format!("  {line}"));
        std::iter::once(format!("{done} Node {}:", self.node))
            .chain(lines)
            .collect()
    }
}
