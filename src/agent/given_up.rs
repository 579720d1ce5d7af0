//! [`GivenUp`]: CPUs that were given up and that others may be waiting for.
//!
//! They can be given once they are nobody's, which no change of a cgroup may tell: the next look has to come by itself, soon.
//! Where handing them back fails again and again, soon becomes later, up to the pace of the timer.

use std::time::{Duration, Instant};

use crate::cpu::CpuSet;

/// The pause after the first look that found the same CPUs still not handed back.
const FIRST: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Default)]
pub(super) struct GivenUp {
    cpus: CpuSet,
    pause: Duration,
    at: Option<Instant>,
}

// === impl GivenUp ===

impl GivenUp {
    /// When to look again; `None` where nothing was given up.
    pub(super) fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Takes note of what is given up now.
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
    fn what_is_not_handed_back_is_looked_at_ever_more_rarely() {
        let (mut given_up, now, longest) =
            (GivenUp::default(), Instant::now(), Duration::from_secs(10));
        let pause = |given_up: &GivenUp| given_up.due().map(|due| due - now);
        given_up.note(CpuSet::new(), now, longest);
        assert_eq!(pause(&given_up), None);
        given_up.note(set("2-3"), now, longest);
        assert_eq!(pause(&given_up), Some(Duration::ZERO));
        given_up.note(set("2-3"), now, longest);
        assert_eq!(pause(&given_up), Some(FIRST));
        let mut looks = 2;
        while pause(&given_up) < Some(longest) {
            given_up.note(set("2-3"), now, longest);
            looks += 1;
        }
        assert_eq!((pause(&given_up), looks), (Some(longest), 12));
        // Other CPUs are another matter.
        given_up.note(set("2-4"), now, longest);
        assert_eq!(pause(&given_up), Some(Duration::ZERO));
        given_up.note(CpuSet::new(), now, longest);
        assert_eq!(pause(&given_up), None);
    }
}
