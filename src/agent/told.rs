//! [`Told`]: the pods of this node, by everyone who tells of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::event::{RuntimeNews, RuntimePod, Source};
use super::identity::{self, Evidence, Recorded};
use super::promises::Promises;
use crate::pin::{Ledger, Observed};
use crate::pod::{ApiUid, ContainerIds, Pod, is_required};

/// What was told, as it was told last.
#[derive(Debug, Default)]
pub(super) struct Told {
    pods: BTreeMap<Source, Vec<Pod>>,
    errors: BTreeMap<Source, Vec<String>>,
    /// Who tells the ids of containers of pods in the folder of manifests.
    folder_ids: ContainerIds,
    /// The uid of this Node, once it was read.
    node: Option<ApiUid>,
    /// For each uid that a mirror pod names: the pod in its assignment record.
    records: BTreeMap<String, Recorded>,
    /// All of `pods`, with the mirror pods' uids settled.
    described: Vec<Pod>,
    /// The uids that mirror pods name as their static pods'.
    mirrored: BTreeSet<String>,
    /// Mirror pods that do not count, as sentences.
    conflicts: Vec<String>,
    /// What the container runtime has, by uid.
    runtime: BTreeMap<String, RuntimePod>,
    has_runtime: bool,
    promises: Promises,
    /// All pods as they were put together last, until somebody tells something new.
    known: Option<Known>,
}

/// All pods, each once.
#[derive(Debug)]
struct Known {
    pods: Arc<Vec<Pod>>,
    /// How many of them are described by more than the runtime; those come first, and the others in the order of their uids.
    described: usize,
}

// === impl Known ===

impl Known {
    /// Takes over what is now known of one pod, `described` or not; nothing where it is gone.
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

// === impl Told ===

impl Told {
    /// `folder_ids`: who tells the ids of containers of pods in the folder of manifests.
    pub(super) fn new(folder_ids: ContainerIds) -> Self {
        Self {
            folder_ids,
            ..Self::default()
        }
    }

    pub(super) fn pods(&mut self, source: Source, mut pods: Vec<Pod>, errors: Vec<String>) {
        let ids = match source {
            Source::Api => ContainerIds::Awaited,
            Source::Folder => self.folder_ids,
        };
        for pod in &mut pods {
            pod.ids = ids;
        }
        self.pods.insert(source, pods);
        self.errors.insert(source, errors);
        self.identify();
    }

    /// Whether a container runtime has told all that it has, at least once.
    pub(super) fn has_runtime(&self) -> bool {
        self.has_runtime
    }

    /// Has the containers of the folder's pods found by counting cgroups, since nobody tells their ids. Says whether that is
    /// new.
    pub(super) fn count_containers(&mut self) -> bool {
        let new = self.folder_ids == ContainerIds::Awaited;
        if new {
            self.folder_ids = ContainerIds::NoSource;
            for pod in self.pods.entry(Source::Folder).or_default() {
                pod.ids = ContainerIds::NoSource;
            }
            self.identify();
        }
        new
    }

    /// Takes note of this Node's uid.
    pub(super) fn node(&mut self, uid: ApiUid) {
        self.node = Some(uid);
        self.identify();
    }

