//! [`Lab`]: carries out an experiment, run after run, and puts everything back.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cluster_state::cluster_id;
use super::folder::ResultsFolder;
use super::objects::Objects;
use super::series::RunSeries;
use super::settings::Settings;
use super::steps::StepPattern;
use super::switch::{PlanSwitch, rivals};
use crate::cluster::agents::Agents;
use crate::cluster::patient::PatientApi;
use crate::cluster::scenes;
use crate::experiment::results::{
    Experiment, FORM, MeasuredRun, PlannedRun, RunRecord, StepSource,
};
use crate::experiment::series::StepMetric;
use crate::promql::Prometheus;

/// How long refusals are repeated: a server that has just started refuses everybody until it has read its roles.
const FORGIVES: Duration = Duration::from_secs(60);

/// How long a request that was under way when the user interrupted may still have an effect.
const SETTLES: Duration = Duration::from_secs(2);

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
    /// The warm-up failed for this reason, and the other runs would, too.
    WarmUpFailed { why: String },
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
    /// A file of the folder can't be read.
    pub fn new(folder: ResultsFolder, tools: LabTools) -> anyhow::Result<Self> {
        let (experiment, settings) = folder.read()?;
        let LabTools {
            api,
            agents,
            prometheus,
            say,
        } = tools;
        let api = api.forgiving(FORGIVES);
        // One that the experiment did not begin with, perhaps from the environment, would mix two kinds of evidence.
        let prometheus = prometheus.filter(|_| settings.has_prometheus);
        let (pattern, step_metric) = match &experiment.steps {
            StepSource::Lines { pattern } => (Some(pattern.parse()?), None),
            StepSource::Metric { name } => {
                let metric: StepMetric = name.parse().map_err(anyhow::Error::msg)?;
                (None, Some(metric))
            }
        };
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

    /// Carries out all runs that have no usable record yet, until `stop`. [`Self::put_back`] is to follow.
    ///
    /// # Errors
    /// The experiment can't go on, for example because the API server is away for too long. Everything stays as it is then, for
    /// another try.
    pub async fn conduct(&mut self, stop: &CancellationToken) -> anyhow::Result<Conclusion> {
        ensure!(
            self.prometheus.is_some() || !self.settings.has_prometheus,
            "the experiment began with a Prometheus: name it with --prometheus"
        );
        self.check_cluster().await?;
        let conclusion = tokio::select! {
            conclusion = self.all_runs() => conclusion?,
            () = stop.cancelled() => Conclusion::Interrupted,
        };
        if conclusion == Conclusion::Interrupted {
            self.report(
                "interrupted: the current run's objects are deleted, and everything is put back",
            );
            // A creation that was under way may still come.
            tokio::time::sleep(SETTLES).await;
        }
        Ok(conclusion)
    }

    /// Refuses another cluster than the one in which the experiment began.
    async fn check_cluster(&self) -> anyhow::Result<()> {
        // Whoever may not read it, should not wait for it.
        let there = cluster_id(&self.api.clone().forgiving(Duration::ZERO)).await?;
        let ours = &self.experiment.cluster.id;
        ensure!(
            there.is_none() || ours.is_none() || there == *ours,
            "this is another cluster than the one in which the experiment began ({}): choose it with --context or --kubeconfig",
            self.experiment.cluster.server
        );
        Ok(())
    }

    /// Deletes the objects of the experiment, and gives back or removes the plan and the namespace. What is gone already needs
    /// nothing, so it can be called again. A step that fails keeps no other from its work.
    ///
    /// # Errors
    /// What is left, all of it.
    pub async fn put_back(&self) -> anyhow::Result<()> {
        self.check_cluster().await?;
        let limit = self.limits().switch;
        let mut left = Vec::new();
        let mut note = |done: anyhow::Result<()>| {
            left.extend(done.err().map(|error| format!("{error:#}")));
        };
        note(self.objects.delete_all().await);
        note(self.objects.wait_until_gone(limit).await);
        if self.settings.before.had_plan {
            note(self.plan.give_back(&self.settings.before).await);
        } else {
            note(self.plan.remove(limit).await);
        }
        if !self.settings.before.had_namespace {
            note(self.objects.delete_namespace(limit).await);
        }
        ensure!(left.is_empty(), "{}", left.join("; "));
        Ok(())
    }

    pub(super) fn report(&self, what: &str) {
        (self.say)(what);
    }

    /// Carries out the runs that have no record.
    async fn all_runs(&mut self) -> anyhow::Result<Conclusion> {
        if let Some(active) = self.plan.take(&self.settings.before).await? {
            // The user may have chosen another case since the experiment was interrupted.
            self.settings.before.active = active;
            self.folder.write(&self.experiment, &self.settings)?;
        }
        self.check_rivals().await?;
        if !self.settings.before.had_namespace {
            self.objects.create_namespace().await?;
        }
        // A process that was killed leaves the objects of its last run.
        self.objects.delete_all().await?;
        self.objects.wait_until_gone(self.limits().switch).await?;
        let all = self.experiment.order.len();
        let mut failed = 0;
        let (began, mut done) = (Instant::now(), 0_u32);
        for (place, run) in self.experiment.order.iter().enumerate() {
            let record = match self.folder.record(run.number)? {
                // What failed for good before an interruption may work now.
                Some(record) if record.failure.is_none() => record,
                _ => {
                    let record = self.run(run).await?;
                    if let (None, Some(why)) = (run.block, &record.failure) {
                        // Without a record, so that a continued experiment tries it again.
                        let why = why.clone();
                        return Ok(Conclusion::WarmUpFailed { why });
                    }
                    self.folder.put_record(&record)?;
                    done += 1;
                    let left =
                        began.elapsed() / done * u32::try_from(all - place - 1).unwrap_or(u32::MAX);
                    self.report(&format!(
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

    /// Refuses to go on beside another plan that wants the same nodes, perhaps of an experiment that began at the same moment.
    async fn check_rivals(&self) -> anyhow::Result<()> {
        let nodes = self.api.repeat(|| scenes::nodes(self.api.api())).await?;
        let rivals = rivals(&self.api, self.plan.plan(), &nodes).await?;
        ensure!(rivals.is_empty(), "{}", rivals.join("\n"));
        Ok(())
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
                    self.report(&format!("run {} is tried again: {why}", run.number));
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
        let measured = &record.measured;
        let result = match (&record.failure, measured.steps_per_second, measured.seconds) {
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
        measured: MeasuredRun::default(),
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
