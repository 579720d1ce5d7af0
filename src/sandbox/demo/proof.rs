//! [`Proof`]: a neighbor tries to get an exclusive CPU, which fails on a busy machine as on an idle one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use serde::Serialize;

use crate::cpu::CpuSet;
use crate::host::file;
use crate::host::proc::{AFFINITY_CPUS, Proc, set_affinity};
use crate::sandbox::local_node::LocalNode;
use crate::text::units;

/// The pod that tries. Every demo has one.
const NEIGHBOR: &str = "neighbor-0";

/// How long the agent may take to repair a CPU set. It takes milliseconds; only a failure takes so long.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a write that the kernel accepted must stay without effect.
const WATCH: Duration = Duration::from_millis(300);

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The attempts of a neighbor to get an exclusive CPU.
#[derive(Debug, Clone, Serialize)]
pub struct Proof {
    /// The pod that owns the CPU.
    pub owner: String,
    pub cpu: u32,
    /// The pod that tries to get it.
    pub neighbor: String,
    /// `Cpus_allowed_list` of the neighbor in the last slice on shared CPUs; null if it could not be read.
    pub allowed_while_shared: Option<CpuSet>,
    pub attempts: Vec<Attempt>,
}

/// An attempt, with `Cpus_allowed_list` of the neighbor's process around it.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    pub means: Means,
    pub before: CpuSet,
    /// Right after the attempt.
    pub at_once: CpuSet,
    /// When the outcome was certain.
    pub after: CpuSet,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// The system call `sched_setaffinity`, as by `taskset`.
    Affinity,
    /// A write to the neighbor's `cpuset.cpus`.
    Cpuset,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum Outcome {
    /// The kernel refused.
    Refused { error: String },
    /// The kernel accepted the write, and keeps the CPU from the neighbor all the same.
    WithoutEffect,
    /// The kernel allowed it, and the agent repaired it.
    Repaired { seconds: f64 },
    /// The neighbor may still run on the CPU.
    Failed { seconds: f64 },
}

/// The process that tries, and the CPU that it wants.
struct Intruder {
    proc: Proc,
    pid: i32,
    cpu: u32,
    /// The file `cpuset.cpus` of its container.
    cpuset: PathBuf,
}

// === impl Proof ===

impl Proof {
    /// Whether no attempt got the CPU for good.
    pub fn holds(&self) -> bool {
        let mut attempts = self.attempts.iter();
        !self.attempts.is_empty()
            && attempts.all(|attempt| !matches!(attempt.outcome, Outcome::Failed { .. }))
    }
}

// === impl Outcome ===

impl Outcome {
    /// The outcome in words, for the CPU that the neighbor wanted.
    pub fn in_words(&self, cpu: u32) -> String {
        match self {
            Self::Refused { error } => format!("refused by the kernel: {error}"),
            Self::WithoutEffect => format!("no effect: the kernel's partition keeps CPU {cpu}"),
            Self::Repaired { seconds } => format!(
                "allowed by the kernel, repaired by the agent after {}",
                units::seconds(*seconds)
            ),
            Self::Failed { seconds } => format!(
                "FAILED: it may still run on CPU {cpu} after {}",
                units::seconds(*seconds)
            ),
        }
    }
}

/// `Cpus_allowed_list` of the neighbor; `None` without its process.
pub(super) fn allowed(local: &LocalNode) -> Option<CpuSet> {
    let pid = local.processes(NEIGHBOR).into_iter().next()?;
    Proc::new(Path::new("/")).allowed(pid)
}

/// Lets the neighbor try to get the CPU of an owner.
///
/// # Errors
/// The neighbor has ended.
pub(super) async fn prove(
    local: &LocalNode,
    (owner, cpu): (String, u32),
    allowed_while_shared: Option<CpuSet>,
) -> anyhow::Result<Proof> {
    let pid = local.processes(NEIGHBOR).into_iter().next();
    let pid = pid.with_context(|| format!("{NEIGHBOR} has no process"))?;
    let folder = local.cpuset_folder(NEIGHBOR);
    let folder = folder.with_context(|| format!("{NEIGHBOR} has no cgroup"))?;
    let intruder = Intruder {
        proc: Proc::new(Path::new("/")),
        pid,
        cpu,
        cpuset: folder.join("cpuset.cpus"),
    };
    let mut attempts = Vec::new();
    if cpu < AFFINITY_CPUS {
        attempts.push(intruder.attempt(Means::Affinity).await?);
    }
    attempts.push(intruder.attempt(Means::Cpuset).await?);
    Ok(Proof {
        owner,
        cpu,
        neighbor: NEIGHBOR.to_owned(),
        allowed_while_shared,
        attempts,
    })
}

// === impl Intruder ===

impl Intruder {
    fn allowed(&self) -> anyhow::Result<CpuSet> {
        let allowed = self.proc.allowed(self.pid);
        allowed.with_context(|| format!("the process of {NEIGHBOR} has ended"))
    }

