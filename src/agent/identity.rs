//! [`resolve`]: which static pods the mirror pods stand for.
//!
//! The cgroup of a static pod and its mirror pod at the API server have different uids. The mirror
//! pod names the cgroup's uid in annotations, but the author of any pod can write the same
//! annotations and owner references. So a mirror pod counts only under two conditions: no pod has
//! the uid as its own, and neither the container runtime nor an assignment record names another
//! pod. Among several mirror pods for a uid, the container runtime decides, or a record that the
//! runtime confirmed. Without either, none of them counts, because an unconfirmed record proves
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{PodKey, RuntimePod};
use crate::pod::{ApiUid, ObjectName, Pod, PodUid};

/// The pod named in an assignment record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedPod {
    pub(super) pod: ObjectName,
    /// Whether the container runtime confirmed the name.
    pub(super) confirmed: bool,
}

/// Which mirror pod stands for a static pod.
struct MirrorChoice {
    winner: Option<ObjectName>,
    /// Whether the container runtime or a confirmed record names the winner.
    confirmed: bool,
    /// Why the other mirror pods do not count.
    reason: String,
}

/// The static pod that a mirror pod stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identified {
    /// The uid of the static pod's cgroup.
    pub(super) uid: PodUid,
    /// Whether the container runtime or a confirmed record says so.
    pub(super) confirmed: bool,
}

/// Facts about the node's pods that a pod's author can't write.
pub(super) struct Evidence<'a> {
    /// A pod whose own uid is the given one.
    pub(super) own: &'a dyn Fn(&str) -> Option<&'a Pod>,
    /// The Node's uid; `None` before the first answer of the API server.
    pub(super) node: Option<&'a ApiUid>,
    /// The pods of the container runtime, by the uid in the cgroup's name.
    pub(super) runtime: &'a BTreeMap<String, RuntimePod>,
    /// The pods named in assignment records, by the uid in the cgroup's name.
    pub(super) records: &'a BTreeMap<String, RecordedPod>,
}

/// Finds out which mirror pods certainly stand for a static pod. Returns them with the uid of their
/// static pod's cgroup, and the conflicts as sentences.
pub(super) fn resolve<'a>(
    mirrors: impl Iterator<Item = (&'a PodKey, &'a Pod)>,
    evidence: &Evidence<'_>,
) -> (BTreeMap<PodKey, Identified>, Vec<String>) {
    let mut claimants: BTreeMap<&PodUid, Vec<(&PodKey, ObjectName)>> = BTreeMap::new();
    for (key, pod) in mirrors {
        let Some(mirror) = pod
            .mirror
            .as_ref()
            .filter(|mirror| pod.uid.as_ref() != Some(&mirror.uid))
        else {
            continue;
        };
        if Some(&mirror.node) == evidence.node {
            let claimants = claimants.entry(&mirror.uid).or_default();
            claimants.push((key, pod.object_name()));
        }
    }
    let (mut identified, mut conflicts) = (BTreeMap::new(), Vec::new());
    for (uid, claimants) in claimants {
        let names: BTreeSet<ObjectName> = claimants.iter().map(|(_, name)| name.clone()).collect();
        let MirrorChoice {
            winner,
            confirmed,
            reason,
        } = decide(uid, &names, evidence);
        for (key, _) in claimants
            .iter()
            .filter(|(_, name)| Some(name) == winner.as_ref())
        {
            let uid = uid.clone();
            identified.insert((*key).clone(), Identified { uid, confirmed });
        }
        let losers = names.iter().filter(|name| Some(*name) != winner.as_ref());
        conflicts.extend(losers.map(|pod| {
            format!(
                "pod {pod} has the annotations of a mirror pod of the static pod {uid}, and Pinfold \
                 ignores them, because {reason}; delete the pod, or remove its annotations kubernetes.io/config.hash \
                 and config.mirror"
            )
        }));
    }
    (identified, conflicts)
}

