//! `pinfold bench`: the plan, the progress, and the figures with the ratios first.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use console::Style;
use indicatif::{ProgressBar, ProgressStyle};

use super::run::{runtime, start_error_log};
use super::{Draft, Line, OutputFormat};
use crate::agent::config::EnforcementChoice;
use crate::cpu::CpuSet;
use crate::experiment::statistics::{Summary, USUAL_MARGIN};
use crate::sandbox::bench::plan::{BenchPlan, BenchProgram, PlanOptions, Way};
use crate::sandbox::bench::report::{BenchReport, Comparison, Metric};
use crate::sandbox::bench::steps::Pattern;
use crate::sandbox::bench::{self, BenchOptions, job, picture};
use crate::sandbox::neighbors::NeighborKind;
use crate::text::counted;
use crate::text::values::whole;

/// Measure the benefit of pinning and sizing on this machine.
///
/// The bench runs a training job in four ways: shared or pinned, with the host's thread counts or the right ones. Each round
/// runs all four in a balanced order, beside neighbors: other pods, which request the rest of the node. The processes are real,
/// in separate cgroups, and the real agent pins and sizes them. The bench needs root, and a node on which no other program
/// assigns CPUs. It leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold bench --dry-run                         print the plan and the expected duration
  pinfold bench --html bench.html                 run the built-in job, about four minutes
  pinfold bench --full-node                       fill the node with equal containers, pin one
  pinfold bench --host-threads 80 --neighbor-pods 4
                                                  simulate an 80-CPU host, beside four busy pods
  pinfold bench --command 'python3 train.py' --steps '^step'
                                                  count each line that begins with step as a step
  pinfold bench --command ./train --steps '(?<step>[0-9]+) steps, (?<ms>[0-9.]+) ms'
                                                  read each line's step number and duration
  pinfold bench --command './convert all' -o json measure the duration of the command

Exit codes: 0 done, 2 bad input, too few CPUs, no root, another agent, or a failed command; 130 interrupted.")]
pub(super) struct BenchArgs {
    /// Number of rounds, each with one run of every way; a verdict needs 5 rounds.
    #[arg(long, default_value_t = 8, value_parser = whole::<u16>(1..=1000))]
    rounds: u16,
    /// Seconds of measurement per run, after the first step and a warm-up (ignored for a command without --steps).
    #[arg(long, default_value_t = 4, value_parser = whole::<u32>(1..=3600))]
    seconds: u32,
    /// Seconds after which a run fails.
    #[arg(long, default_value_t = 3600, value_parser = whole::<u32>(10..=604_800))]
    limit: u32,
    /// CPUs of each worker [default: as many as fit, up to 4]
    #[arg(long, value_parser = whole::<u32>(1..=1024))]
    cpus: Option<u32>,
    /// Workers, or copies of the command, each with its number in PINFOLD_BENCH_INDEX [default: 1, or 2 for the built-in
    /// job if they fit on a machine with four CPUs or more]
    #[arg(long, value_parser = whole::<u32>(1..=100))]
    workers: Option<u32>,
    /// Parameter servers of the built-in job; with 0, each worker keeps its parameters itself [default: 1, or 0 on a machine
    /// with fewer than four CPUs]
    #[arg(long, conflicts_with = "command", value_parser = whole::<u32>(0..=100))]
    ps: Option<u32>,
    /// CPUs of each parameter server; 0 keeps the servers in the shared pool [default: 1 if the machine has room, else 0]
    #[arg(long, conflicts_with = "command", value_parser = whole::<u32>(0..=1024))]
    ps_cpus: Option<u32>,
    /// Reserved CPUs, like 0-1 [default: the lowest core without a CPU isolated at boot]
    #[arg(long, value_name = "LIST")]
    reserved: Option<CpuSet>,
    /// Simulate the thread counts of a host with N CPUs, by the agent's variables [default: no variables, so that programs
    /// count this host's CPUs]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    host_threads: Option<u32>,
    /// Fill the node with containers that have the same requests and run the same program. One of them (or as many as --workers
    /// says) runs in the four ways, and the others stay shared.
    #[arg(long, conflicts_with_all = ["ps", "ps_cpus", "neighbors", "neighbor_pods", "neighbor_busy", "neighbor_request"])]
    full_node: bool,
    /// The pods beside the job.
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    neighbors: NeighborKind,
    /// Number of pods beside the job [default: for full, one for each four CPUs of the rest, at least two; for besteffort, one]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=1000))]
    neighbor_pods: Option<u32>,
    /// Share of a CPU that each thread of a neighbor uses, in percent [default: 100, with short pauses of every second thread]
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(1..=100))]
    neighbor_busy: Option<u8>,
    /// CPU request of each neighbor, in thousandths of a CPU; 0 is BestEffort [default: an equal part of the rest of the node]
    #[arg(long, value_name = "MILLICPUS", value_parser = whole::<u64>(0..=1_000_000))]
    neighbor_request: Option<u64>,
    /// A shell command to run in place of the built-in job.
    #[arg(long)]
    command: Option<String>,
    /// A regular expression that finds the command's steps in the lines of its standard output [default: measure the duration
    /// of the command]
    #[arg(long, value_name = "PATTERN", requires = "command")]
    steps: Option<Pattern>,
    /// Enforcement of pinned CPUs.
    #[arg(long, value_enum, default_value_t)]
    enforcement: EnforcementChoice,
    /// Print the plan and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Also draw the figures, as SVG, into this file.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    svg: Option<PathBuf>,
    /// Also write a page about the bench, verdicts first, into this file. It needs nothing beside it.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    html: Option<PathBuf>,
    /// Folder where the cgroup hierarchies are mounted.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_dir: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl BenchArgs ===

