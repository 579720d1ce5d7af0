//! [`Lab`]: carries out an experiment, run after run, and puts everything back.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::folder::ResultsFolder;
use super::objects::Objects;
use super::series::RunSeries;
use super::settings::Settings;
use super::steps::StepPattern;
use super::switch::PlanSwitch;
use crate::cluster::agents::Agents;
use crate::cluster::patient::PatientApi;
use crate::experiment::report::StepMetric;
use crate::experiment::results::{Experiment, FORM, PlannedRun, RunRecord, StepSource};
use crate::promql::Prometheus;

/// An experiment on a cluster.
pub struct Lab {
    pub(super) api: PatientApi,
    pub(super) experiment: Experiment,
    pub(super) settings: Settings,
    pub(super) folder: ResultsFolder,
    pub(super) objects: Objects,
    pub(super) plan: PlanSwitch,
    /// The agents whose pages tell of usage; `None` if a Prometheus does.
    pub(super) agents: Option<Agents>,
    pub(super) prometheus: Option<RunSeries>,
    pub(super) pattern: Option<StepPattern>,
    pub(super) step_metric: Option<StepMetric>,
    /// Tells the user what happens.
    say: Box<dyn Fn(&str) + Send + Sync>,
}

/// The longest times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) switch: Duration,
    pub(super) start: Duration,
    pub(super) run: Duration,
}

/// How an experiment went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// All runs are recorded, this number of them as failed.
    Done { failed: usize },
    /// The warm-up failed for this reason, and so would every run.
    Useless { why: String },
    /// The user has ended it; some runs are missing.
    Interrupted,
}

/// What a lab needs beside the folder.
pub struct LabTools {
    pub api: PatientApi,
    pub agents: Agents,
    pub prometheus: Option<Prometheus>,
    /// Tells the user what happens.
    pub say: Box<dyn Fn(&str) + Send + Sync>,
}

impl std::fmt::Debug for Lab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab")
            .field("experiment", &self.experiment.id)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for LabTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LabTools").finish_non_exhaustive()
    }
}

// === impl Lab ===

impl Lab {
    /// A lab for the experiment of a folder. No request is sent.
    ///
    /// # Errors
    /// A file of the folder can't be read, or a step metric lacks a Prometheus.
    pub fn new(folder: ResultsFolder, tools: LabTools) -> anyhow::Result<Self> {
        let (experiment, settings) = folder.read()?;
        let LabTools {
            api,
            agents,
            prometheus,
            say,
        } = tools;
        let (pattern, step_metric) = match &experiment.steps {
            StepSource::Lines { pattern } => (Some(pattern.parse()?), None),
            StepSource::Metric { name } => {
                let metric: StepMetric = name.parse().map_err(anyhow::Error::msg)?;
                (None, Some(metric))
            }
        };
        if step_metric.is_some() && prometheus.is_none() {
            bail!("the steps come from a metric: name the Prometheus with --prometheus");
        }
        Ok(Self {
            objects: Objects::new(api.clone(), &experiment.namespace, &experiment.id),
            plan: PlanSwitch::new(api.clone(), settings.plan.clone(), &experiment.id),
            agents: prometheus.is_none().then_some(agents),
            prometheus: prometheus.map(RunSeries::new),
            api,
            experiment,
            settings,
            folder,
            pattern,
            step_metric,
            say,
        })
    }

    pub(super) fn limits(&self) -> Times {
        let limits = self.settings.limits;
        Times {
            switch: Duration::from_secs(limits.switch),
            start: Duration::from_secs(limits.start),
            run: Duration::from_secs(limits.run),
        }
    }

    /// Carries out all runs that have no record yet, and then puts everything back, also if `stop` comes first.
    ///
    /// # Errors
    /// The experiment can't go on, for example because the API server is away for too long. Everything stays as it is then, for
    /// another try.
    pub async fn conduct(&self, stop: &CancellationToken) -> anyhow::Result<Conclusion> {
        let conclusion = tokio::select! {
            conclusion = self.all_runs() => conclusion?,
            () = stop.cancelled() => Conclusion::Interrupted,
        };
        if conclusion == Conclusion::Interrupted {
            self.tell(
                "interrupted: the current run's objects are deleted, and everything is put back",
            );
        }
        self.put_back().await?;
        Ok(conclusion)
    }

