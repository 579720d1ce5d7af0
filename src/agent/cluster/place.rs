//! The node's last place, noted where it outlives the agent and ends with the machine's uptime: with the top of the cgroup
//! hierarchy. A Node that is deleted takes its labels, its claims and its agent's pod with it; when it comes back, its slot
//! is still the best one for it.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::cluster::scenes::{Phase, State};
use crate::host::cgroup::{Cgroups, NoteSubject};
use crate::scene::Slot;

/// The top of the hierarchy.
const TOP: &str = "";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    plan: String,
    slot: Slot,
}

/// The plan and the slot that the node had last; one that can't be read is none.
pub(super) fn last(cgroups: &Cgroups) -> Option<(String, Slot)> {
    let text = cgroups.note(TOP, NoteSubject::SceneSlot).ok()??;
    let Place { plan, slot } = serde_json::from_str(&text).ok()?;
    Some((plan, slot))
}

/// Keeps the note, until there is nothing more to tell.
pub(super) async fn keep(
    cgroups: Cgroups,
    mut state: watch::Receiver<State>,
) -> anyhow::Result<()> {
    let mut noted = None;
    loop {
        let place = {
            let state = state.borrow_and_update();
            let known = state.plan.clone().zip(state.slot.clone());
            known
                .filter(|_| state.phase == Phase::Placed)
                .map(|(plan, slot)| Place { plan, slot })
        };
        if let Some(place) = place.filter(|place| noted.as_ref() != Some(place)) {
            let text = serde_json::to_string(&place)?;
            let done = cgroups.note(TOP, NoteSubject::SceneSlot).and_then(|old| {
                if old.as_ref() == Some(&text) {
                    Ok(())
                } else {
                    cgroups.set_note(TOP, NoteSubject::SceneSlot, Some(&text))
                }
            });
            if let Err(error) = done {
                // It would only have been a preference.
                tracing::debug!(
                    "the node's place is not noted: {:#}",
                    anyhow::Error::new(error)
                );
            }
            noted = Some(place);
        }
        if state.changed().await.is_err() {
            return Ok(());
        }
    }
}
