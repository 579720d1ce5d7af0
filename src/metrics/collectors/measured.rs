//! The types that the collectors share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Instant;

use super::super::page::Labels;
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupCounters, Cgroups};
use crate::host::proc::Proc;
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;

/// The result of a collector's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CollectOutcome {
    Complete,
    /// A read failed, or the time was up.
    Partial,
    /// The machine lacks a feature that the collector needs.
    Unsupported(Unsupported),
    /// The number of containers without series, by reason. The reasons are identifiers.
    LeftOut {
        /// Whether the remaining containers were read completely.
        complete: bool,
        reasons: BTreeMap<&'static str, usize>,
    },
}

/// A missing feature of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unsupported {
    /// The value of the label `reason`: a short identifier.
    pub(super) reason: &'static str,
    /// The cause and the remedy as a sentence, for the log.
    pub(super) detail: String,
}

/// Access to the node's counters.
#[derive(Debug)]
pub(in crate::metrics) struct Host {
    pub(super) cgroups: Cgroups,
    pub(super) proc: Proc,
    /// The folder that holds `proc` and `sys`: `/`, or a test's folder.
    pub(super) root: PathBuf,
}

/// The time at which a collector must return.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(pub(super) Instant);

/// A container with a cgroup, and the values that collectors pass on to later collectors.
#[derive(Debug)]
pub(super) struct MeasuredContainer<'a> {
    pub(super) state: &'a ContainerState,
    pub(super) cgroup: &'a str,
    /// The cgroup's number in [`CgroupNumbers`].
    pub(super) number: usize,
    pub(super) labels: Labels,
    /// The process ids; `None` if the list could not be read.
    pub(super) processes: Option<Vec<i32>>,
    /// The number of threads by the `pids` controller, if the container has it.
    pub(super) pids_current: Option<usize>,
    /// CPU seconds, from the collector `cgroup`.
    pub(super) cpu_seconds: Option<f64>,
    /// Threads and their run delay, from the collector `threads`.
    pub(super) thread_count: Option<ThreadCount>,
}

/// The threads of a container in a scrape.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadCount {
    pub(super) threads: usize,
    /// Run delay in nanoseconds, if the kernel counts it.
    pub(super) run_delay: Option<u64>,
}

// === impl CollectOutcome ===

impl CollectOutcome {
    pub(super) fn from_complete(complete: bool) -> Self {
        if complete {
            Self::Complete
        } else {
            Self::Partial
        }
    }

    pub(super) fn unsupported(reason: &'static str, detail: impl Into<String>) -> Self {
        Self::Unsupported(Unsupported {
            reason,
            detail: detail.into(),
        })
    }

    /// Whether the collector read less than it should.
    pub(super) fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Partial
                | Self::LeftOut {
                    complete: false,
                    ..
                }
        )
    }
}

// === impl Deadline ===

impl Deadline {
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

// === impl MeasuredContainer ===

impl MeasuredContainer<'_> {
    /// The owned CPUs that are effective, without offline CPUs; `None` in the shared pool. Also `None` if the container may
    /// run on further CPUs: the kernel then does not enforce the assignment, and other tasks may run on the owned CPUs.
    pub(super) fn enforced_cpus(&self) -> Option<CpuSet> {
        let effective = self.state.effective.as_ref()?;
        self.state
            .own()
            .filter(|own| effective.is_subset(own))
            .map(|_| effective.clone())
    }

    /// Reads the process ids, unless an earlier collector has. Returns false after an error.
    pub(super) fn list_processes(&mut self, cgroup: &mut CgroupCounters<'_>) -> bool {
        if self.processes.is_some() {
            return true;
        }
        self.pids_current = cgroup.threads().ok().flatten();
        match cgroup.processes(self.pids_current) {
            Ok(processes) => self.processes = Some(processes),
            Err(error) if error.is_gone() => self.processes = Some(Vec::new()),
            Err(_) => return false,
        }
        true
    }
}

/// Whether the pods of a namespace have series.
pub(super) fn is_measured(namespaces: &BTreeSet<String>, namespace: &str) -> bool {
    namespaces.is_empty() || namespaces.contains(namespace)
}

/// The containers that have a cgroup. During the replacement of a pod, two containers may have the
/// same name, and then the running one counts.
pub(super) fn measured_containers<'a>(
    snapshot: &'a Snapshot,
    namespaces: &BTreeSet<String>,
) -> Vec<MeasuredContainer<'a>> {
    let mut containers: Vec<MeasuredContainer<'a>> = Vec::with_capacity(snapshot.containers.len());
    let mut index_by_name = HashMap::with_capacity(snapshot.containers.len());
    let measured = |state: &&ContainerState| is_measured(namespaces, &state.namespace);
    for state in snapshot.containers.iter().filter(measured) {
        let Some(cgroup) = state.cgroup.as_deref() else {
            continue;
        };
        let container = MeasuredContainer {
            state,
            cgroup,
            number: 0,
            labels: container_labels(state),
            processes: None,
            pids_current: None,
            cpu_seconds: None,
            thread_count: None,
        };
        let name = (&state.namespace, &state.pod, &state.container);
        let same_name = index_by_name
            .get(&name)
            .and_then(|index: &usize| containers.get_mut(*index));
        match same_name {
            Some(earlier) if earlier.state.running => {}
            Some(earlier) => *earlier = container,
            None => {
                index_by_name.insert(name, containers.len());
                containers.push(container);
            }
        }
    }
    containers
}

/// The pods by namespace and name, each with its cgroup's path. Of two pods with the same name, the
/// running one counts.
pub(super) fn pods<'a>(
    containers: &[MeasuredContainer<'a>],
) -> BTreeMap<(&'a str, &'a str), (&'a str, &'a ContainerState)> {
    let mut pods: BTreeMap<_, (&str, &ContainerState)> = BTreeMap::new();
    for container in containers {
        let Some((path, _)) = container.cgroup.rsplit_once('/') else {
            continue;
        };
        let state = container.state;
        let name = (state.namespace.as_str(), state.pod.as_str());
        let pod = pods.entry(name).or_insert((path, state));
        if state.running && !pod.1.running {
            *pod = (path, state);
        }
    }
    pods
}

pub(super) fn pod_labels(state: &ContainerState) -> Labels {
    Labels::new(&[("namespace", &state.namespace), ("pod", &state.pod)])
}

fn container_labels(state: &ContainerState) -> Labels {
    Labels::new(&[
        ("namespace", &state.namespace),
        ("pod", &state.pod),
        ("container", &state.container),
    ])
}
