//! [`Known`]: what is known of the pods, and what a list or a change makes of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use super::PodsEvent;
use crate::pod::Pod;

/// What is known of this node's pods, by uid. Plain values: it neither asks nor waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    pods: BTreeMap<String, Pod>,
    /// Pods that can't be read, by uid, as sentences.
    unreadable: BTreeMap<String, String>,
    complete: bool,
}

/// Who an object is, also where the rest of it can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    uid: String,
    namespace: String,
    name: String,
}

// === impl Known ===

impl Known {
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
                let by_uid = |pod: Pod| Some((pod.uid.clone()?, pod));
                self.pods = pods.into_iter().filter_map(by_uid).collect();
                self.unreadable = unreadable;
                self.complete = true;
                true
            }
            PodsEvent::Changed(pod) => match pod.uid.clone() {
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
            PodsEvent::Trouble(_) | PodsEvent::Recovered => false,
        }
    }

    /// Takes a complete list. What it lacks is gone; what can't be read of it keeps what was known.
    pub(super) fn replace(&mut self, objects: Vec<Value>) -> PodsEvent {
        let (mut pods, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for object in objects {
            let identity = identity(&object);
            match read(object, &identity) {
                Ok(pod) => {
                    pods.insert(identity.uid, pod);
                }
                Err(says) => {
                    if let Some(pod) = self.pods.remove(&identity.uid) {
                        pods.insert(identity.uid.clone(), pod);
                    }
                    unreadable.insert(identity.uid, says);
                }
            }
        }
        *self = Self { pods, unreadable, complete: true };
        PodsEvent::Snapshot { pods: self.pods(), unreadable: self.unreadable.clone() }
    }

    /// Takes a pod that is new or changed; nothing is said where what matters of it is the same.
    pub(super) fn changed(&mut self, object: Value) -> Option<PodsEvent> {
        let identity = identity(&object);
        match read(object, &identity) {
            Ok(pod) => {
                let told = self.unreadable.remove(&identity.uid).is_some();
                if self.pods.get(&identity.uid) == Some(&pod) && !told {
                    return None;
                }
                self.pods.insert(identity.uid, pod.clone());
                Some(PodsEvent::Changed(Box::new(pod)))
            }
            Err(says) => {
                let told = self.unreadable.insert(identity.uid.clone(), says.clone());
                let new = told.as_ref() != Some(&says);
                new.then_some(PodsEvent::Unreadable { uid: identity.uid, says })
            }
        }
    }

    /// Takes a deletion. The object's uid counts: a name may be somebody else's by now.
    pub(super) fn gone(&mut self, object: &Value) -> Option<PodsEvent> {
        let Identity { uid, namespace, name } = identity(object);
        let told = self.unreadable.remove(&uid).is_some();
        let known = self.pods.remove(&uid).is_some();
        (known || told).then_some(PodsEvent::Gone { uid, namespace, name })
    }
}

fn identity(object: &Value) -> Identity {
    let text = |key: &str| {
        let value = object.get("metadata").and_then(|metadata| metadata.get(key));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    Identity { uid: text("uid"), namespace: text("namespace"), name: text("name") }
}

/// A pod as the rest of the program knows it, or a sentence that says why not.
fn read(mut object: Value, identity: &Identity) -> Result<Pod, String> {
    let Identity { uid, namespace, name } = identity;
    if uid.is_empty() || name.is_empty() {
        return Err(format!("a pod without uid or name came from the API server: {namespace}/{name}"));
    }
    // Who owns which field is half of an object and means nothing to us.
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    let typed: api::Pod = serde_json::from_value(object)
        .map_err(|error| format!("pod {namespace}/{name} from the API server can't be read: {error}"))?;
    let pod = Pod::from_k8s(&typed).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("pod {namespace}/{name} from the API server is not valid: {error}{cause}")
    })?;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, cpu: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "a", "uid": format!("u-{name}"), "resourceVersion": "7"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}]},
        })
    }

    #[test]
    fn a_pod_that_cannot_be_read_keeps_what_was_known_and_hides_nobody() {
        let mut known = Known::default();
        assert!(!known.is_complete());
        known.replace(vec![pod("a", "1"), pod("b", "2")]);
        let PodsEvent::Snapshot { pods, unreadable } = known.replace(vec![pod("a", "one"), pod("b", "3")])
        else {
            panic!("a list is a snapshot");
        };
        let limits: Vec<_> = pods.iter().map(|pod| pod.containers[0].resources.cpu_limit).collect();
        assert_eq!(limits, [Some(1000), Some(3000)]);
        let says = &unreadable["u-a"];
        assert!(says.contains("a/a") && says.contains("limits.cpu"), "{says}");
        let odd = json!({"metadata": {"uid": "u-b", "name": "b"}, "spec": 7});
        assert!(matches!(known.changed(odd.clone()), Some(PodsEvent::Unreadable { .. })));
        assert_eq!(known.changed(odd), None, "said once");
        assert_eq!(known.pods().len(), 2);
        assert!(matches!(known.changed(pod("a", "4")), Some(PodsEvent::Changed(_))));
        assert_eq!(known.unreadable().len(), 1);
    }

    #[test]
    fn what_does_not_matter_is_not_said_and_a_new_pod_of_the_name_is_another() {
        let mut known = Known::default();
        known.replace(vec![pod("a", "1")]);
        let mut beat = pod("a", "1");
        beat["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        beat["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
        assert_eq!(known.changed(beat), None);
        let mut next = pod("a", "1");
        next["metadata"]["uid"] = json!("u-2");
        assert!(known.changed(next).is_some());
        assert!(matches!(known.gone(&pod("a", "1")), Some(PodsEvent::Gone { uid, .. }) if uid == "u-a"));
        assert_eq!(known.gone(&pod("a", "1")), None);
        assert_eq!(known.pods().len(), 1);
    }

    #[test]
    fn a_receiver_that_takes_the_events_has_the_same_picture() {
        let (mut sender, mut receiver) = (Known::default(), Known::default());
        receiver.take(sender.replace(vec![pod("a", "1"), pod("b", "1")]));
        for object in [pod("c", "1"), pod("a", "2")] {
            assert!(receiver.take(sender.changed(object).unwrap()));
        }
        assert!(receiver.take(sender.gone(&pod("b", "1")).unwrap()));
        assert!(receiver.take(sender.changed(pod("a", "odd")).unwrap()));
        assert_eq!(receiver.unreadable().len(), 1);
        assert!(receiver.take(sender.changed(pod("a", "2")).unwrap()), "it can be read again, as it was");
        assert_eq!(receiver, sender);
        assert!(!receiver.take(PodsEvent::Trouble("away".to_owned())));
        assert_eq!(receiver.pods(), sender.pods());
        assert!(receiver.is_complete());
    }
}
