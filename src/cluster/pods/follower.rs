//! [`follow`]: the task that reads the pods of a node, and sends each change.

use tokio::sync::mpsc;

use super::cache::{PodRead, read};
use super::{PodWatchSettings, PodsEvent};
use crate::cluster::backoff::BackoffPolicy;
use crate::cluster::informer::{AfterPause, Collection, CollectionEvent, Subscriber, inform};
use crate::cluster::{Api, Call, ErrorKind, Failure};

/// Follows the pods of a node until the receiver of `out` is dropped.
///
/// It never fails: failures are counted, reported as [`PodsEvent::Degraded`], and followed by a
/// retry.
pub async fn follow(
    api: Api,
    node: String,
    settings: PodWatchSettings,
    out: mpsc::Sender<PodsEvent>,
) {
    let pods = Collection {
        calls: (Call::ListPods, Call::WatchPods),
        fields: Some(format!("spec.nodeName={node}")),
        streaming: settings.streaming.then_some(settings.initial),
        first_spread: settings.first_spread,
        spread: settings.spread,
        watch_seconds: settings.watch_seconds,
        idle: settings.idle,
        backoff: BackoffPolicy::new(settings.backoff, settings.backoff.1),
        ..Collection::new("/api/v1/pods", "PodList", read)
    };
    let sender = PodsSender {
        api: api.clone(),
        out: out.clone(),
        degraded: None,
    };
    tokio::select! {
        () = inform(api, pods, sender) => {}
        () = out.closed() => {}
    }
}

struct PodsSender {
    api: Api,
    out: mpsc::Sender<PodsEvent>,
    /// The last reason that [`PodsEvent::Degraded`] reported; `None` while the watch works.
    degraded: Option<String>,
}

// === impl PodsSender ===

impl PodsSender {
    async fn send(&self, event: PodsEvent) {
        // An error means that the receiver was dropped, which ends the task.
        let _ = self.out.send(event).await;
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
}

impl Subscriber<PodRead> for PodsSender {
    async fn take(&mut self, event: CollectionEvent<PodRead>) {
        match event {
            CollectionEvent::Listed(pods) => {
                self.api.counters().resynced();
                self.send(PodsEvent::listed(pods)).await;
            }
            CollectionEvent::Put(identity, pod) => {
                self.api.counters().pod_changed();
                self.send(PodsEvent::applied(&identity, pod)).await;
            }
            CollectionEvent::Deleted(identity) => {
                self.api.counters().pod_changed();
                self.send(PodsEvent::deleted(identity)).await;
            }
            CollectionEvent::Works => self.works().await,
            CollectionEvent::Failed(failure) => self.failed(&failure).await,
            CollectionEvent::Waits { next, until } => {
                let lists = next == AfterPause::List;
                self.send(PodsEvent::Waits { until, lists }).await;
            }
        }
    }
}
