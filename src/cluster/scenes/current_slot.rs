//! [`CurrentSlot`]: what of ours a Node has, as far as can be told.
//!
//! Mostly its labels name a slot. Where they don't any more (a plan's keys have changed, a label was removed by hand), pods may
//! stand there by them all the same, and the plan's rule for busy nodes holds for what is left of them.

use std::collections::{BTreeMap, BTreeSet};

use super::decide::{Memory, Seen};
use super::plans::name_of;
use crate::cluster::node::OwnNode;
use crate::scene::{Holding, LabelKeys, ScenePlan, Slot, is_lease_of, slots};

/// What of ours a Node has.
#[derive(Debug)]
pub(super) struct CurrentSlot<'a> {
    node: &'a OwnNode,
    /// The slot, where anything says which.
    pub(super) slot: Option<Slot>,
    /// The keys of labels by which pods may stand here.
    keys: BTreeSet<String>,
}

/// The slot that a Node's labels name, by a plan's keys.
///
/// Aliases say nothing of their own: a plan that has just been given one still knows what it gave before.
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
    /// What the Node has; `None` where no label of it is there, so that no pod can stand here by one.
    ///
    /// `plan` is asked before the others; `wants` is the slot that it wants the Node to have.
    pub(super) fn of(
        seen: Seen<'a>,
        memory: &Memory,
        plan: &ScenePlan,
        wants: Option<&Slot>,
    ) -> Option<Self> {
        let node = seen.node;
        let mut keys: BTreeSet<String> = node
            .ours
            .iter()
            .filter(|key| node.labels.contains_key(*key))
            .cloned()
            .collect();
        let mut plans = std::iter::once(plan).chain(&seen.plans.plans);
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
            slot: known(seen, memory, plan, wants),
            keys,
        })
    }

    /// The keys of the labels that go where these are set instead; all of them where the slot is another one.
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

    /// Whether what the Node has is known to be another slot than this.
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
        let there = self
            .node
            .labels
            .iter()
            .filter(|(key, _)| self.keys.contains(*key));
        for (key, value) in there {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

/// The slot of a Node whose labels don't name it: the one that is remembered, unless the claims say otherwise, or one of those.
fn known(seen: Seen<'_>, memory: &Memory, plan: &ScenePlan, wants: Option<&Slot>) -> Option<Slot> {
    let claims = seen.claims;
    let last = memory.last.as_ref();
    let last =
        last.filter(|(plan, slot)| claims.is_empty() || claims.contains(&slot.lease_name(plan)));
    if let Some((_, slot)) = last {
        return Some(slot.clone());
    }
    let plans = || std::iter::once(plan).chain(&seen.plans.plans);
    let claimed: Vec<Slot> = claims
        .iter()
        .filter_map(|lease| plans().find_map(|plan| of_lease(plan, lease)))
        .collect();
    // A claim comes before its labels: of two, the one that is wanted may not have any yet.
    let had = claimed.iter().find(|slot| Some(*slot) != wants);
    had.or(claimed.first()).cloned()
}

/// The slot of any case of a plan whose Lease has this name. Names that had to be replaced by a hash are not looked for: a plan
/// may have a million slots.
fn of_lease(plan: &ScenePlan, lease: &str) -> Option<Slot> {
    let name = name_of(plan);
    if !is_lease_of(lease, name) {
        return None;
    }
    let scenes = plan.spec.scenes.iter();
    let mut cases =
        scenes.flat_map(|scene| scene.cases.iter().map(|case| (&scene.scene, &case.case)));
    cases.find_map(|(scene, case)| slots(plan, scene, case).ok()?.of_lease(name, lease))
}
