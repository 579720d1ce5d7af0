//! [`ChangedCgroups`]: what the watches have seen since the reconciler's last turn.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::mirror::CgroupChanges;

/// The changes in the watched trees, collected for the next turn.
#[derive(Debug, Default)]
pub(super) struct ChangedCgroups {
    changes: Mutex<CgroupChanges>,
    has_changed: Notify,
}

// === impl ChangedCgroups ===

impl ChangedCgroups {
    /// Adds changes, and wakes the reconciler.
    pub(super) fn add(&self, changes: CgroupChanges) {
        let mut all = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(changes);
        drop(all);
        self.has_changed.notify_one();
    }

    /// Takes all changes so far.
    pub(super) fn take(&self) -> CgroupChanges {
        let mut all = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *all)
    }

    /// Waits for a change. One return may stand for several changes.
    pub(super) async fn changed(&self) {
        self.has_changed.notified().await;
    }
}
