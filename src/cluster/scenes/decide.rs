//! [`decide()`]: what to do next, as a function of what was read.
//!
//! It names one [`Action`] at a time; after each it is asked again with what is there then, until there is nothing left to
//! do. So every order of actions below is also the order after a crash in between.
//!
//! - To take a slot: claim it, set the labels, set the taint, give back other claims.
//! - To give one up: remove the taint, remove the labels, give back the claims.
//!
//! **What counts as "a plan says so".** A node that has something of ours gives it up only on the word of a plan that was
//! read: one that wants it for another slot, one that has it as a candidate, or the one that its labels or claims are from. A
//! plan that is not there any more has no word, and neither has a plan that only speaks of other nodes. Otherwise a
//! definition that is deleted and installed anew, or a database that lost its contents, would take every label off.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;

use super::current_slot::{CurrentSlot, labelled};
use super::plans::{Plans, name_of};
use super::{Phase, Pods};
use crate::cluster::node::{self, LabelConflict, LabelStep, OwnNode};
use crate::scene::{
    Duty, LabelKeys, Node, OnBusy, ScenePlan, Slot, Slots, Switch, Want, duty, is_candidate,
    is_lease_of, slots, switch,
};

/// Taints with this in front of their key are ours, whoever asked for them.
const OUR_TAINTS: &str = "pinfold.io/";

/// What was read.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// All plans.
    pub plans: &'a Plans,
    /// The own Node.
    pub node: &'a OwnNode,
    /// The names of the Leases that it holds.
    pub claims: &'a BTreeSet<String>,
    /// The pods that run here.
    pub pods: &'a Pods,
}

/// A plan as it was at some moment: its name and generation.
pub(super) type Version = (String, String);

/// What is remembered from one look to the next. Losing it does no harm: that is what a restart does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Memory {
    /// The plan and the slot that the node had last.
    pub last: Option<(String, Slot)>,
    /// The plan by which a change was refused, as it was then. An agent that starts anew judges by the pods that run then.
    pub refused: Option<Version>,
    /// The plan all of whose slots were found taken, at this look.
    pub full: Option<Version>,
    /// What the server said stands in the way of the labels, at this look.
    pub conflicts: Vec<LabelConflict>,
    /// The plan whose taint could not be set, as it was then, and why, at this look.
    pub untaintable: Option<(Version, String)>,
    /// The taint that was set last.
    pub taint: Option<Taint>,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Claim a free slot of the active case of this plan; only this one, where the node's labels are somebody else's and
    /// name it.
    Claim {
        /// The slots.
        slots: Slots,
        /// The only one that will do.
        only: Option<Slot>,
    },
    /// Apply exactly these labels.
    Label(BTreeMap<String, String>),
    /// Replace all taints of the node by the given taints.
    Taint(Vec<Taint>),
    /// Give this claim back.
    Release(String),
}

/// What the node is, and what to do next.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// In a word.
    pub phase: Phase,
    /// In a sentence.
    pub says: String,
    /// The plan that it is about, as it is now.
    pub plan: Option<Version>,
    /// The slot that the node has, or is about to have.
    pub slot: Option<Slot>,
    /// What stands in the way.
    pub conflicts: Vec<LabelConflict>,
    /// The next thing to do; `None` where all is as it should be, or nothing may be done.
    pub action: Option<Action>,
}

/// What this node is to be, and the next thing to do for it.
pub fn decide(seen: Seen<'_>, memory: &Memory) -> Verdict {
    if let Some(degraded) = &seen.plans.degraded {
        return Verdict::new(Phase::Unknown, format!("nothing is changed: {degraded}"));
    }
    let node = Node {
        name: seen.node.name.clone(),
        labels: seen.node.labels.clone(),
        cordoned: seen.node.cordoned,
        ..Node::default()
    };
    let judge = Judge {
        seen,
        memory,
        node: &node,
    };
    match duty(&seen.plans.plans, &node) {
        Err(error) => Verdict::new(Phase::Unknown, format!("nothing is changed: {error}")),
        Ok(Duty::Disputed { plans }) => {
            let plans = plans.join(" and ");
            let says = format!(
                "the plans {plans} are active and all have this node as a candidate: it stays as it is until each node is left to one"
            );
            Verdict::new(Phase::Disputed, says)
        }
        Ok(Duty::Free { reason }) => judge.free(&reason),
        Ok(Duty::Of(plan, want)) => judge.wanted(plan, want),
    }
}

