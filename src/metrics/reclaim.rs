//! [`ReclaimMetrics`]: the metric families of the reclaimer.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::Page;
use super::families::{
    Family, RECLAIM_DELETED_OBJECTS, RECLAIM_FAILURES, RECLAIM_JOBS, RECLAIM_ROUNDS,
};

/// The decisions about a job, as values of the label `verdict`.
const VERDICTS: [&str; 4] = ["running", "waiting", "reclaim", "kept"];

/// The kinds of deleted objects, as values of the label `kind`.
const KINDS: [&str; 3] = ["Job", "Deployment", "Service"];

/// Counters and gauges of the reclaimer since its start.
#[derive(Debug, Clone)]
pub struct ReclaimMetrics {
    registry: Registry,
    jobs: IntGaugeVec,
    deleted: IntCounterVec,
    failures: IntCounter,
    rounds: IntCounter,
}

// === impl ReclaimMetrics ===

impl ReclaimMetrics {
    /// Every value of a label is present from the start, with the value 0.
    ///
    /// # Errors
    /// Two families have the same name, which the tests exclude.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let opts = |family: &Family| Opts::new(family.name, family.help);
        let jobs = IntGaugeVec::new(opts(&RECLAIM_JOBS), RECLAIM_JOBS.labels)?;
        let objects = &RECLAIM_DELETED_OBJECTS;
        let deleted = IntCounterVec::new(opts(objects), objects.labels)?;
        let failures = IntCounter::with_opts(opts(&RECLAIM_FAILURES))?;
        let rounds = IntCounter::with_opts(opts(&RECLAIM_ROUNDS))?;
        let all: [Box<dyn Collector>; 4] = [
            Box::new(jobs.clone()),
            Box::new(deleted.clone()),
            Box::new(failures.clone()),
            Box::new(rounds.clone()),
        ];
        for family in all {
            registry.register(family)?;
        }
        for verdict in VERDICTS {
            jobs.with_label_values(&[verdict]).set(0);
        }
        for kind in KINDS {
            deleted.with_label_values(&[kind]).inc_by(0);
        }
        Ok(Self {
            registry,
            jobs,
            deleted,
            failures,
            rounds,
        })
    }

    /// Records the decisions of a round: the numbers of jobs that run, wait, can be reclaimed, and are kept.
    pub fn decided(&self, jobs: [usize; 4]) {
        self.rounds.inc();
        for (verdict, count) in VERDICTS.into_iter().zip(jobs) {
            let gauge = self.jobs.with_label_values(&[verdict]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Records a deleted object of a kind.
    pub fn deleted(&self, kind: &str) {
        self.deleted.with_label_values(&[kind]).inc();
    }

    /// Records failed requests.
    pub fn failed(&self, count: usize) {
        self.failures
            .inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// The page of `/metrics`.
    pub fn page(&self) -> Page {
        let mut page = Page::default();
        page.add_registry(&self.registry.gather());
        page
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::{FamilyKind, Format, RECLAIM_FAMILIES};

    #[test]
    fn the_families_are_the_families_of_the_table() {
        let text = ReclaimMetrics::new().unwrap().page().text(Format::Text);
        let served: BTreeSet<&str> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE "))
            .collect();
        let kind = |family: &Family| match family.kind {
            FamilyKind::Counter => "counter",
            _ => "gauge",
        };
        let expected: Vec<String> = RECLAIM_FAMILIES
            .iter()
            .map(|family| format!("# TYPE {} {}", family.name, kind(family)))
            .collect();
        let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
        assert_eq!(served, expected);
    }

    #[test]
    fn a_page_has_every_value_from_the_start() {
        let metrics = ReclaimMetrics::new().unwrap();
        let text = metrics.page().text(Format::Text);
        for line in [
            "pinfold_reclaim_jobs{verdict=\"waiting\"} 0",
            "pinfold_reclaim_deleted_objects_total{kind=\"Service\"} 0",
            "pinfold_reclaim_failures_total 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        metrics.decided([1, 2, 0, 4]);
        metrics.deleted("Job");
        metrics.failed(2);
        let text = metrics.page().text(Format::Text);
        for line in [
            "pinfold_reclaim_jobs{verdict=\"running\"} 1",
            "pinfold_reclaim_jobs{verdict=\"kept\"} 4",
            "pinfold_reclaim_deleted_objects_total{kind=\"Job\"} 1",
            "pinfold_reclaim_failures_total 2",
            "pinfold_reclaim_rounds_total 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
