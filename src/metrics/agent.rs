//! [`AgentMetrics`]: counters of the agent's own doings.

use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry,
};

use crate::pin::Cause;

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
const SECONDS: [f64; 11] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0];

// === impl AgentMetrics ===

impl AgentMetrics {
    /// Fresh counters; those with labels of their own show zeroes from the start.
    ///
    /// # Errors
    /// Two families of one name, which the tests rule out.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(vec.clone()))?;
            prometheus::Result::Ok(vec)
        };
        let histogram = |name: &str, help: &str| {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))?;
            registry.register(Box::new(histogram.clone()))?;
            prometheus::Result::Ok(histogram)
        };
        let reconciles = counters("pinfold_reconcile_total", "Reconciles, by what caused them.", "reason")?;
        let steps = counters("pinfold_steps_total", "Writes to cgroups, by what became of them.", "outcome")?;
        let drift =
            counters("pinfold_drift_total", "Differences of kernel and ledger found, by cause.", "cause")?;
        let reconcile_seconds = histogram("pinfold_reconcile_duration_seconds", "Time of one reconcile.")?;
        let window_seconds = histogram(
            "pinfold_window_seconds",
            "Time from a container's first instruction to its assignment in force; the kernel counts in hundredths.",
        )?;
        let manifest_errors =
            IntGauge::new("pinfold_manifest_errors", "Pod manifests that can't be read now.")?;
        registry.register(Box::new(manifest_errors.clone()))?;
        let moves = IntCounter::new(
            "pinfold_moves_total",
            "Running containers that were moved to make room for others.",
        )?;
        registry.register(Box::new(moves.clone()))?;
        let runtime_calls = HistogramVec::new(
            HistogramOpts::new(
                "pinfold_nri_call_duration_seconds",
                "Time that the container runtime has waited for an answer.",
            )
            .buckets(SECONDS.to_vec()),
            &["call"],
        )?;
        registry.register(Box::new(runtime_calls.clone()))?;
        let runtime_unanswered = IntCounter::new(
            "pinfold_nri_unanswered_total",
            "Calls of the container runtime that were not answered in time.",
        )?;
        registry.register(Box::new(runtime_unanswered.clone()))?;
        let cpu_seconds =
            CounterVec::new(Opts::new("process_cpu_seconds_total", "CPU time used by the agent."), &[])?;
        registry.register(Box::new(cpu_seconds.clone()))?;
        let started =
            Gauge::new("process_start_time_seconds", "When the agent started, in seconds since 1970.")?;
        registry.register(Box::new(started.clone()))?;
        for cause in Cause::ALL {
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
        self.runtime_calls.with_label_values(&[call]).observe(time.as_secs_f64());
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
