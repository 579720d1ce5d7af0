//! [`plan_status()`]: a plan's status, from the plans, the nodes and the claims of a cluster.
//!
//! | condition | true if |
//! |---|---|
//! | [`ACCEPTED`] | the plan has its active case, or no active case |
//! | [`PLACED`] | each slot of the active case is claimed, and only the holder's node has the labels of the slot |
//! | [`CONFLICTED`] | two plans want the same node, a node holds several claims of the case, or a node has the labels of a slot without the slot's claim |
//!
//! A node that gets another slot first claims the new one, and keeps the old labels while pods run.
//! Missing labels and labels of a former case are therefore no conflict.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::plan_status::{ScenePlanStatus, SlotCounts};
use super::{
    Node, ScenePlan, SeveralClaims, Slot, Slots, candidates, is_candidate, several_claims, slots,
    status,
};
use crate::text::counted;
use crate::text::terminal::escape;

/// The type of the condition for a plan that has its active case, or no active case.
pub const ACCEPTED: &str = "Accepted";

/// The type of the condition for a plan whose slots all have a node with their labels.
pub const PLACED: &str = "Placed";

/// The type of the condition for a plan with a disputed node or slot.
pub const CONFLICTED: &str = "Conflicted";

/// The longest message of a condition, in characters. The definition of ScenePlan refuses more than 32768 characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// The state of a cluster that the statuses of the plans depend on.
#[derive(Debug)]
pub struct ClusterView<'a> {
    nodes: &'a [Node],
    /// The Node of each claim, by the name of the Lease.
    claims: &'a BTreeMap<String, String>,
    /// The active plans that want a node, for each node with several plans.
    disputed: BTreeMap<&'a str, Vec<&'a str>>,
}

struct CaseComparison {
    counts: SlotCounts,
    /// The number of nodes that the plan may label.
    candidates: usize,
    /// The first slot without a claim.
    first_free: Option<Slot>,
    /// The first claimed slot whose node lacks the labels, and the node.
    first_unlabelled: Option<(Slot, String)>,
    /// The nodes that keep the labels of a slot until its pods have ended, each with that slot.
    waiting: Vec<(String, Slot)>,
    /// The slots whose labels are on a wrong node, as sentences.
    wrong_labels: Vec<String>,
    /// The nodes with several claims, as sentences.
    surplus: Vec<String>,
}

