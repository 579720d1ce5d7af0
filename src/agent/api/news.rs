//! [`ReportedStates`]: the Events that follow from a new snapshot, and the task that passes them
//! on.
//!
//! An Event reports a change of a container's exclusive CPUs: assigned, moved, released, or refused
//! by policy, by the kernel or for a lack of CPUs. Further Events report repaired drift, another
//! number of threads that would be right, and a thread variable that the user set. What was so before the agent's start causes no Event, so a
//! restart sends none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::context::ApiPods;
use crate::cluster::events::{EventDetails, Recorder};
use crate::cpu::CpuSet;
use crate::pin::decide::RefusalSource;
use crate::pin::snapshot::ContainerState;
use crate::pin::{DriftCause, Enforcement, Snapshot};
use crate::pod::Pod;
use crate::text::counted;

/// Sends the Events of every snapshot to the recorder, until the agent stops.
pub(super) async fn tell(
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pods: watch::Receiver<ApiPods>,
    recorder: Recorder,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut reported = ReportedStates::default();
    loop {
        let last = tokio::select! {
            () = stop.cancelled() => true,
            changed = snapshots.changed() => changed.is_err(),
        };
        let snapshot = snapshots.borrow_and_update().clone();
        if let Some(snapshot) = snapshot {
            let news = {
                let pods = pods.borrow();
                let known = pods.is_complete().then(|| reported.note(&snapshot, &pods));
                known.unwrap_or_default()
            };
            for news in news {
                tracing::debug!(
                    "Event on {}/{}: {} {}",
                    news.namespace,
                    news.pod,
                    news.reason,
                    news.note
                );
                recorder.tell(news);
            }
        }
        if last {
            return Ok(());
        }
    }
}

/// What was reported of each container. The type does no I/O and reads no clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReportedStates {
    /// By the pod's uid at the API server and the container's name.
    containers: BTreeMap<(String, String), ReportedContainer>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct ReportedContainer {
    cgroup: Option<String>,
    /// The exclusive CPUs, if effective.
    pinned: Option<CpuSet>,
    /// Whether the container was ever pinned in the cgroup.
    was_pinned: bool,
    refused: Option<RefusalSource>,
    /// The intra-op threads of each process that were right; `None` if unknown.
    threads: Option<usize>,
    /// The exclusive CPUs for which they were right; `None` for shared CPUs.
    sized_for: Option<CpuSet>,
    kept: Vec<String>,
    bindings: Vec<String>,
    repaired: u64,
}

struct EventContent {
    warning: bool,
    action: &'static str,
    reason: &'static str,
    note: String,
}

// === impl ReportedStates ===

impl ReportedStates {
    /// The Events that follow from a snapshot. `pods` are the API server's pods: an Event needs an API object.
    pub(super) fn note(&mut self, snapshot: &Snapshot, pods: &ApiPods) -> Vec<EventDetails> {
        // An agent that only observes sends no Events.
        if snapshot.enforcement == Enforcement::Observe {
            return Vec::new();
        }
        let by_name: BTreeMap<(&str, &str), &Arc<Pod>> = pods
            .pods()
            .map(|pod| ((pod.namespace.as_str(), pod.name.as_str()), pod))
            .collect();
        // In a pod with exclusive CPUs, policy means to refuse them to the other containers, so
        // this causes no Event.
        let entitled: BTreeSet<&str> = snapshot
            .containers
            .iter()
            .filter(|container| container.entitlement.cpus() > 0)
            .filter_map(|container| container.uid.as_deref())
            .collect();
        let (mut news, mut current) = (Vec::new(), BTreeSet::new());
        for container in &snapshot.containers {
            let Some(cgroup_uid) = container.uid.as_deref() else {
                continue;
            };
            let Some(pod) = by_name.get(&(container.namespace.as_str(), container.pod.as_str()))
            else {
                continue;
            };
            // Another pod may have the name by now. A static pod's cgroup and its mirror pod have different uids.
            if !pod.names(cgroup_uid) {
                continue;
            }
            let Some(uid) = pod.api_uid.as_ref().map(ToString::to_string) else {
                continue;
            };
            let key = (uid.clone(), container.container.clone());
            current.insert(key.clone());
            // A finished pod gives its CPUs back, which causes no Event.
            if pod.finished {
                continue;
            }
            let known = self.containers.entry(key).or_default();
            for content in known.note(container, snapshot, entitled.contains(cgroup_uid)) {
                news.push(EventDetails {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    uid: uid.clone(),
                    warning: content.warning,
                    action: content.action,
                    reason: content.reason,
                    note: format!("Container {} {}", container.container, content.note),
                });
            }
        }
        self.containers.retain(|key, _| current.contains(key));
        news
    }
}

