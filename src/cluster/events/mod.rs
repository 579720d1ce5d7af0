//! Events on pods (pinned where, refused why, a user's value kept), and on this node's Node.
//!
//! [`Recorder::tell`] never waits and never fails: it puts the news into a short queue, and a task writes it when it can. What
//! happens again is counted on the Event that is there; a pod that flaps costs a write for the second, fourth, eighth … time,
//! not for each. The last count is written within a minute, and when the agent ends. A node writes at most [`Settings::per_minute`] times a minute. What is too much is dropped and counted:
//! Events are for people, and the state itself is in `/status`.

mod book;

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
use super::{Api, Call, Counters, ErrorKind, Failure, Jitter, MANAGER};

pub use book::{Book, Step};

/// The longest note that the API server takes.
const LONGEST_NOTE: usize = 1024;

/// The shortest time between two rounds that write counts of repetitions.
const COUNTS_EVERY: Duration = Duration::from_secs(5);

/// The longest part of a pod's name in an Event's: the rest of 253 is for the random ending.
const LONGEST_NAME: usize = 253 - 17;

/// What is told of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct News {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid at the API server.
    pub uid: String,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// What was done, in one word: `Pin`.
    pub action: &'static str,
    /// What came of it, in one word: `Pinned`, `Refused`, `ValueKept`.
    pub reason: &'static str,
    /// A sentence: where, or why.
    pub note: String,
}

/// How Events are written.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// News that wait; more are dropped.
    pub queue: usize,
    /// Writes in a minute, at most.
    pub per_minute: u32,
    /// How long after the last time something is the same Event.
    pub window: Duration,
    /// The shortest and the longest wait while the API fails.
    pub backoff: (Duration, Duration),
    /// How often one write is tried.
    pub tries: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue: 256,
            per_minute: 30,
            window: Duration::from_secs(600),
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            tries: 3,
        }
    }
}

/// What news are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Pod,
    Node,
}

/// Where news are left.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(Subject, News)>,
    counters: Arc<Counters>,
}

// === impl Recorder ===

impl Recorder {
    /// A recorder, and the task that writes what it is told; `node` is who reports. The task ends with the last recorder.
    pub fn new(
        api: Api,
        node: &str,
        settings: Settings,
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

    /// Leaves news, or drops them where too many wait.
    pub fn tell(&self, news: News) {
        self.leave(Subject::Pod, news);
    }

    /// The same for news of a Node: `pod` and `uid` are the Node's, and the namespace is where the Event is put, which for
    /// what has no namespace has to be `default`.
    pub fn tell_of_node(&self, mut news: News) {
        "default".clone_into(&mut news.namespace);
        self.leave(Subject::Node, news);
    }

    fn leave(&self, subject: Subject, news: News) {
        if self.queue.try_send((subject, news)).is_err() {
            self.counters.event_dropped();
        }
    }
}

struct Writer {
    api: Api,
    node: String,
    settings: Settings,
    book: Book,
    jitter: Jitter,
    /// Counts of repetitions are not written sooner.
    not_before: Instant,
}

// === impl Writer ===

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<(Subject, News)>) {
        loop {
            let due = self
                .book
                .next_count()
                .map(|due| Instant::from_std(due).max(self.not_before));
            // Both arms are cancel safe: they hold nothing.
            let (subject, news) = tokio::select! {
                told = queue.recv() => match told {
                    Some(told) => told,
                    None => break,
                },
                () = until(due) => {
                    self.write_counts(false).await;
                    continue;
                }
            };
            match self.book.note(&news, Instant::now().into_std()) {
                Step::Nothing => {}
                Step::Drop => self.api.counters().event_dropped(),
                Step::Create => self.create(subject, &news).await,
                Step::Count { event, count } => self.count(&news, &event, count).await,
            }
        }
        self.write_counts(true).await;
    }

    /// Writes the counts of repetitions that no later news would write.
    async fn write_counts(&mut self, all: bool) {
        while let Some((news, step)) = self.book.unwritten(Instant::now().into_std(), all) {
            if let Step::Count { event, count } = step {
                self.count(&news, &event, count).await;
            }
        }
        // Counts may be left that the limit of writes does not allow yet.
        self.not_before = Instant::now() + COUNTS_EVERY;
    }

    async fn create(&mut self, subject: Subject, news: &News) {
        let pod: String = news.pod.chars().take(LONGEST_NAME).collect();
        let name = format!("{pod}.{:016x}", self.jitter.bits());
        let event = event(subject, news, &name, &self.node);
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
            // An answer that was lost and a second try: the Event is there.
            Ok(()) => self.book.created(news, name),
            Err(failure) if failure.kind() == ErrorKind::Conflict => self.book.created(news, name),
            Err(failure) => self.lost(news, &failure),
        }
    }

    async fn count(&mut self, news: &News, event: &str, count: u32) {
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
            // Events are forgotten after an hour: the next time makes a new one.
            Err(failure) => {
                self.book.forget(news);
                if failure.kind() != ErrorKind::NotFound {
                    self.lost(news, &failure);
                }
            }
        }
    }

    fn lost(&mut self, news: &News, failure: &Failure) {
        self.book.forget(news);
        self.api.counters().event_dropped();
        tracing::debug!(
            "an Event on {}/{} was not written: {failure}",
            news.namespace,
            news.pod
        );
    }

    /// Tries a few times; meanwhile the queue fills, and what does not fit is dropped.
    async fn send(&self, call: Call, request: &hyper::Request<Vec<u8>>) -> Result<(), Failure> {
        let policy = Retry {
            backoff: self.settings.backoff,
            retries: self.settings.tries.saturating_sub(1),
        };
        let ask = || self.api.ask::<Value>(call, request.clone());
        retry(policy, ask, || self.api.counters().retried()).await?;
        Ok(())
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

fn event(subject: Subject, news: &News, name: &str, node: &str) -> Event {
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
        note: Some(cut(&news.note)),
        reporting_controller: Some("pinfold.io/agent".to_owned()),
        reporting_instance: Some(node.chars().take(128).collect()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(format!("{subject:?}")),
            namespace: Some(news.namespace.clone()).filter(|_| subject == Subject::Pod),
            name: Some(news.pod.clone()),
            uid: Some(news.uid.clone()),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

/// At most as many bytes as the server takes, and no broken letter.
fn cut(note: &str) -> String {
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
    fn notes_are_cut_between_letters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(600);
        assert_eq!(cut(&long).len(), 1024);
        let odd = format!("a{long}");
        assert_eq!(cut(&odd).len(), 1023);
    }
}
