//! Threads, their context switches, and how long they waited for a CPU.

use std::collections::HashSet;

use super::collect::{Outcome, Scrape};
use super::families::{CONTAINER_CONTEXT_SWITCHES, CONTAINER_CPU_RUN_DELAY_SECONDS, CONTAINER_THREADS};
use super::lock;
use super::page::{Lines, Page};
use crate::host::proc::{Proc, Scheduled};
use crate::host::taskstats::Taskstats;

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let (mut threads, mut switches) = (Lines::of(&CONTAINER_THREADS), Lines::of(&CONTAINER_CONTEXT_SWITCHES));
    let mut delay = Lines::of(&CONTAINER_CPU_RUN_DELAY_SECONDS);
    let unsupported = scrape.sources.proc.no_run_delay();
    let mut board = lock(&scrape.sources.switches);
    let mut taskstats = lock(&scrape.sources.taskstats);
    let mut complete = true;
    for subject in &scrape.subjects {
        if scrape.is_late() {
            complete = false;
            break;
        }
        // Without them nothing is known of its threads, and what was counted of them stays.
        let Some(processes) = &subject.processes else {
            complete = false;
            continue;
        };
        // What can't be counted now is counted at the next scrape; as if it were gone, it would be counted twice.
        let Some((count, seen)) = count(&scrape.sources.proc, taskstats.as_mut(), processes) else {
            complete = false;
            continue;
        };
        let total = board.add(subject.cgroup, &seen);
        threads.put(&subject.labels, count);
        switches.put_with(&subject.labels, &[("kind", "voluntary")], total.voluntary);
        switches.put_with(&subject.labels, &[("kind", "involuntary")], total.involuntary);
        if unsupported.is_none() {
            delay.put(&subject.labels, total.run_delay as f64 / 1e9);
        }
    }
    let there: HashSet<&str> = scrape.subjects.iter().map(|subject| subject.cgroup).collect();
    board.keep(|cgroup| there.contains(cgroup));
    [threads, switches, delay].into_iter().for_each(|lines| page.add(lines));
    match unsupported.filter(|_| complete) {
        Some(reason) => Outcome::Unsupported(reason.to_owned()),
        None => Outcome::of(complete),
    }
}

/// How many threads processes have, and what was counted for each process, or for each thread where the kernel does not let us
/// ask for processes; `None` where it does not say.
fn count(
    proc: &Proc,
    taskstats: Option<&mut Taskstats>,
    processes: &[i32],
) -> Option<(usize, Vec<(i32, Scheduled)>)> {
    let Some(taskstats) = taskstats else {
        let seen: Vec<_> = processes.iter().flat_map(|pid| proc.threads(*pid)).collect();
        return Some((seen.len(), seen));
    };
    let mut seen = Vec::with_capacity(processes.len());
    for pid in processes {
        seen.extend(taskstats.of(*pid).ok()?.map(|scheduled| (*pid, scheduled)));
    }
    Some((processes.iter().map(|pid| proc.thread_count(*pid)).sum(), seen))
}
