//! Whose the addresses at the other ends of connections are: pods of the same training job on this node, as their own
//! namespaces tell, and on other nodes, as the Kubernetes API tells where it is asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::super::super::Peer;
use super::super::Subject;
use crate::host::diag::TcpConnection;

/// Addresses that are not known, for which it is asked at one time: of a job, at most.
const UNKNOWN: usize = 256;

/// A training job: its namespace and its name.
pub(super) type Job = (String, String);

/// What is known of the addresses.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// By address, the pods of this node in whose namespaces it was at the last look, and at the one before; `None` where
    /// there are several.
    here: HashMap<IpAddr, Option<(Job, Peer)>>,
    before: HashMap<IpAddr, Option<(Job, Peer)>>,
    /// Those of each job on all nodes, as far as somebody was asked; `None` for an address that several have.
    told: BTreeMap<Job, HashMap<IpAddr, Option<Peer>>>,
    /// Addresses that nobody knew at the last look.
    unknown: BTreeMap<Job, BTreeSet<IpAddr>>,
}

/// The training job of each pod, and the pod as others know it, by its cgroup.
pub(super) fn jobs(subjects: &[Subject<'_>]) -> HashMap<String, (Job, Peer)> {
    let of = |subject: &Subject<'_>| {
        let (path, _) = subject.cgroup.rsplit_once('/')?;
        let state = subject.state;
        let job = (state.namespace.clone(), state.job.clone()?);
        let peer = Peer {
            pod: state.pod.clone(),
            role: state.role,
        };
        Some((path.to_owned(), (job, peer)))
    };
    subjects.iter().filter_map(of).collect()
}

// === impl Book ===

impl Book {
    /// Begins a look: what the last one has learned counts until it is told otherwise.
    pub(super) fn begin(&mut self, jobs: &HashMap<String, (Job, Peer)>) {
        self.before = std::mem::take(&mut self.here);
        self.unknown.clear();
        let there: BTreeSet<&Job> = jobs.values().map(|(job, _)| job).collect();
        self.told.retain(|job, _| there.contains(job));
    }

    /// The connections of a namespace that a pod has for itself: what is the address of one end is the pod's.
    pub(super) fn learn(&mut self, job: &Job, peer: &Peer, connections: &[TcpConnection]) {
        for connection in connections
            .iter()
            .filter(|connection| !connection.local.is_loopback())
        {
            let known = self
                .here
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

    /// Takes what somebody told of all pods of a job.
    pub(super) fn tell(&mut self, job: Job, peers: impl IntoIterator<Item = (IpAddr, Peer)>) {
        let mut told: HashMap<IpAddr, Option<Peer>> = HashMap::new();
        for (address, peer) in peers {
            let known = told.entry(address).or_insert_with(|| Some(peer.clone()));
            if known.as_ref() != Some(&peer) {
                *known = None;
            }
        }
        self.told.insert(job, told);
    }

    /// The pod of the same job that has this address; `None` for nobody, and where it can't be told.
    pub(super) fn find(&mut self, job: &Job, address: IpAddr) -> Option<&Peer> {
        let here = self
            .here
            .get(&address)
            .or_else(|| self.before.get(&address));
        if let Some(here) = here {
            return here
                .as_ref()
                .filter(|(other, _)| other == job)
                .map(|(_, peer)| peer);
        }
        let told = self.told.get(job).and_then(|told| told.get(&address));
        if told.is_none() {
            let unknown = self.unknown.entry(job.clone()).or_default();
            if unknown.len() < UNKNOWN {
                unknown.insert(address);
            }
        }
        told?.as_ref()
    }

    /// The addresses that nobody knew at the last look.
    pub(super) fn unknown(&self) -> BTreeMap<Job, BTreeSet<IpAddr>> {
        self.unknown.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::host::diag::TcpState;
    use crate::pod::Role;

    use super::*;

    fn job(name: &str) -> Job {
        ("train".to_owned(), name.to_owned())
    }

    fn peer(pod: &str) -> Peer {
        Peer {
            pod: pod.to_owned(),
            role: Role::Worker,
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

    fn find(book: &mut Book, name: &str, address: &str) -> Option<String> {
        book.find(&job(name), address.parse().unwrap())
            .map(|peer| peer.pod.clone())
    }

    #[test]
    fn addresses_are_pods_of_the_same_job_only() {
        let mut book = Book::default();
        book.learn(
            &job("a"),
            &peer("w-0"),
            &[at("10.0.0.1"), at("127.0.0.1"), at("10.0.0.1")],
        );
        book.learn(&job("b"), &peer("w-1"), &[at("10.0.0.2")]);
        assert_eq!(find(&mut book, "a", "10.0.0.1").as_deref(), Some("w-0"));
        assert_eq!(
            find(&mut book, "a", "10.0.0.2"),
            None,
            "a pod of another job"
        );
        assert_eq!(find(&mut book, "a", "10.0.0.3"), None);
        assert_eq!(
            book.unknown(),
            BTreeMap::from([(job("a"), BTreeSet::from(["10.0.0.3".parse().unwrap()]))])
        );
        book.tell(job("a"), [("10.0.0.3".parse().unwrap(), peer("w-3"))]);
        assert_eq!(find(&mut book, "a", "10.0.0.3").as_deref(), Some("w-3"));
        assert_eq!(find(&mut book, "b", "10.0.0.3"), None);
    }

    #[test]
    fn what_several_have_is_nobodys() {
        let mut book = Book::default();
        book.learn(&job("a"), &peer("w-0"), &[at("172.17.0.1")]);
        book.learn(&job("a"), &peer("w-1"), &[at("172.17.0.1")]);
        assert_eq!(find(&mut book, "a", "172.17.0.1"), None);
        let address: IpAddr = "10.0.0.7".parse().unwrap();
        book.tell(job("a"), [(address, peer("w-0")), (address, peer("w-1"))]);
        assert_eq!(find(&mut book, "a", "10.0.0.7"), None);
        assert!(book.unknown().is_empty(), "there is nothing to ask");
    }

    #[test]
    fn what_is_learned_lasts_for_one_look_more() {
        let (mut book, of) = (
            Book::default(),
            HashMap::from([("p".to_owned(), (job("a"), peer("w-0")))]),
        );
        book.learn(&job("a"), &peer("w-0"), &[at("10.0.0.1")]);
        book.begin(&of);
        assert_eq!(find(&mut book, "a", "10.0.0.1").as_deref(), Some("w-0"));
        book.learn(&job("a"), &peer("w-1"), &[at("10.0.0.1")]);
        assert_eq!(
            find(&mut book, "a", "10.0.0.1").as_deref(),
            Some("w-1"),
            "it is somebody else's now"
        );
        book.begin(&of);
        book.begin(&of);
        assert_eq!(find(&mut book, "a", "10.0.0.1"), None);
        // What was told of a job goes with its last pod here.
        book.tell(job("a"), [("10.0.0.5".parse().unwrap(), peer("w-5"))]);
        book.begin(&of);
        assert_eq!(find(&mut book, "a", "10.0.0.5").as_deref(), Some("w-5"));
        book.begin(&HashMap::new());
        assert_eq!(find(&mut book, "a", "10.0.0.5"), None);
    }
}
