//! One run: pods are started in one of the four ways, watched, counted and ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};

use super::job::{self, BenchPod, Part};
use super::plan::{Plan, Way, Work};
use super::report::{Metric, Run};
use super::stats;
use super::steps::{Listener, Stretch, stretch};
use crate::agent::Agent;
use crate::host::file;
use crate::host::spawn::Stderr;
use crate::local::node::{Hear, LocalNode, Start};
use crate::local::sample::{Counters, Sample};

/// How long the first step, and the first to be measured, may take; frameworks and emulated machines take their time.
const FIRST_STEP: Duration = Duration::from_secs(120);

/// Not counted after the first step: filling caches, first allocations.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long a container may wait for CPUs of its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks at what runs.
const LOOK: Duration = Duration::from_millis(50);

/// The same while a command's own time is taken.
const CLOSE_LOOK: Duration = Duration::from_millis(5);

/// Fewer steps than this say nothing of a step's time, so a run goes on until there are as many.
const FEWEST: f64 = 10.0;

/// A failed command's last words.
const WORDS: usize = 2000;

/// What runs a bench's pods.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) plan: &'a Plan,
    pub(super) agent: &'a mut Agent,
    pub(super) local: &'a mut LocalNode,
    /// What a command has of this program's environment.
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Why collectors count nothing here.
    pub(super) unsupported: BTreeMap<String, String>,
    number: usize,
}

/// A worker, or a copy of the command, as it is heard.
#[derive(Debug)]
struct Heard {
    pod: String,
    listener: Arc<Mutex<Listener>>,
}

/// What became of the pods so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    /// Copies of the command that have come to their end.
    ended: usize,
    /// Whether all have the CPUs that they are to have.
    settled: bool,
}

// === impl Bench ===

