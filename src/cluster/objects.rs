//! [`follow`]: keeps the decoded objects of a collection, and publishes each change of them.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::informer::{Collection, CollectionEvent, Subscriber, inform};
use super::watch::Identity;
use super::{Api, ErrorKind, Failure};
use crate::pod::ObjectName;

/// The number of objects on a page of a list. The objects of all nodes would not fit into one answer, and only one process of the
/// cluster reads them.
const PAGE: u32 = 200;

/// The known objects of a collection.
#[derive(Debug)]
pub(super) struct Objects<T> {
    /// The objects by namespace and name.
    pub(super) known: BTreeMap<ObjectName, T>,
    /// Why the objects are unknown or may be stale; `None` while a watch works.
    pub(super) degraded: Option<String>,
}

struct Publisher<T> {
    path: String,
    published: watch::Sender<Objects<T>>,
}

/// Follows a collection forever, page by page. Failures are published as [`Objects::degraded`] and retried.
pub(super) async fn follow<T: PartialEq + Send + Sync + 'static>(
    api: Api,
    collection: Collection<T>,
    published: watch::Sender<Objects<T>>,
) {
    let path = collection.path.clone().into_owned();
    let collection = Collection {
        page: Some(PAGE),
        ..collection
    };
    inform(api, collection, Publisher { path, published }).await;
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
fn key(identity: Identity) -> Option<ObjectName> {
    Some(ObjectName::new(
        identity.namespace.unwrap_or_default(),
        identity.name?,
    ))
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

impl<T: PartialEq> Publisher<T> {
    fn replace(&self, objects: Vec<(Identity, T)>) {
        let objects = objects.into_iter();
        let known = objects.filter_map(|(identity, object)| Some((key(identity)?, object)));
        let known = known.collect();
        self.published.send_if_modified(|published| {
            let changed = published.known != known;
            published.known = known;
            changed
        });
    }

    /// Adds or replaces an object. If it decodes to the same value as before, for example after a
    /// heartbeat of a Node, nothing is published.
    fn put(&self, key: ObjectName, new: T) {
        self.published.send_if_modified(|published| {
            let changed = published.known.get(&key) != Some(&new);
            published.known.insert(key, new);
            changed
        });
    }

    fn works(&self) {
        self.published.send_if_modified(|published| {
            let failed = published.degraded.take();
            if failed.is_some() {
                tracing::info!("the watch of {} works", self.path);
            }
            failed.is_some()
        });
    }

    fn failed(&self, failure: &Failure) {
        let path = &self.path;
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

impl<T: PartialEq> Subscriber<T> for Publisher<T> {
    async fn take(&mut self, event: CollectionEvent<T>) {
        match event {
            CollectionEvent::Listed(objects) => self.replace(objects),
            CollectionEvent::Put(identity, object) => {
                if let Some(key) = key(identity) {
                    self.put(key, object);
                }
            }
            CollectionEvent::Deleted(identity) => {
                if let Some(key) = key(identity) {
                    self.published
                        .send_if_modified(|published| published.known.remove(&key).is_some());
                }
            }
            CollectionEvent::Works => self.works(),
            CollectionEvent::Failed(failure) => self.failed(&failure),
            CollectionEvent::Waits { .. } => {}
        }
    }
}
