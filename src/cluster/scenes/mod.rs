//! Scenes in a cluster: the node's slot in the active case, held by a Lease and shown by labels.
//!
//! ```text
//!  ScenePlans ── list + watch ──┐
//!  own Node, own claims ── read ┼─> decide ── Action ──> claim · label · taint · release
//!  pods of the node ────────────┘      └─ State ──> /status, Events
//! ```
//!
//! [`Scenes::run`] is the task. The task reads, carries out the [`Action`]s of [`decide()`], and waits. [`decide()`] is a
//! function of values, without I/O. The rules:
//!
//! - **Missing data takes nothing away.** The task decides only after all plans were read, and only while the plans can be followed.
//!   A node loses a label or a claim only by a readable plan that covers the node. A deleted plan, or an empty list of plans,
//!   removes nothing (see [`decide()`]).
//! - **No slot has two nodes.** A node claims a slot before it sets the labels, and removes the labels before it releases the
//!   claim. The nodes of an explicit list need no claims.
//! - **Terminal failures**, which an administrator must repair, are retried seldom and reported once, as an Event on the Node.
//! - **An idle node writes nothing.** The node keeps one watch of the plans (a request in about five minutes) and one watch of
//!   the own claim. The node reads the own Node every [`Settings::look`].
//! - **Ten thousand nodes** see a change at the same moment. Each node waits for a random time, which grows with the number of
//!   slots in the plans.
//!
//! A watch of the plans costs one request in five minutes and reports a change at once. An equally prompt poll would cost
//! sixty requests. The own Node is not watched: each kubelet heartbeat would be an event of 10 kB or more, and no change of
//! the Node is urgent. A node watches only the own claim, by name.

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

use super::backoff::BackoffPolicy;
use super::events::Recorder;
use super::{Api, claims};
use crate::pod::Pod;
use crate::scene::{LabelKeys, Slot};

pub use cluster_objects::{nodes, plans};
pub use decide::{Action, Memory, Seen, Verdict, decide};
pub use leave::{Left, leave};
pub use plans::Plans;

/// A pod that runs on this node, possibly because of the node's labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningPod {
    /// `namespace/name`.
    pub name: String,
    /// The label keys in the pod's node selector and required affinity. `None` means unknown: the pod may depend on every label.
    pub keys: Option<BTreeSet<String>>,
}

// === impl RunningPod ===

impl RunningPod {
    /// The unfinished pods among a node's pods, sorted by name.
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

/// The pods that run on the node; `None` until the pods are known.
pub type Pods = Option<Vec<RunningPod>>;

/// Times and limits for the scenes of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The mean time between two reads of the own Node on an idle node. Each pause is 0.5 to 1.5 times as long.
    pub look: Duration,
    /// The minimum and the maximum of the time over which all nodes spread their reaction to changed plans.
    pub spread: (Duration, Duration),
    /// The addition to the minimum of `spread` for each slot.
    pub spread_per_slot: Duration,
    /// The minimum and the maximum of the pause after which a node without a slot searches again.
    pub spare: (Duration, Duration),
    /// The addition to the minimum of `spare` for each slot, since each search reads the list of claims.
    pub spare_per_slot: Duration,
    /// The shortest and the longest wait while the API fails. Terminal failures (a missing permission, a missing
    /// CustomResourceDefinition) wait longer and longer, up to about [`Settings::look`].
    pub backoff: (Duration, Duration),
    /// The `timeoutSeconds` of a watch request.
    pub watch_seconds: u32,
    /// The longest time without data before a watch counts as broken.
    pub idle: Duration,
    /// The settings of the claims.
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
    /// The time over which all nodes spread their work, for plans with `slots` slots.
    fn spread_over(&self, slots: u32) -> Duration {
        (self.spread.0 + self.spread_per_slot * slots).min(self.spread.1)
    }

    /// The waits after failures. An agent continues soon if the permissions come a moment after the start, and an agent without
    /// permissions sends requests every few minutes.
    fn backoff_policy(&self) -> BackoffPolicy {
        // The longest wait is spread over the upper half of its interval, so the mean is about `self.look`.
        BackoffPolicy::new(self.backoff, self.look.mul_f64(1.5))
    }
}

