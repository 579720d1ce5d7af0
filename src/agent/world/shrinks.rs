//! Shrinks of running containers: announced first, then carried out after a delay, or at once for a creation.

use std::time::{Duration, Instant};

use super::World;
use crate::pin::Ledger;
use crate::pin::decide::Decisions;
use crate::pod::ContainerKey;

// === impl World ===

impl World {
    /// Takes the shrinks that wait by the decisions. `only` are the pods that these are about; `None` for all.
    pub(in crate::agent) fn note_shrinks(
        &mut self,
        decisions: &Decisions,
        only: Option<&[&str]>,
        delay: Duration,
    ) {
        let is_meant = |uid: &str| only.is_none_or(|only| only.contains(&uid));
        let about = (is_meant, &self.ledger);
        let new = self
            .shrinks
            .note(&decisions.waiting, about, (Instant::now(), delay));
        for key in new {
            let left = decisions.waiting.get(&key).filter(|left| !left.is_empty());
            let left = left.map_or_else(|| "the shared CPUs".to_owned(), |left| left.in_words());
            tracing::info!(
                "container {} of pod {} will have {left} in {delay:?}",
                key.container,
                key.uid.as_str()
            );
        }
    }

    /// Ends the delays of as many shrinks as it takes until `is_enough` holds with the CPUs that they free, beginning with the
    /// one that has waited longest. Returns whether any has ended; none does if all together free too few CPUs.
    pub(in crate::agent) fn end_delays_for(
        &mut self,
        is_enough: impl Fn(&Self, &Ledger) -> bool,
    ) -> bool {
        let now = Instant::now();
        let mut ledger = self.ledger.clone();
        let mut ending: Vec<ContainerKey> = Vec::new();
        for (key, left) in self.shrinks.waiting(now) {
            if let Some(pod) = ledger.assignments.get_mut(key.uid.as_str()) {
                if left.is_empty() {
                    pod.containers.remove(&key.container);
                } else {
                    pod.containers.insert(key.container.clone(), left);
                }
            }
            ending.push(key);
            if is_enough(self, &ledger) {
                for key in &ending {
                    self.shrinks.end(key, now);
                }
                return true;
            }
        }
        false
    }

    /// Lets the delay of every announced shrink be over.
    #[doc(hidden)]
    pub fn end_delays(&mut self) {
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
