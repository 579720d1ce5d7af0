//! [`Switchboard`]: what the scheduler counts for containers whose threads come and go.

use std::collections::HashMap;

use crate::host::proc::Scheduled;

/// Per cgroup, what its threads have counted so far. A thread that ends takes its counters with it, so the sum of the
/// threads there now would go back: what is added up is what each thread has gained since it was last seen. The same goes for
/// processes, where the kernel tells what all threads of each have counted.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Switchboard {
    containers: HashMap<String, Container>,
}

#[derive(Debug, Default)]
struct Container {
    tasks: HashMap<i32, Task>,
    total: Scheduled,
}

/// A thread or a process.
#[derive(Debug, Clone, Copy, Default)]
struct Task {
    counted: Scheduled,
    /// When it began, where that is asked: what tells a process from another that has its id now.
    began: Option<u64>,
}

// === impl Switchboard ===

impl Switchboard {
    /// Takes note of a container's tasks and returns its totals, which never go back while its cgroup lives. Of processes,
    /// `began` says when they began; of threads, nothing.
    pub(super) fn add(
        &mut self,
        cgroup: &str,
        tasks: &[(i32, Scheduled)],
        began: impl Fn(i32) -> Option<u64>,
    ) -> Scheduled {
        let container = self.containers.entry(cgroup.to_owned()).or_default();
        let mut seen = HashMap::with_capacity(tasks.len());
        for (id, now) in tasks {
            let known = container.tasks.get(id).copied();
            let mut task = known.unwrap_or_else(|| Task { began: began(*id), ..Task::default() });
            if !is_more(&task.counted, now) {
                // While a thread of it ends, a process may count it twice for a moment, and less again then. Without a beginning
                // to compare, less than before means another one with the same id, which counts from zero.
                let same = task.began.is_some() && began(*id) == task.began;
                task = if same { task } else { Task { began: began(*id), ..Task::default() } };
            }
            let total = &mut container.total;
            for (total, before, now) in [
                (&mut total.voluntary, &mut task.counted.voluntary, now.voluntary),
                (&mut total.involuntary, &mut task.counted.involuntary, now.involuntary),
                (&mut total.run_delay, &mut task.counted.run_delay, now.run_delay),
            ] {
                *total += now.saturating_sub(*before);
                *before = now.max(*before);
            }
            seen.insert(*id, task);
        }
        container.tasks = seen;
        container.total
    }

    /// Forgets the cgroups that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.containers.retain(|cgroup, _| is_there(cgroup));
    }
}

/// Whether nothing has gone back.
fn is_more(before: &Scheduled, now: &Scheduled) -> bool {
    before.voluntary <= now.voluntary
        && before.involuntary <= now.involuntary
        && before.run_delay <= now.run_delay
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[(i32, u64, u64)]) -> Vec<(i32, Scheduled)> {
        let scheduled = |&(tid, voluntary, involuntary)| {
            (tid, Scheduled { voluntary, involuntary, run_delay: 100 * involuntary })
        };
        list.iter().map(scheduled).collect()
    }

    fn add(board: &mut Switchboard, list: &[(i32, u64, u64)]) -> Scheduled {
        board.add("a", &threads(list), |_| None)
    }

    #[test]
    fn a_process_that_counts_less_for_a_moment_is_the_same() {
        let mut board = Switchboard::default();
        let mut process =
            |voluntary, began| board.add("a", &threads(&[(1, voluntary, 0)]), |_| began).voluntary;
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
            Scheduled { voluntary: 35, involuntary: 3, run_delay: 300 }
        );
        assert_eq!(add(&mut board, &[(1, 15, 1), (2, 3, 0)]).voluntary, 38);
    }

    #[test]
    fn a_cgroup_that_is_gone_is_forgotten() {
        let mut board = Switchboard::default();
        add(&mut board, &[(1, 10, 1)]);
        board.keep(|cgroup| cgroup == "a");
        assert_eq!(board.containers.len(), 1);
        board.keep(|_| false);
        assert!(board.containers.is_empty());
    }
}
