//! The one owner of the state: events in, a reconcile each, a snapshot out.

mod asked;
mod inbox;
mod reach;
mod started;
mod turn;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::event::{Event, RuntimeNews, Source};
use super::given_up::GivenUp;
use super::heartbeat::Heartbeat;
use super::history::History;
use super::isolation::IsolatedPartitionGate;
use super::node::Node;
use super::question::Question;
use super::told::Told;
use crate::cpu::{CpuSet, Layout, Placer};
use crate::host::pod_resources::CpuManager;
use crate::host::topology;
use crate::metrics::AgentMetrics;
use crate::pin::cpu_isolation::{CpuIsolator, IsolationReport};
use crate::pin::decide::DecisionInput;
use crate::pin::{Drift, Enforcement, Ledger, Observed, Snapshot};
use crate::pod::{ContainerIds, Pod};
use inbox::Inbox;
use reach::{Ended, Reach};

/// How long a reconcile that is due may be put off for what is asked meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the reconcile after a creation waits, so that the answer is on its way before the CPUs have more to do.
const AFTER_ANSWER: Duration = Duration::from_millis(3);

/// How long the container runtime has after the agent's start to tell which containers exist.
const IDS_GRACE: Duration = Duration::from_secs(30);

/// Why a reconcile ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Start,
    Pods,
    Cgroups,
    Runtime,
    Create,
    Gate,
    Timer,
    Kubelet,
}

// === impl Why ===

impl Why {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Pods => "pods",
            Self::Cgroups => "cgroups",
            Self::Runtime => "runtime",
            Self::Create => "create",
            Self::Gate => "gate",
            Self::Timer => "timer",
            Self::Kubelet => "kubelet",
        }
    }
}

/// A reconcile that is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    why: Why,
    since: Instant,
    at: Instant,
    /// Whether it has to look at the whole node: all but what a creation takes from others, which is known.
    looks: bool,
}

// === impl Due ===

impl Due {
    fn now(why: Why) -> Self {
        let now = Instant::now();
        Self {
            why,
            since: now,
            at: now,
            looks: why != Why::Create,
        }
    }

    fn after_answer() -> Self {
        let now = Self::now(Why::Create);
        Self {
            at: now.at + AFTER_ANSWER,
            ..now
        }
    }

    /// Adds another to what may be due already: what is owed to somebody counts more than a look.
    fn add(due: &mut Option<Self>, new: Self) {
        match due {
            Some(there) => {
                if there.is_a_look() {
                    there.why = new.why;
                }
                there.looks |= new.looks;
            }
            None => *due = Some(new),
        }
    }

    /// Whether it only looks: nothing is known that would have to be written.
    fn is_a_look(&self) -> bool {
        matches!(self.why, Why::Cgroups | Why::Timer)
    }

    fn is_late(&self) -> bool {
        self.since.elapsed() > PATIENCE
    }
}

/// Puts off what is due, and the next look, until an answer is on its way: whoever waits for it wakes up on this thread, or on
/// a CPU that this thread would keep busy.
fn give_way(due: &mut Option<Due>, rest: &mut Instant) {
    let then = Instant::now() + AFTER_ANSWER;
    if let Some(due) = due {
        due.at = due.at.max(then);
    }
    *rest = (*rest).max(then);
}

/// Waits for a moment, and not at all for one that is past, for which a timer would take until its next tick.
async fn until(moment: Option<Instant>) {
    if let Some(moment) = moment.filter(|moment| *moment > Instant::now()) {
        tokio::time::sleep_until(moment.into()).await;
    }
}

/// What was read of the kernel.
#[derive(Debug)]
struct Seen {
    observed: Observed,
    ledger: Ledger,
    /// The pods that were written to since, and that are to be read again before anything is planned for them.
    stale: BTreeSet<String>,
}

// === impl Seen ===

impl Seen {
    fn all(observed: Observed, ledger: Ledger) -> Self {
        Self {
            observed,
            ledger,
            stale: BTreeSet::new(),
        }
    }
}

