//! The balance of a load across its carriers.

use serde::Serialize;

/// A carrier's part of the load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadShare {
    /// The task.
    pub task: String,
    /// Its part, 0 to 1.
    pub share: f64,
}

/// How evenly a load lies on several.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Balance {
    /// The parts of all carriers, in descending order.
    pub shares: Vec<LoadShare>,
    /// The greatest part by the mean: 1 where all carry the same, as many as they are where one carries everything.
    pub max_over_mean: f64,
    /// Gini's coefficient: 0 where all carry the same, near 1 where one of many carries everything.
    pub gini: f64,
}

// === impl Balance ===

impl Balance {
    /// The balance of at least two carriers of something; loads are never below 0.
    pub fn of(loads: impl IntoIterator<Item = (String, f64)>) -> Option<Self> {
        let mut loads: Vec<(String, f64)> = loads.into_iter().collect();
        let sum: f64 = loads.iter().map(|(_, load)| load).sum();
        let valid = loads.iter().all(|(_, load)| *load >= 0.0) && sum.is_finite();
        if loads.len() < 2 || !valid || sum <= 0.0 {
            return None;
        }
        // Equal parts stay in their order.
        loads.sort_by(|(_, entry), (_, other)| other.total_cmp(entry));
        let many = loads.len() as f64;
        let shares: Vec<LoadShare> = loads
            .into_iter()
            .map(|(task, load)| LoadShare {
                task,
                share: load / sum,
            })
            .collect();
        let greatest = shares.first().map_or(0.0, |first| first.share);
        // By ranks, the least first: sum of (2 i - n - 1) x over n times the sum of x, which is 1 here.
        let ranked: f64 = shares
            .iter()
            .rev()
            .enumerate()
            .map(|(rank, entry)| (2.0 * (rank as f64 + 1.0) - many - 1.0) * entry.share)
            .sum();
        Some(Self {
            max_over_mean: greatest * many,
            gini: (ranked / many).max(0.0),
            shares,
        })
    }

    /// The greatest.
    pub fn hottest(&self) -> Option<&LoadShare> {
        self.shares.first()
    }

    /// The second greatest part.
    pub fn runner_up(&self) -> Option<&LoadShare> {
        self.shares.get(1)
    }

    /// The part of a task.
    pub fn share_of(&self, task: &str) -> Option<f64> {
        self.shares
            .iter()
            .find(|entry| entry.task == task)
            .map(|entry| entry.share)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn balance(loads: &[f64]) -> Option<Balance> {
        Balance::of(
            loads
                .iter()
                .enumerate()
                .map(|(at, load)| (format!("ps-{at}"), *load)),
        )
    }

    fn near(entry: f64, other: f64) -> bool {
        (entry - other).abs() < 1e-9
    }

    #[test]
    fn known_answers() {
        let even = balance(&[5.0; 4]).unwrap();
        assert!(
            near(even.max_over_mean, 1.0) && near(even.gini, 0.0),
            "{even:?}"
        );
        let entry = balance(&[0.0, 0.0, 8.0, 0.0]).unwrap();
        assert!(
            near(entry.max_over_mean, 4.0) && near(entry.gini, 0.75),
            "{entry:?}"
        );
        assert_eq!(entry.hottest().unwrap().task, "ps-2");
        assert_eq!(
            (
                entry.share_of("ps-2"),
                entry.share_of("ps-0"),
                entry.share_of("x")
            ),
            (Some(1.0), Some(0.0), None)
        );
        // (1*1 + 3*1 is 2·(1·1 + 2·3)/(2·4) − 3/2) = 1/4
        let two = balance(&[3.0, 1.0]).unwrap();
        assert!(
            near(two.gini, 0.25) && near(two.max_over_mean, 1.5),
            "{two:?}"
        );
        let three = balance(&[1.0, 2.0, 3.0]).unwrap();
        assert!(near(three.gini, 2.0 / 9.0), "{three:?}");
        assert_eq!(three.runner_up().unwrap().task, "ps-1");
        for none in [
            &[][..],
            &[1.0],
            &[0.0, 0.0],
            &[1.0, -1.0],
            &[f64::NAN, 1.0],
            &[f64::INFINITY, 1.0],
        ] {
            assert_eq!(balance(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn within_bounds_and_of_no_unit(loads in prop::collection::vec(0.0..1e12_f64, 2..30), times in 1e-3..1e3_f64) {
            prop_assume!(loads.iter().sum::<f64>() > 1.0);
            let many = loads.len() as f64;
            let entry = balance(&loads).unwrap();
            prop_assert!(near(entry.shares.iter().map(|entry| entry.share).sum(), 1.0));
            prop_assert!((1.0 - 1e-9..=many + 1e-9).contains(&entry.max_over_mean));
            prop_assert!((0.0..=(many - 1.0) / many + 1e-9).contains(&entry.gini));
            let scaled = balance(&loads.iter().map(|load| load * times).collect::<Vec<_>>()).unwrap();
            prop_assert!(near(scaled.gini, entry.gini) && near(scaled.max_over_mean, entry.max_over_mean));
            // By its definition: the mean difference of all pairs by twice the mean.
            let pairs: f64 = loads.iter().flat_map(|a| loads.iter().map(move |b| (a - b).abs())).sum();
            let defined = pairs / (2.0 * many * loads.iter().sum::<f64>());
            prop_assert!((defined - entry.gini).abs() < 1e-6, "{} is {}", entry.gini, defined);
        }

        #[test]
        fn taking_from_the_least_for_the_greatest_is_less_even(loads in prop::collection::vec(1.0..1e6_f64, 2..12)) {
            let before = balance(&loads).unwrap();
            let mut loads = loads;
            loads.sort_by(f64::total_cmp);
            let (least, last) = (loads[0], loads.len() - 1);
            loads[0] -= least / 2.0;
            loads[last] += least / 2.0;
            let after = balance(&loads).unwrap();
            prop_assert!(after.gini > before.gini && after.max_over_mean > before.max_over_mean);
        }
    }
}
