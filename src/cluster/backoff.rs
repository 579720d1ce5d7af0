//! [`Backoff`] and [`BackoffPolicy`]: the wait before a retry. [`Jitter`]: random numbers that spread load.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use super::Failure;

/// The limit on `Retry-After`. A longer time from the server is shortened to it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Exponential backoff with jitter. Each wait is random in the upper half of its interval, to spread the retries of many nodes.
#[derive(Debug, Clone)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// The waits double from `least` to `most`.
    pub fn new(least: Duration, most: Duration) -> Self {
        Self {
            least,
            most,
            next: least,
        }
    }

    /// The next wait. `jitter` is in 0..1. `retry_after` is the server's `Retry-After`, a lower bound of the wait.
    pub fn wait(&mut self, jitter: f64, retry_after: Option<Duration>) -> Duration {
        let own = self.next.mul_f64(0.5 + jitter / 2.0);
        self.next = (self.next * 2).min(self.most);
        match retry_after {
            // The jitter only lengthens `Retry-After`: no retry may come earlier.
            Some(least) => own.max(least.min(MAX_RETRY_AFTER).mul_f64(1.0 + jitter / 4.0)),
            None => own,
        }
    }

    /// Restarts with the shortest wait, after a success.
    pub fn reset(&mut self) {
        self.next = self.least;
    }
}

/// The waits of a long-running task. Retryable and terminal failures have separate ones, because
/// their longest waits differ.
#[derive(Debug)]
pub(super) struct BackoffPolicy {
    retryable: Backoff,
    terminal: Backoff,
}

// === impl BackoffPolicy ===

impl BackoffPolicy {
    /// `bounds` are the shortest and the longest wait after retryable failures. The waits after
    /// terminal failures grow up to `terminal`, but at least up to the longest wait of `bounds`.
    pub(super) fn new(bounds: (Duration, Duration), terminal: Duration) -> Self {
        let (least, most) = bounds;
        Self {
            retryable: Backoff::new(least, most),
            terminal: Backoff::new(least, terminal.max(most)),
        }
    }

    /// The wait after `failure`; `jitter` is in 0..1.
    pub(super) fn after(&mut self, failure: &Failure, jitter: f64) -> Duration {
        let backoff = if failure.is_terminal() {
            &mut self.terminal
        } else {
            &mut self.retryable
        };
        backoff.wait(jitter, failure.retry_after())
    }

    /// The wait for a missing object.
    pub(super) fn without(&mut self, jitter: f64) -> Duration {
        self.terminal.wait(jitter, None)
    }

    /// Returns to the shortest waits, after a success.
    pub(super) fn reset(&mut self) {
        self.retryable.reset();
        self.terminal.reset();
    }

    pub(super) fn least(&self) -> Duration {
        self.retryable.least
    }
}

/// Random numbers to spread load. Each instance has a random seed.
#[derive(Debug, Clone)]
pub struct Jitter(fastrand::Rng);

// === impl Jitter ===

impl Default for Jitter {
    fn default() -> Self {
        // The keys of the standard library's hashes are random, while fastrand's own seed is only
        // the time.
        let seed = RandomState::new().build_hasher().finish();
        Self(fastrand::Rng::with_seed(seed))
    }
}

impl Jitter {
    /// A random number in 0..1.
    pub fn roll(&mut self) -> f64 {
        self.0.f64()
    }

    /// A random index below `length`, which must not be 0.
    pub fn below(&mut self, length: usize) -> usize {
        self.0.usize(..length.max(1))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A random time below `most`.
    pub fn spread(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.roll())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_start_over() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second);
        let waits: Vec<f64> = (0..5)
            .map(|_| backoff.wait(0.0, None).as_secs_f64())
            .collect();
        assert_eq!(waits, [0.5, 1.0, 2.0, 2.5, 2.5]);
        backoff.reset();
        assert_eq!(backoff.wait(0.999_999, None).as_secs_f64().round(), 1.0);
    }

    #[test]
    fn retry_after_is_a_lower_bound_up_to_a_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        assert!(backoff.wait(0.0, Some(Duration::from_secs(3))) >= Duration::from_secs(3));
        assert!(backoff.wait(0.99, Some(Duration::from_secs(86_400))) <= MAX_RETRY_AFTER * 2);
    }

    #[test]
    fn jitter_is_in_range_and_differs_between_instances() {
        let (mut first, mut second) = (Jitter::default(), Jitter::default());
        let rolls: Vec<f64> = (0..1000).map(|_| first.roll()).collect();
        assert!(rolls.iter().all(|roll| (0.0..1.0).contains(roll)));
        let mean = rolls.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
        assert_ne!(first.bits(), second.bits());
    }
}
