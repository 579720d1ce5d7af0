//! What stands out, over the repeats.

use pinfold::experiment::results::{Finding, FindingKind, Outcome};

use super::made::Made;
use super::outcome;

fn of(made: &Made) -> Outcome {
    let experiment = made.experiment();
    outcome(&experiment, &made.runs(&experiment))
}

fn only(outcome: &Outcome, kind: FindingKind) -> &Finding {
    let all: Vec<&Finding> = outcome
        .findings
        .iter()
        .filter(|one| one.kind == kind)
        .collect();
    let [only] = all.as_slice() else {
        panic!("{kind:?}: {all:#?}");
    };
    only
}

fn seen(finding: &Finding) -> (usize, usize) {
    let sum = |part: fn(&pinfold::experiment::results::Seen) -> usize| {
        finding.seen.iter().map(part).sum()
    };
    (sum(|one| one.seen), sum(|one| one.runs))
}

#[test]
fn a_hot_server_is_found_with_its_share_and_the_likely_cause() {
    let outcome = of(&Made::default());
    let hot = only(&outcome, FindingKind::HotServer);
    assert_eq!(hot.subject, "ps 0");
    assert!(
        hot.sentence
            .contains("64.0 % of the parameter servers' bytes, 2.56 times"),
        "{hot:?}"
    );
    assert!(hot.remedy.contains("one large variable"), "{hot:?}");
    assert!(hot.rule.contains("1.5 times the mean"), "{hot:?}");
    assert_eq!((hot.repeats_seen, hot.repeats, seen(hot)), (6, 6, (96, 96)));
    assert_eq!(hot.nodes.iter().collect::<Vec<_>>(), ["node-00"]);
}

#[test]
fn a_straggler_is_found_where_it_lagged() {
    let outcome = of(&Made::default());
    let slow = only(&outcome, FindingKind::Straggler);
    assert_eq!(slow.subject, "worker 11");
    assert!(
        slow.sentence
            .contains("of the median worker's steps per second"),
        "{slow:?}"
    );
    // On shared CPUs of the larger case, in five of six repeats; the runs on exclusive CPUs show that it is not the node alone.
    assert_eq!(
        (slow.repeats_seen, slow.repeats, seen(slow)),
        (5, 6, (20, 48))
    );
    assert_eq!(slow.nodes.iter().collect::<Vec<_>>(), ["node-15"]);
    assert_eq!(
        slow.frequency(),
        "Seen in 5 of 6 repeats. In runs of each way: usual 10 of 12, sized 10 of 12, exclusive 0 of 12, both 0 of 12."
    );
}

#[test]
fn throttling_is_found_by_role() {
    let outcome = of(&Made::default());
    let throttled: Vec<&str> = outcome
        .findings
        .iter()
        .filter(|one| one.kind == FindingKind::Throttled)
        .map(|one| one.sentence.as_str())
        .collect();
    assert_eq!(
        throttled,
        [
            "The CPU quota holds the ps tasks back: they use it up in 11.0 % of its periods",
            "The CPU quota holds the worker tasks back: they use it up in 11.0 % of its periods"
        ]
    );
}

#[test]
fn a_global_counter_that_each_worker_exports_is_found() {
    let none = of(&Made::default());
    assert!(
        !none
            .findings
            .iter()
            .any(|one| one.kind == FindingKind::SharedSteps)
    );
    let outcome = of(&Made {
        shared_counter: true,
        ..Made::default()
    });
    let shared = only(&outcome, FindingKind::SharedSteps);
    assert!(
        shared.sentence.contains("one global step counter"),
        "{shared:?}"
    );
    assert!(
        shared.remedy.contains("steps of one task only"),
        "{shared:?}"
    );
    assert_eq!(
        outcome.findings[0].kind,
        FindingKind::SharedSteps,
        "it comes first"
    );
}

#[test]
fn idle_servers_interference_and_unpinned_tasks_are_found() {
    let made = Made::default();
    let experiment = made.experiment();
    let mut runs = made.runs(&experiment);
    for run in &mut runs {
        let way = run.planned.condition.way;
        for task in &mut run.measured.tasks {
            let usage = &mut task.usage;
            if task.role == "ps" && task.index == Some(3) {
                (usage.sent_bytes, usage.received_bytes) = (Some(1000.0), Some(1000.0));
            }
            if way.exclusive {
                usage.interference_seconds = usage.exclusive_cpus.map(|cpus| cpus * 30.0);
            }
            if way.exclusive && task.role == "worker" && task.index < Some(2) {
                usage.exclusive_cpus = Some(0.0);
                usage.not_pinned = Some("the CPU limit is not a whole number".to_owned());
            }
        }
    }
    let outcome = outcome(&experiment, &runs);
    let idle = only(&outcome, FindingKind::IdleServers);
    assert!(
        idle.sentence.starts_with("Idle: ps 3, with 0.0 %"),
        "{idle:?}"
    );
    let interference = only(&outcome, FindingKind::Interference);
    assert!(
        interference
            .sentence
            .contains("Others used 10.0 % of the time"),
        "{interference:?}"
    );
    assert_eq!(interference.repeats_seen, 6);
    let unpinned = only(&outcome, FindingKind::Unpinned);
    assert_eq!(
        unpinned.sentence,
        "worker tasks should have exclusive CPUs and had none: the CPU limit is not a whole number"
    );

    // Tasks that are to stay shared are no finding.
    let mut shared = experiment.clone();
    shared.job.shared_roles.insert("worker".to_owned());
    let outcome = super::outcome(&shared, &runs);
    let is_unpinned = |finding: &&Finding| finding.kind == FindingKind::Unpinned;
    assert_eq!(outcome.findings.iter().find(is_unpinned), None);
}

#[test]
fn what_nobody_measured_is_no_finding_and_not_zero() {
    let made = Made::default();
    let experiment = made.experiment();
    let mut runs = made.runs(&experiment);
    for run in &mut runs {
        run.measured.evidence = None;
        for task in &mut run.measured.tasks {
            task.usage = Default::default();
            task.steps = None;
        }
    }
    let outcome = outcome(&experiment, &runs);
    assert!(outcome.findings.is_empty(), "{:#?}", outcome.findings);
    assert!(outcome.traffic.is_empty() && outcome.evidence.is_empty());
    assert!(outcome.roles.iter().all(|role| role.cpus_used.is_none()));
    assert!(
        outcome.warnings[0].contains("Nobody could be asked about CPUs and traffic of 96 runs"),
        "{:?}",
        outcome.warnings
    );
    // The verdicts are about steps alone, and stay.
    assert!(
        outcome
            .answers
            .iter()
            .all(|answer| answer.verdict.is_some())
    );
}
