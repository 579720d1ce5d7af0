//! Verdicts in sentences, with what they rest on.

use pinfold::experiment::results::{Answer, Outcome, outcome_markdown};
use pinfold::experiment::statistics::Verdict;

use super::made::{self, Made};
use super::outcome;

fn of(made: &Made) -> Outcome {
    let experiment = made.experiment();
    outcome(&experiment, &made.runs(&experiment))
}

fn answer<'a>(outcome: &'a Outcome, title: &str) -> &'a Answer {
    let mut all = outcome.answers.iter();
    all.find(|answer| answer.title.starts_with(title)).unwrap()
}

#[test]
fn known_effects_are_named_and_nothing_else() {
    let outcome = of(&Made::default());
    let verdicts: Vec<Option<Verdict>> = outcome.answers.iter().map(|one| one.verdict).collect();
    assert_eq!(
        verdicts,
        [
            Some(Verdict::More),
            Some(Verdict::NoEffect),
            Some(Verdict::More),
            Some(Verdict::NoEffect)
        ]
    );
    let exclusive = answer(&outcome, "Exclusive CPUs against");
    let ratio = exclusive.estimate.unwrap();
    // One of 16 workers is slow on shared CPUs only, in five of six repeats.
    assert!((1.20..1.25).contains(&ratio.center()), "{ratio:?}");
    assert!(
        exclusive
            .sentence
            .starts_with("With exclusive CPUs, the job is 2")
            && exclusive.sentence.contains("% faster")
            && exclusive.certainty.contains("lies between +")
            && exclusive
                .certainty
                .contains("with 95 % confidence (6 repeats)")
            && exclusive
                .certainty
                .contains("or more, 8 of 10 such experiments would have found it"),
        "{exclusive:?}"
    );
    let scene = answer(&outcome, "Scene 2 against scene 1");
    assert!(
        scene.sentence.contains("no difference that matters")
            && scene.certainty.contains("-9 to +10 %"),
        "{scene:?}"
    );
    // Parts of the questions have intervals and no verdicts.
    assert!(outcome.others.len() >= 12, "{}", outcome.others.len());
    assert!(
        outcome
            .others
            .iter()
            .all(|one| one.verdict.is_none() && one.estimate.is_some())
    );
    let next = outcome.next.join("\n");
    assert!(
        next.starts_with(
            "Give the tasks exclusive CPUs: with exclusive CPUs, the job is 24 % faster."
        ) && next.contains("See below what to do about this: ps 0 is hot"),
        "{next}"
    );
    let efficiency = outcome.speedup[0].points[1].efficiency.unwrap();
    assert!((0.65..0.8).contains(&efficiency), "{efficiency}");
    assert_eq!(outcome.speedup.len(), 8);
}

#[test]
fn noise_that_hides_an_effect_is_said_to() {
    let outcome = of(&Made {
        noise: 0.35,
        exclusive: 1.05,
        ..Made::default()
    });
    let exclusive = answer(&outcome, "Exclusive");
    assert_eq!(exclusive.verdict, Some(Verdict::NotDistinguishable));
    assert!(
        exclusive.sentence.contains("these runs can't tell"),
        "{exclusive:?}"
    );
}

#[test]
fn few_repeats_are_a_range_without_a_verdict() {
    let outcome = of(&Made {
        repeats: 3,
        ..Made::default()
    });
    for answer in &outcome.answers {
        assert_eq!(answer.verdict, Some(Verdict::TooFew));
        assert_eq!(answer.estimate.unwrap().confidence, None);
        assert!(
            answer.sentence.contains("too few for a verdict")
                && answer.certainty.contains("The repeats range from"),
            "{answer:?}"
        );
    }
}

#[test]
fn runs_that_do_not_count_are_named_and_not_averaged() {
    let (experiment, runs) = made::with_losses();
    let outcome = outcome(&experiment, &runs);
    let lost: Vec<u32> = outcome.lost.iter().map(|run| run.number).collect();
    assert_eq!(lost, [10, 13]);
    assert!(
        outcome.lost[0]
            .reason
            .contains("failed: worker 3 was evicted")
            && outcome.lost[1].reason.starts_with("missing"),
        "{:?}",
        outcome.lost
    );
    let runs: usize = outcome.conditions.iter().map(|one| one.runs.len()).sum();
    assert_eq!(runs, 94);
    // One repeat lacks runs, and five remain.
    let exclusive = &outcome.answers[0];
    assert_eq!((exclusive.missing, exclusive.ratios.len()), (1, 5));
    assert_eq!(exclusive.verdict, Some(Verdict::More));
    assert!(
        exclusive.certainty.contains("1 of 6 repeats lacks a run"),
        "{exclusive:?}"
    );
    let said = outcome.warnings.join("\n");
    assert!(
        said.contains("Run 31 (")
            && said.contains("was tried 2 times; before: ps 1 was not scheduled")
            && said.contains("Run 45: the agent of node-07"),
        "{said}"
    );
}

#[test]
fn emulated_nodes_are_named_first() {
    let outcome = of(&Made {
        emulated: true,
        ..Made::default()
    });
    let text = outcome_markdown(&outcome);
    let first = text.lines().nth(2).unwrap();
    assert!(
        first.contains("The times mean nothing: the CPUs of all 20 nodes are emulated"),
        "{text}"
    );
    // Whoever reads a single answer, or only what to do, is warned, too.
    let answers = outcome.answers.iter();
    for answer in answers {
        let warning = "On emulated CPUs, so not a result: ";
        assert!(
            answer.sentence.starts_with(warning) && answer.advice.is_empty(),
            "{answer:?}"
        );
    }
    let first = &outcome.next[0];
    assert!(first.contains("again on nodes with real CPUs"), "{first}");
}

#[test]
fn no_name_of_others_means_anything_in_markdown() {
    let outcome = of(&Made {
        job: "a|b<script>*x*".to_owned(),
        ..Made::default()
    });
    let text = outcome_markdown(&outcome);
    let title = "# Training job a\\|b\\<script>\\*x\\* in";
    assert!(text.starts_with(title), "{text}");
}
