//! [`Slots`]: the slots of a case, and the order in which a node tries them.

use super::plan::{Case, Scene, ScenePlan};
use super::slot::{LONG, Slot};

/// All slots of a case, in the order of the plan: by group, then by index. Cheap however many they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    scene: String,
    case: String,
    groups: Vec<GroupServers>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupServers {
    name: String,
    kind: Option<String>,
    count: u32,
}

/// A scene or case that a plan does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plan {plan} has no scene {scene} with a case {case}: choose one of {known}")]
pub struct NoSuchCase {
    plan: String,
    scene: String,
    case: String,
    known: String,
}

/// The slots of a case.
///
/// Fails if the plan lacks the scene or the case, and names the existing cases.
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
        format!("scene {} with case {}", scene.scene, cases.join(", "))
    });
    scenes.collect::<Vec<_>>().join("; ")
}

/// The order in which a node tries the slots `0..count`, each exactly once.
///
/// `last`, the node's former slot, comes first. The start and the step of the remaining order
/// follow from the name's hash, so that thousands of nodes that try at the same moment seldom
/// collide.
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
    let remaining = (0..count).filter_map(move |turn| {
        let turn = u128::try_from(turn).ok()?;
        usize::try_from((u128::from(start) + turn * step) % u128::from(slots)).ok()
    });
    last.into_iter()
        .chain(remaining.filter(move |&slot| Some(slot) != last))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// FNV-1a with a final mix of the bits: names that differ only in the last digit must get distant values.
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
    pub(crate) fn new(scene: &Scene, case: &Case) -> Self {
        let groups = scene.groups.iter().map(|group| GroupServers {
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

    pub fn scene(&self) -> &str {
        &self.scene
    }

    pub fn case(&self) -> &str {
        &self.case
    }

    pub fn len(&self) -> usize {
        self.groups.iter().map(|group| group.count as usize).sum()
    }

    /// Whether the case has no server at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

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

    /// The position of a slot; `None` for an unknown slot.
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

    /// The slot of the Lease with this name; `None` for the Lease of an unknown slot.
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
        // A hash contains no index. A case may have ten thousand slots, so only hashed names are compared with all
        // slots.
        found.or_else(|| {
            lease
                .starts_with(LONG)
                .then(|| self.iter().find(is_it))
                .flatten()
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    fn locate(&self, position: usize) -> Option<(&GroupServers, u32)> {
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
