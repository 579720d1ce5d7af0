//! One run of an experiment: its objects, the wait for its end, and what it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::conduct::Lab;
use super::pages::AgentPages;
use super::pods::{ExpectedTasks, KnownPods, RunState, TaskPod, window};
use super::steps::{Progress, StepLines};
use super::usage::UsageBook;
use crate::experiment::results::{
    EvidenceSource, FORM, MeasuredRun, PlannedRun, RunRecord, TaskRecord, TaskUsage,
};
use crate::experiment::{AMOUNTS, RenderRequest, Rendered, RunTag, Slice, render};
use crate::scene::{ActiveCase, CHIEF, EVALUATOR, PS};

/// The shortest time between two looks at the pods. With many pods it is longer.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Pods that a second of looking may read.
const PODS_PER_SECOND: usize = 100;

/// Between two readings of the agents' pages, for up to [`FEW_NODES`] nodes and for more.
const PAGES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));
const FEW_NODES: usize = 8;

/// Between two messages about what a run waits for.
const REMINDER: Duration = Duration::from_secs(60);

/// The logs that are read at the same time.
const LOGS_AT_ONCE: usize = 8;

/// A run without a usable result, with the reason.
pub(super) type Unusable = String;

/// A run in progress.
struct Watch {
    pods: KnownPods,
    /// How far this machine's clock is before the cluster's, in seconds.
    ahead: f64,
    book: UsageBook,
    expected: ExpectedTasks,
    began: Instant,
    /// When every container had begun, and how often containers had been started again until then.
    complete: Option<(Instant, u32)>,
    pages: Option<AgentPages>,
    next_pages: Instant,
    /// When the user is told again what a run waits for.
    next_reminder: Instant,
}

impl Lab {
    /// The scene and the case of a run.
    pub(super) fn case_of(&self, run: &PlannedRun) -> anyhow::Result<ActiveCase> {
        let (scene, case) = self
            .experiment
            .names(run.condition)
            .context("the order has a condition that the experiment doesn't have")?;
        Ok(ActiveCase {
            scene: scene.scene.clone(),
            case: case.case.clone(),
        })
    }

    /// The objects of a run.
    pub(super) fn rendered(&self, run: &PlannedRun) -> anyhow::Result<Rendered> {
        let case = self.case_of(run)?;
        let tag = RunTag {
            experiment: self.experiment.id.clone(),
            way: run.condition.way,
            run: run.number,
        };
        let request = RenderRequest {
            plan: self.plan.plan(),
            scene: &case.scene,
            case: &case.case,
            job: &self.settings.job,
            format: self.settings.format,
            slice: &Slice::default(),
            run: Some(&tag),
            amounts: AMOUNTS,
        };
        Ok(render(&request)?)
    }

    /// Tries a run once: switches the case, creates the objects, waits for the end, collects, and deletes the objects. A failed
    /// run leaves nothing behind, either.
    ///
    /// # Errors
    /// The experiment can't go on.
    pub(super) async fn attempt(
        &self,
        run: &PlannedRun,
    ) -> anyhow::Result<Result<RunRecord, Unusable>> {
        let case = self.case_of(run)?;
        let rendered = self.rendered(run)?;
        self.plan.activate(Some(&case)).await?;
        let nodes = self
            .plan
            .wait_for_labels(&case, self.limits().switch)
            .await?;
        let limit = self.limits().switch;
        let ahead = self.objects.create(&rendered.objects, limit).await?;
        let mut watch = self.watch(run, &nodes, ahead).await?;
        let outcome = match self.wait(&mut watch).await? {
            Ok(()) => self.collect(run, &watch).await?,
            Err(why) => Err(why),
        };
        self.objects.delete_all().await?;
        self.objects.wait_until_gone(self.limits().switch).await?;
        Ok(outcome)
    }

    async fn watch(
        &self,
        run: &PlannedRun,
        nodes: &BTreeSet<String>,
        ahead: f64,
    ) -> anyhow::Result<Watch> {
        let (_, case) = self
            .experiment
            .names(run.condition)
            .context("the order has a condition that the experiment doesn't have")?;
        let pages = match &self.agents {
            Some(agents) => {
                let find = || AgentPages::find(agents, |node| nodes.contains(node));
                let found = self.api.repeat(find).await;
                Some(found.context("can't list the agents' pods")?)
            }
            None => None,
        };
        let has_chief = case.tasks.get(CHIEF).is_some_and(|count| *count > 0);
        Ok(Watch {
            pods: KnownPods::default(),
            ahead,
            book: UsageBook::new(&self.experiment.namespace),
            expected: ExpectedTasks {
                count: case.tasks.clone(),
                ends_with_chief: has_chief && self.settings.job.success_policy.is_none(),
            },
            began: Instant::now(),
            complete: None,
            pages,
            next_pages: Instant::now(),
            next_reminder: Instant::now() + REMINDER,
        })
    }