impl BenchArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.command
                .as_deref()
                .is_none_or(|line| !line.trim().is_empty()),
            "--command is empty: name a command, or remove --command for the built-in job"
        );
        anyhow::ensure!(
            self.enforcement != EnforcementChoice::Observe,
            bench::NOTHING_TO_COMPARE
        );
        anyhow::ensure!(
            self.neighbors == NeighborKind::Full
                || self.neighbor_request.is_none_or(|millis| millis == 0),
            "--neighbors besteffort has no --neighbor-request: remove one of the two"
        );
        let options = PlanOptions {
            rounds: usize::from(self.rounds),
            seconds: u64::from(self.seconds),
            limit: u64::from(self.limit),
            workers: self.workers,
            cpus: self.cpus,
            ps: self.ps,
            ps_cpus: self.ps_cpus,
            host_threads: self.host_threads,
            full_node: self.full_node,
            neighbor_kind: self.neighbors,
            neighbor_pods: self.neighbor_pods,
            neighbor_busy: self.neighbor_busy,
            neighbor_request: self.neighbor_request,
            command: self.command.clone(),
            pattern: self.steps.clone(),
        };
        let plan = bench::plan(options, self.reserved.as_ref())?;
        if self.dry_run {
            match self.output {
                OutputFormat::Text => super::emit(planned(&plan)?)?,
                form => form.print(&plan)?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        self.measure(plan)
    }

    /// Runs the bench and prints the report.
    fn measure(&self, plan: BenchPlan) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "the bench needs root, for cgroups and network namespaces: run the command with sudo, or print the plan with \
             --dry-run"
        );
        start_error_log()?;
        // A file that can't be written ends the command here, before minutes of measurement.
        let picture = self.svg.as_deref().map(Draft::new).transpose()?;
        let page = self.html.as_deref().map(Draft::new).transpose()?;
        let bar = ProgressBar::new(plan.rounds.len() as u64 * 4);
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {pos} of {len} runs, {eta} left: {msg}",
        )?);
        let options = BenchOptions {
            plan,
            enforcement: self.enforcement,
            cgroup_dir: self.cgroup_dir.clone(),
        };
        let done = runtime()?.block_on(async {
            let stop = tokio_util::sync::CancellationToken::new();
            let signals = super::interrupt::cancel_on_signal(stop.clone())?;
            let report = bench::run(&options, &stop, |progress| {
                bar.set_position(progress.done as u64);
                bar.set_message(progress.way.name());
                bar.tick();
            })
            .await;
            signals.abort();
            bar.finish_and_clear();
            report
        });
        let report = match done {
            Ok(Some(report)) => report,
            other => {
                other?;
                super::complain("interrupted; the bench left nothing behind");
                return Ok(ExitCode::from(super::interrupt::INTERRUPTED));
            }
        };
        if let Some(draft) = picture {
            draft.write(&picture::draw(&report))?;
        }
        if let Some(draft) = page {
            draft.write(&bench::page(&report)?)?;
        }
        match self.output {
            OutputFormat::Text => super::emit(found(&report))?,
            form => form.print(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The work, the CPUs, the neighbors and the threads of a plan, in words.
fn setting(plan: &BenchPlan) -> [String; 4] {
    let free = plan.online.difference(&plan.reserved);
    let work = match &plan.work {
        BenchProgram::BuiltIn => {
            let servers = match (plan.ps, plan.ps_cpus) {
                (0, _) => "without a server".to_owned(),
                (_, 0) => format!("{} in the shared pool", counted(plan.ps, "server")),
                (_, cpus) => format!("{} of {}", counted(plan.ps, "server"), counted(cpus, "CPU")),
            };
            let workers = format!(
                "{} of {}",
                counted(plan.workers, "worker"),
                counted(plan.cpus, "CPU")
            );
            format!("the built-in training job: {workers}, {servers}")
        }
        BenchProgram::Command { line, steps } => {
            let steps = match steps {
                Some(pattern) => format!("steps by {pattern}"),
                None => "the duration is measured".to_owned(),
            };
            let each = if plan.workers == 1 { "" } else { " each" };
            let copies = if plan.workers == 1 { "copy" } else { "copies" };
            format!(
                "{} {copies} of {line:?} with {}{each}; {steps}",
                plan.workers,
                counted(plan.cpus, "CPU")
            )
        }
    };
    let host = match plan.host_threads {
        Some(threads) => format!("as on a host with {}", counted(threads, "CPU")),
        None => format!(
            "the program's default for {}",
            counted(plan.online.len(), "CPU")
        ),
    };
    [
        format!("  {work}"),
        format!(
            "  {}: {} reserved for the system, {free} available",
            plan.online.in_words(),
            plan.reserved
        ),
        format!("  {}", beside(plan)),
        format!("  host's threads: {host}; right threads: {}", plan.cpus),
    ]
}

fn bold(text: &str) -> Line {
    Line::styled(&Style::new().bold(), text, "")
}

/// The neighbors, in words.
fn beside(plan: &BenchPlan) -> String {
    let neighbors = plan.neighbors;
    if neighbors.count == 0 {
        return "no neighbors".to_owned();
    }
    let request = match neighbors.request_milli_cpus {
        0 => "BestEffort".to_owned(),
        millis => format!("a request of {millis}m"),
    };
    let threads = counted(neighbors.threads, "thread");
    let program = match neighbors.busy_percent {
        _ if plan.full_node => "the same program".to_owned(),
        Some(percent) => format!("{threads} with {percent} % of a CPU"),
        None => threads,
    };
    let full = if plan.is_full() {
        ": the node is full"
    } else {
        ""
    };
    let count = counted(neighbors.count, "neighbor");
    format!("{count} in the shared pool, each with {program} and {request}{full}")
}

fn planned(plan: &BenchPlan) -> anyhow::Result<Vec<Line>> {
    let mut lines = vec![bold("Planned setup")];
    lines.extend(setting(plan).map(Line::from));
    let variables: Vec<String> = job::right_variables(plan)?
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    lines.push(format!("  right threads are set by {}", variables.join(" ")).into());
    lines.push("  shared: the limit is a CFS quota; pinned: exclusive CPUs without a quota".into());
    lines.push("".into());
    lines.push(bold("Order of the runs"));
    for (number, round) in (1..).zip(&plan.rounds) {
        let names = round.map(Way::name).join(" | ");
        lines.push(format!("  round {number}: {names}").into());
    }
    let runs = plan.rounds.len() * 4;
    let end = match plan.estimate() {
        Some(seconds) => format!(
            "  {runs} runs of {} s, about {} in total",
            plan.seconds,
            counted((seconds / 60.0).ceil(), "minute")
        ),
        None => format!("  {runs} runs, each until the end of the command"),
    };
    lines.push(end.into());
    Ok(lines)
}

/// The report in words and tables.
fn found(report: &BenchReport) -> Vec<Line> {
    let found = &report.found;
    let warning = found.interference.map_or_else(Vec::new, |interference| {
        interference.warning(&found.enforcement)
    });
    let mut lines: Vec<Line> = warning.iter().map(|sentence| bold(sentence)).collect();
    lines.push(bold("Setup"));
    lines.extend(setting(&report.plan).map(Line::from));
    lines.push("".into());
    lines.push(bold("What is compared"));
    let compared = report.compared.iter();
    lines.extend(compared.map(|sentence| format!("  {sentence}").into()));
    lines.push("".into());
    write_effects(&mut lines, report);
    write_figures(&mut lines, report);
    write_claims(&mut lines, report);
    let interference = found.interference.map_or_else(
        || {
            "The use of the exclusive CPUs by programs outside the pods was not measured."
                .to_owned()
        },
        |interference| interference.in_words(),
    );
    lines.push("".into());
    lines.push(format!("  {interference}").into());
    let end = format!(
        "  enforcement {} ({}); nothing is left behind",
        found.enforcement, found.enforcement_reason
    );
    lines.push(end.into());
    lines
}

/// The table of ratios.
fn write_effects(lines: &mut Vec<Line>, report: &BenchReport) {
    let step = report.step();
    let columns = [
        Metric::StepsPerSecond,
        Metric::StepMsP99,
        Metric::ContextSwitchesPerStep,
    ];
    let columns = if report.plan.runs_to_end() {
        [columns[0], Metric::StepMsP50, columns[2]]
    } else {
        columns
    };
    let mut table = super::table(&[
        "",
        &columns[0].name(step),
        &columns[1].name(step),
        &columns[2].name(step),
    ]);
    table.leave_out(&[3, 2]);
    for comparison in Comparison::ALL {
        let words = |metric| {
            report
                .effect(comparison, metric)
                .map_or("", |effect| effect.words.as_str())
        };
        let mut row = vec![comparison.name()];
        row.extend(columns.map(words));
        table.add_row(row);
    }
    let confidence = report
        .effect(Comparison::Both, Metric::StepsPerSecond)
        .and_then(|effect| effect.ratio?.confidence);
    let rounds = counted(report.plan.rounds.len() as u64, "round");
    let legend = match confidence {
        Some(confidence) => format!(
            "  mean ratio of {rounds}, with its {:.0} % confidence interval",
            confidence * 100.0
        ),
        None => format!("  median ratio of {rounds}, with the range of all"),
    };
    lines.push(bold("Effects"));
    lines.extend(table.lines().into_iter().map(Line::from));
    lines.push(legend.into());
    let margin = (USUAL_MARGIN - 1.0) * 100.0;
    lines.push(
        format!(
            "  no effect: the interval lies within {margin:.0} %; would show: in 8 of 10 such benches"
        )
        .into(),
    );
    lines.push("".into());
}

/// The table of figures, and remarks about missing figures.
fn write_figures(lines: &mut Vec<Line>, report: &BenchReport) {
    let step = report.step();
    let mut table = super::table(&[
        "",
        "SHARED, HOST'S",
        "SHARED, RIGHT",
        "PINNED, HOST'S",
        "PINNED, RIGHT",
    ]);
    for metric in Metric::ALL {
        if report
            .ways
            .iter()
            .all(|way| !way.figures.contains_key(&metric))
        {
            continue;
        }
        let mut row = vec![metric.name(step)];
        row.extend(
            report
                .ways
                .iter()
                .map(|way| way.figures.get(&metric).map_or("-".to_owned(), cell)),
        );
        table.add_row(row);
    }
    if report.ways.iter().any(|way| way.thread_count.is_some()) {
        let mut row = vec!["threads of the job".to_owned()];
        row.extend(report.ways.iter().map(|way| {
            way.thread_count
                .map_or("-".to_owned(), |threads| threads.to_string())
        }));
        table.add_row(row);
    }
    table.align_right(1..5);
    // The ways in which only one of both is changed.
    table.leave_out(&[2, 3]);
    lines.push(bold("Figures"));
    lines.extend(table.lines().into_iter().map(Line::from));
    lines.push("  median (lower and upper quartile)".into());
    for (metric, reason) in &report.found.not_counted {
        lines.push(format!("  {}: not measured: {reason}", metric.name(step)).into());
    }
    let notes = report.found.notes.iter();
    lines.extend(notes.map(|note| format!("  {note}").into()));
}

/// The articles' claims, beside the results.
fn write_claims(lines: &mut Vec<Line>, report: &BenchReport) {
    lines.push("".into());
    lines.push(bold("Published claims"));
    let mut remarks: Vec<&str> = Vec::new();
    for claim in &report.claims {
        lines.push(format!("  claimed: {}", claim.claimed).into());
        lines.push(format!("     here: {}", claim.here).into());
        for but in &claim.but {
            if !remarks.contains(&but.as_str()) {
                lines.push(format!("      but: {but}").into());
                remarks.push(but);
            }
        }
    }
}

/// A median with the quartiles.
fn cell(summary: &Summary) -> String {
    let digits = match summary.median.abs() {
        median if median >= 100.0 => 0,
        median if median >= 1.0 => 1,
        _ => 2,
    };
    format!(
        "{:.digits$} ({:.digits$}-{:.digits$})",
        summary.median, summary.lower_quartile, summary.upper_quartile
    )
}
