//! [`PodCache`]: what is known of the pods, and what a list or a change makes of it.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::PodsEvent;
use crate::pod::{Object, Pod};
use crate::text::part;

/// What is known of this node's pods, by uid. Plain values: it neither asks nor waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodCache {
    pods: BTreeMap<String, Pod>,
    /// Pods that can't be read, by uid, as sentences.
    unreadable: BTreeMap<String, String>,
    complete: bool,
}

part! {
    /// Who an object is, also where the rest of it can't be read.
    struct Head: "an object" {
        metadata: Identity = "metadata",
    }
}

part! {
    /// Who an object is, and where in a watch it stands.
    pub(super) struct Identity: "an object's metadata" {
        uid: String = "uid",
        namespace: String = "namespace",
        name: String = "name",
        version: String = "resourceVersion",
        annotations: Marks = "annotations",
    }
}

part! {
    struct Marks: "annotations" {
        initial_end: IgnoredAny = "k8s.io/initial-events-end",
    }
}

// === impl PodCache ===

impl PodCache {
    /// Whether all pods have been read at least once.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The pods, by namespace and name.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.pods.values().cloned().collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        pods
    }

    /// Pods that can't be read, as sentences.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.values().cloned().collect()
    }

    /// Takes an event that [`follow`](super::follow) sent, so that a receiver has the same picture. Whether anything
    /// changed.
    pub fn take(&mut self, event: PodsEvent) -> bool {
        match event {
            PodsEvent::Snapshot { pods, unreadable } => {
                let by_uid = |pod: Pod| Some((pod.api_uid.as_ref()?.to_string(), pod));
                self.pods = pods.into_iter().filter_map(by_uid).collect();
                self.unreadable = unreadable;
                self.complete = true;
                true
            }
            PodsEvent::Changed(pod) => match pod.api_uid.as_ref().map(ToString::to_string) {
                Some(uid) => {
                    let told = self.unreadable.remove(&uid).is_some();
                    self.pods.insert(uid, (*pod).clone()).as_ref() != Some(&*pod) || told
                }
                None => false,
            },
            PodsEvent::Gone { uid, .. } => {
                let told = self.unreadable.remove(&uid).is_some();
                self.pods.remove(&uid).is_some() || told
            }
            PodsEvent::Unreadable { uid, says } => {
                self.unreadable.insert(uid, says.clone()).as_ref() != Some(&says)
            }
            PodsEvent::Degraded(_) | PodsEvent::Recovered => false,
        }
    }

    /// Takes a complete list. What it lacks is gone; what can't be read of it keeps what was known.
    pub(super) fn replace(
        &mut self,
        objects: impl IntoIterator<Item = Box<RawValue>>,
    ) -> PodsEvent {
        let (mut pods, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for object in objects {
            let identity = Identity::of(&object);
            let uid = identity.uid().to_owned();
            match read(&object, &identity) {
                Ok(pod) => {
                    pods.insert(uid, pod);
                }
                Err(says) => {
                    if let Some(pod) = self.pods.remove(&uid) {
                        pods.insert(uid.clone(), pod);
                    }
                    unreadable.insert(uid, says);
                }
            }
        }
        *self = Self {
            pods,
            unreadable,
            complete: true,
        };
        PodsEvent::Snapshot {
            pods: self.pods(),
            unreadable: self.unreadable.clone(),
        }
    }

    /// Takes a pod that is new or changed; nothing is said where what matters of it is the same.
    pub(super) fn changed(&mut self, object: &RawValue) -> Option<PodsEvent> {
        let identity = Identity::of(object);
        let uid = identity.uid().to_owned();
        match read(object, &identity) {
            Ok(pod) => {
                let told = self.unreadable.remove(&uid).is_some();
                if self.pods.get(&uid) == Some(&pod) && !told {
                    return None;
                }
                self.pods.insert(uid, pod.clone());
                Some(PodsEvent::Changed(Box::new(pod)))
            }
            Err(says) => {
                let told = self.unreadable.insert(uid.clone(), says.clone());
                let new = told.as_ref() != Some(&says);
                new.then_some(PodsEvent::Unreadable { uid, says })
            }
        }
    }

    /// Takes a deletion. The object's uid counts: a name may be somebody else's by now.
    pub(super) fn gone(&mut self, object: &RawValue) -> Option<PodsEvent> {
        let Identity {
            uid,
            namespace,
            name,
            ..
        } = Identity::of(object);
        let (uid, namespace) = (uid.unwrap_or_default(), namespace.unwrap_or_default());
        let told = self.unreadable.remove(&uid).is_some();
        let known = self.pods.remove(&uid).is_some();
        (known || told).then(|| PodsEvent::Gone {
            uid,
            namespace,
            name: name.unwrap_or_default(),
        })
    }
}

// === impl Identity ===

