//! [`Reconciler`]: takes events, runs turns and publishes snapshots. It is the sole writer of the
//! node's state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::{oneshot, watch};

use super::agent_node::AgentNode;
use super::event::{AgentEvent, PodSource, PodsUpdate, RuntimeUpdate};
use super::event_queue::EventQueue;
use super::heartbeat::Heartbeat;
use super::history::History;
use super::known_pods::UndescribedOwners;
use super::kubelet_report::KubeletReport;
use super::pod_store::PodStore;
use super::schedule::{
    DueTurn, NextAction, Schedule, Trigger, TurnExtent, TurnOutcome, TurnReport,
};
use super::turn::{self, NeedsAllPods, TurnContext, TurnEnd, TurnResult};
use super::unguarded::UnguardedStarts;
use super::world::World;
use crate::cpu::CpuSet;
use crate::host::limits;
use crate::host::pod_resources::CpuManager;
use crate::metrics::AgentMetrics;
use crate::pin::Snapshot;
use crate::pin::cpu_isolation::{CpuIsolator, IsolationReport};
use crate::pod::{ContainerIds, ObjectName};

/// How long the container runtime has after the agent's start to report the existing containers.
const IDS_GRACE: Duration = Duration::from_secs(30);

/// Waits until a moment. If it is past, this returns at once, where a timer would wait for the next
/// tick of the clock.
async fn sleep_until(moment: Option<Instant>) {
    if let Some(moment) = moment.filter(|moment| *moment > Instant::now()) {
        tokio::time::sleep_until(moment.into()).await;
    }
}

#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) node: AgentNode,
    /// By pod.
    devices: BTreeMap<ObjectName, CpuSet>,
    kubelet: KubeletReport,
    /// Whether the container runtime has had time to report the existing containers.
    ids_settled: bool,
    pub(super) isolator: CpuIsolator,
    pub(super) world: World,
    /// Whether pods come from the API.
    api: bool,
    begun: Instant,
    pub(super) history: History,
    pub(super) published: watch::Sender<Option<Arc<Snapshot>>>,
    /// When which turn runs.
    pub(super) schedule: Schedule,
    pub(super) cpu_isolation: Option<IsolationReport>,
    /// Why changes in some watched trees are noticed only by the timer, by tree.
    pub(super) unwatched: BTreeMap<PathBuf, String>,
    pub(super) unguarded: UnguardedStarts,
    pub(super) undescribed: UndescribedOwners,
}

// === impl Reconciler ===

impl Reconciler {
    pub(super) fn new(
        mut node: AgentNode,
        api: bool,
        metrics: AgentMetrics,
        published: watch::Sender<Option<Arc<Snapshot>>>,
        heartbeat: Heartbeat,
    ) -> Self {
        // The first turn chooses the default, once it has read which CPUs are owned.
        node.forget_default_reserved();
        // Manifests have no status, so only the API and the container runtime give the ids of the
        // folder's containers.
        let folder_ids = if api || node.config.runtime.wanted() {
            ContainerIds::Awaited
        } else {
            ContainerIds::NoSource
        };
        let folder = node.config.manifest_dir.is_some();
        let sources = [(api, PodSource::Api), (folder, PodSource::Folder)];
        let used = sources.into_iter().filter(|(is_used, _)| *is_used);
        let used: Vec<PodSource> = used.map(|(_, source)| source).collect();
        let store = PodStore::new(folder_ids).listed_by(&used);
        Self {
            ids_settled: !node.config.runtime.wanted(),
            isolator: CpuIsolator::new(&node.config.root_dir)
                .with_slices(&node.cgroups, &node.config.pod_cgroups),
            node,
            devices: BTreeMap::new(),
            kubelet: KubeletReport::default(),
            world: World::new(store, metrics, heartbeat),
            api,
            begun: Instant::now(),
            history: History::default(),
            published,
            schedule: Schedule::new(Instant::now()),
            cpu_isolation: None,
            unwatched: BTreeMap::new(),
            unguarded: UnguardedStarts::default(),
            undescribed: UndescribedOwners::default(),
        }
    }

