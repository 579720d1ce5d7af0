//! CPU use by role, traffic, and the evidence that tasks were pinned and sized.

use std::fmt::Write;

use super::html::{Cell, table, text};
use super::plot::{PlotRow, bar, colour, plot, upright};
use super::scale::{Scale, mark};
use crate::experiment::results::{Evidence, OtherFigure, Outcome, RoleOutcome, TrafficMatrix};
use crate::experiment::statistics::Summary;
use crate::text::sentence::capital;
use crate::text::{counted, units};

const NONE: &str = "–";

/// The strongest background of a cell, at which its number is still easy to read.
const STRONGEST: f64 = 0.45;

/// The CPUs that the tasks of each role used, beside those that they were given.
pub(super) fn roles(outcome: &Outcome) -> String {
    let greatest = outcome.roles.iter().flat_map(|role| {
        [
            role.cpus_used.map_or(0.0, |used| used.greatest),
            given(role).unwrap_or(0.0),
        ]
    });
    let scale = Scale::from_zero(greatest.fold(0.0, f64::max));
    let mut html = String::new();
    for (at, group) in outcome
        .roles
        .chunk_by(|one, other| one.condition.group == other.condition.group)
        .enumerate()
    {
        let rows: Vec<PlotRow> = group.iter().map(|role| row(role, &scale)).collect();
        let body = plot(&rows, &scale, "CPUs busy in a task", mark, None) + &figures(group);
        let title = group
            .first()
            .map_or("", |first| first.condition.group.as_str());
        html += &folded(title, at == 0, &body);
    }
    html
}

/// A part that is open only if it is the first, because a large experiment has many.
pub(super) fn folded(title: &str, open: bool, body: &str) -> String {
    if title.is_empty() {
        return body.to_owned();
    }
    let open = if open { " open" } else { "" };
    format!(
        "<details{open}><summary>{}</summary>\n{body}</details>\n",
        text(&capital(title))
    )
}

/// The CPUs of a task as a number, if that is how they are written.
fn given(role: &RoleOutcome) -> Option<f64> {
    let words = role.cpus.as_deref()?;
    let (number, unit) = match words.strip_suffix('m') {
        Some(millis) => (millis, 1000.0),
        None => (words, 1.0),
    };
    let cpus: f64 = number.parse().ok()?;
    (cpus.is_finite() && cpus > 0.0).then_some(cpus / unit)
}

fn row(role: &RoleOutcome, scale: &Scale) -> PlotRow {
    let way = match role.condition.name.as_str() {
        "" => String::new(),
        name => format!("{name} · "),
    };
    let given = given(role);
    let mut drawing = given.map_or_else(String::new, |cpus| bar(cpus, scale, "given", 26.0));
    if let Some(used) = &role.cpus_used {
        drawing += &bar(used.median, scale, colour(role.condition.way), 14.0);
        for end in [used.least, used.greatest] {
            drawing += &upright(scale.at(end), (-10.0, 10.0), "zero");
        }
    }
    let of = given.map_or_else(String::new, |cpus| format!(" of {}", mark(cpus)));
    let value = match &role.cpus_used {
        None => NONE.to_owned(),
        Some(used) if used.values == 1 => format!("{}{of}", units::figures(used.median)),
        Some(used) => format!(
            "{}{of}<small>{} to {}</small>",
            units::figures(used.median),
            units::figures(used.least),
            units::figures(used.greatest)
        ),
    };
    PlotRow {
        name: format!(
            "{}<small>{}{}</small>",
            text(&role.role),
            text(&way),
            counted(role.tasks, "task")
        ),
        label: role.cpus_used.map_or_else(
            || "not measured".to_owned(),
            |used| format!("{} CPUs busy{of}", units::figures(used.median)),
        ),
        value,
        drawing,
    }
}

/// A cell with a median, or a dash where nobody measured.
pub(super) fn median(summary: Option<Summary>, show: fn(f64) -> String) -> Cell {
    Cell::number(summary.map_or_else(|| NONE.to_owned(), |summary| show(summary.median)))
}

/// The further figures of a group's roles.
fn figures(group: &[RoleOutcome]) -> String {
    let rows: Vec<Vec<Cell>> = group
        .iter()
        .map(|role| {
            vec![
                Cell::words(&match role.condition.name.as_str() {
                    "" => role.role.clone(),
                    name => format!("{}, {name}", role.role),
                }),
                median(role.threads_waiting, units::figures),
                median(role.throttled_share, units::percent),
                median(role.switches_per_second, units::figures),
                median(role.llc_misses_per_kiloinstruction, units::figures),
            ]
        })
        .collect();
    table(
        "Waiting, throttling and switches of each role",
        "",
        &[
            "role, way",
            "threads waiting for a CPU",
            "periods with the quota used up",
            "context switches per second",
            "misses of the last-level cache in 1,000 instructions",
        ],
        &rows,
    )
}

