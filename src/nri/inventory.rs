//! [`Inventory`]: the sandboxes and containers of a container runtime.

use std::collections::{BTreeMap, BTreeSet};

use super::{Container, ContainerState, PodSandbox, pod};
use crate::pod::Pod;

/// The sandboxes and containers of a container runtime.
///
/// An event names one container, so the inventory remembers the pod's others. A plugin adds and
/// removes containers in its handlers, and asks for whole pods. A query for one pod takes the same
/// time on a full node as on an empty one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// The sandboxes by id.
    sandboxes: BTreeMap<String, PodSandbox>,
    /// Pairs of a pod's uid and a sandbox's id.
    by_uid: BTreeSet<(String, String)>,
    /// The containers by their sandbox's id, then by the number of their first event.
    containers: BTreeMap<String, BTreeMap<u64, Container>>,
    /// The keys in `containers`, by a container's id: its sandbox's id and its number.
    keys: BTreeMap<String, (String, u64)>,
    /// The names of the removed containers, by their sandbox's id. Once a container is created
    /// again, its name is here no longer.
    removed: BTreeMap<String, BTreeSet<String>>,
    /// The number of the latest container. Numbers increase with each new container.
    last_number: u64,
}

// === impl Inventory ===

impl Inventory {
    /// Replaces all sandboxes and containers by the runtime's lists from [`synchronize`](super::Plugin::synchronize).
    ///
    /// A runtime lists containers in any order. A running container counts as newer than one that
    /// was created and does not run, because a runtime that was killed during a creation lists the
    /// unfinished container until the kubelet removes it.
    pub fn replace(&mut self, pods: Vec<PodSandbox>, mut containers: Vec<Container>) {
        *self = Self::default();
        pods.into_iter().for_each(|pod| self.put_pod(pod));
        let runs = |container: &Container| container.state == ContainerState::Running as i32;
        containers.sort_by_key(|container| (runs(container), container.created_at));
        containers
            .into_iter()
            .for_each(|container| self.put_container(container));
    }

    /// Adds a sandbox, or replaces its earlier description.
    pub fn put_pod(&mut self, pod: PodSandbox) {
        let key = (pod.uid.clone(), pod.id.clone());
        if let Some(before) = self.sandboxes.insert(pod.id.clone(), pod) {
            self.by_uid.remove(&(before.uid, before.id));
        }
        self.by_uid.insert(key);
    }

    /// Adds a container and its sandbox, or replaces their earlier descriptions, because the latest
    /// event of a container has its current resources.
    pub fn put(&mut self, pod: PodSandbox, container: Container) {
        self.put_pod(pod);
        self.put_container(container);
    }

    /// As `put`, for a container that starts, and therefore is the newest of its name. A runtime may have listed them in any
    /// order.
    pub fn put_newest(&mut self, pod: PodSandbox, container: Container) {
        self.take(&container.id);
        self.put(pod, container);
    }

    fn put_container(&mut self, container: Container) {
        let before = self.take(&container.id).map(|(number, _)| number);
        let number = before.unwrap_or_else(|| {
            self.last_number += 1;
            self.last_number
        });
        let sandbox = container.pod_sandbox_id.clone();
        if let Some(removed) = self.removed.get_mut(&sandbox) {
            removed.remove(&container.name);
        }
        let key = (sandbox.clone(), number);
        self.keys.insert(container.id.clone(), key);
        let siblings = self.containers.entry(sandbox).or_default();
        siblings.insert(number, container);
    }

    /// Notes that a container has stopped. Until it is removed, the runtime may still report
    /// another instance with its name.
    pub fn stop(&mut self, container: &str) {
        let stopped = self
            .keys
            .get(container)
            .and_then(|(sandbox, number)| self.containers.get_mut(sandbox)?.get_mut(number));
        if let Some(stopped) = stopped {
            stopped.state = ContainerState::Stopped as i32;
        }
    }

    /// Removes a container that the runtime has removed or could not create. Returns its number.
    pub fn remove(&mut self, container: &str) -> Option<u64> {
        let (number, removed) = self.take(container)?;
        let siblings = self.containers.get(&removed.pod_sandbox_id).into_iter();
        let mut siblings = siblings.flat_map(BTreeMap::values);
        if !siblings.any(|other| other.name == removed.name) {
            let names = self.removed.entry(removed.pod_sandbox_id).or_default();
            names.insert(removed.name);
        }
        Some(number)
    }

