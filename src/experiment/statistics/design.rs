//! [`Design`]: what is fixed before the first run, because whoever decides it after a look at the data can get any answer.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::questions::{Condition, Part, Question};

/// The usual number of blocks.
pub const USUAL_REPEATS: usize = 6;

/// The usual ratio, with its inverse, between which there is no effect that matters.
pub const USUAL_MARGIN: f64 = 1.1;

/// The probability with which an experiment may name effects that aren't there, and an interval may miss the true ratio.
const WRONG: f64 = 0.05;

/// The user's choices for a design.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DesignOptions {
    /// The number of blocks.
    pub repeats: usize,
    /// Whether the experiment may be extended once. Its intervals are wider for it.
    pub extendable: bool,
    /// "No effect" is said if the ratio is certainly between 1 / `margin` and `margin`.
    pub margin: f64,
}

/// What an experiment varies and asks, how often, and how sure an answer must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Design {
    conditions: BTreeSet<Condition>,
    primary: Vec<Question>,
    /// The blocks, those of an extension included.
    repeats: usize,
    extendable: bool,
    extended: bool,
    margin: f64,
}

/// The reason why a design is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DesignError {
    /// There is nothing to run.
    #[error("the experiment has no runs: name at least one scene, case, way and repeat")]
    Empty,
    /// The margin leaves nothing between its inverse and itself.
    #[error("a margin of {0} is no ratio above 1: choose for example 1.1, for effects of 10 %")]
    Margin(f64),
}

/// The reason why an extension is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// The design did not allow for it.
    #[error(
        "the experiment was not planned as extendable, so its 95 % hold for one look only: plan a new experiment, with more \
         repeats or as extendable"
    )]
    NotExtendable,
    #[error("the experiment was already extended once: plan a new experiment with more repeats")]
    AlreadyExtended,
    #[error("an extension by 0 repeats changes nothing: name how many repeats to add")]
    Nothing,
}

// === impl DesignOptions ===

impl Default for DesignOptions {
    fn default() -> Self {
        Self {
            repeats: USUAL_REPEATS,
            extendable: false,
            margin: USUAL_MARGIN,
        }
    }
}

// === impl Design ===

impl Design {
    /// A design of these conditions, each of which runs once in each block. The primary questions follow from the conditions
    /// alone: each factor that changes in the experiment asks its own.
    ///
    /// # Errors
    /// No conditions or repeats; a margin that is not above 1.
    pub fn new(
        conditions: impl IntoIterator<Item = Condition>,
        options: DesignOptions,
    ) -> Result<Self, DesignError> {
        let DesignOptions {
            repeats,
            extendable,
            margin,
        } = options;
        if !margin.is_finite() || margin <= 1.0 {
            return Err(DesignError::Margin(margin));
        }
        let conditions: BTreeSet<Condition> = conditions.into_iter().collect();
        if conditions.is_empty() || repeats == 0 {
            return Err(DesignError::Empty);
        }
        let mut design = Self {
            conditions,
            primary: Vec::new(),
            repeats,
            extendable,
            extended: false,
            margin,
        };
        let scenes: BTreeSet<usize> = design.conditions.iter().map(|one| one.scene).collect();
        design.primary = [Question::Exclusive, Question::Sized, Question::Both]
            .into_iter()
            .chain(scenes.into_iter().map(Question::Scene))
            .filter(|&question| !design.pairs(question, Part::default()).is_empty())
            .collect();
        Ok(design)
    }

    /// The design with more blocks, after a first look at the data.
    ///
    /// # Errors
    /// The design is not extendable, or was extended before; no blocks.
    pub fn extend(self, repeats: usize) -> Result<Self, ExtensionError> {
        match () {
            () if !self.extendable => Err(ExtensionError::NotExtendable),
            () if self.extended => Err(ExtensionError::AlreadyExtended),
            () if repeats == 0 => Err(ExtensionError::Nothing),
            () => Ok(Self {
                repeats: self.repeats.saturating_add(repeats),
                extended: true,
                ..self
            }),
        }
    }

    /// The questions that get a verdict.
    pub fn primary(&self) -> &[Question] {
        &self.primary
    }

    /// What runs in each block.
    pub fn conditions(&self) -> impl Iterator<Item = Condition> {
        self.conditions.iter().copied()
    }

    /// The number of blocks.
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// The ratio from whose inverse to itself there is no effect that matters.
    pub fn margin(&self) -> f64 {
        self.margin
    }

