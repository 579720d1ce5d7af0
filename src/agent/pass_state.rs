//! [`PassState`]: the reconciler's state between two passes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cached_state::CachedState;
use super::failed_plan::FailedPlan;
pub use super::heartbeat::Heartbeat;
use super::isolation_gate::IsolatedPartitionGate;
use super::log_filter::LogFilter;
use super::pass_model::{PassNode, PassResult};
pub use super::pod_store::PodStore;
use super::release_backoff::ReleaseBackoff;
use crate::cpu::CpuSet;
use crate::metrics::AgentMetrics;
use crate::pin::decide::{DecisionInput, Decisions, RefusalSource, decide};
use crate::pin::{
    self, AppliedStep, Drift, DriftInput, Enforcement, Ledger, Observed, Reason, SeenSets, Step,
    StepOutcome,
};
use crate::pod::RecognizedPod;

/// The period of the limit on moves.
const HOUR: Duration = Duration::from_secs(3600);

/// The reconciler's state between two passes.
#[derive(Debug)]
pub struct PassState {
    /// The pods by source.
    pub pods: PodStore,
    /// The last observed state. `None` before the first node pass, in a node pass that has read all pods, after a failed pass, and
    /// after a yield with an unreadable owner.
    pub(super) cached: Option<CachedState>,
    /// Drift that the last pass did not repair.
    pub(super) drift: Vec<Drift>,
    /// CPUs assigned since the last complete node pass. After a pass that yielded between its steps: all exclusive CPUs. The
    /// owners' sets may be unwritten, and other containers may still run on these CPUs.
    pub(super) recently_assigned: CpuSet,
    /// Cgroups whose record could not be written. Such a cgroup may still be on the CPUs of an owner.
    pub(super) unrecorded: BTreeSet<String>,
    /// Partitions refused by the kernel since the last timer tick: the error, by cgroup path.
    pub(super) refused: BTreeMap<String, String>,
    /// The last plan, if its steps failed and changed nothing since the last timer tick.
    pub(super) failed_plan: Option<FailedPlan>,
    /// The log lines about cgroups. An error that lasts is written once.
    pub(super) log: LogFilter,
    pub(super) release_backoff: ReleaseBackoff,
    /// The sets of the last scan, on cgroup v1.
    pub(super) seen_sets: SeenSets,
    pub(super) isolation: IsolatedPartitionGate,
    /// The times of moves of running containers within the last hour.
    pub(super) moved: Vec<Instant>,
    /// Whether no node pass has completed so far.
    pub(super) is_first: bool,
    pub(super) metrics: AgentMetrics,
    pub(super) heartbeat: Heartbeat,
}

// === impl PassState ===

