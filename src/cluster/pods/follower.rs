//! [`follow`]: the task that lists and watches the pods of a node.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::core::Status;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::cache::Identity;
use super::{PodCache, PodsEvent, Settings};
use crate::cluster::call::Lines;
use crate::cluster::list::{List, list};
use crate::cluster::{Api, Backoff, Call, ErrorKind, Failure, Jitter};

const PODS: &str = "/api/v1/pods";

/// After this many unreadable answers in a row, all pods are read again.
const MAX_INVALID: u32 = 3;

/// After this many streaming lists in a row without a final bookmark in time, the task uses paged lists only.
const MAX_UNENDED: u32 = 3;

/// Follows the pods of a node until the receiver of `out` is dropped.
///
/// The task never fails. Failures are counted, reported as [`PodsEvent::Degraded`], and followed by a retry.
pub async fn follow(api: Api, node: String, settings: Settings, out: mpsc::Sender<PodsEvent>) {
    let streaming = settings.streaming;
    let backoff = Backoff::new(settings.backoff.0, settings.backoff.1);
    let mut follower = Follower {
        api,
        selector: format!("spec.nodeName={node}"),
        settings,
        out,
        cache: PodCache::default(),
        version: None,
        streaming,
        unended: 0,
        degraded: None,
        too_old: false,
        invalid_answers: 0,
        backoff,
        jitter: Jitter::default(),
    };
    while !follower.out.is_closed() {
        let pause = match follower.watch_once().await {
            Ok(Turn::Ended(pause)) => pause,
            Ok(Turn::ReceiverClosed) => return,
            Err(failure) => {
                follower.api.counters().retried();
                follower.failed(&failure).await
            }
        };
        let out = follower.out.clone();
        // Both arms are cancel safe: neither keeps state.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = out.closed() => return,
        }
    }
}

/// How a watch ended without a failure.
enum Turn {
    /// The server ended the watch. The next watch may start after the pause.
    Ended(Duration),
    /// The receiver of the events was dropped.
    ReceiverClosed,
}

struct Follower {
    api: Api,
    selector: String,
    settings: Settings,
    out: mpsc::Sender<PodsEvent>,
    cache: PodCache,
    /// The resourceVersion from which the watch continues; `None` if all pods must be read.
    version: Option<String>,
    streaming: bool,
    /// The number of streaming lists in a row without a final bookmark in time.
    unended: u32,
    /// The last reason that [`PodsEvent::Degraded`] reported; `None` while the watch works.
    degraded: Option<String>,
    /// Whether the server answered 410 Gone, and no line of a watch has arrived since.
    too_old: bool,
    /// The number of unreadable answers in a row.
    invalid_answers: u32,
    backoff: Backoff,
    jitter: Jitter,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Box<RawValue>,
}

// === impl Follower ===

impl Follower {
    /// Reads all pods if needed, then watches for changes until the watch ends.
    async fn watch_once(&mut self) -> Result<Turn, Failure> {
        let began = Instant::now();
        let (mut lines, mut line_count) = match self.version.clone() {
            Some(version) => (self.open(Some(&version)).await?, 0),
            None => {
                self.stagger().await;
                match self.stream_all().await? {
                    Some(lines) => (lines, 1),
                    None => {
                        let version = self.list_all().await?;
                        (self.open(Some(&version)).await?, 0)
                    }
                }
            }
        };
        if self.out.is_closed() {
            return Ok(Turn::ReceiverClosed);
        }
        let idle = self.settings.idle;
        let settled_at = began + self.settings.short_lived;
        let mut healthy = false;
        loop {
            // An accepted watch may still end at once. A watch is healthy after a line, or after `short_lived`.
            if !healthy && (line_count > 0 || Instant::now() >= settled_at) {
                healthy = true;
                self.recovered().await;
            }
            let out = self.out.clone();
            // All arms are cancel safe: an incomplete line stays in `lines`.
            let next = tokio::select! {
                next = lines.next(idle) => next,
                () = tokio::time::sleep_until(settled_at), if !healthy => continue,
                () = out.closed() => return Ok(Turn::ReceiverClosed),
            };
            match next {
                Ok(Some(line)) => {
                    line_count += 1;
                    self.line(&line)
                        .await
                        .map_err(|failure| self.counted(failure))?;
                }
                Ok(None) => break,
                Err(failure) => {
                    // A broken watch is common. The next watch continues from the last resourceVersion.
                    let failure = self.counted(failure);
                    tracing::debug!("the watch of this node's pods broke: {failure}");
                    break;
                }
            }
        }
        if began.elapsed() < self.settings.short_lived && line_count == 0 {
            let failure = Failure::Connection("the API server ended the watch at once".to_owned());
            return Err(self.counted(failure));
        }
        self.backoff.reset();
        Ok(Turn::Ended(self.jitter.spread(self.settings.backoff.0)))
    }

