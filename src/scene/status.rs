//! [`status`]: how the labels that nodes carry compare with a case.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holding, Node, ScenePlan, Slot, Slots, assign::candidates, node::natural};

/// How the labels on nodes compare with a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseStatus {
    /// All slots, each with the names of the nodes that carry its labels.
    pub slots: Vec<(Slot, Vec<String>)>,
    /// Candidates whose labels name no slot of the case, each with the mistake.
    pub mismatches: Vec<(String, String)>,
    /// Candidates without any of the plan's labels.
    pub spare: Vec<String>,
}

/// Compares the labels on nodes with a case of a plan. A node outside the candidates counts if the node carries the
/// labels of a slot, since pods would be scheduled to the node.
pub fn status(plan: &ScenePlan, slots: &Slots, nodes: &[Node]) -> CaseStatus {
    let mut holders: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut mismatches = Vec::new();
    let mut spare = Vec::new();
    let mut all: Vec<&Node> = nodes.iter().collect();
    all.sort_by(|a, b| natural(&a.name, &b.name));
    let chosen = candidates(plan, nodes);
    let names: BTreeSet<&str> = chosen.iter().map(|node| node.name.as_str()).collect();
    for node in all {
        let candidate = names.contains(node.name.as_str());
        match plan.spec.labels.read(&node.labels) {
            Holding::Slot(slot) => match slots.position(&slot) {
                Some(place) => {
                    holders.entry(place).or_default().push(node.name.clone());
                    if !candidate {
                        mismatches.push((
                            node.name.clone(),
                            format!("has the labels of {slot}, but is not a candidate of the plan"),
                        ));
                    }
                }
                None if candidate => {
                    mismatches.push((
                        node.name.clone(),
                        format!("has the labels of {slot}, which the case does not have"),
                    ));
                }
                None => {}
            },
            Holding::Broken { reason } if candidate => mismatches.push((node.name.clone(), reason)),
            Holding::Broken { .. } | Holding::Nothing => {}
        }
    }
    for node in chosen {
        if plan.spec.labels.of(&node.labels).is_empty() {
            spare.push(node.name.clone());
        }
    }
    let slots = slots.iter().enumerate();
    CaseStatus {
        slots: slots
            .map(|(place, slot)| (slot, holders.remove(&place).unwrap_or_default()))
            .collect(),
        mismatches,
        spare,
    }
}

// === impl Status ===

impl CaseStatus {
    /// The slots without a node.
    pub fn missing(&self) -> impl Iterator<Item = &Slot> {
        self.slots
            .iter()
            .filter(|(_, nodes)| nodes.is_empty())
            .map(|(slot, _)| slot)
    }

    /// The slots with several nodes.
    pub fn double(&self) -> impl Iterator<Item = (&Slot, &[String])> {
        self.slots
            .iter()
            .filter(|(_, nodes)| nodes.len() > 1)
            .map(|(slot, nodes)| (slot, nodes.as_slice()))
    }

    /// The slots with exactly one node.
    pub fn claimed(&self) -> impl Iterator<Item = (&Slot, &str)> {
        self.slots
            .iter()
            .filter_map(|(slot, nodes)| match nodes.as_slice() {
                [node] => Some((slot, node.as_str())),
                _ => None,
            })
    }

    /// Whether each slot has exactly one node, and no candidate has a label of a different slot.
    pub fn is_well(&self) -> bool {
        self.mismatches.is_empty() && self.slots.iter().all(|(_, nodes)| nodes.len() == 1)
    }
}
