//! Foreign time: how long exclusive CPUs were busy with something else than their owner.

use std::path::Path;

use super::collect::Board;
use crate::host::busy::Watcher;
use crate::host::cgroup::{Cgroups, Usage};
use crate::pin::Snapshot;
use crate::pin::foreign::ForeignTimes;

/// What must last from one scrape to the next.
#[derive(Debug)]
pub(super) struct Foreign {
    watcher: Watcher,
    times: ForeignTimes,
}

// === impl Foreign ===

impl Foreign {
    pub(super) fn new(root: &Path) -> Self {
        Self { watcher: Watcher::new(root), times: ForeignTimes::default() }
    }

    /// Sets the two families of every owner; without what it takes to know, there is no series and no success.
    pub(super) fn collect(
        &mut self,
        board: &Board,
        snapshot: &Snapshot,
        cgroups: &Cgroups,
    ) -> prometheus::Result<bool> {
        let owners = || {
            snapshot.containers.iter().filter_map(|container| {
                let cpus = container.assigned.as_ref().filter(|_| container.entitlement.cpus() > 0)?;
                // With less than all of it in force, the rest would look like somebody else's doing.
                let whole = container.effective.as_ref() == Some(cpus);
                Some((container, container.cgroup.as_deref()?, cpus)).filter(|_| whole)
            })
        };
        if owners().next().is_none() {
            self.times.sweep();
            return Ok(true);
        }
        let first = self.watcher.prepare(cgroups).and_then(|()| self.watcher.look(cgroups));
        let usages: Vec<Option<Usage>> =
            owners().map(|(_, path, _)| cgroups.usage(path).ok().flatten()).collect();
        let (Ok(first), Ok(second)) = (first, self.watcher.look(cgroups)) else { return Ok(false) };
        let mut success = true;
        for ((container, path, cpus), usage) in owners().zip(usages) {
            let Some(usage) = usage else {
                success = false;
                continue;
            };
            let foreign = self.times.note(path, cpus, &first, &usage, &second);
            let labels = [&*container.namespace, &*container.pod, &*container.container];
            board.set("pinfold_container_foreign_cpu_seconds_total", &labels, foreign.seconds)?;
            board.set("pinfold_container_foreign_cpu_error_seconds_total", &labels, foreign.error_seconds)?;
        }
        self.times.sweep();
        Ok(success)
    }
}
