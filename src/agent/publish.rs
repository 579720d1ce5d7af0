//! What follows a turn: the history of containers, CPU isolation and the published snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::agent_node::threads;
use super::history::own_in_force;
use super::reconciler::Reconciler;
use super::turn::TurnResult;
use super::unguarded::Starts;
use super::world::LiveValues;
use crate::cpu::{CpuSet, NumberList};
use crate::pin::cpu_isolation::{
    CpuIsolationOptions, IsolationInput, IsolationReport, KnobFailure,
};
use crate::pin::snapshot::{self, ContainerState};
use crate::pin::{Enforcement, Observed, PlacementSource, Snapshot};
use crate::pod::RecognizedPod;

// === impl Reconciler ===

impl Reconciler {
    pub(super) fn note_history(&mut self, result: &TurnResult) {
        let node = &self.node;
        if self.world.is_first {
            let start = result.before.as_ref().unwrap_or(self.world.observed());
            self.history.begin(start, node.enforcement);
        }
        if let Some(before) = &result.before {
            self.history.note_unpinned_time(
                before,
                self.world.observed(),
                node,
                &self.world.metrics,
            );
            self.history.note_repairs(&result.drift, &self.world.drift);
        }
    }

    /// Publishes the result of a turn about all pods.
    ///
    /// # Errors
    /// A pods' tree can't be read.
    pub(super) fn publish(&mut self, result: &TurnResult) -> anyhow::Result<()> {
        let mut errors = self.errors(result)?;
        self.isolate_cpus();
        self.history.forget(self.world.observed());
        let containers = self.container_states(result, self.world.observed());
        self.write_live_others(&containers);
        errors.extend(self.world.live.failures());
        errors.extend(self.unguarded_problems(result, &containers));
        let (observed, decisions) = (self.world.observed(), &result.decisions);
        let store = self.world.pods();
        let undescribed = (self.undescribed).problems(store, (observed, decisions), Instant::now());
        errors.extend(undescribed);
        let node = &self.node;
        let desired = &result.decisions.desired;
        let exclusive = desired.exclusive().intersection(&node.topology.online);
        // The kubelet does not know Pinfold's reserve.
        let of_kubelet = match node.placement_source {
            PlacementSource::Kubelet => exclusive.clone(),
            PlacementSource::Pinfold => CpuSet::new(),
        };
        // Whoever sees the new snapshot must also see that the agent is ready.
        self.world.heartbeat.succeeded();
        self.published.send_replace(Some(Arc::new(Snapshot {
            enforcement: node.enforcement,
            enforcement_cause: node.enforcement_cause,
            enforcement_reason: node.enforcement_reason.clone(),
            placement_source: node.placement_source,
            online: node.topology.online.clone(),
            reserved: self.world.reserved(&node.reserved).difference(&of_kubelet),
            shared: desired.shared(),
            exclusive,
            withheld: desired.withheld.clone(),
            held_by_others: self.world.ledger().held_by_others.clone(),
            lost: self.world.lost_cpus.lost().clone(),
            layout: Arc::clone(&self.node.layout),
            cpu_isolation: self.cpu_isolation.clone(),
            containers,
            unknown_owners: snapshot::unknown_owners(self.world.observed(), self.world.ledger()),
            drift: self.world.drift.clone(),
            unexplained: self.world.ledger().unexplained.clone(),
            errors,
            pods_listed: self.world.pods().lists().have_come(),
        })));
        Ok(())
    }

    /// Writes the live files that follow from a turn's result, and removes those of pods that are gone.
    fn write_live_others(&mut self, containers: &[ContainerState]) {
        let node = &self.node;
        for container in containers {
            let Some(uid) = container.uid.as_deref() else {
                continue;
            };
            let memory_nodes = container.memory.as_ref().unwrap_or(&node.memory_nodes);
            let values = LiveValues {
                memory_nodes: memory_nodes.clone(),
                threads: container.threads.threads,
                ranks: container.ranks.as_ref().map(|ranks| ranks.cpus.clone()),
                ..LiveValues::default()
            };
            let of = (uid, container.container.as_str());
            self.world.write_live_others(node, of, &values);
        }
        self.world.sweep_live_files(node);
    }

    /// The problems of containers that started while no agent answered the runtime. Without NRI every container starts that way,
    /// which is a problem of its own.
    fn unguarded_problems(
        &mut self,
        result: &TurnResult,
        states: &[ContainerState],
    ) -> Vec<String> {
        let node = &self.node;
        if node.enforcement == Enforcement::Observe || !node.config.runtime.wanted() {
            return Vec::new();
        }
        self.unguarded.problems(&Starts {
            before: result.before.as_ref(),
            observed: self.world.observed(),
            states,
            history: &self.history,
            enforcement: node.enforcement,
            metrics: &self.world.metrics,
            unrecorded: &self.world.unrecorded,
            is_own: &|path| node.cgroups.has_process(path, std::process::id()),
        })
    }

