//! On a terminal: keys, signals, sizes, and how little is written.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::agents::{STATUS, agent};
use super::terminal::{SHELL, Terminal, UNREAD};

#[test]
fn keys_are_heard_and_the_terminal_is_given_back() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let mut terminal = Terminal::start(80, 24, &["--node", &node, "--interval", "1s"]);
    terminal.until("the pods, and their rates", |text| {
        text.contains("demo/worker-0") && text.contains("Mi")
    });
    let text = terminal.text();
    assert!(
        text.lines().count() == 24 && text.lines().last().unwrap().starts_with("q quit"),
        "{text}"
    );
    terminal.press("/ps\r");
    terminal.until("the filter's pods", |text| {
        text.contains("1 of 3 pods") && !text.contains("worker-0")
    });
    terminal.press("\u{1b}");
    terminal.until("all of them", |text| text.contains("worker-0"));
    terminal.press("?");
    terminal.until("the help", |text| text.contains("Ctrl-L"));
    terminal.press("x\u{c}");
    terminal.until("the table", |text| text.contains("worker-0"));
    terminal.press("q");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn a_resized_terminal_is_filled_anew() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let mut terminal = Terminal::start(80, 24, &["--node", &node]);
    terminal.until("the pods", |text| text.contains("demo/worker-0"));
    for (columns, lines) in [(60, 10), (30, 4), (1, 1), (3, 2), (120, 40)] {
        terminal.resize(columns, lines);
        let keys = match columns {
            1 => "…",
            3 => "q …",
            _ => "q quit",
        };
        let whole = |text: &str| {
            text.lines().count() == usize::from(lines)
                && text
                    .lines()
                    .last()
                    .is_some_and(|line| line.starts_with(keys))
        };
        let text = terminal.until("the keys on the last line", whole);
        assert!(text.contains("worker-0") || lines < 10, "{text}");
    }
    terminal.press("\u{3}");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn signals_end_it_well() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let terminal = Terminal::start(80, 24, &["--node", &node]);
        terminal.until("the pods", |text| text.contains("demo/worker-0"));
        kill(terminal.id(), signal).unwrap();
        assert_eq!(terminal.ended().code(), Some(code), "{signal}");
    }
}

#[test]
fn little_is_written_while_little_changes() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let terminal = Terminal::start(80, 24, &["--node", &node, "--interval", "1s"]);
    terminal.until("the rates", |text| text.contains("Mi"));
    let written = || terminal.shown.lock().unwrap().bytes;
    // The second scrape is served again and again: rates sink, everything else stays.
    let (before, begun) = (written(), Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    let rate = (written() - before) as f64 / begun.elapsed().as_secs_f64();
    assert!(
        rate < 300.0,
        "{rate:.0} bytes/s: a whole frame has about 2000"
    );
}

/// A shell with job control: it reports that the program was stopped, and resumes it after a line
/// of input.
const JOBS: &str = r#"set -m; stty -g >"$SETTINGS/before"; "$0" "$@"
stty -g >"$SETTINGS/stopped"; echo it has stopped; read answer; fg >"$SETTINGS/fg"
code=$?; stty -g >"$SETTINGS/after"; printf '\005'; until [ -e "$SETTINGS/seen" ]; do sleep 0.02; done; exit $code"#;

#[test]
fn stopped_and_brought_back_it_draws_anew() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    for stop in [None, Some(Signal::SIGTSTP)] {
        let mut terminal = Terminal::start_in(JOBS, &[], 80, 24, &["--node", &node]);
        terminal.until("the pods", |text| text.contains("demo/worker-0"));
        match stop {
            None => terminal.press("\u{1a}"),
            Some(signal) => kill(terminal.id(), signal).unwrap(),
        }
        terminal.until("the shell", |text| text.contains("it has stopped"));
        terminal.is_given_back("stopped");
        terminal.press("\r");
        terminal.until("the pods again", |text| {
            text.contains("demo/worker-0") && text.contains("q quit")
        });
        assert!(
            terminal
                .shown
                .lock()
                .unwrap()
                .screen
                .screen()
                .alternate_screen()
        );
        terminal.press("q");
        assert_eq!(terminal.ended().code(), Some(0), "{stop:?}");
    }
}

