//! [`Plans`]: all ScenePlans, read with a paged list and followed with a watch.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::core::Status;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Settings;
use super::backoff_policy::BackoffPolicy;
use crate::cluster::call::Lines;
use crate::cluster::list::{List, list};
use crate::cluster::{Api, Call, ErrorKind, Failure, Jitter};
use crate::scene::{ScenePlan, slots};

pub(super) const PLANS: &str = "/apis/pinfold.io/v1alpha1/sceneplans";

/// The number of plans on a page. The API server accepts objects up to 3 MiB, and an answer may have 64 MiB.
pub(super) const PAGE: u32 = 20;

/// A watch without any event that ends sooner counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(2);

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
}

impl Default for Plans {
    fn default() -> Self {
        let degraded = Some("the plans have not been read yet".to_owned());
        Self {
            plans: Vec::new(),
            unreadable: BTreeMap::new(),
            degraded,
            terminal: false,
        }
    }
}

/// A line of the watch: one watch event.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Value,
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
    fn replace(&mut self, objects: Vec<Value>) {
        let mut before: BTreeMap<String, ScenePlan> = std::mem::take(&mut self.plans)
            .into_iter()
            .map(|plan| (name_of(&plan).to_owned(), plan))
            .collect();
        self.unreadable.clear();
        for object in objects {
            let name = name(&object);
            if let Some(plan) = before.remove(&name) {
                self.plans.push(plan);
            }
            self.put(name, object);
        }
        self.plans.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    }

    /// Stores a new or changed plan.
    fn put(&mut self, name: String, object: Value) {
        match serde_json::from_value::<ScenePlan>(object) {
            Ok(plan) => {
                self.unreadable.remove(&name);
                match self.plans.iter_mut().find(|known| name_of(known) == name) {
                    Some(known) => *known = plan,
                    None => self.plans.push(plan),
                }
                self.plans.sort_by(|a, b| name_of(a).cmp(name_of(b)));
            }
            Err(error) => {
                self.unreadable.insert(name, error.to_string());
            }
        }
    }

    /// Removes a deleted plan.
    fn remove(&mut self, name: &str) {
        self.unreadable.remove(name);
        self.plans.retain(|plan| name_of(plan) != name);
    }
}

pub(super) fn name_of(plan: &ScenePlan) -> &str {
    plan.metadata.name.as_deref().unwrap_or_default()
}

fn name(object: &Value) -> String {
    object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
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
pub(super) async fn follow(api: Api, settings: Settings, published: watch::Sender<Plans>) {
    let backoff = BackoffPolicy::new(&settings);
    let mut follower = Follower {
        api,
        settings,
        published,
        version: None,
        backoff,
        jitter: Jitter::default(),
        throttled_since: None,
    };
    loop {
        let pause = match follower.list_and_watch().await {
            Ok(()) => {
                follower.backoff.reset();
                follower.jitter.spread(Duration::from_secs(1))
            }
            Err(failure) => follower.failed(&failure),
        };
        tokio::time::sleep(pause).await;
    }
}

/// All plans in the cluster, and the resourceVersion of the list.
pub(super) async fn list_plans(api: &Api) -> Result<(Vec<Value>, String), Failure> {
    let wanted =
        List::new(Call::ListPlans, PLANS, "ScenePlanList").with(ListParams::default().limit(PAGE));
    let mut objects = Vec::new();
    let version = list(api, wanted, |object| {
        objects.push(serde_json::from_str(object.get()).map_err(Failure::invalid)?);
        Ok(())
    })
    .await?;
    if version.is_empty() {
        return Err(Failure::InvalidResponse(
            "a list without a resourceVersion".to_owned(),
        ));
    }
    Ok((objects, version))
}

/// The remedy for a failure to read plans, as the end of a sentence.
pub(super) fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::NotFound => {
            ": ScenePlans are not defined here; pinfold scene crd | kubectl apply -f - defines them"
        }
        ErrorKind::Forbidden => ": allow the agent to list and watch sceneplans.pinfold.io",
        ErrorKind::Unauthorized => ": is the token still valid?",
        _ => "",
    }
}

/// The time for which the last known plans stay in force while the server answers 429.
const THROTTLED: Duration = Duration::from_secs(60);

struct Follower {
    api: Api,
    settings: Settings,
    published: watch::Sender<Plans>,
    /// The resourceVersion from which a watch can continue; `None` if a new list is necessary.
    version: Option<String>,
    backoff: BackoffPolicy,
    jitter: Jitter,
    /// The time of the first failure since the last opened watch. A 410 does not count.
    throttled_since: Option<Instant>,
}

// === impl Follower ===

