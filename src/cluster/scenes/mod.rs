//! Scenes in a cluster: this node's place in the active case, as a claim and as labels.
//!
//! ```text
//!  ScenePlans ── list + watch ──┐
//!  own Node, own claims ── read ┼─> decide ── Action ──> claim · label · taint · give back
//!  pods that run here ──────────┘      └─ State ──> /status, Events
//! ```
//!
//! [`Scenes::run`] is the task. What to do is decided by [`decide()`], a function of values; the task reads, carries out one
//! [`Action`] after the other, and reads again. Its rules:
//!
//! - **Missing data takes nothing away.** Nothing is decided before all plans were read, nor while they can't be followed. A
//!   label or a claim goes only when a plan that speaks of this node was read and says so: that a plan is gone, or that there
//!   is none at all, says nothing (see [`decide()`]).
//! - **No slot twice.** A claim comes before the labels, and goes after them.
//! - **What only a person can mend** is asked for seldom, and told once as an Event on the Node.
//! - **At rest nothing is written.** A node keeps one watch of the plans (a request in about five minutes) and one of
//!   its own claim, and looks at its Node every [`Settings::look`].
//! - **Ten thousand nodes** hear of a change at the same moment: each waits a random while, which is longer the more slots
//!   the plans have.
//!
//! Plans are watched rather than polled: a watch is one request in five minutes where a poll that is as prompt would be
//! sixty, and brings a change at once. The own Node is not watched: each heartbeat of the kubelet would be an event of 10 kB
//! or more, and nothing in it is urgent. Of the claims only the own one is watched, by its name.

mod backoff_policy;
mod cluster_objects;
mod current_slot;
mod decide;
mod labels;
mod leave;
mod plans;
mod slot_reconciler;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::events::Recorder;
use super::{Api, claims};
use crate::pod::Pod;
use crate::scene::{LabelKeys, Slot};

pub use cluster_objects::{nodes, plans};
pub use decide::{Action, Memory, Seen, Verdict, decide};
pub use leave::{Left, leave};
pub use plans::Plans;

/// A pod that runs on this node and may stand here because of its labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningPod {
    /// `namespace/name`.
    pub name: String,
    /// The label keys that its node selector and its required affinity name, where known: a pod that names none of a plan's
    /// keys does not stand here because of them. One of which that is not known counts.
    pub keys: Option<BTreeSet<String>>,
}

// === impl RunningPod ===

impl RunningPod {
    /// Those of a node's pods that have not ended, by name.
    pub fn among(pods: &[Pod]) -> Vec<Self> {
        let running = pods.iter().filter(|pod| !pod.finished);
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

/// The pods that run here; `None` until they are known, which is not the same as none.
pub type Pods = Option<Vec<RunningPod>>;

/// How scenes are followed.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How often the own Node is looked at when nothing happens; each time 0.5 to 1.5 times this.
    pub look: Duration,
    /// The shortest and the longest time over which the nodes spread what they do after a change of plans.
    pub spread: (Duration, Duration),
    /// How much longer that is for each slot.
    pub spread_per_slot: Duration,
    /// How often a node without a slot looks for a free one: the shortest and the longest time.
    pub spare: (Duration, Duration),
    /// How much longer that is for each slot: the list of claims that it has to read is longer, too.
    pub spare_per_slot: Duration,
    /// The shortest and the longest wait while the API fails. What lasts until somebody does something about it (a right that
    /// is missing, a definition) is tried less and less often, down to every [`Settings::look`].
    pub backoff: (Duration, Duration),
    /// How long the server is asked to keep one watch, in seconds.
    pub watch_seconds: u32,
    /// How long a watch may be silent.
    pub idle: Duration,
    /// How claims are made.
    pub claims: claims::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(300),
            spread: (Duration::from_secs(5), Duration::from_secs(100)),
            spread_per_slot: Duration::from_millis(10),
            spare: (Duration::from_secs(30), Duration::from_secs(600)),
            spare_per_slot: Duration::from_millis(60),
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            watch_seconds: 290,
            idle: Duration::from_secs(150),
            claims: claims::Settings::default(),
        }
    }
}

