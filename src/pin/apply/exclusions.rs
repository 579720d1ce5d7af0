//! [`Exclusions`]: what a failed step forbids to the later steps of the same plan.

use super::outcome::StepOutcome;
use crate::cpu::CpuSet;
use crate::host::cgroup::{Cgroups, PartitionKind, is_below, is_within};
use crate::pin::{AssignmentRecord, Reason, Step};

/// CPUs and cgroups that later steps must not touch.
#[derive(Default)]
pub(super) struct Exclusions {
    /// CPUs that containers may still use, although steps should have taken them away.
    cpus: CpuSet,
    /// The only CPUs that are known to be free of containers whose sets are unknown, or follow the sets of their pods.
    /// `None` without such a container.
    only: Option<CpuSet>,
    /// Cgroups whose record could not be written.
    unrecorded: Vec<String>,
    /// Cgroups that could not get exclusive CPUs.
    refused: Vec<String>,
    /// Cgroups with a setting that could not be restored.
    unrestored: Vec<Unrestored>,
}

/// A setting of a cgroup that a step could not restore.
struct Unrestored {
    path: String,
    setting: Setting,
}

/// The settings that the steps change, besides records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    Cpus,
    /// Exclusive CPUs, or the partition itself. While one of them lasts, the record must say whose they are.
    Partition,
    Memory,
    Quota,
}

// === impl Setting ===

impl Setting {
    fn of(step: &Step) -> Option<Self> {
        match step {
            Step::Make { .. }
            | Step::Remove { .. }
            | Step::Record { .. }
            | Step::Narrowed { earlier: None, .. } => None,
            // The note of a set stands for the set, because without it, nothing would know what to
            // restore.
            Step::Narrowed {
                earlier: Some(_), ..
            }
            | Step::Cpus { .. } => Some(Self::Cpus),
            Step::Exclusive { .. } | Step::Partition { .. } => Some(Self::Partition),
            Step::Memory { .. } => Some(Self::Memory),
            Step::Quota { .. } => Some(Self::Quota),
        }
    }
}

// === impl Exclusions ===

impl Exclusions {
    /// The outcome of a step that must not be tried; `None` if the step may be tried.
    pub(super) fn skipped(&self, step: &Step) -> Option<StepOutcome> {
        let within = |cgroup: &&String| is_within(step.path(), cgroup);
        match step {
            Step::Record { record: None, path } if self.holds_partition(path) => {
                return Some(StepOutcome::Unrestored);
            }
            Step::Record { .. } => {}
            _ if self.unrecorded.iter().any(|cgroup| within(&cgroup)) => {
                return Some(StepOutcome::Unrecorded);
            }
            _ => {}
        }
        if let Some(path) = self.refused.iter().find(within).filter(|_| gives(step)) {
            return Some(StepOutcome::AncestorRefused { path: path.clone() });
        }
        match step {
            Step::Cpus {
                cpus,
                reason: Reason::Own,
                ..
            } => {
                let mut taken = cpus.intersection(&self.cpus);
                if let Some(only) = &self.only {
                    taken = taken.union(&cpus.difference(only));
                }
                (!taken.is_empty()).then_some(StepOutcome::Blocked { cpus: taken })
            }
            _ => None,
        }
    }

    /// Remembers what a failed step forbids.
    pub(super) fn note(&mut self, step: &Step, outcome: &StepOutcome, cgroups: &Cgroups) {
        let path = step.path();
        let setting = Setting::of(step);
        match outcome {
            StepOutcome::Gone => {
                self.unrestored
                    .retain(|unrestored| !is_within(&unrestored.path, path));
                return;
            }
            StepOutcome::Done => {
                self.unrestored.retain(|unrestored| {
                    unrestored.path != path || Some(unrestored.setting) != setting
                });
                return;
            }
            _ => {}
        }
        match step {
            Step::Record {
                record: Some(_), ..
            } => self.unrecorded.push(path.to_owned()),
            Step::Cpus {
                cpus,
                reason: Reason::Narrow,
                ..
            } => self.note_wide_container(path, cpus, cgroups),
            Step::Exclusive { .. } if !matches!(outcome, StepOutcome::NotInForce { .. }) => {
                self.refused.push(path.to_owned());
            }
            _ => {}
        }
        let path = path.to_owned();
        let unrestored = setting.map(|setting| Unrestored { path, setting });
        self.unrestored.extend(unrestored);
    }

