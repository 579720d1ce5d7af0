//! Carries out steps and reads the effective CPUs back. [`super::steps`] alone chooses the steps.

use super::{AssignmentRecord, Reason, Step};
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupError, Cgroups, PartitionKind, is_within};

/// A step and its result.
#[derive(Debug)]
pub struct AppliedStep {
    /// The step.
    pub step: Step,
    /// The result of the step.
    pub outcome: StepOutcome,
}

/// The result of a step.
#[derive(Debug)]
pub enum StepOutcome {
    /// The kernel confirms the step.
    Done,
    /// The write succeeded, but different CPUs are in force.
    NotInForce {
        /// The CPUs in force.
        effective: CpuSet,
    },
    /// The cgroup disappeared meanwhile: nothing is left to do.
    Gone,
    /// The step failed, or the kernel's values could not be read back.
    Failed(CgroupError),
    /// The write succeeded, but the kernel made the partition invalid. The cgroup is a member now.
    Invalid {
        /// The kernel's words.
        says: String,
    },
    /// The kernel refused, because cgroups nearby hold or list the CPUs.
    InTheWay {
        /// The kernel's error.
        error: CgroupError,
        /// The cgroups in the way.
        others: Vec<String>,
    },
    /// Not tried: the cgroup, or a cgroup above, could not get the CPUs.
    AncestorRefused {
        /// The cgroup that could not get the CPUs.
        path: String,
    },
    /// Not tried: the cgroup's record could not be written.
    Unrecorded,
    /// Not tried: a container failed to give up some of the CPUs.
    Blocked {
        /// The CPUs.
        cpus: CpuSet,
    },
}

// === impl StepOutcome ===

impl StepOutcome {
    /// The outcome's name as a label value.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Gone => "gone",
            Self::Unrecorded => "unrecorded",
            Self::NotInForce { .. } => "not_in_force",
            Self::Failed(_) | Self::InTheWay { .. } => "failed",
            Self::Invalid { .. } => "invalid",
            Self::AncestorRefused { .. } | Self::Blocked { .. } => "blocked",
        }
    }
}

// === impl AppliedStep ===

impl AppliedStep {
    /// The failure in a sentence that begins with the step; `None` without a failure.
    pub fn error(&self) -> Option<String> {
        let said = match &self.outcome {
            StepOutcome::Done | StepOutcome::Gone => return None,
            StepOutcome::Unrecorded => {
                "skipped, because the cgroup's assignment record could not be written".to_owned()
            }
            StepOutcome::NotInForce { effective } => {
                format!("written, but the kernel reports {effective}")
            }
            StepOutcome::Failed(error) => chain(error),
            StepOutcome::Invalid { says } => format!("the kernel says {says:?}"),
            StepOutcome::InTheWay { error, others } => format!(
                "{}; cpuset.cpus or cpuset.cpus.exclusive of other cgroups prevents it: {}",
                chain(error),
                others.join(", ")
            ),
            StepOutcome::AncestorRefused { path } => {
                format!("skipped, because {path} could not get the CPUs")
            }
            StepOutcome::Blocked { cpus } => {
                format!(
                    "skipped, because another container did not give up {}",
                    cpus.in_words()
                )
            }
        };
        Some(format!("{}: {said}", self.step))
    }
}

/// An error and all its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Carries out steps in order.
///
/// A failed step does not stop later steps, with three exceptions:
///
/// - A container gets no CPUs that a step failed to take from another container.
/// - A cgroup gets no exclusive CPUs that the cgroup itself or a cgroup above failed to get.
/// - A cgroup whose record could not be written gets no writes, on the cgroup or below: its earlier settings would be
///   lost.
pub fn apply(steps: Vec<Step>, cgroups: &Cgroups) -> Vec<AppliedStep> {
    apply_while(steps, cgroups, |_| true)
}

/// Like [`apply`], but stops before the first step for which `go_on` returns false. The steps done by then are as
/// safe as a plan that a crash cut short.
pub fn apply_while(
    steps: Vec<Step>,
    cgroups: &Cgroups,
    mut go_on: impl FnMut(&Step) -> bool,
) -> Vec<AppliedStep> {
    let mut held = Exclusions::default();
    let mut done = Vec::with_capacity(steps.len());
    for step in steps {
        if !go_on(&step) {
            break;
        }
        let outcome = apply_step(&step, cgroups, &mut held);
        done.push(AppliedStep { step, outcome });
    }
    done
}

/// CPUs and cgroups that later steps must not touch.
#[derive(Default)]
struct Exclusions {
    /// CPUs that a container failed to give up.
    cpus: CpuSet,
    /// Cgroups whose record could not be written.
    unrecorded: Vec<String>,
    /// Cgroups that could not get exclusive CPUs.
    refused: Vec<String>,
}

