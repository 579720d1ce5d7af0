//! [`ApiNumbers`]: what was asked of the Kubernetes API, and what came of it.

use super::families::{
    API_CONNECTED, API_ERRORS, API_EVENTS_DROPPED, API_LAST_ANSWER_TIMESTAMP_SECONDS,
    API_POD_CHANGES, API_PODS, API_REQUESTS, API_RESYNCS, API_RETRIES, SCENE_INFO,
    SCENE_LABEL_CONFLICTS, SCENE_PHASE,
};
use super::page::{Labels, Lines, Page};

/// Numbers of the Kubernetes API, as whoever speaks with it counts them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiNumbers {
    /// Requests by kind.
    pub requests: Vec<(&'static str, u64)>,
    /// Errors by kind.
    pub errors: Vec<(&'static str, u64)>,
    /// Tries after a failure.
    pub retries: u64,
    /// How often all pods were read anew.
    pub resyncs: u64,
    /// Changes of pods that the watch has brought.
    pub pod_changes: u64,
    /// Events that were not written.
    pub events_dropped: u64,
    /// When the server last answered as it should, in seconds since 1970.
    pub last_answer: Option<f64>,
    /// Whether the pods are followed now.
    pub connected: bool,
    /// Pods that are known.
    pub pods: usize,
    /// Pods that can't be read.
    pub unreadable: usize,
    /// The Node's place in a scene, where it is kept.
    pub place: Option<PlaceNumbers>,
}

/// A Node's place in a scene; what it has not is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlaceNumbers {
    /// How it stands with the place, in a word.
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
    /// Labels of somebody else's that stand in the way.
    pub conflicts: usize,
}

// === impl ApiNumbers ===

impl ApiNumbers {
    /// The families of one scrape; kinds that never happened are zeroes, an answer that never came is no series.
    pub(super) fn write(&self, page: &mut Page) {
        let none = Labels::default();
        let mut by = |family, label: &str, values: &[(&str, u64)]| {
            let mut lines = Lines::of(family);
            values
                .iter()
                .for_each(|(value, count)| lines.put_with(&none, &[(label, value)], *count));
            page.add(lines);
        };
        by(&API_REQUESTS, "request", &self.requests);
        by(&API_ERRORS, "kind", &self.errors);
        by(
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
        if let Some(place) = &self.place {
            let PlaceNumbers {
                phase,
                plan,
                scene,
                case,
                kind,
                index,
                conflicts,
            } = place;
            page.add_info(&SCENE_PHASE, &[("phase", phase)]);
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
