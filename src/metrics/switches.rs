//! [`Switchboard`]: what the scheduler counts for containers whose threads come and go.

use std::collections::HashMap;

use crate::host::proc::Scheduled;

/// Per cgroup, what its threads have counted so far. A thread that ends takes its counters with it, so the sum of the
/// threads there now would go back: what is added up is what each thread has gained since it was last seen.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    containers: HashMap<String, Container>,
}

#[derive(Debug, Default)]
struct Container {
    threads: HashMap<i32, Scheduled>,
    total: Scheduled,
}

// === impl Switchboard ===

impl Switchboard {
    /// Takes note of a container's threads and returns its totals, which never go back while its cgroup lives.
    pub(super) fn add(&mut self, cgroup: &str, threads: &[(i32, Scheduled)]) -> Scheduled {
        let container = self.containers.entry(cgroup.to_owned()).or_default();
        for (tid, now) in threads {
            // A thread id that was used again counts from zero: less than before means another thread.
            let before = container
                .threads
                .get(tid)
                .filter(|before| {
                    before.voluntary <= now.voluntary
                        && before.involuntary <= now.involuntary
                        && before.run_delay <= now.run_delay
                })
                .copied()
                .unwrap_or_default();
            container.total.voluntary += now.voluntary - before.voluntary;
            container.total.involuntary += now.involuntary - before.involuntary;
            container.total.run_delay += now.run_delay - before.run_delay;
        }
        container.threads = threads.iter().copied().collect();
        container.total
    }

    /// Forgets the cgroups that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.containers.retain(|cgroup, _| is_there(cgroup));
    }
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

    #[test]
    fn a_thread_that_ends_takes_nothing_back() {
        let mut board = Switchboard::default();
        assert_eq!(board.add("a", &threads(&[(1, 10, 1), (2, 20, 2)])).voluntary, 30);
        assert_eq!(
            board.add("a", &threads(&[(1, 15, 1)])),
            Scheduled { voluntary: 35, involuntary: 3, run_delay: 300 }
        );
        assert_eq!(board.add("a", &threads(&[(1, 15, 1), (2, 3, 0)])).voluntary, 38);
    }

    #[test]
    fn a_cgroup_that_is_gone_is_forgotten() {
        let mut board = Switchboard::default();
        board.add("a", &threads(&[(1, 10, 1)]));
        board.keep(|cgroup| cgroup == "a");
        assert_eq!(board.containers.len(), 1);
        board.keep(|_| false);
        assert!(board.containers.is_empty());
    }
}
