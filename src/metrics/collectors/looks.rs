//! What is known of containers' threads beyond counters, and whose turn it is to be looked at: the decisions behind the `tasks`
//! collector.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::host::proc::Task;

/// CPU time that the looks of one scrape may take: what does not fit waits for later scrapes, whatever runs on the node.
pub(super) const ALLOWANCE: Duration = Duration::from_millis(1);

/// For how many scrapes looks that took too long are made up for, at most.
const LONGEST: u32 = 20;

/// The least time over which an average is told.
const SPAN: Duration = Duration::from_secs(1);

/// What a look at each thread of a container has shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Look {
    /// The CPUs of the container when it was looked at.
    pub(super) cpus: CpuSet,
    /// All CPUs that some thread may run on.
    pub(super) allowed: CpuSet,
    /// Threads that may not run on all of the container's CPUs.
    pub(super) bound: usize,
    /// The thread variables of its largest process; `None` where they could not be read.
    pub(super) variables: Option<BTreeMap<String, String>>,
}

// === impl Look ===

impl Look {
    /// What these threads show, of a container that may run on `cpus`.
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

/// What is known of one container.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Threads, and nanoseconds of run delay where they are counted, in this scrape.
    pub(super) counted: Option<(usize, Option<u64>)>,
    /// Seconds of CPU time, in this scrape.
    pub(super) usage: Option<f64>,
    /// Threads at the last count.
    pub(super) threads: usize,
    /// The most that were seen at once.
    pub(super) most: usize,
    /// Processes at the last look.
    pub(super) processes: usize,
    /// How many threads ran or wanted to, on average between the last two scrapes.
    pub(super) runnable: Option<f64>,
    /// Seconds of running and waiting, and when they were counted.
    point: Option<(Instant, f64)>,
    pub(super) look: Option<Look>,
    /// In which turn it was looked at.
    turn: u64,
    /// Of each thread that was there at the last look, how often it was moved.
    moved: HashMap<i32, u64>,
    /// How often threads were moved, as far as looks have shown; nothing before the first one.
    pub(super) migrations: Option<u64>,
}

// === impl Known ===

impl Known {
    /// Takes in what was counted in this scrape.
    pub(super) fn count(&mut self, now: Instant) {
        let Some((threads, delay)) = self.counted else {
            return;
        };
        self.threads = threads;
        self.most = self.most.max(threads);
        let total = self
            .usage
            .zip(delay)
            .map(|(usage, delay)| usage + Duration::from_nanos(delay).as_secs_f64());
        // What can't be told now leaves no average that begins before.
        let Some(total) = total else {
            (self.point, self.runnable) = (None, None);
            return;
        };
        match self.point {
            Some((at, _)) if now.duration_since(at) < SPAN => {}
            Some((at, before)) => {
                let span = now.duration_since(at).as_secs_f64();
                self.runnable = Some(((total - before) / span).max(0.0));
                self.point = Some((now, total));
            }
            None => self.point = Some((now, total)),
        }
    }

    /// Takes in a look at all of its threads. A thread that has ended keeps what it was seen to have; one of its id that shows
    /// less is another one.
    pub(super) fn see(&mut self, look: Look, tasks: &[Task], turn: u64) {
        let mut total = self.migrations;
        let mut moved = HashMap::with_capacity(tasks.len());
        for task in tasks {
            let Some(now) = task.migrations else { continue };
            let before = self
                .moved
                .get(&task.tid)
                .copied()
                .filter(|before| *before <= now)
                .unwrap_or(0);
            total = Some(total.unwrap_or(0).saturating_add(now - before));
            moved.insert(task.tid, now);
        }
        self.look = Some(look);
        self.turn = turn;
        self.moved = moved;
        self.migrations = total;
    }
}

/// All containers, by the number of each.
#[derive(Debug, Default)]
pub(super) struct Book {
    known: Vec<Known>,
    turn: u64,
    /// CPU time that looks have taken beyond what they were allowed.
    debt: Duration,
}

// === impl Book ===

