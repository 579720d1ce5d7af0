//! [`BenchPlan`]: the tasks of a bench, the number of rounds and the order of the runs, chosen
//! before the first run.

use serde::Serialize;

use super::steps::Pattern;
use crate::cpu::{CpuSet, Topology};
use crate::sandbox::job::SERVER_CPUS;
use crate::sandbox::neighbors::{NeighborKind, Neighbors};
use crate::text::counted;

/// The most CPUs of a worker without the user's choice.
const MOST_USUAL_CPUS: u32 = 4;

/// The time of a run in addition to the measurement, in seconds: start and warm-up. Only the
/// estimate uses it.
const RUN_OVERHEAD: f64 = 2.5;

/// The CPUs of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cpus {
    /// The shared pool, with the CPU limit as a quota, as in Kubernetes.
    Shared,
    /// Exclusive CPUs without a quota, as assigned by the agent.
    Pinned,
}

/// The number of threads of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadChoice {
    /// No variables, so that the framework counts the host's CPUs, or the variables of a larger
    /// host.
    Host,
    /// As many threads as CPUs, in the variables that the agent sets.
    Right,
}

/// A way to run a task: CPUs of one kind with a choice of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Way {
    /// Shared or pinned CPUs.
    pub cpus: Cpus,
    /// The host's threads or the right threads.
    pub threads: ThreadChoice,
}

/// The user's options. The plan chooses values for those that are missing.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// The number of runs of each way.
    pub rounds: usize,
    /// The measured time of each run, in seconds.
    pub seconds: u64,
    /// The longest time of a run, in seconds.
    pub limit: u64,
    /// The number of workers, or of copies of the command.
    pub workers: Option<u32>,
    pub cpus: Option<u32>,
    /// The number of parameter servers.
    pub ps: Option<u32>,
    /// The CPUs of each parameter server; 0 keeps the servers in the shared pool.
    pub ps_cpus: Option<u32>,
    /// The number of CPUs of the simulated larger host, if any.
    pub host_threads: Option<u32>,
    /// Whether equal containers fill the node, and all of them run the same program.
    pub full_node: bool,
    /// The kind of the pods beside the job.
    pub neighbor_kind: NeighborKind,
    /// The number of pods beside the job.
    pub neighbor_pods: Option<u32>,
    /// The share of a CPU that each thread of a neighbor uses, in percent.
    pub neighbor_busy: Option<u8>,
    /// The CPU request of each neighbor, in thousandths of a CPU.
    pub neighbor_request: Option<u64>,
    /// A command in place of the built-in job.
    pub command: Option<String>,
    /// The pattern of a step in the command's output. Without one, the bench measures the duration.
    pub pattern: Option<Pattern>,
}

/// The tasks, the number of rounds and the order.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchPlan {
    pub online: CpuSet,
    pub reserved: CpuSet,
    /// The built-in job, or a command.
    pub work: BenchProgram,
    /// The number of workers, or of copies of the command.
    pub workers: u32,
    /// The CPUs of each worker.
    pub cpus: u32,
    /// The number of parameter servers; 0: each worker keeps the parameters itself.
    pub ps: u32,
    /// The CPUs of each parameter server; 0: always in the shared pool, with a limit of one CPU.
    pub ps_cpus: u32,
    /// The number of CPUs of the simulated larger host; null: programs get no variables and count
    /// this host's CPUs.
    pub host_threads: Option<u32>,
    /// The pods beside the job.
    pub neighbors: Neighbors,
    /// Whether equal containers fill the node: the neighbors run the same program as the workers.
    pub full_node: bool,
    /// The measured time of each run, in seconds.
    pub seconds: u64,
    /// The longest time of a run, in seconds.
    pub limit: u64,
    /// The ways of each round, in order.
    pub rounds: Vec<[Way; 4]>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BenchProgram {
    /// The built-in training job with parameter servers.
    BuiltIn,
    #[serde(rename_all = "camelCase")]
    Command {
        line: String,
        /// The pattern of a step; null if the bench measures the duration.
        steps: Option<Pattern>,
    },
}

/// Why no plan is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "no CPU for exclusive use: of the CPUs {online}, {reserved} are reserved for the system; use a machine with two CPUs \
         or more, or reserve fewer with --reserved"
    )]
    NothingFree { online: CpuSet, reserved: CpuSet },
    #[error(
        "the tasks need {} for exclusive use ({sum}), but of the CPUs {online} only {free} can be exclusive ({reserved} \
         reserved): lower --workers or --cpus{server_remedy}, or reserve fewer CPUs with --reserved",
        counted(.wanted, "CPU")
    )]
    TooFew {
        wanted: u64,
        /// What the wanted CPUs add up from.
        sum: String,
        /// The remedy for exclusive CPUs of servers, as a part of the sentence; empty if there are
        /// none.
        server_remedy: &'static str,
        /// The CPUs available for exclusive use.
        free: usize,
        online: CpuSet,
        reserved: CpuSet,
    },
    #[error(
        "containers of {} do not fill the {online} CPUs of the node: choose --cpus as a divisor of {online}",
        counted(.cpus, "CPU")
    )]
    NotFull {
        /// CPUs of each container.
        cpus: u32,
        /// The number of online CPUs.
        online: usize,
    },
}

