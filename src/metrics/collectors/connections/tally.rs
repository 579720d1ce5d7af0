//! What the looks have counted: the decisions behind the `connections` collector.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::super::super::Peer;
use super::peers::{Book, Job};
use crate::host::diag::{TcpConnection, TcpMeasurements, TcpState};

/// Up to how many seconds a round trip takes, by bucket: from two pods on one node to two ends of the world.
pub(super) const BOUNDS: [f64; 12] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0,
];

/// What was counted of all pods, which are known by their cgroups.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pods: HashMap<String, Pod>,
    /// How many peers of a pod are told apart.
    most: usize,
    /// How many looks have come to their end.
    looks: u64,
}

/// What was counted of a pod.
#[derive(Debug, Default)]
pub(super) struct Pod {
    /// The look that has seen it last.
    look: u64,
    /// Connections at that look in each of [`TcpState::ALL`]; `None` for a state that there never was.
    pub(super) states: [Option<usize>; TcpState::ALL.len()],
    pub(super) rtt: Histogram,
    /// Microseconds, as in [`TcpMeasurements`].
    pub(super) busy: u64,
    pub(super) receiver: u64,
    pub(super) buffer: u64,
    /// What went to and fro between it and others of its job; `None` for everybody else. Nothing for a pod of no job.
    pub(super) peers: BTreeMap<Option<Peer>, Bytes>,
    /// Its connections at that look, by their numbers.
    last: HashMap<u64, TcpMeasurements>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) received: u64,
    pub(super) sent: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Histogram {
    /// By bucket, and last those above all bounds.
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

// === impl Pod ===

impl Pod {
    fn count(&mut self, peer: Option<&Peer>, bytes: Bytes, most: usize) {
        let named = self.peers.keys().flatten().count();
        let place = peer
            .cloned()
            .filter(|peer| named < most || self.peers.contains_key(&Some(peer.clone())));
        let counted = self.peers.entry(place).or_default();
        counted.received = counted.received.saturating_add(bytes.received);
        counted.sent = counted.sent.saturating_add(bytes.sent);
    }
}

// === impl Tally ===

impl Tally {
    /// One that tells so many peers of a pod apart; with none, nothing is counted of any.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Adds what a look has seen of a pod: all of its connections.
    ///
    /// Of a connection that was there at the look before, what it gained since counts; of another, all: it has begun since, or
    /// nobody has looked before. One that has ended keeps what it had when it was last looked at.
    ///
    /// Of a pod that belongs to a job, it also counts between whom the bytes went. A peer that has a place keeps it while the
    /// pod lives; once there are no places left, further ones are everybody else.
    pub(super) fn note<'a>(
        &mut self,
        pod: &str,
        connections: impl Iterator<Item = &'a TcpConnection>,
        job: Option<&(Job, Peer)>,
        book: &mut Book,
    ) {
        let most = self.most;
        if !self.pods.contains_key(pod) {
            self.pods.insert(pod.to_owned(), Pod::default());
        }
        let Some(pod) = self.pods.get_mut(pod) else {
            return;
        };
        pod.look = self.looks + 1;
        pod.states.iter_mut().flatten().for_each(|count| *count = 0);
        let mut now = HashMap::with_capacity(pod.last.len());
        for connection in connections {
            let before = pod
                .last
                .get(&connection.cookie)
                .copied()
                .unwrap_or_default();
            // A remnant has nothing to tell any more.
            let measured = connection.measured.unwrap_or(before);
            // The kernel's list may name one twice that moves meanwhile.
            if now.insert(connection.cookie, measured).is_some() {
                continue;
            }
            let at = TcpState::ALL
                .iter()
                .position(|state| *state == connection.state);
            if let Some(count) = at.and_then(|at| pod.states.get_mut(at)) {
                *count = Some(count.unwrap_or(0) + 1);
            }
            let gained =
                |of: fn(&TcpMeasurements) -> u64| of(&measured).saturating_sub(of(&before));
            pod.busy = pod.busy.saturating_add(gained(|it| it.busy));
            pod.receiver = pod
                .receiver
                .saturating_add(gained(|it| it.receiver_limited));
            pod.buffer = pod.buffer.saturating_add(gained(|it| it.buffer_limited));
            let bytes = Bytes {
                received: gained(|it| it.received),
                sent: gained(|it| it.acknowledged),
            };
            if let Some((job, _)) = job
                && !connection.remote.is_loopback()
            {
                pod.count(book.find(job, connection.remote), bytes, most);
            }
            // Without a new acknowledgement the time is an old one, seen before.
            if let Some(rtt) = measured.rtt.filter(|_| gained(|it| it.acknowledged) > 0) {
                pod.rtt.observe(rtt);
            }
        }
        pod.last = now;
    }

    /// A look has come to its end; pods that are not there any more are forgotten.
    pub(super) fn end(&mut self, is_there: impl Fn(&str) -> bool) {
        self.looks += 1;
        self.pods.retain(|pod, _| is_there(pod));
    }

    /// What was counted of a pod that the last look has seen, or the present one has seen already.
    pub(super) fn of(&self, pod: &str) -> Option<&Pod> {
        self.pods.get(pod).filter(|pod| pod.look >= self.looks)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use crate::pod::Role;

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

    fn look(tally: &mut Tally, connections: &[TcpConnection]) {
        tally.note("a", connections.iter(), None, &mut Book::default());
        tally.end(|_| true);
    }

    fn limited(tally: &Tally) -> [u64; 3] {
        let pod = tally.of("a").unwrap();
        [pod.busy, pod.receiver, pod.buffer]
    }

    #[test]
    fn what_is_gained_is_added_and_what_has_ended_stays() {
        let mut tally = Tally::default();
        let one = |busy, acknowledged| {
            connection(1, TcpState::Established, measured(3, busy, acknowledged))
        };
        look(&mut tally, &[one(100, 5)]);
        assert_eq!(limited(&tally), [100, 50, 25]);
        let other = connection(2, TcpState::CloseWait, measured(200, 40, 1));
        look(&mut tally, &[one(180, 9), other, other]);
        assert_eq!(limited(&tally), [220, 110, 55]);
        let states = tally.of("a").unwrap().states;
        assert_eq!((states[0], states[7], states[5]), (Some(1), Some(1), None));
        // The first has become a remnant, the other is gone.
        look(&mut tally, &[connection(1, TcpState::TimeWait, None)]);
        assert_eq!(limited(&tally), [220, 110, 55]);
        let states = tally.of("a").unwrap().states;
        assert_eq!(
            (states[0], states[7], states[5]),
            (Some(0), Some(0), Some(1))
        );
        let rtt = tally.of("a").unwrap().rtt;
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
    fn a_round_trip_is_observed_once_for_what_it_measured() {
        let mut tally = Tally::default();
        for acknowledged in [0, 7, 7, 7, 8] {
            look(
                &mut tally,
                &[connection(
                    1,
                    TcpState::Established,
                    measured(3, 9, acknowledged),
                )],
            );
        }
        assert_eq!(tally.of("a").unwrap().rtt.counts.iter().sum::<u64>(), 2);
        let silent = TcpMeasurements {
            rtt: None,
            ..measured(3, 9, 9).unwrap()
        };
        look(
            &mut tally,
            &[connection(1, TcpState::Established, Some(silent))],
        );
        assert_eq!(tally.of("a").unwrap().rtt.counts.iter().sum::<u64>(), 2);
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
    fn a_pod_that_was_not_seen_is_not_told_and_one_that_is_gone_begins_anew() {
        let mut tally = Tally::default();
        let all = [connection(1, TcpState::Established, measured(3, 100, 5))];
        look(&mut tally, &all);
        tally.note("b", all.iter(), None, &mut Book::default());
        assert!(tally.of("a").is_some(), "the look has not ended");
        tally.end(|_| true);
        assert!(tally.of("a").is_none() && tally.of("b").is_some());
        // It was only not seen: what it had is not counted again.
        look(&mut tally, &all);
        assert_eq!(limited(&tally), [100, 50, 25]);
        tally.end(|pod| pod != "a");
        look(&mut tally, &[]);
        assert_eq!(limited(&tally), [0, 0, 0]);
    }

    #[test]
    fn bytes_are_counted_by_peer_and_those_without_a_place_together() {
        let job = ("train".to_owned(), "job".to_owned());
        let peer = |pod: &str| Peer {
            pod: pod.to_owned(),
            role: Role::Worker,
        };
        let own = (job.clone(), peer("w-9"));
        let mut book = Book::default();
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        book.tell(
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
        let mut tally = Tally::new(2);
        let looks = [
            vec![to(0, 999, 999), to(1, 10, 1), to(9, 100, 5)],
            vec![to(1, 30, 2), to(2, 7, 3), to(3, 40, 4), to(9, 101, 5)],
        ];
        for connections in looks {
            tally.note("a", connections.iter(), Some(&own), &mut book);
            tally.end(|_| true);
        }
        let bytes = |received, sent| Bytes { received, sent };
        let expected = BTreeMap::from([
            (None, bytes(141, 9)),
            (Some(peer("w-1")), bytes(30, 2)),
            (Some(peer("w-2")), bytes(7, 3)),
        ]);
        assert_eq!(tally.of("a").unwrap().peers, expected);
        let mut none = Tally::default();
        none.note("a", [to(1, 10, 1)].iter(), None, &mut book);
        assert!(none.of("a").unwrap().peers.is_empty());
    }

    proptest! {
        #[test]
        fn counters_never_go_back(
            looks in prop::collection::vec(prop::collection::vec((0_u64..4, 0_u64..1 << 40, 0_u64..9), 0..6), 1..20),
        ) {
            let (mut tally, mut before, mut seen) = (Tally::default(), [0; 3], 0);
            for connections in looks {
                let connections: Vec<TcpConnection> = connections
                    .into_iter()
                    .map(|(cookie, busy, acked)| connection(cookie, TcpState::Established, measured(1, busy, acked)))
                    .collect();
                look(&mut tally, &connections);
                let after = limited(&tally);
                prop_assert!(after.iter().zip(before).all(|(after, before)| *after >= before));
                let pod = tally.of("a").unwrap();
                prop_assert!(pod.states[0].unwrap_or(0) <= 4);
                let count = pod.rtt.counts.iter().sum();
                prop_assert!(count >= seen);
                (before, seen) = (after, count);
            }
        }
    }
}