/// A plan's name and generation: what it says is the same as long as both are.
pub(super) fn version(plan: &ScenePlan) -> Version {
    let metadata = &plan.metadata;
    let version = metadata.generation.map(|generation| generation.to_string());
    (
        name_of(plan).to_owned(),
        version
            .or_else(|| metadata.resource_version.clone())
            .unwrap_or_default(),
    )
}

/// Whether a taint is ours: by its key, or because one of these plans asks for it.
pub(super) fn is_our_taint(taint: &Taint, plans: &[ScenePlan]) -> bool {
    let mut asked = plans.iter().filter_map(|plan| plan.spec.taint.as_ref());
    taint.key.starts_with(OUR_TAINTS) || asked.any(|asked| same_taint(&asked.to_k8s(), taint))
}

fn same_taint(one: &Taint, other: &Taint) -> bool {
    let value = |taint: &Taint| taint.value.clone().unwrap_or_default();
    one.key == other.key && one.effect == other.effect && value(one) == value(other)
}

struct Judge<'a> {
    seen: Seen<'a>,
    memory: &'a Memory,
    node: &'a Node,
}

// === impl Verdict ===

impl Verdict {
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

    fn with(mut self, action: Option<Action>) -> Self {
        self.action = action;
        self
    }
}

// === impl Judge ===

