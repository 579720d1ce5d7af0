//! [`inform`]: lists a collection, then watches it for changes, forever. Everything that follows a collection does so by it.
//!
//! ```text
//!  ┌─> list needed:     random pause ─> streaming list or plain list ──> CollectionEvent::Listed
//!  │                                                  │ resourceVersion
//!  │   no list needed:                                └─> watch ── change ──> CollectionEvent::Put, Deleted
//!  └── pause <── CollectionEvent::Failed <── failure <───────┴─── end ──> pause ─> watch
//! ```
//!
//! The informer owns the resourceVersion, the requests, the connection and the pauses. It decodes each object as soon as the
//! page or the line with it has arrived, and keeps neither the text nor a copy of the result, because an object's text is often
//! a hundred times as large as what its user needs. The [`Subscriber`] owns the decoded objects and the reports to people. What
//! differs between the users is in [`Collection`]. The rules:
//!
//! - **A failure removes nothing.** The subscriber gets a complete list or nothing. An answer of
//!   another kind is a failure.
//! - **A reconnect is cheap.** A watch continues from the last resourceVersion. Broken connections
//!   are common, so a watch that worked may break without a report.
//! - **A watch that ends at once has failed.** A proxy may accept and end each watch, and a retry without a wait would send
//!   requests without end. A watch works after its first line, or after [`SHORT_LIVED`].
//! - **Three failures need a new list**: 410 Gone, 404, and [`MAX_INVALID`] invalid answers in a
//!   row. 404 means that the collection does not exist, and a later one of the same name has
//!   different objects.
//! - **A random pause comes before each list**, of at most [`Collection::spread`], since a
//!   restarted server answers all nodes with 410. The first 410 shows that the server works again,
//!   so it restarts the backoff, and only a repeated 410 makes the wait longer.
//! - **A streaming list saves requests.** A server without streaming lists refuses the request, or
//!   sends no final bookmark. A plain list then takes its place.
//! - **Plain lists come from the server's cache.** A server before 1.34 answers a list with `limit`, and one before 1.31 any list
//!   without a resourceVersion, by reading every object of the cluster from etcd, whatever the selector. With thousands of nodes
//!   that would overload the server. So the list has no `limit`, and names a version: the first list takes what the cache has,
//!   as the kubelet does, and a later list is not older than the last version seen, since an older list would lack
//!   known objects. A server that has not reached this version answers "too large". After [`MAX_TOO_LARGE`] such answers
//!   the version is probably from before a restore of etcd, and the list asks for the newest state, whatever the cost.
//! - **A silent connection is closed** after [`Collection::idle`]. A server usually sends a bookmark every minute.
//! - **Silent watches need a new list** after [`MAX_SILENCE`]. After the restore of an old backup of etcd, the last
//!   resourceVersion lies in the future, and the server sends neither changes nor bookmarks for such a version.
//!
//! Each await may be cancelled, so dropping the future ends the informer.
//!
//! `kube::runtime::watcher` (read in `kube-runtime` 5.0.0) cannot carry these rules:
//!
//! - A list is either paged and of the newest version, which older servers read from etcd, or of any version, which may lack
//!   known objects. The watcher never asks for a list that is not older than the last version seen.
//! - A refused streaming list starts another streaming list. No other list replaces it.
//! - The end of a watch is no failure, so a proxy that ends each watch at once causes requests without a pause.
//! - The watcher closes a silent connection, but only 5 s after the server should have closed it. A stream of initial objects
//!   has no deadline of its own, and kube bounds neither a line of a watch nor an answer.
//! - `Retry-After` of a refused list or watch reaches only kube's own retry layer, not the watcher's backoff.
//! - The watcher has no random pause before a repeated list, and no counters.
//!
//! The wrapper `DeserializeGuard` covers objects that cannot be decoded. It first decodes each
//! object into a generic tree of values and copies the tree, which costs more memory than a small
//! struct from text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::core::params::{ListParams, VersionMatch, WatchParams};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::backoff::BackoffPolicy;
use super::list::{List, list};
use super::watch::{Change, ChangeKind, Identity, WatchStream};
use super::{Api, Call, ErrorKind, Failure, Jitter};

/// A watch without any line and with a shorter lifetime counts as failed.
pub(super) const SHORT_LIVED: Duration = Duration::from_secs(2);

/// After this many invalid answers in a row, all objects are listed again. A watch from the same
/// resourceVersion would send an invalid line again, while a list skips it.
const MAX_INVALID: u32 = 3;

