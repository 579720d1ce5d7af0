//! [`World`]: all that the agent knows between two turns, each thing once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

pub use super::changes::{CgroupChange, CgroupChanges};
use super::event::{PodsUpdate, RuntimeUpdate};
pub use super::heartbeat::Heartbeat;
use super::isolation_gate::IsolatedPartitionGate;
use super::live_files::LiveFiles;
pub use super::live_files::LiveValues;
use super::log_filter::LogFilter;
use super::lost_cpus::LostCpus;
use super::mirror::Mirror;
pub use super::pending::PendingAssignments;
use super::pending_shrinks::PendingShrinks;
pub use super::pod_store::PodStore;
use super::release_backoff::ReleaseBackoff;
use crate::cpu::CpuSet;
use crate::metrics::AgentMetrics;
use crate::pin::{Drift, Ledger, Observed, SeenSets};
use crate::pod::{ApiUid, PodList};

/// All that the agent knows. A turn reads what may have changed, decides, and writes.
#[derive(Debug)]
pub struct World {
    pods: PodStore,
    pub(super) mirror: Mirror,
    /// The owners of CPUs as the mirror shows them, and the pending assignments.
    pub(super) ledger: Ledger,
    /// CPUs chosen for containers that are being created, until the assignment records of their pods have them.
    pub(super) pending: PendingAssignments,
    /// The default reserved CPUs, once chosen. They count only if the configuration names none.
    default_reserved: CpuSet,
    /// Whether the next turn must decide even if no cgroup has changed.
    must_decide: bool,
    /// Drift that the last turn did not repair.
    pub(super) drift: Vec<Drift>,
    /// CPUs assigned since the last complete turn of all pods; after a turn that ended between its
    /// steps, all exclusive CPUs. The owners' sets may be unwritten, and other containers may still
    /// run on these CPUs.
    pub(super) recently_assigned: CpuSet,
    /// Cgroups whose record could not be written. Such a cgroup may still be on the CPUs of an owner.
    pub(super) unrecorded: BTreeSet<String>,
    /// Partitions refused by the kernel since the last timer tick: the error, by cgroup path.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) lost_cpus: LostCpus,
    /// The log lines about cgroups, so that an error that lasts is written once.
    pub(super) log: LogFilter,
    pub(super) release_backoff: ReleaseBackoff,
    /// The CPU sets as last read, on cgroup v1.
    pub(super) seen_sets: SeenSets,
    pub(super) isolation: IsolatedPartitionGate,
    pub(super) live: LiveFiles,
    pub(super) shrinks: PendingShrinks,
    /// When running containers moved within the last hour.
    pub(super) moved: Vec<Instant>,
    /// Whether no turn of all pods has completed so far.
    pub(super) is_first: bool,
    pub(super) metrics: AgentMetrics,
    pub(super) heartbeat: Heartbeat,
}

// === impl World ===

impl World {
    /// What an agent knows that has just started: only its sources of pods.
    pub fn new(pods: PodStore, metrics: AgentMetrics, heartbeat: Heartbeat) -> Self {
        Self {
            pods,
            mirror: Mirror::default(),
            ledger: Ledger::default(),
            pending: PendingAssignments::default(),
            default_reserved: CpuSet::new(),
            must_decide: true,
            drift: Vec::new(),
            recently_assigned: CpuSet::new(),
            unrecorded: BTreeSet::new(),
            refused: BTreeMap::new(),
            lost_cpus: LostCpus::default(),
            log: LogFilter::default(),
            release_backoff: ReleaseBackoff::default(),
            seen_sets: SeenSets::default(),
            isolation: IsolatedPartitionGate::default(),
            live: LiveFiles::default(),
            shrinks: PendingShrinks::default(),
            moved: Vec::new(),
            is_first: true,
            metrics,
            heartbeat,
        }
    }

    pub fn pods(&self) -> &PodStore {
        &self.pods
    }

