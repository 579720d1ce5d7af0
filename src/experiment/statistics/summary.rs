//! [`Summary`]: values in short, for tables. Nothing here says how sure a value is.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub values: usize,
    pub median: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
    pub least: f64,
    pub greatest: f64,
}

// === impl Summary ===

impl Summary {
    /// A summary of values; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let at = |share| quantile(values, share);
        Some(Self {
            values: values.len(),
            median: at(0.5)?,
            lower_quartile: at(0.25)?,
            upper_quartile: at(0.75)?,
            least: at(0.0)?,
            greatest: at(1.0)?,
        })
    }
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

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn a_summary_is_in_order(values in proptest::collection::vec(0.01..100.0_f64, 1..60)) {
            let summary = Summary::of(&values).unwrap();
            let ordered = [
                summary.least, summary.lower_quartile, summary.median, summary.upper_quartile, summary.greatest,
            ];
            prop_assert!(ordered.is_sorted(), "{ordered:?}");
        }
    }
}
