//! [`outcome_markdown`]: an [`Outcome`] as Markdown that is readable as plain text, verdicts first.

use std::fmt::Write;

use super::analysis::percent;
use super::outcome::{
    Answer, ConditionOutcome, Evidence, Finding, Outcome, RoleOutcome, SpeedupCurve, TaskOutcome,
    TrafficMatrix,
};
use crate::experiment::statistics::{Estimate, FEWEST_BLOCKS, Summary};
use crate::text::markdown::{inline, list, table};
use crate::text::sentence::capital;
use crate::text::{counted, units};

/// The text for an unknown value.
const NONE: &str = "–";

/// An outcome as Markdown.
pub fn outcome_markdown(outcome: &Outcome) -> String {
    let mut text = format!("# {}\n", inline(&outcome.title));
    if let Some(caution) = &outcome.caution {
        let _ = writeln!(text, "\n**{}**", inline(caution));
    }
    if !outcome.summary.is_empty() {
        let _ = writeln!(text, "\n{}", inline(&outcome.summary));
    }
    text.push_str("\n## Answers\n");
    if outcome.answers.is_empty() {
        text.push_str("\nThere is no verdict: it needs several runs of what is compared.\n");
        for other in &outcome.others {
            let _ = writeln!(text, "\n- {}", inline(&other.sentence));
        }
    }
    for answer in &outcome.answers {
        let _ = writeln!(
            text,
            "\n**{}** {} *({})*",
            inline(&answer.sentence),
            inline(&answer.certainty),
            inline(&answer.title)
        );
    }
    let mut next = String::new();
    list(&mut next, outcome.next.iter().cloned());
    section(&mut text, "What to do next", &next);
    section(&mut text, "What stands out", &findings(&outcome.findings));
    section(&mut text, "Runs that don't count", &lost(outcome));
    let mut warnings = String::new();
    list(&mut warnings, outcome.warnings.iter().cloned());
    section(&mut text, "Warnings", &warnings);
    let title = format!("{} of each condition", capital(&outcome.measure));
    section(&mut text, &title, &conditions(&outcome.conditions));
    section(&mut text, "Scaling", &scaling(&outcome.speedup));
    section(
        &mut text,
        "Further comparisons, without verdicts",
        &others(&outcome.others),
    );
    section(
        &mut text,
        "Load of the parameter servers",
        &servers(&outcome.tasks),
    );
    section(&mut text, "Use by role", &roles(&outcome.roles));
    section(&mut text, "Pinned and sized", &evidence(&outcome.evidence));
    section(
        &mut text,
        "Traffic between parameter servers and the other tasks",
        &outcome.traffic.iter().map(matrix).collect::<String>(),
    );
    let facts = outcome.subject.iter();
    let facts = facts.map(|fact| format!("{}: {}", fact.name, fact.value));
    let mut subject = String::new();
    list(&mut subject, facts);
    section(&mut text, "What ran on what", &subject);
    text.push('\n');
    if outcome.repeats > 1 {
        let _ = write!(
            text,
            "An interval is computed so that {} of such intervals contain the true value. With fewer than {FEWEST_BLOCKS} repeats there \
             is only the range of the runs. ",
            percent(outcome.confidence)
        );
    }
    let _ = writeln!(text, "{NONE} means that nobody measured it.");
    text
}

/// A part with a heading; nothing without a body.
fn section(text: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        let _ = write!(text, "\n## {title}\n\n{}", body.trim_start_matches('\n'));
    }
}

fn findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "\n- **{}.**", inline(&finding.sentence));
        let seen = finding.frequency();
        if !seen.is_empty() {
            let _ = writeln!(text, "  {}", inline(&seen));
        }
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(text, "  {name}: {}.", inline(value));
            }
        };
        let figures = finding.figures.iter();
        let figures: Vec<String> = figures
            .map(|figure| format!("{} {}", figure.name, figure.words))
            .collect();
        line("Numbers", &figures.join("; "));
        let nodes: Vec<&str> = finding.nodes.iter().map(String::as_str).collect();
        line("Nodes", &nodes.join(", "));
        line("Named when", &finding.rule);
        line("What to do", &finding.remedy);
    }
    text
}

fn lost(outcome: &Outcome) -> String {
    let lines = outcome.lost.iter().map(|run| {
        format!(
            "Run {} (repeat {}, {}): {}",
            run.number, run.repeat, run.condition, run.reason
        )
    });
    let mut text = String::new();
    list(&mut text, lines);
    text
}

fn conditions(conditions: &[ConditionOutcome]) -> String {
    let rows: Vec<Vec<String>> = conditions
        .iter()
        .map(|one| {
            let values = one.runs.iter();
            let values: Vec<String> = values.map(|run| units::figures(run.value)).collect();
            vec![
                inline(&one.condition.words()),
                typical(one.estimate.as_ref()),
                format!("{} of {}", one.runs.len(), one.planned),
                values.join(", "),
            ]
        })
        .collect();
    optional_table(
        &["condition", "typical (interval or range)", "runs", "each"],
        &rows,
    )
}

fn scaling(curves: &[SpeedupCurve]) -> String {
    let rows: Vec<Vec<String>> = curves
        .iter()
        .flat_map(|curve| {
            curve.points.iter().map(|point| {
                vec![
                    inline(&curve.condition.words()),
                    inline(&point.case),
                    format!("{}", point.workers),
                    typical(point.speedup.as_ref()),
                    units::figures(point.ideal),
                    shown(point.efficiency, units::percent),
                ]
            })
        })
        .collect();
    optional_table(
        &[
            "condition",
            "case",
            "workers",
            "speedup (interval or range)",
            "ideal",
            "of the ideal",
        ],
        &rows,
    )
}

