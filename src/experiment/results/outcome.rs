//! [`Outcome`]: what an experiment found, for people and programs alike. Markdown, the page and JSON all show this one value.
//!
//! What nobody measured is `None`, and null in JSON, never 0.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::experiment::statistics::{Estimate, Summary, Verdict, Way};
use crate::text::counted;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// What was examined.
    pub title: String,
    /// What ran on what, and how often, in a sentence.
    pub summary: String,
    /// What ran on what, as names and values.
    pub subject: Vec<Fact>,
    /// What the values of the runs are, with their unit, as in "steps per second".
    pub measure: String,
    /// How often each condition was to run.
    pub repeats: usize,
    /// The confidence of the intervals, for example 0.95.
    pub confidence: f64,
    /// The ratio from whose inverse to itself there is no effect that matters, fixed before the first run.
    pub margin: f64,
    /// Why the times mean nothing, if so.
    pub caution: Option<String>,
    /// The primary questions, which have verdicts.
    pub answers: Vec<Answer>,
    /// What to do next, in sentences.
    pub next: Vec<String>,
    /// Further comparisons, without verdicts.
    pub others: Vec<Answer>,
    pub conditions: Vec<ConditionOutcome>,
    /// Further measures of the runs, by condition.
    pub figures: Vec<OtherFigure>,
    pub speedup: Vec<SpeedupCurve>,
    pub findings: Vec<Finding>,
    pub traffic: Vec<TrafficMatrix>,
    pub roles: Vec<RoleOutcome>,
    pub tasks: Vec<TaskOutcome>,
    pub evidence: Vec<Evidence>,
    /// The runs that failed or are missing. No average contains them.
    pub lost: Vec<LostRun>,
    /// What makes results doubtful, in sentences.
    pub warnings: Vec<String>,
}

/// A name with a value, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    pub name: String,
    pub value: String,
}

/// A comparison with what it says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// What is compared with what.
    pub title: String,
    /// The part of the experiment that answers it; empty for the whole.
    pub part: String,
    /// `None` without an answer, and for comparisons without verdicts.
    pub verdict: Option<Verdict>,
    /// The answer, for somebody who knows no statistics.
    pub sentence: String,
    /// How sure the answer is: the interval or range, and the smallest effect that would have shown.
    pub certainty: String,
    /// What to do; empty if nothing follows.
    pub advice: String,
    /// The ratio of the measure with the factor to that without.
    pub estimate: Option<Estimate>,
    /// The smallest ratio above 1 that 80 of 100 such experiments would name.
    pub smallest_effect: Option<f64>,
    /// The ratios of the repeats that have all runs of the comparison.
    pub ratios: Vec<f64>,
    /// How many repeats lack a run of the comparison.
    pub missing: usize,
}

/// What a condition is called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionName {
    /// The scene and case, or the run of a Prometheus; empty if there is only one of them.
    pub group: String,
    /// What distinguishes the condition within its group; empty if nothing does.
    pub name: String,
    /// How its tasks ran, if that is known.
    pub way: Option<Way>,
}

/// The runs of a condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionOutcome {
    #[serde(flatten)]
    pub condition: ConditionName,
    /// The runs that count.
    pub runs: Vec<RunValue>,
    /// The typical value of a run.
    pub estimate: Option<Estimate>,
    /// How many runs were planned.
    pub planned: usize,
}

/// The value of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunValue {
    /// The number in the order of the experiment, from 1.
    pub number: u32,
    /// The repeat, from 1.
    pub repeat: usize,
    pub value: f64,
}

/// A further measure of the runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherFigure {
    /// The measure, with its unit.
    pub name: String,
    /// Each condition by its name, with what its runs have.
    pub conditions: Vec<(String, Option<Summary>)>,
}

/// The speedup over the cases, in one scene and way.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeedupCurve {
    /// The group is the scene.
    #[serde(flatten)]
    pub condition: ConditionName,
    /// By the number of workers.
    pub points: Vec<CurvePoint>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CurvePoint {
    pub case: String,
    pub workers: f64,
    /// The speedup if each worker were as fast as in the smallest case.
    pub ideal: f64,
    pub speedup: Option<Estimate>,
    /// The share of the ideal that is reached; 1 is linear.
    pub efficiency: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingKind {
    /// All workers have the same number of steps, as if all exported one global counter.
    SharedSteps,
    /// Tasks without exclusive CPUs that should have some.
    Unpinned,
    /// A parameter server carries much more than its equal share.
    HotServer,
    /// Parameter servers carry hardly anything.
    IdleServers,
    /// A worker is much slower than the others.
    Straggler,
    /// A quota holds a role back.
    Throttled,
    /// Others run on exclusive CPUs.
    Interference,
}

/// What stands out, over all repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub kind: FindingKind,
    /// The task, the role, or what it is about.
    pub subject: String,
    /// What was found, in a sentence with the typical number.
    pub sentence: String,
    /// The numbers behind it, over the runs in which it was seen.
    pub figures: Vec<FindingFigure>,
    /// From when on it counts as a finding.
    pub rule: String,
    pub remedy: String,
    /// The nodes of the task.
    pub nodes: BTreeSet<String>,
    /// In how many repeats it was seen at least once.
    pub repeats_seen: usize,
    /// Of how many.
    pub repeats: usize,
    /// By condition.
    pub seen: Vec<Seen>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingFigure {
    pub name: String,
    /// In words, with the unit.
    pub words: String,
    pub summary: Summary,
}

/// How often something was seen in a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// The scene and case; empty if the experiment has one of each.
    pub group: String,
    pub way: String,
    pub seen: usize,
    /// The runs that count.
    pub runs: usize,
}