/// The node's state in the scenes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Unknown, because of unreadable, missing or faulty data. Labels and claims stay.
    #[default]
    Unknown,
    /// No plan wants the node.
    Free,
    /// A plan wants the node, and the node has no slot: the search goes on, all slots are taken, the case has no slots, or
    /// the node is cordoned.
    Spare,
    /// The node has a slot. The labels are set, or are about to be set.
    Placed,
    /// The slot should change, and waits for pods of the old slot, or for the list of the node's pods.
    Waiting,
    /// The slot should have changed while pods of the old slot ran, and the plan's `onBusy` is `refuse`.
    Refused,
    /// A different field manager has set labels with the plan's keys to different values.
    Conflict,
    /// Several active plans want the node.
    Disputed,
}

/// The published state of the node's slot, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The phase.
    pub phase: Phase,
    /// The reason for the phase, as a sentence.
    pub says: String,
    /// The plan that wants the node, or that gave the node the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The node's slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The labels on the Node that Pinfold has applied.
    pub labels: BTreeMap<String, String>,
    /// The Node's labels with the default label keys, from any field manager; `None` before the first read.
    #[serde(skip)]
    pub usual: Option<BTreeMap<String, String>>,
    /// The names of the Leases that the node holds.
    pub claims: BTreeSet<String>,
    /// Conflicting labels of different field managers, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// The reason for a failed change of the taints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<String>,
}

/// The task that keeps the node's slot.
#[derive(Debug)]
pub struct Scenes {
    api: Api,
    node: String,
    namespace: String,
    pods: watch::Receiver<Pods>,
    settings: Settings,
    /// The node's plan and slot before the agent started.
    before: Option<(String, Slot)>,
    recorder: Option<Recorder>,
    state: watch::Sender<State>,
}

// === impl Phase ===

impl Phase {
    /// The phase's name, as in `/status`.
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
    /// The task for the Node called `node`, with claims as Leases in `namespace`. The receiver gets the published state.
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

    /// Prefers the slot that the node had before the agent started, if the slot is free. A recreated Node has neither labels
    /// nor claims that name the slot.
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

    /// Keeps the node's slot until `stop`. Labels and claims stay after the end.
    pub async fn run(self, stop: CancellationToken) {
        let (published, plans) = watch::channel(Plans::default());
        let follower = plans::follow(self.api.clone(), self.settings.clone(), published);
        let reconciler = slot_reconciler::SlotReconciler::new(self, plans);
        // A cancelled action is safe: the next start reads the claims by the node's uid and the labels from the Node.
        tokio::select! {
            () = follower => {}
            () = reconciler.run() => {}
            () = stop.cancelled() => {}
        }
    }
}

// === impl State ===

impl State {
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
    use kube::core::Status;

    use super::*;
    use crate::cluster::Failure;

    #[test]
    fn terminal_failures_back_off_up_to_a_look_and_retryable_failures_stay_frequent() {
        let settings = Settings::default();
        let mut backoff = settings.backoff_policy();
        let refused = |code| Failure::refused(Status::failure("no", "No").with_code(code));
        let waits = |backoff: &mut BackoffPolicy, failure: &Failure| -> Vec<Duration> {
            (0..20).map(|_| backoff.after(failure, 0.5)).collect()
        };
        for code in [400, 401, 403, 404, 405, 415, 422] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[0] < Duration::from_secs(1), "{code}");
            assert!(
                waits[12] > settings.look && waits[19] < 2 * settings.look,
                "{code}: {waits:?}"
            );
            backoff.reset();
        }
        for code in [408, 409, 410, 429, 500, 503, 504] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[19] <= settings.backoff.1, "{code}: {waits:?}");
            backoff.reset();
        }
        for failure in [
            Failure::Connection(String::new()),
            Failure::InvalidResponse(String::new()),
        ] {
            assert!(
                waits(&mut backoff, &failure)[19] <= settings.backoff.1,
                "{failure}"
            );
        }
    }

    #[test]
    fn variables_use_the_default_keys_for_any_label_keys_of_a_plan() {
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
