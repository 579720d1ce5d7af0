//! What the agent itself knows: who owns which CPUs, and what the kernel says to it.

use std::collections::BTreeMap;

use super::super::families::{
    CONTAINER_CPUS_ALLOWED, CONTAINER_CPUS_ASSIGNED, CONTAINER_CPUSET_INFO,
    CONTAINER_THREADS_EXPECTED, ENFORCEMENT_INFO, NODE_CPUS, POD_INFO, POD_OWNED_CPUS,
};
use super::super::page::{Labels, Page};
use super::{Outcome, Scrape, of_pod};
use crate::cpu::CpuSet;
use crate::pin::snapshot::ContainerState;

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
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
    let (enforcement, reason) = (
        snapshot.enforcement.name(),
        snapshot.enforcement_reason.as_str(),
    );
    page.add_info(
        &ENFORCEMENT_INFO,
        &[("enforcement", enforcement), ("reason", reason)],
    );
    pods(page, scrape);
    containers(page, scrape);
    Outcome::Complete
}

fn pods(page: &mut Page, scrape: &Scrape<'_>) {
    let mut pods = BTreeMap::new();
    // The containers of a pod mostly follow each other.
    let is_same = |one: &ContainerState, other: &ContainerState| {
        one.pod == other.pod && one.namespace == other.namespace
    };
    for containers in scrape.snapshot.containers.chunk_by(is_same) {
        let owned: usize = containers
            .iter()
            .filter_map(ContainerState::own)
            .map(CpuSet::len)
            .sum();
        let Some(first) = containers.first() else {
            continue;
        };
        pods.entry((&first.namespace, &first.pod))
            .or_insert((first, 0))
            .1 += owned;
    }
    let (mut info, mut owned) = (page.lines(&POD_INFO), page.lines(&POD_OWNED_CPUS));
    for (container, cpus) in pods.into_values() {
        let labels = of_pod(container);
        let (role, qos) = (container.role.to_string(), container.qos.to_string());
        let index = container
            .index
            .map_or_else(String::new, |index| index.to_string());
        let more = [
            ("uid", container.uid.as_deref().unwrap_or_default()),
            // Not `job`, which Prometheus takes for what it scrapes.
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
        info.put_with(&labels, &more, true);
        owned.put(&labels, cpus);
    }
    page.add(info);
    page.add(owned);
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
    for subject in &scrape.subjects {
        let own = subject.state.own();
        assigned.put(&subject.labels, own.map_or(0, |cpus| cpus.len()));
        if let Some(effective) = &subject.state.effective {
            allowed.put(&subject.labels, effective.len());
        }
        // The shared CPUs are no label: each assignment changes them, and so would the series of every shared container.
        if let Some(exclusive) = subject.in_force().filter(|cpus| !cpus.is_empty()) {
            info.put_with(&subject.labels, &[("cpus", &exclusive.to_string())], true);
        }
        let threads = subject.state.threads.expected_threads;
        expected.put_known(&subject.labels, threads.map(|threads| threads as f64));
    }
    [assigned, allowed, info, expected]
        .into_iter()
        .for_each(|lines| page.add(lines));
}
