//! The one pipeline of all reconcile passes: observe, decide, plan, apply, verify. The reconciler then publishes the result.
//!
//! [`PassScope`] says what a pass reads, and for which runtime request. A pod pass reads one pod and takes the remaining pods
//! from the last observed state. A node pass reads all pods.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::cached_state::{CachedState, WrittenCgroups, permits_yield};
use super::pass_model::{PassEnd, PassNode, PassResult, PassScope, RuntimeRequest};
use super::pass_state::PassState;
use super::pass_view::PassView;
use crate::pin::decide::{DecisionInput, Decisions, decide_while};
use crate::pin::{self, AppliedStep, Drift, Enforcement, Observed, Scan, Step};
use crate::pod;

/// Why a pass ends before its last stage.
enum EarlyEnd {
    NeedsNode,
    Yielded,
    Failed(anyhow::Error),
}

/// A running pass.
struct Pass<'a, N> {
    state: &'a mut PassState,
    node: &'a mut N,
    scope: PassScope<'a>,
    view: PassView,
    /// The errors so far, as sentences.
    errors: Vec<String>,
    has_urgent: &'a mut dyn FnMut() -> bool,
    /// Whether the pass ends when an urgent event waits.
    may_yield: bool,
}

// === impl EarlyEnd ===

impl From<anyhow::Error> for EarlyEnd {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs a pass. A node pass without a request ends early when `has_urgent` returns true and yielding is safe.
pub fn run<N: PassNode>(
    state: &mut PassState,
    node: &mut N,
    scope: PassScope<'_>,
    has_urgent: &mut dyn FnMut() -> bool,
) -> PassEnd {
    let release_backoff = state.release_backoff.clone();
    let is_first = state.is_first;
    let mut pass = Pass {
        state,
        node,
        scope,
        view: PassView::default(),
        errors: Vec::new(),
        has_urgent,
        // The first pass records the state at the agent's start, and runs to its end.
        may_yield: matches!(scope, PassScope::Node(None)) && !is_first,
    };
    let end = pass.run();
    match end {
        Ok(result) => PassEnd::Done(Box::new(result)),
        Err(EarlyEnd::NeedsNode) => PassEnd::NeedsNode,
        Err(EarlyEnd::Yielded) => {
            state.release_backoff = release_backoff;
            PassEnd::Yielded
        }
        Err(EarlyEnd::Failed(error)) => {
            state.cached = None;
            PassEnd::Failed(error)
        }
    }
}

// === impl Pass ===

impl<N: PassNode> Pass<'_, N> {
    fn run(&mut self) -> Result<PassResult, EarlyEnd> {
        self.state.heartbeat.begin("read the pods' cgroups");
        match self.scope {
            PassScope::Node(_) => self.observe_node()?,
            PassScope::Pod(request) => self.observe_pod(request)?,
        }
        let drift = self.find_drift()?;
        self.yield_to_urgent(&[])?;
        self.state
            .heartbeat
            .begin("decide what each container gets");
        let mut decisions = self.decide()?;
        self.yield_to_urgent(&[])?;
        let steps = self.plan(&decisions)?;
        self.yield_to_urgent(&[])?;
        let (steps, expected) = match self.scope {
            PassScope::Node(_) => (self.state).without_failed_plan(&self.view.observed, steps),
            PassScope::Pod(_) => (steps, None),
        };
        let fails_again = expected.is_some();
        let mut errors = expected.unwrap_or_default();
        self.note_changes(&decisions, &drift, fails_again);
        let lost = self.view.ledger.lost.clone();
        let planned = steps.len();
        let before = (planned > 0).then(|| self.view.observed.clone());
        let applied = self.apply(steps);
        errors.append(&mut self.errors);
        errors.extend(self.state.account(&applied));
        if let Some(RuntimeRequest::Create { uid, .. }) = self.scope.request() {
            self.keep_assignment(uid, &decisions, &applied)?;
        }
        if planned > 0 {
            self.verify(&applied, applied.len() == planned)?;
        }
        if let PassScope::Node(_) = self.scope {
            let after = &self.view.observed;
            self.state
                .note_failed_plan((before.as_ref(), fails_again), after, applied, &errors);
        }
        let PassView {
            pods,
            observed,
            ledger,
            ..
        } = std::mem::take(&mut self.view);
        self.state.note_refusals(&pods, &observed, &mut decisions);
        Ok(PassResult {
            pods,
            before,
            observed,
            ledger,
            decisions,
            drift,
            lost,
            errors,
            may_yield: self.may_yield,
        })
    }

