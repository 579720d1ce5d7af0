//! Parameter servers that have nobody left to serve: looks at the objects, deletes what is to go, and looks again.
//!
//! [`scene::reclaim`](crate::scene::reclaim()) decides. What is deleted is exactly what was looked at (uid and version), so that
//! of two who decide the second finds nothing to do, and what was changed meanwhile is looked at anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use kube::core::params::{DeleteParams, ListParams, Preconditions};
use kube::core::request;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::list::{List, list};
use super::{Api, Backoff, Call, ErrorKind, Failure, Jitter};
use crate::scene::{
    Item, ItemKind, Outcome, PS, RECLAIM_LABEL, Reclaimable, TASK_LABELS, Verdict, reclaim,
};

/// Objects of a page: Jobs with hundreds of hosts in their environment are large, and one page is kept at a time.
const PAGE: u32 = 50;

/// So long a look is good for deletes: workers that come later must be seen.
const FRESH: Duration = Duration::from_secs(5);

/// How often what was changed meanwhile is looked at again at once.
const LOOKS: u32 = 3;

/// The longest wait after a look that came to nothing, unless looks are further apart anyway.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The longest text of names in one selector: addresses of a request may be some KiB, by what is in between.
const LONGEST_NAMES: usize = 2 << 10;

/// What reclaims, and how.
#[derive(Debug, Clone)]
pub struct Reclaimer {
    api: Api,
    /// The only namespace that is looked at.
    namespace: Option<String>,
    /// Seconds after the last worker, where a job names none.
    after: u32,
    /// Whether nothing is deleted.
    dry_run: bool,
}

/// What a look at all jobs has led to.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// All jobs that ask for it and have parameter servers, as they were found.
    pub jobs: Vec<Reclaimable>,
    /// What is gone now: kind, namespace and name; with a dry run, what would be.
    pub deleted: Vec<(ItemKind, String, String)>,
    /// What could not be deleted.
    pub failed: Vec<(ItemKind, String, String, Failure)>,
    /// What was to be deleted and was changed by somebody each time before it was: nothing is decided about the rest of its job.
    pub changed: Vec<(ItemKind, String, String)>,
    /// TFJobs that keep their parameter servers, in words.
    pub hints: Vec<String>,
}

/// What became of a delete.
enum Gone {
    /// It is gone, by us or by somebody else.
    Yes,
    /// It is not what was looked at.
    Changed,
}

// === impl Reclaimer ===

impl Reclaimer {
    /// One that looks at a namespace, or at all.
    pub fn new(api: Api, namespace: Option<String>, after: u32, dry_run: bool) -> Self {
        Self {
            api,
            namespace,
            after,
            dry_run,
        }
    }

    /// Looks at all jobs once, and deletes what is to go.
    ///
    /// # Errors
    /// Any [`Failure`] of a look: nothing is decided then. What can't be deleted is in the [`Round`].
    pub async fn once(&self) -> Result<Round, Failure> {
        let (mut round, mut looks) = (Round::default(), 0);
        loop {
            let looked = Instant::now();
            round.jobs = reclaim(&self.look().await?, now(), self.after);
            round.failed.clear();
            round.changed.clear();
            looks += 1;
            let (mut old, mut tried) = (false, false);
            for job in round
                .jobs
                .iter()
                .filter(|job| job.verdict == Verdict::Reclaim)
            {
                for item in job.running.iter().chain(&job.servers) {
                    let name = (item.kind, item.namespace.clone(), item.name.clone());
                    if self.dry_run {
                        round.deleted.push(name);
                        continue;
                    }
                    // One at least for each look, however long that took.
                    old = tried && looked.elapsed() > FRESH;
                    if old {
                        break;
                    }
                    tried = true;
                    match self.delete(item).await {
                        Ok(Gone::Yes) => round.deleted.push(name),
                        // What is left of the job waits for another look.
                        Ok(Gone::Changed) => {
                            round.changed.push(name);
                            break;
                        }
                        Err(failure) => {
                            round.failed.push((name.0, name.1, name.2, failure));
                            // Reclaim finds a job by its servers, so they stay until every task of the job is gone.
                            if item.kind == ItemKind::Job {
                                break;
                            }
                        }
                    }
                }
                if old {
                    break;
                }
            }
            let again =
                round.failed.is_empty() && (old || !round.changed.is_empty() && looks < LOOKS);
            if !again {
                break;
            }
        }
        round.hints = self.hints().await;
        Ok(round)
    }

