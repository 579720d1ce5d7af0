//! [`tell`]: the uid of this Node, which a mirror pod must name as its owner.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::context::ApiPods;
use crate::agent::event::AgentEvent;
use crate::cluster::{Api, Backoff, Failure, Jitter, own_node};
use crate::pod::ApiUid;

/// The first wait after a failed request. Each further one is twice as long, up to [`BETWEEN`].
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The wait between two requests that succeed.
const BETWEEN: Duration = Duration::from_secs(60);

/// Reads the Node's uid as soon as a mirror pod names an unknown one, and tells the reconciler. So
/// a node without mirror pods causes no request, and a replaced Node is read again.
pub(super) async fn tell(
    api: Api,
    name: String,
    pods: watch::Receiver<ApiPods>,
    reconciler: mpsc::Sender<AgentEvent>,
) -> anyhow::Result<()> {
    let read = || async {
        Ok(own_node::read(&api, &name)
            .await?
            .map(|found| ApiUid::from(found.uid)))
    };
    follow(&name, read, pods, reconciler).await
}

async fn follow<F: Future<Output = Result<Option<ApiUid>, Failure>>>(
    name: &str,
    read: impl Fn() -> F,
    mut pods: watch::Receiver<ApiPods>,
    reconciler: mpsc::Sender<AgentEvent>,
) -> anyhow::Result<()> {
    let mut known: Option<ApiUid> = None;
    let mut reported = None;
    let (mut backoff, mut jitter) = (Backoff::new(FIRST_WAIT, BETWEEN), Jitter::default());
    loop {
        let is_new = |pods: &ApiPods| {
            let mut mirrors = pods.pods().filter_map(|pod| pod.mirror.as_ref());
            mirrors.any(|mirror| Some(&mirror.node) != known.as_ref())
        };
        if pods.wait_for(is_new).await.is_err() {
            return Ok(());
        }
        match read().await {
            Ok(Some(uid)) => {
                backoff.reset();
                reported = None;
                if known.as_ref() != Some(&uid)
                    && reconciler
                        .send(AgentEvent::Node(uid.clone()))
                        .await
                        .is_err()
                {
                    return Ok(());
                }
                known = Some(uid);
                tokio::time::sleep(BETWEEN).await;
                // Unchanged pods need no second request.
                if pods.changed().await.is_err() {
                    return Ok(());
                }
            }
            Ok(None) => tokio::time::sleep(backoff.wait(jitter.roll(), None)).await,
            Err(failure) => {
                let words = failure.to_string();
                if reported.as_ref() != Some(&words) {
                    tracing::warn!(
                        "mirror pods are not matched with static pods yet, because Node {name} can't be read: {words}"
                    );
                }
                reported = Some(words);
                tokio::time::sleep(backoff.wait(jitter.roll(), failure.retry_after())).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::cluster::pods::PodsEvent;
    use crate::pod::{Mirror, Pod};

    #[tokio::test(start_paused = true)]
    async fn a_node_that_cannot_be_read_is_read_again_soon() {
        let mirror = Some(Mirror {
            uid: "hash".into(),
            node: "node-uid".into(),
        });
        let mut pods = ApiPods::default();
        pods.take(&PodsEvent::Applied(Arc::new(Pod {
            mirror,
            api_uid: Some("uid".into()),
            ..Pod::default()
        })));
        let (_sender, pods) = watch::channel(pods);
        let (reconciler, mut received) = mpsc::channel(1);
        let requests = Cell::new(0);
        let read = || {
            requests.set(requests.get() + 1);
            let answer = match requests.get() {
                1..=3 => Err(Failure::Timeout(Duration::from_secs(1))),
                4 => Ok(None),
                _ => Ok(Some(ApiUid::from("node-uid"))),
            };
            async { answer }
        };
        let begun = Instant::now();
        tokio::select! {
            ended = follow("node", read, pods, reconciler) => panic!("{ended:?}"),
            event = received.recv() => {
                let Some(AgentEvent::Node(uid)) = event else { panic!("{event:?}") };
                assert_eq!((uid.as_str(), requests.get()), ("node-uid", 5));
            }
        }
        // The waits are at most 1 s, 2 s, 4 s and 8 s, and at least half as long.
        let waited = begun.elapsed();
        assert!(
            waited >= Duration::from_millis(7500) && waited <= Duration::from_secs(15),
            "{waited:?}"
        );
    }
}
