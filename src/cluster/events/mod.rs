//! Events on pods (CPUs assigned, refusals, kept values of the user), on this node's Node, and on
//! the Jobs of reclaimed training jobs.
//!
//! [`Recorder::tell`] never waits and never fails: it puts the news into a short queue, and a task
//! writes the Events. A repetition raises the count of the existing Event, and because only the
//! second, fourth, eighth … occurrence is written, a flapping pod costs few writes. The last count
//! is written within a minute, and when the agent stops. A node writes at most
//! [`EventSettings::per_minute`] times a minute; news above the limit are dropped and counted.
//! Events are for people; `/status` shows the state.
//!
//! `kube::runtime::events::Recorder` (read in `kube-runtime` 5.0.0) sends a request for each call and lets the caller wait for
//! it. It writes every repetition, has no limit, and does not try again if the request fails.

mod book;
mod details;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::core::params::{Patch, PatchParams, PostParams};
use kube::core::request;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::retry::{Retry, retry};
use super::{Api, ApiCounters, Call, ErrorKind, Failure, Jitter, MANAGER};

use crate::text::terminal::escape;

pub use book::{Book, EventWrite};
pub use details::EventDetails;

/// The longest note that the API server accepts, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The shortest time between two rounds of writes of counts.
const COUNTS_EVERY: Duration = Duration::from_secs(5);

/// The longest part of a pod's name in an Event's name, which has at most 253 characters. The
/// random suffix needs 17 of them.
const LONGEST_NAME: usize = 253 - 17;

/// How Events are written.
#[derive(Debug, Clone, PartialEq)]
pub struct EventSettings {
    /// The capacity of the queue. Further news are dropped.
    pub queue: usize,
    /// The limit of writes per minute.
    pub per_minute: u32,
    /// The longest time between two occurrences that count on the same Event.
    pub window: Duration,
    /// The shortest and the longest wait before a retry.
    pub backoff: (Duration, Duration),
    /// The number of tries for a write.
    pub tries: u32,
    /// The reporting controller.
    pub controller: &'static str,
}

impl Default for EventSettings {
    fn default() -> Self {
        Self {
            queue: 256,
            per_minute: 30,
            window: Duration::from_secs(600),
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            tries: 3,
            controller: "pinfold.io/agent",
        }
    }
}

/// The kind of object that an Event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventSubject {
    Pod,
    Node,
    Job,
}

/// The sending end of the queue of news. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(EventSubject, EventDetails)>,
    counters: Arc<ApiCounters>,
}

// === impl Recorder ===

impl Recorder {
    /// Creates a recorder and the task that writes the Events. `node` is the reporting instance. The task ends after the last
    /// recorder is dropped.
    pub fn new(
        api: Api,
        node: &str,
        settings: EventSettings,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (queue, news) = mpsc::channel(settings.queue.max(1));
        let recorder = Self {
            queue,
            counters: Arc::clone(api.counters()),
        };
        let book = Book::new(settings.window, settings.per_minute);
        let writer = Writer {
            api,
            node: node.to_owned(),
            settings,
            book,
            jitter: Jitter::default(),
            not_before: Instant::now(),
        };
        (recorder, writer.run(news))
    }

    /// Queues news about a pod, or drops the news if the queue is full.
    pub fn tell(&self, news: EventDetails) {
        self.enqueue(EventSubject::Pod, news);
    }

    /// Queues news about a Node. `pod` and `uid` are the Node's name and uid. Events on objects without a namespace must be in
    /// the namespace `default`.
    pub fn tell_of_node(&self, mut news: EventDetails) {
        "default".clone_into(&mut news.namespace);
        self.enqueue(EventSubject::Node, news);
    }

    /// Queues news about a Job. `pod` and `uid` are the Job's name and uid.
    pub fn tell_of_job(&self, news: EventDetails) {
        self.enqueue(EventSubject::Job, news);
    }

    fn enqueue(&self, subject: EventSubject, news: EventDetails) {
        if self.queue.try_send((subject, news)).is_err() {
            self.counters.event_dropped();
        }
    }
}

struct Writer {
    api: Api,
    node: String,
    settings: EventSettings,
    book: Book,
    jitter: Jitter,
    /// The earliest time for the next round of writes of counts.
    not_before: Instant,
}

