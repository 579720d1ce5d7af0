//! The collector `interference`: the time in which exclusive CPUs ran tasks other than the owner's.

use std::path::Path;

use super::super::families::{
    CONTAINER_INTERFERENCE_CPU_ERROR_SECONDS, CONTAINER_INTERFERENCE_CPU_SECONDS,
};
use super::super::page::Page;
use super::measured::CollectOutcome;
use super::scrape::{Collector, Scrape};
use crate::host::busy::Sampler;
use crate::host::cgroup::CpuUsage;
use crate::pin::interference::InterferenceTracker;

#[derive(Debug)]
pub(super) struct InterferenceCollector {
    sampler: Sampler,
    tracker: InterferenceTracker,
}

// === impl InterferenceCollector ===

impl InterferenceCollector {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            sampler: Sampler::new(root),
            tracker: InterferenceTracker::default(),
        }
    }
}

impl Collector for InterferenceCollector {
    fn name(&self) -> &'static str {
        "interference"
    }

    /// Writes the two families of every owner. Without all readings, no series is written and the scrape fails.
    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let cgroups = &scrape.host.cgroups;
        let owners = || {
            scrape.containers.iter().filter_map(|container| {
                // Only a fully effective assignment counts, because the owner's time on further
                // CPUs would look like interference.
                let cpus = container
                    .state
                    .own()
                    .filter(|own| container.state.effective.as_ref() == Some(own))?;
                Some((container, cpus))
            })
        };
        if owners().next().is_none() {
            self.tracker.sweep();
            return CollectOutcome::Complete;
        }
        let first = self
            .sampler
            .prepare(cgroups)
            .and_then(|()| self.sampler.sample(cgroups));
        let in_time = owners().take_while(|_| !scrape.deadline.is_over());
        let usages: Vec<Option<CpuUsage>> = in_time
            .map(|(container, _)| cgroups.usage(container.cgroup).ok().flatten())
            .collect();
        // A late scrape leaves two samples too far apart, and the next scrape covers the missing
        // time.
        if usages.len() < owners().count() {
            return CollectOutcome::Partial;
        }
        let (Ok(first), Ok(second)) = (first, self.sampler.sample(cgroups)) else {
            return CollectOutcome::Partial;
        };
        let mut complete = true;
        let mut seconds = page.lines(&CONTAINER_INTERFERENCE_CPU_SECONDS);
        let mut error = page.lines(&CONTAINER_INTERFERENCE_CPU_ERROR_SECONDS);
        for ((container, cpus), usage) in owners().zip(usages) {
            let Some(usage) = usage else {
                complete = false;
                continue;
            };
            let interference = self
                .tracker
                .note(container.cgroup, cpus, &usage, (&first, &second));
            seconds.put(&container.labels, interference.seconds);
            error.put(&container.labels, interference.error_seconds);
        }
        self.tracker.sweep();
        page.add(seconds);
        page.add(error);
        CollectOutcome::from_complete(complete)
    }
}
