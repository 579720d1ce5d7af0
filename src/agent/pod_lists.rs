//! [`PodLists`]: which sources list the node's pods, and whether their first lists have come.

use std::collections::BTreeSet;

use super::event::PodSource;

#[derive(Debug, Default)]
pub(super) struct PodLists {
    sources: BTreeSet<PodSource>,
    /// The sources whose first list has not come, or lacks pods.
    awaited: BTreeSet<PodSource>,
    listed: BTreeSet<PodSource>,
}

// === impl PodLists ===

impl PodLists {
    pub(super) fn new(sources: &[PodSource]) -> Self {
        let sources: BTreeSet<PodSource> = sources.iter().copied().collect();
        Self {
            awaited: sources.clone(),
            listed: BTreeSet::new(),
            sources,
        }
    }

    /// Takes a list, or a later change of single pods. A list with errors lacks pods until the
    /// errors are gone. Beside an API server, the folder describes only static pods, so a single
    /// damaged file there shall not keep the API server's list from counting.
    pub(super) fn updated(&mut self, source: PodSource, is_list: bool, is_complete: bool) {
        if is_list {
            self.listed.insert(source);
        }
        let counts_anyway = source == PodSource::Folder && self.sources.contains(&PodSource::Api);
        if self.listed.contains(&source) && (is_complete || counts_anyway) {
            self.awaited.remove(&source);
        }
    }

    pub(super) fn exist(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Whether each source has sent a list, even one that lacks pods.
    pub(super) fn have_come(&self) -> bool {
        self.sources.is_subset(&self.listed)
    }

    /// Whether each source has sent a list that counts.
    pub(super) fn are_complete(&self) -> bool {
        self.awaited.is_empty()
    }
}
