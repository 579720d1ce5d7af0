//! The demo: a real training job on this machine, in turns on shared CPUs and pinned and sized by the real agent.
//!
//! `slice` measures the job in one of the two ways for some seconds, `report` compares the ways, and `proof` lets a
//! neighbor try to get an exclusive CPU.

mod proof;
mod report;
mod slice;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::interference::MeasuredInterference;
use super::job::{self, Mode, Setting};
use super::local_node::{LocalNode, TREE};
use super::neighbors::NeighborKind;
use crate::agent::config::{AutoSwitch, Config, Metrics, Runtime};
use crate::agent::{Agent, AgentNode};
use crate::cpu::SharedMinimum;
pub use proof::{Attempt, Means, Outcome, Proof};
pub use report::{DemoReport, DemoRow, Effect, Figures, Metric, Round};
pub use slice::DemoFrame;
use slice::{Slice, Stage, Turn};

#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The measured time of all slices together, in seconds.
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

/// How the measured time is divided: each round has a slice of each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    rounds: u32,
    /// The length of a slice.
    slice: Duration,
}

// === impl Division ===

impl Division {
    /// Slices have at least a second, because the job reports its steps four times a second. Six rounds are enough for an
    /// interval; a longer demo has longer slices, too, so that less of its time goes into starting pods.
    fn of(seconds: u64) -> Self {
        let rounds = match seconds {
            0..12 => (seconds / 2).max(1),
            _ => (seconds / 10).clamp(6, 30).max(seconds / 120),
        };
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX / 2);
        Self {
            rounds,
            slice: Duration::from_secs(seconds) / (2 * rounds),
        }
    }
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
        // Nobody was promised any CPUs in the demo's tree.
        shared_minimum: SharedMinimum::Cpus(0),
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
            let mut stage = Stage::new(&mut agent, &mut local);
            let outcome = tokio::select! {
                outcome = rounds(options, &setting, &mut stage, &mut show) => outcome.map(Some),
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

async fn rounds(
    options: &DemoOptions,
    setting: &Setting,
    stage: &mut Stage<'_>,
    show: &mut impl FnMut(&DemoFrame),
) -> anyhow::Result<DemoReport> {
    let division = Division::of(options.seconds);
    let mut measured = Measured::default();
    let (mut allowed_while_shared, mut proof) = (None, None);
    for number in 0..2 * division.rounds {
        let mode = if number.is_multiple_of(2) {
            Mode::Shared
        } else {
            Mode::Pinned
        };
        let turn = Turn {
            mode,
            round: (number / 2 + 1, division.rounds),
            length: division.slice,
        };
        let pods = job::pods(setting, mode, number + 1)?;
        let slice = stage.measure(&turn, &pods, show).await?;
        if mode == Mode::Shared {
            allowed_while_shared = proof::allowed(stage.local).or(allowed_while_shared);
        } else if turn.is_last_round()
            && let Some(owned) = owned_cpu(&slice.rows)
        {
            let allowed = allowed_while_shared.take();
            proof = Some(proof::prove(stage.local, owned, allowed).await?);
        }
        measured.add(mode, slice);
        stage.stop(&pods)?;
    }
    let [shared, pinned] = Round::medians(&measured.rounds);
    let effects = report::effects(&measured.rounds)?;
    Ok(DemoReport {
        enforcement: stage.enforcement(),
        interference: MeasuredInterference::sum(measured.interference),
        compared: setting.in_words(),
        problems: stage.problems(proof.is_some()),
        neighbors: setting.kind,
        seconds: measured.seconds,
        conclusion: report::conclusion(&effects, measured.rounds.len()),
        rounds: measured.rounds,
        shared,
        pinned,
        effects,
        proof,
        pods: measured.rows,
    })
}

/// The first owner, and its first CPU.
fn owned_cpu(rows: &[DemoRow]) -> Option<(String, u32)> {
    let owner = rows.iter().find(|row| row.exclusive)?;
    Some((owner.pod.clone(), owner.cpus.first()?))
}

/// What the slices so far have measured.
#[derive(Debug, Default)]
struct Measured {
    rounds: Vec<Round>,
    interference: Vec<MeasuredInterference>,
    seconds: f64,
    /// The pods of the last slice.
    rows: Vec<DemoRow>,
}

// === impl Measured ===

impl Measured {
    /// Adds a slice. A round begins with the slice on shared CPUs.
    fn add(&mut self, mode: Mode, slice: Slice) {
        self.seconds += slice.seconds;
        self.interference.extend(slice.interference);
        self.rows = slice.rows;
        match (mode, self.rounds.last_mut()) {
            (Mode::Pinned, Some(round)) => round.pinned = slice.figures,
            _ => self.rounds.push(Round {
                shared: slice.figures,
                ..Round::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_a_second_or_more() {
        let of = |seconds| {
            let division = Division::of(seconds);
            (division.rounds, division.slice.as_millis())
        };
        let all = [2, 3, 4, 11, 12, 24, 120, 3600, 86_400].map(of);
        let expected = [
            (1, 1000),
            (1, 1500),
            (2, 1000),
            (5, 1100),
            (6, 1000),
            (6, 2000),
            (12, 5000),
            (30, 60_000),
            (720, 60_000),
        ];
        assert_eq!(all, expected);
        assert_eq!(Division::of(0).rounds, 1);
    }
}
