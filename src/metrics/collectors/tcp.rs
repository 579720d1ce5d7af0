//! What TCP counts in the pods' own network namespaces.
//!
//! The file with the timeouts is several times as long as that with the segments, and dear for the kernel to write. A timer that
//! runs out mostly has something sent again, or ends a connection, which the other file tells: it is read when that has
//! happened, and else once in a while, for timers that ran out without either.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::families::{
    POD_TCP_RETRANSMITTED_SEGMENTS, POD_TCP_SENT_SEGMENTS, POD_TCP_TIMEOUTS,
};
use super::super::lock;
use super::super::page::{Labels, Page};
use super::namespaces::{Network, Scope};
use super::{Outcome, Scrape};
use crate::host::proc::NamespaceTcpCounts;

/// For how long timeouts are taken to be as they were, if nothing speaks against it.
const LASTS: Duration = Duration::from_secs(60);

/// The timeouts of each namespace that were read last, by the process through which they were read.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Timeouts {
    read: HashMap<i32, Read>,
}

#[derive(Debug)]
struct Read {
    at: Instant,
    labels: Labels,
    namespace: Option<u64>,
    /// What was counted then.
    segments: NamespaceTcpCounts,
    timeouts: u64,
}

// === impl Timeouts ===

impl Timeouts {
    /// Of how many namespaces anything is known.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.read.len()
    }

    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        let (proc, networks) = (&scrape.sources.proc, scrape.networks());
        let (mut ways, mut reader) = (lock(&scrape.sources.ways), lock(&scrape.sources.reader));
        let mut sent = page.lines(&POD_TCP_SENT_SEGMENTS);
        let mut retransmitted = page.lines(&POD_TCP_RETRANSMITTED_SEGMENTS);
        let mut lines = page.lines(&POD_TCP_TIMEOUTS);
        let mut complete = networks.complete;
        let mut before = std::mem::take(&mut self.read);
        for pod in networks.pods.iter().filter(|pod| pod.scope == Scope::Pod) {
            if scrape.is_late() {
                complete = false;
                break;
            }
            let now = Instant::now();
            let counted = ways
                .segments(proc, pod.process, &mut reader)
                .and_then(|segments| {
                    let known = before
                        .remove(&pod.process.pid)
                        .filter(|read| read.holds(pod, &segments, now));
                    let read = match known {
                        Some(read) => read,
                        None => Read {
                            at: now,
                            labels: pod.labels.clone(),
                            namespace: pod.namespace,
                            segments,
                            timeouts: ways.timeouts(proc, pod.process, &mut reader)?,
                        },
                    };
                    Some((segments, read))
                });
            let Some((segments, read)) = counted else {
                // A process that has ended meanwhile has nothing to tell.
                complete &= proc.network_namespace(pod.process.pid).is_none();
                continue;
            };
            sent.put(&pod.labels, segments.sent);
            retransmitted.put(&pod.labels, segments.retransmitted);
            lines.put(&pod.labels, read.timeouts);
            self.read.insert(pod.process.pid, read);
        }
        [sent, retransmitted, lines]
            .into_iter()
            .for_each(|lines| page.add(lines));
        Outcome::of(complete)
    }
}

// === impl Read ===

impl Read {
    /// Whether the timeouts are taken to be the same still.
    fn holds(&self, pod: &Network, now: &NamespaceTcpCounts, at: Instant) -> bool {
        let same = self.labels == pod.labels && self.namespace == pod.namespace;
        let before = &self.segments;
        same && now.sent >= before.sent
            && (now.retransmitted, now.failures) == (before.retransmitted, before.failures)
            && at.saturating_duration_since(self.at) < LASTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::proc::NetnsKey;

    fn pod(name: &str, namespace: u64) -> Network {
        Network {
            labels: Labels::new(&[("pod", name)]),
            process: NetnsKey { pid: 7, number: 0 },
            namespace: Some(namespace),
            scope: Scope::Pod,
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
        let read = Read {
            at: now,
            labels,
            namespace,
            segments: counted,
            timeouts: 4,
        };
        let holds = |pod: &Network, segments: &NamespaceTcpCounts, later| {
            read.holds(pod, segments, now + Duration::from_secs(later))
        };
        assert!(holds(&pod("a", 1), &counted, 0));
        assert!(holds(
            &pod("a", 1),
            &NamespaceTcpCounts {
                sent: 1000,
                ..counted
            },
            59
        ));
        assert!(!holds(&pod("a", 1), &counted, 60));
        assert!(!holds(
            &pod("a", 1),
            &NamespaceTcpCounts {
                retransmitted: 6,
                ..counted
            },
            0
        ));
        for failures in [[2, 2, 3], [1, 3, 3], [1, 2, 4]] {
            assert!(!holds(
                &pod("a", 1),
                &NamespaceTcpCounts {
                    failures,
                    ..counted
                },
                0
            ));
        }
        assert!(
            !holds(
                &pod("a", 1),
                &NamespaceTcpCounts {
                    sent: 99,
                    ..counted
                },
                0
            ),
            "another namespace"
        );
        assert!(!holds(&pod("a", 2), &counted, 0));
        assert!(!holds(&pod("b", 1), &counted, 0));
    }
}
