//! [`LostCpus`]: the online CPUs that are missing, which means that no cgroup has them and no invalid partition holds them.
//!
//! A CPU that comes online is missing for a moment. One that stays missing is lost: Linux 6.12 loses the CPUs of an invalid
//! partition whose cgroup is removed. It then seems to keep the freed partition on its list of partitions, and Debian's
//! 6.12.117 panicked as the next partition was put on that list.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;

/// How long the kernel of a busy machine may take to add a new online CPU to the cgroups.
const LOST_CPU_DELAY: Duration = Duration::from_millis(900);

#[derive(Debug, Default)]
pub(super) struct LostCpus {
    /// The missing CPUs, and since when.
    missing: BTreeMap<u32, Instant>,
    /// Those that have been missing for so long that they are lost.
    lost: CpuSet,
    /// Whether a CPU was lost since the agent's start.
    has_lost_any: bool,
}

// === impl LostCpus ===

impl LostCpus {
    /// Takes the online CPUs that are missing now. Returns whether that changes what is decided or published.
    pub(super) fn note(&mut self, missing: &CpuSet, now: Instant) -> bool {
        let before: CpuSet = self.missing.keys().copied().collect();
        self.missing.retain(|cpu, _| missing.contains(*cpu));
        for cpu in missing.iter() {
            self.missing.entry(cpu).or_insert(now);
        }
        let is_lost = |since: Instant| now.saturating_duration_since(since) >= LOST_CPU_DELAY;
        let long = self.missing.iter().filter(|(_, since)| is_lost(**since));
        let lost: CpuSet = long.map(|(cpu, _)| *cpu).collect();
        if !lost.is_subset(&self.lost) {
            tracing::error!(
                "the kernel has lost {}: no cpuset has lost CPUs, and Pinfold does not assign them; it makes no partition any \
                 more, because the kernel may crash with the next one; reboot the node (Linux 6.12 has this fault after a \
                 partition becomes invalid, newer kernels do not)",
                lost.in_words()
            );
            self.has_lost_any = true;
        }
        let is_changed = before != *missing || lost != self.lost;
        self.lost = lost;
        is_changed
    }

    /// The lost CPUs that are online.
    pub(super) fn lost(&self) -> &CpuSet {
        &self.lost
    }

    /// When it turns out whether a missing CPU is lost.
    pub(super) fn due(&self) -> Option<Instant> {
        let missing = self.missing.iter();
        let open = missing.filter(|(cpu, _)| !self.lost.contains(**cpu));
        open.map(|(_, since)| *since + LOST_CPU_DELAY).min()
    }

    /// Whether the kernel may crash when the next partition is made. A lost CPU that goes offline changes nothing: the kernel's
    /// list of partitions stays as it is until the next boot.
    pub(super) fn are_partitions_forbidden(&self) -> bool {
        self.has_lost_any || !self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_forbidden_as_soon_as_a_cpu_is_missing_and_after_it_was_lost() {
        let (none, three) = (CpuSet::new(), CpuSet::from_iter([3]));
        let (mut cpus, start) = (LostCpus::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(!cpus.note(&none, start) && !cpus.are_partitions_forbidden());

        // A CPU that has just come online.
        assert!(cpus.note(&three, start));
        assert!(cpus.are_partitions_forbidden() && cpus.lost().is_empty());
        assert_eq!(cpus.due(), Some(at(900)));
        assert!(!cpus.note(&three, at(500)));
        assert!(cpus.note(&none, at(600)));
        assert!(!cpus.are_partitions_forbidden() && cpus.due().is_none());

        // A lost one, which then goes offline.
        cpus.note(&three, at(1000));
        assert!(cpus.note(&three, at(1900)));
        assert_eq!((cpus.lost(), cpus.due()), (&three, None));
        assert!(cpus.note(&none, at(2000)));
        assert!(cpus.are_partitions_forbidden() && cpus.lost().is_empty());
    }
}