/// After silent watches of this total lifetime, all objects are listed again. A server sends a bookmark about every minute.
const MAX_SILENCE: Duration = Duration::from_secs(420);

/// After this many answers in a row that the server has not reached the last version seen, the list asks for the newest state
/// instead. A server waits 3 s before it gives such an answer, and the waits between the tries add to that, so a server that only
/// lags behind etcd has caught up by then.
const MAX_TOO_LARGE: u32 = 3;

/// The longest random pause before a node lists a collection again. Only for collections that every node follows: a restarted
/// API server often makes all nodes list at the same time. 10,000 nodes with two collections then send 133 lists in a second,
/// on average.
pub(super) const RELIST_SPREAD: Duration = Duration::from_secs(150);

/// After this many streaming lists in a row without a final bookmark in time, the informer uses plain lists only.
const MAX_INCOMPLETE: u32 = 3;

/// The shortest and the longest wait after a retryable failure, unless a collection has its own.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The longest wait after a failure that lasts until a person acts, for example a missing right, unless a collection has its own.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The shortest pause that is reported by [`CollectionEvent::Waits`]. People notice no shorter one.
const REPORTED_PAUSE: Duration = Duration::from_secs(2);

/// What follows a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterPause {
    /// The request that failed, again.
    Retry,
    /// A list of all objects. The pause is random, so that not all nodes ask a restarted server at the same time.
    List,
}

/// The collection to follow, the decoder of its objects, and the settings of its lists and watches.
pub(super) struct Collection<T> {
    pub(super) path: Cow<'static, str>,
    /// The `kind` of a list, for example `PodList`.
    pub(super) kind: &'static str,
    /// Decodes an object. It returns a value for an unreadable one, too.
    pub(super) decode: fn(&Identity, &RawValue) -> T,
    /// Whether the server sends only the metadata of each object.
    pub(super) metadata_only: bool,
    /// The names under which lists and watches are counted.
    pub(super) calls: (Call, Call),
    pub(super) fields: Option<String>,
    pub(super) labels: Option<String>,
    /// The number of objects in a page of a plain list. `None` reads all objects at once, from the server's cache. Only a
    /// collection that a single process follows has pages: they bound the size of an answer, and cost the server a read of all
    /// objects.
    pub(super) page: Option<u32>,
    /// The longest time until the final bookmark of a streaming list; `None` for plain lists only.
    pub(super) streaming: Option<Duration>,
    /// The longest random pause before the first plain list, since a rollout starts many agents at the same time.
    pub(super) first_spread: Duration,
    /// The longest random pause before each later list, since its cause usually affects every node at the same time.
    pub(super) spread: Duration,
    /// The requested duration of a watch, in seconds.
    pub(super) watch_seconds: u32,
    /// The longest time without data before the watch is closed.
    pub(super) idle: Duration,
    /// The lifetime after which a watch without any line is reported by [`CollectionEvent::Works`].
    pub(super) settled: Duration,
    pub(super) backoff: BackoffPolicy,
}

/// What happens to a collection, or to the connection.
pub(super) enum CollectionEvent<T> {
    /// All objects, which replace those of before.
    Listed(Vec<(Identity, T)>),
    /// An object is new or has changed.
    Put(Identity, T),
    /// The server reported the deletion of an object.
    Deleted(Identity),
    /// The watch works. Comes once for each watch.
    Works,
    /// A request failed, or a watch broke. A retry follows.
    Failed(Failure),
    /// No request is sent until then, although the server may answer by now. Without the time, a
    /// status that has only the last failure would seem wrong to whoever sees that the server
    /// works.
    Waits { next: AfterPause, until: Timestamp },
}

/// The owner of the decoded objects.
pub(super) trait Subscriber<T> {
    async fn take(&mut self, event: CollectionEvent<T>);
}

// === impl Collection ===

impl<T> Collection<T> {
    /// A collection of whole objects, read by plain lists without random pauses.
    pub(super) fn new(
        path: impl Into<Cow<'static, str>>,
        kind: &'static str,
        decode: fn(&Identity, &RawValue) -> T,
    ) -> Self {
        Self {
            path: path.into(),
            kind,
            decode,
            metadata_only: false,
            calls: (Call::Other, Call::Other),
            fields: None,
            labels: None,
            page: None,
            streaming: None,
            first_spread: Duration::ZERO,
            spread: Duration::ZERO,
            watch_seconds: 290,
            idle: Duration::from_secs(150),
            settled: SHORT_LIVED,
            backoff: BackoffPolicy::new(BACKOFF, LONGEST_WAIT),
        }
    }

