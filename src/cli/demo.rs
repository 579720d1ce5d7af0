//! `pinfold demo`: the live table and the summary.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use console::{Style, Term};
use indicatif::ProgressBar;

use super::interrupt::{INTERRUPTED, cancel_on_signal};
use super::run::{runtime, start_error_log};
use super::{Line, OutputFormat};
use crate::agent::config::address;
use crate::sandbox::demo::{self, DemoFrame, DemoOptions, DemoReport, DemoRow, HalfFigures};
use crate::sandbox::job::Mode;
use crate::sandbox::neighbors::NeighborKind;
use crate::text::units;
use crate::text::values::whole;

/// Run a small training job on this machine: first shared, then pinned and sized by the agent.
///
/// The processes are real, in separate cgroups and network namespaces. With four CPUs or more, the job is a parameter server
/// and workers; with fewer, it is one worker that keeps its parameters itself. Beside the job run neighbors: other pods,
/// which request the rest of the node. The demo needs root but no cluster, leaves nothing behind, and does not touch a
/// kubelet's cgroups.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold demo                    run for 30 seconds, with a live table
  pinfold demo --seconds 120      run longer, for steadier figures
  pinfold demo --neighbors besteffort
                                  run beside a pod that requests nothing
  pinfold demo -o json            print only the figures, for programs")]
