//! [`ThreadRecords`]: the threads of each container beyond plain counters, and the order of sampling: the decisions behind
//! the collector `tasks`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::measured::ThreadCount;
use crate::cpu::CpuSet;
use crate::host::proc::Task;

/// CPU time for the samples of a scrape. The remaining containers wait for later scrapes.
pub(super) const ALLOWANCE: Duration = Duration::from_millis(1);

/// The limit on the debt of samples that took too long, in scrapes.
const MAX_DEBT_SCRAPES: u32 = 20;

/// The shortest period of an average.
const MIN_PERIOD: Duration = Duration::from_secs(1);

/// A sample of each thread of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ThreadSample {
    /// The container's CPUs at the time of the sample.
    pub(super) cpus: CpuSet,
    /// The union of the threads' affinity masks.
    pub(super) allowed: CpuSet,
    /// Threads whose mask lacks some of the container's CPUs.
    pub(super) bound: usize,
    /// The thread variables of the largest process; `None` if unreadable.
    pub(super) variables: Option<BTreeMap<String, String>>,
}

// === impl ThreadSample ===

impl ThreadSample {
    /// The sample of a container that may run on `cpus`.
    pub(super) fn new(
        cpus: &CpuSet,
        tasks: &[Task],
        variables: Option<BTreeMap<String, String>>,
    ) -> Self {
        let allowed = tasks
            .iter()
            .fold(CpuSet::new(), |all, task| all.union(&task.allowed));
        let bound = tasks
            .iter()
            .filter(|task| !cpus.is_subset(&task.allowed))
            .count();
        Self {
            cpus: cpus.clone(),
            allowed,
            bound,
            variables,
        }
    }
}

/// The record of a container's threads.
#[derive(Debug, Default)]
pub(super) struct ThreadRecord {
    /// Threads at the last count.
    pub(super) threads: usize,
    /// The largest count so far.
    pub(super) most: usize,
    /// Processes at the last sample.
    pub(super) processes: usize,
    /// Running and waiting threads: the average between the last two scrapes.
    pub(super) runnable: Option<f64>,
    /// The time of a count, and the seconds of running and waiting until then.
    last_count: Option<(Instant, f64)>,
    pub(super) sample: Option<ThreadSample>,
    /// The turn of the last sample.
    turn: u64,
    /// The migrations of each thread in the last sample, by thread id.
    migrations_by_thread: HashMap<i32, u64>,
    /// The migrations in all samples; `None` before the first sample.
    pub(super) migrations: Option<u64>,
}

// === impl ThreadRecord ===

impl ThreadRecord {
    /// Adds the counts of a scrape.
    pub(super) fn count(&mut self, now: Instant, count: ThreadCount, cpu_seconds: Option<f64>) {
        self.threads = count.threads;
        self.most = self.most.max(count.threads);
        let total = cpu_seconds
            .zip(count.run_delay)
            .map(|(running, delay)| running + Duration::from_nanos(delay).as_secs_f64());
        // An unknown total also ends the period of the average.
        let Some(total) = total else {
            (self.last_count, self.runnable) = (None, None);
            return;
        };
        match self.last_count {
            Some((at, _)) if now.duration_since(at) < MIN_PERIOD => {}
            Some((at, before)) => {
                let period = now.duration_since(at).as_secs_f64();
                self.runnable = Some(((total - before) / period).max(0.0));
                self.last_count = Some((now, total));
            }
            None => self.last_count = Some((now, total)),
        }
    }

