//! Plans and nodes as they are in the cluster now, for commands.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::params::ListParams;
use kube::core::request;
use serde::Deserialize;
use serde_json::Value;

use super::plans::list;
use crate::cluster::{Api, Call, Failure};
use crate::scene::Node;

/// Nodes of a page: a Node of a large cluster has 20 kB and more.
const PAGE: u32 = 500;

#[derive(Deserialize)]
struct Page {
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<Value>,
}

/// All ScenePlans, as the server sends them.
///
/// # Errors
/// Any [`Failure`]; 404 where they are not defined.
pub async fn plans(api: &Api) -> Result<Vec<Value>, Failure> {
    Ok(list(api).await?.0)
}

/// All Nodes.
///
/// # Errors
/// Any [`Failure`]; a Node that can't be read is one, since nobody could say who has which slot without it.
pub async fn nodes(api: &Api) -> Result<Vec<Node>, Failure> {
    let (mut nodes, mut token) = (Vec::new(), None);
    loop {
        let params = ListParams {
            limit: Some(PAGE),
            continue_token: token,
            ..ListParams::default()
        };
        let request = request::Request::new("/api/v1/nodes").list(&params);
        let request = request.map_err(|error| Failure::Nonsense(error.to_string()))?;
        let page: Page = api.ask(Call::ListNodes, request).await?;
        if page.kind != "NodeList" {
            return Err(Failure::Nonsense(format!(
                "a {} instead of a NodeList",
                page.kind
            )));
        }
        for item in page.items {
            let name = item
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or("?")
                .to_owned();
            let node: Node = serde_json::from_value(item)
                .map_err(|error| Failure::Nonsense(format!("Node {name}: {error}")))?;
            nodes.push(node);
        }
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(nodes);
        }
    }
}
