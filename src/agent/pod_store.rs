//! [`PodStore`]: the pods of the node, from the API, the folder of manifests and the container runtime.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::event::{PodSource, RuntimePod, RuntimeUpdate};
use super::identity::{self, Evidence, RecordedPod};
use super::pending::PendingAssignments;
use super::pod_lists::PodLists;
use crate::pin::{Ledger, Observed};
use crate::pod::{ApiUid, ContainerIds, Pod, is_required};

/// The last known pods of each source.
#[derive(Debug, Default)]
pub struct PodStore {
    pods: BTreeMap<PodSource, Vec<Pod>>,
    errors: BTreeMap<PodSource, Vec<String>>,
    /// The source of container ids for the folder's pods.
    folder_ids: ContainerIds,
    /// The uid of the own Node; `None` before the first answer of the API server.
    node: Option<ApiUid>,
    /// The pods named by assignment records, for each uid named by a mirror pod.
    records: BTreeMap<String, RecordedPod>,
    /// All of `pods`, with the mirror pods' uids settled.
    described: Vec<Pod>,
    /// The uids of static pods named by mirror pods.
    mirrored: BTreeSet<String>,
    /// Mirror pods without effect, as sentences.
    conflicts: Vec<String>,
    /// The container runtime's pods, by uid.
    runtime: BTreeMap<String, RuntimePod>,
    has_runtime: bool,
    pending: PendingAssignments,
    /// Which lists of pods are awaited.
    lists: PodLists,
    /// All pods, cached until a source changes.
    known: Option<PodIndex>,
}

/// All pods without duplicates.
#[derive(Debug)]
struct PodIndex {
    pods: Arc<Vec<Pod>>,
    /// The number of pods from the API and the folder. These pods come first. The runtime's further pods follow in the order of
    /// their uids.
    described: usize,
}

// === impl PodIndex ===

impl PodIndex {
    /// Replaces, inserts or removes a pod. `now` is `None` for a removed pod. `described` says whether the API or the folder
    /// describes the pod.
    fn renew(&mut self, uid: &str, described: bool, now: Option<Pod>) {
        let pods = Arc::make_mut(&mut self.pods);
        let at = pods.iter().position(|pod| pod.cgroup_uid() == Some(uid));
        match (at, now) {
            (Some(at), Some(now)) => {
                if let Some(pod) = pods.get_mut(at) {
                    *pod = now;
                }
            }
            (Some(at), None) => {
                pods.remove(at);
            }
            (None, Some(now)) if !described => {
                let undescribed = pods.iter().enumerate().skip(self.described);
                let mut later = undescribed.filter(|(_, pod)| pod.cgroup_uid() > Some(uid));
                let at = later.next().map_or(pods.len(), |(at, _)| at);
                pods.insert(at, now);
            }
            (None, _) => {}
        }
    }
}

// === impl PodStore ===

impl PodStore {
    /// `folder_ids` is the source of container ids for the folder's pods.
    pub fn new(folder_ids: ContainerIds) -> Self {
        Self {
            folder_ids,
            ..Self::default()
        }
    }

    /// Names the sources that list the node's pods.
    #[must_use]
    pub fn listed_by(mut self, sources: &[PodSource]) -> Self {
        self.lists = PodLists::new(sources);
        self
    }

    pub(super) fn lists(&self) -> &PodLists {
        &self.lists
    }

    /// The pods of the API and of the folder.
    pub(super) fn described(&self) -> &[Pod] {
        &self.described
    }

    /// The container runtime's description of a pod.
    pub(super) fn of_runtime(&self, uid: &str) -> Option<&RuntimePod> {
        self.runtime.get(uid)
    }

    /// Takes a source's complete list of pods, with the errors of reading.
    pub fn pods(&mut self, source: PodSource, mut pods: Vec<Pod>, errors: Vec<String>) {
        self.lists.arrived(source, errors.is_empty());
        let ids = match source {
            PodSource::Api => ContainerIds::Awaited,
            PodSource::Folder => self.folder_ids,
        };
        for pod in &mut pods {
            pod.ids = ids;
        }
        self.pods.insert(source, pods);
        self.errors.insert(source, errors);
        self.identify();
    }

    /// Whether the container runtime has sent a complete list at least once.
    pub(super) fn has_runtime(&self) -> bool {
        self.has_runtime
    }

