//! [`several_claims`]: the nodes that hold several claims of a case.
//!
//! A node gets one slot of a case, so only one of its claims counts. An agent seldom makes a second, for example after a lost
//! answer of the API server, and then gives one up itself. The thief of an agent's token may claim every free slot.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holding, LabelKeys, Node, ScenePlan, Slots};

/// The claims of a node that holds several claims of a case, by the names of the Leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeveralClaims {
    /// The claim that counts: the one on the slot that the node's labels name, else the first by
    /// name. An agent without labels and without a former slot chooses the same.
    pub counts: String,
    /// All other claims of the node.
    pub surplus: BTreeSet<String>,
}

/// The nodes that hold several claims of a case. `claims` are the nodes by the name of the Lease; claims of other cases do not
/// matter, because a node that changes its slot holds a claim of each case for as long as its pods run. An explicit list of nodes
/// needs no claims, so that a plan with such a list has none.
pub fn several_claims<'a>(
    plan: &ScenePlan,
    slots: &Slots,
    nodes: &[Node],
    claims: &'a BTreeMap<String, String>,
) -> BTreeMap<&'a str, SeveralClaims> {
    if plan.spec.nodes.names.is_some() {
        return BTreeMap::new();
    }
    let plan_name = plan.metadata.name.as_deref().unwrap_or_default();
    // A set, since two groups of one type would have the same slots.
    let mut held: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for slot in slots.iter() {
        let lease = slot.lease_name(plan_name);
        if let Some(node) = claims.get(&lease).filter(|node| !node.is_empty()) {
            held.entry(node).or_default().insert(lease);
        }
    }
    held.retain(|_, leases| leases.len() > 1);
    if held.is_empty() {
        return BTreeMap::new();
    }
    // Labels from before the addition of an alias still name the slot.
    let keys = LabelKeys {
        aliases: BTreeMap::new(),
        ..plan.spec.labels.clone()
    };
    let labels: BTreeMap<&str, &BTreeMap<String, String>> = nodes
        .iter()
        .map(|node| (node.name.as_str(), &node.labels))
        .collect();
    let in_order = |(node, mut surplus): (&'a str, BTreeSet<String>)| {
        let labelled = labels
            .get(node)
            .and_then(|labels| match keys.read(labels) {
                Holding::Slot(slot) => Some(slot.lease_name(plan_name)),
                Holding::Nothing | Holding::Broken { .. } => None,
            })
            .and_then(|lease| surplus.take(&lease));
        let counts = labelled.or_else(|| surplus.pop_first())?;
        Some((node, SeveralClaims { counts, surplus }))
    };
    held.into_iter().filter_map(in_order).collect()
}
