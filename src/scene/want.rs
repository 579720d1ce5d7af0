//! What a node's agent makes of a plan: the slot it wants, and whether it may give up now what it has.
//!
//! Nothing here is a reason to take labels away because something is missing: [`duty`] is only asked with all the plans
//! that were read, and a node whose labels were read.

use super::{
    Holding, LabelKeys, NoSuchCase, Node, OnBusy, ScenePlan, Slot, Slots, is_candidate, slots,
    try_order,
};
use crate::text::counted;

/// What a node wants of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// No slot: labels of the plan's keys are to go, and its claims on the node's behalf with them.
    Nothing {
        /// Why.
        reason: String,
    },
    /// This slot, without a claim: the plan lists its nodes.
    Slot(Slot),
    /// One of these slots; [`Want::order`] says in which order they are tried. The one whose claim succeeds is the node's.
    Claim(Slots),
}

/// What a node is to have by all plans together.
#[derive(Debug, Clone, PartialEq)]
pub enum Duty<'a> {
    /// No plan wants it: labels and claims that plans gave it are to go.
    Free {
        /// Why.
        reason: String,
    },
    /// One plan wants it: a slot, or a claim.
    Of(&'a ScenePlan, Want),
    /// Several active plans want it. It stays as it is until they are corrected.
    Disputed {
        /// Their names.
        plans: Vec<String>,
    },
}

/// Whether a node gives up now what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Switch {
    /// Change now.
    Change {
        /// Why that is allowed.
        reason: String,
    },
    /// Keep the old labels, and ask again when a pod has ended.
    Wait {
        /// What is waited for.
        reason: String,
    },
    /// Keep the old labels until the plan is changed again.
    Refuse {
        /// Why.
        reason: String,
    },
}

/// What a node is to have by all plans that there are. Plans are only asked together: that one of them doesn't want a
/// node is no reason to take away what another gives it.
///
/// Fails where a plan that has the node as a candidate names an active case that it doesn't have; the node then stays as it
/// is.
pub fn duty<'a>(plans: &'a [ScenePlan], node: &Node) -> Result<Duty<'a>, NoSuchCase> {
    let mut wanted = Vec::new();
    let mut why = None;
    for plan in plans {
        match want(plan, node)? {
            // The reason of a plan that knows the node says more than that of one that doesn't.
            Want::Nothing { reason } if why.is_none() || is_candidate(plan, node) => {
                why = Some(reason);
            }
            Want::Nothing { .. } => {}
            want => wanted.push((plan, want)),
        }
    }
    if wanted.len() > 1 {
        let plans = wanted
            .into_iter()
            .map(|(plan, _)| plan.metadata.name.clone().unwrap_or_default())
            .collect();
        return Ok(Duty::Disputed { plans });
    }
    Ok(match wanted.pop() {
        Some((plan, want)) => Duty::Of(plan, want),
        None => Duty::Free {
            reason: why.unwrap_or_else(|| "there is no plan".to_owned()),
        },
    })
}

/// What a node wants of a plan.
///
/// Fails where the node is a candidate and the active case is none of the plan's; the node then stays as it is.
pub fn want(plan: &ScenePlan, node: &Node) -> Result<Want, NoSuchCase> {
    let nothing = |reason: String| Ok(Want::Nothing { reason });
    let Some(active) = &plan.spec.active else {
        return nothing("the plan has no active case".to_owned());
    };
    if !is_candidate(plan, node) {
        return nothing("the node is none of the plan's candidates".to_owned());
    }
    let slots = slots(plan, &active.scene, &active.case)?;
    let Some(names) = &plan.spec.nodes.names else {
        return Ok(Want::Claim(slots));
    };
    let place = names
        .iter()
        .position(|name| *name == node.name)
        .and_then(|place| slots.get(place));
    match place {
        Some(slot) => Ok(Want::Slot(slot)),
        None => nothing(format!(
            "scene {} case {} has {}, and the node stands further down in the list",
            active.scene,
            active.case,
            counted(slots.len(), "server")
        )),
    }
}

/// Whether a node may give up now what it has, by the plan's rule.
///
/// `has` is that in words; `pods` names the pods that run on the node because of it: they have keys of the labels that are to go
/// in their node selector or required affinity.
pub fn switch(rule: OnBusy, has: &str, pods: &[String]) -> Switch {
    let Some(first) = pods.first() else {
        return Switch::Change {
            reason: format!("no pod of {has} runs here"),
        };
    };
    let running = match pods.len() {
        1 => format!("pod {first} of {has} still runs here"),
        many => format!("{many} pods of {has} still run here, {first} among them"),
    };
    match rule {
        OnBusy::Force => Switch::Change {
            reason: format!("{running}, and the plan says force"),
        },
        OnBusy::Wait => Switch::Wait { reason: running },
        OnBusy::Refuse => Switch::Refuse {
            reason: format!(
                "{running}, and the plan says refuse: end them, or change the plan's onBusy, and set the case again"
            ),
        },
    }
}

// === impl Want ===

impl Want {
    /// The positions among `slots` in the order in which a node tries to claim them: first the slot that its labels
    /// name, or `last` (the slot it is known to have had), then the others, spread by the node's name.
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