fn apply_step(step: &Step, cgroups: &Cgroups, held: &mut Exclusions) -> StepOutcome {
    let within = |cgroup: &&String| is_within(step.path(), cgroup);
    if !matches!(step, Step::Record { .. }) && held.unrecorded.iter().any(|cgroup| within(&cgroup))
    {
        return StepOutcome::Unrecorded;
    }
    if let Some(path) = held.refused.iter().find(within).filter(|_| gives(step)) {
        return StepOutcome::AncestorRefused { path: path.clone() };
    }
    let result = match step {
        Step::Make { path } => cgroups.create(path),
        Step::Remove { path } => cgroups.remove(path),
        Step::Record { path, record } => cgroups
            .set_assignment_record(path, record.as_ref().map(AssignmentRecord::text).as_deref()),
        Step::Narrowed {
            path,
            earlier: Some(earlier),
        } => cgroups.note_earlier_set(path, earlier),
        Step::Narrowed {
            path,
            earlier: None,
        } => cgroups.forget_earlier_set(path),
        Step::Memory { path, numa } => cgroups.set_memory_nodes(path, numa),
        Step::Quota { path, quota } => cgroups.set_quota(path, *quota),
        Step::Exclusive { path, cpus, .. } => cgroups.set_exclusive(path, cpus),
        Step::Partition { path, kind, .. } => cgroups.set_partition(path, *kind),
        Step::Cpus { path, cpus, reason } => {
            let taken = cpus.intersection(&held.cpus);
            if *reason == Reason::Own && !taken.is_empty() {
                return StepOutcome::Blocked { cpus: taken };
            }
            cgroups.set_cpus(path, cpus)
        }
    };
    let outcome = match result {
        Ok(()) => read_back(step, cgroups),
        Err(error) if error.is_gone() => StepOutcome::Gone,
        Err(error) => refusal(step, error, cgroups),
    };
    add_exclusions(step, &outcome, cgroups, held);
    outcome
}

/// Whether a step gives exclusive CPUs. Every cgroup above must hold the CPUs first.
fn gives(step: &Step) -> bool {
    match step {
        Step::Exclusive { cpus, .. } => !cpus.is_empty(),
        Step::Partition { kind, .. } => *kind != PartitionKind::Member,
        _ => false,
    }
}

/// Remembers the CPUs and cgroups that later steps must not touch.
fn add_exclusions(step: &Step, outcome: &StepOutcome, cgroups: &Cgroups, held: &mut Exclusions) {
    match (step, outcome) {
        (
            Step::Record {
                path,
                record: Some(_),
            },
            StepOutcome::Failed(_),
        ) => held.unrecorded.push(path.clone()),
        (
            Step::Exclusive { path, .. },
            StepOutcome::Failed(_) | StepOutcome::InTheWay { .. } | StepOutcome::Invalid { .. },
        ) => {
            held.refused.push(path.clone());
        }
        (
            Step::Cpus {
                path,
                cpus,
                reason: Reason::Narrow,
            },
            StepOutcome::NotInForce { .. } | StepOutcome::Failed(_),
        ) => {
            if let Ok(now) = cgroups.cpuset(path) {
                held.cpus = held.cpus.union(&now.effective.difference(cpus));
            }
        }
        _ => {}
    }
}

/// Adds the cgroups in the way to a bare refusal of the kernel.
fn refusal(step: &Step, error: CgroupError, cgroups: &Cgroups) -> StepOutcome {
    if let Step::Exclusive { path, cpus, .. } = step {
        let others = cgroups.blocking_siblings(path, cpus);
        if !others.is_empty() {
            return StepOutcome::InTheWay { error, others };
        }
    }
    StepOutcome::Failed(error)
}

fn read_back(step: &Step, cgroups: &Cgroups) -> StepOutcome {
    let (path, in_force) = match step {
        Step::Cpus { path, .. } => (path, None),
        Step::Exclusive { path, in_force, .. } | Step::Partition { path, in_force, .. }
            if in_force.is_some() =>
        {
            (path, in_force.as_ref())
        }
        _ => return StepOutcome::Done,
    };
    let now = match cgroups.cpuset(path) {
        Ok(now) => now,
        Err(error) if error.is_gone() => return StepOutcome::Gone,
        Err(error) => return StepOutcome::Failed(error),
    };
    let is_live = now.partition.is_live();
    let done = match (step, in_force) {
        // Linux 6.12 can lose the CPUs of an invalid partition until the next boot. The cgroup therefore becomes a
        // member.
        (_, Some(_)) if !is_live => {
            return match cgroups.set_partition(path, PartitionKind::Member) {
                Err(error) if !error.is_gone() => StepOutcome::Failed(error),
                _ => StepOutcome::Invalid {
                    says: now.partition.to_string(),
                },
            };
        }
        (_, Some(cpus)) => now.effective == *cpus,
        // A member's effective CPUs lack the CPUs of partitions, so only the written set counts. A pod's effective
        // CPUs lack the CPUs of the pod's own partitions, too. The written CPUs of a partition take effect when the
        // partition ends.
        (Step::Cpus { cpus, reason, .. }, None) => match reason {
            Reason::Own | Reason::Narrow if !is_live => now.effective == *cpus,
            _ => now.cpus == *cpus,
        },
        _ => true,
    };
    if done {
        StepOutcome::Done
    } else {
        StepOutcome::NotInForce {
            effective: now.effective,
        }
    }
}
