//! [`follow`]: the task that keeps one watch open.

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

/// After so many unreadable answers in a row everything is read anew.
const MOST_INVALID: u32 = 3;

/// After so many streaming lists in a row that found no end in time, there is no such thing here.
const UNENDED_ENOUGH: u32 = 3;

/// Follows the pods of a node until nobody listens any more.
///
/// It never ends by itself and never fails: what goes wrong is told as [`PodsEvent::Degraded`], counted, and tried again.
pub async fn follow(api: Api, node: String, settings: Settings, out: mpsc::Sender<PodsEvent>) {
    let streaming = settings.streaming;
    let backoff = Backoff::new(settings.backoff.0, settings.backoff.1);
    let mut follower = Follower {
        api,
        selector: format!("spec.nodeName={node}"),
        settings,
        out,
        known: PodCache::default(),
        version: None,
        streaming,
        unended: 0,
        degraded: None,
        too_old: false,
        nonsense: 0,
        backoff,
        jitter: Jitter::default(),
    };
    while !follower.out.is_closed() {
        let pause = match follower.turn().await {
            Ok(Turn::Ended(pause)) => pause,
            Ok(Turn::Unheard) => return,
            Err(failure) => {
                follower.api.counters().retried();
                follower.failed(&failure).await
            }
        };
        let out = follower.out.clone();
        // Both arms are cancel safe: neither holds anything.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = out.closed() => return,
        }
    }
}

/// How a turn ended without a failure.
enum Turn {
    /// The next one may begin after this pause.
    Ended(Duration),
    /// Nobody listens any more.
    Unheard,
}

struct Follower {
    api: Api,
    selector: String,
    settings: Settings,
    out: mpsc::Sender<PodsEvent>,
    known: PodCache,
    /// The version up to which everything is known; `None` where all must be read.
    version: Option<String>,
    streaming: bool,
    /// Streaming lists in a row that found no end in time.
    unended: u32,
    /// The last reason that [`PodsEvent::Degraded`] reported; `None` while the watch works.
    degraded: Option<String>,
    /// Whether the server said, and nothing has been heard since, that what we ask for is too old.
    too_old: bool,
    /// Answers in a row that could not be read.
    nonsense: u32,
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
    /// One connection's life: everything is read if need be, then changes are followed until the watch ends.
    async fn turn(&mut self) -> Result<Turn, Failure> {
        let began = Instant::now();
        let (mut lines, mut heard) = match self.version.clone() {
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
            return Ok(Turn::Unheard);
        }
        let idle = self.settings.idle;
        let lasting = began + self.settings.short_lived;
        let mut well = false;
        loop {
            // A watch that was accepted proves nothing: it has to bring something, or to last.
            if !well && (heard > 0 || Instant::now() >= lasting) {
                well = true;
                self.recovered().await;
            }
            let out = self.out.clone();
            // All arms are cancel safe: a line that is not whole stays in `lines`.
            let next = tokio::select! {
                next = lines.next(idle) => next,
                () = tokio::time::sleep_until(lasting), if !well => continue,
                () = out.closed() => return Ok(Turn::Unheard),
            };
            match next {
                Ok(Some(line)) => {
                    heard += 1;
                    self.line(&line)
                        .await
                        .map_err(|failure| self.counted(failure))?;
                }
                Ok(None) => break,
                Err(failure) => {
                    // A watch that breaks is nothing unusual: it goes on from where it was.
                    let failure = self.counted(failure);
                    tracing::debug!("the watch of this node's pods broke: {failure}");
                    break;
                }
            }
        }
        if began.elapsed() < self.settings.short_lived && heard == 0 {
            let failure = Failure::Connection("the watch ended as soon as it had begun".to_owned());
            return Err(self.counted(failure));
        }
        self.backoff.reset();
        Ok(Turn::Ended(self.jitter.spread(self.settings.backoff.0)))
    }

    /// Opens a watch from a version, or one that begins with all pods.
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

