//! [`Estimate`]: the typical ratio of a few blocks, with an interval for the true one.
//!
//! Ratios multiply, so the computations use logarithms, in which half as fast is as far from 1 as twice as fast.

use serde::Serialize;

use super::student::{critical, detectable, two_sided};
use super::summary::quantile;

/// The fewest blocks for an interval. The t interval of four blocks is already 1.6 times as wide as that of six, and the
/// shape of the noise, about which four values say nothing, matters most there.
pub const FEWEST_BLOCKS: usize = 5;

/// The least standard error of a logarithm. Equal ratios differ by the rounding of their logarithms, and a test must not take
/// that for an effect.
const RESOLUTION: f64 = 1e-9;

/// A ratio, estimated from the ratios of blocks. Ratios have no unit; 1 means equal. Values above 0, such as the steps per
/// second of one condition in each block, can be estimated as well; all fields then have the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// The number of blocks.
    pub values: usize,
    /// The geometric mean of the blocks' ratios.
    pub mean: f64,
    /// The median of the blocks' ratios.
    pub median: f64,
    /// The interval's lower end; without an interval, the least ratio.
    pub low: f64,
    /// The interval's upper end; without an interval, the greatest ratio.
    pub high: f64,
    /// The probability that an interval computed in this way contains the true ratio, for example 0.95. `None` if `low` and
    /// `high` are only a range: with fewer than [`FEWEST_BLOCKS`] blocks, and with a ratio of 0, which has no logarithm.
    pub confidence: Option<f64>,
}

/// The logarithms of the blocks' ratios, in short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Logs {
    /// The arithmetic mean.
    mean: f64,
    /// The standard error of the mean: the sample's standard deviation divided by the root of the number of blocks.
    error: f64,
    /// Degrees of freedom: the number of blocks less one.
    freedom: usize,
}

// === impl Estimate ===

impl Estimate {
    /// Estimates the ratio behind the ratios of blocks, with a t interval of their logarithms at a confidence from 0 to 1.
    ///
    /// `None` without ratios, and if one of them is negative, infinite or not a number.
    pub fn of(ratios: &[f64], confidence: f64) -> Option<Self> {
        if !ratios
            .iter()
            .all(|ratio| ratio.is_finite() && *ratio >= 0.0)
        {
            return None;
        }
        let range = Self {
            values: ratios.len(),
            mean: mean_log(ratios)?.exp(),
            median: quantile(ratios, 0.5)?,
            low: quantile(ratios, 0.0)?,
            high: quantile(ratios, 1.0)?,
            confidence: None,
        };
        let Some(logs) = Logs::of(ratios) else {
            return Some(range);
        };
        let reach = critical(confidence, logs.freedom) * logs.error;
        Some(Self {
            low: (logs.mean - reach).exp(),
            high: (logs.mean + reach).exp().min(f64::MAX),
            confidence: Some(confidence),
            ..range
        })
    }

    /// The ratio to show: the mean, to which the interval belongs; the median, where there is only a range.
    pub fn center(&self) -> f64 {
        if self.confidence.is_some() {
            self.mean
        } else {
            self.median
        }
    }
}

// === impl Logs ===

impl Logs {
    /// `None` with fewer than [`FEWEST_BLOCKS`] ratios, and with one that is not above 0.
    pub(super) fn of(ratios: &[f64]) -> Option<Self> {
        if ratios.len() < FEWEST_BLOCKS || !ratios.iter().all(|ratio| *ratio > 0.0) {
            return None;
        }
        let (count, mean) = (ratios.len(), mean_log(ratios)?);
        let freedom = count - 1;
        let squares: f64 = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2)).sum();
        let error = (squares / freedom as f64 / count as f64).sqrt();
        Some(Self {
            mean,
            error: error.max(RESOLUTION),
            freedom,
        })
    }

    /// Whether the true ratio is above 1, if it isn't 1.
    pub(super) fn is_above_one(&self) -> bool {
        self.mean > 0.0
    }

    /// The p value of the hypothesis that the true ratio is 1, from the t test of both sides.
    pub(super) fn p_equal(&self) -> f64 {
        two_sided(self.mean / self.error, self.freedom)
    }

    /// The smallest ratio above 1 that a t test with this confidence finds in 80 of 100 experiments with as many blocks and as
    /// much noise as here.
    pub(super) fn detectable(&self, confidence: f64) -> f64 {
        (detectable(confidence, self.freedom) * self.error)
            .exp()
            .min(f64::MAX)
    }
}

