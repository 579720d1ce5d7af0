//! [`SceneSettings`]: times and limits for the scenes of a node.

use std::time::Duration;

use crate::cluster::backoff::BackoffPolicy;
use crate::cluster::claims;
use crate::cluster::informer::RELIST_SPREAD;

#[derive(Debug, Clone, PartialEq)]
pub struct SceneSettings {
    /// The mean time between two reads of the own Node on an idle node. Each pause is 0.5 to 1.5 times as long.
    pub node_read_interval: Duration,
    /// The longest random pause before the first list of plans.
    pub first_list_spread: Duration,
    /// The longest random pause before each later list of plans.
    pub list_spread: Duration,
    /// The minimum and the maximum of the time over which all nodes spread their reaction to changed plans.
    pub spread: (Duration, Duration),
    /// The addition to the minimum of `spread` for each slot.
    pub spread_per_slot: Duration,
    /// The minimum and the maximum of the pause after which a node without a slot searches again.
    pub spare: (Duration, Duration),
    /// The addition to the minimum of `spare` for each slot, since each search reads the list of claims.
    pub spare_per_slot: Duration,
    /// The shortest and the longest wait while the API fails. Terminal failures (a missing permission, a missing
    /// CustomResourceDefinition) wait longer and longer, up to about [`SceneSettings::node_read_interval`].
    pub backoff: (Duration, Duration),
    /// The `timeoutSeconds` of a watch request.
    pub watch_seconds: u32,
    /// The longest time without data before a watch counts as broken.
    pub idle: Duration,
    pub claims: claims::ClaimSettings,
}

impl Default for SceneSettings {
    fn default() -> Self {
        Self {
            node_read_interval: Duration::from_secs(300),
            first_list_spread: Duration::from_secs(60),
            list_spread: RELIST_SPREAD,
            spread: (Duration::from_secs(5), Duration::from_secs(100)),
            spread_per_slot: Duration::from_millis(10),
            spare: (Duration::from_secs(30), Duration::from_secs(600)),
            spare_per_slot: Duration::from_millis(60),
            backoff: (Duration::from_secs(1), Duration::from_secs(60)),
            watch_seconds: 290,
            idle: Duration::from_secs(150),
            claims: claims::ClaimSettings::default(),
        }
    }
}

// === impl SceneSettings ===

impl SceneSettings {
    /// The time over which all nodes spread their work, for plans with `slots` slots.
    pub(super) fn spread_over(&self, slots: u32) -> Duration {
        (self.spread.0 + self.spread_per_slot * slots).min(self.spread.1)
    }

    /// The waits after failures. An agent continues soon if the permissions come a moment after the start, and an agent without
    /// permissions sends requests every few minutes.
    pub(super) fn backoff_policy(&self) -> BackoffPolicy {
        // The longest wait is spread over the upper half of its interval, so the mean is about `self.node_read_interval`.
        BackoffPolicy::new(self.backoff, self.node_read_interval.mul_f64(1.5))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::cluster::Failure;

    #[test]
    fn terminal_failures_back_off_up_to_a_look_and_retryable_failures_stay_frequent() {
        let settings = SceneSettings::default();
        let mut backoff = settings.backoff_policy();
        let refused = |code| Failure::refused(Status::failure("no", "No").with_code(code));
        let waits = |backoff: &mut BackoffPolicy, failure: &Failure| -> Vec<Duration> {
            (0..20).map(|_| backoff.after(failure, 0.5)).collect()
        };
        for code in [400, 401, 403, 404, 405, 415, 422] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[0] < Duration::from_secs(1), "{code}");
            assert!(
                waits[12] > settings.node_read_interval
                    && waits[19] < 2 * settings.node_read_interval,
                "{code}: {waits:?}"
            );
            backoff.reset();
        }
        for code in [408, 409, 410, 429, 500, 503, 504] {
            let waits = waits(&mut backoff, &refused(code));
            assert!(waits[19] <= settings.backoff.1, "{code}: {waits:?}");
            backoff.reset();
        }
        for failure in [
            Failure::Connection(String::new()),
            Failure::InvalidResponse(String::new()),
        ] {
            assert!(
                waits(&mut backoff, &failure)[19] <= settings.backoff.1,
                "{failure}"
            );
        }
    }
}
