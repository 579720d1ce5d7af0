//! The figures of a run, from the counters at both ends of the measurement and from the times of the steps.

use std::collections::BTreeMap;

use super::report::Metric;
use crate::experiment::statistics::percentile;
use crate::sandbox::sample::{Sample, SampledCounters};

/// The counters at a moment.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) sample: Sample,
    /// The migrations of each thread of the job so far; `None` if the kernel does not count them.
    pub(super) migrations: Option<BTreeMap<i32, u64>>,
}

/// The measured part of a run, with the counters at both ends.
#[derive(Debug)]
pub(super) struct Interval<'a> {
    /// The names of the job's pods.
    pub(super) pods: Vec<&'a str>,
    pub(super) begin: &'a Point,
    pub(super) end: &'a Point,
}

// === impl Interval ===

impl Interval<'_> {
    /// The duration, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        (self.end.sample.at - self.begin.sample.at).as_secs_f64()
    }

    /// The threads of the job's pods at the end.
    pub(super) fn threads(&self) -> u64 {
        self.pods
            .iter()
            .filter_map(|name| self.end.sample.pods.get(*name))
            .map(|counters| counters.threads)
            .sum()
    }

    /// The known figures. `step_millis` has the duration of each step, or is empty if none is
    /// known.
    pub(super) fn figures(
        &self,
        steps_per_second: f64,
        step_millis: &[f64],
    ) -> BTreeMap<Metric, f64> {
        let per_step = |per_second: Option<f64>| ratio(per_second?, steps_per_second);
        let figures = [
            (Metric::StepsPerSecond, Some(steps_per_second)),
            (Metric::StepMsP50, percentile(step_millis, 50)),
            (Metric::StepMsP99, percentile(step_millis, 99)),
            (
                Metric::ContextSwitchesPerStep,
                per_step(self.per_second(|counters| counters.context_switches)),
            ),
            (
                Metric::ThrottledPeriodsPerSecond,
                self.per_second(|counters| counters.throttled_periods),
            ),
            (
                Metric::MigrationsPerStep,
                per_step(self.migrations_per_second()),
            ),
            (
                Metric::CacheMissesPerStep,
                per_step(self.per_second(|counters| counters.llc_misses)),
            ),
        ];
        figures
            .into_iter()
            .filter_map(|(metric, value)| Some((metric, value?)))
            .collect()
    }

    /// The increase of a counter per second, over all pods of the job; `None` if a pod lacks the counter.
    fn per_second(&self, pick: fn(&SampledCounters) -> Option<u64>) -> Option<f64> {
        let mut sum = 0;
        for name in &self.pods {
            let of = |sample: &Sample| sample.pods.get(*name).and_then(pick);
            sum += of(&self.end.sample)?.saturating_sub(of(&self.begin.sample)?);
        }
        Some(sum as f64 / self.seconds())
    }

    /// The increase of the migrations per second. A terminated thread does not count, and one with
    /// a smaller number than before is a new thread with a reused id.
    fn migrations_per_second(&self) -> Option<f64> {
        let (before, after) = (
            self.begin.migrations.as_ref()?,
            self.end.migrations.as_ref()?,
        );
        let gained = after.iter().map(|(tid, now)| {
            let before = before
                .get(tid)
                .copied()
                .filter(|before| before <= now)
                .unwrap_or(0);
            now - before
        });
        Some(gained.sum::<u64>() as f64 / self.seconds())
    }
}

/// The quotient `value / base`; `None` if it is no finite number.
fn ratio(value: f64, base: f64) -> Option<f64> {
    let ratio = value / base;
    ratio.is_finite().then_some(ratio)
}