    /// The confidence of the intervals. An extendable experiment may be looked at twice, so each look has half of the
    /// probability of error (Bonferroni); this also holds if nobody extends it.
    pub fn confidence(&self) -> f64 {
        1.0 - self.error_probability()
    }

    pub(super) fn error_probability(&self) -> f64 {
        if self.extendable { WRONG / 2.0 } else { WRONG }
    }

    /// Whether a run of this block and condition was planned.
    pub(super) fn has(&self, condition: Condition) -> bool {
        self.conditions.contains(&condition)
    }

    /// The pairs of conditions of a block that answer a question in a part of the experiment: a condition, and the one that
    /// it is compared with.
    pub fn pairs(&self, question: Question, part: Part) -> Vec<(Condition, Condition)> {
        let with_base = |&condition: &Condition| Some((condition, question.base(condition)?));
        self.conditions
            .iter()
            .filter(|&&condition| part.has(condition))
            .filter_map(with_base)
            .filter(|(_, base)| self.has(*base))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::questions::Way;
    use super::*;

    fn design(scenes: usize, ways: &[Way], options: DesignOptions) -> Design {
        Design::new(Condition::all(scenes, 2, ways), options).unwrap()
    }

    #[test]
    fn the_factors_that_change_are_asked_about() {
        use Question::{Both, Exclusive, Scene, Sized};
        let primary = |scenes, ways: &[Way]| {
            design(scenes, ways, DesignOptions::default())
                .primary()
                .to_vec()
        };
        let [usual, sized, exclusive, both] = Way::ALL;
        assert_eq!(primary(2, &Way::ALL), [Exclusive, Sized, Both, Scene(1)]);
        assert_eq!(primary(1, &Way::ALL), [Exclusive, Sized, Both]);
        assert_eq!(primary(1, &[usual, both]), [Both]);
        assert_eq!(primary(1, &[usual, exclusive]), [Exclusive]);
        assert_eq!(primary(2, &[sized]), [Scene(1)]);
        assert_eq!(primary(3, &[sized]), [Scene(1), Scene(2)]);
        assert_eq!(primary(1, &[sized]), []);
    }

    #[test]
    fn pairs_differ_in_the_factor_alone() {
        let design = design(2, &Way::ALL, DesignOptions::default());
        let count = |question, part| design.pairs(question, part).len();
        let all = Part::default();
        assert_eq!(count(Question::Exclusive, all), 8);
        assert_eq!(count(Question::Both, all), 4);
        assert_eq!(count(Question::Scene(1), all), 8);
        assert_eq!(count(Question::Scene(0), all), 0);
        let part = Part {
            scene: Some(1),
            sized: Some(true),
            ..all
        };
        let pairs = design.pairs(Question::Exclusive, part);
        assert_eq!(pairs.len(), 2);
        for (one, base) in pairs {
            assert_eq!((one.scene, base.scene, one.case), (1, 1, base.case));
            assert!(one.way.exclusive && !base.way.exclusive && one.way.sized && base.way.sized);
        }
    }

    #[test]
    fn an_extension_is_planned_or_refused() {
        let fixed = design(1, &Way::ALL, DesignOptions::default());
        assert_eq!((fixed.repeats(), fixed.confidence()), (6, 0.95));
        assert_eq!(fixed.extend(6), Err(ExtensionError::NotExtendable));
        let options = DesignOptions {
            extendable: true,
            ..DesignOptions::default()
        };
        let planned = design(1, &Way::ALL, options);
        assert_eq!((planned.repeats(), planned.confidence()), (6, 0.975));
        assert_eq!(planned.clone().extend(0), Err(ExtensionError::Nothing));
        let longer = planned.extend(4).unwrap();
        assert_eq!((longer.repeats(), longer.confidence()), (10, 0.975));
        assert_eq!(longer.extend(4), Err(ExtensionError::AlreadyExtended));
    }

    #[test]
    fn a_design_without_runs_or_margin_is_refused() {
        let of = |options| Design::new(Condition::all(1, 1, &Way::ALL), options).map(|_| ());
        let usual = DesignOptions::default();
        assert_eq!(of(usual), Ok(()));
        assert_eq!(
            of(DesignOptions {
                repeats: 0,
                ..usual
            }),
            Err(DesignError::Empty)
        );
        assert_eq!(Design::new([], usual), Err(DesignError::Empty));
        for margin in [1.0, 0.9, f64::INFINITY] {
            assert_eq!(
                of(DesignOptions { margin, ..usual }),
                Err(DesignError::Margin(margin))
            );
        }
    }
}
