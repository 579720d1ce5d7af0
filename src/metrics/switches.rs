//! [`Switchboard`]: context switches of containers whose threads come and go.

use std::collections::HashMap;

use crate::host::proc::Switches;

/// Per cgroup, what its threads have counted so far. A thread that ends takes its counters with it, so the sum of the
/// threads there now would go back: what is added up is what each thread has gained since it was last seen.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    containers: HashMap<String, Container>,
}

#[derive(Debug, Default)]
struct Container {
    threads: HashMap<i32, Switches>,
    total: Switches,
    seen: bool,
}

// === impl Switchboard ===

impl Switchboard {
    /// Takes note of a container's threads and returns its totals, which never go back while its cgroup lives.
    pub(super) fn add(&mut self, cgroup: &str, threads: &[(i32, Switches)]) -> Switches {
        let container = self.containers.entry(cgroup.to_owned()).or_default();
        container.seen = true;
        for (tid, now) in threads {
            // A thread id that was used again counts from zero: less than before means another thread.
            let before = container
                .threads
                .get(tid)
                .filter(|before| before.voluntary <= now.voluntary && before.involuntary <= now.involuntary)
                .copied()
                .unwrap_or_default();
            container.total.voluntary += now.voluntary - before.voluntary;
            container.total.involuntary += now.involuntary - before.involuntary;
        }
        container.threads = threads.iter().copied().collect();
        container.total
    }

    /// Forgets the cgroups that were not noted since the last call.
    pub(super) fn sweep(&mut self) {
        self.containers.retain(|_, container| std::mem::take(&mut container.seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(list: &[(i32, u64, u64)]) -> Vec<(i32, Switches)> {
        let switches = |&(tid, voluntary, involuntary)| (tid, Switches { voluntary, involuntary });
        list.iter().map(switches).collect()
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_back() {
        let mut board = Switchboard::default();
        assert_eq!(board.add("a", &threads(&[(1, 10, 1), (2, 20, 2)])).voluntary, 30);
        assert_eq!(board.add("a", &threads(&[(1, 15, 1)])), Switches { voluntary: 35, involuntary: 3 });
        assert_eq!(board.add("a", &threads(&[(1, 15, 1), (2, 3, 0)])).voluntary, 38);
    }

    #[test]
    fn a_cgroup_that_is_gone_is_forgotten() {
        let mut board = Switchboard::default();
        board.add("a", &threads(&[(1, 10, 1)]));
        board.sweep();
        board.sweep();
        assert!(board.containers.is_empty());
    }
}
