//! Shrinks of running containers: announced first, then carried out after a delay, or at once for a creation.

use std::time::{Duration, Instant};

use super::World;
use crate::cpu::CpuSet;
use crate::pin::Ledger;
use crate::pin::decide::Decisions;
use crate::pod::ContainerKey;

// === impl World ===

impl World {
    /// Updates the announced shrinks after decisions. `only` are the pods that these are about; `None` for all.
    pub(in crate::agent) fn note_shrinks(
        &mut self,
        decisions: &Decisions,
        only: Option<&[&str]>,
        delay: Duration,
    ) {
        let is_meant = |uid: &str| only.is_none_or(|only| only.contains(&uid));
        let about = (is_meant, &self.ledger);
        let now = Instant::now();
        let new = self.shrinks.note(decisions, about, (now, delay));
        for key in new {
            let left = decisions.waiting.get(&key).filter(|left| !left.is_empty());
            let left = left.map_or_else(|| "the shared CPUs".to_owned(), |left| left.in_words());
            let (container, uid) = (&key.container, key.uid.as_str());
            let line = format!("container {container} of pod {uid} will have {left} after a delay");
            if self.log.admits(&line, now) {
                tracing::info!("{line} (policy.shrinkDelay: {delay:?})");
            }
        }
    }

    /// Ends the delays of as many shrinks as it takes until `is_enough` holds with the CPUs that they free, beginning with the
    /// one that has waited longest. Returns whether any has ended; none does if all together free too few CPUs.
    pub(in crate::agent) fn free_waiting_cpus(
        &mut self,
        is_enough: impl Fn(&Self, &Ledger) -> bool,
    ) -> bool {
        let now = Instant::now();
        let waiting = self.shrinks.waiting(now);
        let after = |count: usize| {
            let mut ledger = self.ledger.clone();
            waiting
                .iter()
                .take(count)
                .for_each(|shrink| carry_out(&mut ledger, shrink));
            ledger
        };
        if waiting.is_empty() || !is_enough(self, &after(waiting.len())) {
            return false;
        }
        let fewest = (1..waiting.len()).find(|count| is_enough(self, &after(*count)));
        for (key, _) in waiting.iter().take(fewest.unwrap_or(waiting.len())) {
            self.shrinks.end(key, now);
        }
        true
    }

    /// Lets the delay of every announced shrink be over, for a test.
    #[doc(hidden)]
    pub fn elapse_delays(&mut self) {
        let now = Instant::now();
        for (key, _) in self.shrinks.waiting(now) {
            self.shrinks.end(&key, now);
        }
        self.must_decide = true;
    }

    /// The announced shrinks, as decisions take them.
    #[doc(hidden)]
    pub fn announced_shrinks(&self) -> crate::pin::decide::AnnouncedShrinks {
        self.shrinks.announced(Instant::now())
    }
}

/// Leaves a container in the ledger what its shrink leaves it.
fn carry_out(ledger: &mut Ledger, (key, left): &(ContainerKey, CpuSet)) {
    let Some(pod) = ledger.assignments.get_mut(key.uid.as_str()) else {
        return;
    };
    if left.is_empty() {
        pod.containers.remove(&key.container);
    } else {
        pod.containers.insert(key.container.clone(), left.clone());
    }
}