    fn decoded(&self, object: &RawValue) -> (Identity, T) {
        let identity = Identity::of(object);
        let decoded = (self.decode)(&identity, object);
        (identity, decoded)
    }
}

/// Tells a subscriber all objects of a collection and each change, forever. Each failure is reported and retried.
pub(super) async fn inform<T>(api: Api, collection: Collection<T>, subscriber: impl Subscriber<T>) {
    let mut informer = Informer {
        api,
        collection,
        subscriber,
        jitter: Jitter::default(),
        version: None,
        must_list: true,
        incomplete_lists: 0,
        too_old: false,
        too_large: 0,
        invalid_answers: 0,
        silence: Duration::ZERO,
    };
    loop {
        let pause = match informer.list_and_watch().await {
            Ok(()) => {
                informer.collection.backoff.reset();
                let least = informer.collection.backoff.least();
                informer.jitter.spread(least)
            }
            Err(failure) => {
                let pause = informer.failed(failure).await;
                informer.report_pause(AfterPause::Retry, pause).await;
                pause
            }
        };
        tokio::time::sleep(pause).await;
    }
}

struct Informer<T, S> {
    api: Api,
    collection: Collection<T>,
    subscriber: S,
    jitter: Jitter,
    /// The last resourceVersion seen. The watch continues from it, and a list must not be older.
    version: Option<String>,
    /// Whether all objects must be listed before the next watch.
    must_list: bool,
    /// The number of streaming lists in a row without a final bookmark in time.
    incomplete_lists: u32,
    /// Whether the server answered 410 Gone, and no line of a watch has arrived since.
    too_old: bool,
    /// The number of lists in a row for which the server had not reached the last version seen.
    too_large: u32,
    /// The number of invalid answers in a row.
    invalid_answers: u32,
    /// The total lifetime of the watches without any line since the last line or list.
    silence: Duration,
}

// === impl Informer ===

impl<T, S: Subscriber<T>> Informer<T, S> {
    /// Lists all objects if necessary, then watches for changes until the watch ends.
    async fn list_and_watch(&mut self) -> Result<(), Failure> {
        let mut streamed = None;
        if self.must_list {
            if self.version.is_some() {
                self.pause_before_list(self.collection.spread).await;
            }
            streamed = self.stream_all().await?;
            if streamed.is_none() {
                self.list_all().await?;
            }
        }
        let has_data = streamed.is_some();
        let watch = match streamed {
            Some(watch) => watch,
            None => self.open(self.version.as_deref()).await?,
        };
        self.read_changes(watch, has_data).await
    }

    /// Applies the changes of an open watch until the watch ends. `has_data`: a streaming list came through the watch.
    async fn read_changes(
        &mut self,
        mut watch: WatchStream,
        mut has_data: bool,
    ) -> Result<(), Failure> {
        // The lifetime starts with the server's answer, because a slow server would otherwise seem
        // to have served a watch.
        let began = Instant::now();
        let settled_at = began + self.collection.settled;
        let mut works = false;
        let ended = loop {
            // An accepted watch may still end at once, so the first line or the time shows that the watch works.
            if !works && (has_data || Instant::now() >= settled_at) {
                works = true;
                self.subscriber.take(CollectionEvent::Works).await;
            }
            // Both arms are cancel safe: an incomplete line stays in `watch`.
            let next = tokio::select! {
                next = watch.next(self.collection.idle) => next,
                () = tokio::time::sleep_until(settled_at), if !works => continue,
            };
            match next {
                Ok(Some(change)) => {
                    has_data = true;
                    self.apply(&change).await;
                }
                Ok(None) => break None,
                Err(failure) => break Some(failure),
            }
        };
        if !has_data {
            self.add_silence(began.elapsed());
        }
        let worked = has_data || began.elapsed() >= SHORT_LIVED;
        match ended {
            None if worked => Ok(()),
            None => {
                let ended = "the API server ended the watch at once".to_owned();
                Err(self.counted(Failure::Connection(ended)))
            }
            Some(failure) => {
                let failure = self.counted(failure);
                if !worked || !is_broken_connection(&failure) {
                    return Err(failure);
                }
                tracing::debug!("the watch of {} broke: {failure}", self.collection.path);
                Ok(())
            }
        }
    }