/// The mirror pod that stands for a static pod, if any.
fn decide(uid: &PodUid, names: &BTreeSet<ObjectName>, evidence: &Evidence<'_>) -> MirrorChoice {
    let nobody = |reason: String| MirrorChoice {
        winner: None,
        confirmed: false,
        reason,
    };
    let verdict = |name: ObjectName, reason: String| MirrorChoice {
        winner: Some(name).filter(|name| names.contains(name)),
        confirmed: true,
        reason,
    };
    if let Some(pod) = (evidence.own)(uid.as_str()) {
        return nobody(format!("pod {pod} has that uid"));
    }
    if let Some(of_runtime) = evidence
        .runtime
        .get(uid.as_str())
        .map(|runtime_pod| runtime_pod.pod.object_name())
    {
        let reason = format!("the container runtime says that this is pod {of_runtime}");
        return verdict(of_runtime, reason);
    }
    let record = evidence.records.get(uid.as_str());
    if let Some(RecordedPod { pod, confirmed }) = record
        && (*confirmed || !names.contains(pod))
    {
        return verdict(pod.clone(), format!("its CPUs are assigned to pod {pod}"));
    }
    let mut all = names.iter();
    match (all.next(), all.next()) {
        (only, None) => MirrorChoice {
            winner: only.cloned(),
            confirmed: false,
            reason: String::new(),
        },
        _ => {
            let stay = if record.is_some() {
                "; the CPUs of the static pod stay assigned"
            } else {
                ""
            };
            nobody(format!(
                "other pods have the same annotations, and no container runtime identifies the right pod{stay}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Mirror;

    fn pod(namespace: &str, uid: &str) -> Pod {
        Pod {
            namespace: namespace.to_owned(),
            name: "p".to_owned(),
            uid: Some(uid.into()),
            ..Pod::default()
        }
    }

    fn mirror(namespace: &str, of: &str) -> Pod {
        let mirror = Some(Mirror {
            uid: of.into(),
            node: "node".into(),
        });
        Pod {
            mirror,
            ..pod(namespace, &format!("api-of-{namespace}"))
        }
    }

    fn owner(namespace: &str) -> ObjectName {
        ObjectName::new(namespace, "p")
    }

    /// The namespaces of the pods with the resolved uid `hash`, and the number of conflicts.
    fn found(pods: Vec<Pod>, runtime: Option<&str>, record: Option<&str>) -> (Vec<String>, usize) {
        let (pods, conflicts) = resolved(pods, runtime, record.map(|namespace| (namespace, true)));
        (
            pods.into_iter().map(|pod| pod.namespace).collect(),
            conflicts,
        )
    }

    /// As `found`, but with the pods themselves. A record says whether the runtime confirmed the pod's name.
    fn resolved(
        mut pods: Vec<Pod>,
        runtime: Option<&str>,
        record: Option<(&str, bool)>,
    ) -> (Vec<Pod>, usize) {
        let runtime_pod = |namespace: &str| RuntimePod {
            pod: pod(namespace, "hash"),
            injected: BTreeMap::new(),
            removed: BTreeSet::new(),
            stopped: BTreeSet::new(),
        };
        let runtime = runtime
            .map(|namespace| ("hash".to_owned(), runtime_pod(namespace)))
            .into_iter()
            .collect();
        let recorded = |(namespace, confirmed)| RecordedPod {
            pod: owner(namespace),
            confirmed,
        };
        let records = record
            .map(|record| ("hash".to_owned(), recorded(record)))
            .into_iter()
            .collect();
        let node = ApiUid::from("node");
        let known = pods.clone();
        let keys: Vec<PodKey> = (0..pods.len())
            .map(|number| PodKey::Runtime(number.to_string()))
            .collect();
        let own = |uid: &str| known.iter().find(|pod| pod.cgroup_uid() == Some(uid));
        let evidence = Evidence {
            own: &own,
            node: Some(&node),
            runtime: &runtime,
            records: &records,
        };
        let mirrors = keys.iter().zip(&known);
        let mirrors = mirrors.filter(|(_, pod)| pod.mirror.is_some());
        let (identified, conflicts) = resolve(mirrors, &evidence);
        for (key, pod) in keys.iter().zip(&mut pods) {
            if let Some(Identified { uid, confirmed }) = identified.get(key) {
                (pod.uid, pod.confirmed) = (Some(uid.clone()), *confirmed);
            }
        }
        pods.retain(|pod| pod.cgroup_uid() == Some("hash"));
        (pods, conflicts.len())
    }

    #[test]
    fn a_mirror_pod_never_displaces_a_pod_with_that_uid() {
        assert_eq!(
            found(vec![mirror("a", "hash"), pod("z", "hash")], None, None),
            (vec!["z".to_owned()], 1)
        );
        let (has, conflicts) = found(
            vec![mirror("a", "hash"), pod("z", "hash")],
            Some("a"),
            Some("a"),
        );
        assert_eq!((has, conflicts), (vec!["z".to_owned()], 1));
    }

    #[test]
    fn a_mirror_pod_counts_where_nothing_contradicts() {
        assert_eq!(
            found(vec![mirror("a", "hash")], None, None),
            (vec!["a".to_owned()], 0)
        );
        // The same pod, known from two sources.
        let twice = vec![mirror("a", "hash"), mirror("a", "hash")];
        assert_eq!(
            found(twice, None, None),
            (vec!["a".to_owned(), "a".to_owned()], 0)
        );
        let mut elsewhere = mirror("a", "hash");
        elsewhere.mirror = Some(Mirror {
            uid: "hash".into(),
            node: "another node".into(),
        });
        assert_eq!(found(vec![elsewhere], Some("a"), None), (vec![], 0));
    }

    #[test]
    fn between_two_mirror_pods_the_runtime_decides_then_the_record_and_else_nobody() {
        let both = || vec![mirror("a", "hash"), mirror("b", "hash")];
        assert_eq!(
            found(both(), Some("b"), Some("a")),
            (vec!["b".to_owned()], 1)
        );
        assert_eq!(found(both(), None, Some("a")), (vec!["a".to_owned()], 1));
        assert_eq!(found(both(), None, None), (vec![], 2));
        assert_eq!(found(both(), Some("c"), None), (vec![], 2));
    }

    #[test]
    fn a_record_that_the_runtime_never_confirmed_proves_no_owner() {
        let both = || vec![mirror("a", "hash"), mirror("b", "hash")];
        let names = |(pods, conflicts): (Vec<Pod>, usize)| {
            let names = pods.into_iter().map(|pod| (pod.namespace, pod.confirmed));
            (names.collect::<Vec<_>>(), conflicts)
        };
        let is = |namespace: &str, confirmed| vec![(namespace.to_owned(), confirmed)];
        // Neither mirror pod gets the uid, whichever name the record has.
        for first in ["a", "b"] {
            assert_eq!(
                names(resolved(both(), None, Some((first, false)))),
                (vec![], 2)
            );
        }
        assert_eq!(
            names(resolved(both(), Some("b"), Some(("a", false)))),
            (is("b", true), 1)
        );
        assert_eq!(
            names(resolved(both(), None, Some(("b", true)))),
            (is("b", true), 1)
        );
        // Without a rival, the pod in the record counts, still unconfirmed. One with another name
        // gets nothing.
        let alone = || vec![mirror("a", "hash")];
        assert_eq!(names(resolved(alone(), None, None)), (is("a", false), 0));
        assert_eq!(
            names(resolved(alone(), None, Some(("a", false)))),
            (is("a", false), 0)
        );
        assert_eq!(
            names(resolved(alone(), None, Some(("b", false)))),
            (vec![], 1)
        );
        assert_eq!(
            names(resolved(alone(), Some("a"), None)),
            (is("a", true), 0)
        );
    }

    #[test]
    fn a_mirror_pod_never_takes_what_is_recorded_as_another_pods() {
        assert_eq!(
            found(vec![mirror("a", "hash")], None, Some("z")),
            (vec![], 1)
        );
        assert_eq!(
            found(vec![mirror("a", "hash")], Some("z"), None),
            (vec![], 1)
        );
    }
}
