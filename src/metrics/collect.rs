//! The collectors: one per source, each timed, none able to fail the others.

use std::collections::BTreeMap;
use std::time::Instant;

use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts, Registry};

use super::Sources;
use super::families::{FAMILIES, Family, Kind};
use crate::host::cgroup::CgroupError;
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;

/// The families of one scrape.
pub(super) struct Board {
    registry: Registry,
    counters: BTreeMap<&'static str, CounterVec>,
    gauges: BTreeMap<&'static str, GaugeVec>,
}

// === impl Board ===

impl Board {
    pub(super) fn new(families: &[Family]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let (mut counters, mut gauges) = (BTreeMap::new(), BTreeMap::new());
        for family in families {
            let opts = Opts::new(family.name, family.help);
            match family.kind {
                Kind::Counter => {
                    let vec = CounterVec::new(opts, family.labels)?;
                    registry.register(Box::new(vec.clone()))?;
                    counters.insert(family.name, vec);
                }
                Kind::Gauge => {
                    let vec = GaugeVec::new(opts, family.labels)?;
                    registry.register(Box::new(vec.clone()))?;
                    gauges.insert(family.name, vec);
                }
            }
        }
        Ok(Self { registry, counters, gauges })
    }

    /// Sets one series; a name that is not in the table, or labels that don't fit it, are an error.
    pub(super) fn set(&self, name: &str, labels: &[&str], value: f64) -> prometheus::Result<()> {
        if let Some(vec) = self.gauges.get(name) {
            vec.get_metric_with_label_values(labels)?.set(value);
        } else if let Some(vec) = self.counters.get(name) {
            vec.get_metric_with_label_values(labels)?.inc_by(value.max(0.0));
        } else {
            return Err(prometheus::Error::Msg(format!("family {name} is not in the table")));
        }
        Ok(())
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    fn set_known(&self, name: &str, labels: &[&str], value: Option<f64>) -> prometheus::Result<()> {
        value.map_or(Ok(()), |value| self.set(name, labels, value))
    }
}

/// Runs every collector.
pub(super) fn collect(snapshot: &Snapshot, sources: &Sources) -> prometheus::Result<Vec<MetricFamily>> {
    let board = Board::new(FAMILIES)?;
    let mut processes = BTreeMap::new();
    timed(&board, "state", || state(&board, snapshot))?;
    timed(&board, "cgroup", || cgroup(&board, snapshot, sources, &mut processes))?;
    timed(&board, "threads", || threads(&board, snapshot, sources, &processes))?;
    timed(&board, "foreign", || {
        let mut foreign = sources.foreign.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        foreign.collect(&board, snapshot, &sources.cgroups)
    })?;
    timed(&board, "network", || network(&board, snapshot, sources, &processes))?;
    Ok(board.gather())
}

fn timed(
    board: &Board,
    name: &str,
    collector: impl FnOnce() -> prometheus::Result<bool>,
) -> prometheus::Result<()> {
    let start = Instant::now();
    let success = collector()?;
    board.set("pinfold_collector_success", &[name], if success { 1.0 } else { 0.0 })?;
    board.set("pinfold_collector_duration_seconds", &[name], start.elapsed().as_secs_f64())
}

/// What the snapshot says.
fn state(board: &Board, snapshot: &Snapshot) -> prometheus::Result<bool> {
    for (state, cpus) in [
        ("online", &snapshot.online),
        ("reserved", &snapshot.reserved),
        ("shared", &snapshot.shared),
        ("exclusive", &snapshot.exclusive),
        ("lost", &snapshot.lost),
    ] {
        board.set("pinfold_node_cpus", &[state], cpus.len() as f64)?;
    }
    let enforcement = [snapshot.enforcement.name(), snapshot.enforcement_reason.as_str()];
    board.set("pinfold_enforcement_info", &enforcement, 1.0)?;
    let mut owned: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for container in &snapshot.containers {
        let pod = [container.namespace.as_str(), container.pod.as_str()];
        let uid = container.uid.as_deref().unwrap_or_default();
        let (role, qos) = (container.role.to_string(), container.qos.to_string());
        let host = if container.host_network { "true" } else { "false" };
        board.set("pinfold_pod_info", &[pod[0], pod[1], uid, &role, &qos, host], 1.0)?;
        let cpus = if container.entitlement.cpus() > 0 { container.assigned.as_ref() } else { None };
        *owned.entry((pod[0], pod[1])).or_default() += cpus.map_or(0, |cpus| cpus.len());
        if container.cgroup.is_none() {
            continue;
        }
        let labels = labels(container);
        let assigned = cpus.map_or(0, |cpus| cpus.len());
        board.set("pinfold_container_cpus_assigned", &labels, assigned as f64)?;
        if let Some(effective) = &container.effective {
            board.set("pinfold_container_cpus_allowed", &labels, effective.len() as f64)?;
            let policy = if assigned > 0 { "exclusive" } else { "shared" };
            let list = effective.to_string();
            let labels = [labels[0], labels[1], labels[2], &list, policy];
            board.set("pinfold_container_cpuset_info", &labels, 1.0)?;
        }
        let expected = container.threads.expected_threads.map(|threads| threads as f64);
        board.set_known("pinfold_container_threads_expected", &labels, expected)?;
    }
    for ((namespace, pod), cpus) in owned {
        board.set("pinfold_pod_owned_cpus", &[namespace, pod], cpus as f64)?;
    }
    Ok(true)
}

/// What the CPU controller counts, and which processes there are.
fn cgroup<'a>(
    board: &Board,
    snapshot: &'a Snapshot,
    sources: &Sources,
    processes: &mut BTreeMap<&'a str, Vec<i32>>,
) -> prometheus::Result<bool> {
    let mut success = true;
    for (container, path) in present(snapshot) {
        let labels = labels(container);
        match sources.cgroups.cpu_stat(path) {
            Ok(stat) => {
                let count = |value: Option<u64>| value.map(|value| value as f64);
                board.set_known("pinfold_container_cpu_usage_seconds_total", &labels, stat.usage_seconds)?;
                board.set_known("pinfold_container_cpu_periods_total", &labels, count(stat.periods))?;
                let throttled = count(stat.throttled_periods);
                board.set_known("pinfold_container_cpu_throttled_periods_total", &labels, throttled)?;
                board.set_known(
                    "pinfold_container_cpu_throttled_seconds_total",
                    &labels,
                    stat.throttled_seconds,
                )?;
            }
            Err(error) => success &= error.is_gone(),
        }
        match sources.cgroups.processes(path) {
            Ok(pids) => {
                processes.insert(path, pids);
            }
            Err(error) => success &= CgroupError::is_gone(&error),
        }
    }
    Ok(success)
}

