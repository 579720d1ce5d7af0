//! The queries of a report to a Prometheus: the runs, the members, the usage.

use std::collections::{BTreeMap, BTreeSet};

use super::{Prometheus, PrometheusError};
use crate::experiment::report::{
    Answer, Curve, Measure, Members, NoMembers, ObservedRun, QueriedPods, SCRAPES_OF_A_RATE,
    Series, StepMetric, Subject, Totals, cases, presence, reaches_back, scrapes, time, whether,
};

/// The number of points of a time range.
const POINTS: f64 = 240.0;

const DRAWN: [Measure; 3] = [Measure::Sent, Measure::Cpu, Measure::Steps];

#[derive(Debug, Clone, PartialEq)]
pub struct RequestedRun {
    pub name: String,
    pub subject: Subject,
    /// From when on, in seconds since 1970.
    pub from: f64,
    /// The end, in seconds since 1970.
    pub to: f64,
}

/// The reason why a report is impossible.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// No node had the labels.
    #[error("{url} has no node that was labelled for {wanted}; {others} (query: {query})")]
    NoCase {
        url: String,
        /// Scene, case and time.
        wanted: String,
        /// The cases with data.
        others: String,
        query: String,
    },
    /// A run without members.
    #[error("{run} ({url}, query: {query})")]
    Members {
        run: String,
        url: String,
        query: String,
        #[source]
        why: NoMembers,
    },
}

// === impl GatherError ===

impl GatherError {
    /// Whether the error means an empty report instead of a wrong query or a failed server.
    pub fn is_no_data(&self) -> bool {
        match self {
            Self::Prometheus(_) => false,
            Self::NoCase { .. } => true,
            Self::Members { why, .. } => !matches!(why, NoMembers::Several(_)),
        }
    }
}

/// The name of a run that has only a scene and a case.
fn run_name(scene: &str, case: &str) -> String {
    format!("scene {scene} case {case}")
}

/// A Prometheus, and the warnings of its answers.
struct QuerySource<'a> {
    prometheus: &'a Prometheus,
    warnings: &'a mut BTreeSet<String>,
}

/// The runs in a time: one for each requested scene and case of the nodes' labels. Without labels
/// and without a requested case, the entire time is a single run. Prometheus' warnings are added to
/// `warnings`.
///
/// # Errors
/// Prometheus has no answer, or no node had such labels.
pub async fn discover(
    prometheus: &Prometheus,
    requested: &RequestedRun,
    warnings: &mut BTreeSet<String>,
) -> Result<Vec<RequestedRun>, GatherError> {
    let mut source = QuerySource {
        prometheus,
        warnings,
    };
    let query = cases(
        &requested.subject,
        whole_seconds(requested.to - requested.from),
    );
    let found = pairs(&source.instant(&query, requested.to).await?);
    let Subject { scene, case, .. } = &requested.subject;
    if found.is_empty() {
        if scene.is_none() && case.is_none() {
            return Ok(vec![requested.clone()]);
        }
        return Err(source.no_case(requested, query).await?);
    }
    let run = |(scene, case): &(String, String)| RequestedRun {
        name: run_name(scene, case),
        subject: Subject {
            scene: Some(scene.clone()),
            case: Some(case.clone()),
            ..requested.subject.clone()
        },
        ..*requested
    };
    Ok(found.iter().map(run).collect())
}

/// Scenes and cases, numbers in the order of numbers.
fn pairs(series: &[Series]) -> Vec<(String, String)> {
    let pairs: BTreeSet<(String, String)> = series
        .iter()
        .map(|series_entry| {
            (
                series_entry.label("scene").to_owned(),
                series_entry.label("case").to_owned(),
            )
        })
        .collect();
    let mut pairs: Vec<(String, String)> = pairs.into_iter().collect();
    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
    pairs.sort_by_key(|(scene, case)| (number(scene), number(case)));
    pairs
}

