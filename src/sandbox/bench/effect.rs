//! The values of a report that several files compute with: runs, metrics, comparisons.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::{Cpus, ThreadChoice, Way};
use crate::experiment::statistics::{self, Estimate, Part, Question, Summary, Verdict};
use crate::sandbox::interference::MeasuredInterference;

/// The figures of a run; a missing counter is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The index of the round, from 0.
    pub round: usize,
    #[serde(flatten)]
    pub way: Way,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// The steps of all workers in the measured time. For a command without steps: the number of copies.
    pub steps: f64,
    /// The number of threads of the job.
    pub thread_count: Option<u64>,
    /// The use of the exclusive CPUs by programs outside the pods; null on shared CPUs, and if the
    /// machine does not count it.
    pub interference: Option<MeasuredInterference>,
    pub figures: BTreeMap<Metric, f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Metric {
    StepsPerSecond,
    /// The median time of a step, in milliseconds.
    StepMsP50,
    /// The time within which 99 of 100 steps end, in milliseconds.
    StepMsP99,
    /// Context switches of the job, servers included, per step of a worker.
    ContextSwitchesPerStep,
    /// CFS periods per second in which a quota of the job ran out.
    ThrottledPeriodsPerSecond,
    /// Migrations of the job's threads between CPUs, per step.
    MigrationsPerStep,
    /// Misses of the job in the last-level cache, per step.
    CacheMissesPerStep,
}

/// Two compared ways, or two pairs of ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparison {
    /// Pinned against shared, over both choices of threads.
    Pinned,
    /// Right threads against the host's, over both choices of CPUs.
    Right,
    /// Pinned with right threads against shared with the host's.
    Both,
    /// Pinned against shared, with the host's threads.
    PinnedHost,
    /// Pinned against shared, with right threads.
    PinnedRight,
    /// Right threads against the host's, in the shared pool.
    RightShared,
    /// Right threads against the host's, pinned.
    RightPinned,
}

/// A comparison by a metric.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Effect {
    pub comparison: Comparison,
    pub metric: Metric,
    /// The ratio over the rounds, with its interval; null if a round gives no ratio.
    pub ratio: Option<Estimate>,
    /// The verdict; null without a ratio, and for all but the three questions about steps per second.
    pub verdict: Option<Verdict>,
    /// The smallest ratio above 1 that 80 of 100 such benches would name; null without a verdict, and with too few rounds.
    pub smallest_effect: Option<f64>,
    /// The ratio and the verdict in words.
    pub words: String,
    /// The ratio of each round that has a ratio.
    pub rounds: Vec<f64>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaySummary {
    #[serde(flatten)]
    pub way: Way,
    /// The number of threads of the job, in the last run of the way.
    pub thread_count: Option<u64>,
    /// Each metric over the runs of the way.
    pub figures: BTreeMap<Metric, Summary>,
}

/// The machine and the conditions of the measurement.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineFacts {
    pub enforcement: String,
    pub enforcement_reason: String,
    /// The use of the exclusive CPUs by programs outside the pods, in all pinned runs together;
    /// null if the machine does not count it.
    pub interference: Option<MeasuredInterference>,
    /// The missing metrics, each with the reason.
    pub not_counted: BTreeMap<Metric, String>,
    /// Remarks for the reader of the figures, each as a sentence.
    pub notes: Vec<String>,
}

// === impl Metric ===

impl Metric {
    /// All metrics, in the order of tables.
    pub const ALL: [Self; 7] = [
        Self::StepsPerSecond,
        Self::StepMsP50,
        Self::StepMsP99,
        Self::ContextSwitchesPerStep,
        Self::ThrottledPeriodsPerSecond,
        Self::MigrationsPerStep,
        Self::CacheMissesPerStep,
    ];

    /// The name for people, in which a step is called `step`.
    pub fn name(self, step: &str) -> String {
        match self {
            Self::StepsPerSecond => format!("{step}s/s"),
            Self::StepMsP50 => format!("{step} time p50, ms"),
            Self::StepMsP99 => format!("{step} time p99, ms"),
            Self::ContextSwitchesPerStep => format!("context switches per {step}"),
            Self::ThrottledPeriodsPerSecond => "throttled periods/s".to_owned(),
            Self::MigrationsPerStep => format!("migrations per {step}"),
            Self::CacheMissesPerStep => format!("LLC misses per {step}"),
        }
    }
}

// === impl Comparison ===

impl Comparison {
    /// All comparisons: the three questions first, then the parts of each.
    pub const ALL: [Self; 7] = [
        Self::Pinned,
        Self::Right,
        Self::Both,
        Self::PinnedHost,
        Self::PinnedRight,
        Self::RightShared,
        Self::RightPinned,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned vs shared",
            Self::Right => "right vs host's threads",
            Self::Both => "both vs neither",
            Self::PinnedHost => "pinned vs shared, host's threads",
            Self::PinnedRight => "pinned vs shared, right threads",
            Self::RightShared => "right vs host's threads, shared",
            Self::RightPinned => "right vs host's threads, pinned",
        }
    }

    /// The comparison as a question about a part of the bench.
    pub(super) fn question(self) -> (Question, Part) {
        let threads = |sized| Part {
            sized: Some(sized),
            ..Part::default()
        };
        let cpus = |exclusive| Part {
            exclusive: Some(exclusive),
            ..Part::default()
        };
        match self {
            Self::Pinned => (Question::Exclusive, Part::default()),
            Self::Right => (Question::Sized, Part::default()),
            Self::Both => (Question::Both, Part::default()),
            Self::PinnedHost => (Question::Exclusive, threads(false)),
            Self::PinnedRight => (Question::Exclusive, threads(true)),
            Self::RightShared => (Question::Sized, cpus(false)),
            Self::RightPinned => (Question::Sized, cpus(true)),
        }
    }
}

// === impl Way ===

impl From<Way> for statistics::Way {
    fn from(way: Way) -> Self {
        Self {
            exclusive: way.cpus == Cpus::Pinned,
            sized: way.threads == ThreadChoice::Right,
        }
    }
}
