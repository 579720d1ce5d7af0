//! Whether what was decided holds for each thread: the CPUs that its own mask leaves it, how often it was moved, how many want
//! to run, and whether the thread counts that were computed explain how many there are.
//!
//! Threads are looked at one by one in turns, a few containers in each scrape; what is counted for all threads together is
//! taken from the collectors that count it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::super::families::{
    CONTAINER_CPU_MIGRATIONS, CONTAINER_CPUS_ALLOWED_BY_TASKS, CONTAINER_THREADS_BOUND,
    CONTAINER_THREADS_VERDICT,
};
use super::super::page::Page;
use super::looks::{Book, Known, Look};
use super::{Outcome, Scrape, Subject};
use crate::cpu::CpuSet;
use crate::host::proc::{Proc, Task, thread_cpu_time};
use crate::pin::Snapshot;
use crate::pin::snapshot::ContainerState;
use crate::pod::{THREAD_VARIABLES, ThreadFacts, ThreadVerdict, verdict};

/// What must last from one scrape to the next.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Tasks {
    book: Book,
}

/// What is known of the threads of a container that runs.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadTruth {
    /// Threads now.
    pub threads: usize,
    /// The most that were seen at once.
    pub most: usize,
    /// How many of them ran or waited for a CPU, on average between the last two scrapes.
    pub runnable: Option<f64>,
    /// All CPUs that some thread may run on by its own mask; `None` until they were looked at.
    pub allowed_by_tasks: Option<CpuSet>,
    /// Threads that may not run on all of the container's CPUs.
    pub bound: Option<usize>,
    /// How often threads that were seen have been moved from one CPU to another.
    pub migrations: Option<u64>,
    /// The thread variables with which its largest process was started; `None` where they could not be read.
    pub variables: Option<BTreeMap<String, String>>,
    /// Whether its environment explains its threads; `None` where nothing is expected and not too many want to run.
    pub verdict: Option<ThreadVerdict>,
}

// === impl Tasks ===

impl Tasks {
    /// Takes note of how many threads a container has, and of what they have waited, in nanoseconds.
    pub(super) fn note_threads(&mut self, number: usize, threads: usize, run_delay: Option<u64>) {
        self.book
            .change(number, |known| known.counted = Some((threads, run_delay)));
    }

    /// Takes note of the CPU time that a container has used.
    pub(super) fn note_usage(&mut self, number: usize, seconds: Option<f64>) {
        self.book.change(number, |known| known.usage = seconds);
    }

    /// Forgets the container that has had a number.
    pub(super) fn forget(&mut self, number: usize) {
        self.book.forget(number);
    }

    /// Writes the families of all containers, of those whose turn has not come yet without what a look shows.
    pub(super) fn collect(&mut self, page: &mut Page, scrape: &Scrape<'_>) -> Outcome {
        let (now, proc) = (Instant::now(), &scrape.sources.proc);
        self.look(scrape, proc);
        let mut bound = page.lines(&CONTAINER_THREADS_BOUND);
        let mut allowed = page.lines(&CONTAINER_CPUS_ALLOWED_BY_TASKS);
        let mut migrations = page.lines(&CONTAINER_CPU_MIGRATIONS);
        let mut verdicts = page.lines(&CONTAINER_THREADS_VERDICT);
        for subject in &scrape.subjects {
            let mut counted = false;
            self.book.change(subject.number, |known| {
                known.count(now);
                // What can't be counted is not told as it was before.
                counted = known.counted.take().is_some();
                known.usage = None;
            });
            let Some(known) = self.book.known(subject.number).filter(|_| counted) else {
                continue;
            };
            migrations.put_known(&subject.labels, known.migrations);
            if let Some(look) = look_of(known, subject.state) {
                bound.put(&subject.labels, look.bound);
                allowed.put(&subject.labels, look.allowed.len());
            }
            if let Some(verdict) = judge(known, subject.state, scrape.snapshot) {
                let more = [
                    ("verdict", verdict.finding.name()),
                    ("cause", verdict.cause),
                ];
                verdicts.put_with(&subject.labels, &more, true);
            }
        }
        [bound, allowed, migrations, verdicts]
            .into_iter()
            .for_each(|lines| page.add(lines));
        match proc.no_migrations() {
            Some(reason) => Outcome::Unsupported(reason.to_owned()),
            None => Outcome::Complete,
        }
    }

