//! [`Report`]: what the runs say, ratios first. Only computes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::claims::{Claim, claims};
use super::plan::{Cpus, Plan, Threads, Way};
use super::stats::{self, Spread, Summary, Verdict};

/// One run in figures; what could not be counted is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Which round, from 0.
    pub round: usize,
    /// Which way.
    #[serde(flatten)]
    pub way: Way,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Steps of all workers in that time; runs of a command without steps.
    pub steps: f64,
    /// Threads of the job.
    pub thread_count: Option<u64>,
    /// The figures that are compared.
    pub figures: BTreeMap<Metric, f64>,
}

/// What is measured of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Metric {
    /// Steps of all workers per second.
    StepsPerSecond,
    /// The median time of a step, in milliseconds.
    StepMsP50,
    /// The time that 99 of 100 steps keep, in milliseconds.
    StepMsP99,
    /// Context switches of the job, servers included, per step of a worker.
    ContextSwitchesPerStep,
    /// CFS periods per second in which a quota of the job ran out.
    ThrottledPeriodsPerSecond,
    /// Moves of the job's threads from one CPU to another, per step.
    MigrationsPerStep,
    /// What the job did not find in the last-level cache, per step.
    CacheMissesPerStep,
}

/// Two ways, or two pairs of ways, that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparison {
    /// Pinned against shared, whatever the threads.
    Pinned,
    /// Right threads against the host's, wherever the CPUs come from.
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

/// A comparison in one metric.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Effect {
    /// What is compared.
    pub comparison: Comparison,
    /// In what.
    pub metric: Metric,
    /// The ratio's median over the rounds, with its spread; null where a round gives none.
    pub ratio: Option<Spread>,
    /// What it says; null without a ratio.
    pub verdict: Option<Verdict>,
    /// The same in words.
    pub words: String,
    /// The ratio of each round that gives one.
    pub rounds: Vec<f64>,
}

/// One way in figures.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfWay {
    /// Which way.
    #[serde(flatten)]
    pub way: Way,
    /// Threads of the job, in the last of its runs.
    pub thread_count: Option<u64>,
    /// Each metric over its runs.
    pub figures: BTreeMap<Metric, Summary>,
}

/// What was found about this machine.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// How assignments were enforced.
    pub enforcement: String,
    /// Why so.
    pub enforcement_reason: String,
    /// Why a metric is not counted here.
    pub not_counted: BTreeMap<Metric, String>,
    /// What to bear in mind when reading the figures, each in a sentence.
    pub notes: Vec<String>,
}

/// What a bench found.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The ratios.
    pub effects: Vec<Effect>,
    /// What the articles claim, and what was seen of it here.
    pub claims: Vec<Claim>,
    /// The four ways.
    pub ways: Vec<OfWay>,
    /// What was found about this machine.
    #[serde(flatten)]
    pub found: Found,
    /// What was run.
    pub plan: Plan,
    /// Every run.
    pub runs: Vec<Run>,
}

// === impl Metric ===

impl Metric {
    /// All, in the order of tables.
    pub const ALL: [Self; 7] = [
        Self::StepsPerSecond,
        Self::StepMsP50,
        Self::StepMsP99,
        Self::ContextSwitchesPerStep,
        Self::ThrottledPeriodsPerSecond,
        Self::MigrationsPerStep,
        Self::CacheMissesPerStep,
    ];

    /// Its name for people; `step` is what a step is called.
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
    /// All: the three questions first, then their parts.
    pub const ALL: [Self; 7] = [
        Self::Pinned,
        Self::Right,
        Self::Both,
        Self::PinnedHost,
        Self::PinnedRight,
        Self::RightShared,
        Self::RightPinned,
    ];

    /// Its name for people.
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

    /// The pairs of ways whose ratios' mean it is: the way in question, and what it is compared with.
    fn pairs(self) -> Vec<(Way, Way)> {
        let way = |cpus, threads| Way { cpus, threads };
        let pinned = |threads| (way(Cpus::Pinned, threads), way(Cpus::Shared, threads));
        let right = |cpus| (way(cpus, Threads::Right), way(cpus, Threads::Host));
        match self {
            Self::Pinned => vec![pinned(Threads::Host), pinned(Threads::Right)],
            Self::Right => vec![right(Cpus::Shared), right(Cpus::Pinned)],
            Self::Both => vec![(
                way(Cpus::Pinned, Threads::Right),
                way(Cpus::Shared, Threads::Host),
            )],
            Self::PinnedHost => vec![pinned(Threads::Host)],
            Self::PinnedRight => vec![pinned(Threads::Right)],
            Self::RightShared => vec![right(Cpus::Shared)],
            Self::RightPinned => vec![right(Cpus::Pinned)],
        }
    }
}

