//! The runtime request StartContainer: pins the container before its program begins.

use std::time::Instant;

use super::super::event::Reply;
use super::super::schedule::{Extent, PassOutcome, PassReport};
use super::scope::PassScope;
use super::{CachedState, Reconciler, Trigger};
use crate::pin::decide::Refused;
use crate::pin::{
    self, Applied, Desired, Enforcement, Ledger, Observed, ObservedContainer, Scan, Step,
};
use crate::pod::Pod;

// === impl Reconciler ===

impl Reconciler {
    /// Answers StartContainer after the container's CPUs are in force, or after a pass has failed to enforce the CPUs.
    ///
    /// If no remaining pod needs a write, only the container's pod is pinned. A `required` pod with enforcement `cpuset` needs
    /// a node pass. The node pass finds containers of other pods on the pod's CPUs.
    pub(super) fn handle_start(&mut self, uid: &str, container: &str, reply: Reply) {
        // If the runtime has given up waiting, the program runs already.
        if !reply.is_closed() {
            self.history.waits(uid, container);
        }
        let required = self.pods.requires(uid);
        let by_writes = self.node.enforcement == Enforcement::Cpuset;
        let others_first = by_writes && self.schedule.has_writes();
        if !required && !others_first && self.pin_pod(uid, container).is_some() {
            let _ = reply.send(Ok(()));
            self.isolate_after_answer();
            return;
        }
        let (mut outcome, mut reply) = (PassOutcome::NeedsNode, Some(reply));
        if !(required && by_writes) {
            let passes = (!required).then_some((container, &mut reply));
            let scope = PassScope::Cached {
                again: Some(uid),
                passes,
                requests: None,
            };
            outcome = self.run_pass(Trigger::StartContainer, scope);
        }
        if outcome == PassOutcome::NeedsNode {
            outcome = self.run_pass(Trigger::StartContainer, PassScope::Node { requests: None });
        }
        // A refused container never begins. Every accepted container begins now, whatever the pass found.
        if let Some(reply) = reply {
            self.history.begins(uid, container);
            let _ = reply.send(self.start_answer(uid, container, outcome == PassOutcome::Done));
        }
    }

    /// Moves the kernel's own work off the exclusive CPUs. The container starts meanwhile, because reading each interrupt is
    /// slow.
    fn isolate_after_answer(&mut self) {
        let start = Instant::now();
        if let Some(cached) = self.cached.take() {
            self.isolate_cpus(&cached.observed);
            self.cached = Some(cached);
        }
        self.heartbeat.idle();
        let report = PassReport {
            trigger: Trigger::StartContainer,
            extent: Extent::Pod,
            outcome: PassOutcome::Done,
            duration: start.elapsed(),
            follow_up: self.follow_up(),
        };
        self.schedule.finished(&report, Instant::now());
    }

    /// Pins a starting container: reads the pod, writes to the pod and the cgroups above, and reads the pod again. All
    /// remaining pods come from the cached state and get no writes. The duration is therefore the same on a full node and on
    /// an empty node. The next pass publishes the result.
    ///
    /// Returns `None` if a pass is necessary:
    ///
    /// - No state is cached, or the pod can't be read or explained.
    /// - CPUs are missing, or a container of another pod must leave the pod's CPUs first.
    /// - The pod has drift.
    fn pin_pod(&mut self, uid: &str, container: &str) -> Option<()> {
        let start = Instant::now();
        let mut cached = self.cached.take()?;
        self.heartbeat.begin(format!(
            "pin container {container} of pod {uid} before it starts"
        ));
        let done = self.pin_cached_pod(uid, &mut cached);
        if done.is_some() {
            self.history.begins(uid, container);
            self.count_pass(Trigger::StartContainer, start);
        }
        self.cached = Some(cached);
        self.heartbeat.idle();
        done
    }

    /// Applies steps, and notes each step in the heartbeat.
    pub(super) fn apply(&self, steps: Vec<Step>) -> Vec<Applied> {
        pin::apply_while(steps, &self.node.cgroups, |next| {
            self.heartbeat.begin(next.to_string());
            true
        })
    }

    fn pin_cached_pod(&mut self, uid: &str, seen: &mut CachedState) -> Option<()> {
        if self.node.enforcement == Enforcement::Observe {
            return Some(());
        }
        let pods = [self.pods.pod(uid)?];
        self.read_again(uid, &pods, seen)?;
        for above in &mut seen.observed.surroundings.above {
            above.cpuset = self.node.cgroups.cpuset(&above.path).ok()?;
        }
        let ledger = self.with_pending(seen);
        let mut decisions = self.decided(&pods, 0, seen, &ledger);
        if decisions
            .containers
            .iter()
            .any(|decision| decision.refused == Some(Refused::Room))
        {
            return None;
        }
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        self.isolate(&mut decisions.desired, Some(uid));
        if self.node.enforcement == Enforcement::Cpuset
            && !is_alone(uid, &ledger, &decisions.desired, seen)
        {
            return None;
        }
        let before = seen.observed.only(uid)?;
        let online = (&self.node.topology.online, &self.recently_assigned);
        if !pin::drift(&before, &ledger, online, self.node.enforcement).is_empty() {
            return None;
        }
        let steps = pin::plan(&before, &ledger, &decisions.desired, self.node.enforcement);
        if steps.is_empty() {
            return Some(());
        }
        let applied = self.apply(steps);
        // The next pass repeats failed steps and publishes the errors.
        self.account(&applied);
        self.read_again(uid, &pods, seen)?;
        if let Some(after) = seen.observed.only(uid) {
            self.history
                .note_unpinned_time(&before, &after, &self.node, &self.metrics);
        }
        Some(())
    }

    /// Reads a pod into the cached state. A pod missing in the cached state is searched in the pods' trees. Returns `None` if
    /// the pod can't be read or explained.
    pub(super) fn read_again(&self, uid: &str, pods: &[Pod], seen: &mut CachedState) -> Option<()> {
        let at = seen
            .observed
            .pods
            .iter()
            .position(|pod| pod.cgroup.uid == uid);
        let cgroup = match at.and_then(|at| seen.observed.pods.get(at)) {
            Some(pod) => self.node.pod(pod.cgroup.path.clone(), uid.to_owned()),
            None => self.node.find_pod(uid),
        };
        let scan = Scan {
            pods: vec![cgroup.ok()??],
            ..Scan::default()
        };
        let (mut now, ledger) = Observed::new(scan, pods);
        let explained = seen.ledger.replace_pod(uid, ledger);
        let now = now.pods.pop().filter(|_| explained)?;
        match at.and_then(|at| seen.observed.pods.get_mut(at)) {
            Some(pod) => *pod = now,
            None => seen.observed.pods.push(now),
        }
        seen.stale.remove(uid);
        Some(())
    }
}

/// Whether the ledger already has all the pod's wanted CPUs, and no other pod was seen on the CPUs.
fn is_alone(uid: &str, ledger: &Ledger, desired: &Desired, seen: &CachedState) -> bool {
    let wanted = desired.assignment(uid).cpus();
    let others = seen
        .observed
        .pods
        .iter()
        .filter(|pod| pod.cgroup.uid != uid);
    let on = |container: &ObservedContainer| {
        container.cgroup.populated && !container.cgroup.cpuset.effective.is_disjoint(&wanted)
    };
    wanted.is_subset(&ledger.of(uid).cpus()) && !others.flat_map(|pod| &pod.containers).any(on)
}