/// The owner's state.
#[derive(Debug)]
pub(super) struct Owner {
    node: Node,
    placer: Placer,
    /// Of the machine as it is now, for those who draw it.
    layout: Arc<Layout>,
    /// The CPUs and NUMA nodes for which the topology was read.
    hotplug_state: topology::HotplugState,
    /// Whether pods come from the API.
    api: bool,
    /// When the agent started.
    begun: Instant,
    told: Told,
    history: History,
    drift: Vec<Drift>,
    metrics: AgentMetrics,
    published: watch::Sender<Option<Arc<Snapshot>>>,
    heartbeat: Heartbeat,
    /// Whether it was told of pods, or that it need not wait for them: a first look that fails is then made again.
    heard: bool,
    given_up: GivenUp,
    isolation: IsolatedPartitionGate,
    /// What was read last, unless the last reconcile failed: questions that can't wait are answered from it.
    seen: Option<Seen>,
    /// CPUs that were given in answers since the last look at the whole node: others may still run on them.
    fresh: CpuSet,
    /// Partitions that the kernel refused since the timer rang last, and in which words.
    refused: BTreeMap<String, String>,
    keeper: CpuIsolator,
    quiet: Option<IsolationReport>,
    /// NUMA nodes of the devices of pods, by namespace and name.
    devices: BTreeMap<(String, String), CpuSet>,
    /// When running containers were moved, within the last hour.
    moved: Vec<Instant>,
    /// CPUs that no cgroup has, and since when; those that stay missing are lost.
    missing: BTreeMap<u32, Instant>,
    lost: CpuSet,
}

// === impl Owner ===

