//! [`next_steps`]: what to do after reading, the most important first.

use crate::experiment::results::outcome::{FindingKind, Outcome};
use crate::experiment::statistics::{FEWEST_BLOCKS, Verdict};
use crate::text::sentence::lower;

/// How many findings are named, so that the list stays short.
const FINDINGS: usize = 3;

/// What follows from an outcome, in sentences.
pub(crate) fn next_steps(outcome: &Outcome) -> Vec<String> {
    let mut steps = Vec::new();
    if outcome.caution.is_some() {
        steps.push(
            "Run the experiment again on nodes with real CPUs: nothing here tells what is faster."
                .to_owned(),
        );
    }
    // What makes the values themselves wrong comes before what they say.
    let invalid = outcome
        .findings
        .iter()
        .filter(|finding| invalidates(finding.kind));
    steps.extend(
        invalid.map(|finding| format!("Look at this first: {}.", lower(&finding.sentence))),
    );
    let advice = outcome
        .answers
        .iter()
        .filter(|answer| !answer.advice.is_empty());
    steps.extend(advice.map(|answer| format!("{}: {}", answer.advice, lower(&answer.sentence))));
    let has = |verdict| {
        outcome
            .answers
            .iter()
            .any(|answer| answer.verdict == Some(verdict))
    };
    if has(Verdict::TooFew) {
        steps.push(format!(
            "Run every condition at least {FEWEST_BLOCKS} times, because fewer repeats have no verdict (--repeats)."
        ));
    }
    if outcome.caution.is_none() && has(Verdict::NotDistinguishable) {
        steps.push(
            "Plan a new experiment with more repeats for the questions that can't be told yet."
                .to_owned(),
        );
    }
    let others = outcome
        .findings
        .iter()
        .filter(|finding| !invalidates(finding.kind));
    steps.extend(others.take(FINDINGS).map(|finding| {
        format!(
            "See below what to do about this: {}.",
            lower(&finding.sentence)
        )
    }));
    if steps.is_empty() && !outcome.answers.is_empty() {
        steps.push("Nothing to do: no way and no layout is better than the others by an amount that matters.".to_owned());
    }
    steps
}

/// Whether a finding makes the values of the runs doubtful.
fn invalidates(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::SharedSteps | FindingKind::Unpinned)
}
