//! [`Switchboard`]: what the scheduler counts for containers whose threads come and go.

use std::collections::{HashMap, HashSet};

use crate::host::proc::SchedulerCounts;

/// Per cgroup, what its threads have counted so far. A thread that ends takes its counters with it, so the sum of the
/// threads there now would go back: what is added up is what each thread has gained since it was last seen. The same goes for
/// processes, where the kernel tells what all threads of each have counted.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Switchboard {
    /// By the number of each.
    containers: Vec<Container>,
}

#[derive(Debug, Default)]
struct Container {
    /// In the order in which they were seen last, which is mostly that in which they are seen next.
    tasks: Vec<(i32, Task)>,
    total: SchedulerCounts,
}

/// A thread or a process.
#[derive(Debug, Clone, Copy, Default)]
struct Task {
    counted: SchedulerCounts,
    /// When it began, where that is asked: what tells a process from another that has its id now.
    began: Option<u64>,
}

// === impl Switchboard ===

impl Switchboard {
    /// Takes note of a container's tasks and returns its totals, which never go back while its cgroup lives. Of processes,
    /// `began` says when they began; of threads, nothing.
    pub(super) fn add(
        &mut self,
        number: usize,
        tasks: &[(i32, SchedulerCounts)],
        began: impl Fn(i32) -> Option<u64>,
    ) -> SchedulerCounts {
        if self.containers.len() <= number {
            self.containers.resize_with(number + 1, Container::default);
        }
        let Some(Container {
            tasks: known,
            total,
        }) = self.containers.get_mut(number)
        else {
            return SchedulerCounts::default();
        };
        if known
            .iter()
            .map(|(id, _)| id)
            .eq(tasks.iter().map(|(id, _)| id))
        {
            for ((id, task), (_, now)) in known.iter_mut().zip(tasks) {
                task.note(now, || began(*id), total);
            }
            return *total;
        }
        let mut before: HashMap<i32, Task> = known.drain(..).collect();
        let mut listed = HashSet::new();
        // One that is on its way from one cgroup to another below may be listed twice.
        for (id, now) in tasks.iter().filter(|(id, _)| listed.insert(*id)) {
            let mut task = before.remove(id).unwrap_or_else(|| Task {
                began: began(*id),
                ..Task::default()
            });
            task.note(now, || began(*id), total);
            known.push((*id, task));
        }
        *total
    }

    /// Of how many containers anything is known.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.containers
            .iter()
            .filter(|container| !container.tasks.is_empty())
            .count()
    }

    /// Forgets the container that has had a number.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(container) = self.containers.get_mut(number) {
            *container = Container::default();
        }
    }
}

// === impl Task ===

impl Task {
    /// Adds what it has gained since it was last seen.
    fn note(
        &mut self,
        now: &SchedulerCounts,
        began: impl Fn() -> Option<u64>,
        total: &mut SchedulerCounts,
    ) {
        if !is_more(&self.counted, now) {
            // While a thread of it ends, a process may count it twice for a moment, and less again then. Without a beginning
            // to compare, less than before means another one with the same id, which counts from zero.
            let same = self.began.is_some() && began() == self.began;
            if !same {
                *self = Self {
                    began: began(),
                    ..Self::default()
                };
            }
        }
        for (total, before, now) in [
            (
                &mut total.voluntary,
                &mut self.counted.voluntary,
                now.voluntary,
            ),
            (
                &mut total.involuntary,
                &mut self.counted.involuntary,
                now.involuntary,
            ),
            (
                &mut total.run_delay,
                &mut self.counted.run_delay,
                now.run_delay,
            ),
        ] {
            *total += now.saturating_sub(*before);
            *before = now.max(*before);
        }
    }
}

/// Whether nothing has gone back.
fn is_more(before: &SchedulerCounts, now: &SchedulerCounts) -> bool {
    before.voluntary <= now.voluntary
        && before.involuntary <= now.involuntary
        && before.run_delay <= now.run_delay
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[(i32, u64, u64)]) -> Vec<(i32, SchedulerCounts)> {
        let scheduled = |&(tid, voluntary, involuntary)| {
            (
                tid,
                SchedulerCounts {
                    voluntary,
                    involuntary,
                    run_delay: 100 * involuntary,
                },
            )
        };
        list.iter().map(scheduled).collect()
    }

    fn add(board: &mut Switchboard, list: &[(i32, u64, u64)]) -> SchedulerCounts {
        board.add(0, &threads(list), |_| None)
    }

    #[test]
    fn a_process_that_counts_less_for_a_moment_is_the_same() {
        let mut board = Switchboard::default();
        let mut process = |voluntary, began| {
            board
                .add(0, &threads(&[(1, voluntary, 0)]), |_| began)
                .voluntary
        };
        assert_eq!(process(1000, Some(5)), 1000);
        assert_eq!(process(1200, Some(5)), 1200);
        assert_eq!(process(1100, Some(5)), 1200);
        assert_eq!(process(1150, Some(5)), 1200, "these were counted");
        assert_eq!(process(1250, Some(5)), 1250);
        assert_eq!(process(30, Some(9)), 1280, "another one with its id");
        assert_eq!(process(40, Some(9)), 1290);
        assert_eq!(process(20, None), 1310, "gone before it could be asked");
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_back() {
        let mut board = Switchboard::default();
        assert_eq!(add(&mut board, &[(1, 10, 1), (2, 20, 2)]).voluntary, 30);
        assert_eq!(
            add(&mut board, &[(1, 15, 1)]),
            SchedulerCounts {
                voluntary: 35,
                involuntary: 3,
                run_delay: 300
            }
        );
        assert_eq!(add(&mut board, &[(1, 15, 1), (2, 3, 0)]).voluntary, 38);
    }

    #[test]
    fn the_order_is_of_no_matter_and_who_is_listed_twice_counts_once() {
        let mut board = Switchboard::default();
        assert_eq!(
            add(&mut board, &[(1, 10, 0), (2, 20, 0), (1, 10, 0)]).voluntary,
            30
        );
        assert_eq!(add(&mut board, &[(2, 21, 0), (1, 10, 0)]).voluntary, 31);
        assert_eq!(
            add(
                &mut board,
                &[(2, 21, 0), (1, 11, 0), (2, 21, 0), (2, 25, 0)]
            )
            .voluntary,
            32
        );
        assert_eq!(
            add(&mut board, &[(3, 5, 0), (1, 12, 0), (2, 22, 0)]).voluntary,
            39
        );
    }

    #[test]
    fn a_cgroup_that_is_gone_is_forgotten() {
        let mut board = Switchboard::default();
        add(&mut board, &[(1, 10, 1)]);
        board.forget(1);
        assert_eq!(add(&mut board, &[(1, 10, 1)]).voluntary, 10);
        board.forget(0);
        assert!(board.containers[0].tasks.is_empty());
        assert_eq!(add(&mut board, &[(1, 7, 1)]).voluntary, 7, "another one");
    }
}
