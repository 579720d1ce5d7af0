//! How often intervals and verdicts are right, in simulated experiments whose true ratios are known.

use fastrand::Rng;

use super::super::*;

const EXPERIMENTS: u32 = 2000;

/// What disturbs the runs, in logarithms. `spread` is the size of the noise of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noise {
    /// Normal, independent from run to run.
    Normal,
    /// Normal, on a machine that becomes up to 30 % faster or slower from the first run to the last, with waves of up to 5 %
    /// and a random walk of half a percent per run.
    Drift,
    /// Exponential: a run can be much slower than the others, and hardly faster. Exclusive CPUs halve it, so that it remains in
    /// the ratios: between equally skewed runs, it would cancel.
    Skewed,
    /// Normal, and one of 20 runs is slower by 20 to 40 %.
    Outliers,
}

/// True effects, as logarithms of ratios. That of both factors is the sum of the first two.
#[derive(Debug, Clone, Copy, Default)]
struct Effects {
    exclusive: f64,
    sized: f64,
    scene: f64,
}

#[derive(Debug, Clone)]
struct Experiment {
    design: Design,
    noise: Noise,
    /// The size of the noise of a run: 0.02 is 2 %.
    spread: f64,
    effects: Effects,
}

/// What was found about a question, over all experiments.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// The true logarithm.
    truth: f64,
    /// How many of the experiments have an interval that holds it.
    covered: u32,
    more: u32,
    less: u32,
    no_effect: u32,
    /// The sum of the logarithms of the smallest effects.
    smallest: f64,
}

/// The tallies of the primary questions, and how often any of them was answered wrongly.
#[derive(Debug, Clone)]
struct Tallies {
    questions: Vec<Tally>,
    /// Experiments that name an effect where there is none.
    invented: u32,
    /// Experiments that deny an effect at the margin or above.
    denied: u32,
}

// === impl Experiment ===

impl Experiment {
    /// The bench: three primary questions, one of which has a single pair of runs in each block. Nothing is harder to answer.
    fn bench(noise: Noise, spread: f64, effects: Effects) -> Self {
        Self::new(1, &Way::ALL, noise, spread, effects)
    }

    /// Two scenes with one case: four primary questions.
    fn scenes(noise: Noise, spread: f64, effects: Effects) -> Self {
        Self::new(2, &Way::ALL, noise, spread, effects)
    }

    fn new(scenes: usize, ways: &[Way], noise: Noise, spread: f64, effects: Effects) -> Self {
        let conditions = Condition::all(scenes, 1, ways);
        Self {
            design: Design::new(conditions, DesignOptions::default()).unwrap(),
            noise,
            spread,
            effects,
        }
    }

    fn truth(&self, question: Question) -> f64 {
        match question {
            Question::Exclusive => self.effects.exclusive,
            Question::Sized => self.effects.sized,
            Question::Both => self.effects.exclusive + self.effects.sized,
            Question::Scene(_) => self.effects.scene,
        }
    }

    /// The runs of an experiment, the conditions of each block in random order.
    fn runs(&self, random: &mut Rng) -> Vec<Run> {
        let mut conditions: Vec<Condition> = self.design.conditions().collect();
        let count = conditions.len() * self.design.repeats();
        let (slope, wave) = (0.6 * (random.f64() - 0.5), 0.05 * random.f64());
        let mut walk = 0.0;
        let mut runs = Vec::with_capacity(count);
        for block in 0..self.design.repeats() {
            random.shuffle(&mut conditions);
            for &condition in &conditions {
                let Way { exclusive, sized } = condition.way;
                let mut log = self.noise_of_a_run(condition, random);
                if self.noise == Noise::Drift {
                    let phase = runs.len() as f64 / count as f64;
                    walk += 0.005 * normal(random);
                    log += slope * phase + wave * (9.0 * phase).sin() + walk;
                }
                log += if exclusive {
                    self.effects.exclusive
                } else {
                    0.0
                };
                log += if sized { self.effects.sized } else { 0.0 };
                log += if condition.scene == 1 {
                    self.effects.scene
                } else {
                    0.0
                };
                runs.push(Run {
                    block,
                    condition,
                    value: 100.0 * log.exp(),
                });
            }
        }
        runs
    }