    /// Ends the pass if an urgent event waits and yielding is safe. The observed state, with the results of the steps, stays
    /// cached.
    fn yield_to_urgent(&mut self, applied: &[AppliedStep]) -> Result<(), EarlyEnd> {
        if self.may_yield && (self.has_urgent)() {
            return Err(self.yielded(applied));
        }
        Ok(())
    }

    fn yielded(&mut self, applied: &[AppliedStep]) -> EarlyEnd {
        let view = std::mem::take(&mut self.view);
        let mut cached = CachedState::new(view.observed, view.ledger);
        let before = cached.ledger.exclusive();
        cached.note_written(applied);
        let is_known = cached.read_written_owners(applied, &view.pods, self.node);
        if !applied.is_empty() {
            // Some records are written, and the sets of their containers are not.
            let recent = self.state.recently_assigned.union(&before);
            self.state.recently_assigned = recent.union(&cached.ledger.exclusive());
        }
        self.state.cached = is_known.then_some(cached);
        EarlyEnd::Yielded
    }

    /// Reads all pods.
    fn observe_node(&mut self) -> Result<(), EarlyEnd> {
        let mut pods = self.state.pods.known();
        let mut scan = Scan::default();
        for (path, uid) in self.node.pod_paths()? {
            // The earlier cached state stays.
            if self.may_yield && (self.has_urgent)() {
                return Err(EarlyEnd::Yielded);
            }
            scan.pods.extend(self.node.pod(path, uid)?);
        }
        // The sets above are read after the pods: the CPUs of a partition that ends meanwhile then count as offered.
        scan.surroundings = self.node.surroundings()?;
        scan.lost = self.node.lost_cpus(&mut scan.pods.iter())?;
        self.note_offline_cpus(&mut scan)?;
        let lost = scan.lost.clone();
        let (mut observed, mut ledger) = Observed::new(scan, &pods);
        if self.state.pods.note_records(&observed) {
            pods = self.state.pods.known();
            (observed, ledger) = observed.matched_again(lost, &pods);
        }
        self.state.pods.keep_pending(&mut ledger, &observed);
        self.node.choose_reserved(&ledger);
        self.view = PassView {
            pods,
            observed,
            ledger,
            has_all_pods: true,
        };
        // The view replaces the cached state. The old state is freed here, because a runtime request may wait for the end of the
        // pass.
        self.state.cached = None;
        Ok(())
    }

    /// Notes the earlier sets of cgroups that lost CPUs because the CPUs went offline. Only cgroup v1 needs the notes.
    fn note_offline_cpus(&mut self, scan: &mut Scan) -> Result<(), EarlyEnd> {
        if !scan.surroundings.sets_are_nested {
            return Ok(());
        }
        let online = self.node.cpuset("")?.effective;
        let notes = self.state.seen_sets.notes(scan, &online);
        if !notes.is_empty() {
            let applied = self.node.apply(notes, &mut |_| true);
            self.errors = self.state.account_notes(&applied);
        }
        Ok(())
    }

