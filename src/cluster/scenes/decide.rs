//! [`decide()`]: the node's next action, as a function of the observed state.
//!
//! [`decide()`] returns a single [`SlotAction`]. The caller carries it out and calls [`decide()`]
//! again with the new state, until no action is left. A restart after a crash therefore continues
//! in the same order:
//!
//! - To take a slot: claim the slot, set the labels, set the taint, release unneeded claims.
//! - To give up a slot: remove the taint, remove the labels, release the claims.
//!
//! **When a node loses labels or claims.** Labels and claims are removed only by a readable plan that covers the node:
//!
//! - a plan that wants the node for another slot,
//! - a plan that has the node as a candidate,
//! - or the plan that gave the node the labels or claims.
//!
//! The deletion of an active plan, or a plan for other nodes, removes nothing. Otherwise, a deleted
//! and reinstalled CustomResourceDefinition, or an etcd that lost the plans, would remove every
//! label in the cluster.
//!
//! A plan may order the removal, and be deleted while the node still waits for pods (`onBusy: wait`). The node therefore
//! notes the order in a label of its own, [`LEAVING_LABEL`], and follows it without the plan.
//!
//! **A slot belongs to the node that holds its claim.** A node whose slot another node has claimed
//! meanwhile gives up the labels at once, whatever `onBusy` says, because two nodes would otherwise
//! carry the same index.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;

use super::current_slot::{CurrentSlot, labelled, of_lease};
use super::plans::name_of;
use super::slot_state::{DecisionState, Phase, PlanVersion, SlotDecisionInput};
use crate::cluster::own_node::{self, LabelConflict, LabelStep};
use crate::scene::{
    LEAVING_LABEL, LabelKeys, Node, OnBusy, STARTUP_TAINT, ScenePlan, Slot, SlotDuty, Slots,
    SwitchDecision, WantedSlot, duty, is_candidate, is_hashed_lease, is_lease_of, slots, switch,
    value_fault,
};

/// The prefix of the keys of Pinfold's taints, for any plan.
const OUR_TAINTS: &str = "pinfold.io/";

#[derive(Debug, Clone, PartialEq)]
pub enum SlotAction {
    /// Claim a free slot of the plan's active case.
    Claim {
        /// The slots of the case.
        slots: Slots,
        /// The only acceptable slot, if labels of another field manager name a slot of the case.
        only: Option<Slot>,
    },
    /// Apply exactly the given labels.
    Label(BTreeMap<String, String>),
    /// Replace all taints of the node by the given taints.
    Taint(Vec<Taint>),
    /// Release the claim with this name.
    Release(String),
}

/// The node's phase, and the next action.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotDecision {
    pub phase: Phase,
    /// The reason for the phase, as a sentence.
    pub says: String,
    /// The plan behind the decision, with the current generation.
    pub plan: Option<PlanVersion>,
    /// The node's slot, or the one that it is about to get.
    pub slot: Option<Slot>,
    /// The labels that conflict with the plan.
    pub conflicts: Vec<LabelConflict>,
    /// The next action; `None` if the node is in the desired state, or must not change.
    pub action: Option<SlotAction>,
}

/// Decides the node's phase and the next action.
pub fn decide(input: SlotDecisionInput<'_>, memory: &DecisionState) -> SlotDecision {
    if let Some(degraded) = &input.plans.degraded {
        return SlotDecision::new(Phase::Unknown, format!("nothing is changed: {degraded}"));
    }
    let node = Node {
        name: input.node.name.clone(),
        labels: input.node.labels.clone(),
        cordoned: input.node.cordoned,
        ..Node::default()
    };
    let judge = Judge {
        input,
        memory,
        node: &node,
    };
    match duty(&input.plans.plans, &node) {
        Err(error) => SlotDecision::new(Phase::Unknown, format!("nothing is changed: {error}")),
        Ok(SlotDuty::Disputed { plans }) => {
            let plans = plans.join(" and ");
            let says = format!(
                "the plans {plans} are active and all have this node as a candidate: the node stays unchanged \
                 until only one of the plans has the node"
            );
            SlotDecision::new(Phase::Disputed, says)
        }
        Ok(SlotDuty::Free { reason }) => judge.free(&reason),
        Ok(SlotDuty::Of(plan, want)) => judge.wanted(plan, want),
    }
}

