//! [`BenchReport`]: the results of the runs, ratios first. The module only computes.

use serde::Serialize;

use super::claims::{Claim, claims};
use super::plan::{BenchPlan, Way};
use crate::experiment::statistics::{
    self, Condition, Contrast, Design, DesignOptions, Estimate, FEWEST_BLOCKS, Summary, Verdict,
};
use crate::text::units;

pub use super::effect::{Comparison, Effect, MachineFacts, Metric, Run, WaySummary};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchReport {
    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub compared: Vec<String>,
    pub effects: Vec<Effect>,
    /// The articles' claims, with the results on this machine.
    pub claims: Vec<Claim>,
    pub ways: Vec<WaySummary>,
    #[serde(flatten)]
    pub found: MachineFacts,
    pub plan: BenchPlan,
    pub runs: Vec<Run>,
}

// === impl BenchReport ===

impl BenchReport {
    /// Computes the results of the runs. An incomplete round has no ratios.
    ///
    /// # Errors
    /// A plan without rounds, and runs that the plan doesn't have.
    pub fn new(plan: BenchPlan, runs: Vec<Run>, found: MachineFacts) -> anyhow::Result<Self> {
        let effects = effects(plan.rounds.len(), &runs)?;
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
                    Some((metric, Summary::of(&values)?))
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
        Ok(Self {
            compared: plan.compared(),
            effects,
            claims,
            ways,
            found,
            plan,
            runs,
        })
    }

    /// The word for a step. A command without steps counts as one, called a "run".
    pub fn step(&self) -> &'static str {
        if self.plan.runs_to_end() {
            "run"
        } else {
            "step"
        }
    }

    pub fn effect(&self, comparison: Comparison, metric: Metric) -> Option<&Effect> {
        self.effects
            .iter()
            .find(|effect| effect.comparison == comparison && effect.metric == metric)
    }
}

/// The design of a bench: every way once in each round.
pub(super) fn design(rounds: usize) -> anyhow::Result<Design> {
    let options = DesignOptions {
        repeats: rounds,
        ..DesignOptions::default()
    };
    let ways = Way::ALL.map(Into::into);
    Ok(Design::new(Condition::all(1, 1, &ways), options)?)
}

/// All comparisons by all metrics. The plan of a bench names its three questions about steps per
/// second before the first run, so these have verdicts.
fn effects(rounds: usize, runs: &[Run]) -> anyhow::Result<Vec<Effect>> {
    let design = design(rounds)?;
    let answered = design.analyze(&values(Metric::StepsPerSecond, runs))?;
    let mut effects = Vec::new();
    for comparison in Comparison::ALL {
        let (question, part) = comparison.question();
        let answer = answered
            .iter()
            .find(|contrast| contrast.question == question && contrast.part == part);
        for metric in Metric::ALL {
            let values = values(metric, runs);
            let contrast = match answer {
                Some(answer) if metric == Metric::StepsPerSecond => answer.clone(),
                _ => design.show(question, part, &values)?,
            };
            let words = words(&contrast, &design, &values);
            effects.push(Effect {
                comparison,
                metric,
                ratio: contrast.estimate,
                verdict: contrast.verdict,
                smallest_effect: contrast.smallest_effect,
                words,
                rounds: contrast
                    .blocks
                    .iter()
                    .filter_map(|(_, ratio)| *ratio)
                    .collect(),
            });
        }
    }
    Ok(effects)
}

/// The values of a metric. A figure that is no number counts as missing.
pub(super) fn values(metric: Metric, runs: &[Run]) -> Vec<statistics::Run> {
    let value = |run: &Run| {
        let value = run.figures.get(&metric).copied()?;
        value.is_finite().then_some(statistics::Run {
            block: run.round,
            condition: Condition {
                scene: 0,
                case: 0,
                way: run.way.into(),
            },
            value,
        })
    };
    runs.iter().filter_map(value).collect()
}

fn words(contrast: &Contrast, design: &Design, values: &[statistics::Run]) -> String {
    let counted = contrast.blocks.len();
    match &contrast.estimate {
        Some(ratio) if contrast.missing > 0 => format!(
            "{}, in {counted} of {} rounds",
            ratio_words(ratio, contrast),
            design.repeats()
        ),
        Some(ratio) => ratio_words(ratio, contrast),
        None if counted == 0 => "not measured".to_owned(),
        None if is_zero(contrast, design, values) => "none in either".to_owned(),
        None => "none to compare with".to_owned(),
    }
}

