//! [`PendingShrinks`]: the shrinks of running containers that were announced, and when their CPUs go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::pin::Ledger;
use crate::pin::decide::{AnnouncedShrinks, WaitingShrinks};
use crate::pod::ContainerKey;

/// The announced shrinks. An agent that restarts announces them anew, because until then the records still have all CPUs.
#[derive(Debug, Default)]
pub(super) struct PendingShrinks {
    shrinks: BTreeMap<ContainerKey, PendingShrink>,
}

#[derive(Debug)]
struct PendingShrink {
    /// What will be left; empty for the shared CPUs.
    left: CpuSet,
    due: Instant,
    /// Whether a turn has decided after the delay. The timer tries again what then failed.
    is_decided: bool,
}

// === impl PendingShrinks ===

impl PendingShrinks {
    /// The shrinks as decisions take them.
    pub(super) fn announced(&self, now: Instant) -> AnnouncedShrinks {
        let mut announced = AnnouncedShrinks::default();
        for (key, shrink) in &self.shrinks {
            announced.add(key.clone(), shrink.left.clone(), shrink.due <= now);
        }
        announced
    }

    /// Takes the shrinks that wait by the decisions about some pods. Returns those that are new, or leave other CPUs than so
    /// far: their delay begins now.
    pub(super) fn note(
        &mut self,
        waiting: &WaitingShrinks,
        (is_meant, ledger): (impl Fn(&str) -> bool, &Ledger),
        (now, delay): (Instant, Duration),
    ) -> Vec<ContainerKey> {
        self.shrinks.retain(|key, shrink| {
            if !is_meant(key.uid.as_str()) || waiting.contains_key(key) {
                return true;
            }
            let pod = ledger.assignments.get(key.uid.as_str());
            let own = pod.and_then(|pod| pod.containers.get(&key.container));
            let is_under_way =
                shrink.due <= now && own.is_some_and(|own| own.len() > shrink.left.len());
            shrink.is_decided = is_under_way;
            is_under_way
        });
        let is_new = |key: &ContainerKey, left: &CpuSet| {
            self.shrinks
                .get(key)
                .is_none_or(|shrink| shrink.left != *left)
        };
        let new: Vec<ContainerKey> = waiting
            .iter()
            .filter(|(key, left)| is_new(key, left))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &new {
            let shrink = PendingShrink {
                left: waiting.get(key).cloned().unwrap_or_default(),
                due: now + delay,
                is_decided: false,
            };
            self.shrinks.insert(key.clone(), shrink);
        }
        new
    }

    /// When the next delay is over.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.shrinks.values().filter(|shrink| !shrink.is_decided);
        waiting.map(|shrink| shrink.due).min()
    }

    /// The shrinks whose delay is not over, and what each leaves, beginning with the one that has waited longest.
    pub(super) fn waiting(&self, now: Instant) -> Vec<(ContainerKey, CpuSet)> {
        let waiting = self.shrinks.iter().filter(|(_, shrink)| shrink.due > now);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(_, shrink)| shrink.due);
        let owned =
            |(key, shrink): (&ContainerKey, &PendingShrink)| (key.clone(), shrink.left.clone());
        waiting.into_iter().map(owned).collect()
    }

    /// Ends the delay of a shrink.
    pub(super) fn end(&mut self, key: &ContainerKey, now: Instant) {
        if let Some(shrink) = self.shrinks.get_mut(key) {
            shrink.due = shrink.due.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(5);

    fn waiting(left: &str) -> WaitingShrinks {
        [(ContainerKey::new("a", "main"), left.parse().unwrap())].into()
    }

    fn note(shrinks: &mut PendingShrinks, waiting: &WaitingShrinks, now: Instant) -> usize {
        let mut ledger = Ledger::default();
        ledger.add_if_missing("a", "main", &"2-4".parse().unwrap());
        let new = shrinks.note(waiting, (|_: &str| true, &ledger), (now, DELAY));
        new.len()
    }

    #[test]
    fn a_delay_begins_once_and_again_for_other_cpus() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        assert_eq!(note(&mut shrinks, &waiting("2-3"), now), 1);
        assert_eq!(note(&mut shrinks, &waiting("2-3"), now + DELAY / 2), 0);
        assert_eq!(shrinks.due(), Some(now + DELAY));
        assert_eq!(note(&mut shrinks, &waiting("2"), now + DELAY / 2), 1);
        assert_eq!(shrinks.due(), Some(now + DELAY / 2 + DELAY));
        // The resize was taken back.
        assert_eq!(note(&mut shrinks, &WaitingShrinks::new(), now + DELAY), 0);
        assert_eq!(shrinks.due(), None);
    }

    /// A step may fail. Nobody may then wait for a moment that is past, or turn would follow turn.
    #[test]
    fn a_shrink_that_is_decided_and_not_done_stays_due_and_wakes_nobody() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        let later = now + DELAY;
        assert_eq!(note(&mut shrinks, &WaitingShrinks::new(), later), 0);
        assert_eq!(shrinks.due(), None);
        let announced = shrinks.announced(later);
        assert_ne!(announced, AnnouncedShrinks::default());
    }

    #[test]
    fn the_longest_wait_ends_first() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        let mut both = waiting("2-3");
        both.insert(ContainerKey::new("A", "main"), CpuSet::new());
        note(&mut shrinks, &both, now + DELAY / 2);
        let first = shrinks.waiting(now + DELAY / 2)[0].0.clone();
        assert_eq!(first.uid.as_str(), "a");
        shrinks.end(&first, now + DELAY / 2);
        assert_eq!(shrinks.waiting(now + DELAY / 2).len(), 1);
        assert_eq!(shrinks.due(), Some(now + DELAY / 2));
    }
}
