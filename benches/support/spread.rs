//! Summary of many durations.

use std::time::Duration;

/// The median, the 99th percentile and the maximum.
pub(crate) fn spread(times: &mut [Duration]) -> [Duration; 3] {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    [at(50), at(99), at(100)]
}
