//! One reconcile: look, decide, write, look again, publish.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::history::own_in_force;
use super::super::isolation::IsolatedPartitionGate;
use super::super::node::threads;
use super::super::question::Question;
use super::reach::{Ended, Reach, Written, is_for_others};
use super::{Owner, Seen, Why};
use crate::cpu::CpuSet;
use crate::host::cgroup::PodCgroup;
use crate::host::limits;
use crate::pin::cpu_isolation::{CpuIsolationOptions, IsolationInput, IsolationReport};
use crate::pin::decide::{DecisionInput, Decisions, Refused, decide_while};
use crate::pin::{
    self, Applied, Desired, Enforcement, Ledger, Observed, Outcome, Reason, Snapshot, Step,
    snapshot,
};
use crate::pod::Pod;

/// The time in which moves are counted.
const HOUR: Duration = Duration::from_secs(3600);

/// How long the kernel may take to give a CPU that has come online to whom it belongs, on a busy machine.
const HANDED_ON: Duration = Duration::from_millis(900);

// === impl Owner ===

impl Owner {
    /// A reconcile with a question, and another where that has to wait for what is given up in the first.
    pub(super) fn asked(&mut self, question: Question<'_>) -> Ended {
        let mut question = Some(question);
        let ended = self.reconciled(Why::Create, Reach::Node { unless: None }, &mut question);
        match &mut question {
            Some(question) => question.patient = false,
            None => return ended,
        }
        self.reconciled(Why::Create, Reach::Node { unless: None }, &mut question)
    }

    /// One reconcile.
    pub(super) fn turn(&mut self, why: Why, reach: Reach<'_>) -> Ended {
        self.reconciled(why, reach, &mut None)
    }

    fn reconciled(
        &mut self,
        why: Why,
        reach: Reach<'_>,
        question: &mut Option<Question<'_>>,
    ) -> Ended {
        let start = Instant::now();
        let ended = self.reconcile(reach, question).unwrap_or_else(|error| {
            tracing::error!("reconcile failed: {error:#}");
            self.seen = None;
            // What was known stays known, and says that it is old.
            let last = self.published.borrow().clone();
            if let Some(last) = last {
                let errors = vec![format!(
                    "the last reconcile failed, this is the state before it: {error:#}"
                )];
                self.published.send_replace(Some(Arc::new(Snapshot {
                    errors,
                    ..(*last).clone()
                })));
            }
            Ended::Failed
        });
        if matches!(ended, Ended::TooShort | Ended::Interrupted) {
            self.heartbeat.idle();
            return ended;
        }
        self.heartbeat.finish();
        // A look at everything has needed as much again as what is kept of it.
        if why == Why::Timer {
            limits::trim_heap();
            limits::drop_code_pages();
        }
        self.metrics
            .reconciles
            .with_label_values(&[why.name()])
            .inc();
        self.metrics
            .reconcile_seconds
            .observe(start.elapsed().as_secs_f64());
        if let Some(seconds) = i32::try_from(std::process::id())
            .ok()
            .and_then(|pid| self.node.proc.cpu_seconds(pid))
        {
            self.metrics.set_cpu_seconds(seconds);
        }
        ended
    }

