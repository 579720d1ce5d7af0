//! [`LogFilter`]: log lines that repeat are written once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a line must be absent before it counts as news.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// The maximum number of different lines within [`REPEAT_AFTER`]. Otherwise, a program that writes
/// ever new values to cgroups would fill the disk through the agent's log.
const MAX_LINES: usize = 200;

#[derive(Debug, Default)]
pub(super) struct LogFilter {
    /// When each line was last due.
    lines: BTreeMap<String, Instant>,
}

// === impl LogFilter ===

impl LogFilter {
    /// Whether a line is due for the first time in a while. The caller then writes it.
    pub(super) fn admits(&mut self, line: &str, now: Instant) -> bool {
        if let Some(last) = self.lines.get_mut(line) {
            *last = now;
            return false;
        }
        if self.lines.len() >= MAX_LINES {
            self.forget(now, |_| false);
        }
        if self.lines.len() >= MAX_LINES {
            return false;
        }
        self.lines.insert(line.to_owned(), now);
        if self.lines.len() == MAX_LINES {
            tracing::warn!(
                "{MAX_LINES} different messages about cgroups within {} s: the agent writes no more new ones until there \
                 are fewer; find the program that keeps changing the pods' cgroups",
                REPEAT_AFTER.as_secs()
            );
        }
        true
    }

    /// Forgets the lines that were not due for a while. A line stays as long as what it says `is_true`, however rarely the
    /// agent looks.
    pub(super) fn forget(&mut self, now: Instant, is_true: impl Fn(&str) -> bool) {
        self.lines.retain(|line, last| {
            is_true(line) || now.saturating_duration_since(*last) < REPEAT_AFTER
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_again_after_it_was_false_for_a_while() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut filter = LogFilter::default();
        assert!(filter.admits("a", start));
        assert!(!filter.admits("a", after(1)));
        // With a long interval, the next attempt comes late, and fails in the same way.
        filter.forget(after(3600), |line| line == "a");
        assert!(!filter.admits("a", after(3600)));
        filter.forget(after(3659), |_| false);
        assert!(!filter.admits("a", after(3659)));
        filter.forget(after(3719), |_| false);
        assert!(filter.admits("a", after(3719)));
    }

    #[test]
    fn ever_new_lines_do_not_fill_the_disk() {
        let start = Instant::now();
        let mut filter = LogFilter::default();
        let written =
            (0..10 * MAX_LINES).filter(|number| filter.admits(&number.to_string(), start));
        assert_eq!(written.count(), MAX_LINES);
        assert!(filter.admits("later", start + REPEAT_AFTER));
    }
}
