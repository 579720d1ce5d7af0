//! Shrinks of running containers: announced first, then carried out after a delay, or at once for a creation.

use std::time::{Duration, Instant};

use super::World;
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

    /// Ends delays of shrinks, the oldest first, until `is_enough` holds in the world without them; its second argument are the
    /// containers whose delays have ended. Returns whether any has ended; none does if it would not be enough to end them all.
    pub(in crate::agent) fn end_oldest_delays_until(
        &mut self,
        is_enough: impl Fn(&Self, &[ContainerKey]) -> bool,
    ) -> bool {
        let now = Instant::now();
        let before = self.shrinks.clone();
        let waiting = before.waiting(now);
        waiting.iter().for_each(|key| self.shrinks.end(key, now));
        let is_possible = !waiting.is_empty() && is_enough(self, &waiting);
        self.shrinks = before;
        if is_possible {
            for (number, key) in waiting.iter().enumerate() {
                self.shrinks.end(key, now);
                if is_enough(self, &waiting[..=number]) {
                    break;
                }
            }
        }
        is_possible
    }

    /// Lets the delay of every announced shrink be over, for a test.
    #[doc(hidden)]
    pub fn elapse_delays(&mut self) {
        let now = Instant::now();
        for key in self.shrinks.waiting(now) {
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