    /// Counts a failed turn, and publishes its error with the last known state.
    pub(super) fn publish_failure(&mut self, error: &anyhow::Error) {
        let line = format!("a turn of the reconciler failed: {error:#}");
        if self.world.log.admits(&line, Instant::now()) {
            tracing::error!("{line}");
        }
        self.world.metrics.reconcile_failures.inc();
        let failures = self.world.heartbeat.failed(format!("{error:#}"));
        let last = self.published.borrow().clone();
        if let Some(last) = last {
            let in_a_row = match failures {
                0 | 1 => String::new(),
                failures => format!(" ({failures} turns failed in a row)"),
            };
            let errors = vec![format!(
                "the last turn of the reconciler failed, and this state is older{in_a_row}: {error:#}"
            )];
            self.published.send_replace(Some(Arc::new(Snapshot {
                errors,
                ..(*last).clone()
            })));
        }
    }

    /// The state of each container that the turn has decided about, according to `observed`.
    pub(super) fn container_states(
        &self,
        result: &TurnResult,
        observed: &Observed,
    ) -> Vec<ContainerState> {
        let node = &self.node;
        let shared = result.decisions.desired.shared();
        let environment = |pod: &RecognizedPod, index: usize, cpus: Option<&CpuSet>| {
            threads(node, pod, index, cpus, &shared)
        };
        let mut containers = snapshot::containers(
            &result.pods,
            &node.topology,
            &result.decisions,
            observed,
            environment,
        );
        for container in &mut containers {
            self.history.complete(container);
            let pods = self.world.pods();
            let (uid, name) = (container.uid.as_deref(), &container.container);
            let injected = pods.injected(uid, name);
            // Until its start, the runtime has only described the container as it was before the agent's answer.
            let is_created = uid.is_some_and(|uid| self.history.is_waiting(uid, name));
            container.injected = injected
                .filter(|names| !(is_created && names.is_empty()))
                .cloned();
            if container.note.is_none() {
                container.note = self.remark(container, observed, &shared);
            }
        }
        containers
    }

    /// What nobody who reads the container's state could guess: why it runs on fewer CPUs than the
    /// shared ones, or that nothing keeps its CPUs free.
    fn remark(
        &self,
        container: &ContainerState,
        observed: &Observed,
        shared: &CpuSet,
    ) -> Option<String> {
        let enforcement = self.node.enforcement;
        let Some(own) = container.own() else {
            if enforcement == Enforcement::Observe || container.assigned.is_some() {
                return None;
            }
            let uid = container.uid.as_deref()?;
            let pod = observed.pods.iter().find(|pod| pod.cgroup.uid == uid)?;
            let set = pod.container(&container.container)?.set_of_others()?;
            // On cgroup v1 every cgroup has a set, mostly that of the pod.
            let offered = pod.cgroup.cpuset.effective.intersection(shared);
            return (!offered.is_subset(set)).then(|| {
                format!(
                    "limited to {} by a CPU set that another program wrote, so Pinfold leaves it alone",
                    set.in_words()
                )
            });
        };
        let waits = container.created && container.cgroup.is_none();
        (waits && enforcement == Enforcement::Partition).then(|| {
            format!(
                "does not run; it keeps {} for its next start, and until then other containers may run there",
                own.in_words()
            )
        })
    }

    /// The errors of the sources of pods, of the configuration and of the turn, as sentences.
    fn errors(&self, result: &TurnResult) -> anyhow::Result<Vec<String>> {
        let node = &self.node;
        let mut errors: Vec<String> = self.world.pods().errors().cloned().collect();
        errors.extend(node.suspended().map(str::to_owned));
        errors.extend(node.offline_reserved());
        let online = &node.topology.online;
        errors.extend(
            self.world
                .ledger()
                .on_withheld_cpus(self.world.observed(), online),
        );
        if self.world.reserved(&node.reserved).is_disjoint(online) {
            errors.push(
                "no reserved CPU is online and free: every CPU is owned, or the configured reserved CPUs are offline. \
                 The last shared CPU is not assigned; end a pod that owns CPUs, or name other CPUs with --reserved"
                    .to_owned(),
            );
        }
        for tree in &node.config.pod_cgroups {
            if !node.cgroups.has_cpusets_below(tree)? {
                errors.push(format!(
                    "{tree} does not enable the cpuset controller for child cgroups: the pods have no CPU sets"
                ));
            }
        }
        let interval = node.config.reconcile_interval;
        errors.extend(self.unwatched.values().map(|problem| {
            format!("{problem}; until then, Pinfold looks for changes only every {interval:?}")
        }));
        errors.extend(result.errors.iter().cloned());
        let refused = self.world.refused.iter();
        errors.extend(refused.map(|(path, says)| format!("{path}: {says}")));
        Ok(errors)
    }

