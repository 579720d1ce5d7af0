//! [`World`]: all that the agent knows between two turns, each thing once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{PodsUpdate, RuntimeUpdate};
pub use super::heartbeat::Heartbeat;
use super::isolation_gate::IsolatedPartitionGate;
use super::kernel::Kernel;
use super::log_filter::LogFilter;
pub use super::mirror::CgroupChanges;
use super::mirror::{Mirror, Reading};
pub use super::pending::PendingAssignments;
pub use super::pod_store::PodStore;
use super::release_backoff::ReleaseBackoff;
use crate::cpu::{CpuSet, Topology};
use crate::metrics::AgentMetrics;
use crate::pin::decide::{DecisionContext, DecisionInput, Decisions, RefusalSource, decide};
use crate::pin::{
    self, AppliedStep, Drift, DriftInput, Enforcement, Ledger, Observed, Reason, SeenSets, Step,
    StepOutcome,
};
use crate::pod::{ApiUid, PodList, RecognizedPod};

/// The period of the limit on moves.
const HOUR: Duration = Duration::from_secs(3600);

/// All that the agent knows. A turn reads what may have changed, decides, and writes.
#[derive(Debug)]
pub struct World {
    pods: PodStore,
    pub(super) mirror: Mirror,
    /// The owners of CPUs as the mirror shows them, and the pending assignments.
    pub(super) ledger: Ledger,
    /// CPUs chosen for containers without a cgroup or a record.
    pub(super) pending: PendingAssignments,
    /// The default reserved CPUs, once chosen. The configuration may name others.
    default_reserved: CpuSet,
    /// Whether the next turn must decide even if all cgroups read as before.
    must_decide: bool,
    /// Drift that the last turn did not repair.
    pub(super) drift: Vec<Drift>,
    /// CPUs assigned since the last complete turn of all pods. After a turn that ended between its steps: all exclusive CPUs.
    /// The owners' sets may be unwritten, and other containers may still run on these CPUs.
    pub(super) recently_assigned: CpuSet,
    /// Cgroups whose record could not be written. Such a cgroup may still be on the CPUs of an owner.
    pub(super) unrecorded: BTreeSet<String>,
    /// Partitions refused by the kernel since the last timer tick: the error, by cgroup path.
    pub(super) refused: BTreeMap<String, String>,
    /// The log lines about cgroups. An error that lasts is written once.
    pub(super) log: LogFilter,
    pub(super) release_backoff: ReleaseBackoff,
    /// The sets of the last scan, on cgroup v1.
    pub(super) seen_sets: SeenSets,
    pub(super) isolation: IsolatedPartitionGate,
    /// The times of moves of running containers within the last hour.
    pub(super) moved: Vec<Instant>,
    /// Whether no turn of all pods has completed so far.
    pub(super) is_first: bool,
    pub(super) metrics: AgentMetrics,
    pub(super) heartbeat: Heartbeat,
}

// === impl World ===

impl World {
    /// What an agent knows that has just started: its sources of pods.
    pub fn new(pods: PodStore, metrics: AgentMetrics, heartbeat: Heartbeat) -> Self {
        Self {
            pods,
            mirror: Mirror::default(),
            ledger: Ledger::default(),
            pending: PendingAssignments::default(),
            default_reserved: CpuSet::new(),
            must_decide: true,
            drift: Vec::new(),
            recently_assigned: CpuSet::new(),
            unrecorded: BTreeSet::new(),
            refused: BTreeMap::new(),
            log: LogFilter::default(),
            release_backoff: ReleaseBackoff::default(),
            seen_sets: SeenSets::default(),
            isolation: IsolatedPartitionGate::default(),
            moved: Vec::new(),
            is_first: true,
            metrics,
            heartbeat,
        }
    }

    /// The pods.
    pub fn pods(&self) -> &PodStore {
        &self.pods
    }

    pub(super) fn pods_mut(&mut self) -> &mut PodStore {
        self.must_decide = true;
        &mut self.pods
    }

    /// The cgroups as last read.
    pub fn observed(&self) -> &Observed {
        self.mirror.observed()
    }

    /// CPUs chosen for containers without a cgroup or a record.
    #[doc(hidden)]
    pub fn pending(&self) -> &PendingAssignments {
        &self.pending
    }

    /// The owners of CPUs.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes a change of a source's pods.
    pub fn take_pods(&mut self, update: PodsUpdate) {
        let changed = self.pods_mut().take_pods(update);
        self.mirror.match_again(&self.pods, &changed);
    }

