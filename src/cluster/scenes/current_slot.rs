//! [`CurrentSlot`]: the slot that a Node has now, and the label keys that pods may depend on.
//!
//! Usually the Node's labels name the slot. After a change of the plan's keys, or after somebody
//! removed a label by hand, they no longer do. Running pods may still depend on the labels that are
//! left, so the plan's `onBusy` still applies.

use std::collections::{BTreeMap, BTreeSet};

use super::plans::name_of;
use super::slot_state::{DecisionState, SlotDecisionInput};
use crate::cluster::own_node::OwnNode;
use crate::scene::{
    Holding, LEAVING_LABEL, LabelKeys, ScenePlan, Slot, is_hashed_lease, is_lease_of, slots,
};

/// The largest plan whose slots are compared with a hashed name, in slots. A comparison takes less than a microsecond.
const MOST_COMPARED: usize = 10_000;

/// The slot and the labels that a Node has now.
#[derive(Debug)]
pub(super) struct CurrentSlot<'a> {
    node: &'a OwnNode,
    /// The slot, if labels, memory or claims name one.
    pub(super) slot: Option<Slot>,
    /// The keys of the labels that pods may depend on.
    keys: BTreeSet<String>,
}

/// The slot that a Node's labels name, by a plan's keys.
///
/// Aliases are ignored, so that labels from before the addition of an alias still name the slot.
pub(super) fn labelled(plan: &ScenePlan, node: &OwnNode) -> Option<Slot> {
    let keys = LabelKeys {
        aliases: BTreeMap::new(),
        ..plan.spec.labels.clone()
    };
    match keys.read(&node.labels) {
        Holding::Slot(slot) => Some(slot),
        Holding::Nothing | Holding::Broken { .. } => None,
    }
}

// === impl CurrentSlot ===

impl<'a> CurrentSlot<'a> {
    /// The Node's current slot; `None` if no pod can depend on labels: no plan's labels name a slot, and no applied label exists.
    ///
    /// `plan`, if any, comes before the other plans. `wants` is the slot that `plan` wants for the
    /// Node.
    pub(super) fn of(
        input: SlotDecisionInput<'a>,
        memory: &DecisionState,
        plan: Option<&'a ScenePlan>,
        wants: Option<&Slot>,
    ) -> Option<Self> {
        let node = input.node;
        let mut keys: BTreeSet<String> = node
            .own_labels
            .iter()
            .filter(|key| node.labels.contains_key(*key) && *key != LEAVING_LABEL)
            .cloned()
            .collect();
        let mut plans = plan.into_iter().chain(&input.plans.plans);
        let named = plans.find_map(|plan| Some((plan, labelled(plan, node)?)));
        if let Some((of, slot)) = named {
            keys.extend(of.spec.labels.owned().into_iter().map(str::to_owned));
            return Some(Self {
                node,
                slot: Some(slot),
                keys,
            });
        }
        if keys.is_empty() {
            return None;
        }
        Some(Self {
            node,
            slot: slot_without_labels(input, memory, plan, wants),
            keys,
        })
    }

    /// The keys of the labels that `labels` would change or remove; all keys if the slot differs from `wants`.
    pub(super) fn leaving(
        &self,
        labels: &BTreeMap<String, String>,
        wants: Option<&Slot>,
    ) -> BTreeSet<&str> {
        let stays = |key: &String| {
            !self.is_another(wants)
                && self
                    .node
                    .labels
                    .get(key)
                    .is_none_or(|value| labels.get(key) == Some(value))
        };
        self.keys
            .iter()
            .filter(|key| !stays(key))
            .map(String::as_str)
            .collect()
    }

    /// Whether the Node's slot is known to differ from `wants`. Without a slot in `wants`, it
    /// always does.
    pub(super) fn is_another(&self, wants: Option<&Slot>) -> bool {
        wants.is_none() || self.slot.as_ref().is_some_and(|slot| Some(slot) != wants)
    }
}

impl std::fmt::Display for CurrentSlot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(slot) = &self.slot {
            return slot.fmt(f);
        }
        f.write_str("the place")?;
        let labels = self
            .node
            .labels
            .iter()
            .filter(|(key, _)| self.keys.contains(*key));
        for (key, value) in labels {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

/// The slot of a Node whose labels name no slot: the last known slot, unless the claims contradict; otherwise a claimed slot.
fn slot_without_labels(
    input: SlotDecisionInput<'_>,
    memory: &DecisionState,
    plan: Option<&ScenePlan>,
    wants: Option<&Slot>,
) -> Option<Slot> {
    let claims = input.claims;
    let last = memory.last.as_ref();
    let last =
        last.filter(|(plan, slot)| claims.is_empty() || claims.contains(&slot.lease_name(plan)));
    if let Some((_, slot)) = last {
        return Some(slot.clone());
    }
    let plans = || plan.into_iter().chain(&input.plans.plans);
    let claimed: Vec<Slot> = claims
        .iter()
        .filter_map(|lease| plans().find_map(|plan| of_lease(plan, lease)))
        .collect();
    // A node claims a slot before it gets the labels. So with two claims, the wanted slot may still
    // lack labels, and the other one is the current slot.
    let former = claimed.iter().find(|slot| Some(*slot) != wants);
    former.or(claimed.first()).cloned()
}

/// The slot in any case of a plan whose Lease is called `lease`. A hashed name is compared with all slots of the plan, unless
/// the plan has more than [`MOST_COMPARED`] slots.
pub(super) fn of_lease(plan: &ScenePlan, lease: &str) -> Option<Slot> {
    let name = name_of(plan);
    let cases = move || {
        let scenes = plan.spec.scenes.iter();
        let cases =
            scenes.flat_map(|scene| scene.cases.iter().map(|case| (&scene.scene, &case.case)));
        cases.filter_map(move |(scene, case)| slots(plan, scene, case).ok())
    };
    let may_be_of_plan = if is_hashed_lease(lease) {
        cases().map(|slots| slots.len()).sum::<usize>() <= MOST_COMPARED
    } else {
        is_lease_of(lease, name)
    };
    if !may_be_of_plan {
        return None;
    }
    cases().find_map(|slots| slots.of_lease(name, lease))
}