    /// The noise of a run, without drift. Its mean is 0, but for outliers, which slow all conditions alike.
    fn noise_of_a_run(&self, condition: Condition, random: &mut Rng) -> f64 {
        match self.noise {
            Noise::Normal | Noise::Drift => self.spread * normal(random),
            Noise::Skewed => {
                let calm = if condition.way.exclusive { 0.5 } else { 1.0 };
                self.spread * calm * (1.0 + (1.0 - random.f64()).ln())
            }
            Noise::Outliers => {
                let is_disturbed = random.f64() < 0.05;
                let slower = if is_disturbed {
                    (0.6 + 0.2 * random.f64()).ln()
                } else {
                    0.0
                };
                self.spread * normal(random) + slower
            }
        }
    }

    /// Simulates and analyzes many experiments.
    fn tally(&self) -> Tallies {
        let mut random = Rng::with_seed(42);
        let truth = |&question: &Question| Tally {
            truth: self.truth(question),
            ..Tally::default()
        };
        let mut tallies = Tallies {
            questions: self.design.primary().iter().map(truth).collect(),
            invented: 0,
            denied: 0,
        };
        for _ in 0..EXPERIMENTS {
            tallies.add(&self.design.analyze(&self.runs(&mut random)).unwrap());
        }
        tallies
    }
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, contrast: &Contrast) {
        let estimate = contrast.estimate.unwrap();
        let ends = estimate.low.ln()..=estimate.high.ln();
        self.covered += u32::from(ends.contains(&self.truth));
        self.smallest += contrast.smallest_effect.unwrap().ln();
        match contrast.verdict.unwrap() {
            Verdict::More => self.more += 1,
            Verdict::Less => self.less += 1,
            Verdict::NoEffect => self.no_effect += 1,
            Verdict::TooFew | Verdict::NotDistinguishable => {}
        }
    }

    /// Whether there is no effect.
    fn is_null(&self) -> bool {
        self.truth.abs() < 1e-9
    }

    /// Whether the effect is at least as large as a ratio, or as its inverse.
    fn is_at_least(&self, ratio: f64) -> bool {
        self.truth.abs() > ratio.ln() - 1e-9
    }

    /// How often an effect was named with the right direction.
    fn named(&self) -> u32 {
        if self.truth > 0.0 {
            self.more
        } else {
            self.less
        }
    }
}

// === impl Tallies ===

impl Tallies {
    fn add(&mut self, contrasts: &[Contrast]) {
        let (mut invented, mut denied) = (false, false);
        for (tally, contrast) in self.questions.iter_mut().zip(contrasts) {
            tally.add(contrast);
            let is_named = matches!(contrast.verdict, Some(Verdict::More | Verdict::Less));
            invented |= tally.is_null() && is_named;
            denied |= tally.is_at_least(1.1) && contrast.verdict == Some(Verdict::NoEffect);
        }
        self.invented += u32::from(invented);
        self.denied += u32::from(denied);
    }
}

/// A normal value with the standard deviation 1 (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

fn percent(count: u32) -> f64 {
    f64::from(count) * 100.0 / f64::from(EXPERIMENTS)
}

/// Nothing; ratios of 1.1 and its inverse; 1.2 and its inverse.
fn all_effects() -> [Effects; 4] {
    let (ten, twenty) = (1.1_f64.ln(), 1.2_f64.ln());
    let effects = |exclusive, sized, scene| Effects {
        exclusive,
        sized,
        scene,
    };
    [
        Effects::default(),
        effects(ten, 0.0, -ten),
        effects(-ten, ten, ten),
        effects(twenty, 0.0, -twenty),
    ]
}

/// Checks the intervals and the wrong verdicts, whatever the effects, with little and with much noise. `invented` is the most
/// experiments, in percent, that may name effects that aren't there.
fn check(noise: Noise, covered: f64, invented: f64) {
    for spread in [0.02, 0.08] {
        for effects in all_effects() {
            for experiment in [Experiment::bench, Experiment::scenes] {
                let experiment = experiment(noise, spread, effects);
                let tallies = experiment.tally();
                let shown = format!("{experiment:#?}: {tallies:#?}");
                for tally in &tallies.questions {
                    assert!(percent(tally.covered) >= covered, "{shown}");
                    let denied = percent(tally.no_effect);
                    assert!(!tally.is_at_least(1.1) || denied <= 5.0, "{shown}");
                    assert!(!tally.is_at_least(1.2) || denied <= 0.5, "{shown}");
                }
                assert!(percent(tallies.invented) <= invented, "{shown}");
                assert!(percent(tallies.denied) <= 6.5, "{shown}");
            }
        }
    }
}