impl Owner {
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
        // Manifests have no status, and the folder's pods have no other source than these two.
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
            told: Told::new(folder_ids),
            history: History::default(),
            drift: Vec::new(),
            metrics,
            published,
            heartbeat,
            heard: false,
            given_up: GivenUp::default(),
            isolation: IsolatedPartitionGate::default(),
            seen: None,
            fresh: CpuSet::new(),
            refused: BTreeMap::new(),
            keeper,
            quiet: None,
            devices: BTreeMap::new(),
            moved: Vec::new(),
            missing: BTreeMap::new(),
            lost: CpuSet::new(),
        }
    }

    /// Handles events on a thread of its own until there can be no more. The future ends with the thread.
    ///
    /// File I/O blocks. On a thread of its own a system call that hangs holds up neither HTTP nor the runtime's connection.
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

    /// Handles events until there can be no more.
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
        let (mut inbox, mut due) = (Inbox::new(events), None::<Due>);
        // Where somebody tells of pods, the first thing to hear of is which there are: what runs is taken as it is then.
        if self.node.config.pods.is_none() && !self.api {
            self.heard = true;
            due = Some(Due::now(Why::Start));
        }
        let (mut rest, mut dirty) = (Instant::now(), None::<Instant>);
        loop {
            let waiting = || {
                self.given_up
                    .due()
                    .into_iter()
                    .chain(self.isolation.due())
                    .min()
            };
            let soonest = dirty.or_else(waiting).map(|due| due.max(rest));
            // Before the pods were told for the first time there is nobody to serve; and what is due looks at all of it.
            let soonest = soonest.filter(|_| self.heard && due.is_none());
            let late = due.as_ref().is_some_and(Due::is_late);
            let at = due.as_ref().map(|due| due.at);
            // All arms are cancel safe: an event that is not received stays in the channel, a permit in the notifier. What
            // is asked comes first; a reconcile that is due follows, unless it has waited for too long.
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = inbox.next(), if !late => match event {
                    Some(event) => event,
                    None => break,
                },
                () = until(at), if due.is_some() => {
                    let Some(this) = due.take() else { continue };
                    let start = Instant::now();
                    let mut ended = Ended::TooShort;
                    let mut unless = (!late).then_some(&mut inbox);
                    // What a creation takes from others is known; whatever has changed is for a look.
                    if !this.looks {
                        let unless = unless.as_deref_mut();
                        ended = self.turn(this.why, Reach::Seen { again: None, passes: None, unless });
                    }
                    if ended == Ended::TooShort {
                        ended = self.turn(this.why, Reach::Node { unless });
                    }
                    if this.why == Why::Cgroups {
                        // Whoever writes without end gets a fifth of a CPU from us, and no more.
                        rest = Instant::now() + start.elapsed() * 4;
                    }
                    match ended {
                        Ended::Done if !this.looks => {}
                        Ended::Done => dirty = None,
                        Ended::Failed => {}
                        Ended::TooShort | Ended::Interrupted => due = Some(this),
                    }
                    continue;
                }
                () = cgroups.notified(), if dirty.is_none() => {
                    dirty = Some(Instant::now());
                    continue;
                }
                () = until(soonest), if soonest.is_some() => {
                    dirty = None;
                    Due::add(&mut due, Due::now(Why::Cgroups));
                    continue;
                }
                _ = timer.tick() => {
                    self.heartbeat.begin("read the CPU topology");
                    self.look_at_cpus();
                    self.heartbeat.idle();
                    self.refused.clear();
                    self.stop_awaiting_ids();
                    if self.heard {
                        Due::add(&mut due, Due::now(Why::Timer));
                    }
                    continue;
                }
            };
            match event {
                Event::Pods {
                    source,
                    pods,
                    errors,
                } => {
                    let why = if self.published.borrow().is_none() {
                        Why::Start
                    } else {
                        Why::Pods
                    };
                    if source == Source::Folder {
                        self.metrics
                            .manifest_errors
                            .set(i64::try_from(errors.len()).unwrap_or(i64::MAX));
                    }
                    self.told.pods(source, pods, errors);
                    self.heard = true;
                    Due::add(&mut due, Due::now(why));
                }
                // The kernel knows who owns what; pods that nobody told of keep it. A folder is read in any case.
                Event::Unheard => {
                    if !self.heard && self.node.config.pods.is_none() {
                        self.heard = true;
                        due = Some(Due::now(Why::Start));
                    }
                }
                Event::Node(uid) => {
                    self.told.node(uid);
                    if self.heard {
                        Due::add(&mut due, Due::now(Why::Pods));
                    }
                }
                // For those that come; nobody is moved for it.
                Event::Devices(devices) => self.devices = devices,
                Event::CpuManager(now) => {
                    if self.set_cpu_manager(now) && self.heard {
                        Due::add(&mut due, Due::now(Why::Kubelet));
                    }
                }
                Event::Runtime(news) => {
                    // What comes and goes there is seen by its cgroups.
                    let all = matches!(news, RuntimeNews::All(_));
                    let new = news.of_new_pod().map(str::to_owned);
                    self.told.runtime(news);
                    if let Some(uid) = new {
                        self.foresee(&uid);
                    }
                    self.history
                        .only_waiting(|uid, container| self.told.has(uid, container));
                    if all && self.heard {
                        Due::add(&mut due, Due::now(Why::Runtime));
                    }
                }
                Event::Changed => dirty = Some(Instant::now()),
                Event::Create {
                    pod,
                    container,
                    reply,
                } => {
                    // The cgroup of a pod of the runtime's is there by now, or is none of ours.
                    match pod.cgroup_uid().filter(|uid| self.told.is_of_runtime(uid)) {
                        Some(uid) => self.history.waits(uid, &container),
                        None => self.told.promises().announce(*pod.clone()),
                    }
                    let question = Question {
                        pod: &pod,
                        container: &container,
                        reply,
                        patient: true,
                    };
                    match self.answered_at_once(question) {
                        // What it changes for others follows before it starts.
                        None => {
                            Due::add(&mut due, Due::after_answer());
                        }
                        Some(question) => {
                            if self.asked(question) == Ended::Done {
                                (due, dirty) = (None, None);
                            }
                        }
                    }
                    give_way(&mut due, &mut rest);
                }
                Event::Start {
                    uid,
                    container,
                    reply,
                } => {
                    // Whoever has given up waiting has let the program begin.
                    if !reply.is_closed() {
                        self.history.waits(&uid, &container);
                    }
                    // Its own pod is all there is to see to, where others need not be narrowed first; but where it must be
                    // alone on its CPUs, and the kernel doesn't see to that by itself, everybody else is looked at, too.
                    let required = self.told.requires(&uid);
                    let by_writes = self.node.enforcement == Enforcement::Cpuset;
                    let owed = by_writes && due.as_ref().is_some_and(|due| !due.is_a_look());
                    if !required && !owed && self.started_at_once(&uid, &container).is_some() {
                        let _ = reply.send(Ok(()));
                        // Reading each interrupt takes a while: the container starts meanwhile.
                        if let Some(seen) = self.seen.take() {
                            self.keep_quiet(&seen.observed);
                            self.seen = Some(seen);
                        }
                        self.heartbeat.idle();
                        dirty = dirty.or(Some(Instant::now()));
                        give_way(&mut due, &mut rest);
                        continue;
                    }
                    let (mut ended, mut reply) = (Ended::TooShort, Some(reply));
                    if !(required && by_writes) {
                        let passes = (!required).then_some((container.as_str(), &mut reply));
                        let again = Some(uid.as_str());
                        ended = self.turn(
                            Why::Gate,
                            Reach::Seen {
                                again,
                                passes,
                                unless: None,
                            },
                        );
                        if let Some(this) = due.as_mut().filter(|due| due.why == Why::Create)
                            && ended == Ended::Done
                        {
                            // What the creation took is written; what else was due looks.
                            this.why = Why::Cgroups;
                            due = due.filter(|due| due.looks);
                        }
                    }
                    if ended == Ended::TooShort {
                        ended = self.turn(Why::Gate, Reach::Node { unless: None });
                        if ended == Ended::Done {
                            (due, dirty) = (None, None);
                        }
                    }
                    // The container starts then, and is looked after as any other.
                    if let Some(reply) = reply {
                        self.history.begins(&uid, &container);
                        let _ = reply.send(self.gate(&uid, &container, ended == Ended::Done));
                    }
                    give_way(&mut due, &mut rest);
                }
            }
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

    /// Whether the runtime has told its containers, is not used, or has had its time.
    fn ids_settled(&self) -> bool {
        !self.node.config.runtime.wanted()
            || self.told.has_runtime()
            || self.begun.elapsed() > IDS_GRACE
    }

    /// Without an API server and a container runtime, containers are found by counting cgroups.
    fn stop_awaiting_ids(&mut self) {
        if !self.api
            && !self.told.has_runtime()
            && self.ids_settled()
            && self.told.count_containers()
        {
            tracing::warn!(
                "no container runtime has connected within {} s: a pod's only cgroup counts as its container's",
                IDS_GRACE.as_secs()
            );
        }
    }

    /// Takes in what the kubelet's CPU Manager does now. Says whether the enforcement has changed.
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

    /// Takes note of CPUs and NUMA nodes that went offline or came online. Without such a change no other file of the topology
    /// is read.
    fn look_at_cpus(&mut self) {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_never_taken_for_a_look() {
        for (there, new, then) in [
            (Why::Cgroups, Why::Create, Why::Create),
            (Why::Create, Why::Timer, Why::Create),
            (Why::Timer, Why::Pods, Why::Pods),
            (Why::Pods, Why::Cgroups, Why::Pods),
            (Why::Create, Why::Runtime, Why::Create),
            (Why::Create, Why::Create, Why::Create),
        ] {
            let mut due = Some(Due::now(there));
            let since = due.unwrap().since;
            Due::add(&mut due, Due::now(new));
            let due = due.unwrap();
            assert_eq!((due.why, due.since, due.is_a_look()), (then, since, false));
            // A look that was due is not lost in what is owed.
            assert_eq!(due.looks, there != Why::Create || new != Why::Create);
        }
    }
}
