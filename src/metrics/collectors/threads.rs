//! Threads, their context switches, and how long they waited for a CPU.

use std::time::Duration;

use super::super::families::{
    CONTAINER_CONTEXT_SWITCHES, CONTAINER_CPU_RUN_DELAY_SECONDS, CONTAINER_THREADS,
};
use super::super::lock;
use super::super::page::Page;
use super::{Outcome, Scrape};
use crate::host::proc::{Proc, SchedulerCounts};
use crate::host::taskstats::Taskstats;

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let (mut threads, mut switches) = (
        page.lines(&CONTAINER_THREADS),
        page.lines(&CONTAINER_CONTEXT_SWITCHES),
    );
    let mut delay = page.lines(&CONTAINER_CPU_RUN_DELAY_SECONDS);
    let proc = &scrape.sources.proc;
    let unsupported = proc.no_run_delay();
    let (mut board, mut tasks) = (lock(&scrape.sources.switches), lock(&scrape.sources.tasks));
    let mut taskstats = lock(&scrape.sources.taskstats);
    let by_process = taskstats.is_some();
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
        let Some(seen) = count(proc, taskstats.as_mut(), processes) else {
            complete = false;
            continue;
        };
        // One cgroup knows how many it has; what it has not been told of yet is counted by hand.
        let known = subject.threads.filter(|known| *known >= processes.len());
        let known =
            known.unwrap_or_else(|| processes.iter().map(|pid| proc.thread_count(*pid)).sum());
        let began = |id: i32| {
            if by_process {
                proc.start_time(id)
            } else {
                None
            }
        };
        let total = board.add(subject.number, &seen, began);
        let waited = unsupported.is_none().then_some(total.run_delay);
        tasks.note_threads(subject.number, known, waited);
        threads.put(&subject.labels, known);
        switches.put_with(&subject.labels, &[("kind", "voluntary")], total.voluntary);
        switches.put_with(
            &subject.labels,
            &[("kind", "involuntary")],
            total.involuntary,
        );
        if unsupported.is_none() {
            delay.put(&subject.labels, Duration::from_nanos(total.run_delay));
        }
    }
    [threads, switches, delay]
        .into_iter()
        .for_each(|lines| page.add(lines));
    match unsupported.filter(|_| complete) {
        Some(reason) => Outcome::Unsupported(reason.to_owned()),
        None => Outcome::of(complete),
    }
}

/// What was counted for each process, or for each thread where the kernel does not let us ask for processes; `None` where it
/// does not say.
fn count(
    proc: &Proc,
    taskstats: Option<&mut Taskstats>,
    processes: &[i32],
) -> Option<Vec<(i32, SchedulerCounts)>> {
    let Some(taskstats) = taskstats else {
        return Some(
            processes
                .iter()
                .flat_map(|pid| proc.threads(*pid))
                .collect(),
        );
    };
    let mut seen = Vec::with_capacity(processes.len());
    for pid in processes {
        seen.extend(taskstats.of(*pid).ok()?.map(|scheduled| (*pid, scheduled)));
    }
    Some(seen)
}
