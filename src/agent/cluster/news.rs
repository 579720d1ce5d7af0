//! [`Told`]: which Events follow from a new state of the node; and the task that passes them on.
//!
//! An Event is sent for what newly happens: a container got CPUs of its own, or others; it was refused them, by policy, for
//! want of room, or by the kernel; it has to share again; drift of it was put right; a thread variable of its own is kept. What
//! was so when the agent started is no news: a restart sends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ApiPods;
use crate::cluster::events::{News, Recorder};
use crate::cpu::CpuSet;
use crate::pin::decide::Refused;
use crate::pin::snapshot::ContainerState;
use crate::pin::{DriftCause, Enforcement, Snapshot};
use crate::pod::Pod;

/// Tells the recorder what follows from every snapshot, until the agent stops.
pub(super) async fn tell(
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pods: watch::Receiver<ApiPods>,
    recorder: Recorder,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut told = Told::default();
    loop {
        let last = tokio::select! {
            () = stop.cancelled() => true,
            changed = snapshots.changed() => changed.is_err(),
        };
        let snapshot = snapshots.borrow_and_update().clone();
        let pods = pods.borrow().clone();
        if let (Some(snapshot), Some(pods)) = (snapshot, pods) {
            for news in told.note(&snapshot, &pods) {
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

/// What is known to have been so of each container. Plain values: it neither asks nor waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Told {
    /// By the pod's uid at the API server and the container's name.
    containers: BTreeMap<(String, String), Known>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Known {
    cgroup: Option<String>,
    /// What it owns, in force.
    pinned: Option<CpuSet>,
    /// Whether it has ever been seen so.
    was_pinned: bool,
    refused: Option<Refused>,
    kept: Vec<String>,
    repaired: u64,
}

/// One thing to tell of a container.
struct Said {
    warning: bool,
    action: &'static str,
    reason: &'static str,
    says: String,
}

// === impl Told ===

impl Told {
    /// What is news in a snapshot; `pods` are those of the API server, the only ones that Events can be on.
    pub(super) fn note(&mut self, snapshot: &Snapshot, pods: &[Pod]) -> Vec<News> {
        // Who only looks has nothing to tell.
        if snapshot.enforcement == Enforcement::Observe {
            return Vec::new();
        }
        let by_name: BTreeMap<(&str, &str), &Pod> = pods
            .iter()
            .map(|pod| ((pod.namespace.as_str(), pod.name.as_str()), pod))
            .collect();
        // A pod some of whose containers own CPUs is as its owner made it; the others are meant to share.
        let served: BTreeSet<&str> = snapshot
            .containers
            .iter()
            .filter(|container| container.entitlement.cpus() > 0)
            .filter_map(|container| container.uid.as_deref())
            .collect();
        let (mut news, mut there) = (Vec::new(), BTreeSet::new());
        for container in &snapshot.containers {
            let Some(cgroup_uid) = container.uid.as_deref() else {
                continue;
            };
            let Some(pod) = by_name.get(&(container.namespace.as_str(), container.pod.as_str()))
            else {
                continue;
            };
            // The name may be another pod's by now. A static pod's cgroup has another uid than its mirror pod.
            if !pod.names(cgroup_uid) {
                continue;
            }
            let Some(uid) = pod.api_uid.as_ref().map(ToString::to_string) else {
                continue;
            };
            let key = (uid.clone(), container.container.clone());
            there.insert(key.clone());
            // What ends gives its CPUs back, which is no news.
            if pod.finished {
                continue;
            }
            let known = self.containers.entry(key).or_default();
            for said in known.note(container, snapshot, served.contains(cgroup_uid)) {
                news.push(News {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    uid: uid.clone(),
                    warning: said.warning,
                    action: said.action,
                    reason: said.reason,
                    note: format!("Container {} {}", container.container, said.says),
                });
            }
        }
        self.containers.retain(|key, _| there.contains(key));
        news
    }
}

// === impl Known ===

impl Known {
    /// Takes note of a container's state; what is news of it.
    fn note(&mut self, container: &ContainerState, snapshot: &Snapshot, served: bool) -> Vec<Said> {
        let mut news = Vec::new();
        // One without a cgroup has ended, or is still to come.
        let Some(cgroup) = container.cgroup.as_ref() else {
            return news;
        };
        let met = self.cgroup.as_ref() == Some(cgroup);
        // What ran before the agent did is only told when something becomes of it.
        let old = !met && container.at_start.is_some();
        if !met {
            self.cgroup = Some(cgroup.clone());
            (self.pinned, self.was_pinned, self.repaired) = (None, false, 0);
        }
        self.repairs(container, &mut news);
        match pinned(container, snapshot.enforcement) {
            Some(cpus) => {
                let before = self.pinned.replace(cpus.clone());
                let first = !std::mem::replace(&mut self.was_pinned, true);
                let so_at_start = first && container.at_start.as_ref() == Some(cpus);
                if before.as_ref() != Some(cpus) && !so_at_start {
                    news.push(where_to(container, cpus, before.as_ref(), snapshot));
                }
            }
            None if container.entitlement.cpus() == 0 && self.pinned.take().is_some() => {
                news.push(Said {
                    warning: false,
                    action: "Release",
                    reason: "Released",
                    says: format!(
                        "shares CPUs with others from now on: {}",
                        container.entitlement.reason()
                    ),
                });
            }
            // On the way, or drifted and not put right yet: that is told when it is over.
            None => {}
        }
        let refused = container
            .refused
            .filter(|refused| *refused != Refused::Policy || !served);
        if refused.is_some() && refused != self.refused && !old {
            news.extend(refused.map(|refused| refusal(container, refused)));
        }
        self.refused = refused;
        if container.threads.kept != self.kept {
            self.kept.clone_from(&container.threads.kept);
            if !old && !self.kept.is_empty() {
                news.push(Said {
                    warning: false,
                    action: "SizeThreads",
                    reason: "ValueKept",
                    says: format!(
                        "sets {} itself: what is set there stays as it is",
                        self.kept.join(", ")
                    ),
                });
            }
        }
        news
    }

    fn repairs(&mut self, container: &ContainerState, news: &mut Vec<Said>) {
        let Some(repaired) = &container.repaired else {
            return;
        };
        if repaired.count <= self.repaired {
            return;
        }
        self.repaired = repaired.count;
        // Of one that owns nothing, others are protected: that is no news for its own pod.
        let Some(cpus) = container
            .assigned
            .as_ref()
            .filter(|_| container.entitlement.cpus() > 0)
        else {
            return;
        };
        let why = match repaired.cause {
            DriftCause::Written => "somebody wrote other CPUs to its cgroup",
            DriftCause::Ancestor => "a cgroup above its own was narrowed",
            DriftCause::Offline => "some of its CPUs were offline",
            DriftCause::Overlap => "its cgroup was widened",
            DriftCause::Partition => "its partition was undone",
        };
        news.push(Said {
            warning: true,
            action: "Repair",
            reason: "DriftRepaired",
            says: format!(
                "ran on {} instead of {cpus}, since {why}; it was put right",
                repaired.effective.in_words()
            ),
        });
    }
}

/// The CPUs that a container owns, if that is in force by the kernel's word.
fn pinned(container: &ContainerState, enforcement: Enforcement) -> Option<&CpuSet> {
    let cpus = container
        .assigned
        .as_ref()
        .filter(|_| container.entitlement.cpus() > 0)?;
    let live = match enforcement {
        Enforcement::Partition => {
            matches!(container.partition.as_deref(), Some("root" | "isolated"))
        }
        Enforcement::Cpuset => true,
        Enforcement::Observe => false,
    };
    (live && container.effective.as_ref() == Some(cpus)).then_some(cpus)
}

fn where_to(
    container: &ContainerState,
    cpus: &CpuSet,
    before: Option<&CpuSet>,
    snapshot: &Snapshot,
) -> Said {
    let numa = match &container.numa {
        Some(numa) if numa.len() == 1 => format!(", on NUMA node {numa}"),
        Some(numa) if !numa.is_empty() => format!(", on NUMA nodes {numa}"),
        _ => String::new(),
    };
    let moved = before
        .map(|before| format!(", and no longer {before}"))
        .unwrap_or_default();
    let (own, enforcement) = (cpus.in_words(), snapshot.enforcement.name());
    Said {
        warning: false,
        action: "Pin",
        reason: "Pinned",
        says: format!("runs on {own} of its own{numa}{moved} (enforcement {enforcement})"),
    }
}

fn refusal(container: &ContainerState, refused: Refused) -> Said {
    let note = container
        .note
        .as_deref()
        .unwrap_or_else(|| container.entitlement.reason());
    let (reason, says) = match refused {
        Refused::Policy => (
            "NotPinned",
            format!(
                "gets no CPUs of its own: {}",
                container.entitlement.reason()
            ),
        ),
        Refused::Room => ("Refused", note.to_owned()),
        Refused::Kernel => ("PartitionRefused", note.to_owned()),
    };
    Said {
        warning: true,
        action: "Pin",
        reason,
        says,
    }
}

#[cfg(test)]
mod tests;