    /// Takes the uid of the own Node.
    pub(super) fn take_node(&mut self, uid: ApiUid) {
        self.pods_mut().take_node(uid);
    }

    /// Takes an update of the container runtime's pods. Pending assignments of containers that the runtime lacks end.
    pub fn take_runtime(&mut self, update: RuntimeUpdate) {
        let changed = self.pods_mut().take_runtime(update);
        for uid in &changed {
            let pods = &self.pods;
            self.pending
                .retain(uid, |container| pods.has(uid, container));
        }
        self.mirror.match_again(&self.pods, &changed);
    }

    /// Finds the containers of the folder's pods by counting cgroups from now on. Returns false if it did so before.
    pub(super) fn count_containers(&mut self) -> bool {
        self.pods_mut().count_containers()
    }

    /// Takes what has changed in the watched trees.
    pub fn note_changes(&mut self, changes: &CgroupChanges) {
        self.mirror.note(changes, Instant::now());
    }

    /// Makes the next turn read the pod with the uid again.
    pub(super) fn touch(&mut self, uid: &str) {
        self.mirror.touch(uid, Instant::now());
    }

    /// Makes the next turn read every pod again.
    pub fn sweep(&mut self) {
        self.mirror.sweep(Instant::now());
        self.must_decide = true;
    }

    /// Makes the next turn decide even if all cgroups read as before.
    pub fn decide_again(&mut self) {
        self.must_decide = true;
    }

    /// Whether a turn must decide, after it has read the cgroups.
    pub(super) fn must_decide(&mut self) -> bool {
        self.must_decide |= self.took_changes();
        self.must_decide
    }

    /// Whether something has been read that differs from what was there before, since the last call.
    pub(super) fn took_changes(&mut self) -> bool {
        self.mirror.take_changed()
    }

    /// Notes the end of a turn of all pods. What the turn itself has changed leads to one more decision.
    pub fn turn_completed(&mut self) {
        self.must_decide = self.mirror.take_changed();
        self.recently_assigned = CpuSet::new();
        self.is_first = false;
    }

    /// Whether a further turn has to decide, without any event.
    pub(super) fn has_to_decide(&self) -> bool {
        self.must_decide
    }

    /// Permits new attempts for refused partitions.
    pub fn forget_refused(&mut self) {
        self.refused.clear();
        self.must_decide = true;
    }

    /// Notes partitions as refused by the kernel, by cgroup path. A test starts with the refusals of an earlier turn.
    #[doc(hidden)]
    pub fn note_refused(&mut self, paths: impl IntoIterator<Item = String>) {
        let refused = paths.into_iter().map(|path| (path, String::new()));
        self.refused.extend(refused);
    }

    /// The cgroup paths of the refused partitions.
    #[doc(hidden)]
    pub fn refused(&self) -> impl Iterator<Item = &str> {
        self.refused.keys().map(String::as_str)
    }

    /// Whether the last turn has given up CPUs. The next turn can assign the CPUs.
    #[doc(hidden)]
    pub fn has_released(&self) -> bool {
        self.release_backoff.due().is_some()
    }

    /// The CPUs that no container may own.
    pub(super) fn reserved<'a>(&'a self, configured: &'a CpuSet) -> &'a CpuSet {
        if configured.is_empty() {
            &self.default_reserved
        } else {
            configured
        }
    }

    /// Chooses the default reserved CPUs at the start, and again when pods can use none of them. Assigned, excluded or withheld
    /// CPUs are never chosen: reserved CPUs are the part of the pods' CPUs that stays shared.
    pub(super) fn choose_reserved(&mut self, context: &DecisionContext<'_>) {
        if context.reserved.is_empty() {
            super::node::choose_reserved(
                &mut self.default_reserved,
                context.topology,
                &self.ledger,
            );
        }
    }

    /// Reads the ledger from the mirror, with the lost CPUs as known. Pending assignments end that are recorded by now.
    pub(super) fn renew_ledger(&mut self, lost: CpuSet) {
        let observed = self.mirror.observed();
        self.ledger = Ledger::read(observed, lost);
        self.pending.end_recorded(observed);
        self.pending.enter(&mut self.ledger);
    }

