//! The queries of a report to a Prometheus: the runs, the members, the usage.

use std::collections::BTreeSet;

use super::PrometheusError;
use super::source::{QuerySource, Window};
use crate::experiment::series::{
    NoRun, ObservedRun, QueriedPods, RunEnd, SeenJob, Series, StepMetric, Subject, cases, presence,
    reaches_back, scraped, scrapes, time, whether,
};

/// The number of points of a time range.
const POINTS: f64 = 240.0;

/// In how many seconds, at most, scrapes are counted.
const COUNTED: f64 = 600.0;

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
    /// A time without a run.
    #[error("{run} ({url}, query: {query})")]
    NoRun {
        run: String,
        url: String,
        query: String,
        #[source]
        why: NoRun,
    },
}

// === impl GatherError ===

impl GatherError {
    /// Whether the error means an empty report instead of a wrong query or a failed server.
    pub fn is_no_data(&self) -> bool {
        match self {
            Self::Prometheus(_) => false,
            Self::NoCase { .. } => true,
            Self::NoRun { why, .. } => !matches!(why, NoRun::Several(_)),
        }
    }
}

/// The name of a run that has only a scene and a case.
fn run_name(scene: &str, case: &str) -> String {
    format!("scene {scene} case {case}")
}

/// The runs in a time: one for each requested scene and case of the nodes' labels. Without labels
/// and without a requested case, the entire time is a single run.
///
/// # Errors
/// Prometheus has no answer, or no node had such labels.
pub async fn discover(
    source: &mut QuerySource<'_>,
    requested: &RequestedRun,
) -> Result<Vec<RequestedRun>, GatherError> {
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
        return Err(no_case(source, requested, query).await?);
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

/// Who took part in a run, how it ended, and what they used.
///
/// # Errors
/// Prometheus has no answer, nobody took part, or several jobs did.
pub async fn gather(
    source: &mut QuerySource<'_>,
    requested: &RequestedRun,
    steps: Option<&StepMetric>,
) -> Result<ObservedRun, GatherError> {
    let job = seen_job(source, requested).await?;
    let end = match job.after_the_end(requested.to) {
        None => RunEnd::Cut,
        Some((at, targets)) => job.end(&source.instant(&scraped(&targets), at).await?),
    };
    let names: Vec<&str> = job.pods.keys().map(String::as_str).collect();
    let pods = QueriedPods {
        namespace: &job.namespace,
        names: &names,
        steps,
    };
    let window = Window {
        to: job.to,
        seconds: whole_seconds(job.seconds()),
    };
    let sum = |pod: &str, reports: &[(&str, f64)]| job.sum(pod, reports);
    let used = source.usage(pods, window, sum).await?;
    Ok(ObservedRun {
        name: requested.name.clone(),
        scene: requested.subject.scene.clone(),
        case: requested.subject.case.clone(),
        end,
        used,
        job,
        step_metric: steps.map(ToString::to_string),
    })
}

/// The error for a scene or case without a labelled node. It names the cases that exist.
async fn no_case(
    source: &mut QuerySource<'_>,
    requested: &RequestedRun,
    query: String,
) -> Result<GatherError, PrometheusError> {
    let all = cases(
        &Subject::default(),
        whole_seconds(requested.to - requested.from),
    );
    let existing = pairs(&source.instant(&all, requested.to).await?);
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
        url: source.url().to_owned(),
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

/// The pods of a run with their times. The first query finds the time, the second the pods.
async fn seen_job(
    source: &mut QuerySource<'_>,
    requested: &RequestedRun,
) -> Result<SeenJob, GatherError> {
    // Both queries end after the time range, to cover all of it.
    let step = step_of(requested.to - requested.from);
    let query = whether(&requested.subject, whole_seconds(step));
    let range = (requested.from, requested.to + step);
    let any = source.range(&query, range, step).await?;
    let Some((first, last)) = first_and_last(&any) else {
        return Err(no_run(source, requested, query, NoRun::Nobody));
    };
    let (from, to) = (
        (first - reaches_back(whole_seconds(step)) as f64).max(requested.from),
        last.min(requested.to),
    );
    let step = step_of(to - from);
    let query = presence(&requested.subject, whole_seconds(step));
    let present = source.range(&query, (from, to + step), step).await?;
    let mut job = SeenJob::read(&present, from, to, step)
        .map_err(|why| no_run(source, requested, query, why))?;
    if job.interval < 2.0 * step {
        let seconds = whole_seconds(job.seconds().min(COUNTED));
        let query = scrapes(&job.last_targets(), seconds);
        let counted = source.instant(&query, job.to).await?;
        job.take_interval(&counted, seconds as f64);
    }
    Ok(job)
}

fn no_run(
    source: &QuerySource<'_>,
    requested: &RequestedRun,
    query: String,
    why: NoRun,
) -> GatherError {
    GatherError::NoRun {
        run: format!(
            "{}, {} to {}",
            requested.name,
            time(requested.from),
            time(requested.to)
        ),
        url: source.url().to_owned(),
        query,
        why,
    }
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
