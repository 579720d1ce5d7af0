//! The bench: what pinning and sizing would buy on this machine, by experiment.
//!
//! A training job, or any command, is run in four ways, shared or pinned and with the host's threads or the right ones
//! ([`Way`]), again and again in balanced order, beside neighbours who keep the shared CPUs busy. The real agent pins and
//! sizes it; what is shared is shared as Kubernetes does it, with its limit as a quota.
//!
//! [`mod@plan`] decides what is run, [`job`] says which pods that takes, `measure` does it, [`steps`] hears of steps, [`report`]
//! puts figures together with the [`stats`] of noisy numbers, [`claims`] sets them beside what others claim, [`picture`] draws
//! them. All but `measure` and `guard` only compute.
//!
//! Invariant: ratios are taken within a round, between runs that follow each other, so that a machine that is slower for a
//! minute is slower for all.

pub mod claims;
mod guard;
pub mod job;
mod measure;
pub mod picture;
pub mod plan;
pub mod report;
pub mod stats;
pub mod steps;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::node::{LocalNode, TREE};
use crate::agent::cluster::Asked;
use crate::agent::config::{Config, Metrics, Runtime, Wanted};
use crate::agent::{self, Agent, Node};
use crate::cpu::CpuSet;
use crate::pin::Enforcement;
use guard::Guard;
pub use guard::sweep;
use measure::Bench;
use plan::{Plan, Way, Wishes, Work};
use report::{Found, Metric, Report};

/// How many descriptors may count the cache misses of containers that share their CPUs.
const SHARED_COUNTERS: usize = 4096;

/// Why a bench does not run with enforcement observe.
pub const NOTHING_TO_COMPARE: &str = "with enforcement observe nothing is pinned, so there is nothing to compare: use auto, partition or cpuset";

/// What is run, and where.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is run.
    pub plan: Plan,
    /// How pinned CPUs are enforced.
    pub enforcement: Wanted,
    /// Where the cgroup hierarchies are mounted.
    pub cgroup_dir: PathBuf,
}

/// How far a bench is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Runs that are done.
    pub done: usize,
    /// Runs there are.
    pub runs: usize,
    /// What runs now.
    pub way: Way,
}

/// Plans a bench for this machine.
///
/// # Errors
/// No topology, reserved CPUs that are not online, too few CPUs, more pods than addresses.
pub fn plan(wishes: Wishes, reserved: Option<&CpuSet>) -> anyhow::Result<Plan> {
    let topology = crate::host::topology::read(Path::new("/"))?;
    let reserved = agent::reserved(reserved, &topology)?;
    let plan = Plan::new(wishes, &topology, &reserved)?;
    let pods = plan.workers.saturating_add(plan.ps);
    anyhow::ensure!(
        pods <= job::MOST_ADDRESSES || plan.ps == 0,
        "{pods} tasks are more than the {} that there are addresses for: ask for fewer --workers or --ps",
        job::MOST_ADDRESSES
    );
    Ok(plan)
}

/// Runs a bench and cleans up, whatever comes of it. `show` is called before each run.
///
/// # Errors
/// Another agent, a kubelet that pins, pods that own CPUs, no cpuset controller, no rights; a process that fails.
/// `None` if it was told to stop.
pub async fn run(
    options: &Options,
    stop: &CancellationToken,
    mut show: impl FnMut(&Progress),
) -> anyhow::Result<Option<Report>> {
    let Options {
        plan,
        enforcement,
        cgroup_dir,
    } = options;
    let theirs = Node::new(Config {
        cgroup_dir: cgroup_dir.clone(),
        ..Config::default()
    })?;
    let _lock = agent::lock(theirs.cgroups.root())?;
    alone(&theirs)?;
    let config = Config {
        cgroup_dir: cgroup_dir.clone(),
        pod_cgroups: vec![TREE.to_owned()],
        // Nobody is told of it; it is asked from here.
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        reserved: Some(plan.reserved.clone()),
        enforcement: *enforcement,
        metrics: Metrics {
            max_shared_counters: SHARED_COUNTERS,
            ..Metrics::default()
        },
        // No container runtime knows the bench's pods.
        runtime: Runtime {
            nri: Asked::Never,
            ..Runtime::default()
        },
        ..Config::default()
    };
    let mut node = Node::apart(config)?;
    anyhow::ensure!(node.enforcement != Enforcement::Observe, NOTHING_TO_COMPARE);
    let (enforcement, enforcement_reason) = (
        node.enforcement.name().to_owned(),
        node.enforcement_reason.clone(),
    );
    let (environment, left_out) = environment(plan)?;
    // Declared first, so that it is dropped last: it clears away once the local node has let go of its lock.
    let _guard;
    let mut local = tokio::task::block_in_place(|| LocalNode::open(node.cgroups.clone()))?;
    _guard = match tokio::task::block_in_place(|| Guard::start(cgroup_dir)) {
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
        closed.context("the bench was stopped, but could not clean up")?;
        return Ok(None);
    };
    closed.context("the bench ran, but could not clean up")?;
    let not_counted = not_counted(plan, &runs, &unsupported);
    let notes = notes(plan, &runs, &left_out);
    let found = Found {
        enforcement,
        enforcement_reason,
        not_counted,
        notes,
    };
    Ok(Some(Report::new(plan.clone(), runs, found)))
}