    /// Adds a sample of all threads. The migrations of an ended thread stay in the total. A thread id with fewer migrations
    /// than before belongs to a new thread.
    ///
    /// Of a container that was there at the agent's first scrape, the first sample only says from where to count.
    pub(super) fn add_sample(
        &mut self,
        sample: ThreadSample,
        tasks: &[Task],
        turn: u64,
        was_there_first: bool,
    ) {
        let is_baseline = was_there_first && self.sample.is_none();
        let mut total = self.migrations;
        let mut by_thread = HashMap::with_capacity(tasks.len());
        for task in tasks {
            let Some(now) = task.migrations else { continue };
            let before = self
                .migrations_by_thread
                .get(&task.tid)
                .copied()
                .filter(|before| *before <= now)
                .unwrap_or(if is_baseline { now } else { 0 });
            total = Some(total.unwrap_or(0).saturating_add(now - before));
            by_thread.insert(task.tid, now);
        }
        self.sample = Some(sample);
        self.turn = turn;
        self.migrations_by_thread = by_thread;
        self.migrations = total;
    }
}

/// The records of all containers, by the number of the cgroup.
#[derive(Debug, Default)]
pub(super) struct ThreadRecords {
    records: Vec<ThreadRecord>,
    turn: u64,
    /// CPU time that samples have taken beyond the allowance.
    debt: Duration,
}

// === impl ThreadRecords ===

impl ThreadRecords {
    /// Clears the record of a removed cgroup.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(record) = self.records.get_mut(number) {
            *record = ThreadRecord::default();
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<&ThreadRecord> {
        self.records.get(number)
    }

