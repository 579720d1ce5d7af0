//! [`LogLimit`]: limits a log line that many requests could cause.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two log lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Admits a log line at most once in each [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    /// The time of the last line.
    last: Mutex<Option<Instant>>,
}

// === impl LogLimit ===

impl LogLimit {
    /// Whether the line may be written now. The caller writes an admitted line.
    pub(super) fn admits(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_a_minute() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(limit.admits(start));
        assert!(!limit.admits(after(1)));
        assert!(!limit.admits(after(59)));
        assert!(limit.admits(after(60)));
        assert!(!limit.admits(after(119)));
    }
}
