//! Where the pods' connections are, and how it is told whose each is: all in a namespace that one pod has for itself are that
//! pod's; in one of several, as the node's own, the cgroup in which a socket was made tells.

use std::collections::{BTreeMap, HashSet};

use super::super::Subject;
use super::Sources;
use crate::host::cgroup::Unified;
use crate::host::netns::NetnsRef;

/// A namespace to look into.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) stop: NetnsRef,
    pub(super) owners: Owners,
}

/// Whose the connections in a namespace are; pods are known by their cgroups.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owners {
    One(String),
    /// Each pod's sockets were made in one of these cgroups.
    ByCgroup(Vec<(String, HashSet<u64>)>),
}

#[derive(Debug)]
pub(super) struct Places {
    pub(super) places: Vec<Place>,
    /// Why the connections of some pod can't be told from others'.
    pub(super) unsupported: Option<String>,
    /// Whether everything could be read.
    pub(super) complete: bool,
}

/// What is known of a pod.
#[derive(Debug, Default)]
pub(super) struct Pod {
    pub(super) host_network: bool,
    /// Whether the processes of its containers could be read.
    pub(super) known: bool,
    pub(super) stop: Option<NetnsRef>,
}

/// Finds the namespaces of all pods.
pub(super) fn of(subjects: &[Subject<'_>], sources: &Sources, unified: Option<&Unified>) -> Places {
    let own = i32::try_from(std::process::id())
        .ok()
        .and_then(|pid| sources.proc.netns_ref(pid));
    let mut pods: BTreeMap<&str, Pod> = BTreeMap::new();
    for subject in subjects {
        let Some((path, _)) = subject.cgroup.rsplit_once('/') else {
            continue;
        };
        let pod = pods.entry(path).or_insert_with(|| Pod {
            known: true,
            ..Pod::default()
        });
        pod.host_network |= subject.state.host_network;
        // All its containers are in one namespace.
        if pod.stop.is_none() {
            match sources.cgroups.processes(subject.cgroup) {
                Ok(pids) => pod.stop = pids.into_iter().find_map(|pid| sources.proc.netns_ref(pid)),
                Err(error) => pod.known &= error.is_gone(),
            }
        }
    }
    let (shares, complete) = sort(pods, own.as_ref().map(|own| own.number));
    let mut found = Places {
        places: Vec::new(),
        unsupported: None,
        complete,
    };
    for (stop, share) in shares {
        let owners = match share {
            Share::One(pod) => Owners::One(pod),
            Share::Several(pods) => {
                let mut by_cgroup = Vec::new();
                for pod in pods {
                    let there = unified.filter(|unified| unified.is_populated(&pod));
                    match there.map(|unified| unified.ids(&pod)) {
                        Some(Ok(ids)) => by_cgroup.push((pod, ids.into_iter().collect())),
                        Some(Err(_)) => found.complete = false,
                        // The last of its processes has ended meanwhile.
                        None if !matches!(sources.cgroups.is_populated(&pod), Ok(true)) => {}
                        None => {
                            found.unsupported = Some(
                                "connections of pods on the node's network, or on one that they share, are told apart by \
                                 cgroups of version 2, and the pods have none"
                                    .to_owned(),
                            );
                        }
                    }
                }
                Owners::ByCgroup(by_cgroup)
            }
        };
        if owners != Owners::ByCgroup(Vec::new()) {
            found.places.push(Place { stop, owners });
        }
    }
    // What the node has for itself may be more than is looked at: pods with a network of their own come first.
    found
        .places
        .sort_by_key(|place| matches!(place.owners, Owners::ByCgroup(_)));
    found
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Share {
    One(String),
    Several(Vec<String>),
}

/// Says which pods are in which namespace, and whether none can be in another than it seems; `own` is the node's.
pub(super) fn sort(pods: BTreeMap<&str, Pod>, own: Option<u64>) -> (Vec<(NetnsRef, Share)>, bool) {
    // One whose namespace is not known may share any.
    let complete = pods.values().all(|pod| pod.known || pod.stop.is_some());
    let mut by_namespace: BTreeMap<u64, (NetnsRef, Vec<String>, bool)> = BTreeMap::new();
    for (path, pod) in pods {
        let Some(stop) = pod.stop else { continue };
        let namespace = by_namespace
            .entry(stop.number)
            .or_insert_with(|| (stop, Vec::new(), false));
        namespace.1.push(path.to_owned());
        namespace.2 |= pod.host_network;
    }
    let share = |(stop, mut pods, host): (NetnsRef, Vec<String>, bool)| {
        let alone =
            complete && !host && pods.len() == 1 && own.is_some_and(|own| own != stop.number);
        match pods.pop() {
            Some(pod) if alone => (stop, Share::One(pod)),
            last => {
                pods.extend(last);
                (stop, Share::Several(pods))
            }
        }
    };
    (by_namespace.into_values().map(share).collect(), complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u64) -> Pod {
        let stop = NetnsRef {
            file: "/proc/1/ns/net".into(),
            number,
        };
        Pod {
            host_network: false,
            known: true,
            stop: Some(stop),
        }
    }

    fn sorted(pods: Vec<(&'static str, Pod)>, own: Option<u64>) -> (Vec<(u64, Share)>, bool) {
        let (shares, complete) = sort(pods.into_iter().collect(), own);
        (
            shares
                .into_iter()
                .map(|(stop, share)| (stop.number, share))
                .collect(),
            complete,
        )
    }

    fn one(pod: &str) -> Share {
        Share::One(pod.to_owned())
    }

    fn several(pods: &[&str]) -> Share {
        Share::Several(pods.iter().map(|&pod| pod.to_owned()).collect())
    }

    #[test]
    fn only_a_namespace_of_its_own_is_a_pods() {
        let host = Pod {
            host_network: true,
            ..pod(9)
        };
        let gone = Pod {
            stop: None,
            ..pod(0)
        };
        let pods = vec![
            ("a", pod(1)),
            ("b", pod(2)),
            ("c", pod(2)),
            ("d", host),
            ("e", gone),
            ("f", pod(1000)),
        ];
        let expected = vec![
            (1, one("a")),
            (2, several(&["b", "c"])),
            (9, several(&["d"])),
            (1000, several(&["f"])),
        ];
        assert_eq!(sorted(pods, Some(1000)), (expected, true));
    }

    #[test]
    fn one_that_may_be_anywhere_may_be_everywhere() {
        let lost = Pod {
            known: false,
            stop: None,
            ..pod(0)
        };
        let pods = vec![("a", pod(1)), ("b", lost)];
        assert_eq!(
            sorted(pods, Some(1000)),
            (vec![(1, several(&["a"]))], false)
        );
        assert_eq!(
            sorted(vec![("a", pod(1))], None),
            (vec![(1, several(&["a"]))], true),
            "whose is the node's?"
        );
    }
}