// === impl ReportedContainer ===

impl ReportedContainer {
    /// Notes a container's state, and returns what new Events about it say.
    fn note(
        &mut self,
        container: &ContainerState,
        snapshot: &Snapshot,
        entitled: bool,
    ) -> Vec<EventContent> {
        let mut news = Vec::new();
        // A container without a cgroup has ended, or has not begun.
        let Some(cgroup) = container.cgroup.as_ref() else {
            return news;
        };
        let same_cgroup = self.cgroup.as_ref() == Some(cgroup);
        // A container from before the agent's start causes an Event only when it changes.
        let old = !same_cgroup && container.at_start.is_some();
        if !same_cgroup {
            self.cgroup = Some(cgroup.clone());
            (self.pinned, self.was_pinned, self.repaired) = (None, false, 0);
            self.threads = None;
        }
        self.repairs(container, &mut news);
        match pinned(container, snapshot.enforcement) {
            Some(cpus) => {
                let before = self.pinned.replace(cpus.clone());
                let first = !std::mem::replace(&mut self.was_pinned, true);
                let unchanged_since_start = first && container.at_start.as_ref() == Some(cpus);
                if before.as_ref() != Some(cpus) && !unchanged_since_start {
                    news.push(assignment(container, cpus, before.as_ref(), snapshot));
                }
            }
            None if container.entitlement.cpus() == 0 && self.pinned.take().is_some() => {
                news.push(EventContent {
                    warning: false,
                    action: "Release",
                    reason: "Released",
                    note: format!(
                        "runs on shared CPUs from now on: {}",
                        container.entitlement.reason()
                    ),
                });
            }
            // The assignment is not effective yet, or drift is not repaired yet. The Event follows
            // when it is.
            None => {}
        }
        let refused = container
            .refused
            .filter(|refused| *refused != RefusalSource::Policy || !entitled);
        if refused.is_some() && refused != self.refused && !old {
            news.extend(refused.map(|refused| refusal(container, refused)));
        }
        self.refused = refused;
        // Without exclusive CPUs, the numbers of the machine mostly work.
        if container.bindings != self.bindings && self.was_pinned {
            self.bindings.clone_from(&container.bindings);
            if !old {
                news.extend(container.bindings.iter().map(|advice| EventContent {
                    warning: true,
                    action: "Pin",
                    reason: "MachineCpuNumbers",
                    note: format!("may not start or run as intended: {advice}"),
                }));
            }
        }
        news.extend(self.thread_count(container));
        if container.threads.kept != self.kept {
            self.kept.clone_from(&container.threads.kept);
            if !old && !self.kept.is_empty() {
                news.push(EventContent {
                    warning: false,
                    action: "SizeThreads",
                    reason: "ValueKept",
                    note: format!(
                        "sets {} itself, and Pinfold keeps the container's value",
                        self.kept.join(", ")
                    ),
                });
            }
        }
        news
    }

    /// The news that another number of threads is right than so far. Mostly the container's CPUs have changed or will.
    fn thread_count(&mut self, container: &ContainerState) -> Option<EventContent> {
        let now = container.threads.threads?;
        let cpus = container.upcoming.as_ref().or(container.own());
        let cpus = cpus.filter(|cpus| !cpus.is_empty());
        let sized_for = std::mem::replace(&mut self.sized_for, cpus.cloned());
        let before = self.threads.replace(now)?;
        if now == before || !self.was_pinned {
            return None;
        }
        let because = match (cpus, &container.upcoming) {
            (cpus, _) if cpus == sized_for.as_ref() => {
                "its CPU limit or its pod's labels or annotations have changed".to_owned()
            }
            (Some(left), Some(_)) => format!("it will keep only {}", left.in_words()),
            (Some(own), None) => format!("it has {}", own.in_words()),
            (None, Some(_)) => "it will run on shared CPUs".to_owned(),
            (None, None) => "it runs on shared CPUs".to_owned(),
        };
        Some(EventContent {
            warning: false,
            action: "SizeThreads",
            reason: "ThreadCountChanged",
            note: format!(
                "should now use {} in each process instead of {before}, because {because}; its environment keeps the number from \
                 its start, and a program that can follow finds the present one in /run/pinfold/threads if its container has live files",
                counted(now, "intra-op thread")
            ),
        })
    }