/// Who took part in a run, and what they used. What Prometheus warned of is added to `warnings`.
///
/// # Errors
/// Prometheus has no answer, nobody took part, or several jobs did.
pub async fn gather(
    prometheus: &Prometheus,
    requested: &RequestedRun,
    steps: Option<&StepMetric>,
    warnings: &mut BTreeSet<String>,
) -> Result<ObservedRun, GatherError> {
    let mut source = QuerySource {
        prometheus,
        warnings,
    };
    let members = source.members(requested).await?;
    let (totals, curves) = source.usage(&members, steps).await?;
    Ok(ObservedRun {
        name: requested.name.clone(),
        scene: requested.subject.scene.clone(),
        case: requested.subject.case.clone(),
        members,
        totals,
        curves,
        step_metric: steps.map(ToString::to_string),
    })
}

// === impl QuerySource ===

impl QuerySource<'_> {
    async fn instant(&mut self, query: &str, at: f64) -> Result<Vec<Series>, PrometheusError> {
        let answer = self.prometheus.instant(query, at).await?;
        Ok(self.series(answer))
    }

    async fn range(
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

    /// The error for a scene or case without a labelled node. It names the cases that exist.
    async fn no_case(
        &mut self,
        requested: &RequestedRun,
        query: String,
    ) -> Result<GatherError, PrometheusError> {
        let all = cases(
            &Subject::default(),
            whole_seconds(requested.to - requested.from),
        );
        let existing = pairs(&self.instant(&all, requested.to).await?);
        let existing: Vec<String> = existing
            .iter()
            .map(|(scene, case)| run_name(scene, case))
            .collect();
        let Subject { scene, case, .. } = &requested.subject;
        let wanted = [("scene", scene), ("case", case)];
        let wanted = wanted
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)));
        let wanted: Vec<String> = wanted.collect();
        Ok(GatherError::NoCase {
            url: self.prometheus.url().to_owned(),
            wanted: format!(
                "{} between {} and {}",
                wanted.join(" "),
                time(requested.from),
                time(requested.to)
            ),
            others: if existing.is_empty() {
                "the time range has no pinfold_scene_info: name the time of each run with --run"
                    .to_owned()
            } else {
                format!("the time range has {}", existing.join(", "))
            },
            query,
        })
    }

    /// The members of a run. The first query finds the time, the second query the pods.
    async fn members(&mut self, requested: &RequestedRun) -> Result<Members, GatherError> {
        // Both queries end after the time range, to cover all of it.
        let step = step_of(requested.to - requested.from);
        let query = whether(&requested.subject, whole_seconds(step));
        let range = (requested.from, requested.to + step);
        let presence_series = self.range(&query, range, step).await?;
        let Some((first, last)) = first_and_last(&presence_series) else {
            return Err(self.no_members(requested, query, NoMembers::Nobody));
        };
        let (from, to) = (
            (first - reaches_back(whole_seconds(step)) as f64).max(requested.from),
            last.min(requested.to),
        );
        let step = step_of(to - from);
        let query = presence(&requested.subject, whole_seconds(step));
        let present = self.range(&query, (from, to + step), step).await?;
        let mut members = Members::read(&present, from, to, step)
            .map_err(|why| self.no_members(requested, query, why))?;
        // Points that are as far apart as the scrapes don't reveal how far apart the scrapes are.
        if members.interval < 2.0 * step {
            let query = scrapes(
                &members.namespace,
                &pod_names(&members),
                whole_seconds(members.seconds()),
            );
            let counted = self.instant(&query, members.to).await?;
            members.count(&counted);
        }
        Ok(members)
    }

    fn no_members(&self, requested: &RequestedRun, query: String, why: NoMembers) -> GatherError {
        GatherError::Members {
            run: format!(
                "{}, {} to {}",
                requested.name,
                time(requested.from),
                time(requested.to)
            ),
            url: self.prometheus.url().to_owned(),
            query,
            why,
        }
    }

    /// The usage of the members: totals of the run, and curves over time.
    async fn usage(
        &mut self,
        members: &Members,
        steps: Option<&StepMetric>,
    ) -> Result<(Totals, Vec<Curve>), PrometheusError> {
        let names = pod_names(members);
        let pods = QueriedPods {
            namespace: &members.namespace,
            names: &names,
            steps,
        };
        let totals = self.totals(members, pods).await?;
        let curves = self.curves(members, pods, &totals).await?;
        Ok((totals, curves))
    }

    /// The totals of all known measures.
    async fn totals(
        &mut self,
        members: &Members,
        pods: QueriedPods<'_>,
    ) -> Result<Totals, PrometheusError> {
        let mut totals = Totals::new();
        for measure in Measure::ALL {
            let Some(query) = pods.total(measure, whole_seconds(members.seconds())) else {
                continue;
            };
            let series = self.instant(&query, members.to).await?;
            let known = total_by_pod(members, measure, &series);
            if !known.is_empty() {
                totals.insert(measure, known);
            }
        }
        Ok(totals)
    }

    /// The curves of the drawn measures with a total.
    async fn curves(
        &mut self,
        members: &Members,
        pods: QueriedPods<'_>,
        totals: &Totals,
    ) -> Result<Vec<Curve>, PrometheusError> {
        // Between two scrapes no value changes.
        let step = step_of(members.seconds()).max(members.interval.ceil());
        let over = whole_seconds((SCRAPES_OF_A_RATE * members.interval).max(step));
        let mut curves = Vec::new();
        for measure in DRAWN {
            // By sockets, if interfaces don't tell.
            let measure = match measure {
                Measure::Sent if !totals.contains_key(&Measure::Sent) => Measure::SocketSent,
                other => other,
            };
            if !totals.contains_key(&measure) {
                continue;
            }
            let Some(query) = pods.curve(measure, over) else {
                continue;
            };
            let series = self.range(&query, (members.from, members.to), step).await?;
            curves.push(curve_of(measure, series));
        }
        Ok(curves)
    }
}

