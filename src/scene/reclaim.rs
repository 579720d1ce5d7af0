//! [`reclaim()`]: the parameter servers of jobs that have ended.
//!
//! A job with a chief has ended when the chief has succeeded, since workers of TensorFlow's parameter server strategy
//! run until they are deleted. A job without a chief, or with the annotation [`SUCCESS_POLICY`], has ended when all
//! workers have succeeded.
//!
//! Only the existing objects decide, so a lost decision is made again, and two reclaimers decide
//! the same. Missing, failed or unclear tasks keep the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::native_job::{
    ALL_WORKERS, CHIEF, EVALUATOR, PS, RECLAIM_AFTER, SUCCESS_POLICY, WORKERS,
};
use crate::text::{counted, duration};

/// The kind of a native job's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    /// A worker, a chief or an evaluator.
    Job,
    /// A parameter server.
    Deployment,
    /// A task's name.
    Service,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobOutcome {
    /// The Job runs, or has not begun.
    #[default]
    Open,
    /// The Job has succeeded. The time in seconds since 1970, if known.
    Succeeded(Option<i64>),
    Failed,
}

/// The labels by which an object takes part in a training job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReclaimLabels {
    /// The training job's name.
    pub name: Option<String>,
    /// The task's role.
    #[serde(rename = "job")]
    pub role: Option<String>,
    /// The task's index.
    pub task: Option<String>,
    /// What may be reclaimed: [`RECLAIM_LABEL`](super::RECLAIM_LABEL).
    #[serde(rename = "pinfold.io/reclaim")]
    pub reclaim: Option<String>,
}

/// The annotations that decide when the servers go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReclaimAnnotations {
    /// The number of workers: [`WORKERS`].
    #[serde(rename = "pinfold.io/workers")]
    pub workers: Option<String>,
    /// The wait after the job's end: [`RECLAIM_AFTER`].
    #[serde(rename = "pinfold.io/reclaim-after")]
    pub after: Option<String>,
    /// What ends the job: [`SUCCESS_POLICY`].
    #[serde(rename = "pinfold.io/success-policy")]
    pub success_policy: Option<String>,
}

/// An object of a native job, as the API server had it. It has only what decides, because a cluster keeps thousands of finished
/// Jobs, each often with a large copy of its own manifest in an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimItem {
    pub kind: ItemKind,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: String,
    pub labels: ReclaimLabels,
    pub annotations: ReclaimAnnotations,
    /// The creation time, in seconds since 1970.
    pub created: i64,
    /// Whether the object is being deleted.
    pub leaving: bool,
    pub outcome: JobOutcome,
}

/// The decision about the parameter servers of a training job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReclaimVerdict {
    /// The job has not ended: tasks whose success ends the job still run.
    Running {
        /// The number of tasks that have succeeded.
        succeeded: u32,
        /// The number of all tasks.
        of: u32,
    },
    /// The job has ended, but its servers stay for a while.
    Waiting {
        /// The end of the wait, in seconds since 1970.
        until: i64,
    },
    /// The job has ended long enough ago.
    Reclaim,
    /// The servers stay until a person has looked.
    Kept { reason: String },
}

/// A training job with parameter servers that ask to be reclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimable {
    pub namespace: String,
    pub job: String,
    pub verdict: ReclaimVerdict,
    /// Whether the chief's success ends the job.
    pub by_chief: bool,
    /// The Job that gets the Events about the training job: a chief, or else a worker.
    pub lead: Option<Arc<ReclaimItem>>,
    /// The Jobs that still run after the job's end, which the reclaimer deletes before the servers.
    pub running: Vec<Arc<ReclaimItem>>,
    /// The job's Deployments, followed by the parameter servers' Services.
    pub servers: Vec<Arc<ReclaimItem>>,
}

