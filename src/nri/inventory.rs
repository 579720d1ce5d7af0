//! [`Inventory`]: the sandboxes and containers that a runtime has told of and not taken back.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{Container, PodSandbox};
use super::pods::pod;
use crate::pod::Pod;

/// What a runtime has told of and not taken back: an event names one container, and a pod's others have to be remembered.
///
/// A plugin feeds it from its handlers, and asks it for whole pods. What is asked of one pod takes the same time however many
/// there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// By the runtime's ids.
    sandboxes: BTreeMap<String, PodSandbox>,
    /// The ids of sandboxes, each after its pod's uid.
    by_uid: BTreeSet<(String, String)>,
    /// By their sandboxes' ids and their own.
    containers: BTreeMap<String, BTreeMap<String, Container>>,
    /// The sandboxes' ids by the containers'.
    sandbox_of: BTreeMap<String, String>,
}

// === impl Inventory ===

impl Inventory {
    /// Forgets everything and takes what exists, as [`synchronize`](super::Plugin::synchronize) is told.
    pub fn replace(&mut self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        *self = Self::default();
        pods.into_iter().for_each(|pod| self.put_pod(pod));
        containers.into_iter().for_each(|container| self.put_container(container));
    }

    /// Takes note of a pod, or of what is new about it.
    pub fn put_pod(&mut self, pod: PodSandbox) {
        let key = (pod.uid.clone(), pod.id.clone());
        if let Some(before) = self.sandboxes.insert(pod.id.clone(), pod) {
            self.by_uid.remove(&(before.uid, before.id));
        }
        self.by_uid.insert(key);
    }

    /// Takes note of a container and its pod, or of what is new about them. Of several events that tell of a container, the
    /// last has its resources as they are.
    pub fn put(&mut self, pod: PodSandbox, container: Container) {
        self.put_pod(pod);
        self.put_container(container);
    }

    fn put_container(&mut self, container: Container) {
        self.remove(&container.id);
        self.sandbox_of.insert(container.id.clone(), container.pod_sandbox_id.clone());
        let beside = self.containers.entry(container.pod_sandbox_id.clone()).or_default();
        beside.insert(container.id.clone(), container);
    }

    /// Forgets a container that has stopped, that is gone, or that was not created after all.
    pub fn remove(&mut self, container: &str) {
        let Some(sandbox) = self.sandbox_of.remove(container) else { return };
        if let Some(beside) = self.containers.get_mut(&sandbox) {
            beside.remove(container);
            if beside.is_empty() {
                self.containers.remove(&sandbox);
            }
        }
    }

    /// Forgets a pod and its containers.
    pub fn remove_pod(&mut self, sandbox: &str) {
        if let Some(pod) = self.sandboxes.remove(sandbox) {
            self.by_uid.remove(&(pod.uid, pod.id));
        }
        for container in self.containers.remove(sandbox).unwrap_or_default().into_keys() {
            self.sandbox_of.remove(&container);
        }
    }

    /// The container of that id, with its pod's sandbox.
    pub fn container(&self, id: &str) -> Option<(&PodSandbox, &Container)> {
        let sandbox = self.sandbox_of.get(id)?;
        Some((self.sandboxes.get(sandbox)?, self.containers.get(sandbox)?.get(id)?))
    }

    /// The pod of that sandbox, with the containers that are known.
    pub fn pod(&self, sandbox: &str) -> Option<Pod> {
        let containers = self.containers.get(sandbox);
        Some(pod(self.sandboxes.get(sandbox)?, containers.into_iter().flat_map(BTreeMap::values)))
    }

    /// The sandboxes of a pod, by the uid that the runtime knows it by: mostly one, and for a while two where one is replaced.
    pub fn sandboxes_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a PodSandbox> {
        let from = self.by_uid.range((uid.to_owned(), String::new())..);
        from.take_while(move |(of, _)| of == uid).filter_map(|(_, id)| self.sandboxes.get(id))
    }

    /// All sandboxes.
    pub fn sandboxes(&self) -> impl Iterator<Item = &PodSandbox> {
        self.sandboxes.values()
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Pod> {
        self.sandboxes.keys().filter_map(|id| self.pod(id)).collect()
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
        inventory.put(sandbox("p"), container("2", "proxy", "p"));
        inventory.put(sandbox("q"), container("3", "worker", "q"));
        assert_eq!(names(&inventory, "p"), ["proxy", "ps"]);
        assert_eq!(names(&inventory, "q"), ["worker"]);
        assert_eq!(inventory.pods().len(), 2);
        inventory.remove("1");
        // It comes again, after a crash.
        inventory.put(sandbox("p"), container("4", "ps", "p"));
        assert_eq!(inventory.pod("p").unwrap().container("ps").unwrap().runtime_id.as_deref(), Some("4"));
        assert_eq!(inventory.container("4").unwrap().0.name, "pod-p");
        inventory.remove_pod("p");
        assert_eq!((inventory.pod("p"), inventory.container("4")), (None, None));
        // A sandbox that is made anew is another one of the same pod.
        for id in ["s", "t"] {
            let of_pod = PodSandbox { uid: "uid".to_owned(), ..sandbox(id) };
            inventory.put_pod(of_pod.clone());
            inventory.put_pod(of_pod);
        }
        let ids = |inventory: &Inventory, uid: &str| {
            inventory.sandboxes_of(uid).map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            (ids(&inventory, "uid"), ids(&inventory, "ui")),
            (vec!["s".to_owned(), "t".to_owned()], vec![])
        );
        inventory.remove_pod("s");
        assert_eq!(ids(&inventory, "uid"), ["t"]);
        inventory.replace(vec![sandbox("r")], Vec::new());
        assert!(ids(&inventory, "uid").is_empty());
        assert_eq!((inventory.pod("q"), names(&inventory, "r")), (None, Vec::<String>::new()));
    }
}
