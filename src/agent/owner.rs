//! The one owner of the state: events in, a reconcile each, a snapshot out.

mod asked;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, watch};

use super::event::{Event, RuntimeNews, Source};
use super::given_up::GivenUp;
use super::history::{History, own_in_force};
use super::node::{Node, threads};
use super::question::Question;
use super::told::Told;
use crate::cpu::{CpuSet, Placer};
use crate::host::topology;
use crate::metrics::AgentMetrics;
use crate::pin::decide::{Decisions, Inputs, Refused, decide, default_reserved};
use crate::pin::quiet::{Keeper, Quiet, Report};
use crate::pin::{
    self, Applied, Drift, Enforcement, Ledger, Observed, Outcome, Reason, Snapshot, Step, snapshot,
};
use crate::pod::Pod;

/// The time in which moves are counted.
const HOUR: Duration = Duration::from_secs(3600);

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
        }
    }
}

/// What was read of the kernel.
#[derive(Debug)]
struct Seen {
    observed: Observed,
    ledger: Ledger,
}

/// The owner's state.
#[derive(Debug)]
pub(super) struct Owner {
    node: Node,
    placer: Placer,
    /// Whether pods come from the API.
    api: bool,
    told: Told,
    history: History,
    drift: Vec<Drift>,
    metrics: AgentMetrics,
    published: watch::Sender<Option<Arc<Snapshot>>>,
    /// Whether it was told of pods, or that it need not wait for them: a first look that fails is then made again.
    heard: bool,
    given_up: GivenUp,
    /// How many reconciles came to their end.
    turns: u64,
    /// What the last reconcile read last, unless it failed: questions that can't wait are answered from it.
    seen: Option<Seen>,
    /// Partitions that the kernel refused since the timer rang last, and in which words.
    refused: BTreeMap<String, String>,
    keeper: Keeper,
    quiet: Option<Report>,
    /// NUMA nodes of the devices of pods, by namespace and name.
    devices: BTreeMap<(String, String), CpuSet>,
    /// When running containers were moved, within the last hour.
    moved: Vec<Instant>,
    /// CPUs that were missing in the last reconcile; those still missing in the next are lost.
    missing: CpuSet,
    lost: CpuSet,
}

// === impl Owner ===

impl Owner {
    pub(super) fn new(
        node: Node,
        api: bool,
        metrics: AgentMetrics,
        published: watch::Sender<Option<Arc<Snapshot>>>,
    ) -> Self {
        let placer = Placer::new(&node.topology);
        let keeper = Keeper::new(&node.config.root).with_slices(&node.cgroups, &node.config.trees);
        Self {
            placer,
            node,
            api,
            told: Told::default(),
            history: History::default(),
            drift: Vec::new(),
            metrics,
            published,
            heard: false,
            given_up: GivenUp::default(),
            turns: 0,
            seen: None,
            refused: BTreeMap::new(),
            keeper,
            quiet: None,
            devices: BTreeMap::new(),
            moved: Vec::new(),
            missing: CpuSet::new(),
            lost: CpuSet::new(),
        }
    }