    fn repairs(&mut self, container: &ContainerState, news: &mut Vec<EventContent>) {
        let Some(repaired) = &container.repaired else {
            return;
        };
        if repaired.count <= self.repaired {
            return;
        }
        self.repaired = repaired.count;
        // Without exclusive CPUs, the repair protected other containers, so this container's pod
        // gets no Event.
        let Some(cpus) = container
            .assigned
            .as_ref()
            .filter(|_| container.entitlement.cpus() > 0)
        else {
            return;
        };
        let cause = match repaired.cause {
            DriftCause::Written => "another program wrote other CPUs to its cgroup",
            DriftCause::Ancestor => "a cgroup above its cgroup lost CPUs",
            DriftCause::Offline => "some of its CPUs were offline",
            DriftCause::Overlap => "its cgroup got more CPUs",
            DriftCause::Runtime => "the container runtime wrote the CPUs of an ended assignment",
            DriftCause::Partition => "its partition ended or became invalid",
        };
        news.push(EventContent {
            warning: true,
            action: "Repair",
            reason: "DriftRepaired",
            note: if repaired.effective == *cpus {
                format!(
                    "did not have {} for itself alone, because {cause}; Pinfold made them exclusive again",
                    cpus.in_words()
                )
            } else {
                format!(
                    "ran on {} instead of {cpus}, because {cause}; Pinfold restored the CPUs",
                    repaired.effective.in_words()
                )
            },
        });
    }
}

/// The container's exclusive CPUs, if the kernel reports them as effective.
fn pinned(container: &ContainerState, enforcement: Enforcement) -> Option<&CpuSet> {
    let cpus = container
        .assigned
        .as_ref()
        .filter(|_| container.entitlement.cpus() > 0)?;
    let in_force = match enforcement {
        Enforcement::Partition => {
            matches!(container.partition.as_deref(), Some("root" | "isolated"))
        }
        Enforcement::Cpuset => true,
        Enforcement::Observe => false,
    };
    (in_force && container.effective.as_ref() == Some(cpus)).then_some(cpus)
}

fn assignment(
    container: &ContainerState,
    cpus: &CpuSet,
    before: Option<&CpuSet>,
    snapshot: &Snapshot,
) -> EventContent {
    let numa = match &container.numa {
        Some(numa) if numa.len() == 1 => format!(" on NUMA node {numa}"),
        Some(numa) if !numa.is_empty() => format!(" on NUMA nodes {numa}"),
        _ => String::new(),
    };
    let moved = before
        .map(|before| format!(", and no longer on {before}"))
        .unwrap_or_default();
    let (cpus, enforcement) = (cpus.in_words(), snapshot.enforcement.name());
    EventContent {
        warning: false,
        action: "Pin",
        reason: "Pinned",
        note: format!("runs on exclusive {cpus}{numa}{moved} (enforcement {enforcement})"),
    }
}

fn refusal(container: &ContainerState, refused: RefusalSource) -> EventContent {
    let note = container
        .note
        .as_deref()
        .unwrap_or_else(|| container.entitlement.reason());
    let (reason, note) = match refused {
        RefusalSource::Policy => (
            "NotPinned",
            format!("gets no exclusive CPUs: {}", container.entitlement.reason()),
        ),
        RefusalSource::Room => ("Refused", note.to_owned()),
        RefusalSource::Kernel => ("PartitionRefused", note.to_owned()),
    };
    EventContent {
        warning: true,
        action: "Pin",
        reason,
        note,
    }
}

#[cfg(test)]
mod tests;
