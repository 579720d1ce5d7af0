//! What a start takes before the program begins, where its own pod is all there is to see to.

use std::time::Instant;

use super::{Owner, Seen, Why};
use crate::pin::decide::Refused;
use crate::pin::{
    self, Applied, Desired, Enforcement, Ledger, Observed, ObservedContainer, Scan, Step,
};
use crate::pod::Pod;

// === impl Owner ===

impl Owner {
    /// Pins a container that is to start: reads its pod, writes to it and above it, reads it again. All others are as they were
    /// seen last, and are not written to, so this takes the same time on a full node as on an empty one. What is published
    /// follows with the next look.
    ///
    /// `None` where that won't do: nothing is known, the pod can't be read or explained, CPUs that it is owed are lacking, others
    /// would have to leave its CPUs first, or somebody has changed its cgroups, which is to be counted.
    pub(super) fn started_at_once(&mut self, uid: &str, container: &str) -> Option<()> {
        let start = Instant::now();
        let mut seen = self.seen.take()?;
        self.heartbeat.begin(format!(
            "pin container {container} of pod {uid} before it starts"
        ));
        let done = self.pinned_alone(uid, &mut seen);
        if done.is_some() {
            self.history.begins(uid, container);
            self.metrics
                .reconciles
                .with_label_values(&[Why::Gate.name()])
                .inc();
            self.metrics
                .reconcile_seconds
                .observe(start.elapsed().as_secs_f64());
        }
        self.seen = Some(seen);
        self.heartbeat.idle();
        done
    }

    /// Carries out steps and notes each in the heartbeat.
    pub(super) fn apply(&self, steps: Vec<Step>) -> Vec<Applied> {
        pin::apply_while(steps, &self.node.cgroups, |next| {
            self.heartbeat.begin(next.to_string());
            true
        })
    }

    fn pinned_alone(&mut self, uid: &str, seen: &mut Seen) -> Option<()> {
        if self.node.enforcement == Enforcement::Observe {
            return Some(());
        }
        let pods = [self.told.pod(uid)?];
        self.read_again(uid, &pods, seen)?;
        for above in &mut seen.observed.surroundings.above {
            above.cpuset = self.node.cgroups.cpuset(&above.path).ok()?;
        }
        let ledger = self.with_promises(seen);
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
        let online = (&self.node.topology.online, &self.fresh);
        if !pin::drift(&before, &ledger, online, self.node.enforcement).is_empty() {
            return None;
        }
        let steps = pin::plan(&before, &ledger, &decisions.desired, self.node.enforcement);
        if steps.is_empty() {
            return Some(());
        }
        let applied = self.apply(steps);
        // What went wrong is tried again by the look that follows, and told then.
        self.account(&applied);
        self.read_again(uid, &pods, seen)?;
        if let Some(after) = seen.observed.only(uid) {
            self.history
                .note_windows(&before, &after, &self.node, &self.metrics);
        }
        Some(())
    }

    /// Reads a pod that was seen before, or looks for one that was not.
    pub(super) fn read_again(&self, uid: &str, pods: &[Pod], seen: &mut Seen) -> Option<()> {
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

/// Whether a pod gets no more than it was given before, and nobody else was seen to run there.
fn is_alone(uid: &str, ledger: &Ledger, desired: &Desired, seen: &Seen) -> bool {
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
