//! `pinfold scene report`: what an experiment found, from its folder; or the work of a training job in a case, from the series
//! of a Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use k8s_openapi::jiff::Timestamp;

use super::super::Draft;
use super::super::interval::interval;
use super::results;
use crate::experiment::page;
use crate::experiment::results::{Outcome, outcome_markdown};
use crate::experiment::series::{StepMetric, Subject, outcome, seconds_of, time};
use crate::promql::{Prometheus, PrometheusAccess, QuerySource, RequestedRun, discover, gather};

/// The variable with the URL of a Prometheus.
const PROMETHEUS: &str = "PINFOLD_PROMETHEUS";

/// The default time range of a report.
const LAST: &str = "1h";

/// Report what an experiment found, or what training jobs used.
///
/// With FOLDER, the report is about an experiment that `pinfold scene run` carried out: verdicts first, each with its interval and
/// with the smallest effect that the experiment would have shown; then hot or idle parameter servers, stragglers, throttling and
/// other findings, and every run. Runs that failed or are missing are named, and no average contains them.
///
/// With --prometheus, the figures come from a Prometheus server that scrapes the agents. Each scene and case for which nodes were
/// labelled in the time range (pinfold_scene_info) is a separate run. Without such labels, the whole time range is one run, unless
/// --run names several. The report names hot parameter servers, and compares the runs of a case in two scenes, and larger cases
/// with the smallest one of their scene. One run of each allows no verdict.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene report results                     say what the experiment in a folder found
  pinfold scene report results --out report        also write report.html, report.md, report.json
  pinfold scene report results -o html > r.html    only the page
  pinfold scene report --prometheus http://127.0.0.1:9090 --last 6h      report the last 6 hours
  pinfold scene report --prometheus URL --case 2 --step-metric train_steps_total
  pinfold scene report --prometheus URL --job mnist \\
    --from 2026-11-22T10:00:00Z --to 2026-11-22T11:00:00Z
  pinfold scene report --prometheus URL --out report \\
    --run name=shared,from=…,to=… --run name=pinned,from=…,to=…

Exit codes: 0 done, 1 no run counts, or Prometheus has no data, 2 bad input, or no answer from Prometheus.")]
pub(super) struct ReportArgs {
    /// Folder with the results of `pinfold scene run`. The options about a Prometheus then have no meaning.
    #[arg(
        value_name = "FOLDER",
        conflicts_with_all = ["token_file", "user_file", "ca_file", "ReportScope", "run", "base", "step_metric"]
    )]
    folder: Option<PathBuf>,
    /// URL of the Prometheus server: http:// or https://, with the path before /api/v1, if any.
    #[arg(long, value_name = "URL", env = PROMETHEUS)]
    prometheus: Option<String>,
    /// File with a bearer token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with name:password, for basic authentication.
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    user_file: Option<PathBuf>,
    /// File with the certificates (PEM) of the authorities that sign the server's certificate [default: the system's file]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Timeout of a query, 1s to 24h.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = interval)]
    timeout: Duration,
    #[command(flatten)]
    of: ReportScope,
    /// A run: name=NAME, and any of from, to, last, job, job-namespace, scene and case, which overrule the options; may be repeated.
    #[arg(long, value_name = "KEY=VALUE,…")]
    run: Vec<String>,
    /// The case or the run that other runs are compared with [default: in each scene, the run with the fewest workers]
    #[arg(long, value_name = "CASE")]
    base: Option<String>,
    /// A counter of steps, with the labels namespace and pod; its name depends on the training program.
    #[arg(long, value_name = "METRIC")]
    step_metric: Option<StepMetric>,
    /// Also write report.html, report.md and report.json into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: ReportOutput,
}

