//! [`BackoffPolicy`]: how long to wait after a failure; [`advice`]: what a person can do about it.

use std::time::Duration;

use super::Settings;
use crate::cluster::{Backoff, ErrorKind, Failure};

/// How long to wait before the next try.
///
/// What passes by itself is tried again within [`Settings::backoff`]. What lasts until somebody does something about it soon
/// costs no more than a look: an installation whose rights come a moment later is not kept waiting, and one that never gets
/// them asks every few minutes.
#[derive(Debug)]
pub(super) struct BackoffPolicy {
    passing: Backoff,
    terminal: Backoff,
}

// === impl BackoffPolicy ===

impl BackoffPolicy {
    pub(super) fn new(settings: &Settings) -> Self {
        let (least, most) = settings.backoff;
        // The longest wait is spread over the upper half of this, which is about a look.
        let look = settings.look.mul_f64(1.5).max(most);
        Self {
            passing: Backoff::new(least, most),
            terminal: Backoff::new(least, look),
        }
    }

    /// How long to wait after this failure; `jitter` is in 0..1.
    pub(super) fn after(&mut self, failure: &Failure, jitter: f64) -> Duration {
        let backoff = if failure.is_terminal() {
            &mut self.terminal
        } else {
            &mut self.passing
        };
        backoff.wait(jitter, failure.retry_after())
    }

    /// How long to wait for something that is not there.
    pub(super) fn without(&mut self, jitter: f64) -> Duration {
        self.terminal.wait(jitter, None)
    }

    /// Starts over: something worked.
    pub(super) fn reset(&mut self) {
        self.passing.reset();
        self.terminal.reset();
    }
}

/// What to do about a failure to keep the node's place, as the end of a sentence.
pub(super) fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => ": does the agent have the rights that deploy/ gives it?",
        ErrorKind::Unauthorized => ": is the agent's token still valid?",
        ErrorKind::NotFound => {
            ": make the namespace of the claims, or name another one (--namespace)"
        }
        ErrorKind::Refused => {
            ": do the policies know the label keys of the plans (labelKeys of the chart, ours in node-policy.yaml), \
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
    fn what_lasts_is_tried_less_and_less_often_and_what_passes_is_not() {
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
