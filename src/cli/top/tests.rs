use std::fmt::Write;

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, buffer::Buffer, layout::Rect};
use serde_json::{Value, json};

use super::*;
use crate::cli::top::frame::Frame;
use crate::cli::top::order::Filter;

/// A container as `/status` has it; without CPUs of its own it is in the shared pool.
fn container(pod: &str, role: &str, own: Option<&str>) -> Value {
    json!({
        "namespace": "train", "pod": pod, "container": "main", "uid": format!("{pod}-uid"), "kind": "app",
        "role": role, "job": "mnist", "qos": if own.is_some() { "Guaranteed" } else { "BestEffort" },
        "assigned": own, "effective": own.unwrap_or("0-1"), "cgroup": format!("kubepods/{pod}/main"),
        "running": true, "note": null, "windowSeconds": own.map(|_| 0.012),
        "seen": {"threads": 5, "most": 5, "runnable": 1.25, "verdict": null},
    })
}

fn status(containers: &[Value]) -> Value {
    json!({
        "enforcement": "partition", "enforcementReason": "the kernel has partitions", "online": "0-7", "reserved": "0",
        "shared": "0-1", "exclusive": "2-7", "lost": "",
        "layout": {"cores": ["0,4", "1,5", "2,6", "3,7"], "llcs": ["0-1,4-5", "2-3,6-7"], "numa": {"0": "0-7"}, "sockets": []},
        "containers": containers, "strangers": [], "drift": [], "unexplained": [], "errors": [],
    })
}

fn job() -> Vec<Value> {
    let mut worker = container("worker-10", "worker", Some("4-7"));
    worker["effective"] = json!("4-5");
    worker["seen"]["verdict"] = json!({
        "finding": "more than expected", "cause": "c", "sentence": "more than expected: 97 threads, 4 in the pools"
    });
    worker["seen"]["threads"] = json!(97);
    vec![container("worker-2", "worker", None), worker, container("ps-0", "ps", Some("2-3"))]
}

/// A scrape that shows so much of each pod, of an agent that started then.
fn metrics(started: u32, counts: &[(&str, f64)]) -> String {
    let mut text = format!("process_start_time_seconds {started}\n");
    for (pod, count) in counts {
        let labels = format!("namespace=\"train\",pod=\"{pod}\"");
        let families = [
            ("container_cpu_usage_seconds_total", ",container=\"main\"", 1.0),
            ("container_foreign_cpu_seconds_total", ",container=\"main\"", 0.5),
            ("container_foreign_cpu_error_seconds_total", ",container=\"main\"", 0.01),
            ("pod_network_receive_bytes_total", ",interface=\"eth0\"", 1048576.0),
            ("pod_network_transmit_bytes_total", ",interface=\"eth0\"", 1024.0),
        ];
        for (family, more, factor) in families {
            writeln!(text, "pinfold_{family}{{{labels}{more}}} {}", factor * count).unwrap();
        }
    }
    text
}

