//! [`Contrast`]: a question with its answer, from the runs of an experiment.

use std::collections::BTreeMap;

use serde::Serialize;

use super::design::Design;
use super::estimate::{Estimate, FEWEST_BLOCKS, Logs};
use super::questions::{Condition, Part, Question, Run};

/// The answer to a question. It is about the ratio of the values with the factor to those without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    TooFew,
    /// The ratio is above 1. The effect may still be small: see [`Contrast::is_within_margin`].
    More,
    /// The ratio is below 1, which may be a small effect, too.
    Less,
    /// The ratio lies within the margin of the design, and can't be told from 1.
    NoEffect,
    /// The ratio can't be told from 1, and neither from one outside of the margin.
    NotDistinguishable,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Contrast {
    pub question: Question,
    /// The part of the experiment that answers it.
    pub part: Part,
    /// The blocks that have all runs of the contrast, each with its ratio: the geometric mean over the pairs of runs that
    /// differ in the factor alone. A ratio is `None` if a run to compare with has the value 0.
    pub blocks: Vec<(usize, Option<f64>)>,
    /// How many blocks of the design lack a run of the contrast.
    pub missing: usize,
    /// The ratio, with its interval or range; `None` without blocks, and if one of them has no ratio.
    pub estimate: Option<Estimate>,
    /// Whether the whole interval lies within the margin of the design.
    pub is_within_margin: bool,
    /// The verdict; `None` for all but primary questions, without blocks, and if a value of 0 allows no interval.
    pub verdict: Option<Verdict>,
    /// The smallest ratio above 1 that would be named in 80 of 100 such experiments, with as many blocks and as much noise
    /// as here; its inverse is the one below 1. `None` without a verdict, and with too few blocks.
    pub smallest_effect: Option<f64>,
}

/// The reason why runs can't be analyzed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RunError {
    /// A run of a block after the last planned one.
    #[error(
        "a run of repeat {}, of {repeats} planned: runs that were added after a look at the data count only in a planned \
         extension", block + 1
    )]
    UnplannedBlock {
        /// The run's block, from 0.
        block: usize,
        /// The planned blocks.
        repeats: usize,
    },
    /// A run of something that the design doesn't have.
    #[error("a run of repeat {} that the design doesn't have: {condition:?}", block + 1)]
    UnplannedCondition {
        /// The run's block, from 0.
        block: usize,
        condition: Condition,
    },
    /// Two runs in the place of one. Whoever repeats a failed run leaves the failed one out.
    #[error("two runs of repeat {} have the same condition: {condition:?}", block + 1)]
    Twice {
        /// The runs' block, from 0.
        block: usize,
        condition: Condition,
    },
    /// A value that has no ratio to others.
    #[error("a run of repeat {} has the value {value}: a value is a number from 0", block + 1)]
    Value {
        /// The run's block, from 0.
        block: usize,
        value: f64,
    },
}

/// The values of runs, by block and condition.
#[derive(Debug)]
pub(super) struct Values(BTreeMap<(usize, Condition), f64>);

// === impl Design ===

impl Design {
    /// Answers the primary questions, in their order. Call it for the metric that was named before the first run, and once
    /// the planned runs are done: each further look at a part of the data would be another chance for a wrong verdict.
    ///
    /// A verdict needs [`FEWEST_BLOCKS`]. A true ratio of 1 is called [`Verdict::More`] or [`Verdict::Less`] in one of 20
    /// experiments at most, all primary questions together (Holm, *Scandinavian Journal of Statistics* 6, 1979); if one
    /// condition's noise is much more skewed than the other's, in one of 14. For [`Verdict::NoEffect`], both ends of the
    /// interval must lie within the margin, and if the true ratio is the margin or farther from 1, that happens in one of 40
    /// experiments at most. Holm's correction isn't needed there: where several questions have a ratio at the margin, about one
    /// of 20 simulated experiments says "no effect" to any of them, and only with so much noise that few verdicts are possible.
    ///
    /// # Errors
    /// A run that the design doesn't have, one that is there twice, a value that is negative or not a number.
    pub fn analyze(&self, runs: &[Run]) -> Result<Vec<Contrast>, RunError> {
        let values = Values::new(self, runs)?;
        let mut contrasts: Vec<Contrast> = self
            .primary()
            .iter()
            .map(|&question| self.shown(question, Part::default(), &values))
            .collect();
        let logs: Vec<Option<Logs>> = contrasts
            .iter()
            .map(|contrast| Logs::of(&contrast.ratios()?))
            .collect();
        // A question without an answer still counts, because it was asked.
        let p: Vec<f64> = logs
            .iter()
            .map(|logs| logs.map_or(1.0, |logs| logs.p_equal()))
            .collect();
        // The first step of Holm's method, which each primary question may have to pass.
        let strictest = 1.0 - self.error_probability() / contrasts.len() as f64;
        for ((contrast, logs), p) in contrasts.iter_mut().zip(logs).zip(holm(&p)) {
            contrast.smallest_effect = logs.map(|logs| logs.detectable(strictest));
            contrast.verdict = match logs {
                // Blocks enough, but no interval: a value of 0.
                None if contrast.blocks.len() >= FEWEST_BLOCKS => None,
                None => contrast.estimate.map(|_| Verdict::TooFew),
                Some(logs) if p <= self.error_probability() && logs.is_above_one() => {
                    Some(Verdict::More)
                }
                Some(_) if p <= self.error_probability() => Some(Verdict::Less),
                Some(_) if contrast.is_within_margin => Some(Verdict::NoEffect),
                Some(_) => Some(Verdict::NotDistinguishable),
            };
        }
        Ok(contrasts)
    }

