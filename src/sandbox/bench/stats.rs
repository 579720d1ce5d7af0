//! Statistics of few and noisy numbers: medians, quartiles, and what can be said of a median at all.
//!
//! Nothing here assumes a distribution. The interval of a median is between two of the values themselves, whose chance to
//! have the true median between them follows from coin tosses alone.

use serde::Serialize;

/// How sure an interval is to be, where there are values enough.
const WANTED: f64 = 0.95;

/// An interval below this confidence is not reported; five values are enough.
const LEAST: f64 = 0.9;

/// Values in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The number of values.
    pub values: usize,
    /// The middle one.
    pub median: f64,
    /// The lower quartile.
    pub lower_quartile: f64,
    /// The upper quartile.
    pub upper_quartile: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

/// A median with an interval for the true median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// The number of values.
    pub values: usize,
    /// The middle one.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The probability that an interval computed in this way contains the true median.
    pub confidence: f64,
}

/// The conclusion from a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Conclusion {
    /// Too few values for a conclusion.
    TooFew,
    /// The spread covers 1.
    NoDifference,
    /// All of the spread is above 1.
    More,
    /// All of the spread is below 1.
    Less,
}

/// The quantile of the values for a share from 0 to 1, by linear interpolation; `None` without values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let values = sorted(values);
    let last = values.len().checked_sub(1)?;
    let at = share.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last"
    )]
    let below = at.floor() as usize;
    let (low, high) = (values.get(below)?, values.get((below + 1).min(last))?);
    Some(low + (high - low) * (at - below as f64))
}

/// The smallest value that is at least as large as a percentage of the values; `None` without values.
pub fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let values = sorted(values);
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied()
}

/// A summary of values; `None` without values.
pub fn summary(values: &[f64]) -> Option<Summary> {
    let at = |share| quantile(values, share);
    Some(Summary {
        values: values.len(),
        median: at(0.5)?,
        lower_quartile: at(0.25)?,
        upper_quartile: at(0.75)?,
        least: at(0.0)?,
        greatest: at(1.0)?,
    })
}

/// The median of values and its interval: as narrow as 95 % of confidence allows, or all of the values; `None` without any.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let values = sorted(values);
    let count = values.len();
    // As many are left out at each end as the confidence allows.
    let left_out = (0..count.div_ceil(2))
        .rev()
        .find(|&k| confidence(count, k) >= WANTED)
        .unwrap_or(0);
    Some(Spread {
        values: count,
        median: quantile(&values, 0.5)?,
        low: *values.get(left_out)?,
        high: *values.get(count - 1 - left_out)?,
        confidence: confidence(count, left_out),
    })
}

/// The chance that the true median is between the values that remain when `left_out` are taken away at each end: unless
/// almost all of `count` tosses of a coin fall on one side.
fn confidence(count: usize, left_out: usize) -> f64 {
    let mut ways = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut outside = 0.0;
    for heads in 0..=left_out {
        outside += ways;
        ways *= count.saturating_sub(heads) as f64 / (heads + 1) as f64;
    }
    (1.0 - 2.0 * outside).max(0.0)
}

/// The conclusion from the ratios' interval.
pub fn verdict(spread: &Spread) -> Conclusion {
    if spread.confidence < LEAST {
        Conclusion::TooFew
    } else if spread.low > 1.0 {
        Conclusion::More
    } else if spread.high < 1.0 {
        Conclusion::Less
    } else {
        Conclusion::NoDifference
    }
}

/// The quotient `value
/// base`; `None` if the quotient is no finite number.
pub fn ratio(value: f64, base: f64) -> Option<f64> {
    let ratio = value / base;
    ratio.is_finite().then_some(ratio)
}

/// The geometric mean of ratios; `None` without ratios.
pub fn mean_ratio(ratios: &[f64]) -> Option<f64> {
    if ratios.is_empty() {
        return None;
    }
    let mean = ratios
        .iter()
        .product::<f64>()
        .powf(1.0 / ratios.len() as f64);
    mean.is_finite().then_some(mean)
}

