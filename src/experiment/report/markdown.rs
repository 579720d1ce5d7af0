//! [`markdown()`]: a report for people, as Markdown that is readable as plain text.

use std::fmt::Write;

use super::analysis::RunReport;
use super::balance::Balance;
use super::compare::{Efficiency, ExperimentReport};
use super::figures::{NONE, bytes, number, percent, seconds, shown};
use super::picture::Diagram;
use super::task_use::TaskUse;
use super::usage::{Traffic, Usage};
use crate::text::markdown::{inline, list, table};

/// A report as Markdown, with links to the pictures.
pub fn markdown(report: &ExperimentReport, pictures: &[Diagram]) -> String {
    let mut text = format!(
        "# Scene report\n\nSource: {}. {NONE} means that Prometheus has no such series.\n",
        inline(&report.prometheus)
    );
    let show = |text: &mut String, title: &str| {
        if let Some(picture) = pictures.iter().find(|picture| picture.title == title) {
            let _ = writeln!(text, "\n![{}]({})", inline(&picture.title), picture.file);
        }
    };
    if report.runs.len() > 1 {
        text.push_str("\n## Side by side\n\n");
        text.push_str(&side_by_side(report));
        list(&mut text, report.pairs.iter().map(|pair| pair.text.clone()));
        show(&mut text, "All runs");
    }
    for run in &report.runs {
        let _ = writeln!(text, "\n## {}\n\n{}", inline(&run.name), about(run));
        list(
            &mut text,
            run.findings.iter().map(|finding| finding.text.clone()),
        );
        text.push_str("\n### Roles\n\n");
        let rows = run.roles.iter().map(|role| {
            (
                vec![inline(&role.role), role.tasks.to_string()],
                &role.usage,
            )
        });
        text.push_str(&usage_table(&["role", "tasks"], rows));
        let servers: Vec<&TaskUse> = run.server_tasks().collect();
        if run.servers.traffic.is_some() || run.servers.cpu.is_some() {
            text.push_str("\n### Parameter servers\n\n");
            text.push_str(&shares(run, &servers));
        }
        text.push_str("\n### Tasks\n\n");
        let rows = run.tasks.iter().map(|task| {
            let nodes: Vec<&str> = task.nodes.iter().map(String::as_str).collect();
            let slots: Vec<&str> = task.slots.iter().map(String::as_str).collect();
            let slots = if slots.is_empty() {
                NONE.to_owned()
            } else {
                slots.join(", ")
            };
            (
                vec![
                    inline(&task.task),
                    inline(&nodes.join(", ")),
                    inline(&slots),
                ],
                &task.usage,
            )
        });
        text.push_str(&usage_table(&["task", "nodes", "slot"], rows));
        if !run.missing.is_empty() {
            text.push_str("\n### Missing data\n");
            list(&mut text, run.missing.iter().cloned());
        }
        show(&mut text, &format!("Run {}", run.name));
    }
    if !report.notes.is_empty() {
        text.push_str("\n## Notes\n");
        list(&mut text, report.notes.iter().cloned());
    }
    text
}

fn about(run: &RunReport) -> String {
    let bytes = match run.traffic {
        Traffic::Interfaces => "the pods' network interfaces",
        Traffic::Sockets => "the pods' sockets",
    };
    format!(
        "{}/{}, {} to {} ({}), scraped about every {}. The bytes are from {bytes}.",
        inline(&run.namespace),
        inline(&run.job),
        run.from,
        run.to,
        seconds(run.seconds),
        seconds(run.scrape_interval_seconds)
    )
}

/// The heading of a column, whether the column always appears, and how a value is written.
type UsageColumn = (&'static str, bool, fn(&Usage) -> String);

/// The columns of tables about usage. A column whose second field is false appears only if one of its values is known.
const COLUMNS: [UsageColumn; 13] = [
    ("sent", true, |usage| shown(usage.sent_bytes, bytes)),
    ("received", true, |usage| shown(usage.received_bytes, bytes)),
    ("sent/s", true, |usage| {
        shown(usage.sent_bytes_per_second, bytes)
    }),
    ("received/s", true, |usage| {
        shown(usage.received_bytes_per_second, bytes)
    }),
    ("CPU time", true, |usage| shown(usage.cpu_seconds, seconds)),
    ("CPUs busy", true, |usage| shown(usage.cpus_used, number)),
    ("owned", false, |usage| shown(usage.cpus_owned, number)),
    ("throttled", true, |usage| {
        shown(usage.throttled_share, percent)
    }),
    ("threads waiting", false, |usage| {
        shown(usage.threads_waiting, number)
    }),
    ("switches/s", false, |usage| {
        shown(usage.switches_per_second(), number)
    }),
    ("of them involuntary", false, |usage| {
        shown(usage.involuntary_switches_per_second, number)
    }),
    ("LLC misses/1000 instr.", false, |usage| {
        shown(usage.llc_misses_per_kiloinstruction, number)
    }),
    ("steps/s", true, |usage| {
        shown(usage.steps_per_second, number)
    }),
];

fn usage_table<'a>(names: &[&str], rows: impl Iterator<Item = (Vec<String>, &'a Usage)>) -> String {
    let rows: Vec<(Vec<String>, &Usage)> = rows.collect();
    let is_known = |show: fn(&Usage) -> String| rows.iter().any(|(_, usage)| show(usage) != NONE);
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(_, always, show)| *always || is_known(*show))
        .collect();
    let head = names.iter().map(|name| (*name).to_owned());
    let head: Vec<String> = head
        .chain(columns.iter().map(|(name, ..)| (*name).to_owned()))
        .collect();
    let lines = rows.iter().map(|(first, usage)| {
        first
            .iter()
            .cloned()
            .chain(columns.iter().map(|(.., show)| show(usage)))
            .collect()
    });
    table(&head, &lines.collect::<Vec<Vec<String>>>())
}

