//! The balance of a load across its carriers.

/// A carrier's part of the load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoadShare {
    /// The task.
    pub(super) task: String,
    /// Its part, 0 to 1.
    pub(super) share: f64,
}

/// How evenly a load lies on several.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Balance {
    /// The parts of all carriers, in descending order.
    pub(super) shares: Vec<LoadShare>,
    /// The greatest part by the mean: 1 where all carry the same, as many as they are where one carries everything.
    pub(super) max_over_mean: f64,
}

// === impl Balance ===

impl Balance {
    /// The balance of at least two carriers of something; loads are never below 0.
    pub(super) fn of(loads: impl IntoIterator<Item = (String, f64)>) -> Option<Self> {
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
        Some(Self {
            max_over_mean: greatest * many,
            shares,
        })
    }

    /// The greatest.
    pub(super) fn hottest(&self) -> Option<&LoadShare> {
        self.shares.first()
    }

    /// The second greatest part.
    pub(super) fn runner_up(&self) -> Option<&LoadShare> {
        self.shares.get(1)
    }

    /// The part of a task.
    pub(super) fn share_of(&self, task: &str) -> Option<f64> {
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
        assert!(near(even.max_over_mean, 1.0), "{even:?}");
        let entry = balance(&[0.0, 0.0, 8.0, 0.0]).unwrap();
        assert!(near(entry.max_over_mean, 4.0), "{entry:?}");
        assert_eq!(entry.hottest().unwrap().task, "ps-2");
        assert_eq!(
            (
                entry.share_of("ps-2"),
                entry.share_of("ps-0"),
                entry.share_of("x")
            ),
            (Some(1.0), Some(0.0), None)
        );
        let two = balance(&[3.0, 1.0]).unwrap();
        assert!(near(two.max_over_mean, 1.5), "{two:?}");
        let three = balance(&[1.0, 2.0, 3.0]).unwrap();
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
            let scaled = balance(&loads.iter().map(|load| load * times).collect::<Vec<_>>()).unwrap();
            prop_assert!(near(scaled.max_over_mean, entry.max_over_mean));
        }
    }
}