/// A plan's name and generation. Without a generation, the resourceVersion takes its place.
pub(super) fn version(plan: &ScenePlan) -> PlanVersion {
    let metadata = &plan.metadata;
    let version = metadata.generation.map(|generation| generation.to_string());
    (
        name_of(plan).to_owned(),
        version
            .or_else(|| metadata.resource_version.clone())
            .unwrap_or_default(),
    )
}

/// Whether a taint belongs to Pinfold: its key has Pinfold's prefix, or a plan in `plans` has the
/// same taint.
pub(super) fn is_our_taint(taint: &Taint, plans: &[ScenePlan]) -> bool {
    let mut planned = plans.iter().filter_map(|plan| plan.spec.taint.as_ref());
    taint.key.starts_with(OUR_TAINTS) || planned.any(|planned| same_taint(&planned.to_k8s(), taint))
}

fn same_taint(one: &Taint, other: &Taint) -> bool {
    let value = |taint: &Taint| taint.value.clone().unwrap_or_default();
    one.key == other.key && one.effect == other.effect && value(one) == value(other)
}

struct Judge<'a> {
    input: SlotDecisionInput<'a>,
    memory: &'a DecisionState,
    node: &'a Node,
}

// === impl SlotDecision ===

impl SlotDecision {
    fn new(phase: Phase, says: String) -> Self {
        Self {
            phase,
            says,
            plan: None,
            slot: None,
            conflicts: Vec::new(),
            action: None,
        }
    }

    fn of(mut self, plan: &ScenePlan) -> Self {
        self.plan = Some(version(plan));
        self
    }

    fn with(mut self, action: Option<SlotAction>) -> Self {
        self.action = action;
        self
    }
}

// === impl Judge ===