// === impl Report ===

impl Report {
    /// Puts the runs together. A round that was not finished counts for nothing.
    pub fn new(plan: Plan, runs: Vec<Run>, found: Found) -> Self {
        let mut effects = Vec::new();
        for comparison in Comparison::ALL {
            effects.extend(Metric::ALL.map(|metric| effect(comparison, metric, &runs)));
        }
        let ways = Way::ALL
            .map(|way| {
                let of: Vec<&Run> = runs.iter().filter(|run| run.way == way).collect();
                let values = |metric| {
                    of.iter()
                        .filter_map(|run| run.figures.get(&metric).copied())
                        .collect()
                };
                let figure = |metric| {
                    let values: Vec<f64> = values(metric);
                    Some((metric, stats::summary(&values)?))
                };
                let figures = Metric::ALL.into_iter().filter_map(figure).collect();
                OfWay {
                    way,
                    thread_count: of.last().and_then(|run| run.thread_count),
                    figures,
                }
            })
            .to_vec();
        let claims = claims(&plan, &effects, &ways, &found);
        Self {
            effects,
            claims,
            ways,
            found,
            plan,
            runs,
        }
    }

    /// What a step is called: the whole of a command without steps is a run.
    pub fn step(&self) -> &'static str {
        if self.plan.whole() { "run" } else { "step" }
    }

    /// A comparison in one metric.
    pub fn effect(&self, comparison: Comparison, metric: Metric) -> Option<&Effect> {
        self.effects
            .iter()
            .find(|effect| effect.comparison == comparison && effect.metric == metric)
    }
}

fn effect(comparison: Comparison, metric: Metric, runs: &[Run]) -> Effect {
    let mut rounds = Vec::new();
    let (mut counted, mut zero) = (0, 0);
    let last = runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    for round in 0..last {
        let value = |way: Way| {
            let run = runs
                .iter()
                .find(|run| run.round == round && run.way == way)?;
            run.figures.get(&metric).copied()
        };
        let pairs: Option<Vec<(f64, f64)>> = comparison
            .pairs()
            .into_iter()
            .map(|(one, other)| Some((value(one)?, value(other)?)))
            .collect();
        let Some(pairs) = pairs else { continue };
        counted += 1;
        zero += usize::from(pairs.iter().all(|&(one, other)| one == 0.0 && other == 0.0));
        let ratios: Option<Vec<f64>> = pairs
            .iter()
            .map(|&(one, other)| stats::ratio(one, other))
            .collect();
        rounds.extend(ratios.and_then(|ratios| stats::mean_ratio(&ratios)));
    }
    // A median of the few rounds that happen to give a ratio would be a chosen one.
    let ratio = if rounds.len() == counted {
        stats::spread(&rounds)
    } else {
        None
    };
    let verdict = ratio.as_ref().map(stats::verdict);
    let words = match (&ratio, verdict) {
        (Some(ratio), Some(verdict)) if counted < last => {
            format!("{}, in {counted} of {last} rounds", words(ratio, verdict))
        }
        (Some(ratio), Some(verdict)) => words(ratio, verdict),
        _ if counted == 0 => "not counted".to_owned(),
        _ if zero == counted => "none in either".to_owned(),
        _ => "none to compare with".to_owned(),
    };
    Effect {
        comparison,
        metric,
        ratio,
        verdict,
        words,
        rounds,
    }
}

