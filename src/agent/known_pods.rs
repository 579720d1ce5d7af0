//! What is known of the pods besides their descriptions: how far these can be trusted, and which
//! containers exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pod_store::PodStore;
use crate::cpu::CpuSet;
use crate::pin::decide::{Decisions, Description, KnownPod, KnownPods};
use crate::pin::{Observed, ObservedContainer, ObservedPod};
use crate::pod::RecognizedPod;

/// How long a pod in no list may own CPUs before `/status` names it. A deleted pod mostly ends within its grace period.
const LONG_UNDESCRIBED: Duration = Duration::from_secs(300);

// === impl PodStore ===

impl PodStore {
    /// The description of a pod that neither the API nor the folder describes.
    fn undescribed(&self) -> Description {
        let lists = self.lists();
        if !lists.are_complete() {
            Description::Awaited
        } else if lists.exist() {
            Description::Missing
        } else if self.has_runtime() {
            Description::RuntimeOnly
        } else {
            // Nobody has said anything about any pod yet.
            Description::Awaited
        }
    }

    /// Whether a pod is in no list, so that only its existing containers keep their CPUs.
    pub(super) fn is_missing(&self, uid: &str) -> bool {
        self.undescribed() == Description::Missing && !self.is_described(uid)
    }

    /// What is known of the pods in `observed` and in `pods`.
    ///
    /// Until the ids are settled, a container may exist although nobody lists it, so a complete
    /// list takes nothing away before that.
    #[doc(hidden)]
    pub fn known_pods<'a>(
        &'a self,
        observed: &'a Observed,
        pods: &'a [Arc<RecognizedPod>],
        ids_settled: bool,
    ) -> KnownPods<'a> {
        let undescribed = match self.undescribed() {
            Description::Missing if !ids_settled => Description::Awaited,
            other => other,
        };
        let known = |uid: &'a str, cgroups| {
            let description = if self.is_described(uid) {
                Description::Complete
            } else {
                undescribed
            };
            (uid, self.known_pod(uid, description, cgroups))
        };
        let without_cgroup = pods.iter().filter_map(|pod| pod.cgroup_uid());
        let mut all: KnownPods<'a> = without_cgroup.map(|uid| known(uid, None)).collect();
        let observed = observed.pods.iter();
        all.extend(observed.map(|pod| known(&pod.cgroup.uid, Some(pod))));
        all
    }

    fn known_pod<'a>(
        &'a self,
        uid: &'a str,
        description: Description,
        cgroups: Option<&'a ObservedPod>,
    ) -> KnownPod<'a> {
        let of_runtime = self.of_runtime(uid);
        let containers = cgroups.map(|pod| pod.containers.as_slice());
        let containers = containers.unwrap_or_default().iter();
        let running = containers.clone().filter_map(running);
        let populated = containers.filter(|container| container.cgroup.populated);
        let populated = populated.filter_map(|container| container.name.as_deref());
        KnownPod {
            description,
            listed: of_runtime.map(|of_runtime| {
                let containers = of_runtime.pod.containers.iter();
                containers
                    .map(|container| container.name.as_str())
                    .collect()
            }),
            removed: names(of_runtime.map(|of_runtime| &of_runtime.removed)),
            stopped: names(of_runtime.map(|of_runtime| &of_runtime.stopped)),
            running: running.collect(),
            populated: populated.collect(),
        }
    }

    /// The uids of pods that own CPUs although all lists are complete and none has them, with their CPUs.
    fn undescribed_owners<'a>(
        &'a self,
        decisions: &'a Decisions,
    ) -> impl Iterator<Item = (&'a str, CpuSet)> {
        let pods = decisions.desired.pods.iter();
        let owners = pods.map(|(uid, plan)| (uid.as_str(), plan.assignment.cpus()));
        owners.filter(|(uid, cpus)| !cpus.is_empty() && self.is_missing(uid))
    }
}

fn names(names: Option<&BTreeSet<String>>) -> BTreeSet<&str> {
    names.into_iter().flatten().map(String::as_str).collect()
}