    /// Runs the reconciler on a separate thread. The future ends with the thread.
    ///
    /// It blocks on file I/O. On a thread of its own, a system call that hangs delays neither HTTP
    /// nor the runtime's connection.
    pub(super) async fn run_on_thread(
        self,
        events: EventQueue,
        stop: tokio_util::sync::CancellationToken,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("reconciler".to_owned())
            .spawn(move || {
                runtime.block_on(self.run(events, stop));
                // The receiver is gone if the agent ended before this thread.
                let _ = ended.send(());
            })?;
        end.await.context("the reconciler's thread panicked")
    }

    async fn run(mut self, mut events: EventQueue, stop: tokio_util::sync::CancellationToken) {
        let mut timer = tokio::time::interval(self.node.config.reconcile_interval);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        timer.reset();
        let changes = Arc::clone(&self.node.changes);
        // Without a source of pods, there is nothing for the first turn to wait for.
        if self.node.config.manifest_dir.is_none() && !self.api {
            self.schedule.set_pods_synced();
            self.schedule.on(Trigger::Start, Instant::now());
        }
        loop {
            let (due, until) = match self.schedule.next(Instant::now()) {
                NextAction::Turn(turn) => (Some(turn), Some(Instant::now())),
                NextAction::Wait(until) => (None, until),
            };
            let must_run = due.is_some_and(|turn| !turn.may_end_early);
            // Every branch is cancel safe: an unreceived event stays in the channel, and a permit
            // in the notifier. Waiting events come before a turn, unless it has waited for too
            // long.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = events.next(), if !must_run => match event {
                    Some(event) => self.handle(event),
                    None => break,
                },
                () = sleep_until(until), if until.is_some() => {
                    if let Some(turn) = due {
                        self.run_scheduled(turn, &mut events);
                    }
                }
                () = changes.changed(), if !self.schedule.knows_cgroup_changes() => {
                    self.schedule.on(Trigger::Cgroups, Instant::now());
                }
                _ = timer.tick() => self.handle_timer(),
            }
        }
    }

    /// Runs a due turn about all pods. If it may end early, it does so for an urgent event, between
    /// two units of work.
    fn run_scheduled(&mut self, due: DueTurn, events: &mut EventQueue) {
        let begun = Instant::now();
        self.read_changes();
        let is_follow_up = self.follow_up().is_some_and(|at| at <= begun);
        if due.trigger != Trigger::Cgroups || is_follow_up {
            self.world.decide_again();
        }
        // Until every pod was read once, no request can be served, so nothing interrupts the first
        // turn.
        let may_end_early = due.may_end_early && !self.world.is_first;
        let mut is_urgent = || may_end_early && events.has_urgent();
        let context = context(&self.node, &self.devices, (&self.kubelet, self.ids_settled));
        let end = turn::reconcile(&mut self.world, &self.node, &context, &mut is_urgent);
        self.finish_turn(due.trigger, begun, end, &mut is_urgent);
    }

    /// Runs a turn about all pods for a runtime request. For CreateContainer, `creates` has the uid of the pod and the name of
    /// the container.
    pub(super) fn reconcile_for(
        &mut self,
        trigger: Trigger,
        creates: Option<(&str, &str)>,
    ) -> Option<TurnResult> {
        let begun = Instant::now();
        self.read_changes();
        let context = context(&self.node, &self.devices, (&self.kubelet, self.ids_settled));
        let end = turn::reconcile_for(&mut self.world, &self.node, &context, creates);
        self.finish_turn(trigger, begun, end, &mut || false)
    }

    /// Runs a turn about a single pod. `None` if the request needs one about all pods.
    pub(super) fn run_for_pod(
        &mut self,
        trigger: Trigger,
        turn: impl FnOnce(&mut World, &AgentNode, &TurnContext<'_>) -> Result<TurnResult, NeedsAllPods>,
    ) -> Option<TurnResult> {
        let begun = Instant::now();
        self.read_changes();
        let context = context(&self.node, &self.devices, (&self.kubelet, self.ids_settled));
        let end = turn(&mut self.world, &self.node, &context);
        if let Ok(result) = &end {
            self.note_history(result);
        }
        let outcome = match &end {
            Ok(_) => TurnOutcome::Done,
            Err(NeedsAllPods) => TurnOutcome::NeedsAllPods,
        };
        self.report_turn(trigger, TurnExtent::Pod, outcome, begun);
        end.ok()
    }

    /// Takes what has changed on the node since the last turn. Every turn, also one about a single
    /// pod, begins with the online CPUs, because an offline one must not be assigned.
    fn read_changes(&mut self) {
        if self.kubelet.match_new_pods(self.world.pods()) {
            self.world.decide_again();
        }
        if self.node.read_hotplug() {
            self.world.sweep();
        }
        let changes = self.node.changes.take();
        if !changes.is_empty() {
            // A turn about one pod leaves the other changed pods unread, so one about all pods
            // follows.
            self.schedule.on(Trigger::Cgroups, Instant::now());
        }
        self.world.note_changes(&changes);
        // Where not all folders are watched, any pod may have changed.
        if !self.unwatched.is_empty() {
            self.world.sweep();
        }
    }

    /// Publishes the result of a turn about all pods. `None` if it has no result, or if an urgent
    /// event comes first.
    fn finish_turn(
        &mut self,
        trigger: Trigger,
        begun: Instant,
        end: TurnEnd,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> Option<TurnResult> {
        let (outcome, result) = match end {
            TurnEnd::Done(result) => self.publish_turn(*result, is_urgent),
            TurnEnd::Unchanged => (TurnOutcome::Unchanged, None),
            TurnEnd::Interrupted => (TurnOutcome::Interrupted, None),
            TurnEnd::Failed(error) => {
                self.publish_failure(&error);
                (TurnOutcome::Failed, None)
            }
        };
        if outcome == TurnOutcome::Unchanged {
            self.world.heartbeat.succeeded();
        }
        self.report_turn(trigger, TurnExtent::AllPods, outcome, begun);
        // What the turn itself has changed needs one more decision.
        if outcome == TurnOutcome::Done && self.world.must_decide() {
            self.schedule.on(Trigger::Cgroups, Instant::now());
        }
        result
    }

    fn publish_turn(
        &mut self,
        result: TurnResult,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> (TurnOutcome, Option<TurnResult>) {
        self.note_history(&result);
        // What was written, found or moved is published in the same turn. All else can be found again.
        let is_uneventful =
            result.before.is_none() && result.drift.is_empty() && result.decisions.moves.is_empty();
        if is_uneventful && is_urgent() {
            self.world.decide_again();
            return (TurnOutcome::Interrupted, None);
        }
        if let Err(error) = self.publish(&result) {
            self.publish_failure(&error);
            return (TurnOutcome::Failed, None);
        }
        self.world.turn_completed();
        (TurnOutcome::Done, Some(result))
    }

    fn report_turn(
        &mut self,
        trigger: Trigger,
        extent: TurnExtent,
        outcome: TurnOutcome,
        begun: Instant,
    ) {
        let report = TurnReport {
            trigger,
            extent,
            outcome,
            duration: begun.elapsed(),
            follow_up: self.follow_up(),
        };
        self.schedule.finished(&report, Instant::now());
        self.count_turn(&report);
    }

    /// Reports a turn to the heartbeat and the metrics. Turns about one pod for CreateContainer
    /// don't count, and neither do interrupted turns, nor those that one about all pods replaces.
    fn count_turn(&self, report: &TurnReport) {
        let is_creation = report.trigger == Trigger::Create && report.extent == TurnExtent::Pod;
        if is_creation
            || matches!(
                report.outcome,
                TurnOutcome::NeedsAllPods | TurnOutcome::Interrupted
            )
        {
            self.world.heartbeat.idle();
            return;
        }
        let metrics = &self.world.metrics;
        metrics
            .reconciles
            .with_label_values(&[report.trigger.name()])
            .inc();
        metrics
            .reconcile_seconds
            .observe(report.duration.as_secs_f64());
        if report.extent == TurnExtent::Pod {
            self.world.heartbeat.idle();
            return;
        }
        self.world.heartbeat.finish();
        // A turn with steps holds a second copy of the cgroups, and the allocator returns the
        // memory only on demand.
        if report.trigger == Trigger::Timer {
            limits::trim_heap();
            limits::drop_code_pages();
        }
        let pid = i32::try_from(std::process::id()).ok();
        if let Some(seconds) = pid.and_then(|pid| self.node.proc.cpu_seconds(pid)) {
            metrics.set_cpu_seconds(seconds);
        }
    }

    /// When another turn is necessary although no cgroup changes: because CPUs were given up, because isolated partitions wait
    /// until worker threads have ended, because the delay of a shrink is over, or because partitions wait until it shows
    /// whether missing CPUs are lost.
    pub(super) fn follow_up(&self) -> Option<Instant> {
        let released = self.world.release_backoff.due();
        let isolated = self.world.isolation.due();
        let shrinks = self.world.shrinks.due();
        let lost = self.world.lost_cpus.due();
        let due = [released, isolated, shrinks, lost];
        due.into_iter().flatten().min()
    }

    fn handle_timer(&mut self) {
        self.world.heartbeat.begin("read the CPU topology");
        self.node.read_topology_changes();
        self.world.heartbeat.idle();
        self.world.sweep();
        self.world.forget_refused();
        self.ids_settled = self.are_ids_settled();
        self.stop_awaiting_ids();
        self.schedule.on(Trigger::Timer, Instant::now());
    }

    fn handle(&mut self, event: AgentEvent) {
        let now = Instant::now();
        if event.is_expired() {
            return self.drop_request(event);
        }
        match event {
            AgentEvent::Pods(update) => self.handle_pods(update),
            // Until the first complete list, all recorded assignments stay, so turns need not wait
            // for it any longer. A folder of manifests is always read before the first turn.
            AgentEvent::PodsWaitEnded => {
                if !self.schedule.are_pods_synced() && self.node.config.manifest_dir.is_none() {
                    self.schedule.set_pods_synced();
                    self.schedule.on(Trigger::Start, now);
                }
            }
            AgentEvent::Node(uid) => {
                self.world.take_node(uid);
                self.schedule.on(Trigger::Pods, now);
            }
            // Device locality applies to new containers only, so no turn follows.
            AgentEvent::Devices(devices) => self.devices = devices,
            AgentEvent::CpuManager(cpu_manager) => {
                if self.set_cpu_manager(cpu_manager) {
                    self.schedule.on(Trigger::Kubelet, now);
                }
            }
            AgentEvent::KubeletCpus(answer) => {
                if self.kubelet.take(answer, self.world.pods()) {
                    self.schedule.on(Trigger::Kubelet, now);
                }
            }
            AgentEvent::Runtime(update) => self.handle_runtime_update(update),
            AgentEvent::Watch { tree, problem } => self.note_watch(tree, problem),
            AgentEvent::CgroupsChanged(uid) => {
                self.world.touch(&uid);
                self.schedule.on(Trigger::Cgroups, now);
            }
            AgentEvent::Create {
                pod,
                container,
                can_mount_files,
                reply,
            } => {
                self.handle_create(*pod, (&container, can_mount_files), reply);
                self.schedule.answered(Instant::now());
            }
            AgentEvent::Start {
                uid,
                container,
                reply,
            } => {
                self.handle_start(&uid, &container, reply);
                self.schedule.answered(Instant::now());
            }
            AgentEvent::Update {
                uid,
                container,
                reply,
            } => {
                self.handle_update(&uid, &container, reply);
                self.schedule.answered(Instant::now());
            }
        }
    }

    /// Drops a request whose time was over in the queue: the runtime has gone on without the answer, and the requests behind it
    /// may still be in time. A turn about all pods makes up for what the request would have done.
    fn drop_request(&mut self, request: AgentEvent) {
        match request {
            AgentEvent::Start { uid, container, .. } => self.history.begins(&uid, &container),
            AgentEvent::Create { pod, .. } => self.take_runtime(RuntimeUpdate::Pod(pod)),
            _ => {}
        }
        self.schedule.on(Trigger::Runtime, Instant::now());
    }

    /// Notes whether a tree is watched completely, so that a turn publishes the problem.
    fn note_watch(&mut self, tree: PathBuf, problem: Option<String>) {
        if let Some(problem) = &problem {
            tracing::warn!("{problem}");
        }
        match problem {
            Some(problem) => self.unwatched.insert(tree, problem),
            None => self.unwatched.remove(&tree),
        };
        // The problem is part of the snapshot, whatever the cgroups say.
        self.world.decide_again();
        self.schedule.on(Trigger::Cgroups, Instant::now());
    }

    fn handle_pods(&mut self, update: PodsUpdate) {
        if update.source == PodSource::Folder {
            let count = i64::try_from(update.errors.len()).unwrap_or(i64::MAX);
            self.world.metrics.manifest_errors.set(count);
        }
        self.world.take_pods(update);
        self.schedule.set_pods_synced();
        let is_first = self.published.borrow().is_none();
        let trigger = if is_first {
            Trigger::Start
        } else {
            Trigger::Pods
        };
        self.schedule.on(trigger, Instant::now());
    }

    /// Takes an update of the container runtime. New and removed cgroups lead to a turn by themselves.
    fn handle_runtime_update(&mut self, update: RuntimeUpdate) {
        let is_list = matches!(update, RuntimeUpdate::All(_));
        let new = match &update {
            RuntimeUpdate::Pod(pod) if pod.is_new() => pod.pod.cgroup_uid().map(str::to_owned),
            _ => None,
        };
        self.take_runtime(update);
        if let Some(uid) = new {
            // The events of the cgroup's creation are taken first, or CreateContainer would find
            // the pod dirty and read it again.
            self.read_changes();
            self.world.read_new_pod(&uid, &self.node);
        }
        if is_list {
            self.ids_settled = self.are_ids_settled();
            self.schedule.on(Trigger::Runtime, Instant::now());
        }
    }

    pub(super) fn take_runtime(&mut self, update: RuntimeUpdate) {
        self.world.take_runtime(update);
        let pods = self.world.pods();
        self.history
            .only_waiting(|uid, container| pods.has(uid, container));
    }

    /// Whether the runtime has listed its containers, is not in use, or has had [`IDS_GRACE`] to do
    /// so.
    fn are_ids_settled(&self) -> bool {
        !self.node.config.runtime.wanted()
            || self.world.pods().has_runtime()
            || self.begun.elapsed() > IDS_GRACE
    }

    /// Starts to find containers by counting cgroups, if neither an API server nor a container runtime gives ids.
    fn stop_awaiting_ids(&mut self) {
        if !self.api
            && !self.world.pods().has_runtime()
            && self.are_ids_settled()
            && self.world.match_by_count()
        {
            tracing::warn!(
                "no container runtime has connected within {} s: Pinfold takes a pod's only cgroup as the cgroup of \
                 its container",
                IDS_GRACE.as_secs()
            );
        }
    }

    /// Takes the new state of the kubelet's CPU Manager. Returns whether the enforcement has
    /// changed, or new assignments were suspended or resumed.
    fn set_cpu_manager(&mut self, now: CpuManager) -> bool {
        let node = &mut self.node;
        let changed = node.set_cpu_manager(now);
        if changed {
            let (enforcement, source) = (node.enforcement.name(), node.placement_source.name());
            if let Some(reason) = node.suspended() {
                tracing::warn!("{reason}; existing assignments stay");
            } else {
                tracing::warn!(
                    "placement source is {source} and enforcement is {enforcement} from now on: {}; existing assignments stay",
                    node.enforcement_reason
                );
            }
        }
        changed
    }
}

/// What a turn needs to know about the node.
fn context<'a>(
    node: &'a AgentNode,
    devices: &'a BTreeMap<ObjectName, CpuSet>,
    (kubelet, ids_settled): (&'a KubeletReport, bool),
) -> TurnContext<'a> {
    let config = &node.config;
    TurnContext {
        node: node.decision_context(devices, kubelet.cpus(), ids_settled),
        moves_per_hour: config.max_moves_per_hour as usize,
        interval: config.reconcile_interval,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::agent::config::{Config, EnforcementChoice};
    use crate::agent::event::RuntimePod;
    use crate::agent::live_files::{LiveFiles, LiveValues};
    use crate::host::container_files::ContainerFolders;
    use crate::pin::Enforcement;
    use crate::pod::{Container, ContainerKey, Pod, Resources};

    /// A machine of folders and files: cgroup v1 with an empty tree of pods, and a list of online CPUs.
    fn machine(root: &std::path::Path) -> AgentNode {
        for dir in ["sys/devices/system/cpu", "proc", "cgroup/cpuset/kubepods"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("sys/devices/system/cpu/present"), "0-3").unwrap();
        fs::write(root.join("sys/devices/system/cpu/online"), "0-3").unwrap();
        for dir in ["", "kubepods"] {
            for (file, text) in [("cpus", "0-3"), ("mems", "0"), ("cpu_exclusive", "0")] {
                let dir = root.join("cgroup/cpuset").join(dir);
                fs::write(dir.join(format!("cpuset.{file}")), text).unwrap();
            }
        }
        let config = Config {
            root_dir: root.to_owned(),
            cgroup_dir: root.join("cgroup"),
            pod_cgroups: vec!["kubepods".to_owned()],
            enforcement: EnforcementChoice::Observe,
            ..Config::default()
        };
        AgentNode::apart(config).unwrap()
    }

    /// Makes the cgroup of a pod.
    fn pod_cgroup(root: &std::path::Path, uid: &str) -> PathBuf {
        let pod = root.join(format!("cgroup/cpuset/kubepods/pod{uid}"));
        fs::create_dir(&pod).unwrap();
        for (file, text) in [("cpus", "0-3"), ("mems", "0"), ("cpu_exclusive", "0")] {
            fs::write(pod.join(format!("cpuset.{file}")), text).unwrap();
        }
        pod
    }

    /// The machine and the folder of its live files.
    fn machine_with_live_files(root: &std::path::Path) -> (AgentNode, PathBuf) {
        let (mut node, base) = (machine(root), root.join("live"));
        node.live_folders = Some(ContainerFolders::new(&base));
        (node, base)
    }

    fn values(cpus: &str) -> LiveValues {
        LiveValues {
            cpus: cpus.parse().unwrap(),
            ..LiveValues::default()
        }
    }

    #[test]
    fn a_live_file_that_cannot_be_written_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let (node, base) = machine_with_live_files(root.path());
        let folders = ContainerFolders::new(&base);
        let (mut live, key) = (LiveFiles::default(), ContainerKey::new("a", "main"));
        live.open(&node, &key, &values("2-3")).unwrap();
        let folder = folders.path("a", "main").unwrap();
        // Nobody can write a temporary file now.
        fs::create_dir(folder.join(".new")).unwrap();
        live.set_cpus(&node, &key, &values("2-5"));
        assert!(!folder.join("cpus").exists());
        let failures: Vec<String> = live.failures().collect();
        assert!(failures[0].contains("not up to date"), "{failures:?}");
        fs::remove_dir(folder.join(".new")).unwrap();
        live.set_cpus(&node, &key, &values("2-5"));
        let text = fs::read_to_string(folder.join("cpus")).unwrap();
        assert_eq!((text.as_str(), live.failures().count()), ("2-5\n", 0));
        // A container whose folder can't be made has none, and is forgotten with its pod.
        fs::write(base.join("containers/b"), "").unwrap();
        live.open(&node, &ContainerKey::new("b", "main"), &values("4"))
            .unwrap_err();
        assert_eq!(live.containers().count(), 1);
        let failures: Vec<String> = live.failures().collect();
        assert!(failures[0].contains("has no files"), "{failures:?}");
        live.retain(&node, |uid| uid == "a");
        assert_eq!(live.failures().count(), 0);
    }

    #[test]
    fn live_files_that_cannot_be_kept_true_are_reported_until_they_can() {
        let root = tempfile::tempdir().unwrap();
        let (node, base) = machine_with_live_files(root.path());
        let folders = ContainerFolders::new(&base);
        let (mut live, key) = (LiveFiles::default(), ContainerKey::new("a", "main"));
        // A container whose first file can't be written has no mount.
        let folder = folders.make("a", "main").unwrap();
        let temporary = folder.join(".new");
        fs::create_dir(&temporary).unwrap();
        live.open(&node, &key, &values("2-3")).unwrap_err();
        let failures: Vec<String> = live.failures().collect();
        assert!(failures[0].contains("has no files"), "{failures:?}");
        live.retain(&node, |_| false);
        assert!(!folder.exists(), "nobody else removes the folder");
        live.open(&node, &key, &values("2-3")).unwrap();
        // Neither written nor removed.
        fs::remove_file(folder.join("cpus")).unwrap();
        for at in [&temporary, &folder.join("cpus")] {
            fs::create_dir(at).unwrap();
        }
        live.set_cpus(&node, &key, &values("2-5"));
        let failures: Vec<String> = live.failures().collect();
        assert!(failures[0].contains("cpus stays as it was"), "{failures:?}");
        // An agent that starts can't read the folders.
        fs::rename(base.join("containers"), base.join("moved")).unwrap();
        std::os::unix::fs::symlink("containers", base.join("containers")).unwrap();
        let mut live = LiveFiles::default();
        live.list(&node);
        let failures: Vec<String> = live.failures().collect();
        assert!(failures[0].contains("can't read"), "{failures:?}");
        fs::remove_file(base.join("containers")).unwrap();
        fs::rename(base.join("moved"), base.join("containers")).unwrap();
        live.list(&node);
        let left = (live.containers().count(), live.failures().count());
        assert_eq!(left, (1, 0));
    }

    #[test]
    fn a_container_with_its_own_volume_at_the_place_of_live_files_gets_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let mut node = machine(root.path());
        let folders = ContainerFolders::new(&root.path().join("live"));
        node.live_folders = Some(folders.clone());
        node.enforcement = Enforcement::Cpuset;
        let (published, _snapshots) = watch::channel(None);
        let metrics = AgentMetrics::new().unwrap();
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let mut reconciler = Reconciler::new(node, false, metrics, published, heartbeat);
        for (uid, can_mount_files) in [("own-volume", false), ("none", true)] {
            // The pod's sandbox is there.
            pod_cgroup(root.path(), uid);
            let resources = Resources {
                cpu_request: Some(1000),
                cpu_limit: Some(1000),
                memory_request: Some(1 << 20),
                memory_limit: Some(1 << 20),
            };
            let container = Container {
                name: "main".to_owned(),
                resources,
                ..Container::default()
            };
            let cpus = ("pinfold.io/cpus".to_owned(), "exclusive".to_owned());
            let pod = Pod {
                uid: Some(uid.into()),
                annotations: [cpus].into(),
                containers: vec![container],
                ..Pod::default()
            };
            let (reply, mut answer) = oneshot::channel();
            reconciler.handle_create(RuntimePod::new(pod), ("main", can_mount_files), reply);
            let answer = answer.try_recv().unwrap();
            assert!(answer.cpus.is_some(), "{answer:?}");
        }
        let made = vec![("none".to_owned(), vec!["main".to_owned()])];
        assert_eq!(folders.list().pods, made);
    }

    /// A pod may end while no agent runs. The folder of a pod that is still there must stay, because a mount follows it.
    #[test]
    fn the_live_files_of_pods_that_are_gone_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut node = machine(root.path());
        let pod = pod_cgroup(root.path(), "here");
        let folders = ContainerFolders::new(&root.path().join("live"));
        node.live_folders = Some(folders.clone());
        for uid in ["gone", "here"] {
            folders.make(uid, "main").unwrap();
        }
        let (published, _snapshots) = watch::channel(None);
        let metrics = AgentMetrics::new().unwrap();
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let mut reconciler = Reconciler::new(node, false, metrics, published, heartbeat);
        reconciler.reconcile_for(Trigger::Timer, None);
        let left = vec![("here".to_owned(), vec!["main".to_owned()])];
        assert_eq!(folders.list().pods, left);
        fs::remove_dir_all(&pod).unwrap();
        reconciler.reconcile_for(Trigger::Timer, None);
        assert_eq!(folders.list().pods, []);
    }

    /// The first turn after a CPU went offline may be caused by another program's write, or by a
    /// new pod. It must not assign that CPU, nor take its absence for such a write.
    #[test]
    fn each_turn_reads_which_cpus_are_online() {
        let root = tempfile::tempdir().unwrap();
        let (published, snapshots) = watch::channel(None);
        let metrics = AgentMetrics::new().unwrap();
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let node = machine(root.path());
        let mut reconciler = Reconciler::new(node, false, metrics, published, heartbeat);
        for online in ["0-3", "0-2", "0-3"] {
            fs::write(root.path().join("sys/devices/system/cpu/online"), online).unwrap();
            reconciler.reconcile_for(Trigger::Cgroups, None);
            let snapshot = snapshots.borrow().clone().unwrap();
            assert_eq!(snapshot.errors, [""; 0]);
            assert_eq!(snapshot.online.to_string(), online);
        }
    }
}
