//! The agent's decisions about a plan: the wanted slot, and whether the node may give up its present slot.
//!
//! Missing data never removes labels: callers pass [`duty`] all plans and a node, and only after a complete read.

use super::{
    Holding, LabelKeys, NoSuchCase, Node, OnBusy, ScenePlan, Slot, Slots, is_candidate, slots,
    try_order,
};
use crate::text::counted;

/// The slot that a node wants by a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedSlot {
    /// No slot: labels with the plan's keys and the node's claims are removed.
    Nothing { reason: String },
    /// A slot without a claim: the plan lists its nodes by name.
    Slot(Slot),
    /// A slot of the list. [`WantedSlot::order`] gives the order of the tries, and the first successful claim decides.
    Claim(Slots),
}

/// What a node is to have by all plans together.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotDuty<'a> {
    /// No plan wants the node: labels and claims of former plans are removed.
    Free { reason: String },
    /// One plan wants the node, for a slot or for a claim.
    Of(&'a ScenePlan, WantedSlot),
    /// Several active plans want the node. The node stays unchanged until the plans are corrected.
    Disputed { plans: Vec<String> },
}

/// Whether a node gives up its slot now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchDecision {
    Change {
        reason: String,
    },
    /// Keep the old labels, and ask again when a pod has ended.
    Wait {
        reason: String,
    },
    /// Keep the old labels until the plan is changed again.
    Refuse {
        reason: String,
    },
}

/// A node's slot by all existing plans. They decide together: a plan without the node takes nothing
/// away that another plan gives.
///
/// Fails if a plan with the node as a candidate names an unknown active case. The node then stays unchanged.
pub fn duty<'a>(plans: &'a [ScenePlan], node: &Node) -> Result<SlotDuty<'a>, NoSuchCase> {
    let mut wanted = Vec::new();
    let mut why = None;
    for plan in plans {
        match want(plan, node)? {
            // A plan that selects the node gives the better reason.
            WantedSlot::Nothing { reason } if why.is_none() || is_candidate(plan, node) => {
                why = Some(reason);
            }
            WantedSlot::Nothing { .. } => {}
            want => wanted.push((plan, want)),
        }
    }
    if wanted.len() > 1 {
        let plans = wanted
            .into_iter()
            .map(|(plan, _)| plan.metadata.name.clone().unwrap_or_default())
            .collect();
        return Ok(SlotDuty::Disputed { plans });
    }
    Ok(match wanted.pop() {
        Some((plan, want)) => SlotDuty::Of(plan, want),
        None => SlotDuty::Free {
            reason: why.unwrap_or_else(|| "there is no plan".to_owned()),
        },
    })
}

/// The slot that a node wants by a plan.
///
/// Fails if the node is a candidate and the plan lacks the active case. The node then stays unchanged.
pub fn want(plan: &ScenePlan, node: &Node) -> Result<WantedSlot, NoSuchCase> {
    let nothing = |reason: String| Ok(WantedSlot::Nothing { reason });
    let Some(active) = &plan.spec.active else {
        return nothing("the plan has no active case".to_owned());
    };
    if !is_candidate(plan, node) {
        return nothing("the node is not a candidate of the plan".to_owned());
    }
    let slots = slots(plan, &active.scene, &active.case)?;
    let Some(names) = &plan.spec.nodes.names else {
        return Ok(WantedSlot::Claim(slots));
    };
    let place = names
        .iter()
        .position(|name| *name == node.name)
        .and_then(|place| slots.get(place));
    match place {
        Some(slot) => Ok(WantedSlot::Slot(slot)),
        None => nothing(format!(
            "scene {} case {} has {}, but the node is further down in the plan's list",
            active.scene,
            active.case,
            counted(slots.len(), "server")
        )),
    }
}

/// Whether a node may give up its slot now, by the plan's rule.
///
/// `has` describes the slot in words. `pods` names the node's pods that depend on the slot: their node selector or
/// required affinity has keys of the labels to remove.
pub fn switch(rule: OnBusy, has: &str, pods: &[String]) -> SwitchDecision {
    let Some(first) = pods.first() else {
        return SwitchDecision::Change {
            reason: format!("no pod here needs the labels of {has}"),
        };
    };
    let running = match pods.len() {
        1 => format!("pod {first} still runs here and needs the labels of {has}"),
        many => {
            format!("{many} pods still run here and need the labels of {has}, for example {first}")
        }
    };
    match rule {
        OnBusy::Force => SwitchDecision::Change {
            reason: format!("{running}, but the plan has onBusy: force"),
        },
        OnBusy::Wait => SwitchDecision::Wait { reason: running },
        OnBusy::Refuse => SwitchDecision::Refuse {
            reason: format!(
                "{running}, and the plan has onBusy: refuse; end the pods or change onBusy, then set the case again"
            ),
        },
    }
}

// === impl WantedSlot ===

impl WantedSlot {
    /// The positions among `slots` in the order of a node's claims. The slot of the node's labels
    /// comes first, or `last`, the node's known former slot. The others follow, spread by the
    /// node's name.
    pub fn order(
        slots: &Slots,
        keys: &LabelKeys,
        node: &Node,
        last: Option<&Slot>,
    ) -> impl Iterator<Item = usize> + use<> {
        let held = match keys.read(&node.labels) {
            Holding::Slot(slot) => Some(slot),
            Holding::Nothing | Holding::Broken { .. } => None,
        };
        let place = held.as_ref().and_then(|slot| slots.position(slot));
        let place = place.or_else(|| last.and_then(|slot| slots.position(slot)));
        try_order(slots.len(), &node.name, place)
    }
}
