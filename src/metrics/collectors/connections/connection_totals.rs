//! [`ConnectionTotals`]: the totals of all samples: the decisions behind the collector `connections`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::super::super::peer::Peer;
use super::peer_directory::PeerDirectory;
use crate::host::netlink::diag::{TcpConnection, TcpMeasurements, TcpState};
use crate::pod::ObjectName;

/// The bounds of the round-trip buckets in seconds: from two pods of a node to opposite ends of the world.
pub(super) const BOUNDS: [f64; 12] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0,
];

/// The totals of all pods, by the path of the pod's cgroup.
#[derive(Debug, Default)]
pub(super) struct ConnectionTotals {
    pods: HashMap<String, PodConnections>,
    /// The limit on peers with own series per pod.
    most: usize,
    /// The number of finished samples.
    samples: u64,
}

/// The totals of a pod.
#[derive(Debug, Default)]
pub(super) struct PodConnections {
    /// The number of the last sample with the pod; 0 before the first.
    last_sample: u64,
    /// Whether the pod was there at the agent's first sample.
    was_there_first: bool,
    /// Connections of the last sample in each of [`TcpState::ALL`]; `None` for a state without any connection so far.
    pub(super) states: [Option<usize>; TcpState::ALL.len()],
    pub(super) rtt: Histogram,
    /// Microseconds, as in [`TcpMeasurements`].
    pub(super) busy: u64,
    pub(super) receiver: u64,
    pub(super) buffer: u64,
    /// Traffic with each peer of the job, and with all others (`None`). Empty for a pod without a
    /// job.
    pub(super) peers: BTreeMap<Option<Peer>, Bytes>,
    /// The connections of the last sample, by cookie.
    last: HashMap<u64, TcpMeasurements>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) received: u64,
    pub(super) sent: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Histogram {
    /// The count of each bucket. The last bucket is above all bounds.
    pub(super) counts: [u64; BOUNDS.len() + 1],
    pub(super) sum: Duration,
}

// === impl Histogram ===

impl Histogram {
    fn observe(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        let bucket = BOUNDS
            .iter()
            .position(|bound| seconds <= *bound)
            .unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(value);
    }
}

// === impl PodConnections ===

impl PodConnections {
    fn count(&mut self, peer: Option<&Peer>, bytes: Bytes, most: usize) {
        let named = self.peers.keys().flatten().count();
        let counted_peer = peer
            .cloned()
            .filter(|peer| named < most || self.peers.contains_key(&Some(peer.clone())));
        let counted = self.peers.entry(counted_peer).or_default();
        counted.received = counted.received.saturating_add(bytes.received);
        counted.sent = counted.sent.saturating_add(bytes.sent);
    }
}

// === impl ConnectionTotals ===

