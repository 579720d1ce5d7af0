//! Carries out steps and reads the effective CPUs back. [`super::steps`] alone chooses the steps.

use std::fmt;

use exclusions::Exclusions;
pub(super) use outcome::chain;
pub use outcome::{AppliedStep, StepOutcome};

use super::{AssignmentRecord, Reason, Step};
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupError, Cgroups, Cpuset, Partition, PartitionKind};

/// Carries out steps in order.
///
/// A failed step does not stop later steps, with four exceptions:
///
/// - A container gets no CPUs that another container may still use, because a step failed to take
///   them away or was skipped.
/// - A cgroup gets no exclusive CPUs that it, or a cgroup above it, failed to get.
/// - A cgroup whose record could not be written gets no writes, and neither do the cgroups below:
///   the earlier settings would be lost.
/// - A record keeps the earlier settings that a step failed to restore, and goes only after
///   everything on its cgroup and below is restored or gone. The next plan tries again.
pub fn apply(steps: Vec<Step>, cgroups: &Cgroups) -> Vec<AppliedStep> {
    apply_while(steps, cgroups, |_| true)
}

/// Like [`apply`], but stops before the first step for which `go_on` returns false. The steps done
/// by then are as safe as a plan that a crash cut short.
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
        let step = held.keep_unended(held.keep_unrestored(step, cgroups), cgroups);
        let outcome = match held.skipped(&step) {
            Some(skipped) => skipped,
            None => apply_step(&step, cgroups),
        };
        held.note(&step, &outcome, cgroups);
        done.push(AppliedStep { step, outcome });
    }
    done
}

fn apply_step(step: &Step, cgroups: &Cgroups) -> StepOutcome {
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
        Step::Cpus { path, cpus, .. } => cgroups.set_cpus(path, cpus),
    };
    match result.and_then(|()| read_back(step, cgroups)) {
        Ok(StepOutcome::Done) => StepOutcome::Done,
        // A file of a cgroup that was removed after the write reads as if the kernel did not have it.
        Ok(_) if !cgroups.exists(step.path()) => StepOutcome::Gone,
        Ok(outcome) => outcome,
        Err(error) if error.is_gone() => StepOutcome::Gone,
        Err(error) => refusal(step, error, cgroups),
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

/// Compares the kernel's value with the one that the step wrote.
fn read_back(step: &Step, cgroups: &Cgroups) -> Result<StepOutcome, CgroupError> {
    match step {
        Step::Cpus { path, .. } => read_back_cpus(step, &cgroups.cpuset(path)?, cgroups),
        Step::Exclusive { path, in_force, .. } | Step::Partition { path, in_force, .. }
            if in_force.is_some() =>
        {
            read_back_cpus(step, &cgroups.cpuset(path)?, cgroups)
        }
        Step::Exclusive { path, cpus, .. } => Ok(compare(cpus, &cgroups.exclusive(path)?)),
        Step::Partition { path, kind, .. } => {
            Ok(compare(&Partition::Valid(*kind), &cgroups.partition(path)?))
        }
        Step::Record { path, record } => {
            let now = cgroups.assignment_record(path)?;
            let is_same = now == record.as_ref().map(AssignmentRecord::text);
            let says = now.map_or_else(|| "no record".to_owned(), |now| format!("{now:?}"));
            Ok(done_if(is_same, says))
        }
        Step::Quota { path, quota } => match cgroups.quota(path)? {
            Some(now) => Ok(compare(quota, &now)),
            // Without a CPU controller there is no quota to write.
            None => Ok(StepOutcome::Done),
        },
        Step::Memory { path, numa } => Ok(compare(numa, &cgroups.memory(path)?.numa)),
        Step::Narrowed { path, earlier } => {
            let now = cgroups.cpuset(path)?.narrowed_from;
            let says = now
                .as_ref()
                .map_or_else(|| "no note".to_owned(), CpuSet::to_string);
            Ok(done_if(now == *earlier, says))
        }
        Step::Make { .. } | Step::Remove { .. } => Ok(StepOutcome::Done),
    }
}

fn compare<T: PartialEq + fmt::Display>(wanted: &T, now: &T) -> StepOutcome {
    done_if(wanted == now, now.to_string())
}

fn done_if(is_done: bool, says: String) -> StepOutcome {
    if is_done {
        StepOutcome::Done
    } else {
        StepOutcome::Differs { says }
    }
}

/// Compares a cgroup's CPUs with those that the step wants in force.
fn read_back_cpus(
    step: &Step,
    now: &Cpuset,
    cgroups: &Cgroups,
) -> Result<StepOutcome, CgroupError> {
    let is_live = now.partition.is_live();
    let done = match step {
        // A member's effective CPUs lack those of partitions, so only the written set counts. A
        // pod's effective CPUs lack those of its own partitions, too. The written CPUs of a
        // partition take effect when it ends.
        Step::Cpus { cpus, reason, .. } => match reason {
            Reason::Own | Reason::Narrow if !is_live => now.effective == *cpus,
            _ => now.cpus == *cpus,
        },
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
            // Linux 6.12 can lose the CPUs of an invalid partition until the next boot, so the
            // cgroup becomes a member.
            if !is_live {
                cgroups.set_partition(path, PartitionKind::Member)?;
                return Ok(StepOutcome::Invalid {
                    says: now.partition.to_string(),
                });
            }
            now.effective == *cpus
        }
        _ => true,
    };
    Ok(if done {
        StepOutcome::Done
    } else {
        StepOutcome::NotInForce {
            effective: now.effective.clone(),
        }
    })
}

mod exclusions;
mod outcome;
#[cfg(test)]
mod tests;
