//! [`PeerDirectory`]: the pods behind the remote addresses of connections. The network namespaces
//! show the pods of this node, and the Kubernetes API those of other nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::super::super::peer::Peer;
use super::super::measured::MeasuredContainer;
use crate::host::netlink::diag::TcpConnection;
use crate::pod::ObjectName;

/// The limit on unknown addresses of a job in a sample.
const MAX_UNKNOWN: usize = 256;

/// The pods by address.
#[derive(Debug, Default)]
pub(super) struct PeerDirectory {
    /// This node's pods in the last sample and in the one before, by address. `None` for an address
    /// of several pods.
    local: HashMap<IpAddr, Option<(ObjectName, Peer)>>,
    local_before: HashMap<IpAddr, Option<(ObjectName, Peer)>>,
    /// The pods of each job on all nodes, from the API. `None` for an address of several pods.
    from_api: BTreeMap<ObjectName, HashMap<IpAddr, Option<Peer>>>,
    /// The unknown addresses of the last sample.
    unknown: BTreeMap<ObjectName, BTreeSet<IpAddr>>,
}

/// The training job and the peer name of each pod, by the path of the pod's cgroup.
pub(super) fn jobs(containers: &[MeasuredContainer<'_>]) -> HashMap<String, (ObjectName, Peer)> {
    let of = |container: &MeasuredContainer<'_>| {
        let (path, _) = container.cgroup.rsplit_once('/')?;
        let state = container.state;
        let job = ObjectName::new(&*state.namespace, state.job.clone()?);
        let peer = Peer {
            pod: state.pod.clone(),
            role: state.role,
        };
        Some((path.to_owned(), (job, peer)))
    };
    containers.iter().filter_map(of).collect()
}

// === impl PeerDirectory ===

impl PeerDirectory {
    /// Begins a sample. The pods of the last sample stay known until this one replaces them.
    pub(super) fn begin_sample(&mut self, jobs: &HashMap<String, (ObjectName, Peer)>) {
        self.local_before = std::mem::take(&mut self.local);
        self.unknown.clear();
        let live: BTreeSet<&ObjectName> = jobs.values().map(|(job, _)| job).collect();
        self.from_api.retain(|job, _| live.contains(job));
    }

    /// Learns a pod's addresses from the local ends of the connections in the pod's own namespace.
    pub(super) fn learn(&mut self, job: &ObjectName, peer: &Peer, connections: &[TcpConnection]) {
        for connection in connections
            .iter()
            .filter(|connection| !connection.local.is_loopback())
        {
            let known = self
                .local
                .entry(connection.local)
                .or_insert_with(|| Some((job.clone(), peer.clone())));
            if known
                .as_ref()
                .is_some_and(|(_, other)| other.pod != peer.pod)
            {
                *known = None;
            }
        }
    }

    /// Sets the pods of a job, as listed by the API.
    pub(super) fn set(&mut self, job: ObjectName, peers: impl IntoIterator<Item = (IpAddr, Peer)>) {
        let mut by_address: HashMap<IpAddr, Option<Peer>> = HashMap::new();
        for (address, peer) in peers {
            let known = by_address
                .entry(address)
                .or_insert_with(|| Some(peer.clone()));
            if known.as_ref() != Some(&peer) {
                *known = None;
            }
        }
        self.from_api.insert(job, by_address);
    }

    /// The pod of the same job with this address; `None` if unknown or ambiguous.
    pub(super) fn find(&mut self, job: &ObjectName, address: IpAddr) -> Option<&Peer> {
        let local = self
            .local
            .get(&address)
            .or_else(|| self.local_before.get(&address));
        if let Some(local) = local {
            return local
                .as_ref()
                .filter(|(other, _)| other == job)
                .map(|(_, peer)| peer);
        }
        let listed = self.from_api.get(job).and_then(|pods| pods.get(&address));
        if listed.is_none() {
            let unknown = self.unknown.entry(job.clone()).or_default();
            if unknown.len() < MAX_UNKNOWN {
                unknown.insert(address);
            }
        }
        listed?.as_ref()
    }

