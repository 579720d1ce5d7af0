//! [`QuerySource`]: a Prometheus that is asked several questions, and what pods used as its answers tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Prometheus, PrometheusError};
use crate::experiment::series::{Answer, Measure, QueriedPods, Series, SeriesUsage, TaskLabel};

/// How often a patient source repeats a query, and after which pause.
#[cfg(feature = "lab")]
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(10);

/// A Prometheus, and the warnings of its answers.
#[derive(Debug)]
pub struct QuerySource<'a> {
    prometheus: &'a Prometheus,
    pub warnings: BTreeSet<String>,
    /// How often a query is repeated if the server can't be reached.
    repeats: u32,
}

/// The time that totals are about: its end, in seconds since 1970, and its length.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub to: f64,
    pub seconds: u64,
}

// === impl QuerySource ===

impl<'a> QuerySource<'a> {
    pub fn new(prometheus: &'a Prometheus) -> Self {
        Self {
            prometheus,
            warnings: BTreeSet::new(),
            repeats: 0,
        }
    }

    /// A source that waits for a server that can't be reached for a while.
    #[cfg(feature = "lab")]
    pub fn patient(prometheus: &'a Prometheus) -> Self {
        Self {
            repeats: TRIES,
            ..Self::new(prometheus)
        }
    }

    pub fn url(&self) -> &str {
        self.prometheus.url()
    }

    pub(super) async fn instant(
        &mut self,
        query: &str,
        at: f64,
    ) -> Result<Vec<Series>, PrometheusError> {
        let mut left = self.repeats;
        loop {
            match self.prometheus.instant(query, at).await {
                Ok(answer) => return Ok(self.series(answer)),
                Err(PrometheusError::Connection { .. } | PrometheusError::Timeout { .. })
                    if left > 0 =>
                {
                    left -= 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn range(
        &mut self,
        query: &str,
        (from, to): (f64, f64),
        step: f64,
    ) -> Result<Vec<Series>, PrometheusError> {
        let answer = self.prometheus.range(query, from, to, step).await?;
        Ok(self.series(answer))
    }

    /// The series of an answer, whose warnings are kept.
    fn series(&mut self, answer: Answer) -> Vec<Series> {
        self.warnings.extend(answer.warnings);
        answer.series
    }

    /// A measure of pods in a time, as in [`Self::usage`]. Nothing is asked about steps without a metric.
    ///
    /// # Errors
    /// Prometheus has no answer.
    pub async fn total(
        &mut self,
        pods: QueriedPods<'_>,
        measure: Measure,
        window: Window,
        sum: impl Fn(&str, &[(&str, f64)]) -> f64,
    ) -> Result<BTreeMap<String, f64>, PrometheusError> {
        let Some(query) = pods.total(measure, window.seconds) else {
            return Ok(BTreeMap::new());
        };
        let series = self.instant(&query, window.to).await?;
        // What is no counter doesn't add up over the nodes of a pod, either.
        let amount = |pod: &str, reports: &[(&str, f64)]| match measure.is_counter() {
            true => sum(pod, reports),
            false => reports.iter().map(|(_, value)| *value).fold(0.0, f64::max),
        };
        Ok(by_pod(series.iter(), |series| series.label("pod"), amount))
    }

    /// What pods used in a time. `sum` makes one amount of a pod of what each target reported.
    ///
    /// # Errors
    /// Prometheus has no answer.
    pub async fn usage(
        &mut self,
        pods: QueriedPods<'_>,
        window: Window,
        sum: impl Fn(&str, &[(&str, f64)]) -> f64,
    ) -> Result<SeriesUsage, PrometheusError> {
        let mut usage = SeriesUsage::default();
        for measure in Measure::ALL {
            let known = self.total(pods, measure, window, &sum).await?;
            usage.totals.insert(measure, known);
        }
        for label in TaskLabel::ALL {
            let query = pods.label(label, window.seconds);
            let series = self.instant(&query, window.to).await?;
            usage.labels.insert(label, longest(label, &series));
        }
        let series = self.instant(&pods.peers(window.seconds), window.to).await?;
        let mut of_pods: BTreeMap<&str, Vec<&Series>> = BTreeMap::new();
        for series in &series {
            of_pods.entry(series.label("pod")).or_default().push(series);
        }
        for (name, own) in of_pods {
            let to_peers = by_pod(
                own.into_iter(),
                |series| series.label("peer_pod"),
                |_, reports| sum(name, reports),
            );
            usage.peers.insert(name.to_owned(), to_peers);
        }
        Ok(usage)
    }
}

/// One amount for each name, of all reports of its targets.
fn by_pod<'a>(
    series: impl Iterator<Item = &'a Series>,
    name: impl Fn(&'a Series) -> &'a str,
    sum: impl Fn(&str, &[(&str, f64)]) -> f64,
) -> BTreeMap<String, f64> {
    let mut reports: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for series in series {
        if let Some(value) = series.last() {
            let of_pod = reports.entry(name(series)).or_default();
            of_pod.push((series.label("instance"), value));
        }
    }
    let sums = reports.into_iter();
    sums.map(|(pod, reports)| (pod.to_owned(), sum(pod, &reports)))
        .collect()
}

/// The value of a label that held in most scrapes, by pod.
fn longest(label: TaskLabel, series: &[Series]) -> BTreeMap<String, String> {
    let (_, name) = label.family();
    let mut best: BTreeMap<&str, (f64, &str)> = BTreeMap::new();
    for series in series {
        let Some(scrapes) = series.last() else {
            continue;
        };
        let of_pod = best.entry(series.label("pod")).or_insert((0.0, ""));
        if scrapes > of_pod.0 {
            *of_pod = (scrapes, series.label(name));
        }
    }
    let known = best.into_iter().filter(|(_, (_, value))| !value.is_empty());
    known
        .map(|(pod, (_, value))| (pod.to_owned(), value.to_owned()))
        .collect()
}
