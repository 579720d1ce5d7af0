//! [`ClusterLink`]: the state of the API connection and its pods, for `/status`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use super::context::ClusterContext;
use crate::cluster::node_reader::{InStep, StartupTaint};
use crate::cluster::{ApiCounters, scenes};
use crate::scene::STARTUP_TAINT;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ApiConnection {
    /// Whether the first list of pods is complete.
    pub(super) complete: bool,
    pub(super) problem: Option<String>,
    /// Until when the agent deliberately sends no request.
    pub(super) wait: Option<ApiWait>,
    /// The latest problem, whether it lasts or not.
    pub(super) last_error: Option<String>,
    /// When the connection last came or went.
    pub(super) since: Option<Timestamp>,
    /// How many pods are known.
    pub(super) pods: usize,
    /// How many pods can't be read.
    pub(super) unreadable: usize,
}

/// A deliberate wait before the next request about the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ApiWait {
    pub(super) until: Timestamp,
    /// Whether the agent then lists all pods, and not only tries again.
    pub(super) lists: bool,
}

// === impl ApiConnection ===

impl ApiConnection {
    fn connected(&self) -> bool {
        self.complete && self.problem.is_none()
    }

    /// The current problem, and until when the agent waits, because the server may answer again
    /// before that.
    fn explained_problem(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        Some(match self.wait {
            None => problem.clone(),
            Some(ApiWait {
                until,
                lists: false,
            }) => {
                format!("{problem}; the agent tries again at {until:.0}")
            }
            Some(ApiWait { until, lists: true }) => format!(
                "the agent lists the pods again at {until:.0}, a random time, so that not all nodes ask the API server at \
                 once; the last failure: {problem}"
            ),
        })
    }

    /// Applies a change, and notes the time if the connection has come or gone with it.
    pub(super) fn change(&mut self, now: Timestamp, change: impl FnOnce(&mut Self)) {
        let before = self.connected();
        change(self);
        if self.connected() != before {
            self.since = Some(now);
        }
    }
}

/// The reading end of the connection's state.
#[derive(Debug, Clone)]
pub(in crate::agent) struct ClusterLink {
    connection: watch::Receiver<ApiConnection>,
    /// The Node's slot in a scene, where scenes are used.
    slot: Option<watch::Receiver<scenes::SlotState>>,
    startup_taint: watch::Receiver<StartupTaint>,
    in_step: watch::Receiver<InStep>,
    counters: Arc<ApiCounters>,
    node: String,
    namespace: String,
    server: String,
    origin: String,
}

/// The API as `/status` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct ClusterLinkState {
    server: String,
    origin: String,
    node: String,
    namespace: String,
    /// Whether the agent follows this node's pods now.
    connected: bool,
    /// When the connection last came or went.
    since: Option<String>,
    /// Whether the first list of pods is complete.
    complete: bool,
    problem: Option<String>,
    /// Until when the agent deliberately sends no request about the pods.
    waits_until: Option<String>,
    last_error: Option<String>,
    /// Seconds since the server's last successful answer.
    last_answer_seconds: Option<f64>,
    pods: usize,
    unreadable_pods: usize,
    /// Why the Node still has its startup taint, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    startup_taint: Option<String>,
    /// The Node's slot in a scene.
    #[serde(skip_serializing_if = "Option::is_none")]
    scene: Option<scenes::SlotState>,
}

// === impl ClusterLink ===

impl ClusterLink {
    /// A link without any state yet, and its writing end.
    pub(super) fn new(
        cluster: &ClusterContext,
        slot: watch::Receiver<scenes::SlotState>,
        (startup_taint, in_step): (watch::Receiver<StartupTaint>, watch::Receiver<InStep>),
    ) -> (Self, watch::Sender<ApiConnection>) {
        let (sender, connection) = watch::channel(ApiConnection {
            since: Some(Timestamp::now()),
            ..ApiConnection::default()
        });
        let ClusterContext {
            api,
            node,
            namespace,
            scenes,
            server,
            origin,
        } = cluster.clone();
        let slot = scenes.then_some(slot);
        let counters = Arc::clone(api.counters());
        (
            Self {
                connection,
                slot,
                startup_taint,
                in_step,
                counters,
                node,
                namespace,
                server,
                origin,
            },
            sender,
        )
    }

