//! [`Stage`]: starts the job in one of the two ways, measures it for a slice of time, and stops it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::report::{DemoRow, Figures, Metric};
use crate::agent::Agent;
use crate::experiment::statistics::percentile;
use crate::host::spawn::Stderr;
use crate::pin::Snapshot;
use crate::sandbox::interference::MeasuredInterference;
use crate::sandbox::job::{DemoPod, Mode};
use crate::sandbox::local_node::{LineListener, LocalNode, PodStart};
use crate::sandbox::sample::{Sample, SampledCounters};
use crate::sandbox::steps::{Listener, StepSpan, stretch};
use crate::text::counted;

/// The longest time until the workers' first step, and until the first measured step. A busy or
/// emulated machine is slow.
const FIRST_STEP: Duration = Duration::from_secs(120);

/// The shortest time from the start of the pods to the measurement. Meanwhile, workers connect,
/// caches fill and memory is first allocated.
const WARM_UP: Duration = Duration::from_secs(1);

/// The longest time until every pod has the CPUs that the agent has decided on.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two checks of the pods.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The time between two frames.
const FRAME_INTERVAL: Duration = Duration::from_secs(1);

/// A slice to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) mode: Mode,
    /// The round, from 1, and the number of rounds.
    pub(super) round: (u32, u32),
    pub(super) length: Duration,
}

#[derive(Debug, Clone)]
pub struct DemoFrame {
    pub mode: Mode,
    /// The round, from 1, and the number of rounds.
    pub round: (u32, u32),
    /// The seconds measured so far in this slice; `None` during the warm-up.
    pub measured: Option<f64>,
    /// Whether the frame is the last one of its way.
    pub is_last: bool,
    /// The address on which the agent serves metrics.
    pub address: SocketAddr,
    pub rows: Vec<DemoRow>,
}

/// What a slice measured.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) figures: Figures,
    /// The pods, with rates over the whole slice.
    pub(super) rows: Vec<DemoRow>,
    pub(super) interference: Option<MeasuredInterference>,
    pub(super) seconds: f64,
}

/// The agent and the node on which the slices run.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    agent: &'a mut Agent,
    pub(super) local: &'a mut LocalNode,
    problems: Problems,
}

/// What went wrong in any slice.
#[derive(Debug, Default)]
struct Problems {
    /// A sentence each.
    sentences: Vec<String>,
    /// How many writes to cgroups have failed.
    failed_writes: u64,
    /// Whether the pods were too late to get their CPUs. The demo doesn't wait for that again.
    is_unsettled: bool,
}

/// A worker's output.
#[derive(Debug)]
struct Worker {
    pod: String,
    listener: Arc<Mutex<Listener>>,
}

// === impl Turn ===

impl Turn {
    pub(super) fn is_last_round(&self) -> bool {
        self.round.0 >= self.round.1
    }
}

// === impl Worker ===

impl Worker {
    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Problems ===

impl Problems {
    /// Notes a problem once. An error stays noted, because the figures have suffered from it.
    fn note(&mut self, sentence: String) {
        if !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
    }

    /// Notes where an owner's CPUs differ from what was assigned.
    fn note_drift(&mut self, snapshot: &Snapshot) {
        for owner in &snapshot.containers {
            let (Some(assigned), Some(effective)) = (owner.own(), owner.effective.as_ref()) else {
                continue;
            };
            if owner.running && assigned != effective {
                self.note(format!(
                    "{} should run on {}, but runs on {}",
                    owner.pod,
                    assigned.in_words(),
                    effective.in_words()
                ));
            }
        }
    }

    /// All problems. The agent keeps an error only until its next turn, so a failed write may be
    /// known only by its count.
    fn sentences(&self) -> Vec<String> {
        let mut all = self.sentences.clone();
        if self.failed_writes > 0 {
            let failed = counted(self.failed_writes, "write");
            all.push(format!("{failed} to cgroups failed or had no effect"));
        }
        all
    }
}

// === impl Stage ===

impl<'a> Stage<'a> {
    pub(super) fn new(agent: &'a mut Agent, local: &'a mut LocalNode) -> Self {
        Self {
            agent,
            local,
            problems: Problems::default(),
        }
    }