pub(super) struct Demo {
    /// Seconds of measurement, both halves together.
    #[arg(long, default_value_t = 30, value_parser = whole::<u64>(2..=86_400))]
    seconds: u64,
    /// Parameter servers of the job, 0 or 1; with 0, the worker keeps its parameters itself [default: 1, or 0 on a machine
    /// with fewer than four CPUs]
    #[arg(long, value_name = "N", value_parser = whole::<u8>(0..=1))]
    ps: Option<u8>,
    /// The pods beside the job.
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    neighbors: NeighborKind,
    /// Address on which the agent serves metrics during the demo.
    #[arg(long, default_value = "127.0.0.1:9470", value_parser = address)]
    listen: SocketAddr,
    /// Folder where the cgroup hierarchies are mounted.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_dir: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

impl Demo {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "the demo needs root, for cgroups and network namespaces: run it with sudo"
        );
        start_error_log()?;
        let options = DemoOptions {
            seconds: self.seconds,
            listen: self.listen,
            cgroup_dir: self.cgroup_dir,
            neighbors: self.neighbors,
            has_server: self.ps.map(|count| count > 0),
        };
        let mut screen = FrameOutput::new(self.output);
        let done = runtime()?.block_on(async {
            let stop = tokio_util::sync::CancellationToken::new();
            let signals = cancel_on_signal(stop.clone())?;
            let report = demo::run(&options, &stop, |frame| screen.show(frame)).await;
            signals.abort();
            screen.spinner.finish_and_clear();
            report
        })?;
        let Some(report) = done else {
            super::complain("interrupted; the demo left nothing behind");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        match self.output {
            OutputFormat::Text => super::emit(summary(&report))?,
            form => form.print(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the frames. On a terminal, each frame replaces the previous one of the half. Elsewhere,
/// only the last one of each half is printed.
struct FrameOutput {
    term: Term,
    format: OutputFormat,
    lines: usize,
    half: Option<Mode>,
    /// The spinner when no table is shown. It draws on standard error, and only on a terminal.
    spinner: ProgressBar,
}

// === impl FrameOutput ===

impl FrameOutput {
    fn new(format: OutputFormat) -> Self {
        let term = Term::stdout();
        let has_table = format == OutputFormat::Text && term.is_term();
        let spinner = if has_table {
            ProgressBar::hidden()
        } else {
            ProgressBar::new_spinner()
        };
        Self {
            term,
            format,
            lines: 0,
            half: None,
            spinner,
        }
    }

    fn show(&mut self, frame: &DemoFrame) {
        let name = match frame.mode {
            Mode::Shared => "shared",
            Mode::Pinned => "pinned and sized",
        };
        self.spinner.set_message(format!(
            "{name}: {} of {} s",
            frame.seconds.0, frame.seconds.1
        ));
        self.spinner.tick();
        if self.format != OutputFormat::Text {
            return;
        }
        let last = frame.seconds.0 >= frame.seconds.1;
        if !self.term.is_term() && !last {
            return;
        }
        if self.half != Some(frame.mode) {
            (self.half, self.lines) = (Some(frame.mode), 0);
        }
        let lines = draw(frame);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        // A failed write to the terminal is ignored, because the summary is printed in any case.
        let _ = self.term.clear_last_lines(self.lines);
        let _ = self.term.write_str(&text);
        self.lines = lines.len();
    }
}

fn draw(frame: &DemoFrame) -> Vec<Line> {
    let title = match frame.mode {
        Mode::Shared => "1 of 2: shared CPUs, as many threads as the host has CPUs",
        Mode::Pinned => "2 of 2: exclusive CPUs, threads sized to the CPUs",
    };
    let (now, end) = frame.seconds;
    let clock = if now == 0 {
        "warming up".to_owned()
    } else {
        format!("{now} of {end} s")
    };
    let mut table = super::table(&[
        "POD",
        "ROLE",
        "QOS",
        "CPUS",
        "THREADS",
        "STEPS/S",
        "SWITCHES/S",
        "THROTTLED/S",
        "IN/S",
        "OUT/S",
    ]);
    for row in &frame.rows {
        table.add_row(cells(row));
    }
    table.align_right(4..10);
    // Throttling, QoS, role, both directions of the network, switches.
    table.leave_out(&[7, 2, 1, 9, 8, 6]);
    let mut lines = vec![Line::styled(
        &Style::new().bold(),
        title,
        &format!("  ({clock})"),
    )];
    lines.extend(table.lines().into_iter().map(Line::from));
    for row in &frame.rows {
        let notes = row.note.iter();
        lines.extend(notes.map(|note| format!("  {}: {note}", row.pod).into()));
    }
    lines.push(format!("  metrics: curl http://{}/metrics", frame.address).into());
    lines.push("".into());
    lines
}

fn cells(row: &DemoRow) -> [String; 10] {
    let cpus = if row.exclusive {
        format!("{} exclusive", row.cpus)
    } else {
        format!("{} shared", row.cpus)
    };
    [
        row.pod.clone(),
        row.role.clone(),
        row.qos.clone(),
        cpus,
        row.threads.to_string(),
        format!("{:.0}", row.steps_per_second),
        format!("{:.0}", row.context_switches_per_second),
        format!("{:.1}", row.throttled_periods_per_second),
        units::bytes(row.receive_bytes_per_second),
        units::bytes(row.transmit_bytes_per_second),
    ]
}

/// The figures of both halves.
fn changes(report: &DemoReport) -> Vec<String> {
    let DemoReport { shared, pinned, .. } = report;
    let mut table = super::table(&["", "SHARED", "PINNED AND SIZED", "CHANGE"]);
    let mut line = |name: &str, digits: usize, pick: fn(&HalfFigures) -> Option<f64>| {
        let (Some(before), Some(after)) = (pick(shared), pick(pinned)) else {
            return table.add_row([name, "-", "-", "-"]);
        };
        let change = if before > 0.0 {
            units::change(after / before)
        } else {
            "-".to_owned()
        };
        table.add_row([
            name.to_owned(),
            format!("{before:.digits$}"),
            format!("{after:.digits$}"),
            change,
        ]);
    };
    line("steps/s, all workers", 1, |half| {
        Some(half.steps_per_second)
    });
    line("CPUs used by the job", 2, |half| half.used_cpus);
    line("context switches per step", 1, |half| {
        half.context_switches_per_step
    });
    line("of these, involuntary", 1, |half| {
        half.involuntary_switches_per_step
    });
    line("throttled periods/s", 1, |half| {
        Some(half.throttled_periods_per_second)
    });
    line("step time p99, ms", 1, |half| half.step_ms_p99);
    line("threads of the job", 0, |half| Some(half.threads as f64));
    table.align_right(1..4);
    table.lines()
}

fn summary(report: &DemoReport) -> Vec<Line> {
    let mut lines = introduction(report);
    lines.extend(changes(report).into_iter().map(Line::from));
    for row in report.pods.iter().filter(|row| row.exclusive) {
        let threads = row
            .env
            .get("TF_NUM_INTRAOP_THREADS")
            .map_or("-", String::as_str);
        // The kernel records the start of a process in hundredths of a second.
        let pinned_at = match row.unpinned_seconds {
            None => "at an unknown time".to_owned(),
            Some(unpinned) if unpinned < 0.02 => "within 20 ms of the first instruction".to_owned(),
            Some(unpinned) => format!("{} after the first instruction", units::seconds(unpinned)),
        };
        let line = format!(
            "  {}: exclusive {}, TF_NUM_INTRAOP_THREADS={threads}, pinned {pinned_at}",
            row.pod,
            row.cpus.in_words()
        );
        lines.push(line.into());
    }
    let interference = report.interference.map_or_else(
        || {
            "The use of the exclusive CPUs by programs outside the pods was not measured."
                .to_owned()
        },
        |interference| interference.in_words(),
    );
    lines.push(format!("  {interference}").into());
    let end = format!(
        "  enforcement {}; measured {:.0} s; nothing is left behind",
        report.enforcement, report.seconds
    );
    lines.push(end.into());
    lines
}

/// The text before the table: a warning if the comparison is unreliable, then the sentences about
/// it.
fn introduction(report: &DemoReport) -> Vec<Line> {
    let bold = |sentence: &str| Line::styled(&Style::new().bold(), sentence, "");
    let warning = report.interference.map_or_else(Vec::new, |interference| {
        interference.warning(
            report.enforcement,
            "The comparison of the two halves",
            "the demo",
        )
    });
    let mut lines: Vec<Line> = warning.iter().map(|sentence| bold(sentence)).collect();
    if !report.problems.is_empty() {
        lines.push(bold(
            "What failed: the second half was not pinned as it should be, so the comparison is unreliable",
        ));
        let problems = report.problems.iter();
        lines.extend(problems.map(|problem| format!("  {problem}").into()));
        lines.push("".into());
    }
    lines.push(bold("What is compared"));
    let compared = report.compared.iter();
    lines.extend(compared.map(|sentence| format!("  {sentence}").into()));
    lines.push("".into());
    lines.push(bold("What changed"));
    lines
}
