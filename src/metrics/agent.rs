//! [`AgentMetrics`]: counters of the agent's own doings.

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry,
};

use super::families::{
    DRIFT, Family, MANIFEST_ERRORS, MOVES, NRI_CALL_DURATION_SECONDS, NRI_UNANSWERED,
    PROCESS_CPU_SECONDS, PROCESS_START_TIME_SECONDS, RECONCILE_DURATION_SECONDS, RECONCILES, STEPS,
    WINDOW_SECONDS,
};
use crate::pin::DriftCause;

/// Counters of the agent's own doings, from its start on.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    registry: Registry,
    /// Reconciles by what caused them.
    pub reconciles: IntCounterVec,
    /// Time of one reconcile.
    pub reconcile_seconds: Histogram,
    /// Steps by what became of them.
    pub steps: IntCounterVec,
    /// Differences between kernel and ledger, by cause.
    pub drift: IntCounterVec,
    /// Time from a container's first instruction to its assignment in force.
    pub window_seconds: Histogram,
    /// Running containers that were moved to make room.
    pub moves: IntCounter,
    /// Manifests that can't be read now.
    pub manifest_errors: IntGauge,
    runtime_calls: HistogramVec,
    runtime_unanswered: IntCounter,
    cpu_seconds: CounterVec,
    started: Gauge,
}

/// Buckets from a tenth of a millisecond to ten seconds.
const SECONDS: [f64; 11] = [
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0,
];

// === impl AgentMetrics ===

impl AgentMetrics {
    /// Fresh counters; those with labels of their own show zeroes from the start.
    ///
    /// # Errors
    /// Two families of one name, which the tests rule out.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let opts = |family: &Family| Opts::new(family.name, family.help);
        let buckets = |family: &Family| HistogramOpts::from(opts(family)).buckets(SECONDS.to_vec());
        let reconciles = IntCounterVec::new(opts(&RECONCILES), RECONCILES.labels)?;
        let reconcile_seconds = Histogram::with_opts(buckets(&RECONCILE_DURATION_SECONDS))?;
        let steps = IntCounterVec::new(opts(&STEPS), STEPS.labels)?;
        let drift = IntCounterVec::new(opts(&DRIFT), DRIFT.labels)?;
        let window_seconds = Histogram::with_opts(buckets(&WINDOW_SECONDS))?;
        let moves = IntCounter::with_opts(opts(&MOVES))?;
        let manifest_errors = IntGauge::with_opts(opts(&MANIFEST_ERRORS))?;
        let calls = &NRI_CALL_DURATION_SECONDS;
        let runtime_calls = HistogramVec::new(buckets(calls), calls.labels)?;
        let runtime_unanswered = IntCounter::with_opts(opts(&NRI_UNANSWERED))?;
        let cpu_seconds = CounterVec::new(opts(&PROCESS_CPU_SECONDS), PROCESS_CPU_SECONDS.labels)?;
        let started = Gauge::with_opts(opts(&PROCESS_START_TIME_SECONDS))?;
        let all: [Box<dyn Collector>; 11] = [
            Box::new(reconciles.clone()),
            Box::new(reconcile_seconds.clone()),
            Box::new(steps.clone()),
            Box::new(drift.clone()),
            Box::new(window_seconds.clone()),
            Box::new(moves.clone()),
            Box::new(manifest_errors.clone()),
            Box::new(runtime_calls.clone()),
            Box::new(runtime_unanswered.clone()),
            Box::new(cpu_seconds.clone()),
            Box::new(started.clone()),
        ];
        all.into_iter().try_for_each(|one| registry.register(one))?;
        for cause in DriftCause::ALL {
            drift.with_label_values(&[cause.name()]);
        }
        Ok(Self {
            registry,
            reconciles,
            reconcile_seconds,
            steps,
            drift,
            window_seconds,
            moves,
            manifest_errors,
            runtime_calls,
            runtime_unanswered,
            cpu_seconds,
            started,
        })
    }

    /// Notes when the agent started, in seconds since 1970.
    pub fn set_started(&self, seconds: f64) {
        self.started.set(seconds);
    }

    /// Notes how long the container runtime has waited for an answer.
    pub fn runtime_call(&self, call: &'static str, time: std::time::Duration) {
        self.runtime_calls
            .with_label_values(&[call])
            .observe(time.as_secs_f64());
    }

    /// Notes a call that was not answered in time.
    pub fn runtime_unanswered(&self) {
        self.runtime_unanswered.inc();
    }

    /// Notes how much CPU time the agent has used in all.
    pub fn set_cpu_seconds(&self, seconds: f64) {
        let counter = self.cpu_seconds.with_label_values::<&str>(&[]);
        counter.inc_by((seconds - counter.get()).max(0.0));
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }
}
