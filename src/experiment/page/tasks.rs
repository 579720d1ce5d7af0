//! The parameter servers beside each other, and what each task used.

use std::collections::BTreeSet;

use super::html::{Cell, table, text};
use super::plot::{PlotRow, bar, plot, upright};
use super::scale::Scale;
use super::usage::{folded, median};
use crate::experiment::results::{Outcome, TaskOutcome};
use crate::text::units;

/// How the bytes of the parameter servers of each scene and case are shared out among them.
pub(super) fn servers(outcome: &Outcome) -> String {
    let servers: Vec<&TaskOutcome> = outcome
        .tasks
        .iter()
        .filter(|task| task.share_of_servers.is_some())
        .collect();
    let groups = servers.chunk_by(|one, other| one.group == other.group);
    groups
        .enumerate()
        .map(|(at, servers)| {
            let title = servers.first().map_or("", |first| first.group.as_str());
            folded(title, at == 0, &shares(servers))
        })
        .collect()
}

fn shares(servers: &[&TaskOutcome]) -> String {
    let scale = Scale::from_zero(1.0);
    let equal = 1.0 / servers.len().max(1) as f64;
    let rows: Vec<PlotRow> = servers
        .iter()
        .filter_map(|server| share(server, &scale, equal))
        .collect();
    plot(
        &rows,
        &scale,
        "share of the servers' bytes in percent",
        |share| format!("{:.0}", 100.0 * share),
        None,
    )
}

fn share(server: &TaskOutcome, scale: &Scale, equal: f64) -> Option<PlotRow> {
    let share = server.share_of_servers?;
    let mut drawing = bar(share.median, scale, "w3", 14.0);
    drawing += &upright(scale.at(equal), (-14.0, 14.0), "zero");
    let cpu = server.share_of_servers_cpu.map_or_else(String::new, |cpu| {
        format!("<small>CPU time: {}</small>", units::percent(cpu.median))
    });
    let sent = server.sent_bytes_per_second;
    let sent = sent.map_or_else(String::new, |sent| {
        format!("<small>sends {}/s</small>", units::bytes(sent.median))
    });
    Some(PlotRow {
        name: format!("{}{sent}", text(&server.task)),
        value: format!("{}{cpu}", units::percent(share.median)),
        label: format!(
            "{} of the servers' bytes; an equal share is {}",
            units::percent(share.median),
            units::percent(equal)
        ),
        drawing,
    })
}

/// What each task used, a folded table for each scene and case.
pub(super) fn tasks(tasks: &[TaskOutcome]) -> String {
    let groups = tasks.chunk_by(|one, other| one.group == other.group);
    groups
        .map(|tasks| {
            let title = match tasks.first().map(|first| first.group.as_str()) {
                None | Some("") => "Show every task",
                Some(group) => group,
            };
            folded(title, false, &of_group(tasks))
        })
        .collect()
}

fn of_group(tasks: &[TaskOutcome]) -> String {
    let rows: Vec<Vec<Cell>> = tasks
        .iter()
        .map(|task| {
            vec![
                Cell::words(&task.task),
                Cell::words(&names(&task.nodes)),
                median(task.cpus_used, units::figures),
                median(task.sent_bytes_per_second, units::bytes),
                median(task.received_bytes_per_second, units::bytes),
                median(task.steps_per_second, units::figures),
            ]
        })
        .collect();
    table(
        "What each task used",
        "",
        &[
            "task",
            "nodes",
            "CPUs busy",
            "sent per second",
            "received per second",
            "steps per second",
        ],
        &rows,
    )
}

/// The first nodes, and the number of further ones: in each way and repeat a task may have another.
fn names(nodes: &BTreeSet<String>) -> String {
    const NAMED: usize = 3;
    let shown: Vec<&str> = nodes.iter().take(NAMED).map(String::as_str).collect();
    match nodes.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
