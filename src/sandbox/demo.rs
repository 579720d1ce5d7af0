//! The demo: a real training job on this machine, first shared, then pinned and sized by the real agent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::interference::MeasuredInterference;
use super::job::{self, DemoPod, Mode, Setting};
use super::local_node::{LocalNode, PodStart, TREE};
use super::neighbors::NeighborKind;
use super::sample::{Sample, SampledCounters};
use crate::agent::config::{AutoSwitch, Config, Metrics, Runtime};
use crate::agent::{Agent, AgentNode};
use crate::cpu::CpuSet;
use crate::host::spawn::Stderr;
use crate::pin::Snapshot;
use crate::text::counted;

/// The longest time until the workers' first step, and until the first measured step. A busy or
/// emulated machine is slow.
const FIRST_STEP: Duration = Duration::from_secs(120);

/// The shortest time from the start of a half to the measurement. Meanwhile, workers connect,
/// caches fill and memory is first allocated.
const WARM_UP: Duration = Duration::from_secs(2);

/// The time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The measured time of both halves together, in seconds. An odd number is rounded up.
    pub seconds: u64,
    /// The address on which the agent serves metrics.
    pub listen: SocketAddr,
    /// The folder where the cgroup hierarchies are mounted.
    pub cgroup_dir: std::path::PathBuf,
    /// The kind of the pods beside the job.
    pub neighbors: NeighborKind,
    /// Whether the job has a parameter server. `None`: the number of CPUs decides.
    pub has_server: Option<bool>,
}

#[derive(Debug, Clone)]
pub struct DemoFrame {
    pub mode: Mode,
    /// The seconds measured so far in this half, and the length of a half in seconds.
    pub seconds: (u64, u64),
    /// The address on which the agent serves metrics.
    pub address: SocketAddr,
    pub rows: Vec<DemoRow>,
}

