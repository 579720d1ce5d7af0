//! [`Comparisons`]: the answers of an experiment in sentences, from its design and the values of its runs. The bench uses it, too.

use super::names::{Names, Phrases};
use crate::experiment::results::outcome::{
    Answer, ConditionName, ConditionOutcome, CurvePoint, RunValue, SpeedupCurve,
};
use crate::experiment::statistics::{
    Condition, Contrast, Design, Estimate, FEWEST_BLOCKS, Part, Question, Run, RunError, Verdict,
    Way,
};
use crate::text::{counted, units};

/// An experiment, as far as comparisons need it.
#[derive(Debug)]
pub struct Comparisons<'a> {
    pub design: &'a Design,
    /// The runs that count.
    pub runs: &'a [Run],
    pub names: &'a Names,
}

// === impl Comparisons ===

impl Comparisons<'_> {
    /// The primary questions with their verdicts.
    ///
    /// # Errors
    /// As [`Design::analyze`].
    pub fn answers(&self) -> Result<Vec<Answer>, RunError> {
        let contrasts = self.design.analyze(self.runs)?;
        Ok(contrasts.iter().map(|one| self.answer(one)).collect())
    }

    /// The primary questions in each part of the experiment, without verdicts.
    ///
    /// # Errors
    /// As [`Design::analyze`].
    pub fn others(&self) -> Result<Vec<Answer>, RunError> {
        let mut others = Vec::new();
        for &question in self.design.primary() {
            let whole = self.design.pairs(question, Part::default()).len();
            for part in self.parts(question) {
                let pairs = self.design.pairs(question, part).len();
                if pairs > 0 && pairs < whole {
                    others.push(self.answer(&self.design.show(question, part, self.runs)?));
                }
            }
        }
        Ok(others)
    }

    /// The parts in which a question is asked again: by each factor that it doesn't change itself.
    fn parts(&self, question: Question) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut scenes: Vec<usize> = self.design.conditions().map(|one| one.scene).collect();
        scenes.dedup();
        let mut cases: Vec<usize> = self.design.conditions().map(|one| one.case).collect();
        cases.sort_unstable();
        cases.dedup();
        if !matches!(question, Question::Scene(_)) {
            parts.extend(scenes.iter().map(|&scene| Part {
                scene: Some(scene),
                ..Part::default()
            }));
        }
        parts.extend(cases.iter().map(|&case| Part {
            case: Some(case),
            ..Part::default()
        }));
        let levels = [Some(false), Some(true)];
        if matches!(question, Question::Sized | Question::Scene(_)) {
            parts.extend(levels.map(|exclusive| Part {
                exclusive,
                ..Part::default()
            }));
        }
        if matches!(question, Question::Exclusive | Question::Scene(_)) {
            parts.extend(levels.map(|sized| Part {
                sized,
                ..Part::default()
            }));
        }
        parts
    }

    fn answer(&self, contrast: &Contrast) -> Answer {
        let phrases = self.names.phrases(contrast.question);
        Answer {
            part: self.names.part(&contrast.part),
            verdict: contrast.verdict,
            sentence: self.sentence(contrast, &phrases),
            certainty: self.certainty(contrast),
            advice: self.advice(contrast),
            title: phrases.title,
            estimate: contrast.estimate,
            smallest_effect: contrast.smallest_effect,
            ratios: contrast
                .blocks
                .iter()
                .filter_map(|(_, ratio)| *ratio)
                .collect(),
            missing: contrast.missing,
        }
    }

    fn sentence(&self, contrast: &Contrast, phrases: &Phrases) -> String {
        let Phrases {
            with,
            factor,
            makes,
            ..
        } = phrases;
        let Some(estimate) = contrast.estimate else {
            return format!("{factor}: these runs give no answer.");
        };
        let amount = amount(estimate.center());
        let matters = change_of_margin(self.design.margin());
        match contrast.verdict {
            Some(Verdict::More | Verdict::Less) if contrast.is_within_margin => format!(
                "{with}, the job is {amount}. That is a small difference: it lies within {matters}, which was fixed before the first \
                 run as too small to matter."
            ),
            Some(Verdict::More | Verdict::Less) => format!("{with}, the job is {amount}."),
            Some(Verdict::NoEffect) => format!("{factor} {makes} no difference that matters."),
            Some(Verdict::NotDistinguishable) => format!(
                "{factor} may or may not make a difference: these runs can't tell, and more repeats would."
            ),
            Some(Verdict::TooFew) => format!(
                "{with}, the job was {amount} in the middle one of {}: too few for a verdict.",
                counted(estimate.values, "repeat")
            ),
            None => format!("{with}, the job was {amount}."),
        }
    }

    /// What to do about a verdict; empty if nothing follows from it.
    fn advice(&self, contrast: &Contrast) -> String {
        let faster = match contrast.verdict {
            Some(Verdict::More) => true,
            Some(Verdict::Less) => false,
            _ => return String::new(),
        };
        match (contrast.question, faster) {
            (Question::Exclusive, true) => "Give the tasks exclusive CPUs".to_owned(),
            (Question::Exclusive, false) => "Leave the tasks on shared CPUs".to_owned(),
            (Question::Sized, true) => "Let Pinfold set the thread counts".to_owned(),
            (Question::Sized, false) => "Keep the program's own thread counts".to_owned(),
            // The two single questions say more.
            (Question::Both, _) => String::new(),
            (Question::Scene(scene), true) => {
                format!("Use the layout of {}", self.names.scene(scene))
            }
            (Question::Scene(scene), false) => {
                format!(
                    "Use the layout of {} rather than that of {}",
                    self.names.scene(0),
                    self.names.scene(scene)
                )
            }
        }
    }

    fn certainty(&self, contrast: &Contrast) -> String {
        let (used, planned) = (contrast.blocks.len(), self.design.repeats());
        let mut text = match contrast.estimate {
            None if used == 0 => "No repeat has all runs of this comparison.".to_owned(),
            None => {
                "A run to compare with made no progress at all, so there is no ratio.".to_owned()
            }
            Some(one) => match one.confidence {
                Some(confidence) => format!(
                    "The true difference lies between {} and {} with {} confidence ({}).",
                    units::change(one.low),
                    units::change(one.high),
                    percent(confidence),
                    counted(used, "repeat")
                ),
                None => format!(
                    "The repeats range from {} to {}; how sure that is can be said from {FEWEST_BLOCKS} repeats on.",
                    units::change(one.low),
                    units::change(one.high)
                ),
            },
        };
        if contrast.verdict == Some(Verdict::NoEffect) {
            text += &format!(
                " That is within {}, which was fixed before the first run as too small to matter.",
                change_of_margin(self.design.margin())
            );
        }
        if let Some(smallest) = contrast.smallest_effect {
            text += &format!(
                " Had there been a real difference of {} or more, 8 of 10 such experiments would have found it.",
                smallest_words(smallest)
            );
        }
        if contrast.missing > 0 && used > 0 {
            let lack = match contrast.missing {
                1 => "lacks a run of this comparison and is",
                _ => "lack a run of this comparison and are",
            };
            text += &format!(
                " {} of {planned} repeats {lack} left out.",
                contrast.missing
            );
        }
        text
    }

    /// Each condition with its runs.
    pub fn conditions(&self, numbers: impl Fn(usize, Condition) -> u32) -> Vec<ConditionOutcome> {
        let of = |condition: Condition| {
            let runs = self.runs.iter().filter(|run| run.condition == condition);
            let runs: Vec<RunValue> = runs
                .map(|run| RunValue {
                    number: numbers(run.block, condition),
                    repeat: run.block + 1,
                    value: run.value,
                })
                .collect();
            let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
            ConditionOutcome {
                condition: self.names.of_condition(condition),
                estimate: Estimate::of(&values, self.design.confidence()),
                runs,
                planned: self.design.repeats(),
            }
        };
        self.design.conditions().map(of).collect()
    }

    /// The speedup over the cases of each scene and way; `workers` tells how many a case has. Nothing where all cases have the same
    /// number.
    ///
    /// # Errors
    /// As [`Design::analyze`].
    pub fn speedup(
        &self,
        workers: impl Fn(usize) -> Vec<f64>,
    ) -> Result<Vec<SpeedupCurve>, RunError> {
        let mut keys: Vec<(usize, Way)> = Vec::new();
        for Condition { scene, way, .. } in self.design.conditions() {
            if !keys.contains(&(scene, way)) {
                keys.push((scene, way));
            }
        }
        let mut curves = Vec::new();
        for (scene, way) in keys {
            let part = Part {
                scene: Some(scene),
                case: None,
                exclusive: Some(way.exclusive),
                sized: Some(way.sized),
            };
            let points = self.design.speedup(part, &workers(scene), self.runs)?;
            if points.iter().all(|point| point.ideal <= 1.0) {
                continue;
            }
            let points = points.into_iter().map(|point| CurvePoint {
                case: self.names.case(scene, point.case),
                workers: point.size,
                ideal: point.ideal,
                efficiency: point.efficiency(),
                speedup: point.speedup,
            });
            curves.push(SpeedupCurve {
                condition: ConditionName {
                    group: self.names.scene(scene),
                    name: way.name().to_owned(),
                    way: Some(way),
                },
                points: points.collect(),
            });
        }
        Ok(curves)
    }
}

/// A ratio as words: `24 % faster`, `2.4 times as fast`.
fn amount(ratio: f64) -> String {
    let percent = ((ratio - 1.0) * 100.0).abs();
    match ratio {
        ratio if ratio >= 2.0 => format!("{} times as fast", units::figures(ratio)),
        _ if percent < 0.5 => "about as fast".to_owned(),
        ratio if ratio > 1.0 => format!("{percent:.0} % faster"),
        _ => format!("{percent:.0} % slower"),
    }
}

/// The margin, as in `-9 to +10 %`.
pub(crate) fn change_of_margin(margin: f64) -> String {
    units::change_span(1.0 / margin, margin)
}

/// The smallest effect in percent, rounded up so that the sentence holds.
fn smallest_words(smallest: f64) -> String {
    if smallest >= 3.0 {
        return format!("{} times", units::figures(smallest));
    }
    format!("{:.0} %", ((smallest - 1.0) * 100.0).ceil().max(1.0))
}

/// A confidence: `95 %`, `97.5 %`.
pub(crate) fn percent(confidence: f64) -> String {
    let percent = (confidence * 1000.0).round() / 10.0;
    format!("{percent} %")
}
