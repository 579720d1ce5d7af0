//! The queries of a report to a Prometheus: the runs, the members, the usage.

use std::collections::{BTreeMap, BTreeSet};

use super::{Prometheus, PrometheusError};
use crate::experiment::report::{
    Answer, Curve, Measure, Members, NoMembers, Observed, Pods, SCRAPES_OF_A_RATE, Series,
    StepMetric, Subject, Totals, cases, presence, reaches_back, scrapes, time, whether,
};

/// The number of points of a time range.
const POINTS: f64 = 240.0;

/// The drawn measures.
const DRAWN: [Measure; 3] = [Measure::Sent, Measure::Cpu, Measure::Steps];

/// A requested run.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedRun {
    /// The name.
    pub name: String,
    /// The subject.
    pub subject: Subject,
    /// From when on, in seconds since 1970.
    pub from: f64,
    /// The end, in seconds since 1970.
    pub to: f64,
}

/// The reason why a report is impossible.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// Prometheus has no answer.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// No node had the labels.
    #[error("{url} has no node that was labelled for {wanted}; {others} (query: {query})")]
    NoCase {
        /// The server.
        url: String,
        /// Scene, case and time.
        wanted: String,
        /// The cases that exist.
        others: String,
        /// The query.
        query: String,
    },
    /// A run without members.
    #[error("{run} ({url}, query: {query})")]
    Members {
        /// The run with the time.
        run: String,
        /// The server.
        url: String,
        /// The query.
        query: String,
        /// Why.
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

fn words(scene: &str, case: &str) -> String {
    format!("scene {scene} case {case}")
}

/// The runs in a time: a run for each requested scene and case of the nodes' labels. Without labels and without a
/// requested case, the entire time is a single run. Prometheus' warnings are added to `warnings`.
///
/// # Errors
/// Prometheus has no answer, or no node was labelled so.
pub async fn discover(
    prometheus: &Prometheus,
    asked: &RequestedRun,
    warnings: &mut BTreeSet<String>,
) -> Result<Vec<RequestedRun>, GatherError> {
    let seconds = whole(asked.to - asked.from);
    let query = cases(&asked.subject, seconds);
    let found = pairs(&heard(
        prometheus.instant(&query, asked.to).await?,
        warnings,
    ));
    let Subject { scene, case, .. } = &asked.subject;
    if found.is_empty() {
        if scene.is_none() && case.is_none() {
            return Ok(vec![asked.clone()]);
        }
        let any = prometheus
            .instant(&cases(&Subject::default(), seconds), asked.to)
            .await?;
        let any = pairs(&heard(any, warnings));
        let any: Vec<String> = any.iter().map(|(scene, case)| words(scene, case)).collect();
        let wanted = [("scene", scene), ("case", case)];
        let wanted = wanted
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)));
        let wanted: Vec<String> = wanted.collect();
        return Err(GatherError::NoCase {
            url: prometheus.url().to_owned(),
            wanted: format!(
                "{} between {} and {}",
                wanted.join(" "),
                time(asked.from),
                time(asked.to)
            ),
            others: if any.is_empty() {
                "the time range has no pinfold_scene_info: name the time of each run with --run"
                    .to_owned()
            } else {
                format!("the time range has {}", any.join(", "))
            },
            query,
        });
    }
    let run = |(scene, case): &(String, String)| RequestedRun {
        name: words(scene, case),
        subject: Subject {
            scene: Some(scene.clone()),
            case: Some(case.clone()),
            ..asked.subject.clone()
        },
        ..*asked
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
    asked: &RequestedRun,
    steps: Option<&StepMetric>,
    warnings: &mut BTreeSet<String>,
) -> Result<Observed, GatherError> {
    let nobody = |query: String, why| GatherError::Members {
        run: format!("{}, {} to {}", asked.name, time(asked.from), time(asked.to)),
        url: prometheus.url().to_owned(),
        query,
        why,
    };
    // The first query finds the time, the second query the pods. Both end after the time range, to cover the entire
    // range.
    let step = step_of(asked.to - asked.from);
    let query = whether(&asked.subject, whole(step));
    let presence_series = heard(
        prometheus
            .range(&query, asked.from, asked.to + step, step)
            .await?,
        warnings,
    );
    let times = || {
        presence_series
            .iter()
            .flat_map(|series_entry| series_entry.points.iter().map(|(at, _)| *at))
    };
    let (Some(first), Some(last)) = (
        times().min_by(f64::total_cmp),
        times().max_by(f64::total_cmp),
    ) else {
        return Err(nobody(query, NoMembers::Nobody));
    };
    let (from, to) = (
        (first - reaches_back(whole(step)) as f64).max(asked.from),
        last.min(asked.to),
    );
    let step = step_of(to - from);
    let query = presence(&asked.subject, whole(step));
    let present = heard(
        prometheus.range(&query, from, to + step, step).await?,
        warnings,
    );
    let mut members = Members::read(&present, from, to, step).map_err(|why| nobody(query, why))?;
    let names: Vec<String> = members.pods.keys().cloned().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Points at the distance of scrapes don't reveal the distance of scrapes.
    if members.interval < 2.0 * step {
        let query = scrapes(&members.namespace, &names, whole(members.seconds()));
        let counted = heard(prometheus.instant(&query, members.to).await?, warnings);
        members.count(&counted);
    }
    let pods = Pods {
        namespace: &members.namespace,
        names: &names,
        steps,
    };
    let mut totals = Totals::new();
    for measure in Measure::ALL {
        let Some(query) = pods.total(measure, whole(members.seconds())) else {
            continue;
        };
        let series = heard(prometheus.instant(&query, members.to).await?, warnings);
        let mut counts: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for series_entry in &series {
            let counts = counts.entry(series_entry.label("pod")).or_default();
            counts.extend(
                series_entry
                    .last()
                    .map(|value| (series_entry.label("instance"), value)),
            );
        }
        let known = counts
            .into_iter()
            .filter(|(_, counts)| !counts.is_empty())
            .map(|(pod, counts)| {
                let value = match measure {
                    Measure::OwnedCpus => members.average(pod, &counts),
                    _ => members.sum(pod, &counts),
                };
                (pod.to_owned(), value)
            });
        let known: BTreeMap<String, f64> = known.collect();
        if !known.is_empty() {
            totals.insert(measure, known);
        }
    }
    // Between two scrapes no value changes.
    let step = step_of(members.seconds()).max(members.interval.ceil());
    let over = whole((SCRAPES_OF_A_RATE * members.interval).max(step));
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
        let series = heard(
            prometheus
                .range(&query, members.from, members.to, step)
                .await?,
            warnings,
        );
        let mut pods: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for series_entry in series {
            pods.entry(series_entry.label("pod").to_owned())
                .or_default()
                .extend(series_entry.points);
        }
        curves.push(Curve { measure, pods });
    }
    Ok(Observed {
        name: asked.name.clone(),
        scene: asked.subject.scene.clone(),
        case: asked.subject.case.clone(),
        members,
        totals,
        curves,
        step_metric: steps.map(ToString::to_string),
    })
}

/// The series of an answer. Prometheus' warnings are kept.
fn heard(answer: Answer, warnings: &mut BTreeSet<String>) -> Vec<Series> {
    warnings.extend(answer.warnings);
    answer.series
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
fn whole(seconds: f64) -> u64 {
    seconds.ceil().max(1.0) as u64
}