    /// Looks again and again until `stop`, and tells of every round and of every look that came to nothing.
    pub async fn watch(
        &self,
        every: Duration,
        stop: &CancellationToken,
        mut tell: impl FnMut(Result<Round, Failure>),
    ) {
        let mut backoff = Backoff::new(every, longest(every));
        let mut jitter = Jitter::default();
        loop {
            // Cancel safe: a round that is cut off has deleted only what was to go, and the next one finds the rest.
            let round = tokio::select! {
                round = self.once() => round,
                () = stop.cancelled() => return,
            };
            let trouble = match &round {
                Ok(round) => round
                    .failed
                    .first()
                    .map(|(_, _, _, failure)| failure.retry_after()),
                Err(failure) => Some(failure.retry_after()),
            };
            let wait = match (trouble, &round) {
                (Some(asked), _) => backoff.wait(jitter.roll(), asked),
                (None, Ok(round)) => {
                    backoff.reset();
                    round.next(now()).map_or(every, |due| due.min(every))
                }
                (None, Err(_)) => every,
            };
            tell(round);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// All objects of jobs that ask for it. Servers are read first: what they are deleted by is never newer than the workers
    /// that they are judged by.
    async fn look(&self) -> Result<Vec<Item>, Failure> {
        let asks = format!("{RECLAIM_LABEL}={PS}");
        let mut items = self
            .list("apps/v1", "deployments", ItemKind::Deployment, &asks)
            .await?;
        items.extend(
            self.list("v1", "services", ItemKind::Service, &asks)
                .await?,
        );
        let [name, role, _] = TASK_LABELS;
        let is_server =
            |item: &&Item| item.labels.get(role).is_some_and(|role| role == PS) && !item.leaving;
        let servers = items
            .iter()
            .filter(is_server)
            .filter_map(|item| item.labels.get(name));
        let names: BTreeSet<String> = servers.filter(|name| !name.is_empty()).cloned().collect();
        // Without servers there is nothing to decide: other Jobs, which are large, and stay when they are done, are left alone.
        for names in selectors(&names) {
            let selector = format!("{asks},{name} in ({names})");
            items.extend(
                self.list("batch/v1", "jobs", ItemKind::Job, &selector)
                    .await?,
            );
        }
        Ok(items)
    }

    async fn list(
        &self,
        version: &str,
        plural: &str,
        kind: ItemKind,
        selector: &str,
    ) -> Result<Vec<Item>, Failure> {
        let mut items = Vec::new();
        let take = |object: &Value| {
            items.push(item(kind, object)?);
            Ok(())
        };
        self.pages(
            &self.path(version, plural),
            Some(selector),
            &format!("{kind}List"),
            take,
        )
        .await?;
        Ok(items)
    }

    fn path(&self, version: &str, plural: &str) -> String {
        let group = if version == "v1" {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{version}")
        };
        match &self.namespace {
            Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}"),
            None => format!("{group}/{plural}"),
        }
    }

    /// Hands over what is listed, object by object.
    async fn pages(
        &self,
        path: &str,
        selector: Option<&str>,
        kind: &str,
        mut take: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default().limit(PAGE)
        };
        let wanted = List::new(Call::Other, path, kind).with(params);
        list(&self.api, wanted, |object| {
            take(&serde_json::from_str(object.get()).map_err(Failure::invalid)?)
        })
        .await?;
        Ok(())
    }

    async fn delete(&self, item: &Item) -> Result<Gone, Failure> {
        let (version, plural) = match item.kind {
            ItemKind::Job => ("batch/v1", "jobs"),
            ItemKind::Deployment => ("apps/v1", "deployments"),
            ItemKind::Service => ("v1", "services"),
        };
        let group = if version == "v1" {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{version}")
        };
        let path = format!("{group}/namespaces/{}/{plural}", item.namespace);
        let preconditions = Preconditions {
            uid: Some(item.uid.clone()),
            resource_version: Some(item.version.clone()),
        };
        let params = DeleteParams::background().preconditions(preconditions);
        let request = request::Request::new(path)
            .delete(&item.name, &params)
            .map_err(Failure::unbuilt)?;
        match self.api.ask::<Value>(Call::Other, request).await {
            Ok(_) => Ok(Gone::Yes),
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(Gone::Yes),
            Err(failure) if failure.kind() == ErrorKind::Conflict => Ok(Gone::Changed),
            Err(failure) => Err(failure),
        }
    }

    /// TFJobs are their operator's; those that keep their parameter servers for ever are named.
    async fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let take = |job: &Value| {
            hints.extend(hint(job));
            Ok(())
        };
        let listed = self
            .pages(
                &self.path("kubeflow.org/v1", "tfjobs"),
                None,
                "TFJobList",
                take,
            )
            .await;
        match listed {
            Ok(()) => {}
            // Not installed, or nobody lets us look: the hint is all that is lost.
            Err(failure)
                if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Forbidden) => {}
            Err(failure) => hints.push(format!("TFJobs can't be looked at: {failure}")),
        }
        hints
    }
}

// === impl Round ===

