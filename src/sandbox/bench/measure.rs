//! A run: the bench starts, measures and stops the pods of a way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};

use super::figures::{Interval, Point};
use super::job::{self, BenchPod, PodWork};
use super::plan::{BenchPlan, BenchProgram, Cpus, Way};
use super::report::{Metric, Run};
use crate::agent::Agent;
use crate::experiment::statistics::quantile;
use crate::host::file;
use crate::host::proc::Proc;
use crate::host::spawn::Stderr;
use crate::sandbox::interference::MeasuredInterference;
use crate::sandbox::local_node::{LineListener, LocalNode, PodStart};
use crate::sandbox::sample::Sample;
use crate::sandbox::steps::{Listener, StepSpan, stretch};

/// The keys of the reasons for missing migrations and step times. All other keys are names of
/// collectors.
pub(super) const MIGRATIONS: &str = "migrations";
pub(super) const STEPS: &str = "steps";

/// The longest time until the first step. Frameworks and emulated machines start slowly.
const FIRST_STEP: Duration = Duration::from_secs(120);

/// The time between the first step and the measurement, in which caches fill and memory is first allocated.
const WARM_UP: Duration = Duration::from_secs(1);

/// The longest time until a container has the planned CPUs.
const ASSIGNMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two checks of the pods.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The time between two checks of the pods while the bench measures the duration of a command.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The fewest steps of all workers in a measurement. A run goes on until they have made this many.
const FEWEST_STEPS: f64 = 10.0;

/// The longest quoted end of a command's standard error, in bytes.
const LONGEST_MESSAGES: usize = 2000;

/// The longest kept end of a command's standard error, in bytes.
const KEPT: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) plan: &'a BenchPlan,
    pub(super) agent: &'a mut Agent,
    pub(super) local: &'a mut LocalNode,
    /// The variables that a command inherits from the environment.
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Why counters are missing, by collector.
    pub(super) unsupported: BTreeMap<String, String>,
    number: usize,
}

/// The output of a worker or of a copy of the command.
#[derive(Debug)]
struct PodOutput {
    pod: String,
    listener: Arc<Mutex<Listener>>,
}

/// The state of the pods so far.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodStates {
    /// The indexes of terminated copies of the command.
    ended: Vec<usize>,
    as_planned: bool,
}

// === impl Bench ===

impl<'a> Bench<'a> {
    pub(super) fn new(
        plan: &'a BenchPlan,
        agent: &'a mut Agent,
        local: &'a mut LocalNode,
        environment: &'a BTreeMap<String, String>,
    ) -> Self {
        Self {
            plan,
            agent,
            local,
            environment,
            unsupported: BTreeMap::new(),
            number: 0,
        }
    }

    /// Runs the job in one way, and stops the pods.
    pub(super) async fn run(&mut self, round: usize, way: Way) -> anyhow::Result<Run> {
        let pods = job::pods(self.plan, way, self.number)?;
        self.number += 1;
        let run = self.measure(round, way, &pods).await;
        let run = run.with_context(|| format!("round {}, {}", round + 1, way.name()));
        tokio::task::block_in_place(|| self.local.stop_all())?;
        run
    }