    pub(super) fn unknown(&self) -> BTreeMap<ObjectName, BTreeSet<IpAddr>> {
        self.unknown.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::host::netlink::diag::TcpState;
    use crate::pod::PodRole;

    use super::*;

    fn job(name: &str) -> ObjectName {
        ObjectName::new("train", name)
    }

    fn peer(pod: &str) -> Peer {
        Peer {
            pod: pod.to_owned(),
            role: PodRole::Worker,
        }
    }

    fn at(local: &str) -> TcpConnection {
        let (state, local, remote) = (
            TcpState::Established,
            local.parse().unwrap(),
            "10.0.0.9".parse().unwrap(),
        );
        TcpConnection {
            state,
            cookie: 1,
            local,
            remote,
            cgroup: None,
            measured: None,
        }
    }

    fn find(directory: &mut PeerDirectory, name: &str, address: &str) -> Option<String> {
        directory
            .find(&job(name), address.parse().unwrap())
            .map(|peer| peer.pod.clone())
    }

    #[test]
    fn addresses_are_pods_of_the_same_job_only() {
        let mut directory = PeerDirectory::default();
        directory.learn(
            &job("a"),
            &peer("w-0"),
            &[at("10.0.0.1"), at("127.0.0.1"), at("10.0.0.1")],
        );
        directory.learn(&job("b"), &peer("w-1"), &[at("10.0.0.2")]);
        assert_eq!(
            find(&mut directory, "a", "10.0.0.1").as_deref(),
            Some("w-0")
        );
        assert_eq!(
            find(&mut directory, "a", "10.0.0.2"),
            None,
            "a pod of another job"
        );
        assert_eq!(find(&mut directory, "a", "10.0.0.3"), None);
        assert_eq!(
            directory.unknown(),
            BTreeMap::from([(job("a"), BTreeSet::from(["10.0.0.3".parse().unwrap()]))])
        );
        directory.set(job("a"), [("10.0.0.3".parse().unwrap(), peer("w-3"))]);
        assert_eq!(
            find(&mut directory, "a", "10.0.0.3").as_deref(),
            Some("w-3")
        );
        assert_eq!(find(&mut directory, "b", "10.0.0.3"), None);
    }

    #[test]
    fn an_ambiguous_address_has_no_pod() {
        let mut directory = PeerDirectory::default();
        directory.learn(&job("a"), &peer("w-0"), &[at("172.17.0.1")]);
        directory.learn(&job("a"), &peer("w-1"), &[at("172.17.0.1")]);
        assert_eq!(find(&mut directory, "a", "172.17.0.1"), None);
        let address: IpAddr = "10.0.0.7".parse().unwrap();
        directory.set(job("a"), [(address, peer("w-0")), (address, peer("w-1"))]);
        assert_eq!(find(&mut directory, "a", "10.0.0.7"), None);
        assert!(directory.unknown().is_empty(), "no address is unknown");
    }

    #[test]
    fn a_learned_address_lasts_for_a_further_sample() {
        let (mut directory, of) = (
            PeerDirectory::default(),
            HashMap::from([("p".to_owned(), (job("a"), peer("w-0")))]),
        );
        directory.learn(&job("a"), &peer("w-0"), &[at("10.0.0.1")]);
        directory.begin_sample(&of);
        assert_eq!(
            find(&mut directory, "a", "10.0.0.1").as_deref(),
            Some("w-0")
        );
        directory.learn(&job("a"), &peer("w-1"), &[at("10.0.0.1")]);
        assert_eq!(
            find(&mut directory, "a", "10.0.0.1").as_deref(),
            Some("w-1"),
            "another pod has the address now"
        );
        directory.begin_sample(&of);
        directory.begin_sample(&of);
        assert_eq!(find(&mut directory, "a", "10.0.0.1"), None);
        // The listed pods of a job are dropped with the job's last pod on this node.
        directory.set(job("a"), [("10.0.0.5".parse().unwrap(), peer("w-5"))]);
        directory.begin_sample(&of);
        assert_eq!(
            find(&mut directory, "a", "10.0.0.5").as_deref(),
            Some("w-5")
        );
        directory.begin_sample(&HashMap::new());
        assert_eq!(find(&mut directory, "a", "10.0.0.5"), None);
    }
}
