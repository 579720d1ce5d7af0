//! [`take`]: passes the API server's reports about the node's pods to the reconciler.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::context::ApiPods;
use super::link::{ApiConnection, ApiWait};
use crate::agent::event::{AgentEvent, PodKey, PodSource, PodsChange, PodsUpdate};
use crate::cluster::pods::PodsEvent;

/// How long the reconciler waits for the first list, before the first turn relies on the kernel's
/// state.
const FIRST_LIST_WAIT: Duration = Duration::from_secs(3);

/// Keeps the known pods, and from the first list on sends every change to the reconciler.
///
/// An API server that is unreachable, slow or inconsistent removes no pod: a pod is gone only when
/// the server says so.
pub(super) async fn take(
    mut events: mpsc::Receiver<PodsEvent>,
    connection: watch::Sender<ApiConnection>,
    pods: watch::Sender<ApiPods>,
    reconciler: mpsc::Sender<AgentEvent>,
) -> anyhow::Result<()> {
    let mut wait_ended = false;
    let wait = tokio::time::sleep(FIRST_LIST_WAIT);
    tokio::pin!(wait);
    loop {
        let is_complete = pods.borrow().is_complete();
        // Both arms are cancel safe: an unreceived event stays in the channel.
        let event = tokio::select! {
            event = events.recv() => match event {
                Some(event) => Some(event),
                None => return Ok(()),
            },
            () = &mut wait, if !wait_ended && !is_complete => None,
        };
        if let Some(event) = event.as_ref().filter(|event| event.is_of_pods()) {
            let Ok(permit) = reconciler.reserve().await else {
                return Ok(());
            };
            // The lock makes both updates one step: whoever reads the new pods finds the event in
            // the reconciler's channel, and whoever reads the reconciler's next snapshot finds the
            // new pods.
            pods.send_if_modified(|known| {
                let changed = known.take(event);
                if changed && known.is_complete() {
                    permit.send(AgentEvent::Pods(update(event, known)));
                }
                changed
            });
        }
        if let Some(event) = event {
            note(event, &pods.borrow(), &connection);
        }
        if !pods.borrow().is_complete() && !wait_ended {
            wait_ended = true;
            if reconciler.send(AgentEvent::PodsWaitEnded).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// The update for the reconciler, after an event that has changed the known pods.
fn update(event: &PodsEvent, known: &ApiPods) -> PodsUpdate {
    let change = match event {
        PodsEvent::Listed { .. } => {
            let pods = known
                .pods()
                .map(|pod| (PodKey::of_api(pod), Arc::clone(pod)));
            Some(PodsChange::Listed(pods.collect()))
        }
        PodsEvent::Applied(pod) => Some(PodsChange::Applied(PodKey::of_api(pod), Arc::clone(pod))),
        PodsEvent::Deleted {
            uid,
            namespace,
            name,
        } => Some(PodsChange::Deleted(PodKey::Api {
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
        })),
        _ => None,
    };
    PodsUpdate {
        source: PodSource::Api,
        change,
        errors: known.unreadable().cloned().collect(),
    }
}

/// Notes what an event says about the connection.
fn note(event: PodsEvent, known: &ApiPods, connection: &watch::Sender<ApiConnection>) {
    connection.send_modify(|state| {
        state.change(Timestamp::now(), |state| {
            // Any other event shows that the wait is over.
            state.wait = None;
            match event {
                PodsEvent::Degraded(reason) => {
                    state.last_error = Some(reason.clone());
                    state.problem = Some(reason);
                }
                PodsEvent::Recovered => state.problem = None,
                PodsEvent::Waits { until, lists } => state.wait = Some(ApiWait { until, lists }),
                _ => {}
            }
            state.complete = known.is_complete();
            state.unreadable = known.unreadable().len();
            state.pods = known.pods().len();
        });
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::Instant;

    use super::*;
    use crate::pod::Pod;

    fn all(names: &[&str]) -> PodsEvent {
        let pod = |name: &&str| Pod {
            name: (*name).to_owned(),
            api_uid: Some(format!("u-{name}").into()),
            ..Pod::default()
        };
        PodsEvent::Listed {
            pods: names.iter().map(|name| Arc::new(pod(name))).collect(),
            unreadable: BTreeMap::new(),
        }
    }

    fn start() -> (
        mpsc::Sender<PodsEvent>,
        mpsc::Receiver<AgentEvent>,
        watch::Receiver<ApiConnection>,
    ) {
        let (sender, events) = mpsc::channel(8);
        let (connection, link) = watch::channel(ApiConnection::default());
        let (reconciler, received) = mpsc::channel(8);
        tokio::spawn(take(
            events,
            connection,
            watch::channel(ApiPods::default()).0,
            reconciler,
        ));
        (sender, received, link)
    }

    fn names(event: Option<AgentEvent>) -> Vec<String> {
        let Some(AgentEvent::Pods(update)) = event else {
            panic!("{event:?}")
        };
        match update.change {
            Some(PodsChange::Listed(pods)) => pods.values().map(|pod| pod.name.clone()).collect(),
            Some(PodsChange::Applied(_, pod)) => vec![format!("+{}", pod.name)],
            Some(PodsChange::Deleted(PodKey::Api { name, .. })) => vec![format!("-{name}")],
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reconciler_stops_waiting_for_a_silent_or_unreachable_api() {
        let began = Instant::now();
        let (sender, mut received, link) = start();
        assert!(matches!(
            received.recv().await,
            Some(AgentEvent::PodsWaitEnded)
        ));
        assert_eq!(began.elapsed(), FIRST_LIST_WAIT);
        sender
            .send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        sender.send(all(&["a"])).await.unwrap();
        assert_eq!(
            names(received.recv().await),
            ["a"],
            "the end of the wait is sent once"
        );
        assert!(link.borrow().complete && link.borrow().problem.is_some());

        let (sender, mut received, link) = start();
        let began = Instant::now();
        sender
            .send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        assert!(matches!(
            received.recv().await,
            Some(AgentEvent::PodsWaitEnded)
        ));
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "an unreachable API ends the wait"
        );
        assert!(!link.borrow().complete && link.borrow().last_error.as_deref() == Some("away"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_known_until_the_next_event() {
        let (sender, mut received, mut link) = start();
        sender.send(all(&["a"])).await.unwrap();
        assert_eq!(names(received.recv().await), ["a"]);
        let until: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for lists in [false, true] {
            let events = [
                PodsEvent::Degraded("away".to_owned()),
                PodsEvent::Waits { until, lists },
            ];
            for event in events {
                sender.send(event).await.unwrap();
            }
            let waits = |state: &ApiConnection| state.wait == Some(ApiWait { until, lists });
            let state = tokio::time::timeout(FIRST_LIST_WAIT, link.wait_for(waits)).await;
            let state = state.expect("the wait is never known").unwrap();
            assert_eq!(state.problem.as_deref(), Some("away"));
        }
        sender.send(PodsEvent::Recovered).await.unwrap();
        let over = |state: &ApiConnection| state.wait.is_none();
        assert_eq!(link.wait_for(over).await.unwrap().problem, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_removes_no_pod_and_is_remembered() {
        let (sender, mut received, link) = start();
        sender.send(all(&["a", "b"])).await.unwrap();
        assert_eq!(names(received.recv().await), ["a", "b"]);
        sender
            .send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        sender.send(PodsEvent::Recovered).await.unwrap();
        let gone = PodsEvent::Deleted {
            uid: "u-a".to_owned(),
            namespace: String::new(),
            name: "a".to_owned(),
        };
        sender.send(gone).await.unwrap();
        assert_eq!(
            names(received.recv().await),
            ["-a"],
            "the failure causes no event"
        );
        let state = link.borrow().clone();
        assert_eq!(
            (state.problem, state.last_error.as_deref(), state.pods),
            (None, Some("away"), 1)
        );
        // Each change is an event about one pod, and without a change there is no event.
        let PodsEvent::Listed { pods, .. } = all(&["b", "c"]) else {
            unreachable!()
        };
        for pod in pods {
            sender.send(PodsEvent::Applied(pod)).await.unwrap();
        }
        assert_eq!(names(received.recv().await), ["+c"]);
        drop(sender);
        assert!(
            received.recv().await.is_none(),
            "the task ends with the sender"
        );
    }
}
