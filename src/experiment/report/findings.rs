//! [`findings`]: what stands out in a run, as sentences.

use serde::Serialize;

use super::balance::{Balance, LoadShare};
use super::figures::{bytes, first_names, median, number, percent};
use super::task_use::{RoleUse, ServerBalance, TaskUse};
use crate::experiment::statistics::quantile;

/// A parameter server is hot from this many times the mean on, as for the alert PinfoldServerHotSpot.
pub const HOT: f64 = 1.5;

/// Parameter servers that together move fewer bytes a second are not weighed.
pub const LEAST_TRAFFIC: f64 = 10_000.0;

/// A quota holds back from this part of its periods on, as for the alert PinfoldThrottled.
pub const THROTTLED: f64 = 0.05;

/// A worker lags below this part of the median's CPU, as for the alert PinfoldWorkerLags.
pub const LAGS: f64 = 0.6;

/// One big variable is the likely cause of a hot server if each remaining server has at most this part of the hot server's
/// traffic. Many small variables would spread over the servers.
const APART_FROM_OTHERS: f64 = 0.5;

/// Counts of steps that differ by at most this part are the same count.
pub const SAME_STEPS: f64 = 0.005;

/// The fewest steps that tell whether workers count the same.
const FEWEST_STEPS: f64 = 200.0;

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingKind {
    /// One server of three or more carries most of the traffic, and the remaining servers much less.
    OneBigVariable,
    /// One of two servers carries most: the load does not tell why.
    HotServer,
    /// Some servers carry much more than the remaining servers.
    UnevenServers,
    /// All servers carry about the same.
    EvenServers,
    /// The servers hardly carry anything.
    IdleServers,
    /// A role is held back by its quota.
    Throttled,
    /// Some workers use much less CPU than the remaining workers.
    Lagging,
    /// All workers count the same number of steps, as if all exported one global counter.
    SharedSteps,
}

/// What stands out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunFinding {
    /// The kind.
    pub kind: FindingKind,
    /// A sentence.
    pub text: String,
}

/// The load of at least two parameter servers, with enough traffic for a comparison.
struct ServerLoad<'a> {
    traffic: &'a Balance,
    cpu: Option<&'a Balance>,
    hottest: &'a LoadShare,
    next: &'a LoadShare,
}

// === impl ServerLoad ===

impl ServerLoad<'_> {
    /// The figures of the traffic's balance.
    fn figures(&self) -> String {
        format!(
            "{} times the mean, Gini {}",
            number(self.traffic.max_over_mean),
            number(self.traffic.gini)
        )
    }

    /// The finding for servers with about the same traffic. A server may still be hot by its CPU time.
    fn even(&self) -> RunFinding {
        let by_cpu = self
            .cpu
            .filter(|cpu| cpu.max_over_mean >= HOT)
            .and_then(Balance::hottest);
        let but = by_cpu.map_or_else(String::new, |busiest| {
            format!(
                "; but {} takes {} of their CPU time",
                busiest.task,
                percent(busiest.share)
            )
        });
        RunFinding {
            kind: FindingKind::EvenServers,
            text: format!(
                "the parameter servers have about the same load: the busiest, {}, moves {} of their bytes ({}){but}",
                self.hottest.task,
                percent(self.hottest.share),
                self.figures()
            ),
        }
    }

    /// The finding for a hot server, with the likely cause.
    fn hot(&self, server_count: usize) -> RunFinding {
        let head = self.hot_server();
        // Of two servers, the hot server always carries several times as much.
        if server_count == 2 {
            return RunFinding {
                kind: FindingKind::HotServer,
                text: format!(
                    "{head}. With two servers, either the hot server has one large variable (partition the variable over both \
                     servers), or the program places variables by number (place the variables by size, with a load-balancing \
                     strategy)"
                ),
            };
        }
        if self.next.share <= APART_FROM_OTHERS * self.hottest.share {
            return RunFinding {
                kind: FindingKind::OneBigVariable,
                text: format!(
                    "{head}. The likely cause is one large variable: partition the variable over all servers"
                ),
            };
        }
        RunFinding {
            kind: FindingKind::UnevenServers,
            text: format!(
                "{head}, and {} moves another {}. The program places variables by number: place the variables by size (a \
                 load-balancing strategy), or partition the large variables",
                self.next.task,
                percent(self.next.share)
            ),
        }
    }

    /// The load of the hot server: the beginning of a sentence.
    fn hot_server(&self) -> String {
        let cpu = match self.cpu.and_then(|cpu| cpu.share_of(&self.hottest.task)) {
            Some(share) => format!(" and takes {} of their CPU time", percent(share)),
            None => "; its share of their CPU time is unknown".to_owned(),
        };
        format!(
            "{} is hot: it moves {} of the parameter servers' bytes ({}){cpu}",
            self.hottest.task,
            percent(self.hottest.share),
            self.figures()
        )
    }
}

