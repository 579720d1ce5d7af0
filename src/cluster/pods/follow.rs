//! [`follow`]: the task that keeps one watch open.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Status;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::known::Identity;
use super::{Known, PodsEvent, Settings};
use crate::cluster::call::Lines;
use crate::cluster::{Api, Backoff, Call, Dice, ErrorKind, Failure};

const PODS: &str = "/api/v1/pods";

/// After so many unreadable answers in a row everything is read anew.
const NONSENSE_ENOUGH: u32 = 3;

/// After so many streaming lists in a row that found no end in time, there is no such thing here.
const UNENDED_ENOUGH: u32 = 3;

/// Follows the pods of a node until nobody listens any more.
///
/// It never ends by itself and never fails: what goes wrong is told as [`PodsEvent::Trouble`], counted, and tried again.
pub async fn follow(api: Api, node: String, settings: Settings, out: mpsc::Sender<PodsEvent>) {
    let streaming = settings.streaming;
    let backoff = Backoff::new(settings.backoff.0, settings.backoff.1);
    let mut follower = Follower {
        api,
        selector: format!("spec.nodeName={node}"),
        settings,
        out,
        known: Known::default(),
        version: None,
        streaming,
        unended: 0,
        trouble: None,
        too_old: false,
        nonsense: 0,
        backoff,
        dice: Dice::default(),
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
    known: Known,
    /// The version up to which everything is known; `None` where all must be read.
    version: Option<String>,
    streaming: bool,
    /// Streaming lists in a row that found no end in time.
    unended: u32,
    /// What was said of the trouble there is.
    trouble: Option<String>,
    /// Whether the server said, and nothing has been heard since, that what we ask for is too old.
    too_old: bool,
    /// Answers in a row that could not be read.
    nonsense: u32,
    backoff: Backoff,
    dice: Dice,
}

/// A page of a list. The pods stay text until each is read by itself: one that can't be read keeps nobody from being read.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Box<RawValue>>,
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
        Ok(Turn::Ended(self.dice.spread(self.settings.backoff.0)))
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
        let request = request.map_err(|error| Failure::Nonsense(error.to_string()))?;
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
                        Failure::Nonsense("a bookmark without a version".to_owned())
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
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let params = ListParams {
                field_selector: Some(self.selector.clone()),
                limit: Some(self.settings.page),
                continue_token: token.clone(),
                ..ListParams::default()
            };
            let request = request::Request::new(PODS).list(&params);
            let request: Request<Vec<u8>> =
                request.map_err(|error| Failure::Nonsense(error.to_string()))?;
            let page: Page = self.api.ask(Call::ListPods, request).await?;
            objects.extend(page.items);
            token = page.metadata.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                let version = page
                    .metadata
                    .resource_version
                    .filter(|version| !version.is_empty());
                let version = version
                    .ok_or_else(|| Failure::Nonsense("a list without a version".to_owned()))?;
                self.replaced(objects, version.clone()).await;
                return Ok(version);
            }
        }
    }

    /// A random pause before everything is read anew: whatever made it necessary here did so on every node.
    async fn stagger(&mut self) {
        if self.known.is_complete() {
            let pause = self.dice.spread(self.settings.spread);
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
            // It answers, so the trouble before is over; only one that says it again and again is left alone for longer.
            self.backoff.reset();
        }
        self.too_old |= too_old;
        let pause = self.backoff.wait(self.dice.roll(), failure.retry_after());
        if too_old {
            // Not the server's fault: it has forgotten what we ask for. Everything is read anew.
            tracing::info!("this node's pods are read anew: {failure}");
            self.version = None;
            return pause;
        }
        if failure.kind() == ErrorKind::Nonsense {
            self.nonsense += 1;
            if self.nonsense.is_multiple_of(NONSENSE_ENOUGH) {
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
        self.api.counters().set_trouble(true);
        if self.trouble.as_ref() != Some(&says) {
            tracing::warn!(
                "this node's pods can't be followed, what is known of them stays: {says}"
            );
            self.trouble = Some(says.clone());
            self.tell(PodsEvent::Trouble(says)).await;
        }
        pause
    }

    /// A failure in the midst of a stream, which nobody else has counted.
    fn counted(&self, failure: Failure) -> Failure {
        self.api.counters().failed(failure.kind());
        failure
    }

    async fn recovered(&mut self) {
        self.api.counters().set_trouble(false);
        if self.trouble.take().is_some() {
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
        .map_err(|error| Failure::Nonsense(format!("a line of the watch: {error}")))
}

fn error_event(object: &RawValue) -> Failure {
    match serde_json::from_slice::<Status>(object.get().as_bytes()) {
        Ok(status) => Failure::refused(status),
        Err(error) => Failure::Nonsense(format!("an event of the watch: {error}")),
    }
}

/// 422 where the feature is off, 400 from servers that don't know the parameter's rules.
fn refuses_streaming(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(|status| matches!(status.code, 400 | 422))
}