/// The state of a pod.
#[derive(Debug, Clone, Serialize)]
pub struct DemoRow {
    pub pod: String,
    pub role: String,
    pub qos: String,
    /// The CPUs on which the pod may run.
    pub cpus: CpuSet,
    pub exclusive: bool,
    /// The number of the pod's threads.
    pub threads: u64,
    /// The variables that the agent gave the pod.
    pub env: BTreeMap<String, String>,
    /// Training steps per second. For a server: requests per second.
    pub steps_per_second: f64,
    pub context_switches_per_second: f64,
    pub receive_bytes_per_second: f64,
    pub transmit_bytes_per_second: f64,
    /// CFS periods per second in which the quota ran out.
    pub throttled_periods_per_second: f64,
    /// Seconds from the first instruction until the assignment was effective.
    pub unpinned_seconds: Option<f64>,
    /// Why the container got fewer CPUs than its entitlement.
    pub note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct HalfFigures {
    pub steps_per_second: f64,
    /// Context switches of the job, servers included, per step of a worker; null if no step was
    /// made.
    pub context_switches_per_step: Option<f64>,
    /// Those of these switches at which the kernel took the CPU away from a thread; null if no step
    /// was made.
    pub involuntary_switches_per_step: Option<f64>,
    /// CFS periods per second in which a quota of the job ran out.
    pub throttled_periods_per_second: f64,
    /// How many CPUs the job used on average, servers included; null if the machine does not count CPU time.
    pub used_cpus: Option<f64>,
    /// The time within which 99 of 100 steps end, in milliseconds: the median of the values that the workers report.
    pub step_ms_p99: Option<f64>,
    /// The number of threads of the job.
    pub threads: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct DemoReport {
    pub enforcement: &'static str,
    /// The use of the exclusive CPUs by programs outside the pods, in the second half; null if the
    /// machine does not count it.
    pub interference: Option<MeasuredInterference>,
    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub compared: Vec<String>,
    /// What the agent could not do, a sentence each; with any of these, the halves differ less than they should.
    pub problems: Vec<String>,
    /// The kind of the pods beside the job.
    pub neighbors: NeighborKind,
    /// The measured time of both halves together, in seconds.
    pub seconds: f64,
    /// The half on shared CPUs, with as many threads as the host has CPUs.
    pub shared: HalfFigures,
    /// The half on exclusive CPUs, with as many threads as exclusive CPUs.
    pub pinned: HalfFigures,
    /// The pods of the second half, with rates over the whole half.
    pub pods: Vec<DemoRow>,
}

/// Runs the demo and cleans up on every exit.
///
/// `show` is called about once a second.
///
/// # Errors
/// No CPU for exclusive use, no cpuset controller, no rights, another running demo, a failed process of the job. `None`
/// after a cancellation.
pub async fn run(
    options: &DemoOptions,
    stop: &CancellationToken,
    mut show: impl FnMut(&DemoFrame),
) -> anyhow::Result<Option<DemoReport>> {
    let config = Config {
        cgroup_dir: options.cgroup_dir.clone(),
        pod_cgroups: vec![TREE.to_owned()],
        listen: options.listen,
        // Sampling a few pods often is cheap and shows more.
        metrics: Metrics {
            connection_interval: Duration::from_secs(2),
            max_peers: 16,
            ..Metrics::default()
        },
        // No container runtime knows the demo's pods.
        runtime: Runtime {
            nri: AutoSwitch::Never,
            ..Runtime::default()
        },
        ..Config::default()
    };
    // The CPU manager of a kubelet does not touch the demo's tree of cgroups.
    let mut node = AgentNode::apart(config)?;
    let setting = Setting::of(
        &node.topology,
        &node.reserved,
        options.neighbors,
        options.has_server,
    )?;
    let mut local = tokio::task::block_in_place(|| LocalNode::open(node.cgroups.clone()))?;
    node.config.manifest_dir = Some(local.folder().to_owned());
    let outcome = match Agent::start(node).await {
        Ok(mut agent) => {
            let outcome = tokio::select! {
                outcome = halves(options, &setting, &mut agent, &mut local, &mut show) => outcome.map(Some),
                () = stop.cancelled() => Ok(None),
            };
            agent.stop().await;
            outcome
        }
        Err(error) => Err(error),
    };
    let closed = tokio::task::block_in_place(|| local.close());
    let report = outcome?;
    closed.context("the demo has ended, but could not remove its cgroups and processes")?;
    Ok(report)
}

async fn halves(
    options: &DemoOptions,
    setting: &Setting,
    agent: &mut Agent,
    local: &mut LocalNode,
    show: &mut impl FnMut(&DemoFrame),
) -> anyhow::Result<DemoReport> {
    let seconds = seconds_of_half(options.seconds);
    let first = job::pods(setting, Mode::Shared, 1)?;
    let second = job::pods(setting, Mode::Pinned, 2)?;
    let shared = half(Mode::Shared, &first, seconds, agent, local, show).await?;
    tokio::task::block_in_place(|| local.stop_all())?;
    // Without this report, the agent would list the ended pods for two more minutes.
    for ended in &first {
        agent.remove(&ended.pod)?;
    }
    let pinned = half(Mode::Pinned, &second, seconds, agent, local, show).await?;
    let enforcement = agent
        .snapshot()
        .map_or("observe", |snapshot| snapshot.enforcement.name());
    let mut problems: Vec<String> = Vec::new();
    for problem in shared.problems.into_iter().chain(pinned.problems) {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    tokio::task::block_in_place(|| local.stop_all())?;
    Ok(DemoReport {
        enforcement,
        interference: pinned.interference,
        compared: setting.in_words(),
        problems,
        neighbors: setting.kind,
        seconds: shared.seconds + pinned.seconds,
        shared: shared.figures,
        pinned: pinned.figures,
        pods: pinned.rows,
    })
}

/// Starts the pods as a container runtime does: the agent answers a request, and the container gets
/// the CPUs and variables of the answer.
async fn start(pods: &[DemoPod], agent: &mut Agent, local: &mut LocalNode) -> anyhow::Result<()> {
    for DemoPod {
        pod,
        manifest,
        args,
        address,
    } in pods
    {
        let admission = agent.create(pod, &pod.name).await?;
        let env = admission.threads.variables;
        let start = PodStart {
            pod,
            manifest,
            program: None,
            args: args.clone(),
            env,
            address: Some(*address),
            stderr: Stderr::Inherit,
            hear: None,
        };
        tokio::task::block_in_place(|| local.start(start))?;
    }
    Ok(())
}

struct Measured {
    figures: HalfFigures,
    /// The pods, with rates over the whole half.
    rows: Vec<DemoRow>,
    interference: Option<MeasuredInterference>,
    /// What went wrong, a sentence each.
    problems: Vec<String>,
    seconds: f64,
}

impl Measured {
    fn new(base: &Sample, now: &Sample, rows: Vec<DemoRow>, p99: Vec<f64>) -> Self {
        let owners = rows.iter().filter(|row| row.exclusive);
        let owners = owners.map(|row| (row.pod.as_str(), row.cpus.len()));
        Self {
            figures: figures(base, now, p99),
            interference: MeasuredInterference::between(base, now, owners),
            problems: Vec::new(),
            seconds: (now.at - base.at).as_secs_f64(),
            rows,
        }
    }
}

/// What the agent reports as wrong during a half.
#[derive(Debug, Default)]
struct Problems {
    errors: Vec<String>,
    /// Where the last state still differs from what was assigned.
    drift: Vec<String>,
}

// === impl Problems ===

impl Problems {
    /// Notes the problems of a moment. An error stays noted, because the figures have suffered from
    /// it. A difference from the assignment that was repaired since counts only as one of the
    /// failed writes.
    fn note(&mut self, snapshot: &Snapshot) {
        for error in &snapshot.errors {
            if !self.errors.contains(error) {
                self.errors.push(error.clone());
            }
        }
        let owners = snapshot.containers.iter();
        self.drift = owners
            .filter_map(|owner| {
                let (assigned, effective) = (owner.own()?, owner.effective.as_ref()?);
                (owner.running && assigned != effective).then(|| {
                    format!(
                        "{} should run on {}, but runs on {}",
                        owner.pod,
                        assigned.in_words(),
                        effective.in_words()
                    )
                })
            })
            .collect();
    }

    /// All problems. The agent keeps an error only until its next turn, so a failed write may be
    /// known only by its count.
    fn sentences(self, failed_writes: u64) -> Vec<String> {
        let mut all = self.errors;
        all.extend(self.drift);
        if failed_writes > 0 {
            let failed = counted(failed_writes, "write");
            all.push(format!(
                "{failed} to cgroups failed or had no effect; the messages above name each one"
            ));
        }
        all
    }
}

/// The time of a half in seconds. Samples come every second, so an odd total is rounded up, to give
/// both halves the same length.
fn seconds_of_half(total: u64) -> u64 {
    total.div_ceil(2).max(1)
}

/// Whether the measurement may start. `ready` says that every worker has made a step.
///
/// # Errors
/// A worker has made no step within [`FIRST_STEP`].
fn may_measure(running: Duration, ready: bool) -> anyhow::Result<bool> {
    anyhow::ensure!(
        ready || running < FIRST_STEP,
        "a worker made no step within {} s: read the messages of the workers above",
        FIRST_STEP.as_secs()
    );
    Ok(ready && running >= WARM_UP)
}

/// Starts the pods, and measures the job for `seconds`.
async fn half(
    mode: Mode,
    pods: &[DemoPod],
    seconds: u64,
    agent: &mut Agent,
    local: &mut LocalNode,
    show: &mut impl FnMut(&DemoFrame),
) -> anyhow::Result<Measured> {
    // Before the agent's first turn, it has written nothing and there is no page.
    let before = tokio::task::block_in_place(|| agent.scrape());
    let failed_before = before.map_or(0, |page| Sample::parse(&page).failed_writes);
    let mut problems = Problems::default();
    start(pods, agent, local).await?;
    // The measurement starts after the warm-up, when every worker has made a step.
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.tick().await;
    let begun = Instant::now();
    let mut base: Option<Sample> = None;
    let mut last = sample(agent, local, pods)?;
    let mut p99 = Vec::new();
    loop {
        ticks.tick().await;
        local.check()?;
        agent.check()?;
        let now = sample(agent, local, pods)?;
        if let Some(snapshot) = agent.snapshot() {
            problems.note(&snapshot);
        }
        let running = begun.elapsed();
        if base.is_none() {
            let ready = now.workers().all(|worker| worker.steps > 0);
            if may_measure(running, ready)? {
                base = Some(now.clone());
            }
        } else {
            p99.extend(now.workers().filter_map(|worker| worker.step_ms_p99));
        }
        let measured = base.as_ref().map_or(0, |base| {
            (now.at - base.at).as_millis().saturating_add(500) / 1000
        });
        let measured = u64::try_from(measured).unwrap_or(u64::MAX);
        let rows = rows(pods, agent, &last, &now);
        show(&DemoFrame {
            mode,
            seconds: (measured, seconds),
            address: agent.address(),
            rows,
        });
        // If a step takes longer than the measurement, that goes on until the first step.
        let has_step = |base: &Sample| now.steps() > base.steps() || now.at - base.at >= FIRST_STEP;
        if let Some(base) = base
            .as_ref()
            .filter(|base| measured >= seconds && has_step(base))
        {
            let rows = self::rows(pods, agent, base, &now);
            let failed = now.failed_writes.saturating_sub(failed_before);
            return Ok(Measured {
                problems: problems.sentences(failed),
                ..Measured::new(base, &now, rows, p99)
            });
        }
        last = now;
    }
}

/// A sample of all pods: the agent's metrics, and the processes' lines.
fn sample(agent: &Agent, local: &LocalNode, pods: &[DemoPod]) -> anyhow::Result<Sample> {
    let text = tokio::task::block_in_place(|| agent.scrape())?;
    let mut sample = Sample::parse(&text);
    for pod in pods {
        let counters = sample.pods.entry(pod.pod.name.clone()).or_default();
        if let Some(line) = local.line(&pod.pod.name) {
            counters.steps = line.steps;
            counters.step_ms_p99 = line.step_ms_p99.map(f64::from);
        }
    }
    Ok(sample)
}

fn rows(pods: &[DemoPod], agent: &Agent, before: &Sample, now: &Sample) -> Vec<DemoRow> {
    let Some(snapshot) = agent.snapshot() else {
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
        let rate =
            |pick: fn(&SampledCounters) -> u64| now.gain(before, &pod.name, pick) as f64 / seconds;
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
            context_switches_per_second: rate(|counters| counters.context_switches.unwrap_or(0)),
            receive_bytes_per_second: rate(|counters| counters.receive_bytes),
            transmit_bytes_per_second: rate(|counters| counters.transmit_bytes),
            throttled_periods_per_second: rate(|counters| counters.throttled_periods.unwrap_or(0)),
            unpinned_seconds: state.unpinned_seconds,
            note: state.note.clone(),
        });
    }
    rows
}

fn figures(base: &Sample, now: &Sample, mut p99: Vec<f64>) -> HalfFigures {
    let seconds = (now.at - base.at).as_secs_f64();
    let job = || now.pods.keys().filter(|name| !name.starts_with("neighbor"));
    let gained = |pick: fn(&SampledCounters) -> u64| {
        job().map(|name| now.gain(base, name, pick)).sum::<u64>()
    };
    let steps: u64 = job()
        .filter(|name| name.starts_with("worker"))
        .map(|name| now.gain(base, name, |counters| counters.steps))
        .sum();
    let per_step =
        |pick: fn(&SampledCounters) -> u64| (steps > 0).then(|| gained(pick) as f64 / steps as f64);
    let cpu_seconds = |sample: &Sample| {
        let pods = job().map(|name| sample.pods.get(name)?.cpu_seconds);
        pods.sum::<Option<f64>>()
    };
    let used = cpu_seconds(now).zip(cpu_seconds(base));
    p99.sort_by(f64::total_cmp);
    HalfFigures {
        used_cpus: used.map(|(after, before)| (after - before) / seconds),
        steps_per_second: steps as f64 / seconds,
        context_switches_per_step: per_step(|counters| counters.context_switches.unwrap_or(0)),
        involuntary_switches_per_step: per_step(|counters| {
            counters.involuntary_switches.unwrap_or(0)
        }),
        throttled_periods_per_second: gained(|counters| counters.throttled_periods.unwrap_or(0))
            as f64
            / seconds,
        step_ms_p99: p99.get(p99.len() / 2).copied(),
        threads: job()
            .filter_map(|name| now.pods.get(name))
            .map(|counters| counters.threads)
            .sum(),
    }
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
    fn a_failed_write_and_a_lasting_difference_are_problems() {
        let text = "pinfold_reconcile_steps_total{outcome=\"done\"} 7\npinfold_reconcile_steps_total{outcome=\"gone\"} 1\n\
                    pinfold_reconcile_steps_total{outcome=\"not_in_force\"} 2\npinfold_reconcile_steps_total{outcome=\"blocked\"} 1\n";
        assert_eq!(Sample::parse(text).failed_writes, 3);
        assert!(Problems::default().sentences(0).is_empty());
        let problems = Problems {
            errors: vec!["pod/a: written, but the kernel reports 0-1".to_owned()],
            drift: vec!["worker-0 should run on CPU 1, but runs on CPUs 0-1".to_owned()],
        };
        let sentences = problems.sentences(3);
        assert_eq!(sentences.len(), 3, "{sentences:?}");
        assert!(
            sentences[2].starts_with("3 writes to cgroups failed"),
            "{sentences:?}"
        );
    }

    #[test]
    fn both_halves_together_are_never_shorter_than_the_asked_time() {
        assert_eq!([2, 3, 5, 30].map(seconds_of_half), [1, 2, 3, 15]);
    }
}
