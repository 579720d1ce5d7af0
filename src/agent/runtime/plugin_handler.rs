//! [`PluginHandler`]: answers the events of the container runtime with the decisions of the reconciler.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::api_wait::ApiWait;
use super::live_mount::LiveMounts;
use super::reduced::{INJECTED, annotation_values, reduced_container, reduced_pod};
use crate::agent::api::{ApiPods, ClusterLink};
use crate::agent::event::{AgentEvent, CreateAnswer, RuntimePod, RuntimeUpdate};
use crate::agent::gate;
use crate::agent::kubelet::KubeletLink;
use crate::cluster::scenes;
use crate::metrics::AgentMetrics;
use crate::nri::{
    self, Container, ContainerAdjustment, CpuChange, EventSet, HandlerTimeout, Inventory,
    PodSandbox, Refusal, UnansweredCall,
};
use crate::pin::Enforcement;
use crate::pod::{Pod, is_required};

/// The variable that names a container's exclusive CPUs.
const CPUS: &str = "PINFOLD_CPUS";

/// The annotation that `pinfold-runtime` reads before the container starts; src/bin/pinfold-runtime/container.rs has the same
/// name. With the container's id, the value is one that no author of a pod can foretell.
const START_CHECK: &str = "pinfold.io/start-check";

/// How long an answer may wait for the Node's slot: the time since the agent's start, and the time
/// of one wait. Half of the time that is left until the request's deadline is the third limit.
const SLOT_WAIT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(400));

/// The API server as a source of pods.
pub(super) struct ApiSource {
    pub(super) link: ClusterLink,
    /// The pods that the API server lists.
    pub(super) pods: watch::Receiver<ApiPods>,
}

pub(super) struct PluginHandler {
    /// A single queue to the reconciler keeps the runtime's events in order. It has no limit,
    /// because the runtime waits for the answer to each event.
    reconciler: mpsc::UnboundedSender<AgentEvent>,
    /// The connection to the API server, and the wait for new pods, where the API is used.
    api: Option<(ClusterLink, ApiWait)>,
    /// The Node's slot in a scene, where scenes are used.
    slot: Option<watch::Receiver<scenes::SlotState>>,
    kubelet: KubeletLink,
    inventory: Mutex<Inventory>,
    metrics: AgentMetrics,
    live_mounts: LiveMounts,
    started_at: Instant,
}

// === impl PluginHandler ===

impl PluginHandler {
    pub(super) fn new(
        reconciler: mpsc::UnboundedSender<AgentEvent>,
        api_source: Option<ApiSource>,
        kubelet: KubeletLink,
        metrics: AgentMetrics,
    ) -> Self {
        let slot = api_source.as_ref().and_then(|api| api.link.slot());
        let (inventory, started_at) = (Mutex::default(), Instant::now());
        let api = api_source.map(|api| (api.link, ApiWait::new(api.pods)));
        Self {
            reconciler,
            api,
            slot,
            kubelet,
            inventory,
            metrics,
            live_mounts: LiveMounts::default(),
            started_at,
        }
    }

    /// Reports a pod's current state to the reconciler.
    fn report_pod(&self, sandbox: &PodSandbox) {
        if let Some(update) = self.update_of(sandbox) {
            self.send(update);
        }
    }

    /// The event for a pod's current state: the pod, or that it has ended.
    fn update_of(&self, sandbox: &PodSandbox) -> Option<AgentEvent> {
        let gone = || {
            nri::pod(sandbox, [])
                .cgroup_uid()
                .map(|uid| RuntimeUpdate::Gone(uid.to_owned()))
        };
        let update = self
            .pod(&sandbox.uid)
            .map(|reported| RuntimeUpdate::Pod(Box::new(reported)));
        update.or_else(gone).map(AgentEvent::Runtime)
    }

    /// Notes in the inventory that a container or a sandbox has stopped or was removed, and tells
    /// the reconciler.
    fn remove_ended(&self, event: nri::Event, request: &nri::EventRequest) {
        let mut inventory = lock(&self.inventory);
        match event {
            nri::Event::StopContainer => inventory.stop(&request.container.id),
            nri::Event::RemoveContainer => {
                inventory.remove(&request.container.id);
            }
            nri::Event::StopPodSandbox | nri::Event::RemovePodSandbox => {
                inventory.remove_pod(&request.pod.id);
            }
            _ => return,
        }
        drop(inventory);
        self.report_pod(&request.pod);
    }