    async fn measure(&mut self, round: usize, way: Way, pods: &[BenchPod]) -> anyhow::Result<Run> {
        let origin = Instant::now();
        let (mut outputs, mut started) = (Vec::new(), Vec::new());
        for pod in pods {
            let (began, listened) = self.start(pod, origin).await?;
            started.push(began);
            outputs.extend(listened);
        }
        if self.plan.runs_to_end() {
            return self.time_copies(round, way, pods, &started).await;
        }
        let began = Instant::now();
        self.until_all_step(began, pods, &outputs).await?;
        tokio::time::sleep(WARM_UP).await;
        let before = self.point(pods)?;
        let from = origin.elapsed();
        let length = Duration::from_secs(self.plan.seconds);
        let longest = Duration::from_secs(self.plan.limit).max(length * 2);
        let base: Vec<f64> = outputs.iter().map(steps).collect();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let states = self.pod_states(began, pods, &outputs)?;
            let took = origin.elapsed() - from;
            anyhow::ensure!(
                states.ended.is_empty(),
                "the command ended {:.1} s after the start of the measurement, before {} s had passed: make the command \
                 longer, lower --seconds, or remove --steps to measure the duration of the command",
                took.as_secs_f64(),
                self.plan.seconds
            );
            let made: Vec<f64> = outputs
                .iter()
                .zip(&base)
                .map(|(output, base)| steps(output) - base)
                .collect();
            if took >= length && made.iter().sum::<f64>() >= FEWEST_STEPS {
                let after = self.point(pods)?;
                if let Some(stretches) = stretches(&outputs, from, origin.elapsed()) {
                    let interval = Interval {
                        pods: job(pods).collect(),
                        begin: &before,
                        end: &after,
                    };
                    return Ok(self.run_of_steps(round, way, &interval, &stretches));
                }
            }
            let silent = outputs.iter().zip(&made).find(|(_, made)| **made == 0.0);
            anyhow::ensure!(
                took < longest,
                "{} in {} s: make the steps shorter, or raise --limit",
                silent.map_or_else(
                    || format!("fewer than {FEWEST_STEPS} steps"),
                    |(output, _)| format!("{} made no step", output.pod)
                ),
                took.as_secs()
            );
        }
    }

    /// Starts a pod as a container runtime does: the agent answers a request, and the container
    /// gets the CPUs and variables of the answer. Returns the starting time of the process and the
    /// line listener.
    async fn start(
        &mut self,
        pod: &BenchPod,
        origin: Instant,
    ) -> anyhow::Result<(Instant, Option<PodOutput>)> {
        let admission = self.agent.create(&pod.pod, &pod.pod.name).await?;
        let mut env = if pod.runs_command {
            self.environment.clone()
        } else {
            BTreeMap::new()
        };
        if pod.runs_command {
            // Lines must arrive as soon as the program writes them, not when a buffer is full.
            env.entry("PYTHONUNBUFFERED".to_owned())
                .or_insert_with(|| "1".to_owned());
        }
        env.extend(pod.env.clone());
        env.extend(admission.threads.variables);
        let listener = matches!(pod.part, PodWork::Worker | PodWork::Command)
            .then(|| Arc::new(Mutex::new(Listener::default())));
        let pattern = match &self.plan.work {
            BenchProgram::Command { steps, .. } => steps.clone(),
            BenchProgram::BuiltIn => None,
        };
        let part = pod.part;
        let hear: Option<LineListener> = listener.clone().map(|listener| -> LineListener {
            Box::new(move |text, at| {
                let at = at.saturating_duration_since(origin);
                let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
                match &pattern {
                    Some(pattern) => listener.command(pattern, text, at),
                    None if part == PodWork::Worker => listener.job(text, at),
                    None => {}
                }
            })
        });
        let command = pod.runs_command;
        let stderr = self.stderr_file(&pod.pod.name);
        // The file of an earlier run may be missing, so the error is ignored.
        let _ = std::fs::remove_file(&stderr);
        let start = PodStart {
            pod: &pod.pod,
            manifest: &pod.manifest,
            program: command.then(|| PathBuf::from("/bin/sh")),
            args: pod.args.clone(),
            env,
            address: pod.address,
            stderr: if command {
                Stderr::File(stderr)
            } else {
                Stderr::Inherit
            },
            hear,
        };
        let began = tokio::task::block_in_place(|| self.local.start(start))?;
        Ok((
            began,
            listener.map(|listener| PodOutput {
                pod: pod.pod.name.clone(),
                listener,
            }),
        ))
    }

    /// The file of a command's standard error, which disappears together with the manifests.
    fn stderr_file(&self, pod: &str) -> PathBuf {
        self.local.folder().join(format!("{pod}.err"))
    }

    /// Waits until each worker has made a step and has the planned CPUs.
    async fn until_all_step(
        &mut self,
        began: Instant,
        pods: &[BenchPod],
        outputs: &[PodOutput],
    ) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let states = self.pod_states(began, pods, outputs)?;
            let silent = outputs.iter().find(|output| !output.listener().has_begun());
            match silent {
                None if states.as_planned && states.ended.is_empty() => return Ok(()),
                Some(output) => anyhow::ensure!(
                    began.elapsed() < FIRST_STEP && states.ended.is_empty(),
                    "{} made no step in {} s: check that --steps matches the lines of standard output; a program that buffers \
                     its lines may need stdbuf -oL",
                    output.pod,
                    began.elapsed().as_secs()
                ),
                None => anyhow::ensure!(
                    states.ended.is_empty(),
                    "the command ended before the measurement: make the command longer"
                ),
            }
        }
    }

    /// Checks that all pods run and have the planned CPUs.
    fn pod_states(
        &mut self,
        began: Instant,
        pods: &[BenchPod],
        outputs: &[PodOutput],
    ) -> anyhow::Result<PodStates> {
        self.agent.check()?;
        for output in outputs {
            if let Some(trouble) = output.listener().trouble() {
                anyhow::bail!("can't use the output of {}: {trouble}", output.pod);
            }
        }
        let mut states = PodStates {
            ended: Vec::new(),
            as_planned: true,
        };
        for (place, pod) in pods.iter().enumerate() {
            let name = &pod.pod.name;
            if pod.runs_command {
                empty_if_long(&self.stderr_file(name));
            }
            match self.local.ended(name)? {
                None => {}
                Some(status) if pod.part == PodWork::Command && status.success() => {
                    states.ended.push(place);
                }
                Some(status) => anyhow::bail!(
                    "the process of {name} ended unexpectedly ({status}){}",
                    if pod.runs_command {
                        last_messages(&self.stderr_file(name))
                    } else {
                        String::new()
                    }
                ),
            }
        }
        let Some(snapshot) = self.agent.snapshot() else {
            return Ok(PodStates {
                as_planned: false,
                ..states
            });
        };
        for pod in pods.iter().filter(|pod| pod.part != PodWork::Neighbor) {
            let state = snapshot
                .containers
                .iter()
                .find(|state| state.uid.as_deref() == pod.pod.cgroup_uid());
            let own = state.and_then(|state| state.assigned.as_ref());
            let as_planned = match state {
                Some(state) if pod.exclusive => own.is_some() && own == state.effective.as_ref(),
                Some(_) => own.is_none(),
                None => false,
            };
            states.as_planned &= as_planned;
            let note = state
                .and_then(|state| state.note.as_deref())
                .unwrap_or("the agent gives no reason");
            anyhow::ensure!(
                as_planned || began.elapsed() < ASSIGNMENT_TIMEOUT,
                "{} does not have the planned CPUs: {note}",
                pod.pod.name
            );
        }
        Ok(states)
    }

    fn sample(&mut self) -> anyhow::Result<Sample> {
        let text = tokio::task::block_in_place(|| self.agent.scrape())?;
        let sample = Sample::parse(&text);
        self.unsupported.extend(sample.unsupported.clone());
        Ok(sample)
    }

    /// Reads the agent's counters and each thread's migrations. A scrape samples only a part of the
    /// threads, so the bench reads them all itself.
    fn point(&mut self, pods: &[BenchPod]) -> anyhow::Result<Point> {
        let proc = Proc::new(Path::new("/"));
        let migrations = match proc.no_migrations() {
            Some(reason) => {
                self.unsupported
                    .insert(MIGRATIONS.to_owned(), reason.to_owned());
                None
            }
            None => {
                let processes = job(pods).flat_map(|name| self.local.processes(name));
                let tasks = processes.flat_map(|pid| proc.tasks(pid));
                Some(
                    tasks
                        .filter_map(|task| Some((task.tid, task.migrations?)))
                        .collect(),
                )
            }
        };
        Ok(Point {
            sample: self.sample()?,
            migrations,
        })
    }

    /// The run of a job whose steps were measured.
    fn run_of_steps(
        &mut self,
        round: usize,
        way: Way,
        interval: &Interval<'_>,
        stretches: &[StepSpan],
    ) -> Run {
        let steps_per_second: f64 = stretches
            .iter()
            .map(|stretch| stretch.steps / stretch.seconds)
            .sum();
        let step_millis = self.step_millis(stretches);
        Run {
            round,
            way,
            seconds: interval.seconds(),
            steps: stretches.iter().map(|stretch| stretch.steps).sum(),
            thread_count: Some(interval.threads()),
            interference: self.interference(way, &interval.begin.sample, &interval.end.sample),
            figures: interval.figures(steps_per_second, &step_millis),
        }
    }

    /// The duration of each step, in milliseconds. Lines in bursts give no durations, and the
    /// report then says why.
    fn step_millis(&mut self, stretches: &[StepSpan]) -> Vec<f64> {
        if stretches.iter().any(StepSpan::is_clumped) {
            self.unsupported.insert(
                STEPS.to_owned(),
                "the command writes its lines in bursts, as from a buffer: turn the buffer off (stdbuf -oL), or match the \
                 time of a step with (?<ms>...)"
                    .to_owned(),
            );
            return Vec::new();
        }
        stretches
            .iter()
            .flat_map(|stretch| stretch.millis.iter().copied())
            .collect()
    }

    /// Measures how long each copy of the command takes from its start.
    async fn time_copies(
        &mut self,
        round: usize,
        way: Way,
        pods: &[BenchPod],
        started: &[Instant],
    ) -> anyhow::Result<Run> {
        let began = Instant::now();
        let copies = pods
            .iter()
            .filter(|pod| pod.part == PodWork::Command)
            .count();
        let switches = reaped()?;
        let mut took: BTreeMap<usize, f64> = BTreeMap::new();
        let mut planned_since: Option<Sample> = None;
        while took.len() < copies {
            tokio::time::sleep(END_CHECK_INTERVAL).await;
            let states = self.pod_states(began, pods, &[])?;
            if states.as_planned && planned_since.is_none() {
                planned_since = Some(self.sample()?);
            }
            for place in states.ended {
                took.entry(place)
                    .or_insert_with(|| started[place].elapsed().as_secs_f64());
            }
            anyhow::ensure!(
                began.elapsed() < Duration::from_secs(self.plan.limit),
                "the command has not ended within {} s: raise --limit, or match its steps with --steps",
                self.plan.limit
            );
        }
        let switches = reaped()? - switches;
        let Some(planned_since) = planned_since else {
            anyhow::bail!(
                "the command took only {:.0} ms and ended before its CPUs were exclusive: make the command longer",
                began.elapsed().as_secs_f64() * 1e3
            );
        };
        // The cgroups of terminated copies still exist, with their counters.
        let after = self.sample()?;
        let seconds = began.elapsed().as_secs_f64();
        let millis: Vec<f64> = took.values().map(|seconds| seconds * 1e3).collect();
        let figures = [
            (
                Metric::StepsPerSecond,
                Some(took.values().map(|seconds| 1.0 / seconds).sum()),
            ),
            (Metric::StepMsP50, quantile(&millis, 0.5)),
            (
                Metric::ContextSwitchesPerStep,
                Some(switches as f64 / copies as f64),
            ),
            (
                Metric::ThrottledPeriodsPerSecond,
                throttled(pods, &after).map(|throttled| throttled as f64 / seconds),
            ),
        ];
        let figures = figures
            .into_iter()
            .filter_map(|(metric, value)| Some((metric, value?)))
            .collect();
        Ok(Run {
            round,
            way,
            seconds,
            steps: copies as f64,
            thread_count: None,
            interference: self.interference(way, &planned_since, &after),
            figures,
        })
    }

    /// The use of the job's exclusive CPUs by programs outside the pods; `None` on shared CPUs.
    fn interference(
        &self,
        way: Way,
        before: &Sample,
        after: &Sample,
    ) -> Option<MeasuredInterference> {
        let plan = self.plan;
        let workers = (0..plan.workers).map(|index| (format!("worker-{index}"), plan.cpus));
        let servers = (0..plan.ps).map(|index| (format!("ps-{index}"), plan.ps_cpus));
        let owners: Vec<(String, u32)> = workers
            .chain(servers)
            .filter(|&(_, cpus)| cpus > 0 && way.cpus == Cpus::Pinned)
            .collect();
        let owners = owners
            .iter()
            .map(|(pod, cpus)| (pod.as_str(), *cpus as usize));
        MeasuredInterference::between(before, after, owners)
    }
}