impl Identity {
    /// An object's; all of it is missing where its metadata can't be read.
    pub(super) fn of(object: &RawValue) -> Self {
        let head: Head = serde_json::from_str(object.get()).unwrap_or_default();
        head.metadata.unwrap_or_default()
    }

    /// The uid, or nothing.
    pub(super) fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    /// The version up to which everything is known once the object is.
    pub(super) fn version(self) -> Option<String> {
        self.version.filter(|version| !version.is_empty())
    }

    /// Whether the object marks the end of a streaming list.
    pub(super) fn ends_list(&self) -> bool {
        self.annotations
            .as_ref()
            .is_some_and(|marks| marks.initial_end.is_some())
    }
}

/// A pod as the rest of the program knows it, or a sentence that says why not.
fn read(object: &RawValue, identity: &Identity) -> Result<Pod, String> {
    let namespace = identity.namespace.as_deref().unwrap_or_default();
    let name = identity.name.as_deref().unwrap_or_default();
    if identity.uid().is_empty() || name.is_empty() {
        return Err(format!(
            "a pod without uid or name came from the API server: {namespace}/{name}"
        ));
    }
    let object: Object = serde_json::from_str(object.get()).map_err(|error| {
        format!("pod {namespace}/{name} from the API server can't be read: {error}")
    })?;
    Pod::from_k8s(object).map_err(|error| {
        let cause = std::error::Error::source(&error)
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        format!("pod {namespace}/{name} from the API server is not valid: {error}{cause}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, cpu: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "a", "uid": format!("u-{name}"), "resourceVersion": "7"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}]},
        })
    }

    fn raw(object: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(object).unwrap()
    }

    #[test]
    fn a_pod_that_cannot_be_read_keeps_what_was_known_and_hides_nobody() {
        let mut known = PodCache::default();
        assert!(!known.is_complete());
        known.replace([raw(&pod("a", "1")), raw(&pod("b", "2"))]);
        let PodsEvent::Snapshot { pods, unreadable } =
            known.replace([raw(&pod("a", "one")), raw(&pod("b", "3"))])
        else {
            panic!("a list is a snapshot");
        };
        let limits: Vec<_> = pods
            .iter()
            .map(|pod| pod.containers[0].resources.cpu_limit)
            .collect();
        assert_eq!(limits, [Some(1000), Some(3000)]);
        let says = &unreadable["u-a"];
        assert!(
            says.contains("a/a") && says.contains("limits.cpu"),
            "{says}"
        );
        let odd = json!({"metadata": {"uid": "u-b", "name": "b"}, "spec": 7});
        assert!(matches!(
            known.changed(&raw(&odd)),
            Some(PodsEvent::Unreadable { .. })
        ));
        assert_eq!(known.changed(&raw(&odd)), None, "said once");
        assert_eq!(known.pods().len(), 2);
        assert!(matches!(
            known.changed(&raw(&pod("a", "4"))),
            Some(PodsEvent::Changed(_))
        ));
        assert_eq!(known.unreadable().len(), 1);
    }

    #[test]
    fn what_does_not_matter_is_not_said_and_a_new_pod_of_the_name_is_another() {
        let mut known = PodCache::default();
        known.replace([raw(&pod("a", "1"))]);
        let mut beat = pod("a", "1");
        beat["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        beat["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
        assert_eq!(known.changed(&raw(&beat)), None);
        let mut next = pod("a", "1");
        next["metadata"]["uid"] = json!("u-2");
        assert!(known.changed(&raw(&next)).is_some());
        assert!(
            matches!(known.gone(&raw(&pod("a", "1"))), Some(PodsEvent::Gone { uid, .. }) if uid == "u-a")
        );
        assert_eq!(known.gone(&raw(&pod("a", "1"))), None);
        assert_eq!(known.pods().len(), 1);
    }

    #[test]
    fn a_receiver_that_takes_the_events_has_the_same_picture() {
        let (mut sender, mut receiver) = (PodCache::default(), PodCache::default());
        receiver.take(sender.replace([raw(&pod("a", "1")), raw(&pod("b", "1"))]));
        for object in [pod("c", "1"), pod("a", "2")] {
            assert!(receiver.take(sender.changed(&raw(&object)).unwrap()));
        }
        assert!(receiver.take(sender.gone(&raw(&pod("b", "1"))).unwrap()));
        assert!(receiver.take(sender.changed(&raw(&pod("a", "odd"))).unwrap()));
        assert_eq!(receiver.unreadable().len(), 1);
        assert!(
            receiver.take(sender.changed(&raw(&pod("a", "2"))).unwrap()),
            "it can be read again, as it was"
        );
        assert_eq!(receiver, sender);
        assert!(!receiver.take(PodsEvent::Degraded("away".to_owned())));
        assert_eq!(receiver.pods(), sender.pods());
        assert!(receiver.is_complete());
    }
}