    /// Reads the request's pod, and takes the remaining pods from the cached state.
    fn observe_pod(&mut self, request: RuntimeRequest<'_>) -> Result<(), EarlyEnd> {
        let uid = request.uid();
        let pod = self.state.pods.pod(uid).ok_or(EarlyEnd::NeedsNode)?;
        let cached = self.state.cached.as_mut().ok_or(EarlyEnd::NeedsNode)?;
        let mut needs_others = false;
        match request {
            RuntimeRequest::Create { container, .. } => {
                let nobody = HashSet::new();
                let policy = self.node.decision_input(&[], &nobody).policy;
                let may_own = pod
                    .containers
                    .iter()
                    .any(|container| pod::entitlement(&pod, container, policy).cpus() > 0);
                let enforcement = self.node.enforcement();
                let is_current = cached.has_pod(uid)
                    && !cached.stale.contains(uid)
                    && (!may_own
                        || !cached.has_partitions_in_the_way(&pod, container)
                            && cached.is_current(uid, enforcement, self.node));
                if !is_current {
                    // A new pod may have no cgroup. The plan asks for a node pass if the pod gets CPUs.
                    let read = cached.read_pod(uid, std::slice::from_ref(&pod), self.node);
                    if !read && cached.has_pod(uid) {
                        return Err(EarlyEnd::NeedsNode);
                    }
                }
            }
            RuntimeRequest::Start { .. } => {
                if !cached.read_pod(uid, std::slice::from_ref(&pod), self.node) {
                    return Err(EarlyEnd::NeedsNode);
                }
                for above in &mut cached.observed.surroundings.above {
                    let cpuset = self.node.cpuset(&above.path);
                    above.cpuset = cpuset.map_err(|_| EarlyEnd::NeedsNode)?;
                }
                // With enforcement `cpuset`, Pinfold itself takes the pod's CPUs from the remaining containers.
                needs_others =
                    self.node.enforcement() == Enforcement::Cpuset && !cached.is_alone(uid);
            }
        }
        if needs_others {
            return self.observe_others();
        }
        self.view = PassView {
            observed: cached.observed.only(uid).unwrap_or_default(),
            ledger: cached.ledger.clone(),
            pods: Arc::from([pod]),
            has_all_pods: false,
        };
        // A move needs the descriptions of all pods.
        if let RuntimeRequest::Create { .. } = request
            && self.state.moves_left(self.node) > 0
        {
            self.view.pods = self.state.pods.known();
        }
        self.state.pods.enter_pending(&mut self.view.ledger);
        Ok(())
    }

    /// Takes the view of all pods from the cached state. Stale pods are read again.
    fn observe_others(&mut self) -> Result<(), EarlyEnd> {
        let pods = self.state.pods.known();
        let cached = self.state.cached.as_mut().ok_or(EarlyEnd::NeedsNode)?;
        for uid in std::mem::take(&mut cached.stale) {
            if !cached.read_pod(&uid, &pods, self.node) && cached.has_pod(&uid) {
                return Err(EarlyEnd::NeedsNode);
            }
        }
        let lost = self
            .node
            .lost_cpus(&mut cached.observed.pods.iter().map(|pod| &pod.cgroup))
            .map_err(|_| EarlyEnd::NeedsNode)?;
        let (observed, ledger) = cached.observed.clone().matched_again(lost, &pods);
        *cached = CachedState::new(observed.clone(), ledger.clone());
        self.view = PassView {
            pods,
            observed,
            ledger,
            has_all_pods: true,
        };
        self.state.pods.enter_pending(&mut self.view.ledger);
        Ok(())
    }

    /// Compares the observed state with the ledger. Drift is reported only once, so a pass with drift runs to its end. A pod
    /// pass leaves the repair to a node pass. A pass for CreateContainer skips the comparison, because the new container has
    /// no cgroup.
    fn find_drift(&mut self) -> Result<Vec<Drift>, EarlyEnd> {
        if let PassScope::Pod(RuntimeRequest::Create { .. }) = self.scope {
            return Ok(Vec::new());
        }
        let drift = self.drift();
        match self.scope {
            PassScope::Pod(_) if !drift.is_empty() => return Err(EarlyEnd::NeedsNode),
            _ => self.may_yield &= drift.is_empty(),
        }
        Ok(drift)
    }