/// The decisions about the jobs' parameter servers at `now`. `after` is the wait in seconds for jobs without a wait.
pub fn reclaim(items: &[Arc<ReclaimItem>], now: i64, after: u32) -> Vec<Reclaimable> {
    let mut jobs: BTreeMap<(&str, &str), Vec<&Arc<ReclaimItem>>> = BTreeMap::new();
    for item in items.iter().filter(|item| item.asks()) {
        if let Some(job) = &item.labels.name {
            jobs.entry((&item.namespace, job)).or_default().push(item);
        }
    }
    let decided = jobs.into_iter().filter_map(|((namespace, job), all)| {
        let is_server =
            |item: &ReclaimItem| item.kind != ItemKind::Job && role(item) == PS && !item.leaving;
        let mut servers: Vec<Arc<ReclaimItem>> = all
            .iter()
            .filter(|item| is_server(item))
            .map(|item| Arc::clone(item))
            .collect();
        servers.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        if servers.is_empty() {
            return None;
        }
        let jobs: Vec<&Arc<ReclaimItem>> = all
            .into_iter()
            .filter(|item| item.kind == ItemKind::Job)
            .collect();
        let ended = ended(&jobs, &servers);
        let by_chief = ended.as_ref().is_ok_and(|ended| ended.by_chief);
        let (verdict, running) = ended
            .and_then(|ended| verdict(&ended, &jobs, &servers, (now, after)))
            .unwrap_or_else(|reason| (ReclaimVerdict::Kept { reason }, Vec::new()));
        let (namespace, job) = (namespace.to_owned(), job.to_owned());
        Some(Reclaimable {
            namespace,
            job,
            verdict,
            by_chief,
            lead: lead(&jobs).cloned(),
            running,
            servers,
        })
    });
    decided.collect()
}

/// The Job that gets the Events: the first chief, or else the first Job by name.
fn lead<'a>(jobs: &[&'a Arc<ReclaimItem>]) -> Option<&'a Arc<ReclaimItem>> {
    let order =
        |item: &&&Arc<ReclaimItem>| (role(item) != CHIEF, item.name.len(), item.name.clone());
    jobs.iter().min_by_key(order).copied()
}

/// How far a job is on its way to the end.
struct JobEnd {
    by_chief: bool,
    /// The number of succeeded tasks among the tasks whose success ends the job.
    succeeded: u32,
    /// The number of tasks whose success ends the job.
    of: u32,
    /// The time of the last success, in seconds since 1970.
    last: i64,
}

fn role(item: &ReclaimItem) -> &str {
    item.labels.role.as_deref().unwrap_or_default()
}

/// How far a job is, or why that is not known.
fn ended(jobs: &[&Arc<ReclaimItem>], servers: &[Arc<ReclaimItem>]) -> Result<JobEnd, String> {
    let workers: Vec<&Arc<ReclaimItem>> = jobs
        .iter()
        .copied()
        .filter(|item| !["", PS, EVALUATOR].contains(&role(item)))
        .collect();
    let mut all_workers = false;
    for item in jobs.iter().copied().chain(servers) {
        let Some(policy) = &item.annotations.success_policy else {
            continue;
        };
        if policy != ALL_WORKERS {
            return Err(format!(
                "{SUCCESS_POLICY} of {item} is {policy:?}: write {ALL_WORKERS}, or remove the annotation for the default"
            ));
        }
        all_workers = true;
    }
    let chiefs: Vec<&Arc<ReclaimItem>> = workers
        .iter()
        .copied()
        .filter(|item| role(item) == CHIEF)
        .collect();
    if !chiefs.is_empty() && !all_workers {
        // Workers of a job that has ended may be deleted already, and their number does not matter.
        let (succeeded, last) = successes(&chiefs)?;
        let of = u32::try_from(chiefs.len()).unwrap_or(u32::MAX);
        return Ok(JobEnd {
            by_chief: true,
            succeeded,
            of,
            last,
        });
    }
    let of = promised(&workers, servers)?;
    let (succeeded, last) = successes(&workers)?;
    let worker_count = u32::try_from(workers.len()).unwrap_or(u32::MAX);
    if worker_count != of {
        let what = if worker_count < of {
            "missing"
        } else {
            "too many"
        };
        let exist = if worker_count == 1 { "exists" } else { "exist" };
        let (there_now, off) = (counted(worker_count, "worker"), worker_count.abs_diff(of));
        return Err(format!(
            "{there_now} {exist}, but the job has {of}: {off} {what}"
        ));
    }
    Ok(JobEnd {
        by_chief: false,
        succeeded,
        of,
        last,
    })
}

