//! [`KubeletReport`]: the exclusive CPUs that the kubelet reports, matched with pods.
//!
//! The kubelet names pods, and the agent knows them by uid. A StatefulSet gives the name of an
//! ended pod to the next one, so a name is matched once, when the answer comes: CPUs of the ended
//! pod never count for the next one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::event::AnsweredCpus;
use super::pod_store::PodStore;
use crate::cpu::CpuSet;
use crate::pin::decide::KubeletCpus;
use crate::pod::{Mirror, ObjectName, RecognizedPod};

#[derive(Debug, Default)]
pub(super) struct KubeletReport {
    cpus: KubeletCpus,
    /// The CPUs that each known pod had in an earlier answer.
    earlier: KubeletCpus,
    /// What the last answer says about pods that nobody else has described so far.
    unmatched: AnsweredCpus,
}

// === impl KubeletReport ===

impl KubeletReport {
    pub(super) fn cpus(&self) -> &KubeletCpus {
        &self.cpus
    }

    /// Takes an answer. Returns whether it changes what is known.
    pub(super) fn take(&mut self, answer: AnsweredCpus, pods: &PodStore) -> bool {
        let before = std::mem::take(&mut self.cpus);
        self.earlier.retain(|uid, _| pods.pod(uid).is_some());
        self.earlier.extend(before.clone());
        self.unmatched = answer;
        self.match_pods(pods);
        self.cpus != before
    }

    /// Matches pods that were not known when the answer came. Returns whether there are any.
    pub(super) fn match_new_pods(&mut self, pods: &PodStore) -> bool {
        if self.unmatched.is_empty() {
            return false;
        }
        let count = self.cpus.len();
        self.match_pods(pods);
        self.cpus.len() != count
    }

    fn match_pods(&mut self, store: &PodStore) {
        let pods = store.known();
        let mut by_name: HashMap<ObjectName, Vec<&Arc<RecognizedPod>>> = HashMap::new();
        let may_be_meant =
            |pod: &&Arc<RecognizedPod>| !pod.finished && !is_unmatched_mirror(pod, store);
        for pod in pods.iter().filter(may_be_meant) {
            let name = pod.object_name();
            if self.unmatched.contains_key(&name) {
                by_name.entry(name).or_default().push(pod);
            }
        }
        let (matched, earlier) = (&mut self.cpus, &self.earlier);
        self.unmatched.retain(|name, cpus| {
            let candidates = by_name.get(name).map(Vec::as_slice).unwrap_or_default();
            let uid = chosen(candidates, cpus, (store, earlier));
            let Some(uid) = uid.filter(|uid| !matched.contains_key(*uid)) else {
                return true;
            };
            matched.insert(uid.to_owned(), std::mem::take(cpus));
            false
        });
    }
}

/// Whether the pod is a mirror pod that nobody has matched with its static pod so far. It has no cgroup, and the kubelet reports the
/// static pod's CPUs under the same name.
fn is_unmatched_mirror(pod: &RecognizedPod, store: &PodStore) -> bool {
    let uid = pod.cgroup_uid().unwrap_or_default();
    let is_other = |mirror: &Mirror| mirror.uid.as_str() != uid;
    pod.mirror.as_ref().is_some_and(is_other) && store.of_runtime(uid).is_none()
}

