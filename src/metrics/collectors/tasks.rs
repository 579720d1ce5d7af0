//! The collector `tasks`: whether the decisions hold for each thread.
//!
//! It samples the affinity masks and migrations of single threads, and compares the number of
//! threads with the computed thread counts. A scrape samples only a few containers, in turns.
//! Counts for all threads together come from the collectors `cgroup` and `threads`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use super::super::families::{
    CONTAINER_CPU_MIGRATIONS, CONTAINER_CPUS_ALLOWED_BY_TASKS, CONTAINER_THREADS_BOUND,
    CONTAINER_THREADS_VERDICT,
};
use super::super::page::Page;
use super::measured::{CollectOutcome, MeasuredContainer};
use super::scrape::{Collector, Scrape};
use super::thread_records::{ThreadRecord, ThreadRecords, ThreadSample};
use crate::cpu::CpuSet;
use crate::host::proc::{Proc, Task, thread_cpu_time};
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use crate::pod::{THREAD_VARIABLES, ThreadFacts, ThreadStatus, ThreadVerdict, verdict};

#[derive(Debug)]
pub(super) struct TasksCollector;

impl Collector for TasksCollector {
    fn name(&self) -> &'static str {
        "tasks"
    }

    /// Writes the families of all containers. A container without a sample has no series that need a sample.
    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        if !scrape.has_thread_counts {
            return CollectOutcome::unsupported(
                "needs_threads_collector",
                "the collector tasks needs the thread counts of the collector threads, which metrics.collectors switches off",
            );
        }
        let now = Instant::now();
        sample_threads(scrape);
        let mut bound = page.lines(&CONTAINER_THREADS_BOUND);
        let mut allowed = page.lines(&CONTAINER_CPUS_ALLOWED_BY_TASKS);
        let mut migrations = page.lines(&CONTAINER_CPU_MIGRATIONS);
        let mut verdicts = page.lines(&CONTAINER_THREADS_VERDICT);
        for container in &scrape.containers {
            let Some(count) = container.thread_count else {
                continue;
            };
            let cpu_seconds = container.cpu_seconds;
            let Some(record) = scrape.state.threads.change(container.number, |record| {
                record.count(now, count, cpu_seconds);
            }) else {
                continue;
            };
            migrations.put_known(&container.labels, record.migrations);
            if let Some(sample) = current_sample(record, container.state) {
                bound.put(&container.labels, sample.bound);
                allowed.put(&container.labels, sample.allowed.len());
            }
            if let Some(verdict) = judge(record, container.state, scrape.snapshot) {
                let labels = [
                    ("verdict", verdict.finding.label()),
                    ("cause", verdict.cause_label()),
                ];
                verdicts.put_with(&container.labels, &labels, true);
            }
        }
        [bound, allowed, migrations, verdicts]
            .into_iter()
            .for_each(|lines| page.add(lines));
        match scrape.host.proc.no_migrations() {
            Some(detail) => CollectOutcome::unsupported("no_migration_counters", detail),
            None => CollectOutcome::Complete,
        }
    }
}

