//! The collector `tcp`: the TCP counters of the pods' own network namespaces.
//!
//! The file with the timeouts is several times as long as the one with the segments, and expensive
//! for the kernel to write. An expired timer usually causes a retransmission or ends a connection,
//! and both change the segment counters. So the timeouts are read only after such a change, and
//! otherwise once a minute for the remaining cases.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::families::{
    POD_TCP_RETRANSMITTED_SEGMENTS, POD_TCP_SENT_SEGMENTS, POD_TCP_TIMEOUTS,
};
use super::super::page::{Labels, Page};
use super::measured::CollectOutcome;
use super::pod_networks::{NetworkScope, PodNetwork};
use super::scrape::{Collector, Scrape, SharedState};
use crate::host::proc::{NamespaceTcpCounts, Proc};

/// The longest time for which a timeout count is reused.
const MAX_REUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct TcpCollector {
    /// The latest timeout count of each namespace, by the process through which it was read.
    readings: HashMap<i32, TimeoutReading>,
}

#[derive(Debug)]
struct TimeoutReading {
    at: Instant,
    labels: Labels,
    namespace: Option<u64>,
    /// The segment counters at that time.
    segments: NamespaceTcpCounts,
    timeouts: u64,
}

impl Collector for TcpCollector {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let networks = scrape.networks();
        let proc = &scrape.host.proc;
        let mut sent = page.lines(&POD_TCP_SENT_SEGMENTS);
        let mut retransmitted = page.lines(&POD_TCP_RETRANSMITTED_SEGMENTS);
        let mut timeouts = page.lines(&POD_TCP_TIMEOUTS);
        let mut complete = networks.complete;
        let mut earlier = std::mem::take(&mut self.readings);
        let own_networks = networks
            .pods
            .iter()
            .filter(|pod| pod.scope == NetworkScope::Pod);
        for pod in own_networks {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            let pid = pod.process.pid;
            let reading = TimeoutReading::of(pod, proc, scrape.state, earlier.remove(&pid));
            let Some((segments, reading)) = reading else {
                // A process that has ended has no counters.
                complete &= proc.network_namespace(pid).is_none();
                continue;
            };
            sent.put(&pod.labels, segments.sent);
            retransmitted.put(&pod.labels, segments.retransmitted);
            timeouts.put(&pod.labels, reading.timeouts);
            self.readings.insert(pid, reading);
        }
        [sent, retransmitted, timeouts]
            .into_iter()
            .for_each(|lines| page.add(lines));
        CollectOutcome::from_complete(complete)
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.readings.len()
    }
}

// === impl TimeoutReading ===

impl TimeoutReading {
    /// The current segment counters, and the timeouts: the earlier reading if still valid, else a
    /// new one.
    fn of(
        pod: &PodNetwork,
        proc: &Proc,
        state: &mut SharedState,
        earlier: Option<Self>,
    ) -> Option<(NamespaceTcpCounts, Self)> {
        let (handles, reader) = (&mut state.netns_handles, &mut state.reader);
        let now = Instant::now();
        let segments = handles.segments(proc, pod.process, reader)?;
        let reading = match earlier.filter(|earlier| earlier.is_valid(pod, &segments, now)) {
            Some(earlier) => earlier,
            None => Self {
                at: now,
                labels: pod.labels.clone(),
                namespace: pod.namespace,
                segments,
                timeouts: handles.timeouts(proc, pod.process, reader)?,
            },
        };
        Some((segments, reading))
    }

    /// Whether the timeouts are presumably unchanged.
    fn is_valid(&self, pod: &PodNetwork, now: &NamespaceTcpCounts, at: Instant) -> bool {
        let same = self.labels == pod.labels && self.namespace == pod.namespace;
        let before = &self.segments;
        same && now.sent >= before.sent
            && (now.retransmitted, now.failures) == (before.retransmitted, before.failures)
            && at.saturating_duration_since(self.at) < MAX_REUSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::proc::NetnsKey;

    fn pod(name: &str, namespace: u64) -> PodNetwork {
        PodNetwork {
            labels: Labels::new(&[("pod", name)]),
            process: NetnsKey { pid: 7, number: 0 },
            namespace: Some(namespace),
            scope: NetworkScope::Pod,
        }
    }

    #[test]
    fn timeouts_are_read_anew_when_something_may_have_run_out() {
        let counted = NamespaceTcpCounts {
            sent: 100,
            retransmitted: 5,
            failures: [1, 2, 3],
        };
        let now = Instant::now();
        let namespace = Some(1);
        let labels = pod("a", 1).labels;
        let reading = TimeoutReading {
            at: now,
            labels,
            namespace,
            segments: counted,
            timeouts: 4,
        };
        let is_valid = |pod: &PodNetwork, segments: &NamespaceTcpCounts, later| {
            reading.is_valid(pod, segments, now + Duration::from_secs(later))
        };
        assert!(is_valid(&pod("a", 1), &counted, 0));
        assert!(is_valid(
            &pod("a", 1),
            &NamespaceTcpCounts {
                sent: 1000,
                ..counted
            },
            59
        ));
        assert!(!is_valid(&pod("a", 1), &counted, 60));
        assert!(!is_valid(
            &pod("a", 1),
            &NamespaceTcpCounts {
                retransmitted: 6,
                ..counted
            },
            0
        ));
        for failures in [[2, 2, 3], [1, 3, 3], [1, 2, 4]] {
            assert!(!is_valid(
                &pod("a", 1),
                &NamespaceTcpCounts {
                    failures,
                    ..counted
                },
                0
            ));
        }
        assert!(
            !is_valid(
                &pod("a", 1),
                &NamespaceTcpCounts {
                    sent: 99,
                    ..counted
                },
                0
            ),
            "another namespace"
        );
        assert!(!is_valid(&pod("a", 2), &counted, 0));
        assert!(!is_valid(&pod("b", 1), &counted, 0));
    }
}
