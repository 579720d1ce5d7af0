//! [`PlanStatusWriter`]: writes the status of each ScenePlan.
//!
//! ```text
//!  ScenePlans ─┐
//!  Nodes ──────┼─ watches ─> plan_status() ── differs ─> apply to sceneplans/status
//!  claims ─────┘
//! ```
//!
//! The writer also removes claims beyond one for each node and case. Usually the thief of an agent's token made them. An agent
//! may make a second claim after a lost answer, and most often gives it up itself within the time that the writer waits. The
//! removal does no harm then, because both choose the claim to keep by the same rule.
//!
//! A cluster has a single writer, the reclaimer. Each write reaches the watches of all agents, so
//! the writer pauses between two passes, the longer the more slots there are. It writes only
//! differences, and only while all three watches work. A status follows only from the three
//! collections and the stored status, so two writers agree after a write or two.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::{Patch, PatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::claims::{ClaimOwner, ClaimSettings, Claims, Holder, MANAGED_BY, holder_of};
use super::informer::Collection;
use super::objects::{Objects, follow};
use super::scenes::{PLAN_LIST, PLANS, read_plan};
use super::watch::Identity;
use super::{Api, Backoff, Call, ErrorKind, Failure, Jitter, MANAGER};
use crate::pod::ObjectName;
use crate::scene::{ClusterView, Node, ScenePlan, ScenePlanStatus, plan_status, unreadable_status};
use crate::text::counted;

/// The field manager of the status.
const STATUS_MANAGER: &str = "pinfold-status";

/// The most surplus claims that a pass removes. Each removal takes milliseconds, and the next pass sees newer data.
const MAX_REMOVALS: usize = 200;

/// The waits of the writer.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanStatusSettings {
    /// The wait after a change, since changes come in groups.
    pub settle: Duration,
    /// The shortest pause between two passes.
    pub pause: Duration,
    /// The addition to `pause` for each wanted slot.
    pub pause_per_slot: Duration,
    /// The shortest and the longest wait after a failed write.
    pub backoff: (Duration, Duration),
    /// How long a node may hold a second claim on slots of a case. After a lost answer, an agent may hold one for a moment.
    pub surplus_after: Duration,
}

impl Default for PlanStatusSettings {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(1),
            pause: Duration::from_secs(5),
            pause_per_slot: Duration::from_millis(3),
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            surplus_after: Duration::from_secs(60),
        }
    }
}

/// Writes the status of each plan, if it differs from the stored one.
#[derive(Debug, Clone)]
pub struct PlanStatusWriter {
    api: Api,
    /// The namespace of the claims.
    namespace: String,
    settings: PlanStatusSettings,
}

/// A plan as stored. The status is separate.
#[derive(Debug, PartialEq)]
struct StoredPlan {
    uid: String,
    generation: Option<i64>,
    /// The plan without the status, or why it is unreadable.
    plan: Result<ScenePlan, String>,
    /// The stored status; `None` also for an unreadable status.
    status: Option<ScenePlanStatus>,
}

/// The watched collections: the plans, the labels of the Nodes, and the holders of the claims.
struct Collections {
    plans: watch::Receiver<Objects<StoredPlan>>,
    nodes: watch::Receiver<Objects<BTreeMap<String, String>>>,
    claims: watch::Receiver<Objects<Holder>>,
}

/// What follows from the collections.
#[derive(Default)]
struct StatusPass {
    differences: Vec<Difference>,
    /// The number of wanted slots of all plans.
    slots: u32,
    /// The claims beyond one for each node and case, by the name of the Lease.
    surplus: BTreeMap<String, Holder>,
}

/// The surplus claims of the last pass.
#[derive(Default)]
struct KnownSurplus {
    /// When each claim was first seen as surplus, by the uid of the Lease.
    since: BTreeMap<String, Instant>,
    /// The logged failure of a removal.
    reported: Option<String>,
}

/// A status that differs from the stored one.
struct Difference {
    name: String,
    uid: String,
    status: ScenePlanStatus,
}