// === impl PodOutput ===

impl PodOutput {
    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names of the job's pods.
fn job(pods: &[BenchPod]) -> impl Iterator<Item = &str> {
    pods.iter()
        .filter(|pod| pod.part != PodWork::Neighbor)
        .map(|pod| pod.pod.name.as_str())
}

/// The throttled periods of the job's pods since their start; `None` if a pod lacks the counter.
fn throttled(pods: &[BenchPod], sample: &Sample) -> Option<u64> {
    job(pods)
        .map(|name| sample.pods.get(name)?.throttled_periods)
        .sum()
}

fn steps(output: &PodOutput) -> f64 {
    output.listener().steps()
}

/// The steps of each worker; `None` if a worker has made no step.
fn stretches(outputs: &[PodOutput], from: Duration, to: Duration) -> Option<Vec<StepSpan>> {
    let of = |output: &PodOutput| {
        stretch(output.listener().marks(), from, to).filter(|output| output.steps > 0.0)
    };
    outputs.iter().map(of).collect()
}

/// Empties a command's file of standard error above the limit, because it lies in memory, beside
/// the runtime's own state.
fn empty_if_long(stderr: &Path) {
    let Ok(file) = std::fs::OpenOptions::new().write(true).open(stderr) else {
        return;
    };
    if file.metadata().is_ok_and(|found| found.len() > KEPT) {
        // The command appends to the file. If it can't be truncated, the next sample tries again.
        let _ = file.set_len(0);
    }
}

/// Context switches of all terminated child processes, including threads and descendants.
fn reaped() -> anyhow::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)
        .context("can't read the resource usage of ended processes")?;
    Ok(usage.voluntary_context_switches() + usage.involuntary_context_switches())
}

/// The end of a command's standard error.
fn last_messages(path: &Path) -> String {
    let Ok(Some(text)) = file::read_optional(path) else {
        return String::new();
    };
    let start = text.ceil_char_boundary(text.len().saturating_sub(LONGEST_MESSAGES));
    match text[start..].trim() {
        "" => String::new(),
        words => format!("; its messages:\n{words}"),
    }
}
