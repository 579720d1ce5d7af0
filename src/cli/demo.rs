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
use crate::sandbox::demo::{
    self, DemoFrame, DemoOptions, DemoReport, DemoRow, Means, Metric, Outcome, Proof,
};
use crate::sandbox::interference::MeasuredInterference;
use crate::sandbox::job::Mode;
use crate::sandbox::neighbors::NeighborKind;
use crate::text::values::whole;
use crate::text::{counted, units};

/// Run a small training job on this machine: in turns shared, and pinned and sized by the agent.
///
/// The processes are real, in separate cgroups and network namespaces. With four CPUs or more, the job is a parameter server
/// and workers; with fewer, it is one worker that keeps its parameters itself. Beside the job run neighbors: other pods,
/// which request the rest of the node. At the end, one of them tries to get an exclusive CPU; if it can, the exit code is 1.
/// The demo needs root but no cluster, leaves nothing behind, and does not touch a kubelet's cgroups.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold demo                    measure for 24 seconds, with a live table
  pinfold demo --seconds 120      measure longer, for narrower intervals
  pinfold demo --neighbors besteffort
                                  run beside a pod that requests nothing
  pinfold demo -o json            print only the figures, for programs")]
pub(super) struct Demo {
    /// Seconds of measurement, all slices of both ways together; an interval needs 10.
    #[arg(long, default_value_t = 24, value_parser = whole::<u64>(2..=86_400))]
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
        let logged = start_error_log()?;
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
        let Some(mut report) = done else {
            super::complain("interrupted; the demo left nothing behind");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        let mut errors = logged.sentences();
        errors.retain(|error| !report.problems.contains(error));
        report.problems.append(&mut errors);
        match self.output {
            OutputFormat::Text => super::emit(summary(&report))?,
            form => form.print(&report)?,
        }
        Ok(if report.is_proved() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// What a newcomer can do after the demo.
const NEXT: [&str; 3] = [
    "  pinfold doctor                 see what this machine supports, with remedies",
    "  pinfold bench --command '...'  compare the ways with your own training program",
    "  docs/quickstart.md, step 5     pin a pod, then install the agent in a cluster",
];

/// Prints the frames. On a terminal, each frame replaces the previous one. Elsewhere, only the last one of each way is
/// printed.
struct FrameOutput {
    term: Term,
    format: OutputFormat,
    lines: usize,
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
            spinner,
        }
    }

    fn show(&mut self, frame: &DemoFrame) {
        let (title, clock) = titles(frame);
        self.spinner.set_message(format!("{title} {clock}"));
        self.spinner.tick();
        if self.format != OutputFormat::Text {
            return;
        }
        if !self.term.is_term() && !frame.is_last {
            return;
        }
        let lines = draw(frame);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        // A failed write to the terminal is ignored, because the summary is printed in any case.
        if self.term.is_term() {
            let _ = self.term.clear_last_lines(self.lines);
        }
        let _ = self.term.write_str(&text);
        self.lines = lines.len();
    }
}

/// The title of a frame, and the time of its slice.
fn titles(frame: &DemoFrame) -> (String, String) {
    let way = match frame.mode {
        Mode::Shared => "shared CPUs, as many threads as the host has CPUs",
        Mode::Pinned => "exclusive CPUs, threads sized to the CPUs",
    };
    let (round, rounds) = frame.round;
    let clock = match frame.measured {
        None => "(warming up)".to_owned(),
        Some(seconds) => format!("({seconds:.0} s)"),
    };
    (format!("Round {round} of {rounds}: {way}"), clock)
}

fn draw(frame: &DemoFrame) -> Vec<Line> {
    let (title, clock) = titles(frame);
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
        &title,
        &format!("  {clock}"),
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

fn bold(sentence: &str) -> Line {
    Line::styled(&Style::new().bold(), sentence, "")
}

fn summary(report: &DemoReport) -> Vec<Line> {
    let mut lines = failures(report);
    lines.push(bold("What is compared"));
    let compared = report.compared.iter();
    lines.extend(compared.map(|sentence| format!("  {sentence}").into()));
    lines.push("".into());
    write_changes(&mut lines, report);
    if let Some(proof) = &report.proof {
        write_proof(&mut lines, proof);
    }
    write_owners(&mut lines, report);
    lines.push("".into());
    lines.push(bold("What to do next"));
    lines.extend(NEXT.map(Line::from));
    lines
}

/// What went wrong, before everything else.
fn failures(report: &DemoReport) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(proof) = report.proof.as_ref().filter(|proof| !proof.holds()) {
        lines.push(bold(&format!(
            "THE PROOF FAILED: {} may run on CPU {}, which {} owns",
            proof.neighbor, proof.cpu, proof.owner
        )));
        lines.push("".into());
    }
    if !report.problems.is_empty() {
        lines.push(bold("What failed, so the comparison is unreliable"));
        let problems = report.problems.iter();
        lines.extend(problems.map(|problem| format!("  {problem}").into()));
        lines.push("".into());
    }
    lines
}

/// The figures of both ways, and what they say.
fn write_changes(lines: &mut Vec<Line>, report: &DemoReport) {
    let mut table = super::table(&["", "SHARED", "PINNED AND SIZED", "CHANGE"]);
    for metric in Metric::ALL {
        let digits = match metric {
            Metric::UsedCpus => 2,
            Metric::Threads => 0,
            _ => 1,
        };
        let cell = |value: Option<&f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let effect = report.effects.get(&metric);
        table.add_row([
            metric.name().to_owned(),
            cell(report.shared.get(&metric)),
            cell(report.pinned.get(&metric)),
            effect.map_or_else(|| "-".to_owned(), |effect| effect.words.clone()),
        ]);
    }
    table.align_right(1..4);
    let steps = report.effects.get(&Metric::StepsPerSecond);
    let confidence = steps.and_then(|effect| effect.ratio?.confidence);
    let change = match confidence {
        Some(confidence) => format!(
            "the mean change within a round, with its {:.0} % interval",
            100.0 * confidence
        ),
        None => "the change within a round, with its range".to_owned(),
    };
    lines.push(bold("What changed"));
    lines.extend(table.lines().into_iter().map(Line::from));
    let rounds = counted(report.rounds.len(), "round");
    lines.push(format!("  medians of {rounds}; {change}").into());
    lines.push(bold(&format!("  {}", report.conclusion)));
    let interference = match report.interference {
        None => "The use of the exclusive CPUs by programs outside the pods was not measured."
            .to_owned(),
        Some(measured) if measured.reliable => measured.in_words(),
        Some(measured) => format!(
            "{} {} On an idle machine, both ways are faster.",
            measured.in_words(),
            MeasuredInterference::reason(report.enforcement)
        ),
    };
    lines.push(format!("  {interference}").into());
    lines.push("".into());
}

/// The attempts of a neighbor to get an exclusive CPU.
fn write_proof(lines: &mut Vec<Line>, proof: &Proof) {
    let Proof {
        owner,
        cpu,
        neighbor,
        attempts,
        ..
    } = proof;
    lines.push(bold(&format!(
        "Can a neighbor run on an exclusive CPU? {}",
        answer(proof)
    )));
    let shared = proof.allowed_while_shared.as_ref();
    let shared = shared.map_or_else(String::new, |allowed| {
        format!(" It had {allowed} while the CPUs were shared.")
    });
    lines.push(
        format!(
            "  {owner} owns CPU {cpu}. The columns show Cpus_allowed_list of {neighbor}.{shared}"
        )
        .into(),
    );
    let heading = format!("{neighbor} TRIES");
    let mut table = super::table(&[&heading, "BEFORE", "AT ONCE", "AFTER", "RESULT"]);
    for attempt in attempts {
        let means = match attempt.means {
            Means::Affinity => format!("taskset -pc {cpu} (sched_setaffinity)"),
            Means::Cpuset => format!("write {cpu} to its cpuset.cpus"),
        };
        table.add_row([
            means,
            attempt.before.to_string(),
            attempt.at_once.to_string(),
            attempt.after.to_string(),
            attempt.outcome.in_words(*cpu),
        ]);
    }
    lines.extend(table.lines().into_iter().map(Line::from));
    let is_repaired = |outcome: &Outcome| matches!(outcome, Outcome::Repaired { .. });
    if attempts.iter().any(|attempt| is_repaired(&attempt.outcome)) {
        let why = "On cgroup v1, and before Linux 6.7, the kernel allows such a write and the agent undoes it. Newer \
                   kernels with cgroup v2 keep the CPU themselves.";
        lines.push(format!("  {why}").into());
    }
    lines.push("".into());
}

/// Whether a neighbor can run on an exclusive CPU.
fn answer(proof: &Proof) -> String {
    if !proof.holds() {
        return "YES".to_owned();
    }
    let repaired = proof.attempts.iter().filter_map(|attempt| {
        let Outcome::Repaired { seconds } = attempt.outcome else {
            return None;
        };
        Some(seconds)
    });
    match repaired.reduce(f64::max) {
        Some(seconds) => format!("Only for {}", units::seconds(seconds)),
        None => "No".to_owned(),
    }
}

/// The pods with exclusive CPUs, and how they got them.
fn write_owners(lines: &mut Vec<Line>, report: &DemoReport) {
    lines.push(bold("Who got CPUs"));
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
    let end = format!(
        "  enforcement {}; measured {:.0} s; nothing is left behind",
        report.enforcement, report.seconds
    );
    lines.push(end.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::demo::Attempt;

    fn report(outcome: Outcome, problems: &[&str]) -> DemoReport {
        let cpus = |list: &str| list.parse().unwrap();
        DemoReport {
            enforcement: "cpuset",
            interference: None,
            compared: vec!["The job is 1 worker of 1 CPU.".to_owned()],
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
            neighbors: NeighborKind::Full,
            seconds: 4.0,
            rounds: Vec::new(),
            shared: [(Metric::StepsPerSecond, 100.0)].into(),
            pinned: [(Metric::StepsPerSecond, 120.0)].into(),
            effects: std::collections::BTreeMap::new(),
            conclusion: "The 95 % interval includes no difference.".to_owned(),
            proof: Some(Proof {
                owner: "worker-0".to_owned(),
                cpu: 1,
                neighbor: "neighbor-0".to_owned(),
                allowed_while_shared: Some(cpus("0-1")),
                attempts: vec![Attempt {
                    means: Means::Cpuset,
                    before: cpus("0"),
                    at_once: cpus("1"),
                    after: cpus("0"),
                    outcome,
                }],
            }),
            pods: Vec::new(),
        }
    }

    fn text(report: &DemoReport) -> String {
        let lines = summary(report);
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_repaired_attempt_is_shown_with_the_cpus_around_it() {
        let report = report(Outcome::Repaired { seconds: 0.014 }, &[]);
        let text = text(&report);
        assert!(
            report.is_proved() && text.starts_with("What is compared"),
            "{text}"
        );
        for says in [
            "Can a neighbor run on an exclusive CPU? Only for 14 ms",
            "It had 0-1 while the CPUs were shared.",
            "allowed by the kernel, repaired by the agent after 14 ms",
            "On cgroup v1, and before Linux 6.7",
            "The 95 % interval includes no difference.",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        let row = text
            .lines()
            .find(|line| line.contains("cpuset.cpus "))
            .unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[5..8], ["0", "1", "0"], "{text}");
        assert!(text.trim_end().ends_with("in a cluster"), "{text}");
    }

    #[test]
    fn a_partition_lets_no_neighbor_in() {
        let text = text(&report(Outcome::WithoutEffect, &[]));
        assert!(text.contains("on an exclusive CPU? No\n"), "{text}");
        assert!(
            text.contains("the kernel's partition keeps CPU 1"),
            "{text}"
        );
        assert!(!text.contains("cgroup v1"), "{text}");
    }

    #[test]
    fn what_failed_comes_first() {
        let report = report(Outcome::Failed { seconds: 30.0 }, &["can't write a file"]);
        let text = text(&report);
        assert!(!report.is_proved());
        assert!(
            text.starts_with("THE PROOF FAILED: neighbor-0 may run on CPU 1, which worker-0 owns"),
            "{text}"
        );
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("can't write a file") < at("What is compared"), "{text}");
        assert!(at("on an exclusive CPU? YES") > 0, "{text}");
        assert!(
            !DemoReport {
                proof: None,
                ..report
            }
            .is_proved()
        );
    }
}