// === impl Settings ===

impl Settings {
    /// The time over which all nodes spread what they do, with so many slots in the plans.
    fn spread_over(&self, slots: u32) -> Duration {
        (self.spread.0 + self.spread_per_slot * slots).min(self.spread.1)
    }
}

/// What this node is, as far as scenes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Not known, because something could not be read; everything stays as it is.
    #[default]
    Unknown,
    /// No plan wants it.
    Free,
    /// A plan wants it, and all slots are taken.
    Spare,
    /// It has a slot and the labels.
    Placed,
    /// It is to change, and pods of the old case still run.
    Waiting,
    /// It was to change while pods of the old case ran, and the plan says refuse.
    Refused,
    /// Somebody else has set labels that stand in the way.
    Conflict,
    /// Several active plans want it.
    Disputed,
}

/// What is known of this node's place, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// In a word.
    pub phase: Phase,
    /// In a sentence: why, or what is waited for.
    pub says: String,
    /// The plan that wants the node, or that its slot is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The slot that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The labels on the Node that Pinfold has set.
    pub labels: BTreeMap<String, String>,
    /// Labels of the Node with the usual keys of a place, whoever has set them; `None` until they were read.
    #[serde(skip)]
    pub usual: Option<BTreeMap<String, String>>,
    /// The names of the Leases that it holds.
    pub claims: BTreeSet<String>,
    /// Labels of somebody else's that stand in the way, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// Why the plan's taint could not be set, where it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<String>,
}

/// The task that keeps this node's place.
#[derive(Debug)]
pub struct Scenes {
    api: Api,
    node: String,
    namespace: String,
    pods: watch::Receiver<Pods>,
    settings: Settings,
    /// The plan and the slot that the node had before the agent started.
    before: Option<(String, Slot)>,
    recorder: Option<Recorder>,
    state: watch::Sender<State>,
}

// === impl Phase ===

impl Phase {
    /// In a word, as in `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Free => "free",
            Self::Spare => "spare",
            Self::Placed => "placed",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::Disputed => "disputed",
        }
    }
}

// === impl Scenes ===

impl Scenes {
    /// The place of the Node called `node`, with its claims as Leases in `namespace`, and what is known of it.
    pub fn new(
        api: Api,
        node: &str,
        namespace: &str,
        pods: watch::Receiver<Pods>,
        settings: Settings,
    ) -> (Self, watch::Receiver<State>) {
        let (state, states) = watch::channel(State {
            says: "the plans have not been read yet".to_owned(),
            ..State::default()
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

    /// Prefers the slot that the node had in a plan before the agent started, where it is free: a node that comes back has
    /// neither labels nor claims to tell of it.
    #[must_use]
    pub fn with_last(mut self, before: Option<(String, Slot)>) -> Self {
        self.before = before;
        self
    }

    /// Tells what happens as Events on the Node, too.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Keeps the node's place until `stop`. It never ends by itself, and leaves labels and claims as they are.
    pub async fn run(self, stop: CancellationToken) {
        let (published, plans) = watch::channel(Plans::default());
        let follower = plans::follow(self.api.clone(), self.settings.clone(), published);
        let keeper = slot_reconciler::SlotReconciler::new(self, plans);
        // Whatever is cut off here is found again at the next start: claims by the node's uid, labels on the Node.
        tokio::select! {
            () = follower => {}
            () = keeper.run() => {}
            () = stop.cancelled() => {}
        }
    }
}

// === impl State ===

impl State {
    /// The Node's place as variables for a container: `SCENCE`, `CASE`, `INDEX`, `TYPE`, whatever a plan calls its labels.
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
    fn the_place_has_the_usual_names_whatever_a_plan_calls_its_labels() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let by_hand = State {
            usual: Some(pairs(&[("SCENCE", "1"), ("CASE", "2")])),
            ..State::default()
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
        let placed = State {
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
