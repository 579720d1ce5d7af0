//! [`LostCpus`]: the missing CPUs that nothing holds, which means that they are online, and that neither a cgroup nor an invalid
//! partition has them.
//!
//! A CPU is missing for a moment after it has come online, and after the cgroup of a partition was removed. One that stays missing
//! is lost: Linux 6.12 loses the CPUs of an invalid partition whose cgroup is removed. It then seems to keep the freed partition on
//! its list of partitions, and Debian's 6.12.117 panicked as the next partition was put on that list.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::host::cgroup::MissingCpus;

/// How long the kernel of a busy machine may take to put a CPU into the cgroups.
const LOST_CPU_DELAY: Duration = Duration::from_millis(900);

/// The pause between two looks at missing CPUs, because no event tells of their return.
const RECHECK: Duration = Duration::from_millis(100);

/// Why an owner has no partition while the kernel may crash with the next one.
const MAY_CRASH: &str =
    "the kernel has lost CPUs and may crash when the next partition is made: reboot the node";

/// Why an owner has no partition while it is open whether missing CPUs are lost.
const MAY_RETURN: &str = "some CPUs are in no cgroup at the moment; if they stay away, the kernel has lost them and may crash when the next \
                    partition is made, so none is made until then";

#[derive(Debug, Default)]
pub(super) struct LostCpus {
    /// The missing CPUs that nothing holds, and since when.
    unheld: BTreeMap<u32, Instant>,
    /// Those that have been missing for so long that they are lost.
    lost: CpuSet,
    /// The CPUs that were lost since the agent's start. One that goes offline meanwhile stays among them, because the kernel's list
    /// of partitions stays as it is until the next boot.
    ever_lost: CpuSet,
    /// When the missing CPUs were last looked at.
    looked_at: Option<Instant>,
}

// === impl LostCpus ===

impl LostCpus {
    /// Takes the missing CPUs and the online ones. Returns whether that changes what is decided or published.
    pub(super) fn note(
        &mut self,
        (missing, online): (&MissingCpus, &CpuSet),
        now: Instant,
    ) -> bool {
        let unheld = missing.unheld();
        let before: CpuSet = self.unheld.keys().copied().collect();
        self.unheld.retain(|cpu, _| unheld.contains(*cpu));
        for cpu in unheld.iter() {
            self.unheld.entry(cpu).or_insert(now);
        }
        self.looked_at = Some(now);
        let is_lost = |since: Instant| now.saturating_duration_since(since) >= LOST_CPU_DELAY;
        let long = self.unheld.iter().filter(|(_, since)| is_lost(**since));
        let lost: CpuSet = long.map(|(cpu, _)| *cpu).collect();
        if !lost.is_subset(&self.lost) {
            tracing::error!(
                "the kernel has lost {}: no cgroup has them any more, and Pinfold does not assign them; it makes no partition any \
                 more, because the kernel may crash with the next one; reboot the node (Linux 6.12 has this fault after a \
                 partition becomes invalid, newer kernels do not)",
                lost.in_words()
            );
        }
        // A CPU that was lost does not return by itself.
        let returned = self.ever_lost.intersection(&before);
        let returned = returned.intersection(online).difference(&missing.all);
        if !returned.is_empty() {
            tracing::warn!(
                "{} have returned, so the kernel had not lost them, but was slow",
                returned.in_words()
            );
        }
        self.ever_lost = self.ever_lost.union(&lost).difference(&returned);
        let is_changed = before != unheld || lost != self.lost || !returned.is_empty();
        self.lost = lost;
        is_changed
    }

    /// The lost CPUs that are online.
    pub(super) fn lost(&self) -> &CpuSet {
        &self.lost
    }

    /// Whether CPUs are missing, and none of them has been missing for so long that it is lost.
    pub(super) fn may_return(&self) -> bool {
        !self.unheld.is_empty() && self.ever_lost.is_empty()
    }

    /// When to look again whether missing CPUs have returned.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_open = self.unheld.keys().any(|cpu| !self.lost.contains(*cpu));
        let looked_at = self.looked_at.filter(|_| is_open)?;
        Some(looked_at + RECHECK)
    }

    /// Why no partition is made now; `None` if nothing speaks against it.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        if !self.ever_lost.is_empty() {
            return Some(MAY_CRASH);
        }
        (!self.unheld.is_empty()).then_some(MAY_RETURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(all: &str, held: &str) -> MissingCpus {
        MissingCpus {
            all: all.parse().unwrap(),
            held: held.parse().unwrap(),
        }
    }

    /// Notes what is missing of the CPUs 0 to 3, so many milliseconds after the start.
    struct Noted(LostCpus, Instant);

    impl Noted {
        fn at(&mut self, millis: u64, missing: &MissingCpus) -> bool {
            let online = CpuSet::from_iter(0..4);
            let now = self.1 + Duration::from_millis(millis);
            self.0.note((missing, &online), now)
        }

        fn due(&self) -> Option<u128> {
            let due = self.0.due()?;
            Some(due.duration_since(self.1).as_millis())
        }
    }

    #[test]
    fn no_partition_is_made_while_a_cpu_is_missing() {
        let (none, three) = (MissingCpus::default(), missing("3", ""));
        let mut cpus = Noted(LostCpus::default(), Instant::now());
        assert!(!cpus.at(0, &none) && cpus.0.obstacle().is_none());
        assert!(!cpus.at(0, &missing("3", "3")), "held by a partition");
        assert!(cpus.at(0, &three));
        assert_eq!(
            (cpus.0.obstacle(), cpus.due()),
            (Some(MAY_RETURN), Some(100))
        );
        assert!(!cpus.at(500, &three));
        assert_eq!(cpus.due(), Some(600));
        assert!(cpus.at(600, &none));
        assert!(cpus.0.obstacle().is_none() && cpus.due().is_none());
    }

    #[test]
    fn no_partition_is_made_after_a_cpu_was_lost() {
        let (none, three) = (MissingCpus::default(), missing("3", ""));
        let mut cpus = Noted(LostCpus::default(), Instant::now());
        cpus.at(0, &three);
        assert!(cpus.at(900, &three));
        assert_eq!(
            (cpus.0.lost().to_string(), cpus.due()),
            ("3".to_owned(), None)
        );
        // It goes offline, and comes back without the knowledge of the cgroups.
        let now = cpus.1 + Duration::from_secs(2);
        let online = CpuSet::from_iter(0..3);
        assert!(cpus.0.note((&none, &online), now));
        assert!(cpus.0.lost().is_empty());
        assert_eq!(cpus.0.obstacle(), Some(MAY_CRASH));
        cpus.at(3000, &none);
        assert_eq!(cpus.0.obstacle(), Some(MAY_CRASH));
    }

    #[test]
    fn a_cpu_that_returns_was_not_lost() {
        let (none, three) = (MissingCpus::default(), missing("3", ""));
        let mut cpus = Noted(LostCpus::default(), Instant::now());
        cpus.at(0, &three);
        cpus.at(900, &three);
        // Another program names it in a partition that can't have it.
        cpus.at(1000, &missing("3", "3"));
        assert_eq!(cpus.0.obstacle(), Some(MAY_CRASH));
        cpus.at(1100, &three);
        assert!(cpus.at(1200, &none));
        assert!(cpus.0.obstacle().is_none() && cpus.0.lost().is_empty());
    }
}