/// A ratio as a change in percent: `+12 %`.
pub fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // No change is 0, never -0.
    let percent = if percent.abs() < 0.5 { 0.0 } else { percent };
    format!("{percent:+.0} %")
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn known_quantiles() {
        let values = [7.0, 1.0, 3.0, 5.0];
        for (share, expected) in [
            (0.0, 1.0),
            (0.25, 2.5),
            (0.5, 4.0),
            (0.75, 5.5),
            (1.0, 7.0),
            (2.0, 7.0),
        ] {
            assert_eq!(quantile(&values, share), Some(expected), "{share}");
        }
        assert_eq!(quantile(&[], 0.5), None);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        for (percent, expected) in [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)] {
            assert_eq!(percentile(&hundred, percent), Some(expected), "{percent}");
        }
        assert_eq!(
            (percentile(&[4.0], 99), percentile(&[], 99)),
            (Some(4.0), None)
        );
    }

    /// From a printed table of the sign test: the confidence of an interval between the k-th values from both ends.
    #[test]
    fn known_confidences() {
        for (count, left_out, expected) in [
            (1, 0, 0.0),
            (4, 0, 0.875),
            (5, 0, 0.9375),
            (6, 0, 0.96875),
            (8, 0, 0.992_187_5),
            (8, 1, 0.929_687_5),
            (9, 1, 0.960_937_5),
            (12, 2, 0.961_425_781_25),
            (20, 5, 0.958_610_534_667_968_8),
        ] {
            assert!(
                close(confidence(count, left_out), expected),
                "{count} {left_out}: {}",
                confidence(count, left_out)
            );
        }
    }

    #[test]
    fn known_spreads_and_verdicts() {
        let of = |values: &[f64]| {
            spread(values).map(|one| (one.low, one.median, one.high, verdict(&one)))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&[1.5, 1.6, 1.7, 1.4]),
            Some((1.4, 1.55, 1.7, Conclusion::TooFew))
        );
        assert_eq!(
            of(&[1.1, 1.2, 1.3, 1.4, 1.5]),
            Some((1.1, 1.3, 1.5, Conclusion::More))
        );
        assert_eq!(
            of(&[0.9, 0.8, 0.7, 0.6, 0.5]),
            Some((0.5, 0.7, 0.9, Conclusion::Less))
        );
        assert_eq!(
            of(&[0.9, 1.2, 1.3, 1.4, 1.5]),
            Some((0.9, 1.3, 1.5, Conclusion::NoDifference))
        );
        // Exactly 1 is covered.
        assert_eq!(
            of(&[1.0; 6]),
            Some((1.0, 1.0, 1.0, Conclusion::NoDifference))
        );
        // With nine values, an outlier at each end changes nothing.
        let nine = [0.1, 1.1, 1.1, 1.2, 1.2, 1.2, 1.3, 1.3, 9.0];
        assert_eq!(of(&nine), Some((1.1, 1.2, 1.3, Conclusion::More)));
    }

    #[test]
    fn ratios_are_numbers_or_nothing() {
        assert_eq!((ratio(3.0, 2.0), ratio(0.0, 2.0)), (Some(1.5), Some(0.0)));
        assert_eq!((ratio(1.0, 0.0), ratio(0.0, 0.0)), (None, None));
        assert_eq!(
            (mean_ratio(&[4.0, 1.0]), mean_ratio(&[])),
            (Some(2.0), None)
        );
        for (ratio, expected) in [
            (1.2, "+20 %"),
            (0.6, "-40 %"),
            (1.0, "+0 %"),
            (0.998, "+0 %"),
            (3.0, "+200 %"),
        ] {
            assert_eq!(percent(ratio), expected);
        }
    }

    proptest! {
        #[test]
        fn a_spread_holds_its_median(values in proptest::collection::vec(0.01..100.0_f64, 1..60)) {
            let spread = spread(&values).unwrap();
            prop_assert!(spread.low <= spread.median && spread.median <= spread.high);
            prop_assert!(values.contains(&spread.low) && values.contains(&spread.high));
            prop_assert!((0.0..=1.0).contains(&spread.confidence));
            prop_assert!(values.len() < 6 || spread.confidence >= WANTED);
            let summary = summary(&values).unwrap();
            let ordered = [
                summary.least, summary.lower_quartile, summary.median, summary.upper_quartile, summary.greatest,
            ];
            prop_assert!(ordered.is_sorted(), "{ordered:?}");
        }

        /// The interval has the promised confidence or more, also for values far from a normal distribution.
        #[test]
        fn a_spread_is_as_sure_as_it_says(seed in any::<u64>(), count in 5_usize..20) {
            let mut random = crate::sandbox::train::data::Random::new(seed);
            let rounds = 400;
            let mut held = 0;
            let mut said = 0.0;
            for _ in 0..rounds {
                // Skewed, with a median of 1/8.
                let values: Vec<f64> = (0..count).map(|_| f64::from(random.unit()).powi(3)).collect();
                let spread = spread(&values).unwrap();
                held += usize::from(spread.low <= 0.125 && 0.125 <= spread.high);
                said = spread.confidence;
            }
            // Five standard deviations of what four hundred tries may be off.
            let share = held as f64 / rounds as f64;
            let slack = 5.0 * (said * (1.0 - said) / f64::from(rounds)).sqrt() + 0.005;
            prop_assert!((share - said).abs() < slack, "{share} of {said} with {count}");
        }

        #[test]
        fn turning_a_ratio_round_turns_its_verdict_round(values in proptest::collection::vec(0.5..2.0_f64, 5..30)) {
            let turned: Vec<f64> = values.iter().map(|value| 1.0 / value).collect();
            let (one, other) = (verdict(&spread(&values).unwrap()), verdict(&spread(&turned).unwrap()));
            let expected = match one {
                Conclusion::More => Conclusion::Less,
                Conclusion::Less => Conclusion::More,
                same => same,
            };
            prop_assert_eq!(other, expected);
        }
    }
}