#[test]
fn nobody_to_bring_it_back_is_no_reason_to_hang() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    // The shell has no job control, and no process of the session could resume the program.
    let mut terminal = Terminal::start(80, 24, &["--node", &node]);
    terminal.until("the pods", |text| text.contains("demo/worker-0"));
    terminal.press("\u{1a}");
    terminal.press("?");
    terminal.until("the help", |text| text.contains("Ctrl-L"));
    terminal.press("qq");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn after_a_stop_from_outside_the_terminal_is_set_up_again() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let mut terminal = Terminal::start(80, 24, &["--node", &node]);
    terminal.until("the pods", |text| text.contains("demo/worker-0"));
    let id = terminal.id();
    kill(id, Signal::SIGSTOP).unwrap();
    // Another program writes to the terminal and changes the settings, as shells do.
    terminal.sane();
    // The time is longer than the program takes to handle a stop that the program asked for.
    std::thread::sleep(Duration::from_millis(1100));
    terminal
        .shown
        .lock()
        .unwrap()
        .screen
        .process(b"\x1b[2J\x1b[?1049lsomebody's words");
    kill(id, Signal::SIGCONT).unwrap();
    terminal.until("the pods again", |text| {
        text.contains("demo/worker-0") && !text.contains("somebody")
    });
    // The program reads single keys, and the terminal echoes no key.
    terminal.press("?");
    terminal.until("the help", |text| text.contains("Ctrl-L"));
    terminal.press("qq");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn a_terminal_that_takes_nothing_does_not_hold_up_the_end() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let mut terminal = Terminal::start_in(UNREAD, &[], 200, 60, &["--node", &node]);
    terminal.until("the pods", |text| text.contains("demo/worker-0"));
    terminal.shown.lock().unwrap().deaf = true;
    // Each draws a whole frame, until no more is taken.
    for _ in 0..150 {
        terminal.press("\u{c}");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(terminal.id(), Signal::SIGTERM).unwrap();
    assert_eq!(terminal.exited().code(), Some(143));
    terminal.is_set_as_before("after");
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    for (variables, wanted) in [
        (&[][..], true),
        (&[("NO_COLOR", "")], true),
        (&[("NO_COLOR", "1")], false),
    ] {
        let mut terminal = Terminal::start_in(SHELL, variables, 80, 24, &["--node", &node]);
        terminal.until("the pods", |text| text.contains("demo/worker-0"));
        terminal.press("jj");
        let chosen = || {
            let shown = terminal.shown.lock().unwrap();
            let screen = shown.screen.screen();
            let line = screen
                .contents()
                .lines()
                .position(|line| line.contains("demo/worker-0"))?;
            let line = u16::try_from(line).unwrap();
            Some(
                (0..60)
                    .filter(|column| screen.cell(line, *column).is_some_and(vt100::Cell::inverse))
                    .count(),
            )
        };
        terminal.until(
            "the chosen line in reverse, from its sign to its end",
            |_| chosen() == Some(60),
        );
        let shown = terminal.shown.lock().unwrap();
        let screen = shown.screen.screen();
        let cells =
            (0..24).flat_map(|line| (0..80).filter_map(move |column| screen.cell(line, column)));
        let colours = cells
            .filter(|cell| cell.fgcolor() != vt100::Color::Default)
            .count();
        assert_eq!(colours > 0, wanted, "{variables:?}: {colours}");
        drop(shown);
        terminal.press("q");
        assert_eq!(terminal.ended().code(), Some(0));
    }
}

#[test]
fn a_terminal_that_can_not_be_drawn_on_is_told_of() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    for (variables, columns, says) in [
        (&[("TERM", "dumb")][..], 80, "pinfold top needs a terminal"),
        (&[], 0, "stty rows 24 cols 80"),
    ] {
        let mut terminal = Terminal::start_in(
            SHELL,
            variables,
            columns,
            columns.min(24),
            &["--node", &node],
        );
        assert_eq!(terminal.exited().code(), Some(2));
        // The parser needs at least a column, and breaks words.
        terminal.until(says, |text| {
            text.replace('\n', "").contains(says) || columns == 0
        });
        terminal.is_given_back("after");
    }
}
