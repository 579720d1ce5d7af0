use super::super::{
    Balance, RoleUse, RunFinding, ServerBalance, TaskUse, Traffic, Usage, markdown, pictures,
};
use super::*;

/// A run with so many workers, steps each second if any, and bytes that each server sends a second.
fn run(scene: &str, case: &str, workers: usize, steps: Option<f64>, sent: &[f64]) -> RunReport {
    let usage = |steps_per_second, sent: Option<f64>| Usage {
        steps_per_second,
        sent_bytes_per_second: sent,
        sent_bytes: sent,
        ..Usage::default()
    };
    let task = |role: &str, at: usize, usage: Usage| TaskUse {
        task: format!("{role} {at}"),
        role: role.to_owned(),
        pods: [format!("{role}-{at}")].into(),
        nodes: ["n".to_owned()].into(),
        slots: [at.to_string()].into(),
        usage,
    };
    let servers = sent
        .iter()
        .enumerate()
        .map(|(at, sent)| task("ps", at, usage(None, Some(*sent))));
    let each = steps.map(|steps| steps / workers as f64);
    let tasks: Vec<TaskUse> = servers
        .chain((0..workers).map(|at| task("worker", at, usage(each, None))))
        .collect();
    let sum = (!sent.is_empty()).then(|| sent.iter().sum());
    let traffic = Balance::of(
        sent.iter()
            .enumerate()
            .map(|(at, sent)| (format!("ps {at}"), *sent)),
    );
    let hot = traffic
        .as_ref()
        .is_some_and(|traffic| traffic.max_over_mean > 1.5);
    RunReport {
        name: format!("scene {scene} case {case}"),
        scene: Some(scene.to_owned()),
        case: Some(case.to_owned()),
        namespace: "t".to_owned(),
        job: "j".to_owned(),
        from: "2026-11-22T10:00:00Z".to_owned(),
        to: "2026-11-22T10:10:00Z".to_owned(),
        seconds: 600.0,
        scrape_interval_seconds: 30.0,
        unseen_seconds: 0.0,
        traffic: Traffic::Interfaces,
        workers,
        roles: vec![
            RoleUse {
                role: "ps".to_owned(),
                tasks: sent.len(),
                usage: usage(None, sum),
            },
            RoleUse {
                role: "worker".to_owned(),
                tasks: workers,
                usage: usage(steps, None),
            },
        ],
        tasks,
        servers: ServerBalance { traffic, cpu: None },
        findings: hot
            .then(|| RunFinding {
                kind: FindingKind::OneBigVariable,
                text: "hot".to_owned(),
            })
            .into_iter()
            .collect(),
        missing: Vec::new(),
        curves: Vec::new(),
    }
}

fn compared(runs: Vec<RunReport>, base: Option<&str>) -> ExperimentReport {
    compare("http://p".to_owned(), runs, base, Vec::new()).unwrap()
}

#[test]
fn each_scene_scales_from_its_own_smallest_case() {
    let runs = vec![
        run("1", "1", 10, Some(100.0), &[1e6]),
        run("1", "2", 50, Some(400.0), &[1e6; 5]),
        run("2", "1", 10, Some(50.0), &[1e6]),
        run("2", "2", 50, Some(250.0), &[1e6; 5]),
    ];
    let report = compared(runs.clone(), None);
    let efficiencies: Vec<(&str, &str, f64, f64)> = report
        .efficiency
        .iter()
        .map(|one| {
            (
                one.run.as_str(),
                one.base.as_str(),
                one.speedup,
                one.efficiency,
            )
        })
        .collect();
    assert_eq!(
        efficiencies,
        [
            ("scene 1 case 2", "scene 1 case 1", 4.0, 0.8),
            ("scene 2 case 2", "scene 2 case 1", 5.0, 1.0)
        ]
    );
    assert_eq!(report.efficiency[0].by, ProgressMeasure::Steps);
    // The comparison by case or by run.
    assert_eq!(
        compared(runs.clone(), Some("1")).efficiency,
        report.efficiency
    );
    let by_one = compared(runs.clone(), Some("scene 1 case 1"));
    assert_eq!(by_one.efficiency.len(), 3);
    let error = compare("p".to_owned(), runs, Some("7"), Vec::new()).unwrap_err();
    assert!(
        error.starts_with("--base 7: no run") && error.contains("scene 2 case 1"),
        "{error}"
    );
}

/// Takes the steps of all workers but the first.
fn some_steps(mut run: RunReport) -> RunReport {
    let workers = run.tasks.iter_mut().filter(|task| task.role == "worker");
    workers
        .skip(1)
        .for_each(|task| task.usage.steps_per_second = None);
    run
}

#[test]
fn steps_of_some_tasks_are_not_held_against_those_of_all() {
    let small = run("1", "1", 2, Some(20.0), &[1e6]);
    let large = run("1", "2", 4, Some(40.0), &[2e6]);
    let one = compared(vec![small.clone(), some_steps(large.clone())], None);
    assert_eq!(
        (one.efficiency[0].by, one.efficiency[0].efficiency),
        (ProgressMeasure::ServerBytes, 1.0)
    );
    // A single task reports all steps in both runs.
    let both = compared(vec![some_steps(small), some_steps(large)], None);
    assert_eq!(
        (both.efficiency[0].by, both.efficiency[0].speedup),
        (ProgressMeasure::Steps, 1.0)
    );
    // An evaluator trains nothing.
    let mut evaluated = run("1", "1", 2, Some(20.0), &[]);
    evaluated.tasks[0].role = "evaluator".to_owned();
    assert_eq!(evaluated.steps_per_second(), Some(10.0));
}