impl<'a> Bench<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        agent: &'a mut Agent,
        local: &'a mut LocalNode,
        environment: &'a BTreeMap<String, String>,
    ) -> Self {
        Self { plan, agent, local, environment, unsupported: BTreeMap::new(), number: 0 }
    }

    /// Runs the job in one way and ends it.
    pub(super) async fn run(&mut self, round: usize, way: Way) -> anyhow::Result<Run> {
        let pods = job::pods(self.plan, way, self.number)?;
        self.number += 1;
        let run = self.measure(round, way, &pods).await;
        let run = run.with_context(|| format!("round {}, {}", round + 1, way.name()));
        tokio::task::block_in_place(|| self.local.stop_all())?;
        run
    }

    async fn measure(&mut self, round: usize, way: Way, pods: &[BenchPod]) -> anyhow::Result<Run> {
        let began = Instant::now();
        let mut heard = Vec::new();
        for pod in pods {
            heard.extend(self.start(pod, began).await?);
        }
        if self.plan.whole() {
            return self.whole(round, way, pods).await;
        }
        self.until_all_step(began, pods, &heard).await?;
        tokio::time::sleep(WARM_UP).await;
        let before = self.sample()?;
        let from = began.elapsed();
        let length = Duration::from_secs(self.plan.seconds);
        let (after, stretches) = loop {
            tokio::time::sleep(LOOK).await;
            let look = self.look(began, pods)?;
            let to = began.elapsed();
            let stretches = stretches(&heard, from, to);
            let steps: f64 = stretches.iter().flatten().map(|one| one.steps).sum();
            let enough = stretches.iter().all(|one| one.as_ref().is_some_and(|one| one.steps > 0.0));
            if (to - from >= length && enough && steps >= FEWEST) || look.ended > 0 {
                anyhow::ensure!(
                    enough,
                    "the command ended before it could be measured: let it make more steps, or leave --steps out, so that \
                     the time to its end is measured"
                );
                break (self.sample()?, stretches);
            }
            anyhow::ensure!(
                to - from < FIRST_STEP.max(length * 2),
                "fewer than {FEWEST} steps in {} s: make them smaller",
                (to - from).as_secs()
            );
        };
        let stretches: Vec<Stretch> = stretches.into_iter().flatten().collect();
        Ok(self.stepped(round, way, pods, (&before, &after), &stretches))
    }

    /// Starts a pod as a runtime does: asks the agent, then makes the container with what it says.
    async fn start(&mut self, pod: &BenchPod, origin: Instant) -> anyhow::Result<Option<Heard>> {
        let container = pod.pod.containers.first().context("a pod of the bench has no container")?;
        let admission = self.agent.create(&pod.pod, &container.name).await?;
        let mut env = if pod.part == Part::Command { self.environment.clone() } else { BTreeMap::new() };
        env.extend(pod.env.clone());
        env.extend(admission.threads.variables);
        let listener = matches!(pod.part, Part::Worker | Part::Command)
            .then(|| Arc::new(Mutex::new(Listener::default())));
        let pattern = match &self.plan.work {
            Work::Command { steps, .. } => steps.clone(),
            Work::BuiltIn => None,
        };
        let part = pod.part;
        let hear: Option<Hear> = listener.clone().map(|listener| -> Hear {
            Box::new(move |text, at| {
                let at = at.saturating_duration_since(origin);
                let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
                match &pattern {
                    Some(pattern) => listener.command(pattern, text, at),
                    None if part == Part::Worker => listener.job(text, at),
                    None => {}
                }
            })
        });
        let command = pod.part == Part::Command;
        let words = self.words(&pod.pod.name);
        // What an earlier copy said is nobody's business any more; there may have been none.
        let _ = std::fs::remove_file(&words);
        let start = Start {
            pod: &pod.pod,
            manifest: &pod.manifest,
            program: command.then(|| PathBuf::from("/bin/sh")),
            args: pod.args.clone(),
            env,
            address: pod.address,
            stderr: if command { Stderr::File(words) } else { Stderr::Inherit },
            hear,
        };
        tokio::task::block_in_place(|| self.local.start(start))?;
        Ok(listener.map(|listener| Heard { pod: pod.pod.name.clone(), listener }))
    }

    /// Where a command's standard error goes: beside the manifests, and away with them.
    fn words(&self, pod: &str) -> PathBuf {
        self.local.folder().join(format!("{pod}.err"))
    }

    /// Waits until every worker has made a step and has the CPUs that it is to have.
    async fn until_all_step(
        &mut self,
        began: Instant,
        pods: &[BenchPod],
        heard: &[Heard],
    ) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK).await;
            let look = self.look(began, pods)?;
            let silent = heard.iter().find(|one| steps(one) == 0.0);
            match silent {
                None if look.settled => return Ok(()),
                Some(one) => anyhow::ensure!(
                    began.elapsed() < FIRST_STEP && look.ended == 0,
                    "{} made no step in {} s: does --steps match what the command writes to standard output?",
                    one.pod,
                    began.elapsed().as_secs()
                ),
                None => anyhow::ensure!(look.ended == 0, "the command ended before it could be measured"),
            }
        }
    }

    /// Sees that all run and have their CPUs.
    fn look(&mut self, began: Instant, pods: &[BenchPod]) -> anyhow::Result<Look> {
        self.agent.check()?;
        let mut look = Look { ended: 0, settled: true };
        for pod in pods {
            let name = &pod.pod.name;
            match self.local.ended(name)? {
                None => {}
                Some(status) if pod.part == Part::Command && status.success() => look.ended += 1,
                Some(status) => anyhow::bail!(
                    "the process of {name} ended by itself ({status}){}",
                    if pod.part == Part::Command { last_words(&self.words(name)) } else { String::new() }
                ),
            }
        }
        let Some(snapshot) = self.agent.snapshot() else { return Ok(Look { settled: false, ..look }) };
        for pod in pods.iter().filter(|pod| pod.part != Part::Neighbour) {
            let state = snapshot.containers.iter().find(|state| state.uid.as_deref() == pod.pod.cgroup_uid());
            let own = state.and_then(|state| state.assigned.as_ref());
            let settled = match state {
                Some(state) if pod.exclusive => own.is_some() && own == state.effective.as_ref(),
                Some(_) => own.is_none(),
                None => false,
            };
            look.settled &= settled;
            let note = state.and_then(|state| state.note.as_deref()).unwrap_or("the agent does not say why");
            anyhow::ensure!(
                settled || began.elapsed() < PATIENCE,
                "{} does not have the CPUs that it is to have: {note}",
                pod.pod.name
            );
        }
        Ok(look)
    }

    fn sample(&mut self) -> anyhow::Result<Sample> {
        let text = tokio::task::block_in_place(|| self.agent.scrape())?;
        let sample = Sample::parse(&text);
        self.unsupported.extend(sample.unsupported.clone());
        Ok(sample)
    }

    fn stepped(
        &self,
        round: usize,
        way: Way,
        pods: &[BenchPod],
        (before, after): (&Sample, &Sample),
        stretches: &[Stretch],
    ) -> Run {
        let seconds = (after.at - before.at).as_secs_f64();
        let rate: f64 = stretches.iter().map(|one| one.steps / one.seconds).sum();
        let millis: Vec<f64> = stretches.iter().flat_map(|one| one.millis.iter().copied()).collect();
        let names: Vec<&str> = job(pods).collect();
        let gained = |pick: fn(&Counters) -> Option<u64>| -> Option<f64> {
            let mut sum = 0;
            for name in &names {
                let of = |sample: &Sample| sample.pods.get(*name).and_then(pick);
                sum += of(after)?.saturating_sub(of(before)?);
            }
            Some(sum as f64 / seconds)
        };
        let per_step = |pick| gained(pick).and_then(|per_second| stats::ratio(per_second, rate));
        let figures = [
            (Metric::StepsPerSecond, Some(rate)),
            (Metric::StepMsP50, stats::percentile(&millis, 50)),
            (Metric::StepMsP99, stats::percentile(&millis, 99)),
            (Metric::ContextSwitchesPerStep, per_step(|one| Some(one.context_switches))),
            (Metric::ThrottledPeriodsPerSecond, gained(|one| Some(one.throttled_periods))),
            (Metric::MigrationsPerStep, per_step(|one| one.migrations)),
            (Metric::CacheMissesPerStep, per_step(|one| one.llc_misses)),
        ];
        Run {
            round,
            way,
            seconds,
            steps: stretches.iter().map(|one| one.steps).sum(),
            thread_count: Some(
                names.iter().filter_map(|name| after.pods.get(*name)).map(|one| one.threads).sum(),
            ),
            figures: figures.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect(),
        }
    }

    /// Measures how long the command takes, all of its copies together.
    async fn whole(&mut self, round: usize, way: Way, pods: &[BenchPod]) -> anyhow::Result<Run> {
        let began = Instant::now();
        let copies = pods.iter().filter(|pod| pod.part == Part::Command).count();
        let switches = reaped()?;
        let mut took = Vec::new();
        let mut settled = false;
        while took.len() < copies {
            tokio::time::sleep(CLOSE_LOOK).await;
            let look = self.look(began, pods)?;
            settled |= look.settled;
            took.resize(look.ended.max(took.len()), began.elapsed().as_secs_f64());
        }
        let switches = reaped()? - switches;
        anyhow::ensure!(
            settled,
            "the command took only {:.0} ms, and had ended before its CPUs were its own: let it do more",
            began.elapsed().as_secs_f64() * 1e3
        );
        // Their cgroups are still there, and what they counted.
        let after = self.sample()?;
        let seconds = began.elapsed().as_secs_f64();
        let throttled: u64 =
            job(pods).filter_map(|name| after.pods.get(name)).map(|one| one.throttled_periods).sum();
        let millis: Vec<f64> = took.iter().map(|seconds| seconds * 1e3).collect();
        let figures = [
            (Metric::StepsPerSecond, Some(took.iter().map(|seconds| 1.0 / seconds).sum())),
            (Metric::StepMsP50, stats::quantile(&millis, 0.5)),
            (Metric::ContextSwitchesPerStep, Some(switches as f64 / copies as f64)),
            (Metric::ThrottledPeriodsPerSecond, Some(throttled as f64 / seconds)),
        ];
        let figures = figures.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect();
        Ok(Run { round, way, seconds, steps: copies as f64, thread_count: None, figures })
    }
}

