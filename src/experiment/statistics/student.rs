//! Student's t distribution for whole degrees of freedom.
//!
//! Degrees of freedom are numbers of blocks less one here, and for whole numbers the distribution is a finite sum of powers of
//! a cosine (Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.3 and 26.7.4). The sum is exact and takes a few
//! lines. The crate statrs would compute the same by the incomplete beta function, and bring approx, num-traits and libm.

use std::f64::consts::FRAC_2_PI;

/// The 80 % quantile of the normal distribution.
const NORMAL_80: f64 = 0.841_621_233_572_914_3;

/// The probability that a value of the distribution is farther from 0 than `t`, on either side: from 0 to 1. Without degrees
/// of freedom nothing can be said, so the probability is 1.
pub(super) fn two_sided(t: f64, freedom: usize) -> f64 {
    if freedom == 0 || t.is_nan() {
        return 1.0;
    }
    let (nu, t) = (freedom as f64, t.abs());
    if t.is_infinite() {
        return 0.0;
    }
    let angle = (t / nu.sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = !freedom.is_multiple_of(2);
    // The powers of the cosine are 1, 3, 5… for an odd number and 0, 2, 4… for an even one, up to `freedom` - 2.
    let first = if is_odd { 1 } else { 0 };
    let mut term = if is_odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    for power in (first..=freedom.saturating_sub(2)).step_by(2) {
        sum += term;
        let power = power as f64;
        term *= cosine * cosine * (power + 1.0) / (power + 2.0);
    }
    let within = if is_odd {
        FRAC_2_PI * (angle + sine * sum)
    } else {
        sine * sum
    };
    (1.0 - within).clamp(0.0, 1.0)
}

/// The value that lies farther from 0 than a share `confidence` of the distribution, as in the tables of two-sided tests:
/// 2.571 for 0.95 and 5 degrees. Infinite for a confidence of 1 or more, and without degrees of freedom.
pub(super) fn critical(confidence: f64, freedom: usize) -> f64 {
    let outside = 1.0 - confidence;
    if freedom == 0 || outside <= 0.0 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided(high, freedom) > outside && high < 1e12 {
        low = high;
        high *= 2.0;
    }
    // A halving each time: after 60, the two are neighbors.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if two_sided(middle, freedom) > outside {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// How many standard errors a true effect must have, so that a t test with this confidence finds it in 80 of 100
/// experiments. The noncentral t distribution is approximated by a normal one (Johnson and Welch, *Applications of the
/// non-central t-distribution*, Biometrika 31, 1940). A few values differ from their own mean by less than from the true one,
/// so a standard error that is computed from them is too small on average; the result makes up for that.
pub(super) fn detectable(confidence: f64, freedom: usize) -> f64 {
    let (t, nu) = (critical(confidence, freedom), freedom as f64);
    // The mean of the sample's standard deviation, by the true one.
    let bias = 1.0 - 1.0 / (4.0 * nu);
    (t * bias + NORMAL_80 * (1.0 + t * t / (2.0 * nu)).sqrt()) / bias
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// From the tables of the NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2; the table is of one side.
    #[test]
    fn critical_values_are_those_of_the_tables() {
        for (freedom, ninety, ninety_five, ninety_eight, ninety_nine) in [
            (1, 6.314, 12.706, 31.821, 63.657),
            (2, 2.920, 4.303, 6.965, 9.925),
            (3, 2.353, 3.182, 4.541, 5.841),
            (4, 2.132, 2.776, 3.747, 4.604),
            (5, 2.015, 2.571, 3.365, 4.032),
            (6, 1.943, 2.447, 3.143, 3.707),
            (7, 1.895, 2.365, 2.998, 3.499),
            (12, 1.782, 2.179, 2.681, 3.055),
            (30, 1.697, 2.042, 2.457, 2.750),
            (100, 1.660, 1.984, 2.364, 2.626),
        ] {
            for (confidence, expected) in [
                (0.9, ninety),
                (0.95, ninety_five),
                (0.98, ninety_eight),
                (0.99, ninety_nine),
            ] {
                let found = critical(confidence, freedom);
                assert!(
                    (found - expected).abs() <= 0.000_6,
                    "{confidence} {freedom}: {found}"
                );
            }
        }
        assert!((critical(0.95, 100_000) - 1.959_99).abs() < 1e-4);
    }

    #[test]
    fn probabilities_are_known_at_the_ends() {
        for freedom in 1..40 {
            assert!((two_sided(0.0, freedom) - 1.0).abs() < 1e-12);
            assert!(two_sided(f64::INFINITY, freedom).abs() < 1e-12);
        }
        // The distribution with one degree is Cauchy's, with two degrees t / sqrt(2 + t²).
        assert!((two_sided(1.0, 1) - 0.5).abs() < 1e-12);
        assert!((two_sided(2.0, 2) - (1.0 - 2.0 / 6.0_f64.sqrt())).abs() < 1e-12);
        assert!(critical(0.95, 0).is_infinite() && critical(1.0, 5).is_infinite());
        assert!(
            (two_sided(9.0, 0) - 1.0).abs() < 1e-12 && (two_sided(f64::NAN, 5) - 1.0).abs() < 1e-12
        );
    }

    proptest! {
        #[test]
        fn a_critical_value_has_its_confidence(confidence in 0.01..0.999_9_f64, freedom in 1..400_usize) {
            let outside = two_sided(critical(confidence, freedom), freedom);
            prop_assert!((outside - (1.0 - confidence)).abs() < 1e-9, "{}", outside);
        }

        #[test]
        fn farther_is_rarer(t in 0.0..50.0_f64, more in 0.01..5.0_f64, freedom in 1..200_usize) {
            prop_assert!(two_sided(t + more, freedom) <= two_sided(t, freedom) + 1e-12);
            // Fewer degrees have wider tails.
            prop_assert!(two_sided(t, freedom + 1) <= two_sided(t, freedom) + 1e-12);
        }
    }
}