impl PassState {
    /// The state of an agent that has just started.
    pub fn new(pods: PodStore, metrics: AgentMetrics, heartbeat: Heartbeat) -> Self {
        Self {
            pods,
            cached: None,
            drift: Vec::new(),
            recently_assigned: CpuSet::new(),
            unrecorded: BTreeSet::new(),
            refused: BTreeMap::new(),
            failed_plan: None,
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

    /// Moves the observed state of a node pass into the cache, for later pod passes. `yielded`: the pass has not
    /// published its result.
    pub fn keep(&mut self, result: &mut PassResult, yielded: bool) {
        let observed = std::mem::take(&mut result.observed);
        let ledger = std::mem::take(&mut result.ledger);
        self.cached = Some(CachedState::new(observed, ledger));
        if !yielded {
            self.recently_assigned = CpuSet::new();
            self.is_first = false;
        }
    }

    /// Notes partitions as refused by the kernel, by cgroup path. A test starts with the refusals of an earlier pass.
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

    /// Whether the last node pass has given up CPUs. The next pass can assign the CPUs.
    #[doc(hidden)]
    pub fn has_released(&self) -> bool {
        self.release_backoff.due().is_some()
    }

    /// The part of a decision about a new container that the runtime may write to the container's cgroup: all of `cpus`, or
    /// nothing.
    ///
    /// Linux 6.12 makes a partition invalid if the `cpuset.cpus` of another container of the pod meets it. The CPUs of such
    /// partitions are written at StartContainer, after the partitions have given them up.
    pub fn cpus_for_runtime(&self, uid: &str, container: &str, cpus: &CpuSet) -> Option<CpuSet> {
        let pod = self.cached.as_ref()?.observed.pod(uid);
        let held = pod.map(|pod| pod.partitions_of_others(container));
        let is_free = held.is_none_or(|held| held.is_disjoint(cpus));
        is_free.then(|| cpus.clone())
    }

    /// Permits new attempts for refused partitions and other failed steps.
    pub fn forget_refused(&mut self) {
        self.refused.clear();
        if let Some(failed) = &mut self.failed_plan {
            failed.permit();
        }
    }

    /// The steps to carry out, and the errors to expect. A plan that failed a moment ago is not tried again as long as the
    /// cgroups are the same.
    pub(super) fn without_failed_plan(
        &self,
        observed: &Observed,
        steps: Vec<Step>,
    ) -> (Vec<Step>, Option<Vec<String>>) {
        if steps.is_empty() {
            return (steps, None);
        }
        let failed = self.failed_plan.as_ref();
        match failed.and_then(|failed| failed.errors_again(observed, &steps)) {
            Some(errors) => (Vec::new(), Some(errors.to_vec())),
            None => (steps, None),
        }
    }

    /// Notes the end of a complete node pass, with the errors that it has seen. `before` is the state from before the steps;
    /// `None` if the pass carried out no step, because there was none or because the plan `fails_again`.
    pub(super) fn note_failed_plan(
        &mut self,
        (before, fails_again): (Option<&Observed>, bool),
        after: &Observed,
        applied: Vec<AppliedStep>,
        errors: &[String],
    ) {
        if let Some(before) = before {
            let has_failed = applied.iter().any(|done| done.error().is_some());
            let steps = applied.into_iter().map(|done| done.step).collect();
            let note = || FailedPlan::new(before, after, steps, errors.to_vec());
            let failed = has_failed.then(note).flatten();
            self.failed_plan = failed.map(|failed| failed.after(self.failed_plan.as_ref()));
        } else if !fails_again {
            self.failed_plan = None;
        }
        let refused = &self.refused;
        let is_true = |line: &str| {
            let is_line = |error: &String| error == line;
            errors.iter().any(is_line) || refused.values().any(is_line)
        };
        self.log.forget(Instant::now(), is_true);
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

    /// Reads a new pod into the cached state, before the first CreateContainer of the pod.
    pub fn read_new_pod(&mut self, uid: &str, node: &impl PassNode) {
        let (Some(pod), Some(cached)) = (self.pods.pod(uid), &mut self.cached) else {
            return;
        };
        if !cached.has_pod(uid) {
            cached.read_pod(uid, &[pod], node);
        }
    }

    /// How many running containers may be moved now.
    pub(super) fn moves_left(&mut self, node: &impl PassNode) -> usize {
        if node.enforcement() == Enforcement::Observe {
            return 0;
        }
        self.moved.retain(|moved| moved.elapsed() < HOUR);
        node.moves_per_hour().saturating_sub(self.moved.len())
    }

    /// Whether a node pass may free CPUs for a container that lacks CPUs, according to the last observed state. `ledger` is the
    /// ledger of the pass that lacks CPUs.
    ///
    /// With 250 pods, a node pass takes 30 to 100 ms. A creation answered after this check takes 2 ms, the check included. Without
    /// the check, each container of a burst on a full node waits for a node pass.
    pub(super) fn may_free_cpus(&mut self, node: &impl PassNode, ledger: &Ledger) -> bool {
        let moves = self.moves_left(node);
        let pods = self.pods.known();
        let Some(cached) = &self.cached else {
            return true;
        };
        if !ledger.excluded.is_empty() || cached.has_ended_owner(node) {
            return true;
        }
        // The pods may have lost containers since the last node pass. Of a pod that is in no list, only existing containers
        // keep their CPUs.
        let mut observed = cached.observed.clone();
        for pod in &mut observed.pods {
            let cgroup = &pod.cgroup;
            if cached.ledger.assignments.contains_key(&cgroup.uid)
                && self.pods.is_missing(&cgroup.uid)
                && let Ok(Some(now)) = node.pod(cgroup.path.clone(), cgroup.uid.clone())
            {
                pod.cgroup = now;
            }
        }
        let (observed, mut ledger) = observed.matched_again(CpuSet::new(), &pods);
        self.pods.enter_pending(&mut ledger);
        let here = self.pods.here(&observed, &pods);
        let input = node.decision_input(&pods, &here);
        let known = self.pods.known_pods(&observed, &pods, input.ids_settled);
        let input = DecisionInput {
            moves,
            known: Some(&known),
            ..input
        };
        let decisions = decide(&input, &ledger);
        let kept = decisions.desired.exclusive();
        let gives_up = !ledger.exclusive().is_subset(&kept);
        gives_up || !decisions.moves.is_empty()
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

    /// Accounts for the notes of sets from before CPUs went offline. The next pass tries again what could not be written.
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

    /// Compares an observed state with its ledger.
    pub(super) fn find_drift(
        &self,
        observed: &Observed,
        ledger: &Ledger,
        node: &impl PassNode,
    ) -> Vec<Drift> {
        let nobody = HashSet::new();
        let input = DriftInput {
            online: &node.decision_input(&[], &nobody).topology.online,
            recently_assigned: &self.recently_assigned,
            unrecorded: &self.unrecorded,
            enforcement: node.enforcement(),
        };
        pin::drift(observed, ledger, &input)
    }

    /// Forgets cgroups without a record that no longer exist.
    pub(super) fn forget_ended_unrecorded(&mut self, observed: &Observed) {
        if !self.unrecorded.is_empty() {
            let paths: BTreeSet<&String> = observed
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
mod tests {
    use super::*;
    use crate::host::cgroup::{ContainerCgroup, PartitionKind, PodCgroup};
    use crate::pin::Scan;
    use crate::pod::ContainerIds;

    fn state() -> PassState {
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let store = PodStore::new(ContainerIds::NoSource);
        PassState::new(store, AgentMetrics::new().unwrap(), heartbeat)
    }

    /// A refused partition is reported beside its container, and is no error of the pass.
    #[test]
    fn a_plan_that_fails_without_an_error_of_the_pass_waits_as_well() {
        let observed = Observed::default();
        let partition = || Step::Partition {
            path: "pod/c".to_owned(),
            kind: PartitionKind::Root,
            in_force: Some(CpuSet::new()),
        };
        let apply = |state: &mut PassState, outcome| {
            let applied = vec![AppliedStep {
                step: partition(),
                outcome,
            }];
            let errors = state.account(&applied);
            assert_eq!(errors, [""; 0]);
            state.note_failed_plan((Some(&observed), false), &observed, applied, &errors);
        };
        let expected = |state: &PassState| {
            let (steps, expected) = state.without_failed_plan(&observed, vec![partition()]);
            assert_eq!(steps.is_empty(), expected.is_some());
            expected
        };
        let refused = || StepOutcome::Invalid {
            says: "no".to_owned(),
        };
        let mut state = state();
        apply(&mut state, refused());
        assert_eq!(expected(&state), None, "one more attempt");
        apply(&mut state, refused());
        // However many passes leave the plan out, the timer alone permits a new attempt.
        for _ in 0..3 {
            assert_eq!(expected(&state), Some(Vec::new()));
            state.note_failed_plan((None, true), &observed, Vec::new(), &[]);
        }
        state.forget_refused();
        assert_eq!(expected(&state), None);
        // A plan that succeeds has not failed, and after a pass without steps nothing waits.
        for _ in 0..3 {
            apply(&mut state, StepOutcome::Done);
            assert_eq!(expected(&state), None);
        }
        for _ in 0..2 {
            apply(&mut state, refused());
        }
        assert_eq!(expected(&state), Some(Vec::new()));
        state.note_failed_plan((None, false), &observed, Vec::new(), &[]);
        assert_eq!(expected(&state), None);
    }

    #[test]
    fn a_note_that_could_not_be_written_is_tried_again_by_the_next_pass() {
        let scan = |cpus: &str| {
            let mut pod = PodCgroup {
                path: "pod".to_owned(),
                ..PodCgroup::default()
            };
            pod.cpuset.cpus = cpus.parse().unwrap();
            Scan {
                pods: vec![pod],
                ..Scan::default()
            }
        };
        let mut state = state();
        state
            .seen_sets
            .notes(&mut scan("0-3"), &"0-3".parse().unwrap());
        let online = "0-2".parse().unwrap();
        let mut notes = state.seen_sets.notes(&mut scan("0-2"), &online);
        let failed = StepOutcome::Differs {
            says: String::new(),
        };
        for (outcome, remaining) in [(failed, 1), (StepOutcome::Done, 0)] {
            let step = notes.pop().unwrap();
            let applied = [AppliedStep { step, outcome }];
            assert_eq!(state.account_notes(&applied).len(), remaining);
            notes = state.seen_sets.notes(&mut scan("0-2"), &online);
            assert_eq!(notes.len(), remaining);
        }
    }

    #[test]
    fn a_cgroup_without_a_record_is_remembered_until_it_has_one_or_goes() {
        let mut state = state();
        let step = |path: &str, outcome| AppliedStep {
            step: Step::Record {
                path: path.to_owned(),
                record: None,
            },
            outcome,
        };
        let failed = || StepOutcome::Differs {
            says: "no record".to_owned(),
        };
        let paths = ["pod/a", "pod/b", "pod/c"];
        let applied = paths.map(|path| step(path, failed()));
        let errors = state.account(&applied);
        assert_eq!(errors.len(), 3, "{errors:?}");
        state.account(&[step("pod/a", StepOutcome::Done)]);
        assert_eq!(
            state.unrecorded,
            ["pod/b", "pod/c"].map(str::to_owned).into()
        );
        let container = ContainerCgroup {
            path: "pod/c".to_owned(),
            ..ContainerCgroup::default()
        };
        let pod = PodCgroup {
            containers: vec![container],
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![pod],
            ..Scan::default()
        };
        state.forget_ended_unrecorded(&Observed::new(scan, &[]).0);
        assert_eq!(state.unrecorded, ["pod/c"].map(str::to_owned).into());
    }
}