    /// Takes note of the pods that assignment records name. Returns whether the described pods have changed.
    pub(super) fn note_records(&mut self, observed: &Observed) -> bool {
        if self.mirrored.is_empty() {
            return false;
        }
        let named = observed
            .pods
            .iter()
            .filter(|pod| self.mirrored.contains(&pod.cgroup.uid));
        let records = named.filter_map(|pod| {
            let mark = pod
                .record
                .as_ref()
                .filter(|mark| !mark.assignment.is_empty() && !mark.pod.is_empty())?;
            let recorded = Recorded {
                pod: (mark.namespace.clone(), mark.pod.clone()),
                confirmed: mark.confirmed,
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

    /// Settles which static pods the mirror pods stand for.
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

    pub(super) fn runtime(&mut self, news: RuntimeNews) {
        let keyed = |told: RuntimePod| {
            told.pod
                .cgroup_uid()
                .map(str::to_owned)
                .map(|uid| (uid, told))
        };
        match news {
            RuntimeNews::All(all) => {
                self.has_runtime = true;
                self.known = None;
                let before = std::mem::take(&mut self.runtime);
                self.runtime = all.into_iter().filter_map(keyed).collect();
                before.keys().for_each(|uid| self.settle(uid));
                if !self.mirrored.is_empty() {
                    self.identify();
                }
            }
            RuntimeNews::Pod(one) => {
                let told = keyed(*one);
                let uid = told.as_ref().map(|(uid, _)| uid.clone());
                self.runtime.extend(told);
                uid.iter().for_each(|uid| self.changed(uid));
            }
            RuntimeNews::Gone(uid) => {
                self.runtime.remove(&uid);
                self.changed(&uid);
            }
        }
    }

    /// One pod of the runtime's is another than before; all others are as they were.
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

    /// What was promised to containers that the runtime does not have any more is void.
    fn settle(&mut self, uid: &str) {
        let containers = self
            .runtime
            .get(uid)
            .map(|told| told.pod.containers.as_slice())
            .unwrap_or_default();
        let names: Vec<&str> = containers
            .iter()
            .map(|container| container.name.as_str())
            .collect();
        self.promises.has(uid, &names);
    }

    pub(super) fn promises(&mut self) -> &mut Promises {
        &mut self.promises
    }

    /// What could not be read, as sentences.
    pub(super) fn errors(&self) -> impl Iterator<Item = &String> {
        self.errors.values().flatten().chain(&self.conflicts)
    }

    /// The pods of the API, then those of the folder, then those of the runtime, then those that were only asked about; each
    /// uid once. Whoever describes a pod, the runtime knows best which of its containers is which.
    pub(super) fn known(&mut self) -> Arc<Vec<Pod>> {
        let runtime = &self.runtime;
        let mut announced = self.promises.announced().peekable();
        let only_asked_about = announced.peek().is_some();
        if let Some(known) = self.known.as_ref().filter(|_| !only_asked_about) {
            return Arc::clone(&known.pods);
        }
        let mut seen = HashSet::new();
        let mut once = |pod: &&Pod| {
            pod.cgroup_uid()
                .is_none_or(|uid| seen.insert(uid.to_owned()))
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
                .map(|told| &told.pod)
                .chain(announced)
                .filter(once)
                .map(whole),
        );
        let all = Arc::new(all);
        // Those that were only asked about are forgotten by the clock.
        self.known = (!only_asked_about).then(|| Known {
            pods: Arc::clone(&all),
            described,
        });
        all
    }

    /// One of them.
    pub(super) fn pod(&mut self, uid: &str) -> Option<Pod> {
        let runtime = self.runtime.get(uid);
        let told = self.described.iter().chain(runtime.map(|told| &told.pod));
        let pod = told
            .chain(self.promises.announced())
            .find(|pod| pod.cgroup_uid() == Some(uid))?
            .clone();
        Some(match runtime {
            Some(of_runtime) => with(pod, of_runtime),
            None => pod,
        })
    }

    /// The uids of these pods that have a container, or that a runtime is about to give one.
    pub(super) fn here<'a>(&'a self, observed: &'a Observed, pods: &[Pod]) -> HashSet<&'a str> {
        let begun = observed
            .pods
            .iter()
            .filter(|pod| pod.may_own_cpus || self.has_any(&pod.cgroup.uid));
        let begun = begun.map(|pod| pod.cgroup.uid.as_str());
        let mut all = begun
            .chain(self.promises.uids())
            .chain(self.promises.promised());
        match pods {
            // Who asks about one need not gather all.
            [pod] => all
                .find(|uid| pod.cgroup_uid() == Some(*uid))
                .into_iter()
                .collect(),
            _ => all.collect(),
        }
    }

    pub(super) fn keep_promises(&mut self, ledger: &mut Ledger, observed: &Observed) {
        self.promises.keep(ledger, observed);
    }

    /// The promises alone, where what was seen is not news.
    pub(super) fn enter_promises(&self, ledger: &mut Ledger) {
        self.promises.enter(ledger);
    }

    /// Whether a runtime has a container.
    pub(super) fn has(&self, uid: &str, container: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|told| told.pod.container(container).is_some())
    }

    /// Whether a runtime has any container of a pod.
    fn has_any(&self, uid: &str) -> bool {
        self.runtime
            .get(uid)
            .is_some_and(|told| !told.pod.containers.is_empty())
    }

    /// Whether a runtime has told of a pod.
    pub(super) fn is_of_runtime(&self, uid: &str) -> bool {
        self.runtime.contains_key(uid)
    }

    /// Whether a pod is described by more than a runtime, which does not know the containers that are still to come.
    pub(super) fn is_described(&self, uid: &str) -> bool {
        self.described
            .iter()
            .any(|pod| pod.cgroup_uid() == Some(uid))
    }

    /// Whether a pod must not run without CPUs of its own, by anybody who tells of it.
    pub(super) fn requires(&self, uid: &str) -> bool {
        let told = self
            .described
            .iter()
            .chain(self.runtime.get(uid).map(|told| &told.pod));
        told.filter(|pod| pod.cgroup_uid() == Some(uid))
            .any(is_required)
    }

    /// The variables that we had a runtime put into a container's environment.
    pub(super) fn injected(&self, uid: Option<&str>, container: &str) -> Option<&Vec<String>> {
        self.runtime.get(uid?)?.injected.get(container)
    }
}

/// A pod with what the runtime knows of its containers: their ids, and the environment that they really have.
fn with(mut pod: Pod, told: &RuntimePod) -> Pod {
    pod.ids = ContainerIds::Runtime;
    for container in &mut pod.containers {
        let Some(known) = told.pod.container(&container.name) else {
            continue;
        };
        container.runtime_id.clone_from(&known.runtime_id);
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

    /// What somebody may tell, of one of few pods.
    #[derive(Debug, Clone)]
    enum News {
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
        }
    }

    fn news() -> impl Strategy<Value = News> {
        let some = || prop::collection::vec(0_usize..6, 0..4);
        prop_oneof![
            some().prop_map(News::Described),
            some().prop_map(News::All),
            (0_usize..6, any::<u8>())
                .prop_map(|(number, environment)| News::Pod(number, environment)),
            (0_usize..6, any::<u8>())
                .prop_map(|(number, environment)| News::Pod(number, environment)),
            (0_usize..6).prop_map(News::Gone),
            (0_usize..6).prop_map(News::Announced),
        ]
    }

    fn tell(told: &mut Told, news: News) {
        match news {
            News::Described(numbers) => {
                let pods = numbers.into_iter().map(|number| pod(number, 0)).collect();
                told.pods(Source::Api, pods, Vec::new());
            }
            News::All(numbers) => {
                let all = numbers
                    .into_iter()
                    .map(|number| of_runtime(number, 1))
                    .collect();
                told.runtime(RuntimeNews::All(all));
            }
            News::Pod(number, environment) => {
                told.runtime(RuntimeNews::Pod(Box::new(of_runtime(number, environment))));
            }
            News::Gone(number) => told.runtime(RuntimeNews::Gone(format!("uid-{number}"))),
            News::Announced(number) => told.promises().announce(pod(number, 2)),
        }
    }

    proptest! {
        #[test]
        fn one_pod_put_in_its_place_is_as_all_put_together_anew(all in prop::collection::vec(news(), 1..30)) {
            let (mut asked_often, mut asked_once) = (Told::default(), Told::default());
            let last = all.len() - 1;
            for (index, news) in all.into_iter().enumerate() {
                tell(&mut asked_often, news.clone());
                tell(&mut asked_once, news);
                let known = asked_often.known();
                if index == last {
                    prop_assert_eq!(known, asked_once.known());
                }
            }
        }
    }
}
