//! Decisions from what the world holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::World;
use crate::agent::agent_node;
use crate::agent::kernel::Kernel;
use crate::cpu::{CpuSet, Topology};
use crate::host::cgroup::ContainerCgroup;
use crate::pin::decide::{DecisionContext, DecisionInput, Decisions, decide};
use crate::pin::{self, Drift, DriftInput, Enforcement, Ledger, Observed};
use crate::pod::RecognizedPod;

/// The moves within this time are limited.
const HOUR: Duration = Duration::from_secs(3600);

// === impl World ===

impl World {
    /// The CPUs that no container may own.
    pub(in crate::agent) fn reserved<'a>(&'a self, configured: &'a CpuSet) -> &'a CpuSet {
        if configured.is_empty() {
            &self.default_reserved
        } else {
            configured
        }
    }

    /// Chooses the default reserved CPUs at the start, and again when pods can use none of them. It
    /// never chooses assigned, excluded or withheld CPUs, because the reserved CPUs are the part of
    /// the pods' CPUs that stays shared.
    pub(in crate::agent) fn choose_reserved(&mut self, context: &DecisionContext<'_>) {
        if context.reserved.is_empty() {
            agent_node::choose_reserved(&mut self.default_reserved, context.topology, &self.ledger);
        }
    }

    /// How many running containers may be moved now, of `per_hour`. None while CPUs are lost, because a move can end a
    /// partition that could not be made again.
    pub(in crate::agent) fn moves_left(
        &mut self,
        enforcement: Enforcement,
        per_hour: usize,
    ) -> usize {
        if enforcement == Enforcement::Observe || self.lost_cpus.obstacle().is_some() {
            return 0;
        }
        self.moved.retain(|moved| moved.elapsed() < HOUR);
        per_hour.saturating_sub(self.moved.len())
    }

    /// Decides about `pods`, with the cgroups in `observed`. At most `moves` running containers are moved to make room.
    pub(in crate::agent) fn decide(
        &self,
        context: DecisionContext<'_>,
        (pods, observed): (&[Arc<RecognizedPod>], &Observed),
        moves: usize,
    ) -> Decisions {
        self.decide_with(context, (pods, observed), moves, &self.ledger)
    }

    /// As `decide`, with another ledger than the present one.
    pub(in crate::agent) fn decide_with(
        &self,
        context: DecisionContext<'_>,
        (pods, observed): (&[Arc<RecognizedPod>], &Observed),
        moves: usize,
        ledger: &Ledger,
    ) -> Decisions {
        let has_delay = !context.policy.shrink_delay.is_zero()
            && context.kubelet.is_none()
            && context.enforcement != Enforcement::Observe;
        let shrinks = has_delay.then(|| self.announced_shrinks());
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
            shrinks: shrinks.as_ref(),
        };
        let mut decisions = decide(&input, ledger);
        if context.kubelet.is_some() {
            decisions.keep_apart_from_mates(pods, observed);
        } else if context.enforcement == Enforcement::Observe {
            decisions.keep_ledger_assignments(pods, ledger);
        } else {
            decisions.keep_init_containers_off_others(pods, observed);
        }
        // Refused partitions wait for the timer.
        decisions.desired.held_back = self.refused.keys().cloned().collect();
        decisions.desired.starts_no_partition =
            context.enforcement == Enforcement::Partition && self.lost_cpus.obstacle().is_some();
        decisions
    }

    /// Marks the pods whose partitions must wait before they become isolated. `only` is the pod of
    /// a turn that decides about a single one. Without enforcement `partition`, no pod is isolated.
    pub(in crate::agent) fn gate_isolated_partitions(
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
        // Workqueues that use such CPUs would have to leave them first. On most machines they have never used them.
        if !desired.isolated_at_boot.is_empty()
            && let Some(used) = kernel.workqueue_cpus()
        {
            desired.used_by_workqueues = desired.isolated_at_boot.intersection(&used);
        }
    }

    /// The part of a decision about a new container that the runtime may write to the container's cgroup: all of `cpus`, or
    /// nothing.
    ///
    /// Linux 6.12 makes a partition invalid if the `cpuset.cpus` of another container of the pod
    /// meets it. So where they meet, the CPUs are written only at StartContainer, after the
    /// partitions have given them up.
    pub fn cpus_for_runtime(&self, uid: &str, container: &str, cpus: &CpuSet) -> Option<CpuSet> {
        let pod = self.mirror.pod(uid);
        let held = pod.map(|pod| pod.partitions_of_others(container));
        let is_free = held.is_none_or(|held| held.is_disjoint(cpus));
        is_free.then(|| cpus.clone())
    }

    /// Whether no container of another pod runs on the pod's CPUs. A pod that must be read again
    /// may.
    pub(in crate::agent) fn is_alone(&self, uid: &str) -> bool {
        let wanted = self.ledger.of(uid).cpus();
        let is_on = |cgroup: &ContainerCgroup| {
            cgroup.populated && !cgroup.cpuset.effective.is_disjoint(&wanted)
        };
        self.mirror.pods().all(|(pod, is_clean)| {
            let mut containers = pod.containers.iter().map(|container| &container.cgroup);
            pod.cgroup.uid == uid || is_clean && !containers.any(is_on)
        })
    }

    /// Compares the mirror with the ledger.
    pub(in crate::agent) fn find_drift(
        &self,
        topology: &Topology,
        enforcement: Enforcement,
    ) -> Vec<Drift> {
        self.find_drift_in(self.mirror.observed(), topology, enforcement)
    }

    /// Compares a part of the mirror with the ledger.
    pub(in crate::agent) fn find_drift_in(
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
}
