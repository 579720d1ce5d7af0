//! Foreign time: how long exclusive CPUs were busy with something else than their owner.

use std::path::Path;

use super::super::families::{CONTAINER_FOREIGN_CPU_ERROR_SECONDS, CONTAINER_FOREIGN_CPU_SECONDS};
use super::super::page::Page;
use super::{Outcome, Scrape};
use crate::host::busy::Sampler;
use crate::host::cgroup::Usage;
use crate::pin::interference::InterferenceTracker;

/// What must last from one scrape to the next.
#[derive(Debug)]
pub(in crate::metrics) struct Foreign {
    sampler: Sampler,
    times: InterferenceTracker,
}

// === impl Foreign ===

impl Foreign {
    pub(in crate::metrics) fn new(root: &Path) -> Self {
        Self {
            sampler: Sampler::new(root),
            times: InterferenceTracker::default(),
        }
    }

    /// Writes the two families of every owner; without what it takes to know, there is no series and no success.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        let cgroups = &scrape.sources.cgroups;
        let owners = || {
            scrape.subjects.iter().filter_map(|subject| {
                // With less than all of it in force, the rest would look like somebody else's doing.
                let cpus = subject
                    .state
                    .own()
                    .filter(|own| subject.state.effective.as_ref() == Some(own))?;
                Some((subject, cpus))
            })
        };
        if owners().next().is_none() {
            self.times.sweep();
            return Outcome::Complete;
        }
        let first = self
            .sampler
            .prepare(cgroups)
            .and_then(|()| self.sampler.sample(cgroups));
        let in_time = owners().take_while(|_| !scrape.is_late());
        let usages: Vec<Option<Usage>> = in_time
            .map(|(subject, _)| cgroups.usage(subject.cgroup).ok().flatten())
            .collect();
        // Between two looks that lie too far apart nothing can be told; what is not told now is told by the next scrape.
        if usages.len() < owners().count() {
            return Outcome::Partial;
        }
        let (Ok(first), Ok(second)) = (first, self.sampler.sample(cgroups)) else {
            return Outcome::Partial;
        };
        let mut complete = true;
        let mut seconds = page.lines(&CONTAINER_FOREIGN_CPU_SECONDS);
        let mut error = page.lines(&CONTAINER_FOREIGN_CPU_ERROR_SECONDS);
        for ((subject, cpus), usage) in owners().zip(usages) {
            let Some(usage) = usage else {
                complete = false;
                continue;
            };
            let foreign = self
                .times
                .note(subject.cgroup, cpus, &usage, (&first, &second));
            seconds.put(&subject.labels, foreign.seconds);
            error.put(&subject.labels, foreign.error_seconds);
        }
        self.times.sweep();
        page.add(seconds);
        page.add(error);
        Outcome::of(complete)
    }
}