    fn drift(&self) -> Vec<Drift> {
        let view = &self.view;
        self.state
            .find_drift(&view.observed, &view.ledger, &*self.node)
    }

    /// Decides what each container of the view gets.
    fn decide(&mut self) -> Result<Decisions, EarlyEnd> {
        let mut decisions = self.decide_once()?;
        if let PassScope::Pod(request) = self.scope {
            // Owners of CPUs may have ended since the last scan.
            if matches!(request, RuntimeRequest::Create { .. })
                && self.view.lacks(request, &decisions)
                && self.forget_ended_owners()
            {
                decisions = self.decide_once()?;
            }
            let lacks = self.view.lacks(request, &decisions);
            if lacks && self.state.may_free_cpus(&*self.node, &self.view.ledger)
                || !decisions.moves.is_empty()
            {
                return Err(EarlyEnd::NeedsNode);
            }
        }
        // Refused partitions wait for the timer.
        decisions.desired.held_back = self.state.refused.keys().cloned().collect();
        // CreateContainer writes a record only.
        if !matches!(self.scope, PassScope::Pod(RuntimeRequest::Create { .. })) {
            self.gate_isolated_partitions(&mut decisions);
        }
        // Moves are reported only once. A pass with moves therefore runs to its end.
        self.may_yield &= decisions.moves.is_empty();
        Ok(decisions)
    }

    fn decide_once(&mut self) -> Result<Decisions, EarlyEnd> {
        let moves = match self.scope {
            PassScope::Pod(RuntimeRequest::Start { .. }) => 0,
            _ => self.state.moves_left(self.node),
        };
        let all = match &self.state.cached {
            Some(cached) if !self.view.has_all_pods => &cached.observed,
            _ => &self.view.observed,
        };
        let here = self.state.pods.here(all, &self.view.pods);
        let input = self.node.decision_input(&self.view.pods, &here);
        // Without moves, a pod pass concerns no other pod.
        let is_alone = !self.view.has_all_pods && self.view.pods.len() == 1;
        let concerned = if is_alone { &self.view.observed } else { all };
        let store = &self.state.pods;
        let known = store.known_pods(concerned, &self.view.pods, input.ids_settled);
        let input = DecisionInput {
            moves,
            known: Some(&known),
            ..input
        };
        let (may_yield, has_urgent) = (self.may_yield, &mut self.has_urgent);
        let go_on = || !(may_yield && has_urgent());
        let Some(mut decisions) = decide_while(&input, &self.view.ledger, go_on) else {
            return Err(self.yielded(&[]));
        };
        if self.node.enforcement() == Enforcement::Observe {
            decisions.keep_ledger_assignments(&self.view.pods, &self.view.ledger);
        } else {
            decisions.keep_init_containers_off_others(&self.view.pods, &self.view.observed);
        }
        Ok(decisions)
    }

    /// Forgets owners whose pod cgroups were removed since the last scan. Returns whether the owners' CPUs can be assigned.
    fn forget_ended_owners(&mut self) -> bool {
        let Some(cached) = &mut self.state.cached else {
            return false;
        };
        let gone = cached.forget_ended_owners(self.node);
        let mut ledger = cached.ledger.clone();
        self.state.pods.enter_pending(&mut ledger);
        self.view.ledger = ledger;
        gone
    }

    /// Marks the pods whose partitions must wait before becoming isolated. Without enforcement `partition`, no pod is isolated.
    fn gate_isolated_partitions(&mut self, decisions: &mut Decisions) {
        let desired = &mut decisions.desired;
        if self.node.enforcement() != Enforcement::Partition {
            let plans = desired.pods.values_mut();
            plans.for_each(|plan| plan.isolated = false);
        }
        let gate = &mut self.state.isolation;
        if desired.pods.values().any(|plan| plan.isolated) {
            // Another program may have changed the work queues' mask since the last pass.
            gate.check(self.node.workqueue_cpus().as_ref());
        }
        let only = self.scope.request().filter(|_| !self.view.has_all_pods);
        gate.note_wanted(desired, only.map(RuntimeRequest::uid), Instant::now());
    }

