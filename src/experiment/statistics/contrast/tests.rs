use proptest::prelude::*;

use super::super::design::{DesignError, DesignOptions};
use super::super::questions::Way;
use super::*;

/// A design of the four ways in one scene and one case.
fn bench(repeats: usize) -> Design {
    let options = DesignOptions {
        repeats,
        ..DesignOptions::default()
    };
    Design::new(Condition::all(1, 1, &Way::ALL), options).unwrap()
}

fn runs(design: &Design, value: impl Fn(usize, Condition) -> f64) -> Vec<Run> {
    let mut runs = Vec::new();
    for block in 0..design.repeats() {
        runs.extend(design.conditions().map(|condition| Run {
            block,
            condition,
            value: value(block, condition),
        }));
    }
    runs
}

/// Exclusive CPUs give 1.2 times, sized threads 1.05 times, beside 1 % of noise; blocks differ as a whole.
fn steps(block: usize, condition: Condition) -> f64 {
    let noise = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01][block];
    let Way { exclusive, sized } = condition.way;
    let exclusive = if exclusive { 1.2 * noise } else { 1.0 };
    let sized = if sized { 1.05 / noise } else { 1.0 };
    (10.0 + 5.0 * block as f64) * exclusive * sized
}

fn verdicts(contrasts: &[Contrast]) -> Vec<(Question, Option<Verdict>)> {
    contrasts
        .iter()
        .map(|contrast| (contrast.question, contrast.verdict))
        .collect()
}

#[test]
fn effects_are_named_with_their_size() {
    let design = bench(6);
    let contrasts = design.analyze(&runs(&design, steps)).unwrap();
    assert_eq!(
        verdicts(&contrasts),
        [Question::Exclusive, Question::Sized, Question::Both]
            .map(|one| (one, Some(Verdict::More)))
    );
    for (contrast, (expected, is_small)) in
        contrasts
            .iter()
            .zip([(1.2, false), (1.05, true), (1.26, false)])
    {
        let estimate = contrast.estimate.unwrap();
        assert!(
            (estimate.mean / expected - 1.0).abs() < 1e-3,
            "{contrast:?}"
        );
        assert!(estimate.low <= expected && expected <= estimate.high);
        assert_eq!(contrast.is_within_margin, is_small);
        assert_eq!((contrast.blocks.len(), contrast.missing), (6, 0));
    }
    let turned = design
        .analyze(&runs(&design, |block, condition| {
            1.0 / steps(block, condition)
        }))
        .unwrap();
    assert!(turned.iter().all(|one| one.verdict == Some(Verdict::Less)));
}

#[test]
fn no_effect_needs_a_narrow_interval() {
    let design = bench(6);
    let verdict = |noise: f64| {
        let value = |block: usize, condition: Condition| {
            let sign = [1.0, -1.0, 0.5, -0.5, 0.2, -0.1][block];
            let is_odd = condition.way.exclusive != condition.way.sized;
            let shift = if is_odd { 0.5 } else { 1.0 };
            if condition.way.exclusive {
                (noise * sign * shift).exp()
            } else {
                1.0
            }
        };
        let contrasts = design.analyze(&runs(&design, value)).unwrap();
        let [exclusive, ..] = &contrasts[..] else {
            unreachable!("three questions")
        };
        (
            exclusive.verdict.unwrap(),
            exclusive.smallest_effect.unwrap(),
        )
    };
    let (quiet, loud) = (verdict(0.02), verdict(0.2));
    assert_eq!(
        (quiet.0, loud.0),
        (Verdict::NoEffect, Verdict::NotDistinguishable)
    );
    assert!(
        1.0 < quiet.1 && quiet.1 < 1.1 && 1.1 < loud.1,
        "{quiet:?} {loud:?}"
    );
}

#[test]
fn few_blocks_are_a_range() {
    let design = bench(4);
    let contrasts = design.analyze(&runs(&design, steps)).unwrap();
    for contrast in &contrasts {
        assert_eq!(contrast.verdict, Some(Verdict::TooFew));
        let estimate = contrast.estimate.unwrap();
        assert_eq!(
            (estimate.confidence, contrast.smallest_effect),
            (None, None)
        );
    }
    // Five complete blocks of six are enough, four are not.
    let design = bench(6);
    let mut some = runs(&design, steps);
    some.retain(|run| run.block != 2 || run.condition.way != Way::ALL[3]);
    let contrasts = design.analyze(&some).unwrap();
    assert!(
        contrasts
            .iter()
            .all(|one| (one.blocks.len(), one.missing) == (5, 1))
    );
    assert_eq!(contrasts[2].verdict, Some(Verdict::More));
    some.retain(|run| run.block != 0 || run.condition.way != Way::ALL[0]);
    let contrasts = design.analyze(&some).unwrap();
    assert_eq!(contrasts[2].verdict, Some(Verdict::TooFew));
    let none = design.analyze(&[]).unwrap();
    assert!(
        none.iter()
            .all(|one| one.estimate.is_none() && one.verdict.is_none())
    );
}

