//! [`ApiWait`]: the wait for the API server's description of a pod whose container is being created.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::api::ApiPods;

/// The longest wait of a CreateContainer request. The kubelet and the agent learn of a new pod at
/// the same time, but a busy machine may delay either.
const API_WAIT: Duration = Duration::from_millis(500);

/// The part of the time until a request's deadline that the wait may take: one third. The decision
/// needs the rest, and the runtime may be configured to wait only a short time.
const PART: u32 = 3;

/// Waits for the API server's description of new pods.
pub(super) struct ApiWait {
    pods: watch::Receiver<ApiPods>,
    /// The server's pods at the end of the last wait, if it timed out.
    after_timeout: Mutex<Option<watch::Receiver<ApiPods>>>,
}

struct Waiting<'a> {
    wait: &'a ApiWait,
    pods: watch::Receiver<ApiPods>,
    /// Whether the wait has ended before its time.
    has_ended: bool,
}

// === impl Waiting ===

impl Drop for Waiting<'_> {
    /// A request that is cancelled during the wait shows that the server is silent, as a timeout
    /// does.
    fn drop(&mut self) {
        *self.wait.lock() = (!self.has_ended).then(|| self.pods.clone());
    }
}

// === impl ApiWait ===

impl ApiWait {
    pub(super) fn new(pods: watch::Receiver<ApiPods>) -> Self {
        Self {
            pods,
            after_timeout: Mutex::default(),
        }
    }

    /// Waits until the server lists the pod, at most [`API_WAIT`] and a third of the time until the
    /// `deadline`. Before the first list, the wait ends at once. For a pod that the server never
    /// lists, the runtime's description counts. After a timeout, the server may hang although the
    /// connection is open, so later requests do not wait until it sends an update.
    pub(super) async fn wait(&self, uid: &str, deadline: Instant) {
        let is_silent = |pods: &watch::Receiver<ApiPods>| !pods.has_changed().unwrap_or(true);
        if self.lock().as_ref().is_some_and(is_silent) {
            return;
        }
        let mut waiting = Waiting {
            wait: self,
            pods: self.pods.clone(),
            has_ended: false,
        };
        waiting.pods.mark_unchanged();
        let rest = deadline.saturating_duration_since(Instant::now());
        let is_listed =
            |pods: &ApiPods| !pods.is_complete() || pods.pods().any(|pod| pod.names(uid));
        let listed = waiting.pods.wait_for(is_listed);
        let ended = tokio::time::timeout(API_WAIT.min(rest / PART), listed).await;
        waiting.has_ended = ended.is_ok();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<watch::Receiver<ApiPods>>> {
        self.after_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::cluster::pods::PodsEvent;
    use crate::pod::Pod;

    fn pods(uids: &[&str]) -> ApiPods {
        let pod = |uid: &&str| Pod {
            uid: Some((*uid).into()),
            api_uid: Some((*uid).into()),
            ..Pod::default()
        };
        let mut pods = ApiPods::default();
        pods.take(&PodsEvent::Listed {
            pods: uids.iter().map(|uid| Arc::new(pod(uid))).collect(),
            unreadable: BTreeMap::new(),
        });
        pods
    }

    async fn waited(wait: &ApiWait, uid: &str) -> Duration {
        waited_with(wait, uid, Duration::from_millis(1500)).await
    }

    /// How long a request waits that has this time until its deadline.
    async fn waited_with(wait: &ApiWait, uid: &str, limit: Duration) -> Duration {
        let start = Instant::now();
        wait.wait(uid, start + limit).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_decision_has_most_of_a_short_time_limit() {
        let (sender, receiver) = watch::channel(pods(&["a"]));
        let wait = ApiWait::new(receiver);
        for limit in [0, 30, 375, 1500, 6000].map(Duration::from_millis) {
            let waited = waited_with(&wait, "b", limit).await;
            // The clock of tokio has milliseconds.
            let expected = API_WAIT.min(limit / 3);
            assert!(
                waited.abs_diff(expected) <= Duration::from_millis(1),
                "{limit:?}: {waited:?}"
            );
            sender.send_replace(pods(&["a"]));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_shows_a_silent_server_too() {
        let (sender, receiver) = watch::channel(pods(&["a"]));
        let wait = ApiWait::new(receiver);
        sender.send_replace(pods(&["a", "b"]));
        let cancelled = tokio::time::timeout(Duration::from_millis(100), waited(&wait, "c"));
        assert!(cancelled.await.is_err());
        assert_eq!(waited(&wait, "c").await, Duration::ZERO);
        sender.send_replace(pods(&["a", "b"]));
        assert_eq!(waited(&wait, "c").await, API_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_creation_waits_for_a_silent_server() {
        let (sender, receiver) = watch::channel(ApiPods::default());
        let wait = ApiWait::new(receiver);
        assert_eq!(waited(&wait, "a").await, Duration::ZERO, "no list arrived");
        sender.send_replace(pods(&["a"]));
        assert_eq!(waited(&wait, "a").await, Duration::ZERO);
        assert_eq!(waited(&wait, "b").await, API_WAIT, "the first waits");
        assert_eq!(
            waited(&wait, "b").await,
            Duration::ZERO,
            "later requests do not wait"
        );
        assert_eq!(waited(&wait, "c").await, Duration::ZERO);
        // The server sends an update.
        sender.send_replace(pods(&["a", "b"]));
        assert_eq!(waited(&wait, "b").await, Duration::ZERO);
        let late = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            sender.send_replace(pods(&["a", "b", "c"]));
        };
        let (waited_for_c, ()) = tokio::join!(waited(&wait, "c"), late);
        assert_eq!(waited_for_c, Duration::from_millis(100));
        assert_eq!(waited(&wait, "d").await, API_WAIT);
    }
}
