//! [`Heartbeat`]: whether the reconciler still works, for the service manager's watchdog and for `/healthz`.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::LONGEST_DELAY;

/// How many turns in a row must fail before the agent is no longer ready. A single one may fail
/// beside a pod that ends.
const FAILURES: u32 = 3;

/// The reconciler's sign of life. Clones share it.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The longest time between two turns.
    interval: Duration,
    beat: Arc<Mutex<TurnTimes>>,
}

#[derive(Debug, Default)]
struct TurnTimes {
    /// When the last turn ended.
    finished: Option<Instant>,
    /// The running operation and its start time; `None` between two turns.
    operation: Option<(Cow<'static, str>, Instant)>,
    /// How many turns have failed since the last one that succeeded.
    failures: u32,
    /// The error of the last turn, if it failed.
    error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    /// The first turn has not ended. The startup probe, or the service manager's start timeout, decides how long to wait.
    Starting(String),
    /// The last turn ended in time.
    Alive,
    /// No turn has ended for too long. The text gives the time and the hanging operation.
    Stuck(String),
}

// === impl Heartbeat ===

impl Heartbeat {
    /// The heartbeat of a reconciler with at least one turn in each `interval`.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            beat: Arc::default(),
        }
    }

    /// Notes the operation that begins now, so that a system call that hangs can be named.
    pub(super) fn begin(&self, operation: impl Into<Cow<'static, str>>) {
        self.beat().operation = Some((operation.into(), Instant::now()));
    }

    pub(super) fn idle(&self) {
        self.beat().operation = None;
    }

    /// Notes the end of a turn, with success or with an error. A turn that fails is a sign of life, too: the reconciler does
    /// not hang, and a new process would read the same files.
    pub(super) fn finish(&self) {
        let mut beat = self.beat();
        beat.finished = Some(Instant::now());
        beat.operation = None;
    }

    /// Notes that a turn for all pods has failed. Returns how many have failed in a row.
    pub(super) fn failed(&self, error: String) -> u32 {
        let mut beat = self.beat();
        beat.failures = beat.failures.saturating_add(1);
        beat.error = Some(error);
        beat.failures
    }

    /// Notes that a turn for all pods has succeeded.
    pub(super) fn succeeded(&self) {
        let mut beat = self.beat();
        (beat.failures, beat.error) = (0, None);
    }

    /// Why the agent does not do its work although it is alive: [`FAILURES`] turns or more have failed in a row.
    pub(super) fn failing(&self) -> Option<String> {
        let beat = self.beat();
        let error = beat.error.as_ref().filter(|_| beat.failures >= FAILURES)?;
        Some(format!(
            "{} turns of the reconciler failed in a row, the last one with: {error}",
            beat.failures
        ))
    }

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
        // Two missed turns, the delay by runtime requests, and some time for a busy machine.
        let limit = self
            .interval
            .saturating_mul(2)
            .saturating_add(LONGEST_DELAY)
            .saturating_add(Duration::from_secs(5));
        match beat.finished.map(|finished| now.duration_since(finished)) {
            None => Health::Starting(format!(
                "the first turn of the reconciler has not ended; {operation}"
            )),
            Some(since) if since < limit => Health::Alive,
            Some(since) => {
                let (since, limit) = (since.as_secs(), limit.as_secs());
                Health::Stuck(format!(
                    "no turn of the reconciler has ended for {since} s, and {limit} s are allowed; {operation}"
                ))
            }
        }
    }

    fn beat(&self) -> MutexGuard<'_, TurnTimes> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconciler_that_misses_two_turns_is_stuck() {
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
    fn only_turns_that_fail_in_a_row_are_a_problem_and_none_is_a_reason_to_restart() {
        let heartbeat = Heartbeat::new(Duration::from_secs(10));
        let turn = |error: Option<&str>| {
            match error {
                Some(error) => drop(heartbeat.failed(error.to_owned())),
                None => heartbeat.succeeded(),
            }
            heartbeat.finish();
            heartbeat.failing()
        };
        assert_eq!(turn(Some("first")), None);
        assert_eq!(turn(Some("second")), None);
        assert_eq!(turn(None), None);
        assert_eq!(turn(Some("first")), None);
        assert_eq!(turn(Some("second")), None);
        let failing = turn(Some("third")).unwrap();
        assert!(
            failing.starts_with("3 ") && failing.ends_with("third"),
            "{failing}"
        );
        assert_eq!(heartbeat.health(), Health::Alive);
        assert_eq!(turn(None), None);
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
