//! What a task, or all tasks of a role, used: sums of what is known, and nothing where nothing is.

use std::collections::BTreeMap;

use serde::Serialize;

use super::query::Measure;

/// The usage in a time range. An unknown value is `None`, and null in JSON, never 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Bytes sent.
    pub sent_bytes: Option<f64>,
    /// Bytes received.
    pub received_bytes: Option<f64>,
    /// Bytes sent each second.
    pub sent_bytes_per_second: Option<f64>,
    /// Bytes received each second.
    pub received_bytes_per_second: Option<f64>,
    /// CPU time.
    pub cpu_seconds: Option<f64>,
    /// CPUs busy on average.
    pub cpus_used: Option<f64>,
    /// CPUs owned on average.
    pub cpus_owned: Option<f64>,
    /// Part of the periods under a quota in which it ran out; null without a quota.
    pub throttled_share: Option<f64>,
    /// Time held back by the quota.
    pub throttled_seconds: Option<f64>,
    /// Threads that waited for a CPU, on average.
    pub threads_waiting: Option<f64>,
    /// Voluntary context switches each second.
    pub voluntary_switches_per_second: Option<f64>,
    /// Involuntary context switches each second.
    pub involuntary_switches_per_second: Option<f64>,
    /// Misses of the last-level cache for a thousand instructions.
    pub llc_misses_per_kiloinstruction: Option<f64>,
    /// Steps.
    pub steps: Option<f64>,
    /// Steps each second.
    pub steps_per_second: Option<f64>,
}

/// The value of each measure, by pod.
pub type Totals = BTreeMap<Measure, BTreeMap<String, f64>>;

/// Whose bytes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// The pods' own interfaces'.
    Interfaces,
    /// The pods' sockets', which also tell of pods on their node's network.
    Sockets,
}

// === impl Traffic ===

impl Traffic {
    /// The source that knows the traffic of more of the pods; the interfaces if both know of equally many.
    pub(super) fn of<'a>(totals: &Totals, pods: impl Iterator<Item = &'a String>) -> Self {
        let (mut interfaces, mut sockets) = (0, 0);
        for pod in pods {
            let has = |measure| {
                totals
                    .get(&measure)
                    .is_some_and(|known| known.contains_key(pod))
            };
            interfaces += usize::from(has(Measure::Sent) || has(Measure::Received));
            sockets += usize::from(has(Measure::SocketSent) || has(Measure::SocketReceived));
        }
        if sockets > interfaces {
            Self::Sockets
        } else {
            Self::Interfaces
        }
    }

    pub(super) fn sent(self) -> Measure {
        if self == Self::Sockets {
            Measure::SocketSent
        } else {
            Measure::Sent
        }
    }

    pub(super) fn received(self) -> Measure {
        if self == Self::Sockets {
            Measure::SocketReceived
        } else {
            Measure::Received
        }
    }
}

// === impl Usage ===

impl Usage {
    /// The usage of all given pods together in `seconds`. A measure that is known of some of the pods only is the sum of those;
    /// one that is known of none is `None`.
    pub(super) fn of(totals: &Totals, pods: &[&str], traffic: Traffic, seconds: f64) -> Self {
        let sum = |measure: Measure| {
            let known = totals.get(&measure)?;
            let mut values = pods.iter().filter_map(|pod| known.get(*pod)).peekable();
            values.peek()?;
            Some(values.sum::<f64>())
        };
        let rate = |measure: Measure| sum(measure).map(|total| total / seconds);
        // Only pods of which both measures are known count, because a part without its whole would make the share too large.
        let ratio = |part: Measure, whole: Measure| {
            let (part, whole) = (totals.get(&part)?, totals.get(&whole)?);
            let both = pods
                .iter()
                .filter_map(|pod| Some((part.get(*pod)?, whole.get(*pod)?)));
            let (part, whole) = both.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (whole > 0.0).then_some(part / whole)
        };
        Self {
            sent_bytes: sum(traffic.sent()),
            received_bytes: sum(traffic.received()),
            sent_bytes_per_second: rate(traffic.sent()),
            received_bytes_per_second: rate(traffic.received()),
            cpu_seconds: sum(Measure::Cpu),
            cpus_used: rate(Measure::Cpu),
            cpus_owned: sum(Measure::OwnedCpus),
            throttled_share: ratio(Measure::ThrottledPeriods, Measure::Periods),
            throttled_seconds: sum(Measure::ThrottledSeconds),
            threads_waiting: rate(Measure::RunDelay),
            voluntary_switches_per_second: rate(Measure::Voluntary),
            involuntary_switches_per_second: rate(Measure::Involuntary),
            llc_misses_per_kiloinstruction: ratio(Measure::LlcMisses, Measure::Instructions)
                .map(|ratio| 1000.0 * ratio),
            steps: sum(Measure::Steps),
            steps_per_second: rate(Measure::Steps),
        }
    }