#[test]
fn a_part_is_shown_without_a_verdict() {
    let design = bench(6);
    let values = runs(&design, steps);
    let part = Part {
        sized: Some(true),
        ..Part::default()
    };
    let shown = design.show(Question::Exclusive, part, &values).unwrap();
    assert_eq!((shown.verdict, shown.smallest_effect), (None, None));
    assert_eq!(shown.estimate.unwrap().confidence, Some(0.95));
    // A part where the factor doesn't change has nothing to show.
    let part = Part {
        exclusive: Some(false),
        ..Part::default()
    };
    let shown = design.show(Question::Exclusive, part, &values).unwrap();
    assert_eq!((shown.estimate, shown.missing), (None, 6));
}

#[test]
fn zeros_have_a_range_or_nothing() {
    let design = bench(6);
    let with = |usual: f64, exclusive: f64| {
        let value = |block: usize, condition: Condition| {
            if condition.way.exclusive {
                exclusive
            } else if block == 3 {
                usual
            } else {
                2.0
            }
        };
        let contrasts = design.analyze(&runs(&design, value)).unwrap();
        let estimate = contrasts[0]
            .estimate
            .map(|one| (one.low, one.high, one.confidence));
        (estimate, contrasts[0].verdict)
    };
    assert_eq!(with(2.0, 0.0), (Some((0.0, 0.0, None)), None));
    // A ratio by 0 in one block, and the ratios of the others are a selection.
    assert_eq!(with(0.0, 1.0), (None, None));
}

#[test]
fn runs_that_were_not_planned_are_refused() {
    let design = bench(6);
    let usual = runs(&design, steps);
    let with = |change: fn(&mut Run)| {
        let mut more = usual.clone();
        change(&mut more[5]);
        design.analyze(&more)
    };
    let condition = usual[5].condition;
    assert_eq!(
        with(|run| run.block = 6),
        Err(RunError::UnplannedBlock {
            block: 6,
            repeats: 6
        })
    );
    assert_eq!(
        with(|run| run.condition.scene = 1),
        Err(RunError::UnplannedCondition {
            block: 1,
            condition: Condition {
                scene: 1,
                ..condition
            }
        })
    );
    assert_eq!(
        with(|run| run.block = 0),
        Err(RunError::Twice {
            block: 0,
            condition
        })
    );
    assert!(matches!(
        with(|run| run.value = f64::NAN),
        Err(RunError::Value { block: 1, .. })
    ));
    assert_eq!(
        with(|run| run.value = -1.0),
        Err(RunError::Value {
            block: 1,
            value: -1.0
        })
    );
    // A planned extension takes the same run.
    let options = DesignOptions {
        extendable: true,
        ..DesignOptions::default()
    };
    let longer = Design::new(design.conditions(), options)
        .map_err(|_: DesignError| ())
        .unwrap()
        .extend(1)
        .unwrap();
    let mut more = usual.clone();
    more.push(Run {
        block: 6,
        ..usual[0]
    });
    let contrasts = longer.analyze(&more).unwrap();
    assert!(contrasts.iter().all(|one| one.missing == 1));
    assert_eq!(contrasts[0].estimate.unwrap().confidence, Some(0.975));
}

/// Computed by hand: 4 × 0.005, then 3 × 0.01, then 2 × 0.03, and no less for the last.
#[test]
fn holm_adjusts_as_published() {
    let close = |found: &[f64], expected: &[f64]| {
        found
            .iter()
            .zip(expected)
            .all(|(one, other)| (one - other).abs() < 1e-9)
    };
    assert!(close(&holm(&[0.04]), &[0.04]));
    assert!(close(
        &holm(&[0.01, 0.04, 0.03, 0.005]),
        &[0.03, 0.06, 0.06, 0.02]
    ));
    assert!(close(&holm(&[0.5, 0.6]), &[1.0, 1.0]));
    assert!(holm(&[]).is_empty());
}

proptest! {
    #[test]
    fn holm_is_between_the_value_and_bonferroni(p in proptest::collection::vec(0.0..1.0_f64, 1..8)) {
        let adjusted = holm(&p);
        for (one, adjusted) in p.iter().zip(&adjusted) {
            prop_assert!(one <= adjusted && *adjusted <= (one * p.len() as f64).min(1.0));
        }
        for (one, other) in p.iter().zip(&adjusted) {
            for (third, fourth) in p.iter().zip(&adjusted) {
                prop_assert!(one > third || other <= fourth);
            }
        }
    }
}
