//! [`DemoReport`]: what the demo measured and proved. The module only computes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::proof::Proof;
use crate::cpu::CpuSet;
use crate::experiment::statistics::{
    Condition, Contrast, Design, DesignOptions, Estimate, Part, Question, Run, Verdict, Way,
    quantile,
};
use crate::sandbox::interference::MeasuredInterference;
use crate::sandbox::neighbors::NeighborKind;
use crate::text::{counted, units};

/// The fewest seconds of measurement that give an interval.
const FEWEST_SECONDS: u64 = 10;

named! {
    /// What is compared, in the order of the table.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric {
        StepsPerSecond => "steps/s, all workers",
        /// The time within which 99 of 100 steps end.
        StepMsP99 => "step time p99, ms",
        /// Context switches of the job, servers included, per step of a worker.
        ContextSwitchesPerStep => "context switches per step",
        /// Those at which the kernel took the CPU away from a thread.
        InvoluntarySwitchesPerStep => "of these, involuntary",
        /// CFS periods per second in which a quota of the job ran out.
        ThrottledPeriodsPerSecond => "throttled periods/s",
        /// How many CPUs the job used on average, servers included.
        UsedCpus => "CPUs used by the job",
        Threads => "threads of the job",
    }
}

/// The figures of a slice, or their medians. What could not be measured is absent.
pub type Figures = BTreeMap<Metric, f64>;

/// A slice of each way, one after the other.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Round {
    pub shared: Figures,
    pub pinned: Figures,
}

/// How a figure differs between the ways.
#[derive(Debug, Clone, Serialize)]
pub struct Effect {
    /// The figure pinned and sized, divided by that on shared CPUs, over all rounds; null if a round gives no ratio.
    pub ratio: Option<Estimate>,
    /// Only for steps per second, because one verdict of several would often be wrong.
    pub verdict: Option<Verdict>,
    pub words: String,
}

