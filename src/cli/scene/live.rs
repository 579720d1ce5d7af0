//! `--live`: plans, nodes and claims of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::super::api_failure::explained;
use crate::agent::config;
use crate::cluster::claims::{ClaimOwner, ClaimSettings, Claims, Holder};
use crate::cluster::connect::{Connection, connect_user};
use crate::cluster::{Api, ErrorKind, Failure, scenes};
use crate::scene::{Document, Node, ScenePlan, Slots, read, several_claims};

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Whether to ask the cluster, and which.
#[derive(Debug, Args)]
pub(super) struct LiveArgs {
    /// Read nodes and claims from the cluster, and also the plans if no file is given.
    #[arg(long)]
    pub(super) live: bool,
    /// Kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE", requires = "live")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the agents and of their objects [default: pinfold]
    #[arg(long, value_name = "NAMESPACE", requires = "live")]
    agent_namespace: Option<String>,
}

/// What remains of plans in a cluster without a plan.
pub(super) struct Remains {
    /// The holders of the claims, by the Lease's name.
    pub(super) claims: BTreeMap<String, Holder>,
    /// The nodes that give up their slots when their pods have ended.
    pub(super) leaving: BTreeSet<String>,
}

/// The plans, nodes and claims of the cluster.
pub(super) struct LiveCluster {
    /// All its plans.
    pub(super) plans: Vec<Document>,
    /// All its Nodes.
    pub(super) nodes: Vec<Node>,
    /// The holders of the claims, by the Lease's name.
    pub(super) claims: BTreeMap<String, Holder>,
    /// The cluster's address, for people.
    pub(super) origin: String,
}

// === impl LiveArgs ===

impl LiveArgs {
    /// What remains in a cluster without a plan; `None` if a plan exists, or without --live.
    pub(super) fn left_without_plan(&self) -> anyhow::Result<Option<Remains>> {
        if !self.live {
            return Ok(None);
        }
        let runtime = super::super::run::runtime()?;
        runtime.block_on(async {
            let environment = |key: &str| std::env::var(key).ok();
            let way = connect_user(self.kubeconfig.as_deref(), None, environment).await?;
            let api = Api::new(way.client.clone(), DEADLINE);
            match scenes::plans(&api).await {
                Ok(plans) if plans.is_empty() => {}
                // The definition may be gone with the plans.
                Err(failure) if failure.kind() == ErrorKind::NotFound => {}
                Err(failure) => return Err(failed_request(&failure, "sceneplans", &way)),
                Ok(_) => return Ok(None),
            }
            let nodes = scenes::nodes(&api).await;
            let nodes = nodes.map_err(|failure| failed_request(&failure, "nodes", &way))?;
            let leaving = nodes.into_iter().filter(Node::is_leaving);
            let leaving = leaving.map(|node| node.name).collect();
            let claims = self
                .claims(api)
                .await
                .map_err(|failure| failed_request(&failure, "leases", &way))?;
            Ok(Some(Remains { claims, leaving }))
        })
    }

    /// All claims. The owner in the settings does not matter for a list.
    async fn claims(&self, api: Api) -> Result<BTreeMap<String, Holder>, Failure> {
        let usual = config::ClusterConfig::default().namespace;
        let namespace = self.agent_namespace.as_ref().unwrap_or(&usual);
        let nobody = ClaimOwner {
            node: String::new(),
            uid: String::new(),
        };
        Claims::new(api, namespace, nobody, ClaimSettings::default())
            .list()
            .await
    }

    /// The cluster's state; `None` without --live. `plans` and `claims` say whether to fetch these.
    pub(super) fn ask(&self, plans: bool, claims: bool) -> anyhow::Result<Option<LiveCluster>> {
        if !self.live {
            return Ok(None);
        }
        let runtime = super::super::run::runtime()?;
        runtime.block_on(async {
            let environment = |key: &str| std::env::var(key).ok();
            let way = connect_user(self.kubeconfig.as_deref(), None, environment).await?;
            let api = Api::new(way.client.clone(), DEADLINE);
            let way = &way;
            let said =
                |what: &'static str| move |failure: Failure| failed_request(&failure, what, way);
            let plans = if plans {
                documents(scenes::plans(&api).await.map_err(said("sceneplans"))?)?
            } else {
                Vec::new()
            };
            let nodes = scenes::nodes(&api).await.map_err(said("nodes"))?;
            let claims = if claims {
                self.claims(api).await.map_err(said("leases"))?
            } else {
                BTreeMap::new()
            };
            Ok(Some(LiveCluster {
                plans,
                nodes,
                claims,
                origin: way.server.clone(),
            }))
        })
    }
}

// === impl LiveCluster ===

impl LiveCluster {
    /// The Nodes of the claims, by the Lease's name.
    pub(super) fn holders(&self) -> BTreeMap<String, String> {
        let claims = self.claims.iter();
        claims
            .map(|(lease, holder)| (lease.clone(), holder.node.clone()))
            .collect()
    }

    /// The nodes with the labels of their claimed slots, which the agents are about to set. Of a
    /// node's claims, only one counts.
    pub(super) fn claimed(&self, plan: &ScenePlan, slots: &Slots) -> Vec<Node> {
        let mut nodes = self.nodes.clone();
        let by_name: BTreeMap<String, usize> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (node.name.clone(), index))
            .collect();
        let name = plan.metadata.name.as_deref().unwrap_or_default();
        let holders = self.holders();
        let several = several_claims(plan, slots, &self.nodes, &holders);
        for (lease, holder) in &holders {
            if several
                .get(holder.as_str())
                .is_some_and(|of| of.surplus.contains(lease))
            {
                continue;
            }
            let slot = slots.of_lease(name, lease);
            let node = by_name.get(holder).and_then(|index| nodes.get_mut(*index));
            let (Some(slot), Some(node)) = (slot, node) else {
                continue;
            };
            let owned = plan.spec.labels.owned();
            node.labels.retain(|key, _| !owned.contains(key.as_str()));
            node.labels.extend(plan.spec.labels.labels(&slot));
        }
        nodes
    }
}

/// Plans as documents. A plan that can't be read becomes a document with findings.
pub(super) fn documents(objects: Vec<serde_json::Value>) -> anyhow::Result<Vec<Document>> {
    ensure!(
        !objects.is_empty(),
        "the cluster has no ScenePlan: create one with kubectl apply -f PLAN.yaml"
    );
    let mut documents = Vec::new();
    for object in objects {
        let name = object
            .pointer("/metadata/name")
            .and_then(|name| name.as_str())
            .unwrap_or("?")
            .to_owned();
        let origin = format!("sceneplan/{name}");
        match serde_json::from_value::<ScenePlan>(object.clone()) {
            Ok(plan) => documents.push(Document::from_plan(&origin, plan)),
            Err(_) => documents.extend(read(&object.to_string(), &origin)?),
        }
    }
    Ok(documents)
}

/// A failure with the remedy.
fn failed_request(failure: &Failure, what: &str, way: &Connection) -> anyhow::Error {
    let doing = format!("can't list {what} at {} (by {})", way.server, way.origin);
    if failure.kind() == ErrorKind::NotFound && what == "sceneplans" {
        return anyhow::anyhow!(
            "{doing}: {failure}; the cluster has no definition of ScenePlan: install it with pinfold scene crd | kubectl apply -f -"
        );
    }
    let rights = format!("allow your account to list {what}, or name a different kubeconfig");
    explained(failure, &doing, &rights)
}