    /// Opens a watch from a resourceVersion, or a streaming list without a version.
    async fn open(&self, version: Option<&str>) -> Result<Lines, Failure> {
        let params = WatchParams {
            field_selector: Some(self.selector.clone()),
            timeout: Some(self.settings.watch_seconds),
            send_initial_events: version.is_none(),
            ..WatchParams::default()
        };
        let request = request::Request::new(PODS).watch(&params, version.unwrap_or_default());
        let request = request.map_err(|error| Failure::InvalidResponse(error.to_string()))?;
        self.api.open(Call::WatchPods, request).await
    }

    /// Reads all pods by a streaming list. The same connection then sends the changes. `None` if a paged list is needed.
    async fn stream_all(&mut self) -> Result<Option<Lines>, Failure> {
        if !self.streaming {
            return Ok(None);
        }
        let mut lines = match self.open(None).await {
            Ok(lines) => lines,
            Err(failure) if refuses_streaming(&failure) => {
                tracing::info!(
                    "the API server has no streaming lists ({failure}): pods are read by paged lists"
                );
                self.streaming = false;
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        match self.initial(&mut lines).await {
            Ok(Some((objects, version))) => {
                self.unended = 0;
                self.replaced(objects, version).await;
                Ok(Some(lines))
            }
            Ok(None) => {
                // A server without streaming lists treats the request as a plain watch. A busy server is only slow.
                tracing::info!(
                    "a streaming list sent no final bookmark in time: pods are read by a paged list"
                );
                self.unended += 1;
                self.streaming = self.unended < MAX_UNENDED;
                self.api.counters().failed(ErrorKind::Timeout);
                Ok(None)
            }
            Err(failure) => Err(self.counted(failure)),
        }
    }

    /// Reads a streaming list up to the final bookmark. Returns the objects and the list's resourceVersion, or `None` if no
    /// final bookmark came in time.
    async fn initial(
        &self,
        lines: &mut Lines,
    ) -> Result<Option<(Vec<Box<RawValue>>, String)>, Failure> {
        let deadline = Instant::now() + self.settings.initial;
        let mut objects = BTreeMap::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match lines.next(left).await {
                Ok(Some(line)) => line,
                Ok(None) => {
                    return Err(Failure::Connection(
                        "the list ended before it was complete".to_owned(),
                    ));
                }
                Err(Failure::Timeout(_)) => return Ok(None),
                Err(failure) => return Err(failure),
            };
            let line: Line = parse(&line)?;
            let identity = Identity::of(&line.object);
            match line.r#type.as_str() {
                "BOOKMARK" if identity.ends_list() => {
                    let version = identity.version().ok_or_else(|| {
                        Failure::InvalidResponse("a bookmark without a version".to_owned())
                    })?;
                    return Ok(Some((objects.into_values().collect(), version)));
                }
                "BOOKMARK" => {}
                "ADDED" | "MODIFIED" => {
                    objects.insert(identity.uid().to_owned(), line.object);
                }
                "DELETED" => {
                    objects.remove(identity.uid());
                }
                _ => return Err(error_event(&line.object)),
            }
        }
    }

