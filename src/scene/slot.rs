//! [`Slot`] and [`Slots`]: the slots of a case, their names, and the order in which a node tries them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Case, Scene, ScenePlan};

/// What stands before the hash that replaces the name of a Lease.
const LONG: &str = "scene.long.";

/// One server's place in a case: what the labels say, and what no two nodes may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The scene.
    pub scene: String,
    /// The case.
    pub case: String,
    /// The group's type, where the scene has types.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The index within the type, from 0.
    pub index: u32,
}

/// All slots of a case, in the order of the plan: by group, then by index. Cheap however many they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    scene: String,
    case: String,
    groups: Vec<Servers>,
}

/// The servers of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Servers {
    name: String,
    kind: Option<String>,
    count: u32,
}

/// A scene or case that a plan does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plan {plan} has no scene {scene} with a case {case}: it has {known}")]
pub struct NoSuchCase {
    plan: String,
    scene: String,
    case: String,
    known: String,
}

/// The slots of one case of a plan.
///
/// Fails where the plan has no such scene or case, and says which there are.
pub fn slots(plan: &ScenePlan, scene: &str, case: &str) -> Result<Slots, NoSuchCase> {
    let found = plan
        .spec
        .case(scene, case)
        .map(|(scene, case)| Slots::new(scene, case));
    found.ok_or_else(|| NoSuchCase {
        plan: plan.metadata.name.clone().unwrap_or_default(),
        scene: scene.to_owned(),
        case: case.to_owned(),
        known: known(plan),
    })
}

fn known(plan: &ScenePlan) -> String {
    let scenes = plan.spec.scenes.iter().map(|scene| {
        let cases: Vec<&str> = scene.cases.iter().map(|case| case.case.as_str()).collect();
        format!("scene {} with {}", scene.scene, cases.join(", "))
    });
    scenes.collect::<Vec<_>>().join("; ")
}

/// The order in which a node of this name tries the slots `0..count`: every one of them once.
///
/// `last`, the slot that it had before, comes first. The rest starts at a slot, and goes on in steps, that both follow
/// from the name's hash, so that thousands of nodes that try at the same moment seldom meet.
pub fn try_order(
    count: usize,
    node: &str,
    last: Option<usize>,
) -> impl Iterator<Item = usize> + use<> {
    let hash = spread(node);
    let slots = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    let start = hash % slots;
    // Steps that have no divisor in common with the count come to every slot.
    let step = (0..slots)
        .map(|more| 1 + (hash >> 32).wrapping_add(more) % slots)
        .find(|&step| gcd(step, slots) == 1);
    let step = u128::from(step.unwrap_or(1));
    let last = last.filter(|&last| last < count);
    let others = (0..count).filter_map(move |turn| {
        let turn = u128::try_from(turn).ok()?;
        usize::try_from((u128::from(start) + turn * step) % u128::from(slots)).ok()
    });
    last.into_iter()
        .chain(others.filter(move |&slot| Some(slot) != last))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// FNV-1a, with its bits mixed once more: names that differ in their last digit only must not be neighbours.
fn spread(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

// === impl Slots ===

impl Slots {
    pub(super) fn new(scene: &Scene, case: &Case) -> Self {
        let groups = scene.groups.iter().map(|group| Servers {
            name: group.name.clone(),
            kind: group.kind.clone(),
            count: case.nodes.get(&group.name).copied().unwrap_or(0),
        });
        Self {
            scene: scene.scene.clone(),
            case: case.case.clone(),
            groups: groups.collect(),
        }
    }

    /// The scene.
    pub fn scene(&self) -> &str {
        &self.scene
    }

    /// The case.
    pub fn case(&self) -> &str {
        &self.case
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|group| group.count as usize).sum()
    }

    /// Whether the case has no server at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot at a position.
    pub fn get(&self, position: usize) -> Option<Slot> {
        let (group, index) = self.locate(position)?;
        Some(Slot {
            scene: self.scene.clone(),
            case: self.case.clone(),
            kind: group.kind.clone(),
            index,
        })
    }

    /// The name of the group that the slot at a position belongs to.
    pub fn group(&self, position: usize) -> Option<&str> {
        self.locate(position).map(|(group, _)| group.name.as_str())
    }

    /// The position of a slot, if it is one of these.
    pub fn position(&self, slot: &Slot) -> Option<usize> {
        if slot.scene != self.scene || slot.case != self.case {
            return None;
        }
        let mut before = 0;
        for group in &self.groups {
            if group.kind == slot.kind && slot.index < group.count {
                return Some(before + slot.index as usize);
            }
            before += group.count as usize;
        }
        None
    }

    /// The slot whose Lease has this name, if it is one of these.
    pub fn of_lease(&self, plan: &str, lease: &str) -> Option<Slot> {
        let is_it = |slot: &Slot| slot.lease_name(plan) == lease;
        let index: Option<u32> = lease
            .rsplit('.')
            .next()
            .and_then(|index| index.parse().ok());
        let of_index = self.groups.iter().filter_map(|group| {
            let index = index.filter(|index| *index < group.count)?;
            Some(Slot {
                scene: self.scene.clone(),
                case: self.case.clone(),
                kind: group.kind.clone(),
                index,
            })
        });
        let found = of_index.into_iter().find(is_it);
        // A hash tells no index; a case may have ten thousand slots, so this is not tried for every name.
        found.or_else(|| {
            lease
                .starts_with(LONG)
                .then(|| self.iter().find(is_it))
                .flatten()
        })
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    fn locate(&self, position: usize) -> Option<(&Servers, u32)> {
        let mut rest = position;
        for group in &self.groups {
            let count = group.count as usize;
            if rest < count {
                return Some((group, u32::try_from(rest).ok()?));
            }
            rest -= count;
        }
        None
    }
}

// === impl Slot ===

impl Slot {
    /// The name of the slot's Lease: a DNS name that no other slot of any plan has.
    ///
    /// Plan, scene, case, type and index stand between dots, as in `scene.locality.2.2.worker.0`. What a DNS name can't
    /// hold is written with the letter z: `zp` is `P`, `z0` is `z`, `z1` is `_`, `z2` is `.`. A name that would be
    /// longer than an object's may be is replaced by a hash of 128 bits.
    pub fn lease_name(&self, plan: &str) -> String {
        let index = self.index.to_string();
        let mut parts = vec![plan, &self.scene, &self.case];
        parts.extend(self.kind.as_deref());
        parts.push(&index);
        let name = parts.iter().fold("scene".to_owned(), |name, part| {
            format!("{name}.{}", escape(part))
        });
        if name.len() <= 253 && super::subdomain_fault(&name).is_none() {
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
        write!(f, "scene {} case {} ", self.scene, self.case)?;
        if let Some(kind) = &self.kind {
            write!(f, "{kind} ")?;
        }
        write!(f, "{}", self.index)
    }
}

/// Whether a Lease of this name is that of a slot of this plan. Names that had to be replaced by a hash tell nothing.
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
