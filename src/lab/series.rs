//! [`RunSeries`]: what a Prometheus knows of a run.

use std::collections::BTreeMap;

use super::steps::Progress;
use crate::experiment::results::TaskUsage;
use crate::experiment::series::{Measure, QueriedPods, StepMetric};
use crate::promql::{Prometheus, PrometheusError, QuerySource, Window, whole_seconds};

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
        let queried = QueriedPods {
            namespace,
            names: pods,
            steps: None,
        };
        let mut source = QuerySource::patient(&self.0);
        let used = source.usage(queried, window(from, to), largest).await?;
        let sockets = used.sockets_know_more(pods.iter().copied());
        let of = |pod: &&str| ((*pod).to_owned(), used.of(&[*pod], sockets, to - from));
        Ok(pods.iter().map(of).collect())
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
        let mut source = QuerySource::patient(&self.0);
        let window = window(from, to);
        let steps = source.total(queried, Measure::Steps, window, largest);
        let progress = |(pod, steps)| {
            let seconds = to - from;
            (pod, Progress { steps, seconds })
        };
        Ok(steps.await?.into_iter().map(progress).collect())
    }
}

fn window(from: f64, to: f64) -> Window {
    Window {
        to,
        seconds: whole_seconds(to - from),
    }
}

/// A run's pods stay where they are, so of several targets that tell of one the largest amount counts.
fn largest(_: &str, reports: &[(&str, f64)]) -> f64 {
    let values = reports.iter().map(|(_, value)| *value);
    values.max_by(f64::total_cmp).unwrap_or_default()
}