    /// Finds the containers of the folder's pods by counting cgroups from now on, because no source gives ids. Returns false
    /// if cgroups were counted before.
    pub(super) fn count_containers(&mut self) -> bool {
        let new = self.folder_ids == ContainerIds::Awaited;
        if new {
            self.folder_ids = ContainerIds::NoSource;
            for pod in self.pods.entry(PodSource::Folder).or_default() {
                pod.ids = ContainerIds::NoSource;
            }
            self.identify();
        }
        new
    }

    /// Takes the uid of the own Node.
    pub(super) fn node(&mut self, uid: ApiUid) {
        self.node = Some(uid);
        self.identify();
    }

    /// Takes the pods named by assignment records. Returns whether the described pods have changed.
    pub(super) fn note_records(&mut self, observed: &Observed) -> bool {
        if self.mirrored.is_empty() {
            return false;
        }
        let named = observed
            .pods
            .iter()
            .filter(|pod| self.mirrored.contains(&pod.cgroup.uid));
        let records = named.filter_map(|pod| {
            let record = pod
                .record
                .as_ref()
                .filter(|record| !record.assignment.is_empty() && !record.pod.is_empty())?;
            let recorded = RecordedPod {
                pod: (record.namespace.clone(), record.pod.clone()),
                confirmed: record.confirmed,
            };
            Some((pod.cgroup.uid.clone(), recorded))
        });
        let records = records.collect();
        if self.records == records {
            return false;
        }
        self.records = records;
        let before = std::mem::take(&mut self.described);
        self.identify();
        self.described != before
    }

    /// Resolves which static pods the mirror pods stand for.
    fn identify(&mut self) {
        self.known = None;
        self.described = self.pods.values().flatten().cloned().collect();
        self.mirrored = identity::named(&self.described);
        let evidence = Evidence {
            node: self.node.as_ref(),
            runtime: &self.runtime,
            records: &self.records,
        };
        let conflicts = identity::resolve(&mut self.described, &evidence);
        for conflict in conflicts
            .iter()
            .filter(|conflict| !self.conflicts.contains(conflict))
        {
            tracing::warn!("{conflict}");
        }
        self.conflicts = conflicts;
    }

    /// Takes an update of the container runtime's pods.
    pub fn runtime(&mut self, news: RuntimeUpdate) {
        let keyed = |runtime_pod: RuntimePod| {
            runtime_pod
                .pod
                .cgroup_uid()
                .map(str::to_owned)
                .map(|uid| (uid, runtime_pod))
        };
        match news {
            RuntimeUpdate::All(all) => {
                self.has_runtime = true;
                self.known = None;
                let before = std::mem::take(&mut self.runtime);
                self.runtime = all.into_iter().filter_map(keyed).collect();
                before.keys().for_each(|uid| self.settle(uid));
                if !self.mirrored.is_empty() {
                    self.identify();
                }
            }
            RuntimeUpdate::Pod(one) => {
                let keyed_pod = keyed(*one);
                let uid = keyed_pod.as_ref().map(|(uid, _)| uid.clone());
                self.runtime.extend(keyed_pod);
                uid.iter().for_each(|uid| self.changed(uid));
            }
            RuntimeUpdate::Gone(uid) => {
                self.runtime.remove(&uid);
                self.changed(&uid);
            }
        }
    }

    /// Updates the state after a change of a single pod of the runtime.
    fn changed(&mut self, uid: &str) {
        self.settle(uid);
        if self.mirrored.contains(uid) {
            self.identify();
        }
        let Some(mut known) = self.known.take() else {
            return;
        };
        known.renew(uid, self.is_described(uid), self.pod(uid));
        self.known = Some(known);
    }

    /// Ends the pending assignments of containers missing in the runtime's pod.
    fn settle(&mut self, uid: &str) {
        let containers = self
            .runtime
            .get(uid)
            .map(|runtime_pod| runtime_pod.pod.containers.as_slice())
            .unwrap_or_default();
        let names: Vec<&str> = containers
            .iter()
            .map(|container| container.name.as_str())
            .collect();
        self.pending.retain_containers(uid, &names);
    }

    pub(super) fn pending(&mut self) -> &mut PendingAssignments {
        &mut self.pending
    }

