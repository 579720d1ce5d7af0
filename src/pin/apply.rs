//! Carrying out steps and reading back what is in force. What to do is decided in [`super::steps`], never here.

use super::model::{Reason, Step};
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupError, Cgroups, Kind, is_within};

/// A step and its result.
#[derive(Debug)]
pub struct Applied {
    /// The step.
    pub step: Step,
    /// The result of the step.
    pub outcome: Outcome,
}

/// The result of a step.
#[derive(Debug)]
pub enum Outcome {
    /// The kernel confirms the step.
    Done,
    /// Written without an error, but other CPUs are in force.
    NotInForce {
        /// The CPUs in force.
        effective: CpuSet,
    },
    /// The cgroup went away meanwhile: nothing is left to do.
    Gone,
    /// The kernel refused.
    Failed(CgroupError),
    /// Written without an error, but the kernel makes it no partition; it is a member now.
    Invalid {
        /// The kernel's words.
        says: String,
    },
    /// The kernel refused, since others are in the way.
    InTheWay {
        /// What it said.
        error: CgroupError,
        /// The cgroups in the way.
        others: Vec<String>,
    },
    /// Not tried: the cgroup, or a cgroup above, could not get the CPUs.
    Without {
        /// That cgroup.
        path: String,
    },
    /// Not tried: the cgroup's mark could not be written.
    Unmarked,
    /// Not tried: a container that was to give up these CPUs still has them.
    Blocked {
        /// The CPUs.
        cpus: CpuSet,
    },
}

// === impl Outcome ===

impl Outcome {
    /// Its name as a label value.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Gone => "gone",
            Self::Unmarked => "unmarked",
            Self::NotInForce { .. } => "not_in_force",
            Self::Failed(_) | Self::InTheWay { .. } => "failed",
            Self::Invalid { .. } => "invalid",
            Self::Without { .. } | Self::Blocked { .. } => "blocked",
        }
    }
}

// === impl Applied ===