/// Further measures, a row for each and a column for each condition.
pub(super) fn figures_of(figures: &[OtherFigure]) -> String {
    let mut head = vec![""];
    let conditions = figures.first().map_or(&[][..], |one| &one.conditions);
    head.extend(conditions.iter().map(|(name, _)| name.as_str()));
    let cell = |summary: &Option<Summary>| {
        let words = summary.map_or_else(
            || NONE.to_owned(),
            |one| {
                format!(
                    "{}<br><small>{} to {}</small>",
                    units::figures(one.median),
                    units::figures(one.least),
                    units::figures(one.greatest)
                )
            },
        );
        Cell::number(words)
    };
    let rows: Vec<Vec<Cell>> = figures
        .iter()
        .map(|one| {
            let cells = one.conditions.iter().map(|(_, summary)| cell(summary));
            std::iter::once(Cell::words(&one.name))
                .chain(cells)
                .collect()
        })
        .collect();
    table("Further figures", "", &head, &rows)
}

/// The traffic of each case, as a matrix.
pub(super) fn traffic(outcome: &Outcome) -> String {
    let matrices = outcome.traffic.iter().enumerate();
    matrices
        .map(|(at, matrix)| folded(&matrix.group, at == 0, &drawn(matrix)))
        .collect()
}

fn drawn(matrix: &TrafficMatrix) -> String {
    let cells = || matrix.bytes_per_second.iter().flatten().copied().flatten();
    let greatest = cells().fold(0.0, f64::max);
    let strength = |value: f64| {
        if greatest > 0.0 {
            STRONGEST * value / greatest
        } else {
            0.0
        }
    };
    let all: f64 = cells().sum();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let of_server = |at: usize| {
        let column = matrix
            .bytes_per_second
            .iter()
            .filter_map(|row| *row.get(at)?);
        column.sum::<f64>()
    };
    let mut sums = vec![Cell::words("all, and share")];
    sums.extend((0..matrix.servers.len()).map(|at| {
        let sum = of_server(at);
        let share = if all > 0.0 { sum / all } else { 0.0 };
        Cell::number(format!(
            "<strong>{}</strong><br><small>{}</small>",
            units::bytes(sum),
            units::percent(share)
        ))
    }));
    rows.push(sums);
    for (peer, of_peer) in matrix.peers.iter().zip(&matrix.bytes_per_second) {
        let mut row = vec![Cell::words(peer)];
        row.extend(of_peer.iter().map(|cell| match cell {
            Some(value) => Cell::heat(strength(*value), units::bytes(*value)),
            None => Cell::number(NONE.to_owned()),
        }));
        rows.push(row);
    }
    let mut head = vec!["bytes per second"];
    head.extend(matrix.servers.iter().map(String::as_str));
    let mut html = table(
        "Traffic between parameter servers and the other tasks",
        "heat",
        &head,
        &rows,
    );
    let _ = writeln!(
        html,
        "<p class=\"soft small\">Both directions together, the mean of {}. A stronger colour is more traffic.</p>",
        counted(matrix.runs, "run")
    );
    html
}

/// Whether the tasks had exclusive CPUs and threads that fit.
pub(super) fn evidence(evidence: &[Evidence]) -> String {
    let number = |summary: Option<Summary>| {
        Cell::number(summary.map_or_else(
            || NONE.to_owned(),
            |one| {
                if one.least < one.greatest {
                    format!(
                        "{} ({} to {})",
                        mark(one.median),
                        mark(one.least),
                        mark(one.greatest)
                    )
                } else {
                    mark(one.median)
                }
            },
        ))
    };
    let rows: Vec<Vec<Cell>> = evidence
        .iter()
        .map(|one| {
            let name = one.condition.words();
            let pinned = match one.pinned_known {
                0 => NONE.to_owned(),
                known => format!("{} of {known}", one.pinned),
            };
            let verdicts: Vec<String> = one
                .threads_verdicts
                .iter()
                .map(|(verdict, tasks)| format!("{} {verdict}", counted(tasks, "task")))
                .collect();
            vec![
                Cell::words(&name),
                Cell::number(pinned),
                number(one.threads),
                number(one.threads_expected),
                Cell::words(match verdicts.join(", ").as_str() {
                    "" => NONE,
                    verdicts => verdicts,
                }),
                Cell::words(&one.cpus.join("; ")),
            ]
        })
        .collect();
    table(
        "Exclusive CPUs and threads of the tasks",
        "",
        &[
            "condition",
            "tasks with exclusive CPUs",
            "threads of a task",
            "expected in pools",
            "the agents' verdicts",
            "CPUs in the first run",
        ],
        &rows,
    )
}