impl Judge<'_> {
    /// No plan wants the node.
    fn free(&self, reason: &str) -> Verdict {
        let free = Verdict::new(Phase::Free, reason.to_owned());
        if !self.has_something() {
            return free;
        }
        if let Some(unread) = self.unread() {
            return unread;
        }
        let plans = &self.seen.plans.plans;
        let spoken = plans.iter().find(|plan| self.gave(plan));
        let Some(plan) = spoken.or_else(|| plans.iter().find(|plan| is_candidate(plan, self.node)))
        else {
            return Verdict::new(
                Phase::Unknown,
                "labels and claims stay: the plan that they are from is gone, and no other speaks of this node; \
                 pinfold release --cluster takes them off"
                    .to_owned(),
            );
        };
        match self.kept(plan, None) {
            Some(verdict) => verdict,
            None => free.of(plan).with(self.give_up(plan)),
        }
    }

    /// One plan wants the node.
    fn wanted(&self, plan: &ScenePlan, want: Want) -> Verdict {
        if self.has_something()
            && !self.gave(plan)
            && let Some(unread) = self.unread()
        {
            return unread;
        }
        match want {
            Want::Nothing { reason } => self.free(&reason),
            Want::Slot(slot) => self.place(plan, slot),
            Want::Claim(slots) => match self.claimed(plan, &slots) {
                Some(slot) => self.place(plan, slot),
                None => self.claim(plan, slots),
            },
        }
    }

    /// The node is to have a slot, and has none of this case yet.
    fn claim(&self, plan: &ScenePlan, slots: Slots) -> Verdict {
        let keys = &plan.spec.labels;
        let case = format!("scene {} case {}", slots.scene(), slots.case());
        let has = self
            .held(plan)
            .filter(|slot| slots.position(slot).is_some());
        // Somebody else's labels are no reason to take a slot that the node can't be labelled for.
        let known = BTreeMap::from([(&keys.scene, slots.scene()), (&keys.case, slots.case())]);
        let strangers = self.strangers(keys, |key| {
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
        if !strangers.is_empty() && has.is_none() {
            return self.conflict(plan, strangers);
        }
        let full = self.memory.full.as_ref() == Some(&version(plan));
        if full || self.seen.node.cordoned || slots.is_empty() {
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
            return match self.kept(plan, None) {
                Some(verdict) => verdict,
                None => Verdict::new(Phase::Spare, says)
                    .of(plan)
                    .with(self.give_up(plan)),
            };
        }
        if has.is_none()
            && let Some(verdict) = self.kept(plan, None)
        {
            return verdict;
        }
        let only = has.filter(|_| !strangers.is_empty());
        let says = format!("looking for a free slot of {case}");
        Verdict::new(Phase::Spare, says)
            .of(plan)
            .with(Some(Action::Claim { slots, only }))
    }

    /// The node is to have this slot.
    fn place(&self, plan: &ScenePlan, slot: Slot) -> Verdict {
        let keys = &plan.spec.labels;
        let wanted: BTreeMap<String, String> = keys.labels(&slot).into_iter().collect();
        if !self.memory.conflicts.is_empty() {
            return self.conflict(plan, self.memory.conflicts.clone());
        }
        let mut strangers = self.strangers(keys, |key| wanted.get(key).cloned());
        let step = node::plan(self.seen.node, &wanted);
        if let LabelStep::Conflict(conflicts) = &step
            && strangers.is_empty()
        {
            strangers.clone_from(conflicts);
        }
        if !strangers.is_empty() {
            return self.conflict(plan, strangers);
        }
        if let Some(verdict) = self.kept(plan, Some(&slot)) {
            return verdict;
        }
        let action = match step {
            LabelStep::Apply(labels) => Some(Action::Label(labels)),
            LabelStep::Nothing | LabelStep::Conflict(_) => self
                .taint(
                    plan.spec
                        .taint
                        .as_ref()
                        .map(|taint| taint.to_k8s())
                        .as_ref(),
                    plan,
                )
                .or_else(|| self.release_but(Some(&slot.lease_name(name_of(plan))))),
        };
        let says = format!("{slot} by plan {}", name_of(plan));
        let mut verdict = Verdict::new(Phase::Placed, says).of(plan).with(action);
        verdict.slot = Some(slot);
        verdict
    }

    /// The next thing to do so that nothing of ours is left.
    fn give_up(&self, plan: &ScenePlan) -> Option<Action> {
        let none = BTreeMap::new();
        let labels = || match node::plan(self.seen.node, &none) {
            LabelStep::Apply(labels) => Some(Action::Label(labels)),
            LabelStep::Nothing | LabelStep::Conflict(_) => None,
        };
        self.taint(None, plan)
            .or_else(labels)
            .or_else(|| self.release_but(None))
    }

    /// The first claim that is not this one.
    fn release_but(&self, kept: Option<&str>) -> Option<Action> {
        let others = self
            .seen
            .claims
            .iter()
            .find(|name| Some(name.as_str()) != kept);
        others.cloned().map(Action::Release)
    }

    /// The action after which the node has exactly the taint `wanted` among the taints of Pinfold.
    fn taint(&self, wanted: Option<&Taint>, plan: &ScenePlan) -> Option<Action> {
        if self
            .memory
            .untaintable
            .as_ref()
            .is_some_and(|(before, _)| *before == version(plan))
        {
            return None;
        }
        let ours = |taint: &Taint| {
            is_our_taint(taint, std::slice::from_ref(plan))
                || self
                    .memory
                    .taint
                    .as_ref()
                    .is_some_and(|known| same_taint(known, taint))
        };
        let is_wanted = |taint: &Taint| wanted.is_some_and(|wanted| same_taint(wanted, taint));
        let there = &self.seen.node.taints;
        let mut taints: Vec<Taint> = there
            .iter()
            .filter(|taint| is_wanted(taint) || !ours(taint))
            .cloned()
            .collect();
        if let Some(wanted) = wanted.filter(|_| !there.iter().any(is_wanted)) {
            taints.push(wanted.clone());
        }
        (taints != *there).then_some(Action::Taint(taints))
    }

    fn conflict(&self, plan: &ScenePlan, conflicts: Vec<LabelConflict>) -> Verdict {
        let says: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
        let mut verdict = Verdict::new(Phase::Conflict, says.join("; ")).of(plan);
        verdict.conflicts = conflicts;
        verdict.slot = self.held(plan);
        verdict
    }

    /// Why the node may not change to another slot, to other labels or to none, by the plan's rule; `None` where it may.
    fn kept(&self, plan: &ScenePlan, wants: Option<&Slot>) -> Option<Verdict> {
        let held = CurrentSlot::of(self.seen, self.memory, plan, wants)?;
        let labels = wants
            .map(|slot| plan.spec.labels.labels(slot).into_iter().collect())
            .unwrap_or_default();
        let leaving = held.leaving(&labels, wants);
        if leaving.is_empty() {
            return None;
        }
        let stay = |phase: Phase, says: String| {
            let mut verdict = Verdict::new(phase, says).of(plan);
            verdict.slot.clone_from(&held.slot);
            Some(verdict)
        };
        let rule = plan.spec.on_busy;
        if rule == OnBusy::Refuse && self.memory.refused.as_ref() == Some(&version(plan)) {
            return stay(
                Phase::Refused,
                format!(
                    "{held} stays until plan {} is changed again: it says refuse, and pods ran here",
                    name_of(plan)
                ),
            );
        }
        let Some(pods) = self.seen.pods else {
            if rule == OnBusy::Force {
                return None;
            }
            return stay(
                Phase::Waiting,
                format!("{held} stays: which pods run here is not known yet"),
            );
        };
        let bound = pods.iter().filter(|pod| {
            pod.keys
                .as_ref()
                .is_none_or(|keys| keys.iter().any(|key| leaving.contains(key.as_str())))
        });
        let names: Vec<String> = bound.map(|pod| pod.name.clone()).collect();
        let said = |reason: String| {
            if held.is_another(wants) {
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
        match switch(rule, &held.to_string(), &names) {
            Switch::Change { .. } => None,
            Switch::Wait { reason } => stay(Phase::Waiting, said(reason)),
            Switch::Refuse { reason } => stay(Phase::Refused, said(reason)),
        }
    }

    /// Labels with a plan's keys that somebody else has set, and that are not what they are to be.
    fn strangers(
        &self,
        keys: &LabelKeys,
        wanted: impl Fn(&str) -> Option<String>,
    ) -> Vec<LabelConflict> {
        let node = self.seen.node;
        let foreign = keys.owned().into_iter().filter_map(|key| {
            let found = node.labels.get(key)?;
            let others = node.owners.get(key);
            let wanted = wanted(key);
            if (node.ours.contains(key) && others.is_none()) || wanted.as_ref() == Some(found) {
                return None;
            }
            Some(LabelConflict {
                key: key.to_owned(),
                wanted: wanted.unwrap_or_default(),
                found: Some(found.clone()),
                manager: others
                    .cloned()
                    .unwrap_or_else(|| "somebody unknown".to_owned()),
            })
        });
        foreign.collect()
    }

    /// The slot of the active case that the node holds a claim on.
    fn claimed(&self, plan: &ScenePlan, slots: &Slots) -> Option<Slot> {
        let claims = self.seen.claims;
        if claims.is_empty() {
            return None;
        }
        let name = name_of(plan);
        let ours =
            |slot: &Slot| slots.position(slot).is_some() && claims.contains(&slot.lease_name(name));
        let last = self
            .memory
            .last
            .clone()
            .filter(|(plan, _)| plan == name)
            .map(|(_, slot)| slot);
        // Of several, the one that the labels name; then the one that it had.
        let any = || claims.iter().find_map(|lease| slots.of_lease(name, lease));
        self.held(plan)
            .filter(ours)
            .or_else(|| last.filter(ours))
            .or_else(any)
    }

    /// The slot that the node's labels name, by a plan's keys.
    fn held(&self, plan: &ScenePlan) -> Option<Slot> {
        labelled(plan, self.seen.node)
    }

    /// Whether there is anything of ours on the node.
    fn has_something(&self) -> bool {
        !self.seen.node.ours.is_empty() || !self.seen.claims.is_empty()
    }

    /// Whether what the node has is from this plan, as far as can be told.
    fn gave(&self, plan: &ScenePlan) -> bool {
        let name = name_of(plan);
        let remembered = self.memory.last.as_ref().is_some_and(|(of, _)| of == name);
        let labelled = || {
            self.held(plan).is_some_and(|slot| {
                slots(plan, &slot.scene, &slot.case)
                    .is_ok_and(|slots| slots.position(&slot).is_some())
            })
        };
        // Where there are claims, they say it; labels may be alike in two plans.
        let claims = self.seen.claims;
        remembered
            || claims.iter().any(|lease| is_lease_of(lease, name))
            || (claims.is_empty() && labelled())
    }

    /// What is said where a plan that was never read might be the one that counts.
    fn unread(&self) -> Option<Verdict> {
        let unread = self.seen.plans.never_read();
        let first = unread.first()?;
        let why = self
            .seen
            .plans
            .unreadable
            .get(*first)
            .map_or("", String::as_str);
        Some(Verdict::new(
            Phase::Unknown,
            format!(
                "labels and claims stay: plan {first} can't be read, and may be the one they are from ({why})"
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
