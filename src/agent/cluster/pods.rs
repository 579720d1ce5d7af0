//! [`take`]: passes the API server's reports about the node's pods to the reconciler.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::link::Heard;
use super::model::ApiPods;
use crate::agent::event::{Event, Source};
use crate::cluster::pods::{PodCache, PodsEvent};

/// How long the reconciler waits for the first list. The first pass then relies on the kernel's state.
const PATIENCE: Duration = Duration::from_secs(3);

/// Keeps the known pods, and sends every change to the reconciler after the first list.
///
/// An API server that is unreachable, slow or inconsistent removes no pod. A pod is gone when the server says so.
pub(super) async fn take(
    mut heard: mpsc::Receiver<PodsEvent>,
    said: watch::Sender<Heard>,
    pods: watch::Sender<ApiPods>,
    owner: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut known = PodCache::default();
    let mut waited = false;
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        // Both arms are cancel safe: an unreceived event stays in the channel.
        let event = tokio::select! {
            event = heard.recv() => match event {
                Some(event) => Some(event),
                None => return Ok(()),
            },
            () = &mut patience, if !waited && !known.is_complete() => None,
        };
        let mut changed = false;
        // Events queued behind a busy reconciler become a single change.
        let mut next = event;
        while let Some(event) = next {
            changed |= one(event, &mut known, &said);
            next = heard.try_recv().ok();
        }
        if changed && known.is_complete() {
            let event = Event::Pods {
                source: Source::Api,
                pods: known.pods(),
                errors: known.unreadable(),
            };
            let Ok(permit) = owner.reserve().await else {
                return Ok(());
            };
            // The lock makes both updates one step. A reader of the new pods finds the event in the reconciler's channel. A
            // reader of the reconciler's next snapshot finds the new pods.
            pods.send_modify(|pods| {
                *pods = Some(known.pods().into());
                permit.send(event);
            });
        } else if !known.is_complete() && !waited {
            waited = true;
            if owner.send(Event::PodsWaitEnded).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Applies an event, and returns whether the pods changed.
fn one(event: PodsEvent, known: &mut PodCache, said: &watch::Sender<Heard>) -> bool {
    let trouble = match &event {
        PodsEvent::Degraded(says) => Some(Some(says.clone())),
        PodsEvent::Recovered => Some(None),
        _ => None,
    };
    let changed = known.take(event);
    said.send_modify(|heard| {
        heard.change(Timestamp::now(), |heard| {
            if let Some(trouble) = trouble {
                heard.last_error = trouble.clone().or(heard.last_error.take());
                heard.trouble = trouble;
            }
            heard.complete = known.is_complete();
            heard.unreadable = known.unreadable().len();
            if changed {
                heard.pods = known.pods().len();
            }
        });
    });
    changed
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
        PodsEvent::Snapshot {
            pods: names.iter().map(pod).collect(),
            unreadable: BTreeMap::new(),
        }
    }

    fn start() -> (
        mpsc::Sender<PodsEvent>,
        mpsc::Receiver<Event>,
        watch::Receiver<Heard>,
    ) {
        let (say, heard) = mpsc::channel(8);
        let (said, link) = watch::channel(Heard::default());
        let (owner, told) = mpsc::channel(8);
        tokio::spawn(take(heard, said, watch::channel(None).0, owner));
        (say, told, link)
    }

    fn names(event: Option<Event>) -> Vec<String> {
        let Some(Event::Pods {
            source: Source::Api,
            pods,
            ..
        }) = event
        else {
            panic!("{event:?}")
        };
        pods.into_iter().map(|pod| pod.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_goes_on_without_an_api_that_is_silent_or_away() {
        let began = Instant::now();
        let (say, mut told, link) = start();
        assert!(matches!(told.recv().await, Some(Event::PodsWaitEnded)));
        assert_eq!(began.elapsed(), PATIENCE);
        say.send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        say.send(all(&["a"])).await.unwrap();
        assert_eq!(names(told.recv().await), ["a"], "said once");
        assert!(link.borrow().complete && link.borrow().trouble.is_some());

        let (say, mut told, link) = start();
        let began = Instant::now();
        say.send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        assert!(matches!(told.recv().await, Some(Event::PodsWaitEnded)));
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "no need to wait for one that is known to be away"
        );
        assert!(!link.borrow().complete && link.borrow().last_error.as_deref() == Some("away"));
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_takes_no_pod_away_and_is_remembered() {
        let (say, mut told, link) = start();
        say.send(all(&["a", "b"])).await.unwrap();
        assert_eq!(names(told.recv().await), ["a", "b"]);
        say.send(PodsEvent::Degraded("away".to_owned()))
            .await
            .unwrap();
        say.send(PodsEvent::Recovered).await.unwrap();
        let gone = PodsEvent::Gone {
            uid: "u-a".to_owned(),
            namespace: String::new(),
            name: "a".to_owned(),
        };
        say.send(gone).await.unwrap();
        assert_eq!(
            names(told.recv().await),
            ["b"],
            "nothing was said of the trouble"
        );
        let heard = link.borrow().clone();
        assert_eq!(
            (heard.trouble, heard.last_error.as_deref(), heard.pods),
            (None, Some("away"), 1)
        );
        // Events queued behind a busy reconciler become a single change.
        for name in ["c", "d", "e"] {
            say.send(all(&[name])).await.unwrap();
        }
        assert_eq!(names(told.recv().await), ["e"]);
        drop(say);
        assert!(
            told.recv().await.is_none(),
            "it ends with the one who tells"
        );
    }
}
