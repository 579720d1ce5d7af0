//! The collector `threads`: the number of threads, their context switches, and their waiting time for a CPU.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::super::families::{
    CONTAINER_CONTEXT_SWITCHES, CONTAINER_CPU_RUN_DELAY_SECONDS, CONTAINER_THREADS,
};
use super::super::page::Page;
use super::measured::{CollectOutcome, ThreadCount};
use super::scheduler_totals::SchedulerTotals;
use super::scrape::{Collector, Scrape};
use crate::host::netlink::taskstats::Taskstats;
use crate::host::proc::{Proc, SchedulerCounts};

#[derive(Debug)]
pub(super) struct ThreadsCollector {
    /// The kernel's accounting by process. `None`: each thread's files are read.
    taskstats: Option<Taskstats>,
    totals: SchedulerTotals,
}

// === impl ThreadsCollector ===

impl ThreadsCollector {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            taskstats: open_taskstats(root),
            totals: SchedulerTotals::default(),
        }
    }
}

impl Collector for ThreadsCollector {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        scrape.list_processes();
        let mut threads = page.lines(&CONTAINER_THREADS);
        let mut switches = page.lines(&CONTAINER_CONTEXT_SWITCHES);
        let mut delay = page.lines(&CONTAINER_CPU_RUN_DELAY_SECONDS);
        let proc = &scrape.host.proc;
        let no_run_delay = proc.no_run_delay();
        let by_process = self.taskstats.is_some();
        let start_time = |id: i32| by_process.then(|| proc.start_time(id)).flatten();
        let mut complete = true;
        for container in &mut scrape.containers {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            // Without process ids, the totals stay as they are.
            let Some(processes) = &container.processes else {
                complete = false;
                continue;
            };
            // An unreadable task keeps its place in the totals, because its counts would otherwise
            // count twice.
            let Some(counts) = scheduler_counts(proc, self.taskstats.as_mut(), processes) else {
                complete = false;
                continue;
            };
            // The `pids` controller may lag behind, so a count below the number of processes is
            // replaced by a count by hand.
            let by_controller = container
                .pids_current
                .filter(|count| *count >= processes.len());
            let count_threads = || processes.iter().map(|pid| proc.thread_count(*pid)).sum();
            let count = by_controller.unwrap_or_else(count_threads);
            let number = container.number;
            let was_there_first = scrape.state.numbers.was_there_first(number);
            let total = self
                .totals
                .add(number, was_there_first, &counts, start_time);
            let run_delay = no_run_delay.is_none().then_some(total.run_delay);
            container.thread_count = Some(ThreadCount {
                threads: count,
                run_delay,
            });
            threads.put(&container.labels, count);
            for (kind, count) in [
                ("voluntary", total.voluntary),
                ("involuntary", total.involuntary),
            ] {
                switches.put_with(&container.labels, &[("kind", kind)], count);
            }
            delay.put_known(&container.labels, run_delay.map(Duration::from_nanos));
        }
        [threads, switches, delay]
            .into_iter()
            .for_each(|lines| page.add(lines));
        match no_run_delay.filter(|_| complete) {
            Some(detail) => CollectOutcome::unsupported("no_run_delay", detail),
            None => CollectOutcome::from_complete(complete),
        }
    }

    fn forget(&mut self, number: usize) {
        self.totals.forget(number);
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.totals.kept()
    }
}

/// The kernel's accounting of this machine's processes. `None` for a folder of test files, and without permission.
fn open_taskstats(root: &Path) -> Option<Taskstats> {
    let opened = (root == Path::new("/")).then(Taskstats::open)?;
    let log = |error: &io::Error| {
        tracing::info!(
            "a scrape reads two files per thread, because the kernel refuses accounting by process (CAP_NET_ADMIN and \
             hostPID are needed): {error}"
        );
    };
    opened.inspect_err(log).ok()
}

/// The counts of each process. Without taskstats, the counts of each thread. `None` if the kernel does not answer.
fn scheduler_counts(
    proc: &Proc,
    taskstats: Option<&mut Taskstats>,
    processes: &[i32],
) -> Option<Vec<(i32, SchedulerCounts)>> {
    let Some(taskstats) = taskstats else {
        let threads = processes.iter().flat_map(|pid| proc.threads(*pid));
        return Some(threads.collect());
    };
    let mut counts = Vec::with_capacity(processes.len());
    for pid in processes {
        let count = taskstats.of(*pid).ok()?;
        counts.extend(count.map(|count| (*pid, count)));
    }
    Some(counts)
}
