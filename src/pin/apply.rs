//! Carrying out steps and reading back what is in force. What to do is decided in [`super::steps`], never here.

use super::steps::{Reason, Step};
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupError, Cgroups};

/// What became of one step.
#[derive(Debug)]
pub struct Applied {
    /// The step.
    pub step: Step,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a step.
#[derive(Debug)]
pub enum Outcome {
    /// It is done, and the kernel says so.
    Done,
    /// Written without an error, but other CPUs are in force.
    NotInForce {
        /// What is in force.
        effective: CpuSet,
    },
    /// The cgroup went away meanwhile: nothing is left to do.
    Gone,
    /// The kernel refused.
    Failed(CgroupError),
    /// Not tried: the cgroup's mark could not be written.
    Unmarked,
    /// Not tried: somebody who was to give up these CPUs still has them.
    Blocked {
        /// The CPUs.
        cpus: CpuSet,
    },
}

/// Carries out steps in their order.
///
/// A failure doesn't stop the others, with two exceptions: nobody is given CPUs that another could not be moved off, and
/// nothing is written to a cgroup whose mark could not be, since what was there before would be forgotten.
pub fn apply(steps: Vec<Step>, cgroups: &Cgroups) -> Vec<Applied> {
    let mut held = Held::default();
    let mut done = Vec::with_capacity(steps.len());
    for step in steps {
        let outcome = one(&step, cgroups, &mut held);
        done.push(Applied { step, outcome });
    }
    done
}

/// What later steps must keep off.
#[derive(Default)]
struct Held {
    /// CPUs that somebody could not be moved off.
    cpus: CpuSet,
    /// Cgroups whose mark could not be written.
    unmarked: Vec<String>,
}

fn one(step: &Step, cgroups: &Cgroups, held: &mut Held) -> Outcome {
    let within = |cgroup: &String| {
        step.path().strip_prefix(cgroup.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if !matches!(step, Step::Mark { .. }) && held.unmarked.iter().any(within) {
        return Outcome::Unmarked;
    }
    let result = match step {
        Step::Mark { path, mark } => cgroups.set_mark(path, mark.as_ref().map(super::Mark::text).as_deref()),
        Step::Quota { path, quota } => cgroups.set_quota(path, *quota),
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
        Err(error) => Outcome::Failed(error),
    };
    if let (Step::Mark { path, mark: Some(_) }, Outcome::Failed(_)) = (step, &outcome) {
        held.unmarked.push(path.clone());
    }
    if let (
        Step::Cpus { path, cpus, reason: Reason::Narrow },
        Outcome::NotInForce { .. } | Outcome::Failed(_),
    ) = (step, &outcome)
        && let Ok(now) = cgroups.cpuset(path)
    {
        held.cpus = held.cpus.union(&now.effective.difference(cpus));
    }
    outcome
}

fn read_back(step: &Step, cgroups: &Cgroups) -> Outcome {
    let Step::Cpus { path, cpus, .. } = step else { return Outcome::Done };
    match cgroups.cpuset(path) {
        Ok(now) if now.effective == *cpus => Outcome::Done,
        Ok(now) => Outcome::NotInForce { effective: now.effective },
        Err(error) if error.is_gone() => Outcome::Gone,
        Err(error) => Outcome::Failed(error),
    }
}