impl Book {
    /// Forgets the container that has had a number.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(known) = self.known.get_mut(number) {
            *known = Known::default();
        }
    }

    /// What is known of a container, if anything ever was.
    pub(super) fn known(&self, number: usize) -> Option<&Known> {
        self.known.get(number)
    }

    /// The same, to be changed; it may be new.
    pub(super) fn change(&mut self, number: usize, change: impl FnOnce(&mut Known)) {
        if self.known.len() <= number {
            self.known.resize_with(number + 1, Known::default);
        }
        if let Some(known) = self.known.get_mut(number) {
            change(known);
        }
    }

    /// The number of the next turn.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// How much CPU time looks may take in this scrape; nothing while they have a debt.
    pub(super) fn room(&mut self) -> Duration {
        let room = ALLOWANCE.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(ALLOWANCE);
        room
    }

    /// Takes note of what looks have taken, of this room.
    pub(super) fn spent(&mut self, room: Duration, spent: Duration) {
        // One container with very many threads holds up the others for a while, and not for hours.
        self.debt = (self.debt + spent.saturating_sub(room)).min(ALLOWANCE * LONGEST);
    }

    /// The places of those whose turn it is in this list, in order: first who was never looked at or runs on other CPUs now, then who was
    /// looked at longest ago.
    pub(super) fn order(&self, containers: &[(usize, &CpuSet)]) -> Vec<usize> {
        let turn = |(number, cpus): &(usize, &CpuSet)| {
            let known = self.known.get(*number)?;
            known
                .look
                .as_ref()
                .filter(|look| look.cpus == **cpus)
                .map(|_| known.turn)
        };
        let mut order: Vec<(Option<u64>, usize)> = containers
            .iter()
            .enumerate()
            .map(|(place, one)| (turn(one), place))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, place)| place).collect()
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
    fn masks_add_up_and_the_bound_are_counted() {
        let seen = tasks(&[(1, "0-3", 0), (2, "1", 0), (3, "1-2", 0)]);
        let look = Look::new(&set("0-3"), &seen, None);
        assert_eq!((look.allowed, look.bound), (set("0-3"), 2));
        let look = Look::new(&set("0-3"), &seen[1..], None);
        assert_eq!((look.allowed, look.bound), (set("1-2"), 2));
        // A mask that is still wider than the container's CPUs binds nobody.
        assert_eq!(Look::new(&set("1"), &seen[..1], None).bound, 0);
    }

    #[test]
    fn migrations_never_go_back() {
        let mut known = Known::default();
        let mut see = |list: &[(i32, &str, u64)]| {
            known.see(Look::default(), &tasks(list), 1);
            known.migrations
        };
        assert_eq!(see(&[]), None, "nothing was seen yet");
        assert_eq!(see(&[(1, "0", 5), (2, "0", 7)]), Some(12));
        assert_eq!(see(&[(1, "0", 6)]), Some(13));
        assert_eq!(
            see(&[(1, "0", 2), (3, "0", 1)]),
            Some(16),
            "another thread with its id"
        );
        assert_eq!(see(&[]), Some(16));
    }

    #[test]
    fn threads_that_ran_or_waited_are_averaged() {
        let start = Instant::now();
        let mut known = Known::default();
        let mut count = |seconds: f64, threads: usize, usage: f64, delay: Option<u64>| {
            known.counted = Some((threads, delay.map(|delay| 1_000_000_000 * delay)));
            known.usage = Some(usage);
            known.count(start + Duration::from_secs_f64(seconds));
            (
                known.most,
                known
                    .runnable
                    .map(|runnable| (runnable * 100.0).round() / 100.0),
            )
        };
        assert_eq!(count(0.0, 4, 100.0, Some(50)), (4, None));
        assert_eq!(count(10.0, 6, 115.0, Some(60)), (6, Some(2.5)));
        assert_eq!(
            count(10.5, 1, 118.0, Some(60)),
            (6, Some(2.5)),
            "too soon to tell anew"
        );
        assert_eq!(count(20.0, 1, 116.0, Some(60)), (6, Some(0.1)));
        assert_eq!(count(30.0, 1, 116.0, None), (6, None));
        assert_eq!(
            count(40.0, 1, 116.0, Some(99)),
            (6, None),
            "nothing to compare with"
        );
    }

    #[test]
    fn everybody_has_a_turn() {
        let (cpus, others) = (set("0-1"), set("0-3"));
        let mut book = Book::default();
        let containers = [(0, &cpus), (1, &cpus), (2, &cpus)];
        assert_eq!(book.order(&containers), [0, 1, 2]);
        for number in [1, 0, 2] {
            let turn = book.next_turn();
            let look = Look {
                cpus: cpus.clone(),
                ..Look::default()
            };
            book.change(number, |known| known.see(look, &[], turn));
        }
        assert_eq!(book.order(&containers), [1, 0, 2]);
        assert_eq!(
            book.order(&[(0, &cpus), (1, &cpus), (2, &others)]),
            [2, 1, 0],
            "the last runs on others now"
        );
        assert_eq!(
            book.order(&[(0, &cpus), (1, &cpus), (3, &cpus)]),
            [2, 1, 0],
            "a new one"
        );
        book.forget(1);
        assert_eq!(
            book.order(&containers),
            [1, 0, 2],
            "another one with its number"
        );
        book.forget(9);
    }

    #[test]
    fn looks_pay_back_what_they_took_too_much() {
        let mut book = Book::default();
        let room = book.room();
        assert_eq!(room, ALLOWANCE);
        book.spent(room, ALLOWANCE * 7 / 2);
        assert_eq!(book.room(), Duration::ZERO);
        assert_eq!(book.room(), Duration::ZERO);
        assert_eq!(book.room(), ALLOWANCE / 2);
        assert_eq!(book.room(), ALLOWANCE);
    }
}