fn pod_names(members: &Members) -> Vec<&str> {
    members.pods.keys().map(String::as_str).collect()
}

/// The times of the first and the last point; `None` without a point.
fn first_and_last(series: &[Series]) -> Option<(f64, f64)> {
    let times = || {
        series
            .iter()
            .flat_map(|pod_series| pod_series.points.iter().map(|(at, _)| *at))
    };
    Some((
        times().min_by(f64::total_cmp)?,
        times().max_by(f64::total_cmp)?,
    ))
}

/// The total of a measure for each pod with a value. Several targets may report a pod.
fn total_by_pod(members: &Members, measure: Measure, series: &[Series]) -> BTreeMap<String, f64> {
    let mut reports: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for pod_series in series {
        let reports = reports.entry(pod_series.label("pod")).or_default();
        reports.extend(
            pod_series
                .last()
                .map(|value| (pod_series.label("instance"), value)),
        );
    }
    reports
        .into_iter()
        .filter(|(_, reports)| !reports.is_empty())
        .map(|(pod, reports)| {
            let value = match measure {
                Measure::OwnedCpus => members.average(pod, &reports),
                _ => members.sum(pod, &reports),
            };
            (pod.to_owned(), value)
        })
        .collect()
}

fn curve_of(measure: Measure, series: Vec<Series>) -> Curve {
    let mut pods: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for pod_series in series {
        pods.entry(pod_series.label("pod").to_owned())
            .or_default()
            .extend(pod_series.points);
    }
    Curve { measure, pods }
}

/// Seconds between two points of a time.
fn step_of(seconds: f64) -> f64 {
    (seconds / POINTS).ceil().max(1.0)
}

/// Whole seconds, at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is at least 1, and whole"
)]
pub(crate) fn whole_seconds(seconds: f64) -> u64 {
    seconds.ceil().max(1.0) as u64
}
