//! What the world keeps of a turn's results: drift, errors, and the kernel's refusals.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::World;
use crate::agent::isolation_gate::IsolatedPartitionGate;
use crate::host::cgroup::ContainerCgroup;
use crate::pin::decide::{Decisions, IN_SHARED_POOL, RefusalSource};
use crate::pin::{AppliedStep, Drift, Observed, Reason, Step, StepOutcome};
use crate::pod::RecognizedPod;

// === impl World ===

impl World {
    /// Logs and counts new drift.
    pub(in crate::agent) fn note_drift(&mut self, drift: &[Drift]) {
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

    /// Counts and logs the applied steps. Returns errors as sentences, except the kernel's refusals of partitions.
    pub(in crate::agent) fn account(&mut self, applied: &[AppliedStep]) -> Vec<String> {
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
                // The turn publishes the refusal, and the next timer tick permits a new attempt.
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

    /// Accounts for the notes of sets from before CPUs went offline. What could not be written, the
    /// next turn tries again.
    pub(in crate::agent) fn account_notes(&mut self, applied: &[AppliedStep]) -> Vec<String> {
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

    /// Adds the kernel's refusals to the decisions about `pods`.
    pub(in crate::agent) fn note_refusals(
        &self,
        pods: &[Arc<RecognizedPod>],
        observed: &Observed,
        decisions: &mut Decisions,
    ) {
        let obstacle = self.lost_cpus.obstacle();
        let obstacle = obstacle.filter(|_| decisions.desired.starts_no_partition);
        for decision in &mut decisions.containers {
            let pod = pods.get(decision.pod);
            let Some((pod, uid)) = pod.and_then(|pod| Some((pod, pod.cgroup_uid()?))) else {
                continue;
            };
            let container = pod.containers.get(decision.container);
            let cgroup = container
                .filter(|_| !self.refused.is_empty() || obstacle.is_some())
                .and_then(|container| observed.container(uid, &container.name))
                .map(|observed| &observed.cgroup);
            let held_back = |cgroup: &ContainerCgroup| {
                let is_owner = decision.cpus.is_some() && decision.entitlement.cpus() > 0;
                let waits = is_owner && !cgroup.cpuset.partition.is_live();
                obstacle.filter(|_| waits)
            };
            let refusal = cgroup.and_then(|cgroup| {
                let refused = self.refused.get(&cgroup.path).map(String::as_str);
                Some((cgroup, refused.or_else(|| held_back(cgroup))?))
            });
            let stays_root = decision.cpus.is_some() && self.isolation.stays_root(uid);
            let stays_root = stays_root.then(|| IsolatedPartitionGate::STAYS_ROOT.to_owned());
            let Some((cgroup, says)) = refusal else {
                decision.note = stays_root.or(decision.note.take());
                continue;
            };
            // The runtime may have written the container's CPU set. The container then runs only on
            // its own CPUs, but others may use them, too.
            let effective = &cgroup.cpuset.effective;
            let cpus = decision.cpus.as_ref();
            let is_confined =
                !effective.is_empty() && cpus.is_some_and(|cpus| effective.is_subset(cpus));
            decision.note = stays_root.or_else(|| {
                Some(if is_confined {
                    format!("other tasks may run on its CPUs: {says}")
                } else {
                    format!("{IN_SHARED_POOL}{says}")
                })
            });
            decision.refused = Some(RefusalSource::Kernel);
        }
    }

    /// Forgets cgroups without a record that no longer exist.
    pub(in crate::agent) fn forget_ended_unrecorded(&mut self) {
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

    /// Forgets the log lines about errors that have ended.
    pub(in crate::agent) fn forget_log_lines(&mut self, errors: &[String], now: Instant) {
        let refused = &self.refused;
        self.log.forget(now, |line: &str| {
            let is_line = |error: &String| error == line;
            errors.iter().any(is_line) || refused.values().any(is_line)
        });
    }
}
