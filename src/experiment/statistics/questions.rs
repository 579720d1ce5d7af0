//! What an experiment varies, and what it asks: [`Condition`], [`Run`], [`Question`], [`Part`].

use serde::{Deserialize, Serialize};

/// How the training pods of a run get CPUs and threads: the two factors of an experiment on one layout of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// Exclusive CPUs, instead of the shared pool.
    pub exclusive: bool,
    /// Thread counts that fit the CPUs, instead of the program's own choice.
    pub sized: bool,
}

/// What a run is a run of. Scenes and cases are numbered from 0, in the order of the experiment's plan; the bench has one of
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    pub scene: usize,
    pub case: usize,
    pub way: Way,
}

/// A finished run, with the value of the metric that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The block from 0: the repeat or round that holds every condition once.
    pub block: usize,
    pub condition: Condition,
    /// The value, in any unit that is 0 for nothing, for example steps per second.
    pub value: f64,
}

/// The question of a contrast: which factor changes while all others stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// Exclusive CPUs against shared ones.
    Exclusive,
    /// Sized thread counts against the program's own.
    Sized,
    /// Exclusive and sized against neither.
    Both,
    /// The scene with this number against scene 0.
    Scene(usize),
}

/// A part of an experiment, by the levels of its factors; what is `None` may have any level. The default is everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// Only this scene.
    pub scene: Option<usize>,
    /// Only this case.
    pub case: Option<usize>,
    /// Only exclusive or only shared CPUs.
    pub exclusive: Option<bool>,
    /// Only sized or only default thread counts.
    pub sized: Option<bool>,
}

// === impl Way ===

impl Way {
    /// All four, the usual one first.
    pub const ALL: [Self; 4] = [
        Self {
            exclusive: false,
            sized: false,
        },
        Self {
            exclusive: false,
            sized: true,
        },
        Self {
            exclusive: true,
            sized: false,
        },
        Self {
            exclusive: true,
            sized: true,
        },
    ];
}

// === impl Condition ===

impl Condition {
    /// The conditions of an experiment that runs every case of every scene in every way.
    pub fn all(scenes: usize, cases: usize, ways: &[Way]) -> Vec<Self> {
        let mut all = Vec::new();
        for scene in 0..scenes {
            for case in 0..cases {
                all.extend(ways.iter().map(|&way| Self { scene, case, way }));
            }
        }
        all
    }
}

// === impl Question ===

impl Question {
    /// The condition that this one is compared with; `None` if the question doesn't change this condition.
    pub(super) fn base(self, condition: Condition) -> Option<Condition> {
        let Way { exclusive, sized } = condition.way;
        let mut base = condition;
        match self {
            Self::Exclusive if exclusive => base.way.exclusive = false,
            Self::Sized if sized => base.way.sized = false,
            Self::Both if exclusive && sized => {
                base.way = Way {
                    exclusive: false,
                    sized: false,
                };
            }
            Self::Scene(scene) if scene > 0 && scene == condition.scene => base.scene = 0,
            _ => return None,
        }
        Some(base)
    }
}

// === impl Part ===

impl Part {
    /// Whether the conditions of a pair belong to the part. The pair's own factor counts with the level of the first, so a
    /// part may also be named by it.
    pub(super) fn has(&self, condition: Condition) -> bool {
        let Condition { scene, case, way } = condition;
        self.scene.is_none_or(|only| only == scene)
            && self.case.is_none_or(|only| only == case)
            && self.exclusive.is_none_or(|only| only == way.exclusive)
            && self.sized.is_none_or(|only| only == way.sized)
    }
}
