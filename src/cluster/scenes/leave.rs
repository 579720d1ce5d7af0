//! [`leave`]: removes Pinfold's labels, taints and claims from a Node.

use std::collections::BTreeMap;

use super::decide::is_our_taint;
use crate::cluster::claims::{ClaimOwner, ClaimSettings, Claims};
use crate::cluster::own_node::{self, ApplyOutcome, OwnNode};
use crate::cluster::{Api, Failure};
use crate::scene::ScenePlan;

/// The maximum number of reads of a Node that changes concurrently.
const TRIES: usize = 5;

/// The removed items, or with a dry run the items to remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemovedItems {
    /// Whether the Node exists.
    pub node: bool,
    /// The labels' keys and values.
    pub labels: BTreeMap<String, String>,
    /// Taints, as `key=value:effect`.
    pub taints: Vec<String>,
    /// The names of the Leases.
    pub claims: Vec<String>,
}

/// Removes Pinfold's applied labels, taints and claims from a Node. With `dry_run`, only returns
/// them.
///
/// A taint belongs to Pinfold if its key has Pinfold's prefix, or if a plan in `plans` has the same
/// taint. Labels and taints of other origin stay. The function is idempotent, but a running agent
/// would restore everything.
///
/// # Errors
/// Any [`Failure`]; completed removals stay.
pub async fn leave(
    api: &Api,
    name: &str,
    namespace: &str,
    plans: &[ScenePlan],
    dry_run: bool,
) -> Result<RemovedItems, Failure> {
    let mut left = RemovedItems::default();
    for _ in 0..TRIES {
        // Kubernetes deletes the claims of a deleted Node.
        let Some(node) = own_node::read(api, name).await? else {
            return Ok(left);
        };
        let owner = ClaimOwner {
            node: name.to_owned(),
            uid: node.uid.clone(),
        };
        let claims = Claims::new(api.clone(), namespace, owner, ClaimSettings::default());
        let mine = claims.mine().await?;
        if !left.node {
            left = found(&node, mine.iter().cloned().collect(), plans);
        }
        if dry_run {
            return Ok(left);
        }
        // A failed removal, for example without permission, does not stop the others.
        let (changed, mut failed) = remove_labels_and_taints(api, &node, plans).await;
        if changed {
            continue;
        }
        for claim in &mine {
            failed = failed.or(claims.release(claim).await.err());
        }
        return failed.map_or(Ok(left), Err);
    }
    Err(Failure::InvalidResponse(format!(
        "Node {name} changes too fast: stop the agent on it first"
    )))
}

/// Removes labels and taints. Returns whether the Node has changed since the read, and the first failure.
async fn remove_labels_and_taints(
    api: &Api,
    node: &OwnNode,
    plans: &[ScenePlan],
) -> (bool, Option<Failure>) {
    let (own_taints, others): (Vec<_>, Vec<_>) = node
        .taints
        .iter()
        .cloned()
        .partition(|taint| is_our_taint(taint, plans));
    let (mut now, mut failed) = (node.clone(), None);
    if !own_taints.is_empty() {
        match own_node::set_taints(api, node, &others).await {
            Ok(ApplyOutcome::Done(node)) => now = *node,
            Ok(ApplyOutcome::Gone | ApplyOutcome::Replaced | ApplyOutcome::Conflict(_)) => {
                return (true, None);
            }
            Err(failure) => failed = Some(failure),
        }
    }
    if !now.own_labels.is_empty() {
        match own_node::apply(api, &now, &BTreeMap::new()).await {
            Ok(ApplyOutcome::Done(_)) => {}
            Ok(ApplyOutcome::Gone | ApplyOutcome::Replaced | ApplyOutcome::Conflict(_)) => {
                return (true, failed);
            }
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    (false, failed)
}

fn found(node: &OwnNode, claims: Vec<String>, plans: &[ScenePlan]) -> RemovedItems {
    let labels = node
        .labels
        .iter()
        .filter(|(key, _)| node.own_labels.contains(*key));
    let taints = node
        .taints
        .iter()
        .filter(|taint| is_our_taint(taint, plans));
    RemovedItems {
        node: true,
        labels: labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        taints: taints
            .map(|taint| match taint.value.as_deref() {
                Some(value) if !value.is_empty() => {
                    format!("{}={value}:{}", taint.key, taint.effect)
                }
                _ => format!("{}:{}", taint.key, taint.effect),
            })
            .collect(),
        claims,
    }
}
