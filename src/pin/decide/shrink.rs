//! Shrinks of running containers: the program learns of one first, and the CPUs go after a delay.

use std::collections::BTreeMap;

use crate::cpu::CpuSet;
use crate::pod::{ContainerKey, Entitlement};

/// The shrinks that wait: what each container will have when its delay is over; the empty set for the shared CPUs.
pub type WaitingShrinks = BTreeMap<ContainerKey, CpuSet>;

/// The agent's announced shrinks, as far as a decision needs them. Each was among the [`WaitingShrinks`] of an earlier decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnouncedShrinks {
    shrinks: BTreeMap<ContainerKey, AnnouncedShrink>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AnnouncedShrink {
    /// What will be left; empty for the shared CPUs.
    left: CpuSet,
    /// Whether the delay is over.
    is_due: bool,
}

// === impl AnnouncedShrinks ===

impl AnnouncedShrinks {
    pub fn add(&mut self, key: ContainerKey, left: CpuSet, is_due: bool) {
        self.shrinks.insert(key, AnnouncedShrink { left, is_due });
    }

    /// The CPUs that were announced to be left.
    pub(super) fn left(&self, key: &ContainerKey) -> Option<&CpuSet> {
        self.shrinks.get(key).map(|shrink| &shrink.left)
    }

    /// Whether a shrink to so many CPUs was announced for long enough. More CPUs than announced may go only after another
    /// announcement.
    fn is_due(&self, key: &ContainerKey, left: u32) -> bool {
        let shrink = self.shrinks.get(key);
        shrink.is_some_and(|shrink| shrink.is_due && shrink.left.len() <= left as usize)
    }
}

/// The entitlement of a running container that owns more CPUs than `granted`, until the smaller number was announced for long
/// enough; `None` if nothing holds the change up.
pub(super) fn kept_until_due(
    (shrinks, uid, name): (&AnnouncedShrinks, &str, &str),
    own: &CpuSet,
    granted: &Entitlement,
) -> Option<Entitlement> {
    let cpus = u32::try_from(own.len()).unwrap_or(u32::MAX);
    let is_shrink = granted.cpus() < cpus && !matches!(granted, Entitlement::Inherit { .. });
    if !is_shrink || shrinks.is_due(&ContainerKey::new(uid, name), granted.cpus()) {
        return None;
    }
    let later = match granted.cpus() {
        0 => "runs on the shared CPUs".to_owned(),
        left => format!("keeps {}", crate::cpu::cpu_count(left as usize)),
    };
    Some(Entitlement::Exclusive {
        cpus,
        reason: format!(
            "{later} after the delay of a shrink (policy.shrinkDelay): {}",
            granted.reason()
        ),
    })
}
