//! [`SpeedupPoint`]: how much faster a larger case is, beside the ideal.

use serde::Serialize;

use super::contrast::{RunError, Values};
use super::design::Design;
use super::estimate::Estimate;
use super::questions::{Condition, Part, Run};

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeedupPoint {
    pub case: usize,
    /// Its size, as given, for example the number of workers.
    pub size: f64,
    /// The ideal speedup: the size divided by that of the base.
    pub ideal: f64,
    /// The values of the case divided by those of the base in the same blocks; exactly 1 for the base itself. `None` without
    /// blocks that have both, and if the base made nothing.
    pub speedup: Option<Estimate>,
    pub blocks: usize,
}

// === impl SpeedupPoint ===

impl SpeedupPoint {
    /// The share of the ideal that is reached; 1 is linear.
    pub fn efficiency(&self) -> Option<f64> {
        Some(self.speedup?.center() / self.ideal)
    }
}

// === impl Design ===

impl Design {
    /// The speedup over the cases of a part of the experiment, in the order of their sizes. The base is the smallest case of
    /// the part. `sizes` has the size of each case, above 0; a case without one is left out. Where the part has several
    /// scenes or ways, a block's ratio is the geometric mean over those that ran both cases.
    ///
    /// A curve has intervals and no verdict.
    ///
    /// # Errors
    /// As [`Self::analyze`].
    pub fn speedup(
        &self,
        part: Part,
        sizes: &[f64],
        runs: &[Run],
    ) -> Result<Vec<SpeedupPoint>, RunError> {
        let values = Values::new(self, runs)?;
        let conditions: Vec<Condition> = self.conditions().filter(|one| part.has(*one)).collect();
        let is_run = |case: usize| conditions.iter().any(|condition| condition.case == case);
        let mut cases: Vec<(usize, f64)> = sizes.iter().copied().enumerate().collect();
        cases.retain(|&(case, size)| size.is_finite() && size > 0.0 && is_run(case));
        cases.sort_by(|one, other| one.1.total_cmp(&other.1));
        let Some(&(base, base_size)) = cases.first() else {
            return Ok(Vec::new());
        };
        let point = |(case, size): (usize, f64)| {
            let pairs: Vec<(Condition, Condition)> = conditions
                .iter()
                .filter(|condition| condition.case == case)
                .map(|&condition| {
                    (
                        condition,
                        Condition {
                            case: base,
                            ..condition
                        },
                    )
                })
                .filter(|(_, base)| self.has(*base))
                .collect();
            let blocks = values.ratios(&pairs, self.repeats());
            let ratios: Option<Vec<f64>> = blocks.iter().map(|(_, ratio)| *ratio).collect();
            SpeedupPoint {
                case,
                size,
                ideal: size / base_size,
                speedup: ratios.and_then(|ratios| Estimate::of(&ratios, self.confidence())),
                blocks: blocks.len(),
            }
        };
        Ok(cases.into_iter().map(point).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::design::DesignOptions;
    use super::super::questions::Way;
    use super::*;

    /// Cases of 10, 20 and 5 workers; the second case of scene 1 wasn't planned.
    #[test]
    fn a_curve_starts_at_the_smallest_case() {
        let mut conditions = Condition::all(2, 3, &Way::ALL);
        conditions.retain(|one| (one.scene, one.case) != (1, 1));
        let design = Design::new(conditions, DesignOptions::default()).unwrap();
        let mut runs = Vec::new();
        for block in 0..6 {
            for condition in design.conditions() {
                // Blocks differ as a whole, and the larger cases lose some speed.
                let made = [9.0, 15.0, 5.0][condition.case] * (1.0 + block as f64);
                let exclusive = if condition.way.exclusive { 1.2 } else { 1.0 };
                runs.push(Run {
                    block,
                    condition,
                    value: made * exclusive,
                });
            }
        }
        // Of the last block, one run is missing.
        runs.retain(|run| {
            (run.block, run.condition.case, run.condition.scene) != (5, 1, 0)
                || run.condition.way.exclusive
        });
        let curve = design
            .speedup(Part::default(), &[10.0, 20.0, 5.0], &runs)
            .unwrap();
        let seen: Vec<(usize, f64, usize)> = curve
            .iter()
            .map(|point| (point.case, point.ideal, point.blocks))
            .collect();
        assert_eq!(seen, [(2, 1.0, 6), (0, 2.0, 6), (1, 4.0, 5)]);
        for (point, expected) in curve.iter().zip([1.0, 1.8, 3.0]) {
            let speedup = point.speedup.unwrap();
            assert!(
                (speedup.low - expected).abs() < 1e-6 && (speedup.high - expected).abs() < 1e-6,
                "{point:?}"
            );
        }
        assert!((curve[2].efficiency().unwrap() - 0.75).abs() < 1e-9);
        let none = Part {
            scene: Some(7),
            ..Part::default()
        };
        assert_eq!(
            design.speedup(none, &[1.0, 2.0, 3.0], &runs),
            Ok(Vec::new())
        );
        let one = design
            .speedup(Part::default(), &[f64::NAN, 20.0], &runs)
            .unwrap();
        assert_eq!((one.len(), one[0].case, one[0].ideal), (1, 1, 1.0));
    }
}