impl Applied {
    /// What went wrong, in a sentence that begins with the step.
    pub fn error(&self) -> Option<String> {
        let said = match &self.outcome {
            Outcome::Done | Outcome::Gone => return None,
            Outcome::Unmarked => "not done, since the cgroup's mark can't be written".to_owned(),
            Outcome::NotInForce { effective } => format!("written, but {effective} is in force"),
            Outcome::Failed(error) => chain(error),
            Outcome::Invalid { says } => format!("the kernel says {says:?}"),
            Outcome::InTheWay { error, others } => format!(
                "{}; in the way: {}, by what is written to cpuset.cpus or cpuset.cpus.exclusive there",
                chain(error),
                others.join(", ")
            ),
            Outcome::Without { path } => {
                format!("not done, since {path} could not be given the CPUs")
            }
            Outcome::Blocked { cpus } => {
                format!(
                    "not done, since {} could not be taken from another",
                    cpus.in_words()
                )
            }
        };
        Some(format!("{}: {said}", self.step))
    }
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Carries out steps in their order.
///
/// A failure doesn't stop the others, with three exceptions: nobody is given CPUs that another could not be moved off or
/// that a cgroup above could not be given, and nothing is written to a cgroup whose mark could not be, since what was
/// there before would be forgotten.
pub fn apply(steps: Vec<Step>, cgroups: &Cgroups) -> Vec<Applied> {
    apply_while(steps, cgroups, |_| true)
}

/// As [`apply`], as long as `go_on` says so before each step. What was done up to there is as safe as a plan that ended with
/// the agent.
pub fn apply_while(
    steps: Vec<Step>,
    cgroups: &Cgroups,
    mut go_on: impl FnMut(&Step) -> bool,
) -> Vec<Applied> {
    let mut held = Exclusions::default();
    let mut done = Vec::with_capacity(steps.len());
    for step in steps {
        if !go_on(&step) {
            break;
        }
        let outcome = one(&step, cgroups, &mut held);
        done.push(Applied { step, outcome });
    }
    done
}

/// What later steps must keep off.
#[derive(Default)]
struct Exclusions {
    /// CPUs that a container failed to give up.
    cpus: CpuSet,
    /// Cgroups whose mark could not be written.
    unmarked: Vec<String>,
    /// Cgroups that could not be given exclusive CPUs.
    refused: Vec<String>,
}

fn one(step: &Step, cgroups: &Cgroups, held: &mut Exclusions) -> Outcome {
    let within = |cgroup: &&String| is_within(step.path(), cgroup);
    if !matches!(step, Step::Record { .. }) && held.unmarked.iter().any(|cgroup| within(&cgroup)) {
        return Outcome::Unmarked;
    }
    if let Some(path) = held.refused.iter().find(within).filter(|_| gives(step)) {
        return Outcome::Without { path: path.clone() };
    }
    let result = match step {
        Step::Make { path } => cgroups.create(path),
        Step::Remove { path } => cgroups.remove(path),
        Step::Record { path, record: mark } => cgroups.set_mark(
            path,
            mark.as_ref().map(super::AssignmentRecord::text).as_deref(),
        ),
        Step::Memory { path, numa } => cgroups.set_memory(path, numa),
        Step::Quota { path, quota } => cgroups.set_quota(path, *quota),
        Step::Exclusive { path, cpus, .. } => cgroups.set_exclusive(path, cpus),
        Step::Partition { path, kind, .. } => cgroups.set_partition(path, *kind),
        Step::Cpus { path, cpus, reason } => {
            let taken = cpus.intersection(&held.cpus);
            if *reason == Reason::Own && !taken.is_empty() {
                return Outcome::Blocked { cpus: taken };
            }
            cgroups.set_cpus(path, cpus)
        }
    };
    let outcome = match result {
        Ok(()) => read_back(step, cgroups),
        Err(error) if error.is_gone() => Outcome::Gone,
        Err(error) => refusal(step, error, cgroups),
    };
    note(step, &outcome, cgroups, held);
    outcome
}

/// Whether a step gives exclusive CPUs, which wants all cgroups above to have them.
fn gives(step: &Step) -> bool {
    match step {
        Step::Exclusive { cpus, .. } => !cpus.is_empty(),
        Step::Partition { kind, .. } => *kind != Kind::Member,
        _ => false,
    }
}

/// Remembers what later steps must keep off.
fn note(step: &Step, outcome: &Outcome, cgroups: &Cgroups, held: &mut Exclusions) {
    match (step, outcome) {
        (
            Step::Record {
                path,
                record: Some(_),
            },
            Outcome::Failed(_),
        ) => held.unmarked.push(path.clone()),
        (
            Step::Exclusive { path, .. },
            Outcome::Failed(_) | Outcome::InTheWay { .. } | Outcome::Invalid { .. },
        ) => {
            held.refused.push(path.clone());
        }
        (
            Step::Cpus {
                path,
                cpus,
                reason: Reason::Narrow,
            },
            Outcome::NotInForce { .. } | Outcome::Failed(_),
        ) => {
            if let Ok(now) = cgroups.cpuset(path) {
                held.cpus = held.cpus.union(&now.effective.difference(cpus));
            }
        }
        _ => {}
    }
}

/// Says who is in the way, where the kernel only says no.
fn refusal(step: &Step, error: CgroupError, cgroups: &Cgroups) -> Outcome {
    if let Step::Exclusive { path, cpus, .. } = step {
        let others = cgroups.in_the_way(path, cpus);
        if !others.is_empty() {
            return Outcome::InTheWay { error, others };
        }
    }
    Outcome::Failed(error)
}

fn read_back(step: &Step, cgroups: &Cgroups) -> Outcome {
    let now = match step {
        Step::Cpus { path, .. }
        | Step::Exclusive {
            path,
            in_force: Some(_),
            ..
        }
        | Step::Partition {
            path,
            in_force: Some(_),
            ..
        } => cgroups.cpuset(path),
        _ => return Outcome::Done,
    };
    let now = match now {
        Ok(now) => now,
        Err(error) if error.is_gone() => return Outcome::Gone,
        Err(error) => return Outcome::Failed(error),
    };
    let done = match step {
        // A member's effective CPUs lack the CPUs of partitions, so only the written set is compared. The same holds
        // for a pod's cgroup while its containers are partitions.
        Step::Cpus {
            cpus,
            reason: Reason::Apart | Reason::Share | Reason::Release | Reason::Pod,
            ..
        } => now.cpus == *cpus,
        // The written CPUs of a partition take force once the partition ends.
        Step::Cpus { cpus, .. } if now.partition.is_live() => now.cpus == *cpus,
        Step::Cpus { cpus, .. } => now.effective == *cpus,
        Step::Exclusive {
            path,
            in_force: Some(cpus),
            ..
        }
        | Step::Partition {
            path,
            in_force: Some(cpus),
            ..
        } => {
            if !now.partition.is_live() {
                // Left invalid, Linux 6.12 can lose its CPUs until the next boot.
                return match cgroups.set_partition(path, Kind::Member) {
                    Err(error) if !error.is_gone() => Outcome::Failed(error),
                    _ => Outcome::Invalid {
                        says: now.partition.to_string(),
                    },
                };
            }
            now.effective == *cpus
        }
        _ => true,
    };
    if done {
        Outcome::Done
    } else {
        Outcome::NotInForce {
            effective: now.effective,
        }
    }
}