/// The traffic between parameter servers and the other tasks, in both directions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficMatrix {
    /// The scene and case; empty if the experiment has one of each.
    pub group: String,
    pub servers: Vec<String>,
    pub peers: Vec<String>,
    /// Bytes per second, a row for each peer and a column for each server: the mean of the runs.
    pub bytes_per_second: Vec<Vec<Option<f64>>>,
    /// The runs that know of it.
    pub runs: usize,
}

/// What a role used in a condition. All figures are those of one task, or shares.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleOutcome {
    #[serde(flatten)]
    pub condition: ConditionName,
    pub role: String,
    pub tasks: usize,
    /// The CPUs that a task is given.
    pub cpus: Option<String>,
    /// CPUs busy, the mean of the tasks, over the runs.
    pub cpus_used: Option<Summary>,
    /// The share of periods in which the quota ran out, over the runs.
    pub throttled_share: Option<Summary>,
    /// Context switches per second of a task, voluntary and involuntary.
    pub switches_per_second: Option<Summary>,
    /// Threads that could run and waited for a CPU, the mean of the tasks.
    pub threads_waiting: Option<Summary>,
    /// Misses of the last-level cache for 1,000 instructions.
    pub llc_misses_per_kiloinstruction: Option<Summary>,
}

/// What a task used in a scene and case, over the runs in all ways.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskOutcome {
    /// The scene and case, as in [`ConditionName`].
    pub group: String,
    /// The task, as in `ps 0`; the pod's name where no index is known.
    pub task: String,
    pub role: String,
    pub nodes: BTreeSet<String>,
    /// The share of the bytes of all parameter servers; `None` for other tasks, and where fewer than two servers are known.
    pub share_of_servers: Option<Summary>,
    /// The share of their CPU time.
    pub share_of_servers_cpu: Option<Summary>,
    pub sent_bytes_per_second: Option<Summary>,
    pub received_bytes_per_second: Option<Summary>,
    /// CPUs busy.
    pub cpus_used: Option<Summary>,
    /// Its own steps per second.
    pub steps_per_second: Option<Summary>,
}

/// What shows that a condition's tasks were pinned and sized, or weren't.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    #[serde(flatten)]
    pub condition: ConditionName,
    /// The tasks of all runs that count.
    pub tasks: usize,
    /// How many of them had exclusive CPUs.
    pub pinned: usize,
    /// Of how many that is known.
    pub pinned_known: usize,
    /// The CPU lists of the first run, for example `ps 0: 2-3`.
    pub cpus: Vec<String>,
    /// The threads of a task.
    pub threads: Option<Summary>,
    /// How many its CPUs call for.
    pub threads_expected: Option<Summary>,
    /// The agent's verdicts on the thread counts, with the number of tasks.
    pub threads_verdicts: Vec<(String, usize)>,
}

/// A run that doesn't count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LostRun {
    pub number: u32,
    /// The repeat, from 1.
    pub repeat: usize,
    pub condition: String,
    pub reason: String,
}

// === impl ConditionName ===

impl ConditionName {
    /// The whole name.
    pub fn words(&self) -> String {
        match (self.group.as_str(), self.name.as_str()) {
            (group, "") => group.to_owned(),
            ("", name) => name.to_owned(),
            (group, name) => format!("{group}, {name}"),
        }
    }
}

// === impl Fact ===

impl Fact {
    pub fn new(name: &str, value: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            value: value.into(),
        }
    }
}

// === impl Finding ===

impl Finding {
    /// How often it was seen, in a sentence: over the repeats, and by way where the ways differ. Empty if there is only one run.
    pub fn frequency(&self) -> String {
        if self.seen.iter().all(|seen| seen.way.is_empty()) {
            return self.places();
        }
        let mut ways: Vec<(&str, usize, usize)> = Vec::new();
        for seen in &self.seen {
            match ways.iter_mut().find(|(way, ..)| *way == seen.way) {
                Some((_, many, runs)) => {
                    *many += seen.seen;
                    *runs += seen.runs;
                }
                None => ways.push((&seen.way, seen.seen, seen.runs)),
            }
        }
        let repeats = format!(
            "Seen in {} of {}",
            self.repeats_seen,
            counted(self.repeats, "repeat")
        );
        if ways.iter().all(|(_, many, runs)| many == runs) {
            return format!("{repeats}, in every run.");
        }
        let ways = ways.iter();
        let ways: Vec<String> = ways
            .map(|(way, many, runs)| format!("{way} {many} of {runs}"))
            .collect();
        format!("{repeats}. In runs of each way: {}.", ways.join(", "))
    }

    /// The runs in which it was seen, where each has a name.
    fn places(&self) -> String {
        let seen: Vec<&str> = self
            .seen
            .iter()
            .filter(|seen| seen.seen > 0 && !seen.group.is_empty())
            .map(|seen| seen.group.as_str())
            .collect();
        match seen.as_slice() {
            [] => String::new(),
            seen => format!("Seen in {}.", seen.join(" and ")),
        }
    }
}
