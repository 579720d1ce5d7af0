//! [`RunSeries`]: what a Prometheus knows of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::steps::Progress;
use crate::experiment::report::{Measure, QueriedPods, Series, StepMetric};
use crate::experiment::results::TaskUsage;
use crate::promql::{Prometheus, PrometheusError, whole_seconds};

/// How often, and after which pause, a query is repeated.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(10);

/// The measures that a record has, and their fields.
type Field = fn(&mut TaskUsage) -> &mut Option<f64>;
const MEASURES: [(Measure, Field); 9] = [
    (Measure::Cpu, |usage| &mut usage.cpu_seconds),
    (Measure::Voluntary, |usage| &mut usage.voluntary_switches),
    (Measure::Involuntary, |usage| {
        &mut usage.involuntary_switches
    }),
    (Measure::RunDelay, |usage| &mut usage.run_delay_seconds),
    (Measure::Sent, |usage| &mut usage.sent_bytes),
    (Measure::Received, |usage| &mut usage.received_bytes),
    (Measure::Periods, |usage| &mut usage.quota_periods),
    (Measure::ThrottledPeriods, |usage| {
        &mut usage.throttled_periods
    }),
    (Measure::OwnedCpus, |usage| &mut usage.exclusive_cpus),
];

/// A Prometheus that is asked about runs.
#[derive(Debug, Clone)]
pub(super) struct RunSeries(Prometheus);

// === impl RunSeries ===

impl RunSeries {
    pub(super) fn new(prometheus: Prometheus) -> Self {
        Self(prometheus)
    }

    /// What pods used in a time, in seconds since 1970.
    ///
    /// # Errors
    /// Prometheus has no answer.
    pub(super) async fn usage(
        &self,
        namespace: &str,
        pods: &[&str],
        (from, to): (f64, f64),
    ) -> Result<BTreeMap<String, TaskUsage>, PrometheusError> {
        let seconds = whole_seconds(to - from);
        let mut usage: BTreeMap<String, TaskUsage> = BTreeMap::new();
        let queried = QueriedPods {
            namespace,
            names: pods,
            steps: None,
        };
        for (measure, field) in MEASURES {
            let Some(query) = queried.total(measure, seconds) else {
                continue;
            };
            for (pod, value) in self.by_pod(&query, to).await? {
                *field(usage.entry(pod).or_default()) = Some(value);
            }
        }
        let names = pods.join("|");
        let range = format!("{{namespace=\"{namespace}\",pod=~\"{names}\"}}[{seconds}s]");
        let peers =
            format!("sum by (pod, peer_pod) (increase(pinfold_peer_transmit_bytes_total{range}))");
        for series in self.ask(&peers, to).await? {
            let (Some(bytes), peer) = (series.last(), series.label("peer_pod").to_owned()) else {
                continue;
            };
            let usage = usage.entry(series.label("pod").to_owned()).or_default();
            usage.sent_to.insert(peer, bytes);
        }
        let verdicts = format!(
            "max by (pod, verdict) (max_over_time(pinfold_container_threads_verdict{range})) > 0"
        );
        for series in self.ask(&verdicts, to).await? {
            let usage = usage.entry(series.label("pod").to_owned()).or_default();
            usage.threads_verdict = Some(series.label("verdict").to_owned());
        }
        for usage in usage.values_mut() {
            usage.observed_seconds = Some(to - from);
        }
        Ok(usage)
    }

    /// The steps of pods in a time, from the metric that the user named.
    ///
    /// # Errors
    /// Prometheus has no answer.
    pub(super) async fn steps(
        &self,
        namespace: &str,
        pods: &[&str],
        metric: &StepMetric,
        (from, to): (f64, f64),
    ) -> Result<BTreeMap<String, Progress>, PrometheusError> {
        let queried = QueriedPods {
            namespace,
            names: pods,
            steps: Some(metric),
        };
        let Some(query) = queried.total(Measure::Steps, whole_seconds(to - from)) else {
            return Ok(BTreeMap::new());
        };
        let progress = |(pod, steps)| {
            let seconds = to - from;
            (pod, Progress { steps, seconds })
        };
        Ok(self
            .by_pod(&query, to)
            .await?
            .into_iter()
            .map(progress)
            .collect())
    }

    /// The series of an answer. A server that can't be reached is asked again for a while.
    async fn ask(&self, query: &str, at: f64) -> Result<Vec<Series>, PrometheusError> {
        let mut tries = 0;
        loop {
            match self.0.instant(query, at).await {
                Ok(answer) => return Ok(answer.series),
                Err(PrometheusError::Connection { .. } | PrometheusError::Timeout { .. })
                    if tries < TRIES =>
                {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The sum of an answer's series by pod. Of several targets that tell of a pod, the largest sum counts.
    async fn by_pod(&self, query: &str, at: f64) -> Result<BTreeMap<String, f64>, PrometheusError> {
        let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
        let label = |series: &Series, name: &str| series.label(name).to_owned();
        for series in self.ask(query, at).await? {
            let Some(value) = series.last() else { continue };
            let key = (label(&series, "pod"), label(&series, "instance"));
            *sums.entry(key).or_default() += value;
        }
        let mut pods: BTreeMap<String, f64> = BTreeMap::new();
        for ((pod, _), value) in sums {
            let largest = pods.entry(pod).or_insert(value);
            *largest = largest.max(value);
        }
        Ok(pods)
    }
}