    async fn attempt(&self, means: Means) -> anyhow::Result<Attempt> {
        let before = self.allowed()?;
        // From before the attempt: the agent may have repaired a write before the write returns to this process.
        let began = Instant::now();
        let tried = match means {
            Means::Affinity => set_affinity(self.pid, self.cpu),
            Means::Cpuset => self.write_cpuset(),
        };
        let at_once = self.allowed()?;
        // Refused or not, what counts is where the process may run.
        let mut was_allowed = at_once.contains(self.cpu);
        loop {
            let after = self.allowed()?;
            was_allowed |= after.contains(self.cpu);
            // Where the agent is faster than this process, only the file shows the repair.
            let is_undone = means == Means::Cpuset && tried.is_ok() && !self.holds_written();
            let seen = Seen {
                refusal: tried.as_ref().err().map(reason),
                was_allowed: was_allowed || is_undone,
                is_allowed: after.contains(self.cpu),
                elapsed: began.elapsed(),
            };
            if let Some(outcome) = seen.outcome() {
                return Ok(Attempt {
                    means,
                    before,
                    at_once,
                    after,
                    outcome,
                });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn write_cpuset(&self) -> io::Result<()> {
        let written = file::write(&self.cpuset, &self.cpu.to_string());
        written.map_err(|error| {
            let code = error.kernel_error().raw_os_error();
            io::Error::from_raw_os_error(code.unwrap_or_default())
        })
    }

    /// Whether the file has what the neighbor wrote.
    fn holds_written(&self) -> bool {
        let text = file::read_value(&self.cpuset);
        text.is_ok_and(|text| text == self.cpu.to_string())
    }
}

/// The error in words, as `taskset` and a shell print it.
fn reason(error: &io::Error) -> String {
    let code = error.raw_os_error();
    code.map_or_else(
        || error.to_string(),
        |code| Errno::from_raw(code).desc().to_owned(),
    )
}

/// What was seen of an attempt so far.
struct Seen {
    refusal: Option<String>,
    /// Whether the neighbor could run on the CPU for a moment.
    was_allowed: bool,
    is_allowed: bool,
    elapsed: Duration,
}

// === impl Seen ===

impl Seen {
    /// The outcome, once it is certain.
    fn outcome(self) -> Option<Outcome> {
        let seconds = self.elapsed.as_secs_f64();
        match self {
            Self {
                is_allowed: true,
                elapsed,
                ..
            } => (elapsed >= REPAIR_TIMEOUT).then_some(Outcome::Failed { seconds }),
            Self {
                refusal: Some(error),
                was_allowed: false,
                ..
            } => Some(Outcome::Refused { error }),
            Self {
                was_allowed: true, ..
            } => Some(Outcome::Repaired { seconds }),
            Self { elapsed, .. } => (elapsed >= WATCH).then_some(Outcome::WithoutEffect),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(
        refusal: Option<&str>,
        was_allowed: bool,
        is_allowed: bool,
        millis: u64,
    ) -> Option<Outcome> {
        let seen = Seen {
            refusal: refusal.map(str::to_owned),
            was_allowed,
            is_allowed,
            elapsed: Duration::from_millis(millis),
        };
        seen.outcome()
    }

    #[test]
    fn an_outcome_is_told_once_it_is_certain() {
        let refused = Outcome::Refused {
            error: "EINVAL".to_owned(),
        };
        assert_eq!(outcome(Some("EINVAL"), false, false, 0), Some(refused));
        assert_eq!(outcome(None, false, false, 299), None);
        assert_eq!(
            outcome(None, false, false, 300),
            Some(Outcome::WithoutEffect)
        );
        assert_eq!(outcome(None, true, true, 29_999), None);
        let repaired = Outcome::Repaired { seconds: 0.5 };
        assert_eq!(outcome(None, true, false, 500), Some(repaired));
    }

    #[test]
    fn a_neighbor_that_keeps_the_cpu_fails_the_proof() {
        let failed = outcome(None, true, true, 30_000).unwrap();
        assert_eq!(
            failed.in_words(1),
            "FAILED: it may still run on CPU 1 after 30.0 s"
        );
        // An error is no proof either, if the process may run there.
        assert_eq!(
            outcome(Some("EINVAL"), true, true, 30_000),
            Some(failed.clone())
        );
        let proof = |outcomes: &[&Outcome]| Proof {
            owner: "worker-0".to_owned(),
            cpu: 1,
            neighbor: NEIGHBOR.to_owned(),
            allowed_while_shared: None,
            attempts: outcomes
                .iter()
                .map(|&outcome| Attempt {
                    means: Means::Cpuset,
                    before: CpuSet::new(),
                    at_once: CpuSet::new(),
                    after: CpuSet::new(),
                    outcome: outcome.clone(),
                })
                .collect(),
        };
        assert!(proof(&[&Outcome::WithoutEffect]).holds());
        assert!(!proof(&[&Outcome::WithoutEffect, &failed]).holds());
        assert!(!proof(&[]).holds(), "without an attempt, nothing is proved");
    }
}