/// Whether all compared values are 0.
fn is_zero(contrast: &Contrast, design: &Design, values: &[statistics::Run]) -> bool {
    let pairs = design.pairs(contrast.question, contrast.part);
    let is_compared = |run: &&statistics::Run| {
        pairs
            .iter()
            .any(|&(one, base)| run.condition == one || run.condition == base)
            && contrast.blocks.iter().any(|&(block, _)| block == run.block)
    };
    values
        .iter()
        .filter(is_compared)
        .all(|run| run.value == 0.0)
}

fn ratio_words(ratio: &Estimate, contrast: &Contrast) -> String {
    let center = units::change(ratio.center());
    let span = units::change_span(ratio.low, ratio.high);
    let shows = contrast
        .smallest_effect
        .map_or_else(String::new, |smallest| {
            // Rounded up, so that the sentence holds.
            let percent = ((smallest - 1.0) * 100.0).ceil().max(1.0);
            format!("; {percent:.0} % would show")
        });
    match contrast.verdict {
        _ if ratio.values < FEWEST_BLOCKS => {
            format!("{center}, too few rounds to tell ({span})")
        }
        Some(Verdict::NoEffect) => format!("no effect ({span}{shows})"),
        Some(Verdict::NotDistinguishable) => format!("not distinguishable ({span}{shows})"),
        Some(Verdict::More | Verdict::Less | Verdict::TooFew) | None => {
            format!("{center} ({span})")
        }
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
        let report = BenchReport::new(plan(6), runs(6, steps), MachineFacts::default()).unwrap();
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
                (ratio.low - expected).abs() < 1e-6 && (ratio.high - expected).abs() < 1e-6,
                "{effect:?}"
            );
            let is_question = matches!(
                comparison,
                Comparison::Pinned | Comparison::Right | Comparison::Both
            );
            assert_eq!(
                (effect.verdict, effect.rounds.len()),
                (is_question.then_some(Verdict::More), 6)
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
    fn an_effect_within_the_noise_is_called_so() {
        let report = |factors: [f64; 6]| {
            let figures = |round: usize, way: Way| {
                let is_pinned = way.cpus == Cpus::Pinned;
                let factor = if is_pinned { factors[round] } else { 1.0 };
                vec![(Metric::StepsPerSecond, 100.0 * factor)]
            };
            BenchReport::new(plan(6), runs(6, figures), MachineFacts::default()).unwrap()
        };
        let said = |report: &BenchReport, comparison| {
            let effect = report.effect(comparison, Metric::StepsPerSecond).unwrap();
            (effect.verdict, effect.words.clone())
        };
        let (noisy, quiet) = (
            report([0.85, 1.2, 1.02, 0.99, 1.04, 1.0]),
            report([0.99, 1.01, 1.02, 0.99, 1.0, 1.0]),
        );
        for (report, comparison, verdict, words) in [
            (
                &noisy,
                Comparison::Pinned,
                Some(Verdict::NotDistinguishable),
                "not distinguishable (-10 to +14 %; 25 % would show)",
            ),
            (
                &quiet,
                Comparison::Pinned,
                Some(Verdict::NoEffect),
                "no effect (-1 to +1 %; 3 % would show)",
            ),
            // A part of a question has no verdict.
            (&quiet, Comparison::PinnedHost, None, "0 % (-1 to +1 %)"),
        ] {
            assert_eq!(said(report, comparison), (verdict, words.to_owned()));
        }
        let few = BenchReport::new(plan(3), runs(3, steps), MachineFacts::default()).unwrap();
        let effect = few
            .effect(Comparison::Pinned, Metric::StepsPerSecond)
            .unwrap();
        assert_eq!(effect.words, "+20 %, too few rounds to tell (+20 to +20 %)");
        let none = BenchReport::new(plan(1), Vec::new(), MachineFacts::default()).unwrap();
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
        let report = BenchReport::new(plan(6), runs(6, some), MachineFacts::default()).unwrap();
        let effect = report
            .effect(Comparison::Pinned, Metric::MigrationsPerStep)
            .unwrap();
        assert_eq!(
            (effect.ratio, effect.words.as_str()),
            (None, "none to compare with")
        );
    }

    #[test]
    fn a_bench_that_lacks_a_round_says_so() {
        let mut some = runs(6, steps);
        some.retain(|run| run.round != 3 || run.way != Way::ALL[0]);
        let report = BenchReport::new(plan(6), some, MachineFacts::default()).unwrap();
        let words = |comparison| {
            report
                .effect(comparison, Metric::StepsPerSecond)
                .unwrap()
                .words
                .as_str()
        };
        assert_eq!(
            words(Comparison::Both),
            "+80 % (+80 to +80 %), in 5 of 6 rounds"
        );
        assert_eq!(words(Comparison::PinnedRight), "+20 % (+20 to +20 %)");
    }
}
