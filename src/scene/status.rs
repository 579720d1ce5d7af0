//! [`status`]: how the labels that nodes carry compare with a case.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Holding, Node, OnBusy, ScenePlan, Slot, Slots, assign::candidates, node::natural,
    slots as slots_of_case,
};

/// How the labels on nodes compare with a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseStatus {
    /// All slots, each with the names of the nodes that carry its labels.
    pub slots: Vec<(Slot, Vec<String>)>,
    /// Nodes that keep the labels of a slot until its pods have ended, each with that slot: the plan has another case now, or
    /// does not want the node any more.
    pub waiting: Vec<(String, Slot)>,
    /// Candidates whose labels name no slot of the case for another reason, each with the mistake.
    pub mismatches: Vec<(String, String)>,
    /// Candidates without any of the plan's labels.
    pub spare: Vec<String>,
}

/// Compares the labels on nodes with a case of a plan. A node outside the candidates counts if it
/// carries the labels of a slot, because pods would be scheduled to it.
pub fn status(plan: &ScenePlan, slots: &Slots, nodes: &[Node]) -> CaseStatus {
    let mut holders: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let (mut waiting, mut mismatches, mut spare) = (Vec::new(), Vec::new(), Vec::new());
    let mut all: Vec<&Node> = nodes.iter().collect();
    all.sort_by(|a, b| natural(&a.name, &b.name));
    let chosen = candidates(plan, nodes);
    let names: BTreeSet<&str> = chosen.iter().map(|node| node.name.as_str()).collect();
    for node in all {
        let candidate = names.contains(node.name.as_str());
        match plan.spec.labels.read(&node.labels) {
            Holding::Slot(slot) => {
                if let Some(place) = slots.position(&slot) {
                    holders.entry(place).or_default().push(node.name.clone());
                }
                match compare(plan, slots, node, &slot, candidate) {
                    Comparison::Fits => {}
                    Comparison::Waits => waiting.push((node.name.clone(), slot)),
                    Comparison::Differs(why) => mismatches.push((node.name.clone(), why)),
                }
            }
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
        waiting,
        mismatches,
        spare,
    }
}

/// How a node with the labels of a slot compares with the case.
enum Comparison {
    /// The node has a slot of the case, or is no business of the plan.
    Fits,
    /// The node keeps the slot until its pods have ended.
    Waits,
    /// The labels are wrong, with the reason.
    Differs(String),
}

fn compare(
    plan: &ScenePlan,
    slots: &Slots,
    node: &Node,
    slot: &Slot,
    is_candidate: bool,
) -> Comparison {
    let is_of_case = slots.position(slot).is_some();
    let is_of_plan = is_of_case
        || slots_of_case(plan, &slot.scene, &slot.case)
            .is_ok_and(|slots| slots.position(slot).is_some());
    // The nodes follow the active case, which need not be the compared one.
    let is_active = plan
        .spec
        .active
        .as_ref()
        .is_some_and(|active| active.scene == slots.scene() && active.case == slots.case());
    let is_switching =
        is_candidate && !is_of_case && is_active && plan.spec.on_busy == OnBusy::Wait;
    if is_of_plan && (node.is_leaving() || is_switching) {
        return Comparison::Waits;
    }
    match (is_candidate, is_of_case) {
        (true, true) | (false, false) => Comparison::Fits,
        (false, true) => Comparison::Differs(format!(
            "has the labels of {slot}, but is not a candidate of the plan"
        )),
        (true, false) if is_of_plan => Comparison::Differs(format!(
            "has the labels of {slot}, another case of the plan"
        )),
        (true, false) => Comparison::Differs(format!(
            "has the labels of {slot}, which the plan does not have"
        )),
    }
}

// === impl CaseStatus ===

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

    /// The slot whose labels a node keeps until its pods have ended.
    pub fn kept_by(&self, node: &str) -> Option<&Slot> {
        let mut waiting = self.waiting.iter();
        waiting.find(|(name, _)| name == node).map(|(_, slot)| slot)
    }

    /// Whether each slot has exactly one node, and no candidate has a label of another slot.
    pub fn is_well(&self) -> bool {
        self.waiting.is_empty()
            && self.mismatches.is_empty()
            && self.slots.iter().all(|(_, nodes)| nodes.len() == 1)
    }
}
