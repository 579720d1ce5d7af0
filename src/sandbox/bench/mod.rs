//! The bench: an experiment that measures the benefit of pinning and sizing on this machine.
//!
//! A training job, or any command, runs in four ways ([`Way`]): shared or pinned, with the host's
//! threads or the right threads. The rounds repeat in a balanced order, beside neighbors that
//! request the rest of the node. The real agent pins and sizes the pods. Shared pods run as in
//! Kubernetes, with the CPU limit as a quota.
//!
//! [`mod@plan`] decides the runs, [`job`] names the pods, `measure` runs them, [`steps`] finds
//! steps in a command's lines, `figures` computes the figures of a run, [`report`] compares the runs by
//! [`crate::experiment::statistics`], [`claims`] compares the figures with published claims,
//! `compared` says what is compared, [`picture`] draws the figures, and [`page()`] shows all of it. All modules but `measure`
//! and `guard` only compute.
//!
//! Invariant: a ratio compares runs of the same round, so that a slow minute of the machine affects both sides.

pub mod claims;
mod compared;
mod effect;
mod figures;
mod guard;
pub mod job;
mod measure;
mod page;
pub mod picture;
pub mod plan;
pub mod report;
pub mod steps;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::interference::MeasuredInterference;
use super::local_node::{LocalNode, TREE};
use crate::agent::config::{AutoSwitch, Config, EnforcementChoice, Metrics, Runtime};
use crate::agent::{self, Agent, AgentNode};
use crate::cpu::{CpuSet, SharedMinimum};
use crate::pin::Enforcement;
use guard::CleanupGuard;
pub use guard::sweep;
use measure::Bench;
pub use page::page;
use plan::{BenchPlan, BenchProgram, PlanOptions, Way};
use report::{BenchReport, MachineFacts, Metric};

/// The most perf descriptors for cache misses of containers in the shared pool.
const SHARED_COUNTERS: usize = 4096;

/// Why a bench does not run with enforcement observe.
pub const NOTHING_TO_COMPARE: &str = "enforcement observe pins nothing, so the bench has nothing to compare: use auto, \
     partition or cpuset";

/// The task and the environment of a bench.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    pub plan: BenchPlan,
    /// The enforcement of pinned CPUs.
    pub enforcement: EnforcementChoice,
    /// The folder where the cgroup hierarchies are mounted.
    pub cgroup_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchProgress {
    /// The number of finished runs.
    pub done: usize,
    pub runs: usize,
    pub way: Way,
}

/// Plans a bench for this machine.
///
/// # Errors
/// No topology, reserved CPUs that are not online, too few CPUs, more pods than addresses.
pub fn plan(options: PlanOptions, reserved: Option<&CpuSet>) -> anyhow::Result<BenchPlan> {
    let topology = crate::host::topology::read(Path::new("/"))?;
    let reserved = agent::reserved(reserved, &topology)?;
    let plan = BenchPlan::new(options, &topology, &reserved)?;
    let pods = plan.workers.saturating_add(plan.ps);
    anyhow::ensure!(
        pods <= job::MOST_ADDRESSES || plan.ps == 0,
        "{pods} tasks are more than the {} available addresses: lower --workers or --ps",
        job::MOST_ADDRESSES
    );
    Ok(plan)
}

