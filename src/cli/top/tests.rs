//! Frames without a terminal, from generated responses.

mod choices;
mod frames;
mod many;
mod rates;

use std::fmt::Write;
use std::time::Instant;

use ratatui_core::backend::TestBackend;
use ratatui_core::{buffer::Buffer, layout::Rect, terminal::Terminal};
use ratatui_crossterm::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::*;
use crate::cli::top::frame::{Frame, FrameInput};
use crate::cli::top::live::handle;
use crate::cli::top::order::Filter;
use crate::cli::top::view::KeyAction;
use crate::client::{AgentStatus, Response, ScrapeValues, family_names};
use crate::metrics::{AGENT_FAMILIES, FAMILIES};

#[test]
fn the_agent_serves_every_family_of_top() {
    let served: Vec<&str> = FAMILIES
        .iter()
        .chain(AGENT_FAMILIES)
        .map(|family| family.name)
        .collect();
    for name in family_names() {
        assert!(served.contains(&name), "{name}");
    }
}

/// A container of `/status`; a container without exclusive CPUs is in the shared pool.
fn container(pod: &str, role: &str, own: Option<&str>) -> Value {
    json!({
        "namespace": "train", "pod": pod, "container": "main", "uid": format!("{pod}-uid"), "kind": "app",
        "role": role, "job": "mnist", "qos": if own.is_some() { "Guaranteed" } else { "BestEffort" },
        "assigned": own, "effective": own.unwrap_or("0-1"), "cgroup": format!("kubepods/{pod}/main"),
        "running": true, "note": null, "unpinnedSeconds": own.map(|_| 0.012),
        "observed": {"threads": 5, "most": 5, "runnable": 1.25, "verdict": null},
    })
}

fn status(containers: &[Value]) -> Value {
    json!({
        "enforcement": "partition", "enforcementReason": "the kernel has partitions", "online": "0-7", "reserved": "0",
        "shared": "0-1", "exclusive": "2-7", "lost": "",
        "layout": {"cores": ["0,4", "1,5", "2,6", "3,7"], "llcs": ["0-1,4-5", "2-3,6-7"], "numa": {"0": "0-7"}, "sockets": []},
        "containers": containers, "unknownOwners": [], "drift": [], "unexplained": [], "errors": [],
    })
}

fn job() -> Vec<Value> {
    let mut worker = container("worker-10", "worker", Some("4-7"));
    worker["effective"] = json!("4-5");
    worker["observed"]["verdict"] = json!({
        "finding": "more_than_expected", "cause": "c", "sentence": "more than expected: 97 threads, 4 in the pools"
    });
    worker["observed"]["threads"] = json!(97);
    vec![
        container("worker-2", "worker", None),
        worker,
        container("ps-0", "ps", Some("2-3")),
    ]
}

/// A scrape of an agent with a start time and with counters of pods.
fn metrics(started: u32, counts: &[(&str, f64)]) -> String {
    let mut text = format!("process_start_time_seconds {started}\n");
    for (pod, count) in counts {
        let labels = format!("namespace=\"train\",pod=\"{pod}\"");
        let families = [
            (
                "container_cpu_usage_seconds_total",
                ",container=\"main\"",
                1.0,
            ),
            (
                "container_interference_cpu_seconds_total",
                ",container=\"main\"",
                0.5,
            ),
            (
                "container_interference_cpu_error_seconds_total",
                ",container=\"main\"",
                0.01,
            ),
            (
                "pod_network_receive_bytes_total",
                ",interface=\"eth0\"",
                1048576.0,
            ),
            (
                "pod_network_transmit_bytes_total",
                ",interface=\"eth0\"",
                1024.0,
            ),
        ];
        for (family, more, factor) in families {
            writeln!(
                text,
                "pinfold_{family}{{{labels}{more}}} {}",
                factor * count
            )
            .unwrap();
        }
    }
    text
}

fn answer(status: &Value, metrics: &str) -> Response {
    Ok((
        AgentStatus::parse(status.to_string().as_bytes()).unwrap(),
        ScrapeValues::parse(metrics),
    ))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A state with nodes of these names. `draw` chooses the moment of a frame.
fn state(names: &[&str]) -> TopState {
    let nodes = names
        .iter()
        .enumerate()
        .map(|(number, name)| MonitoredNode::new(number, name, true))
        .collect();
    TopState::new(nodes, View::new(Column::Pod, false, ""))
}

/// A job on a node, looked at twice within two seconds.
fn two_samples() -> TopState {
    let mut state = state(&["node-1"]);
    state.record((
        0,
        at(1),
        answer(
            &status(&job()),
            &metrics(7, &[("ps-0", 1.0), ("worker-2", 1.0), ("worker-10", 5.0)]),
        ),
    ));
    state.record((
        0,
        at(3),
        answer(
            &status(&job()),
            &metrics(7, &[("ps-0", 2.0), ("worker-2", 1.0), ("worker-10", 4.0)]),
        ),
    ));
    state.arrange();
    state
}

fn draw(state: &TopState, width: u16, height: u16) -> (Frame, Buffer) {
    let picture = FrameInput {
        now: at(10),
        ..state.picture()
    };
    let frame = picture.on_screen(width.into(), height.into());
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|on| screen::paint(&frame.lines, on.buffer_mut()))
        .unwrap();
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

fn on_screen(state: &TopState, width: u16, height: u16) -> String {
    text(&draw(state, width, height).1)
}

fn press(state: &mut TopState, keys: &str) -> KeyAction {
    let mut done = KeyAction::Nothing;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        done = handle(
            &Event::Key(KeyEvent::new(code, KeyModifiers::NONE)),
            state,
            3,
        );
    }
    state.arrange();
    done
}

fn pods(state: &TopState) -> Vec<&str> {
    state.rows.iter().map(|row| row.key.pod.as_str()).collect()
}
