//! A reconcile pass: observe, decide, plan, apply, verify, publish.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::history::own_in_force;
use super::super::isolation_gate::IsolatedPartitionGate;
use super::super::node::threads;
use super::super::pending_create::PendingCreate;
use super::super::schedule::{PassOutcome, PassReport};
use super::scope::{PassScope, Written, is_for_others};
use super::{CachedState, Reconciler, Trigger};
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

/// The period of the limit on moves.
const HOUR: Duration = Duration::from_secs(3600);

/// How long the kernel of a busy machine may take to add a new online CPU to the cgroups.
const HANDED_ON: Duration = Duration::from_millis(900);

// === impl Reconciler ===

impl Reconciler {
    /// Runs a node pass for CreateContainer. If the container still lacks CPUs and the pass gave up CPUs, a second pass follows.
    pub(super) fn run_create_pass(&mut self, create: PendingCreate<'_>) {
        let mut create = Some(create);
        self.run_and_report(
            Trigger::Create,
            PassScope::Node { requests: None },
            &mut create,
        );
        if let Some(waiting) = &mut create {
            waiting.patient = false;
            self.run_and_report(
                Trigger::Create,
                PassScope::Node { requests: None },
                &mut create,
            );
        }
    }

    /// Runs a pass without a CreateContainer request.
    pub(super) fn run_pass(&mut self, trigger: Trigger, scope: PassScope<'_>) -> PassOutcome {
        self.run_and_report(trigger, scope, &mut None)
    }

    /// Runs a pass, and reports its outcome to the schedule, the heartbeat and the metrics.
    fn run_and_report(
        &mut self,
        trigger: Trigger,
        scope: PassScope<'_>,
        create: &mut Option<PendingCreate<'_>>,
    ) -> PassOutcome {
        let start = Instant::now();
        let extent = scope.extent();
        let outcome = self.reconcile(scope, create).unwrap_or_else(|error| {
            self.publish_failure(&error);
            PassOutcome::Failed
        });
        let report = PassReport {
            trigger,
            extent,
            outcome,
            duration: start.elapsed(),
            follow_up: self.follow_up(),
        };
        self.schedule.finished(&report, Instant::now());
        if matches!(outcome, PassOutcome::NeedsNode | PassOutcome::Yielded) {
            self.heartbeat.idle();
            return outcome;
        }
        self.heartbeat.finish();
        // A node pass holds a second copy of the observed state. The allocator returns the memory only on demand.
        if trigger == Trigger::Timer {
            limits::trim_heap();
            limits::drop_code_pages();
        }
        self.count_pass(trigger, start);
        if let Some(seconds) = i32::try_from(std::process::id())
            .ok()
            .and_then(|pid| self.node.proc.cpu_seconds(pid))
        {
            self.metrics.set_cpu_seconds(seconds);
        }
        outcome
    }

    /// Counts a complete pass in the metrics.
    pub(super) fn count_pass(&self, trigger: Trigger, start: Instant) {
        self.metrics
            .reconciles
            .with_label_values(&[trigger.name()])
            .inc();
        self.metrics
            .reconcile_seconds
            .observe(start.elapsed().as_secs_f64());
    }

    /// When another pass is necessary although no cgroup changes. Reasons are CPUs given up, and isolated partitions waiting for
    /// the end of worker threads.
    pub(super) fn follow_up(&self) -> Option<Instant> {
        self.release_backoff
            .due()
            .into_iter()
            .chain(self.isolation.due())
            .min()
    }

    /// Drops the cached state, and publishes the error with the last known state.
    fn publish_failure(&mut self, error: &anyhow::Error) {
        tracing::error!("reconcile failed: {error:#}");
        self.cached = None;
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
    }

