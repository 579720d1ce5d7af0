//! Faults on demand.

use std::time::Duration;

/// What goes wrong.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The connection is closed before anything is answered.
    Drop,
    /// The answer comes late.
    Delay(Duration),
    /// The connection stays open, and no answer comes.
    Hang,
    /// A refusal with a text as its body, as a proxy or flow control answers.
    Refuse {
        code: u16,
        text: &'static str,
        retry_after: Option<u64>,
    },
    /// 200 and bytes that mean nothing.
    Garbage,
    /// The answer's body ends halfway.
    Half,
    /// Something that happens to a watch after it has begun.
    Watch(WatchFault),
}

/// What goes wrong with a watch that was accepted; `after` counts the changes sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchFault {
    /// Nothing is ever sent, and the connection stays.
    Silent,
    /// The end of a streaming list is never marked; a plain watch does well.
    Unended,
    /// It ends as soon as it has begun.
    CloseAtOnce,
    /// It is cut within a line.
    HalfLine { after: usize },
    /// A line that is no JSON comes between.
    Garbage { after: usize },
    /// An ERROR event with code 410 ends it.
    Gone { after: usize },
}

/// Which requests a fault meets, and how many of them.
#[derive(Debug, Clone)]
pub(crate) struct When {
    verb: Option<&'static str>,
    plural: Option<&'static str>,
    user: Option<String>,
    times: usize,
}

// === impl When ===

impl When {
    /// Every request, without end.
    pub(crate) fn always() -> Self {
        Self {
            verb: None,
            plural: None,
            user: None,
            times: usize::MAX,
        }
    }

    /// Only so many.
    pub(crate) fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// `get`, `list`, `watch`, `create`, `update`, `patch` (apply included), `delete`.
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

    /// Whether this request is met; it is counted then.
    pub(crate) fn meets(&mut self, verb: &str, plural: &str, user: &str) -> bool {
        let meets = self.times > 0
            && self.verb.is_none_or(|wanted| wanted == verb)
            && self.plural.is_none_or(|wanted| wanted == plural)
            && self.user.as_ref().is_none_or(|wanted| wanted == user);
        if meets && self.times != usize::MAX {
            self.times -= 1;
        }
        meets
    }
}