    /// Looks at the pods until the run has ended or failed.
    async fn wait(&self, watch: &mut Watch) -> anyhow::Result<Result<(), Unusable>> {
        loop {
            let pods = self.objects.pods().await?;
            watch
                .pods
                .update(pods.iter().filter_map(TaskPod::read).collect());
            let state = watch.pods.judge(&watch.expected);
            if Instant::now() >= watch.next_pages || state == RunState::Ended {
                watch.read_pages().await;
            }
            if Instant::now() >= watch.next_reminder {
                watch.next_reminder = Instant::now() + REMINDER;
                if let RunState::Starting(late) = &state {
                    self.report(&format!("still waiting for {}", late.join("; ")));
                }
            }
            match watch.verdict(state, self.limits()) {
                Some(outcome) => return Ok(outcome),
                None => tokio::time::sleep(pause(watch.pods.count())).await,
            }
        }
    }

    /// Makes the record of a run that has ended.
    async fn collect(
        &self,
        run: &PlannedRun,
        watch: &Watch,
    ) -> anyhow::Result<Result<RunRecord, Unusable>> {
        let (began, ended) = window(&watch.pods, &watch.expected);
        let (Some(from), Some(to)) = (began, ended) else {
            return Ok(Err(
                "the kubelets do not report when the containers began and ended".to_owned(),
            ));
        };
        let (usage, evidence, doubt) = self.usage(watch, from, to).await;
        let progress = match self.progress(watch, from, to).await? {
            Ok(progress) => progress,
            Err(why) => return Ok(Err(why)),
        };
        let mut tasks = Vec::new();
        for pod in watch.pods.all() {
            tasks.push(task_record(
                pod,
                progress.get(&pod.name),
                usage.get(&pod.name),
            ));
        }
        tasks.sort_by(|a, b| (&a.role, a.index).cmp(&(&b.role, b.index)));
        let rates = progress
            .values()
            .map(|progress| progress.steps / progress.seconds);
        Ok(Ok(RunRecord {
            form: FORM,
            planned: *run,
            attempts: 1,
            failures: Vec::new(),
            failure: None,
            measured: MeasuredRun {
                began: Some(from.to_string()),
                ended: Some(to.to_string()),
                seconds: Some(seconds(to) - seconds(from)),
                steps_per_second: Some(rates.sum()),
                warnings: warnings(&tasks).into_iter().chain(doubt).collect(),
                tasks,
                evidence,
            },
        }))
    }

    /// What the tasks used, by pod, who says so, and why nobody can.
    async fn usage(
        &self,
        watch: &Watch,
        from: Timestamp,
        to: Timestamp,
    ) -> (
        BTreeMap<String, TaskUsage>,
        Option<EvidenceSource>,
        Option<String>,
    ) {
        if let Some(prometheus) = &self.prometheus {
            let names: Vec<&str> = watch.pods.all().map(|pod| pod.name.as_str()).collect();
            let window = (seconds(from), seconds(to));
            return match prometheus
                .usage(&self.experiment.namespace, &names, window)
                .await
            {
                Ok(usage) => (usage, Some(EvidenceSource::Prometheus), None),
                Err(error) => (BTreeMap::new(), None, Some(error.to_string())),
            };
        }
        let of_pod = |pod: &TaskPod| {
            let until = pod
                .ended
                .map_or(seconds(to), |ended| seconds(ended).min(seconds(to)));
            let usage = watch.book.of(&pod.name, pod.began.map(seconds), until)?;
            Some((pod.name.clone(), usage))
        };
        let usage: BTreeMap<String, TaskUsage> = watch.pods.all().filter_map(of_pod).collect();
        let source = (!usage.is_empty()).then_some(EvidenceSource::Agents);
        let doubt = usage
            .is_empty()
            .then(|| "no agent told what the tasks used".to_owned());
        (usage, source, doubt)
    }

    /// The progress of each task that trains, by pod.
    async fn progress(
        &self,
        watch: &Watch,
        from: Timestamp,
        to: Timestamp,
    ) -> anyhow::Result<Result<BTreeMap<String, Progress>, Unusable>> {
        let trains = |pod: &&TaskPod| !matches!(pod.role.as_str(), PS | EVALUATOR);
        let training: Vec<&TaskPod> = watch.pods.all().filter(trains).collect();
        if let (Some(prometheus), Some(metric)) = (&self.prometheus, &self.step_metric) {
            let names: Vec<&str> = training.iter().map(|pod| pod.name.as_str()).collect();
            let window = (seconds(from), seconds(to));
            let namespace = &self.experiment.namespace;
            let steps = match prometheus.steps(namespace, &names, metric, window).await {
                Ok(steps) => steps,
                Err(error) => return Ok(Err(error.to_string())),
            };
            return Ok(complete(&training, steps, || {
                format!("has no samples of {metric} in the run's time")
            }));
        }
        let Some(pattern) = &self.pattern else {
            anyhow::bail!("the experiment names no source of steps");
        };
        let lines = training.iter().map(|pod| async {
            let namespace = &self.experiment.namespace;
            let log = self.api.log(namespace, &pod.name, &pod.container).await;
            let log = log.with_context(|| format!("can't read the log of {}", pod.name))?;
            let lines = StepLines::read(&log.unwrap_or_default(), pattern);
            anyhow::Ok((pod.name.clone(), lines.progress()))
        });
        let lines = futures_util::stream::iter(lines).buffer_unordered(LOGS_AT_ONCE);
        let found: Vec<(String, Option<Progress>)> = lines.try_collect().await?;
        let found = found
            .into_iter()
            .filter_map(|(pod, progress)| Some((pod, progress?)));
        Ok(complete(&training, found.collect(), || {
            format!(
                "wrote fewer than two lines with steps after its warm-up (pattern {pattern}): name its lines with --step-pattern, or \
                 let it train longer"
            )
        }))
    }
}