/// Threads and their context switches.
fn threads(
    board: &Board,
    snapshot: &Snapshot,
    sources: &Sources,
    processes: &BTreeMap<&str, Vec<i32>>,
) -> prometheus::Result<bool> {
    // A scrape that died halfway leaves nothing that the next one could trip over.
    let mut switches = sources.switches.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (container, path) in present(snapshot) {
        let Some(pids) = processes.get(path) else { continue };
        let threads: Vec<_> = pids.iter().flat_map(|pid| sources.proc.threads(*pid)).collect();
        let total = switches.add(path, &threads);
        let labels = labels(container);
        board.set("pinfold_container_threads", &labels, threads.len() as f64)?;
        for (kind, count) in [("voluntary", total.voluntary), ("involuntary", total.involuntary)] {
            let labels = [labels[0], labels[1], labels[2], kind];
            board.set("pinfold_container_context_switches_total", &labels, count as f64)?;
        }
    }
    switches.sweep();
    Ok(true)
}

/// What the pods' own interfaces count.
fn network(
    board: &Board,
    snapshot: &Snapshot,
    sources: &Sources,
    processes: &BTreeMap<&str, Vec<i32>>,
) -> prometheus::Result<bool> {
    let own = i32::try_from(std::process::id()).ok().and_then(|pid| sources.proc.network_namespace(pid));
    let mut pods: BTreeMap<(&str, &str), (bool, Option<i32>)> = BTreeMap::new();
    for (container, path) in present(snapshot) {
        let pod = pods.entry((&container.namespace, &container.pod)).or_default();
        pod.0 |= container.host_network;
        pod.1 = pod.1.or_else(|| processes.get(path).and_then(|pids| pids.first().copied()));
    }
    for ((namespace, pod), (host_network, pid)) in pods {
        let Some(pid) = pid else { continue };
        let theirs = sources.proc.network_namespace(pid);
        // The node's own counters repeated for each such pod would be a wrong number, so there is none.
        let scope = match (&own, &theirs) {
            _ if host_network => "host",
            (Some(own), Some(theirs)) if own == theirs => "host",
            (_, Some(_)) => "pod",
            _ => "unknown",
        };
        board.set("pinfold_pod_network_scope", &[namespace, pod, scope], 1.0)?;
        if scope != "pod" {
            continue;
        }
        for (interface, traffic) in sources.proc.traffic(pid).unwrap_or_default() {
            let labels = [namespace, pod, interface.as_str()];
            let set = |name, value: u64| board.set(name, &labels, value as f64);
            set("pinfold_pod_network_receive_bytes_total", traffic.receive_bytes)?;
            set("pinfold_pod_network_receive_packets_total", traffic.receive_packets)?;
            set("pinfold_pod_network_transmit_bytes_total", traffic.transmit_bytes)?;
            set("pinfold_pod_network_transmit_packets_total", traffic.transmit_packets)?;
        }
    }
    Ok(true)
}

/// The containers that have a cgroup.
fn present(snapshot: &Snapshot) -> impl Iterator<Item = (&ContainerState, &str)> {
    snapshot.containers.iter().filter_map(|container| Some((container, container.cgroup.as_deref()?)))
}

fn labels(container: &ContainerState) -> [&str; 3] {
    [&container.namespace, &container.pod, &container.container]
}