impl ConnectionTotals {
    /// Totals with at most `most` peers per pod; 0 disables the peers.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Begins a sample of these pods.
    ///
    /// Of the pods of the agent's first sample, the connections that are found first only say from where to count. What they
    /// carried before stands in the series of the agent's predecessor, and each restart would add it once more.
    pub(super) fn begin_sample<'a>(&mut self, live: impl Iterator<Item = &'a str>) {
        if self.samples > 0 {
            return;
        }
        for pod in live {
            self.pods.entry(pod.to_owned()).or_default().was_there_first = true;
        }
    }

    /// Adds all connections of a pod in a sample.
    ///
    /// A connection of the last sample adds its increase, and a new one all of its counts. The
    /// counts of an ended connection stay as of its last sample.
    ///
    /// For a pod of a job, the bytes are also counted by peer. A peer keeps its series while the
    /// pod lives; those beyond the limit are counted together.
    pub(super) fn add<'a>(
        &mut self,
        pod: &str,
        connections: impl Iterator<Item = &'a TcpConnection>,
        job: Option<&(ObjectName, Peer)>,
        directory: &mut PeerDirectory,
    ) {
        let most = self.most;
        if !self.pods.contains_key(pod) {
            self.pods.insert(pod.to_owned(), PodConnections::default());
        }
        let Some(pod) = self.pods.get_mut(pod) else {
            return;
        };
        let is_baseline = pod.was_there_first && pod.last_sample == 0;
        pod.last_sample = self.samples + 1;
        pod.states.iter_mut().flatten().for_each(|count| *count = 0);
        let mut now = HashMap::with_capacity(pod.last.len());
        for connection in connections {
            let before = pod
                .last
                .get(&connection.cookie)
                .copied()
                .unwrap_or_default();
            // A connection in a final state has no measurements.
            let measured = connection.measured.unwrap_or(before);
            let before = if is_baseline { measured } else { before };
            // The kernel may list a connection twice if it moves during the listing.
            if now.insert(connection.cookie, measured).is_some() {
                continue;
            }
            let at = TcpState::ALL
                .iter()
                .position(|state| *state == connection.state);
            if let Some(count) = at.and_then(|at| pod.states.get_mut(at)) {
                *count = Some(count.unwrap_or(0) + 1);
            }
            let increase =
                |of: fn(&TcpMeasurements) -> u64| of(&measured).saturating_sub(of(&before));
            pod.busy = pod.busy.saturating_add(increase(|measured| measured.busy));
            pod.receiver = pod
                .receiver
                .saturating_add(increase(|measured| measured.receiver_limited));
            pod.buffer = pod
                .buffer
                .saturating_add(increase(|measured| measured.buffer_limited));
            let bytes = Bytes {
                received: increase(|measured| measured.received),
                sent: increase(|measured| measured.acknowledged),
            };
            if let Some((job, _)) = job
                && !connection.remote.is_loopback()
            {
                pod.count(directory.find(job, connection.remote), bytes, most);
            }
            // Without a new acknowledgement, the round-trip time is already counted.
            if let Some(rtt) = measured
                .rtt
                .filter(|_| increase(|measured| measured.acknowledged) > 0)
            {
                pod.rtt.observe(rtt);
            }
        }
        pod.last = now;
    }

    /// Finishes a sample, and drops removed pods.
    pub(super) fn finish_sample(&mut self, is_live: impl Fn(&str) -> bool) {
        self.samples += 1;
        self.pods.retain(|pod, _| is_live(pod));
    }

    /// The totals of a pod in the last or the current sample.
    pub(super) fn get(&self, pod: &str) -> Option<&PodConnections> {
        self.pods
            .get(pod)
            .filter(|pod| pod.last_sample >= self.samples)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use crate::pod::PodRole;

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn connection(
        cookie: u64,
        state: TcpState,
        measured: Option<TcpMeasurements>,
    ) -> TcpConnection {
        TcpConnection {
            state,
            cookie,
            local: HOST,
            remote: HOST,
            cgroup: None,
            measured,
        }
    }

    fn measured(millis: u64, busy: u64, acknowledged: u64) -> Option<TcpMeasurements> {
        let rtt = Some(Duration::from_millis(millis));
        let (receiver_limited, buffer_limited) = (busy / 2, busy / 4);
        Some(TcpMeasurements {
            rtt,
            busy,
            receiver_limited,
            buffer_limited,
            acknowledged,
            received: 0,
        })
    }

    fn sample(totals: &mut ConnectionTotals, connections: &[TcpConnection]) {
        totals.add("a", connections.iter(), None, &mut PeerDirectory::default());
        totals.finish_sample(|_| true);
    }

    fn limited(totals: &ConnectionTotals) -> [u64; 3] {
        let pod = totals.get("a").unwrap();
        [pod.busy, pod.receiver, pod.buffer]
    }

    #[test]
    fn increases_are_added_and_ended_connections_stay() {
        let mut totals = ConnectionTotals::default();
        let one = |busy, acknowledged| {
            connection(1, TcpState::Established, measured(3, busy, acknowledged))
        };
        sample(&mut totals, &[one(100, 5)]);
        assert_eq!(limited(&totals), [100, 50, 25]);
        let other = connection(2, TcpState::CloseWait, measured(200, 40, 1));
        sample(&mut totals, &[one(180, 9), other, other]);
        assert_eq!(limited(&totals), [220, 110, 55]);
        let states = totals.get("a").unwrap().states;
        assert_eq!((states[0], states[7], states[5]), (Some(1), Some(1), None));
        // The first connection is in its final state. The second is gone.
        sample(&mut totals, &[connection(1, TcpState::TimeWait, None)]);
        assert_eq!(limited(&totals), [220, 110, 55]);
        let states = totals.get("a").unwrap().states;
        assert_eq!(
            (states[0], states[7], states[5]),
            (Some(0), Some(0), Some(1))
        );
        let rtt = totals.get("a").unwrap().rtt;
        assert_eq!(
            (
                rtt.counts[6],
                rtt.counts[10],
                rtt.counts.iter().sum::<u64>()
            ),
            (2, 1, 3)
        );
        assert_eq!(rtt.sum, Duration::from_millis(206));
    }

    #[test]
    fn connections_of_the_first_sample_count_from_there_and_later_ones_from_zero() {
        let mut totals = ConnectionTotals::default();
        let one = |cookie, busy| connection(cookie, TcpState::Established, measured(3, busy, busy));
        totals.begin_sample(["a"].into_iter());
        sample(&mut totals, &[one(1, 1000)]);
        assert_eq!(limited(&totals), [0, 0, 0]);
        assert_eq!(totals.get("a").unwrap().rtt, Histogram::default());
        assert_eq!(totals.get("a").unwrap().states[0], Some(1));
        totals.begin_sample(["a", "b"].into_iter());
        sample(&mut totals, &[one(1, 1040), one(2, 400)]);
        assert_eq!(limited(&totals), [440, 220, 110]);
        totals.add(
            "b",
            [one(3, 100)].iter(),
            None,
            &mut PeerDirectory::default(),
        );
        assert_eq!(totals.get("b").unwrap().busy, 100, "a pod that came later");
    }

    #[test]
    fn a_round_trip_is_counted_once() {
        let mut totals = ConnectionTotals::default();
        for acknowledged in [0, 7, 7, 7, 8] {
            sample(
                &mut totals,
                &[connection(
                    1,
                    TcpState::Established,
                    measured(3, 9, acknowledged),
                )],
            );
        }
        assert_eq!(totals.get("a").unwrap().rtt.counts.iter().sum::<u64>(), 2);
        let silent = TcpMeasurements {
            rtt: None,
            ..measured(3, 9, 9).unwrap()
        };
        sample(
            &mut totals,
            &[connection(1, TcpState::Established, Some(silent))],
        );
        assert_eq!(totals.get("a").unwrap().rtt.counts.iter().sum::<u64>(), 2);
    }

    #[test]
    fn buckets_are_up_to_their_bounds() {
        let mut histogram = Histogram::default();
        for micros in [0, 50, 51, 1_000_000, 1_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.counts;
        assert_eq!([counts[0], counts[1], counts[11], counts[12]], [2, 1, 1, 1]);
    }

    #[test]
    fn a_pod_without_a_sample_has_no_series_and_a_removed_pod_starts_again() {
        let mut totals = ConnectionTotals::default();
        let all = [connection(1, TcpState::Established, measured(3, 100, 5))];
        sample(&mut totals, &all);
        totals.add("b", all.iter(), None, &mut PeerDirectory::default());
        assert!(totals.get("a").is_some(), "the sample is not finished");
        totals.finish_sample(|_| true);
        assert!(totals.get("a").is_none() && totals.get("b").is_some());
        // The pod was only missing in a sample, so its connections are not counted again.
        sample(&mut totals, &all);
        assert_eq!(limited(&totals), [100, 50, 25]);
        totals.finish_sample(|pod| pod != "a");
        sample(&mut totals, &[]);
        assert_eq!(limited(&totals), [0, 0, 0]);
    }

    #[test]
    fn bytes_are_counted_by_peer_and_the_rest_together() {
        let job = ObjectName::new("train", "job");
        let peer = |pod: &str| Peer {
            pod: pod.to_owned(),
            role: PodRole::Worker,
        };
        let own = (job.clone(), peer("w-9"));
        let mut directory = PeerDirectory::default();
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        directory.set(
            job,
            [1, 2, 3].map(|last| (address(last), peer(&format!("w-{last}")))),
        );
        let to = |last: u8, received, acknowledged| {
            let measured = TcpMeasurements {
                received,
                acknowledged,
                ..TcpMeasurements::default()
            };
            let remote = if last == 0 { HOST } else { address(last) };
            TcpConnection {
                remote,
                ..connection(last.into(), TcpState::Established, Some(measured))
            }
        };
        let mut totals = ConnectionTotals::new(2);
        let samples = [
            vec![to(0, 999, 999), to(1, 10, 1), to(9, 100, 5)],
            vec![to(1, 30, 2), to(2, 7, 3), to(3, 40, 4), to(9, 101, 5)],
        ];
        for connections in samples {
            totals.add("a", connections.iter(), Some(&own), &mut directory);
            totals.finish_sample(|_| true);
        }
        let bytes = |received, sent| Bytes { received, sent };
        let expected = BTreeMap::from([
            (None, bytes(141, 9)),
            (Some(peer("w-1")), bytes(30, 2)),
            (Some(peer("w-2")), bytes(7, 3)),
        ]);
        assert_eq!(totals.get("a").unwrap().peers, expected);
        let mut none = ConnectionTotals::default();
        none.add("a", [to(1, 10, 1)].iter(), None, &mut directory);
        assert!(none.get("a").unwrap().peers.is_empty());
    }

    proptest! {
        #[test]
        fn counters_never_go_back(
            samples in prop::collection::vec(prop::collection::vec((0_u64..4, 0_u64..1 << 40, 0_u64..9), 0..6), 1..20),
        ) {
            let (mut totals, mut before, mut last_count) = (ConnectionTotals::default(), [0; 3], 0);
            for connections in samples {
                let connections: Vec<TcpConnection> = connections
                    .into_iter()
                    .map(|(cookie, busy, acked)| connection(cookie, TcpState::Established, measured(1, busy, acked)))
                    .collect();
                sample(&mut totals, &connections);
                let after = limited(&totals);
                prop_assert!(after.iter().zip(before).all(|(after, before)| *after >= before));
                let pod = totals.get("a").unwrap();
                prop_assert!(pod.states[0].unwrap_or(0) <= 4);
                let count = pod.rtt.counts.iter().sum();
                prop_assert!(count >= last_count);
                (before, last_count) = (after, count);
            }
        }
    }
}
