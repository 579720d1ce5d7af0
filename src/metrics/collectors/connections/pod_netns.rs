//! The network namespaces of the pods, and the owners of the connections in each. In a pod's own namespace, all connections
//! belong to the pod. In a shared namespace, the cgroup in which a socket was created shows the pod.

use std::collections::{BTreeMap, HashSet};

use super::super::measured::{Host, MeasuredContainer, Unsupported};
use crate::host::cgroup::Unified;
use crate::host::netns::NetnsRef;

/// A network namespace with pods.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodNetns {
    pub(super) netns: NetnsRef,
    pub(super) owners: NetnsOwners,
}

/// The owners of the connections in a namespace. A pod's cgroup path stands for the pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NetnsOwners {
    Single(String),
    /// The sockets of each pod were created in a cgroup with one of these ids.
    ByCgroup(Vec<(String, HashSet<u64>)>),
}

#[derive(Debug)]
pub(super) struct PodNetnsList {
    pub(super) namespaces: Vec<PodNetns>,
    /// Why the connections of some pods can't be assigned.
    pub(super) unsupported: Option<Unsupported>,
    /// Whether all reads succeeded.
    pub(super) complete: bool,
}

/// A pod whose namespace is looked up.
#[derive(Debug, Default)]
pub(super) struct Candidate {
    pub(super) host_network: bool,
    /// Whether the process lists of all containers were readable.
    pub(super) readable: bool,
    pub(super) netns: Option<NetnsRef>,
}

/// Finds the namespaces of all pods.
pub(super) fn find(
    containers: &[MeasuredContainer<'_>],
    host: &Host,
    unified: Option<&Unified>,
) -> PodNetnsList {
    let own = i32::try_from(std::process::id())
        .ok()
        .and_then(|pid| host.proc.netns_ref(pid));
    let mut pods: BTreeMap<&str, Candidate> = BTreeMap::new();
    for container in containers {
        let Some((path, _)) = container.cgroup.rsplit_once('/') else {
            continue;
        };
        let pod = pods.entry(path).or_insert_with(|| Candidate {
            readable: true,
            ..Candidate::default()
        });
        pod.host_network |= container.state.host_network;
        // The containers of a pod share a namespace.
        if pod.netns.is_none() {
            match host.cgroups.processes(container.cgroup) {
                Ok(pids) => pod.netns = pids.into_iter().find_map(|pid| host.proc.netns_ref(pid)),
                Err(error) => pod.readable &= error.is_gone(),
            }
        }
    }
    let (shares, complete) = group_by_netns(pods, own.as_ref().map(|own| own.number));
    let mut found = PodNetnsList {
        namespaces: Vec::new(),
        unsupported: None,
        complete,
    };
    for (netns, share) in shares {
        let owners = match share {
            Share::Single(pod) => NetnsOwners::Single(pod),
            Share::Several(pods) => {
                let mut by_cgroup = Vec::new();
                for pod in pods {
                    let populated = unified.filter(|unified| unified.is_populated(&pod));
                    match populated.map(|unified| unified.ids(&pod)) {
                        Some(Ok(ids)) => by_cgroup.push((pod, ids.into_iter().collect())),
                        Some(Err(_)) => found.complete = false,
                        // The pod's last process has ended since.
                        None if !matches!(host.cgroups.is_populated(&pod), Ok(true)) => {}
                        None => {
                            found.unsupported = Some(Unsupported {
                                reason: "no_cgroup_v2",
                                detail: "Pinfold matches connections on a shared network with pods by cgroup v2, and \
                                         the pods have no v2 cgroups"
                                    .to_owned(),
                            });
                        }
                    }
                }
                NetnsOwners::ByCgroup(by_cgroup)
            }
        };
        if owners != NetnsOwners::ByCgroup(Vec::new()) {
            found.namespaces.push(PodNetns { netns, owners });
        }
    }
    // The node's connections may exceed the limit, so the pods' own networks come first.
    found
        .namespaces
        .sort_by_key(|namespace| matches!(namespace.owners, NetnsOwners::ByCgroup(_)));
    found
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Share {
    Single(String),
    Several(Vec<String>),
}

/// Groups the pods by namespace. `own` is the agent's namespace. Also returns whether the namespaces of all pods are known.
pub(super) fn group_by_netns(
    pods: BTreeMap<&str, Candidate>,
    own: Option<u64>,
) -> (Vec<(NetnsRef, Share)>, bool) {
    // A pod with an unknown namespace may share any namespace.
    let complete = pods.values().all(|pod| pod.readable || pod.netns.is_some());
    let mut by_namespace: BTreeMap<u64, (NetnsRef, Vec<String>, bool)> = BTreeMap::new();
    for (path, pod) in pods {
        let Some(netns) = pod.netns else { continue };
        let namespace = by_namespace
            .entry(netns.number)
            .or_insert_with(|| (netns, Vec::new(), false));
        namespace.1.push(path.to_owned());
        namespace.2 |= pod.host_network;
    }
    let share = |(netns, mut pods, host): (NetnsRef, Vec<String>, bool)| {
        let alone =
            complete && !host && pods.len() == 1 && own.is_some_and(|own| own != netns.number);
        match pods.pop() {
            Some(pod) if alone => (netns, Share::Single(pod)),
            last => {
                pods.extend(last);
                (netns, Share::Several(pods))
            }
        }
    };
    (by_namespace.into_values().map(share).collect(), complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u64) -> Candidate {
        let netns = NetnsRef {
            file: "/proc/1/ns/net".into(),
            number,
        };
        Candidate {
            host_network: false,
            readable: true,
            netns: Some(netns),
        }
    }

    fn sorted(pods: Vec<(&'static str, Candidate)>, own: Option<u64>) -> (Vec<(u64, Share)>, bool) {
        let (shares, complete) = group_by_netns(pods.into_iter().collect(), own);
        (
            shares
                .into_iter()
                .map(|(netns, share)| (netns.number, share))
                .collect(),
            complete,
        )
    }

    fn single(pod: &str) -> Share {
        Share::Single(pod.to_owned())
    }

    fn several(pods: &[&str]) -> Share {
        Share::Several(pods.iter().map(|&pod| pod.to_owned()).collect())
    }

    #[test]
    fn a_pod_owns_only_an_unshared_namespace() {
        let host = Candidate {
            host_network: true,
            ..pod(9)
        };
        let gone = Candidate {
            netns: None,
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
            (1, single("a")),
            (2, several(&["b", "c"])),
            (9, several(&["d"])),
            (1000, several(&["f"])),
        ];
        assert_eq!(sorted(pods, Some(1000)), (expected, true));
    }

    #[test]
    fn a_pod_with_an_unknown_namespace_may_share_any() {
        let lost = Candidate {
            readable: false,
            netns: None,
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
            "the node's namespace is unknown"
        );
    }
}
