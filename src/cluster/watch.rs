//! [`WatchStream`]: an open watch, change by change. [`Identity`]: an object's identity and resourceVersion.

use std::time::Duration;

use hyper::Request;
use kube::core::Status;
use kube::core::params::WatchParams;
use kube::core::request;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::call::WatchLines;
use super::{Api, Call, Failure};

/// An open watch of a collection.
pub(super) struct WatchStream {
    lines: WatchLines,
}

/// A change that a watch reports. The object stays text, so that the receiver decodes only the necessary fields.
pub(super) struct Change {
    pub(super) kind: ChangeKind,
    pub(super) object: Box<RawValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// The object is new or changed.
    Put,
    /// The object was deleted.
    Deleted,
    /// No object changed; this one has only a newer resourceVersion.
    Bookmark,
}

#[derive(Deserialize)]
struct WatchLine {
    r#type: String,
    object: Box<RawValue>,
}

/// The metadata of an object, which is readable even if the remaining fields are not.
#[derive(Default, Deserialize)]
struct ObjectHead {
    metadata: Option<Identity>,
}

/// The identity of an object, and its position in a watch.
#[derive(Default, Deserialize)]
pub(super) struct Identity {
    pub(super) uid: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    #[serde(rename = "resourceVersion")]
    version: Option<String>,
    annotations: Option<BookmarkAnnotations>,
}

/// The annotation of the final bookmark of a streaming list.
#[derive(Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<IgnoredAny>,
}

// === impl WatchStream ===

impl WatchStream {
    /// Opens a watch of the collection `path`, from a resourceVersion. A streaming list has an empty version.
    ///
    /// # Errors
    /// Any [`Failure`]; the counters include it.
    pub(super) async fn open(
        api: &Api,
        call: Call,
        path: &str,
        params: &WatchParams,
        version: &str,
    ) -> Result<Self, Failure> {
        let request = request::Request::new(path).watch(params, version);
        Self::send(api, call, request).await
    }

    /// Like [`WatchStream::open`], but the server sends only the metadata of each object.
    ///
    /// # Errors
    /// Any [`Failure`]; the counters include it.
    pub(super) async fn open_metadata(
        api: &Api,
        call: Call,
        path: &str,
        params: &WatchParams,
        version: &str,
    ) -> Result<Self, Failure> {
        let request = request::Request::new(path).watch_metadata(params, version);
        Self::send(api, call, request).await
    }

    async fn send(
        api: &Api,
        call: Call,
        request: Result<Request<Vec<u8>>, request::Error>,
    ) -> Result<Self, Failure> {
        let request = request.map_err(|error| api.unbuilt(error))?;
        let lines = api.open(call, request).await?;
        Ok(Self { lines })
    }

    /// The next change, or `None` at the end of the watch. Cancel safe.
    ///
    /// # Errors
    /// The connection broke, no data came within `idle`, a line is invalid, or the server sent an
    /// error. The counters do not include the failure yet.
    pub(super) async fn next(&mut self, idle: Duration) -> Result<Option<Change>, Failure> {
        let Some(line) = self.lines.next(idle).await? else {
            return Ok(None);
        };
        let line: WatchLine = serde_json::from_slice(&line)
            .map_err(|error| Failure::InvalidResponse(format!("a line of the watch: {error}")))?;
        let kind = match &*line.r#type {
            "ADDED" | "MODIFIED" => ChangeKind::Put,
            "DELETED" => ChangeKind::Deleted,
            "BOOKMARK" => ChangeKind::Bookmark,
            _ => return Err(server_error(&line.object)),
        };
        Ok(Some(Change {
            kind,
            object: line.object,
        }))
    }
}

/// The failure for a line with a Status instead of a change.
fn server_error(object: &RawValue) -> Failure {
    match serde_json::from_str::<Status>(object.get()) {
        Ok(status) => Failure::refused(status),
        Err(error) => Failure::InvalidResponse(format!("an event of the watch: {error}")),
    }
}

// === impl Identity ===

impl Identity {
    /// The identity of an object. All fields are `None` if the metadata is unreadable.
    pub(super) fn of(object: &RawValue) -> Self {
        let head: ObjectHead = serde_json::from_str(object.get()).unwrap_or_default();
        head.metadata.unwrap_or_default()
    }

    /// The uid, or an empty string.
    pub(super) fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    /// The object's resourceVersion, from which a watch can continue.
    pub(super) fn take_version(&mut self) -> Option<String> {
        self.version.take().filter(|version| !version.is_empty())
    }

    /// Whether the object is the final bookmark of a streaming list.
    pub(super) fn ends_list(&self) -> bool {
        self.annotations
            .as_ref()
            .is_some_and(|annotations| annotations.initial_events_end.is_some())
    }
}