/// Checks that effects of 10 % are named, and that no effect is called so, in at least so many percent.
fn decides(noise: Noise, spread: f64, named: f64, no_effect: f64) {
    let [nothing, ten, ..] = all_effects();
    for experiment in [Experiment::bench, Experiment::scenes] {
        let tallies = experiment(noise, spread, nothing).tally();
        for tally in &tallies.questions {
            assert!(
                percent(tally.no_effect) >= no_effect,
                "{noise:?} {spread}: {tallies:#?}"
            );
        }
        let tallies = experiment(noise, spread, ten).tally();
        for tally in &tallies.questions {
            let shown = || format!("{noise:?} {spread}: {tallies:#?}");
            if tally.is_null() {
                // All other questions have their effects, and the last step of Holm's method invents one here in 5 % of the
                // experiments, as it may. Then "no effect" can't be said in more than 95 %, and a sample may have less.
                assert!(
                    percent(tally.no_effect) >= no_effect.min(93.5),
                    "{}",
                    shown()
                );
            } else {
                assert!(percent(tally.named()) >= named, "{}", shown());
            }
        }
    }
}

// A share of 5 % has a standard error of half a percent over 2,000 experiments, and three of them are allowed.

#[test]
fn normal_noise() {
    check(Noise::Normal, 93.0, 6.5);
}

#[test]
fn drift() {
    check(Noise::Drift, 93.0, 6.5);
}

#[test]
fn skewed_noise() {
    check(Noise::Skewed, 90.0, 8.0);
}

#[test]
fn outliers() {
    check(Noise::Outliers, 90.0, 6.5);
}

#[test]
fn small_noise_leads_to_a_decision() {
    decides(Noise::Normal, 0.02, 95.0, 95.0);
    decides(Noise::Normal, 0.03, 80.0, 85.0);
    // Drift cancels within the blocks.
    decides(Noise::Drift, 0.02, 95.0, 95.0);
}

/// Whoever extends the experiment whenever something is left undecided is as sure as without an extension.
#[test]
fn two_looks_are_as_sure_as_one() {
    for effects in all_effects() {
        let mut experiment = Experiment::bench(Noise::Normal, 0.08, effects);
        let options = DesignOptions {
            extendable: true,
            ..DesignOptions::default()
        };
        let short = Design::new(experiment.design.conditions(), options).unwrap();
        experiment.design = short.clone().extend(USUAL_REPEATS).unwrap();
        let mut random = Rng::with_seed(42);
        let questions = experiment.design.primary().to_vec();
        let (mut missed, mut invented) = ([0, 0, 0], 0);
        for _ in 0..EXPERIMENTS {
            let runs = experiment.runs(&mut random);
            let first = &runs[..runs.len() / 2];
            let looks = [
                short.analyze(first).unwrap(),
                experiment.design.analyze(&runs).unwrap(),
            ];
            let mut is_invented = false;
            for (at, question) in questions.iter().enumerate() {
                let truth = experiment.truth(*question);
                let misses = |look: &Vec<Contrast>| {
                    let estimate = look[at].estimate.unwrap();
                    truth < estimate.low.ln() || estimate.high.ln() < truth
                };
                let names = |look: &Vec<Contrast>| {
                    matches!(look[at].verdict, Some(Verdict::More | Verdict::Less))
                };
                missed[at] += u32::from(looks.iter().any(misses));
                is_invented |= truth.abs() < 1e-9 && looks.iter().any(names);
            }
            invented += u32::from(is_invented);
        }
        for missed in missed {
            assert!(percent(missed) <= 6.5, "{effects:?}: {missed}");
        }
        assert!(percent(invented) <= 6.5, "{effects:?}: {invented}");
    }
}

/// An effect that is as large as the smallest that an experiment says it can show is named in 80 % of such experiments.
#[test]
fn the_smallest_effect_is_the_smallest() {
    let [usual, .., both] = Way::ALL;
    for repeats in [5, 6, 12] {
        let with = |effect: f64| {
            let effects = Effects {
                exclusive: effect,
                ..Effects::default()
            };
            let mut experiment = Experiment::new(2, &[usual, both], Noise::Normal, 0.03, effects);
            let options = DesignOptions {
                repeats,
                ..DesignOptions::default()
            };
            experiment.design = Design::new(experiment.design.conditions(), options).unwrap();
            experiment.tally().questions[0].clone()
        };
        let smallest = with(0.0).smallest / f64::from(EXPERIMENTS);
        let named = percent(with(smallest).named());
        assert!(
            (77.0..=83.0).contains(&named),
            "{repeats} repeats: {smallest} is named in {named} %"
        );
    }
}