// === impl Writer ===

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<(EventSubject, EventDetails)>) {
        loop {
            let due = self
                .book
                .next_count()
                .map(|due| Instant::from_std(due).max(self.not_before));
            // Both arms are cancel safe: neither keeps state.
            let (subject, news) = tokio::select! {
                next = queue.recv() => match next {
                    Some(next) => next,
                    None => break,
                },
                () = until(due) => {
                    self.write_counts(false).await;
                    continue;
                }
            };
            match self.book.note(&news, Instant::now().into_std()) {
                EventWrite::Nothing => {}
                EventWrite::Drop => self.api.counters().event_dropped(),
                EventWrite::Create => self.create(subject, &news).await,
                EventWrite::Count { event, count } => self.count(&news, &event, count).await,
            }
        }
        self.write_counts(true).await;
    }

    /// Writes the due counts or, with `all`, every unwritten one.
    async fn write_counts(&mut self, all: bool) {
        while let Some((news, step)) = self.book.unwritten(Instant::now().into_std(), all) {
            if let EventWrite::Count { event, count } = step {
                self.count(&news, &event, count).await;
            }
        }
        // The limit of writes may have left some counts unwritten.
        self.not_before = Instant::now() + COUNTS_EVERY;
    }

    async fn create(&mut self, subject: EventSubject, news: &EventDetails) {
        let pod: String = news.pod.chars().take(LONGEST_NAME).collect();
        let name = format!("{pod}.{:016x}", self.jitter.bits());
        let reporter = (self.settings.controller, self.node.as_str());
        let event = event(subject, news, &name, reporter);
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let built = serde_json::to_vec(&event)
            .map_err(|error| error.to_string())
            .and_then(|body| {
                request::Request::new(path(&news.namespace))
                    .create(&params, body)
                    .map_err(|error| error.to_string())
            });
        let Ok(request) = built else { return };
        match self.send(Call::CreateEvent, &request).await {
            // A conflict after a lost answer: the first try created the Event, since the name is random.
            Ok(()) => self.book.created(news, name),
            Err(failure) if failure.kind() == ErrorKind::Conflict => self.book.created(news, name),
            Err(failure) => self.lost(news, &failure),
        }
    }

    async fn count(&mut self, news: &EventDetails, event: &str, count: u32) {
        let series = EventSeries {
            count: i32::try_from(count).unwrap_or(i32::MAX),
            last_observed_time: MicroTime(Timestamp::now()),
        };
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"series": series}));
        let Ok(request) =
            request::Request::new(path(&news.namespace)).patch(event, &params, &patch)
        else {
            return;
        };
        match self.send(Call::PatchEvent, &request).await {
            Ok(()) => {}
            // The API server deletes Events after an hour, so the next occurrence creates a new
            // one.
            Err(failure) if failure.kind() == ErrorKind::NotFound => self.book.forget(news),
            Err(failure) => self.lost(news, &failure),
        }
    }

    /// Counts an Event that was not written.
    fn lost(&mut self, news: &EventDetails, failure: &Failure) {
        self.book.forget(news);
        self.api.counters().event_dropped();
        tracing::debug!(
            "can't write an Event on pod {}/{}: {failure}",
            news.namespace,
            news.pod
        );
    }

    /// Sends a write, with retries. Meanwhile the queue may fill up, and further news are dropped.
    async fn send(&self, call: Call, request: &hyper::Request<Vec<u8>>) -> Result<(), Failure> {
        let policy = Retry {
            backoff: self.settings.backoff,
            retries: self.settings.tries.saturating_sub(1),
        };
        let send = || self.api.ask::<Value>(call, request.clone());
        retry(policy, send, || self.api.counters().retried()).await?;
        Ok(())
    }
}

/// Waits until a time, or forever.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

/// An Event. `reporter` is the controller and the instance.
fn event(
    subject: EventSubject,
    news: &EventDetails,
    name: &str,
    (controller, instance): (&str, &str),
) -> Event {
    let version = match subject {
        EventSubject::Pod | EventSubject::Node => "v1",
        EventSubject::Job => "batch/v1",
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(news.namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some(if news.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(news.reason.to_owned()),
        action: Some(news.action.to_owned()),
        note: Some(note(&news.note)),
        reporting_controller: Some(controller.to_owned()),
        reporting_instance: Some(instance.chars().take(128).collect()),
        regarding: Some(ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(format!("{subject:?}")),
            namespace: Some(news.namespace.clone()).filter(|_| subject != EventSubject::Node),
            name: Some(news.pod.clone()),
            uid: Some(news.uid.clone()),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

/// A text as an Event's note. `kubectl` prints notes as they are, so control characters are escaped; and the note is cut to the
/// server's limit, at a character boundary.
pub fn note(text: &str) -> String {
    let note = escape(text);
    let end = (0..=LONGEST_NOTE.min(note.len()))
        .rev()
        .find(|end| note.is_char_boundary(*end));
    note.get(..end.unwrap_or_default())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_at_character_boundaries() {
        assert_eq!(note("short"), "short");
        let long = "ä".repeat(600);
        assert_eq!(note(&long).len(), 1024);
        let unaligned = format!("a{long}");
        assert_eq!(note(&unaligned).len(), 1023);
    }

    #[test]
    fn notes_have_one_line_and_no_control_characters() {
        let escaped = note("unknown variant `x\u{1b}[2J\nNormal  Pinned`\u{9b}1m");
        assert_eq!(
            escaped,
            "unknown variant `x\\u{1b}[2J\\nNormal  Pinned`\\u{9b}1m"
        );
    }
}
