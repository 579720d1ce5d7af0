//! `pinfold top` as users run the command: printed to a pipe, and on a terminal that the test reads.
//!
//! The test serves recorded responses of a real agent (tests/data/top). `tests/demo.rs` runs the
//! command against a real one.
//!
//! | what holds | tests |
//! |---|---|
//! | The screen shows what agents report, and follows keys, signals and sizes. | `screens` |
//! | Agents that misbehave are named, and hold up nobody. | `agents` |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "top/agents.rs"]
mod agents;
#[path = "top/screens.rs"]
mod screens;
#[path = "top/terminal.rs"]
mod terminal;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use agents::{STATUS, agent, mute, stranger};

fn pinfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command.env_remove("PINFOLD_LISTEN").env_remove("NO_COLOR");
    command
}

/// The output of `pinfold top` without a terminal.
fn printed(arguments: &[&str]) -> (Option<i32>, String, String) {
    let command = &mut pinfold();
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .arg("top")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        status.code(),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

#[test]
fn one_frame_goes_into_a_pipe() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let (code, frame, complaint) = printed(&[
        "--once",
        "--node",
        &node,
        "--interval",
        "1s",
        "--width",
        "120",
    ]);
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{frame}");
    let heading = frame
        .lines()
        .find(|line| line.contains("POD "))
        .unwrap_or_else(|| panic!("{frame}"));
    for column in [
        "ROLE", "CPUS", "USE", "THR/CPU", "RUN", "INTERF", "UNPINNED", "IN/S", "OUT/S",
    ] {
        assert!(heading.contains(column), "{frame}");
    }
    let worker = frame
        .lines()
        .find(|line| line.contains("demo/worker-0"))
        .unwrap_or_else(|| panic!("{frame}"));
    let cells: Vec<&str> = worker.split_whitespace().collect();
    // a demo/worker-0 worker 1 0.9 3/1 1.0 0.1% 10ms 17.6Mi 18.8Mi
    assert_eq!(
        (cells[0].len(), cells[1], cells[2], cells.len()),
        (1, "demo/worker-0", "worker", 11),
        "{frame}"
    );
    assert!(
        cells[4..].iter().all(|cell| *cell != "-"),
        "everything is known of it:\n{frame}"
    );
    assert!(
        cells[9].ends_with("Mi") && cells[10].ends_with("Mi"),
        "rates come from two looks:\n{frame}"
    );
    assert!(
        frame.lines().nth(1).unwrap().contains(cells[0]),
        "its sign is on the map:\n{frame}"
    );
    assert!(
        !frame.contains('\u{1b}')
            && frame
                .lines()
                .all(|line| line.chars().count() <= 120 || line.contains(": ")),
        "{frame}"
    );
}

#[test]
fn a_frame_for_programs_has_numbers_and_null_for_the_unknown() {
    let node = format!("node-1={}", agent(STATUS.to_owned()));
    let gone = format!("gone={}", mute().1);
    let nodes = ["--node", node.as_str(), "--node", gone.as_str()];
    let arguments = [&["--once", "--interval", "1s", "-o", "json"][..], &nodes].concat();
    let (code, document, complaint) = printed(&arguments);
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{document}");
    let frame: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(frame["nodes"][0]["name"], "node-1");
    assert!(frame["nodes"][0]["error"].is_null() && frame["nodes"][0]["enforcement"].is_string());
    let error = frame["nodes"][1]["error"].as_str().unwrap();
    assert!(error.contains("the connection was refused"), "{error}");
    assert!(frame["nodes"][1]["exclusive"].is_null());
    let pods = frame["pods"].as_array().unwrap();
    let worker = pods.iter().find(|pod| pod["pod"] == "worker-0").unwrap();
    assert_eq!(
        (&worker["node"], &worker["namespace"]),
        (&"node-1".into(), &"demo".into())
    );
    for key in [
        "usedCpus",
        "interferenceShare",
        "receiveBytesPerSecond",
        "unpinnedSeconds",
    ] {
        assert!(worker[key].is_number(), "{key}: {worker:#}");
    }
    assert_eq!(worker["containers"][0]["threads"], worker["threads"]);
}

#[test]
fn an_absent_agent_is_named_and_delays_no_other() {
    let (_kept, silent) = mute();
    let (near, silent) = (
        format!("near={}", agent(STATUS.to_owned())),
        format!("silent={silent}"),
    );
    let gone = mute().1.to_string();
    let begun = Instant::now();
    let arguments = [
        "--once",
        "--interval",
        "1s",
        "--node",
        &near,
        "--node",
        &silent,
        "--node",
        &gone,
    ];
    let (code, frame, _) = printed(&arguments);
    assert_eq!(code, Some(0), "{frame}");
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    for says in [
        "silent  no response",
        ": no response within 5 s",
        "refused",
        "near  ",
        "demo/worker-0",
    ] {
        assert!(frame.contains(says), "{says}?\n{frame}");
    }
    let (code, frame, complaint) = printed(&["--once", "--node", &gone]);
    assert_eq!((code, frame.as_str()), (Some(2), ""));
    assert!(
        complaint.contains("refused") && complaint.contains("start the agent"),
        "{complaint}"
    );
    let other = agent("{\"some\": \"thing\"}".to_owned()).to_string();
    let (code, _, complaint) = printed(&["--once", "--node", &other]);
    assert!(
        code == Some(2)
            && complaint.contains("is not a Pinfold agent, or the agent has a different version"),
        "{complaint}"
    );
}

