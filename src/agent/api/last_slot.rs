//! The node's last slot. A deleted Node loses its labels, its claims and its agent's pod, but when
//! it returns, its last slot is still the best one. So the slot is noted on the top of the cgroup
//! hierarchy, where it outlives the agent and ends only with a reboot.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::cluster::scenes::{Phase, SlotState};
use crate::host::cgroup::{Cgroups, NoteSubject};
use crate::scene::Slot;

const TOP: &str = "";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NotedSlot {
    plan: String,
    slot: Slot,
}

/// The node's last plan and slot. A note that can't be read counts as missing.
pub(super) fn last(cgroups: &Cgroups) -> Option<(String, Slot)> {
    let text = cgroups.note(TOP, NoteSubject::SceneSlot).ok()??;
    let NotedSlot { plan, slot } = serde_json::from_str(&text).ok()?;
    Some((plan, slot))
}

/// Keeps the note up to date until the sender of states is dropped.
pub(super) async fn keep(
    cgroups: Cgroups,
    mut state: watch::Receiver<SlotState>,
) -> anyhow::Result<()> {
    let mut last_written = None;
    loop {
        let slot = {
            let state = state.borrow_and_update();
            let known = state.plan.clone().zip(state.slot.clone());
            known
                .filter(|_| state.phase == Phase::Placed)
                .map(|(plan, slot)| NotedSlot { plan, slot })
        };
        if let Some(slot) = slot.filter(|slot| last_written.as_ref() != Some(slot)) {
            let text = serde_json::to_string(&slot)?;
            let written = cgroups.note(TOP, NoteSubject::SceneSlot).and_then(|old| {
                if old.as_ref() == Some(&text) {
                    Ok(())
                } else {
                    cgroups.set_note(TOP, NoteSubject::SceneSlot, Some(&text))
                }
            });
            if let Err(error) = written {
                // The note is only a preference, so a failure does no harm.
                tracing::debug!(
                    "can't record the node's slot on the cgroup: {:#}",
                    anyhow::Error::new(error)
                );
            }
            last_written = Some(slot);
        }
        if state.changed().await.is_err() {
            return Ok(());
        }
    }
}
