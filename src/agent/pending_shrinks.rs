//! [`PendingShrinks`]: the shrinks of running containers that were announced, and when their CPUs go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cpu::CpuSet;
use crate::pin::Ledger;
use crate::pin::decide::{AnnouncedShrinks, Decisions};
use crate::pod::ContainerKey;

/// The announced shrinks. They follow from [`Decisions::waiting`], and later decisions get them back as [`AnnouncedShrinks`]. An
/// agent that restarts announces them anew, because until then the records still have all CPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingShrinks {
    shrinks: BTreeMap<ContainerKey, PendingShrink>,
}

#[derive(Debug, Clone)]
struct PendingShrink {
    /// What will be left; empty for the shared CPUs.
    left: CpuSet,
    due: Instant,
    /// When the container's delay began, however often it has been resized since.
    since: Instant,
    /// Whether a turn has decided to carry it out. If its steps fail, the timer tries again, so nobody needs to be woken.
    was_tried: bool,
}

// === impl PendingShrink ===

impl PendingShrink {
    /// A shrink after the one that was announced so far, if any. What was announced needs no other delay. Whoever resizes a
    /// container again and again keeps its CPUs for at most two delays.
    fn new(left: CpuSet, former: Option<&Self>, (now, delay): (Instant, Duration)) -> Self {
        let former = former.filter(|former| former.due > now);
        let since = former.map_or(now, |former| former.since);
        let latest = (now + delay).min(since + 2 * delay);
        let announced = former.filter(|former| former.left.is_subset(&left));
        Self {
            left,
            due: announced.map_or(latest, |former| former.due),
            since,
            was_tried: false,
        }
    }
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

    /// Updates the shrinks after a decision about the pods for which `is_meant` holds. Returns those that are new, or leave
    /// other CPUs than so far.
    pub(super) fn note(
        &mut self,
        decisions: &Decisions,
        (is_meant, ledger): (impl Fn(&str) -> bool, &Ledger),
        (now, delay): (Instant, Duration),
    ) -> Vec<ContainerKey> {
        let Decisions {
            waiting, desired, ..
        } = decisions;
        self.shrinks.retain(|key, shrink| {
            if !is_meant(key.uid.as_str()) {
                return true;
            }
            if waiting.contains_key(key) {
                // The next turn carries out what is due. Should it never do so, turn must not follow turn for ever.
                shrink.was_tried |= shrink.due + delay <= now;
                return true;
            }
            let pod = ledger.assignments.get(key.uid.as_str());
            let own = pod.and_then(|pod| pod.containers.get(&key.container));
            let plan = desired.pod(key.uid.as_str());
            let wanted = plan.and_then(|plan| plan.assignment.containers.get(&key.container));
            let wanted = wanted.cloned().unwrap_or_default();
            // A resize that was taken back leaves nothing to be due, and one to more CPUs than announced nothing beyond these,
            // or the next one would have no delay.
            let is_under_way = shrink.due <= now && own.is_some_and(|own| own.len() > wanted.len());
            (shrink.left, shrink.was_tried) = (wanted, true);
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
            let left = waiting.get(key).cloned().unwrap_or_default();
            let shrink = PendingShrink::new(left, self.shrinks.get(key), (now, delay));
            self.shrinks.insert(key.clone(), shrink);
        }
        new
    }

    /// When the next delay is over.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.shrinks.values().filter(|shrink| !shrink.was_tried);
        waiting.map(|shrink| shrink.due).min()
    }

    /// The containers whose delay is not over, beginning with the one whose delay ends first.
    pub(super) fn waiting(&self, now: Instant) -> Vec<ContainerKey> {
        let waiting = self.shrinks.iter().filter(|(_, shrink)| shrink.due > now);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(_, shrink)| shrink.due);
        waiting.into_iter().map(|(key, _)| key.clone()).collect()
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

    use crate::pin::decide::WaitingShrinks;

    const DELAY: Duration = Duration::from_secs(5);

    fn waiting(left: &str) -> WaitingShrinks {
        [(ContainerKey::new("a", "main"), left.parse().unwrap())].into()
    }