    pub(super) fn enforcement(&self) -> &'static str {
        let snapshot = self.agent.snapshot();
        snapshot.map_or("observe", |snapshot| snapshot.enforcement.name())
    }

    /// What went wrong, a sentence each. `has_owner` says whether a pod got exclusive CPUs.
    pub(super) fn problems(&self, has_owner: bool) -> Vec<String> {
        let mut all = self.problems.sentences();
        if !has_owner {
            all.push("no pod of the job got exclusive CPUs".to_owned());
        }
        all
    }

    /// Starts the pods, measures the job, and leaves the pods running.
    pub(super) async fn measure(
        &mut self,
        turn: &Turn,
        pods: &[DemoPod],
        show: &mut impl FnMut(&DemoFrame),
    ) -> anyhow::Result<Slice> {
        let origin = Instant::now();
        let workers = self.start(pods, origin).await?;
        self.warm_up(turn, pods, &workers, show).await?;
        let (base, from) = (self.sample(pods, &workers)?, origin.elapsed());
        let mut last = base.clone();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.check()?;
            let measured = base.at.elapsed();
            let spans = (measured >= turn.length)
                .then(|| spans(&workers, from, origin.elapsed()))
                // If a step takes longer than the slice, the measurement goes on until the first one.
                .filter(|spans| spans.iter().all(has_step) || measured >= FIRST_STEP);
            if spans.is_none() && last.at.elapsed() < FRAME_INTERVAL {
                continue;
            }
            let now = self.sample(pods, &workers)?;
            let Some(spans) = spans else {
                let rows = self.rows(pods, &last, &now);
                show(&self.frame(turn, Some(measured), rows));
                last = now;
                continue;
            };
            let rows = self.rows(pods, &base, &now);
            let frame = self.frame(turn, Some(measured), rows.clone());
            show(&DemoFrame {
                is_last: turn.is_last_round(),
                ..frame
            });
            if let Some(snapshot) = self.agent.snapshot() {
                self.problems.note_drift(&snapshot);
            }
            let owners = rows.iter().filter(|row| row.exclusive);
            let owners = owners.map(|row| (row.pod.as_str(), row.cpus.len()));
            return Ok(Slice {
                figures: figures(&base, &now, &spans),
                interference: MeasuredInterference::between(&base, &now, owners),
                seconds: (now.at - base.at).as_secs_f64(),
                rows,
            });
        }
    }

    /// Ends the pods, as a deletion does.
    pub(super) fn stop(&mut self, pods: &[DemoPod]) -> anyhow::Result<()> {
        tokio::task::block_in_place(|| self.local.stop_all())?;
        // Without this report, the agent would list the ended pods for two more minutes.
        for ended in pods {
            self.agent.remove(&ended.pod)?;
        }
        Ok(())
    }

    /// Starts the pods as a container runtime does: the agent answers a request, and the container
    /// gets the CPUs and variables of the answer.
    async fn start(&mut self, pods: &[DemoPod], origin: Instant) -> anyhow::Result<Vec<Worker>> {
        let mut workers = Vec::new();
        for DemoPod {
            pod,
            manifest,
            args,
            address,
        } in pods
        {
            let admission = self.agent.create(pod, &pod.name).await?;
            let hear = pod.name.starts_with("worker").then(|| {
                let listener = Arc::<Mutex<Listener>>::default();
                workers.push(Worker {
                    pod: pod.name.clone(),
                    listener: Arc::clone(&listener),
                });
                let hear = move |text: &[u8], at: Instant| {
                    let at = at.saturating_duration_since(origin);
                    let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
                    listener.job(text, at);
                };
                Box::new(hear) as LineListener
            });
            let start = PodStart {
                pod,
                manifest,
                program: None,
                args: args.clone(),
                env: admission.threads.variables,
                address: Some(*address),
                stderr: Stderr::Inherit,
                hear,
            };
            tokio::task::block_in_place(|| self.local.start(start))?;
        }
        Ok(workers)
    }

    /// Waits until every worker has made a step and every pod has its CPUs.
    async fn warm_up(
        &mut self,
        turn: &Turn,
        pods: &[DemoPod],
        workers: &[Worker],
        show: &mut impl FnMut(&DemoFrame),
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut last = self.sample(pods, workers)?;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.check()?;
            let running = begun.elapsed();
            let has_begun = workers.iter().all(|worker| worker.listener().has_begun());
            if may_measure(running, has_begun)? && self.may_settle(pods, running) {
                return Ok(());
            }
            if last.at.elapsed() >= FRAME_INTERVAL {
                let now = self.sample(pods, workers)?;
                let rows = self.rows(pods, &last, &now);
                show(&self.frame(turn, None, rows));
                last = now;
            }
        }
    }

    /// Whether the wait for the pods' CPUs may end.
    fn may_settle(&mut self, pods: &[DemoPod], running: Duration) -> bool {
        let snapshot = self.agent.snapshot();
        let is_settled = snapshot.is_some_and(|snapshot| is_settled(&snapshot, pods));
        if !is_settled && running >= SETTLE_TIMEOUT && !self.problems.is_unsettled {
            self.problems.is_unsettled = true;
            self.problems.note(format!(
                "some pod did not have the CPUs that the agent decided on, {} s after its start",
                SETTLE_TIMEOUT.as_secs()
            ));
        }
        is_settled || self.problems.is_unsettled
    }

    /// Checks that the pods and the agent run, and notes the agent's errors.
    fn check(&mut self) -> anyhow::Result<()> {
        self.local.check()?;
        self.agent.check()?;
        if let Some(snapshot) = self.agent.snapshot() {
            for error in &snapshot.errors {
                self.problems.note(error.clone());
            }
        }
        Ok(())
    }

    /// A sample of all pods: the agent's metrics, and the processes' lines.
    fn sample(&mut self, pods: &[DemoPod], workers: &[Worker]) -> anyhow::Result<Sample> {
        let text = tokio::task::block_in_place(|| self.agent.scrape())?;
        let mut sample = Sample::parse(&text);
        self.problems.failed_writes = self.problems.failed_writes.max(sample.failed_writes);
        for pod in pods {
            let counters = sample.pods.entry(pod.pod.name.clone()).or_default();
            let line = self.local.line(&pod.pod.name);
            counters.steps = line.map_or(0, |line| line.steps);
        }
        for worker in workers {
            let counters = sample.pods.entry(worker.pod.clone()).or_default();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of steps is whole and not negative"
            )]
            let steps = worker.listener().steps() as u64;
            counters.steps = steps;
        }
        Ok(sample)
    }

    fn frame(&self, turn: &Turn, measured: Option<Duration>, rows: Vec<DemoRow>) -> DemoFrame {
        DemoFrame {
            mode: turn.mode,
            round: turn.round,
            measured: measured.map(|measured| measured.as_secs_f64()),
            is_last: false,
            address: self.agent.address(),
            rows,
        }
    }

    fn rows(&self, pods: &[DemoPod], before: &Sample, now: &Sample) -> Vec<DemoRow> {
        let Some(snapshot) = self.agent.snapshot() else {
            return Vec::new();
        };
        let seconds = (now.at - before.at).as_secs_f64();
        let mut rows = Vec::new();
        for DemoPod { pod, .. } in pods {
            let Some(state) = snapshot
                .containers
                .iter()
                .find(|state| state.uid.as_deref() == pod.cgroup_uid())
            else {
                continue;
            };
            let rate = |pick: fn(&SampledCounters) -> u64| {
                now.gain(before, &pod.name, pick) as f64 / seconds
            };
            rows.push(DemoRow {
                pod: pod.name.clone(),
                role: state.role.to_string(),
                qos: state.qos.to_string(),
                cpus: state.effective.clone().unwrap_or_default(),
                exclusive: state.assigned.is_some(),
                threads: now
                    .pods
                    .get(&pod.name)
                    .map_or(0, |counters| counters.threads),
                env: state.threads.variables.clone(),
                steps_per_second: rate(|counters| counters.steps),
                context_switches_per_second: rate(|counters| {
                    counters.context_switches.unwrap_or(0)
                }),
                receive_bytes_per_second: rate(|counters| counters.receive_bytes),
                transmit_bytes_per_second: rate(|counters| counters.transmit_bytes),
                throttled_periods_per_second: rate(|counters| {
                    counters.throttled_periods.unwrap_or(0)
                }),
                unpinned_seconds: state.unpinned_seconds,
                note: state.note.clone(),
            });
        }
        rows
    }
}