/// A ratio in words.
fn words(ratio: &Spread, verdict: Verdict) -> String {
    let (low, high) = (stats::percent(ratio.low), stats::percent(ratio.high));
    let span = format!("{} to {high}", low.trim_end_matches(" %"));
    match verdict {
        Verdict::TooFew => format!(
            "{}, too few rounds to tell ({span})",
            stats::percent(ratio.median)
        ),
        Verdict::NoDifference => format!("no difference beyond noise ({span})"),
        Verdict::More | Verdict::Less => format!("{} ({span})", stats::percent(ratio.median)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sandbox::bench::plan::{Wishes, tests::machine};

    /// A plan for a machine of two CPUs.
    pub(in crate::sandbox::bench) fn plan(rounds: usize) -> Plan {
        let wishes = Wishes {
            rounds,
            seconds: 1,
            neighbour_busy: 100,
            ..Wishes::default()
        };
        Plan::new(wishes, &machine(2), &"0".parse().unwrap()).unwrap()
    }

    /// Runs whose figures a function of round and way tells.
    pub(in crate::sandbox::bench) fn runs(
        rounds: usize,
        figures: impl Fn(usize, Way) -> Vec<(Metric, f64)>,
    ) -> Vec<Run> {
        let run = |(round, way)| Run {
            round,
            way,
            seconds: 1.0,
            steps: 100.0,
            thread_count: Some(7),
            figures: figures(round, way).into_iter().collect(),
        };
        (0..rounds)
            .flat_map(|round| Way::ALL.map(|way| (round, way)))
            .map(run)
            .collect()
    }

    /// A round is faster or slower as a whole; pinning gives 1.2 times, right threads 1.5 times.
    fn steps(round: usize, way: Way) -> Vec<(Metric, f64)> {
        let pinned = if way.cpus == Cpus::Pinned { 1.2 } else { 1.0 };
        let right = if way.threads == Threads::Right {
            1.5
        } else {
            1.0
        };
        let throttled = if way.cpus == Cpus::Pinned { 0.0 } else { 3.0 };
        vec![
            (
                Metric::StepsPerSecond,
                (10.0 + 5.0 * round as f64) * pinned * right,
            ),
            (Metric::ThrottledPeriodsPerSecond, throttled),
            (Metric::MigrationsPerStep, 0.0),
        ]
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let report = Report::new(plan(6), runs(6, steps), Found::default());
        for (comparison, expected) in [
            (Comparison::Pinned, 1.2),
            (Comparison::Right, 1.5),
            (Comparison::Both, 1.8),
            (Comparison::PinnedHost, 1.2),
            (Comparison::RightPinned, 1.5),
        ] {
            let effect = report.effect(comparison, Metric::StepsPerSecond).unwrap();
            let ratio = effect.ratio.unwrap();
            assert!(
                (ratio.low - expected).abs() < 1e-9 && (ratio.high - expected).abs() < 1e-9,
                "{effect:?}"
            );
            assert_eq!(
                (effect.verdict, effect.rounds.len()),
                (Some(Verdict::More), 6)
            );
        }
        let words = |comparison, metric| report.effect(comparison, metric).unwrap().words.as_str();
        assert_eq!(
            words(Comparison::Pinned, Metric::StepsPerSecond),
            "+20 % (+20 to +20 %)"
        );
        // Throttled periods go away, and there are none that right threads could take away from who is pinned.
        assert_eq!(
            words(Comparison::PinnedHost, Metric::ThrottledPeriodsPerSecond),
            "-100 % (-100 to -100 %)"
        );
        assert_eq!(
            words(Comparison::RightPinned, Metric::ThrottledPeriodsPerSecond),
            "none in either"
        );
        assert_eq!(
            words(Comparison::Pinned, Metric::MigrationsPerStep),
            "none in either"
        );
        assert_eq!(
            words(Comparison::Pinned, Metric::CacheMissesPerStep),
            "not counted"
        );
    }

    #[test]
    fn what_is_within_the_noise_is_said_to_be() {
        let noisy = |round: usize, way: Way| {
            let factor = if way.cpus == Cpus::Pinned {
                [0.95, 1.1, 1.02, 0.99, 1.04, 1.0][round]
            } else {
                1.0
            };
            vec![(Metric::StepsPerSecond, 100.0 * factor)]
        };
        let report = Report::new(plan(6), runs(6, noisy), Found::default());
        let effect = report
            .effect(Comparison::Pinned, Metric::StepsPerSecond)
            .unwrap();
        assert_eq!(effect.words, "no difference beyond noise (-5 to +10 %)");
        let few = Report::new(plan(3), runs(3, steps), Found::default());
        let effect = few
            .effect(Comparison::Pinned, Metric::StepsPerSecond)
            .unwrap();
        assert_eq!(effect.words, "+20 %, too few rounds to tell (+20 to +20 %)");
        let none = Report::new(plan(1), Vec::new(), Found::default());
        assert!(
            none.effects
                .iter()
                .all(|effect| effect.ratio.is_none() && effect.words == "not counted")
        );
    }

    #[test]
    fn a_ratio_that_some_rounds_lack_is_no_ratio() {
        let some = |round: usize, way: Way| {
            let base = if round == 0 { 0.0 } else { 2.0 };
            vec![(
                Metric::MigrationsPerStep,
                if way.cpus == Cpus::Pinned { 1.0 } else { base },
            )]
        };
        let report = Report::new(plan(6), runs(6, some), Found::default());
        let effect = report
            .effect(Comparison::Pinned, Metric::MigrationsPerStep)
            .unwrap();
        assert_eq!(
            (effect.ratio, effect.words.as_str()),
            (None, "none to compare with")
        );
    }
}