    fn send(&self, event: AgentEvent) {
        // A closed queue means that the reconciler has stopped, and the agent then stops as well.
        let _ = self.reconciler.send(event);
    }

    /// The runtime's pod with this uid, if it has a sandbox left. It has the containers of all its
    /// sandboxes, because a replaced sandbox stays for a while.
    fn pod(&self, uid: &str) -> Option<RuntimePod> {
        let inventory = lock(&self.inventory);
        let sandboxes = || {
            inventory
                .sandboxes_of(uid)
                .map(|sandbox| sandbox.id.as_str())
        };
        let mut ids: Vec<&str> = sandboxes().collect();
        ids.sort_by_key(|sandbox| inventory.newest(sandbox));
        let mut pods: Vec<Pod> = ids
            .into_iter()
            .filter_map(|sandbox| inventory.pod(sandbox))
            .collect();
        let mut pod = pods.pop()?;
        for container in pods.into_iter().rev().flat_map(|pod| pod.containers) {
            if pod.container(&container.name).is_none() {
                pod.containers.push(container);
            }
        }
        let injected_into = |container: &crate::pod::Container| {
            let (_, known) = inventory.container(container.runtime_id.as_deref()?)?;
            Some((container.name.clone(), annotation_values(known, INJECTED)))
        };
        let injected: BTreeMap<String, Vec<String>> =
            pod.containers.iter().filter_map(injected_into).collect();
        let removed = sandboxes().flat_map(|sandbox| inventory.removed(sandbox));
        let removed = removed
            .filter(|name| !sandboxes().any(|sandbox| inventory.has_container(sandbox, name)));
        let stopped = sandboxes().flat_map(|sandbox| inventory.stopped(sandbox));
        let stopped = stopped.filter(|name| pod.container(name).is_none());
        let stopped = stopped.map(str::to_owned).collect();
        Some(without_injected_variables(RuntimePod {
            removed: removed.map(str::to_owned).collect(),
            stopped,
            pod,
            injected,
        }))
    }

    /// Sends a request to the reconciler, and waits for the answer.
    async fn request<T>(&self, event: impl FnOnce(oneshot::Sender<T>) -> AgentEvent) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.reconciler.send(event(reply)).ok()?;
        answer.await.ok()
    }

    /// Waits until the API server lists the pod, because the runtime does not know pod-level
    /// resources and the kinds of containers. Without the wait, the answer would depend on which
    /// source is faster.
    async fn wait_for_api(&self, uid: Option<&str>, deadline: tokio::time::Instant) {
        let (Some((link, wait)), Some(uid)) = (&self.api, uid) else {
            return;
        };
        // An unreachable server lists no pod.
        if link.problem().is_none() {
            wait.wait(uid, deadline).await;
        }
    }

    /// The Node's slot, as variables. A new agent must first read it, so early CreateContainer
    /// requests wait.
    async fn slot(&self, deadline: tokio::time::Instant) -> BTreeMap<String, String> {
        let Some(mut slot) = self.slot.clone() else {
            return BTreeMap::new();
        };
        let left = SLOT_WAIT.0.saturating_sub(self.started_at.elapsed());
        // The decision is made, and only the answer remains to be sent.
        let rest = deadline.saturating_duration_since(tokio::time::Instant::now());
        let left = left.min(SLOT_WAIT.1).min(rest / 2);
        let known = slot.wait_for(|state| state.usual.is_some());
        // After a timeout the last known slot counts.
        let _ = tokio::time::timeout(left, known).await;
        slot.borrow().variables()
    }

    /// The adjustment of a container that is being created: environment, annotations and CPUs.
    async fn adjustment(
        &self,
        container: &Container,
        admission: CreateAnswer,
        deadline: tokio::time::Instant,
    ) -> ContainerAdjustment {
        let CreateAnswer {
            cpus,
            cpuset,
            memory,
            checked,
            training,
            threads,
            ranks,
            live_folder,
            ..
        } = admission;
        let mut env = threads.variables;
        if training {
            env.extend(ranks.map(|ranks| ranks.variables).unwrap_or_default());
            env.extend(
                cpus.as_ref()
                    .map(|cpus| (CPUS.to_owned(), cpus.to_string())),
            );
            env.extend(self.slot(deadline).await);
        }
        env.retain(|name, _| container.variable(name).is_none());
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        let mut annotations = BTreeMap::from([start_check(container, checked)]);
        if !names.is_empty() {
            annotations.insert(INJECTED.to_owned(), names.join(","));
        }
        if let Some(cpus) = &cpuset {
            annotations.insert(nri::GIVEN_CPUS_ANNOTATION.to_owned(), cpus.to_string());
        }
        let cpu = CpuChange {
            cpus: cpuset,
            mems: memory,
            ..CpuChange::default()
        };
        // The quota is lifted at StartContainer, when the cgroup exists, and the assignment record
        // then keeps the previous one.
        ContainerAdjustment {
            env,
            annotations,
            mounts: self.live_mounts.of(container, live_folder.as_deref()),
            cpu,
        }
    }

    fn record_time(&self, call: &'static str, start: Instant) {
        self.metrics.runtime_call(call, start.elapsed());
    }
}