/// Runs a bench and cleans up on every exit. `show` is called before each run.
///
/// # Errors
/// Another agent, a kubelet that pins, pods with exclusive CPUs, no cpuset controller, no rights; a failed process. `None`
/// after a cancellation.
pub async fn run(
    options: &BenchOptions,
    stop: &CancellationToken,
    mut show: impl FnMut(&BenchProgress),
) -> anyhow::Result<Option<BenchReport>> {
    let BenchOptions {
        plan, cgroup_dir, ..
    } = options;
    // The node as the usual agent sees it, to find other programs that assign CPUs.
    let usual_node = AgentNode::new(Config {
        cgroup_dir: cgroup_dir.clone(),
        ..Config::default()
    })?;
    let _lock = agent::lock(usual_node.cgroups.root())?;
    refuse_other_assignments(&usual_node)?;
    let mut node = AgentNode::apart(agent_config(options))?;
    anyhow::ensure!(node.enforcement != Enforcement::Observe, NOTHING_TO_COMPARE);
    let (enforcement, enforcement_reason) = (
        node.enforcement.name().to_owned(),
        node.enforcement_reason.clone(),
    );
    let (environment, left_out) = environment(plan)?;
    // The guard is declared first and so dropped last: the cleanup starts after the local node has
    // released the lock.
    let _guard;
    let mut local = tokio::task::block_in_place(|| LocalNode::open(node.cgroups.clone()))?;
    _guard = match tokio::task::block_in_place(|| CleanupGuard::start(cgroup_dir)) {
        Ok(guard) => guard,
        Err(error) => {
            tokio::task::block_in_place(|| local.close())?;
            return Err(error);
        }
    };
    node.config.manifest_dir = Some(local.folder().to_owned());
    let outcome = match start(node, &local).await {
        Ok(mut agent) => {
            let mut bench = Bench::new(plan, &mut agent, &mut local, &environment);
            let outcome = tokio::select! {
                outcome = rounds(&mut bench, &mut show) => outcome.map(Some),
                () = stop.cancelled() => Ok(None),
            };
            let unsupported = std::mem::take(&mut bench.unsupported);
            agent.stop().await;
            outcome.map(|runs| runs.map(|runs| (runs, unsupported)))
        }
        Err(error) => Err(error),
    };
    let closed = tokio::task::block_in_place(|| local.close());
    let Some((runs, unsupported)) = outcome? else {
        closed.context("the bench was stopped, but could not remove its cgroups and processes")?;
        return Ok(None);
    };
    closed.context("the bench has ended, but could not remove its cgroups and processes")?;
    let not_counted = not_counted(plan, &runs, &unsupported);
    let notes = notes(plan, &runs, &left_out);
    let found = MachineFacts {
        enforcement,
        enforcement_reason,
        interference: MeasuredInterference::sum(runs.iter().filter_map(|run| run.interference)),
        not_counted,
        notes,
    };
    BenchReport::new(plan.clone(), runs, found).map(Some)
}

async fn start(node: AgentNode, local: &LocalNode) -> anyhow::Result<Agent> {
    anyhow::ensure!(
        local.has_quotas(),
        "the node has no cpu controller with CFS quotas, so the bench can't set limits as Kubernetes does: mount the cpu \
         hierarchy (cgroup v1), or enable cpu in the root's cgroup.subtree_control (v2)"
    );
    Agent::start(node).await
}

async fn rounds(
    bench: &mut Bench<'_>,
    show: &mut impl FnMut(&BenchProgress),
) -> anyhow::Result<Vec<report::Run>> {
    let rounds = &bench.plan.rounds;
    let mut runs = Vec::new();
    for (round, ways) in rounds.iter().enumerate() {
        for &way in ways {
            show(&BenchProgress {
                done: runs.len(),
                runs: rounds.len() * ways.len(),
                way,
            });
            runs.push(bench.run(round, way).await?);
        }
    }
    Ok(runs)
}

/// The configuration of the bench's agent.
fn agent_config(options: &BenchOptions) -> Config {
    Config {
        cgroup_dir: options.cgroup_dir.clone(),
        pod_cgroups: vec![TREE.to_owned()],
        // Any free port will do, because only the bench sends requests to the agent.
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        reserved: Some(options.plan.reserved.clone()),
        // The plan has counted the CPUs, and nobody was promised any in the bench's tree.
        shared_minimum: SharedMinimum::Cpus(0),
        enforcement: options.enforcement,
        metrics: Metrics {
            max_shared_counters: SHARED_COUNTERS,
            ..Metrics::default()
        },
        // No container runtime knows the bench's pods.
        runtime: Runtime {
            nri: AutoSwitch::Never,
            ..Runtime::default()
        },
        ..Config::default()
    }
}

/// Refuses a node on which another program assigns CPUs.
fn refuse_other_assignments(usual_node: &AgentNode) -> anyhow::Result<()> {
    anyhow::ensure!(
        usual_node.enforcement != Enforcement::Observe,
        "the bench needs a node on which no other program assigns CPUs: {}",
        usual_node.enforcement_reason
    );
    let (_, ledger) = usual_node.observe(&[])?;
    anyhow::ensure!(
        ledger.assignments.is_empty(),
        "pods on this node already have exclusive CPUs ({}): the bench and these pods would disturb each other; use a node \
         without such pods, or hand the CPUs back with pinfold release",
        ledger.assignments.len()
    );
    Ok(())
}

