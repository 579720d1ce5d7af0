//! A faithful fake of the Kubernetes API server, for tests.
//!
//! It stores objects in memory under one counter of versions and answers as a 1.36 API server did in the recordings of
//! `tests/data/apiserver`, which `cluster/replay.rs` holds it to: lists in pages, watches with bookmarks and streaming lists,
//! server-side apply with owners and conflicts, garbage collection, refusals in the server's own words, and faults on demand.
//! It is reached over TCP, or without a socket, which lets a test stop the clock ([`FakeApi::direct`]).
//!
//! Roles and validating admission policies are those of manifests ([`FakeApi::install`]).
//!
//! What it is not: mutating policies, quotas, finalizers, conversion between `v1` and `events.k8s.io` Events (they are two lists).

#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod access;
mod discovery;
#[path = "../support/evaluate.rs"]
mod evaluate;
mod faults;
mod fields;
mod http;
mod kinds;
mod list;
mod patch;
mod select;
mod serve;
mod status;
mod store;
mod watch;
#[path = "../support/yaml.rs"]
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use access::{Enforced, Rule, User};
pub(crate) use faults::{Fault, WatchFault, When};
use kinds::Kind;
use store::Store;

/// The service account of all agents; each has a token of its own, bound to its node.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:pinfold:pinfold";

/// The token that may do everything.
pub(crate) const ADMIN: &str = "admin-token";

/// A request that was answered, or was not.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) at: tokio::time::Instant,
    pub(crate) user: String,
    /// As RBAC names it, but `apply` for server-side apply.
    pub(crate) verb: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) query: String,
    /// The request's User-Agent.
    pub(crate) agent: String,
    /// Objects that the server reads from etcd for the answer.
    pub(crate) from_etcd: usize,
    /// 0 where the connection was dropped.
    pub(crate) status: u16,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Mutex<Store>,
    /// The latest version of each kind that somebody watches: ten thousand watchers of plans sleep on while Leases change.
    changed: Mutex<BTreeMap<String, channel::Sender<u64>>>,
    pub(crate) bookmarks: channel::Sender<u64>,
    tokens: Mutex<BTreeMap<String, User>>,
    rules: Mutex<Vec<Rule>>,
    faults: Mutex<Vec<(When, Fault)>>,
    log: Mutex<Vec<Logged>>,
    settings: Mutex<Settings>,
    /// Whether connections are refused, and what ends those that are there.
    away: AtomicBool,
    connections: Mutex<CancellationToken>,
    /// Whether the controllers' next round is on its way.
    controllers_due: AtomicBool,
}

#[derive(Debug, Clone)]
struct Settings {
    second: Duration,
    bookmark_every: Duration,
    streaming_lists: bool,
    controllers_delay: Duration,
    unavailable: Vec<String>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn second(&self) -> Duration {
        self.settings.lock().unwrap().second
    }

    pub(crate) fn bookmark_every(&self) -> Duration {
        self.settings.lock().unwrap().bookmark_every
    }

    /// Tells watchers that there is something new of their kind.
    pub(crate) fn wake(&self) {
        let store = self.store.lock().unwrap();
        for (kind, latest) in self.changed.lock().unwrap().iter() {
            let revision = store.latest(kind);
            latest.send_if_modified(|seen| std::mem::replace(seen, revision) != revision);
        }
    }

    /// Wakes whoever holds it when there is something new of a kind.
    pub(crate) fn changes_of(&self, kind: &Kind) -> channel::Receiver<u64> {
        let mut changed = self.changed.lock().unwrap();
        changed
            .entry(kind.qualified())
            .or_insert_with(|| channel::Sender::new(0))
            .subscribe()
    }
}

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FakeApi {
    pub(crate) shared: Arc<Shared>,
    address: Option<SocketAddr>,
    stop: CancellationToken,
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.stop.cancel();
        self.shared.connections.lock().unwrap().cancel();
    }
}

// === impl FakeApi ===

impl FakeApi {
    /// A server on a port of its own.
    pub(crate) async fn start() -> Self {
        let mut api = Self::direct();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        api.address = Some(listener.local_addr().unwrap());
        tokio::spawn(http::listen(
            listener,
            Arc::clone(&api.shared),
            api.stop.clone(),
        ));
        api
    }

    /// A server without a socket: only [`FakeApi::client`] reaches it.
    pub(crate) fn direct() -> Self {
        let shared = Shared {
            store: Mutex::new(Store::new()),
            changed: Mutex::default(),
            bookmarks: channel::Sender::new(0),
            tokens: Mutex::new(BTreeMap::from([(ADMIN.to_owned(), User::new("admin"))])),
            rules: Mutex::default(),
            faults: Mutex::default(),
            log: Mutex::default(),
            settings: Mutex::new(Settings {
                second: Duration::from_secs(1),
                bookmark_every: Duration::from_secs(60),
                streaming_lists: true,
                controllers_delay: Duration::from_millis(20),
                unavailable: Vec::new(),
            }),
            away: AtomicBool::new(false),
            connections: Mutex::new(CancellationToken::new()),
            controllers_due: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            address: None,
            stop: CancellationToken::new(),
        }
    }