// === impl Watch ===

impl Watch {
    async fn read_pages(&mut self) {
        let Some(pages) = &self.pages else { return };
        let names: BTreeSet<String> = self.pods.all().map(|pod| pod.name.clone()).collect();
        for page in pages.read().await.values() {
            let at = seconds(Timestamp::now()) - self.ahead;
            self.book.read(page, at, |pod| names.contains(pod));
        }
        self.next_pages = Instant::now() + between_pages(pages.nodes().len());
    }

    /// What follows from a state; `None` to wait on.
    fn verdict(
        &mut self,
        state: RunState,
        limits: super::conduct::Times,
    ) -> Option<Result<(), Unusable>> {
        match state {
            RunState::Ended => Some(Ok(())),
            RunState::Failed(why) => Some(Err(why)),
            RunState::Starting(late) if self.began.elapsed() > limits.start => Some(Err(format!(
                "after {} s these tasks have not begun: {}; if they only need more time, raise --start-limit",
                limits.start.as_secs(),
                late.join("; ")
            ))),
            RunState::Starting(_) => None,
            RunState::Running => {
                let restarts = self.pods.restarts();
                let (complete, before) = *self.complete.get_or_insert((Instant::now(), restarts));
                if restarts > before {
                    return Some(Err(
                        "a container failed in the middle of the training and was started again"
                            .to_owned(),
                    ));
                }
                (complete.elapsed() > limits.run).then(|| {
                    Err(format!(
                        "the job did not end within {} s: look in the logs whether it makes steps at all, and raise --run-limit, or let it train \
                         fewer steps",
                        limits.run.as_secs()
                    ))
                })
            }
        }
    }
}

/// The progress of the tasks that train, or what is missing. A role has steps in all of its tasks or in none: with TensorFlow's
/// coordinator only the chief counts, but a sum that lacks one of several workers would be wrong.
fn complete(
    training: &[&TaskPod],
    progress: BTreeMap<String, Progress>,
    lacks: impl Fn() -> String,
) -> Result<BTreeMap<String, Progress>, Unusable> {
    let has = |pod: &TaskPod| progress.contains_key(&pod.name);
    let counts = |role: &str| training.iter().any(|pod| pod.role == role && has(pod));
    let lacking = training
        .iter()
        .find(|pod| !has(pod) && (counts(&pod.role) || progress.is_empty()));
    match lacking {
        Some(pod) => Err(format!("{} {}", pod.task(), lacks())),
        None => Ok(progress),
    }
}

fn task_record(
    pod: &TaskPod,
    progress: Option<&Progress>,
    usage: Option<&TaskUsage>,
) -> TaskRecord {
    TaskRecord {
        role: pod.role.clone(),
        index: Some(pod.index),
        pod: pod.name.clone(),
        node: pod.node.clone(),
        began: pod.began.map(|time| time.to_string()),
        ended: pod.ended.map(|time| time.to_string()),
        restarts: pod.restarts,
        steps: progress.map(|progress| progress.steps),
        step_seconds: progress.map(|progress| progress.seconds),
        usage: usage.cloned().unwrap_or_default(),
    }
}

/// What makes a run doubtful.
fn warnings(tasks: &[TaskRecord]) -> Vec<String> {
    let restarted = tasks
        .iter()
        .filter(|task| task.restarts > 0)
        .map(|task| format!("{} was started again {} times", task.name(), task.restarts));
    restarted.collect()
}

/// Seconds since 1970.
fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}

/// The time between two looks at this number of pods.
pub(super) fn pause(pods: usize) -> Duration {
    POLL_INTERVAL.max(Duration::from_secs((pods / PODS_PER_SECOND) as u64))
}

fn between_pages(nodes: usize) -> Duration {
    if nodes > FEW_NODES { PAGES.1 } else { PAGES.0 }
}

/// How often the pages of each of so many nodes are read in a minute.
pub(super) fn readings_a_minute(nodes: usize) -> usize {
    60 / usize::try_from(between_pages(nodes).as_secs()).unwrap_or(60)
}