fn shares(run: &RunReport, servers: &[&TaskUse]) -> String {
    let (traffic, cpu) = (run.servers.traffic.as_ref(), run.servers.cpu.as_ref());
    let head = ["server", "bytes", "share", "CPU time", "share"].map(str::to_owned);
    let mut rows: Vec<Vec<String>> = servers
        .iter()
        .map(|task| {
            vec![
                inline(&task.task),
                shown(task.usage.traffic(), bytes),
                shown(
                    traffic.and_then(|balance| balance.share_of(&task.task)),
                    percent,
                ),
                shown(task.usage.cpu_seconds, seconds),
                shown(
                    cpu.and_then(|balance| balance.share_of(&task.task)),
                    percent,
                ),
            ]
        })
        .collect();
    let of = |name: &str, value: &dyn Fn(&Balance) -> f64| {
        let shown = |balance: Option<&Balance>| shown(balance.map(value), number);
        vec![
            name.to_owned(),
            String::new(),
            shown(traffic),
            String::new(),
            shown(cpu),
        ]
    };
    rows.push(of("maximum / mean", &|balance| balance.max_over_mean));
    rows.push(of("Gini", &|balance| balance.gini));
    table(&head, &rows)
}

/// A table with a column for each run.
struct RunTable<'a> {
    report: &'a ExperimentReport,
    rows: Vec<Vec<String>>,
}

// === impl RunTable ===

impl RunTable<'_> {
    fn row(&mut self, name: &str, value: &dyn Fn(&RunReport) -> String) {
        let row = std::iter::once(name.to_owned())
            .chain(self.report.runs.iter().map(value))
            .collect();
        self.rows.push(row);
    }

    /// The rows of the runs' progress, and of the scaling relative to a base.
    fn add_progress(&mut self) {
        let report = self.report;
        self.row("duration", &|run| seconds(run.seconds));
        self.row("workers", &|run| run.workers.to_string());
        self.row("parameter servers", &|run| {
            run.server_tasks().count().to_string()
        });
        self.row("steps/s", &|run| shown(run.steps_per_second(), number));
        let of = |run: &RunReport, text: &dyn Fn(&Efficiency) -> String| {
            let mut all = report.efficiency.iter();
            all.find(|efficiency| efficiency.run == run.name)
                .map_or_else(|| NONE.to_owned(), text)
        };
        self.row("speedup", &|run| {
            of(run, &|efficiency| {
                format!(
                    "{} with {} × the workers of {}",
                    number(efficiency.speedup),
                    number(efficiency.workers),
                    inline(&efficiency.base)
                )
            })
        });
        self.row("scaling efficiency", &|run| {
            of(run, &|efficiency| {
                format!(
                    "{}, in {}",
                    percent(efficiency.efficiency),
                    efficiency.by.words()
                )
            })
        });
    }

    /// The rows of a role's usage. A column without a known value appears only if it always appears.
    fn add_usage(&mut self, role: &str, name: &str) {
        for (title, always, show) in COLUMNS.iter().filter(|(title, ..)| *title != "steps/s") {
            let of = |run: &RunReport| run.role(role).map_or_else(|| NONE.to_owned(), *show);
            if *always || self.report.runs.iter().any(|run| of(run) != NONE) {
                self.row(&format!("{name}: {title}"), &of);
            }
        }
    }

    /// The rows of the balance between the parameter servers.
    fn add_balance(&mut self) {
        let of = |run: &RunReport, text: &dyn Fn(&Balance) -> String| {
            run.servers
                .traffic
                .as_ref()
                .map_or_else(|| NONE.to_owned(), text)
        };
        self.row("busiest server", &|run| {
            of(run, &|balance| {
                balance.hottest().map_or_else(String::new, |hottest| {
                    format!("{}, {}", inline(&hottest.task), percent(hottest.share))
                })
            })
        });
        self.row("its bytes / mean", &|run| {
            of(run, &|balance| number(balance.max_over_mean))
        });
        self.row("Gini of bytes", &|run| {
            of(run, &|balance| number(balance.gini))
        });
    }
}

fn side_by_side(report: &ExperimentReport) -> String {
    let names = report.runs.iter().map(|run| inline(&run.name));
    let head: Vec<String> = std::iter::once(String::new()).chain(names).collect();
    let mut table_of_runs = RunTable {
        report,
        rows: Vec::new(),
    };
    table_of_runs.add_progress();
    table_of_runs.add_usage("ps", "servers");
    table_of_runs.add_usage("worker", "workers");
    table_of_runs.add_balance();
    table(&head, &table_of_runs.rows)
}
