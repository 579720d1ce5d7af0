//! Very many nodes and pods, and malicious responses.

use proptest::prelude::*;

use super::*;

#[test]
fn many_nodes_and_pods_are_drawn() {
    let names: Vec<String> = (0..300).map(|number| format!("node-{number}")).collect();
    let mut state = state(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for (node, name) in names.iter().enumerate() {
        let pods: Vec<Value> = (0..40)
            .map(|pod| {
                container(
                    &format!("{name}-w-{pod}"),
                    "worker",
                    (pod < 8).then(|| pod.to_string()).as_deref(),
                )
            })
            .collect();
        let status = status(&pods);
        for second in [1, 3] {
            state.record((node, at(second), answer(&status, "")));
        }
    }
    state.arrange();
    assert_eq!((state.rows.len(), state.pods), (12_000, 12_000));
    assert_eq!(
        state.rows[1].key.pod.as_str(),
        "node-0-w-1",
        "as people count"
    );
    let drawn = on_screen(&state, 120, 40);
    assert!(
        drawn.starts_with("300 nodes  2400 CPUs: 1800 exclusive  12000 pods\n"),
        "{drawn}"
    );
    assert!(drawn.contains("more nodes; the key n shows"), "{drawn}");
    press(&mut state, "G");
    let drawn = on_screen(&state, 120, 40);
    assert!(drawn.contains("train/node-299-w-39 "), "{drawn}");
    press(&mut state, "/node-17-\n");
    assert_eq!(state.rows.len(), 40);
    press(&mut state, "\u{1b}n");
    assert_eq!((state.rows.len(), state.pods), (40, 40));
}

#[test]
fn owners_without_end_take_no_time_without_end() {
    let strangers: Vec<Value> = (0..20_000)
        .map(|number| json!({"cgroup": format!("c{number}"), "namespace": "", "pod": "", "cpus": "5,8000-8191"}))
        .collect();
    let mut evil = status(&[]);
    evil["online"] = json!("0-8191");
    evil["unknownOwners"] = json!(strangers);
    evil["layout"] = json!({
        "cores": vec!["8000-8191"; 20_000], "llcs": vec!["8191"; 20_000],
        "numa": (0..2000).map(|id| (id.to_string(), json!("0-8190"))).collect::<serde_json::Map<_, _>>(),
    });
    let mut state = state(&["node-1"]);
    let begun = Instant::now();
    state.record((0, at(1), answer(&evil, "")));
    state.arrange();
    let lines = FrameInput {
        now: at(10),
        ..state.picture()
    }
    .as_text(100);
    let map = lines
        .iter()
        .map(ToString::to_string)
        .take_while(|line| !line.starts_with(". shared"));
    let signs: usize = map.map(|line| line.matches('!').count()).sum();
    assert_eq!(signs, 193, "CPUs of many owners");
    // A search of every owner among all owners would take minutes.
    assert!(begun.elapsed() < at(60), "{:?}", begun.elapsed());
}

#[test]
fn rows_that_are_alike_are_one() {
    let mut twins = status(&[]);
    let one = json!({"cgroup": "kubepods/podx", "namespace": "", "pod": "", "cpus": "5"});
    let other = json!({"cgroup": "kubepods/pody", "namespace": "", "pod": "", "cpus": "6"});
    twins["unknownOwners"] = json!([one, one, other]);
    let mut state = state(&["node-1"]);
    state.record((0, at(1), answer(&twins, "")));
    state.arrange();
    assert_eq!(state.rows.len(), 2);
    press(&mut state, "jj");
    assert_eq!(
        state.view.selected(&state.rows),
        Some(1),
        "who goes down gets to the last one"
    );
}

#[test]
fn threads_without_number_are_no_overflow() {
    let mut one = container("w", "worker", Some("2"));
    one["observed"]["threads"] = json!(u64::MAX);
    let mut other = one.clone();
    other["container"] = json!("other");
    let mut state = state(&["node-1"]);
    state.record((0, at(1), answer(&status(&[one, other]), "")));
    state.arrange();
    assert_eq!(state.rows[0].total.threads, Some(u64::MAX));
}

/// Texts that could confuse a terminal, or a function that measures columns.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-z0-9.-]{0,300}",
        "(\u{1b}\\[[0-9;]{0,4}[mJH]|\u{9b}2J|\u{1b}\\]0;x\u{7}|漢|e\u{301}|\u{200d}|👩|\u{202e}|a|\r|\n|\t){0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_an_agent_says_is_drawn(
        names in prop::array::uniform8(text()),
        cpus in prop::array::uniform5(prop::collection::vec((0u32..8192, 0u32..300), 0..4)),
        threads: u64,
        numbers: [Option<f64>; 3],
        keys in "[sSrocpn?jkG/a-z\n]{0,8}",
        (width, height) in (0usize..140, 0usize..40),
    ) {
        let cpus = cpus.map(|ranges| {
            let all: crate::cpu::CpuSet = ranges.iter().flat_map(|&(from, count)| from..from + count).collect();
            all.to_string()
        });
        let numbers = numbers.map(|number| number.filter(|number| number.is_finite()));
        let one = json!({
            "namespace": names[0], "pod": names[1], "container": names[2], "uid": names[3], "role": names[4],
            "job": names[5], "qos": names[6], "assigned": cpus[0], "effective": cpus[1], "cgroup": names[7],
            "running": threads % 2 == 0, "note": names[3], "unpinnedSeconds": numbers[0],
            "observed": {"threads": threads, "runnable": numbers[1],
                "verdict": {"finding": names[5], "sentence": names[6]}},
        });
        let mut status = status(&[one, container("w", "worker", Some("2"))]);
        (status["online"], status["lost"], status["errors"]) = (json!(cpus[2]), json!(cpus[3]), json!([names[2]]));
        status["layout"] = json!({"cores": cpus, "llcs": cpus, "numa": {"0": cpus[3], "7": cpus[4]}});
        status["unknownOwners"] = json!([{"cgroup": names[0], "namespace": names[1], "pod": names[2], "cpus": cpus[4]}]);
        status["cluster"] = json!({"node": names[4], "problem": names[5]});
        let counts = |factor: f64| {
            let count = |number: &Option<f64>| factor * number.unwrap_or_default();
            metrics(1, &[("w", count(&numbers[2])), ("w", count(&numbers[0]))])
        };
        let mut state = state(&[names[7].as_str(), "node-2"]);
        state.record((0, at(1), answer(&status, &counts(1.0))));
        state.record((0, at(2), answer(&status, &counts(2.0))));
        state.record((1, at(2), Err(names[6].clone())));
        state.arrange();
        for key in std::iter::once('p').chain(keys.chars()) {
            press(&mut state, &key.to_string());
            let picture = FrameInput { now: at(10), ..state.picture() };
            let mut lines = picture.on_screen(width, height).lines;
            prop_assert!(lines.len() <= height.max(1));
            lines.extend(picture.as_text(width.max(20)));
            for line in &lines {
                prop_assert!(!line.to_string().chars().any(char::is_control), "{line}");
            }
            if width > 0 && height > 0 {
                on_screen(&state, u16::try_from(width).unwrap(), u16::try_from(height).unwrap());
            }
        }
    }
}
