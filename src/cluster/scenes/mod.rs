//! Scenes in a cluster: the node's slot in the active case, held by a Lease and shown by labels.
//!
//! ```text
//!  ScenePlans ── list + watch ──┐
//!  own Node, own claims ── read ┼─> decide ── Action ──> claim · label · taint · release
//!  pods of the node ────────────┘      └─ State ──> /status, Events
//! ```
//!
//! [`Scenes::run`] is the task: it reads, carries out the [`SlotAction`]s of [`decide()`], and
//! waits. [`decide()`] is a function of values, without I/O. The rules:
//!
//! - **Missing data takes nothing away.** The task decides only after all plans were read, and only
//!   while they can be followed. A node loses a label or a claim only by a readable plan that
//!   covers the node. A deleted plan, or an empty list of plans, removes nothing (see
//!   [`decide()`]).
//! - **No slot has two nodes.** A node claims a slot before it sets the labels, and removes the
//!   labels before it releases the claim. The nodes of an explicit list need no claims.
//! - **Terminal failures**, which an administrator must repair, are retried seldom and reported
//!   once, as an Event on the Node.
//! - **An idle node writes nothing.** It keeps one watch of the plans (a request in about five
//!   minutes) and one of its own claim, and reads its own Node every
//!   [`SceneSettings::node_read_interval`].
//! - **Ten thousand nodes** see a change at the same moment, so each waits for a random time, which
//!   grows with the number of slots in the plans.
//!
//! A watch of the plans costs one request in five minutes and reports a change at once, while an
//! equally prompt poll would cost sixty requests. The own Node is not watched, because each kubelet
//! heartbeat would be an event of 10 kB or more, and no change of the Node is urgent. Of the
//! claims, a node watches only its own, by name.

mod cluster_objects;
mod current_slot;
mod decide;
mod labels;
mod leave;
mod plans;
mod settings;
mod slot_reconciler;
mod slot_state;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use cluster_objects::{nodes, plans};
pub use decide::{SlotAction, SlotDecision, decide};
pub use leave::{RemovedItems, leave};
pub use plans::Plans;
#[cfg(feature = "reclaim")]
pub(super) use plans::{PLAN_LIST, PLANS, read_plan};
pub use settings::SceneSettings;
pub use slot_state::{
    DecisionState, Phase, RunningPod, RunningPods, Scenes, SlotDecisionInput, SlotState,
};

// === impl Scenes ===

impl Scenes {
    /// Keeps the node's slot until `stop`. Labels and claims stay after the end.
    pub async fn run(self, stop: CancellationToken) {
        let (published, plans) = watch::channel(Plans::default());
        let follower = plans::follow(self.api.clone(), self.settings.clone(), published);
        let reconciler = slot_reconciler::SlotReconciler::new(self, plans);
        // A cancelled action is safe: the next start reads the claims by the node's uid and the labels from the Node.
        tokio::select! {
            () = follower => {}
            () = reconciler.run() => {}
            () = stop.cancelled() => {}
        }
    }
}
