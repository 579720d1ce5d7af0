//! What tasks used, from their records: rates, names, and the pod's place in the job.

use crate::experiment::results::model::{MeasuredRun, TaskRecord};
use crate::experiment::results::outcome::ConditionName;

/// The parameter servers' role.
const PS: &str = "ps";

/// The order of the roles; others follow.
pub(super) const ORDER: [&str; 6] = [PS, "chief", "master", "worker", "evaluator", "launcher"];

/// A condition with the runs that count.
#[derive(Debug, Clone)]
pub(crate) struct ConditionRuns<'a> {
    pub(crate) name: ConditionName,
    pub(crate) runs: Vec<CountedRun<'a>>,
}

/// A run that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedRun<'a> {
    /// The repeat, from 0.
    pub(crate) repeat: usize,
    pub(crate) measured: &'a MeasuredRun,
}

/// A task of a run, with what is computed from its record. A negative value in a record counts as unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) record: &'a TaskRecord,
    /// The seconds that its usage is about.
    seconds: Option<f64>,
}

/// The place of a task in a list: its role's rank and name, its index, and its pod.
pub(super) type TaskOrder<'a> = (usize, &'a str, Option<u32>, &'a str);

// === impl Task ===

impl<'a> Task<'a> {
    /// The tasks of a run.
    pub(super) fn all(run: &'a MeasuredRun) -> impl Iterator<Item = Self> {
        run.tasks.iter().map(|record| Self {
            record,
            seconds: record
                .usage
                .observed_seconds
                .or(run.seconds)
                .filter(|seconds| *seconds > 0.0),
        })
    }

    /// As [`TaskRecord::name`].
    pub(super) fn name(self) -> String {
        self.record.name()
    }

    pub(super) fn is_server(self) -> bool {
        self.record.role == PS
    }

    pub(super) fn trains(self) -> bool {
        self.record.trains()
    }

    /// The place in a list: by role and index, and by pod where no index is known.
    pub(super) fn order(self) -> TaskOrder<'a> {
        let TaskRecord {
            role, index, pod, ..
        } = self.record;
        let rank = ORDER.iter().position(|one| *one == role);
        let pod = if index.is_some() { "" } else { pod.as_str() };
        (rank.unwrap_or(ORDER.len()), role, *index, pod)
    }

    /// An amount by the seconds in which it was used.
    pub(super) fn per_second(self, amount: Option<f64>) -> Option<f64> {
        Some(known(amount)? / self.seconds?)
    }

    /// The bytes in both directions.
    pub(super) fn traffic(self) -> Option<f64> {
        let usage = &self.record.usage;
        let (sent, received) = (known(usage.sent_bytes), known(usage.received_bytes));
        (sent.is_some() || received.is_some())
            .then(|| sent.unwrap_or_default() + received.unwrap_or_default())
    }

    /// Context switches of both kinds.
    pub(super) fn switches(self) -> Option<f64> {
        let usage = &self.record.usage;
        Some(known(usage.voluntary_switches)? + known(usage.involuntary_switches)?)
    }

    /// Its own steps per second.
    pub(super) fn step_rate(self) -> Option<f64> {
        let seconds = known(self.record.step_seconds).filter(|seconds| *seconds > 0.0)?;
        Some(known(self.record.steps)? / seconds)
    }

    /// Whether it has exclusive CPUs.
    pub(super) fn is_pinned(self) -> Option<bool> {
        known(self.record.usage.exclusive_cpus).map(|cpus| cpus > 0.0)
    }

    /// The seconds of its exclusive CPUs, all together.
    pub(super) fn exclusive_seconds(self) -> Option<f64> {
        let cpus = known(self.record.usage.exclusive_cpus).filter(|cpus| *cpus > 0.0)?;
        Some(cpus * self.seconds?)
    }
}

// === impl ConditionRuns ===

impl<'a> ConditionRuns<'a> {
    /// What was measured of the runs.
    pub(super) fn measured(&self) -> impl Iterator<Item = &'a MeasuredRun> {
        self.runs.iter().map(|run| run.measured)
    }
}

pub(super) fn tasks_of<'a>(run: &'a MeasuredRun, role: &str) -> impl Iterator<Item = Task<'a>> {
    Task::all(run).filter(move |task| task.record.role == role)
}

/// The share of a role's periods in which a quota ran out.
pub(super) fn throttled(run: &MeasuredRun, role: &str) -> Option<f64> {
    share(tasks_of(run, role).map(|task| {
        let usage = &task.record.usage;
        (usage.throttled_periods, usage.quota_periods)
    }))
}

/// A value that can be true.
pub(super) fn known(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite() && *value >= 0.0)
}

/// The mean of what is known.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Two sums as a share, of those of which both are known.
pub(super) fn share(parts: impl Iterator<Item = (Option<f64>, Option<f64>)>) -> Option<f64> {
    let both = parts.filter_map(|(part, whole)| Some((known(part)?, known(whole)?)));
    let (part, whole) = both.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (whole > 0.0).then(|| part / whole)
}