    /// Deletes the objects of the experiment, and gives back or removes the plan and the namespace. What is gone already needs
    /// nothing, so it can be called again.
    ///
    /// # Errors
    /// A request fails, or something does not go in time.
    pub async fn put_back(&self) -> anyhow::Result<()> {
        let limit = self.limits().switch;
        self.objects.delete_all().await?;
        self.objects.gone(limit).await?;
        if self.settings.before.had_plan {
            self.plan.give_back(&self.settings.before).await?;
        } else {
            self.plan.remove(limit).await?;
        }
        if !self.settings.before.had_namespace {
            self.objects.delete_namespace(limit).await?;
        }
        Ok(())
    }

    pub(super) fn tell(&self, what: &str) {
        (self.say)(what);
    }

    /// Carries out the runs that have no record.
    async fn all_runs(&self) -> anyhow::Result<Conclusion> {
        self.plan.take(&self.settings.before).await?;
        if !self.settings.before.had_namespace {
            self.objects.create_namespace().await?;
        }
        // A process that was killed leaves the objects of its last run.
        self.objects.delete_all().await?;
        self.objects.gone(self.limits().switch).await?;
        let all = self.experiment.order.len();
        let mut failed = 0;
        let (began, mut done) = (Instant::now(), 0_u32);
        for (place, run) in self.experiment.order.iter().enumerate() {
            let record = match self.folder.record(run.number)? {
                Some(record) => record,
                None => {
                    let record = self.run(run).await?;
                    if let (None, Some(why)) = (run.block, &record.failure) {
                        // Without a record, so that a continued experiment tries it again.
                        let why = why.clone();
                        return Ok(Conclusion::Useless { why });
                    }
                    self.folder.put_record(&record)?;
                    done += 1;
                    let left =
                        began.elapsed() / done * u32::try_from(all - place - 1).unwrap_or(u32::MAX);
                    self.tell(&format!(
                        "{}{}",
                        self.result_line(&record, all),
                        time_left(left)
                    ));
                    record
                }
            };
            failed += usize::from(record.failure.is_some());
        }
        Ok(Conclusion::Done { failed })
    }

    /// Tries a run until it is usable or has failed too often.
    async fn run(&self, run: &PlannedRun) -> anyhow::Result<RunRecord> {
        let mut failures = Vec::new();
        loop {
            let attempts = u32::try_from(failures.len())
                .unwrap_or(u32::MAX)
                .saturating_add(1);
            match self.attempt(run).await? {
                Ok(record) => {
                    return Ok(RunRecord {
                        attempts,
                        failures,
                        ..record
                    });
                }
                Err(why) if attempts > self.settings.retries => {
                    return Ok(failed_record(run, attempts, failures, why));
                }
                Err(why) => {
                    self.tell(&format!("run {} is tried again: {why}", run.number));
                    failures.push(why);
                }
            }
        }
    }

    /// A line about a run that has ended.
    fn result_line(&self, record: &RunRecord, all: usize) -> String {
        let planned = record.planned;
        let what = match self.case_of(&planned) {
            Ok(case) => format!(
                "scene {} case {}, {}",
                case.scene,
                case.case,
                planned.condition.way.name()
            ),
            Err(_) => "an unknown case".to_owned(),
        };
        let block = planned.block.map_or_else(
            || "warm-up".to_owned(),
            |block| format!("repeat {}", block + 1),
        );
        let result = match (&record.failure, record.steps_per_second, record.seconds) {
            (Some(why), ..) => format!("FAILED: {why}"),
            (None, Some(rate), Some(seconds)) => format!("{rate:.2} steps/s in {seconds:.0} s"),
            _ => "no value".to_owned(),
        };
        format!(
            "run {} of {all} ({block}): {what}: {result}",
            planned.number
        )
    }
}

fn failed_record(run: &PlannedRun, attempts: u32, failures: Vec<String>, why: String) -> RunRecord {
    RunRecord {
        form: FORM,
        planned: *run,
        attempts,
        failures,
        failure: Some(why),
        began: None,
        ended: None,
        seconds: None,
        steps_per_second: None,
        tasks: Vec::new(),
        evidence: None,
        warnings: Vec::new(),
    }
}

/// The time left, as the end of a line.
fn time_left(left: Duration) -> String {
    match left.as_secs() {
        0 => String::new(),
        seconds @ 1..120 => format!("; about {seconds} s left"),
        seconds => format!("; about {} min left", seconds.div_ceil(60)),
    }
}
