//! [`PassScope`]: what a reconcile pass reads, and how a pass yields to runtime requests.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::super::event::Reply;
use super::super::schedule::{Extent, PassOutcome};
use super::event_queue::EventQueue;
use super::{CachedState, Reconciler};
use crate::cpu::CpuSet;
use crate::host::cgroup::is_within;
use crate::pin::{Applied, Ledger, Observed, ObservedContainer, Outcome, Reason, Step};
use crate::pod::Pod;

/// The pods read by a reconcile pass, and the rules for yielding.
#[derive(Debug)]
pub(super) enum PassScope<'a> {
    /// Every pod of the node. With `unless`, the pass yields when a runtime request waits.
    Node {
        requests: Option<&'a mut EventQueue>,
    },
    /// The pod `again`, if any, and the stale pods. All remaining pods come from the cached state. The pass ends with
    /// [`PassOutcome::NeedsNode`] without a cached state, or if running containers would have to move.
    Cached {
        again: Option<&'a str>,
        /// A container that starts in any case, with the receiver of the answer. The answer follows the last step at once.
        passes: Option<(&'a str, &'a mut Option<Reply>)>,
        requests: Option<&'a mut EventQueue>,
    },
}

/// The cgroups written to by a plan's steps.
pub(super) struct Written<'a> {
    /// The written cgroups, and all cgroups above.
    within: HashSet<&'a str>,
    /// The written cgroups whose children may have changed.
    handed_down: HashSet<&'a str>,
}

/// A cgroup and all cgroups above.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(path.rsplit_once('/')?.0))
}

/// Whether a step leaves all exclusive sets as before, and changes only the CPUs of containers without an assignment. `owners`
/// are the pods with an assignment, now or in the desired state.
pub(super) fn is_for_others(step: &Step, owners: &BTreeSet<&str>) -> bool {
    match step {
        Step::Cpus {
            reason: Reason::Narrow | Reason::Share,
            ..
        } => true,
        Step::Cpus {
            reason: Reason::Pod,
            path,
            ..
        } => !owners.contains(path.as_str()),
        Step::Record {
            record: Some(mark), ..
        } => mark.assignment.is_empty(),
        Step::Record { record: None, path } => !owners.iter().any(|owner| is_within(path, owner)),
        _ => false,
    }
}

/// The CPUs of a cgroup after a step, as read back.
fn in_force(done: &Applied) -> Option<(&str, &CpuSet)> {
    match (&done.step, &done.outcome) {
        (Step::Cpus { path, cpus, .. }, Outcome::Done) => Some((path, cpus)),
        (Step::Cpus { path, .. }, Outcome::NotInForce { effective }) => Some((path, effective)),
        _ => None,
    }
}

// === impl PassScope ===

impl PassScope<'_> {
    /// The scope in the terms of the schedule.
    pub(super) fn extent(&self) -> Extent {
        match self {
            Self::Node { .. } => Extent::Node,
            Self::Cached { .. } => Extent::Stale,
        }
    }

    /// Whether the pass should yield to a waiting runtime request.
    pub(super) fn has_request(&mut self) -> bool {
        let (Self::Node { requests } | Self::Cached { requests, .. }) = self;
        requests.as_mut().is_some_and(|inbox| inbox.has_request())
    }
}

// === impl Written ===

impl<'a> Written<'a> {
    pub(super) fn new(steps: impl Iterator<Item = &'a Step> + Clone) -> Self {
        // An `Exclusive` step permits a partition further down, and takes no CPUs from any child.
        let room = |step: &&Step| matches!(step, Step::Exclusive { .. });
        let handed_down = steps
            .clone()
            .filter(|step| !room(step))
            .map(Step::path)
            .collect();
        let mut within = HashSet::new();
        for step in steps {
            // A known path means that all paths above are known, too.
            let _ = upwards(step.path()).all(|path| within.insert(path));
        }
        Self {
            within,
            handed_down,
        }
    }

    /// Whether the pod may have changed: a step wrote to the pod's cgroup, to a cgroup below, or to a cgroup above. `Exclusive`
    /// steps above the pod do not count.
    pub(super) fn touches(&self, pod: &str) -> bool {
        self.within.contains(pod) || upwards(pod).any(|path| self.handed_down.contains(path))
    }
}

// === impl Reconciler ===