/// The variables that a command inherits, and the names of those that are left out because the
/// bench compares their values.
fn environment(plan: &BenchPlan) -> anyhow::Result<(BTreeMap<String, String>, Vec<String>)> {
    let compared = job::right_variables(plan)?;
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let (left_out, inherited): (BTreeMap<_, _>, _) = std::env::vars_os()
        .filter_map(text)
        .partition(|(name, _)| compared.contains_key(name));
    Ok((inherited, left_out.into_keys().collect()))
}

/// Remarks for the reader of the figures.
fn notes(plan: &BenchPlan, runs: &[report::Run], left_out: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if let BenchProgram::Command { steps, .. } = &plan.work {
        if steps.is_some() {
            notes.push(
                "context switches and migrations exclude processes that start or end during a measurement"
                    .to_owned(),
            );
        }
        if !left_out.is_empty() {
            notes.push(format!(
                "variables of this shell that the command does not get, because the bench compares their values: {}",
                left_out.join(", ")
            ));
        }
    }
    if runs
        .iter()
        .any(|run| run.figures.contains_key(&Metric::CacheMissesPerStep))
    {
        notes.push(
            "LLC misses of a pinned task include all misses on its CPUs; those of a shared task are from its cgroup"
                .to_owned(),
        );
    }
    if !plan.rounds.len().is_multiple_of(4) {
        notes.push(
            "the order of the four ways is balanced only if --rounds is a multiple of four"
                .to_owned(),
        );
    }
    notes.push(
        format!(
            "only the first three ratios of {} have a verdict, and at most one of twenty benches names an effect there that \
             does not exist; of the other intervals, one of twenty misses the real ratio",
            Metric::StepsPerSecond.name(if plan.runs_to_end() { "run" } else { "step" })
        ),
    );
    notes
}

/// The metrics that are missing in all runs of at least one way, each with the reason.
fn not_counted(
    plan: &BenchPlan,
    runs: &[report::Run],
    unsupported: &BTreeMap<String, String>,
) -> BTreeMap<Metric, String> {
    let because = |metric: Metric| -> Option<(Metric, String)> {
        let ways = Way::ALL.into_iter().filter(|way| {
            runs.iter()
                .any(|run| run.way == *way && run.figures.contains_key(&metric))
        });
        let ways = ways.count();
        let collector = match metric {
            Metric::CacheMissesPerStep => "caches",
            Metric::MigrationsPerStep => measure::MIGRATIONS,
            Metric::StepMsP50 | Metric::StepMsP99 => measure::STEPS,
            _ => "",
        };
        let reason = match unsupported.get(collector) {
            _ if ways == Way::ALL.len() => return None,
            _ if ways > 0 => "measured in only some of the four ways".to_owned(),
            _ if plan.runs_to_end() => {
                "not available for a command whose duration is measured".to_owned()
            }
            Some(reason) => reason.clone(),
            None => {
                "the agent exports no series of this metric for the job's containers".to_owned()
            }
        };
        Some((metric, reason))
    };
    Metric::ALL.into_iter().filter_map(because).collect()
}

#[cfg(test)]
mod tests {
    use super::plan::Cpus;
    use super::*;

    #[test]
    fn a_missing_metric_has_a_reason() {
        let pinned_only = |_, way: Way| match way.cpus {
            Cpus::Shared => vec![(Metric::StepsPerSecond, 1.0)],
            Cpus::Pinned => vec![
                (Metric::StepsPerSecond, 1.0),
                (Metric::CacheMissesPerStep, 5.0),
            ],
        };
        let unsupported = BTreeMap::from([("caches".to_owned(), "no such events".to_owned())]);
        let plan = report::tests::plan(2);
        let reasons = |runs: &[report::Run]| not_counted(&plan, runs, &unsupported);
        let some = reasons(&report::tests::runs(2, pinned_only));
        assert!(some[&Metric::CacheMissesPerStep].contains("only some of the four ways"));
        assert!(some[&Metric::MigrationsPerStep].contains("no series of this metric"));
        assert!(!some.contains_key(&Metric::StepsPerSecond));
        let none = reasons(&report::tests::runs(2, |_, _| vec![]));
        assert_eq!(none[&Metric::CacheMissesPerStep], "no such events");
    }
}