/// The state of a pod.
#[derive(Debug, Clone, Serialize)]
pub struct DemoRow {
    pub pod: String,
    pub role: String,
    pub qos: String,
    /// The CPUs on which the pod may run.
    pub cpus: CpuSet,
    pub exclusive: bool,
    /// The number of the pod's threads.
    pub threads: u64,
    /// The variables that the agent gave the pod.
    pub env: BTreeMap<String, String>,
    /// Training steps per second. For a server: requests per second.
    pub steps_per_second: f64,
    pub context_switches_per_second: f64,
    pub receive_bytes_per_second: f64,
    pub transmit_bytes_per_second: f64,
    /// CFS periods per second in which the quota ran out.
    pub throttled_periods_per_second: f64,
    /// Seconds from the first instruction until the assignment was effective.
    pub unpinned_seconds: Option<f64>,
    /// Why the container got fewer CPUs than its entitlement.
    pub note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct DemoReport {
    pub enforcement: &'static str,
    /// The use of the exclusive CPUs by programs outside the pods; null if the machine does not count it.
    pub interference: Option<MeasuredInterference>,
    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub compared: Vec<String>,
    /// What the agent could not do, a sentence each; with any of these, the ways differ less than they should.
    pub problems: Vec<String>,
    /// The kind of the pods beside the job.
    pub neighbors: NeighborKind,
    /// The measured time of all slices together, in seconds.
    pub seconds: f64,
    pub rounds: Vec<Round>,
    /// The medians on shared CPUs, with as many threads as the host has CPUs.
    pub shared: Figures,
    /// The medians on exclusive CPUs, with as many threads as exclusive CPUs.
    pub pinned: Figures,
    pub effects: BTreeMap<Metric, Effect>,
    /// What the steps per second say, as a sentence.
    pub conclusion: String,
    /// The attempts of a neighbor to get an exclusive CPU; null if no pod had one.
    pub proof: Option<Proof>,
    /// The pods of the last slice, with rates over that slice.
    pub pods: Vec<DemoRow>,
}

// === impl DemoReport ===

impl DemoReport {
    /// Whether no neighbor could keep an exclusive CPU. Without an exclusive CPU, nothing is proved.
    pub fn is_proved(&self) -> bool {
        self.proof.as_ref().is_some_and(Proof::holds)
    }
}

// === impl Round ===

impl Round {
    /// The medians over rounds, for each way.
    pub(super) fn medians(rounds: &[Self]) -> [Figures; 2] {
        let of = |pick: fn(&Self) -> &Figures| {
            let median = |metric: Metric| {
                let values = rounds.iter().filter_map(|round| pick(round).get(&metric));
                let values: Vec<f64> = values.copied().collect();
                Some((metric, quantile(&values, 0.5)?))
            };
            Metric::ALL.into_iter().filter_map(median).collect()
        };
        [of(|round| &round.shared), of(|round| &round.pinned)]
    }
}

/// Compares the ways within each round, so that a slow minute of the machine affects both.
///
/// # Errors
/// No rounds.
pub(super) fn effects(rounds: &[Round]) -> anyhow::Result<BTreeMap<Metric, Effect>> {
    let options = DesignOptions {
        repeats: rounds.len(),
        ..DesignOptions::default()
    };
    let design = Design::new(Condition::all(1, 1, &WAYS), options)?;
    let mut effects = BTreeMap::new();
    for metric in Metric::ALL {
        let runs = runs(metric, rounds);
        let contrasts = if metric == Metric::StepsPerSecond {
            design.analyze(&runs)?
        } else {
            vec![design.show(Question::Both, Part::default(), &runs)?]
        };
        for contrast in &contrasts {
            let effect = Effect {
                ratio: contrast.estimate,
                verdict: contrast.verdict,
                words: words(contrast),
            };
            effects.insert(metric, effect);
        }
    }
    Ok(effects)
}

/// Shared CPUs with the host's threads, and exclusive CPUs with sized threads.
const WAYS: [Way; 2] = [
    Way {
        exclusive: false,
        sized: false,
    },
    Way {
        exclusive: true,
        sized: true,
    },
];

/// The values of a metric. A figure that is no number counts as missing.
fn runs(metric: Metric, rounds: &[Round]) -> Vec<Run> {
    let run = |block: usize, way: Way, figures: &Figures| {
        let value = figures
            .get(&metric)
            .copied()
            .filter(|one| one.is_finite())?;
        let condition = Condition {
            scene: 0,
            case: 0,
            way,
        };
        Some(Run {
            block,
            condition,
            value,
        })
    };
    let both = |(block, round): (usize, &Round)| {
        let slices = WAYS.into_iter().zip([&round.shared, &round.pinned]);
        let runs = slices.filter_map(|(way, figures)| run(block, way, figures));
        runs.collect::<Vec<_>>()
    };
    rounds.iter().enumerate().flat_map(both).collect()
}

fn words(contrast: &Contrast) -> String {
    let Some(ratio) = contrast.estimate else {
        return "-".to_owned();
    };
    let center = units::change(ratio.center());
    let span = units::change_span(ratio.low, ratio.high);
    if units::change(ratio.low) == units::change(ratio.high) {
        return center;
    }
    let includes_none = ratio.low <= 1.0 && ratio.high >= 1.0;
    match (ratio.confidence, contrast.verdict) {
        (Some(_), Some(Verdict::NoEffect)) => format!("no effect ({span})"),
        (Some(_), _) if includes_none => format!("not distinguishable ({span})"),
        _ => format!("{center} ({span})"),
    }
}

/// What the steps per second say, as a sentence.
pub(super) fn conclusion(effects: &BTreeMap<Metric, Effect>, rounds: usize) -> String {
    let steps = effects.get(&Metric::StepsPerSecond);
    let Some((effect, ratio)) = steps.and_then(|effect| Some((effect, effect.ratio?))) else {
        return "Some slice had no step, so the ways can't be compared: raise --seconds."
            .to_owned();
    };
    let span = units::change_span(ratio.low, ratio.high);
    match effect.verdict {
        Some(Verdict::More | Verdict::Less) => format!(
            "Pinned and sized, the job made {} steps/s, with 95 % confidence {span}.",
            units::change(ratio.center())
        ),
        Some(Verdict::NoEffect) => format!(
            "Steps/s differ by less than 10 %: the 95 % interval ({span}) includes no difference."
        ),
        Some(Verdict::NotDistinguishable) => format!(
            "The 95 % interval of steps/s ({span}) includes no difference, so this run shows none. A longer run narrows it: \
             --seconds 120."
        ),
        Some(Verdict::TooFew) | None => format!(
            "{} can't tell a difference from noise: use --seconds {FEWEST_SECONDS} or more.",
            counted(rounds, "round")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that differ as a whole. `factors` are the ratios of the ways.
    fn rounds(factors: &[f64]) -> Vec<Round> {
        let round = |(number, factor): (usize, &f64)| {
            let shared = 100.0 + 40.0 * (number % 3) as f64;
            Round {
                shared: Figures::from([
                    (Metric::StepsPerSecond, shared),
                    (Metric::ThrottledPeriodsPerSecond, 3.0),
                    (Metric::UsedCpus, f64::NAN),
                    (Metric::Threads, 2.0),
                ]),
                pinned: Figures::from([
                    (Metric::StepsPerSecond, shared * factor),
                    (Metric::ThrottledPeriodsPerSecond, 0.0),
                    (Metric::UsedCpus, 1.0),
                    (Metric::Threads, 1.0),
                ]),
            }
        };
        factors.iter().enumerate().map(round).collect()
    }

    fn said(factors: &[f64]) -> (String, String) {
        let effects = effects(&rounds(factors)).unwrap();
        let steps = effects[&Metric::StepsPerSecond].words.clone();
        (steps, conclusion(&effects, factors.len()))
    }

    #[test]
    fn ways_are_compared_within_a_round() {
        let rounds = rounds(&[1.1, 1.2, 1.3, 1.2, 1.1, 1.3]);
        let [shared, pinned] = Round::medians(&rounds);
        assert!((shared[&Metric::StepsPerSecond] - 140.0).abs() < 1e-9);
        assert!((pinned[&Metric::Threads] - 1.0).abs() < 1e-9);
        let effects = effects(&rounds).unwrap();
        let words = |metric| effects[&metric].words.as_str();
        assert_eq!(words(Metric::ThrottledPeriodsPerSecond), "-100 %");
        assert_eq!(words(Metric::Threads), "-50 %");
        assert_eq!(
            (words(Metric::UsedCpus), words(Metric::StepMsP99)),
            ("-", "-")
        );
        let only = effects
            .iter()
            .filter(|(_, effect)| effect.verdict.is_some());
        assert_eq!(only.count(), 1);
    }

    #[test]
    fn the_conclusion_says_when_no_difference_is_shown() {
        let (words, sentence) = said(&[1.1, 1.2, 1.3, 1.2, 1.1, 1.3]);
        assert_eq!(words, "+20 % (+11 to +29 %)");
        assert_eq!(
            sentence,
            "Pinned and sized, the job made +20 % steps/s, with 95 % confidence +11 to +29 %."
        );
        let (words, sentence) = said(&[0.8, 1.3, 1.1, 0.9, 1.2, 1.0]);
        assert!(words.starts_with("not distinguishable (-"), "{words}");
        assert!(
            sentence.contains("includes no difference, so this run shows none"),
            "{sentence}"
        );
        let (words, sentence) = said(&[0.99, 1.01, 1.02, 0.99, 1.0, 1.0]);
        assert!(words.starts_with("no effect (-1 to +"), "{words}");
        assert!(sentence.contains("less than 10 %"), "{sentence}");
    }

    #[test]
    fn few_rounds_and_rounds_without_a_step_tell_nothing() {
        let (words, sentence) = said(&[1.3]);
        assert_eq!(words, "+30 %");
        assert!(sentence.starts_with("1 round can't tell"), "{sentence}");
        let (words, sentence) = said(&[1.3, 1.1]);
        assert_eq!(words, "+20 % (+10 to +30 %)");
        assert!(sentence.starts_with("2 rounds can't tell"), "{sentence}");
        let mut silent = rounds(&[1.0; 6]);
        silent[2].shared.insert(Metric::StepsPerSecond, 0.0);
        let effects = effects(&silent).unwrap();
        assert_eq!(effects[&Metric::StepsPerSecond].words, "-");
        assert!(conclusion(&effects, 6).starts_with("Some slice had no step"));
    }
}
