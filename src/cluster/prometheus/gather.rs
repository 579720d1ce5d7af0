//! What a report needs, asked of a Prometheus: which runs there were, who took part, what they used.

use std::collections::{BTreeMap, BTreeSet};

use super::{Prometheus, PrometheusError};
use crate::scene::report::{
    Curve, Measure, Members, NoMembers, Observed, Pods, Series, StepMetric, Subject, Totals, cases, presence,
    time,
};

/// How many points a time is divided into.
const POINTS: f64 = 240.0;

/// A rate needs samples: over so many scrapes.
const SCRAPES_OF_A_RATE: f64 = 4.0;

/// What is drawn.
const DRAWN: [Measure; 3] = [Measure::Sent, Measure::Cpu, Measure::Steps];

/// A run that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// What it is called.
    pub name: String,
    /// Which tasks.
    pub subject: Subject,
    /// From when on, in seconds since 1970.
    pub from: f64,
    /// Until when.
    pub to: f64,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// Prometheus has no answer.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// No node was labelled so.
    #[error(
        "{url} knows of no node that was labelled for {wanted} between {from} and {to}; {others} (asked for {query})"
    )]
    NoCase {
        /// The server.
        url: String,
        /// Scene and case.
        wanted: String,
        /// The time.
        from: String,
        /// Its end.
        to: String,
        /// What there was instead.
        others: String,
        /// The query.
        query: String,
    },
    /// Nobody to report of.
    #[error("{run}, {from} to {to}: {why} ({url} was asked for {query})")]
    Members {
        /// The run.
        run: String,
        /// The time.
        from: String,
        /// Its end.
        to: String,
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
    /// Whether there is nothing to report of, rather than something wrong with the question or the server.
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

/// The runs in a time: one for each scene and case that nodes were labelled for, of those that are asked for; without any such
/// label, and if none is asked for, everything is one run.
///
/// # Errors
/// Prometheus has no answer, or no node was labelled so.
pub async fn discover(prometheus: &Prometheus, asked: &Asked) -> Result<Vec<Asked>, GatherError> {
    let seconds = whole(asked.to - asked.from);
    let query = cases(&asked.subject, seconds);
    let found = pairs(&prometheus.instant(&query, asked.to).await?.series);
    let Subject { scene, case, .. } = &asked.subject;
    if found.is_empty() {
        if scene.is_none() && case.is_none() {
            return Ok(vec![asked.clone()]);
        }
        let any = pairs(&prometheus.instant(&cases(&Subject::default(), seconds), asked.to).await?.series);
        let any: Vec<String> = any.iter().map(|(scene, case)| words(scene, case)).collect();
        let wanted = [
            scene.as_ref().map(|scene| format!("scene {scene}")),
            case.as_ref().map(|case| format!("case {case}")),
        ];
        return Err(GatherError::NoCase {
            url: prometheus.url().to_owned(),
            wanted: wanted.into_iter().flatten().collect::<Vec<_>>().join(" "),
            from: time(asked.from),
            to: time(asked.to),
            others: if any.is_empty() {
                "it has no pinfold_scene_info at all then: name the time of each run with --run".to_owned()
            } else {
                format!("there were {}", any.join(", "))
            },
            query,
        });
    }
    let run = |(scene, case): &(String, String)| Asked {
        name: words(scene, case),
        subject: Subject { scene: Some(scene.clone()), case: Some(case.clone()), ..asked.subject.clone() },
        ..*asked
    };
    Ok(found.iter().map(run).collect())
}

/// Scenes and cases, numbers in the order of numbers.
fn pairs(series: &[Series]) -> Vec<(String, String)> {
    let pairs: BTreeSet<(String, String)> =
        series.iter().map(|one| (one.label("scene").to_owned(), one.label("case").to_owned())).collect();
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
    asked: &Asked,
    steps: Option<&StepMetric>,
    warnings: &mut BTreeSet<String>,
) -> Result<Observed, GatherError> {
    let step = ((asked.to - asked.from) / POINTS).ceil().max(1.0);
    let query = presence(&asked.subject);
    let answer = prometheus.range(&query, asked.from, asked.to, step).await?;
    warnings.extend(answer.warnings);
    let members = Members::read(&answer.series, asked.from, asked.to, step).map_err(|why| {
        let (run, url) = (asked.name.clone(), prometheus.url().to_owned());
        GatherError::Members { run, from: time(asked.from), to: time(asked.to), url, query, why }
    })?;
    let names: Vec<&str> = members.pods.keys().map(String::as_str).collect();
    let pods = Pods { namespace: &members.namespace, names: &names, steps };
    let mut totals = Totals::new();
    for measure in Measure::ALL {
        let Some(query) = pods.total(measure, whole(members.seconds())) else { continue };
        let answer = prometheus.instant(&query, members.to).await?;
        warnings.extend(answer.warnings);
        let known = answer.series.iter().filter_map(|one| Some((one.label("pod").to_owned(), one.last()?)));
        let known: BTreeMap<String, f64> = known.collect();
        if !known.is_empty() {
            totals.insert(measure, known);
        }
    }
    // Between two scrapes nothing is new.
    let step = (members.seconds() / POINTS).max(members.interval).ceil().max(1.0);
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
        let Some(query) = pods.curve(measure, over) else { continue };
        let answer = prometheus.range(&query, members.from, members.to, step).await?;
        warnings.extend(answer.warnings);
        let pods = answer.series.into_iter().map(|one| (one.label("pod").to_owned(), one.points));
        curves.push(Curve { measure, pods: pods.collect() });
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

/// Whole seconds, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is at least 1, and whole")]
fn whole(seconds: f64) -> u64 {
    seconds.ceil().max(1.0) as u64
}