impl Round {
    /// The time until the first wait of a job is over.
    fn next(&self, now: i64) -> Option<Duration> {
        let waits = self.jobs.iter().filter_map(|job| match job.verdict {
            Verdict::Waiting { until } => u64::try_from(until.saturating_sub(now)).ok(),
            _ => None,
        });
        waits
            .min()
            .map(|seconds| Duration::from_secs(seconds.max(1)))
    }
}

/// The longest wait of somebody who looks so often.
fn longest(every: Duration) -> Duration {
    every.saturating_mul(8).min(LONGEST_WAIT.max(every))
}

/// The names with commas between them, in texts that are short enough for a selector each.
fn selectors(names: &BTreeSet<String>) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for name in names {
        match texts
            .last_mut()
            .filter(|text| text.len() + name.len() < LONGEST_NAMES)
        {
            Some(text) => {
                text.push(',');
                text.push_str(name);
            }
            None => texts.push(name.clone()),
        }
    }
    texts
}

/// The clock that is compared with the API server's times. Where it is wrong by some seconds, the wait is.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn seconds(time: &Value) -> Option<i64> {
    time.as_str()?
        .parse::<Timestamp>()
        .ok()
        .map(|time| time.as_second())
}

fn text(object: &Value, path: &str) -> String {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn texts(object: &Value, path: &str) -> BTreeMap<String, String> {
    let pairs = object
        .pointer(path)
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    pairs
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// An object as the decision sees it.
fn item(kind: ItemKind, object: &Value) -> Result<Item, Failure> {
    let item = Item {
        kind,
        namespace: text(object, "/metadata/namespace"),
        name: text(object, "/metadata/name"),
        uid: text(object, "/metadata/uid"),
        version: text(object, "/metadata/resourceVersion"),
        labels: texts(object, "/metadata/labels"),
        annotations: texts(object, "/metadata/annotations"),
        created: object
            .pointer("/metadata/creationTimestamp")
            .and_then(seconds)
            .unwrap_or_default(),
        leaving: object
            .pointer("/metadata/deletionTimestamp")
            .is_some_and(|time| !time.is_null()),
        outcome: outcome(object),
    };
    // Without them a delete would have no preconditions.
    if [&item.namespace, &item.name, &item.uid, &item.version]
        .iter()
        .any(|text| text.is_empty())
    {
        return Err(Failure::InvalidResponse(format!(
            "a {kind} without namespace, name, uid or version"
        )));
    }
    Ok(item)
}

/// What a Job has come to, by its conditions: a count of pods that have ended is none.
fn outcome(object: &Value) -> Outcome {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let holds = |kind: &str| {
        let mut all = conditions.into_iter().flatten();
        all.find(|one| one["type"] == kind && one["status"] == "True")
    };
    if holds("Failed").is_some() || holds("FailureTarget").is_some() {
        return Outcome::Failed;
    }
    match holds("Complete") {
        Some(complete) => {
            let at = object.pointer("/status/completionTime").and_then(seconds);
            Outcome::Succeeded(at.or_else(|| seconds(&complete["lastTransitionTime"])))
        }
        None => Outcome::Open,
    }
}

/// What is to be said about a TFJob whose parameter servers nobody ends.
fn hint(job: &Value) -> Option<String> {
    let servers = job.pointer("/spec/tfReplicaSpecs/PS")?;
    let count = servers.get("replicas").and_then(Value::as_i64).unwrap_or(1);
    let policy = job
        .pointer("/spec/runPolicy/cleanPodPolicy")
        .and_then(Value::as_str)
        .unwrap_or("None");
    if policy != "None" || count == 0 {
        return None;
    }
    let (namespace, name) = (
        text(job, "/metadata/namespace"),
        text(job, "/metadata/name"),
    );
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    let succeeded = conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Succeeded" && one["status"] == "True");
    let what = if succeeded {
        "has succeeded and keeps"
    } else {
        "will keep"
    };
    Some(format!(
        "TFJob {namespace}/{name} {what} its parameter servers ({count}): cleanPodPolicy is None; spec.runPolicy.cleanPodPolicy: \
         Running lets its operator end them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_no_reason_to_stay_away_for_hours() {
        let wait = |every| longest(Duration::from_secs(every)).as_secs();
        assert_eq!([1, 15, 60, 300, 3600].map(wait), [8, 120, 300, 300, 3600]);
    }

    #[test]
    fn names_are_split_into_short_texts_and_none_is_lost() {
        for count in [0, 1, 2, 1000] {
            let names: BTreeSet<String> = (0..count).map(|at| format!("{at:063}")).collect();
            let texts = selectors(&names);
            assert!(texts.iter().all(|text| text.len() <= LONGEST_NAMES));
            let back: Vec<&str> = texts.iter().flat_map(|text| text.split(',')).collect();
            assert_eq!(back, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
