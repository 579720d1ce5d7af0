//! [`StepOutcome`]: how a step went, in words for people and for labels.

use crate::cpu::CpuSet;
use crate::host::cgroup::CgroupError;
use crate::pin::Step;

#[derive(Debug)]
pub struct AppliedStep {
    pub step: Step,
    pub outcome: StepOutcome,
}

#[derive(Debug)]
pub enum StepOutcome {
    /// The kernel confirms the step.
    Done,
    /// The write succeeded, but other CPUs are in force.
    NotInForce {
        /// The CPUs in force.
        effective: CpuSet,
    },
    /// The write succeeded, but the kernel reports another value.
    Differs {
        /// The value that the kernel reports.
        says: String,
    },
    /// The cgroup disappeared meanwhile, so nothing is left to do.
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
    /// Not tried, because the cgroup, or a cgroup above, could not get the CPUs.
    AncestorRefused {
        /// The cgroup that could not get the CPUs.
        path: String,
    },
    /// Not tried, because the cgroup's record could not be written.
    Unrecorded,
    /// Not tried, because the record is still needed: the cgroup, or a cgroup below, still holds
    /// exclusive CPUs.
    Unrestored,
    /// Not tried, because a container failed to give up some of the CPUs.
    Blocked { cpus: CpuSet },
}

// === impl StepOutcome ===

impl StepOutcome {
    /// The outcome's name as a label value.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Gone => "gone",
            Self::Unrecorded => "unrecorded",
            Self::NotInForce { .. } | Self::Differs { .. } => "not_in_force",
            Self::Failed(_) | Self::InTheWay { .. } => "failed",
            Self::Invalid { .. } => "invalid",
            Self::AncestorRefused { .. } | Self::Blocked { .. } | Self::Unrestored => "blocked",
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
            StepOutcome::Unrestored => {
                "skipped, because a partition on the cgroup or below could not be ended".to_owned()
            }
            StepOutcome::NotInForce { effective } => {
                format!("written, but the kernel reports {effective}")
            }
            StepOutcome::Differs { says } => format!("written, but the kernel reports {says}"),
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
pub(in crate::pin) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