    /// Notes decisions by which the container owns so many of its three CPUs.
    fn decided(
        shrinks: &mut PendingShrinks,
        (waiting, wanted): (&WaitingShrinks, &str),
        now: Instant,
    ) -> usize {
        let mut ledger = Ledger::default();
        ledger.add_if_missing("a", "main", &"2-4".parse().unwrap());
        let mut decisions = Decisions {
            waiting: waiting.clone(),
            ..Decisions::default()
        };
        let plan = decisions.desired.pod_mut("a");
        let containers = &mut plan.assignment.containers;
        containers.insert("main".to_owned(), wanted.parse().unwrap());
        let new = shrinks.note(&decisions, (|_: &str| true, &ledger), (now, DELAY));
        new.len()
    }

    fn note(shrinks: &mut PendingShrinks, waiting: &WaitingShrinks, now: Instant) -> usize {
        decided(shrinks, (waiting, "2-4"), now)
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
        let none = WaitingShrinks::new();
        assert_eq!(decided(&mut shrinks, (&none, "2-3"), later), 0);
        assert_eq!(shrinks.due(), None);
        let announced = shrinks.announced(later);
        assert_ne!(announced, AnnouncedShrinks::default());
    }

    /// Its steps may fail, or it was carried out and nobody has looked since.
    #[test]
    fn a_due_shrink_to_more_cpus_than_announced_allows_no_smaller_one() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2"), now);
        let later = now + DELAY;
        decided(&mut shrinks, (&WaitingShrinks::new(), "2-3"), later);
        let mut expected = AnnouncedShrinks::default();
        let key = ContainerKey::new("a", "main");
        expected.add(key, "2-3".parse().unwrap(), true);
        assert_eq!(shrinks.announced(later), expected);
        assert_eq!(note(&mut shrinks, &waiting("2"), later), 1);
        assert_eq!(shrinks.due(), Some(later + DELAY));
    }

    #[test]
    fn a_shrink_that_no_turn_carries_out_wakes_nobody_for_ever() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        // The delay may end between a decision and its note.
        note(&mut shrinks, &waiting("2-3"), now + DELAY);
        assert_eq!(shrinks.due(), Some(now + DELAY));
        note(&mut shrinks, &waiting("2-3"), now + 2 * DELAY);
        assert_eq!(shrinks.due(), None);
    }

    #[test]
    fn the_shrink_after_one_that_was_taken_back_has_its_own_delay() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        let later = now + DELAY;
        // The CPUs have not gone yet.
        note(&mut shrinks, &WaitingShrinks::new(), later);
        assert_eq!(shrinks.announced(later), AnnouncedShrinks::default());
        assert_eq!(note(&mut shrinks, &waiting("2-3"), later), 1);
        assert_eq!(shrinks.due(), Some(later + DELAY));
    }

    #[test]
    fn resizes_that_follow_each_other_hold_the_cpus_for_two_delays_at_most() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        note(&mut shrinks, &waiting("2"), now + DELAY / 2);
        let due = Some(now + DELAY / 2 + DELAY);
        assert_eq!(shrinks.due(), due);
        // Fewer CPUs will go than were announced.
        assert_eq!(note(&mut shrinks, &waiting("2-3"), now + DELAY), 1);
        assert_eq!(shrinks.due(), due);
        let late = now + DELAY / 4 * 5;
        note(&mut shrinks, &waiting("2"), late);
        assert_eq!(shrinks.due(), Some(now + 2 * DELAY));
        // The next shrink has a delay of its own.
        let after = now + 3 * DELAY;
        note(&mut shrinks, &waiting(""), after);
        assert_eq!(shrinks.due(), Some(after + DELAY));
    }

    #[test]
    fn the_longest_wait_ends_first() {
        let (mut shrinks, now) = (PendingShrinks::default(), Instant::now());
        note(&mut shrinks, &waiting("2-3"), now);
        let mut both = waiting("2-3");
        both.insert(ContainerKey::new("A", "main"), CpuSet::new());
        note(&mut shrinks, &both, now + DELAY / 2);
        let first = shrinks.waiting(now + DELAY / 2)[0].clone();
        assert_eq!(first.uid.as_str(), "a");
        shrinks.end(&first, now + DELAY / 2);
        assert_eq!(shrinks.waiting(now + DELAY / 2).len(), 1);
        assert_eq!(shrinks.due(), Some(now + DELAY / 2));
    }
}
