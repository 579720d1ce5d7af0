//! Faults on demand.

use std::time::Duration;

/// A fault of a request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The server closes the connection without an answer.
    Drop,
    /// The answer is delayed.
    Delay(Duration),
    /// The connection stays open without an answer.
    Hang,
    /// An error with a plain text body, as from a proxy or from API priority and fairness.
    Refuse {
        code: u16,
        text: &'static str,
        retry_after: Option<u64>,
    },
    /// Status 200 with a body of invalid JSON.
    Garbage,
    /// The connection ends after half of the body.
    Half,
    /// A fault of an accepted watch.
    Watch(WatchFault),
}

/// A fault of an accepted watch. `after` is the number of changes sent before the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchFault {
    /// The connection stays open, and nothing is sent.
    Silent,
    /// A streaming list without the bookmark at its end. A plain watch works.
    Unended,
    /// The watch ends at once.
    CloseAtOnce,
    /// The answer takes three seconds, and the watch then ends at once.
    CloseLate,
    /// The connection is cut within a line.
    HalfLine { after: usize },
    /// A line of invalid JSON precedes the next change.
    Garbage { after: usize },
    /// An ERROR event with code 410 ends the watch.
    Gone { after: usize },
}

/// The requests hit by a fault, and their maximum number.
#[derive(Debug, Clone)]
pub(crate) struct FaultScope {
    verb: Option<&'static str>,
    plural: Option<&'static str>,
    user: Option<String>,
    times: usize,
}

// === impl FaultScope ===

impl FaultScope {
    /// Every request, without a limit.
    pub(crate) fn always() -> Self {
        Self {
            verb: None,
            plural: None,
            user: None,
            times: usize::MAX,
        }
    }

    /// At most `times` requests.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Only requests with this verb: `get`, `list`, `watch`, `create`, `update`, `patch` (apply included), `delete`.
    pub(crate) fn verb(mut self, verb: &'static str) -> Self {
        self.verb = Some(verb);
        self
    }

    pub(crate) fn on(mut self, plural: &'static str) -> Self {
        self.plural = Some(plural);
        self
    }

    pub(crate) fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Whether the fault hits a request. Each hit counts towards the limit.
    pub(crate) fn meets(&mut self, verb: &str, plural: &str, user: &str) -> bool {
        let hit = self.times > 0
            && self.verb.is_none_or(|wanted| wanted == verb)
            && self.plural.is_none_or(|wanted| wanted == plural)
            && self.user.as_ref().is_none_or(|wanted| wanted == user);
        if hit && self.times != usize::MAX {
            self.times -= 1;
        }
        hit
    }
}
