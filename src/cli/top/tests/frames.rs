//! Frames on screens of different sizes.

use super::*;

#[test]
fn a_frame_fits_a_common_terminal() {
    insta::assert_snapshot!(on_screen(&two_samples(), 80, 16), @r"
    node-1  8 CPUs: 6 exclusive, 2 shared (1 reserved)  3 pods  partition
    ra.a baba
    . shared  r reserved  x lost  ! two owners; letter: owned by a pod
      POD              ROLE   CPUS     USE THR/CPU  INTERF UNPINNED    IN/S   OUT/S
    b train/ps-0       ps     2-3      0.5     5/2   12.5%     12ms   512Ki     512
      train/worker-2   worker shared   0.0     5/2       -        -       0       0
    a train/worker-10  worker 4-7!       -    97/2       -     12ms       -       -






    train/ps-0  Guaranteed  ps  job mnist  1.2 runnable  interference 12.5% ± 0.2%

    q quit  ? help  s sort:pod  r reverse  / filter  o owners  c containers  p pause
    ");
}

#[test]
fn a_frame_without_end_has_every_note() {
    let state = two_samples();
    let lines: Vec<String> = FrameInput {
        now: at(10),
        ..state.picture()
    }
    .as_text(100)
    .iter()
    .map(ToString::to_string)
    .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    node-1  8 CPUs: 6 exclusive, 2 shared (1 reserved)  3 pods  partition
    ra.a baba
    . shared  r reserved  x lost  ! two owners; letter: owned by a pod

      POD              ROLE   CPUS     USE THR/CPU   RUN  INTERF UNPINNED    IN/S   OUT/S
    b train/ps-0       ps     2-3      0.5     5/2   1.2   12.5%     12ms   512Ki     512
      train/worker-2   worker shared   0.0     5/2   1.2       -        -       0       0
    a train/worker-10  worker 4-7!       -    97/2   1.2       -     12ms       -       -
    train/worker-10: more than expected: 97 threads, 4 in the pools
    ");
}

#[test]
fn a_small_screen_keeps_what_matters() {
    insta::assert_snapshot!(on_screen(&two_samples(), 40, 6), @r"
    node-1  8 CPUs: 6 exclusive, 2 shared (…
      POD              CPUS   THR/CPU
    b train/ps-0       2-3        5/2
      train/worker-2   shared     5/2
    a train/worker-10  4-7!      97/2
    q quit  ? help  s sort:pod  r reverse  …
    ");
}

#[test]
fn several_nodes_stand_above_their_pods() {
    let mut state = state(&["node-1", "node-2", "node-10"]);
    state.record((0, at(1), answer(&status(&job()), "")));
    let mut other = status(&[container("worker-2", "worker", Some("1-2"))]);
    other["errors"] = json!(["pods/x.yaml can't be read"]);
    state.record((2, at(2), answer(&other, "")));
    state.record((1, at(3), Err("Connection refused".to_owned())));
    state.record((2, at(6), Err("no response within 5 s".to_owned())));
    state.arrange();
    insta::assert_snapshot!(on_screen(&state, 100, 18), @r"
    3 nodes  2 without a response  16 CPUs: 12 exclusive  4 pods
    node-10 no response for 4 s: no response within 5 s; the values are 8 s old
    node-2  no response for 7 s: Connection refused
    node-1     6 of 8    exclusive  partition ra.a baba
      NODE    POD              ROLE   CPUS     USE THR/CPU   RUN  INTERF UNPINNED    IN/S   OUT/S
    b node-1  train/ps-0       ps     2-3        -     5/2   1.2       -     12ms       -       -
      node-1  train/worker-2   worker shared     -     5/2   1.2       -        -       -       -
    a node-10 train/worker-2   worker 1-2        -     5/2   1.2       -     12ms       -       -
    a node-1  train/worker-10  worker 4-7!       -    97/2   1.2       -     12ms       -       -






    train/ps-0  Guaranteed  ps  job mnist  1.2 runnable

    q quit  ? help  s sort:pod  r reverse  / filter  n node  o owners  c containers  p pause
    ");
    press(&mut state, "n");
    assert_eq!(pods(&state), ["ps-0", "worker-2", "worker-10"]);
    press(&mut state, "nn");
    assert_eq!(pods(&state), ["worker-2"]);
    press(&mut state, "\u{1b}");
    assert_eq!(pods(&state).len(), 4);
}

#[test]
fn no_screen_is_too_small_and_nothing_leaves_it() {
    let mut many = two_samples();
    let mut others = state(&["node-1", "a-node-with-a-very-long-name.example.com", "漢字"]);
    for node in 0..3 {
        others.record((node, at(1), answer(&status(&job()), "")));
    }
    others.arrange();
    others.record((1, at(2), Err("Connection refused".to_owned())));
    for state in [&mut many, &mut others] {
        for help in [false, true] {
            state.view.help = help;
            for (width, height) in (1..130)
                .step_by(3)
                .flat_map(|width| (1..30).map(move |height| (width, height)))
            {
                let (frame, _) = draw(state, width, height);
                assert!(
                    frame.lines.len() <= height.into(),
                    "{width}x{height}: {} lines",
                    frame.lines.len()
                );
                assert!(frame.page > 0);
                // Only the table may be wider than the screen, and only on a very narrow screen.
                let widest = frame
                    .lines
                    .iter()
                    .map(ratatui_core::text::Line::width)
                    .max()
                    .unwrap_or_default();
                assert!(
                    widest <= usize::from(width).max(24),
                    "{width}x{height}: {widest}"
                );
            }
        }
    }
}

#[test]
fn going_down_by_one_changes_two_lines() {
    let mut state = state(&["node-1"]);
    let all: Vec<Value> = (0..50)
        .map(|number| container(&format!("w-{number}"), "worker", None))
        .collect();
    state.record((0, at(1), answer(&status(&all), "")));
    state.arrange();
    let (_, before) = draw(&state, 80, 24);
    press(&mut state, "j");
    let (_, after) = draw(&state, 80, 24);
    let lines: std::collections::BTreeSet<u16> =
        before.diff(&after).into_iter().map(|(_, y, _)| y).collect();
    assert_eq!(
        lines.len(),
        3,
        "the two rows, and what is said of the chosen one: {lines:?}"
    );
}

#[test]
fn a_text_has_whole_names() {
    let name =
        "a-very-long-name-of-a-job-whose-pods-differ-only-at-the-end-of-their-names-worker-17";
    let mut state = state(&["node-1"]);
    let status = status(&[container(name, "worker", Some("2"))]);
    state.record((0, at(1), answer(&status, "")));
    state.arrange();
    for width in [20, 100] {
        let lines = state.picture().as_text(width);
        let full = format!("train/{name}");
        assert!(
            lines.iter().any(|line| line.to_string().contains(&full)),
            "{lines:?}"
        );
    }
}

#[test]
fn control_characters_of_an_agent_are_drawn_as_text() {
    let mut evil = container("w\u{1b}]0;x\u{7}\u{9b}2J\n", "worker", Some("2"));
    evil["note"] = json!("note\u{1b}[31m\r");
    let mut status = status(&[evil]);
    status["errors"] = json!(["error\u{1b}[2J"]);
    status["enforcement"] = json!("part\u{8}ition");
    let mut state = state(&["node\u{1b}-1"]);
    state.record((0, at(1), answer(&status, "")));
    state.record((0, at(2), Err("refused\u{1b}[2J".to_owned())));
    state.arrange();
    let whole: Vec<String> = FrameInput {
        now: at(10),
        ..state.picture()
    }
    .as_text(100)
    .iter()
    .map(ToString::to_string)
    .collect();
    let screen = on_screen(&state, 100, 24).replace('\n', "");
    for text in whole.iter().chain([&screen]) {
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