#[test]
fn a_scene_without_the_base_is_said_to_be() {
    let runs = vec![
        run("1", "1", 2, Some(20.0), &[]),
        run("2", "2", 4, Some(40.0), &[]),
    ];
    let report = compared(runs, Some("1"));
    assert_eq!(report.efficiency, []);
    assert_eq!(
        report.notes,
        ["the scaling of scene 2 case 2 is unknown: its scene has no case 1"]
    );
}

#[test]
fn without_steps_what_servers_send_is_the_measure_and_without_both_nothing_is_said() {
    let half = vec![
        run("1", "1", 10, None, &[1e6]),
        run("1", "2", 20, Some(9.0), &[1e6, 0.5e6]),
    ];
    let report = compared(half, None);
    assert_eq!(
        (report.efficiency[0].by, report.efficiency[0].efficiency),
        (ProgressMeasure::ServerBytes, 0.75)
    );
    let none = compared(
        vec![
            run("1", "1", 10, None, &[1e6]),
            run("1", "2", 20, None, &[]),
        ],
        None,
    );
    assert_eq!(none.efficiency, []);
    assert!(
        none.notes[0]
            .contains("the scaling of scene 1 case 2 relative to scene 1 case 1 is unknown"),
        "{:?}",
        none.notes
    );
    let still = compared(
        vec![
            run("1", "1", 10, Some(0.0), &[]),
            run("1", "2", 20, Some(5.0), &[]),
        ],
        None,
    );
    assert_eq!(
        (still.efficiency.len(), still.notes.len()),
        (0, 1),
        "nothing is divided by 0"
    );
}

#[test]
fn the_same_case_of_two_scenes_is_set_side_by_side() {
    for (steps, says) in [
        (
            109.0,
            "scene 2 case 2 has 1.09 times the progress of scene 1 case 2, in steps per second; one run of each",
        ),
        (
            120.0,
            "has 1.20 times the progress of scene 1 case 2, in steps per second; one run of each can't tell",
        ),
    ] {
        let runs = vec![
            run("1", "2", 50, Some(100.0), &[9e6, 1e5, 1e5]),
            run("2", "2", 50, Some(steps), &[8e6, 1e5, 1e5]),
        ];
        let report = compared(runs, None);
        assert_eq!(report.pairs.len(), 1);
        let text = &report.pairs[0].text;
        assert!(
            text.contains(says) && text.contains(". ps 0 is hot in both"),
            "{text}"
        );
        assert!(!text.contains("no effect"), "{text}");
    }
    let other_size = vec![
        run("1", "2", 50, Some(100.0), &[]),
        run("2", "2", 20, Some(40.0), &[]),
    ];
    assert!(
        compared(other_size, None).pairs[0]
            .text
            .ends_with("with 20 workers instead of 50")
    );
    let other_case = vec![
        run("1", "1", 50, Some(100.0), &[]),
        run("2", "2", 50, Some(40.0), &[]),
    ];
    assert_eq!(compared(other_case, None).pairs, []);
}

#[test]
fn it_is_shown_with_everything_in_it() {
    let mut runs = vec![
        run("1", "1", 10, Some(100.0), &[1e6, 9e6, 1e6]),
        run("1", "2", 50, Some(400.0), &[1e6; 5]),
    ];
    runs[0].job = "a|b<script>".to_owned();
    runs[0].missing.push("no CPU time of ps 0".to_owned());
    let report = compared(runs, None);
    let drawn = pictures(&report);
    assert_eq!(
        drawn
            .iter()
            .map(|one| one.file.as_str())
            .collect::<Vec<_>>(),
        ["runs.svg", "run-1.svg", "run-2.svg"]
    );
    let text = markdown(&report, &drawn);
    for line in [
        "![All runs](runs.svg)",
        "![Run scene 1 case 2](run-2.svg)",
        "t/a\\|b\\<script>, 2026-11-22T10:00:00Z to 2026-11-22T10:10:00Z (10.0 min), scraped about every 30.0 s.",
        "- no CPU time of ps 0",
        "80 %, in steps per second",
        "4.00 with 5.00 × the workers of scene 1 case 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // Each table's rows have as many cells as its head.
    let mut wide = None;
    for line in text.lines() {
        let cells = line
            .starts_with('|')
            .then(|| line.replace("\\|", "").matches('|').count());
        assert!(
            cells.is_none() || wide.is_none() || cells == wide,
            "{line}\n{text}"
        );
        wide = cells;
    }
    assert!(!markdown(&report, &[]).contains("!["));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["runs"][0]["tasks"][0]["cpuSeconds"],
        serde_json::Value::Null
    );
    assert_eq!(json["efficiency"][0]["by"], "steps");
    assert_eq!(
        json["runs"][0]["servers"]["traffic"]["shares"][0]["task"],
        "ps 1"
    );
    for picture in drawn {
        assert!(picture.svg.starts_with("<svg ") && picture.svg.ends_with("</svg>\n"));
        assert!(
            !picture.svg.contains("<script>") && !picture.svg.contains("NaN"),
            "{}",
            picture.svg
        );
    }
}