impl Judge<'_> {
    /// No plan wants the node.
    fn free(&self, reason: &str) -> SlotDecision {
        let free = SlotDecision::new(Phase::Free, reason.to_owned());
        if !self.has_something() {
            return free;
        }
        if let Some(unread) = self.unread() {
            return unread;
        }
        let (plans, ended) = (&self.input.plans.plans, &self.input.plans.ended);
        let mut origins = plans.iter().chain(ended);
        let origin = origins.find(|plan| self.gave(plan));
        let Some(plan) = origin.or_else(|| plans.iter().find(|plan| is_candidate(plan, self.node)))
        else {
            return self.without_plan(free);
        };
        match self.keep_if_busy(Some(plan), None) {
            // With `refuse`, the node may refuse the order once its pods are known.
            Some(verdict)
                if verdict.phase == Phase::Waiting && plan.spec.on_busy == OnBusy::Wait =>
            {
                verdict.with(self.note_leaving(plan))
            }
            Some(verdict) => verdict,
            None => free.of(plan).with(self.give_up(Some(plan))),
        }
    }

    /// No plan wants the node, and no plan is left that could have given the node its labels and claims.
    fn without_plan(&self, free: SlotDecision) -> SlotDecision {
        if !self.input.node.own_labels.contains(LEAVING_LABEL) {
            return SlotDecision::new(
                Phase::Unknown,
                "labels and claims stay: their plan is gone, and no other plan covers this node; \
                 pinfold release --cluster removes them"
                    .to_owned(),
            );
        }
        match self.keep_if_busy(None, None) {
            Some(verdict) => verdict,
            None => free.with(self.give_up(None)),
        }
    }

    /// The action that notes on the Node that `plan` has ordered the removal of its labels; `None` if it is noted.
    fn note_leaving(&self, plan: &ScenePlan) -> Option<SlotAction> {
        if self.memory.unnoted {
            return None;
        }
        let node = self.input.node;
        let own = node
            .labels
            .iter()
            .filter(|(key, _)| node.own_labels.contains(*key));
        let mut labels: BTreeMap<String, String> = own
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let name = Some(name_of(plan)).filter(|name| value_fault(name).is_none());
        labels.insert(LEAVING_LABEL.to_owned(), name.unwrap_or("true").to_owned());
        match own_node::plan(node, &labels) {
            LabelStep::Apply(labels) => Some(SlotAction::Label(labels)),
            LabelStep::Nothing | LabelStep::Conflict(_) => None,
        }
    }

    /// Exactly one plan wants the node.
    fn wanted(&self, plan: &ScenePlan, want: WantedSlot) -> SlotDecision {
        if self.has_something()
            && !self.gave(plan)
            && let Some(unread) = self.unread()
        {
            return unread;
        }
        match want {
            WantedSlot::Nothing { reason } => self.free(&reason),
            WantedSlot::Slot(slot) => self.place(plan, slot),
            WantedSlot::Claim(slots) => match self.claimed(plan, &slots) {
                Some(slot) => self.place(plan, slot),
                None => self.claim(plan, slots),
            },
        }
    }

    /// The node needs a slot of the active case, and holds no claim on any of them.
    fn claim(&self, plan: &ScenePlan, slots: Slots) -> SlotDecision {
        let keys = &plan.spec.labels;
        let case = format!("scene {} case {}", slots.scene(), slots.case());
        let labelled = self
            .labelled_slot(plan)
            .filter(|slot| slots.position(slot).is_some());
        // A claim is useless if labels of another field manager rule out every slot of the case.
        let known = BTreeMap::from([(&keys.scene, slots.scene()), (&keys.case, slots.case())]);
        let conflicts = self.label_conflicts(keys, |key| {
            let of = keys
                .aliases
                .iter()
                .find(|(_, alias)| *alias == key)
                .map_or(key, |(of, _)| of);
            known
                .iter()
                .find(|(name, _)| name.as_str() == of)
                .map(|(_, value)| (*value).to_owned())
        });
        if !conflicts.is_empty() && labelled.is_none() {
            return self.conflict(plan, conflicts);
        }
        let full = self.memory.full.as_ref() == Some(&version(plan));
        if full || self.input.node.cordoned || slots.is_empty() {
            let says = if full {
                match slots.len() {
                    1 => format!("the only slot of {case} is taken"),
                    count => format!("all {count} slots of {case} are taken"),
                }
            } else if slots.is_empty() {
                format!("{case} has no slots")
            } else {
                format!("the node is cordoned, and gets no slot of {case}")
            };
            return match self.keep_if_busy(Some(plan), None) {
                Some(verdict) => verdict,
                None => SlotDecision::new(Phase::Spare, says)
                    .of(plan)
                    .with(self.give_up(Some(plan))),
            };
        }
        if labelled.is_none()
            && let Some(verdict) = self.keep_if_busy(Some(plan), None)
        {
            return verdict;
        }
        let only = labelled.filter(|_| !conflicts.is_empty());
        let says = format!("looking for a free slot of {case}");
        SlotDecision::new(Phase::Spare, says)
            .of(plan)
            .with(Some(SlotAction::Claim { slots, only }))
    }

    /// The node gets `slot`.
    fn place(&self, plan: &ScenePlan, slot: Slot) -> SlotDecision {
        let keys = &plan.spec.labels;
        let wanted: BTreeMap<String, String> = keys.labels(&slot).into_iter().collect();
        if !self.memory.conflicts.is_empty() {
            return self.conflict(plan, self.memory.conflicts.clone());
        }
        let mut conflicts = self.label_conflicts(keys, |key| wanted.get(key).cloned());
        let step = own_node::plan(self.input.node, &wanted);
        if let LabelStep::Conflict(step_conflicts) = &step
            && conflicts.is_empty()
        {
            conflicts.clone_from(step_conflicts);
        }
        if !conflicts.is_empty() {
            return self.conflict(plan, conflicts);
        }
        if let Some(verdict) = self.keep_if_busy(Some(plan), Some(&slot)) {
            return verdict;
        }
        let action = match step {
            LabelStep::Apply(labels) => Some(SlotAction::Label(labels)),
            LabelStep::Nothing | LabelStep::Conflict(_) => self
                .taint(
                    plan.spec
                        .taint
                        .as_ref()
                        .map(|taint| taint.to_k8s())
                        .as_ref(),
                    Some(plan),
                )
                .or_else(|| self.release_except(Some(&slot.lease_name(name_of(plan))))),
        };
        let says = format!("{slot} by plan {}", name_of(plan));
        let mut verdict = SlotDecision::new(Phase::Placed, says).of(plan).with(action);
        verdict.slot = Some(slot);
        verdict
    }

    /// The next action on the way to a node without Pinfold's taints, labels and claims. Without a plan, a taint is Pinfold's by
    /// its key alone. The note of the order goes last, because without it a node would keep its claims.
    fn give_up(&self, plan: Option<&ScenePlan>) -> Option<SlotAction> {
        let node = self.input.node;
        let note = node
            .labels
            .get_key_value(LEAVING_LABEL)
            .filter(|(key, _)| node.own_labels.contains(*key) && !self.input.claims.is_empty());
        let kept: BTreeMap<String, String> = note
            .into_iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let labels = || match own_node::plan(node, &kept) {
            LabelStep::Apply(labels) => Some(SlotAction::Label(labels)),
            LabelStep::Nothing | LabelStep::Conflict(_) => None,
        };
        self.taint(None, plan)
            .or_else(labels)
            .or_else(|| self.release_except(None))
    }

    /// Releases the first claim other than `kept`.
    fn release_except(&self, kept: Option<&str>) -> Option<SlotAction> {
        let surplus = self
            .input
            .claims
            .iter()
            .find(|name| Some(name.as_str()) != kept);
        surplus.cloned().map(SlotAction::Release)
    }

    /// The action after which `wanted` is the only taint of Pinfold on the node, apart from the startup taint, which says nothing
    /// about slots.
    fn taint(&self, wanted: Option<&Taint>, plan: Option<&ScenePlan>) -> Option<SlotAction> {
        if self
            .memory
            .untaintable
            .as_ref()
            .is_some_and(|(before, _)| *before == plan.map(version).unwrap_or_default())
        {
            return None;
        }
        let is_own = |taint: &Taint| {
            let is_planned =
                is_our_taint(taint, plan.map(std::slice::from_ref).unwrap_or_default());
            (is_planned && taint.key != STARTUP_TAINT)
                || self
                    .memory
                    .taint
                    .as_ref()
                    .is_some_and(|known| same_taint(known, taint))
        };
        let is_wanted = |taint: &Taint| wanted.is_some_and(|wanted| same_taint(wanted, taint));
        let current = &self.input.node.taints;
        let mut taints: Vec<Taint> = current
            .iter()
            .filter(|taint| is_wanted(taint) || !is_own(taint))
            .cloned()
            .collect();
        if let Some(wanted) = wanted.filter(|_| !current.iter().any(is_wanted)) {
            taints.push(wanted.clone());
        }
        (taints != *current).then_some(SlotAction::Taint(taints))
    }

    fn conflict(&self, plan: &ScenePlan, conflicts: Vec<LabelConflict>) -> SlotDecision {
        let says: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
        let mut verdict = SlotDecision::new(Phase::Conflict, says.join("; ")).of(plan);
        verdict.conflicts = conflicts;
        verdict.slot = self.labelled_slot(plan);
        verdict
    }

    /// The decision to keep the current labels, by the plan's rule for busy nodes. `None` if they
    /// may change to those of the slot `wants`, or may be removed if there is no such slot. Without
    /// a plan, the node waits, because only a plan with `onBusy: wait` leaves a node without a plan
    /// behind.
    fn keep_if_busy(&self, plan: Option<&ScenePlan>, wants: Option<&Slot>) -> Option<SlotDecision> {
        let current = CurrentSlot::of(self.input, self.memory, plan, wants)?;
        if self.is_lost(plan, current.slot.as_ref()) {
            return None;
        }
        let labels = plan
            .zip(wants)
            .map(|(plan, slot)| plan.spec.labels.labels(slot).into_iter().collect())
            .unwrap_or_default();
        let leaving = current.leaving(&labels, wants);
        if leaving.is_empty() {
            return None;
        }
        let stay = |phase: Phase, reason: String| {
            let mut verdict = SlotDecision::new(phase, reason);
            verdict.plan = plan.map(version);
            verdict.slot.clone_from(&current.slot);
            Some(verdict)
        };
        let rule = plan.map_or(OnBusy::Wait, |plan| plan.spec.on_busy);
        if let Some(plan) = plan
            && rule == OnBusy::Refuse
            && self.memory.refused.as_ref() == Some(&version(plan))
        {
            return stay(
                Phase::Refused,
                format!(
                    "{current} stays until plan {} is changed again: onBusy is refuse, and pods still ran on this node",
                    name_of(plan)
                ),
            );
        }
        let Some(pods) = self.input.pods else {
            if rule == OnBusy::Force {
                return None;
            }
            return stay(
                Phase::Waiting,
                format!("{current} stays: the pods of this node are not known yet"),
            );
        };
        let bound = pods.iter().filter(|pod| {
            pod.keys
                .as_ref()
                .is_none_or(|keys| keys.iter().any(|key| leaving.contains(key.as_str())))
        });
        let names: Vec<String> = bound.map(|pod| pod.name.clone()).collect();
        let with_labels = |reason: String| {
            if current.is_another(wants) {
                reason
            } else {
                let keys: Vec<&str> = leaving.iter().copied().collect();
                let (s, stay) = if keys.len() == 1 {
                    ("", "stays")
                } else {
                    ("s", "stay")
                };
                format!("label{s} {} {stay}: {reason}", keys.join(" and "))
            }
        };
        match switch(rule, &current.to_string(), &names) {
            SwitchDecision::Change { .. } => None,
            SwitchDecision::Wait { reason } => stay(Phase::Waiting, with_labels(reason)),
            SwitchDecision::Refuse { reason } => stay(Phase::Refused, with_labels(reason)),
        }
    }

    /// Whether another node holds the claim on the slot that the node's labels name.
    fn is_lost(&self, plan: Option<&ScenePlan>, slot: Option<&Slot>) -> bool {
        plan.zip(slot)
            .is_some_and(|(plan, slot)| self.input.lost.contains(&slot.lease_name(name_of(plan))))
    }

    /// Labels with the plan's keys that another field manager has set to values other than
    /// `wanted`.
    fn label_conflicts(
        &self,
        keys: &LabelKeys,
        wanted: impl Fn(&str) -> Option<String>,
    ) -> Vec<LabelConflict> {
        let node = self.input.node;
        let foreign = keys.owned().into_iter().filter_map(|key| {
            let found = node.labels.get(key)?;
            let owner = node.owners.get(key);
            let wanted = wanted(key);
            if (node.own_labels.contains(key) && owner.is_none()) || wanted.as_ref() == Some(found)
            {
                return None;
            }
            Some(LabelConflict {
                key: key.to_owned(),
                wanted: wanted.unwrap_or_default(),
                found: Some(found.clone()),
                manager: owner
                    .cloned()
                    .unwrap_or_else(|| "an unknown program".to_owned()),
            })
        });
        foreign.collect()
    }

    /// The slot of the active case that the node holds a claim on.
    fn claimed(&self, plan: &ScenePlan, slots: &Slots) -> Option<Slot> {
        let claims = self.input.claims;
        if claims.is_empty() {
            return None;
        }
        let name = name_of(plan);
        let is_claimed =
            |slot: &Slot| slots.position(slot).is_some() && claims.contains(&slot.lease_name(name));
        let last = self
            .memory
            .last
            .clone()
            .filter(|(plan, _)| plan == name)
            .map(|(_, slot)| slot);
        // With several claims, the slot of the labels comes first, then the last known slot.
        let any = || claims.iter().find_map(|lease| slots.of_lease(name, lease));
        self.labelled_slot(plan)
            .filter(is_claimed)
            .or_else(|| last.filter(is_claimed))
            .or_else(any)
    }

    /// The slot that the node's labels name, by a plan's keys.
    fn labelled_slot(&self, plan: &ScenePlan) -> Option<Slot> {
        labelled(plan, self.input.node)
    }

    /// Whether the node has labels or claims of Pinfold.
    fn has_something(&self) -> bool {
        !self.input.node.own_labels.is_empty() || !self.input.claims.is_empty()
    }

    /// Whether the node's labels or claims come from this plan. A claim with a hashed name is compared with the slot of the
    /// labels, then with all slots of the plan.
    fn gave(&self, plan: &ScenePlan) -> bool {
        let name = name_of(plan);
        let remembered = self.memory.last.as_ref().is_some_and(|(of, _)| of == name);
        // Labels alone decide only without claims: two plans may use the same labels.
        let claims = self.input.claims;
        let labelled = || {
            self.labelled_slot(plan).is_some_and(|slot| {
                if claims.is_empty() {
                    slots(plan, &slot.scene, &slot.case)
                        .is_ok_and(|slots| slots.position(&slot).is_some())
                } else {
                    claims.contains(&slot.lease_name(name))
                }
            })
        };
        let claimed = |lease: &String| {
            is_lease_of(lease, name) || (is_hashed_lease(lease) && of_lease(plan, lease).is_some())
        };
        remembered || labelled() || claims.iter().any(claimed)
    }

    /// The decision to keep everything if a plan was never readable: the labels or claims may come
    /// from it.
    fn unread(&self) -> Option<SlotDecision> {
        let unread = self.input.plans.never_read();
        let first = unread.first()?;
        let why = self
            .input
            .plans
            .unreadable
            .get(*first)
            .map_or("", String::as_str);
        Some(SlotDecision::new(
            Phase::Unknown,
            format!(
                "labels and claims stay: they may come from plan {first}, and plan {first} can't be read ({why})"
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
