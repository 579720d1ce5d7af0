//! [`Heartbeat`]: whether the reconciler still works, for the service manager's watchdog and for `/healthz`.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::LONGEST_DELAY;

/// The reconciler's sign of life. Clones share it.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The longest time between two passes.
    interval: Duration,
    beat: Arc<Mutex<PassTimes>>,
}

#[derive(Debug, Default)]
struct PassTimes {
    /// When the last pass ended.
    finished: Option<Instant>,
    /// The running operation and its start time; `None` between two passes.
    operation: Option<(Cow<'static, str>, Instant)>,
}

/// The health of the reconciler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    /// The first pass has not ended. The startup probe, or the service manager's start timeout, decides how long to wait.
    Starting(String),
    /// The last pass ended in time.
    Alive,
    /// No pass has ended for too long. The text gives the time and the hanging operation.
    Stuck(String),
}

// === impl Heartbeat ===

impl Heartbeat {
    /// The heartbeat of a reconciler with at least one pass in each `interval`.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            beat: Arc::default(),
        }
    }

    /// Notes the operation that begins now. The note identifies a hanging system call.
    pub(super) fn begin(&self, operation: impl Into<Cow<'static, str>>) {
        self.beat().operation = Some((operation.into(), Instant::now()));
    }

    /// Notes the end of an operation.
    pub(super) fn idle(&self) {
        self.beat().operation = None;
    }

    /// Notes the end of a pass, with success or with an error.
    pub(super) fn finish(&self) {
        *self.beat() = PassTimes {
            finished: Some(Instant::now()),
            operation: None,
        };
    }

    /// The present health of the reconciler.
    pub(super) fn health(&self) -> Health {
        self.health_at(Instant::now())
    }

    fn health_at(&self, now: Instant) -> Health {
        let beat = self.beat();
        let operation = match &beat.operation {
            Some((operation, since)) => {
                format!(
                    "the current operation has taken {} s: {operation}",
                    now.duration_since(*since).as_secs()
                )
            }
            None => "no operation runs: the reconciler waits or its task ended".to_owned(),
        };
        // Two missed passes, the delay by runtime requests, and some time for a busy machine.
        let limit = self
            .interval
            .saturating_mul(2)
            .saturating_add(LONGEST_DELAY)
            .saturating_add(Duration::from_secs(5));
        match beat.finished.map(|finished| now.duration_since(finished)) {
            None => Health::Starting(format!(
                "the first pass of the reconciler has not ended; {operation}"
            )),
            Some(since) if since < limit => Health::Alive,
            Some(since) => {
                let (since, limit) = (since.as_secs(), limit.as_secs());
                Health::Stuck(format!(
                    "no pass of the reconciler has ended for {since} s, and {limit} s are allowed; {operation}"
                ))
            }
        }
    }

    fn beat(&self) -> MutexGuard<'_, PassTimes> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconciler_that_misses_two_passes_is_stuck() {
        let health = |interval: Duration, since: u64| {
            let heartbeat = Heartbeat::new(interval);
            heartbeat.finish();
            heartbeat.health_at(Instant::now() + Duration::from_secs(since))
        };
        let seconds = Duration::from_secs;
        assert_eq!(
            [health(seconds(10), 0), health(seconds(10), 29)],
            [Health::Alive, Health::Alive]
        );
        assert!(matches!(health(seconds(10), 31), Health::Stuck(_)));
        assert_eq!(health(seconds(1), 11), Health::Alive);
        assert!(matches!(health(seconds(1), 13), Health::Stuck(_)));
        assert_eq!(
            health(Duration::MAX, 9),
            Health::Alive,
            "no overflow with any configuration"
        );
    }

    #[test]
    fn the_operation_that_hangs_is_named() {
        let heartbeat = Heartbeat::new(Duration::from_secs(10));
        heartbeat.begin("read the cgroups");
        let Health::Starting(text) = heartbeat.health() else {
            panic!("it has not started")
        };
        assert!(text.contains("read the cgroups"), "{text}");
        heartbeat.finish();
        heartbeat.begin("write cpuset.cpus of kubepods/pod1".to_owned());
        let Health::Stuck(text) = heartbeat.health_at(Instant::now() + Duration::from_secs(60))
        else {
            panic!("it is stuck")
        };
        assert!(
            text.contains("60 s: write cpuset.cpus of kubepods/pod1"),
            "{text}"
        );
        heartbeat.idle();
        let Health::Stuck(text) = heartbeat.health_at(Instant::now() + Duration::from_secs(60))
        else {
            panic!("it is stuck")
        };
        assert!(!text.contains("kubepods"), "{text}");
    }
}
