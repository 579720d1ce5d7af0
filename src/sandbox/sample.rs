//! [`Sample`]: the agent's metrics, read by a scrape like Prometheus's.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::text::exposition::{self, Series};

/// Counters of all pods at a moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) pods: BTreeMap<String, SampledCounters>,
    /// How many of the agent's writes to cgroups have failed so far.
    pub(super) failed_writes: u64,
    /// Collectors without counters on this machine, each with the reason.
    pub(super) unsupported: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct SampledCounters {
    pub(super) threads: u64,
    /// A collector may omit a counter, because it was late, or the machine does not count.
    pub(super) context_switches: Option<u64>,
    /// The part of the context switches at which the kernel took the CPU away.
    pub(super) involuntary_switches: Option<u64>,
    pub(super) throttled_periods: Option<u64>,
    /// The CPU time used so far, in seconds.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) llc_misses: Option<u64>,
    pub(super) receive_bytes: u64,
    pub(super) transmit_bytes: u64,
    /// The number of steps, which the process itself reports.
    pub(super) steps: u64,
    /// The use of the pod's exclusive CPUs by other programs; `None` in the shared pool.
    pub(super) interference: Option<InterferenceReading>,
}

/// The interference of a pod so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct InterferenceReading {
    /// The use, in CPU seconds.
    pub(super) seconds: f64,
    /// The true value differs by at most this many seconds.
    pub(super) error_seconds: f64,
}

// === impl Sample ===

impl Sample {
    /// Adds up each pod's series on a page of `/metrics`.
    pub(super) fn parse(page: &str) -> Self {
        let mut sample = Self {
            at: Instant::now(),
            pods: BTreeMap::new(),
            failed_writes: 0,
            unsupported: BTreeMap::new(),
        };
        for series in exposition::series(page, |name| name.starts_with("pinfold_")) {
            match series.name {
                "pinfold_reconcile_steps_total" => {
                    // The other writes ended as planned, or because the cgroup was gone.
                    let is_failure = !matches!(series.label("outcome"), Some("done" | "gone"));
                    sample.failed_writes += if is_failure { whole(&series) } else { 0 };
                }
                "pinfold_collector_unsupported" => {
                    let label = |name| series.label(name).unwrap_or_default().to_owned();
                    sample
                        .unsupported
                        .insert(label("collector"), label("reason"));
                }
                _ => {
                    if let Some(pod) = series.label("pod") {
                        sample.pods.entry(pod.to_owned()).or_default().add(&series);
                    }
                }
            }
        }
        sample
    }

    /// The increase of a pod's counter since an earlier sample.
    pub(super) fn gain(&self, before: &Self, pod: &str, pick: fn(&SampledCounters) -> u64) -> u64 {
        let at = |sample: &Self| sample.pods.get(pod).map_or(0, pick);
        at(self).saturating_sub(at(before))
    }
}

// === impl SampledCounters ===

impl SampledCounters {
    /// Adds one of the pod's series.
    fn add(&mut self, series: &Series<'_>) {
        let value = whole(series);
        match series.name {
            "pinfold_container_threads" => self.threads += value,
            "pinfold_container_context_switches_total" => {
                *self.context_switches.get_or_insert(0) += value;
                if series.label("kind") == Some("involuntary") {
                    *self.involuntary_switches.get_or_insert(0) += value;
                }
            }
            "pinfold_container_interference_cpu_seconds_total" => {
                self.interference.get_or_insert_default().seconds += series.value;
            }
            "pinfold_container_interference_cpu_error_seconds_total" => {
                self.interference.get_or_insert_default().error_seconds += series.value;
            }
            "pinfold_container_cpu_throttled_periods_total" => {
                *self.throttled_periods.get_or_insert(0) += value;
            }
            "pinfold_container_cpu_usage_seconds_total" => {
                *self.cpu_seconds.get_or_insert(0.0) += series.value;
            }
            "pinfold_container_llc_misses_total" => *self.llc_misses.get_or_insert(0) += value,
            "pinfold_pod_network_receive_bytes_total" => self.receive_bytes += value,
            "pinfold_pod_network_transmit_bytes_total" => self.transmit_bytes += value,
            _ => {}
        }
    }
}

/// The value of a counter of events.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counters of events are whole and not negative"
)]
fn whole(series: &Series<'_>) -> u64 {
    series.value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_pod_are_added_up() {
        let text = "# HELP pinfold_container_threads x\n\
            pinfold_container_threads{namespace=\"demo\",pod=\"ps-0\",container=\"a\"} 3\n\
            pinfold_container_context_switches_total{container=\"a\",kind=\"voluntary\",namespace=\"demo\",pod=\"ps-0\"} 1e3\n\
            pinfold_container_context_switches_total{container=\"a\",kind=\"involuntary\",namespace=\"demo\",pod=\"ps-0\"} 7\n\
            pinfold_container_interference_cpu_seconds_total{container=\"a\",namespace=\"demo\",pod=\"ps-0\"} 0.75\n\
            pinfold_container_interference_cpu_error_seconds_total{container=\"a\",namespace=\"demo\",pod=\"ps-0\"} 0.01\n\
            pinfold_container_cpu_usage_seconds_total{container=\"a\",namespace=\"demo\",pod=\"ps-0\"} 1.5\n\
            pinfold_container_llc_misses_total{container=\"a\",namespace=\"demo\",pod=\"ps-0\"} 4\n\
            pinfold_collector_unsupported{collector=\"caches\",reason=\"no \\\"LLC\\\" here\"} 1\n\
            process_cpu_seconds_total 1\n";
        let sample = Sample::parse(text);
        let expected = SampledCounters {
            threads: 3,
            context_switches: Some(1007),
            involuntary_switches: Some(7),
            interference: Some(InterferenceReading {
                seconds: 0.75,
                error_seconds: 0.01,
            }),
            cpu_seconds: Some(1.5),
            llc_misses: Some(4),
            ..SampledCounters::default()
        };
        assert_eq!(sample.pods, BTreeMap::from([("ps-0".to_owned(), expected)]));
        let reason = "no \"LLC\" here".to_owned();
        assert_eq!(
            sample.unsupported,
            BTreeMap::from([("caches".to_owned(), reason)])
        );
    }
}
