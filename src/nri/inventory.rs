//! [`Inventory`]: the sandboxes and containers that a runtime has told of and not taken back.

use std::collections::BTreeMap;

use super::message::{Container, PodSandbox};
use super::pods::pod;
use crate::pod::Pod;

/// What a runtime has told of and not taken back: an event names one container, and a pod's others have to be remembered.
///
/// A plugin feeds it from its handlers, and asks it for whole pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// By the runtime's ids.
    sandboxes: BTreeMap<String, PodSandbox>,
    containers: BTreeMap<String, Container>,
}

// === impl Inventory ===

impl Inventory {
    /// Forgets everything and takes what exists, as [`synchronize`](super::Plugin::synchronize) is told.
    pub fn replace(&mut self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        self.sandboxes = pods.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        self.containers = containers.into_iter().map(|container| (container.id.clone(), container)).collect();
    }

    /// Takes note of a pod, or of what is new about it.
    pub fn put_pod(&mut self, pod: &PodSandbox) {
        self.sandboxes.insert(pod.id.clone(), pod.clone());
    }

    /// Takes note of a container and its pod, or of what is new about them. Of several events that tell of a container, the
    /// last has its resources as they are.
    pub fn put(&mut self, pod: &PodSandbox, container: &Container) {
        self.put_pod(pod);
        self.containers.insert(container.id.clone(), container.clone());
    }

    /// Forgets a container that has stopped, that is gone, or that was not created after all.
    pub fn remove(&mut self, container: &str) {
        self.containers.remove(container);
    }

    /// Forgets a pod and its containers.
    pub fn remove_pod(&mut self, sandbox: &str) {
        self.sandboxes.remove(sandbox);
        self.containers.retain(|_, container| container.pod_sandbox_id != sandbox);
    }

    /// The container of that id, with its pod's sandbox.
    pub fn container(&self, id: &str) -> Option<(&PodSandbox, &Container)> {
        let container = self.containers.get(id)?;
        Some((self.sandboxes.get(&container.pod_sandbox_id)?, container))
    }

    /// The pod of that sandbox, with the containers that are known.
    pub fn pod(&self, sandbox: &str) -> Option<Pod> {
        Some(pod(self.sandboxes.get(sandbox)?, self.containers.values()))
    }

    /// The sandboxes of a pod, by the uid that the runtime knows it by: mostly one, and for a while two where one is replaced.
    pub fn sandboxes_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a PodSandbox> {
        self.sandboxes.values().filter(move |sandbox| sandbox.uid == uid)
    }

    /// All sandboxes.
    pub fn sandboxes(&self) -> impl Iterator<Item = &PodSandbox> {
        self.sandboxes.values()
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Pod> {
        self.sandboxes.values().map(|sandbox| pod(sandbox, self.containers.values())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str) -> PodSandbox {
        PodSandbox { id: id.to_owned(), name: format!("pod-{id}"), ..PodSandbox::default() }
    }

    fn container(id: &str, name: &str, sandbox: &str) -> Container {
        let text = str::to_owned;
        Container { id: text(id), name: text(name), pod_sandbox_id: text(sandbox), ..Container::default() }
    }

    fn names(inventory: &Inventory, sandbox: &str) -> Vec<String> {
        let pod = inventory.pod(sandbox).unwrap();
        pod.containers.into_iter().map(|container| container.name).collect()
    }

    #[test]
    fn a_pod_has_those_that_are_there() {
        let mut inventory = Inventory::default();
        inventory.replace(vec![sandbox("p")], vec![container("1", "ps", "p")]);
        inventory.put(&sandbox("p"), &container("2", "proxy", "p"));
        inventory.put(&sandbox("q"), &container("3", "worker", "q"));
        assert_eq!(names(&inventory, "p"), ["proxy", "ps"]);
        assert_eq!(names(&inventory, "q"), ["worker"]);
        assert_eq!(inventory.pods().len(), 2);
        inventory.remove("1");
        // It comes again, after a crash.
        inventory.put(&sandbox("p"), &container("4", "ps", "p"));
        assert_eq!(inventory.pod("p").unwrap().container("ps").unwrap().runtime_id.as_deref(), Some("4"));
        assert_eq!(inventory.container("4").unwrap().0.name, "pod-p");
        inventory.remove_pod("p");
        assert_eq!((inventory.pod("p"), inventory.container("4")), (None, None));
        inventory.replace(vec![sandbox("r")], Vec::new());
        assert_eq!((inventory.pod("q"), names(&inventory, "r")), (None, Vec::<String>::new()));
    }
}