/// The status, the reason and the message of a condition.
type ConditionState = (bool, &'static str, String);

// === impl ClusterView ===

impl<'a> ClusterView<'a> {
    /// A view of all plans, all nodes, and all claims with the names of their Nodes. Only names and labels of the nodes matter.
    pub fn new(
        plans: &'a [ScenePlan],
        nodes: &'a [Node],
        claims: &'a BTreeMap<String, String>,
    ) -> Self {
        let mut disputed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for plan in plans {
            for node in wanted_nodes(plan, nodes) {
                disputed.entry(node).or_default().push(name_of(plan));
            }
        }
        disputed.retain(|_, plans| plans.len() > 1);
        Self {
            nodes,
            claims,
            disputed,
        }
    }

    /// The claims on slots of the plan's active case that do not count, because their node holds another: the names of the Leases.
    pub fn surplus(&self, plan: &ScenePlan) -> Vec<String> {
        let active = plan.spec.active.as_ref();
        let slots = active.and_then(|active| slots(plan, &active.scene, &active.case).ok());
        let several = slots.map(|slots| several_claims(plan, &slots, self.nodes, self.claims));
        let several = several.into_iter().flatten();
        several.flat_map(|(_, claims)| claims.surplus).collect()
    }

    /// The nodes that the plan and a second active plan want, as sentences.
    fn disputes(&self, plan: &str) -> Vec<String> {
        let of_plan = self
            .disputed
            .iter()
            .filter(|(_, plans)| plans.contains(&plan));
        of_plan
            .map(|(node, plans)| format!("the plans {} all want node {node}", plans.join(" and ")))
            .collect()
    }
}

/// The status of a plan at `now`. `before` is the stored status. A condition with the same status
/// keeps its transition time.
pub fn plan_status(
    plan: &ScenePlan,
    view: &ClusterView<'_>,
    before: Option<&ScenePlanStatus>,
    now: &Time,
) -> ScenePlanStatus {
    let active = plan.spec.active.as_ref();
    let (accepted, placed, comparison) =
        match active.map(|active| slots(plan, &active.scene, &active.case)) {
            Some(Ok(slots)) => {
                let comparison = compare(plan, &slots, view);
                let accepted = (true, "Valid", "the plan has its active case".to_owned());
                (accepted, placed(&slots, &comparison), Some(comparison))
            }
            Some(Err(error)) => {
                let says = "the nodes stay unchanged until the plan is corrected".to_owned();
                let accepted = (false, "UnknownCase", error.to_string());
                (accepted, (false, "NotAccepted", says), None)
            }
            None => {
                let accepted = "the plan has no active case".to_owned();
                let placed = "without an active case, no node gets labels".to_owned();
                let reason = "NoActiveCase";
                ((true, reason, accepted), (false, reason, placed), None)
            }
        };
    let (surplus, wrong_labels) = comparison
        .as_ref()
        .map_or((&[][..], &[][..]), |comparison| {
            (&comparison.surplus[..], &comparison.wrong_labels[..])
        });
    let conflicted = conflicted(view.disputes(name_of(plan)), surplus, wrong_labels);
    let generation = plan.metadata.generation;
    let states: [(&str, ConditionState); 3] = [
        (ACCEPTED, accepted),
        (PLACED, placed),
        (CONFLICTED, conflicted),
    ];
    let counts = comparison.map(|comparison| comparison.counts);
    ScenePlanStatus {
        observed_generation: generation,
        claimed: counts.map_or_else(String::new, |counts| {
            format!("{}/{}", counts.claimed, counts.wanted)
        }),
        slots: counts,
        conditions: states
            .into_iter()
            .map(|(kind, state)| condition(kind, state, generation, before, now))
            .collect(),
    }
}

/// The status of a plan that can't be decoded, for example a plan of a newer version of the definition.
pub fn unreadable_status(
    generation: Option<i64>,
    reason: &str,
    before: Option<&ScenePlanStatus>,
    now: &Time,
) -> ScenePlanStatus {
    let stay = "the nodes stay unchanged until the plan is readable".to_owned();
    let states: [(&str, ConditionState); 3] = [
        (
            ACCEPTED,
            (
                false,
                "Unreadable",
                format!("the plan can't be read: {reason}"),
            ),
        ),
        (PLACED, (false, "NotAccepted", stay)),
        (CONFLICTED, conflicted(Vec::new(), &[], &[])),
    ];
    ScenePlanStatus {
        observed_generation: generation,
        conditions: states
            .into_iter()
            .map(|(kind, state)| condition(kind, state, generation, before, now))
            .collect(),
        ..ScenePlanStatus::default()
    }
}

/// A condition. The transition time changes only together with the status.
fn condition(
    kind: &str,
    (holds, reason, message): ConditionState,
    generation: Option<i64>,
    before: Option<&ScenePlanStatus>,
    now: &Time,
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let since = before
        .and_then(|before| before.condition(kind))
        .filter(|condition| condition.status == status)
        .map(|condition| condition.last_transition_time.clone());
    Condition {
        last_transition_time: since.unwrap_or_else(|| now.clone()),
        message: cut(escape(&message).into_owned()),
        observed_generation: generation,
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

/// The message, cut to [`MAX_MESSAGE_CHARS`] characters, because it may list every node of a
/// cluster.
fn cut(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

fn name_of(plan: &ScenePlan) -> &str {
    plan.metadata.name.as_deref().unwrap_or_default()
}

/// The nodes that an active plan wants. [`duty`](super::duty) gives no slot to a node that two plans want.
fn wanted_nodes<'a>(plan: &ScenePlan, nodes: &'a [Node]) -> Vec<&'a str> {
    let Some(active) = &plan.spec.active else {
        return Vec::new();
    };
    let Ok(slots) = slots(plan, &active.scene, &active.case) else {
        return Vec::new();
    };
    let names = nodes.iter().map(|node| node.name.as_str());
    match &plan.spec.nodes.names {
        Some(listed) => {
            let wanted: BTreeSet<&str> = listed
                .iter()
                .take(slots.len())
                .map(String::as_str)
                .collect();
            names.filter(|name| wanted.contains(name)).collect()
        }
        None => nodes
            .iter()
            .filter(|node| is_candidate(plan, node))
            .map(|node| node.name.as_str())
            .collect(),
    }
}

/// Compares the slots of a case with claims and labels.
fn compare(plan: &ScenePlan, slots: &Slots, view: &ClusterView<'_>) -> CaseComparison {
    let known: BTreeSet<&str> = view.nodes.iter().map(|node| node.name.as_str()).collect();
    let listed = plan.spec.nodes.names.as_ref();
    let several = several_claims(plan, slots, view.nodes, view.claims);
    let surplus: BTreeSet<&String> = several.values().flat_map(|of| &of.surplus).collect();
    let sentence = |(node, of): (&&str, &SeveralClaims)| {
        format!(
            "node {node} holds {} claims of the case, and only {} counts",
            of.surplus.len() + 1,
            of.counts
        )
    };
    let mut comparison = CaseComparison {
        counts: SlotCounts {
            wanted: u32::try_from(slots.len()).unwrap_or(u32::MAX),
            ..SlotCounts::default()
        },
        candidates: candidates(plan, view.nodes).len(),
        first_free: None,
        first_unlabelled: None,
        waiting: Vec::new(),
        wrong_labels: Vec::new(),
        surplus: several.iter().map(sentence).collect(),
    };
    let status = status(plan, slots, view.nodes);
    comparison.waiting = status.waiting;
    for (place, (slot, labelled)) in status.slots.into_iter().enumerate() {
        let holder = match listed {
            Some(names) => names
                .get(place)
                .map(String::as_str)
                .filter(|name| known.contains(name)),
            None => {
                let lease = slot.lease_name(name_of(plan));
                let holder = view.claims.get(&lease).map(String::as_str);
                holder.filter(|_| !surplus.contains(&lease))
            }
        };
        comparison.add(slot, holder, &labelled, listed.is_some());
    }
    comparison
}

// === impl CaseComparison ===

impl CaseComparison {
    /// Adds a slot. `holder` is the slot's node, and `labelled` are the nodes with the slot's labels.
    fn add(&mut self, slot: Slot, holder: Option<&str>, labelled: &[String], is_listed: bool) {
        if labelled.len() > 1 {
            self.wrong_labels
                .push(format!("{slot} is on the nodes {}", labelled.join(" and ")));
        } else if let Some(node) = labelled.first().filter(|_| !is_listed)
            && holder != Some(node.as_str())
        {
            let holds = holder.map_or("no node".to_owned(), |holder| format!("node {holder}"));
            self.wrong_labels.push(format!(
                "node {node} has the labels of {slot}, but {holds} holds the claim"
            ));
        }
        let Some(holder) = holder else {
            if self.first_free.is_none() {
                self.first_free = Some(slot);
            }
            return;
        };
        self.counts.claimed += 1;
        if labelled.len() == 1 && labelled.first().is_some_and(|node| node == holder) {
            self.counts.ready += 1;
        } else if self.first_unlabelled.is_none() {
            self.first_unlabelled = Some((slot, holder.to_owned()));
        }
    }
}

/// The condition [`PLACED`].
fn placed(slots: &Slots, comparison: &CaseComparison) -> ConditionState {
    let case = format!("scene {} case {}", slots.scene(), slots.case());
    let SlotCounts {
        wanted,
        claimed,
        ready,
    } = comparison.counts;
    let wanted_slots = counted(wanted, "slot");
    if ready == wanted {
        let message = format!("{case} has {wanted_slots}, each with its node");
        return (true, "AllReady", message);
    }
    if let Some(slot) = &comparison.first_free {
        let candidates = comparison.candidates;
        if candidates < slots.len() {
            let nodes = counted(candidates, "node");
            let message = format!("{case} has {wanted_slots}, but the plan has only {nodes}");
            return (false, "TooFewNodes", message);
        }
        let waits = match comparison.waiting.as_slice() {
            [] => String::new(),
            [(node, kept), rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    count => format!(" ({} in all)", counted(count + 1, "node")),
                };
                format!("; node {node} keeps the labels of {kept} until its pods have ended{more}")
            }
        };
        let message =
            format!("{claimed} of {wanted_slots} claimed; the first free slot is {slot}{waits}");
        return (false, "Claiming", message);
    }
    let kept = |node: &String| {
        let mut waiting = comparison.waiting.iter();
        waiting.find(|(name, _)| name == node).map(|(_, kept)| kept)
    };
    let message = match &comparison.first_unlabelled {
        Some((slot, node)) if let Some(kept) = kept(node) => format!(
            "{ready} of {wanted_slots} labelled; node {node} holds {slot}, but keeps the labels of {kept} until its pods \
             have ended"
        ),
        Some((slot, node)) => format!(
            "{ready} of {wanted_slots} labelled; node {node} holds {slot}, but lacks its labels or shares the labels with \
             a second node: read /status of the agent on {node}"
        ),
        None => format!("{ready} of {wanted_slots} labelled"),
    };
    (false, "Labelling", message)
}

/// The condition [`CONFLICTED`].
fn conflicted(
    disputes: Vec<String>,
    surplus: &[String],
    wrong_labels: &[String],
) -> ConditionState {
    let more = |count: usize| match count {
        0 | 1 => String::new(),
        count => format!(" ({} in all)", counted(count, "conflict")),
    };
    let count = disputes.len() + surplus.len() + wrong_labels.len();
    if let Some(first) = disputes.into_iter().next() {
        let message = format!(
            "{first}, so the node stays unchanged: correct the plans{}",
            more(count)
        );
        return (true, "PlansOverlap", message);
    }
    if let Some(first) = surplus.first() {
        let message = format!(
            "{first}: the reclaimer removes the others; if they come back, somebody else has the token of the node's agent{}",
            more(count)
        );
        return (true, "SurplusClaims", message);
    }
    match wrong_labels.first() {
        Some(first) => {
            let message = format!(
                "{first}: remove the labels from the wrong node{}",
                more(count)
            );
            (true, "WrongLabels", message)
        }
        None => (
            false,
            "NoConflict",
            "no node and no slot is disputed".to_owned(),
        ),
    }
}
