//! [`take`]: what is heard of this node's pods, for the owner.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::ApiPods;
use super::link::Heard;
use crate::agent::event::{Event, Source};
use crate::cluster::pods::{Known, PodsEvent};

/// How long the owner waits for the first list before it goes on from what the kernel says.
const PATIENCE: Duration = Duration::from_secs(3);

/// Keeps what is known of the pods, and tells the owner of every change, once all of them are known.
///
/// An API server that is away, slow or confused changes nothing of it: a pod is gone when the server says so.
pub(super) async fn take(
    mut heard: mpsc::Receiver<PodsEvent>,
    said: watch::Sender<Heard>,
    pods: watch::Sender<ApiPods>,
    owner: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut known = Known::default();
    let mut waited = false;
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        // Both arms are cancel safe: an event that is not received stays in the channel.
        let event = tokio::select! {
            event = heard.recv() => match event {
                Some(event) => Some(event),
                None => return Ok(()),
            },
            () = &mut patience, if !waited && !known.is_complete() => None,
        };
        let mut changed = false;
        // Several that came while the owner was busy are one change.
        let mut next = event;
        while let Some(event) = next {
            changed |= one(event, &mut known, &said);
            next = heard.try_recv().ok();
        }
        if changed && known.is_complete() {
            // Whoever reads the owner's next snapshot finds the pods that it speaks of.
            pods.send_replace(Some(known.pods().into()));
            let event = Event::Pods { source: Source::Api, pods: known.pods(), errors: known.unreadable() };
            if owner.send(event).await.is_err() {
                return Ok(());
            }
        } else if !known.is_complete() && !waited {
            waited = true;
            if owner.send(Event::Unheard).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Takes one event; whether the pods changed.
fn one(event: PodsEvent, known: &mut Known, said: &watch::Sender<Heard>) -> bool {
    let trouble = match &event {
        PodsEvent::Trouble(says) => Some(Some(says.clone())),
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
