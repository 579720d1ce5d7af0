//! `pinfold top` as a user runs it: printed to a pipe, and on a terminal that the test reads.
//!
//! The agents that it asks are answered for by the test, with what a real one has served (tests/data/top); `tests/demo.rs` has
//! it ask a real one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const STATUS: &str = include_str!("data/top/status.json");
const METRICS: [&str; 2] = [include_str!("data/top/metrics-1.txt"), include_str!("data/top/metrics-2.txt")];

const PATIENCE: Duration = Duration::from_secs(20);

/// Where something answers as an agent does: the status, and in turn the two scrapes.
fn agent(status: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, status) = (Arc::new(AtomicUsize::new(0)), Arc::new(status));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, asked, status) = (stream.unwrap(), Arc::clone(&asked), Arc::clone(&status));
            std::thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for line in lines.map_while(Result::ok) {
                    let body = match line.split(' ').nth(1) {
                        Some("/status") => status.as_str(),
                        Some("/metrics") => METRICS[asked.fetch_add(1, Ordering::Relaxed).min(1)],
                        _ => continue,
                    };
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    // Who has gone meanwhile needs no answer.
                    let _ =
                        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
                }
            });
        }
    });
    address
}

/// Where somebody takes connections and never says a word.
fn mute() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn pinfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command.env_remove("PINFOLD_LISTEN").env_remove("NO_COLOR");
    command
}

