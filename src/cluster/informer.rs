//! [`follow`]: keeps a decoded copy of a collection, and publishes each change of the copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::watch;

use super::backoff::BackoffPolicy;
use super::reflect::{FollowedCollection, ObjectCache, SHORT_LIVED, reflect};
use super::watch::Identity;
use super::{Api, Call, ErrorKind, Failure};
use crate::pod::ObjectName;

/// The number of objects on a page of a list. The objects of all nodes would not fit into one answer, and only one process of the
/// cluster reads them.
const PAGE: u32 = 200;

/// The requested duration of a watch, in seconds.
const WATCH_SECONDS: u32 = 290;

/// The longest time without data before a watch is closed.
const IDLE: Duration = Duration::from_secs(150);

/// The shortest and the longest wait after a retryable failure.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The longest wait after a failure that lasts until a person acts, for example a missing right.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The collection to follow, and the decoder of the objects.
pub(super) struct ObjectSource<T> {
    /// The path of the collection.
    pub(super) path: Cow<'static, str>,
    /// The `kind` of a list, for example `LeaseList`.
    pub(super) kind: &'static str,
    /// The label selector, if any.
    pub(super) labels: Option<String>,
    /// The part of each object that the decoder needs.
    pub(super) part: ObjectPart,
    /// Decodes an object. The function also returns a value for an unreadable object.
    pub(super) decode: fn(&RawValue) -> T,
}

/// The part of an object that the decoder needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectPart {
    /// The name and the labels. The server sends only the metadata, and the rest of the metadata is dropped.
    Labels,
    /// The metadata and the status. The reflector drops the rest of each object before the list is complete.
    WithoutSpec,
    /// The complete object.
    All,
}

/// The known objects of a collection.
#[derive(Debug)]
pub(super) struct Objects<T> {
    /// The objects by namespace and name.
    pub(super) known: BTreeMap<ObjectName, T>,
    /// Why the objects are unknown or may be stale; `None` while a watch works.
    pub(super) degraded: Option<String>,
}

/// Metadata and status of an object, as text.
#[derive(Serialize, Deserialize)]
struct WithoutSpec<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    status: Option<&'a RawValue>,
}

/// The name and the labels of an object, as text.
#[derive(Serialize, Deserialize)]
struct OnlyLabels<'a> {
    #[serde(borrow)]
    metadata: LabelsMetadata<'a>,
}

#[derive(Serialize, Deserialize)]
struct LabelsMetadata<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    labels: Option<&'a RawValue>,
}

/// The sender of the known objects.
struct Publisher<T> {
    source: ObjectSource<T>,
    published: watch::Sender<Objects<T>>,
}

/// Follows a collection forever. Failures are published as [`Objects::degraded`] and retried.
pub(super) async fn follow<T: PartialEq + Send + Sync + 'static>(
    api: Api,
    source: ObjectSource<T>,
    published: watch::Sender<Objects<T>>,
) {
    let followed = FollowedCollection {
        path: source.path.clone(),
        kind: source.kind,
        metadata_only: source.part == ObjectPart::Labels,
        calls: (Call::Other, Call::Other),
        fields: None,
        labels: source.labels.clone(),
        page: Some(PAGE),
        streaming: None,
        first_spread: Duration::ZERO,
        watch_seconds: WATCH_SECONDS,
        idle: IDLE,
        settled: SHORT_LIVED,
    };
    let backoff = BackoffPolicy::new(BACKOFF, LONGEST_WAIT);
    reflect(api, followed, backoff, Publisher { source, published }).await;
}

/// The remedy for a refused list or watch, as the end of a sentence.
fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => {
            "; allow the account to list and watch these objects, as in deploy/components/reclaim/rbac.yaml"
        }
        ErrorKind::Unauthorized => "; check the account's token",
        _ => "",
    }
}

/// The namespace and the name of an object; `None` for an object without a name.
fn key(object: &RawValue) -> Option<ObjectName> {
    let identity = Identity::of(object);
    Some(ObjectName::new(
        identity.namespace.unwrap_or_default(),
        identity.name?,
    ))
}