    /// Plans the steps. CreateContainer writes only the pod's record: no cgroup of the container exists so far.
    fn plan(&mut self, decisions: &Decisions) -> Result<Vec<Step>, EarlyEnd> {
        let (view, desired) = (&self.view, &decisions.desired);
        let enforcement = self.node.enforcement();
        if enforcement == Enforcement::Observe && matches!(self.scope, PassScope::Pod(_)) {
            return Ok(Vec::new());
        }
        let mut steps = pin::plan(&view.observed, &view.ledger, desired, enforcement);
        match self.scope {
            PassScope::Node(_) => {}
            PassScope::Pod(RuntimeRequest::Start { uid }) => {
                // CreateContainer has recorded all CPUs of the pod. CPUs outside the record need a node pass, because another
                // container may run on these CPUs.
                let wanted = desired.assignment(uid).cpus();
                if enforcement == Enforcement::Cpuset
                    && !wanted.is_subset(&view.ledger.of(uid).cpus())
                {
                    return Err(EarlyEnd::NeedsNode);
                }
            }
            PassScope::Pod(RuntimeRequest::Create { uid, container }) => {
                let gets = view.decision(uid, container, decisions);
                if gets.is_none_or(|decision| decision.cpus.is_none()) {
                    return Ok(Vec::new());
                }
                let pod = view.observed.pods.first().ok_or(EarlyEnd::NeedsNode)?;
                // The runtime can't give a container CPUs outside the pod's set.
                let pod_cpus = &pod.cgroup.cpuset.cpus;
                let assignment = desired.assignment(uid).cpus();
                if enforcement == Enforcement::Cpuset
                    && !pod_cpus.is_empty()
                    && !assignment.is_subset(pod_cpus)
                {
                    return Err(EarlyEnd::NeedsNode);
                }
                let path = &pod.cgroup.path;
                steps.retain(|step| {
                    matches!(step, Step::Record { path: other, record: Some(_) } if other == path)
                });
            }
        }
        Ok(steps)
    }

    /// Logs and counts moves and new drift, and notes the CPUs given up, before the first step. The moves
    /// of a plan that `fails_again` were counted when it was tried.
    fn note_changes(&mut self, decisions: &Decisions, drift: &[Drift], fails_again: bool) {
        if let PassScope::Pod(_) = self.scope {
            return;
        }
        for moved in decisions.moves.iter().filter(|_| !fails_again) {
            tracing::info!(
                "{}/{}: container {} moves from {} to {} to make room",
                moved.namespace,
                moved.pod,
                moved.container,
                moved.from,
                moved.to
            );
            self.state.metrics.moves.inc();
            self.state.moved.push(Instant::now());
        }
        self.state.forget_ended_unrecorded(&self.view.observed);
        let kept = decisions.desired.exclusive();
        self.state.release_backoff.note(
            self.view.ledger.exclusive().difference(&kept),
            Instant::now(),
            self.node.reconcile_interval(),
        );
        self.state.note_drift(drift);
    }

    /// Carries the steps out. The kernel's state is safe after each step. The pass yields only after the steps of
    /// [`permits_yield`].
    fn apply(&mut self, steps: Vec<Step>) -> Vec<AppliedStep> {
        if steps.is_empty() {
            return Vec::new();
        }
        let (may_yield, has_urgent) = (&mut self.may_yield, &mut self.has_urgent);
        let heartbeat = &self.state.heartbeat;
        self.node.apply(steps, &mut |next| {
            heartbeat.begin(next.to_string());
            let go_on = !(*may_yield && has_urgent());
            *may_yield &= permits_yield(next);
            go_on
        })
    }

