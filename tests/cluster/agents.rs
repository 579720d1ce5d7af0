//! Helpers for tests and the benchmark of claims: agents' scene tasks against the fake API server.

use std::collections::BTreeMap;
use std::time::Duration;

use pinfold::cluster::Api;
use pinfold::cluster::events::{EventSettings, Recorder};
use pinfold::cluster::pods::{PodCache, PodWatchSettings as PodSettings, follow};
use pinfold::cluster::scenes::{RunningPod, RunningPods, SceneSettings, Scenes, SlotState};
use pinfold::scene::definition;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fakeapi::FakeApi;

pub(crate) const NAMESPACE: &str = "pinfold";

/// A cluster with Pinfold installed, without nodes and plans.
pub(crate) fn cluster() -> FakeApi {
    let fake = FakeApi::direct();
    install(&fake);
    fake
}

pub(crate) fn install(fake: &FakeApi) {
    fake.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}));
    fake.put(&serde_json::to_value(definition()).unwrap());
    fake.run_controllers();
    // Agents have exactly the shipped permissions, and the shipped policies apply to each write.
    fake.install_shipped();
}

/// The client of a node's agent.
pub(crate) fn client(fake: &FakeApi, node: &str) -> Api {
    Api::new(fake.client(&fake.agent_on(node)), Duration::from_secs(10))
}

/// Stores a Node as registered by the kubelet.
pub(crate) fn put_node(fake: &FakeApi, name: &str, uid: &str) {
    let managed = json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-11-20T15:47:48Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:pool": {}}}},
    }]);
    fake.put(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {
            "name": name, "uid": uid, "labels": {"pool": "train"}, "managedFields": managed,
        }, "spec": {}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi"}},
    }));
}

pub(crate) fn remove_node(fake: &FakeApi, name: &str) {
    fake.remove(&fake.get("v1", "Node", "", name).unwrap());
}

/// An agent's task with its handles.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) state: watch::Receiver<SlotState>,
    pub(crate) pods: watch::Sender<RunningPods>,
    pub(crate) api: Api,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    /// The tasks that send pods to the agent. They end with it.
    pod_tasks: JoinSet<()>,
}

// === impl Agent ===

impl Agent {
    /// Starts an agent that has read an empty list of pods.
    pub(crate) fn start(fake: &FakeApi, node: &str, settings: SceneSettings) -> Self {
        Self::start_with(fake, node, settings, Some(Vec::new()), true)
    }

    pub(crate) fn start_with(
        fake: &FakeApi,
        node: &str,
        settings: SceneSettings,
        pods: RunningPods,
        events: bool,
    ) -> Self {
        let api = client(fake, node);
        let (pods, pods_receiver) = watch::channel(pods);
        let (mut scenes, state) =
            Scenes::new(api.clone(), node, NAMESPACE, pods_receiver, settings);
        if events {
            let (recorder, writer) = Recorder::new(api.clone(), node, EventSettings::default());
            tokio::spawn(writer);
            scenes = scenes.with_recorder(recorder);
        }
        let stop = CancellationToken::new();
        let task = tokio::spawn(scenes.run(stop.clone()));
        Self {
            node: node.to_owned(),
            state,
            pods,
            api,
            stop,
            task,
            pod_tasks: JoinSet::new(),
        }
    }

    /// Starts an agent that follows its pods through the API server, as the program does.
    pub(crate) fn start_with_pods_of_api(fake: &FakeApi, node: &str) -> Self {
        let mut agent = Self::start_with(fake, node, SceneSettings::default(), None, true);
        let (out, mut events) = mpsc::channel(16);
        agent.pod_tasks.spawn(follow(
            agent.api.clone(),
            node.to_owned(),
            PodSettings::default(),
            out,
        ));
        let pods = agent.pods.clone();
        agent.pod_tasks.spawn(async move {
            let mut cache = PodCache::default();
            while let Some(event) = events.recv().await {
                cache.take(&event);
                if cache.is_complete() {
                    pods.send_replace(Some(RunningPod::among(cache.pods())));
                }
            }
        });
        agent
    }

    /// Ends the task as SIGTERM does.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Aborts the task at its current await point, as in a crash.
    pub(crate) fn kill(self) {
        self.task.abort();
    }

    pub(crate) fn state(&self) -> SlotState {
        self.state.borrow().clone()
    }

    /// Waits until the state meets a condition, for half an hour of the test's clock at most.
    pub(crate) async fn until(&mut self, what: &str, holds: impl FnMut(&SlotState) -> bool) {
        let half_an_hour = Duration::from_secs(1800);
        let waited = tokio::time::timeout(half_an_hour, self.state.wait_for(holds)).await;
        let reached = matches!(waited, Ok(Ok(_)));
        drop(waited);
        assert!(
            reached,
            "{} never reached {what}: {:?}",
            self.node,
            self.state.borrow()
        );
    }
}

/// Waits until a condition holds, for an hour of the test's clock at most. Returns the waiting time.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = tokio::time::Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < Duration::from_secs(3600),
            "not within an hour: {what}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    began.elapsed()
}

/// The values of the four scene labels on a Node, as text: `1/2/0` or `2/1/worker/3`.
pub(crate) fn place(node: &Value) -> Option<String> {
    let label = |key: &str| node["metadata"]["labels"][key].as_str();
    let labels = [
        label("SCENCE"),
        label("CASE"),
        label("TYPE"),
        label("INDEX"),
    ];
    let parts: Vec<&str> = labels.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// The nodes with scene labels, each with the text of [`place`].
pub(crate) fn places(fake: &FakeApi) -> BTreeMap<String, String> {
    let nodes = fake.all("v1", "Node");
    nodes
        .iter()
        .filter_map(|node| Some((node["metadata"]["name"].as_str()?.to_owned(), place(node)?)))
        .collect()
}

/// The claims: Lease names, each with the name of its Node.
pub(crate) fn claims(fake: &FakeApi) -> BTreeMap<String, String> {
    let leases = fake.all("coordination.k8s.io/v1", "Lease");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    leases
        .iter()
        .map(|lease| {
            (
                text(&lease["metadata"]["name"]),
                text(&lease["metadata"]["ownerReferences"][0]["name"]),
            )
        })
        .collect()
}

/// Checks the history of all Nodes: no two Nodes had the same place at the same time.
pub(crate) fn no_place_was_double(fake: &FakeApi) {
    let store = fake.shared.store.lock().unwrap();
    let mut holders: BTreeMap<String, String> = BTreeMap::new();
    for change in store.history.get("nodes").into_iter().flatten() {
        let name = |node: &Value| {
            node["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        if let Some(old) = change.old.as_deref()
            && let Some(place) = place(old)
            && holders.get(&place) == Some(&name(old))
        {
            holders.remove(&place);
        }
        if let Some(new) = change.new.as_deref()
            && let Some(place) = place(new)
        {
            let before = holders.insert(place.clone(), name(new));
            assert_eq!(
                before,
                None,
                "{place} was also on {}, at resourceVersion {}",
                name(new),
                change.revision
            );
        }
    }
}

/// The number of write requests.
pub(crate) fn writes(fake: &FakeApi) -> usize {
    let writes = |logged: &&crate::fakeapi::Logged| {
        matches!(
            &*logged.verb,
            "create" | "apply" | "patch" | "update" | "delete"
        )
    };
    fake.log().iter().filter(writes).count()
}