impl Follower {
    /// Lists the plans if necessary, and watches them until the watch ends.
    async fn list_and_watch(&mut self) -> Result<(), Failure> {
        let version = match self.version.clone() {
            Some(version) => version,
            None => {
                self.stagger().await;
                let (objects, version) = list_plans(&self.api).await?;
                self.version = Some(version.clone());
                self.published.send_modify(|plans| plans.replace(objects));
                version
            }
        };
        let began = Instant::now();
        let mut lines = self.open(&version).await?;
        self.set_current();
        self.throttled_since = None;
        let mut had_event = false;
        loop {
            match self.next(&mut lines).await {
                Ok(true) => {
                    had_event = true;
                    self.backoff.reset();
                }
                Ok(false) if had_event || began.elapsed() >= SHORT_LIVED => return Ok(()),
                Ok(false) => {
                    let failure =
                        Failure::Connection("the API server ended the watch at once".to_owned());
                    self.api.counters().failed(failure.kind());
                    return Err(failure);
                }
                Err(failure) => {
                    self.api.counters().failed(failure.kind());
                    let lasted = began.elapsed() >= SHORT_LIVED;
                    // Broken connections are normal: the next watch continues from the last resourceVersion.
                    if lasted
                        && failure.status().is_none()
                        && !matches!(failure, Failure::InvalidResponse(_))
                    {
                        return Ok(());
                    }
                    return Err(failure);
                }
            }
        }
    }

    /// A random pause before a list of all plans. All nodes start, or get a 410, at the same moment.
    async fn stagger(&mut self) {
        let most = self
            .settings
            .spread_over(slots_of(&self.published.borrow()));
        tokio::time::sleep(self.jitter.spread(most)).await;
    }

    async fn open(&self, version: &str) -> Result<Lines, Failure> {
        let params = WatchParams {
            timeout: Some(self.settings.watch_seconds),
            ..WatchParams::default()
        };
        let request = request::Request::new(PLANS).watch(&params, version);
        let request = request.map_err(|error| Failure::InvalidResponse(error.to_string()))?;
        self.api.open(Call::WatchPlans, request).await
    }

    /// Handles the next line; `false` at the end of the watch.
    async fn next(&mut self, lines: &mut Lines) -> Result<bool, Failure> {
        let Some(line) = lines.next(self.settings.idle).await? else {
            return Ok(false);
        };
        let line: Line = serde_json::from_slice(&line)
            .map_err(|error| Failure::InvalidResponse(format!("a line of the watch: {error}")))?;
        let version = line
            .object
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str);
        let version = version.map(str::to_owned);
        match line.r#type.as_str() {
            "BOOKMARK" => {}
            "ADDED" | "MODIFIED" => {
                self.published
                    .send_modify(|plans| plans.put(name(&line.object), line.object));
            }
            "DELETED" => self
                .published
                .send_modify(|plans| plans.remove(&name(&line.object))),
            _ => {
                return Err(match serde_json::from_value::<Status>(line.object) {
                    Ok(status) => Failure::refused(status),
                    Err(error) => {
                        Failure::InvalidResponse(format!("an event of the watch: {error}"))
                    }
                });
            }
        }
        if version.is_some() {
            self.version = version;
        }
        Ok(true)
    }

    /// Marks the plans as current.
    fn set_current(&self) {
        self.published.send_if_modified(|plans| {
            plans.terminal = false;
            plans.degraded.take().is_some()
        });
    }

    /// Publishes a failure if necessary. Returns the wait before the next try.
    fn failed(&mut self, failure: &Failure) -> Duration {
        if failure.is_expired() {
            // A restarted server answers 410 for old resourceVersions. The plans stay in force until the next list.
            tracing::info!("the plans will be listed again: {failure}");
            self.version = None;
            return self.backoff.after(failure, self.jitter.roll());
        }
        // A server answers lists with 429 for some seconds after its start. The last known plans stay in force meanwhile.
        let throttled = failure.kind() == ErrorKind::TooManyRequests;
        let since = *self.throttled_since.get_or_insert_with(Instant::now);
        if throttled && self.published.borrow().degraded.is_none() && since.elapsed() < THROTTLED {
            tracing::info!("the plans stay in force, and will be listed again soon: {failure}");
            self.version = None;
            return self.backoff.after(failure, self.jitter.roll());
        }
        // A refusal (such as 404 without the CustomResourceDefinition) or an invalid answer needs a new list. A broken
        // connection continues from the last resourceVersion.
        if failure.status().is_some() || matches!(failure, Failure::InvalidResponse(_)) {
            self.version = None;
        }
        let reason = format!("the plans can't be read: {failure}{}", advice(failure));
        let new = self.published.send_if_modified(|plans| {
            let new = plans.degraded.as_ref() != Some(&reason);
            plans.degraded = Some(reason.clone());
            plans.terminal = failure.is_terminal();
            new
        });
        if new {
            tracing::warn!("{reason}");
        }
        self.backoff.after(failure, self.jitter.roll())
    }
}
