//! [`Reconciler`]: takes events, runs reconcile passes and publishes snapshots. The reconciler is the sole writer of the state.

mod create;
mod event_queue;
mod pass;
mod scope;
mod start;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::event::{Event, RuntimeUpdate, Source};
use super::heartbeat::Heartbeat;
use super::history::History;
use super::isolation_gate::IsolatedPartitionGate;
use super::node::Node;
use super::pod_store::PodStore;
use super::release_backoff::ReleaseBackoff;
use super::schedule::{DuePass, Extent, Next, Schedule, Trigger};
use crate::cpu::{CpuSet, Layout, Placer};
use crate::host::pod_resources::CpuManager;
use crate::host::topology;
use crate::metrics::AgentMetrics;
use crate::pin::cpu_isolation::{CpuIsolator, IsolationReport};
use crate::pin::decide::DecisionInput;
use crate::pin::{Drift, Ledger, Observed, Snapshot};
use crate::pod::{ContainerIds, Pod};
use event_queue::EventQueue;
use scope::PassScope;

/// How long the container runtime has after the agent's start to report the existing containers.
const IDS_GRACE: Duration = Duration::from_secs(30);

/// Waits until a moment. For a past moment, a timer would wait for the next tick of the clock.
async fn sleep_until(moment: Option<Instant>) {
    if let Some(moment) = moment.filter(|moment| *moment > Instant::now()) {
        tokio::time::sleep_until(moment.into()).await;
    }
}

/// The last observed state, and the ledger of all assignments.
#[derive(Debug)]
struct CachedState {
    observed: Observed,
    ledger: Ledger,
    /// Pods written to after the last read. A stale pod is read again before its next plan.
    stale: BTreeSet<String>,
}

// === impl CachedState ===

impl CachedState {
    fn all(observed: Observed, ledger: Ledger) -> Self {
        Self {
            observed,
            ledger,
            stale: BTreeSet::new(),
        }
    }
}

/// The reconciler: the node's state, and the schedule of passes.
#[derive(Debug)]
pub(super) struct Reconciler {
    node: Node,
    placer: Placer,
    /// The machine's present layout, for the snapshot.
    layout: Arc<Layout>,
    /// The CPUs and NUMA nodes present when the topology was read.
    hotplug_state: topology::HotplugState,
    /// Whether pods come from the API.
    api: bool,
    /// When the agent started.
    begun: Instant,
    pods: PodStore,
    history: History,
    drift: Vec<Drift>,
    metrics: AgentMetrics,
    published: watch::Sender<Option<Arc<Snapshot>>>,
    heartbeat: Heartbeat,
    /// When which pass runs.
    schedule: Schedule,
    release_backoff: ReleaseBackoff,
    isolation: IsolatedPartitionGate,
    /// The cached state, for answers without a scan of the node. `None` before the first pass and after a failed pass.
    cached: Option<CachedState>,
    /// CPUs assigned since the last complete node pass. Containers without an assignment may still run on these CPUs.
    recently_assigned: CpuSet,
    /// Partitions refused by the kernel since the last timer tick: the error, by cgroup path.
    refused: BTreeMap<String, String>,
    keeper: CpuIsolator,
    quiet: Option<IsolationReport>,
    /// NUMA nodes of the pods' devices, by namespace and name.
    devices: BTreeMap<(String, String), CpuSet>,
    /// The times of moves of running containers within the last hour.
    moved: Vec<Instant>,
    /// CPUs missing in all cgroups, with the time of discovery. CPUs that stay missing are lost.
    missing: BTreeMap<u32, Instant>,
    lost: CpuSet,
}

// === impl Reconciler ===

impl Reconciler {
    pub(super) fn new(
        node: Node,
        api: bool,
        metrics: AgentMetrics,
        published: watch::Sender<Option<Arc<Snapshot>>>,
        heartbeat: Heartbeat,
    ) -> Self {
        let (placer, layout) = (
            Placer::new(&node.topology),
            Arc::new(node.topology.layout()),
        );
        let mut node = node;
        let hotplug_state = node.hotplug_state.clone();
        node.forget_default_reserved();
        // Manifests have no status. Only the API and the container runtime give container ids for the folder's pods.
        let folder_ids = if api || node.config.runtime.wanted() {
            ContainerIds::Awaited
        } else {
            ContainerIds::NoSource
        };
        let keeper =
            CpuIsolator::new(&node.config.root).with_slices(&node.cgroups, &node.config.trees);
        Self {
            placer,
            layout,
            hotplug_state,
            node,
            api,
            begun: Instant::now(),
            pods: PodStore::new(folder_ids),
            history: History::default(),
            drift: Vec::new(),
            metrics,
            published,
            heartbeat,
            schedule: Schedule::new(Instant::now()),
            release_backoff: ReleaseBackoff::default(),
            isolation: IsolatedPartitionGate::default(),
            cached: None,
            recently_assigned: CpuSet::new(),
            refused: BTreeMap::new(),
            keeper,
            quiet: None,
            devices: BTreeMap::new(),
            moved: Vec::new(),
            missing: BTreeMap::new(),
            lost: CpuSet::new(),
        }
    }

