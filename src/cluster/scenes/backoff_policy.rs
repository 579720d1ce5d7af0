//! [`BackoffPolicy`]: the wait after a failure; [`advice`]: the remedy for a failure.

use std::time::Duration;

use super::Settings;
use crate::cluster::{Backoff, ErrorKind, Failure};

/// The wait before the next try.
///
/// Retryable failures wait within [`Settings::backoff`]. Terminal failures wait longer and longer, up to about
/// [`Settings::look`]. So an agent continues soon if the permissions come a moment after the start, and an agent without
/// permissions sends requests every few minutes.
#[derive(Debug)]
pub(super) struct BackoffPolicy {
    retryable: Backoff,
    terminal: Backoff,
}

// === impl BackoffPolicy ===

impl BackoffPolicy {
    pub(super) fn new(settings: &Settings) -> Self {
        let (least, most) = settings.backoff;
        // Backoff spreads the longest wait over the upper half of `longest`, so the mean is about `settings.look`.
        let longest = settings.look.mul_f64(1.5).max(most);
        Self {
            retryable: Backoff::new(least, most),
            terminal: Backoff::new(least, longest),
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
}

/// The remedy for a failure to keep the node's slot, as the end of a sentence.
pub(super) fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => ": does the agent have the rights that deploy/ gives it?",
        ErrorKind::Unauthorized => ": is the agent's token still valid?",
        ErrorKind::NotFound => {
            ": create the namespace of the claims, or set a different namespace (--namespace)"
        }
        ErrorKind::Refused => {
            ": do the policies list the label keys of the plans (labelKeys of the chart, ours in node-policy.yaml), \
             and does pinfold scene check find a mistake?"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn terminal_failures_back_off_up_to_a_look_and_retryable_failures_stay_frequent() {
        let settings = Settings::default();
        let mut backoff = BackoffPolicy::new(&settings);
        let refused = |code| Failure::refused(Status::failure("no", "No").with_code(code));
        let waits = |backoff: &mut BackoffPolicy, failure: &Failure| -> Vec<Duration> {
            (0..20).map(|_| backoff.after(failure, 0.5)).collect()
        };
        for code in [400, 401, 403, 404, 405, 415, 422] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[0] < Duration::from_secs(1), "{code}");
            assert!(
                waits[12] > settings.look && waits[19] < 2 * settings.look,
                "{code}: {waits:?}"
            );
            backoff.reset();
        }
        for code in [408, 409, 410, 429, 500, 503, 504] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[19] <= settings.backoff.1, "{code}: {waits:?}");
            backoff.reset();
        }
        for failure in [
            Failure::Connection(String::new()),
            Failure::InvalidResponse(String::new()),
        ] {
            assert!(
                waits(&mut backoff, &failure)[19] <= settings.backoff.1,
                "{failure}"
            );
        }
    }
}