#[test]
fn impossible_arguments_are_refused_with_the_reason() {
    for (arguments, says) in [
        (&["--node", "127.0.0.1"][..], "pinfold top needs a terminal"),
        (
            &["--once", "--node", "https://node-1"],
            "agents serve plain HTTP",
        ),
        (
            &["--once", "--nodes", "/nowhere/nodes"],
            "can't read /nowhere/nodes",
        ),
        (&["--width", "80"], "--once"),
        (&["--once", "--width", "5"], "from 20 to 1000"),
        (&["--once", "--sort", "age"], "[possible values: node, pod"),
    ] {
        let (code, frame, complaint) = printed(arguments);
        assert_eq!((code, frame.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(complaint.contains(says), "{arguments:?}: {complaint}");
    }
}

#[test]
fn mistakes_in_a_file_of_nodes_are_named_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nodes");
    let path = file.to_str().unwrap();
    for (text, says) in [
        ("# nobody\n", "names no node"),
        ("a\nb c\n", "nodes:2: "),
        ("x=a\nx=b\n", "two nodes have the name"),
        ("=a\n", "has no name before the ="),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, frame, complaint) = printed(&["--once", "--nodes", path]);
        assert_eq!((code, frame.as_str()), (Some(2), ""), "{text}");
        assert!(
            complaint.contains(says) && complaint.contains("nodes"),
            "{text}: {complaint}"
        );
    }
    let (code, _, complaint) = printed(&["--once", "--nodes", "/dev/zero"]);
    assert!(
        code == Some(2) && complaint.contains("/dev/zero is longer than"),
        "{complaint}"
    );
}

#[test]
fn more_nodes_than_files_may_be_open_are_asked_in_turn() {
    let address = agent(STATUS.to_owned());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nodes");
    let lines = (0..600).map(|number| format!("node-{number} = http://{address}/node-{number}\n"));
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let script = r#"ulimit -n 400; exec "$0" top --once --interval 1s --nodes "$1""#;
    let binary = env!("CARGO_BIN_EXE_pinfold");
    let Output { status, stdout, .. } = Command::new("sh")
        .args(["-c", script, binary, file.to_str().unwrap()])
        .output()
        .unwrap();
    let frame = String::from_utf8(stdout).unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(!frame.contains("no response"), "{frame}");
    assert_eq!(frame.matches("demo/worker-0").count(), 600, "{frame}");
    assert!(frame.contains("node-599"), "{frame}");
}

/// Reads the head of a request. A client that sends none needs no response.
fn asked(stream: &TcpStream) -> bool {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines.any(|line| line.is_ok_and(|line| line.is_empty()))
}

#[test]
fn an_endless_or_senseless_answer_is_named_and_delays_no_other_agent() {
    let always = |head: &'static str, piece: Vec<u8>, pause: Duration| {
        stranger(move |mut stream| {
            if asked(&stream) && stream.write_all(head.as_bytes()).is_ok() {
                while stream.write_all(&piece).is_ok() {
                    std::thread::sleep(pause);
                }
            }
        })
    };
    let once = |answer: &'static str| {
        stranger(move |mut stream| {
            if asked(&stream) {
                let _ = stream.write_all(answer.as_bytes());
            }
        })
    };
    let none = Duration::ZERO;
    let body = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    let nodes = [
        (agent(STATUS.to_owned()), "demo/worker-0"),
        (
            always(body, vec![b' '; 1 << 20], none),
            "longer than 67108864 bytes",
        ),
        (
            always(body, b" ".to_vec(), Duration::from_millis(100)),
            "no response within 5 s",
        ),
        (
            always("HTTP/1.1 200 OK\r\n", b"a: b\r\n".to_vec(), none),
            "no response",
        ),
        (
            once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"enforce"),
            "no response",
        ),
        (
            once("HTTP/1.1 503 \r\nContent-Length: 13\r\n\r\nnot \u{1b}[2Jready"),
            "503 Service Unavailable: not \u{fffd}[2Jr",
        ),
        (once("\u{1b}[2J\u{7}"), "no response"),
        (once(""), "no response"),
        (
            agent(STATUS.replace("worker-0\"", "evil\\u001b[2J\\u009b\"")),
            "demo/evil\u{fffd}[2J\u{fffd}",
        ),
    ];
    let names: Vec<String> = nodes
        .iter()
        .enumerate()
        .map(|(number, (address, _))| format!("n{number}={address}"))
        .collect();
    let mut arguments = vec!["--once", "--interval", "1s"];
    arguments.extend(names.iter().flat_map(|name| ["--node", name.as_str()]));
    let mut attempts = 0;
    let (code, frame, complaint) = loop {
        let begun = Instant::now();
        let (code, frame, complaint) = printed(&arguments);
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            begun.elapsed()
        );
        attempts += 1;
        // A slow machine may not read 64 MiB within 5 s.
        if frame.contains(nodes[1].1) || attempts == 5 {
            break (code, frame, complaint);
        }
    };
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{frame}");
    for (number, (_, says)) in nodes.iter().enumerate() {
        let start = format!("n{number}  ");
        let title = frame
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{frame}"));
        assert!(
            title.contains(says) || frame.contains(says) && says.starts_with("demo"),
            "{says}?\n{frame}"
        );
    }
    assert!(
        !frame.chars().any(|c| c.is_control() && c != '\n'),
        "{frame:?}"
    );
    // A single node without a response is an error of the command.
    let (code, frame, complaint) = printed(&["--once", "--node", &names[5]]);
    assert_eq!((code, frame.as_str()), (Some(2), ""));
    assert!(
        !complaint.chars().any(|c| c.is_control() && c != '\n'),
        "{complaint:?}"
    );
}
