//! [`follow`]: the task that reads the pods of a node, and sends each change.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{PodWatchSettings, PodsEvent};
use crate::cluster::backoff::BackoffPolicy;
use crate::cluster::reflect::{AfterPause, FollowedCollection, ObjectCache, SHORT_LIVED, reflect};
use crate::cluster::{Api, Call, ErrorKind, Failure};

/// Follows the pods of a node until the receiver of `out` is dropped.
///
/// The task never fails. Failures are counted, reported as [`PodsEvent::Degraded`], and followed by a retry.
pub async fn follow(
    api: Api,
    node: String,
    settings: PodWatchSettings,
    out: mpsc::Sender<PodsEvent>,
) {
    let pods = FollowedCollection {
        path: "/api/v1/pods".into(),
        kind: "PodList",
        metadata_only: false,
        calls: (Call::ListPods, Call::WatchPods),
        fields: Some(format!("spec.nodeName={node}")),
        labels: None,
        page: None,
        streaming: settings.streaming.then_some(settings.initial),
        first_spread: settings.first_spread,
        watch_seconds: settings.watch_seconds,
        idle: settings.idle,
        settled: SHORT_LIVED,
    };
    let backoff = BackoffPolicy::new(settings.backoff, settings.backoff.1);
    let sender = PodsSender {
        api: api.clone(),
        spread: settings.spread,
        out: out.clone(),
        complete: false,
        degraded: None,
    };
    tokio::select! {
        () = reflect(api, pods, backoff, sender) => {}
        () = out.closed() => {}
    }
}

/// The sender of the changes.
struct PodsSender {
    api: Api,
    spread: Duration,
    out: mpsc::Sender<PodsEvent>,
    /// Whether all pods have been read at least once.
    complete: bool,
    /// The last reason that [`PodsEvent::Degraded`] reported; `None` while the watch works.
    degraded: Option<String>,
}

// === impl PodsSender ===

impl PodsSender {
    async fn send(&self, event: PodsEvent) {
        // An error means that the receiver was dropped, which ends the task.
        let _ = self.out.send(event).await;
    }
}

impl ObjectCache for PodsSender {
    /// The first list has no pause of its own, since new containers wait for it.
    fn stagger(&self) -> Duration {
        if self.complete {
            self.spread
        } else {
            Duration::ZERO
        }
    }

    async fn replace(&mut self, objects: Vec<Box<RawValue>>) {
        let listed = PodsEvent::listed(objects);
        self.complete = true;
        self.api.counters().resynced();
        self.send(listed).await;
    }

    async fn put(&mut self, object: &RawValue) {
        self.api.counters().pod_changed();
        self.send(PodsEvent::applied(object)).await;
    }

    async fn remove(&mut self, object: &RawValue) {
        self.api.counters().pod_changed();
        self.send(PodsEvent::deleted(object)).await;
    }

    async fn works(&mut self) {
        self.api.counters().set_degraded(false);
        if self.degraded.take().is_some() {
            tracing::info!("the watch on this node's pods works again");
            self.send(PodsEvent::Recovered).await;
        }
    }

    async fn failed(&mut self, failure: &Failure) {
        self.api.counters().retried();
        if failure.is_expired() {
            // The server works, but no longer has the resourceVersion.
            tracing::info!("all pods of this node are listed again: {failure}");
            return;
        }
        let mut reason = failure.to_string();
        match failure.kind() {
            ErrorKind::Forbidden => reason.push_str("; allow the agent to list and watch pods"),
            ErrorKind::Unauthorized => reason.push_str("; check the agent's token"),
            _ => {}
        }
        self.api.counters().set_degraded(true);
        if self.degraded.as_ref() != Some(&reason) {
            tracing::warn!(
                "the watch on this node's pods fails, and the known pods stay: {reason}"
            );
            self.degraded = Some(reason.clone());
            self.send(PodsEvent::Degraded(reason)).await;
        }
    }

    async fn waits(&mut self, next: AfterPause, until: Timestamp) {
        let lists = next == AfterPause::List;
        self.send(PodsEvent::Waits { until, lists }).await;
    }
}