    fn reconcile(
        &mut self,
        mut scope: PassScope<'_>,
        create: &mut Option<PendingCreate<'_>>,
    ) -> anyhow::Result<PassOutcome> {
        let mut pods = self.pods.known();
        self.heartbeat.begin("read the pods' cgroups");
        let (mut observed, mut ledger) = match self.observe(&pods, &mut scope)? {
            Ok(found) => found,
            Err(ended) => return Ok(ended),
        };
        if self.pods.note_records(&observed) {
            pods = self.pods.known();
            (observed, ledger) = self.node.observe_again(observed, &pods, |_| false)?;
        }
        let first = self.published.borrow().is_none();
        if first {
            self.history.begin(&observed, self.node.enforcement);
        }
        self.pods.keep_pending(&mut ledger, &observed);
        self.node.choose_reserved(&ledger);
        let (online, enforcement) = (self.node.topology.online.clone(), self.node.enforcement);
        let drift = pin::drift(
            &observed,
            &ledger,
            (&online, &self.recently_assigned),
            enforcement,
        );
        // Before the first step, every pass may yield, with two exceptions. The first pass records the state at the agent's
        // start. Drift must be reported, and the next scan may not show the drift again.
        let yields = |scope: &mut PassScope<'_>| !first && drift.is_empty() && scope.has_request();
        if yields(&mut scope) {
            return Ok(self.yielded((observed, ledger), &[]));
        }
        let of_node = matches!(scope, PassScope::Node { .. });
        self.heartbeat.begin("decide what each container gets");
        let moves = self.moves_left();
        let here = self.pods.here(&observed, &pods);
        let inputs = DecisionInput {
            moves,
            ..self.inputs(&pods, &here)
        };
        let Some(mut decisions) = decide_while(&inputs, &ledger, || !yields(&mut scope)) else {
            return Ok(self.yielded((observed, ledger), &[]));
        };
        if self.node.enforcement == Enforcement::Observe {
            decisions.keep_ledger_assignments(&pods, &ledger);
        }
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        self.isolate(&mut decisions.desired, None);
        if yields(&mut scope) {
            return Ok(self.yielded((observed, ledger), &[]));
        }
        let steps = pin::plan(&observed, &ledger, &decisions.desired, enforcement);
        if !of_node && !decisions.moves.is_empty() {
            self.cached = Some(CachedState::all(observed, ledger));
            return Ok(PassOutcome::NeedsNode);
        }
        // Drift and moves are reported only once. A pass with drift or moves therefore runs to its end.
        let mut may_yield = !first && drift.is_empty() && decisions.moves.is_empty();
        if may_yield && scope.has_request() {
            return Ok(self.yielded((observed, ledger), &[]));
        }
        self.note_moves(&decisions);
        let release_backoff = self.release_backoff.clone();
        let kept = decisions.desired.exclusive();
        let timer = Duration::from_secs(self.node.config.reconcile_seconds);
        self.release_backoff
            .note(ledger.exclusive().difference(&kept), Instant::now(), timer);
        let create =
            create.take_if(|create| !create.waits(&pods, &decisions, &self.release_backoff));
        let answer = create
            .as_ref()
            .and_then(|create| self.answer(&pods, create, &decisions));
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
        let mut errors: Vec<String> = self.pods.errors().cloned().collect();
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
            // A plan is safe after each step.
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
                let go_on = !(may_yield && scope.has_request());
                may_yield &= is_for_others(next, &owners);
                go_on
            });
            errors.extend(self.account(&applied));
            // Only written pods are read again. The kernel itself takes a partition's CPUs from all remaining cgroups; the next
            // scan reads the result.
            self.heartbeat
                .begin("read again the cgroups that were written");
            let written = Written::new(applied.iter().map(|done| &done.step));
            let touched = |pod: &PodCgroup| written.touches(&pod.path);
            let again = if applied.len() == planned {
                self.node
                    .observe_again_unless(observed.clone(), &pods, touched, || {
                        may_yield && scope.has_request()
                    })?
            } else {
                None
            };
            let Some((after, read)) = again else {
                self.release_backoff = release_backoff;
                return Ok(self.yielded((observed, ledger), &applied));
            };
            self.history
                .note_unpinned_time(&observed, &after, &self.node, &self.metrics);
            // Repaired drift that returns in a later pass counts as new drift.
            let left = pin::drift(
                &after,
                &read,
                (&online, &self.recently_assigned),
                enforcement,
            );
            self.history.note_repairs(&self.drift, &left);
            self.drift = left;
            (observed, ledger) = (after, read);
        }
        // The pod's cgroup can hold the new container's CPUs now. The runtime may have given up waiting. The pending assignment
        // then expires.
        if let (Some(create), Some(answer)) = (create, answer) {
            let _ = create.reply.send(answer);
        }
        if let PassScope::Cached {
            again: Some(uid),
            passes: Some((container, reply)),
            ..
        } = &mut scope
            && let Some(reply) = reply.take()
        {
            self.history.begins(uid, container);
            let _ = reply.send(Ok(()));
        }
        // The kernel's own work leaves exclusive CPUs after the answers, because reading each interrupt is slow.
        self.isolate_cpus(&observed);
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
                // The runtime may have written the container's CPU set. The container then runs only on its own CPUs, but further
                // containers may use the CPUs, too.
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
        // All steps are applied and read back. Yielding postpones only the publication.
        if may_yield && scope.has_request() {
            self.release_backoff = release_backoff;
            return Ok(self.yielded((observed, ledger), &[]));
        }
        if of_node {
            self.note_lost_cpus(&lost);
        }
        self.publish(&pods, &observed, &ledger, &decisions, errors);
        self.cached = Some(CachedState::all(observed, ledger));
        if of_node {
            self.recently_assigned = CpuSet::new();
        }
        Ok(PassOutcome::Done)
    }

    /// Marks the pods whose partitions must wait before becoming isolated. `of` is the only pod of a pod pass. Without
    /// enforcement `partition`, no pod is isolated.
    pub(super) fn isolate(&mut self, desired: &mut Desired, of: Option<&str>) {
        if self.node.enforcement != Enforcement::Partition {
            let plans = desired.pods.values_mut();
            plans.for_each(|plan| plan.isolated = false);
        }
        if desired.pods.values().any(|plan| plan.isolated) {
            // Another program may have changed the work queues' mask since the last pass.
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

    /// Counts and logs the applied steps. Returns errors as sentences, except the kernel's refusals of partitions.
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
                // The pass publishes the refusal. The next timer tick permits a new attempt.
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

    /// Moves the kernel's own work off the exclusive CPUs in force.
    pub(super) fn isolate_cpus(&mut self, observed: &Observed) {
        self.heartbeat
            .begin("move interrupts, workqueues and slices off exclusive CPUs");
        let node = &self.node;
        let options = match node.enforcement {
            Enforcement::Observe => CpuIsolationOptions::default(),
            Enforcement::Cpuset => node.config.quiet,
            // Partitions already keep systemd's slices off.
            Enforcement::Partition => CpuIsolationOptions {
                system_slices: false,
                ..node.config.quiet
            },
        };
        let mut exclusive = CpuSet::new();
        for container in observed.containers() {
            exclusive = exclusive.union(&own_in_force(container, node.enforcement));
        }
        let kernels = if self.isolation.any() {
            // If the file can't be read, work queues return to no CPU.
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
        // The record of CPU isolation lies on the root cgroup, which outlives every pods' tree.
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

    /// Reports CPUs missing for at least [`HANDED_ON`] as lost.
    fn note_lost_cpus(&mut self, missing: &CpuSet) {
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
                .pods
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
