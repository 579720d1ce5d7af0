//! [`PodCache`]: the known pods, and how a list or a change updates them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::PodsEvent;
use crate::cluster::watch::Identity;
use crate::pod::{ContainerIds, Pod, PodObject};

/// A pod from the API server, or a sentence why it is unreadable.
pub(super) type PodRead = Result<Arc<Pod>, String>;

/// The known pods of this node, by uid. Whoever takes a pod from here shares it. The type does no I/O.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodCache {
    pods: BTreeMap<String, Arc<Pod>>,
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

    /// The pods, in the order of their uids.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// A sentence for each unreadable pod.
    pub fn unreadable(&self) -> impl ExactSizeIterator<Item = &String> {
        self.unreadable.values()
    }

    /// Takes an event of [`follow`](super::follow). Returns whether anything changed that Pinfold reads. An unreadable pod keeps
    /// its last state.
    pub fn take(&mut self, event: &PodsEvent) -> bool {
        match event {
            PodsEvent::Listed { pods, unreadable } => {
                let mut earlier = std::mem::take(&mut self.pods);
                let kept = unreadable
                    .keys()
                    .filter_map(|uid| earlier.remove_entry(uid));
                self.pods = kept.collect();
                for pod in pods {
                    let Some(uid) = uid(pod) else { continue };
                    // An unchanged pod stays the same object, which its other holders share.
                    let same = earlier.remove(&uid).filter(|before| before == pod);
                    self.pods
                        .insert(uid, same.unwrap_or_else(|| Arc::clone(pod)));
                }
                self.unreadable.clone_from(unreadable);
                self.complete = true;
                true
            }
            PodsEvent::Applied(pod) => {
                let Some(uid) = uid(pod) else { return false };
                let was_unreadable = self.unreadable.remove(&uid).is_some();
                let is_same = self.pods.get(&uid) == Some(pod);
                if !is_same {
                    self.pods.insert(uid, Arc::clone(pod));
                }
                !is_same || was_unreadable
            }
            PodsEvent::Deleted { uid, .. } => {
                let was_unreadable = self.unreadable.remove(uid).is_some();
                self.pods.remove(uid).is_some() || was_unreadable
            }
            PodsEvent::Unreadable { uid, says } => {
                let before = self.unreadable.insert(uid.clone(), says.clone());
                before.as_ref() != Some(says)
            }
            PodsEvent::Degraded(_) | PodsEvent::Recovered | PodsEvent::Waits { .. } => false,
        }
    }
}

fn uid(pod: &Pod) -> Option<String> {
    pod.api_uid.as_ref().map(ToString::to_string)
}

// === impl PodsEvent ===

impl PodsEvent {
    /// Whether the event is about pods, and not about the connection.
    pub fn is_of_pods(&self) -> bool {
        !matches!(
            self,
            Self::Degraded(_) | Self::Recovered | Self::Waits { .. }
        )
    }

    /// A complete list.
    pub(super) fn listed(objects: impl IntoIterator<Item = (Identity, PodRead)>) -> Self {
        let (mut pods, mut unreadable) = (Vec::new(), BTreeMap::new());
        for (identity, pod) in objects {
            match pod {
                Ok(pod) => pods.push(pod),
                Err(says) => {
                    unreadable.insert(identity.uid().to_owned(), says);
                }
            }
        }
        Self::Listed { pods, unreadable }
    }

    /// A new or changed pod.
    pub(super) fn applied(identity: &Identity, pod: PodRead) -> Self {
        match pod {
            Ok(pod) => Self::Applied(pod),
            Err(says) => Self::Unreadable {
                uid: identity.uid().to_owned(),
                says,
            },
        }
    }

    /// A deletion. The uid identifies the pod, since a new pod may have the same name.
    pub(super) fn deleted(identity: Identity) -> Self {
        Self::Deleted {
            uid: identity.uid.unwrap_or_default(),
            namespace: identity.namespace.unwrap_or_default(),
            name: identity.name.unwrap_or_default(),
        }
    }
}

/// Decodes a pod, or returns a sentence with the pod's name and the error.
pub(super) fn read(identity: &Identity, object: &RawValue) -> PodRead {
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
    let pod = Pod::from_k8s(object).map_err(|error| {
        let cause = std::error::Error::source(&error)
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        format!("pod {namespace}/{name} from the API server is not valid: {error}{cause}")
    })?;
    // The server reports the ids of the containers in the pod's status.
    let ids = ContainerIds::Awaited;
    Ok(Arc::new(Pod { ids, ..pod }))
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

    fn decoded(object: &Value) -> (Identity, PodRead) {
        let object = serde_json::value::to_raw_value(object).unwrap();
        let identity = Identity::of(&object);
        let pod = read(&identity, &object);
        (identity, pod)
    }

    fn list<const N: usize>(known: &mut PodCache, pods: [Value; N]) {
        assert!(known.take(&PodsEvent::listed(pods.map(|pod| decoded(&pod)))));
    }

    fn apply(known: &mut PodCache, pod: &Value) -> bool {
        let (identity, pod) = decoded(pod);
        known.take(&PodsEvent::applied(&identity, pod))
    }

    fn delete(known: &mut PodCache, pod: &Value) -> bool {
        known.take(&PodsEvent::deleted(decoded(pod).0))
    }

    #[test]
    fn an_unreadable_pod_keeps_its_last_state_and_hides_no_other_pod() {
        let mut known = PodCache::default();
        assert!(!known.is_complete());
        list(&mut known, [pod("a", "1"), pod("b", "2")]);
        list(&mut known, [pod("a", "one"), pod("b", "3")]);
        let limits: Vec<_> = known
            .pods()
            .map(|pod| pod.containers[0].resources.cpu_limit)
            .collect();
        assert_eq!(limits, [Some(1000), Some(3000)]);
        let says = known.unreadable().next().unwrap();
        assert!(
            says.contains("a/a") && says.contains("limits.cpu"),
            "{says}"
        );
        let invalid_spec = json!({"metadata": {"uid": "u-b", "name": "b"}, "spec": 7});
        assert!(apply(&mut known, &invalid_spec));
        assert!(!apply(&mut known, &invalid_spec), "reported once");
        assert_eq!(known.pods().len(), 2);
        assert!(apply(&mut known, &pod("a", "4")));
        assert_eq!(known.unreadable().len(), 1);
        assert!(
            apply(&mut known, &pod("b", "3")),
            "the pod is readable again, and unchanged"
        );
        assert_eq!(known.unreadable().len(), 0);
        assert!(!known.take(&PodsEvent::Degraded("away".to_owned())));
    }

    #[test]
    fn irrelevant_changes_are_no_changes_and_a_new_uid_is_a_new_pod() {
        let mut known = PodCache::default();
        list(&mut known, [pod("a", "1")]);
        let before = Arc::clone(known.pods().next().unwrap());
        let mut heartbeat = pod("a", "1");
        heartbeat["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        heartbeat["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
        heartbeat["metadata"]["annotations"] = json!({"last-applied": "x".repeat(50_000)});
        assert!(!apply(&mut known, &heartbeat));
        // A later list brings the same pod, of which nobody needs a second copy.
        list(&mut known, [heartbeat]);
        assert!(Arc::ptr_eq(&before, known.pods().next().unwrap()));
        let mut renewed = pod("a", "1");
        renewed["metadata"]["uid"] = json!("u-2");
        assert!(apply(&mut known, &renewed));
        assert!(delete(&mut known, &pod("a", "1")));
        assert!(!delete(&mut known, &pod("a", "1")));
        assert_eq!(known.pods().len(), 1);
    }
}
