//! [`AgentMetrics`]: the counters of the agent itself.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry,
};

use super::families::{
    CONTAINER_UNPINNED_SECONDS, DRIFT, Family, MANIFEST_ERRORS, MOVES, NRI_CALL_DURATION_SECONDS,
    NRI_UNANSWERED, PROCESS_CPU_SECONDS, PROCESS_START_TIME_SECONDS, RECONCILE_DURATION_SECONDS,
    RECONCILE_FAILURES, RECONCILES, STEPS, SWEEP_TIMESTAMP_SECONDS, UNGUARDED_STARTS,
};
use super::page::Page;
use super::process;
use crate::pin::DriftCause;

/// Counters of the agent since its start.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    registry: Registry,
    /// Turns of the reconciler by trigger.
    pub reconciles: IntCounterVec,
    /// Turns of the reconciler that failed.
    pub reconcile_failures: IntCounter,
    /// The duration of a turn of the reconciler.
    pub reconcile_seconds: Histogram,
    /// Steps by outcome.
    pub steps: IntCounterVec,
    sweep_ended: Gauge,
    /// Differences between kernel and ledger by cause.
    pub drift: IntCounterVec,
    /// Unpinned time: from a container's first instruction to the effective assignment.
    pub unpinned_seconds: Histogram,
    /// Running containers that were moved for a new container.
    pub moves: IntCounter,
    /// Pod manifests that the agent can't read now.
    pub manifest_errors: IntGauge,
    runtime_calls: HistogramVec,
    runtime_unanswered: IntCounter,
    /// Containers that started while no agent answered the container runtime, by kind.
    pub unguarded_starts: IntCounterVec,
    cpu_seconds: CounterVec,
    started: Gauge,
}

/// Buckets from a tenth of a millisecond to ten seconds.
const SECONDS: [f64; 11] = [
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0,
];

// === impl AgentMetrics ===

impl AgentMetrics {
    /// Every cause of drift is present from the start, with the value 0.
    ///
    /// # Errors
    /// Two families have the same name, which the tests exclude.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let opts = |family: &Family| Opts::new(family.name, family.help);
        let buckets = |family: &Family| HistogramOpts::from(opts(family)).buckets(SECONDS.to_vec());
        let reconciles = IntCounterVec::new(opts(&RECONCILES), RECONCILES.labels)?;
        let reconcile_failures = IntCounter::with_opts(opts(&RECONCILE_FAILURES))?;
        let reconcile_seconds = Histogram::with_opts(buckets(&RECONCILE_DURATION_SECONDS))?;
        let steps = IntCounterVec::new(opts(&STEPS), STEPS.labels)?;
        let sweep_ended = Gauge::with_opts(opts(&SWEEP_TIMESTAMP_SECONDS))?;
        let drift = IntCounterVec::new(opts(&DRIFT), DRIFT.labels)?;
        let unpinned_seconds = Histogram::with_opts(buckets(&CONTAINER_UNPINNED_SECONDS))?;
        let moves = IntCounter::with_opts(opts(&MOVES))?;
        let manifest_errors = IntGauge::with_opts(opts(&MANIFEST_ERRORS))?;
        let calls = &NRI_CALL_DURATION_SECONDS;
        let runtime_calls = HistogramVec::new(buckets(calls), calls.labels)?;
        let runtime_unanswered = IntCounter::with_opts(opts(&NRI_UNANSWERED))?;
        let unguarded = &UNGUARDED_STARTS;
        let unguarded_starts = IntCounterVec::new(opts(unguarded), unguarded.labels)?;
        let cpu_seconds = CounterVec::new(opts(&PROCESS_CPU_SECONDS), PROCESS_CPU_SECONDS.labels)?;
        let started = Gauge::with_opts(opts(&PROCESS_START_TIME_SECONDS))?;
        let all: [Box<dyn Collector>; 14] = [
            Box::new(reconciles.clone()),
            Box::new(reconcile_failures.clone()),
            Box::new(reconcile_seconds.clone()),
            Box::new(steps.clone()),
            Box::new(sweep_ended.clone()),
            Box::new(drift.clone()),
            Box::new(unpinned_seconds.clone()),
            Box::new(moves.clone()),
            Box::new(manifest_errors.clone()),
            Box::new(runtime_calls.clone()),
            Box::new(runtime_unanswered.clone()),
            Box::new(unguarded_starts.clone()),
            Box::new(cpu_seconds.clone()),
            Box::new(started.clone()),
        ];
        all.into_iter()
            .try_for_each(|family| registry.register(family))?;
        for cause in DriftCause::ALL {
            drift.with_label_values(&[cause.name()]);
        }
        for kind in ["exclusive_cpus", "required"] {
            unguarded_starts.with_label_values(&[kind]);
        }
        Ok(Self {
            registry,
            reconciles,
            reconcile_failures,
            reconcile_seconds,
            steps,
            sweep_ended,
            drift,
            unpinned_seconds,
            moves,
            manifest_errors,
            runtime_calls,
            runtime_unanswered,
            unguarded_starts,
            cpu_seconds,
            started,
        })
    }

    /// Sets the agent's start time, in seconds since 1970.
    pub fn set_started(&self, seconds: f64) {
        self.started.set(seconds);
    }

    /// Notes that the cgroups of all pods have been read.
    pub fn set_swept(&self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.sweep_ended.set(now.unwrap_or_default().as_secs_f64());
    }

    /// Records the duration of a container runtime's call.
    pub fn runtime_call(&self, call: &'static str, time: std::time::Duration) {
        self.runtime_calls
            .with_label_values(&[call])
            .observe(time.as_secs_f64());
    }

    /// Records a call without a timely answer.
    pub fn runtime_unanswered(&self) {
        self.runtime_unanswered.inc();
    }

    /// Sets the agent's total CPU time.
    pub fn set_cpu_seconds(&self, seconds: f64) {
        let counter = self.cpu_seconds.with_label_values::<&str>(&[]);
        counter.inc_by((seconds - counter.get()).max(0.0));
    }

    /// Adds the families of the agent and of its process.
    pub fn write(&self, page: &mut Page) {
        page.add_registry(&self.registry.gather());
        process::write(page);
    }
}
