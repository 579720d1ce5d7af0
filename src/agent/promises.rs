//! [`Promises`]: pods that a runtime spoke of, and CPUs that it was told of before their container's cgroup was seen.

use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::pin::{Ledger, Observed};
use crate::pod::Pod;

/// How long CPUs that a runtime was told of wait for their container's cgroup.
const PROMISE: Duration = Duration::from_secs(120);

/// CPUs promised to a container whose cgroup has not been seen.
#[derive(Debug)]
struct Promise {
    uid: String,
    container: String,
    cpus: CpuSet,
    until: Instant,
}

/// What runtimes were told, as long as it counts.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// Pods that a runtime spoke of, until the promise made to them is void.
    announced: Vec<(Pod, Instant)>,
    promises: Vec<Promise>,
}

// === impl Promises ===

impl Promises {
    /// Takes note of a pod that a runtime speaks of.
    pub(super) fn announce(&mut self, pod: Pod) {
        self.announced
            .retain(|(other, _)| other.cgroup_uid() != pod.cgroup_uid());
        self.announced.push((pod, Instant::now() + PROMISE));
    }

    /// The pods that runtimes spoke of.
    pub(super) fn announced(&mut self) -> impl Iterator<Item = &Pod> {
        let now = Instant::now();
        self.announced.retain(|(_, until)| *until > now);
        self.announced.iter().map(|(pod, _)| pod)
    }

    /// Their uids.
    pub(super) fn uids(&self) -> impl Iterator<Item = &str> {
        self.announced
            .iter()
            .filter_map(|(pod, _)| pod.cgroup_uid())
    }

    /// The uids of pods that were promised CPUs.
    pub(super) fn promised(&self) -> impl Iterator<Item = &str> {
        self.promises.iter().map(|promise| promise.uid.as_str())
    }

    /// Promises a container its CPUs.
    pub(super) fn add(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.promises
            .retain(|promise| promise.uid != uid || promise.container != container);
        let (uid, container) = (uid.to_owned(), container.to_owned());
        self.promises.push(Promise {
            uid,
            container,
            cpus,
            until: Instant::now() + PROMISE,
        });
    }

    /// Takes note of what a runtime has of a pod: what was promised to anybody else in it is void.
    pub(super) fn has(&mut self, uid: &str, containers: &[&str]) {
        self.announced
            .retain(|(pod, _)| pod.cgroup_uid() != Some(uid));
        self.promises.retain(|promise| {
            promise.uid != uid || containers.contains(&promise.container.as_str())
        });
    }

    /// Adds promised CPUs to the ledger; a promise ends when its container's cgroup carries the claim.
    pub(super) fn keep(&mut self, ledger: &mut Ledger, observed: &Observed) {
        let now = Instant::now();
        self.promises.retain(|promise| {
            let marked = observed.pods.iter().any(|pod| {
                pod.cgroup.uid == promise.uid
                    && pod.record.as_ref().is_some_and(|mark| {
                        mark.assignment.containers.contains_key(&promise.container)
                    })
            });
            promise.until > now && !marked
        });
        self.enter(ledger);
    }

    /// Adds promised CPUs to the ledger.
    pub(super) fn enter(&self, ledger: &mut Ledger) {
        for promise in &self.promises {
            ledger.add_if_missing(&promise.uid, &promise.container, &promise.cpus);
        }
    }
}