    /// Shows the effect of a factor in a part of the experiment, or in a metric that is not the primary one, without a
    /// verdict: among many such contrasts, one of 20 intervals misses the true ratio.
    ///
    /// # Errors
    /// As [`Self::analyze`].
    pub fn show(&self, question: Question, part: Part, runs: &[Run]) -> Result<Contrast, RunError> {
        Ok(self.shown(question, part, &Values::new(self, runs)?))
    }

    fn shown(&self, question: Question, part: Part, values: &Values) -> Contrast {
        let pairs = self.pairs(question, part);
        let blocks = values.ratios(&pairs, self.repeats());
        let mut contrast = Contrast {
            question,
            part,
            missing: self.repeats() - blocks.len(),
            blocks,
            estimate: None,
            is_within_margin: false,
            verdict: None,
            smallest_effect: None,
        };
        contrast.estimate = contrast
            .ratios()
            .and_then(|ratios| Estimate::of(&ratios, self.confidence()));
        contrast.is_within_margin = contrast.estimate.is_some_and(|one| {
            one.confidence.is_some() && one.low > 1.0 / self.margin() && one.high < self.margin()
        });
        contrast
    }
}

// === impl Contrast ===

impl Contrast {
    /// The blocks' ratios; `None` if one of the blocks has no ratio, because the others would be a biased selection.
    fn ratios(&self) -> Option<Vec<f64>> {
        self.blocks.iter().map(|(_, ratio)| *ratio).collect()
    }
}

// === impl Values ===

impl Values {
    pub(super) fn new(design: &Design, runs: &[Run]) -> Result<Self, RunError> {
        let mut values = BTreeMap::new();
        for &Run {
            block,
            condition,
            value,
        } in runs
        {
            let repeats = design.repeats();
            if block >= repeats {
                return Err(RunError::UnplannedBlock { block, repeats });
            }
            if !design.has(condition) {
                return Err(RunError::UnplannedCondition { block, condition });
            }
            if !value.is_finite() || value < 0.0 {
                return Err(RunError::Value { block, value });
            }
            if values.insert((block, condition), value).is_some() {
                return Err(RunError::Twice { block, condition });
            }
        }
        Ok(Self(values))
    }

    /// The ratio of each block that has all runs of the pairs: the geometric mean of the pairs' ratios. `None` in place of a
    /// ratio by 0.
    pub(super) fn ratios(
        &self,
        pairs: &[(Condition, Condition)],
        repeats: usize,
    ) -> Vec<(usize, Option<f64>)> {
        let ratio = |(value, base): (f64, f64)| (base > 0.0).then(|| (value / base).ln());
        let of_block = |block: usize| {
            let value = |condition: Condition| self.0.get(&(block, condition)).copied();
            let values: Option<Vec<(f64, f64)>> = pairs
                .iter()
                .map(|&(one, base)| Some((value(one)?, value(base)?)))
                .collect();
            let logs: Option<f64> = values?.into_iter().map(ratio).sum();
            let mean = logs.map(|sum| (sum / pairs.len() as f64).exp());
            Some((block, mean.filter(|mean| mean.is_finite())))
        };
        if pairs.is_empty() {
            return Vec::new();
        }
        (0..repeats).filter_map(of_block).collect()
    }
}

/// Holm's adjustment: the p values of a family, raised so that comparing each of them with a probability of error keeps this
/// probability for the whole family. The smallest is multiplied by the number of values, the next by one less, and so on; a
/// larger p value is never adjusted to a smaller one.
fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&one, &other| p[one].total_cmp(&p[other]));
    let mut adjusted = vec![1.0; p.len()];
    let mut last: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        last = last.max(p[at] * (p.len() - rank) as f64).min(1.0);
        adjusted[at] = last;
    }
    adjusted
}

#[cfg(test)]
mod tests;
