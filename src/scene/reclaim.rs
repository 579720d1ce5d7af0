//! [`reclaim()`]: which parameter servers have nobody left to serve.
//!
//! Decided from the objects that are there and from nothing else: a decision that was lost is made again, and two who decide
//! come to the same. Whatever is missing, failed or unclear keeps the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::render::{PS, RECLAIM_AFTER, RECLAIM_LABEL, TASK_LABELS, WORKERS};

/// The kind of a native job's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    /// A worker.
    Job,
    /// A parameter server.
    Deployment,
    /// A task's name.
    Service,
}

/// What a Job has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It runs, or has not begun.
    #[default]
    Open,
    /// It has succeeded, then (in seconds since 1970), where that is told.
    Succeeded(Option<i64>),
    /// It has failed.
    Failed,
}

/// An object of a native job, as the API server had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its kind.
    pub kind: ItemKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// Whether it is on its way out.
    pub leaving: bool,
    /// For a Job.
    pub outcome: Outcome,
}

/// What is to be done about the parameter servers of one training job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Workers still run.
    Running {
        /// How many have succeeded.
        succeeded: u32,
        /// Of so many.
        of: u32,
    },
    /// Every worker has succeeded; the servers stay until then, in seconds since 1970.
    Waiting {
        /// The end of the wait.
        until: i64,
    },
    /// Every worker has succeeded long enough ago.
    Reclaim,
    /// The servers stay until a person has looked.
    Kept {
        /// Why.
        reason: String,
    },
}

/// A training job with parameter servers that ask to be reclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimable {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub job: String,
    /// What is to be done.
    pub verdict: Verdict,
    /// Its Deployments, and its parameter servers' Services after them.
    pub servers: Vec<Item>,
}

/// Which of these jobs' parameter servers are to go at `now`, with `after` seconds of waiting where a job names none.
pub fn reclaim(items: &[Item], now: i64, after: u32) -> Vec<Reclaimable> {
    let [name, role, _] = TASK_LABELS;
    let mut jobs: BTreeMap<(&str, &str), Vec<&Item>> = BTreeMap::new();
    for item in items.iter().filter(|item| item.asks()) {
        if let Some(job) = item.labels.get(name) {
            jobs.entry((&item.namespace, job)).or_default().push(item);
        }
    }
    let decided = jobs.into_iter().filter_map(|((namespace, job), all)| {
        let is_server = |item: &Item| {
            item.kind != ItemKind::Job
                && item.labels.get(role).is_some_and(|role| role == PS)
                && !item.leaving
        };
        let mut servers: Vec<Item> =
            all.iter().filter(|item| is_server(item)).map(|item| (*item).clone()).collect();
        servers.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        if servers.is_empty() {
            return None;
        }
        let verdict = verdict(&all, &servers, now, after).unwrap_or_else(|reason| Verdict::Kept { reason });
        Some(Reclaimable { namespace: namespace.to_owned(), job: job.to_owned(), verdict, servers })
    });
    decided.collect()
}

/// What is to be done, or why the servers are kept.
fn verdict(all: &[&Item], servers: &[Item], now: i64, after: u32) -> Result<Verdict, String> {
    let [_, role, task] = TASK_LABELS;
    let workers: Vec<&Item> = all
        .iter()
        .copied()
        .filter(|item| item.kind == ItemKind::Job && item.labels.get(role).is_some_and(|role| role != PS))
        .collect();
    let mut of: Option<u32> = None;
    for item in workers.iter().copied().chain(servers) {
        let text = item.annotations.get(WORKERS);
        let text =
            text.ok_or_else(|| format!("{item} has no annotation {WORKERS} with the number of workers"))?;
        let number: u32 = text
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| format!("{WORKERS} of {item} is {text:?}, and no number of workers"))?;
        let before = *of.get_or_insert(number);
        if before != number {
            return Err(format!("{item} says that there are {number} workers, and others say {before}"));
        }
    }
    let of = of.unwrap_or_default();
    let (mut seen, mut succeeded, mut last) = (BTreeSet::new(), 0_u32, i64::MIN);
    for worker in &workers {
        if !seen.insert((worker.labels.get(role), worker.labels.get(task))) {
            return Err(format!("{worker} is a worker that is there twice"));
        }
        match worker.outcome {
            Outcome::Failed => return Err(format!("{worker} has failed")),
            // A worker that is deleted is not one that can be counted on.
            _ if worker.leaving => return Err(format!("{worker} is being deleted")),
            Outcome::Succeeded(None) => return Err(format!("{worker} has succeeded, and doesn't say when")),
            Outcome::Succeeded(Some(at)) => {
                succeeded = succeeded.saturating_add(1);
                last = last.max(at);
            }
            Outcome::Open => {}
        }
    }
    let there = u32::try_from(workers.len()).unwrap_or(u32::MAX);
    if there != of {
        let what = if there < of { "missing" } else { "too many" };
        return Err(format!("there are {there} workers and should be {of}: {} {what}", there.abs_diff(of)));
    }
    if succeeded < of {
        return Ok(Verdict::Running { succeeded, of });
    }
    let mut wait = None;
    for server in servers {
        let Some(text) = server.annotations.get(RECLAIM_AFTER) else { continue };
        let own: u32 = text
            .parse()
            .map_err(|_| format!("{RECLAIM_AFTER} of {server} is {text:?}, and no number of seconds"))?;
        wait = wait.max(Some(own));
    }
    // Servers that are younger than the last success were made by somebody who wants them; they get the same time.
    let youngest = servers.iter().map(|server| server.created).max().unwrap_or(last);
    let until = last.max(youngest).saturating_add(i64::from(wait.unwrap_or(after)));
    Ok(if now < until { Verdict::Waiting { until } } else { Verdict::Reclaim })
}

// === impl Item ===

impl Item {
    /// Whether its job asks for it.
    fn asks(&self) -> bool {
        self.labels.get(RECLAIM_LABEL).is_some_and(|what| what == PS)
    }
}

impl fmt::Display for Item {
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
