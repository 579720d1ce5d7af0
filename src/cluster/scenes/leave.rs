//! [`leave`]: takes everything of ours off a Node.

use std::collections::BTreeMap;

use super::decide::is_our_taint;
use crate::cluster::claims::{Claims, Owner, Settings};
use crate::cluster::node::{self, Applied, OwnNode};
use crate::cluster::{Api, Failure};
use crate::scene::ScenePlan;

/// How often a Node that changes under our hands is read again.
const TRIES: usize = 5;

/// What was taken off, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Left {
    /// Whether there is such a Node at all.
    pub node: bool,
    /// Labels, with their values.
    pub labels: BTreeMap<String, String>,
    /// Taints, as `key=value:effect`.
    pub taints: Vec<String>,
    /// Names of the Leases.
    pub claims: Vec<String>,
}

/// Takes the labels that we applied, our taints and our claims off a Node; with `dry_run`, only says which they are.
///
/// Taints are ours by their key, or because one of `plans` asks for them. What somebody else has set stays. Doing it twice
/// is the same as once; a running agent would put everything back.
///
/// # Errors
/// Any [`Failure`]; what was done until then is done.
pub async fn leave(
    api: &Api,
    name: &str,
    namespace: &str,
    plans: &[ScenePlan],
    dry_run: bool,
) -> Result<Left, Failure> {
    let mut left = Left::default();
    for _ in 0..TRIES {
        // A Node that is gone has taken its claims with it.
        let Some(node) = node::read(api, name).await? else {
            return Ok(left);
        };
        let owner = Owner {
            node: name.to_owned(),
            uid: node.uid.clone(),
        };
        let claims = Claims::new(api.clone(), namespace, owner, Settings::default());
        let mine = claims.mine().await?;
        if !left.node {
            left = found(&node, mine.iter().cloned().collect(), plans);
        }
        if dry_run {
            return Ok(left);
        }
        // One right that is missing keeps nothing else from going.
        let (changed, mut failed) = take_off(api, &node, plans).await;
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

/// Takes labels and taints off: whether the Node has changed since it was read, and what failed first.
async fn take_off(api: &Api, node: &OwnNode, plans: &[ScenePlan]) -> (bool, Option<Failure>) {
    let (ours, others): (Vec<_>, Vec<_>) = node
        .taints
        .iter()
        .cloned()
        .partition(|taint| is_our_taint(taint, plans));
    let (mut now, mut failed) = (node.clone(), None);
    if !ours.is_empty() {
        match node::set_taints(api, node, &others).await {
            Ok(Applied::Done(node)) => now = *node,
            Ok(Applied::Gone | Applied::Replaced | Applied::Conflict(_)) => return (true, None),
            Err(failure) => failed = Some(failure),
        }
    }
    if !now.ours.is_empty() {
        match node::apply(api, &now, &BTreeMap::new()).await {
            Ok(Applied::Done(_)) => {}
            Ok(Applied::Gone | Applied::Replaced | Applied::Conflict(_)) => return (true, failed),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    (false, failed)
}

fn found(node: &OwnNode, claims: Vec<String>, plans: &[ScenePlan]) -> Left {
    let labels = node
        .labels
        .iter()
        .filter(|(key, _)| node.ours.contains(*key));
    let taints = node
        .taints
        .iter()
        .filter(|taint| is_our_taint(taint, plans));
    Left {
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