    /// Changes the record of a cgroup. A missing record is added first.
    pub(super) fn change(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut ThreadRecord),
    ) -> Option<&ThreadRecord> {
        if self.records.len() <= number {
            self.records.resize_with(number + 1, ThreadRecord::default);
        }
        let record = self.records.get_mut(number)?;
        change(record);
        Some(record)
    }

    pub(super) fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// The CPU time for samples in this scrape: zero while a debt remains.
    pub(super) fn allowance(&mut self) -> Duration {
        let allowance = ALLOWANCE.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(ALLOWANCE);
        allowance
    }

    /// Adds the CPU time beyond the allowance to the debt. The debt has a limit, so that a
    /// container with many threads does not delay the others for hours.
    pub(super) fn charge(&mut self, allowance: Duration, used: Duration) {
        self.debt = (self.debt + used.saturating_sub(allowance)).min(ALLOWANCE * MAX_DEBT_SCRAPES);
    }

    /// The order of sampling, as indexes into the list. Containers without a sample of their
    /// current CPUs come first, then those with the oldest samples.
    pub(super) fn order(&self, containers: &[(usize, &CpuSet)]) -> Vec<usize> {
        let last_turn = |(number, cpus): &(usize, &CpuSet)| {
            let record = self.records.get(*number)?;
            let sample = record.sample.as_ref()?;
            (sample.cpus == **cpus).then_some(record.turn)
        };
        let mut order: Vec<(Option<u64>, usize)> = containers
            .iter()
            .map(last_turn)
            .enumerate()
            .map(|(index, turn)| (turn, index))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn tasks(list: &[(i32, &str, u64)]) -> Vec<Task> {
        list.iter()
            .map(|&(tid, cpus, moved)| Task {
                tid,
                allowed: set(cpus),
                migrations: Some(moved),
            })
            .collect()
    }

    #[test]
    fn masks_are_joined_and_bound_threads_are_counted() {
        let sampled = tasks(&[(1, "0-3", 0), (2, "1", 0), (3, "1-2", 0)]);
        let sample = ThreadSample::new(&set("0-3"), &sampled, None);
        assert_eq!((sample.allowed, sample.bound), (set("0-3"), 2));
        let sample = ThreadSample::new(&set("0-3"), &sampled[1..], None);
        assert_eq!((sample.allowed, sample.bound), (set("1-2"), 2));
        // A mask wider than the container's CPUs binds no thread.
        assert_eq!(ThreadSample::new(&set("1"), &sampled[..1], None).bound, 0);
    }

    #[test]
    fn migrations_before_the_first_scrape_are_not_counted() {
        let mut record = ThreadRecord::default();
        let mut add_sample = |list: &[(i32, &str, u64)]| {
            record.add_sample(ThreadSample::default(), &tasks(list), 1, true);
            record.migrations
        };
        assert_eq!(add_sample(&[(1, "0", 5)]), Some(0));
        assert_eq!(add_sample(&[(1, "0", 6), (2, "0", 3)]), Some(4));
    }

    #[test]
    fn migrations_never_go_back() {
        let mut record = ThreadRecord::default();
        let mut add_sample = |list: &[(i32, &str, u64)]| {
            record.add_sample(ThreadSample::default(), &tasks(list), 1, false);
            record.migrations
        };
        assert_eq!(add_sample(&[]), None, "no sample yet");
        assert_eq!(add_sample(&[(1, "0", 5), (2, "0", 7)]), Some(12));
        assert_eq!(add_sample(&[(1, "0", 6)]), Some(13));
        assert_eq!(
            add_sample(&[(1, "0", 2), (3, "0", 1)]),
            Some(16),
            "another thread with the same id"
        );
        assert_eq!(add_sample(&[]), Some(16));
    }

    #[test]
    fn threads_that_ran_or_waited_are_averaged() {
        let start = Instant::now();
        let mut record = ThreadRecord::default();
        let mut count = |seconds: f64, threads: usize, usage: f64, delay: Option<u64>| {
            let thread_count = ThreadCount {
                threads,
                run_delay: delay.map(|delay| 1_000_000_000 * delay),
            };
            let now = start + Duration::from_secs_f64(seconds);
            record.count(now, thread_count, Some(usage));
            (
                record.most,
                record
                    .runnable
                    .map(|runnable| (runnable * 100.0).round() / 100.0),
            )
        };
        assert_eq!(count(0.0, 4, 100.0, Some(50)), (4, None));
        assert_eq!(count(10.0, 6, 115.0, Some(60)), (6, Some(2.5)));
        assert_eq!(
            count(10.5, 1, 118.0, Some(60)),
            (6, Some(2.5)),
            "too soon for a new average"
        );
        assert_eq!(count(20.0, 1, 116.0, Some(60)), (6, Some(0.1)));
        assert_eq!(count(30.0, 1, 116.0, None), (6, None));
        assert_eq!(
            count(40.0, 1, 116.0, Some(99)),
            (6, None),
            "no earlier count"
        );
    }

    #[test]
    fn every_container_gets_a_turn() {
        let (cpus, others) = (set("0-1"), set("0-3"));
        let mut records = ThreadRecords::default();
        let containers = [(0, &cpus), (1, &cpus), (2, &cpus)];
        assert_eq!(records.order(&containers), [0, 1, 2]);
        for number in [1, 0, 2] {
            let turn = records.next_turn();
            let sample = ThreadSample {
                cpus: cpus.clone(),
                ..ThreadSample::default()
            };
            records.change(number, |record| record.add_sample(sample, &[], turn, false));
        }
        assert_eq!(records.order(&containers), [1, 0, 2]);
        assert_eq!(
            records.order(&[(0, &cpus), (1, &cpus), (2, &others)]),
            [2, 1, 0],
            "the last container has other CPUs now"
        );
        assert_eq!(
            records.order(&[(0, &cpus), (1, &cpus), (3, &cpus)]),
            [2, 1, 0],
            "a new container"
        );
        records.forget(1);
        assert_eq!(
            records.order(&containers),
            [1, 0, 2],
            "another container with the same number"
        );
        records.forget(9);
    }

    #[test]
    fn samples_pay_back_the_time_beyond_the_allowance() {
        let mut records = ThreadRecords::default();
        let allowance = records.allowance();
        assert_eq!(allowance, ALLOWANCE);
        records.charge(allowance, ALLOWANCE * 7 / 2);
        assert_eq!(records.allowance(), Duration::ZERO);
        assert_eq!(records.allowance(), Duration::ZERO);
        assert_eq!(records.allowance(), ALLOWANCE / 2);
        assert_eq!(records.allowance(), ALLOWANCE);
    }
}
