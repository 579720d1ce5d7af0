//! [`Reclaimer`]: deletes the parameter servers of training jobs that have ended.
//!
//! [`scene::reclaim`](crate::scene::reclaim()) decides by the listed objects. Each delete has the uid and the resourceVersion
//! of the listed object as preconditions, so an object that changed after the list is listed again before a decision.
//!
//! Nothing elects a leader, because a second reclaimer does no harm: both decide the same by the same objects, the server
//! carries out each delete once, and an object that is already gone counts as deleted. Two may run for a moment, for
//! example while a node is unreachable and its pod is replaced, or because somebody runs the command beside the Deployment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use kube::core::params::{DeleteParams, ListParams, Preconditions};
use kube::core::request;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::events::{EventDetails, Recorder};
use super::list::{List, list};
use super::{Api, Call, ErrorKind, Failure};
use crate::scene::{
    ItemKind, JobOutcome, PS, RECLAIM_LABEL, ReclaimAnnotations, ReclaimItem, ReclaimLabels,
    ReclaimVerdict, Reclaimable, TASK_LABELS, reclaim,
};
use crate::text::counted;

mod controller;

/// The number of objects on a page. Memory holds a page at a time, and a Job with hundreds of hosts in the environment is large.
const PAGE: u32 = 50;

/// The maximum age of the lists for a delete. Newer lists show workers that came later.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The number of lists in a round after which changed objects wait for the next round.
const MAX_LISTS: u32 = 3;

/// The maximum length of the names in a label selector, in bytes. Proxies limit a request's URL to a few KiB.
const LONGEST_NAMES: usize = 2 << 10;

/// Deletes the parameter servers of ended jobs.
#[derive(Debug, Clone)]
pub struct Reclaimer {
    api: Api,
    /// The only namespace; `None` for all namespaces.
    namespace: Option<String>,
    /// The seconds between the job's end and the deletion, for jobs without a wait.
    after: u32,
    /// Whether the deletes are only reported.
    dry_run: bool,
    /// The queue of Events on the Jobs, if any.
    recorder: Option<Recorder>,
}

/// The result of a round over all jobs.
#[derive(Debug, Clone, Default)]
pub struct ReclaimRound {
    /// All jobs with parameter servers that ask to be reclaimed, as last listed.
    pub jobs: Vec<Reclaimable>,
    /// The deleted objects: kind, namespace and name. With a dry run, the objects to delete.
    pub deleted: Vec<(ItemKind, String, String)>,
    /// The objects with a failed delete, and the failures.
    pub failed: Vec<(ItemKind, String, String, Failure)>,
    /// The objects that changed after the last list and before the delete. The rest of the job stays, too.
    pub changed: Vec<(ItemKind, String, String)>,
    /// The TFJobs that keep parameter servers, as sentences.
    pub hints: Vec<String>,
}

/// The outcome of a delete.
enum Deletion {
    /// The object is deleted, or was deleted before.
    Done,
    /// The object has changed since the list, or a new object has the same name.
    Changed,
}

