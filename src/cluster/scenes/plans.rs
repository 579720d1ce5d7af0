//! [`Plans`]: all ScenePlans, as the informer reads them, and why they may be stale.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::SceneSettings;
use crate::cluster::informer::{AfterPause, Collection, CollectionEvent, Subscriber, inform};
use crate::cluster::watch::Identity;
use crate::cluster::{Api, Call, ErrorKind, Failure};
use crate::scene::{ScenePlan, slots};

pub(in crate::cluster) const PLANS: &str = "/apis/pinfold.io/v1alpha1/sceneplans";

/// The `kind` of a list of plans.
pub(in crate::cluster) const PLAN_LIST: &str = "ScenePlanList";

/// The most deleted plans that are remembered.
const MAX_ENDED: usize = 16;

/// A plan, or why it is unreadable.
pub(in crate::cluster) type PlanRead = Result<ScenePlan, String>;

/// The known plans, and how current they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Plans {
    /// The plans, sorted by name. A plan that became unreadable keeps its last readable state.
    pub plans: Vec<ScenePlan>,
    /// The names of the unreadable plans, with the reasons.
    pub unreadable: BTreeMap<String, String>,
    /// Why the plans may be stale; `None` while the plans are current. The known plans stay.
    pub degraded: Option<String>,
    /// Whether the failure stays until an administrator acts: grants a right, or installs the definition.
    pub terminal: bool,
    /// Deleted plans that had no active case any more. Nodes follow their order with a delay, so a plan may be deleted before a
    /// node has given up its slot or noted the order.
    pub ended: Vec<ScenePlan>,
}

impl Default for Plans {
    fn default() -> Self {
        let degraded = Some("the plans have not been read yet".to_owned());
        Self {
            plans: Vec::new(),
            unreadable: BTreeMap::new(),
            degraded,
            terminal: false,
            ended: Vec::new(),
        }
    }
}

// === impl Plans ===

impl Plans {
    /// The names of the plans without any readable state so far.
    pub fn never_read(&self) -> Vec<&str> {
        let known = |name: &str| self.plans.iter().any(|plan| name_of(plan) == name);
        self.unreadable
            .keys()
            .map(String::as_str)
            .filter(|name| !known(name))
            .collect()
    }

    /// Stores a complete list. `degraded` stays until the watch is open; the watch reports all changes after the list.
    fn replace(&mut self, objects: Vec<(Identity, PlanRead)>) {
        let mut before: BTreeMap<String, ScenePlan> = std::mem::take(&mut self.plans)
            .into_iter()
            .map(|plan| (name_of(&plan).to_owned(), plan))
            .collect();
        self.unreadable.clear();
        for (identity, plan) in objects {
            let name = name(identity);
            self.plans.extend(before.remove(&name));
            self.put(name, plan);
        }
        before.into_values().for_each(|plan| self.end(plan));
        self.plans.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    }

    /// Stores a new or changed plan. Returns whether a node's decision can depend on the change.
    fn put(&mut self, name: String, plan: PlanRead) -> bool {
        match plan {
            Ok(plan) => {
                self.ended.retain(|ended| name_of(ended) != name);
                let was_unreadable = self.unreadable.remove(&name).is_some();
                let changed = match self.plans.iter_mut().find(|known| name_of(known) == name) {
                    Some(known) => {
                        let changed = !is_same(known, &plan);
                        *known = plan;
                        changed
                    }
                    None => {
                        self.plans.push(plan);
                        true
                    }
                };
                self.plans.sort_by(|a, b| name_of(a).cmp(name_of(b)));
                changed || was_unreadable
            }
            Err(reason) => self.unreadable.insert(name, reason.clone()) != Some(reason),
        }
    }

    /// Removes a deleted plan.
    fn remove(&mut self, name: &str) {
        self.unreadable.remove(name);
        if let Some(place) = self.plans.iter().position(|plan| name_of(plan) == name) {
            let plan = self.plans.remove(place);
            self.end(plan);
        }
    }

    /// Remembers a deleted plan, if its removal was ordered before.
    fn end(&mut self, plan: ScenePlan) {
        if plan.spec.active.is_none() {
            self.ended.retain(|ended| name_of(ended) != name_of(&plan));
            self.ended.push(plan);
            let surplus = self.ended.len().saturating_sub(MAX_ENDED);
            self.ended.drain(..surplus);
        }
    }
}

pub(super) fn name_of(plan: &ScenePlan) -> &str {
    plan.metadata.name.as_deref().unwrap_or_default()
}

fn name(identity: Identity) -> String {
    identity.name.unwrap_or_default()
}

fn read(_: &Identity, object: &RawValue) -> PlanRead {
    read_plan(serde_json::from_str(object.get()).map_err(|error| error.to_string())?)
}

/// Decodes a plan from a tree of values, because an error would otherwise name a column of the server's answer.
///
/// The status is left out, because nodes decide without it, and an unreadable status must make no plan unreadable. So are the
/// managed fields, which nobody reads and which are often larger than the plan.
pub(in crate::cluster) fn read_plan(mut object: Value) -> PlanRead {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    serde_json::from_value(object).map_err(|error| error.to_string())
}

