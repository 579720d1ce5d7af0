//! A faithful fake of the Kubernetes API server, for tests.
//!
//! The fake keeps objects in memory under one resourceVersion counter. Its answers equal the
//! recordings of a 1.36 API server in `tests/data/apiserver`; `cluster/replay.rs` compares them. It
//! covers paged lists, watches with bookmarks, streaming lists, objects reduced to their metadata,
//! server-side apply with field managers and conflicts, garbage collection, the server's error
//! texts, and faults on demand. Tests connect over TCP, or without a socket to pause the clock
//! ([`FakeApi::direct`]).
//!
//! Roles and validating admission policies come from manifests ([`FakeApi::install`]).
//!
//! Not covered: mutating policies, quotas, finalizers, and conversion between `v1` and `events.k8s.io` Events (two separate
//! lists).

#![allow(dead_code, reason = "no test crate uses every item")]
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
mod forward;
mod http;
mod kinds;
mod list;
mod patch;
mod review;
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
pub(crate) use faults::{Fault, FaultScope, WatchFault};
use kinds::ObjectKind;
use store::Store;

/// The service account of all agents. Each agent has its own token, bound to its node.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:pinfold:pinfold";

/// A token with all permissions.
pub(crate) const ADMIN: &str = "admin-token";

/// A logged request, answered or not.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) at: tokio::time::Instant,
    pub(crate) user: String,
    /// The RBAC verb, except `apply` for server-side apply.
    pub(crate) verb: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) query: String,
    /// The request's User-Agent.
    pub(crate) agent: String,
    /// Objects that the server reads from etcd for the answer.
    pub(crate) from_etcd: usize,
    /// The HTTP status code. 0 if the request got no answer.
    pub(crate) status: u16,
}

/// The state shared by all connections.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) store: Mutex<Store>,
    /// The latest resourceVersion of each watched kind. There is a channel for each kind, so that
    /// ten thousand watchers of plans sleep while Leases change.
    changed: Mutex<BTreeMap<String, channel::Sender<u64>>>,
    pub(crate) bookmarks: channel::Sender<u64>,
    tokens: Mutex<BTreeMap<String, User>>,
    rules: Mutex<Vec<Rule>>,
    faults: Mutex<Vec<(FaultScope, Fault)>>,
    /// What the containers have written, by pod.
    pub(crate) logs: Mutex<BTreeMap<String, String>>,
    log: Mutex<Vec<Logged>>,
    settings: Mutex<Settings>,
    /// The addresses behind the ports of pods, for port-forwards.
    forwards: Mutex<BTreeMap<(String, u16), SocketAddr>>,
    /// Whether the server refuses connections.
    away: AtomicBool,
    connections: Mutex<CancellationToken>,
    /// Whether a round of the controllers is scheduled.
    controllers_due: AtomicBool,
}

#[derive(Debug, Clone)]
struct Settings {
    second: Duration,
    bookmark_every: Duration,
    streaming_lists: bool,
    /// Whether the authenticator of tokens does not know audiences.
    ignores_audiences: bool,
    controllers_delay: Duration,
    unavailable: Vec<String>,
}

// === impl SharedState ===

impl SharedState {
    pub(crate) fn second(&self) -> Duration {
        self.settings.lock().unwrap().second
    }

    pub(crate) fn bookmark_every(&self) -> Duration {
        self.settings.lock().unwrap().bookmark_every
    }

    /// Wakes the watchers of each kind with a new resourceVersion.
    pub(crate) fn wake(&self) {
        let store = self.store.lock().unwrap();
        for (kind, latest) in self.changed.lock().unwrap().iter() {
            let revision = store.latest(kind);
            latest.send_if_modified(|sent| std::mem::replace(sent, revision) != revision);
        }
    }

    /// A receiver of the kind's latest resourceVersion.
    pub(crate) fn changes_of(&self, kind: &ObjectKind) -> channel::Receiver<u64> {
        let mut changed = self.changed.lock().unwrap();
        changed
            .entry(kind.qualified())
            .or_insert_with(|| channel::Sender::new(0))
            .subscribe()
    }
}

/// The server, which the drop stops.
#[derive(Debug)]
pub(crate) struct FakeApi {
    pub(crate) shared: Arc<SharedState>,
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
    /// Starts a server on a free TCP port.
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

