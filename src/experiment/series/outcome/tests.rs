use super::super::job::{RunEnd, SeenJob};
use super::super::query::Measure;
use super::super::usage::SeriesUsage;
use super::super::{Series, outcome};
use super::*;

/// A run of ten minutes with so many workers, steps per second if any, and bytes that each server sends in a second.
fn run(scene: &str, case: &str, workers: u32, steps: Option<f64>, sent: &[f64]) -> ObservedRun {
    let servers = u32::try_from(sent.len()).unwrap();
    let pods = (0..servers).map(|at| ("ps", at));
    let pods: Vec<(&str, u32)> = pods.chain((0..workers).map(|at| ("worker", at))).collect();
    let series = |(role, at): &(&str, u32)| {
        let labels = [
            ("namespace", "t".to_owned()),
            ("training_job", "j".to_owned()),
            ("pod", format!("{role}-{at}")),
            ("role", (*role).to_owned()),
            ("replica_index", at.to_string()),
            ("instance", "n".to_owned()),
        ];
        Series {
            labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
            points: (0..=20)
                .map(|at| f64::from(at * 30))
                .map(|at| (at, at))
                .collect(),
        }
    };
    let series: Vec<Series> = pods.iter().map(series).collect();
    let job = SeenJob::read(&series, 0.0, 600.0, 1.0).unwrap();
    let mut used = SeriesUsage::default();
    let bytes = (0..).zip(sent);
    let bytes = bytes.map(|(at, sent): (u32, _)| (format!("ps-{at}"), sent * 600.0));
    used.totals.insert(Measure::Sent, bytes.collect());
    if let Some(steps) = steps {
        let each = steps / f64::from(workers) * 600.0;
        // A little apart, because equal counts look like one counter.
        let counts = (0..workers).map(|at| (format!("worker-{at}"), each + f64::from(at) * 1e-6));
        used.totals.insert(Measure::Steps, counts.collect());
    }
    ObservedRun {
        name: format!("scene {scene} case {case}"),
        scene: Some(scene.to_owned()),
        case: Some(case.to_owned()),
        job,
        end: RunEnd::Seen,
        used,
        step_metric: steps.map(|_| "steps_total".to_owned()),
    }
}

fn compared(runs: &[ObservedRun], base: Option<&str>) -> Outcome {
    outcome("http://p", runs, base, Vec::new()).unwrap()
}

/// The case, speedup and efficiency of a point.
type Point = (String, f64, f64);

/// Each curve's name with its points.
fn curves(outcome: &Outcome) -> Vec<(String, Vec<Point>)> {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let point = |point: &CurvePoint| {
        let speedup = point.speedup.unwrap().center();
        (
            point.case.clone(),
            round(speedup),
            round(point.efficiency.unwrap()),
        )
    };
    let curves = outcome.speedup.iter();
    curves
        .map(|curve| {
            (
                curve.condition.name.clone(),
                curve.points.iter().map(point).collect(),
            )
        })
        .collect()
}

#[test]
fn each_scene_scales_from_its_own_smallest_case() {
    let runs = [
        run("1", "1", 10, Some(100.0), &[1e6]),
        run("1", "2", 50, Some(400.0), &[1e6; 5]),
        run("2", "1", 10, Some(50.0), &[1e6]),
        run("2", "2", 50, Some(250.0), &[1e6; 5]),
    ];
    let named = |scene: &str, speedup, efficiency| {
        (
            format!("compared with scene {scene} case 1"),
            vec![
                (format!("scene {scene} case 1"), 1.0, 1.0),
                (format!("scene {scene} case 2"), speedup, efficiency),
            ],
        )
    };
    let report = compared(&runs, None);
    assert_eq!(
        curves(&report),
        [named("1", 4.0, 0.8), named("2", 5.0, 1.0)]
    );
    assert_eq!(report.measure, "steps per second");
    // The comparison by case or by run.
    assert_eq!(curves(&compared(&runs, Some("1"))), curves(&report));
    let by_one = curves(&compared(&runs, Some("scene 1 case 1")));
    assert_eq!((by_one.len(), by_one[0].1.len()), (1, 4));
    let error = outcome("p", &runs, Some("7"), Vec::new()).unwrap_err();
    assert!(
        error.starts_with("--base 7: no run") && error.contains("scene 2 case 1"),
        "{error}"
    );
    let pairs: Vec<&str> = report.others.iter().map(|one| one.title.as_str()).collect();
    assert_eq!(
        pairs,
        [
            "scene 2 case 1 against scene 1 case 1",
            "scene 2 case 2 against scene 1 case 2"
        ]
    );
    assert!(report.answers.is_empty(), "one run of each has no verdict");
}

