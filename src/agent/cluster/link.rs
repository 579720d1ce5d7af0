//! [`Link`]: what is known of the API and of the pods that it tells of, for `/status`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use super::Cluster;
use crate::cluster::{Call, Counters, ErrorKind, scenes};
use crate::metrics::{ApiNumbers, PlaceNumbers};

/// What is heard of the API, as it changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Heard {
    /// Whether all pods have been told at least once.
    pub(super) complete: bool,
    /// What is wrong now.
    pub(super) trouble: Option<String>,
    /// What was wrong last, now or before.
    pub(super) last_error: Option<String>,
    /// Since when it is as it is.
    pub(super) since: Option<Timestamp>,
    /// Pods that are known.
    pub(super) pods: usize,
    /// Pods that can't be read, as sentences.
    pub(super) unreadable: usize,
}

// === impl Heard ===

impl Heard {
    fn connected(&self) -> bool {
        self.complete && self.trouble.is_none()
    }

    /// Changes something, and notes when the connection came or went by it.
    pub(super) fn change(&mut self, now: Timestamp, change: impl FnOnce(&mut Self)) {
        let before = self.connected();
        change(self);
        if self.connected() != before {
            self.since = Some(now);
        }
    }
}

/// The reading end.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Link {
    heard: watch::Receiver<Heard>,
    /// The Node's place in a scene, where it is kept.
    place: Option<watch::Receiver<scenes::State>>,
    counters: Arc<Counters>,
    node: String,
    namespace: String,
    server: String,
    origin: String,
}

/// The API as `/status` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct LinkState {
    server: String,
    origin: String,
    node: String,
    namespace: String,
    /// Whether this node's pods are followed now.
    connected: bool,
    /// Since when they are, or are not.
    since: Option<String>,
    /// Whether all pods were told at least once.
    complete: bool,
    /// What is wrong now.
    trouble: Option<String>,
    last_error: Option<String>,
    /// How long ago the server last answered as it should.
    last_answer_seconds: Option<f64>,
    pods: usize,
    unreadable_pods: usize,
    /// The Node's place in a scene.
    #[serde(skip_serializing_if = "Option::is_none")]
    scene: Option<scenes::State>,
}

// === impl Link ===

impl Link {
    /// A link of which nothing is known yet, and its writing end.
    pub(super) fn new(
        cluster: &Cluster,
        place: watch::Receiver<scenes::State>,
    ) -> (Self, watch::Sender<Heard>) {
        let (said, heard) = watch::channel(Heard {
            since: Some(Timestamp::now()),
            ..Heard::default()
        });
        let Cluster {
            api,
            node,
            namespace,
            scenes,
            server,
            origin,
        } = cluster.clone();
        let place = scenes.then_some(place);
        let counters = Arc::clone(api.counters());
        (
            Self {
                heard,
                place,
                counters,
                node,
                namespace,
                server,
                origin,
            },
            said,
        )
    }

    /// Why the agent is not ready yet: nothing is known of the pods before the API has told them once.
    pub(in crate::agent) fn awaited(&self) -> Option<String> {
        let heard = self.heard.borrow();
        (!heard.complete).then(|| {
            let why = heard
                .trouble
                .as_ref()
                .map(|why| format!(" ({why})"))
                .unwrap_or_default();
            format!(
                "the first list of this node's pods from {} is still to come{why}",
                self.server
            )
        })
    }

    /// What is wrong now, although it was well once: what is known stays.
    pub(in crate::agent) fn trouble(&self) -> Option<String> {
        let heard = self.heard.borrow();
        let says = heard.trouble.as_ref().filter(|_| heard.complete)?;
        Some(format!(
            "this node's pods can't be followed, what is known of them stays: {says}"
        ))
    }

    /// The Node's place in a scene, where it is kept.
    pub(in crate::agent) fn place(&self) -> Option<watch::Receiver<scenes::State>> {
        self.place.clone()
    }

    /// The API as `/status` shows it.
    pub(in crate::agent) fn state(&self) -> LinkState {
        let heard = self.heard.borrow().clone();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        LinkState {
            server: self.server.clone(),
            origin: self.origin.clone(),
            node: self.node.clone(),
            namespace: self.namespace.clone(),
            connected: heard.connected(),
            since: heard.since.map(|since| format!("{since:.0}")),
            complete: heard.complete,
            trouble: heard.trouble,
            last_error: heard.last_error,
            last_answer_seconds: self
                .counters
                .last_success()
                .map(|last| (now - last).max(0.0)),
            pods: heard.pods,
            unreadable_pods: heard.unreadable,
            scene: self.place.as_ref().map(|place| place.borrow().clone()),
        }
    }

    /// The same for `/metrics`.
    pub(in crate::agent) fn numbers(&self) -> ApiNumbers {
        let (heard, counters) = (self.heard.borrow(), &self.counters);
        ApiNumbers {
            requests: Call::ALL
                .iter()
                .map(|call| (call.name(), counters.requests(*call)))
                .collect(),
            errors: ErrorKind::ALL
                .iter()
                .map(|kind| (kind.name(), counters.errors(*kind)))
                .collect(),
            retries: counters.retries(),
            resyncs: counters.resyncs(),
            pod_changes: counters.pod_changes(),
            events_dropped: counters.events_dropped(),
            last_answer: counters.last_success(),
            connected: heard.connected(),
            pods: heard.pods,
            unreadable: heard.unreadable,
            place: self
                .place
                .as_ref()
                .map(|place| place.borrow().clone().into()),
        }
    }
}

impl From<scenes::State> for PlaceNumbers {
    fn from(state: scenes::State) -> Self {
        let slot = state.slot;
        Self {
            phase: state.phase.name(),
            plan: state.plan.unwrap_or_default(),
            scene: slot
                .as_ref()
                .map(|slot| slot.scene.clone())
                .unwrap_or_default(),
            case: slot
                .as_ref()
                .map(|slot| slot.case.clone())
                .unwrap_or_default(),
            kind: slot
                .as_ref()
                .and_then(|slot| slot.kind.clone())
                .unwrap_or_default(),
            index: slot.map(|slot| slot.index.to_string()).unwrap_or_default(),
            conflicts: state.conflicts.len(),
        }
    }
}