    fn reconcile(
        &mut self,
        mut reach: Reach<'_>,
        question: &mut Option<Question<'_>>,
    ) -> anyhow::Result<Ended> {
        let mut pods = self.told.known();
        self.heartbeat.begin("read the pods' cgroups");
        let (mut observed, mut ledger) = match self.look(&pods, &mut reach)? {
            Ok(found) => found,
            Err(ended) => return Ok(ended),
        };
        if self.told.note_records(&observed) {
            pods = self.told.known();
            (observed, ledger) = self.node.observe_again(observed, &pods, |_| false)?;
        }
        let first = self.published.borrow().is_none();
        if first {
            self.history.begin(&observed, self.node.enforcement);
        }
        self.told.keep_promises(&mut ledger, &observed);
        self.node.choose_reserved(&ledger);
        let (online, enforcement) = (self.node.topology.online.clone(), self.node.enforcement);
        let drift = pin::drift(&observed, &ledger, (&online, &self.fresh), enforcement);
        // Nothing was told yet, nor written, and what is to be told may be gone by the next look.
        let gives_way = |reach: &mut Reach<'_>| !first && drift.is_empty() && reach.is_asked();
        if gives_way(&mut reach) {
            return Ok(self.interrupted((observed, ledger), &[]));
        }
        let of_node = matches!(reach, Reach::Node { .. });
        self.heartbeat.begin("decide what each container gets");
        let moves = self.moves_left();
        let here = self.told.here(&observed, &pods);
        let inputs = DecisionInput {
            moves,
            ..self.inputs(&pods, &here)
        };
        let Some(mut decisions) = decide_while(&inputs, &ledger, || !gives_way(&mut reach)) else {
            return Ok(self.interrupted((observed, ledger), &[]));
        };
        if self.node.enforcement == Enforcement::Observe {
            decisions.keep_ledger_assignments(&pods, &ledger);
        }
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        self.isolate(&mut decisions.desired, None);
        if gives_way(&mut reach) {
            return Ok(self.interrupted((observed, ledger), &[]));
        }
        let steps = pin::plan(&observed, &ledger, &decisions.desired, enforcement);
        if !of_node && !decisions.moves.is_empty() {
            self.seen = Some(Seen::all(observed, ledger));
            return Ok(Ended::TooShort);
        }
        // What is told once is told by the reconcile that comes to its end.
        let mut calm = !first && drift.is_empty() && decisions.moves.is_empty();
        if calm && reach.is_asked() {
            return Ok(self.interrupted((observed, ledger), &[]));
        }
        self.note_moves(&decisions);
        let given_up = self.given_up.clone();
        let kept = decisions.desired.exclusive();
        let timer = Duration::from_secs(self.node.config.reconcile_seconds);
        self.given_up
            .note(ledger.exclusive().difference(&kept), Instant::now(), timer);
        let question =
            question.take_if(|question| !question.waits(&pods, &decisions, &self.given_up));
        let answer = question
            .as_ref()
            .and_then(|question| self.answer(&pods, question, &decisions));
        let lost = ledger.lost.clone();
        for new in drift
            .iter()
            .filter(|new| !self.drift.iter().any(|known| known.is_same(new)))
        {
            tracing::warn!("{new}");
            self.metrics
                .drift
                .with_label_values(&[new.cause.name()])
                .inc();
        }
        self.drift = drift;
        let mut errors: Vec<String> = self.told.errors().cloned().collect();
        errors.extend(self.node.suspended().map(str::to_owned));
        if self.node.reserved.is_disjoint(&online) {
            errors.push(
                "no reserved CPU is online and free: every CPU is owned, or the configured reserved CPUs are offline. \
                 The last shared CPU is not assigned; end a pod that owns CPUs, or name other CPUs with --reserved"
                    .to_owned(),
            );
        }
        for tree in &self.node.config.trees {
            if !self.node.cgroups.has_cpusets_below(tree)? {
                errors.push(format!(
                    "{tree} does not hand the cpuset controller down: its pods have no CPU sets"
                ));
            }
        }
        if !steps.is_empty() {
            // A plan is safe wherever it breaks off.
            let planned = steps.len();
            let desired = &decisions.desired;
            let owns = |pod: &&PodCgroup| {
                ledger.assignments.contains_key(&pod.uid) || desired.is_owner(&pod.uid)
            };
            let pods_seen = observed.pods.iter().map(|pod| &pod.cgroup);
            let owners: BTreeSet<&str> = pods_seen
                .filter(owns)
                .map(|pod| pod.path.as_str())
                .collect();
            let heartbeat = &self.heartbeat;
            let applied = pin::apply_while(steps, &self.node.cgroups, |next| {
                heartbeat.begin(next.to_string());
                let on = !(calm && reach.is_asked());
                calm &= is_for_others(next, &owners);
                on
            });
            errors.extend(self.account(&applied));
            // What a partition takes from everybody else is in order by the kernel's word, and seen by the next look.
            self.heartbeat
                .begin("read again the cgroups that were written");
            let written = Written::new(applied.iter().map(|done| &done.step));
            let touched = |pod: &PodCgroup| written.touches(&pod.path);
            let again = if applied.len() == planned {
                self.node
                    .observe_again_unless(observed.clone(), &pods, touched, || {
                        calm && reach.is_asked()
                    })?
            } else {
                None
            };
            let Some((after, read)) = again else {
                self.given_up = given_up;
                return Ok(self.interrupted((observed, ledger), &applied));
            };
            self.history
                .note_windows(&observed, &after, &self.node, &self.metrics);
            // What was repaired and comes again is new drift.
            let left = pin::drift(&after, &read, (&online, &self.fresh), enforcement);
            self.history.note_repairs(&self.drift, &left);
            self.drift = left;
            (observed, ledger) = (after, read);
        }
        // By now its pod's cgroup has room for it. Whoever asked may have given up waiting; the promise lapses by itself.
        if let (Some(question), Some(answer)) = (question, answer) {
            let _ = question.reply.send(answer);
        }
        if let Reach::Seen {
            again: Some(uid),
            passes: Some((container, reply)),
            ..
        } = &mut reach
            && let Some(reply) = reply.take()
        {
            self.history.begins(uid, container);
            let _ = reply.send(Ok(()));
        }
        // The kernel's own work leaves exclusive CPUs after the answers: reading each interrupt takes a while.
        self.keep_quiet(&observed);
        errors.extend(
            self.refused
                .iter()
                .map(|(path, says)| format!("{path}: {says}")),
        );
        for decision in &mut decisions.containers {
            let pod = pods.get(decision.pod);
            let seen = pod.filter(|_| !self.refused.is_empty()).and_then(|pod| {
                observed.container(
                    pod.cgroup_uid()?,
                    &pod.containers.get(decision.container)?.name,
                )
            });
            if let Some(seen) = seen
                && let Some(says) = self.refused.get(&seen.cgroup.path)
            {
                // A runtime may have written its set by then: it runs on these CPUs alone, but not alone on them.
                let confined = decision
                    .cpus
                    .as_ref()
                    .is_some_and(|cpus| seen.cgroup.cpuset.effective.is_subset(cpus));
                decision.note = Some(if confined {
                    format!("others may run on its CPUs: {says}")
                } else {
                    format!("stays in the shared pool: {says}")
                });
                decision.refused = Some(Refused::Kernel);
            }
            let uid = pod.and_then(Pod::cgroup_uid);
            if decision.cpus.is_some() && uid.is_some_and(|uid| self.isolation.is_barred(uid)) {
                decision.note = Some(IsolatedPartitionGate::BARRED.to_owned());
            }
        }
        self.history.forget(&observed);
        // All is written and read again.
        if calm && reach.is_asked() {
            self.given_up = given_up;
            return Ok(self.interrupted((observed, ledger), &[]));
        }
        if of_node {
            self.look_for_lost(&lost);
        }
        self.publish(&pods, &observed, &ledger, &decisions, errors);
        self.seen = Some(Seen::all(observed, ledger));
        if of_node {
            self.fresh = CpuSet::new();
        }
        Ok(Ended::Done)
    }

