//! `pinfold demo`: the live table and the summary.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use comfy_table::CellAlignment;
use console::{Term, style};
use indicatif::{HumanBytes, ProgressBar};

use super::Format;
use super::run::{runtime, start_error_log};
use crate::local::demo::{self, Frame, Half, Options, Report, Row};
use crate::local::job::Mode;

/// Run a small training job on this machine: first shared, then pinned and sized by the agent.
///
/// Real processes in cgroups and network namespaces of their own: a parameter server, workers, and a noisy neighbour. No
/// cluster is needed, nothing is left behind, and a kubelet's own cgroups are not touched. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold demo                    half a minute, with a live table
  pinfold demo --seconds 120      steadier figures
  pinfold demo -o json            only the figures, for programs")]
pub(super) struct Demo {
    /// Seconds that the job is measured, both halves together.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    seconds: u64,
    /// Where the agent serves metrics meanwhile.
    #[arg(long, default_value = "127.0.0.1:9470")]
    listen: SocketAddr,
    /// Folder where the cgroup hierarchies are mounted.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_dir: PathBuf,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// The exit code of what was ended by a signal, as shells have it: 128 and the signal's number.
pub(super) const INTERRUPTED: u8 = 130;

impl Demo {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "the demo needs root, for cgroups and network namespaces: run it with sudo"
        );
        start_error_log()?;
        let options = Options {
            seconds: self.seconds,
            listen: self.listen,
            cgroup_dir: self.cgroup_dir,
        };
        let mut screen = Screen::new(self.output);
        let done = runtime()?.block_on(async {
            let stop = tokio_util::sync::CancellationToken::new();
            let ended = signals(stop.clone())?;
            let report = demo::run(&options, &stop, |frame| screen.show(frame)).await;
            ended.abort();
            screen.spinner.finish_and_clear();
            report
        })?;
        let Some(report) = done else {
            eprintln!("pinfold: interrupted; everything is cleaned up");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        match self.output {
            Format::Json => super::json(&report)?,
            Format::Text => super::emit(&summary(&report))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Stops a demo, or a bench, at Ctrl-C or SIGTERM.
pub(super) fn signals(
    stop: tokio_util::sync::CancellationToken,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for Ctrl-C")?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    }))
}

/// Where frames are drawn: over each other on a terminal, the last of each half elsewhere.
struct Screen {
    term: Term,
    format: Format,
    lines: usize,
    half: Option<Mode>,
    /// Where there is no table to look at; it draws on standard error, and only if that is a terminal.
    spinner: ProgressBar,
}

// === impl Screen ===

impl Screen {
    fn new(format: Format) -> Self {
        let term = Term::stdout();
        let seen = format == Format::Text && term.is_term();
        let spinner = if seen {
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

    fn show(&mut self, frame: &Frame) {
        let half = match frame.mode {
            Mode::Shared => "shared",
            Mode::Pinned => "pinned and sized",
        };
        self.spinner.set_message(format!(
            "{half}: {} of {} s",
            frame.seconds.0, frame.seconds.1
        ));
        self.spinner.tick();
        if self.format == Format::Json {
            return;
        }
        let last = frame.seconds.0 >= frame.seconds.1;
        if !self.term.is_term() && !last {
            return;
        }
        if self.half != Some(frame.mode) {
            (self.half, self.lines) = (Some(frame.mode), 0);
        }
        let text = draw(frame);
        // A terminal that can't be written to is nobody's loss: the summary goes the usual way.
        let _ = self.term.clear_last_lines(self.lines);
        let _ = self.term.write_str(&text);
        self.lines = text.lines().count();
    }
}

fn draw(frame: &Frame) -> String {
    let title = match frame.mode {
        Mode::Shared => "1 of 2: shared CPUs, threads as many as the host has CPUs",
        Mode::Pinned => "2 of 2: CPUs of their own, threads sized to them",
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
    for index in 4..10 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = format!("{}  ({clock})\n{table}\n", style(title).bold());
    for row in frame.rows.iter().filter(|row| row.note.is_some()) {
        let _ = writeln!(
            text,
            "  {}: {}",
            row.pod,
            row.note.as_deref().unwrap_or_default()
        );
    }
    let _ = writeln!(text, "  metrics: curl http://{}/metrics\n", frame.address);
    text
}

fn cells(row: &Row) -> [String; 10] {
    let cpus = if row.exclusive {
        format!("{} own", row.cpus)
    } else {
        format!("{} shared", row.cpus)
    };
    let bytes = |rate: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is not negative"
        )]
        let whole = rate as u64;
        HumanBytes(whole).to_string()
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
        bytes(row.receive_bytes_per_second),
        bytes(row.transmit_bytes_per_second),
    ]
}

fn summary(report: &Report) -> String {
    let Report { shared, pinned, .. } = report;
    let mut table = super::table(&["", "SHARED", "PINNED AND SIZED", "CHANGE"]);
    let mut line = |name: &str, pick: fn(&Half) -> Option<f64>| {
        let (Some(before), Some(after)) = (pick(shared), pick(pinned)) else {
            table.add_row([name, "-", "-", "-"]);
            return;
        };
        let change = if before > 0.0 {
            format!("{:+.0} %", (after / before - 1.0) * 100.0)
        } else {
            "-".to_owned()
        };
        table.add_row([
            name.to_owned(),
            format!("{before:.1}"),
            format!("{after:.1}"),
            change,
        ]);
    };
    line("steps/s, all workers", |half| Some(half.steps_per_second));
    line("context switches per step", |half| {
        half.context_switches_per_step
    });
    line("throttled periods/s", |half| {
        Some(half.throttled_periods_per_second)
    });
    line("step time p99, ms", |half| half.step_ms_p99);
    line("threads of the job", |half| Some(half.threads as f64));
    for index in 1..4 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = format!("{}\n{table}\n", style("What changed").bold());
    for row in report.pods.iter().filter(|row| row.exclusive) {
        let threads = row
            .env
            .get("TF_NUM_INTRAOP_THREADS")
            .map_or("-", String::as_str);
        // The kernel notes the start of a process in hundredths of a second.
        let window = match row.window_seconds {
            None => "at a time that was not seen".to_owned(),
            Some(window) if window < 0.02 => "within 20 ms of its first instruction".to_owned(),
            Some(window) => format!("{:.0} ms after its first instruction", window * 1e3),
        };
        let _ = writeln!(
            text,
            "  {}: {} of its own, TF_NUM_INTRAOP_THREADS={threads}, pinned {window}",
            row.pod,
            row.cpus.in_words()
        );
    }
    let _ = write!(
        text,
        "  enforcement {}; measured {:.0} s; nothing is left behind",
        report.enforcement, report.seconds
    );
    text
}