    /// Why the agent is not ready: the API server's first list of pods is missing.
    pub(in crate::agent) fn awaited(&self) -> Option<String> {
        let connection = self.connection.borrow();
        (!connection.complete).then(|| {
            let waits = "the agent waits for the first list of this node's pods";
            match connection.explained_problem() {
                Some(reason) if reason.contains(&self.server) => format!("{waits}: {reason}"),
                Some(reason) => format!("{waits} from {} ({reason})", self.server),
                None => format!("{waits} from {}", self.server),
            }
        })
    }

    /// The current problem after the first list. It takes no known pod away.
    pub(in crate::agent) fn problem(&self) -> Option<String> {
        let connection = self.connection.borrow();
        let reason = connection
            .explained_problem()
            .filter(|_| connection.complete)?;
        Some(format!(
            "the watch on this node's pods fails, and the known pods stay: {reason}"
        ))
    }

    /// Why the Node still has its startup taint; `None` if it does not have it.
    pub(in crate::agent) fn startup_taint(&self) -> Option<String> {
        match &*self.startup_taint.borrow() {
            StartupTaint::Absent => None,
            StartupTaint::Refused(why) => Some(why.clone()),
            StartupTaint::Awaited => {
                let why = self.in_step.borrow().clone().err()?;
                Some(format!(
                    "Node {} keeps the taint {STARTUP_TAINT}, so new pods stay off it until the agent is in step: {why}",
                    self.node
                ))
            }
        }
    }

    /// The Node's slot in a scene, where scenes are used.
    pub(in crate::agent) fn slot(&self) -> Option<watch::Receiver<scenes::SlotState>> {
        self.slot.clone()
    }

    pub(in crate::agent) fn state(&self) -> ClusterLinkState {
        let connection = self.connection.borrow().clone();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        ClusterLinkState {
            server: self.server.clone(),
            origin: self.origin.clone(),
            node: self.node.clone(),
            namespace: self.namespace.clone(),
            connected: connection.connected(),
            since: connection.since.map(|since| format!("{since:.0}")),
            complete: connection.complete,
            problem: connection.explained_problem(),
            waits_until: connection.wait.map(|wait| format!("{:.0}", wait.until)),
            last_error: connection.last_error,
            last_answer_seconds: self
                .counters
                .last_success()
                .map(|last| (now - last).max(0.0)),
            pods: connection.pods,
            unreadable_pods: connection.unreadable,
            startup_taint: self.startup_taint(),
            scene: self.slot.as_ref().map(|slot| slot.borrow().clone()),
        }
    }

    pub(in crate::agent) fn counters(&self) -> &ApiCounters {
        &self.counters
    }

    /// Whether the agent follows this node's pods now, and the numbers of known and of unreadable pods.
    pub(in crate::agent) fn pods(&self) -> (bool, [usize; 2]) {
        let connection = self.connection.borrow();
        let pods = [connection.pods, connection.unreadable];
        (connection.connected(), pods)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The server may answer again long before the agent asks. "Connection refused" on its own
    /// would then look like a lie.
    #[test]
    fn a_problem_says_until_when_the_agent_waits_on_purpose() {
        let until: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let problem = |wait| {
            let connection = ApiConnection {
                problem: Some("Connection refused".to_owned()),
                wait,
                ..ApiConnection::default()
            };
            connection.explained_problem().unwrap()
        };
        assert_eq!(problem(None), "Connection refused");
        for (lists, sentence) in [(false, "tries again at"), (true, "lists the pods again at")] {
            let says = problem(Some(ApiWait { until, lists }));
            assert!(says.contains("Connection refused"), "{says}");
            let found = says.contains(&format!("the agent {sentence} 2026-01-02T03:04:05Z"));
            assert!(found, "{says}");
        }
        assert_eq!(ApiConnection::default().explained_problem(), None);
    }
}
