//! [`ApiNumbers`]: requests to the Kubernetes API, and their results.

use super::families::{
    API_CONNECTED, API_ERRORS, API_EVENTS_DROPPED, API_LAST_ANSWER_TIMESTAMP_SECONDS,
    API_POD_CHANGES, API_PODS, API_REQUESTS, API_RESYNCS, API_RETRIES, SCENE_INFO,
    SCENE_LABEL_CONFLICTS, SCENE_PHASE,
};
use super::page::{Labels, Lines, Page};

/// Counters of the Kubernetes API's client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiNumbers {
    /// Requests by kind.
    pub requests: Vec<(&'static str, u64)>,
    /// Errors by kind.
    pub errors: Vec<(&'static str, u64)>,
    /// Requests that were repeated after a failure.
    pub retries: u64,
    /// How often the list of all pods was read again.
    pub resyncs: u64,
    /// Pod changes from the watch.
    pub pod_changes: u64,
    /// Events that were dropped.
    pub events_dropped: u64,
    /// The time of the last valid response, in seconds since 1970.
    pub last_answer: Option<f64>,
    /// Whether the watch on the pods is open.
    pub connected: bool,
    /// Known pods.
    pub pods: usize,
    /// Unreadable pods.
    pub unreadable: usize,
    /// The Node's slot in a scene, if the agent labels the Node.
    pub scene: Option<SceneNumbers>,
}

/// A Node's slot in a scene. A missing value is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SceneNumbers {
    /// The phase, as in `/status`.
    pub phase: &'static str,
    /// The plan.
    pub plan: String,
    /// The scene.
    pub scene: String,
    /// The case.
    pub case: String,
    /// The type.
    pub kind: String,
    /// The index.
    pub index: String,
    /// Labels of other programs that conflict with the plan.
    pub conflicts: usize,
}

/// The phases of a Node's slot, as in `/status`.
const SCENE_PHASES: [&str; 8] = [
    "unknown", "free", "spare", "placed", "waiting", "refused", "conflict", "disputed",
];

// === impl ApiNumbers ===

impl ApiNumbers {
    /// Writes the families. An error kind without errors is 0. Without any response, the time of the last response is absent.
    pub(super) fn write(&self, page: &mut Page) {
        let no_labels = Labels::default();
        let mut write_by = |family, label: &str, values: &[(&str, u64)]| {
            let mut lines = Lines::of(family);
            values
                .iter()
                .for_each(|(value, count)| lines.put_with(&no_labels, &[(label, value)], *count));
            page.add(lines);
        };
        write_by(&API_REQUESTS, "request", &self.requests);
        write_by(&API_ERRORS, "kind", &self.errors);
        write_by(
            &API_PODS,
            "state",
            &[
                ("known", self.pods as u64),
                ("unreadable", self.unreadable as u64),
            ],
        );
        page.add_one(&API_RETRIES, self.retries);
        page.add_one(&API_RESYNCS, self.resyncs);
        page.add_one(&API_POD_CHANGES, self.pod_changes);
        page.add_one(&API_EVENTS_DROPPED, self.events_dropped);
        if let Some(last) = self.last_answer {
            page.add_one(&API_LAST_ANSWER_TIMESTAMP_SECONDS, last);
        }
        page.add_one(&API_CONNECTED, self.connected);
        if let Some(numbers) = &self.scene {
            let SceneNumbers {
                phase,
                plan,
                scene,
                case,
                kind,
                index,
                conflicts,
            } = numbers;
            let unknown = (!SCENE_PHASES.contains(phase)).then_some(*phase);
            let mut phases = Lines::of(&SCENE_PHASE);
            for name in SCENE_PHASES.into_iter().chain(unknown) {
                phases.put_with(&Labels::default(), &[("phase", name)], name == *phase);
            }
            page.add(phases);
            if !scene.is_empty() {
                let labels = [
                    ("plan", plan),
                    ("scene", scene),
                    ("case", case),
                    ("type", kind),
                    ("index", index),
                ];
                page.add_info(
                    &SCENE_INFO,
                    &labels.map(|(name, value)| (name, value.as_str())),
                );
            }
            page.add_one(&SCENE_LABEL_CONFLICTS, *conflicts);
        }
    }
}