    /// Adds the lifetime of a watch without any line. After [`MAX_SILENCE`], all objects are listed again.
    fn add_silence(&mut self, lifetime: Duration) {
        self.silence += lifetime;
        if self.silence >= MAX_SILENCE {
            tracing::info!(
                "the watches of {} have been silent for {} s: all objects are listed again",
                self.collection.path,
                self.silence.as_secs()
            );
            (self.silence, self.must_list) = (Duration::ZERO, true);
        }
    }

    /// Pauses at random before a list. The first list has a pause only if it is a plain one, because new containers wait for it.
    /// After an answer that the server has not reached the version, only the backoff counts.
    async fn pause_before_list(&mut self, most: Duration) {
        if self.too_large > 0 {
            return;
        }
        let pause = self.jitter.spread(most);
        self.report_pause(AfterPause::List, pause).await;
        tokio::time::sleep(pause).await;
    }

    async fn report_pause(&mut self, next: AfterPause, pause: Duration) {
        let until = SignedDuration::try_from(pause)
            .ok()
            .and_then(|pause| Timestamp::now().checked_add(pause).ok());
        if let Some(until) = until.filter(|_| pause >= REPORTED_PAUSE) {
            let waits = CollectionEvent::Waits { next, until };
            self.subscriber.take(waits).await;
        }
    }

    /// Opens a watch from a resourceVersion, or a streaming list without a version.
    async fn open(&self, version: Option<&str>) -> Result<WatchStream, Failure> {
        let Collection {
            path,
            calls,
            fields,
            labels,
            metadata_only,
            watch_seconds,
            ..
        } = &self.collection;
        let params = WatchParams {
            field_selector: fields.clone(),
            label_selector: labels.clone(),
            timeout: Some(*watch_seconds),
            send_initial_events: version.is_none(),
            ..WatchParams::default()
        };
        let version = version.unwrap_or_default();
        if *metadata_only {
            return WatchStream::open_metadata(&self.api, calls.1, path, &params, version).await;
        }
        WatchStream::open(&self.api, calls.1, path, &params, version).await
    }

