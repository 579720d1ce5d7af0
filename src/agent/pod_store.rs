//! [`PodStore`]: the pods of the node, from the API, the folder of manifests and the container runtime.
//!
//! Each source sends changes of single pods. After a change, only the pods with the same uid are
//! put together and their texts read again; all others stay the same values in memory.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::event::{PodKey, PodSource, PodsChange, PodsUpdate, RuntimePod, RuntimeUpdate};
use super::identity::{self, Evidence, Identified, RecordedPod};
use super::pending::PendingAssignments;
use super::pod_lists::PodLists;
use crate::pin::Observed;
use crate::pod::{
    ApiUid, Container, ContainerIds, ContainerKey, ObjectName, Pod, PodList, RecognizedPod,
    is_required,
};

/// The pods of all sources, each once.
#[derive(Debug, Default)]
pub struct PodStore {
    /// The pods as the API and the folder describe them.
    described: BTreeMap<PodKey, Arc<Pod>>,
    /// By uid.
    runtime: BTreeMap<String, RuntimePod>,
    /// The pods as decisions see them: each uid once.
    known: BTreeMap<PodKey, Arc<RecognizedPod>>,
    /// The values of `known`; empty after a change.
    list: OnceCell<PodList>,
    index: PodIndex,
    errors: BTreeMap<PodSource, Vec<String>>,
    /// The source of container ids for the folder's pods.
    folder_ids: ContainerIds,
    /// The own Node's uid; `None` before the API server's first answer.
    node: Option<ApiUid>,
    /// The pods named by assignment records, for each uid named by a mirror pod.
    records: BTreeMap<String, RecordedPod>,
    /// Mirror pods without effect, as sentences.
    conflicts: Vec<String>,
    has_runtime: bool,
    /// While the runtime is away: the container ids that the other sources gave when its connection was lost, by the pod's uid
    /// and the container's name. An id that has changed since then belongs to a container that the runtime has not reported.
    ids_at_loss: Option<BTreeMap<ContainerKey, String>>,
    lists: PodLists,
}

/// Where the described pods with a uid are.
#[derive(Debug, Default)]
struct PodIndex {
    /// The pods by the uid of their own description.
    own: BTreeMap<String, BTreeSet<PodKey>>,
    /// The mirror pods, by the uid of the static pod that they name.
    mirrors: BTreeMap<String, BTreeSet<PodKey>>,
    /// The mirror pods that stand for a static pod, and have its uid.
    identified: BTreeMap<PodKey, Identified>,
}

// === impl PodIndex ===

impl PodIndex {
    fn insert(&mut self, key: &PodKey, pod: &Pod) {
        if let Some(uid) = pod.cgroup_uid() {
            let keys = self.own.entry(uid.to_owned()).or_default();
            keys.insert(key.clone());
        }
        if let Some(mirror) = &pod.mirror {
            let keys = self.mirrors.entry(mirror.uid.to_string()).or_default();
            keys.insert(key.clone());
        }
    }

    fn remove(&mut self, key: &PodKey, pod: &Pod) {
        let remove = |index: &mut BTreeMap<String, BTreeSet<PodKey>>, uid: &str| {
            if let Some(keys) = index.get_mut(uid) {
                keys.remove(key);
                if keys.is_empty() {
                    index.remove(uid);
                }
            }
        };
        if let Some(uid) = pod.cgroup_uid() {
            remove(&mut self.own, uid);
        }
        if let Some(mirror) = &pod.mirror {
            remove(&mut self.mirrors, mirror.uid.as_str());
        }
    }