    /// A client with a token, over TCP where there is a port.
    pub(crate) fn client(&self, token: &str) -> kube::Client {
        match self.address {
            Some(address) => {
                let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
                config.auth_info.token = Some(token.to_owned().into());
                config.default_retry = false;
                kube::Client::try_from(config).unwrap()
            }
            None => http::direct_client(&self.shared, token),
        }
    }

    /// The text of a kubeconfig that leads here.
    pub(crate) fn kubeconfig(&self, token: &str) -> String {
        let address = self.address.expect("a server with a port");
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "fake", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "pinfold"}}],
        })
        .to_string()
    }

    // --- what is stored ---

    fn kind_of(&self, object: &Value) -> Kind {
        let version = object["apiVersion"].as_str().unwrap_or("v1");
        let kind = object["kind"].as_str().unwrap_or_default();
        let store = self.shared.store.lock().unwrap();
        let found = store
            .kinds
            .iter()
            .find(|other| other.kind == kind && other.api_version() == version);
        found
            .unwrap_or_else(|| panic!("no kind {version} {kind}"))
            .clone()
    }

    /// Puts an object in exactly as it is, under its own version where it has one; uid and time are added.
    pub(crate) fn put(&self, object: &Value) -> Value {
        let kind = self.kind_of(object);
        let mut object = object.clone();
        let mut store = self.shared.store.lock().unwrap();
        if object["metadata"]["uid"].is_null() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["metadata"]["uid"] = json!(format!("uid-{}-{name}", kind.plural));
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = json!(store.now());
        }
        let text = |key: &str| {
            object["metadata"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let (namespace, name) = (text("namespace"), text("name"));
        let given = text("resourceVersion")
            .parse()
            .ok()
            .filter(|given| *given > store.revision);
        let revision = given.unwrap_or(store.revision + 1);
        let stored = store.write_at(&kind, &namespace, &name, Some(object), revision);
        drop(store);
        self.shared.wake();
        (*stored).clone()
    }

    /// Takes an object out, and what it owns after the usual while.
    pub(crate) fn remove(&self, object: &Value) {
        let kind = self.kind_of(object);
        let text = |key: &str| {
            object["metadata"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let mut store = self.shared.store.lock().unwrap();
        match text("resourceVersion")
            .parse()
            .ok()
            .filter(|given| *given > store.revision)
        {
            Some(revision) => {
                store.write_at(&kind, &text("namespace"), &text("name"), None, revision)
            }
            None => store.write(&kind, &text("namespace"), &text("name"), None),
        };
        drop(store);
        self.shared.wake();
        serve::collect_later(&self.shared);
    }

    /// The object, if it is there; `api_version` and `kind` as in a manifest.
    pub(crate) fn get(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        let kind = self.kind_of(&json!({"apiVersion": api_version, "kind": kind}));
        let found = self
            .shared
            .store
            .lock()
            .unwrap()
            .get(&kind, namespace, name);
        found.map(|object| (*object).clone())
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, api_version: &str, kind: &str) -> Vec<Value> {
        let kind = self.kind_of(&json!({"apiVersion": api_version, "kind": kind}));
        let store = self.shared.store.lock().unwrap();
        store
            .at(&kind, store.revision)
            .into_values()
            .map(|object| (*object).clone())
            .collect()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.shared.store.lock().unwrap().revision
    }

    /// What the controllers would do in a moment, now.
    pub(crate) fn run_controllers(&self) {
        let mut store = self.shared.store.lock().unwrap();
        store.collect_garbage();
        store.establish();
        drop(store);
        self.shared.wake();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("a server with a port")
    }

    /// Goes on counting from here.
    pub(crate) fn set_revision(&self, revision: u64) {
        self.shared.store.lock().unwrap().revision = revision;
    }

    /// Forgets every version before this one: who asks for older ones is told 410.
    pub(crate) fn compact(&self, revision: u64) {
        self.shared.store.lock().unwrap().compact(revision);
    }

    /// A pod that the disruption budget of this name protects from eviction.
    pub(crate) fn protect(&self, pod: &str, budget: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .budgets
            .insert(pod.to_owned(), budget.to_owned());
    }

    /// Sends every watch a bookmark.
    pub(crate) fn bookmark(&self) {
        self.shared.bookmarks.send_modify(|count| *count += 1);
    }

    // --- time and names ---

    /// Uids for the next objects that are created.
    pub(crate) fn next_uid(&self, uid: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .uids
            .push_back(uid.to_owned());
    }

    /// Endings for the next names that are generated.
    pub(crate) fn next_suffix(&self, suffix: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .suffixes
            .push_back(suffix.to_owned());
    }

    /// Stops the clock that objects show.
    pub(crate) fn set_time(&self, time: &str) {
        self.shared.store.lock().unwrap().fixed_time = Some(time.to_owned());
    }

    /// Sets the server's clock ahead by so many seconds.
    pub(crate) fn set_skew(&self, seconds: i64) {
        self.shared.store.lock().unwrap().skew = seconds;
    }

    /// How long a second of `timeoutSeconds` takes.
    pub(crate) fn set_second(&self, second: Duration) {
        self.shared.settings.lock().unwrap().second = second;
    }

    pub(crate) fn set_bookmark_every(&self, every: Duration) {
        self.shared.settings.lock().unwrap().bookmark_every = every;
    }

    /// Whether `sendInitialEvents` is understood; servers before 1.34, and many aggregated ones, refuse it.
    pub(crate) fn set_streaming_lists(&self, on: bool) {
        self.shared.settings.lock().unwrap().streaming_lists = on;
    }

    /// How long the controllers take: garbage collection, and new definitions.
    pub(crate) fn set_controllers_delay(&self, delay: Duration) {
        self.shared.settings.lock().unwrap().controllers_delay = delay;
    }

    /// A group whose own server is down.
    pub(crate) fn set_unavailable(&self, group: &str) {
        self.shared
            .settings
            .lock()
            .unwrap()
            .unavailable
            .push(group.to_owned());
    }

    // --- who may do what ---

    /// A token and whose it is.
    pub(crate) fn user(&self, token: &str, user: &str) {
        self.shared
            .tokens
            .lock()
            .unwrap()
            .insert(token.to_owned(), User::new(user));
    }

    /// A token of a service account that is bound to a pod on a node.
    pub(crate) fn user_on_node(&self, token: &str, user: &str, node: &str) {
        self.shared
            .tokens
            .lock()
            .unwrap()
            .insert(token.to_owned(), User::on_node(user, node));
    }

    /// The token of a node's agent.
    pub(crate) fn agent_on(&self, node: &str) -> String {
        let token = format!("token-of-{node}");
        self.user_on_node(&token, ACCOUNT, node);
        token
    }

    /// The rights that are shipped for agents, and the policies that hold each to its own node.
    pub(crate) fn install_shipped(&self) {
        let files = ["rbac", "node-policy", "claim-policy", "event-policy"];
        let documents = files
            .iter()
            .flat_map(|file| yaml::documents(&format!("deploy/base/{file}.yaml")));
        self.install_documents(&documents.collect::<Vec<_>>());
    }

    /// Puts the roles and the validating admission policies of a file into force.
    pub(crate) fn install(&self, file: &str) {
        self.install_documents(&yaml::documents(file));
    }

    /// Puts roles and validating admission policies into force. The policies' authorizer answers by these roles.
    fn install_documents(&self, documents: &[Value]) {
        self.shared
            .rules
            .lock()
            .unwrap()
            .extend(Rule::of_roles(documents));
        self.shared
            .store
            .lock()
            .unwrap()
            .policies
            .extend(Enforced::of_documents(documents));
    }

    /// Allows a user some verbs on a resource; no names are all names. Nothing else is allowed to anyone but the admin.
    pub(crate) fn allow(
        &self,
        user: &str,
        verbs: &[&str],
        group: &str,
        resource: &str,
        names: &[&str],
    ) {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        self.shared.rules.lock().unwrap().push(Rule {
            user: user.to_owned(),
            verbs: owned(verbs),
            group: group.to_owned(),
            resource: resource.to_owned(),
            names: owned(names),
            namespace: None,
        });
    }

    /// Takes all rules of a user away.
    pub(crate) fn forbid(&self, user: &str) {
        self.shared
            .rules
            .lock()
            .unwrap()
            .retain(|rule| rule.user != user);
    }

    // --- what goes wrong ---

    /// A fault for the requests that `when` meets; the latest that meets one counts.
    pub(crate) fn fail(&self, when: When, fault: Fault) {
        self.shared.faults.lock().unwrap().push((when, fault));
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// Ends every connection and takes no new one.
    pub(crate) fn go_away(&self) {
        self.shared.away.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Takes connections again.
    pub(crate) fn come_back(&self) {
        self.shared.away.store(false, Ordering::SeqCst);
    }

    /// Ends every connection.
    pub(crate) fn cut(&self) {
        let mut connections = self.shared.connections.lock().unwrap();
        connections.cancel();
        *connections = CancellationToken::new();
    }

    // --- what was asked ---

    /// Everything asked so far.
    pub(crate) fn log(&self) -> Vec<Logged> {
        self.shared.log.lock().unwrap().clone()
    }

    /// How often something was asked; an empty verb or kind is any.
    pub(crate) fn count(&self, verb: &str, plural: &str) -> usize {
        let log = self.shared.log.lock().unwrap();
        let fits = |logged: &&Logged| {
            (verb.is_empty() || logged.verb == verb)
                && (plural.is_empty() || logged.plural == plural)
        };
        log.iter().filter(fits).count()
    }

    /// Forgets what was asked.
    pub(crate) fn clear_log(&self) {
        self.shared.log.lock().unwrap().clear();
    }
}
