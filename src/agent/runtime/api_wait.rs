//! [`ApiWait`]: the wait for the API server's description of a pod whose container is being created.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::agent::cluster::ApiPods;

/// The longest wait of a CreateContainer request. The kubelet and the agent learn of a new pod at the same time. A busy machine
/// may delay either process.
pub(super) const API_WAIT: Duration = Duration::from_millis(500);

/// Waits for the API server's description of new pods.
pub(super) struct ApiWait {
    pods: watch::Receiver<ApiPods>,
    /// The server's pods at the end of the last wait, if the last wait timed out.
    after_timeout: Mutex<Option<watch::Receiver<ApiPods>>>,
}

// === impl ApiWait ===

impl ApiWait {
    pub(super) fn new(pods: watch::Receiver<ApiPods>) -> Self {
        Self {
            pods,
            after_timeout: Mutex::default(),
        }
    }

    /// Waits until the server lists the pod, at most `left`. Before the first list, the wait ends at once. For a pod that the
    /// server never lists, the runtime's description counts. After a timeout, the server may hang although the connection is
    /// open. Further requests then do not wait, until the server sends an update.
    pub(super) async fn wait(&self, uid: &str, left: Duration) {
        let is_silent = |pods: &watch::Receiver<ApiPods>| !pods.has_changed().unwrap_or(true);
        if self.lock().as_ref().is_some_and(is_silent) {
            return;
        }
        let mut pods = self.pods.clone();
        let is_listed =
            |pods: &ApiPods| !pods.is_complete() || pods.pods().any(|pod| pod.names(uid));
        let timed_out = tokio::time::timeout(left, pods.wait_for(is_listed))
            .await
            .is_err();
        *self.lock() = timed_out.then_some(pods);
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

    use tokio::time::Instant;

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
        let start = Instant::now();
        wait.wait(uid, API_WAIT).await;
        start.elapsed()
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