    /// The described pods with a uid, in the order in which they count.
    fn keys(&self, uid: &str) -> BTreeSet<&PodKey> {
        let own = self.own.get(uid).into_iter().flatten();
        let own = own.filter(|key| !self.identified.contains_key(key));
        let identified = self.identified.iter();
        let identified = identified.filter(|(_, identified)| identified.uid.as_str() == uid);
        own.chain(identified.map(|(key, _)| key)).collect()
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

    #[must_use]
    pub fn listed_by(mut self, sources: &[PodSource]) -> Self {
        self.lists = PodLists::new(sources);
        self
    }

    pub(super) fn lists(&self) -> &PodLists {
        &self.lists
    }

    /// The container runtime's description of a pod.
    pub(super) fn of_runtime(&self, uid: &str) -> Option<&RuntimePod> {
        self.runtime.get(uid)
    }

    /// Takes a change of a source's pods. Returns the uids of the pods that may have another description now.
    pub fn take_pods(&mut self, update: PodsUpdate) -> BTreeSet<String> {
        let PodsUpdate {
            source,
            change,
            errors,
        } = update;
        let is_list = matches!(change, Some(PodsChange::Listed(_)));
        self.lists.updated(source, is_list, errors.is_empty());
        self.errors.insert(source, errors);
        let mut changed = BTreeSet::new();
        match change {
            Some(PodsChange::Listed(pods)) => {
                let is_gone =
                    |key: &&PodKey| key.source() == Some(source) && !pods.contains_key(*key);
                let gone: Vec<PodKey> = self.described.keys().filter(is_gone).cloned().collect();
                for key in gone {
                    self.describe(key, None, &mut changed);
                }
                for (key, pod) in pods {
                    self.describe(key, Some(pod), &mut changed);
                }
            }
            Some(PodsChange::Applied(key, pod)) => self.describe(key, Some(pod), &mut changed),
            Some(PodsChange::Deleted(key)) => self.describe(key, None, &mut changed),
            None => {}
        }
        self.renew(&changed);
        changed
    }

    /// Takes a pod's description; `None` if the pod is gone. Adds to `changed` the uids whose pods
    /// may differ now.
    fn describe(&mut self, key: PodKey, pod: Option<Arc<Pod>>, changed: &mut BTreeSet<String>) {
        let pod = pod.map(|pod| self.with_ids(&key, pod));
        let before = match &pod {
            Some(pod) => self.described.insert(key.clone(), Arc::clone(pod)),
            None => self.described.remove(&key),
        };
        let is_same = |before: &Arc<Pod>| pod.as_ref().is_some_and(|pod| Arc::ptr_eq(before, pod));
        if before.as_ref().is_some_and(is_same) {
            return;
        }
        if pod.is_none() {
            self.known.remove(&key);
            self.list.take();
        }
        if let Some(before) = &before {
            self.index.remove(&key, before);
        }
        if let Some(pod) = &pod {
            self.index.insert(&key, pod);
        }
        for pod in before.iter().chain(&pod) {
            let mirror = pod.mirror.as_ref().map(|mirror| mirror.uid.as_str());
            changed.extend(
                pod.cgroup_uid()
                    .into_iter()
                    .chain(mirror)
                    .map(str::to_owned),
            );
        }
        // Pods without a uid, as in a folder, are nobody's duplicates.
        let has_uid = pod.is_some_and(|pod| pod.cgroup_uid().is_some());
        if !has_uid {
            self.put_together_one(key, None);
        }
    }

    /// The pod, with a note of which source gives its containers' ids.
    fn with_ids(&self, key: &PodKey, pod: Arc<Pod>) -> Arc<Pod> {
        let ids = match key.source() {
            Some(PodSource::Folder) => self.folder_ids,
            _ => ContainerIds::Awaited,
        };
        if pod.ids == ids {
            return pod;
        }
        let mut pod = Arc::unwrap_or_clone(pod);
        pod.ids = ids;
        Arc::new(pod)
    }

    /// Whether the container runtime has ever sent a complete list.
    pub(super) fn has_runtime(&self) -> bool {
        self.has_runtime
    }

    /// Finds the containers of the folder's pods by counting cgroups from now on, because no source gives ids. Returns false
    /// if cgroups were counted before.
    pub(super) fn count_containers(&mut self) -> bool {
        let new = self.folder_ids == ContainerIds::Awaited;
        if new {
            self.folder_ids = ContainerIds::NoSource;
            let of_folder = self.described.iter();
            let of_folder = of_folder.filter(|(key, _)| key.source() == Some(PodSource::Folder));
            let pods: Vec<(PodKey, Arc<Pod>)> = of_folder
                .map(|(key, pod)| (key.clone(), Arc::clone(pod)))
                .collect();
            let mut changed = BTreeSet::new();
            for (key, pod) in pods {
                self.describe(key, Some(pod), &mut changed);
            }
            self.renew(&changed);
        }
        new
    }

    pub(super) fn take_node(&mut self, uid: ApiUid) {
        self.node = Some(uid);
        self.identify();
    }

    /// Takes the pods named by assignment records. Returns whether the described pods have changed.
    pub(super) fn note_records(&mut self, observed: &Observed) -> bool {
        if self.index.mirrors.is_empty() {
            return false;
        }
        let named = observed
            .pods
            .iter()
            .filter(|pod| self.index.mirrors.contains_key(&pod.cgroup.uid));
        let records = named.filter_map(|pod| {
            let record = pod
                .record
                .as_ref()
                .filter(|record| !record.assignment.is_empty() && !record.pod.is_empty())?;
            let recorded = RecordedPod {
                pod: ObjectName::new(&*record.namespace, &*record.pod),
                confirmed: record.confirmed,
            };
            Some((pod.cgroup.uid.clone(), recorded))
        });
        let records = records.collect();
        if self.records == records {
            return false;
        }
        self.records = records;
        self.identify()
    }

    /// Finds out which static pods the mirror pods stand for. Returns whether the answer has changed.
    fn identify(&mut self) -> bool {
        let mirrors = self.index.mirrors.values().flatten();
        let mirrors = mirrors.filter_map(|key| Some((key, &**self.described.get(key)?)));
        let own = |uid: &str| {
            let keys = self.index.own.get(uid)?;
            self.described.get(keys.last()?).map(|pod| &**pod)
        };
        let evidence = Evidence {
            node: self.node.as_ref(),
            own: &own,
            runtime: &self.runtime,
            records: &self.records,
        };
        let (identified, conflicts) = identity::resolve(mirrors, &evidence);
        for conflict in conflicts
            .iter()
            .filter(|conflict| !self.conflicts.contains(conflict))
        {
            tracing::warn!("{conflict}");
        }
        self.conflicts = conflicts;
        let before = std::mem::replace(&mut self.index.identified, identified);
        let after = &self.index.identified;
        let one_sided = before.keys().chain(after.keys());
        let keys: BTreeSet<&PodKey> = one_sided
            .filter(|key| before.get(*key) != after.get(*key))
            .collect();
        let mut changed = BTreeSet::new();
        for key in &keys {
            let identified = before.get(*key).into_iter().chain(after.get(*key));
            changed.extend(identified.map(|identified| identified.uid.to_string()));
            let own = self.described.get(*key).and_then(|pod| pod.cgroup_uid());
            changed.extend(own.map(str::to_owned));
        }
        let has_changed = !keys.is_empty();
        self.put_together(&changed);
        has_changed
    }

    /// Takes an update of the container runtime's pods. Returns the uids of the pods that may have other containers now.
    pub fn take_runtime(&mut self, update: RuntimeUpdate) -> BTreeSet<String> {
        let keyed = |runtime_pod: RuntimePod| {
            let uid = runtime_pod.pod.cgroup_uid()?.to_owned();
            Some((uid, runtime_pod))
        };
        let mut changed = BTreeSet::new();
        match update {
            RuntimeUpdate::All(all) => {
                self.has_runtime = true;
                self.ids_at_loss = None;
                let before = std::mem::take(&mut self.runtime);
                self.runtime = all.into_iter().filter_map(keyed).collect();
                changed.extend(before.into_keys().chain(self.runtime.keys().cloned()));
            }
            RuntimeUpdate::Pod(one) => {
                let Some((uid, runtime_pod)) = keyed(*one) else {
                    return changed;
                };
                // StartContainer tells of the pod once more, but mostly has no news.
                if self.runtime.get(&uid) == Some(&runtime_pod) {
                    return changed;
                }
                self.runtime.insert(uid.clone(), runtime_pod);
                changed.insert(uid);
            }
            RuntimeUpdate::Gone(uid) => {
                self.runtime.remove(&uid);
                changed.insert(uid);
            }
            RuntimeUpdate::Away => self.runtime_away(&mut changed),
        }
        self.renew(&changed);
        changed
    }

    /// Notes that the runtime's connection is lost, and adds the uids of the runtime's pods to
    /// `changed`. The last ids that the runtime gave count until another source gives a newer one,
    /// because that source's own list may lag behind, and missing data takes no CPUs.
    fn runtime_away(&mut self, changed: &mut BTreeSet<String>) {
        if self.ids_at_loss.is_some() {
            return;
        }
        let mut ids = BTreeMap::new();
        for (key, pod) in &self.described {
            let identified = self.index.identified.get(key);
            let identified = identified.map(|identified| identified.uid.as_str());
            let Some(uid) = identified.or_else(|| pod.cgroup_uid()) else {
                continue;
            };
            for container in &pod.containers {
                if let Some(id) = &container.runtime_id {
                    ids.insert(ContainerKey::new(uid, &*container.name), id.clone());
                }
            }
        }
        self.ids_at_loss = Some(ids);
        changed.extend(self.runtime.keys().cloned());
    }

    /// Puts the pods with these uids together again after a change of a source, which may also have
    /// changed the evidence for a mirror pod.
    fn renew(&mut self, changed: &BTreeSet<String>) {
        self.identify();
        self.put_together(changed);
    }

    fn put_together(&mut self, uids: &BTreeSet<String>) {
        for uid in uids {
            // The runtime's own description comes last, so it counts only if there is no other.
            let alone = PodKey::Runtime(uid.clone());
            let described: Vec<PodKey> = self.index.keys(uid).into_iter().cloned().collect();
            let mut keys = described.into_iter().chain([alone]);
            if let Some(first) = keys.next() {
                self.put_together_one(first, Some(uid));
            }
            for duplicate in keys {
                self.known.remove(&duplicate);
            }
        }
        self.list.take();
    }

    /// Puts a pod together from its description and the runtime's. Its texts are read only if it
    /// has changed.
    fn put_together_one(&mut self, key: PodKey, uid: Option<&str>) {
        let runtime = uid.and_then(|uid| self.runtime.get(uid));
        let identified = self.index.identified.get(&key);
        let pod = match (self.described.get(&key), runtime) {
            (Some(pod), None) if identified.is_none() => Some(Arc::clone(pod)),
            (Some(pod), _) => {
                let mut pod = Pod::clone(pod);
                if let Some(identified) = identified {
                    pod.uid = Some(identified.uid.clone());
                    pod.confirmed = identified.confirmed;
                }
                Some(Arc::new(with(pod, runtime, self.ids_at_loss.as_ref())))
            }
            (None, Some(of_runtime)) => {
                let pod = of_runtime.pod.clone();
                Some(Arc::new(with(pod, runtime, self.ids_at_loss.as_ref())))
            }
            (None, None) => None,
        };
        let Some(pod) = pod else {
            self.known.remove(&key);
            return;
        };
        let is_same = |known: &Arc<RecognizedPod>| *known.pod() == pod;
        if !self.known.get(&key).is_some_and(is_same) {
            self.known.insert(key, Arc::new(pod.into()));
        }
    }

    /// Read errors and conflicts of mirror pods, as sentences.
    pub(super) fn errors(&self) -> impl Iterator<Item = &String> {
        self.errors.values().flatten().chain(&self.conflicts)
    }

    /// All pods, each uid once: first the API's pods, then the folder's and the runtime's. If the
    /// runtime has a pod, the ids and environments of its containers come from there.
    #[doc(hidden)]
    pub fn known(&self) -> PodList {
        let known = || self.known.values().cloned().collect();
        Arc::clone(self.list.get_or_init(known))
    }

    pub(super) fn pod(&self, uid: &str) -> Option<Arc<RecognizedPod>> {
        let alone = PodKey::Runtime(uid.to_owned());
        let key = self.index.keys(uid).into_iter().next().unwrap_or(&alone);
        self.known.get(key).cloned()
    }

    /// The uids of pods with a container, now or soon. If `pods` is a single pod with a uid, only
    /// this uid can be among them.
    #[doc(hidden)]
    pub fn here<'a>(
        &'a self,
        observed: &'a Observed,
        pending: &'a PendingAssignments,
        pods: &[Arc<RecognizedPod>],
    ) -> HashSet<&'a str> {
        let only = match pods {
            [pod] => pod.cgroup_uid(),
            _ => None,
        };
        let is_wanted = |uid: &str| only.is_none_or(|only| only == uid);
        let begun = observed.pods.iter().filter_map(|pod| {
            let uid = pod.cgroup.uid.as_str();
            (is_wanted(uid) && (pod.may_own_cpus || self.has_any(uid))).then_some(uid)
        });
        begun
            .chain(pending.uids().filter(|uid| is_wanted(uid)))
            .collect()
    }

    pub(super) fn has(&self, uid: &str, container: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|runtime_pod| runtime_pod.pod.container(container).is_some())
    }

    fn has_any(&self, uid: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|runtime_pod| !runtime_pod.pod.containers.is_empty())
    }

    /// Whether the API or the folder describes a pod. Unlike these, the runtime does not know which
    /// containers a pod will have.
    pub(super) fn is_described(&self, uid: &str) -> bool {
        !self.index.keys(uid).is_empty()
    }

    /// Whether any source says that the pod must not run without exclusive CPUs.
    pub(super) fn requires(&self, uid: &str) -> bool {
        let described = self.index.keys(uid).into_iter();
        let described = described.filter_map(|key| self.described.get(key));
        let runtime = self.runtime.get(uid);
        described
            .map(|pod| &**pod)
            .chain(runtime.map(|runtime_pod| &runtime_pod.pod))
            .any(is_required)
    }

    /// The variables that Pinfold has injected into a container's environment.
    pub(super) fn injected(&self, uid: Option<&str>, container: &str) -> Option<&Vec<String>> {
        self.runtime.get(uid?)?.injected.get(container)
    }
}