    fn take(&mut self, container: &str) -> Option<(u64, Container)> {
        let (sandbox, number) = self.keys.remove(container)?;
        let siblings = self.containers.get_mut(&sandbox)?;
        let taken = siblings.remove(&number)?;
        if siblings.is_empty() {
            self.containers.remove(&sandbox);
        }
        Some((number, taken))
    }

    /// The names of a sandbox's containers that were removed and not created again.
    pub fn removed(&self, sandbox: &str) -> impl Iterator<Item = &str> {
        let removed = self.removed.get(sandbox).into_iter();
        removed.flatten().map(String::as_str)
    }

    /// The names of a sandbox's containers that have stopped and have not been removed so far.
    pub fn stopped(&self, sandbox: &str) -> impl Iterator<Item = &str> {
        let stopped = ContainerState::Stopped as i32;
        let containers = self.containers.get(sandbox).into_iter();
        let containers = containers.flat_map(BTreeMap::values);
        let stopped = containers.filter(move |container| container.state == stopped);
        stopped.map(|container| container.name.as_str())
    }

    /// Whether a sandbox has a container with this name, running or stopped.
    pub fn has_container(&self, sandbox: &str, name: &str) -> bool {
        let containers = self.containers.get(sandbox).into_iter();
        let mut containers = containers.flat_map(BTreeMap::values);
        containers.any(|container| container.name == name)
    }

    pub fn remove_pod(&mut self, sandbox: &str) {
        if let Some(pod) = self.sandboxes.remove(sandbox) {
            self.by_uid.remove(&(pod.uid, pod.id));
        }
        self.removed.remove(sandbox);
        let containers = self.containers.remove(sandbox).unwrap_or_default();
        for container in containers.values() {
            self.keys.remove(&container.id);
        }
    }

    pub fn container(&self, id: &str) -> Option<(&PodSandbox, &Container)> {
        let (sandbox, number) = self.keys.get(id)?;
        Some((
            self.sandboxes.get(sandbox)?,
            self.containers.get(sandbox)?.get(number)?,
        ))
    }

    /// The number of a sandbox's newest container.
    pub fn newest(&self, sandbox: &str) -> Option<u64> {
        self.containers.get(sandbox)?.keys().next_back().copied()
    }

    /// The pod of a sandbox, with its known containers.
    pub fn pod(&self, sandbox: &str) -> Option<Pod> {
        let containers = self.containers.get(sandbox).into_iter();
        let containers = containers.flat_map(BTreeMap::values);
        Some(pod(self.sandboxes.get(sandbox)?, containers))
    }

