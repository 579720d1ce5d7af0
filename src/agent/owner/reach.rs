//! How far a reconcile looks, how it ends, and how it makes room for a question that comes meanwhile.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::super::event::Reply;
use super::inbox::Inbox;
use super::{Owner, Seen};
use crate::cpu::CpuSet;
use crate::host::cgroup::is_within;
use crate::pin::{Applied, Ledger, Observed, ObservedContainer, Outcome, Reason, Step};
use crate::pod::Pod;

/// What a reconcile looks at.
#[derive(Debug)]
pub(super) enum Reach<'a> {
    /// Every pod of the node; put off as soon as a question waits, where there may be some.
    Node { unless: Option<&'a mut Inbox> },
    /// One pod, or none, and those that were written to and not read again; all others are taken as they were seen last. Put
    /// off where running containers would have to move.
    Seen {
        again: Option<&'a str>,
        /// The container that starts in any case, answered as soon as all is written.
        passes: Option<(&'a str, &'a mut Option<Reply>)>,
        unless: Option<&'a mut Inbox>,
    },
}

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Failed,
    /// Nothing was done: it has to reach further.
    TooShort,
    /// A question came first: what was done up to there is safe as it is, and the rest is still to be done.
    Interrupted,
}

/// The cgroups that were written to.
pub(super) struct Written<'a> {
    /// They and all above them.
    within: HashSet<&'a str>,
    /// Those whose children may be other than before.
    handed_down: HashSet<&'a str>,
}

/// A cgroup and all above it.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(path.rsplit_once('/')?.0))
}

/// Whether a step only changes where those run who own nothing: who owns what is the same before and after. `owners` are the
/// pods that own something, or are to.
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

/// Where a container runs after a step, as it was read back.
fn in_force(done: &Applied) -> Option<(&str, &CpuSet)> {
    match (&done.step, &done.outcome) {
        (Step::Cpus { path, cpus, .. }, Outcome::Done) => Some((path, cpus)),
        (Step::Cpus { path, .. }, Outcome::NotInForce { effective }) => Some((path, effective)),
        _ => None,
    }
}

// === impl Reach ===

impl Reach<'_> {
    /// Whether a question waits that comes before what is left to do.
    pub(super) fn is_asked(&mut self) -> bool {
        let (Self::Node { unless } | Self::Seen { unless, .. }) = self;
        unless.as_mut().is_some_and(|inbox| inbox.is_asked())
    }
}

// === impl Written ===

impl<'a> Written<'a> {
    pub(super) fn new(steps: impl Iterator<Item = &'a Step> + Clone) -> Self {
        // Room for a partition further down takes nothing from anybody by itself.
        let room = |step: &&Step| matches!(step, Step::Exclusive { .. });
        let handed_down = steps
            .clone()
            .filter(|step| !room(step))
            .map(Step::path)
            .collect();
        let mut within = HashSet::new();
        for step in steps {
            // What is above one that is known is known, too.
            let _ = upwards(step.path()).all(|path| within.insert(path));
        }
        Self {
            within,
            handed_down,
        }
    }

    /// Whether a pod may be other than before: something in it was written to, or above it.
    pub(super) fn touches(&self, pod: &str) -> bool {
        self.within.contains(pod) || upwards(pod).any(|path| self.handed_down.contains(path))
    }
}

// === impl Owner ===

impl Owner {
    /// Looks at what is within reach; nothing if that is put off.
    pub(super) fn look(
        &mut self,
        pods: &[Pod],
        reach: &mut Reach<'_>,
    ) -> anyhow::Result<Result<(Observed, Ledger), Ended>> {
        let found = match reach {
            Reach::Node { .. } => {
                return Ok(self
                    .node
                    .observe_unless(pods, || reach.is_asked())?
                    .ok_or(Ended::Interrupted));
            }
            Reach::Seen { again, .. } => match (self.seen.take(), again) {
                (
                    Some(Seen {
                        observed, stale, ..
                    }),
                    Some(uid),
                ) => self
                    .node
                    .observe_pod(observed, pods, uid, |uid| stale.contains(uid))
                    .map(Some),
                (
                    Some(Seen {
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
        Ok(found?.ok_or(Ended::TooShort))
    }

    /// Keeps what was seen for the answer to a question, which comes before the rest of a reconcile. The pods that were written
    /// to are to be read again; until then, where they run is what was read back.
    pub(super) fn interrupted(
        &mut self,
        (mut observed, ledger): (Observed, Ledger),
        done: &[Applied],
    ) -> Ended {
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
        self.seen = Some(Seen {
            observed,
            ledger,
            stale,
        });
        Ended::Interrupted
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