impl nri::Plugin for PluginHandler {
    fn events(&self) -> EventSet {
        use nri::Event::{
            CreateContainer, PostUpdateContainer, RemoveContainer, RemovePodSandbox, RunPodSandbox,
            StartContainer, StopContainer, StopPodSandbox, UpdateContainer,
        };
        [
            RunPodSandbox,
            StopPodSandbox,
            RemovePodSandbox,
            CreateContainer,
            StartContainer,
            UpdateContainer,
            PostUpdateContainer,
            StopContainer,
            RemoveContainer,
        ]
        .into_iter()
        .collect()
    }

    fn unanswered(&self, call: &UnansweredCall<'_>, why: HandlerTimeout) -> Result<(), Refusal> {
        self.metrics.runtime_unanswered();
        if let UnansweredCall::Event(event, request) = call {
            self.remove_ended(*event, request);
        }
        match call {
            // The inventory is incomplete after the timeout. The refusal closes the connection, so
            // that a new one follows.
            UnansweredCall::Synchronize => Err(Refusal::new(format!(
                "Pinfold could not process the existing pods and containers: {why}"
            ))),
            UnansweredCall::Event(
                nri::Event::CreateContainer | nri::Event::StartContainer,
                request,
            ) if is_required(&nri::pod(&request.pod, [])) => Err(Refusal::new(format!(
                "the pod is annotated pinfold.io/cpus=required, and Pinfold could not decide in time whether it can be \
                 pinned: {why}"
            ))),
            _ => Ok(()),
        }
    }

    fn reduce_pod(&self, pod: PodSandbox) -> PodSandbox {
        reduced_pod(&pod)
    }

    fn reduce(&self, container: Container) -> Container {
        reduced_container(&container)
    }