    /// Read errors and conflicts of mirror pods, as sentences.
    pub(super) fn errors(&self) -> impl Iterator<Item = &String> {
        self.errors.values().flatten().chain(&self.conflicts)
    }

    /// All pods, each uid once: first the API's pods, then the folder's, the runtime's, and pods known only from runtime
    /// requests. Container ids and environments come from the runtime if the runtime has the pod.
    #[doc(hidden)]
    pub fn known(&mut self) -> Arc<Vec<Pod>> {
        let runtime = &self.runtime;
        let mut announced = self.pending.announced().peekable();
        let only_asked_about = announced.peek().is_some();
        if let Some(known) = self.known.as_ref().filter(|_| !only_asked_about) {
            return Arc::clone(&known.pods);
        }
        let mut uids = HashSet::new();
        let mut once = |pod: &&Pod| {
            pod.cgroup_uid()
                .is_none_or(|uid| uids.insert(uid.to_owned()))
        };
        let whole = |pod: &Pod| match pod.cgroup_uid().and_then(|uid| runtime.get(uid)) {
            Some(of_runtime) => with(pod.clone(), of_runtime),
            None => pod.clone(),
        };
        let mut all: Vec<Pod> = self.described.iter().filter(&mut once).map(whole).collect();
        let described = all.len();
        all.extend(
            runtime
                .values()
                .map(|runtime_pod| &runtime_pod.pod)
                .chain(announced)
                .filter(once)
                .map(whole),
        );
        let all = Arc::new(all);
        // Pods known only from runtime requests expire with time, so a list with such pods is not cached.
        self.known = (!only_asked_about).then(|| PodIndex {
            pods: Arc::clone(&all),
            described,
        });
        all
    }

    /// The pod with the given uid.
    pub(super) fn pod(&mut self, uid: &str) -> Option<Pod> {
        let runtime = self.runtime.get(uid);
        let candidates = self
            .described
            .iter()
            .chain(runtime.map(|runtime_pod| &runtime_pod.pod));
        let pod = candidates
            .chain(self.pending.announced())
            .find(|pod| pod.cgroup_uid() == Some(uid))?
            .clone();
        Some(match runtime {
            Some(of_runtime) => with(pod, of_runtime),
            None => pod,
        })
    }

    /// The uids of pods with a container, now or soon. For a single pod with a uid, the set has at most this uid.
    #[doc(hidden)]
    pub fn here<'a>(&'a self, observed: &'a Observed, pods: &[Pod]) -> HashSet<&'a str> {
        let only = match pods {
            [pod] => pod.cgroup_uid(),
            _ => None,
        };
        let is_wanted = |uid: &str| only.is_none_or(|only| only == uid);
        let begun = observed.pods.iter().filter_map(|pod| {
            let uid = pod.cgroup.uid.as_str();
            (is_wanted(uid) && (pod.may_own_cpus || self.has_any(uid))).then_some(uid)
        });
        let pending = self.pending.uids().chain(self.pending.assigned_uids());
        begun.chain(pending.filter(|uid| is_wanted(uid))).collect()
    }

    pub(super) fn keep_pending(&mut self, ledger: &mut Ledger, observed: &Observed) {
        self.pending.keep(ledger, observed);
    }

    /// Adds the pending assignments to the ledger, and ends no pending assignment.
    #[doc(hidden)]
    pub fn enter_pending(&self, ledger: &mut Ledger) {
        self.pending.enter(ledger);
    }

    /// Whether the runtime has a container.
    pub(super) fn has(&self, uid: &str, container: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|runtime_pod| runtime_pod.pod.container(container).is_some())
    }

    /// Whether the runtime has any container of a pod.
    fn has_any(&self, uid: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|runtime_pod| !runtime_pod.pod.containers.is_empty())
    }

    /// Whether the runtime has a pod.
    pub(super) fn is_of_runtime(&self, uid: &str) -> bool {
        self.runtime.contains_key(uid)
    }

    /// Whether the API or the folder describes a pod. The runtime does not know a pod's future containers.
    pub(super) fn is_described(&self, uid: &str) -> bool {
        self.described
            .iter()
            .any(|pod| pod.cgroup_uid() == Some(uid))
    }

    /// Whether any source says: the pod must not run without exclusive CPUs.
    pub(super) fn requires(&self, uid: &str) -> bool {
        let pods = self
            .described
            .iter()
            .chain(self.runtime.get(uid).map(|runtime_pod| &runtime_pod.pod));
        pods.filter(|pod| pod.cgroup_uid() == Some(uid))
            .any(is_required)
    }

    /// The variables injected by Pinfold into a container's environment.
    pub(super) fn injected(&self, uid: Option<&str>, container: &str) -> Option<&Vec<String>> {
        self.runtime.get(uid?)?.injected.get(container)
    }
}