    /// Says which pods of those looked at, all or one, have to wait before their partitions may be isolated.
    pub(super) fn isolate(&mut self, desired: &mut Desired, of: Option<&str>) {
        if self.node.enforcement != Enforcement::Partition {
            let plans = desired.pods.values_mut();
            plans.for_each(|plan| plan.isolated = false);
        }
        if desired.pods.values().any(|plan| plan.isolated) {
            // Somebody else may have written there since.
            self.isolation.check(self.keeper.workqueues().as_ref());
        }
        self.isolation.note_wanted(desired, of, Instant::now());
    }

    /// How many running containers may be moved now.
    pub(super) fn moves_left(&mut self) -> usize {
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

    /// Counts what was done and returns what went wrong as sentences.
    pub(super) fn account(&mut self, applied: &[Applied]) -> Vec<String> {
        let mut errors = Vec::new();
        for done in applied {
            let (outcome, error) = (done.outcome.name(), done.error());
            self.metrics.steps.with_label_values(&[outcome]).inc();
            match &error {
                Some(error) => tracing::error!("{error}"),
                None => tracing::debug!("{}", done.step),
            }
            if let Step::Partition { path, .. }
            | Step::Exclusive {
                path,
                in_force: Some(_),
                ..
            } = &done.step
                && let Some(error) = &error
            {
                // It is said, and tried again when the timer rings.
                self.refused.insert(path.clone(), error.clone());
                continue;
            }
            errors.extend(error);
            let pinned = matches!(
                &done.step,
                Step::Cpus {
                    reason: Reason::Own,
                    ..
                } | Step::Partition {
                    in_force: Some(_),
                    ..
                }
            );
            if pinned && matches!(done.outcome, Outcome::Done) {
                tracing::info!("{}", done.step);
            }
        }
        errors
    }

    /// Keeps the kernel's own work off the CPUs that are somebody's own by now.
    pub(super) fn keep_quiet(&mut self, observed: &Observed) {
        self.heartbeat
            .begin("move interrupts, workqueues and slices off exclusive CPUs");
        let node = &self.node;
        let options = match node.enforcement {
            Enforcement::Observe => CpuIsolationOptions::default(),
            Enforcement::Cpuset => node.config.quiet,
            // There the kernel itself keeps them off.
            Enforcement::Partition => CpuIsolationOptions {
                system_slices: false,
                ..node.config.quiet
            },
        };
        let mut exclusive = CpuSet::new();
        for container in observed.containers() {
            exclusive = exclusive.union(&own_in_force(container, node.enforcement));
        }
        // The top of the hierarchy outlives every pods' tree, and so does what is noted there.
        let kernels = if self.isolation.any() {
            // Where that can't be read, nothing is given back.
            node.cgroups
                .isolated_cpus()
                .unwrap_or_else(|_| node.topology.online.clone())
        } else {
            CpuSet::new()
        };
        let isolated = self.isolation.keep_off(observed, &kernels);
        let situation = IsolationInput {
            options,
            exclusive: &exclusive,
            isolated,
            online: &node.topology.online,
        };
        let report = self.keeper.isolate(&situation, &node.cgroups, "");
        let allowed = report
            .workqueues
            .as_ref()
            .map(|(allowed, turned)| (allowed, *turned));
        self.isolation.note_allowed(allowed, Instant::now());
        for what in &report.moved {
            tracing::debug!("off exclusive CPUs: {what}");
        }
        let said = |report: &IsolationReport| report.sentences();
        if self.quiet.as_ref().map(said).unwrap_or_default() != said(&report) {
            for sentence in report.sentences() {
                tracing::warn!("{sentence}");
            }
        }
        self.quiet =
            (options.any() || report.away > 0 || !report.failed.is_empty()).then_some(report);
    }

    /// Raises the alarm over CPUs that have been missing for longer than the kernel takes to hand on one that comes online.
    fn look_for_lost(&mut self, missing: &CpuSet) {
        self.missing.retain(|cpu, _| missing.contains(*cpu));
        for cpu in missing.iter() {
            self.missing.entry(cpu).or_insert_with(Instant::now);
        }
        let long = self
            .missing
            .iter()
            .filter(|(_, since)| since.elapsed() >= HANDED_ON);
        let lost: CpuSet = long.map(|(cpu, _)| *cpu).collect();
        if !lost.is_subset(&self.lost) {
            tracing::error!(
                "the kernel has lost {}: no cgroup has a lost CPU, only a reboot brings it back, and it is not used (a known \
                 fault of Linux 6.12 when a partition is left invalid; newer kernels don't have it)",
                lost.in_words()
            );
        }
        self.lost = lost;
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
        let environment = |pod: &Pod, index: usize, cpus: Option<&CpuSet>| {
            threads(node, pod, index, cpus, &shared)
        };
        let mut containers =
            snapshot::containers(pods, &node.topology, decisions, observed, environment);
        for container in &mut containers {
            self.history.tell(container);
            let injected = self
                .told
                .injected(container.uid.as_deref(), &container.container);
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
            layout: Arc::clone(&self.layout),
            quiet: self.quiet.clone(),
            containers,
            unknown_owners: snapshot::unknown_owners(observed, ledger),
            drift: self.drift.clone(),
            unexplained: ledger.unexplained.clone(),
            errors,
        })));
    }
}