impl Reconciler {
    /// Reads the scope's pods. Returns the pass's outcome instead, if the pass yields or needs the whole node.
    pub(super) fn observe(
        &mut self,
        pods: &[Pod],
        scope: &mut PassScope<'_>,
    ) -> anyhow::Result<Result<(Observed, Ledger), PassOutcome>> {
        let found = match scope {
            PassScope::Node { .. } => {
                return Ok(self
                    .node
                    .observe_unless(pods, || scope.has_request())?
                    .ok_or(PassOutcome::Yielded));
            }
            PassScope::Cached { again, .. } => match (self.cached.take(), again) {
                (
                    Some(CachedState {
                        observed, stale, ..
                    }),
                    Some(uid),
                ) => self
                    .node
                    .observe_pod(observed, pods, uid, |uid| stale.contains(uid))
                    .map(Some),
                (
                    Some(CachedState {
                        observed, stale, ..
                    }),
                    None,
                ) => self
                    .node
                    .observe_again(observed, pods, |pod| stale.contains(&pod.uid))
                    .map(Some),
                (None, _) => Ok(None),
            },
        };
        Ok(found?.ok_or(PassOutcome::NeedsNode))
    }

    /// Ends a pass that yields, and keeps the observed state for the runtime request's answer. The written pods become stale.
    /// Until the next read, the CPUs read back after each step count as the containers' effective CPUs.
    pub(super) fn yielded(
        &mut self,
        (mut observed, ledger): (Observed, Ledger),
        done: &[Applied],
    ) -> PassOutcome {
        let written = Written::new(done.iter().map(|done| &done.step));
        let in_force: HashMap<&str, &CpuSet> = done.iter().filter_map(in_force).collect();
        let mut stale = BTreeSet::new();
        for pod in observed
            .pods
            .iter_mut()
            .filter(|pod| written.touches(&pod.cgroup.path))
        {
            for ObservedContainer { cgroup, .. } in &mut pod.containers {
                if let Some(cpus) = in_force.get(cgroup.path.as_str()) {
                    cgroup.cpuset.effective.clone_from(cpus);
                }
            }
            stale.insert(pod.cgroup.uid.clone());
        }
        self.cached = Some(CachedState {
            observed,
            ledger,
            stale,
        });
        PassOutcome::Yielded
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn pods_that_were_written_to_and_those_below_what_was() {
        let cpus = |path: &str| Step::Cpus {
            path: path.to_owned(),
            cpus: CpuSet::new(),
            reason: Reason::Share,
        };
        let room = |path: &str| Step::Exclusive {
            path: path.to_owned(),
            cpus: CpuSet::new(),
            in_force: None,
        };
        let steps = [
            cpus("kubepods/pod1-a"),
            cpus("kubepods/pod1/c"),
            cpus("kubepods/burstable"),
            room("kubepods"),
        ];
        let written = Written::new(steps.iter());
        for touched in [
            "kubepods/pod1",
            "kubepods/pod1-a",
            "kubepods/burstable/pod2",
        ] {
            assert!(written.touches(touched), "{touched}");
        }
        for other in [
            "kubepods/pod",
            "kubepods/pod2",
            "kubepods/besteffort/pod3",
            "kubepods/pod10",
        ] {
            assert!(!written.touches(other), "{other}");
        }
        let steps = [room("kubepods/pod1"), room("kubepods")];
        assert!(Written::new(steps.iter()).touches("kubepods/pod1"));
    }

    #[test]
    fn a_pod_that_owns_nothing_is_one_of_the_others() {
        let owners = BTreeSet::from(["kubepods/pod1"]);
        let step = |path: &str, reason| Step::Cpus {
            path: path.to_owned(),
            cpus: CpuSet::new(),
            reason,
        };
        for (step, expected) in [
            (step("kubepods/pod2", Reason::Pod), true),
            (step("kubepods/pod2/c", Reason::Share), true),
            (step("kubepods/pod1/c", Reason::Narrow), true),
            (step("kubepods/pod1", Reason::Pod), false),
            (step("kubepods/pod1/c", Reason::Own), false),
            (step("kubepods/pod1/c", Reason::Release), false),
            (
                Step::Record {
                    path: "kubepods/pod2/c".to_owned(),
                    record: None,
                },
                true,
            ),
            (
                Step::Record {
                    path: "kubepods/pod10".to_owned(),
                    record: None,
                },
                true,
            ),
            (
                Step::Record {
                    path: "kubepods/pod1/c".to_owned(),
                    record: None,
                },
                false,
            ),
            (
                Step::Record {
                    path: "kubepods/pod1".to_owned(),
                    record: None,
                },
                false,
            ),
        ] {
            assert_eq!(is_for_others(&step, &owners), expected, "{step:?}");
        }
    }
}