/// The names of the pods that are the job.
fn job(pods: &[BenchPod]) -> impl Iterator<Item = &str> {
    pods.iter().filter(|pod| pod.part != Part::Neighbour).map(|pod| pod.pod.name.as_str())
}

fn steps(heard: &Heard) -> f64 {
    let listener = heard.listener.lock().unwrap_or_else(PoisonError::into_inner);
    // A pattern's first count has nothing to be compared with, and shows all the same that there are steps.
    listener.marks().iter().map(|mark| mark.steps).sum::<f64>().max(listener.marks().len().min(1) as f64)
}

fn stretches(heard: &[Heard], from: Duration, to: Duration) -> Vec<Option<Stretch>> {
    let of = |one: &Heard| {
        let listener = one.listener.lock().unwrap_or_else(PoisonError::into_inner);
        stretch(listener.marks(), from, to)
    };
    heard.iter().map(of).collect()
}

/// Context switches of all processes that were started from here and have ended, their threads and descendants included.
fn reaped() -> anyhow::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("can't read what ended processes have used")?;
    Ok(usage.voluntary_context_switches() + usage.involuntary_context_switches())
}

/// The end of what a command wrote to standard error.
fn last_words(path: &Path) -> String {
    let Ok(Some(text)) = file::read_optional(path) else { return String::new() };
    let start = text.ceil_char_boundary(text.len().saturating_sub(WORDS));
    match text[start..].trim() {
        "" => String::new(),
        words => format!("; it said:\n{words}"),
    }
}
