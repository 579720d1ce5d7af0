//! The types that the files of the module share: the node's pods, the published state, the task's parts, and the input of a
//! decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use serde::Serialize;
use tokio::sync::watch;

use super::plans::Plans;
use super::settings::SceneSettings;
use crate::cluster::Api;
use crate::cluster::events::Recorder;
use crate::cluster::own_node::{LabelConflict, OwnNode};
use crate::pod::Pod;
use crate::scene::{LabelKeys, Slot};

/// A pod that runs on this node, possibly because of the node's labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningPod {
    /// `namespace/name`.
    pub name: String,
    /// The label keys in the pod's node selector and required affinity. `None` means unknown: the pod may depend on every label.
    pub keys: Option<BTreeSet<String>>,
}

/// The pods that run on the node; `None` until the pods are known.
pub type RunningPods = Option<Vec<RunningPod>>;

named! {
    /// The node's state in the scenes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub enum Phase {
        /// Unknown, because of unreadable, missing or faulty data. Labels and claims stay.
        #[default]
        Unknown => "unknown",
        /// No plan wants the node.
        Free => "free",
        /// A plan wants the node, and the node has no slot: the search goes on, all slots are taken, the case has no slots, or
        /// the node is cordoned.
        Spare => "spare",
        /// The node has a slot. The labels are set, or are about to be set.
        Placed => "placed",
        /// The slot should change, and waits for pods of the old slot, or for the list of the node's pods.
        Waiting => "waiting",
        /// The slot should have changed while pods of the old slot ran, and the plan's `onBusy` is `refuse`.
        Refused => "refused",
        /// Another field manager has set labels with the plan's keys to other values.
        Conflict => "conflict",
        /// Several active plans want the node.
        Disputed => "disputed",
    }
}

/// The published state of the node's slot, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotState {
    pub phase: Phase,
    /// The reason for the phase, as a sentence.
    pub says: String,
    /// The plan that wants the node, or that gave the node the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The labels on the Node that Pinfold has applied.
    pub labels: BTreeMap<String, String>,
    /// The Node's labels with the default label keys, from any field manager; `None` before the first read.
    #[serde(skip)]
    pub usual: Option<BTreeMap<String, String>>,
    /// The names of the Leases that the node holds.
    pub claims: BTreeSet<String>,
    /// Conflicting labels of other field managers, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// The reason for a failed change of the taints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<String>,
}

/// The task that keeps the node's slot.
#[derive(Debug)]
pub struct Scenes {
    pub(super) api: Api,
    pub(super) node: String,
    pub(super) namespace: String,
    pub(super) pods: watch::Receiver<RunningPods>,
    pub(super) settings: SceneSettings,
    /// The node's plan and slot before the agent started.
    pub(super) before: Option<(String, Slot)>,
    pub(super) recorder: Option<Recorder>,
    pub(super) state: watch::Sender<SlotState>,
}

/// The input of [`decide()`](super::decide()): the observed state.
#[derive(Debug, Clone, Copy)]
pub struct SlotDecisionInput<'a> {
    pub plans: &'a Plans,
    pub node: &'a OwnNode,
    /// The names of the Leases that the node holds.
    pub claims: &'a BTreeSet<String>,
    /// The names of the Leases that the node's labels name and that other nodes hold.
    pub lost: &'a BTreeSet<String>,
    pub pods: &'a RunningPods,
}

/// A state of a plan: the plan's name and generation.
pub(super) type PlanVersion = (String, String);

/// State between two decisions, which a restart loses without harm.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecisionState {
    /// The node's last plan and slot.
    pub last: Option<(String, Slot)>,
    /// The plan that refused a change. A restarted agent decides again, by the pods that run at that time.
    pub refused: Option<PlanVersion>,
    /// A plan without a free slot, found in this pass.
    pub full: Option<PlanVersion>,
    /// The label conflicts that the server reported in this pass.
    pub conflicts: Vec<LabelConflict>,
    /// A plan whose change of the taints failed in this pass, and the reason.
    pub untaintable: Option<(PlanVersion, String)>,
    /// Whether the server refused in this pass to note that the node is to give up its slot.
    pub unnoted: bool,
    /// The taint that was last set.
    pub taint: Option<Taint>,
}

// === impl RunningPod ===

impl RunningPod {
    /// The unfinished pods among a node's pods, sorted by name.
    pub fn among<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> Vec<Self> {
        let running = pods.filter(|pod| !pod.finished);
        let mut running: Vec<Self> = running
            .map(|pod| Self {
                name: pod.to_string(),
                keys: Some(pod.node_keys.clone()),
            })
            .collect();
        running.sort();
        running
    }
}

// === impl Scenes ===

impl Scenes {
    /// The task for the Node called `node`, with claims as Leases in `namespace`. The receiver gets the published state.
    pub fn new(
        api: Api,
        node: &str,
        namespace: &str,
        pods: watch::Receiver<RunningPods>,
        settings: SceneSettings,
    ) -> (Self, watch::Receiver<SlotState>) {
        let (state, states) = watch::channel(SlotState {
            says: "the plans have not been read yet".to_owned(),
            ..SlotState::default()
        });
        let (node, namespace) = (node.to_owned(), namespace.to_owned());
        (
            Self {
                api,
                node,
                namespace,
                pods,
                settings,
                before: None,
                recorder: None,
                state,
            },
            states,
        )
    }

    /// Prefers the slot that the node had before the agent started, if it is free. A recreated Node
    /// has neither labels nor claims that name it.
    #[must_use]
    pub fn with_last(mut self, before: Option<(String, Slot)>) -> Self {
        self.before = before;
        self
    }

    /// Also reports changes and failures as Events on the Node.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }
}

// === impl SlotState ===

impl SlotState {
    /// The node's slot as variables for a container: `SCENCE`, `CASE`, `INDEX`, `TYPE`, for any label keys of the plan.
    pub fn variables(&self) -> BTreeMap<String, String> {
        match &self.slot {
            Some(slot) => LabelKeys::default().labels(slot).into_iter().collect(),
            None => self.usual.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_use_the_default_keys_for_any_label_keys_of_a_plan() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let by_hand = SlotState {
            usual: Some(pairs(&[("SCENCE", "1"), ("CASE", "2")])),
            ..SlotState::default()
        };
        assert_eq!(
            by_hand.variables(),
            pairs(&[("SCENCE", "1"), ("CASE", "2")])
        );
        let slot = Slot {
            scene: "2".to_owned(),
            case: "3".to_owned(),
            kind: Some("ps".to_owned()),
            index: 4,
        };
        let placed = SlotState {
            slot: Some(slot),
            ..by_hand
        };
        let wanted = pairs(&[
            ("SCENCE", "2"),
            ("CASE", "3"),
            ("TYPE", "ps"),
            ("INDEX", "4"),
        ]);
        assert_eq!(placed.variables(), wanted);
    }
}