fn answer(status: &Value, metrics: &str) -> Answer {
    Ok((Status::parse(status.to_string().as_bytes()).unwrap(), Numbers::parse(metrics)))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A state with these nodes, at a moment that is chosen when it is drawn.
fn state(names: &[&str]) -> State {
    let nodes = names.iter().map(|name| Node::new(name, true)).collect();
    let view = View::new(Column::Pod, false, "");
    State { nodes, view, rows: Vec::new(), names: Vec::new(), pods: 0, begun: Instant::now() }
}

/// A job on a node, looked at twice within two seconds.
fn looked_at() -> State {
    let mut state = state(&["node-1"]);
    state.note((
        0,
        at(1),
        answer(&status(&job()), &metrics(7, &[("ps-0", 1.0), ("worker-2", 1.0), ("worker-10", 5.0)])),
    ));
    state.note((
        0,
        at(3),
        answer(&status(&job()), &metrics(7, &[("ps-0", 2.0), ("worker-2", 1.0), ("worker-10", 4.0)])),
    ));
    state.arrange();
    state
}

fn draw(state: &State, width: u16, height: u16) -> (Frame, Buffer) {
    let picture = Picture { now: at(10), ..state.picture() };
    let frame = picture.on_screen(width.into(), height.into());
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|on| screen::paint(&frame.lines, on.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer().clone();
    (frame, buffer)
}

fn text(buffer: &Buffer) -> String {
    let Rect { width, .. } = *buffer.area();
    let lines = buffer.content().chunks(width.into()).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn on_screen(state: &State, width: u16, height: u16) -> String {
    text(&draw(state, width, height).1)
}

fn press(state: &mut State, keys: &str) -> Done {
    let mut done = Done::Nothing;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        done = handle(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), state, 3);
    }
    done
}

fn pods(state: &State) -> Vec<&str> {
    state.rows.iter().map(|row| row.key.pod.as_str()).collect()
}

#[test]
fn a_frame_fits_a_common_terminal() {
    insta::assert_snapshot!(on_screen(&looked_at(), 80, 16), @r"
    node-1  8 CPUs: 6 own, 2 shared (1 reserved)  3 pods  partition
    ra.a baba
    . shared  r reserved  x lost  ! two owners; a letter: the pod's own
      POD              ROLE   CPUS     USE THR/CPU FOREIGN WINDOW    IN/S   OUT/S
    b train/ps-0       ps     2-3      0.5     5/2   12.5%   12ms   512Ki     512
      train/worker-2   worker shared   0.0     5/2       -      -       0       0
    a train/worker-10  worker 4-7!       -    97/2       -   12ms       -       -





    train/ps-0  Guaranteed  ps  job mnist  1.2 runnable  foreign 12.5% ± 0.2%

    q quit  ? help  s sort:pod  r reverse  / filter  o own  c containers  p pause
    ");
}

#[test]
fn a_frame_without_end_has_every_note() {
    let state = looked_at();
    let lines: Vec<String> =
        Picture { now: at(10), ..state.picture() }.whole(100).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    node-1  8 CPUs: 6 own, 2 shared (1 reserved)  3 pods  partition
    ra.a baba
    . shared  r reserved  x lost  ! two owners; a letter: the pod's own

      POD              ROLE   CPUS     USE THR/CPU   RUN FOREIGN WINDOW    IN/S   OUT/S
    b train/ps-0       ps     2-3      0.5     5/2   1.2   12.5%   12ms   512Ki     512
      train/worker-2   worker shared   0.0     5/2   1.2       -      -       0       0
    a train/worker-10  worker 4-7!       -    97/2   1.2       -   12ms       -       -
    train/worker-10: more than expected: 97 threads, 4 in the pools
    ");
}

#[test]
fn a_small_screen_keeps_what_matters() {
    insta::assert_snapshot!(on_screen(&looked_at(), 40, 6), @r"
    node-1  8 CPUs: 6 own, 2 shared (1 rese…
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
    state.note((0, at(1), answer(&status(&job()), "")));
    let mut other = status(&[container("worker-2", "worker", Some("1-2"))]);
    other["errors"] = json!(["pods/x.yaml can't be read"]);
    state.note((2, at(2), answer(&other, "")));
    state.note((1, at(3), Err("Connection refused".to_owned())));
    state.note((2, at(6), Err("nothing heard within 5 s".to_owned())));
    state.arrange();
    insta::assert_snapshot!(on_screen(&state, 100, 18), @r"
    3 nodes  2 without an answer  16 CPUs: 12 own  4 pods
    node-10 no answer for 4 s: nothing heard within 5 s; what is shown is 8 s old
    node-2  no answer for 7 s: Connection refused
    node-1     6 of 8    own  partition ra.a baba
      NODE    POD              ROLE   CPUS     USE THR/CPU   RUN FOREIGN WINDOW    IN/S   OUT/S
    b node-1  train/ps-0       ps     2-3        -     5/2   1.2       -   12ms       -       -
      node-1  train/worker-2   worker shared     -     5/2   1.2       -      -       -       -
    a node-10 train/worker-2   worker 1-2        -     5/2   1.2       -   12ms       -       -
    a node-1  train/worker-10  worker 4-7!       -    97/2   1.2       -   12ms       -       -






    train/ps-0  Guaranteed  ps  job mnist  1.2 runnable

    q quit  ? help  s sort:pod  r reverse  / filter  n node  o own  c containers  p pause
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
    let mut many = looked_at();
    let mut others = state(&["node-1", "a-node-with-a-very-long-name.example.com", "漢字"]);
    for node in 0..3 {
        others.note((node, at(1), answer(&status(&job()), "")));
    }
    others.arrange();
    others.note((1, at(2), Err("Connection refused".to_owned())));
    for state in [&mut many, &mut others] {
        for help in [false, true] {
            state.view.help = help;
            for (width, height) in
                (1..130).step_by(3).flat_map(|width| (1..30).map(move |height| (width, height)))
            {
                let (frame, _) = draw(state, width, height);
                assert!(frame.lines.len() <= height.into(), "{width}x{height}: {} lines", frame.lines.len());
                assert!(frame.page > 0);
                // The table's own columns are all that may be cut by the screen's edge, and only where it is hardly one.
                let widest = frame.lines.iter().map(ratatui::text::Line::width).max().unwrap_or_default();
                assert!(widest <= usize::from(width).max(24), "{width}x{height}: {widest}");
            }
        }
    }
}

#[test]
fn the_chosen_pod_stays_chosen_and_in_sight() {
    let mut state = state(&["node-1"]);
    let all: Vec<Value> = (0..50).map(|number| container(&format!("w-{number}"), "worker", None)).collect();
    state.note((0, at(1), answer(&status(&all), "")));
    state.arrange();
    for _ in 0..30 {
        press(&mut state, "j");
    }
    let drawn = on_screen(&state, 80, 20);
    assert!(drawn.contains("train/w-30 ") && !drawn.contains("train/w-3 "), "{drawn}");
    press(&mut state, "r");
    assert_eq!(state.view.chosen(&state.rows), Some(19), "the other way round it is the same pod");
    state.note((0, at(3), answer(&status(&all[..30]), "")));
    state.arrange();
    assert_eq!(state.view.chosen(&state.rows), Some(19), "once it is gone, what stands in its place");
    press(&mut state, "G");
    assert_eq!(state.view.chosen(&state.rows), Some(29));
    state.note((0, at(5), answer(&status(&[]), "")));
    state.arrange();
    assert_eq!(state.view.chosen(&state.rows), None);
    assert!(on_screen(&state, 80, 20).contains("no pods"));
}

#[test]
fn going_down_by_one_changes_two_lines() {
    let mut state = state(&["node-1"]);
    let all: Vec<Value> = (0..50).map(|number| container(&format!("w-{number}"), "worker", None)).collect();
    state.note((0, at(1), answer(&status(&all), "")));
    state.arrange();
    let (_, before) = draw(&state, 80, 24);
    press(&mut state, "j");
    let (_, after) = draw(&state, 80, 24);
    let lines: std::collections::BTreeSet<u16> = before.diff(&after).into_iter().map(|(_, y, _)| y).collect();
    assert_eq!(lines.len(), 3, "the two rows, and what is said of the chosen one: {lines:?}");
}

#[test]
fn rates_need_two_looks_at_one_thing() {
    let mut state = looked_at();
    let figures = |state: &State, pod: &str| {
        let row = state.rows.iter().find(|row| row.key.pod.as_str() == pod).unwrap();
        (row.total.usage, row.receive, row.total.foreign_share())
    };
    assert_eq!(figures(&state, "ps-0"), (Some(0.5), Some(524_288.0), Some(0.125)));
    assert_eq!(figures(&state, "worker-2"), (Some(0.0), Some(0.0), None), "nothing is less than not known");
    assert_eq!(figures(&state, "worker-10"), (None, None, None), "a counter that went back tells nothing");
    // The agent was started anew: its counters may begin anywhere.
    state.note((0, at(5), answer(&status(&job()), &metrics(8, &[("ps-0", 9.0)]))));
    state.arrange();
    assert_eq!(figures(&state, "ps-0"), (None, None, None));
    state.note((0, at(6), answer(&status(&job()), &metrics(8, &[("ps-0", 10.0)]))));
    state.arrange();
    assert_eq!(figures(&state, "ps-0").0, Some(1.0));
    // A container that was started anew counts something else, although it is called the same.
    let mut again = job();
    again[2]["cgroup"] = json!("kubepods/ps-0/another");
    state.note((0, at(7), answer(&status(&again), &metrics(8, &[("ps-0", 11.0)]))));
    state.arrange();
    assert_eq!(figures(&state, "ps-0"), (None, Some(1_048_576.0), None), "its pod is the same");
    let mut another = job();
    another[2]["uid"] = json!("another");
    state.note((0, at(8), answer(&status(&another), &metrics(8, &[("ps-0", 12.0)]))));
    state.arrange();
    assert_eq!(figures(&state, "ps-0"), (None, None, None), "and so it is not");
}

#[test]
fn rates_are_means_over_some_seconds() {
    let mut state = state(&["node-1"]);
    for second in 0..30u32 {
        // What others' scrapes share makes each number a second old at times.
        let count = f64::from(second - second % 2);
        state.note((0, at(u64::from(second) * 2), answer(&status(&job()), &metrics(7, &[("ps-0", count)]))));
        state.arrange();
        let usage = state.rows[0].total.usage;
        if second > 4 {
            assert!((0.3..=0.7).contains(&usage.unwrap()), "{second}: {usage:?}");
        }
    }
    // After a long silence they are means over all of it.
    state.note((0, at(60), Err("away".to_owned())));
    state.note((0, at(158), answer(&status(&job()), &metrics(7, &[("ps-0", 78.0)]))));
    state.arrange();
    assert_eq!(state.rows[0].total.usage, Some(0.5));
}

#[test]
fn letters_stay_with_their_owners() {
    let mut state = looked_at();
    let letters = |state: &State| -> Vec<(String, Option<char>)> {
        state.rows.iter().map(|row| (row.key.pod.to_string(), row.letter)).collect()
    };
    let before = letters(&state);
    assert_eq!(
        before,
        [("ps-0".into(), Some('b')), ("worker-2".into(), None), ("worker-10".into(), Some('a'))]
    );
    let mut next = status(&[
        job().remove(2),
        container("aaa", "worker", Some("1")),
        container("bbb", "worker", Some("4")),
    ]);
    next["strangers"] = json!([{"cgroup": "kubepods/podx", "namespace": "", "pod": "", "cpus": "5"}]);
    state.note((0, at(5), answer(&next, "")));
    state.arrange();
    let after = letters(&state);
    assert!(after.contains(&("ps-0".into(), Some('b'))), "{after:?}");
    let mut given: Vec<char> = after.iter().filter_map(|(_, letter)| *letter).collect();
    given.sort_unstable();
    assert_eq!(given, ['a', 'b', 'c', 'd'], "the letter of who is gone is given again");
    let drawn = on_screen(&state, 80, 24);
    assert!(drawn.contains("owns CPUs") || drawn.contains("unknown"), "{drawn}");
}

#[test]
fn more_owners_than_letters_share_a_sign() {
    let all: Vec<Value> = (0..80)
        .map(|number| container(&format!("w-{number}"), "worker", Some(&number.to_string())))
        .collect();
    let mut big = status(&all);
    big["online"] = json!("0-127");
    big["layout"] = Value::Null;
    big.as_object_mut().unwrap().remove("layout");
    let mut state = state(&["node-1"]);
    state.note((0, at(1), answer(&big, "")));
    state.arrange();
    let letters: std::collections::HashSet<char> = state.rows.iter().filter_map(|row| row.letter).collect();
    assert_eq!(letters.len(), 61);
    assert!(on_screen(&state, 150, 30).contains("++++"));
}

#[test]
fn rows_are_sorted_as_people_count() {
    let mut state = looked_at();
    assert_eq!(pods(&state), ["ps-0", "worker-2", "worker-10"]);
    press(&mut state, "r");
    assert_eq!(pods(&state), ["worker-10", "worker-2", "ps-0"]);
    for (column, order) in [
        (Column::Role, ["ps-0", "worker-2", "worker-10"]),
        (Column::Cpus, ["worker-10", "ps-0", "worker-2"]),
        (Column::Threads, ["worker-10", "ps-0", "worker-2"]),
        (Column::In, ["ps-0", "worker-2", "worker-10"]),
        (Column::Foreign, ["ps-0", "worker-2", "worker-10"]),
    ] {
        (state.view.sort, state.view.reverse) = (column, false);
        state.arrange();
        assert_eq!(pods(&state), order, "{column:?}");
    }
    state.view.reverse = true;
    state.arrange();
    assert_eq!(pods(&state)[0], "ps-0", "what is not known is last, whichever way round");
    let mut seen = vec![Column::Pod];
    state.view.sort = Column::Pod;
    for _ in 1..Column::ALL.len() {
        press(&mut state, "s");
        seen.push(state.view.sort);
    }
    assert!(Column::ALL.iter().all(|column| seen.contains(column)), "{seen:?}");
    press(&mut state, "sS");
    assert_eq!(Some(&state.view.sort), seen.last());
}

#[test]
fn filters_take_words() {
    let mut state = looked_at();
    let mut filtered = |filter: &str| {
        state.view.filter = filter.to_owned();
        state.arrange();
        pods(&state).join(" ")
    };
    assert_eq!(filtered("WORKER"), "worker-2 worker-10");
    assert_eq!(filtered("worker own"), "worker-10");
    assert_eq!(filtered("!own"), "worker-2");
    assert_eq!(filtered("drift"), "worker-10");
    assert_eq!(filtered("guaranteed mnist node-1 train/ps"), "ps-0");
    assert_eq!(filtered("nobody"), "");
    assert_eq!(filtered(" ! "), "ps-0 worker-2 worker-10");
    assert_eq!(Filter::new(""), Filter::default());
}

#[test]
fn a_filter_is_written_key_by_key() {
    let mut state = looked_at();
    press(&mut state, "/qs");
    assert!(state.view.editing && on_screen(&state, 80, 24).ends_with("filter: qs_"));
    press(&mut state, "\u{8}\u{8}ps\n");
    assert_eq!((pods(&state), state.view.editing), (vec!["ps-0"], false));
    assert!(on_screen(&state, 80, 24).contains("1 of 3 pods"));
    press(&mut state, "/xyz\u{1b}");
    assert_eq!(state.view.filter, "ps", "Esc leaves it as it was");
    assert_eq!(press(&mut state, "\u{1b}"), Done::Draw);
    assert_eq!(pods(&state).len(), 3, "and then takes it away");
    assert_eq!(press(&mut state, "\u{1b}"), Done::Quit);
}

#[test]
fn keys_do_what_the_help_says() {
    let mut state = looked_at();
    assert_eq!(press(&mut state, "o"), Done::Draw);
    assert_eq!(pods(&state), ["ps-0", "worker-10"]);
    press(&mut state, "o?");
    assert!(on_screen(&state, 80, 24).contains("Ctrl-L"));
    assert_eq!(press(&mut state, "x"), Done::Draw);
    assert!(!state.view.help);
    press(&mut state, "p");
    assert!(state.view.paused && on_screen(&state, 80, 24).contains("paused"));
    assert_eq!(press(&mut state, "x"), Done::Nothing);
    assert_eq!(press(&mut state, "q"), Done::Quit);
    let control = |letter| Event::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    for (letter, does) in [('c', Done::Quit), ('l', Done::Clear), ('z', Done::Suspend), ('q', Done::Nothing)]
    {
        assert_eq!(handle(&control(letter), &mut state, 3), does);
    }
    press(&mut state, "/");
    assert_eq!(handle(&control('c'), &mut state, 3), Done::Quit, "also while a filter is written");
}

#[test]
fn containers_of_a_pod_are_added_up() {
    let mut sidecar = container("ps-0", "ps", None);
    sidecar["container"] = json!("sidecar");
    sidecar["note"] = json!("stays in the shared pool");
    let mut init = container("ps-0", "ps", Some("2-3"));
    init["container"] = json!("init");
    (init["running"], init["seen"], init["effective"]) = (json!(false), Value::Null, Value::Null);
    let mut state = state(&["node-1"]);
    state.note((0, at(1), answer(&status(&[init, job().remove(2), sidecar]), "")));
    state.arrange();
    let row = &state.rows[0];
    assert_eq!((state.rows.len(), row.total.threads, row.containers.len()), (1, Some(10), 3));
    assert_eq!(row.total.own.as_ref().map(ToString::to_string).as_deref(), Some("2-3"));
    assert_eq!(row.notes, ["stays in the shared pool"]);
    let drawn = on_screen(&state, 80, 24);
    assert!(
        drawn.contains("\nr... a.a.\n"),
        "an init container in its pod's CPUs is no second owner\n{drawn}"
    );
    press(&mut state, "c");
    let drawn = on_screen(&state, 80, 24);
    assert!(drawn.contains("   sidecar") && drawn.contains("   init"), "{drawn}");
}

#[test]
fn what_an_api_says_is_drawn_as_text() {
    let mut evil = container("w\u{1b}]0;x\u{7}\u{9b}2J\n", "worker", Some("2"));
    evil["note"] = json!("note\u{1b}[31m\r");
    let mut status = status(&[evil]);
    status["errors"] = json!(["error\u{1b}[2J"]);
    status["enforcement"] = json!("part\u{8}ition");
    let mut state = state(&["node\u{1b}-1"]);
    state.note((0, at(1), answer(&status, "")));
    state.note((0, at(2), Err("refused\u{1b}[2J".to_owned())));
    state.arrange();
    let whole: Vec<String> =
        Picture { now: at(10), ..state.picture() }.whole(100).iter().map(ToString::to_string).collect();
    let screen = on_screen(&state, 100, 24).replace('\n', "");
    for text in whole.iter().chain([&screen]) {
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

#[test]
fn several_things_to_be_done_are_done() {
    assert_eq!(most(Done::Draw, Done::Nothing), Done::Draw);
    assert_eq!(most(Done::Quit, Done::Draw), Done::Quit);
    assert_eq!(most(Done::Draw, Done::Clear), Done::Clear);
}