/// A pod with the container ids and the actual environment from the runtime.
fn with(mut pod: Pod, runtime_pod: &RuntimePod) -> Pod {
    pod.ids = ContainerIds::Runtime;
    for container in &mut pod.containers {
        let Some(known) = runtime_pod.pod.container(&container.name) else {
            continue;
        };
        // The runtime leaves out stopped containers. Another id shows that the container was started again after the status was
        // read.
        container.ended &= known.runtime_id == container.runtime_id;
        container.runtime_id.clone_from(&known.runtime_id);
        container.given_cpus.clone_from(&known.given_cpus);
        if !known.env.is_empty() {
            container.env.clone_from(&known.env);
            container.env_from = false;
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pod::Container;

    /// An update of a source, about some of a few pods.
    #[derive(Debug, Clone)]
    enum StoreUpdate {
        Described(Vec<usize>),
        All(Vec<usize>),
        Pod(usize, u8),
        Gone(usize),
        Announced(usize),
    }

    fn pod(number: usize, environment: u8) -> Pod {
        let env = [(
            "N".to_owned(),
            crate::pod::EnvSource::Value(environment.to_string()),
        )];
        let main = Container {
            name: "main".to_owned(),
            env: env.into(),
            ..Container::default()
        };
        Pod {
            uid: Some(format!("uid-{number}").into()),
            containers: vec![main],
            ..Pod::default()
        }
    }

    fn of_runtime(number: usize, environment: u8) -> RuntimePod {
        RuntimePod {
            pod: pod(number, environment),
            injected: BTreeMap::new(),
            removed: BTreeSet::new(),
            stopped: BTreeSet::new(),
        }
    }

    fn news() -> impl Strategy<Value = StoreUpdate> {
        let some = || prop::collection::vec(0_usize..6, 0..4);
        prop_oneof![
            some().prop_map(StoreUpdate::Described),
            some().prop_map(StoreUpdate::All),
            (0_usize..6, any::<u8>())
                .prop_map(|(number, environment)| StoreUpdate::Pod(number, environment)),
            (0_usize..6, any::<u8>())
                .prop_map(|(number, environment)| StoreUpdate::Pod(number, environment)),
            (0_usize..6).prop_map(StoreUpdate::Gone),
            (0_usize..6).prop_map(StoreUpdate::Announced),
        ]
    }

    fn apply(store: &mut PodStore, news: StoreUpdate) {
        match news {
            StoreUpdate::Described(numbers) => {
                let pods = numbers.into_iter().map(|number| pod(number, 0)).collect();
                store.pods(PodSource::Api, pods, Vec::new());
            }
            StoreUpdate::All(numbers) => {
                let all = numbers
                    .into_iter()
                    .map(|number| of_runtime(number, 1))
                    .collect();
                store.runtime(RuntimeUpdate::All(all));
            }
            StoreUpdate::Pod(number, environment) => {
                store.runtime(RuntimeUpdate::Pod(Box::new(of_runtime(
                    number,
                    environment,
                ))));
            }
            StoreUpdate::Gone(number) => {
                store.runtime(RuntimeUpdate::Gone(format!("uid-{number}")));
            }
            StoreUpdate::Announced(number) => store.pending().announce(pod(number, 2)),
        }
    }

    proptest! {
        #[test]
        fn one_pod_put_in_its_place_is_as_all_put_together_anew(all in prop::collection::vec(news(), 1..30)) {
            let (mut asked_often, mut asked_once) = (PodStore::default(), PodStore::default());
            let last = all.len() - 1;
            for (index, news) in all.into_iter().enumerate() {
                apply(&mut asked_often, news.clone());
                apply(&mut asked_once, news);
                let known = asked_often.known();
                if index == last {
                    prop_assert_eq!(known, asked_once.known());
                }
            }
        }
    }
}