/// The number of workers that all of the job's objects name.
fn promised(workers: &[&Arc<ReclaimItem>], servers: &[Arc<ReclaimItem>]) -> Result<u32, String> {
    let mut of: Option<u32> = None;
    for item in workers.iter().copied().chain(servers) {
        let text = item.annotations.workers.as_ref();
        let text = text.ok_or_else(|| {
            format!("{item} has no annotation {WORKERS} with the number of workers")
        })?;
        let number: u32 = text
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| {
                format!("{WORKERS} of {item} is {text:?}: write the number of workers")
            })?;
        let before = *of.get_or_insert(number);
        if before != number {
            return Err(format!(
                "{item} names {}, but other objects of the job name {before}",
                counted(number, "worker")
            ));
        }
    }
    Ok(of.unwrap_or_default())
}

/// The number of succeeded tasks, and the time of the last success.
fn successes(tasks: &[&Arc<ReclaimItem>]) -> Result<(u32, i64), String> {
    let (mut counted_tasks, mut succeeded, mut last) = (BTreeSet::new(), 0_u32, i64::MIN);
    for item in tasks {
        if !counted_tasks.insert((role(item), &item.labels.task)) {
            return Err(format!(
                "{item} repeats the index of another {}",
                role(item)
            ));
        }
        match item.outcome {
            JobOutcome::Failed => return Err(format!("{item} has failed")),
            // A task that is being deleted does not count as running.
            _ if item.leaving => return Err(format!("{item} is being deleted")),
            JobOutcome::Succeeded(None) => {
                return Err(format!("{item} has succeeded, but has no completion time"));
            }
            JobOutcome::Succeeded(Some(at)) => {
                succeeded = succeeded.saturating_add(1);
                last = last.max(at);
            }
            JobOutcome::Open => {}
        }
    }
    Ok((succeeded, last))
}

/// What is to be done at `now` with `after` seconds of waiting, and which Jobs still run although the job has ended; or why the
/// servers are kept.
fn verdict(
    ended: &JobEnd,
    jobs: &[&Arc<ReclaimItem>],
    servers: &[Arc<ReclaimItem>],
    (now, after): (i64, u32),
) -> Result<(ReclaimVerdict, Vec<Arc<ReclaimItem>>), String> {
    let JobEnd {
        succeeded,
        of,
        last,
        ..
    } = *ended;
    if succeeded < of {
        return Ok((ReclaimVerdict::Running { succeeded, of }, Vec::new()));
    }
    let runs = |item: &&Arc<ReclaimItem>| {
        item.outcome == JobOutcome::Open && !item.leaving && !role(item).is_empty()
    };
    let running: Vec<Arc<ReclaimItem>> = jobs.iter().copied().filter(runs).cloned().collect();
    let mut wait = None;
    for server in servers {
        let Some(text) = &server.annotations.after else {
            continue;
        };
        let own = duration::read_seconds(text)
            .map_err(|remedy| format!("{RECLAIM_AFTER} of {server} is {text:?}: {remedy}"))?;
        wait = wait.max(Some(own));
    }
    // Whoever creates an object after the last success wants it, so the wait starts at the
    // creation.
    let youngest = servers
        .iter()
        .chain(&running)
        .map(|item| item.created)
        .max()
        .unwrap_or(last);
    let until = last
        .max(youngest)
        .saturating_add(i64::from(wait.unwrap_or(after)));
    Ok((
        if now < until {
            ReclaimVerdict::Waiting { until }
        } else {
            ReclaimVerdict::Reclaim
        },
        running,
    ))
}

// === impl ReclaimItem ===

impl ReclaimItem {
    /// Whether the item's job asks for reclaim.
    fn asks(&self) -> bool {
        self.labels.reclaim.as_deref() == Some(PS)
    }
}

impl fmt::Display for ReclaimItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "Job",
            Self::Deployment => "Deployment",
            Self::Service => "Service",
        })
    }
}
