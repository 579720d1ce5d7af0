//! [`MeasuredInterference`]: how much programs outside the pods used the exclusive CPUs during a measurement.

use serde::Serialize;

use super::sample::Sample;
use crate::text::units;

/// The largest part of the exclusive CPUs' time that leaves a comparison reliable.
const TOLERABLE: f64 = 0.05;

/// The use of exclusive CPUs by programs outside the pods.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredInterference {
    /// The part of the exclusive CPUs' time, from 0 to 1.
    pub share: f64,
    /// The used time, in CPU seconds.
    pub seconds: f64,
    /// The true time differs from `seconds` by at most this many seconds.
    pub uncertainty: f64,
    /// The time of all exclusive CPUs, in CPU seconds.
    pub total: f64,
    /// Whether the share is small enough for a comparison with shared CPUs.
    pub reliable: bool,
}

// === impl MeasuredInterference ===

impl MeasuredInterference {
    /// The interference of `total` CPU seconds; `None` without exclusive CPUs.
    fn new(seconds: f64, uncertainty: f64, total: f64) -> Option<Self> {
        let share = seconds / total;
        (total > 0.0).then_some(Self {
            share,
            seconds,
            uncertainty,
            total,
            reliable: share <= TOLERABLE,
        })
    }

    /// The interference between two samples. `owners` are the pods with exclusive CPUs, each with
    /// the number of its CPUs. `None` if an owner lacks the counter.
    pub(super) fn between<'a>(
        before: &Sample,
        after: &Sample,
        owners: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Option<Self> {
        let length = (after.at - before.at).as_secs_f64();
        let (mut seconds, mut uncertainty, mut total) = (0.0, 0.0, 0.0);
        for (pod, cpus) in owners {
            let of = |sample: &Sample| sample.pods.get(pod)?.interference;
            let (first, last) = (of(before)?, of(after)?);
            seconds += (last.seconds - first.seconds).max(0.0);
            // The errors of both readings add up.
            uncertainty += first.error_seconds + last.error_seconds;
            total += length * cpus as f64;
        }
        Self::new(seconds, uncertainty, total)
    }

    /// The interference of several measurements together; `None` without a measurement.
    pub fn sum(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        let (mut seconds, mut uncertainty, mut total) = (0.0, 0.0, 0.0);
        for part in parts {
            seconds += part.seconds;
            uncertainty += part.uncertainty;
            total += part.total;
        }
        Self::new(seconds, uncertainty, total)
    }

    /// Why programs outside the pods can use exclusive CPUs, as a sentence.
    pub fn reason(enforcement: &str) -> &'static str {
        match enforcement {
            "partition" => {
                "With enforcement partition, kernel threads and interrupts can still do this."
            }
            _ => "Enforcement cpuset keeps only pods off the exclusive CPUs.",
        }
    }

    /// The sentences of the warning at the beginning of a bench's summary; empty if the comparison is reliable.
    pub fn warning(&self, enforcement: &str) -> Vec<String> {
        if self.reliable {
            return Vec::new();
        }
        vec![
            format!("{} {}", self.in_words(), Self::reason(enforcement)),
            "The comparison of pinned and shared runs is unreliable: repeat the bench on an idle machine."
                .to_owned(),
        ]
    }

    /// The amount, as a sentence.
    pub fn in_words(&self) -> String {
        format!(
            "Programs outside the pods used {} of the exclusive CPUs ({:.1} of {:.1} CPU seconds).",
            units::percent(self.share),
            self.seconds,
            self.total
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(seconds: f64) -> Sample {
        Sample::parse(&format!(
            "pinfold_container_interference_cpu_seconds_total{{namespace=\"demo\",pod=\"worker-0\",container=\"a\"}} {seconds}\n\
             pinfold_container_interference_cpu_error_seconds_total{{namespace=\"demo\",pod=\"worker-0\",container=\"a\"}} 0.02\n"
        ))
    }

    #[test]
    fn more_than_a_twentieth_makes_a_comparison_unreliable() {
        let before = sample(0.5);
        for (now, reliable) in [(0.5, true), (1.4, true), (1.6, false), (9.0, false)] {
            let mut after = sample(now);
            after.at = before.at + Duration::from_secs(10);
            let found = MeasuredInterference::between(&before, &after, [("worker-0", 2)]).unwrap();
            assert_eq!((found.reliable, found.total), (reliable, 20.0), "{now}");
            assert!((found.uncertainty - 0.04).abs() < 1e-9);
            let warning = found.warning("cpuset").join(" ");
            assert_eq!(warning.is_empty(), reliable);
            if now == 9.0 {
                assert_eq!(
                    warning,
                    "Programs outside the pods used 42.5 % of the exclusive CPUs (8.5 of 20.0 CPU seconds). Enforcement \
                     cpuset keeps only pods off the exclusive CPUs. The comparison of pinned and shared runs is unreliable: \
                     repeat the bench on an idle machine."
                );
            }
        }
    }

    #[test]
    fn without_a_counter_or_a_cpu_nothing_is_known() {
        let (before, mut after) = (sample(0.0), sample(1.0));
        after.at = before.at + Duration::from_secs(1);
        assert_eq!(
            MeasuredInterference::between(&before, &after, [("worker-0", 1), ("ps-0", 1)]),
            None
        );
        assert_eq!(MeasuredInterference::between(&before, &after, []), None);
        assert_eq!(MeasuredInterference::sum([]), None);
        let known = MeasuredInterference::between(&before, &after, [("worker-0", 1)]).unwrap();
        let both = MeasuredInterference::sum([known, known]).unwrap();
        assert_eq!((both.share, both.total), (known.share, 2.0));
    }
}
