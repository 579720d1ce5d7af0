//! [`PodRow`]: a pod as `top` shows it, with [`RowFigures`] of the pod and of each container.

use super::container_status::SafeText;
use crate::cpu::CpuSet;

/// The identity of a pod on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodKey {
    pub(crate) namespace: SafeText,
    pub(crate) pod: SafeText,
    /// The pod's uid; the cgroup of an unknown owner.
    pub(crate) uid: Option<SafeText>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodRow {
    /// The index of the pod's node.
    pub(crate) node: usize,
    pub(crate) key: PodKey,
    /// The letter of the pod's CPUs on the map; `None` without exclusive CPUs.
    pub(crate) letter: Option<char>,
    pub(crate) role: SafeText,
    pub(crate) job: SafeText,
    pub(crate) qos: SafeText,
    /// The sum of all containers.
    pub(crate) total: RowFigures,
    /// Received bytes per second.
    pub(crate) receive: Option<f64>,
    /// Sent bytes per second.
    pub(crate) transmit: Option<f64>,
    pub(crate) containers: Vec<(SafeText, RowFigures)>,
    /// Remarks for people, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// The figures of a container, or of all containers of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RowFigures {
    pub(crate) running: bool,
    /// The assigned exclusive CPUs.
    pub(crate) assigned: Option<CpuSet>,
    /// The effective CPUs, as reported by the kernel.
    pub(crate) effective: Option<CpuSet>,
    /// Whether assigned and effective CPUs differ.
    pub(crate) drift: bool,
    /// CPU seconds per second.
    pub(crate) usage: Option<f64>,
    pub(crate) threads: Option<u64>,
    pub(crate) runnable: Option<f64>,
    /// Whether the number of threads differs from the expected one.
    pub(crate) threads_unexpected: bool,
    /// CPU seconds per second that the assigned CPUs spent on other work.
    pub(crate) interference: Option<f64>,
    pub(crate) interference_error: Option<f64>,
    /// Seconds from the first instruction until the assignment was effective.
    pub(crate) unpinned: Option<f64>,
    /// Seconds per second, the sum of all threads.
    pub(crate) run_delay: Option<f64>,
    /// Context switches per second.
    pub(crate) switches: Option<f64>,
    /// Throttled periods per second.
    pub(crate) throttled: Option<f64>,
}

// === impl RowFigures ===

impl RowFigures {
    /// The CPUs on which the threads may run.
    pub(crate) fn cpus(&self) -> Option<&CpuSet> {
        self.effective
            .as_ref()
            .or(self.assigned.as_ref())
            .filter(|cpus| !cpus.is_empty())
    }

    pub(crate) fn threads_per_cpu(&self) -> Option<f64> {
        Some(self.threads? as f64 / self.cpus()?.len() as f64)
    }

    /// The share of the assigned CPUs' time that was interference, at most 1. The counter grows when the agent becomes sure of the
    /// time, so over a few seconds it may grow by more than the time that has passed.
    pub(crate) fn interference_share(&self) -> Option<f64> {
        let assigned = self.assigned.as_ref().filter(|cpus| !cpus.is_empty())?;
        Some((self.interference? / assigned.len() as f64).min(1.0))
    }

    /// Whether the measurement error is as large as the interference.
    pub(crate) fn interference_is_uncertain(&self) -> bool {
        self.interference
            .zip(self.interference_error)
            .is_some_and(|(interference, error)| interference > 0.0 && error >= interference)
    }

    /// Adds the figures of another container of the pod.
    pub(crate) fn add(&mut self, container: &Self) {
        let unite = |total: &mut Option<CpuSet>, cpus: &Option<CpuSet>| {
            if let Some(cpus) = cpus {
                *total = Some(total.take().unwrap_or_default().union(cpus));
            }
        };
        self.running |= container.running;
        self.drift |= container.drift;
        self.threads_unexpected |= container.threads_unexpected;
        unite(&mut self.assigned, &container.assigned);
        unite(&mut self.effective, &container.effective);
        if let Some(threads) = container.threads {
            let total = self.threads.get_or_insert_default();
            *total = total.saturating_add(threads);
        }
        if let Some(seconds) = container.unpinned {
            self.unpinned = Some(
                self.unpinned
                    .map_or(seconds, |longest| longest.max(seconds)),
            );
        }
        for (total, value) in [
            (&mut self.usage, container.usage),
            (&mut self.runnable, container.runnable),
            (&mut self.interference, container.interference),
            (&mut self.interference_error, container.interference_error),
            (&mut self.run_delay, container.run_delay),
            (&mut self.switches, container.switches),
            (&mut self.throttled, container.throttled),
        ] {
            if let Some(value) = value {
                *total.get_or_insert_default() += value;
            }
        }
    }
}