    /// Creates a server without a socket. Only clients from [`FakeApi::client`] can call the server.
    pub(crate) fn direct() -> Self {
        let shared = SharedState {
            store: Mutex::new(Store::new()),
            changed: Mutex::default(),
            bookmarks: channel::Sender::new(0),
            tokens: Mutex::new(BTreeMap::from([(ADMIN.to_owned(), User::new("admin"))])),
            rules: Mutex::default(),
            faults: Mutex::default(),
            logs: Mutex::default(),
            log: Mutex::default(),
            settings: Mutex::new(Settings {
                second: Duration::from_secs(1),
                bookmark_every: Duration::from_secs(60),
                streaming_lists: true,
                ignores_audiences: false,
                controllers_delay: Duration::from_millis(20),
                unavailable: Vec::new(),
            }),
            forwards: Mutex::default(),
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

    /// A client with the given token. It uses TCP if the server has a port.
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

    /// The text of a kubeconfig for this server.
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

    // --- stored objects ---

    fn kind_of(&self, object: &Value) -> ObjectKind {
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

    /// Stores an object without defaults or admission. A resourceVersion newer than the store's is kept. A missing uid or
    /// creationTimestamp is added.
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
        let requested = text("resourceVersion")
            .parse()
            .ok()
            .filter(|requested| *requested > store.revision);
        let revision = requested.unwrap_or(store.revision + 1);
        let stored = store.write_at(&kind, &namespace, &name, Some(object), revision);
        drop(store);
        self.shared.wake();
        (*stored).clone()
    }

    /// Deletes an object. Garbage collection deletes its dependents after the controllers' delay.
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
            .filter(|requested| *requested > store.revision)
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

    /// The object, or `None`. `api_version` and `kind` are written as in a manifest.
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

    /// Runs the controllers at once, without their delay.
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

    /// Sets the resourceVersion counter.
    pub(crate) fn set_revision(&self, revision: u64) {
        self.shared.store.lock().unwrap().revision = revision;
    }

    /// Makes TokenReviews ignore audiences, as with an authenticating webhook that does not know them.
    pub(crate) fn ignore_audiences(&self) {
        self.shared.settings.lock().unwrap().ignores_audiences = true;
    }

    /// Makes the watch cache lag behind etcd at `revision`, or catch up again with `None`. Lists from the cache are then older.
    pub(crate) fn set_cached(&self, revision: Option<u64>) {
        self.shared.store.lock().unwrap().cached = revision;
    }

    /// Returns to the objects at `revision`, as after the restore of a backup of etcd, and ends every connection.
    pub(crate) fn restore(&self, revision: u64) {
        self.shared.store.lock().unwrap().restore(revision);
        self.cut();
    }

    /// Compacts the history before `revision`. Requests for older versions get 410 Gone.
    pub(crate) fn compact(&self, revision: u64) {
        self.shared.store.lock().unwrap().compact(revision);
    }

    /// Makes the disruption budget `budget` refuse evictions of `pod`.
    pub(crate) fn protect(&self, pod: &str, budget: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .budgets
            .insert(pod.to_owned(), budget.to_owned());
    }

    /// Stores a running pod of an agent. Port-forwards to its port reach `address`.
    pub(crate) fn put_agent(&self, name: &str, node: &str, address: SocketAddr) -> Value {
        let port = 9471;
        let key = (name.to_owned(), port);
        self.shared.forwards.lock().unwrap().insert(key, address);
        self.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "pinfold", "labels": {
                    "app.kubernetes.io/name": "pinfold",
                    "app.kubernetes.io/part-of": "pinfold",
                    "app.kubernetes.io/component": "agent",
                },
            },
            "spec": {
                "nodeName": node,
                "containers": [{
                    "name": "agent", "image": "pinfold",
                    "ports": [{"name": "metrics", "containerPort": port, "protocol": "TCP"}],
                }],
            },
            "status": {"phase": "Running"},
        }))
    }

    /// Removes the address behind an agent's pod, which then refuses connections.
    pub(crate) fn stop_forward(&self, name: &str) {
        let mut forwards = self.shared.forwards.lock().unwrap();
        forwards.retain(|(pod, _), _| pod != name);
    }

    /// Sends a bookmark to every watch.
    pub(crate) fn bookmark(&self) {
        self.shared.bookmarks.send_modify(|count| *count += 1);
    }

    // --- clock, names and settings ---

    /// Queues a uid for the next created object.
    pub(crate) fn next_uid(&self, uid: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .uids
            .push_back(uid.to_owned());
    }

    /// Queues a suffix for the next generated name.
    pub(crate) fn next_suffix(&self, suffix: &str) {
        self.shared
            .store
            .lock()
            .unwrap()
            .suffixes
            .push_back(suffix.to_owned());
    }

    /// Fixes the time written into objects.
    pub(crate) fn set_time(&self, time: &str) {
        self.shared.store.lock().unwrap().fixed_time = Some(time.to_owned());
    }

    /// Sets the server's clock ahead by `seconds`.
    pub(crate) fn set_skew(&self, seconds: i64) {
        self.shared.store.lock().unwrap().skew = seconds;
    }

    /// Sets the duration of one second of `timeoutSeconds`.
    pub(crate) fn set_second(&self, second: Duration) {
        self.shared.settings.lock().unwrap().second = second;
    }

    pub(crate) fn set_bookmark_every(&self, every: Duration) {
        self.shared.settings.lock().unwrap().bookmark_every = every;
    }

    /// Sets whether the server accepts `sendInitialEvents`. Servers before 1.34 and many aggregated
    /// API servers refuse it.
    pub(crate) fn set_streaming_lists(&self, on: bool) {
        self.shared.settings.lock().unwrap().streaming_lists = on;
    }

    /// Sets the delay before garbage collection and before new `CustomResourceDefinition` objects are established.
    pub(crate) fn set_controllers_delay(&self, delay: Duration) {
        self.shared.settings.lock().unwrap().controllers_delay = delay;
    }

    /// Makes every request to an API group fail with 503, as if its aggregated API server were down.
    pub(crate) fn set_unavailable(&self, group: &str) {
        self.shared
            .settings
            .lock()
            .unwrap()
            .unavailable
            .push(group.to_owned());
    }

    // --- users and permissions ---

    /// Adds a token for a user.
    pub(crate) fn user(&self, token: &str, user: &str) {
        self.shared
            .tokens
            .lock()
            .unwrap()
            .insert(token.to_owned(), User::new(user));
    }

    /// Adds a token with another audience than the API server.
    pub(crate) fn user_for(&self, token: &str, user: &str, audience: &'static str) {
        let user = User {
            audience,
            ..User::new(user)
        };
        let mut tokens = self.shared.tokens.lock().unwrap();
        tokens.insert(token.to_owned(), user);
    }

    /// Adds a service account token bound to a pod on `node`.
    pub(crate) fn user_on_node(&self, token: &str, user: &str, node: &str) {
        self.shared
            .tokens
            .lock()
            .unwrap()
            .insert(token.to_owned(), User::on_node(user, node));
    }

    /// Adds and returns the token of a node's agent.
    pub(crate) fn agent_on(&self, node: &str) -> String {
        let token = format!("token-of-{node}");
        self.user_on_node(&token, ACCOUNT, node);
        token
    }

    /// Installs the shipped RBAC rules of agents, and the policies that restrict each agent to its own node.
    pub(crate) fn install_shipped(&self) {
        let files = ["rbac", "node-policy", "claim-policy", "event-policy"];
        let documents = files
            .iter()
            .flat_map(|file| yaml::documents(&format!("deploy/base/{file}.yaml")));
        self.install_documents(&documents.collect::<Vec<_>>());
    }

    /// Installs the roles and the validating admission policies of a file.
    pub(crate) fn install(&self, file: &str) {
        self.install_documents(&yaml::documents(file));
    }

    /// Installs roles and validating admission policies. The policies' authorizer uses the same roles.
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

    /// Allows a user some verbs on a resource. Empty `names` allow all object names. The admin needs no rule; every other user has
    /// only the permissions of rules.
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

    /// Allows a user to get a path that is no resource.
    pub(crate) fn allow_path(&self, user: &str, path: &str) {
        self.allow(user, &["get"], "", path, &[]);
    }

    /// Removes all rules of a user.
    pub(crate) fn forbid(&self, user: &str) {
        self.shared
            .rules
            .lock()
            .unwrap()
            .retain(|rule| rule.user != user);
    }

    // --- faults ---

    /// Adds a fault for the requests that match `when`. If several faults match a request, the latest one applies.
    pub(crate) fn fail(&self, when: FaultScope, fault: Fault) {
        self.shared.faults.lock().unwrap().push((when, fault));
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// Ends every connection and refuses new ones.
    pub(crate) fn go_away(&self) {
        self.shared.away.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Accepts connections again.
    pub(crate) fn come_back(&self) {
        self.shared.away.store(false, Ordering::SeqCst);
    }

    /// Ends every connection.
    pub(crate) fn cut(&self) {
        let mut connections = self.shared.connections.lock().unwrap();
        connections.cancel();
        *connections = CancellationToken::new();
    }

    // --- request log ---

    /// All logged requests.
    pub(crate) fn log(&self) -> Vec<Logged> {
        self.shared.log.lock().unwrap().clone()
    }

    /// The number of logged requests with a verb and a resource. An empty string matches any.
    pub(crate) fn count(&self, verb: &str, plural: &str) -> usize {
        let log = self.shared.log.lock().unwrap();
        let fits = |logged: &&Logged| {
            (verb.is_empty() || logged.verb == verb)
                && (plural.is_empty() || logged.plural == plural)
        };
        log.iter().filter(fits).count()
    }

    /// Clears the request log.
    pub(crate) fn clear_log(&self) {
        self.shared.log.lock().unwrap().clear();
    }
}
