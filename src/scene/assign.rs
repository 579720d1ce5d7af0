//! [`assign`]: which node has which slot, for a given list of nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::node::natural;
use super::{Holding, Node, ScenePlan, Slot, Slots};

/// The nodes of the slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The slots in order, each with the name of its node.
    pub given: Vec<(Slot, Option<String>)>,
    /// Candidates without a slot, in the order of their names.
    pub spare: Vec<String>,
    /// Names of the plan's explicit list without a node. Their slots stay empty.
    pub absent: Vec<String>,
}

/// Gives the slots of a case to nodes. The result does not depend on the order of the nodes.
///
/// An explicit list gives the slots in its order. Otherwise a candidate with the labels of a slot
/// keeps it, as a restarted agent would; of several candidates with the same labels, the first by
/// name does. The others take the free slots in natural order of their names. A cordoned node gets
/// no new slot.
pub fn assign(plan: &ScenePlan, slots: &Slots, nodes: &[Node]) -> Assignment {
    let mut holders: BTreeMap<usize, &str> = BTreeMap::new();
    let mut absent = Vec::new();
    if let Some(names) = &plan.spec.nodes.names {
        let known: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        for (position, name) in names.iter().enumerate().take(slots.len()) {
            match known.get(name.as_str()) {
                Some(name) => drop(holders.insert(position, name)),
                None => absent.push(name.clone()),
            }
        }
    } else {
        let candidates = candidates(plan, nodes);
        let mut waiting = Vec::new();
        for node in candidates {
            let place = match plan.spec.labels.read(&node.labels) {
                Holding::Slot(slot) => slots.position(&slot),
                Holding::Nothing | Holding::Broken { .. } => None,
            };
            match place.filter(|place| !holders.contains_key(place)) {
                Some(place) => drop(holders.insert(place, &node.name)),
                None if node.cordoned => {}
                None => waiting.push(node.name.as_str()),
            }
        }
        let free: Vec<usize> = (0..slots.len())
            .filter(|place| !holders.contains_key(place))
            .collect();
        holders.extend(free.into_iter().zip(waiting));
    }
    let holding: BTreeSet<&str> = holders.values().copied().collect();
    let spare = candidates(plan, nodes).into_iter().map(|node| &node.name);
    Assignment {
        spare: spare
            .filter(|name| !holding.contains(name.as_str()))
            .cloned()
            .collect(),
        given: slots
            .iter()
            .enumerate()
            .map(|(place, slot)| (slot, holders.get(&place).map(|&name| name.to_owned())))
            .collect(),
        absent,
    }
}

/// The nodes that a plan may label, in the order of an explicit list, or else by name.
pub fn candidates<'a>(plan: &ScenePlan, nodes: &'a [Node]) -> Vec<&'a Node> {
    if let Some(names) = &plan.spec.nodes.names {
        let known: BTreeMap<&str, &Node> = nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        return names
            .iter()
            .filter_map(|name| known.get(name.as_str()).copied())
            .collect();
    }
    let mut chosen: Vec<&Node> = nodes
        .iter()
        .filter(|node| is_candidate(plan, node))
        .collect();
    chosen.sort_by(|a, b| natural(&a.name, &b.name));
    chosen
}

/// Whether a plan may label a node.
pub fn is_candidate(plan: &ScenePlan, node: &Node) -> bool {
    match (&plan.spec.nodes.names, &plan.spec.nodes.selector) {
        (Some(names), _) => names.contains(&node.name),
        (None, Some(selector)) => selector.matches(&node.labels),
        (None, None) => false,
    }
}