    /// Lists all objects by a streaming list, whose connection then sends the changes. `None` if a
    /// plain list is needed.
    async fn stream_all(&mut self) -> Result<Option<WatchStream>, Failure> {
        let Some(limit) = self.collection.streaming else {
            return Ok(None);
        };
        let path = self.collection.path.clone();
        let mut watch = match self.open(None).await {
            Ok(watch) => watch,
            Err(failure) if refuses_streaming(&failure) => {
                tracing::info!(
                    "the API server has no streaming lists ({failure}): {path} is read by plain lists"
                );
                self.collection.streaming = None;
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        match self.read_streaming_list(&mut watch, limit).await {
            Ok(Some((objects, version))) => {
                self.incomplete_lists = 0;
                self.replace(objects, version).await;
                Ok(Some(watch))
            }
            Ok(None) => {
                // A server without streaming lists treats the request as a plain watch, while a
                // busy server is only slow.
                tracing::info!(
                    "a streaming list sent no final bookmark in time: {path} is read by a plain list"
                );
                self.incomplete_lists += 1;
                if self.incomplete_lists >= MAX_INCOMPLETE {
                    self.collection.streaming = None;
                }
                self.api.counters().failed(ErrorKind::Timeout);
                Ok(None)
            }
            Err(failure) => Err(self.counted(failure)),
        }
    }

    /// Reads a streaming list up to the final bookmark. Returns the objects and the list's resourceVersion, or `None` if no final
    /// bookmark came within `limit`.
    async fn read_streaming_list(
        &self,
        watch: &mut WatchStream,
        limit: Duration,
    ) -> Result<Option<(Vec<(Identity, T)>, String)>, Failure> {
        let deadline = Instant::now() + limit;
        let mut objects = BTreeMap::new();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Change { kind, object } = match watch.next(remaining).await {
                Ok(Some(change)) => change,
                Ok(None) => {
                    return Err(Failure::Connection(
                        "the list ended before it was complete".to_owned(),
                    ));
                }
                Err(Failure::Timeout(_)) => return Ok(None),
                Err(failure) => return Err(failure),
            };
            let mut identity = Identity::of(&object);
            match kind {
                ChangeKind::Bookmark if identity.ends_list() => {
                    let version = identity.take_version().ok_or_else(|| {
                        Failure::InvalidResponse("a bookmark without a version".to_owned())
                    })?;
                    return Ok(Some((objects.into_values().collect(), version)));
                }
                ChangeKind::Bookmark => {}
                ChangeKind::Put => {
                    let decoded = (self.collection.decode)(&identity, &object);
                    objects.insert(identity.uid().to_owned(), (identity, decoded));
                }
                ChangeKind::Deleted => {
                    objects.remove(identity.uid());
                }
            }
        }
    }

    /// Lists all objects by a plain list.
    async fn list_all(&mut self) -> Result<(), Failure> {
        if self.version.is_none() {
            self.pause_before_list(self.collection.first_spread).await;
        }
        let params = self.list_params();
        let Collection {
            path,
            kind,
            metadata_only,
            calls,
            ..
        } = &self.collection;
        let mut wanted = List::new(calls.0, path, kind).with(params);
        if *metadata_only {
            wanted = wanted.of_metadata();
        }
        let mut objects = Vec::new();
        let version = list(&self.api, wanted, |object| {
            objects.push(self.collection.decoded(&object));
            Ok(())
        })
        .await?;
        if version.is_empty() {
            return Err(Failure::InvalidResponse(
                "a list without a resourceVersion".to_owned(),
            ));
        }
        self.replace(objects, version).await;
        Ok(())
    }

    /// The parameters of a plain list: selectors, and either pages or a version that the server's cache can serve.
    fn list_params(&self) -> ListParams {
        let params = ListParams {
            field_selector: self.collection.fields.clone(),
            label_selector: self.collection.labels.clone(),
            limit: self.collection.page,
            ..ListParams::default()
        };
        match &self.version {
            _ if self.collection.page.is_some() || self.too_large >= MAX_TOO_LARGE => params,
            Some(seen) => params.at(seen).matching(VersionMatch::NotOlderThan),
            None => params.match_any(),
        }
    }

    /// Passes a complete list on.
    async fn replace(&mut self, objects: Vec<(Identity, T)>, version: String) {
        (self.version, self.must_list) = (Some(version), false);
        (self.silence, self.too_large) = (Duration::ZERO, 0);
        self.subscriber.take(CollectionEvent::Listed(objects)).await;
    }

    /// Applies a change, and remembers the resourceVersion.
    async fn apply(&mut self, change: &Change) {
        // The watch works, so the next failure counts as the first.
        self.collection.backoff.reset();
        (self.too_old, self.invalid_answers, self.silence) = (false, 0, Duration::ZERO);
        let mut identity = Identity::of(&change.object);
        if let Some(version) = identity.take_version() {
            self.version = Some(version);
        }
        let event = match change.kind {
            ChangeKind::Put => {
                let decoded = (self.collection.decode)(&identity, &change.object);
                CollectionEvent::Put(identity, decoded)
            }
            ChangeKind::Deleted => CollectionEvent::Deleted(identity),
            ChangeKind::Bookmark => return,
        };
        self.subscriber.take(event).await;
    }

    /// Records and reports a failure. Returns the pause before the next try.
    async fn failed(&mut self, failure: Failure) -> Duration {
        let too_old = failure.is_expired();
        if too_old && !self.too_old {
            // The server answers again, so the wait starts over; only a repeated 410 makes it
            // longer.
            self.collection.backoff.reset();
        }
        self.too_old |= too_old;
        let mut list_again = too_old || failure.kind() == ErrorKind::NotFound;
        if failure.kind() == ErrorKind::InvalidResponse {
            self.invalid_answers += 1;
            list_again = self.invalid_answers.is_multiple_of(MAX_INVALID);
        }
        self.too_large = if failure.is_too_large() {
            self.too_large + 1
        } else {
            0
        };
        self.must_list |= list_again;
        let pause = self.collection.backoff.after(&failure, self.jitter.roll());
        self.subscriber.take(CollectionEvent::Failed(failure)).await;
        pause
    }

    /// Counts a failure inside a stream, because the API client counts only failures of requests. Returns the failure.
    fn counted(&self, failure: Failure) -> Failure {
        self.api.counters().failed(failure.kind());
        failure
    }
}

/// Whether the connection of a watch broke or became silent, in contrast to a refusal or an invalid line.
fn is_broken_connection(failure: &Failure) -> bool {
    matches!(failure, Failure::Connection(_) | Failure::Timeout(_))
}

/// Whether the server refuses streaming lists: 422 if the feature is off, 400 if the server does not know the parameter.
pub(super) fn refuses_streaming(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(|status| matches!(status.code, 400 | 422))
}
