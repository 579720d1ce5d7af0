//! [`Slot`]: a place in a case, and the name of its Lease.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::name::subdomain_fault;

/// The text before the hash that replaces a Lease's name.
pub(super) const LONG: &str = "scene.long.";

/// A server's place in a case. The labels name it, and no two nodes share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    pub scene: String,
    pub case: String,
    /// The group's type, where the scene has types.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The index within the type, from 0.
    pub index: u32,
}

// === impl Slot ===

impl Slot {
    /// The name of the slot's Lease: a DNS name that is unique among the slots of all plans.
    ///
    /// Plan, scene, case, type and index stand between dots, as in `scene.locality.2.2.worker.0`. The letter z encodes
    /// letters that DNS forbids: `zp` is `P`, `z0` is `z`, `z1` is `_`, `z2` is `.`. A hash of 128 bits replaces a name
    /// that would be too long for an object.
    pub fn lease_name(&self, plan: &str) -> String {
        let index = self.index.to_string();
        let mut parts = vec![plan, &self.scene, &self.case];
        parts.extend(self.kind.as_deref());
        parts.push(&index);
        let name = parts.iter().fold("scene".to_owned(), |name, part| {
            format!("{name}.{}", escape(part))
        });
        if name.len() <= 253 && subdomain_fault(&name).is_none() {
            return name;
        }
        // Three parts, where every name in full has five or six.
        let hash = name.bytes().fold(
            0x6c62_272e_07bb_0142_62b8_2175_6295_c58d,
            |hash: u128, byte| {
                (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
            },
        );
        format!("{LONG}{hash:032x}")
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scene {} case {}", self.scene, self.case)?;
        if let Some(kind) = &self.kind {
            write!(f, " type {kind}")?;
        }
        write!(f, " index {}", self.index)
    }
}

/// Whether a hash replaces the name of a Lease, so that only a comparison with the Leases of a
/// plan's slots tells its plan.
pub fn is_hashed_lease(lease: &str) -> bool {
    lease
        .strip_prefix(LONG)
        .is_some_and(|hash| !hash.contains('.'))
}

/// Whether a Lease with this name belongs to a slot of the plan. A name that a hash replaced tells nothing.
pub fn is_lease_of(lease: &str, plan: &str) -> bool {
    let rest = lease
        .strip_prefix("scene.")
        .and_then(|rest| rest.strip_prefix(escape(plan).as_str()));
    // Three more parts at least: `scene.long.HASH` is no slot of a plan called long.
    rest.is_some_and(|rest| rest.starts_with('.') && rest.matches('.').count() >= 3)
}

fn escape(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for letter in part.chars() {
        match letter {
            'z' => escaped.push_str("z0"),
            '_' => escaped.push_str("z1"),
            '.' => escaped.push_str("z2"),
            'A'..='Z' => escaped.extend(['z', letter.to_ascii_lowercase()]),
            _ => escaped.push(letter),
        }
    }
    escaped
}