/// Which of the pods with the name the kubelet means: after a forced deletion, the ended one may still be there. The API server
/// knows only the new one; and what has not changed belongs to whom it belonged before. The kubelet may be the first to know the
/// new one, so changed CPUs are not those of a pod that the API server no longer knows.
fn chosen<'a>(
    candidates: &[&'a Arc<RecognizedPod>],
    cpus: &BTreeMap<String, CpuSet>,
    (store, earlier): (&PodStore, &KubeletCpus),
) -> Option<&'a str> {
    let uids = || candidates.iter().filter_map(|pod| pod.cgroup_uid());
    let only = |uids: &mut dyn Iterator<Item = &'a str>| {
        let first = uids.next()?;
        uids.next().is_none().then_some(first)
    };
    let has_same = |uid: &str| earlier.get(uid).map(|earlier| earlier == cpus);
    let is_current = |uid: &&str| !store.is_missing(uid) || has_same(uid) != Some(false);
    only(&mut uids())
        .filter(is_current)
        .or_else(|| only(&mut uids().filter(|uid| store.is_described(uid))))
        .or_else(|| only(&mut uids().filter(|uid| has_same(uid) == Some(true))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::agent::event::{
        PodKey, PodSource, PodsChange, PodsUpdate, RuntimePod, RuntimeUpdate,
    };
    use crate::pod::{ContainerIds, Pod};

    fn answer(cpus: &str) -> AnsweredCpus {
        let of_main = [("main".to_owned(), cpus.parse().unwrap())];
        [(ObjectName::new("train", "w"), of_main.into())].into()
    }

    fn with_runtime_pod(store: &mut PodStore, uid: &str) {
        let pod = Pod {
            namespace: "train".to_owned(),
            name: "w".to_owned(),
            uid: Some(uid.into()),
            ..Pod::default()
        };
        let update = RuntimeUpdate::Pod(Box::new(RuntimePod::new(pod)));
        store.take_runtime(update);
    }

    #[test]
    fn cpus_of_an_ended_pod_do_not_count_for_the_next_one_of_the_same_name() {
        let mut store = PodStore::new(ContainerIds::Runtime);
        let mut report = KubeletReport::default();
        with_runtime_pod(&mut store, "first");
        assert!(report.take(answer("2-3"), &store));
        assert_eq!(report.cpus()["first"]["main"].to_string(), "2-3");
        store.take_runtime(RuntimeUpdate::Gone("first".to_owned()));
        with_runtime_pod(&mut store, "second");
        assert!(!report.match_new_pods(&store));
        assert!(!report.cpus().contains_key("second"));
        assert!(report.take(answer("2-3"), &store));
        assert_eq!(report.cpus()["second"]["main"].to_string(), "2-3");
        assert!(!report.cpus().contains_key("first"));
    }

    #[test]
    fn a_pod_that_comes_after_the_answer_is_matched() {
        let mut store = PodStore::new(ContainerIds::Runtime);
        let mut report = KubeletReport::default();
        assert!(!report.take(answer("2-3"), &store));
        with_runtime_pod(&mut store, "first");
        assert!(report.match_new_pods(&store));
        assert!(report.cpus().contains_key("first"));
    }

    /// The API server no longer lists the pod, and its containers still run: somebody has deleted it by force.
    #[test]
    fn changed_cpus_are_not_those_of_a_deleted_pod() {
        let mut store = PodStore::new(ContainerIds::Runtime).listed_by(&[PodSource::Api]);
        let mut report = KubeletReport::default();
        with_runtime_pod(&mut store, "first");
        assert!(report.take(answer("2-3"), &store));
        store.take_pods(PodsUpdate {
            source: PodSource::Api,
            change: Some(PodsChange::Listed(BTreeMap::new())),
            errors: Vec::new(),
        });
        for _ in 0..2 {
            report.take(answer("4-5"), &store);
            assert!(report.cpus().is_empty() && !report.match_new_pods(&store));
        }
        assert!(report.take(answer("2-3"), &store), "they are its own");
        report.take(answer("4-5"), &store);
        with_runtime_pod(&mut store, "second");
        store.take_runtime(RuntimeUpdate::Gone("first".to_owned()));
        assert!(report.match_new_pods(&store));
        assert_eq!(report.cpus()["second"]["main"].to_string(), "4-5");
    }

    /// A static pod and its mirror pod at the API server differ in their uids, and the agent learns only later that they belong
    /// together.
    #[test]
    fn cpus_of_a_static_pod_are_not_those_of_its_mirror_pod() {
        let mirror = Arc::new(Pod {
            namespace: "train".to_owned(),
            name: "w".to_owned(),
            uid: Some("at-the-api".into()),
            api_uid: Some("at-the-api".into()),
            mirror: Some(Mirror {
                uid: "static".into(),
                node: "node".into(),
            }),
            ..Pod::default()
        });
        let listed = [(PodKey::of_api(&mirror), mirror)];
        let mut store = PodStore::new(ContainerIds::Runtime).listed_by(&[PodSource::Api]);
        store.take_pods(PodsUpdate {
            source: PodSource::Api,
            change: Some(PodsChange::Listed(listed.into())),
            errors: Vec::new(),
        });
        let mut report = KubeletReport::default();
        assert!(!report.take(answer("2-3"), &store), "nobody has the uid");
        with_runtime_pod(&mut store, "static");
        assert!(report.match_new_pods(&store));
        let uids: Vec<&String> = report.cpus().keys().collect();
        assert_eq!(uids, ["static"]);
    }

    #[test]
    fn of_two_pods_of_the_same_name_the_one_that_had_the_cpus_keeps_them() {
        let mut store = PodStore::new(ContainerIds::Runtime);
        let mut report = KubeletReport::default();
        with_runtime_pod(&mut store, "first");
        report.take(answer("2-3"), &store);
        with_runtime_pod(&mut store, "second");
        assert!(!report.take(answer("2-3"), &store));
        report.take(answer("4-5"), &store);
        assert!(report.cpus().is_empty(), "nobody can say whose they are");
    }
}