    /// Moves the kernel's own work off the exclusive CPUs, after an answer to StartContainer.
    pub(super) fn isolate_after_start(&mut self) {
        self.isolate_cpus();
        self.world.heartbeat.idle();
        // Worker threads of work queues may end now, which an isolated partition waits for.
        self.schedule.follow_up_at(self.follow_up());
    }

    /// Moves the kernel's own work off the exclusive CPUs in force.
    fn isolate_cpus(&mut self) {
        self.world
            .heartbeat
            .begin("move interrupts, workqueues and slices off exclusive CPUs");
        let node = &self.node;
        let options = match node.enforcement {
            Enforcement::Observe => CpuIsolationOptions::default(),
            Enforcement::Cpuset => node.config.cpu_isolation,
            // Partitions already keep systemd's slices off.
            Enforcement::Partition => CpuIsolationOptions {
                system_slices: false,
                ..node.config.cpu_isolation
            },
        };
        let mut exclusive = CpuSet::new();
        for container in self.world.mirror.observed().containers() {
            exclusive = exclusive.union(&own_in_force(container, node.enforcement));
        }
        let gate = &mut self.world.isolation;
        let isolated = if gate.any() {
            // If the file can't be read, all online CPUs count as isolated, so that work queues
            // stay off.
            node.cgroups
                .isolated_cpus()
                .unwrap_or_else(|_| node.topology.online.clone())
        } else {
            CpuSet::new()
        };
        let input = IsolationInput {
            options,
            exclusive: &exclusive,
            isolated: gate.keep_off(self.world.mirror.observed(), &isolated),
            online: &node.topology.online,
        };
        // The record of CPU isolation lies on the root cgroup, because it outlives every pods'
        // tree.
        let report = self.isolator.isolate(&input, &node.cgroups, "");
        let allowed = report
            .workqueues
            .as_ref()
            .map(|(allowed, turned)| (allowed, *turned));
        gate.note_allowed(allowed, Instant::now());
        for moved in &report.moved {
            tracing::debug!("moved off exclusive CPUs: {moved}");
        }
        let before = self.cpu_isolation.as_ref().map(isolation_problems);
        let before = before.unwrap_or_default();
        let problems = isolation_problems(&report);
        for problem in problems.iter().filter(|new| !before.contains(new)) {
            tracing::warn!("{problem}");
        }
        self.cpu_isolation =
            (options.any() || report.away > 0 || !report.failed.is_empty()).then_some(report);
    }
}

/// The problems of CPU isolation, each as a sentence, mostly with a remedy.
pub fn isolation_problems(report: &IsolationReport) -> Vec<String> {
    let managed = &report.managed;
    let mut problems = Vec::new();
    if !managed.is_empty() {
        let irqs: BTreeSet<u32> = managed.iter().map(|irq| irq.irq).collect();
        let names: BTreeSet<&str> = managed.iter().map(|irq| irq.name.as_str()).collect();
        let cpus: CpuSet = managed.iter().flat_map(|irq| irq.cpus.iter()).collect();
        let plural = if managed.len() == 1 { "" } else { "s" };
        problems.push(format!(
            "on exclusive {}: kernel-managed IRQ{plural} {} ({}), which no program can move; to free the CPUs, \
             reduce the number of queues (a parameter of the driver), or boot with isolcpus=managed_irq",
            cpus.in_words(),
            NumberList(&irqs),
            names.into_iter().collect::<Vec<_>>().join(", "),
        ));
    }
    for KnobFailure { reason, what } in &report.failed {
        let what = if what.is_empty() {
            String::new()
        } else {
            format!(" ({})", what.join(", "))
        };
        problems.push(format!("CPU isolation is incomplete: {reason}{what}"));
    }
    if let Some(cpus) = &report.irqbalance {
        problems.push(format!(
            "irqbalance runs and may move interrupts back to exclusive CPUs between two turns: set \
             IRQBALANCE_BANNED_CPULIST={cpus} in its environment (/etc/default/irqbalance or \
             /etc/sysconfig/irqbalance) and restart irqbalance, or stop irqbalance"
        ));
    }
    problems
}