/// What `pinfold top` prints where there is no terminal.
fn printed(arguments: &[&str]) -> (Option<i32>, String, String) {
    let command = &mut pinfold();
    let Output { status, stdout, stderr } =
        command.arg("top").args(arguments).stdin(Stdio::null()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// `pinfold top` on a terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    /// The other end.
    line: OwnedFd,
    /// How the terminal was set before and after.
    settings: TempDir,
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    screen: vt100::Parser,
    bytes: usize,
}

/// The shell's last second is for the test to read what is still on its way.
const SHELL: &str =
    r#"stty -g >"$SETTINGS/before"; "$0" "$@"; code=$?; stty -g >"$SETTINGS/after"; sleep 0.5; exit $code"#;

fn size(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

impl Terminal {
    fn start(columns: u16, lines: u16, arguments: &[&str]) -> Self {
        let window = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(Some(&window), None).unwrap();
        let settings = TempDir::new().unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // Below a shell in a session of its own with this terminal: who resizes it tells the program.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "sh", "-c", SHELL, env!("CARGO_BIN_EXE_pinfold"), "top"])
            .args(arguments)
            .env("SETTINGS", settings.path())
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .env_remove("PINFOLD_LISTEN")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let screen = vt100::Parser::new(size(lines), size(columns), 0);
        let shown = Arc::new(Mutex::new(Shown { screen, bytes: 0 }));
        let (mut output, copy) = (File::from(master.try_clone().unwrap()), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut shown = copy.lock().unwrap();
                shown.screen.process(&buffer[..count]);
                shown.bytes += count;
            }
        });
        Self { child, keyboard: File::from(master), line: slave, settings, shown }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.shown.lock().unwrap().screen.screen().contents()
    }

    fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "never seen: {what}\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn resize(&self, columns: u16, lines: u16) {
        self.shown.lock().unwrap().screen.screen_mut().set_size(size(lines), size(columns));
        let done = Command::new("stty")
            .args(["cols", &columns.to_string(), "rows", &lines.to_string()])
            .stdin(Stdio::from(self.line.try_clone().unwrap()))
            .status();
        assert!(done.unwrap().success());
    }

    /// The program's process: the shell's only child.
    fn id(&self) -> Pid {
        let parent = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Waits for the end; the terminal must be as it was.
    fn ended(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        let set = |when: &str| std::fs::read_to_string(self.settings.path().join(when)).unwrap();
        assert!(
            set("before").contains(':') && set("before") == set("after"),
            "the terminal is set as it was"
        );
        // The last bytes may still be on their way.
        self.until("the shell's own screen", |text| !text.contains("POD"));
        let shown = self.shown.lock().unwrap();
        let screen = shown.screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", screen.contents());
        drop(shown);
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Once the shell is gone, the terminal is, and with it the program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_frame_goes_into_a_pipe() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let (code, frame, complaint) = printed(&["--once", "--node", &node, "--interval", "1", "--width", "120"]);
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{frame}");
    let heading = frame.lines().find(|line| line.contains("POD ")).unwrap_or_else(|| panic!("{frame}"));
    for column in ["ROLE", "CPUS", "USE", "THR/CPU", "RUN", "FOREIGN", "WINDOW", "IN/S", "OUT/S"] {
        assert!(heading.contains(column), "{frame}");
    }
    let worker =
        frame.lines().find(|line| line.contains("demo/worker-0")).unwrap_or_else(|| panic!("{frame}"));
    let cells: Vec<&str> = worker.split_whitespace().collect();
    // a demo/worker-0 worker 1 0.9 3/1 1.0 0.1% 10ms 17.6Mi 18.8Mi
    assert_eq!(
        (cells[0].len(), cells[1], cells[2], cells.len()),
        (1, "demo/worker-0", "worker", 11),
        "{frame}"
    );
    assert!(cells[4..].iter().all(|cell| *cell != "-"), "everything is known of it:\n{frame}");
    assert!(cells[9].ends_with("Mi") && cells[10].ends_with("Mi"), "rates come from two looks:\n{frame}");
    assert!(frame.lines().nth(1).unwrap().contains(cells[0]), "its sign is on the map:\n{frame}");
    assert!(
        !frame.contains('\u{1b}')
            && frame.lines().all(|line| line.chars().count() <= 120 || line.contains(": ")),
        "{frame}"
    );
}

#[test]
fn who_is_away_is_named_and_holds_up_nobody() {
    let (_kept, silent) = mute();
    let (near, silent) = (format!("near={}", agent(STATUS.to_owned())), format!("silent={silent}"));
    let gone = mute().1.to_string();
    let begun = Instant::now();
    let arguments = ["--once", "--interval", "1", "--node", &near, "--node", &silent, "--node", &gone];
    let (code, frame, _) = printed(&arguments);
    assert_eq!(code, Some(0), "{frame}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for says in ["silent  no answer", ": nothing heard within 5 s", "refused", "near  ", "demo/worker-0"] {
        assert!(frame.contains(says), "{says}?\n{frame}");
    }
    let (code, frame, complaint) = printed(&["--once", "--node", &gone]);
    assert_eq!((code, frame.as_str()), (Some(2), ""));
    assert!(complaint.contains("refused") && complaint.contains("start the agent"), "{complaint}");
    let other = agent("{\"some\": \"thing\"}".to_owned()).to_string();
    let (code, _, complaint) = printed(&["--once", "--node", &other]);
    assert!(code == Some(2) && complaint.contains("is no agent, or one of another version"), "{complaint}");
}

#[test]
fn what_can_not_be_is_said() {
    for (arguments, says) in [
        (&["--node", "127.0.0.1"][..], "pinfold top --once prints a frame"),
        (&["--once", "--node", "https://node-1"], "agents serve plain HTTP"),
        (&["--once", "--nodes", "/nowhere/nodes"], "can't read /nowhere/nodes"),
        (&["--width", "80"], "--once"),
        (&["--once", "--width", "5"], "20..=1000"),
        (&["--once", "--sort", "age"], "[possible values: node, pod"),
    ] {
        let (code, frame, complaint) = printed(arguments);
        assert_eq!((code, frame.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(complaint.contains(says), "{arguments:?}: {complaint}");
    }
}

#[test]
fn keys_are_heard_and_the_terminal_is_given_back() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let mut terminal = Terminal::start(80, 24, &["--node", &node, "--interval", "1"]);
    terminal.until("the pods, and their rates", |text| text.contains("demo/worker-0") && text.contains("Mi"));
    let text = terminal.text();
    assert!(text.lines().count() == 24 && text.lines().last().unwrap().starts_with("q quit"), "{text}");
    terminal.press("/ps\r");
    terminal.until("the filter's pods", |text| text.contains("1 of 3 pods") && !text.contains("worker-0"));
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
    for (columns, lines) in [(60, 10), (30, 4), (120, 40)] {
        terminal.resize(columns, lines);
        let whole = |text: &str| {
            text.lines().count() == usize::from(lines)
                && text.lines().last().is_some_and(|line| line.starts_with("q quit"))
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
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let terminal = Terminal::start(80, 24, &["--node", &node]);
        terminal.until("the pods", |text| text.contains("demo/worker-0"));
        kill(terminal.id(), signal).unwrap();
        assert_eq!(terminal.ended().code(), Some(code), "{signal}");
    }
}

#[test]
fn little_is_written_while_little_changes() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let terminal = Terminal::start(80, 24, &["--node", &node, "--interval", "1"]);
    terminal.until("the rates", |text| text.contains("Mi"));
    let written = || terminal.shown.lock().unwrap().bytes;
    // The second scrape is served again and again: rates sink, everything else stays.
    let (before, begun) = (written(), Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    let rate = (written() - before) as f64 / begun.elapsed().as_secs_f64();
    assert!(rate < 300.0, "{rate:.0} bytes/s: a whole frame has about 2000");
}