async fn start(node: Node, local: &LocalNode) -> anyhow::Result<Agent> {
    anyhow::ensure!(
        local.has_quotas(),
        "there is no cpu controller with CFS quotas here, so pods with limits can't be run as Kubernetes runs them: mount the \
         cpu hierarchy (cgroup v1), or enable cpu in the root's cgroup.subtree_control (v2)"
    );
    Agent::start(node).await
}

async fn rounds(
    bench: &mut Bench<'_>,
    show: &mut impl FnMut(&Progress),
) -> anyhow::Result<Vec<report::Run>> {
    let rounds = &bench.plan.rounds;
    let mut runs = Vec::new();
    for (round, ways) in rounds.iter().enumerate() {
        for &way in ways {
            show(&Progress {
                done: runs.len(),
                runs: rounds.len() * ways.len(),
                way,
            });
            runs.push(bench.run(round, way).await?);
        }
    }
    Ok(runs)
}

/// Whether nobody else gives CPUs away on this node.
fn alone(theirs: &Node) -> anyhow::Result<()> {
    anyhow::ensure!(
        theirs.enforcement != Enforcement::Observe,
        "a bench needs CPUs that nobody else gives away: {}",
        theirs.enforcement_reason
    );
    let (_, ledger) = theirs.observe(&[])?;
    anyhow::ensure!(
        ledger.assignments.is_empty(),
        "pods on this node own CPUs already ({} of them): figures taken beside them would say nothing, and they would be \
         disturbed; use a node without them, or hand their CPUs back with pinfold release",
        ledger.assignments.len()
    );
    Ok(())
}

/// What a command has of this program's environment: all but what the agent is to decide; and the names of what that leaves
/// out.
fn environment(plan: &Plan) -> anyhow::Result<(BTreeMap<String, String>, Vec<String>)> {
    let decided = job::right_variables(plan)?;
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let (left_out, taken): (BTreeMap<_, _>, _) = std::env::vars_os()
        .filter_map(text)
        .partition(|(name, _)| decided.contains_key(name));
    Ok((taken, left_out.into_keys().collect()))
}

/// What to bear in mind when reading the figures.
fn notes(plan: &Plan, runs: &[report::Run], left_out: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Work::Command { steps, .. } = &plan.work {
        if steps.is_some() {
            notes.push(
                "context switches and migrations are those of processes that were there at both ends of a measurement: short-lived \
                 children are not counted"
                    .to_owned(),
            );
        }
        if !left_out.is_empty() {
            notes.push(format!(
                "set here, and left out for the command, because they are what is compared: {}",
                left_out.join(", ")
            ));
        }
    }
    if runs
        .iter()
        .any(|run| run.figures.contains_key(&Metric::CacheMissesPerStep))
    {
        notes.push(
            "LLC misses of a pinned task are all on its CPUs, those of a shared one are its cgroup's"
                .to_owned(),
        );
    }
    if !plan.rounds.len().is_multiple_of(4) {
        notes.push("the order of the four ways is balanced over each four --rounds".to_owned());
    }
    notes.push(
        "of twenty comparisons in which there is no difference, one may seem to show one by chance"
            .to_owned(),
    );
    notes
}

/// Why metrics are missing in all runs of a way, or of all four.
fn not_counted(
    plan: &Plan,
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
            _ if ways > 0 => "counted in some of the four ways only".to_owned(),
            _ if plan.whole() => {
                "a command that is run to its end can't be asked for it afterwards".to_owned()
            }
            Some(reason) => reason.clone(),
            None => "the agent exports no such series for the job's containers".to_owned(),
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
    fn what_is_missing_has_a_reason() {
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
        assert!(some[&Metric::CacheMissesPerStep].contains("some of the four ways only"));
        assert!(some[&Metric::MigrationsPerStep].contains("no such series"));
        assert!(!some.contains_key(&Metric::StepsPerSecond));
        let none = reasons(&report::tests::runs(2, |_, _| vec![]));
        assert_eq!(none[&Metric::CacheMissesPerStep], "no such events");
    }
}