    /// Looks at containers in turns, until the CPU time for it is used up.
    fn look(&mut self, scrape: &Scrape<'_>, proc: &Proc) {
        let room = self.book.room();
        if room.is_zero() {
            return;
        }
        let start = thread_cpu_time();
        let turns = |subject: &Subject<'_>| {
            subject
                .processes
                .as_ref()
                .is_some_and(|all| !all.is_empty())
        };
        let subjects: Vec<(&Subject<'_>, &CpuSet)> = scrape
            .subjects
            .iter()
            .filter(|subject| turns(subject))
            .filter_map(|subject| Some((subject, subject.state.effective.as_ref()?)))
            .collect();
        let containers: Vec<(usize, &CpuSet)> = subjects
            .iter()
            .map(|(subject, cpus)| (subject.number, *cpus))
            .collect();
        for place in self.book.order(&containers) {
            if scrape.is_late() || thread_cpu_time().saturating_sub(start) >= room {
                break;
            }
            let Some((subject, cpus)) = subjects.get(place) else {
                continue;
            };
            let processes = subject.processes.as_deref().unwrap_or_default();
            let (tasks, variables) = tasks(proc, processes);
            let look = Look::new(cpus, &tasks, variables);
            let turn = self.book.next_turn();
            self.book.change(subject.number, |known| {
                known.see(look, &tasks, turn);
                known.processes = processes.len();
            });
        }
        self.book
            .spent(room, thread_cpu_time().saturating_sub(start));
    }

    /// What is known of the threads of the container with this number; nothing of one that has none, or that no scrape has
    /// come to.
    pub(in crate::metrics) fn truth(
        &self,
        number: usize,
        state: &ContainerState,
        snapshot: &Snapshot,
    ) -> Option<ThreadTruth> {
        let known = self.book.known(number)?;
        let look = look_of(known, state);
        (known.threads > 0).then(|| ThreadTruth {
            threads: known.threads,
            most: known.most,
            runnable: known.runnable,
            allowed_by_tasks: look.map(|look| look.allowed.clone()),
            bound: look.map(|look| look.bound),
            migrations: known.migrations,
            variables: look.and_then(|look| look.variables.clone()),
            verdict: judge(known, state, snapshot),
        })
    }
}

/// All threads of a container's processes, and the thread variables of the process that has most threads.
///
/// The container runtime's own process, which has not executed the container's program yet, does not count.
fn tasks(proc: &Proc, processes: &[i32]) -> (Vec<Task>, Option<BTreeMap<String, String>>) {
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
    (
        all,
        largest.and_then(|(_, pid)| proc.variables(pid, &THREAD_VARIABLES)),
    )
}

/// The latest look, where it was at the CPUs that the container has now.
fn look_of<'a>(known: &'a Known, state: &ContainerState) -> Option<&'a Look> {
    known
        .look
        .as_ref()
        .filter(|look| state.effective.as_ref() == Some(&look.cpus) && !look.allowed.is_empty())
}

fn judge(known: &Known, state: &ContainerState, snapshot: &Snapshot) -> Option<ThreadVerdict> {
    if known.threads == 0 {
        return None;
    }
    let facts = ThreadFacts {
        threads: known.threads,
        most: known.most,
        processes: known.processes,
        runnable: known.runnable,
        cpus: state.effective.as_ref().map_or(0, CpuSet::len),
        online: snapshot.online.len(),
        environment: known.look.as_ref().and_then(|look| look.variables.as_ref()),
    };
    verdict(&state.threads, &facts)
}
