//! [`SchedulerTotals`]: the scheduler's counts of each container, while its threads start and end.

use std::collections::{HashMap, HashSet};

use crate::host::proc::SchedulerCounts;

/// The totals of each cgroup. A thread's counters disappear with it, so a sum over the current
/// threads would decrease. The totals add up the increase of each thread since the last scrape
/// instead. The same holds for processes, if the kernel counts by process.
#[derive(Debug, Default)]
pub(super) struct SchedulerTotals {
    /// By the number of the cgroup.
    containers: Vec<ContainerTasks>,
}

#[derive(Debug, Default)]
struct ContainerTasks {
    /// In the order of the last scrape. The next scrape mostly has the same order.
    tasks: Vec<(i32, TaskTotals)>,
    total: SchedulerCounts,
    /// Whether the tasks were read before.
    is_read: bool,
}

/// A thread or a process.
#[derive(Debug, Clone, Copy, Default)]
struct TaskTotals {
    counted: SchedulerCounts,
    /// The start time of a process, which tells it from a later process with the same id.
    started: Option<u64>,
}

// === impl SchedulerTotals ===

impl SchedulerTotals {
    /// Adds the counts of a container's tasks, and returns the totals, which never decrease while
    /// the cgroup lives. `started` returns the start time of a process, and `None` for a thread.
    ///
    /// Of a container that was there at the agent's first scrape (`was_there_first`), the first reading only says from where to
    /// count: otherwise each restart of an agent would add the whole past of every task once more.
    pub(super) fn add(
        &mut self,
        number: usize,
        was_there_first: bool,
        tasks: &[(i32, SchedulerCounts)],
        started: impl Fn(i32) -> Option<u64>,
    ) -> SchedulerCounts {
        if self.containers.len() <= number {
            self.containers
                .resize_with(number + 1, ContainerTasks::default);
        }
        let Some(ContainerTasks {
            tasks: tracked,
            total,
            is_read,
        }) = self.containers.get_mut(number)
        else {
            return SchedulerCounts::default();
        };
        let is_baseline = was_there_first && !*is_read;
        *is_read = true;
        if tracked
            .iter()
            .map(|(id, _)| id)
            .eq(tasks.iter().map(|(id, _)| id))
        {
            for ((id, task), (_, now)) in tracked.iter_mut().zip(tasks) {
                task.note(now, || started(*id), total);
            }
            return *total;
        }
        let mut before: HashMap<i32, TaskTotals> = tracked.drain(..).collect();
        let mut handled = HashSet::new();
        // The kernel may list a task twice while it moves between cgroups below the container's.
        for (id, now) in tasks.iter().filter(|(id, _)| handled.insert(*id)) {
            let mut task = before.remove(id).unwrap_or_else(|| TaskTotals {
                started: started(*id),
                counted: if is_baseline {
                    *now
                } else {
                    SchedulerCounts::default()
                },
            });
            task.note(now, || started(*id), total);
            tracked.push((*id, task));
        }
        *total
    }

    /// The number of containers with tasks.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.containers
            .iter()
            .filter(|container| !container.tasks.is_empty())
            .count()
    }

    /// Clears the totals of a removed cgroup.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(container) = self.containers.get_mut(number) {
            *container = ContainerTasks::default();
        }
    }
}

// === impl TaskTotals ===

impl TaskTotals {
    /// Adds the increase since the last scrape.
    fn note(
        &mut self,
        now: &SchedulerCounts,
        started: impl Fn() -> Option<u64>,
        total: &mut SchedulerCounts,
    ) {
        if !is_monotonic(&self.counted, now) {
            // A process may count an ending thread twice for a moment. The same start time then
            // shows that it is the same process. Otherwise a decrease means a new task with the
            // same id, whose counters started at zero.
            let same = self.started.is_some() && started() == self.started;
            if !same {
                *self = Self {
                    started: started(),
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

/// Whether no counter has decreased.
fn is_monotonic(before: &SchedulerCounts, now: &SchedulerCounts) -> bool {
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

    fn add(totals: &mut SchedulerTotals, list: &[(i32, u64, u64)]) -> SchedulerCounts {
        totals.add(0, false, &threads(list), |_| None)
    }

    #[test]
    fn tasks_of_the_first_scrape_count_from_there_and_later_tasks_from_zero() {
        let mut totals = SchedulerTotals::default();
        let mut scrape = |list| totals.add(0, true, &threads(list), |_| None).voluntary;
        assert_eq!(scrape(&[(1, 1000, 0), (2, 500, 0)]), 0);
        assert_eq!(scrape(&[(1, 1003, 0), (2, 500, 0)]), 3);
        assert_eq!(scrape(&[(1, 1003, 0), (2, 500, 0), (3, 40, 0)]), 43);
        totals.forget(0);
        assert_eq!(
            add(&mut totals, &[(9, 7, 0)]).voluntary,
            7,
            "the cgroup that got the number later was not there"
        );
    }

    #[test]
    fn a_short_decrease_does_not_make_a_new_process() {
        let mut totals = SchedulerTotals::default();
        let mut process = |voluntary, started| {
            totals
                .add(0, false, &threads(&[(1, voluntary, 0)]), |_| started)
                .voluntary
        };
        assert_eq!(process(1000, Some(5)), 1000);
        assert_eq!(process(1200, Some(5)), 1200);
        assert_eq!(process(1100, Some(5)), 1200);
        assert_eq!(process(1150, Some(5)), 1200, "already counted");
        assert_eq!(process(1250, Some(5)), 1250);
        assert_eq!(
            process(30, Some(9)),
            1280,
            "another process with the same id"
        );
        assert_eq!(process(40, Some(9)), 1290);
        assert_eq!(
            process(20, None),
            1310,
            "gone before its start time was read"
        );
    }

    #[test]
    fn an_ended_thread_leaves_its_counts() {
        let mut totals = SchedulerTotals::default();
        assert_eq!(add(&mut totals, &[(1, 10, 1), (2, 20, 2)]).voluntary, 30);
        assert_eq!(
            add(&mut totals, &[(1, 15, 1)]),
            SchedulerCounts {
                voluntary: 35,
                involuntary: 3,
                run_delay: 300
            }
        );
        assert_eq!(add(&mut totals, &[(1, 15, 1), (2, 3, 0)]).voluntary, 38);
    }

    #[test]
    fn the_order_does_not_matter_and_a_task_listed_twice_counts_once() {
        let mut totals = SchedulerTotals::default();
        assert_eq!(
            add(&mut totals, &[(1, 10, 0), (2, 20, 0), (1, 10, 0)]).voluntary,
            30
        );
        assert_eq!(add(&mut totals, &[(2, 21, 0), (1, 10, 0)]).voluntary, 31);
        assert_eq!(
            add(
                &mut totals,
                &[(2, 21, 0), (1, 11, 0), (2, 21, 0), (2, 25, 0)]
            )
            .voluntary,
            32
        );
        assert_eq!(
            add(&mut totals, &[(3, 5, 0), (1, 12, 0), (2, 22, 0)]).voluntary,
            39
        );
    }

    #[test]
    fn a_removed_cgroup_is_cleared() {
        let mut totals = SchedulerTotals::default();
        add(&mut totals, &[(1, 10, 1)]);
        totals.forget(1);
        assert_eq!(add(&mut totals, &[(1, 10, 1)]).voluntary, 10);
        totals.forget(0);
        assert!(totals.containers[0].tasks.is_empty());
        assert_eq!(
            add(&mut totals, &[(1, 7, 1)]).voluntary,
            7,
            "another cgroup"
        );
    }
}
