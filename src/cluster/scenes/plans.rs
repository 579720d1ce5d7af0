//! [`Plans`]: all ScenePlans, by one list and one watch.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Status;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Settings;
use super::patience::Patience;
use crate::cluster::call::Lines;
use crate::cluster::{Api, Call, Dice, ErrorKind, Failure};
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
    pub trouble: Option<String>,
    /// Whether the trouble lasts until somebody does something about it.
    pub lasting: bool,
}

impl Default for Plans {
    fn default() -> Self {
        let trouble = Some("the plans have not been read yet".to_owned());
        Self {
            plans: Vec::new(),
            unreadable: BTreeMap::new(),
            trouble,
            lasting: false,
        }
    }
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct Page {
    /// An answer without a kind is none of this API's.
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    pub(super) items: Vec<Value>,
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

// === impl Page ===

impl Page {
    /// The version of the list and the token of its next page, if this is a page of a list of plans.
    ///
    /// An answer that is empty, or somebody else's, must never be taken for "there are no plans".
    pub(super) fn read(&self) -> Result<(String, Option<String>), Failure> {
        if self.kind != "ScenePlanList" {
            return Err(Failure::Nonsense(format!(
                "a {} instead of a ScenePlanList",
                self.kind
            )));
        }
        let version = self
            .metadata
            .resource_version
            .clone()
            .filter(|version| !version.is_empty());
        let version =
            version.ok_or_else(|| Failure::Nonsense("a list without a version".to_owned()))?;
        Ok((
            version,
            self.metadata
                .continue_
                .clone()
                .filter(|token| !token.is_empty()),
        ))
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

/// Follows the plans for ever: what goes wrong is told as [`Plans::trouble`] and tried again.
pub(super) async fn follow(api: Api, settings: Settings, published: watch::Sender<Plans>) {
    let patience = Patience::new(&settings);
    let mut follower = Follower {
        api,
        settings,
        published,
        version: None,
        patience,
        dice: Dice::default(),
        throttled_since: None,
    };
    loop {
        let pause = match follower.turn().await {
            Ok(()) => {
                follower.patience.reset();
                follower.dice.spread(Duration::from_secs(1))
            }
            Err(failure) => follower.failed(&failure),
        };
        tokio::time::sleep(pause).await;
    }
}

/// All plans as they are now, and the version of the list.
pub(super) async fn list(api: &Api) -> Result<(Vec<Value>, String), Failure> {
    let (mut objects, mut token) = (Vec::new(), None);
    loop {
        let params = ListParams {
            limit: Some(PAGE),
            continue_token: token,
            ..ListParams::default()
        };
        let request = request::Request::new(PLANS).list(&params);
        let request = request.map_err(|error| Failure::Nonsense(error.to_string()))?;
        let page: Page = api.ask(Call::ListPlans, request).await?;
        let (version, next) = page.read()?;
        objects.extend(page.items);
        if next.is_none() {
            return Ok((objects, version));
        }
        token = next;
    }
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
    patience: Patience,
    dice: Dice,
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
                let (objects, version) = list(&self.api).await?;
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
                    self.patience.reset();
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
                        && !matches!(failure, Failure::Nonsense(_))
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
        tokio::time::sleep(self.dice.spread(most)).await;
    }

    async fn open(&self, version: &str) -> Result<Lines, Failure> {
        let params = WatchParams {
            timeout: Some(self.settings.watch_seconds),
            ..WatchParams::default()
        };
        let request = request::Request::new(PLANS).watch(&params, version);
        let request = request.map_err(|error| Failure::Nonsense(error.to_string()))?;
        self.api.open(Call::WatchPlans, request).await
    }

    /// Takes one line; `false` at the end.
    async fn next(&mut self, lines: &mut Lines) -> Result<bool, Failure> {
        let Some(line) = lines.next(self.settings.idle).await? else {
            return Ok(false);
        };
        let line: Line = serde_json::from_slice(&line)
            .map_err(|error| Failure::Nonsense(format!("a line of the watch: {error}")))?;
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
                    Err(error) => Failure::Nonsense(format!("an event of the watch: {error}")),
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
            plans.lasting = false;
            plans.trouble.take().is_some()
        });
    }

    /// Notes a failure; how long to wait.
    fn failed(&mut self, failure: &Failure) -> Duration {
        if failure.is_expired() {
            // A server that has restarted forgets versions. The plans stay in force until they are read anew.
            tracing::info!("the plans are read anew: {failure}");
            self.version = None;
            return self.patience.after(failure, self.dice.roll());
        }
        // A server that has just started refuses lists for some seconds. The last known plans stay in force meanwhile.
        let throttled = failure.kind() == ErrorKind::TooManyRequests;
        let since = *self.throttled_since.get_or_insert_with(Instant::now);
        if throttled && self.published.borrow().trouble.is_none() && since.elapsed() < THROTTLED {
            tracing::info!("the plans are read again soon: {failure}");
            self.version = None;
            return self.patience.after(failure, self.dice.roll());
        }
        // Refused (not defined any more), or nonsense: all is read anew. A connection that failed goes on.
        if failure.status().is_some() || matches!(failure, Failure::Nonsense(_)) {
            self.version = None;
        }
        let says = format!("the plans can't be read: {failure}{}", advice(failure));
        let new = self.published.send_if_modified(|plans| {
            let new = plans.trouble.as_ref() != Some(&says);
            plans.trouble = Some(says.clone());
            plans.lasting = failure.is_lasting();
            new
        });
        if new {
            tracing::warn!("{says}");
        }
        self.patience.after(failure, self.dice.roll())
    }
}