    /// Context switches of both kinds each second; known only if both are.
    pub fn switches_per_second(&self) -> Option<f64> {
        Some(self.voluntary_switches_per_second? + self.involuntary_switches_per_second?)
    }

    /// Bytes in both directions; known if either direction is known.
    pub fn traffic(&self) -> Option<f64> {
        match (self.sent_bytes, self.received_bytes) {
            (None, None) => None,
            (sent, received) => Some(sent.unwrap_or_default() + received.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(all: &[(Measure, &[(&str, f64)])]) -> Totals {
        let of = |known: &[(&str, f64)]| {
            known
                .iter()
                .map(|(pod, value)| ((*pod).to_owned(), *value))
                .collect()
        };
        all.iter()
            .map(|(measure, known)| (*measure, of(known)))
            .collect()
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let totals = totals(&[
            (Measure::Cpu, &[("a", 30.0), ("b", 60.0), ("c", 1e6)]),
            (Measure::Sent, &[("a", 1000.0)]),
            (Measure::Periods, &[("a", 100.0), ("b", 300.0)]),
            (Measure::ThrottledPeriods, &[("a", 100.0), ("b", 0.0)]),
            (Measure::Instructions, &[("a", 0.0)]),
            (Measure::LlcMisses, &[("a", 0.0)]),
        ]);
        let usage = Usage::of(&totals, &["a", "b"], Traffic::Interfaces, 60.0);
        assert_eq!(
            (usage.cpu_seconds, usage.cpus_used),
            (Some(90.0), Some(1.5))
        );
        assert_eq!(
            (usage.sent_bytes, usage.received_bytes, usage.traffic()),
            (Some(1000.0), None, Some(1000.0))
        );
        assert_eq!(usage.throttled_share, Some(0.25));
        assert_eq!(
            (
                usage.llc_misses_per_kiloinstruction,
                usage.steps,
                usage.cpus_owned
            ),
            (None, None, None)
        );
        // The run of B is known; whether a quota held B back is unknown.
        let mut half = totals.clone();
        half.get_mut(&Measure::ThrottledPeriods)
            .unwrap()
            .remove("b");
        let usage = Usage::of(&half, &["a", "b"], Traffic::Interfaces, 60.0);
        assert_eq!(usage.throttled_share, Some(1.0));
        let nothing = Usage::of(&totals, &["d"], Traffic::Interfaces, 60.0);
        assert_eq!(nothing, Usage::default());
        assert_eq!(
            serde_json::to_value(&nothing).unwrap()["sentBytes"],
            serde_json::Value::Null
        );
    }

    #[test]
    fn bytes_are_counted_where_all_have_them() {
        let pods = ["a".to_owned(), "b".to_owned()];
        let of = |totals: &Totals| Traffic::of(totals, pods.iter());
        let one = totals(&[
            (Measure::Sent, &[("a", 1.0)]),
            (Measure::SocketSent, &[("a", 1.0), ("b", 1.0)]),
        ]);
        assert_eq!(of(&one), Traffic::Sockets, "b uses its node's network");
        let both = totals(&[
            (Measure::Received, &[("a", 1.0), ("b", 1.0)]),
            (Measure::SocketSent, &[("a", 1.0), ("b", 1.0)]),
        ]);
        assert_eq!(of(&both), Traffic::Interfaces);
        assert_eq!(of(&Totals::new()), Traffic::Interfaces);
    }
}