/// Whether two states of a plan are the same for every node. A write of the status changes only the resourceVersion, and must
/// wake no node. Without a generation, the resourceVersion counts.
fn is_same(one: &ScenePlan, other: &ScenePlan) -> bool {
    let (old, new) = (&one.metadata, &other.metadata);
    let is_same_version = old.generation.is_some() || old.resource_version == new.resource_version;
    old.uid == new.uid
        && old.generation == new.generation
        && is_same_version
        && one.spec == other.spec
}

/// The number of slots in all active cases.
pub(super) fn slots_of(plans: &Plans) -> u32 {
    let active = plans.plans.iter().filter_map(|plan| {
        let active = plan.spec.active.as_ref()?;
        slots(plan, &active.scene, &active.case).ok()
    });
    u32::try_from(active.map(|slots| slots.len()).sum::<usize>()).unwrap_or(u32::MAX)
}

/// Follows the plans forever. Failures are published as [`Plans::degraded`] and retried.
pub(super) async fn follow(api: Api, settings: SceneSettings, published: watch::Sender<Plans>) {
    let plans = Collection {
        calls: (Call::ListPlans, Call::WatchPlans),
        first_spread: settings.first_list_spread,
        spread: settings.list_spread,
        watch_seconds: settings.watch_seconds,
        idle: settings.idle,
        settled: Duration::ZERO,
        backoff: settings.backoff_policy(),
        ..Collection::new(PLANS, PLAN_LIST, read)
    };
    let publisher = PlansPublisher {
        published,
        failing_since: None,
        reason: None,
        is_answered: true,
    };
    inform(api, plans, publisher).await;
}

/// The remedy for a failure to read plans, as the end of a sentence.
fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::NotFound => {
            ": the definition of ScenePlan is missing; install the definition with pinfold scene crd | kubectl apply -f -"
        }
        ErrorKind::Forbidden => ": allow the agent to list and watch sceneplans.pinfold.io",
        ErrorKind::Unauthorized => ": check the agent's token",
        _ => "",
    }
}

/// The time for which the last known plans stay in force while the server answers 429.
const THROTTLED: Duration = Duration::from_secs(60);

/// The known plans, and the receivers of each change.
struct PlansPublisher {
    published: watch::Sender<Plans>,
    /// The time of the first failure since the last opened watch or 410.
    failing_since: Option<Instant>,
    /// The last failure that was published, since the plans were current.
    reason: Option<String>,
    /// Whether the server answered the last request, if only that the resourceVersion is too old.
    is_answered: bool,
}

// === impl PlansPublisher ===

impl PlansPublisher {
    /// Marks the plans as current.
    fn works(&mut self) {
        (self.failing_since, self.reason) = (None, None);
        self.published.send_if_modified(|plans| {
            plans.terminal = false;
            plans.degraded.take().is_some()
        });
    }

    /// Publishes a failure, unless the last known plans stay in force.
    fn failed(&mut self, failure: &Failure) {
        self.is_answered = failure.is_expired();
        if failure.is_expired() {
            // A restarted server answers 410 for old resourceVersions. The plans stay in force until the next list. The pause
            // before the list is longer than THROTTLED, so an earlier failure no longer counts.
            self.failing_since = None;
            tracing::info!("the plans will be listed again: {failure}");
            return;
        }
        // A server answers lists with 429 for some seconds after its start. Meanwhile the last
        // known plans stay in force.
        let throttled = failure.kind() == ErrorKind::TooManyRequests;
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if throttled && self.published.borrow().degraded.is_none() && since.elapsed() < THROTTLED {
            tracing::info!("the plans stay in force, and will be read again soon: {failure}");
            return;
        }
        let reason = format!("the plans can't be read: {failure}{}", advice(failure));
        self.published.send_if_modified(|plans| {
            let before = plans.degraded.replace(reason.clone());
            plans.terminal = failure.is_terminal();
            before.as_ref() != Some(&reason)
        });
        if self.reason.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
            self.reason = Some(reason);
        }
    }

    /// Publishes why stale plans are not read at once although the server answers.
    fn waits(&mut self, next: AfterPause, until: Timestamp) {
        if next != AfterPause::List || !self.is_answered {
            return;
        }
        self.published.send_if_modified(|plans| {
            let waits = plans.degraded.is_some() && !plans.terminal;
            if waits {
                plans.degraded = Some(format!(
                    "the agent lists the plans at {until:.0}, a random time, so that not all nodes ask the API server at once"
                ));
            }
            waits
        });
    }
}

impl Subscriber<PlanRead> for PlansPublisher {
    async fn take(&mut self, event: CollectionEvent<PlanRead>) {
        match event {
            CollectionEvent::Listed(objects) => {
                self.published.send_modify(|plans| plans.replace(objects));
            }
            CollectionEvent::Put(identity, plan) => {
                self.published
                    .send_if_modified(|plans| plans.put(name(identity), plan));
            }
            CollectionEvent::Deleted(identity) => {
                self.published
                    .send_modify(|plans| plans.remove(&name(identity)));
            }
            CollectionEvent::Works => self.works(),
            CollectionEvent::Failed(failure) => self.failed(&failure),
            CollectionEvent::Waits { next, until } => self.waits(next, until),
        }
    }
}
