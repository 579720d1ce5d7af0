//! Keys, sorting, filtering.

use super::*;

#[test]
fn the_chosen_pod_stays_chosen_and_in_sight() {
    let mut state = state(&["node-1"]);
    let all: Vec<Value> = (0..50)
        .map(|number| container(&format!("w-{number}"), "worker", None))
        .collect();
    state.record((0, at(1), answer(&status(&all), "")));
    state.arrange();
    for _ in 0..30 {
        press(&mut state, "j");
    }
    let drawn = on_screen(&state, 80, 20);
    assert!(
        drawn.contains("train/w-30 ") && !drawn.contains("train/w-3 "),
        "{drawn}"
    );
    press(&mut state, "r");
    assert_eq!(
        state.view.selected(&state.rows),
        Some(19),
        "the other way round it is the same pod"
    );
    state.record((0, at(3), answer(&status(&all[..30]), "")));
    state.arrange();
    assert_eq!(
        state.view.selected(&state.rows),
        Some(19),
        "once it is gone, what stands in its place"
    );
    press(&mut state, "G");
    assert_eq!(state.view.selected(&state.rows), Some(29));
    state.record((0, at(5), answer(&status(&[]), "")));
    state.arrange();
    assert_eq!(state.view.selected(&state.rows), None);
    assert!(on_screen(&state, 80, 20).contains("no pods"));
}

#[test]
fn rows_are_sorted_as_people_count() {
    let mut state = two_samples();
    assert_eq!(pods(&state), ["ps-0", "worker-2", "worker-10"]);
    press(&mut state, "r");
    assert_eq!(pods(&state), ["worker-10", "worker-2", "ps-0"]);
    for (column, order) in [
        (Column::Role, ["ps-0", "worker-2", "worker-10"]),
        (Column::Cpus, ["worker-10", "ps-0", "worker-2"]),
        (Column::Threads, ["worker-10", "ps-0", "worker-2"]),
        (Column::In, ["ps-0", "worker-2", "worker-10"]),
        (Column::Interference, ["ps-0", "worker-2", "worker-10"]),
    ] {
        (state.view.sort, state.view.reverse, state.stale) = (column, false, true);
        state.arrange();
        assert_eq!(pods(&state), order, "{column:?}");
    }
    press(&mut state, "r");
    assert_eq!(
        pods(&state)[0],
        "ps-0",
        "what is not known is last, whichever way round"
    );
    let mut visited = vec![Column::Pod];
    state.view.sort = Column::Pod;
    for _ in 1..Column::ALL.len() {
        press(&mut state, "s");
        visited.push(state.view.sort);
    }
    assert!(
        Column::ALL.iter().all(|column| visited.contains(column)),
        "{visited:?}"
    );
    press(&mut state, "sS");
    assert_eq!(Some(&state.view.sort), visited.last());
}

#[test]
fn filters_take_words() {
    let mut state = two_samples();
    let mut filtered = |filter: &str| {
        (state.view.filter, state.stale) = (filter.to_owned(), true);
        state.arrange();
        pods(&state).join(" ")
    };
    assert_eq!(filtered("WORKER"), "worker-2 worker-10");
    assert_eq!(filtered("worker exclusive"), "worker-10");
    assert_eq!(filtered("!exclusive"), "worker-2");
    assert_eq!(filtered("drift"), "worker-10");
    assert_eq!(
        (filtered("running ps"), filtered("!running")),
        ("ps-0".to_owned(), String::new())
    );
    assert_eq!(filtered("guaranteed mnist node-1 train/ps"), "ps-0");
    assert_eq!(filtered("nobody"), "");
    assert_eq!(filtered(" ! "), "ps-0 worker-2 worker-10");
    assert_eq!(Filter::new(""), Filter::default());
}

#[test]
fn a_filter_is_written_key_by_key() {
    let mut state = two_samples();
    press(&mut state, "/qs");
    assert!(state.view.editing && on_screen(&state, 80, 24).ends_with("filter: qs_"));
    press(&mut state, "\u{8}\u{8}ps\n");
    assert_eq!((pods(&state), state.view.editing), (vec!["ps-0"], false));
    assert!(on_screen(&state, 80, 24).contains("1 of 3 pods"));
    press(&mut state, "/xyz\u{1b}");
    assert_eq!(state.view.filter, "ps", "Esc leaves it as it was");
    assert_eq!(press(&mut state, "\u{1b}"), KeyAction::Draw);
    assert_eq!(pods(&state).len(), 3, "and then takes it away");
    assert_eq!(press(&mut state, "\u{1b}"), KeyAction::Quit);
}

#[test]
fn keys_do_what_the_help_says() {
    let mut state = two_samples();
    assert_eq!(press(&mut state, "o"), KeyAction::Draw);
    assert_eq!(pods(&state), ["ps-0", "worker-10"]);
    press(&mut state, "o?");
    assert!(on_screen(&state, 80, 24).contains("Ctrl-L"));
    assert_eq!(press(&mut state, "x"), KeyAction::Draw);
    assert!(!state.view.help);
    press(&mut state, "p");
    assert!(state.view.paused && on_screen(&state, 80, 24).contains("paused"));
    assert_eq!(press(&mut state, "x"), KeyAction::Nothing);
    assert_eq!(press(&mut state, "q"), KeyAction::Quit);
    let control = |letter| Event::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    for (letter, does) in [
        ('c', KeyAction::Quit),
        ('l', KeyAction::Clear),
        ('z', KeyAction::Suspend),
        ('q', KeyAction::Nothing),
    ] {
        assert_eq!(handle(&control(letter), &mut state, 3), does);
    }
    press(&mut state, "/");
    assert_eq!(
        handle(&control('c'), &mut state, 3),
        KeyAction::Quit,
        "also while a filter is written"
    );
}

#[test]
fn the_greater_action_includes_the_smaller() {
    let mut actions = [
        KeyAction::Quit,
        KeyAction::Clear,
        KeyAction::Nothing,
        KeyAction::Suspend,
        KeyAction::Draw,
    ];
    actions.sort();
    assert_eq!(
        actions,
        [
            KeyAction::Nothing,
            KeyAction::Draw,
            KeyAction::Clear,
            KeyAction::Suspend,
            KeyAction::Quit,
        ]
    );
}