    /// Reads all pods by a paged list. Returns the list's resourceVersion.
    async fn list_all(&mut self) -> Result<String, Failure> {
        let params = ListParams::default()
            .fields(&self.selector)
            .limit(self.settings.page);
        let mut objects = Vec::new();
        let version = list(
            &self.api,
            List::new(Call::ListPods, PODS, "PodList").with(params),
            |object| {
                objects.push(object);
                Ok(())
            },
        )
        .await?;
        if version.is_empty() {
            return Err(Failure::InvalidResponse(
                "a list without a version".to_owned(),
            ));
        }
        self.replaced(objects, version.clone()).await;
        Ok(version)
    }

    /// Pauses at random before a repeated read of all pods. The cause of the read usually affects every node at the same time.
    async fn stagger(&mut self) {
        if self.cache.is_complete() {
            let pause = self.jitter.spread(self.settings.spread);
            let out = self.out.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = out.closed() => {}
            }
        }
    }

    /// Replaces the cache by a complete list, and sends the snapshot.
    async fn replaced(&mut self, objects: Vec<Box<RawValue>>, version: String) {
        let snapshot = self.cache.replace(objects);
        self.api.counters().resynced();
        self.version = Some(version);
        self.send(snapshot).await;
    }

    /// Applies a line of the watch.
    async fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line: Line = parse(line)?;
        let next = Identity::of(&line.object).version();
        let event = match line.r#type.as_str() {
            "BOOKMARK" => None,
            "ADDED" | "MODIFIED" => {
                self.api.counters().pod_changed();
                self.cache.changed(&line.object)
            }
            "DELETED" => {
                self.api.counters().pod_changed();
                self.cache.gone(&line.object)
            }
            _ => return Err(error_event(&line.object)),
        };
        // The watch works, so the next failure counts as the first.
        self.backoff.reset();
        (self.too_old, self.invalid_answers) = (false, 0);
        if let Some(next) = next {
            self.version = Some(next);
        }
        if let Some(event) = event {
            self.send(event).await;
        }
        Ok(())
    }

    /// Records and reports a failure. Returns the pause before the next try.
    async fn failed(&mut self, failure: &Failure) -> Duration {
        let too_old = failure.is_expired();
        if too_old && !self.too_old {
            // The server answers again, so the wait starts over. Only a repeated 410 makes the wait longer.
            self.backoff.reset();
        }
        self.too_old |= too_old;
        let pause = self.backoff.wait(self.jitter.roll(), failure.retry_after());
        if too_old {
            // The server works, but no longer has the resourceVersion. All pods are read again.
            tracing::info!("all pods of this node are listed again: {failure}");
            self.version = None;
            return pause;
        }
        if failure.kind() == ErrorKind::InvalidResponse {
            self.invalid_answers += 1;
            if self.invalid_answers.is_multiple_of(MAX_INVALID) {
                // A watch from the same resourceVersion would send the unreadable line again. A list skips the line.
                self.version = None;
            }
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
        pause
    }

    /// Counts a failure inside a stream, which the API client does not count.
    fn counted(&self, failure: Failure) -> Failure {
        self.api.counters().failed(failure.kind());
        failure
    }

    /// Reports a working watch, if the watch failed before.
    async fn recovered(&mut self) {
        self.api.counters().set_degraded(false);
        if self.degraded.take().is_some() {
            tracing::info!("the watch on this node's pods works again");
            self.send(PodsEvent::Recovered).await;
        }
    }

    async fn send(&self, event: PodsEvent) {
        // An error means that the receiver was dropped. The main loop checks for a dropped receiver.
        let _ = self.out.send(event).await;
    }
}

fn parse(line: &[u8]) -> Result<Line, Failure> {
    serde_json::from_slice(line)
        .map_err(|error| Failure::InvalidResponse(format!("a line of the watch: {error}")))
}

fn error_event(object: &RawValue) -> Failure {
    match serde_json::from_slice::<Status>(object.get().as_bytes()) {
        Ok(status) => Failure::refused(status),
        Err(error) => Failure::InvalidResponse(format!("an event of the watch: {error}")),
    }
}

/// Whether the server refuses streaming lists: 422 if the feature is off, 400 from servers without the parameter's rules.
fn refuses_streaming(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(|status| matches!(status.code, 400 | 422))
}