    /// Runs the reconciler on a separate thread. The future ends with the thread.
    ///
    /// File I/O blocks. A hanging system call on a separate thread delays neither HTTP nor the runtime's connection.
    pub(super) async fn run_on_thread(
        self,
        events: mpsc::Receiver<Event>,
        cgroups: Arc<Notify>,
        stop: tokio_util::sync::CancellationToken,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("reconciler".to_owned())
            .spawn(move || {
                runtime.block_on(self.run(events, cgroups, stop));
                // The receiver is gone if the agent ended before this thread.
                let _ = ended.send(());
            })?;
        end.await.context("the reconciler's thread broke")
    }

    /// Handles events and runs the scheduled passes, until `stop` is cancelled or all event senders are dropped.
    async fn run(
        mut self,
        events: mpsc::Receiver<Event>,
        cgroups: Arc<Notify>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let mut timer =
            tokio::time::interval(Duration::from_secs(self.node.config.reconcile_seconds));
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        timer.reset();
        let mut events = EventQueue::new(events);
        // Without a source of pods, the first pass does not wait for pods.
        if self.node.config.pods.is_none() && !self.api {
            self.schedule.pods_synced();
            self.schedule.on(Trigger::Start, Instant::now());
        }
        loop {
            let (due, until) = match self.schedule.next(Instant::now()) {
                Next::Pass(pass) => (Some(pass), Some(Instant::now())),
                Next::Wait(until) => (None, until),
            };
            let must_run = due.is_some_and(|pass| !pass.may_yield);
            // All branches are cancel safe: an unreceived event stays in the channel, a permit in the notifier.
            // Waiting runtime requests come before a pass, unless the pass has waited for too long.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = events.next(), if !must_run => match event {
                    Some(event) => self.handle(event),
                    None => break,
                },
                () = sleep_until(until), if until.is_some() => {
                    if let Some(pass) = due {
                        self.run_scheduled(pass, &mut events);
                    }
                }
                () = cgroups.notified(), if !self.schedule.knows_cgroup_changes() => {
                    self.schedule.on(Trigger::Cgroups, Instant::now());
                }
                _ = timer.tick() => self.handle_timer(),
            }
        }
    }

    /// Runs a due pass.
    fn run_scheduled(&mut self, pass: DuePass, events: &mut EventQueue) {
        let requests = pass.may_yield.then_some(events);
        let scope = match pass.extent {
            Extent::Pod | Extent::Stale => PassScope::Cached {
                again: None,
                passes: None,
                requests,
            },
            Extent::Node => PassScope::Node { requests },
        };
        self.run_pass(pass.trigger, scope);
    }

    fn handle_timer(&mut self) {
        self.heartbeat.begin("read the CPU topology");
        self.read_topology_changes();
        self.heartbeat.idle();
        self.refused.clear();
        self.stop_awaiting_ids();
        self.schedule.on(Trigger::Timer, Instant::now());
    }

    fn handle(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Pods {
                source,
                pods,
                errors,
            } => self.handle_pods(source, pods, errors),
            // Pods unknown to all sources keep their CPUs: the kernel has the assignment records. A folder of manifests is
            // always read before the first pass.
            Event::PodsWaitEnded => {
                if !self.schedule.has_pods() && self.node.config.pods.is_none() {
                    self.schedule.pods_synced();
                    self.schedule.on(Trigger::Start, now);
                }
            }
            Event::Node(uid) => {
                self.pods.node(uid);
                self.schedule.on(Trigger::Pods, now);
            }
            // Device locality applies to new containers only, so no pass follows.
            Event::Devices(devices) => self.devices = devices,
            Event::CpuManager(cpu_manager) => {
                if self.set_cpu_manager(cpu_manager) {
                    self.schedule.on(Trigger::Kubelet, now);
                }
            }
            Event::Runtime(update) => self.handle_runtime_update(update),
            Event::CgroupsChanged => self.schedule.on(Trigger::Cgroups, now),
            Event::Create {
                pod,
                container,
                reply,
            } => {
                self.handle_create(&pod, &container, reply);
                self.schedule.answered(Instant::now());
            }
            Event::Start {
                uid,
                container,
                reply,
            } => {
                self.handle_start(&uid, &container, reply);
                self.schedule.answered(Instant::now());
            }
        }
    }

    fn handle_pods(&mut self, source: Source, pods: Vec<Pod>, errors: Vec<String>) {
        if source == Source::Folder {
            let count = i64::try_from(errors.len()).unwrap_or(i64::MAX);
            self.metrics.manifest_errors.set(count);
        }
        self.pods.pods(source, pods, errors);
        self.schedule.pods_synced();
        let is_first = self.published.borrow().is_none();
        let trigger = if is_first {
            Trigger::Start
        } else {
            Trigger::Pods
        };
        self.schedule.on(trigger, Instant::now());
    }

    /// Takes an update of the container runtime. New and removed cgroups lead to a pass by themselves.
    fn handle_runtime_update(&mut self, update: RuntimeUpdate) {
        let is_list = matches!(update, RuntimeUpdate::All(_));
        let new_pod = update.of_new_pod().map(str::to_owned);
        self.pods.runtime(update);
        if let Some(uid) = new_pod {
            self.read_new_pod(&uid);
        }
        self.history
            .only_waiting(|uid, container| self.pods.has(uid, container));
        if is_list {
            self.schedule.on(Trigger::Runtime, Instant::now());
        }
    }

    fn inputs<'a>(&'a self, pods: &'a [Pod], here: &'a HashSet<&'a str>) -> DecisionInput<'a> {
        let node = &self.node;
        DecisionInput {
            topology: &node.topology,
            placer: &self.placer,
            reserved: &node.reserved,
            policy: &node.config.policy,
            preferences: &node.config.cpus,
            pods,
            here: Some(here),
            devices: &self.devices,
            moves: 0,
            ids_settled: self.ids_settled(),
            suspended: node.suspended(),
        }
    }

    /// Whether the runtime has listed its containers, is not in use, or has had [`IDS_GRACE`].
    fn ids_settled(&self) -> bool {
        !self.node.config.runtime.wanted()
            || self.pods.has_runtime()
            || self.begun.elapsed() > IDS_GRACE
    }

    /// Starts to find containers by counting cgroups, if neither an API server nor a container runtime gives ids.
    fn stop_awaiting_ids(&mut self) {
        if !self.api
            && !self.pods.has_runtime()
            && self.ids_settled()
            && self.pods.count_containers()
        {
            tracing::warn!(
                "no container runtime has connected within {} s: a pod's only cgroup counts as its container's",
                IDS_GRACE.as_secs()
            );
        }
    }

    /// Takes the new state of the kubelet's CPU Manager. Returns whether enforcement has changed, or whether new assignments
    /// were suspended or resumed.
    fn set_cpu_manager(&mut self, now: CpuManager) -> bool {
        let changed = self.node.set_cpu_manager(now);
        if changed {
            let (name, reason) = (self.node.enforcement.name(), &self.node.enforcement_reason);
            if let Some(reason) = self.node.suspended() {
                tracing::warn!("{reason}; existing assignments stay");
            } else {
                tracing::warn!(
                    "enforcement is {name} from now on: {reason}; existing assignments stay"
                );
            }
        }
        changed
    }

    /// Takes changes of the online CPUs and NUMA nodes. Without a change, the rest of the topology is not read.
    fn read_topology_changes(&mut self) {
        let hotplug_state = topology::HotplugState::read(&self.node.config.root);
        if hotplug_state == self.hotplug_state {
            return;
        }
        match topology::read(&self.node.config.root) {
            Ok(topology) => {
                tracing::info!(
                    "the machine has changed: online CPUs are now {}",
                    topology.online
                );
                self.placer = Placer::new(&topology);
                self.layout = Arc::new(topology.layout());
                self.node.topology = topology;
                self.hotplug_state = hotplug_state;
            }
            Err(error) => tracing::error!(
                "the topology stays as it was: {:#}",
                anyhow::Error::new(error)
            ),
        }
    }
}
