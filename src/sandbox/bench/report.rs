//! [`BenchReport`]: the results of the runs, ratios first. The module only computes.

use serde::Serialize;

use super::claims::{Claim, claims};
use super::plan::{BenchPlan, Way};
use super::stats::{self, Conclusion, Spread};

pub use super::model::{Comparison, Effect, MachineFacts, Metric, Run, WaySummary};

/// The result of a bench.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchReport {
    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub compared: Vec<String>,
    /// The ratios.
    pub effects: Vec<Effect>,
    /// The articles' claims, with the results on this machine.
    pub claims: Vec<Claim>,
    /// The four ways.
    pub ways: Vec<WaySummary>,
    /// The machine of the bench.
    #[serde(flatten)]
    pub found: MachineFacts,
    /// The plan of the bench.
    pub plan: BenchPlan,
    /// Every run.
    pub runs: Vec<Run>,
}

// === impl Report ===

impl BenchReport {
    /// Computes the results of the runs. An incomplete round has no ratios.
    pub fn new(plan: BenchPlan, runs: Vec<Run>, found: MachineFacts) -> Self {
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
                WaySummary {
                    way,
                    thread_count: of.last().and_then(|run| run.thread_count),
                    figures,
                }
            })
            .to_vec();
        let claims = claims(&plan, &effects, &ways, &found);
        Self {
            compared: plan.compared(),
            effects,
            claims,
            ways,
            found,
            plan,
            runs,
        }
    }

    /// The word for a step. A command without steps counts as one step, with the word "run".
    pub fn step(&self) -> &'static str {
        if self.plan.runs_to_end() {
            "run"
        } else {
            "step"
        }
    }

    /// A comparison by a metric.
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
    // A median over only a part of the rounds would be a biased selection.
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
        _ if counted == 0 => "not measured".to_owned(),
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
fn words(ratio: &Spread, verdict: Conclusion) -> String {
    let (low, high) = (stats::percent(ratio.low), stats::percent(ratio.high));
    let span = format!("{} to {high}", low.trim_end_matches(" %"));
    match verdict {
        Conclusion::TooFew => format!(
            "{}, too few rounds to tell ({span})",
            stats::percent(ratio.median)
        ),
        Conclusion::NoDifference => format!("no difference beyond noise ({span})"),
        Conclusion::More | Conclusion::Less => format!("{} ({span})", stats::percent(ratio.median)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{Cpus, ThreadChoice};
    use super::*;
    use crate::sandbox::bench::plan::{PlanOptions, tests::machine};

    /// A plan for a machine of two CPUs.
    pub(in crate::sandbox::bench) fn plan(rounds: usize) -> BenchPlan {
        let options = PlanOptions {
            rounds,
            seconds: 1,
            ..PlanOptions::default()
        };
        BenchPlan::new(options, &machine(2), &"0".parse().unwrap()).unwrap()
    }

    /// Runs with figures from a function of round and way.
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
            interference: None,
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
        let right = if way.threads == ThreadChoice::Right {
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
        let report = BenchReport::new(plan(6), runs(6, steps), MachineFacts::default());
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
                (Some(Conclusion::More), 6)
            );
        }
        let words = |comparison, metric| report.effect(comparison, metric).unwrap().words.as_str();
        assert_eq!(
            words(Comparison::Pinned, Metric::StepsPerSecond),
            "+20 % (+20 to +20 %)"
        );
        // Throttled periods disappear with pinning. A pinned pod has none that right thread counts could remove.
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
            "not measured"
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
        let report = BenchReport::new(plan(6), runs(6, noisy), MachineFacts::default());
        let effect = report
            .effect(Comparison::Pinned, Metric::StepsPerSecond)
            .unwrap();
        assert_eq!(effect.words, "no difference beyond noise (-5 to +10 %)");
        let few = BenchReport::new(plan(3), runs(3, steps), MachineFacts::default());
        let effect = few
            .effect(Comparison::Pinned, Metric::StepsPerSecond)
            .unwrap();
        assert_eq!(effect.words, "+20 %, too few rounds to tell (+20 to +20 %)");
        let none = BenchReport::new(plan(1), Vec::new(), MachineFacts::default());
        assert!(
            none.effects
                .iter()
                .all(|effect| effect.ratio.is_none() && effect.words == "not measured")
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
        let report = BenchReport::new(plan(6), runs(6, some), MachineFacts::default());
        let effect = report
            .effect(Comparison::Pinned, Metric::MigrationsPerStep)
            .unwrap();
        assert_eq!(
            (effect.ratio, effect.words.as_str()),
            (None, "none to compare with")
        );
    }
}