/// Takes the steps of all workers but the first.
fn some_steps(mut run: ObservedRun) -> ObservedRun {
    let steps = run.used.totals.get_mut(&Measure::Steps).unwrap();
    steps.retain(|pod, _| pod == "worker-0");
    run
}

#[test]
fn steps_of_some_tasks_are_not_held_against_those_of_all() {
    let small = run("1", "1", 2, Some(20.0), &[1e6]);
    let large = run("1", "2", 4, Some(40.0), &[2e6]);
    let mixed = compared(&[small.clone(), some_steps(large.clone())], None);
    assert_eq!(
        mixed.measure,
        "bytes sent by the parameter servers per second"
    );
    assert_eq!(curves(&mixed)[0].1[1].2, 1.0);
    // A single task reports all steps in both runs.
    let both = compared(&[some_steps(small), some_steps(large)], None);
    assert_eq!(both.measure, "steps per second");
    assert_eq!(curves(&both)[0].1[1].1, 1.0);
}

#[test]
fn what_cannot_be_compared_says_so() {
    let known = run("1", "1", 2, Some(20.0), &[]);
    let unknown = run("2", "1", 2, None, &[]);
    let report = compared(&[known.clone(), unknown], None);
    assert!(
        report.others[0].sentence.contains("can't be compared")
            && report.others[0].estimate.is_none(),
        "{:?}",
        report.others
    );
    let warnings = report.warnings.join("\n");
    assert!(
        warnings.contains("scene 2 case 1: no steps are known: name the counter"),
        "{warnings}"
    );
    let lost = ObservedRun {
        end: RunEnd::OutOfSight {
            targets: vec!["10.0.0.1:9630".to_owned()],
        },
        ..known
    };
    let report = compared(&[lost], None);
    let said =
        "10.0.0.1:9630 was not scraped after 1970-01-01T00:10:00Z, so the job may have gone on";
    assert!(
        report.warnings[0].starts_with(said),
        "{:?}",
        report.warnings
    );
}

/// In which runs a server is hot.
fn seen(report: &Outcome) -> String {
    let mut findings = report.findings.iter();
    let hot = findings.find(|finding| finding.kind == FindingKind::HotServer);
    hot.unwrap().frequency()
}

#[test]
fn a_server_that_is_hot_in_both_scenes_is_the_programs_fault() {
    let hot = |scene: &str| run(scene, "1", 2, Some(20.0), &[9e6, 1e6, 1e6]);
    let report = compared(&[hot("1"), hot("2")], None);
    let pair = &report.others[0].sentence;
    assert!(pair.contains("ps 0 is hot in both"), "{pair}");
    assert_eq!(seen(&report), "Seen in scene 1 case 1 and scene 2 case 1.");
    let even = run("2", "1", 2, Some(20.0), &[3e6, 4e6, 3e6]);
    let report = compared(&[hot("1"), even], None);
    assert!(!report.others[0].sentence.contains("hot"));
    assert_eq!(seen(&report), "Seen in scene 1 case 1.");
    let shares: Vec<Option<f64>> = report
        .tasks
        .iter()
        .map(|task| task.share_of_servers.map(|share| share.median))
        .collect();
    assert_eq!(
        shares[..3],
        [Some(9.0 / 11.0), Some(1.0 / 11.0), Some(1.0 / 11.0)]
    );
    assert_eq!(shares[3], None, "a worker");
}