fn others(others: &[Answer]) -> String {
    let rows: Vec<Vec<String>> = others
        .iter()
        .map(|one| {
            let change = one.estimate.map_or_else(
                || NONE.to_owned(),
                |estimate| match estimate.values {
                    1 => units::change(estimate.center()),
                    _ => format!(
                        "{} ({})",
                        units::change(estimate.center()),
                        units::change_span(estimate.low, estimate.high)
                    ),
                },
            );
            vec![
                inline(&one.title),
                inline(&one.part),
                change,
                one.ratios.len().to_string(),
            ]
        })
        .collect();
    optional_table(
        &["comparison", "in", "change (interval or range)", "repeats"],
        &rows,
    )
}

fn median(summary: Option<Summary>, show: fn(f64) -> String) -> String {
    shown(summary.map(|summary| summary.median), show)
}

/// The parameter servers, of which the page shows all tasks.
fn servers(tasks: &[TaskOutcome]) -> String {
    let servers = tasks.iter().filter(|task| task.share_of_servers.is_some());
    let rows: Vec<Vec<String>> = servers
        .map(|task| {
            let nodes: Vec<&str> = task.nodes.iter().map(String::as_str).collect();
            vec![
                inline(&task.group),
                inline(&task.task),
                median(task.share_of_servers, units::percent),
                median(task.share_of_servers_cpu, units::percent),
                median(task.sent_bytes_per_second, units::bytes),
                median(task.received_bytes_per_second, units::bytes),
                inline(&nodes.join(", ")),
            ]
        })
        .collect();
    let head = [
        "scene and case",
        "server",
        "of their bytes",
        "of their CPU time",
        "sent/s",
        "received/s",
        "nodes",
    ];
    optional_table(&head, &rows)
}

fn roles(roles: &[RoleOutcome]) -> String {
    let rows: Vec<Vec<String>> = roles
        .iter()
        .map(|role| {
            vec![
                inline(&role.condition.words()),
                inline(&role.role),
                role.tasks.to_string(),
                inline(role.cpus.as_deref().unwrap_or(NONE)),
                median(role.cpus_used, units::figures),
                median(role.throttled_share, units::percent),
                median(role.threads_waiting, units::figures),
                median(role.switches_per_second, units::figures),
                median(role.llc_misses_per_kiloinstruction, units::figures),
            ]
        })
        .collect();
    optional_table(
        &[
            "condition",
            "role",
            "tasks",
            "CPUs each",
            "busy each",
            "throttled",
            "threads waiting",
            "switches/s",
            "LLC misses/1000 instr.",
        ],
        &rows,
    )
}

fn evidence(evidence: &[Evidence]) -> String {
    let rows: Vec<Vec<String>> = evidence
        .iter()
        .map(|one| {
            let range = |summary: Option<Summary>| {
                shown(summary.map(|summary| summary.median), units::figures)
            };
            let verdicts = one.threads_verdicts.iter();
            let verdicts: Vec<String> = verdicts
                .map(|(verdict, tasks)| format!("{} {verdict}", counted(tasks, "task")))
                .collect();
            vec![
                inline(&one.condition.words()),
                match one.pinned_known {
                    0 => NONE.to_owned(),
                    known => format!("{} of {known}", one.pinned),
                },
                range(one.threads),
                range(one.threads_expected),
                inline(&verdicts.join(", ")),
                inline(&one.cpus.first().cloned().unwrap_or_default()),
            ]
        })
        .collect();
    optional_table(
        &[
            "condition",
            "tasks with exclusive CPUs",
            "threads",
            "expected",
            "the agents' verdicts",
            "for example",
        ],
        &rows,
    )
}

fn matrix(matrix: &TrafficMatrix) -> String {
    let mut head = vec!["bytes/s, both directions".to_owned()];
    head.extend(matrix.servers.iter().map(|server| inline(server)));
    let rows: Vec<Vec<String>> = matrix
        .peers
        .iter()
        .zip(&matrix.bytes_per_second)
        .map(|(peer, cells)| {
            let cells = cells.iter().map(|cell| shown(*cell, units::bytes));
            std::iter::once(inline(peer)).chain(cells).collect()
        })
        .collect();
    let title = match matrix.group.as_str() {
        "" => String::new(),
        group => format!("\n### {}\n\n", capital(&inline(group))),
    };
    format!("{title}{}", table(&head, &rows))
}

/// A table without the columns of which nothing is known; nothing without rows.
fn optional_table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let is_known = |at: &usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(*at));
        cells.any(|cell| !matches!(cell.as_str(), "" | NONE))
    };
    let kept: Vec<usize> = (0..head.len()).filter(is_known).collect();
    let pick = |row: &dyn Fn(usize) -> Option<String>| -> Vec<String> {
        kept.iter().filter_map(|at| row(*at)).collect()
    };
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| pick(&|at| row.get(at).cloned()))
        .collect();
    table(
        &pick(&|at| head.get(at).map(|name| (*name).to_owned())),
        &rows,
    )
}

/// A value with its interval or range.
fn typical(estimate: Option<&Estimate>) -> String {
    estimate.map_or_else(
        || NONE.to_owned(),
        |one| match one.values {
            1 => units::figures(one.center()),
            _ => format!(
                "{} ({} to {})",
                units::figures(one.center()),
                units::figures(one.low),
                units::figures(one.high)
            ),
        },
    )
}

fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}