/// The given part of an object, or the complete text if the text has no metadata.
fn reduced(object: Box<RawValue>, part: ObjectPart) -> Box<RawValue> {
    let reduced = match part {
        ObjectPart::All => return object,
        ObjectPart::WithoutSpec => serde_json::from_str::<WithoutSpec<'_>>(object.get())
            .and_then(|reduced| to_raw_value(&reduced)),
        ObjectPart::Labels => serde_json::from_str::<OnlyLabels<'_>>(object.get())
            .and_then(|reduced| to_raw_value(&reduced)),
    };
    reduced.unwrap_or(object)
}

// === impl Objects ===

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            degraded: Some("the objects have not been read yet".to_owned()),
        }
    }
}

// === impl Publisher ===

impl<T: PartialEq + Send + Sync> ObjectCache for Publisher<T> {
    /// Only one process follows the collection, so no pause is necessary.
    fn stagger(&self) -> Duration {
        Duration::ZERO
    }

    fn reduce(&self, object: Box<RawValue>) -> Box<RawValue> {
        reduced(object, self.source.part)
    }

    async fn replace(&mut self, objects: Vec<Box<RawValue>>) {
        let decode = self.source.decode;
        let known: BTreeMap<ObjectName, T> = objects
            .iter()
            .filter_map(|object| Some((key(object)?, decode(object))))
            .collect();
        self.published.send_if_modified(|published| {
            let changed = published.known != known;
            published.known = known;
            changed
        });
    }

    /// Adds or replaces an object. An equal decoded object is not published, for example after a heartbeat of a Node.
    async fn put(&mut self, object: &RawValue) {
        let Some(key) = key(object) else { return };
        let new = (self.source.decode)(object);
        self.published.send_if_modified(|published| {
            let changed = published.known.get(&key) != Some(&new);
            published.known.insert(key, new);
            changed
        });
    }

    async fn remove(&mut self, object: &RawValue) {
        let Some(key) = key(object) else { return };
        self.published
            .send_if_modified(|published| published.known.remove(&key).is_some());
    }

    async fn works(&mut self) {
        let path = &self.source.path;
        self.published.send_if_modified(|published| {
            let failed = published.degraded.take();
            if failed.is_some() {
                tracing::info!("the watch of {path} works");
            }
            failed.is_some()
        });
    }

    async fn failed(&mut self, failure: &Failure) {
        let path = &self.source.path;
        if failure.is_expired() {
            tracing::info!("{path} is listed again: {failure}");
            return;
        }
        let reason = format!("{path} can't be followed: {failure}{}", advice(failure));
        self.published.send_if_modified(|published| {
            if published.degraded.as_ref() == Some(&reason) {
                return false;
            }
            tracing::warn!("{reason}");
            published.degraded = Some(reason);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_list_keeps_only_the_necessary_part_of_each_object() {
        let object = json!({
            "kind": "Job",
            "metadata": {"namespace": "n", "name": "a", "labels": {"b": "c"}, "managedFields": [{}], "annotations": {"d": "e"}},
            "spec": {"large": [1, 2, 3]},
            "status": {"active": 1},
        });
        let reduce = |part| -> Value {
            let reduced = reduced(to_raw_value(&object).unwrap(), part);
            serde_json::from_str(reduced.get()).unwrap()
        };
        assert_eq!(reduce(ObjectPart::All), object);
        assert_eq!(
            reduce(ObjectPart::WithoutSpec),
            json!({"metadata": object["metadata"], "status": {"active": 1}})
        );
        assert_eq!(
            reduce(ObjectPart::Labels),
            json!({"metadata": {"namespace": "n", "name": "a", "labels": {"b": "c"}}})
        );
        // A text without metadata stays, and has no key.
        for text in ["[]", "7", "{}"] {
            let odd = RawValue::from_string(text.to_owned()).unwrap();
            let reduced = reduced(odd, ObjectPart::WithoutSpec);
            assert_eq!((reduced.get(), key(&reduced)), (text, None));
        }
    }
}