/// What stands out in a run of `seconds`.
pub(super) fn findings(
    tasks: &[TaskUse],
    roles: &[RoleUse],
    servers: &ServerBalance,
    seconds: f64,
) -> Vec<RunFinding> {
    let mut findings: Vec<RunFinding> = server_balance(tasks, servers, seconds)
        .into_iter()
        .collect();
    findings.extend(throttled(roles));
    findings.extend(lagging(tasks));
    findings.extend(shared_steps(tasks));
    findings
}

/// The finding about the parameter servers' balance, by traffic and with the CPU usage.
fn server_balance(tasks: &[TaskUse], servers: &ServerBalance, seconds: f64) -> Option<RunFinding> {
    let traffic = servers.traffic.as_ref()?;
    let load = ServerLoad {
        traffic,
        cpu: servers.cpu.as_ref(),
        hottest: traffic.hottest()?,
        next: traffic.runner_up()?,
    };
    let server_tasks = || tasks.iter().filter(|task| task.is_server());
    let moved: f64 = server_tasks().filter_map(|task| task.usage.traffic()).sum();
    if moved / seconds < LEAST_TRAFFIC {
        return Some(RunFinding {
            kind: FindingKind::IdleServers,
            text: format!(
                "the parameter servers move {} per second together, too little to find a hot server",
                bytes(moved / seconds)
            ),
        });
    }
    Some(if traffic.max_over_mean < HOT {
        load.even()
    } else {
        load.hot(server_tasks().count())
    })
}

fn throttled(roles: &[RoleUse]) -> Vec<RunFinding> {
    let over = roles.iter().filter_map(|role| {
        let share = role.usage.throttled_share.filter(|share| *share > THROTTLED)?;
        Some(RunFinding {
            kind: FindingKind::Throttled,
            text: format!(
                "the CPU quota throttles the {} tasks in {} of the periods: give the tasks exclusive CPUs, or fewer threads",
                role.role,
                percent(share)
            ),
        })
    });
    over.collect()
}

/// Whether all workers count the same, which own counters of workers in different places rarely do.
fn shared_steps(tasks: &[TaskUse]) -> Option<RunFinding> {
    let workers = tasks.iter().filter(|task| task.is_training());
    let counts: Option<Vec<f64>> = workers.map(|task| task.usage.steps).collect();
    let steps = common_count(&counts?)?;
    Some(RunFinding {
        kind: FindingKind::SharedSteps,
        text: format!(
            "all workers count the same number of steps, about {}: if that is one global step, which each of them exports, it is \
             counted once for each worker, so name a counter of one task with --step-metric",
            number(steps)
        ),
    })
}

/// The number of steps that several workers have in common, if they have: more than a few, and equal but for what passes between
/// two looks.
pub(in crate::experiment) fn common_count(counts: &[f64]) -> Option<f64> {
    let at = |share| quantile(counts, share);
    let (least, middle, greatest) = (at(0.0)?, at(0.5)?, at(1.0)?);
    let is_common =
        counts.len() >= 2 && middle >= FEWEST_STEPS && greatest - least <= SAME_STEPS * middle;
    is_common.then_some(middle)
}

fn lagging(tasks: &[TaskUse]) -> Option<RunFinding> {
    let workers = tasks.iter().filter(|task| task.role == "worker");
    let used: Vec<(&str, f64)> = workers
        .filter_map(|task| Some((task.task.as_str(), task.usage.cpus_used?)))
        .collect();
    let median = median(used.iter().map(|(_, used)| *used)).filter(|_| used.len() >= 3)?;
    let slow: Vec<&str> = used
        .iter()
        .filter(|(_, used)| *used < LAGS * median)
        .map(|(task, _)| *task)
        .collect();
    (!slow.is_empty()).then(|| RunFinding {
        kind: FindingKind::Lagging,
        text: format!(
            "{} used less than {} of the median worker's CPU time: check the input, the network and the start time",
            first_names(&slow),
            percent(LAGS)
        ),
    })
}