/// The mean of the logarithms; that of a ratio of 0 is infinitely small. `None` without ratios.
fn mean_log(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| sum / ratios.len() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-6
    }

    /// Computed by hand: the logarithms 0.1, 0.2, 0.3, 0.4 and 0.5 have the mean 0.3 and the standard error 0.0707107, and the
    /// table has 2.776445 for 95 % and 4 degrees.
    #[test]
    fn an_interval_is_that_of_the_logarithms() {
        let ratios = [0.1_f64, 0.5, 0.3, 0.2, 0.4].map(f64::exp);
        let one = Estimate::of(&ratios, 0.95).unwrap();
        assert!(
            close(one.mean, 0.3_f64.exp()) && close(one.center(), one.mean),
            "{one:?}"
        );
        let reach = 2.776_445 * 0.070_710_678;
        assert!(
            close(one.low.ln(), 0.3 - reach) && close(one.high.ln(), 0.3 + reach),
            "{one:?}"
        );
        assert_eq!((one.values, one.confidence), (5, Some(0.95)));
        let logs = Logs::of(&ratios).unwrap();
        // t = 4.2426 with 4 degrees.
        assert!(
            (logs.p_equal() - 0.013_24).abs() < 1e-5,
            "{}",
            logs.p_equal()
        );
    }

    #[test]
    fn few_ratios_and_zeros_are_a_range() {
        let of = |ratios: &[f64]| {
            Estimate::of(ratios, 0.95).map(|one| (one.low, one.center(), one.high, one.confidence))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1.5]), Some((1.5, 1.5, 1.5, None)));
        assert_eq!(of(&[1.5, 1.6, 1.7, 1.4]), Some((1.4, 1.55, 1.7, None)));
        assert_eq!(of(&[0.0; 6]), Some((0.0, 0.0, 0.0, None)));
        assert_eq!(
            of(&[0.0, 0.5, 0.6, 0.4, 0.5, 0.7]),
            Some((0.0, 0.5, 0.7, None))
        );
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(of(&[1.0, 1.0, 1.0, 1.0, 1.0, bad]), None);
        }
    }

    #[test]
    fn equal_ratios_have_a_narrow_interval() {
        let one = Estimate::of(&[1.2; 6], 0.95).unwrap();
        assert!(close(one.low, 1.2) && close(one.high, 1.2), "{one:?}");
        // 1.1 / 1.1 and the like are off by rounding only.
        let logs = Logs::of(&[1.0, 1.0 + 2e-16, 1.0, 1.0 + 2e-16, 1.0 + 2e-16]).unwrap();
        assert!(logs.p_equal() > 0.5);
        let wild = Estimate::of(&[1e-300, 1e300, 1e-300, 1e300, 1e-300], 0.95).unwrap();
        assert!(wild.low >= 0.0 && wild.high.is_finite(), "{wild:?}");
    }

    proptest! {
        #[test]
        fn an_estimate_is_in_its_interval(ratios in proptest::collection::vec(0.01..100.0_f64, 1..40)) {
            let one = Estimate::of(&ratios, 0.95).unwrap();
            prop_assert!(one.low <= one.center() && one.center() <= one.high);
            let surer = Estimate::of(&ratios, 0.975).unwrap();
            prop_assert!(surer.low <= one.low && one.high <= surer.high);
        }

        /// Who compares the other way round gets the inverse.
        #[test]
        fn turned_round_it_is_the_inverse(ratios in proptest::collection::vec(0.1..10.0_f64, 5..30)) {
            let turned: Vec<f64> = ratios.iter().map(|ratio| 1.0 / ratio).collect();
            let (one, other) = (Estimate::of(&ratios, 0.95).unwrap(), Estimate::of(&turned, 0.95).unwrap());
            prop_assert!((one.low * other.high - 1.0).abs() < 1e-9 && (one.mean * other.mean - 1.0).abs() < 1e-9);
            let (one, other) = (Logs::of(&ratios).unwrap(), Logs::of(&turned).unwrap());
            prop_assert!((one.p_equal() - other.p_equal()).abs() < 1e-9);
        }
    }
}