    /// The sandboxes of a pod, by its uid at the runtime. A pod has two while one replaces the
    /// other.
    pub fn sandboxes_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a PodSandbox> {
        let from = self.by_uid.range((uid.to_owned(), String::new())..);
        from.take_while(move |(of, _)| of == uid)
            .filter_map(|(_, id)| self.sandboxes.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str) -> PodSandbox {
        PodSandbox {
            id: id.to_owned(),
            name: format!("pod-{id}"),
            ..PodSandbox::default()
        }
    }

    fn container(id: &str, name: &str, sandbox: &str) -> Container {
        let text = str::to_owned;
        Container {
            id: text(id),
            name: text(name),
            pod_sandbox_id: text(sandbox),
            ..Container::default()
        }
    }

    fn names(inventory: &Inventory, sandbox: &str) -> Vec<String> {
        let pod = inventory.pod(sandbox).unwrap();
        pod.containers
            .into_iter()
            .map(|container| container.name)
            .collect()
    }

    #[test]
    fn of_two_containers_with_one_name_the_running_and_then_the_later_one_counts() {
        let listed = |id: &str, state: ContainerState, created_at: i64| Container {
            state: state as i32,
            created_at,
            ..container(id, "ps", "p")
        };
        let left_over = listed("9", ContainerState::Created, 0);
        for (there, expected) in [
            (
                vec![left_over.clone(), listed("1", ContainerState::Running, 5)],
                "1",
            ),
            (
                vec![listed("1", ContainerState::Running, 5), left_over.clone()],
                "1",
            ),
            (
                vec![
                    listed("1", ContainerState::Running, 6),
                    listed("2", ContainerState::Running, 5),
                ],
                "1",
            ),
            (
                vec![left_over, listed("1", ContainerState::Created, 5)],
                "1",
            ),
        ] {
            let mut inventory = Inventory::default();
            inventory.replace(vec![sandbox("p")], there);
            let pod = inventory.pod("p").unwrap();
            assert_eq!(
                pod.container("ps").unwrap().runtime_id.as_deref(),
                Some(expected)
            );
        }
    }

    #[test]
    fn a_container_that_starts_is_the_newest() {
        let mut inventory = Inventory::default();
        let listed = ["new", "old"].map(|id| container(id, "ps", "p"));
        inventory.replace(vec![sandbox("p")], listed.to_vec());
        let id = |inventory: &Inventory| {
            let pod = inventory.pod("p").unwrap();
            pod.container("ps").unwrap().runtime_id.clone().unwrap()
        };
        assert_eq!(
            id(&inventory),
            "old",
            "a runtime may list them in any order"
        );
        inventory.put_newest(sandbox("p"), container("new", "ps", "p"));
        assert_eq!(id(&inventory), "new");
    }

    #[test]
    fn a_container_is_removed_if_no_other_with_its_name_is_left() {
        let mut inventory = Inventory::default();
        let removed = |inventory: &Inventory| -> Vec<String> {
            inventory.removed("p").map(str::to_owned).collect()
        };
        for id in ["1", "2"] {
            inventory.put(sandbox("p"), container(id, "ps", "p"));
            inventory.stop(id);
            assert_eq!(names(&inventory, "p"), Vec::<String>::new());
            assert!(inventory.has_container("p", "ps"));
        }
        // The kubelet removes the remains of the earlier run.
        inventory.remove("1");
        assert_eq!(removed(&inventory), Vec::<String>::new());
        inventory.remove("2");
        assert_eq!(removed(&inventory), ["ps"]);
        // Nobody knows whose the container was.
        inventory.remove("3");
        inventory.put(sandbox("p"), container("4", "ps", "p"));
        assert_eq!(removed(&inventory), Vec::<String>::new());
        inventory.remove("4");
        inventory.remove_pod("p");
        assert_eq!(
            inventory,
            Inventory {
                last_number: 3,
                ..Inventory::default()
            }
        );
    }

    #[test]
    fn a_pod_has_its_current_containers() {
        let mut inventory = Inventory::default();
        inventory.replace(vec![sandbox("p")], vec![container("1", "ps", "p")]);
        inventory.put(sandbox("p"), container("2", "proxy", "p"));
        inventory.put(sandbox("q"), container("3", "worker", "q"));
        assert_eq!(names(&inventory, "p"), ["proxy", "ps"]);
        assert_eq!(names(&inventory, "q"), ["worker"]);
        inventory.remove("1");
        // The container starts again after a crash.
        inventory.put(sandbox("p"), container("4", "ps", "p"));
        assert_eq!(
            inventory
                .pod("p")
                .unwrap()
                .container("ps")
                .unwrap()
                .runtime_id
                .as_deref(),
            Some("4")
        );
        assert_eq!(inventory.container("4").unwrap().0.name, "pod-p");
        // The newer container counts from its creation on, whatever its id. The runtime may give no
        // time and keep the older one.
        let known = |inventory: &Inventory| {
            inventory
                .pod("p")
                .unwrap()
                .container("ps")
                .unwrap()
                .runtime_id
                .clone()
        };
        inventory.put(sandbox("p"), container("3b", "ps", "p"));
        assert_eq!(known(&inventory).as_deref(), Some("3b"));
        inventory.put(
            sandbox("p"),
            Container {
                created_at: 1,
                ..container("3b", "ps", "p")
            },
        );
        assert_eq!(known(&inventory).as_deref(), Some("3b"));
        // Another event of the older container doesn't make it newer.
        inventory.put(sandbox("p"), container("4", "ps", "p"));
        assert_eq!(known(&inventory).as_deref(), Some("3b"));
        inventory.remove("3b");
        inventory.remove_pod("p");
        assert_eq!((inventory.pod("p"), inventory.container("4")), (None, None));
        // A sandbox that was made anew is a second one of the same pod.
        for id in ["s", "t"] {
            let of_pod = PodSandbox {
                uid: "uid".to_owned(),
                ..sandbox(id)
            };
            inventory.put_pod(of_pod.clone());
            inventory.put_pod(of_pod);
        }
        let ids = |inventory: &Inventory, uid: &str| {
            inventory
                .sandboxes_of(uid)
                .map(|sandbox| sandbox.id.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (ids(&inventory, "uid"), ids(&inventory, "ui")),
            (vec!["s".to_owned(), "t".to_owned()], vec![])
        );
        inventory.remove_pod("s");
        assert_eq!(ids(&inventory, "uid"), ["t"]);
        inventory.replace(vec![sandbox("r")], Vec::new());
        assert!(ids(&inventory, "uid").is_empty());
        assert_eq!(
            (inventory.pod("q"), names(&inventory, "r")),
            (None, Vec::<String>::new())
        );
    }
}
