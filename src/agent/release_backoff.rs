//! [`ReleaseBackoff`]: when the next turn must look again for the CPUs that the last one gave up.
//!
//! New containers may wait for these CPUs, which may become free without a change of a cgroup, so
//! the next turn needs a timer. If the same CPUs are not handed back, the pause doubles, up to the
//! reconcile interval.

use std::time::{Duration, Instant};

use crate::cpu::CpuSet;

/// The pause after the second turn in a row that gave up the same CPUs and did not get them handed
/// back.
const FIRST: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Default)]
pub(super) struct ReleaseBackoff {
    cpus: CpuSet,
    pause: Duration,
    at: Option<Instant>,
}

// === impl ReleaseBackoff ===

impl ReleaseBackoff {
    /// The time of the next turn; `None` if no CPUs were given up.
    pub(super) fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Takes the CPUs that a turn gave up, and sets when the next turn is due, after a pause of at
    /// most `longest`.
    pub(super) fn note(&mut self, cpus: CpuSet, now: Instant, longest: Duration) {
        self.pause = if cpus == self.cpus {
            (self.pause * 2).max(FIRST).min(longest)
        } else {
            Duration::ZERO
        };
        self.at = (!cpus.is_empty()).then(|| now + self.pause);
        self.cpus = cpus;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn the_pause_doubles_while_the_same_cpus_are_not_handed_back() {
        let (mut release_backoff, now, longest) = (
            ReleaseBackoff::default(),
            Instant::now(),
            Duration::from_secs(10),
        );
        let pause = |release_backoff: &ReleaseBackoff| release_backoff.due().map(|due| due - now);
        release_backoff.note(CpuSet::new(), now, longest);
        assert_eq!(pause(&release_backoff), None);
        release_backoff.note(set("2-3"), now, longest);
        assert_eq!(pause(&release_backoff), Some(Duration::ZERO));
        release_backoff.note(set("2-3"), now, longest);
        assert_eq!(pause(&release_backoff), Some(FIRST));
        let mut attempts = 2;
        while pause(&release_backoff) < Some(longest) {
            release_backoff.note(set("2-3"), now, longest);
            attempts += 1;
        }
        assert_eq!((pause(&release_backoff), attempts), (Some(longest), 12));
        // A different set of CPUs restarts the backoff.
        release_backoff.note(set("2-4"), now, longest);
        assert_eq!(pause(&release_backoff), Some(Duration::ZERO));
        release_backoff.note(CpuSet::new(), now, longest);
        assert_eq!(pause(&release_backoff), None);
    }
}
