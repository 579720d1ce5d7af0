//! Watches: changes, bookmarks, errors and timeouts.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::SharedState;
use super::faults::WatchFault;
use super::kinds::ObjectKind;
use super::list::partial;
use super::select::Selector;
use super::status;
use super::store::Change;

/// The parameters of a watch request.
#[derive(Debug, Clone)]
pub(crate) struct WatchParameters {
    pub(crate) kind: ObjectKind,
    pub(crate) selector: Selector,
    pub(crate) revision: u64,
    pub(crate) bookmarks: bool,
    pub(crate) initial: bool,
    /// Whether the client wants only the metadata of each object.
    pub(crate) metadata_only: bool,
    pub(crate) seconds: u64,
}

/// The sender of body lines. An error cuts the connection.
pub(crate) type LineSender = mpsc::Sender<std::io::Result<Bytes>>;

fn line(what: &str, object: &Value) -> Bytes {
    Bytes::from(json!({"type": what, "object": object}).to_string() + "\n")
}

/// A line with an object, or with only its metadata.
fn object_line(what: &str, object: &Value, metadata_only: bool) -> Bytes {
    if metadata_only {
        return line(what, &partial(object));
    }
    line(what, object)
}

fn bookmark(kind: &ObjectKind, revision: u64, end: bool) -> Bytes {
    let mut object = json!({"kind": kind.kind, "apiVersion": kind.api_version()});
    for (key, value) in kind.empty().as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object["metadata"] = json!({"resourceVersion": revision.to_string()});
    if end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    line("BOOKMARK", &object)
}

/// The watch event of a change. An object that enters or leaves the selection is ADDED or DELETED.
fn event(change: &Change, selector: &Selector, metadata_only: bool) -> Option<Bytes> {
    let fits = |object: &Option<Arc<Value>>| {
        object
            .as_deref()
            .is_some_and(|object| selector.matches(object))
    };
    let revision = json!(change.revision.to_string());
    match (fits(&change.old), fits(&change.new)) {
        (false, true) => Some(object_line("ADDED", change.new.as_deref()?, metadata_only)),
        (true, true) => Some(object_line(
            "MODIFIED",
            change.new.as_deref()?,
            metadata_only,
        )),
        (true, false) => {
            let mut deleted = change.old.as_deref()?.clone();
            deleted["metadata"]["resourceVersion"] = revision;
            Some(object_line("DELETED", &deleted, metadata_only))
        }
        (false, false) => None,
    }
}

/// Sends the events of a watch until it ends.
pub(crate) async fn serve(
    shared: Arc<SharedState>,
    wanted: WatchParameters,
    fault: Option<WatchFault>,
    lines: LineSender,
) {
    if fault == Some(WatchFault::Silent) {
        // The connection stays open without changes, bookmarks or an end.
        lines.closed().await;
        return;
    }
    if matches!(fault, Some(WatchFault::CloseAtOnce | WatchFault::CloseLate)) {
        return;
    }
    let mut last_revision = wanted.revision;
    let mut first = Vec::new();
    {
        let store = shared.store.lock().unwrap();
        if last_revision > 0 && last_revision < store.compacted {
            let message = format!(
                "too old resource version: {last_revision} ({})",
                store.compacted
            );
            first.push(line("ERROR", &status::expired(&message).body));
        } else if wanted.initial || last_revision == 0 {
            let now = store.revision;
            for object in store
                .fitting(&wanted.kind, now, |object| wanted.selector.matches(object))
                .values()
            {
                first.push(object_line("ADDED", object, wanted.metadata_only));
            }
            if wanted.initial && fault != Some(WatchFault::Unended) {
                first.push(bookmark(&wanted.kind, now, true));
            }
            last_revision = now;
        }
    }
    let refused = last_revision > 0
        && first
            .first()
            .is_some_and(|line| line.starts_with(b"{\"type\":\"ERROR\""));
    for line in first {
        if lines.send(Ok(line)).await.is_err() || refused {
            return;
        }
    }
    let mut changed = shared.changes_of(&wanted.kind);
    let mut forced = shared.bookmarks.subscribe();
    let end = Instant::now() + shared.second() * u32::try_from(wanted.seconds).unwrap_or(u32::MAX);
    let (mut sent, mut bookmark_due) = (0, false);
    loop {
        // The channel is marked as seen before the store is read, so a later write wakes this task again.
        changed.borrow_and_update();
        let (changes, revision) = {
            let store = shared.store.lock().unwrap();
            (store.since(&wanted.kind, last_revision), store.revision)
        };
        for change in changes {
            last_revision = change.revision;
            let Some(line) = event(&change, &wanted.selector, wanted.metadata_only) else {
                continue;
            };
            match fault {
                Some(WatchFault::HalfLine { after }) if sent == after => {
                    let _ = lines.send(Ok(line.slice(..line.len() / 2))).await;
                    let _ = lines.send(Err(std::io::Error::other("cut"))).await;
                    return;
                }
                Some(WatchFault::Garbage { after }) if sent == after => {
                    let _ = lines
                        .send(Ok(Bytes::from_static(b"\x00\xff<html>not json\n")))
                        .await;
                }
                Some(WatchFault::Gone { after }) if sent == after => {
                    let message = format!(
                        "too old resource version: {last_revision} ({})",
                        last_revision + 1
                    );
                    let _ = lines
                        .send(Ok(self::line("ERROR", &status::expired(&message).body)))
                        .await;
                    return;
                }
                _ => {}
            }
            sent += 1;
            if lines.send(Ok(line)).await.is_err() {
                return;
            }
        }
        // A bookmark follows all changes up to its resourceVersion.
        if bookmark_due
            && wanted.bookmarks
            && !(wanted.initial && fault == Some(WatchFault::Unended))
        {
            last_revision = revision;
            if lines
                .send(Ok(bookmark(&wanted.kind, revision, false)))
                .await
                .is_err()
            {
                return;
            }
        }
        let pause: Duration = shared.bookmark_every();
        bookmark_due = tokio::select! {
            _ = changed.changed() => false,
            _ = forced.changed() => true,
            () = tokio::time::sleep(pause) => true,
            () = tokio::time::sleep_until(end) => return,
            () = lines.closed() => return,
        };
    }
}