/// Samples containers in turns, until the allowed CPU time is used up.
fn sample_threads(scrape: &mut Scrape<'_>) {
    let allowance = scrape.state.threads.allowance();
    if allowance.is_zero() {
        return;
    }
    let start = thread_cpu_time();
    let has_processes = |container: &MeasuredContainer<'_>| {
        container
            .processes
            .as_ref()
            .is_some_and(|processes| !processes.is_empty())
    };
    let candidates: Vec<(&MeasuredContainer<'_>, &CpuSet)> = scrape
        .containers
        .iter()
        .filter(|container| has_processes(container))
        .filter_map(|container| Some((container, container.state.effective.as_ref()?)))
        .collect();
    let numbers: Vec<(usize, &CpuSet)> = candidates
        .iter()
        .map(|(container, cpus)| (container.number, *cpus))
        .collect();
    let threads = &mut scrape.state.threads;
    for index in threads.order(&numbers) {
        if scrape.deadline.is_over() || thread_cpu_time().saturating_sub(start) >= allowance {
            break;
        }
        let Some((container, cpus)) = candidates.get(index) else {
            continue;
        };
        let processes = container.processes.as_deref().unwrap_or_default();
        let (tasks, variables) = read_tasks(&scrape.host.proc, processes);
        let sample = ThreadSample::new(cpus, &tasks, variables);
        let turn = threads.next_turn();
        let was_there_first = scrape.state.numbers.was_there_first(container.number);
        threads.change(container.number, |record| {
            record.add_sample(sample, &tasks, turn, was_there_first);
            record.processes = processes.len();
        });
    }
    threads.charge(allowance, thread_cpu_time().saturating_sub(start));
}

/// The threads of the container with this number. `None` if the container has no threads, or before its first scrape.
pub(super) fn thread_status(
    threads: &ThreadRecords,
    number: usize,
    state: &ContainerState,
    snapshot: &Snapshot,
) -> Option<ThreadStatus> {
    let record = threads.get(number)?;
    let sample = current_sample(record, state);
    (record.threads > 0).then(|| ThreadStatus {
        threads: record.threads,
        most: record.most,
        runnable: record.runnable,
        allowed_by_tasks: sample.map(|sample| sample.allowed.clone()),
        bound: sample.map(|sample| sample.bound),
        migrations: record.migrations,
        variables: sample.and_then(|sample| sample.variables.clone()),
        verdict: judge(record, state, snapshot),
    })
}

/// All threads of a container's processes, and the thread variables of the process with the most threads.
///
/// A process of the container runtime that has not executed the container's program yet does not count.
fn read_tasks(proc: &Proc, processes: &[i32]) -> (Vec<Task>, Option<BTreeMap<String, String>>) {
    let (mut all, mut sizes) = (Vec::new(), Vec::with_capacity(processes.len()));
    for pid in processes {
        let tasks = proc.tasks(*pid);
        sizes.push((Reverse(tasks.len()), *pid));
        all.extend(tasks);
    }
    sizes.sort_unstable();
    let largest = sizes
        .into_iter()
        .find(|(_, pid)| !proc.awaits_exec(*pid, processes));
    let variables = largest.and_then(|(_, pid)| proc.variables(pid, &THREAD_VARIABLES));
    (all, variables)
}

/// The latest sample, unless the container's CPUs have changed since.
fn current_sample<'a>(
    record: &'a ThreadRecord,
    state: &ContainerState,
) -> Option<&'a ThreadSample> {
    let sample = record.sample.as_ref()?;
    let is_current = state.effective.as_ref() == Some(&sample.cpus) && !sample.allowed.is_empty();
    is_current.then_some(sample)
}

fn judge(
    record: &ThreadRecord,
    state: &ContainerState,
    snapshot: &Snapshot,
) -> Option<ThreadVerdict> {
    if record.threads == 0 {
        return None;
    }
    let sample = record.sample.as_ref();
    // Of an environment that can't be read, only the variables are known that Pinfold has added.
    let added = added_variables(state);
    let facts = ThreadFacts {
        threads: record.threads,
        most: record.most,
        processes: record.processes,
        runnable: record.runnable,
        cpus: state.effective.as_ref().map_or(0, CpuSet::len),
        online: snapshot.online.len(),
        environment: sample
            .and_then(|sample| sample.variables.as_ref())
            .or(Some(&added)),
    };
    verdict(&state.threads, &facts)
}

/// The computed variables that the container runtime added to the container's environment.
fn added_variables(state: &ContainerState) -> BTreeMap<String, String> {
    let computed = &state.threads.variables;
    let names = state.injected.iter().flatten();
    let added = names.filter_map(|name| computed.get_key_value(name));
    added
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
