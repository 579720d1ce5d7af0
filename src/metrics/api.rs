//! [`ApiNumbers`]: what was asked of the Kubernetes API, and what came of it.

use prometheus::proto::MetricFamily;

use super::collect::Board;
use super::families::API_FAMILIES;

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
    pub(super) fn gather(&self) -> prometheus::Result<Vec<MetricFamily>> {
        let board = Board::new(API_FAMILIES)?;
        for (request, count) in &self.requests {
            board.set("pinfold_api_requests_total", &[request], *count as f64)?;
        }
        for (kind, count) in &self.errors {
            board.set("pinfold_api_errors_total", &[kind], *count as f64)?;
        }
        board.set("pinfold_api_retries_total", &[], self.retries as f64)?;
        board.set("pinfold_api_resyncs_total", &[], self.resyncs as f64)?;
        board.set("pinfold_api_pod_changes_total", &[], self.pod_changes as f64)?;
        board.set("pinfold_api_events_dropped_total", &[], self.events_dropped as f64)?;
        if let Some(last) = self.last_answer {
            board.set("pinfold_api_last_answer_timestamp_seconds", &[], last)?;
        }
        board.set("pinfold_api_connected", &[], f64::from(u8::from(self.connected)))?;
        board.set("pinfold_api_pods", &["known"], self.pods as f64)?;
        board.set("pinfold_api_pods", &["unreadable"], self.unreadable as f64)?;
        if let Some(place) = &self.place {
            let PlaceNumbers { phase, plan, scene, case, kind, index, conflicts } = place;
            board.set("pinfold_scene_phase", &[phase], 1.0)?;
            if !scene.is_empty() {
                board.set("pinfold_scene_info", &[plan, scene, case, kind, index], 1.0)?;
            }
            board.set("pinfold_scene_label_conflicts", &[], *conflicts as f64)?;
        }
        Ok(board.gather())
    }
}
