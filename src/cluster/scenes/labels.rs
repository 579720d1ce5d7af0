//! Labels of a Node and of a claim, and the claims and slots that follow from them.

use std::collections::{BTreeMap, BTreeSet};

use super::current_slot::labelled;
use super::plans::{Plans, name_of};
use crate::cluster::own_node::OwnNode;
use crate::scene::{LabelKeys, PLAN_LABEL, ScenePlan, Slot, Slots, WantedSlot, value_fault};

/// The most claims that are read by name. A list costs less than more reads.
const MOST_NAMED: usize = 3;

/// The Node's labels with the default label keys.
pub(super) fn usual(node: &OwnNode) -> BTreeMap<String, String> {
    let keys = LabelKeys::default();
    let found = keys
        .owned()
        .into_iter()
        .filter_map(|key| node.labels.get_key_value(key));
    found
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The claims that the Node's labels name: one for each plan that finds a slot in them. Plans with
/// an explicit list of nodes need no claims. Empty if a list costs less than the reads.
pub(super) fn named(plans: &Plans, node: &OwnNode) -> BTreeSet<String> {
    let plans = plans
        .plans
        .iter()
        .filter(|plan| plan.spec.nodes.names.is_none());
    let names: BTreeSet<String> = plans
        .filter_map(|plan| Some(labelled(plan, node)?.lease_name(name_of(plan))))
        .collect();
    // Many plans may have the same keys.
    if names.len() > MOST_NAMED {
        BTreeSet::new()
    } else {
        names
    }
}

/// The Lease names of the slots, in the order of the node's tries.
pub(super) fn order<'a>(
    plan: &'a ScenePlan,
    slots: &'a Slots,
    only: Option<Slot>,
    name: &str,
    node: &OwnNode,
    last: Option<&(String, Slot)>,
) -> impl Iterator<Item = String> + use<'a> {
    let own = crate::scene::Node {
        name: name.to_owned(),
        labels: node.labels.clone(),
        ..crate::scene::Node::default()
    };
    let last = last
        .filter(|(of, _)| of == name_of(plan))
        .map(|(_, slot)| slot);
    let order = WantedSlot::order(slots, &plan.spec.labels, &own, last);
    let slots = order.filter_map(|position| slots.get(position));
    let chosen = slots.filter(move |slot| only.as_ref().is_none_or(|only| only == slot));
    chosen.map(|slot| slot.lease_name(name_of(plan)))
}

/// Labels of a claim, for administrators: `kubectl get leases -l pinfold.io/plan=NAME`.
pub(super) fn labels_of(plan: &ScenePlan) -> BTreeMap<String, String> {
    let name = name_of(plan);
    // An object's name may be too long for a label value.
    let fits = value_fault(name).is_none();
    fits.then(|| (PLAN_LABEL.to_owned(), name.to_owned()))
        .into_iter()
        .collect()
}

/// `KEY=VALUE` for each label, for logs and Events.
pub(super) fn written(labels: &BTreeMap<String, String>) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}
