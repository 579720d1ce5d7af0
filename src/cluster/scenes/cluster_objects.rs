//! Lists of the cluster's plans and nodes, for commands.

use kube::core::params::ListParams;
use serde_json::Value;

use super::plans::{PLAN_LIST, PLANS};
use crate::cluster::list::{List, list};
use crate::cluster::{Api, Call, Failure};
use crate::scene::Node;

/// The number of plans on a page. The API server accepts objects up to 3 MiB, and an answer may have 64 MiB.
const PLANS_PAGE: u32 = 20;

/// The number of Nodes on a page. A Node of a large cluster has 20 kB and more.
const PAGE: u32 = 500;

/// All ScenePlans, as raw JSON.
///
/// # Errors
/// Any [`Failure`]; 404 without the CustomResourceDefinition.
pub async fn plans(api: &Api) -> Result<Vec<Value>, Failure> {
    let params = ListParams::default().limit(PLANS_PAGE);
    let wanted = List::new(Call::ListPlans, PLANS, PLAN_LIST).with(params);
    let mut plans = Vec::new();
    list(api, wanted, |plan| {
        plans.push(serde_json::from_str(plan.get()).map_err(Failure::invalid)?);
        Ok(())
    })
    .await?;
    Ok(plans)
}

/// All Nodes.
///
/// # Errors
/// Any [`Failure`]. An unreadable Node is also a failure, since the nodes of the slots would be incomplete.
pub async fn nodes(api: &Api) -> Result<Vec<Node>, Failure> {
    let params = ListParams::default().limit(PAGE);
    let wanted = List::new(Call::ListNodes, "/api/v1/nodes", "NodeList").with(params);
    let mut nodes = Vec::new();
    list(api, wanted, |item| {
        let item: Value = serde_json::from_str(item.get()).map_err(Failure::invalid)?;
        let name = item
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned();
        let node: Node = serde_json::from_value(item)
            .map_err(|error| Failure::InvalidResponse(format!("Node {name}: {error}")))?;
        nodes.push(node);
        Ok(())
    })
    .await?;
    Ok(nodes)
}
