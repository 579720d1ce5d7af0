//! [`PodCache`]: the known pods, and how a list or a change updates the cache.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::PodsEvent;
use crate::cluster::watch::Identity;
use crate::pod::{Pod, PodObject};

/// The known pods of this node, by uid. The type does no I/O.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodCache {
    pods: BTreeMap<String, Pod>,
    /// A sentence for each unreadable pod, by uid.
    unreadable: BTreeMap<String, String>,
    complete: bool,
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

    /// A sentence for each unreadable pod.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.values().cloned().collect()
    }

    /// Applies an event from [`follow`](super::follow). The receiver's cache then equals the sender's. Returns whether the
    /// cache changed.
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
                    let was_unreadable = self.unreadable.remove(&uid).is_some();
                    self.pods.insert(uid, (*pod).clone()).as_ref() != Some(&*pod) || was_unreadable
                }
                None => false,
            },
            PodsEvent::Gone { uid, .. } => {
                let was_unreadable = self.unreadable.remove(&uid).is_some();
                self.pods.remove(&uid).is_some() || was_unreadable
            }
            PodsEvent::Unreadable { uid, says } => {
                self.unreadable.insert(uid, says.clone()).as_ref() != Some(&says)
            }
            PodsEvent::Degraded(_) | PodsEvent::Recovered | PodsEvent::Waits { .. } => false,
        }
    }

    /// Applies a complete list. Pods missing from the list are gone. Unreadable pods keep their last state.
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

    /// Applies a new or changed pod. Returns `None` if no field that Pinfold reads has changed.
    pub(super) fn changed(&mut self, object: &RawValue) -> Option<PodsEvent> {
        let identity = Identity::of(object);
        let uid = identity.uid().to_owned();
        match read(object, &identity) {
            Ok(pod) => {
                let was_unreadable = self.unreadable.remove(&uid).is_some();
                if self.pods.get(&uid) == Some(&pod) && !was_unreadable {
                    return None;
                }
                self.pods.insert(uid, pod.clone());
                Some(PodsEvent::Changed(Box::new(pod)))
            }
            Err(says) => {
                let before = self.unreadable.insert(uid.clone(), says.clone());
                let new = before.as_ref() != Some(&says);
                new.then_some(PodsEvent::Unreadable { uid, says })
            }
        }
    }

    /// Applies a deletion. The uid identifies the pod, since a new pod may have the same name.
    pub(super) fn gone(&mut self, object: &RawValue) -> Option<PodsEvent> {
        let Identity {
            uid,
            namespace,
            name,
            ..
        } = Identity::of(object);
        let (uid, namespace) = (uid.unwrap_or_default(), namespace.unwrap_or_default());
        let was_unreadable = self.unreadable.remove(&uid).is_some();
        let was_known = self.pods.remove(&uid).is_some();
        (was_known || was_unreadable).then(|| PodsEvent::Gone {
            uid,
            namespace,
            name: name.unwrap_or_default(),
        })
    }
}

/// Decodes a pod, or returns a sentence with the pod's name and the error.
fn read(object: &RawValue, identity: &Identity) -> Result<Pod, String> {
    let namespace = identity.namespace.as_deref().unwrap_or_default();
    let name = identity.name.as_deref().unwrap_or_default();
    if identity.uid().is_empty() || name.is_empty() {
        return Err(format!(
            "the API server sent a pod without uid or name: {namespace}/{name}"
        ));
    }
    let object: PodObject = serde_json::from_str(object.get()).map_err(|error| {
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
    fn an_unreadable_pod_keeps_its_last_state_and_hides_no_other_pod() {
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
        let invalid_spec = json!({"metadata": {"uid": "u-b", "name": "b"}, "spec": 7});
        assert!(matches!(
            known.changed(&raw(&invalid_spec)),
            Some(PodsEvent::Unreadable { .. })
        ));
        assert_eq!(known.changed(&raw(&invalid_spec)), None, "reported once");
        assert_eq!(known.pods().len(), 2);
        assert!(matches!(
            known.changed(&raw(&pod("a", "4"))),
            Some(PodsEvent::Changed(_))
        ));
        assert_eq!(known.unreadable().len(), 1);
    }

    #[test]
    fn irrelevant_changes_are_not_reported_and_a_new_uid_is_a_new_pod() {
        let mut known = PodCache::default();
        known.replace([raw(&pod("a", "1"))]);
        let mut heartbeat = pod("a", "1");
        heartbeat["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        heartbeat["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
        assert_eq!(known.changed(&raw(&heartbeat)), None);
        let mut renewed = pod("a", "1");
        renewed["metadata"]["uid"] = json!("u-2");
        assert!(known.changed(&raw(&renewed)).is_some());
        assert!(
            matches!(known.gone(&raw(&pod("a", "1"))), Some(PodsEvent::Gone { uid, .. }) if uid == "u-a")
        );
        assert_eq!(known.gone(&raw(&pod("a", "1"))), None);
        assert_eq!(known.pods().len(), 1);
    }

    #[test]
    fn a_receiver_of_all_events_has_the_same_cache() {
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
            "the pod is readable again, and unchanged"
        );
        assert_eq!(receiver, sender);
        assert!(!receiver.take(PodsEvent::Degraded("away".to_owned())));
        assert_eq!(receiver.pods(), sender.pods());
        assert!(receiver.is_complete());
    }
}