/// Whether the measurement may start. `has_begun` says that every worker has made a step.
///
/// # Errors
/// A worker has made no step within [`FIRST_STEP`].
fn may_measure(running: Duration, has_begun: bool) -> anyhow::Result<bool> {
    anyhow::ensure!(
        has_begun || running < FIRST_STEP,
        "a worker made no step within {} s: read the messages of the workers above",
        FIRST_STEP.as_secs()
    );
    Ok(has_begun && running >= WARM_UP)
}

/// Whether every pod runs on its own CPUs or on all shared CPUs, as the agent has decided. Otherwise the slice would begin
/// with some of the CPUs of the slice before.
fn is_settled(snapshot: &Snapshot, pods: &[DemoPod]) -> bool {
    let is_settled = |pod: &DemoPod| {
        let mut states = snapshot.containers.iter();
        let state = states.find(|state| state.uid.as_deref() == pod.pod.cgroup_uid());
        state.is_some_and(|state| {
            state.effective.as_ref() == Some(state.own().unwrap_or(&snapshot.shared))
        })
    };
    pods.iter().all(is_settled)
}

/// The steps of each worker between two moments; no step for a worker without two lines.
fn spans(workers: &[Worker], from: Duration, to: Duration) -> Vec<StepSpan> {
    let span = |worker: &Worker| stretch(worker.listener().marks(), from, to).unwrap_or_default();
    workers.iter().map(span).collect()
}