    /// Reads the dirty pods and what is around them. When nothing is left to read, the mirror and the ledger show the node.
    pub(super) fn read_dirty(
        &mut self,
        kernel: &impl Kernel,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Reading> {
        let mut reading = self.mirror.read(kernel, &self.pods, is_urgent)?;
        if reading == Reading::Complete {
            // The sets above are read after the pods: the CPUs of a partition that ends meanwhile then count as offered.
            self.mirror.read_surroundings(kernel)?;
            reading = self.mirror.read_effective(kernel, is_urgent)?;
            if self.pods.note_records(self.mirror.observed()) {
                self.mirror.match_all_again(&self.pods);
            }
        }
        let lost = kernel.lost_cpus(&self.mirror.observed().live())?;
        self.must_decide |= lost != self.ledger.lost;
        self.renew_ledger(lost);
        Ok(reading)
    }

    /// Reads a single pod. Returns false if the pod has no cgroup.
    pub(super) fn read_pod(&mut self, uid: &str, kernel: &impl Kernel) -> anyhow::Result<bool> {
        let live = self.mirror.observed().live();
        let is_there = self.mirror.read_pod(uid, kernel, &self.pods)?;
        if self.mirror.observed().live() != live {
            // The CPUs of an ended partition are on offer again.
            self.mirror.read_surroundings(kernel)?;
        }
        self.renew_ledger(self.ledger.lost.clone());
        Ok(is_there)
    }

    /// Reads the CPUs of the cgroups above the pods.
    pub(super) fn read_above(&mut self, kernel: &impl Kernel) -> anyhow::Result<()> {
        for above in &mut self.mirror.observed_mut().surroundings.above {
            above.cpuset = kernel.cpuset(&above.path)?;
        }
        Ok(())
    }

    /// Reads the pods again whose records the steps have written. The ledger then has their assignments.
    pub(super) fn read_recorded(
        &mut self,
        applied: &[AppliedStep],
        kernel: &impl Kernel,
    ) -> anyhow::Result<()> {
        self.mirror.read_recorded(applied, kernel, &self.pods)?;
        self.renew_ledger(self.ledger.lost.clone());
        Ok(())
    }

    /// Notes the earlier sets of cgroups that lost CPUs because the CPUs went offline. Only cgroup v1 needs the notes. Returns
    /// the errors.
    pub(super) fn note_offline_cpus(
        &mut self,
        kernel: &impl Kernel,
    ) -> anyhow::Result<Vec<String>> {
        if !self.mirror.observed().surroundings.sets_are_nested {
            return Ok(Vec::new());
        }
        let online = kernel.cpuset("")?.effective;
        let notes = self.seen_sets.notes(self.mirror.observed_mut(), &online);
        if notes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = kernel.apply(notes, &mut |_| true);
        Ok(self.account_notes(&applied))
    }

    /// The pods as decisions see them.
    pub(super) fn pods_list(&self) -> PodList {
        self.pods.known()
    }

    /// Forgets the log lines about errors that have ended.
    pub(super) fn forget_log_lines(&mut self, errors: &[String], now: Instant) {
        let refused = &self.refused;
        self.log.forget(now, |line: &str| {
            let is_line = |error: &String| error == line;
            errors.iter().any(is_line) || refused.values().any(is_line)
        });
    }

    /// Reads a new pod, before the first CreateContainer of the pod.
    pub fn read_new_pod(&mut self, uid: &str, kernel: &impl Kernel) {
        if self.mirror.is_complete() && self.mirror.pod(uid).is_none() {
            // A request about the pod reads it again, and reports an error.
            let _ = self.mirror.read_pod(uid, kernel, &self.pods);
        }
    }

    /// Decides about `pods`, with the cgroups in `observed`. At most `moves` running containers are moved to make room.
    pub(super) fn decide(
        &self,
        context: DecisionContext<'_>,
        (pods, observed): (&[Arc<RecognizedPod>], &Observed),
        moves: usize,
    ) -> Decisions {
        let ledger = &self.ledger;
        let here = self.pods.here(observed, &self.pending, pods);
        let known = self.pods.known_pods(observed, pods, context.ids_settled);
        let input = DecisionInput {
            context: DecisionContext {
                reserved: self.reserved(context.reserved),
                ..context
            },
            pods,
            here: Some(&here),
            known: Some(&known),
            moves,
        };
        let mut decisions = decide(&input, ledger);
        if context.enforcement == Enforcement::Observe {
            decisions.keep_ledger_assignments(pods, ledger);
        } else {
            decisions.keep_init_containers_off_others(pods, observed);
        }
        // Refused partitions wait for the timer.
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        decisions
    }

    /// Marks the pods whose partitions must wait before becoming isolated. `only` is the pod of a turn that decides about a
    /// single pod. Without enforcement `partition`, no pod is isolated.
    pub(super) fn gate_isolated_partitions(
        &mut self,
        decisions: &mut Decisions,
        (kernel, enforcement): (&impl Kernel, Enforcement),
        only: Option<&str>,
    ) {
        let desired = &mut decisions.desired;
        if enforcement != Enforcement::Partition {
            let plans = desired.pods.values_mut();
            plans.for_each(|plan| plan.isolated = false);
        }
        if desired.pods.values().any(|plan| plan.isolated) {
            // Another program may have changed the work queues' mask since the last turn.
            self.isolation.check(kernel.workqueue_cpus().as_ref());
        }
        self.isolation.note_wanted(desired, only, Instant::now());
    }

    /// The part of a decision about a new container that the runtime may write to the container's cgroup: all of `cpus`, or
    /// nothing.
    ///
    /// Linux 6.12 makes a partition invalid if the `cpuset.cpus` of another container of the pod meets it. The CPUs of such
    /// partitions are written at StartContainer, after the partitions have given them up.
    pub fn cpus_for_runtime(&self, uid: &str, container: &str, cpus: &CpuSet) -> Option<CpuSet> {
        let pod = self.mirror.pod(uid);
        let held = pod.map(|pod| pod.partitions_of_others(container));
        let is_free = held.is_none_or(|held| held.is_disjoint(cpus));
        is_free.then(|| cpus.clone())
    }

    /// Logs and counts new drift.
    pub(super) fn note_drift(&mut self, drift: &[Drift]) {
        let known = std::mem::replace(&mut self.drift, drift.to_vec());
        let is_new = |drift: &&Drift| !known.iter().any(|known| known.is_same(drift));
        for new in drift.iter().filter(is_new) {
            let line = new.to_string();
            if self.log.admits(&line, Instant::now()) {
                tracing::warn!("{line}");
            }
            let cause = new.cause.name();
            self.metrics.drift.with_label_values(&[cause]).inc();
        }
    }

    /// How many running containers may be moved now, of `per_hour`.
    pub(super) fn moves_left(&mut self, enforcement: Enforcement, per_hour: usize) -> usize {
        if enforcement == Enforcement::Observe {
            return 0;
        }
        self.moved.retain(|moved| moved.elapsed() < HOUR);
        per_hour.saturating_sub(self.moved.len())
    }

    /// Whether no container of another pod runs on the pod's CPUs. Pods that must be read again may.
    pub(super) fn is_alone(&self, uid: &str) -> bool {
        let wanted = self.ledger.of(uid).cpus();
        let pods = self.mirror.observed().pods.iter();
        let mut others = pods.filter(|pod| pod.cgroup.uid != uid);
        others.all(|pod| {
            let mut containers = pod.containers.iter().map(|container| &container.cgroup);
            let is_on = |cgroup: &crate::host::cgroup::ContainerCgroup| {
                cgroup.populated && !cgroup.cpuset.effective.is_disjoint(&wanted)
            };
            self.mirror.is_clean(&pod.cgroup.uid) && !containers.any(is_on)
        })
    }

    /// Whether the pod's cgroup of an owner was removed since the last read.
    pub(super) fn has_ended_owner(&self, kernel: &impl Kernel) -> bool {
        let mut owners = self.mirror.observed().pods.iter().map(|pod| &pod.cgroup);
        owners
            .any(|pod| self.ledger.assignments.contains_key(&pod.uid) && !kernel.exists(&pod.path))
    }

    /// Forgets owners whose pod cgroups were removed. Returns whether the owners' CPUs can be assigned.
    pub(super) fn forget_ended_owners(&mut self, kernel: &impl Kernel) -> bool {
        let assignments = &self.ledger.assignments;
        let mut freed = CpuSet::new();
        let pods = self.mirror.observed().pods.iter().map(|pod| &pod.cgroup);
        let owners = pods.filter_map(|pod| Some((pod, assignments.get(&pod.uid)?)));
        let mut gone = HashSet::new();
        for (pod, assignment) in owners.filter(|(pod, _)| !kernel.exists(&pod.path)) {
            freed = freed.union(&assignment.cpus());
            gone.insert(pod.path.clone());
        }
        if gone.is_empty() {
            return false;
        }
        self.mirror.forget(|pod| gone.contains(&pod.cgroup.path));
        if self.mirror.read_surroundings(kernel).is_err() {
            self.mirror.sweep(Instant::now());
        }
        let lost = kernel.lost_cpus(&self.mirror.observed().live());
        let is_free = lost.is_ok_and(|lost| lost.is_empty());
        self.renew_ledger(self.ledger.lost.clone());
        if !is_free {
            // The kernel has lost the CPUs, or returns the CPUs later. The next turn of all pods reads the CPUs again.
            self.ledger.excluded = self.ledger.excluded.union(&freed);
        }
        is_free
    }

    /// Compares the mirror with the ledger.
    pub(super) fn find_drift(&self, topology: &Topology, enforcement: Enforcement) -> Vec<Drift> {
        self.find_drift_in(self.mirror.observed(), topology, enforcement)
    }

    /// Compares a part of the mirror with the ledger.
    pub(super) fn find_drift_in(
        &self,
        observed: &Observed,
        topology: &Topology,
        enforcement: Enforcement,
    ) -> Vec<Drift> {
        let input = DriftInput {
            online: &topology.online,
            recently_assigned: &self.recently_assigned,
            unrecorded: &self.unrecorded,
            enforcement,
        };
        pin::drift(observed, &self.ledger, &input)
    }

    /// Counts and logs the applied steps. Returns errors as sentences, except the kernel's refusals of partitions.
    pub(super) fn account(&mut self, applied: &[AppliedStep]) -> Vec<String> {
        let mut errors = Vec::new();
        let now = Instant::now();
        for done in applied {
            let (outcome, error) = (done.outcome.name(), done.error());
            self.metrics.steps.with_label_values(&[outcome]).inc();
            match &error {
                Some(error) if self.log.admits(error, now) => tracing::error!("{error}"),
                _ => tracing::debug!("{}: {outcome}", done.step),
            }
            if let Step::Record { path, .. } = &done.step {
                match error {
                    Some(_) => self.unrecorded.insert(path.clone()),
                    None => self.unrecorded.remove(path),
                };
            }
            if let Step::Partition { path, .. }
            | Step::Exclusive {
                path,
                in_force: Some(_),
                ..
            } = &done.step
                && let Some(error) = &error
            {
                // The turn publishes the refusal. The next timer tick permits a new attempt.
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
            if pinned && matches!(done.outcome, StepOutcome::Done) {
                let line = done.step.to_string();
                // Another program may take the CPUs away as often as the agent gives them.
                if self.log.admits(&line, now) {
                    tracing::info!("{line}");
                }
            }
        }
        errors
    }

    /// Accounts for the notes of sets from before CPUs went offline. The next turn tries again what could not be written.
    pub(super) fn account_notes(&mut self, applied: &[AppliedStep]) -> Vec<String> {
        for note in applied.iter().filter(|note| note.error().is_some()) {
            if let Step::Narrowed {
                path,
                earlier: Some(earlier),
            } = &note.step
            {
                self.seen_sets.keep_note(path, earlier);
            }
        }
        self.account(applied)
    }

    /// Forgets cgroups without a record that no longer exist.
    pub(super) fn forget_ended_unrecorded(&mut self) {
        if !self.unrecorded.is_empty() {
            let paths: BTreeSet<&String> = self
                .mirror
                .observed()
                .containers()
                .map(|container| &container.cgroup.path)
                .collect();
            self.unrecorded.retain(|path| paths.contains(path));
        }
    }

    /// Adds the kernel's refusals to the decisions about `pods`.
    pub(super) fn note_refusals(
        &self,
        pods: &[Arc<RecognizedPod>],
        observed: &Observed,
        decisions: &mut Decisions,
    ) {
        for decision in &mut decisions.containers {
            let pod = pods.get(decision.pod);
            let Some((pod, uid)) = pod.and_then(|pod| Some((pod, pod.cgroup_uid()?))) else {
                continue;
            };
            let container = pod.containers.get(decision.container);
            let cgroup = container
                .filter(|_| !self.refused.is_empty())
                .and_then(|container| observed.container(uid, &container.name))
                .map(|observed| &observed.cgroup);
            let refusal = cgroup.and_then(|cgroup| Some((cgroup, self.refused.get(&cgroup.path)?)));
            let stays_root = decision.cpus.is_some() && self.isolation.stays_root(uid);
            let stays_root = stays_root.then(|| IsolatedPartitionGate::STAYS_ROOT.to_owned());
            let Some((cgroup, says)) = refusal else {
                decision.note = stays_root.or(decision.note.take());
                continue;
            };
            // The runtime may have written the container's CPU set. The container then runs only on its own CPUs, but further
            // containers may use the CPUs, too.
            let effective = &cgroup.cpuset.effective;
            let cpus = decision.cpus.as_ref();
            let is_confined =
                !effective.is_empty() && cpus.is_some_and(|cpus| effective.is_subset(cpus));
            decision.note = stays_root.or_else(|| {
                Some(if is_confined {
                    format!("other tasks may run on its CPUs: {says}")
                } else {
                    format!("stays in the shared pool: {says}")
                })
            });
            decision.refused = Some(RefusalSource::Kernel);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