    /// Reads all pods by a streaming list; the same connection then brings the changes. `None` where that can't be had now.
    async fn stream_all(&mut self) -> Result<Option<Lines>, Failure> {
        if !self.streaming {
            return Ok(None);
        }
        let mut lines = match self.open(None).await {
            Ok(lines) => lines,
            Err(failure) if refuses_streaming(&failure) => {
                tracing::info!("no streaming lists here ({failure}): pods are read in pages");
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
                // A server that knows nothing of streaming lists takes the request for a plain watch; a busy one is only slow.
                tracing::info!("a streaming list found no end in time: pods are read in pages");
                self.unended += 1;
                self.streaming = self.unended < UNENDED_ENOUGH;
                self.api.counters().failed(ErrorKind::Timeout);
                Ok(None)
            }
            Err(failure) => Err(self.counted(failure)),
        }
    }

    /// The objects of a streaming list and its version, once its end is marked; `None` where no mark came in time.
    async fn initial(
        &self,
        lines: &mut Lines,
    ) -> Result<Option<(Vec<Box<RawValue>>, String)>, Failure> {
        let until = Instant::now() + self.settings.initial;
        let mut objects = BTreeMap::new();
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let line = match lines.next(rest).await {
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

    /// Reads all pods page by page; the version of the list.
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

    /// A random pause before everything is read anew: whatever made it necessary here did so on every node.
    async fn stagger(&mut self) {
        if self.known.is_complete() {
            let pause = self.jitter.spread(self.settings.spread);
            let out = self.out.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = out.closed() => {}
            }
        }
    }

    async fn replaced(&mut self, objects: Vec<Box<RawValue>>, version: String) {
        let snapshot = self.known.replace(objects);
        self.api.counters().resynced();
        self.version = Some(version);
        self.tell(snapshot).await;
    }

    /// Takes one line of the watch.
    async fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line: Line = parse(line)?;
        let next = Identity::of(&line.object).version();
        let event = match line.r#type.as_str() {
            "BOOKMARK" => None,
            "ADDED" | "MODIFIED" => {
                self.api.counters().pod_changed();
                self.known.changed(&line.object)
            }
            "DELETED" => {
                self.api.counters().pod_changed();
                self.known.gone(&line.object)
            }
            _ => return Err(error_event(&line.object)),
        };
        // Something was heard: whatever comes next is the first failure again.
        self.backoff.reset();
        (self.too_old, self.nonsense) = (false, 0);
        if let Some(next) = next {
            self.version = Some(next);
        }
        if let Some(event) = event {
            self.tell(event).await;
        }
        Ok(())
    }

    /// Notes a failure; how long to wait.
    async fn failed(&mut self, failure: &Failure) -> Duration {
        let too_old = failure.is_expired();
        if too_old && !self.too_old {
            // The server answers again, so the wait starts over. Only a repeated 410 makes the wait longer.
            self.backoff.reset();
        }
        self.too_old |= too_old;
        let pause = self.backoff.wait(self.jitter.roll(), failure.retry_after());
        if too_old {
            // Not the server's fault: it has forgotten what we ask for. Everything is read anew.
            tracing::info!("this node's pods are read anew: {failure}");
            self.version = None;
            return pause;
        }
        if failure.kind() == ErrorKind::InvalidResponse {
            self.nonsense += 1;
            if self.nonsense.is_multiple_of(MOST_INVALID) {
                // What can't be read stands at this version: the way around it is a list.
                self.version = None;
            }
        }
        let mut says = failure.to_string();
        match failure.kind() {
            ErrorKind::Forbidden => says.push_str("; allow the agent to list and watch pods"),
            ErrorKind::Unauthorized => says.push_str("; check the agent's token"),
            _ => {}
        }
        self.api.counters().set_degraded(true);
        if self.degraded.as_ref() != Some(&says) {
            tracing::warn!(
                "this node's pods can't be followed, what is known of them stays: {says}"
            );
            self.degraded = Some(says.clone());
            self.tell(PodsEvent::Degraded(says)).await;
        }
        pause
    }

    /// A failure in the midst of a stream, which nobody else has counted.
    fn counted(&self, failure: Failure) -> Failure {
        self.api.counters().failed(failure.kind());
        failure
    }

    async fn recovered(&mut self) {
        self.api.counters().set_degraded(false);
        if self.degraded.take().is_some() {
            tracing::info!("this node's pods are followed again");
            self.tell(PodsEvent::Recovered).await;
        }
    }

    async fn tell(&self, event: PodsEvent) {
        // An error means that nobody listens, which the loop notices.
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

/// 422 where the feature is off, 400 from servers that don't know the parameter's rules.
fn refuses_streaming(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(|status| matches!(status.code, 400 | 422))
}