fn has_step(span: &StepSpan) -> bool {
    span.steps > 0.0
}

/// The figures of the job between two samples. A counter that the machine lacks has no figure.
fn figures(base: &Sample, now: &Sample, spans: &[StepSpan]) -> Figures {
    let seconds = (now.at - base.at).as_secs_f64();
    let names = || now.pods.keys().filter(|name| !name.starts_with("neighbor"));
    let of = |sample: &Sample, pick: fn(&SampledCounters) -> Option<f64>| {
        let values = names().map(|name| pick(sample.pods.get(name)?));
        values.sum::<Option<f64>>()
    };
    let per_second = |pick: fn(&SampledCounters) -> Option<f64>| {
        Some((of(now, pick)? - of(base, pick)?) / seconds)
    };
    let steps: f64 = spans
        .iter()
        .filter(|span| has_step(span))
        .map(|span| span.steps / span.seconds)
        .sum();
    let per_step = |rate: Option<f64>| rate.map(|rate| rate / steps).filter(|one| one.is_finite());
    let millis: Vec<f64> = spans
        .iter()
        .flat_map(|span| &span.millis)
        .copied()
        .collect();
    let switches = |counters: &SampledCounters| counters.context_switches.map(|one| one as f64);
    let involuntary =
        |counters: &SampledCounters| counters.involuntary_switches.map(|one| one as f64);
    let throttled = |counters: &SampledCounters| counters.throttled_periods.map(|one| one as f64);
    let figures = [
        (Metric::StepsPerSecond, Some(steps)),
        (Metric::StepMsP99, percentile(&millis, 99)),
        (
            Metric::ContextSwitchesPerStep,
            per_step(per_second(switches)),
        ),
        (
            Metric::InvoluntarySwitchesPerStep,
            per_step(per_second(involuntary)),
        ),
        (Metric::ThrottledPeriodsPerSecond, per_second(throttled)),
        (
            Metric::UsedCpus,
            per_second(|counters| counters.cpu_seconds),
        ),
        (
            Metric::Threads,
            // A late scrape leaves the threads out. A process has at least one.
            of(now, |counters| {
                (counters.threads > 0).then_some(counters.threads as f64)
            }),
        ),
    ];
    let known = figures.into_iter();
    known
        .filter_map(|(metric, value)| Some((metric, value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_ready_at_the_last_moment_is_no_error() {
        assert!(!may_measure(Duration::ZERO, true).unwrap(), "warm-up");
        assert!(!may_measure(WARM_UP, false).unwrap());
        assert!(may_measure(WARM_UP, true).unwrap());
        assert!(may_measure(FIRST_STEP, true).unwrap());
        let error = may_measure(FIRST_STEP, false).unwrap_err().to_string();
        assert!(error.contains("no step within 120 s"), "{error}");
    }

    #[test]
    fn a_failed_write_and_an_error_are_problems_once() {
        let text = "pinfold_reconcile_steps_total{outcome=\"done\"} 7\npinfold_reconcile_steps_total{outcome=\"gone\"} 1\n\
                    pinfold_reconcile_steps_total{outcome=\"not_in_force\"} 2\npinfold_reconcile_steps_total{outcome=\"blocked\"} 1\n";
        assert_eq!(Sample::parse(text).failed_writes, 3);
        assert!(Problems::default().sentences().is_empty());
        let mut problems = Problems {
            failed_writes: 3,
            ..Problems::default()
        };
        for _ in 0..2 {
            problems.note("pod/a: written, but the kernel reports 0-1".to_owned());
        }
        let sentences = problems.sentences();
        assert_eq!(sentences.len(), 2, "{sentences:?}");
        assert!(
            sentences[1].starts_with("3 writes to cgroups failed"),
            "{sentences:?}"
        );
    }

    fn sample(switches: u64, cpu_seconds: f64) -> Sample {
        Sample::parse(&format!(
            "pinfold_container_context_switches_total{{kind=\"involuntary\",pod=\"worker-0\"}} {switches}\n\
             pinfold_container_context_switches_total{{kind=\"voluntary\",pod=\"neighbor-0\"}} 999\n\
             pinfold_container_cpu_usage_seconds_total{{pod=\"worker-0\"}} {cpu_seconds}\n\
             pinfold_container_threads{{pod=\"worker-0\"}} 4\n"
        ))
    }

    #[test]
    fn figures_are_of_the_job_alone() {
        let (base, mut now) = (sample(100, 1.0), sample(300, 3.0));
        now.at = base.at + Duration::from_secs(2);
        let span = StepSpan {
            steps: 75.0,
            seconds: 1.5,
            millis: vec![3.0, 1.0, 2.0],
            has_durations: true,
        };
        let found = figures(&base, &now, &[span]);
        let expected = [
            (Metric::StepsPerSecond, 50.0),
            (Metric::StepMsP99, 3.0),
            (Metric::ContextSwitchesPerStep, 2.0),
            (Metric::InvoluntarySwitchesPerStep, 2.0),
            (Metric::UsedCpus, 1.0),
            (Metric::Threads, 4.0),
        ];
        assert_eq!(found, Figures::from(expected));
        let silent = figures(&base, &now, &[StepSpan::default()]);
        assert_eq!(
            (
                silent.get(&Metric::StepsPerSecond),
                silent.get(&Metric::StepMsP99),
                silent.get(&Metric::ContextSwitchesPerStep)
            ),
            (Some(&0.0), None, None)
        );
    }
}
