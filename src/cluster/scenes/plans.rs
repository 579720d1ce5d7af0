//! [`Plans`]: all ScenePlans, by one list and one watch.

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

/// Plans of a page. The API server takes no object of more than 3 MiB, and an answer may have 64.
pub(super) const PAGE: u32 = 20;

/// A watch that ends before this has failed, however politely.
const SHORT_LIVED: Duration = Duration::from_secs(2);

/// What is known of the plans.
#[derive(Debug, Clone, PartialEq)]
pub struct Plans {
    /// The plans, by name. One that can't be read any more is here as it last could.
    pub plans: Vec<ScenePlan>,
    /// Plans that can't be read, by name, with the reason.
    pub unreadable: BTreeMap<String, String>,
    /// Why the plans are not known as they are now; `None` where they are. What is known stays.
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

/// A line of the watch.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Value,
}

// === impl Plans ===

impl Plans {
    /// The names of the plans that can't be read and never could.
    pub fn never_read(&self) -> Vec<&str> {
        let known = |name: &str| self.plans.iter().any(|plan| name_of(plan) == name);
        self.unreadable
            .keys()
            .map(String::as_str)
            .filter(|name| !known(name))
            .collect()
    }

    /// Takes a complete list. It counts when the watch stands: what changes in between is heard there.
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

    /// Takes a plan that is new or changed.
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

    /// Takes a deletion.
    fn gone(&mut self, name: &str) {
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

/// The slots of all active cases.
pub(super) fn slots_of(plans: &Plans) -> u32 {
    let active = plans.plans.iter().filter_map(|plan| {
        let active = plan.spec.active.as_ref()?;
        slots(plan, &active.scene, &active.case).ok()
    });
    u32::try_from(active.map(|slots| slots.len()).sum::<usize>()).unwrap_or(u32::MAX)
}

/// Follows the plans for ever: what goes wrong is told as [`Plans::degraded`] and tried again.
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
        let pause = match follower.turn().await {
            Ok(()) => {
                follower.backoff.reset();
                follower.jitter.spread(Duration::from_secs(1))
            }
            Err(failure) => follower.failed(&failure),
        };
        tokio::time::sleep(pause).await;
    }
}

/// All plans as they are now, and the version of the list.
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
            "a list without a version".to_owned(),
        ));
    }
    Ok((objects, version))
}

/// What to do about a failure to read plans, as the end of a sentence.
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

/// How long a server that answers 429 leaves the last known plans in force.
const THROTTLED: Duration = Duration::from_secs(60);

struct Follower {
    api: Api,
    settings: Settings,
    published: watch::Sender<Plans>,
    /// The version up to which everything is known; `None` where all must be read.
    version: Option<String>,
    backoff: BackoffPolicy,
    jitter: Jitter,
    /// When the first failure since the last success was.
    throttled_since: Option<Instant>,
}

// === impl Follower ===

impl Follower {
    /// One connection's life.
    async fn turn(&mut self) -> Result<(), Failure> {
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
        self.heard();
        self.throttled_since = None;
        let mut heard = false;
        loop {
            match self.next(&mut lines).await {
                Ok(true) => {
                    heard = true;
                    self.backoff.reset();
                }
                Ok(false) if heard || began.elapsed() >= SHORT_LIVED => return Ok(()),
                Ok(false) => {
                    let failure =
                        Failure::Connection("the watch ended as soon as it had begun".to_owned());
                    self.api.counters().failed(failure.kind());
                    return Err(failure);
                }
                Err(failure) => {
                    self.api.counters().failed(failure.kind());
                    let lasted = began.elapsed() >= SHORT_LIVED;
                    // A watch that breaks is nothing unusual: it goes on from where it was.
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

    /// A random pause before all plans are read: all nodes begin, and hear of a version that is too old, at the same moment.
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

    /// Takes one line; `false` at the end.
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
                .send_modify(|plans| plans.gone(&name(&line.object))),
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

    /// The plans are followed: what is known is what is.
    fn heard(&self) {
        self.published.send_if_modified(|plans| {
            plans.terminal = false;
            plans.degraded.take().is_some()
        });
    }

    /// Notes a failure; how long to wait.
    fn failed(&mut self, failure: &Failure) -> Duration {
        if failure.is_expired() {
            // A server that has restarted forgets versions. The plans stay in force until they are read anew.
            tracing::info!("the plans are read anew: {failure}");
            self.version = None;
            return self.backoff.after(failure, self.jitter.roll());
        }
        // A server that has just started refuses lists for some seconds. The last known plans stay in force meanwhile.
        let throttled = failure.kind() == ErrorKind::TooManyRequests;
        let since = *self.throttled_since.get_or_insert_with(Instant::now);
        if throttled && self.published.borrow().degraded.is_none() && since.elapsed() < THROTTLED {
            tracing::info!("the plans are read again soon: {failure}");
            self.version = None;
            return self.backoff.after(failure, self.jitter.roll());
        }
        // Refused (not defined any more), or nonsense: all is read anew. A connection that failed goes on.
        if failure.status().is_some() || matches!(failure, Failure::InvalidResponse(_)) {
            self.version = None;
        }
        let says = format!("the plans can't be read: {failure}{}", advice(failure));
        let new = self.published.send_if_modified(|plans| {
            let new = plans.degraded.as_ref() != Some(&says);
            plans.degraded = Some(says.clone());
            plans.terminal = failure.is_terminal();
            new
        });
        if new {
            tracing::warn!("{says}");
        }
        self.backoff.after(failure, self.jitter.roll())
    }
}
