//! The collector `state`: the assignments, and the CPUs that the kernel reports.

use std::collections::BTreeMap;

use super::super::families::{
    CONTAINER_CPUS_ALLOWED, CONTAINER_CPUS_ASSIGNED, CONTAINER_CPUSET_INFO,
    CONTAINER_THREADS_EXPECTED, ENFORCEMENT_INFO, MACHINE_INFO, NODE_CPUS, POD_INFO,
    POD_NOT_PINNED, POD_OWNED_CPUS,
};
use super::super::page::{Labels, Page};
use super::measured::{CollectOutcome, is_measured, pod_labels};
use super::scrape::{Collector, Scrape};
use crate::cpu::CpuSet;
use crate::host::machine::Machine;
use crate::pin::snapshot::ContainerState;

#[derive(Debug)]
pub(super) struct StateCollector(pub(super) Machine);

impl Collector for StateCollector {
    fn name(&self) -> &'static str {
        "state"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        node(page, scrape);
        self.machine(page);
        pods(page, scrape);
        containers(page, scrape);
        CollectOutcome::Complete
    }
}

// === impl StateCollector ===

impl StateCollector {
    fn machine(&self, page: &mut Page) {
        let emulated = if self.0.is_emulated { "true" } else { "false" };
        let labels = [
            ("cpu_model", self.0.cpu_model.as_str()),
            ("emulated", emulated),
        ];
        page.add_info(&MACHINE_INFO, &labels);
    }
}

fn node(page: &mut Page, scrape: &Scrape<'_>) {
    let snapshot = scrape.snapshot;
    let mut cpus = page.lines(&NODE_CPUS);
    for (state, set) in [
        ("online", &snapshot.online),
        ("reserved", &snapshot.reserved),
        ("shared", &snapshot.shared),
        ("exclusive", &snapshot.exclusive),
        ("lost", &snapshot.lost),
    ] {
        cpus.put_with(&Labels::default(), &[("state", state)], set.len());
    }
    page.add(cpus);
    page.add_info(
        &ENFORCEMENT_INFO,
        &[
            ("enforcement", snapshot.enforcement.name()),
            ("reason", snapshot.enforcement_cause.name()),
            ("source", snapshot.placement_source.name()),
        ],
    );
}

fn pods(page: &mut Page, scrape: &Scrape<'_>) {
    let mut pods = BTreeMap::new();
    // The containers of a pod mostly follow each other.
    let same_pod = |one: &ContainerState, other: &ContainerState| {
        one.pod == other.pod && one.namespace == other.namespace
    };
    for containers in scrape.snapshot.containers.chunk_by(same_pod) {
        let Some(first) = containers.first() else {
            continue;
        };
        // A pod has its series while it is on the node: a report takes their first and last time for the time of a run, and a
        // finished Job may stay in the API for days.
        let is_here = !first.finished && containers.iter().any(|container| container.created);
        if !is_here || !is_measured(scrape.namespaces, &first.namespace) {
            continue;
        }
        let owned: usize = containers
            .iter()
            .filter_map(ContainerState::own)
            .map(CpuSet::len)
            .sum();
        let pod = pods
            .entry((&first.namespace, &first.pod))
            .or_insert((first, 0, None));
        pod.1 += owned;
        pod.2 = pod.2.or_else(|| scrape.snapshot.not_pinned(containers));
    }
    let (mut info, mut owned) = (page.lines(&POD_INFO), page.lines(&POD_OWNED_CPUS));
    let mut not_pinned = page.lines(&POD_NOT_PINNED);
    for (container, cpus, reason) in pods.into_values() {
        let labels = pod_labels(container);
        let (role, qos) = (container.role.to_string(), container.qos.to_string());
        let index = container
            .index
            .map_or_else(String::new, |index| index.to_string());
        let more_labels = [
            ("uid", container.object_uid()),
            // Prometheus reserves the label `job` for its scrape job.
            ("training_job", container.job.as_deref().unwrap_or_default()),
            ("role", &role),
            ("replica_index", &index),
            ("qos", &qos),
            (
                "host_network",
                if container.host_network {
                    "true"
                } else {
                    "false"
                },
            ),
        ];
        info.put_with(&labels, &more_labels, true);
        if let Some(reason) = reason {
            not_pinned.put_with(&labels, &[("reason", reason)], true);
        }
        owned.put(&labels, cpus);
    }
    [info, not_pinned, owned]
        .into_iter()
        .for_each(|lines| page.add(lines));
}

fn containers(page: &mut Page, scrape: &Scrape<'_>) {
    let (mut assigned, mut allowed) = (
        page.lines(&CONTAINER_CPUS_ASSIGNED),
        page.lines(&CONTAINER_CPUS_ALLOWED),
    );
    let (mut info, mut expected) = (
        page.lines(&CONTAINER_CPUSET_INFO),
        page.lines(&CONTAINER_THREADS_EXPECTED),
    );
    for container in &scrape.containers {
        let own = container.state.own();
        assigned.put(&container.labels, own.map_or(0, |cpus| cpus.len()));
        if let Some(effective) = &container.state.effective {
            allowed.put(&container.labels, effective.len());
        }
        // The shared CPUs are no label, because each assignment changes them, which would end the
        // series of all shared containers.
        if let Some(exclusive) = container.enforced_cpus().filter(|cpus| !cpus.is_empty()) {
            info.put_with(&container.labels, &[("cpus", &exclusive.to_string())], true);
        }
        let threads = container.state.threads.expected_threads;
        expected.put_known(&container.labels, threads.map(|threads| threads as f64));
    }
    [assigned, allowed, info, expected]
        .into_iter()
        .for_each(|lines| page.add(lines));
}