// === impl Way ===

impl Way {
    /// All four ways, beginning with the usual way.
    pub const ALL: [Self; 4] = [
        Self {
            cpus: Cpus::Shared,
            threads: ThreadChoice::Host,
        },
        Self {
            cpus: Cpus::Shared,
            threads: ThreadChoice::Right,
        },
        Self {
            cpus: Cpus::Pinned,
            threads: ThreadChoice::Host,
        },
        Self {
            cpus: Cpus::Pinned,
            threads: ThreadChoice::Right,
        },
    ];

    pub fn name(self) -> &'static str {
        match (self.cpus, self.threads) {
            (Cpus::Shared, ThreadChoice::Host) => "shared, host's threads",
            (Cpus::Shared, ThreadChoice::Right) => "shared, right threads",
            (Cpus::Pinned, ThreadChoice::Host) => "pinned, host's threads",
            (Cpus::Pinned, ThreadChoice::Right) => "pinned, right threads",
        }
    }
}

/// The order of the four ways by round. In any four rounds, each way runs once in each position and
/// once right after each other way, so that effects of the previous way, and changes of the
/// machine, affect all ways alike.
pub fn rounds(count: usize) -> Vec<[Way; 4]> {
    const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];
    ORDERS
        .iter()
        .cycle()
        .take(count)
        .map(|order| order.map(|way| Way::ALL[way]))
        .collect()
}

/// The numbers of workers and servers, and the CPUs of each.
struct Sizes {
    workers: u32,
    cpus: u32,
    ps: u32,
    ps_cpus: u32,
}

// === impl Sizes ===

impl Sizes {
    /// The requested sizes. Missing ones follow from the number of CPUs and how many of them are
    /// free.
    fn new(preferences: &PlanOptions, online: usize, free: u32) -> Self {
        if preferences.full_node {
            return Self::of_full_node(preferences, online, free);
        }
        let is_large = online >= SERVER_CPUS;
        let ps = if preferences.command.is_some() {
            0
        } else {
            let usual = u32::from(is_large || preferences.ps_cpus.is_some());
            preferences.ps.unwrap_or(usual)
        };
        let least = preferences
            .workers
            .unwrap_or(1)
            .saturating_mul(preferences.cpus.unwrap_or(1));
        let ps_cpus = preferences
            .ps_cpus
            .unwrap_or_else(|| u32::from(ps > 0 && ps.saturating_add(least) <= free));
        let left = free.saturating_sub(ps.saturating_mul(ps_cpus));
        let fits_two = left / preferences.cpus.unwrap_or(1).max(1) >= 2;
        let usual = if preferences.command.is_none() && fits_two && is_large {
            2
        } else {
            1
        };
        let workers = preferences.workers.unwrap_or(usual).max(1);
        let cpus = preferences
            .cpus
            .unwrap_or((left / workers).clamp(1, MOST_USUAL_CPUS))
            .max(1);
        Self {
            workers,
            cpus,
            ps,
            ps_cpus,
        }
    }

    /// A worker that keeps the parameters itself, as large as possible beside equal containers.
    fn of_full_node(preferences: &PlanOptions, online: usize, free: u32) -> Self {
        let workers = preferences.workers.unwrap_or(1).max(1);
        let fits = |cpus: &u32| {
            online.is_multiple_of(*cpus as usize) && workers.saturating_mul(*cpus) <= free
        };
        let usual = || (1..=MOST_USUAL_CPUS).rev().find(fits).unwrap_or(1);
        Self {
            workers,
            cpus: preferences.cpus.unwrap_or_else(usual).max(1),
            ps: 0,
            ps_cpus: 0,
        }
    }

    /// The number of CPUs that the job requests.
    fn requested(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.cpus)
            + u64::from(self.ps) * u64::from(self.ps_cpus.max(1))
    }

    /// The number of exclusive CPUs in the pinned ways.
    fn exclusive(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.cpus)
            + u64::from(self.ps) * u64::from(self.ps_cpus)
    }

    /// The error for a machine with only `free` CPUs for exclusive use.
    fn too_few(&self, free: usize, online: CpuSet, reserved: &CpuSet) -> PlanError {
        let servers = if self.ps > 0 {
            format!(" and {} of {}", counted(self.ps, "server"), self.ps_cpus)
        } else {
            String::new()
        };
        let workers = counted(self.workers, "worker");
        PlanError::TooFew {
            wanted: self.exclusive(),
            sum: format!("{workers} of {}{servers}", self.cpus),
            server_remedy: if self.ps > 0 && self.ps_cpus > 0 {
                ", use --ps-cpus 0"
            } else {
                ""
            },
            free,
            online,
            reserved: reserved.clone(),
        }
    }
}