/// Which tasks, and when.
#[derive(Debug, Clone, Default, Args)]
struct ReportScope {
    /// Only this training job (label training_job of pinfold_pod_info).
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Only jobs of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    job_namespace: Option<String>,
    /// Only this scene.
    #[arg(long, value_name = "SCENE")]
    scene: Option<String>,
    /// Only this case.
    #[arg(long, value_name = "CASE")]
    case: Option<String>,
    /// The start of the time range (RFC 3339).
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    from: Option<String>,
    /// The end of the time range (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The length of the time range, which ends at --to, like 90s, 30m, 6h or 2d [default: 1h]
    #[arg(long, value_name = "TIME")]
    last: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum ReportOutput {
    /// For people.
    #[default]
    Markdown,
    /// For programs: a JSON document.
    Json,
    /// The same as YAML.
    Yaml,
    /// A page in one file, for browsers.
    Html,
}

// === impl ReportArgs ===

impl ReportArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            // The folder's path is checked before any work, but the folder itself is made when the
            // report is ready.
            let existing = out.ancestors().find(|folder| folder.exists());
            ensure!(
                existing.is_none_or(Path::is_dir),
                "can't make the folder {}: {} is a file",
                out.display(),
                existing.unwrap_or(out).display()
            );
        }
        let Some(folder) = &self.folder else {
            return self.of_prometheus();
        };
        // The variable may be set for other calls, but nobody writes both on purpose.
        ensure!(
            self.prometheus.is_none() || std::env::var_os(PROMETHEUS).is_some(),
            "a report is about the experiment in a folder or about a Prometheus: remove {} or --prometheus",
            folder.display()
        );
        self.of_folder(folder)
    }

    /// Reports the experiment in a folder.
    fn of_folder(&self, folder: &Path) -> anyhow::Result<ExitCode> {
        let (outcome, counting) = results::read(folder)?;
        self.show(&outcome)?;
        if counting == 0 {
            super::super::complain(format_args!(
                "no run of {} counts, so nothing is compared: the report names the reason of each",
                folder.display()
            ));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reports what a Prometheus knows.
    fn of_prometheus(&self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.prometheus.is_some(),
            "nothing is named to report about: add the folder of an experiment's results, or --prometheus URL"
        );
        let now = Timestamp::now();
        let requested_runs = self.requested_runs(now)?;
        let runtime = super::super::run::runtime()?;
        let found = runtime.block_on(self.found(&requested_runs))?;
        let Some(outcome) = found else {
            return Ok(ExitCode::FAILURE);
        };
        self.show(&outcome)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the files and prints, as asked.
    fn show(&self, outcome: &Outcome) -> anyhow::Result<()> {
        if let Some(out) = &self.out {
            write_outcome(out, outcome)?;
        }
        match self.output {
            ReportOutput::Markdown => super::super::document(&outcome_markdown(outcome)),
            ReportOutput::Json => super::super::json(outcome),
            ReportOutput::Yaml => super::super::yaml(outcome),
            ReportOutput::Html => super::super::document(&page(outcome)),
        }
    }

    /// The named runs, or else the entire time, in which runs are searched later.
    fn requested_runs(&self, now: Timestamp) -> anyhow::Result<Vec<RequestedRun>> {
        if self.run.is_empty() {
            return Ok(vec![self.of.requested_run(self.of.name(), now)?]);
        }
        let mut requested_runs: Vec<RequestedRun> = Vec::new();
        for run in &self.run {
            let run_of_flag = self
                .of
                .with(run, now)
                .with_context(|| format!("--run {run}"))?;
            ensure!(
                requested_runs
                    .iter()
                    .all(|other| other.name != run_of_flag.name),
                "--run {run}: another run has the name {}: give each run a different name",
                run_of_flag.name
            );
            requested_runs.push(run_of_flag);
        }
        Ok(requested_runs)
    }

    /// What the runs show; `None` without a run, after a message to the user.
    async fn found(&self, requested_runs: &[RequestedRun]) -> anyhow::Result<Option<Outcome>> {
        let prometheus = self.prometheus()?;
        let mut source = QuerySource::new(&prometheus);
        let discovered = match (self.run.is_empty(), requested_runs) {
            (true, [all]) => match discover(&mut source, all).await {
                Err(error) if error.is_no_data() => return Ok(nothing(&error)),
                found => found?,
            },
            _ => requested_runs.to_vec(),
        };
        // Nodes may be labelled for a case in which nothing ran.
        let may_lack = self.run.is_empty() && discovered.len() > 1;
        let (mut runs, mut lacks) = (Vec::new(), Vec::new());
        for requested in &discovered {
            match gather(&mut source, requested, self.step_metric.as_ref()).await {
                Ok(observed) => runs.push(observed),
                Err(error) if error.is_no_data() && may_lack => {
                    lacks.push(anyhow::Error::new(error));
                }
                Err(error) if error.is_no_data() => return Ok(nothing(&error)),
                Err(error) => return Err(error.into()),
            }
        }
        if let (true, Some(first)) = (runs.is_empty(), lacks.first()) {
            super::super::complain(format_args!("{first:#}"));
            return Ok(None);
        }
        let mut notes: Vec<String> = lacks.iter().map(|error| format!("{error:#}")).collect();
        let warnings = source.warnings.iter();
        notes.extend(warnings.map(|warning| format!("Prometheus warns: {warning}")));
        let outcome = outcome(prometheus.url(), &runs, self.base.as_deref(), notes);
        Ok(Some(outcome.map_err(anyhow::Error::msg)?))
    }

    fn prometheus(&self) -> anyhow::Result<Prometheus> {
        let access = PrometheusAccess {
            token: self.token_file.as_deref(),
            user: self.user_file.as_deref(),
            authority: self.ca_file.as_deref(),
        };
        let url = self
            .prometheus
            .as_deref()
            .context("the URL of a Prometheus is missing: add --prometheus URL")?;
        Ok(Prometheus::new(url, access, self.timeout)?)
    }
}

fn nothing(error: &(dyn std::error::Error + 'static)) -> Option<Outcome> {
    match error.source() {
        Some(cause) => super::super::complain(format_args!("{error}: {cause}")),
        None => super::super::complain(error),
    }
    None
}

// === impl ReportScope ===

impl ReportScope {
    fn name(&self) -> String {
        self.job
            .clone()
            .or_else(|| self.job_namespace.clone())
            .unwrap_or_else(|| "all".to_owned())
    }

    fn requested_run(&self, name: String, now: Timestamp) -> anyhow::Result<RequestedRun> {
        let at = |flag: &str, text: &str| -> anyhow::Result<f64> {
            let time: Timestamp = text.parse().map_err(|_| {
                anyhow::anyhow!(
                    "{flag} {text}: write a time in the format of RFC 3339, like 2026-11-22T10:00:00Z"
                )
            })?;
            Ok(time.as_duration().as_secs_f64())
        };
        let to = match &self.to {
            Some(text) => at("to", text)?,
            None => now.as_duration().as_secs_f64(),
        };
        let from = match &self.from {
            Some(text) => at("from", text)?,
            None => {
                let text = self.last.as_deref().unwrap_or(LAST);
                let last = seconds_of(text).with_context(|| {
                    format!("last {text}: write a time like 90s, 30m, 6h, 2d or 1h30m")
                })?;
                to - last
            }
        };
        if from >= to {
            bail!(
                "the end of the time range is not after its start: from {} to {}",
                time(from),
                time(to)
            );
        }
        let Self {
            job_namespace: namespace,
            job,
            scene,
            case,
            ..
        } = self.clone();
        Ok(RequestedRun {
            name,
            subject: Subject {
                namespace,
                job,
                scene,
                case,
            },
            from,
            to,
        })
    }

    /// A run from an argument, with the settings of all runs.
    fn with(&self, run: &str, now: Timestamp) -> anyhow::Result<RequestedRun> {
        let (mut of, mut name, mut own) = (self.clone(), None, BTreeSet::new());
        for part in run.split(',') {
            let (key, value) = part.split_once('=').with_context(|| {
                format!(
                    "{part:?} is not KEY=VALUE: the keys are name, from, to, last, job, job-namespace, scene and case"
                )
            })?;
            let key = key.trim();
            ensure!(!value.is_empty(), "{key} has no value");
            ensure!(own.insert(key), "{key} is given twice");
            let into = match key {
                "name" => &mut name,
                "from" => &mut of.from,
                "to" => &mut of.to,
                "last" => &mut of.last,
                "job" => &mut of.job,
                "job-namespace" => &mut of.job_namespace,
                "namespace" => bail!("the key namespace has a new name: write job-namespace"),
                "scene" => &mut of.scene,
                "case" => &mut of.case,
                other => bail!(
                    "the key {other} is unknown: the keys are name, from, to, last, job, job-namespace, scene and case"
                ),
            };
            *into = Some(value.to_owned());
        }
        // A run's own settings go before those of all runs.
        ensure!(
            !(own.contains("from") && own.contains("last")),
            "the run has both from and last: remove one of them"
        );
        if own.contains("last") {
            of.from = None;
        }
        of.requested_run(name.context("the run has no name: add name=NAME")?, now)
    }
}

fn as_json(report: &impl serde::Serialize) -> anyhow::Result<String> {
    let cannot = "can't write the report as JSON";
    let value = serde_json::to_value(report).context(cannot)?;
    serde_json::to_string_pretty(&value).context(cannot)
}

/// Writes a report as files of a folder, whose texts are all ready. Each file is replaced atomically, and none if one of them
/// can't be written.
pub(super) fn write_outcome(folder: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let files = [
        ("report.html", page(outcome)),
        ("report.json", as_json(outcome)?),
        ("report.md", outcome_markdown(outcome)),
    ];
    fs::create_dir_all(folder)
        .with_context(|| format!("can't make the folder {}", folder.display()))?;
    let drafts = files.iter();
    let drafts = drafts.map(|(name, text)| Ok((Draft::new(&folder.join(name))?, text)));
    for (draft, text) in drafts.collect::<anyhow::Result<Vec<_>>>()? {
        draft.write(text)?;
    }
    Ok(())
}