/// The name and the CPUs of a container with a process. If nobody has told the container's id, its
/// record gives the name, unless it may be a record that an early version wrote on a sandbox.
/// Without a name, the id stands for the container.
fn running(container: &ObservedContainer) -> Option<(&str, &CpuSet)> {
    let record = container.record.as_ref().filter(|record| record.by_id);
    let recorded = record.and_then(|record| record.assignment.containers.keys().next());
    let cgroup = &container.cgroup;
    let name = container.name.as_ref().or(recorded).unwrap_or(&cgroup.id);
    cgroup
        .populated
        .then_some((name.as_str(), &cgroup.cpuset.effective))
}

/// Since when pods own CPUs that no list of pods has.
#[derive(Debug, Default)]
pub(super) struct UndescribedOwners {
    since: BTreeMap<String, Instant>,
}

// === impl UndescribedOwners ===

impl UndescribedOwners {
    /// A sentence for each pod that has owned CPUs for long although no source describes it.
    pub(super) fn problems(
        &mut self,
        store: &PodStore,
        (observed, decisions): (&Observed, &Decisions),
        now: Instant,
    ) -> Vec<String> {
        let owners: BTreeMap<&str, CpuSet> = store.undescribed_owners(decisions).collect();
        self.since
            .retain(|uid, _| owners.contains_key(uid.as_str()));
        let mut problems = Vec::new();
        for (uid, cpus) in owners {
            let since = *self.since.entry(uid.to_owned()).or_insert(now);
            if now.saturating_duration_since(since) < LONG_UNDESCRIBED {
                continue;
            }
            let record = observed.pod(uid).and_then(|pod| pod.record.as_ref());
            let name = record.filter(|record| !record.pod.is_empty()).map_or_else(
                || uid.to_owned(),
                |record| format!("{}/{}", record.namespace, record.pod),
            );
            problems.push(format!(
                "pod {name} keeps {}: its containers still exist, but for more than 5 minutes no list of pods has had it; if \
                 the pod was deleted by force, end its containers, and if it is a static pod, see the other problems for its \
                 mirror pod",
                cpus.in_words()
            ));
        }
        problems
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::agent::event::{PodKey, PodSource, PodsChange, PodsUpdate, RuntimeUpdate};
    use crate::host::cgroup::PodCgroup;
    use crate::pin::{Desired, PodAssignment, Scan};
    use crate::pod::{ContainerIds, Pod, recognized};
    use PodSource::{Api, Folder};

    fn store(sources: &[PodSource]) -> PodStore {
        PodStore::new(ContainerIds::Awaited).listed_by(sources)
    }

    fn pod(uid: &str) -> Pod {
        Pod {
            uid: Some(uid.into()),
            api_uid: Some(uid.into()),
            ..Pod::default()
        }
    }

    fn list(store: &mut PodStore, source: PodSource, pods: Vec<Pod>, errors: Vec<String>) {
        let pods = pods.into_iter();
        let pods = pods.map(|pod| (PodKey::of_api(&pod), Arc::new(pod)));
        store.take_pods(PodsUpdate {
            source,
            change: Some(PodsChange::Listed(pods.collect())),
            errors,
        });
    }

    fn description(store: &mut PodStore, uid: &str) -> Description {
        let pods = store.known();
        let observed = Observed::default();
        let alone = recognized([pod(uid)]);
        let one = store.known_pods(&observed, &alone, true)[uid].description;
        let all: Vec<_> = pods.iter().chain(&*alone).cloned().collect();
        let all = store.known_pods(&observed, &all, true);
        assert_eq!(all[uid].description, one);
        one
    }

    #[test]
    fn a_pod_without_a_description_waits_for_the_first_complete_lists() {
        use Description::{Awaited, Complete, Missing, RuntimeOnly};
        let mut one = store(&[Api]);
        one.take_runtime(RuntimeUpdate::All(Vec::new()));
        assert_eq!(description(&mut one, "a"), Awaited);
        // The list has a pod that can't be read, which may be the one.
        list(
            &mut one,
            Api,
            vec![pod("b")],
            vec!["pod c is damaged".to_owned()],
        );
        assert_eq!(description(&mut one, "a"), Awaited);
        assert_eq!(description(&mut one, "b"), Complete);
        list(&mut one, Api, vec![pod("b")], Vec::new());
        assert_eq!(description(&mut one, "a"), Missing);
        // The rights are taken away, or the pod is deleted by force: what was complete once stays so.
        list(
            &mut one,
            Api,
            Vec::new(),
            vec!["pod c is damaged".to_owned()],
        );
        assert_eq!(description(&mut one, "b"), Missing);

        // Both lists must have come. A damaged manifest is no reason to distrust the API server.
        let mut both = store(&[Api, Folder]);
        list(&mut both, Api, Vec::new(), Vec::new());
        assert_eq!(description(&mut both, "a"), Awaited);
        list(&mut both, Folder, Vec::new(), vec!["no YAML".to_owned()]);
        assert_eq!(description(&mut both, "a"), Missing);
        let mut folder = store(&[Folder]);
        list(&mut folder, Folder, Vec::new(), vec!["no YAML".to_owned()]);
        assert_eq!(description(&mut folder, "a"), Awaited);
        list(&mut folder, Folder, Vec::new(), Vec::new());
        assert_eq!(description(&mut folder, "a"), Missing);

        let mut none = store(&[]);
        assert_eq!(description(&mut none, "a"), Awaited);
        none.take_runtime(RuntimeUpdate::All(Vec::new()));
        assert_eq!(description(&mut none, "a"), RuntimeOnly);
    }

    #[test]
    fn a_single_described_pod_hides_no_pod_without_a_description() {
        let mut store = store(&[Api]);
        list(&mut store, Api, vec![pod("listed")], Vec::new());
        let cgroup = |uid: &str| PodCgroup {
            uid: uid.to_owned(),
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![cgroup("listed"), cgroup("missing")],
            ..Scan::default()
        };
        let pods = store.known();
        let (observed, _) = Observed::new(scan, &pods);
        let known = store.known_pods(&observed, &pods, true);
        assert_eq!(known["listed"].description, Description::Complete);
        assert_eq!(known["missing"].description, Description::Missing);
        // As long as containers may exist that nobody lists, no pod counts as missing.
        let known = store.known_pods(&observed, &pods, false);
        assert_eq!(known["missing"].description, Description::Awaited);
    }

    #[test]
    fn owners_in_no_list_are_named_after_five_minutes() {
        let mut desired = Desired::default();
        let containers = [("main".to_owned(), "2-3".parse().unwrap())].into();
        let assignment = PodAssignment {
            containers,
            ..PodAssignment::default()
        };
        let owners = ["listed", "missing"].map(|uid| (uid.to_owned(), assignment.clone()));
        desired.set_assignments(owners.into());
        let decisions = Decisions {
            desired,
            ..Decisions::default()
        };
        let (observed, begun) = (Observed::default(), Instant::now());
        let mut undescribed = UndescribedOwners::default();
        let mut problems = |store: &PodStore, minutes: u64| {
            let now = begun + Duration::from_secs(60 * minutes);
            undescribed.problems(store, (&observed, &decisions), now)
        };
        let mut store = store(&[Api]);
        assert!(problems(&store, 0).is_empty() && problems(&store, 9).is_empty());
        list(&mut store, Api, vec![pod("listed")], Vec::new());
        assert!(problems(&store, 10).is_empty() && problems(&store, 14).is_empty());
        let named = problems(&store, 15);
        let [only] = named.as_slice() else {
            panic!("{named:?}")
        };
        assert!(only.starts_with("pod missing keeps CPUs 2-3"), "{only}");
        list(
            &mut store,
            Api,
            vec![pod("listed"), pod("missing")],
            Vec::new(),
        );
        assert!(problems(&store, 16).is_empty());
    }
}