/// The metadata of a plan that the writer needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PlanMetadata {
    uid: String,
    generation: Option<i64>,
}

#[derive(Default, Deserialize)]
struct LabelledNode {
    metadata: Option<NodeMetadata>,
}

#[derive(Default, Deserialize)]
struct NodeMetadata {
    labels: Option<BTreeMap<String, String>>,
}

// === impl PlanStatusWriter ===

impl PlanStatusWriter {
    /// The claims are in `namespace`.
    pub fn new(api: Api, namespace: &str, settings: PlanStatusSettings) -> Self {
        Self {
            api,
            namespace: namespace.to_owned(),
            settings,
        }
    }

    /// Writes the statuses until `stop`.
    pub async fn run(&self, stop: &CancellationToken) {
        let (plans_sender, plans) = watch::channel(Objects::default());
        let (nodes_sender, nodes) = watch::channel(Objects::default());
        let (claims_sender, claims) = watch::channel(Objects::default());
        let collections = Collections {
            plans,
            nodes,
            claims,
        };
        // A write may be cancelled at any time, because the next writer compares the stored status.
        tokio::select! {
            () = follow(self.api.clone(), plans_collection(), plans_sender) => {}
            () = follow(self.api.clone(), nodes_collection(), nodes_sender) => {}
            () = follow(self.api.clone(), claims_collection(&self.namespace), claims_sender) => {}
            () = self.write_changes(collections) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Runs a pass after each change, until the end of a watch's task.
    async fn write_changes(&self, mut collections: Collections) {
        let mut backoff = Backoff::new(self.settings.backoff.0, self.settings.backoff.1);
        let mut jitter = Jitter::default();
        let mut reported = BTreeMap::new();
        let mut surplus = KnownSurplus::default();
        loop {
            tokio::select! {
                changed = collections.changed() => if !changed {
                    return;
                },
                () = tokio::time::sleep(self.settings.surplus_after), if !surplus.since.is_empty() => {}
            }
            tokio::time::sleep(self.settings.settle).await;
            let mut pause = self.settings.pause;
            loop {
                collections.mark_seen();
                let pass = collections.pass(&now());
                let written = self.write_all(pass.differences, &mut reported).await;
                self.remove_surplus(&pass.surplus, &mut surplus).await;
                match written {
                    Ok(()) => {
                        backoff.reset();
                        pause += self.settings.pause_per_slot * pass.slots;
                        break;
                    }
                    Err(failure) => {
                        let wait = backoff.wait(jitter.roll(), failure.retry_after());
                        tokio::time::sleep(wait).await;
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes each status, also after a failure of an earlier one. Logs each new failure, and
    /// returns the last. `reported` are the logged failures by plan.
    async fn write_all(
        &self,
        differences: Vec<Difference>,
        reported: &mut BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let mut result = Ok(());
        for difference in differences {
            match self.write(&difference).await {
                Ok(()) => drop(reported.remove(&difference.name)),
                // The plan is deleted, and the watch reports that.
                Err(failure) if failure.kind() == ErrorKind::NotFound => {}
                // The plan is deleted, a new plan has the name, or other writes came in between. The next pass decides again: the
                // watch publishes no change that leaves the decoded plan equal.
                Err(failure) if failure.kind() == ErrorKind::Conflict => {
                    tracing::debug!("plan {} changed before the write", difference.name);
                    result = Err(failure);
                }
                Err(failure) => {
                    let words = failure.to_string();
                    if reported.get(&difference.name) != Some(&words) {
                        tracing::warn!(
                            "the status of plan {} can't be written: {words}{}",
                            difference.name,
                            advice(&failure)
                        );
                    }
                    reported.insert(difference.name, words);
                    result = Err(failure);
                }
            }
        }
        result
    }

    /// Removes the claims that have been surplus for long enough. After a failure, all claims wait for the same time again.
    async fn remove_surplus(&self, surplus: &BTreeMap<String, Holder>, known: &mut KnownSurplus) {
        let now = Instant::now();
        let uids: BTreeSet<&String> = surplus.values().map(|holder| &holder.lease).collect();
        known.since.retain(|uid, _| uids.contains(uid));
        let nobody = ClaimOwner::default();
        let settings = ClaimSettings::default();
        let claims = Claims::new(self.api.clone(), &self.namespace, nobody, settings);
        let (mut removed, mut example) = (0_usize, None);
        for (name, Holder { node, lease, .. }) in surplus {
            let first = known.since.entry(lease.clone()).or_insert(now);
            // The removals are changes of the claims, so the next pass follows and removes the rest.
            if first.elapsed() < self.settings.surplus_after || removed >= MAX_REMOVALS {
                continue;
            }
            match claims.delete(name, lease.clone()).await {
                Ok(true) => {
                    removed += 1;
                    example = Some((name, node));
                    known.reported = None;
                }
                // The claim is gone, or a new claim has its name. The watch reports it.
                Ok(false) => {}
                Err(failure) => {
                    known.report(&failure);
                    known.since.values_mut().for_each(|first| *first = now);
                    break;
                }
            }
        }
        if let Some((name, node)) = example {
            tracing::warn!(
                "removed {}, such as {name}, because node {node} holds another claim of the case: if this happens again, \
                 somebody else has the token of the node's agent",
                counted(removed, "surplus claim")
            );
        }
    }

    /// Applies a status. The uid makes the server refuse it for a new plan of the same name.
    async fn write(&self, difference: &Difference) -> Result<(), Failure> {
        let Difference { name, uid, status } = difference;
        let object = json!({
            "apiVersion": "pinfold.io/v1alpha1",
            "kind": "ScenePlan",
            "metadata": {"name": name, "uid": uid},
            "status": status,
        });
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let request = request::Request::new(PLANS)
            .patch_subresource("status", name, &params, &Patch::Apply(&object))
            .map_err(|error| self.api.unbuilt(error))?;
        self.api.ask::<Value>(Call::Other, request).await?;
        tracing::info!(
            "plan {name}: {}",
            status
                .conditions
                .iter()
                .map(|condition| format!("{}={}", condition.type_, condition.status))
                .collect::<Vec<_>>()
                .join(" ")
        );
        Ok(())
    }
}

// === impl KnownSurplus ===

impl KnownSurplus {
    /// Logs a failure of a removal, unless the last one was the same.
    fn report(&mut self, failure: &Failure) {
        let words = failure.to_string();
        if self.reported.as_ref() != Some(&words) {
            let advice = match failure.kind() {
                ErrorKind::Forbidden => {
                    "; allow the account to delete leases, as in deploy/components/reclaim"
                }
                _ => advice(failure),
            };
            tracing::warn!("surplus claims can't be removed: {words}{advice}");
        }
        self.reported = Some(words);
    }
}

// === impl Collections ===

impl Collections {
    /// Waits for a change of a collection. Returns false at the end of a watch's task. Cancel safe.
    async fn changed(&mut self) -> bool {
        let changed = tokio::select! {
            changed = self.plans.changed() => changed,
            changed = self.nodes.changed() => changed,
            changed = self.claims.changed() => changed,
        };
        changed.is_ok()
    }

    /// Marks all changes so far as seen, because a pass follows.
    fn mark_seen(&mut self) {
        self.plans.mark_unchanged();
        self.nodes.mark_unchanged();
        self.claims.mark_unchanged();
    }

    /// The statuses that differ from the stored ones, and the surplus claims. Nothing follows while
    /// a collection may be stale.
    fn pass(&self, now: &Time) -> StatusPass {
        let (stored, nodes, claims) = (
            self.plans.borrow(),
            self.nodes.borrow(),
            self.claims.borrow(),
        );
        let degraded = [&stored.degraded, &nodes.degraded, &claims.degraded];
        if degraded.into_iter().any(Option::is_some) {
            return StatusPass::default();
        }
        let nodes: Vec<Node> = nodes
            .known
            .iter()
            .map(|(key, labels)| Node {
                name: key.name.clone(),
                labels: labels.clone(),
                ..Node::default()
            })
            .collect();
        let holders: BTreeMap<&String, &Holder> = claims
            .known
            .iter()
            .map(|(lease, holder)| (&lease.name, holder))
            .collect();
        let claims: BTreeMap<String, String> = holders
            .iter()
            .map(|(lease, holder)| ((*lease).clone(), holder.node.clone()))
            .collect();
        let plans: Vec<ScenePlan> = stored
            .known
            .values()
            .filter_map(|stored| stored.plan.clone().ok())
            .collect();
        let view = ClusterView::new(&plans, &nodes, &claims);
        let mut pass = StatusPass::default();
        for (key, stored) in &stored.known {
            let status = stored.status(&view, now);
            let wanted = status.slots.map_or(0, |counts| counts.wanted);
            pass.slots = pass.slots.saturating_add(wanted);
            pass.differences.extend(stored.difference(key, status));
        }
        for lease in plans.iter().flat_map(|plan| view.surplus(plan)) {
            let holder = holders.get(&lease).map(|holder| (*holder).clone());
            pass.surplus.extend(holder.map(|holder| (lease, holder)));
        }
        pass
    }
}

// === impl StoredPlan ===

impl StoredPlan {
    /// Decodes a plan. The uid of an object without readable metadata is empty.
    fn decode(_: &Identity, object: &RawValue) -> Self {
        let mut object: Value = serde_json::from_str(object.get()).unwrap_or_default();
        let metadata: PlanMetadata = object
            .get("metadata")
            .and_then(|metadata| serde_json::from_value(metadata.clone()).ok())
            .unwrap_or_default();
        // Each write of the status changes the version, and must not make the decoded plan differ.
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("resourceVersion");
        }
        let status = object.get_mut("status").map(Value::take);
        Self {
            uid: metadata.uid,
            generation: metadata.generation,
            plan: read_plan(object),
            status: status.and_then(|status| serde_json::from_value(status).ok()),
        }
    }

    fn status(&self, view: &ClusterView<'_>, now: &Time) -> ScenePlanStatus {
        let before = self.status.as_ref();
        match &self.plan {
            Ok(plan) => plan_status(plan, view, before, now),
            Err(reason) => unreadable_status(self.generation, reason, before, now),
        }
    }

    /// The difference between the stored status and `status`, if any.
    fn difference(&self, key: &ObjectName, status: ScenePlanStatus) -> Option<Difference> {
        (self.status.as_ref() != Some(&status)).then(|| Difference {
            name: key.name.clone(),
            uid: self.uid.clone(),
            status,
        })
    }
}

fn plans_collection() -> Collection<StoredPlan> {
    Collection::new(PLANS, PLAN_LIST, StoredPlan::decode)
}

fn nodes_collection() -> Collection<BTreeMap<String, String>> {
    Collection {
        metadata_only: true,
        ..Collection::new("/api/v1/nodes", "NodeList", labels_of)
    }
}

fn claims_collection(namespace: &str) -> Collection<Holder> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    Collection {
        labels: Some(format!("{MANAGED_BY}={MANAGER}")),
        ..Collection::new(path, "LeaseList", |_, lease| holder_of(lease))
    }
}

fn labels_of(_: &Identity, node: &RawValue) -> BTreeMap<String, String> {
    let node: LabelledNode = serde_json::from_str(node.get()).unwrap_or_default();
    node.metadata
        .and_then(|metadata| metadata.labels)
        .unwrap_or_default()
}

fn now() -> Time {
    Time(Timestamp::now())
}

/// The remedy for a refused write, as the end of a sentence.
fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => {
            "; allow the account to patch sceneplans/status, as in deploy/components/reclaim"
        }
        ErrorKind::Unauthorized => "; check the account's token",
        _ => "",
    }
}