// === impl BenchPlan ===

impl BenchPlan {
    /// Chooses values for the missing options, and checks whether the machine is large enough.
    ///
    /// # Errors
    /// The machine has too few CPUs.
    pub fn new(
        preferences: PlanOptions,
        topology: &Topology,
        reserved: &CpuSet,
    ) -> Result<Self, PlanError> {
        let online = topology.online.clone();
        let free = online.difference(reserved).len();
        if free == 0 {
            return Err(PlanError::NothingFree {
                online,
                reserved: reserved.clone(),
            });
        }
        let sizes = Sizes::new(
            &preferences,
            online.len(),
            u32::try_from(free).unwrap_or(u32::MAX),
        );
        let Sizes {
            workers,
            cpus,
            ps,
            ps_cpus,
        } = sizes;
        if sizes.exclusive() > free as u64 {
            return Err(sizes.too_few(free, online, reserved));
        }
        if preferences.full_node && !online.len().is_multiple_of(cpus as usize) {
            return Err(PlanError::NotFull {
                cpus,
                online: online.len(),
            });
        }
        let left = (1000 * online.len() as u64).saturating_sub(1000 * sizes.requested());
        let neighbors = neighbors(&preferences, online.len(), &sizes, left);
        Ok(Self {
            online,
            reserved: reserved.clone(),
            work: match preferences.command {
                Some(line) => BenchProgram::Command {
                    line,
                    steps: preferences.pattern,
                },
                None => BenchProgram::BuiltIn,
            },
            workers,
            cpus,
            ps,
            ps_cpus,
            host_threads: preferences.host_threads,
            neighbors,
            full_node: preferences.full_node,
            seconds: preferences.seconds,
            limit: preferences.limit,
            rounds: rounds(preferences.rounds),
        })
    }

    /// Whether the bench measures the duration of the command, and no steps.
    pub fn runs_to_end(&self) -> bool {
        matches!(self.work, BenchProgram::Command { steps: None, .. })
    }

    /// The sum of all CPU requests, in thousandths of a CPU.
    pub fn requested(&self) -> u64 {
        let job = u64::from(self.workers) * u64::from(self.cpus)
            + u64::from(self.ps) * u64::from(self.ps_cpus.max(1));
        1000 * job + self.neighbors.requested()
    }

    /// How many CPUs the neighbors can keep busy, and how many have no exclusive task.
    pub fn busy(&self) -> (f64, u64) {
        let Neighbors {
            count,
            threads,
            busy_percent,
            ..
        } = self.neighbors;
        let share = f64::from(busy_percent.unwrap_or(100)) / 100.0;
        let busy = f64::from(count) * f64::from(threads) * share;
        let job = u64::from(self.workers) * u64::from(self.cpus)
            + u64::from(self.ps) * u64::from(self.ps_cpus);
        (busy, (self.online.len() as u64).saturating_sub(job))
    }

    /// Whether the requests cover all CPUs, and there are neighbors to use them. The request of a
    /// neighbor is rounded down.
    pub fn is_full(&self) -> bool {
        let count = u64::from(self.neighbors.count);
        count > 0 && self.requested() + count > 1000 * self.online.len() as u64
    }

    /// The expected duration in seconds; `None` for a command of unknown duration.
    pub fn estimate(&self) -> Option<f64> {
        let runs = self.rounds.len() * 4;
        (!self.runs_to_end()).then_some(runs as f64 * (self.seconds as f64 + RUN_OVERHEAD))
    }
}

/// The pods beside the job. `left` is the part of the node that the job does not request, in thousandths of a CPU.
fn neighbors(preferences: &PlanOptions, online: usize, sizes: &Sizes, left: u64) -> Neighbors {
    let usual = Neighbors::new(preferences.neighbor_kind, online, left);
    if preferences.full_node {
        let containers = u32::try_from(online).unwrap_or(u32::MAX) / sizes.cpus;
        return Neighbors {
            count: containers.saturating_sub(sizes.workers),
            request_milli_cpus: 1000 * u64::from(sizes.cpus),
            ..usual
        };
    }
    let count = preferences.neighbor_pods.unwrap_or(usual.count);
    let fair = match preferences.neighbor_kind {
        NeighborKind::Full => left.checked_div(u64::from(count)).unwrap_or(0),
        NeighborKind::BestEffort => 0,
    };
    Neighbors {
        count,
        request_milli_cpus: preferences.neighbor_request.unwrap_or(fair),
        busy_percent: preferences
            .neighbor_busy
            .map(|percent| percent.clamp(1, 100)),
        ..usual
    }
}

#[cfg(test)]
pub(super) mod tests;