    pub(super) fn pods_mut(&mut self) -> &mut PodStore {
        self.must_decide = true;
        &mut self.pods
    }

    /// The cgroups as last read.
    pub fn observed(&self) -> &Observed {
        self.mirror.observed()
    }

    #[doc(hidden)]
    pub fn pending(&self) -> &PendingAssignments {
        &self.pending
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes a change of a source's pods.
    pub fn take_pods(&mut self, update: PodsUpdate) {
        let changed = self.pods_mut().take_pods(update);
        self.mirror.match_again(&self.pods, &changed);
    }

    pub(super) fn take_node(&mut self, uid: ApiUid) {
        self.pods_mut().take_node(uid);
    }

    /// Takes an update of the container runtime's pods, and ends the pending assignments of
    /// containers that the runtime lacks.
    pub fn take_runtime(&mut self, update: RuntimeUpdate) {
        let changed = self.pods.take_runtime(update);
        self.must_decide |= !changed.is_empty();
        for uid in &changed {
            let pods = &self.pods;
            self.pending
                .retain(uid, |container| pods.has(uid, container));
        }
        self.mirror.match_again(&self.pods, &changed);
    }

    /// From now on, matches the containers of manifests with cgroups by number, because no source
    /// gives ids. Returns false if it did so already.
    pub(super) fn match_by_count(&mut self) -> bool {
        self.pods_mut().count_containers()
    }

    /// Takes what has changed in the watched trees.
    pub fn note_changes(&mut self, changes: &CgroupChanges) {
        self.mirror.note(changes, Instant::now());
    }

    /// Makes the next turn read the pod with the uid again.
    pub(super) fn touch(&mut self, uid: &str) {
        self.mirror.touch(uid, Instant::now());
    }

    /// Makes the next turn read every pod again.
    pub fn sweep(&mut self) {
        self.mirror.sweep(Instant::now());
        self.must_decide = true;
    }

    /// Trusts nothing that was read before: the next turn reads every pod again, and until then nothing is decided.
    pub(super) fn distrust(&mut self) {
        self.mirror.distrust(Instant::now());
        self.must_decide = true;
    }

    /// Makes the next turn decide even if no cgroup has changed.
    pub fn decide_again(&mut self) {
        self.must_decide = true;
    }

    /// Whether a turn must decide, after it has read the cgroups.
    pub(super) fn update_must_decide(&mut self) -> bool {
        self.must_decide |= self.take_changed();
        self.must_decide
    }

    /// Whether something that was read differs from what was there before, since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        self.mirror.take_changed()
    }

    /// Notes the end of a turn of all pods. What the turn itself has changed needs one more
    /// decision, and so does a shrink whose delay it has ended.
    pub fn turn_completed(&mut self) {
        let due = self.shrinks.due();
        self.must_decide =
            self.mirror.take_changed() || due.is_some_and(|due| due <= Instant::now());
        self.recently_assigned = CpuSet::new();
        self.is_first = false;
    }

    /// Whether a further turn has to decide, without any event.
    pub(super) fn must_decide(&self) -> bool {
        self.must_decide
    }

    /// Lets refused partitions be tried again.
    pub fn forget_refused(&mut self) {
        self.refused.clear();
        self.must_decide = true;
    }

    /// Notes partitions as refused by the kernel, by cgroup path, so that a test can start with the
    /// refusals of an earlier turn.
    #[doc(hidden)]
    pub fn note_refused(&mut self, paths: impl IntoIterator<Item = String>) {
        let refused = paths.into_iter().map(|path| (path, String::new()));
        self.refused.extend(refused);
    }

    /// The cgroup paths of the refused partitions.
    #[doc(hidden)]
    pub fn refused(&self) -> impl Iterator<Item = &str> {
        self.refused.keys().map(String::as_str)
    }

    /// The pods as decisions see them.
    pub(super) fn pods_list(&self) -> PodList {
        self.pods.known()
    }
}

mod deciding;
mod live;
mod reading;
mod results;
mod shrinks;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