    /// Notes the assignments of the pod of a CreateContainer request. A pod pass ends here if the pod's record does not hold
    /// the assignment.
    fn keep_assignment(
        &mut self,
        uid: &str,
        decisions: &Decisions,
        applied: &[AppliedStep],
    ) -> Result<(), EarlyEnd> {
        let state = &mut *self.state;
        if let (PassScope::Pod(RuntimeRequest::Create { container, .. }), Some(cached)) =
            (self.scope, &mut state.cached)
        {
            cached.note_written_pod(uid, applied);
            let decision = self.view.decision(uid, container, decisions);
            let gets = decision.is_some_and(|decision| decision.cpus.is_some());
            let enforces = self.node.enforcement() != Enforcement::Observe;
            let wanted = decisions.desired.assignment(uid);
            if gets && enforces && cached.recorded(uid) != Some(&wanted) {
                return Err(EarlyEnd::NeedsNode);
            }
        }
        for decision in &decisions.containers {
            let pod = self.view.pods.get(decision.pod);
            let pod = pod.filter(|pod| pod.cgroup_uid() == Some(uid));
            let container = pod.and_then(|pod| pod.containers.get(decision.container));
            // An init container runs on the CPUs of its pod's later containers, and needs no assignment.
            let cpus = decision.cpus.as_ref();
            if let (Some(container), Some(cpus)) =
                (container, cpus.filter(|_| decision.entitlement.cpus() > 0))
            {
                state.pods.pending().add(uid, &container.name, cpus.clone());
                state.recently_assigned = state.recently_assigned.union(cpus);
            }
        }
        Ok(())
    }

    /// Reads the written pods again, and compares the new state with the ledger. `complete`: the pass has applied all steps.
    ///
    /// The kernel itself takes a partition's CPUs from all remaining cgroups. The next scan reads the result.
    fn verify(&mut self, applied: &[AppliedStep], complete: bool) -> Result<(), EarlyEnd> {
        self.state
            .heartbeat
            .begin("read again the cgroups that were written");
        match self.scope {
            PassScope::Pod(RuntimeRequest::Create { .. }) => Ok(()),
            PassScope::Pod(RuntimeRequest::Start { uid }) => self.verify_pod(uid, applied),
            PassScope::Node(_) if complete => self.verify_node(applied),
            PassScope::Node(_) => Err(self.yielded(applied)),
        }
    }

    fn verify_pod(&mut self, uid: &str, applied: &[AppliedStep]) -> Result<(), EarlyEnd> {
        let cached = self.state.cached.as_mut().ok_or(EarlyEnd::NeedsNode)?;
        cached.note_written(applied);
        if !cached.read_pod(uid, &self.view.pods, self.node) {
            return Err(EarlyEnd::NeedsNode);
        }
        self.view.observed = cached.observed.only(uid).unwrap_or_default();
        Ok(())
    }

    fn verify_node(&mut self, applied: &[AppliedStep]) -> Result<(), EarlyEnd> {
        let written = WrittenCgroups::new(applied.iter().map(|done| &done.step));
        let mut pods = Vec::with_capacity(self.view.observed.pods.len());
        for pod in &self.view.observed.pods {
            if !written.touches(&pod.cgroup.path) {
                pods.push(pod.cgroup.clone());
                continue;
            }
            if self.may_yield && (self.has_urgent)() {
                return Err(self.yielded(applied));
            }
            let (path, uid) = (pod.cgroup.path.clone(), pod.cgroup.uid.clone());
            pods.extend(self.node.pod(path, uid)?);
        }
        let lost = self.node.lost_cpus(&mut pods.iter())?;
        let surroundings = self.node.surroundings()?;
        let scan = Scan {
            pods,
            surroundings,
            lost,
        };
        (self.view.observed, self.view.ledger) = Observed::new(scan, &self.view.pods);
        // Repaired drift that returns in a later pass counts as new drift.
        self.state.drift = self.drift();
        Ok(())
    }
}
