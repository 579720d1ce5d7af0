//! [`SeriesUsage`]: what pods used in a time, as the series tell.

use std::collections::BTreeMap;

use super::query::{Measure, TaskLabel};
use crate::experiment::results::TaskUsage;

/// What is known of each pod, by its name. A pod without a series has no entry, rather than 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SeriesUsage {
    pub totals: BTreeMap<Measure, BTreeMap<String, f64>>,
    /// The value of each label that held longest.
    pub labels: BTreeMap<TaskLabel, BTreeMap<String, String>>,
    /// Bytes sent to each other pod.
    pub peers: BTreeMap<String, BTreeMap<String, f64>>,
}

// === impl SeriesUsage ===

impl SeriesUsage {
    /// What the pods of a task used together, within `seconds`. A measure that is known of some of the pods is the sum of those.
    ///
    /// A pod on its node's network has no interfaces of its own, so where `sockets` is set the bytes are those of the sockets.
    pub fn of(&self, pods: &[&str], sockets: bool, seconds: f64) -> TaskUsage {
        let amount = |measure: Measure| self.amount(measure, pods);
        let (sent, received) = if sockets {
            (Measure::SocketSent, Measure::SocketReceived)
        } else {
            (Measure::Sent, Measure::Received)
        };
        let exclusive_cpus = amount(Measure::ExclusiveCpus);
        // A pod that was pinned after a moment had a reason only until then.
        let not_pinned = self
            .label(TaskLabel::NotPinned, pods)
            .filter(|_| exclusive_cpus.is_none_or(|cpus| cpus <= 0.0));
        let peers = pods.iter().filter_map(|pod| self.peers.get(*pod)).flatten();
        let mut sent_to: BTreeMap<String, f64> = BTreeMap::new();
        for (peer, bytes) in peers {
            *sent_to.entry(peer.clone()).or_default() += bytes;
        }
        TaskUsage {
            observed_seconds: Some(seconds),
            cpu_seconds: amount(Measure::Cpu),
            voluntary_switches: amount(Measure::Voluntary),
            involuntary_switches: amount(Measure::Involuntary),
            run_delay_seconds: amount(Measure::RunDelay),
            sent_bytes: amount(sent),
            received_bytes: amount(received),
            instructions: amount(Measure::Instructions),
            llc_misses: amount(Measure::LlcMisses),
            quota_periods: amount(Measure::Periods),
            throttled_periods: amount(Measure::ThrottledPeriods),
            interference_seconds: amount(Measure::Interference),
            sent_to,
            exclusive_cpus,
            cpus: self.label(TaskLabel::Cpus, pods),
            threads: amount(Measure::Threads),
            threads_expected: amount(Measure::ThreadsExpected),
            threads_verdict: self.label(TaskLabel::ThreadsVerdict, pods),
            not_pinned,
        }
    }

    /// An amount of all given pods: their sum, or the greatest of what doesn't add up over time.
    pub fn amount(&self, measure: Measure, pods: &[&str]) -> Option<f64> {
        let known = self.totals.get(&measure)?;
        let values = pods.iter().filter_map(|pod| known.get(*pod).copied());
        values.reduce(if measure.is_counter() {
            |one, other| one + other
        } else {
            f64::max
        })
    }

    /// A label of the last pod that has it.
    fn label(&self, label: TaskLabel, pods: &[&str]) -> Option<String> {
        let known = self.labels.get(&label)?;
        let mut pods = pods.iter().rev();
        pods.find_map(|pod| known.get(*pod)).cloned()
    }

    /// Whether the sockets know the traffic of more pods than the interfaces.
    pub fn sockets_know_more<'a>(&self, pods: impl Iterator<Item = &'a str>) -> bool {
        let (mut interfaces, mut sockets) = (0, 0);
        for pod in pods {
            let has = |measure| self.amount(measure, &[pod]).is_some();
            interfaces += usize::from(has(Measure::Sent) || has(Measure::Received));
            sockets += usize::from(has(Measure::SocketSent) || has(Measure::SocketReceived));
        }
        sockets > interfaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(all: &[(Measure, &[(&str, f64)])]) -> SeriesUsage {
        let of = |known: &[(&str, f64)]| {
            known
                .iter()
                .map(|(pod, value)| ((*pod).to_owned(), *value))
                .collect()
        };
        let totals = all.iter().map(|(measure, known)| (*measure, of(known)));
        SeriesUsage {
            totals: totals.collect(),
            ..SeriesUsage::default()
        }
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let mut known = usage(&[
            (Measure::Cpu, &[("a", 30.0), ("b", 60.0), ("c", 1e6)]),
            (Measure::Sent, &[("a", 1000.0)]),
            (Measure::Threads, &[("a", 3.0), ("b", 5.0)]),
        ]);
        let pinned = usage(&[(Measure::ExclusiveCpus, &[("a", 0.0), ("b", 2.0)])]);
        let reason = BTreeMap::from([("a".to_owned(), "no_free_cpus".to_owned())]);
        known.labels.insert(TaskLabel::NotPinned, reason);
        let of = |known: &SeriesUsage, pods: &[&str]| known.of(pods, false, 60.0);
        let both = of(&known, &["a", "b"]);
        assert_eq!(
            (both.cpu_seconds, both.sent_bytes, both.received_bytes),
            (Some(90.0), Some(1000.0), None)
        );
        assert_eq!((both.threads, both.exclusive_cpus), (Some(5.0), None));
        assert_eq!(both.not_pinned.as_deref(), Some("no_free_cpus"));
        known.totals.extend(pinned.totals);
        assert_eq!(of(&known, &["a", "b"]).not_pinned, None, "pinned later");
        assert!(of(&known, &["a"]).not_pinned.is_some());
        let nothing = TaskUsage {
            observed_seconds: Some(60.0),
            ..TaskUsage::default()
        };
        assert_eq!(of(&known, &["d"]), nothing);
    }

    #[test]
    fn bytes_are_counted_where_more_pods_have_them() {
        let of = |usage: &SeriesUsage| usage.sockets_know_more(["a", "b"].into_iter());
        let one = usage(&[
            (Measure::Sent, &[("a", 1.0)]),
            (Measure::SocketSent, &[("a", 1.0), ("b", 2.0)]),
        ]);
        assert!(of(&one), "b uses its node's network");
        assert_eq!(one.of(&["b"], true, 1.0).sent_bytes, Some(2.0));
        let both = usage(&[
            (Measure::Received, &[("a", 1.0), ("b", 1.0)]),
            (Measure::SocketSent, &[("a", 1.0), ("b", 1.0)]),
        ]);
        assert!(!of(&both) && !of(&SeriesUsage::default()));
    }
}