    /// Handles events until there can be no more.
    pub(super) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        cgroups: Arc<Notify>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let mut timer = tokio::time::interval(Duration::from_secs(self.node.config.reconcile_seconds));
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        timer.reset();
        // Where somebody tells of pods, the first thing to hear of is which there are: what runs is taken as it is then.
        let untold = self.node.config.pods.is_none() && !self.api;
        if untold {
            self.heard = true;
            self.turn(Why::Start, None);
        }
        let (mut rest, mut dirty) = (Instant::now(), None::<Instant>);
        loop {
            let soonest = dirty.or_else(|| self.given_up.due()).map(|due| due.max(rest));
            let turns = self.turns;
            // All arms are cancel safe: an event that is not received stays in the channel, a permit in the notifier.
            let event = tokio::select! {
                () = stop.cancelled() => break,
                event = events.recv() => match event {
                    Some(event) => Some(event),
                    None => break,
                },
                () = cgroups.notified(), if dirty.is_none() => {
                    dirty = Some(Instant::now());
                    continue;
                }
                () = tokio::time::sleep_until(soonest.unwrap_or(rest).into()), if soonest.is_some() => {
                    dirty = None;
                    if self.heard {
                        let start = Instant::now();
                        self.turn(Why::Cgroups, None);
                        // Whoever writes without end gets a fifth of a CPU from us, and no more.
                        rest = Instant::now() + start.elapsed() * 4;
                    }
                    continue;
                }
                _ = timer.tick() => None,
            };
            match event {
                None => {
                    self.look_at_cpus();
                    self.refused.clear();
                    // Before the pods were told for the first time there is nobody to serve.
                    if self.heard {
                        self.turn(Why::Timer, None);
                    }
                }
                Some(Event::Pods { source, pods, errors }) => {
                    let why = if self.published.borrow().is_none() { Why::Start } else { Why::Pods };
                    if source == Source::Folder {
                        self.metrics.manifest_errors.set(i64::try_from(errors.len()).unwrap_or(i64::MAX));
                    }
                    self.told.pods(source, pods, errors);
                    self.heard = true;
                    self.turn(why, None);
                }
                // The kernel knows who owns what; pods that nobody told of keep it. A folder is read in any case.
                Some(Event::Unheard) => {
                    if !self.heard && self.node.config.pods.is_none() {
                        self.heard = true;
                        self.turn(Why::Start, None);
                    }
                }
                // For those that come; nobody is moved for it.
                Some(Event::Devices(devices)) => self.devices = devices,
                Some(Event::Runtime(news)) => {
                    // What comes and goes there is seen by its cgroups.
                    let all = matches!(news, RuntimeNews::All(_));
                    self.told.runtime(news);
                    self.history.only_waiting(|uid, container| self.told.has(uid, container));
                    if all && self.heard {
                        self.turn(Why::Runtime, None);
                    }
                }
                Some(Event::Changed) => dirty = Some(Instant::now()),
                Some(Event::Create { pod, container, reply }) => {
                    // The cgroup of a pod of the runtime's is there by now, or is none of ours.
                    match pod.cgroup_uid().filter(|uid| self.told.is_of_runtime(uid)) {
                        Some(uid) => self.history.waits(uid, &container),
                        None => self.told.promises().announce(*pod.clone()),
                    }
                    let question = Question { pod: &pod, container: &container, reply, patient: true };
                    // What it changes for others follows before it starts.
                    if let Some(question) = self.answered_at_once(question) {
                        self.turn(Why::Create, Some(question));
                    }
                }
                Some(Event::Start { uid, container, reply }) => {
                    // Whoever has given up waiting has let the program begin.
                    if !reply.is_closed() {
                        self.history.waits(&uid, &container);
                    }
                    let seen = self.turn(Why::Gate, None);
                    self.history.begins(&uid, &container);
                    // The container starts then, and is looked after as any other.
                    let _ = reply.send(self.gate(&uid, &container, seen));
                }
            }
            // What had changed until then was seen.
            if self.turns != turns {
                dirty = None;
            }
        }
    }

    /// One reconcile, and another where a question has to wait for what is given up in the first; file work blocks, so this
    /// thread is given up for others meanwhile. Says whether it came to its end.
    fn turn(&mut self, why: Why, mut question: Option<Question<'_>>) -> bool {
        let seen = self.reconciled(why, &mut question);
        match &mut question {
            Some(question) => question.patient = false,
            None => return seen,
        }
        self.reconciled(why, &mut question)
    }

    fn reconciled(&mut self, why: Why, question: &mut Option<Question<'_>>) -> bool {
        let start = Instant::now();
        let reconciled = tokio::task::block_in_place(|| self.reconcile(question));
        let seen = reconciled.is_ok();
        self.turns += u64::from(seen);
        if let Err(error) = reconciled {
            tracing::error!("reconcile failed: {error:#}");
            self.seen = None;
            // What was known stays known, and says that it is old.
            let last = self.published.borrow().clone();
            if let Some(last) = last {
                let errors =
                    vec![format!("the last reconcile failed, this is the state before it: {error:#}")];
                self.published.send_replace(Some(Arc::new(Snapshot { errors, ..(*last).clone() })));
            }
        }
        self.metrics.reconciles.with_label_values(&[why.name()]).inc();
        self.metrics.reconcile_seconds.observe(start.elapsed().as_secs_f64());
        if let Some(seconds) =
            i32::try_from(std::process::id()).ok().and_then(|pid| self.node.proc.cpu_seconds(pid))
        {
            self.metrics.set_cpu_seconds(seconds);
        }
        seen
    }

    fn reconcile(&mut self, question: &mut Option<Question<'_>>) -> anyhow::Result<()> {
        let pods = self.told.known();
        let (mut observed, mut ledger) = self.node.observe(&pods)?;
        if self.published.borrow().is_none() {
            self.history.begin(&observed, self.node.enforcement);
        }
        self.told.keep_promises(&mut ledger, &observed);
        let here = self.told.here(&observed);
        let moves = self.moves_left();
        let mut decisions = decide(&Inputs { moves, ..self.inputs(&pods, &here) }, &ledger);
        if self.node.enforcement == Enforcement::Observe {
            decisions.only_what_is(&pods, &ledger);
        }
        self.note_moves(&decisions);
        let kept = decisions.desired.claims.values().flat_map(BTreeMap::values);
        let kept = kept.fold(CpuSet::new(), |all, cpus| all.union(cpus));
        let timer = Duration::from_secs(self.node.config.reconcile_seconds);
        self.given_up.note(ledger.exclusive().difference(&kept), Instant::now(), timer);
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        let question = question.take_if(|question| !question.waits(&pods, &decisions, &self.given_up));
        let answer = question.as_ref().and_then(|question| self.answer(&pods, question, &decisions));
        let (online, enforcement) = (self.node.topology.online.clone(), self.node.enforcement);
        self.look_for_lost(&ledger);
        let drift = pin::drift(&observed, &ledger, &online, enforcement);
        for new in drift.iter().filter(|new| !self.drift.contains(new)) {
            tracing::warn!(
                "drift ({}): {} should run on {} and runs on {}",
                new.cause.name(),
                new.path,
                new.assigned,
                new.effective
            );
            self.metrics.drift.with_label_values(&[new.cause.name()]).inc();
        }
        self.drift = drift;
        let mut errors: Vec<String> = self.told.errors().cloned().collect();
        for tree in &self.node.config.trees {
            if !self.node.cgroups.hands_down(tree)? {
                errors.push(format!(
                    "{tree} does not hand the cpuset controller down: its pods have no CPU sets"
                ));
            }
        }
        let steps = pin::plan(&observed, &ledger, &decisions.desired, enforcement);
        if !steps.is_empty() {
            let applied = pin::apply(steps, &self.node.cgroups);
            errors.extend(self.account(&applied));
            let (after, read) = self.node.observe(&pods)?;
            self.history.note_windows(&observed, &after, &self.node, &self.metrics);
            // What was repaired and comes again is new drift.
            let left = pin::drift(&after, &read, &online, enforcement);
            self.history.note_repairs(&self.drift, &left);
            self.drift = left;
            (observed, ledger) = (after, read);
        }
        // By now its pod's cgroup has room for it. Whoever asked may have given up waiting; the promise lapses by itself.
        if let (Some(question), Some(answer)) = (question, answer) {
            let _ = question.reply.send(answer);
        }
        errors.extend(self.refused.iter().map(|(path, says)| format!("{path}: {says}")));
        for decision in &mut decisions.containers {
            let seen = pods.get(decision.pod).and_then(|pod| {
                observed.container(pod.cgroup_uid()?, &pod.containers.get(decision.container)?.name)
            });
            if let Some(seen) = seen
                && let Some(says) = self.refused.get(&seen.cgroup.path)
            {
                // A runtime may have written its set by then: it runs on these CPUs alone, but not alone on them.
                let confined =
                    decision.cpus.as_ref().is_some_and(|cpus| seen.cgroup.cpuset.effective.is_subset(cpus));
                decision.note = Some(match confined {
                    true => format!("others may run on its CPUs: {says}"),
                    false => format!("stays in the shared pool: {says}"),
                });
                decision.refused = Some(Refused::Kernel);
            }
        }
        self.keep_quiet(&observed);
        self.history.forget(&observed);
        self.publish(&pods, &observed, &ledger, &decisions, errors);
        self.seen = Some(Seen { observed, ledger });
        Ok(())
    }

    /// How many running containers may be moved now.
    fn moves_left(&mut self) -> usize {
        if self.node.enforcement == Enforcement::Observe {
            return 0;
        }
        self.moved.retain(|moved| moved.elapsed() < HOUR);
        (self.node.config.moves_per_hour as usize).saturating_sub(self.moved.len())
    }

    fn note_moves(&mut self, decisions: &Decisions) {
        for moved in &decisions.moves {
            tracing::info!(
                "{}/{}: container {} moves from {} to {} to make room",
                moved.namespace,
                moved.pod,
                moved.container,
                moved.from,
                moved.to
            );
            self.metrics.moves.inc();
            self.moved.push(Instant::now());
        }
    }

    fn inputs<'a>(&'a self, pods: &'a [Pod], here: &'a BTreeSet<String>) -> Inputs<'a> {
        let node = &self.node;
        Inputs {
            topology: &node.topology,
            placer: &self.placer,
            reserved: &node.reserved,
            policy: &node.config.policy,
            wishes: &node.config.cpus,
            pods,
            here: Some(here),
            devices: &self.devices,
            moves: 0,
        }
    }

    /// Counts what was done and returns what went wrong as sentences.
    fn account(&mut self, applied: &[Applied]) -> Vec<String> {
        let mut errors = Vec::new();
        for done in applied {
            let (outcome, error) = (done.outcome.name(), done.error());
            self.metrics.steps.with_label_values(&[outcome]).inc();
            match &error {
                Some(error) => tracing::error!("{error}"),
                None => tracing::debug!("{}", done.step),
            }
            if let Step::Partition { path, .. } | Step::Exclusive { path, in_force: Some(_), .. } = &done.step
                && let Some(error) = &error
            {
                // It is said, and tried again when the timer rings.
                self.refused.insert(path.clone(), error.clone());
                continue;
            }
            errors.extend(error);
            let pinned = matches!(
                &done.step,
                Step::Cpus { reason: Reason::Own, .. } | Step::Partition { in_force: Some(_), .. }
            );
            if pinned && matches!(done.outcome, Outcome::Done) {
                tracing::info!("{}", done.step);
            }
        }
        errors
    }

    /// Keeps the kernel's own work off the CPUs that are somebody's own by now.
    fn keep_quiet(&mut self, observed: &Observed) {
        let node = &self.node;
        let options = match node.enforcement {
            Enforcement::Observe => Quiet::default(),
            Enforcement::Cpuset => node.config.quiet,
            // There the kernel itself keeps them off.
            Enforcement::Partition => Quiet { system_slices: false, ..node.config.quiet },
        };
        let mut exclusive = CpuSet::new();
        for container in observed.containers() {
            exclusive = exclusive.union(&own_in_force(container, node.enforcement));
        }
        // The top of the hierarchy outlives every pods' tree, and so does what is noted there.
        let report = self.keeper.turn(options, &exclusive, &node.topology.online, &node.cgroups, "");
        for what in &report.moved {
            tracing::debug!("off exclusive CPUs: {what}");
        }
        let said = |report: &Report| report.sentences();
        if self.quiet.as_ref().map(said).unwrap_or_default() != said(&report) {
            for sentence in report.sentences() {
                tracing::warn!("{sentence}");
            }
        }
        self.quiet = (options.any() || report.away > 0 || !report.failed.is_empty()).then_some(report);
    }

    /// Raises the alarm over CPUs that were missing twice.
    fn look_for_lost(&mut self, ledger: &Ledger) {
        let lost = ledger.lost.intersection(&self.missing);
        if !lost.is_subset(&self.lost) {
            tracing::error!(
                "the kernel has lost CPUs {lost}: no cgroup has them, and only a reboot brings them back; they are not \
                 used (a known fault of Linux 6.12 when a partition is left invalid; newer kernels don't have it)"
            );
        }
        self.lost = lost;
        self.missing = ledger.lost.clone();
    }

    /// Takes note of CPUs that went offline or came online.
    fn look_at_cpus(&mut self) {
        match topology::read(&self.node.config.root) {
            Ok(topology) if topology != self.node.topology => {
                tracing::info!("the machine has changed: online CPUs are now {}", topology.online);
                self.placer = Placer::new(&topology);
                if self.node.config.reserved.is_none() {
                    self.node.reserved = default_reserved(&topology);
                }
                self.node.topology = topology;
            }
            Ok(_) => {}
            Err(error) => tracing::error!("the topology stays as it was: {:#}", anyhow::Error::new(error)),
        }
    }

    fn publish(
        &self,
        pods: &[Pod],
        observed: &Observed,
        ledger: &Ledger,
        decisions: &Decisions,
        errors: Vec<String>,
    ) {
        let node = &self.node;
        let shared = decisions.desired.shared();
        let environment =
            |pod: &Pod, index: usize, cpus: Option<&CpuSet>| threads(node, pod, index, cpus, &shared);
        let mut containers = snapshot::containers(pods, &node.topology, decisions, observed, environment);
        for container in &mut containers {
            self.history.tell(container);
            let injected = self.told.injected(container.uid.as_deref(), &container.container);
            container.injected = injected.cloned();
        }
        let exclusive = node.topology.online.difference(&shared);
        self.published.send_replace(Some(Arc::new(Snapshot {
            enforcement: node.enforcement,
            enforcement_reason: node.enforcement_reason.clone(),
            online: node.topology.online.clone(),
            reserved: node.reserved.clone(),
            shared,
            exclusive,
            lost: self.lost.clone(),
            quiet: self.quiet.clone(),
            containers,
            strangers: snapshot::strangers(observed, ledger),
            drift: self.drift.clone(),
            unexplained: ledger.unexplained.clone(),
            errors,
        })));
    }
}