/// A pod with the container ids and the actual environment from the runtime, if the runtime has the pod. While the runtime is
/// away, `ids_at_loss` has the ids of the pod's own source from that moment.
fn with(
    mut pod: Pod,
    runtime_pod: Option<&RuntimePod>,
    ids_at_loss: Option<&BTreeMap<ContainerKey, String>>,
) -> Pod {
    let Some(runtime_pod) = runtime_pod else {
        return pod;
    };
    let uid = pod.cgroup_uid().unwrap_or_default().to_owned();
    // While the runtime is away, further containers may exist.
    pod.ids = match ids_at_loss {
        None => ContainerIds::Runtime,
        Some(_) => ContainerIds::Awaited,
    };
    let of_runtime = runtime_pod.pod.containers.iter();
    let of_runtime: HashMap<&str, &Container> = of_runtime
        .map(|container| (container.name.as_str(), container))
        .collect();
    for container in &mut pod.containers {
        let Some(known) = of_runtime.get(container.name.as_str()) else {
            continue;
        };
        let is_newer = |at_loss: &BTreeMap<ContainerKey, String>| {
            let key = ContainerKey::new(&uid, &*container.name);
            container.runtime_id.is_some() && container.runtime_id.as_ref() != at_loss.get(&key)
        };
        if ids_at_loss.is_some_and(is_newer) {
            continue;
        }
        // The runtime leaves out stopped containers. If the id differs, the container was started
        // again after the status was read.
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
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