    /// The step, whose record keeps the earlier settings that earlier steps failed to restore. A
    /// record that should go shrinks to these settings, so that the next plan can restore them.
    pub(super) fn keep_unrestored(&self, step: Step, cgroups: &Cgroups) -> Step {
        let Step::Record { path, record } = step else {
            return step;
        };
        let unrestored = self.unrestored.iter();
        let own = unrestored.filter(|unrestored| unrestored.path == path);
        let kept: Vec<Setting> = own.map(|unrestored| unrestored.setting).collect();
        if kept.is_empty() || (record.is_none() && self.holds_partition(&path)) {
            return Step::Record { path, record };
        }
        let text = cgroups.assignment_record(&path).ok().flatten();
        let Some(present) = text.and_then(|text| AssignmentRecord::parse(&text).ok()) else {
            return Step::Record { path, record };
        };
        let mut next = record.unwrap_or_else(|| AssignmentRecord::new(present.before.clone()));
        if kept.contains(&Setting::Quota) {
            next.before.quota = next.before.quota.or(present.before.quota);
        }
        if kept.contains(&Setting::Memory) {
            next.before.numa = next.before.numa.or(present.before.numa);
        }
        Step::Record {
            path,
            record: Some(next),
        }
    }

    /// The step, whose set keeps the exclusive CPUs of cgroups below that a step failed to shrink
    /// or to end. The kernel silently ends a partition whose CPUs leave a cgroup above it, and
    /// Linux 6.12 may then lose the CPUs.
    pub(super) fn keep_unended(&self, step: Step, cgroups: &Cgroups) -> Step {
        let Step::Exclusive {
            path,
            mut cpus,
            in_force,
        } = step
        else {
            return step;
        };
        let unended = self.unrestored.iter();
        let unended = unended.filter(|unended| unended.setting == Setting::Partition);
        for below in unended.filter(|unended| is_below(&unended.path, &path)) {
            let kept = cgroups.exclusive(&below.path).unwrap_or_default();
            cpus = cpus.union(&kept);
        }
        Step::Exclusive {
            path,
            cpus,
            in_force,
        }
    }

    /// Whether the cgroup or one below it has a partition that a step failed to end.
    fn holds_partition(&self, path: &str) -> bool {
        let mut unrestored = self.unrestored.iter();
        unrestored.any(|unrestored| {
            unrestored.setting == Setting::Partition && is_within(&unrestored.path, path)
        })
    }

    /// Remembers the CPUs of a container that a step could not narrow to `wanted`. A container
    /// without a set of its own follows its pod, whose set may grow in a later step.
    fn note_wide_container(&mut self, path: &str, wanted: &CpuSet, cgroups: &Cgroups) {
        match cgroups.cpuset(path) {
            Err(error) if error.is_gone() => {}
            Ok(now) if !now.cpus.is_empty() => {
                let open = now.cpus.union(&now.effective).difference(wanted);
                self.cpus = self.cpus.union(&open);
            }
            _ => {
                let only = self.only.take();
                self.only =
                    Some(only.map_or_else(|| wanted.clone(), |only| only.intersection(wanted)));
            }
        }
    }
}

/// Whether a step gives exclusive CPUs. Every cgroup above must hold the CPUs first.
fn gives(step: &Step) -> bool {
    match step {
        Step::Exclusive { cpus, .. } => !cpus.is_empty(),
        Step::Partition { kind, .. } => *kind != PartitionKind::Member,
        _ => false,
    }
}
