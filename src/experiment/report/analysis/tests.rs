use proptest::prelude::*;

use super::*;
use crate::experiment::report::{FindingKind, HOT, Series};

/// A pod's name, role, index, and the known values.
type PodFigures<'a> = (&'a str, &'a str, &'a str, &'a [(Measure, f64)]);

/// The same value alone.
type Made = (String, &'static str, String, Vec<(Measure, f64)>);

fn report_of(pods: &[Made]) -> RunReport {
    let pods: Vec<PodFigures> = pods
        .iter()
        .map(|(pod, role, index, known)| (pod.as_str(), *role, index.as_str(), known.as_slice()))
        .collect();
    analyse(&run(&pods))
}

/// A run of 100 s: each pod's role and index, with the known values.
fn run(pods: &[PodFigures]) -> ObservedRun {
    let labels = |(pod, role, index, _): &PodFigures| {
        [
            ("namespace", "t"),
            ("training_job", "j"),
            ("pod", pod),
            ("role", role),
            ("replica_index", index),
            ("node", "n1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    };
    let seen = [
        0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0,
    ]
    .map(|at| (at, at));
    let series: Vec<Series> = pods
        .iter()
        .map(|pod| Series {
            labels: labels(pod),
            points: seen.to_vec(),
        })
        .collect();
    let mut totals = Totals::new();
    for (pod, _, _, known) in pods {
        for (measure, value) in *known {
            totals
                .entry(*measure)
                .or_default()
                .insert((*pod).to_owned(), *value);
        }
    }
    ObservedRun {
        name: "r".to_owned(),
        scene: Some("1".to_owned()),
        case: Some("2".to_owned()),
        members: Members::read(&series, 0.0, 100.0, 1.0).unwrap(),
        totals,
        curves: Vec::new(),
        step_metric: None,
    }
}

/// Parameter servers with the given traffic.
fn servers_of(moved: &[f64]) -> RunReport {
    let pods: Vec<Made> = moved
        .iter()
        .enumerate()
        .map(|(at, moved)| {
            let known = vec![
                (Measure::Sent, moved * 0.75),
                (Measure::Received, moved * 0.25),
                (Measure::Cpu, 1.0),
            ];
            (format!("ps-{at}"), "ps", at.to_string(), known)
        })
        .collect();
    report_of(&pods)
}

fn kinds(report: &RunReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn tasks_and_roles_are_summed_up() {
    use Measure::{Cpu, Received, Sent, Steps};
    let report = analyse(&run(&[
        // A Job restarted the pod: still one task.
        (
            "w-1-b",
            "worker",
            "1",
            &[(Cpu, 30.0), (Steps, 200.0), (Sent, 1e6), (Received, 1e6)],
        ),
        (
            "w-1-a",
            "worker",
            "1",
            &[(Cpu, 20.0), (Steps, 100.0), (Sent, 1e6), (Received, 1e6)],
        ),
        (
            "w-10",
            "worker",
            "10",
            &[(Cpu, 40.0), (Sent, 1e6), (Received, 1e6)],
        ),
        (
            "w-2",
            "worker",
            "2",
            &[(Cpu, 60.0), (Steps, 300.0), (Sent, 1e6), (Received, 1e6)],
        ),
        (
            "ps-0",
            "ps",
            "0",
            &[(Cpu, 10.0), (Sent, 4e6), (Received, 4e6)],
        ),
        ("alone", "other", "", &[]),
    ]));
    let tasks: Vec<&str> = report.tasks.iter().map(|task| task.task.as_str()).collect();
    assert_eq!(
        tasks,
        ["ps 0", "worker 1", "worker 2", "worker 10", "alone"]
    );
    let first = &report.tasks[1];
    assert_eq!(
        (first.pods.len(), first.usage.steps, first.usage.cpus_used),
        (2, Some(300.0), Some(0.5))
    );
    let workers = report.role("worker").unwrap();
    assert_eq!(
        (workers.cpu_seconds, workers.steps_per_second),
        (Some(150.0), Some(6.0))
    );
    assert_eq!((report.workers, report.steps_per_second()), (3, Some(6.0)));
    assert_eq!(
        report.servers,
        ServerBalance::default(),
        "one server is no balance"
    );
    assert_eq!(
        report.role("other").unwrap(),
        &Usage::default(),
        "nothing is known, and that is not 0"
    );
    let missing = report.missing.join("\n");
    assert!(
        missing.contains("no CPU time of alone") && missing.contains("no network bytes of alone"),
        "{missing}"
    );
    assert!(
        missing.contains("no steps: name the counter of steps"),
        "{missing}"
    );
}

#[test]
fn what_is_not_known_is_said() {
    let mut observed = run(&[
        (
            "w-0",
            "worker",
            "0",
            &[(Measure::Steps, 1.0), (Measure::Cpu, 1.0)],
        ),
        (
            "w-1",
            "worker",
            "1",
            &[
                (Measure::Sent, 1.0),
                (Measure::Received, 1.0),
                (Measure::Cpu, 1.0),
            ],
        ),
    ]);
    observed.step_metric = Some("steps_total".to_owned());
    observed.members.unseen = 300.0;
    let missing = analyse(&observed).missing.join("\n");
    for says in [
        "no steps of worker 1 in steps_total",
        "no network bytes of worker 0:",
        "the run has no parameter server",
        "no pod has samples for 5.00 min",
    ] {
        assert!(missing.contains(says), "{says}: {missing}");
    }
    observed.totals.remove(&Measure::Steps);
    let missing = analyse(&observed).missing.join("\n");
    assert!(
        missing.contains("no series of steps_total has the namespace and pod"),
        "{missing}"
    );
    // A server without data is not reported as idle.
    let blind = analyse(&run(&[
        ("ps-0", "ps", "0", &[(Measure::Sent, 1e9)]),
        ("ps-1", "ps", "1", &[]),
    ]));
    assert_eq!(
        (blind.servers.traffic.clone(), kinds(&blind)),
        (None, vec![])
    );
}

#[test]
fn the_hot_server_is_named() {
    for (moved, kind, says) in [
        (
            &[9e9, 1e8, 1e8, 1e8, 1e8][..],
            FindingKind::OneBigVariable,
            "likely cause is one large variable: partition the variable",
        ),
        (
            &[7.6e9, 2.4e9],
            FindingKind::HotServer,
            "ps 0 is hot: it moves 76 % of the parameter servers' bytes (1.52 times",
        ),
        (
            &[1e9, 1e9, 4e9, 3e9, 1e9],
            FindingKind::UnevenServers,
            "and ps 3 moves another 30 %",
        ),
        (
            &[7.4e9, 2.6e9],
            FindingKind::EvenServers,
            "the busiest, ps 0, moves 74 %",
        ),
        (
            &[1e9; 8],
            FindingKind::EvenServers,
            "(1.00 times the mean, Gini 0.00)",
        ),
        // 100 s: a little below the least, and a little above.
        (
            &[0.99e6, 0.0],
            FindingKind::IdleServers,
            "move 9.90 kB per second together, too little",
        ),
        (&[1.01e6, 0.0], FindingKind::HotServer, "100 %"),
        (
            &[9e9, 1e9],
            FindingKind::HotServer,
            "either the hot server has one large variable (partition the variable over both servers)",
        ),
        (
            &[9e9, 1e9],
            FindingKind::HotServer,
            "place the variables by size",
        ),
        (
            &[8e9, 1e9, 1e9],
            FindingKind::OneBigVariable,
            "likely cause is one large variable",
        ),
        (
            &[5e9, 3e9, 1e9],
            FindingKind::UnevenServers,
            "and ps 1 moves another 33 %",
        ),
    ] {
        let report = servers_of(moved);
        assert_eq!(kinds(&report), [kind], "{moved:?}: {:?}", report.findings);
        assert!(
            report.findings[0].text.contains(says),
            "{moved:?}: {:?}",
            report.findings
        );
    }
    assert_eq!(kinds(&servers_of(&[1e9])), [], "there is no other server");
    assert_eq!(
        kinds(&servers_of(&[0.0, 0.0])),
        [],
        "no traffic is no balance"
    );
}

#[test]
fn a_server_may_be_hot_by_its_cpu_alone() {
    let known = |cpu: f64| {
        vec![
            (Measure::Sent, 1e9),
            (Measure::Received, 1e9),
            (Measure::Cpu, cpu),
        ]
    };
    let pods = [90.0, 5.0, 5.0].into_iter().enumerate();
    let pods: Vec<Made> = pods
        .map(|(at, cpu)| (format!("ps-{at}"), "ps", at.to_string(), known(cpu)))
        .collect();
    let report = report_of(&pods);
    assert_eq!(kinds(&report), [FindingKind::EvenServers]);
    assert!(
        report.findings[0]
            .text
            .ends_with("; but ps 0 takes 90 % of their CPU time"),
        "{:?}",
        report.findings
    );
    assert!(
        servers_of(&[1e9; 3]).findings[0]
            .text
            .ends_with("Gini 0.00)"),
        "by both they are even"
    );
}

#[test]
fn curves_of_one_task_are_one() {
    let mut observed = run(&[
        ("w-0-a", "worker", "0", &[]),
        ("w-0-b", "worker", "0", &[]),
        ("w-1", "worker", "1", &[]),
    ]);
    let pods = [
        // Begun anew after 60 s: the old one's rate fades while the new one's comes.
        ("w-0-a", vec![(10.0, 9.0), (50.0, 2.0), (60.0, 1.0)]),
        ("w-0-b", vec![(60.0, 1.0), (70.0, 2.0), (110.0, 9.0)]),
        // Two targets report the pod.
        (
            "w-1",
            vec![(50.0, 3.0), (60.0, 3.0), (50.0, 2.9), (60.0, 3.0)],
        ),
    ];
    let pods = pods.map(|(pod, points)| (pod.to_owned(), points)).into();
    observed.curves.push(Curve {
        measure: Measure::Cpu,
        pods,
    });
    let curves = [
        (
            "worker 0".to_owned(),
            vec![(50.0, 2.0), (60.0, 2.0), (70.0, 2.0)],
        ),
        ("worker 1".to_owned(), vec![(50.0, 3.0), (60.0, 3.0)]),
    ];
    assert_eq!(analyse(&observed).curves, [(Measure::Cpu, curves.to_vec())]);
}

#[test]
fn quotas_and_laggards_are_named() {
    use Measure::{Cpu, Periods, ThrottledPeriods};
    let worker =
        |cpu: f64, held: f64| vec![(Cpu, cpu), (Periods, 1000.0), (ThrottledPeriods, held)];
    let named = |cpus: &[f64], held: f64| {
        let pods: Vec<Made> = cpus
            .iter()
            .enumerate()
            .map(|(at, cpu)| {
                (
                    format!("w-{at}"),
                    "worker",
                    at.to_string(),
                    worker(*cpu, held),
                )
            })
            .collect();
        report_of(&pods)
    };
    assert_eq!(
        kinds(&named(&[100.0, 100.0, 61.0], 50.0)),
        [],
        "neither is below"
    );
    let slow = named(&[100.0, 100.0, 59.0], 51.0);
    assert_eq!(kinds(&slow), [FindingKind::Throttled, FindingKind::Lagging]);
    assert!(
        slow.findings[0]
            .text
            .starts_with("the CPU quota throttles the worker tasks in 5.1 %")
    );
    assert!(
        slow.findings[1]
            .text
            .starts_with("worker 2 used less than 60 %")
    );
    assert_eq!(
        kinds(&named(&[100.0, 10.0], 0.0)),
        [],
        "of two nobody knows who is slow"
    );
    let mut many = vec![1.0; 8];
    many.extend([100.0; 10]);
    let many = named(&many, 0.0);
    assert!(
        many.findings[0]
            .text
            .starts_with("worker 0, worker 1, worker 2, worker 3, worker 4 and 3 more used")
    );
}

proptest! {
    /// Whoever is called hot carries most, and at least so many times the mean; scaling all traffic changes no verdict.
    #[test]
    fn verdicts_follow_the_shares(moved in prop::collection::vec(0.0..1e12_f64, 2..20), times in 1.0..1e3_f64) {
        prop_assume!(moved.iter().sum::<f64>() > 1e7);
        let report = servers_of(&moved);
        let balance = report.servers.traffic.clone().unwrap();
        let most = moved.iter().copied().fold(0.0, f64::max);
        let share = most / moved.iter().sum::<f64>();
        prop_assert!((balance.hottest().unwrap().share - share).abs() < 1e-9);
        let hot = matches!(kinds(&report)[..], [FindingKind::OneBigVariable | FindingKind::HotServer | FindingKind::UnevenServers]);
        prop_assert_eq!(kinds(&report) == [FindingKind::HotServer], hot && moved.len() == 2);
        let mean = moved.iter().sum::<f64>() / moved.len() as f64;
        prop_assume!((most / mean - HOT).abs() > 1e-6);
        prop_assert_eq!(hot, most > HOT * mean);
        let more: Vec<f64> = moved.iter().map(|moved| moved * times).collect();
        prop_assert_eq!(kinds(&servers_of(&more)), kinds(&report));
    }

    /// A role's usage is the sum of its tasks' usage, and missing data stays missing.
    #[test]
    fn roles_are_the_sum_of_tasks(known in prop::collection::vec((0_usize..3, 0_usize..4, prop::option::of(0.0..1e9_f64)), 1..30)) {
        let pods: Vec<Made> = known
            .iter()
            .enumerate()
            .map(|(at, (role, index, cpu))| {
                let role = ["ps", "worker", "chief"][*role];
                (format!("{role}-{at}"), role, index.to_string(), cpu.iter().map(|cpu| (Measure::Cpu, *cpu)).collect())
            })
            .collect();
        let report = report_of(&pods);
        let sum = |values: &mut dyn Iterator<Item = Option<f64>>| values.flatten().sum::<f64>();
        let by_task = sum(&mut report.tasks.iter().map(|task| task.usage.cpu_seconds));
        let by_role = sum(&mut report.roles.iter().map(|role| role.usage.cpu_seconds));
        let given = sum(&mut known.iter().map(|(_, _, cpu)| *cpu));
        prop_assert!((by_task - given).abs() < 1e-3 && (by_role - given).abs() < 1e-3);
        prop_assert_eq!(report.tasks.iter().map(|task| task.pods.len()).sum::<usize>(), known.len());
        prop_assert_eq!(report.roles.iter().map(|role| role.tasks).sum::<usize>(), report.tasks.len());
    }
}