    async fn synchronize(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<(), Refusal> {
        let uids: Vec<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
        lock(&self.inventory).replace(pods, containers);
        let all = uids.iter().filter_map(|uid| self.pod(uid)).collect();
        self.send(AgentEvent::Runtime(RuntimeUpdate::All(all)));
        // Running containers stay unchanged here, because the reconciler changes their cgroups
        // later, in its own order.
        Ok(())
    }

    fn disconnected(&self) {
        self.send(AgentEvent::Runtime(RuntimeUpdate::Away));
    }

    async fn create(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        deadline: tokio::time::Instant,
    ) -> Result<ContainerAdjustment, Refusal> {
        let start = Instant::now();
        lock(&self.inventory).put(reduced_pod(sandbox), reduced_container(container));
        let Some(reported) = self.pod(&sandbox.uid) else {
            return Ok(ContainerAdjustment::default());
        };
        let required = is_required(&reported.pod);
        self.wait_for_api(reported.pod.cgroup_uid(), deadline).await;
        self.kubelet.wait(deadline).await;
        let (pod, name) = (Box::new(reported), container.name.clone());
        let admission = self
            .request(|reply| AgentEvent::Create {
                pod,
                container: name,
                can_mount_files: LiveMounts::own_volume(container).is_none(),
                reply,
            })
            .await;
        let answer = match admission {
            Some(CreateAnswer {
                refused: Some(why), ..
            }) => {
                lock(&self.inventory).remove(&container.id);
                self.report_pod(sandbox);
                Err(Refusal::new(why))
            }
            Some(admission) => Ok(self.adjustment(container, admission, deadline).await),
            None if required => Err(Refusal::new(gate::UNSEEN)),
            // The container belongs to no pod, or no answer came. It is created unchanged, and a
            // later turn handles its cgroup.
            None => Ok(ContainerAdjustment::default()),
        };
        self.record_time("create", start);
        answer
    }

    async fn start(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        deadline: tokio::time::Instant,
    ) -> Result<(), Refusal> {
        let start = Instant::now();
        lock(&self.inventory).put_newest(reduced_pod(sandbox), reduced_container(container));
        let Some(reported) = self.pod(&sandbox.uid) else {
            return Ok(());
        };
        let (uid, required) = (
            reported.pod.cgroup_uid().map(str::to_owned),
            is_required(&reported.pod),
        );
        self.send(AgentEvent::Runtime(RuntimeUpdate::Pod(Box::new(reported))));
        self.kubelet.wait(deadline).await;
        let answer = match uid {
            Some(uid) => {
                let container = container.name.clone();
                let answer = self
                    .request(|reply| AgentEvent::Start {
                        uid,
                        container,
                        reply,
                    })
                    .await;
                answer.unwrap_or_else(|| {
                    if required {
                        Err(gate::UNSEEN.to_owned())
                    } else {
                        Ok(())
                    }
                })
            }
            None => Ok(()),
        };
        self.record_time("start", start);
        answer.map_err(Refusal::new)
    }

    async fn update(
        &self,
        sandbox: &PodSandbox,
        container: &Container,
        deadline: tokio::time::Instant,
    ) -> Result<CpuChange, Refusal> {
        let start = Instant::now();
        let pod = nri::pod(sandbox, [container]);
        let given = pod.container(&container.name);
        let was_given = given.is_some_and(|container| container.given_cpus.is_some());
        // Only for such a container does the runtime hold a set of Pinfold's. A set of somebody
        // else stays as requested. One of the kubelet's may follow a new choice of CPUs, and must
        // not meet the partition of an ended container in the pod.
        let matters = was_given || self.kubelet.chooses();
        let (Some(uid), true) = (pod.cgroup_uid().map(str::to_owned), matters) else {
            return Ok(CpuChange::default());
        };
        self.kubelet.wait(deadline).await;
        let container = container.name.clone();
        let cpus = self
            .request(|reply| AgentEvent::Update {
                uid,
                container,
                reply,
            })
            .await;
        self.record_time("update", start);
        Ok(CpuChange {
            cpus: cpus.flatten().filter(|_| was_given),
            ..CpuChange::default()
        })
    }

    async fn notify(&self, event: nri::Event, request: &nri::EventRequest) {
        let nri::EventRequest { pod, container } = request;
        match event {
            nri::Event::RunPodSandbox => {
                lock(&self.inventory).put_pod(reduced_pod(pod));
                self.report_pod(pod);
            }
            nri::Event::PostUpdateContainer => {
                lock(&self.inventory).put(reduced_pod(pod), reduced_container(container));
                self.report_pod(pod);
            }
            _ => self.remove_ended(event, request),
        }
        if event.is_of_container()
            && let Some(uid) = nri::pod(pod, []).cgroup_uid()
        {
            self.send(AgentEvent::CgroupsChanged(uid.to_owned()));
        }
    }
}

/// The annotation for `pinfold-runtime`: `shared`, or how the container's CPUs are enforced, and the container's id.
fn start_check(container: &Container, checked: Option<Enforcement>) -> (String, String) {
    let check = checked.map_or("shared", Enforcement::name);
    (START_CHECK.to_owned(), format!("{check} {}", container.id))
}

/// Removes the injected variables from the environment, so that only those of the image and of the
/// pod's author are left.
fn without_injected_variables(mut reported: RuntimePod) -> RuntimePod {
    for container in &mut reported.pod.containers {
        let injected = reported
            .injected
            .get(&container.name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        container.env.retain(|name, _| !injected.contains(name));
    }
    reported
}

/// Locks a mutex, even after a panic, because no holder leaves inconsistent data.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod tests {
    use crate::cpu::{RankCpus, Topology};
    use crate::nri::{EventRequest, Plugin};
    use crate::pod::RankEnvironment;

    use super::*;

    fn pod() -> PodSandbox {
        PodSandbox {
            id: "p".to_owned(),
            uid: "uid".to_owned(),
            ..PodSandbox::default()
        }
    }

    /// A container of the pod of [`pod`].
    fn container(id: &str) -> Container {
        Container {
            id: id.to_owned(),
            name: id.to_owned(),
            pod_sandbox_id: pod().id,
            ..Container::default()
        }
    }

    /// src/bin/pinfold-runtime/container.rs reads these texts.
    #[test]
    fn the_annotation_for_the_check_has_the_containers_own_id() {
        let value = |checked| start_check(&container("id1"), checked).1;
        assert_eq!(value(None), "shared id1");
        assert_eq!(value(Some(Enforcement::Partition)), "partition id1");
        assert_eq!(value(Some(Enforcement::Cpuset)), "cpuset id1");
        assert_eq!(value(Some(Enforcement::Observe)), "observe id1");
    }

    /// A handler without an API server and without a kubelet, and what it tells the reconciler.
    fn handler() -> (PluginHandler, mpsc::UnboundedReceiver<AgentEvent>) {
        let (reconciler, events) = mpsc::unbounded_channel();
        let metrics = AgentMetrics::new().unwrap();
        let handler = PluginHandler::new(reconciler, None, KubeletLink::none(), metrics);
        (handler, events)
    }

    #[test]
    fn a_part_of_synchronize_is_reduced_to_the_variables_that_count() {
        let (handler, _events) = handler();
        let services = (0..3500).map(|number| format!("S{number}_SERVICE_HOST=10.0.0.1"));
        let own = ["PATH=/bin", "OMP_NUM_THREADS=3"].map(str::to_owned);
        let env = own.iter().cloned().chain(services).collect();
        let kept = handler.reduce(Container {
            env,
            ..Container::default()
        });
        assert_eq!(kept.env, own);
        assert!(
            kept.env.capacity() < 10,
            "the memory of the removed variables is free"
        );
    }

    /// The CPUs of each process reach a container of a training pod, unless it has the variable already.
    #[tokio::test]
    async fn the_cpus_of_processes_are_added_to_the_environment() {
        let (handler, _events) = handler();
        let names = [crate::pod::RANK_CPUS, "CCL_WORKER_AFFINITY"];
        let answer = |training| CreateAnswer {
            cpus: Some("2-3".parse().unwrap()),
            cpuset: None,
            memory: None,
            refused: None,
            checked: None,
            training,
            threads: crate::pod::thread_environment(
                &crate::pod::RecognizedPod::default(),
                0,
                &crate::pod::Policy::default(),
                &crate::pod::ThreadPolicy::default(),
                None,
            ),
            ranks: Some(RankEnvironment {
                cpus: RankCpus::of(&"2-3".parse().unwrap(), &Topology::default(), 2).unwrap(),
                variables: names.map(|name| (name.to_owned(), "2;3".to_owned())).into(),
                reason: String::new(),
            }),
            live_folder: None,
        };
        let deadline = tokio::time::Instant::now();
        let env = async |container: &Container, training| {
            let given = handler.adjustment(container, answer(training), deadline);
            given.await.env.into_keys().collect::<Vec<_>>()
        };
        let mut main = container("main");
        let [ranks, workers] = names;
        assert_eq!(env(&main, true).await, [workers, CPUS, ranks]);
        assert_eq!(env(&main, false).await, [""; 0]);
        main.env = vec![
            format!("{ranks}=none"),
            "CCL_WORKER_AFFINITY=auto".to_owned(),
        ];
        assert_eq!(env(&main, true).await, [CPUS]);
    }

    #[tokio::test]
    async fn only_a_new_sandbox_is_a_new_pod() {
        let (handler, mut events) = handler();
        let request = EventRequest {
            pod: pod(),
            container: container("main"),
        };
        handler.notify(nri::Event::RunPodSandbox, &request).await;
        lock(&handler.inventory).put(pod(), container("main"));
        handler.notify(nri::Event::StopContainer, &request).await;
        drop(handler);
        let mut kinds = Vec::new();
        while let Some(event) = events.recv().await {
            kinds.push(match event {
                AgentEvent::Runtime(RuntimeUpdate::Pod(pod)) if pod.is_new() => "new".to_owned(),
                AgentEvent::Runtime(RuntimeUpdate::Pod(_)) => "pod".to_owned(),
                AgentEvent::CgroupsChanged(uid) => format!("cgroups of {uid}"),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(kinds, ["new", "new", "cgroups of uid"]);
    }

    /// The ids of the containers that an event reports, and whether it is a creation. The dropped
    /// reply lets the creation go on without an answer.
    fn reported_ids(event: AgentEvent) -> (String, bool) {
        let creates = matches!(event, AgentEvent::Create { .. });
        let (AgentEvent::Runtime(RuntimeUpdate::Pod(pod)) | AgentEvent::Create { pod, .. }) = event
        else {
            panic!("{event:?}");
        };
        let containers = pod.pod.containers.iter();
        let ids = containers.map(|container| container.runtime_id.clone().unwrap());
        (ids.collect::<Vec<_>>().join(","), creates)
    }

    #[tokio::test]
    async fn a_late_end_is_reported_before_a_newer_creation() {
        let (handler, mut events) = handler();
        let pod = pod();
        lock(&handler.inventory).put(pod.clone(), container("first"));
        let ended = EventRequest {
            pod: pod.clone(),
            container: container("first"),
        };
        let call = UnansweredCall::Event(nri::Event::StopContainer, &ended);
        handler
            .unanswered(&call, HandlerTimeout(Duration::from_secs(1)))
            .unwrap();
        let second = container("second");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let creation = handler.create(&pod, &second, deadline);
        let reported = async {
            let mut reported = Vec::new();
            let mut creates = false;
            while !creates {
                let (ids, is_creation) = reported_ids(events.recv().await.unwrap());
                reported.push(ids);
                creates = is_creation;
            }
            reported
        };
        let (_, reported) = tokio::join!(creation, reported);
        assert_eq!(
            reported,
            ["", "second"],
            "the end of the first, then the creation of the second"
        );
    }

    #[tokio::test]
    async fn a_creation_tells_whether_live_files_can_be_mounted() {
        let (handler, mut events) = handler();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        for (destination, wanted) in [("/run/pinfold", false), ("/data", true)] {
            let mut main = container("main");
            main.mounts = vec![nri::Mount {
                destination: destination.to_owned(),
                ..nri::Mount::default()
            }];
            let sandbox = pod();
            // The dropped reply lets the creation go on without an answer.
            let told = async {
                match events.recv().await {
                    Some(AgentEvent::Create {
                        can_mount_files, ..
                    }) => can_mount_files,
                    other => panic!("{other:?}"),
                }
            };
            let (_, told) = tokio::join!(handler.create(&sandbox, &main, deadline), told);
            assert_eq!(told, wanted, "{destination}");
        }
    }

    #[tokio::test]
    async fn after_a_timeout_a_stopped_container_still_leaves_the_inventory() {
        let (handler, mut events) = handler();
        let pod = pod();
        for id in ["ps", "proxy"] {
            lock(&handler.inventory).put(pod.clone(), container(id));
        }
        let mut too_late = async |event, id: &str| {
            let request = EventRequest {
                pod: pod.clone(),
                container: container(id),
            };
            let call = UnansweredCall::Event(event, &request);
            assert_eq!(
                handler.unanswered(&call, HandlerTimeout(Duration::from_secs(1))),
                Ok(())
            );
            match events.recv().await {
                Some(AgentEvent::Runtime(RuntimeUpdate::Pod(reported))) => Some(
                    reported
                        .pod
                        .containers
                        .into_iter()
                        .map(|container| container.name)
                        .collect::<Vec<_>>(),
                ),
                Some(AgentEvent::Runtime(RuntimeUpdate::Gone(uid))) if uid == "uid" => None,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            too_late(nri::Event::StopContainer, "ps").await,
            Some(vec!["proxy".to_owned()])
        );
        assert_eq!(
            too_late(nri::Event::RemoveContainer, "proxy").await,
            Some(Vec::new())
        );
        assert_eq!(too_late(nri::Event::StopPodSandbox, "").await, None);
    }
}
