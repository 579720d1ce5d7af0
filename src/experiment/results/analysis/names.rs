//! [`Names`]: how an experiment's parts are called.

use crate::experiment::results::model::Experiment;
use crate::experiment::results::outcome::ConditionName;
use crate::experiment::statistics::{Condition, Part, Question};

/// The names of the scenes and cases. What there is only one of isn't named.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Each scene with its cases.
    scenes: Vec<(String, Vec<String>)>,
}

/// How a question is put.
#[derive(Debug)]
pub(super) struct Phrases {
    pub(super) title: String,
    /// The beginning of a sentence about the job with the factor.
    pub(super) with: String,
    /// The factor, the beginning of a sentence.
    pub(super) factor: String,
    /// Its verb.
    pub(super) makes: &'static str,
}

// === impl Names ===

impl Names {
    pub fn of(experiment: &Experiment) -> Self {
        let scenes = experiment.scenes.iter().map(|scene| {
            let cases = scene.cases.iter().map(|case| case.case.clone());
            (scene.scene.clone(), cases.collect())
        });
        Self {
            scenes: scenes.collect(),
        }
    }

    /// A scene by its number; empty if there is one.
    pub fn scene(&self, scene: usize) -> String {
        if self.scenes.len() < 2 {
            return String::new();
        }
        format!("scene {}", self.scene_name(scene))
    }

    fn scene_name(&self, scene: usize) -> &str {
        self.scenes
            .get(scene)
            .map_or("?", |(scene, _)| scene.as_str())
    }

    /// A case; empty if the scene has one.
    pub fn case(&self, scene: usize, case: usize) -> String {
        let cases = self
            .scenes
            .get(scene)
            .map_or(&[][..], |(_, cases)| cases.as_slice());
        match cases {
            [] | [_] => String::new(),
            cases => format!("case {}", cases.get(case).map_or("?", String::as_str)),
        }
    }

    /// The scene and the case of a condition; empty if there is one of each.
    pub fn group(&self, condition: Condition) -> String {
        let Condition { scene, case, .. } = condition;
        joined([self.scene(scene), self.case(scene, case)])
    }

    /// A condition's name, in parts.
    pub fn of_condition(&self, condition: Condition) -> ConditionName {
        ConditionName {
            group: self.group(condition),
            name: condition.way.name().to_owned(),
            way: Some(condition.way),
        }
    }

    /// The whole condition.
    pub fn condition(&self, condition: Condition) -> String {
        joined([self.group(condition), condition.way.name().to_owned()])
    }

    /// A part of an experiment; empty for the whole.
    pub(super) fn part(&self, part: &Part) -> String {
        let scene = part.scene.unwrap_or_default();
        let cpus = part.exclusive.map_or("", |exclusive| {
            if exclusive {
                "on exclusive CPUs"
            } else {
                "on shared CPUs"
            }
        });
        let threads = part.sized.map_or("", |sized| {
            if sized {
                "with thread counts that fit"
            } else {
                "with the program's own thread counts"
            }
        });
        joined([
            part.scene.map_or_else(String::new, |one| self.scene(one)),
            part.case
                .map_or_else(String::new, |case| self.case(scene, case)),
            cpus.to_owned(),
            threads.to_owned(),
        ])
    }

    pub(super) fn phrases(&self, question: Question) -> Phrases {
        let (title, with, factor, makes) = match question {
            Question::Exclusive => (
                "Exclusive CPUs against shared CPUs".to_owned(),
                "With exclusive CPUs".to_owned(),
                "Exclusive CPUs".to_owned(),
                "make",
            ),
            Question::Sized => (
                "Thread counts that fit against the program's own".to_owned(),
                "With thread counts that fit the CPUs".to_owned(),
                "Thread counts that fit the CPUs".to_owned(),
                "make",
            ),
            Question::Both => (
                "Exclusive CPUs and thread counts that fit against the usual way".to_owned(),
                "With exclusive CPUs and thread counts that fit".to_owned(),
                "Exclusive CPUs and thread counts that fit together".to_owned(),
                "make",
            ),
            Question::Scene(scene) => {
                let (scene, base) = (self.scene_name(scene), self.scene_name(0));
                (
                    format!("Scene {scene} against scene {base}"),
                    format!("In scene {scene}, compared with scene {base}"),
                    format!("The layout of scene {scene} instead of that of scene {base}"),
                    "makes",
                )
            }
        };
        Phrases {
            title,
            with,
            factor,
            makes,
        }
    }
}

/// Parts of a name, without the empty ones.
fn joined<const N: usize>(parts: [String; N]) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}