/// The fields of an object that the decision uses. The rest is skipped while the text is read.
#[derive(Deserialize)]
struct ObjectFields {
    #[serde(default)]
    metadata: MetadataFields,
    status: Option<StatusFields>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataFields {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<ReclaimLabels>,
    annotations: Option<ReclaimAnnotations>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusFields {
    conditions: Option<Vec<ConditionFields>>,
    completion_time: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionFields {
    r#type: String,
    status: String,
    last_transition_time: Option<String>,
}

/// The age of the lists that the deletes use.
struct ListAge {
    listed: Instant,
    /// Whether a delete has used the lists.
    tried: bool,
}

// === impl ListAge ===

impl ListAge {
    /// Whether the lists are too old for another delete. After a slow list, they may still serve
    /// for a single one.
    fn is_too_old(&mut self) -> bool {
        let old = self.tried && self.listed.elapsed() > MAX_AGE;
        self.tried = true;
        old
    }
}

// === impl Reclaimer ===

impl Reclaimer {
    /// A reclaimer for a namespace, or for all namespaces.
    pub fn new(api: Api, namespace: Option<String>, after: u32, dry_run: bool) -> Self {
        Self {
            api,
            namespace,
            after,
            dry_run,
            recorder: None,
        }
    }

    /// Writes Events on the Jobs, except in a dry run.
    #[must_use]
    pub fn with_recorder(self, recorder: Recorder) -> Self {
        Self {
            recorder: (!self.dry_run).then_some(recorder),
            ..self
        }
    }

    /// Queues an Event on the leading Job of a training job.
    fn tell(&self, job: &Reclaimable, warning: bool, reason: &'static str, note: String) {
        let (Some(recorder), Some(lead)) = (&self.recorder, &job.lead) else {
            return;
        };
        recorder.tell_of_job(EventDetails {
            namespace: lead.namespace.clone(),
            pod: lead.name.clone(),
            uid: lead.uid.clone(),
            warning,
            action: "Reclaim",
            reason,
            note,
        });
    }

    /// Runs a round: lists all jobs, and deletes the objects that can go.
    ///
    /// # Errors
    /// Any [`Failure`] of a list. Failed deletes are in the [`ReclaimRound`].
    pub async fn once(&self) -> Result<ReclaimRound, Failure> {
        let (mut round, mut lists) = (ReclaimRound::default(), 0);
        loop {
            let listed = Instant::now();
            let jobs = reclaim(&self.list_items().await?, now(), self.after);
            round.failed.clear();
            round.changed.clear();
            lists += 1;
            let old = self.delete_jobs(&jobs, listed, &mut round).await;
            round.jobs = jobs;
            let again =
                round.failed.is_empty() && (old || !round.changed.is_empty() && lists < MAX_LISTS);
            if !again {
                break;
            }
        }
        round.hints = self.hints().await;
        Ok(round)
    }

    /// Deletes the objects of all jobs that can go. Returns whether the lists became too old for the remaining objects.
    async fn delete_jobs(
        &self,
        jobs: &[Reclaimable],
        listed: Instant,
        round: &mut ReclaimRound,
    ) -> bool {
        let mut lists = ListAge {
            listed,
            tried: false,
        };
        for job in jobs
            .iter()
            .filter(|job| job.verdict == ReclaimVerdict::Reclaim)
        {
            let old = self.delete_job(job, &mut lists, round).await;
            if old {
                return true;
            }
        }
        false
    }

    /// Deletes the objects of a job. Returns whether the lists became too old for the remaining objects.
    async fn delete_job(
        &self,
        job: &Reclaimable,
        lists: &mut ListAge,
        round: &mut ReclaimRound,
    ) -> bool {
        let mut failed = false;
        for item in job.running.iter().chain(&job.servers) {
            let name = (item.kind, item.namespace.clone(), item.name.clone());
            if self.dry_run {
                round.deleted.push(name);
                continue;
            }
            if lists.is_too_old() {
                return true;
            }
            match self.delete(item).await {
                Ok(Deletion::Done) => round.deleted.push(name),
                // The rest of the job waits for the next list.
                Ok(Deletion::Changed) => {
                    round.changed.push(name);
                    return false;
                }
                Err(failure) => {
                    failed = true;
                    let note = format!("can't delete {} {}: {failure}", name.0, name.2);
                    self.tell(job, true, "ReclaimFailed", note);
                    round.failed.push((name.0, name.1, name.2, failure));
                    // Reclaim finds a job by its servers, so they stay until every task is deleted.
                    if item.kind == ItemKind::Job {
                        return false;
                    }
                }
            }
        }
        if !failed {
            let count = job.running.len() + job.servers.len();
            let note = format!(
                "the training job {} has ended: deleted {} of its parameter servers and running tasks",
                job.job,
                counted(count, "object")
            );
            self.tell(job, false, "Reclaimed", note);
        }
        false
    }

    /// All objects of jobs that ask to be reclaimed. The servers are listed before the workers, so
    /// that no server in a decision is newer than the list of workers.
    async fn list_items(&self) -> Result<Vec<Arc<ReclaimItem>>, Failure> {
        let reclaimable = format!("{RECLAIM_LABEL}={PS}");
        let mut items = self
            .list("apps/v1", "deployments", ItemKind::Deployment, &reclaimable)
            .await?;
        items.extend(
            self.list("v1", "services", ItemKind::Service, &reclaimable)
                .await?,
        );
        let is_server =
            |item: &&Arc<ReclaimItem>| item.labels.role.as_deref() == Some(PS) && !item.leaving;
        let servers = items
            .iter()
            .filter(is_server)
            .filter_map(|item| item.labels.name.as_ref());
        let [name, ..] = TASK_LABELS;
        let names: BTreeSet<String> = servers.filter(|name| !name.is_empty()).cloned().collect();
        // Only Jobs of training jobs with servers matter. The others are not listed, because
        // finished Jobs are large and stay in the cluster.
        for names in selectors(&names) {
            let selector = format!("{reclaimable},{name} in ({names})");
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
    ) -> Result<Vec<Arc<ReclaimItem>>, Failure> {
        let mut items = Vec::new();
        let take = |object: &RawValue| {
            items.push(Arc::new(item(kind, object)?));
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

    /// Lists the objects page by page, and passes each object to `take`.
    async fn pages(
        &self,
        path: &str,
        selector: Option<&str>,
        kind: &str,
        mut take: impl FnMut(&RawValue) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default().limit(PAGE)
        };
        let wanted = List::new(Call::Other, path, kind).with(params);
        list(&self.api, wanted, |object| take(&object)).await?;
        Ok(())
    }

    async fn delete(&self, item: &ReclaimItem) -> Result<Deletion, Failure> {
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
            .map_err(|error| self.api.unbuilt(error))?;
        match self.api.ask::<Value>(Call::Other, request).await {
            Ok(_) => Ok(Deletion::Done),
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(Deletion::Done),
            Err(failure) if failure.kind() == ErrorKind::Conflict => Ok(Deletion::Changed),
            Err(failure) => Err(failure),
        }
    }

    /// Names the TFJobs that keep parameter servers forever, because only the TFJob operator
    /// deletes objects of a TFJob.
    async fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let take = |job: &RawValue| {
            let job: Value = serde_json::from_str(job.get()).map_err(Failure::invalid)?;
            hints.extend(hint(&job));
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
            // Without TFJobs in the cluster, or without permission, only the hints are missing.
            Err(failure)
                if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Forbidden) => {}
            Err(failure) => hints.push(format!("TFJobs can't be listed: {failure}")),
        }
        hints
    }
}

// === impl ReclaimRound ===

impl ReclaimRound {
    /// The number of jobs with a verdict: running, waiting, ready for deletion, kept.
    pub fn verdicts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for job in &self.jobs {
            let index = match job.verdict {
                ReclaimVerdict::Running { .. } => 0,
                ReclaimVerdict::Waiting { .. } => 1,
                ReclaimVerdict::Reclaim => 2,
                ReclaimVerdict::Kept { .. } => 3,
            };
            if let Some(count) = counts.get_mut(index) {
                *count += 1;
            }
        }
        counts
    }
}

/// The names, joined by commas into texts that each fit into a selector.
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

/// The local time in seconds since 1970, for comparison with the API server's times. A wrong clock makes the wait equally wrong.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn seconds(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

fn text(object: &Value, path: &str) -> String {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// The part of an object that the decision uses.
fn item(kind: ItemKind, object: &RawValue) -> Result<ReclaimItem, Failure> {
    let fields: ObjectFields = serde_json::from_str(object.get()).map_err(Failure::invalid)?;
    let (metadata, status) = (fields.metadata, fields.status);
    // A delete without uid or resourceVersion would have no preconditions.
    let required = |text: Option<String>| {
        text.filter(|text| !text.is_empty()).ok_or_else(|| {
            let what = format!("a {kind} without namespace, name, uid or version");
            Failure::InvalidResponse(what)
        })
    };
    let created = metadata.creation_timestamp.as_deref().and_then(seconds);
    Ok(ReclaimItem {
        kind,
        namespace: required(metadata.namespace)?,
        name: required(metadata.name)?,
        uid: required(metadata.uid)?,
        version: required(metadata.resource_version)?,
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
        created: created.unwrap_or_default(),
        leaving: metadata.deletion_timestamp.is_some(),
        outcome: status.map(StatusFields::outcome).unwrap_or_default(),
    })
}

// === impl StatusFields ===

impl StatusFields {
    /// The outcome of a Job, by its conditions. Counts of ended pods do not matter.
    fn outcome(self) -> JobOutcome {
        let conditions = self.conditions.unwrap_or_default();
        let holds = |kind: &str| {
            let mut all = conditions.iter();
            all.find(|condition| condition.r#type == kind && condition.status == "True")
        };
        if holds("Failed").is_some() || holds("FailureTarget").is_some() {
            return JobOutcome::Failed;
        }
        match holds("Complete") {
            Some(complete) => {
                let at = self.completion_time.as_deref().and_then(seconds);
                let last = complete.last_transition_time.as_deref();
                JobOutcome::Succeeded(at.or_else(|| last.and_then(seconds)))
            }
            None => JobOutcome::Open,
        }
    }
}

/// A hint about a TFJob whose parameter servers never end.
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
        .any(|condition| condition["type"] == "Succeeded" && condition["status"] == "True");
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
    fn all_names_are_joined_into_texts_of_limited_length() {
        for count in [0, 1, 2, 1000] {
            let names: BTreeSet<String> =
                (0..count).map(|number| format!("{number:063}")).collect();
            let texts = selectors(&names);
            assert!(texts.iter().all(|text| text.len() <= LONGEST_NAMES));
            let back: Vec<&str> = texts.iter().flat_map(|text| text.split(',')).collect();
            assert_eq!(back, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
