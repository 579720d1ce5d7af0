//! [`EventQueue`]: the reconciler's events in order, with a check for waiting runtime requests.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::event::AgentEvent;

/// The reconciler's events in the order of arrival.
#[derive(Debug)]
pub(super) struct EventQueue {
    events: mpsc::Receiver<AgentEvent>,
    /// Events received for a check and not yet handled.
    peeked: VecDeque<AgentEvent>,
}

// === impl EventQueue ===

impl EventQueue {
    pub(super) fn new(events: mpsc::Receiver<AgentEvent>) -> Self {
        Self {
            events,
            peeked: VecDeque::new(),
        }
    }

    /// The next event; `None` after all senders are dropped and all events are taken.
    ///
    /// Cancel safe: a cancelled call takes no event.
    pub(super) async fn next(&mut self) -> Option<AgentEvent> {
        match self.peeked.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Whether a runtime request waits for an answer, or the runtime reports a new pod. The cgroup of a new pod is read at once,
    /// so that the first CreateContainer of the pod need not wait for the read.
    pub(super) fn has_request(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.peeked.push_back(event);
        }
        self.peeked.iter().any(|event| match event {
            AgentEvent::Create { .. } | AgentEvent::Start { .. } => true,
            AgentEvent::Runtime(update) => update.of_new_pod().is_some(),
            _ => false,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use tokio::sync::oneshot;

    use super::*;
    use crate::agent::event::{RuntimePod, RuntimeUpdate};
    use crate::pod::{Container, Pod};

    fn reported(containers: Vec<Container>) -> AgentEvent {
        let pod = Pod {
            uid: Some("uid".into()),
            containers,
            ..Pod::default()
        };
        AgentEvent::Runtime(RuntimeUpdate::Pod(Box::new(RuntimePod {
            pod,
            injected: BTreeMap::new(),
        })))
    }

    #[tokio::test]
    async fn a_new_pod_is_a_request_and_a_known_pod_is_not() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = EventQueue::new(inbox);
        let known = reported(vec![Container::default()]);
        events.send(known).await.unwrap();
        assert!(!inbox.has_request());
        events.send(reported(Vec::new())).await.unwrap();
        assert!(inbox.has_request());
        inbox.next().await.unwrap();
        assert!(inbox.has_request());
        inbox.next().await.unwrap();
        assert!(!inbox.has_request());
    }

    #[tokio::test]
    async fn a_request_is_noticed_and_the_order_of_events_stays() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = EventQueue::new(inbox);
        assert!(!inbox.has_request());
        events.send(AgentEvent::CgroupsChanged).await.unwrap();
        assert!(!inbox.has_request());
        let (reply, _answer) = oneshot::channel();
        let (uid, container) = ("uid".to_owned(), "main".to_owned());
        events
            .send(AgentEvent::Start {
                uid,
                container,
                reply,
            })
            .await
            .unwrap();
        events.send(AgentEvent::PodsWaitEnded).await.unwrap();
        assert!(inbox.has_request());
        events.send(AgentEvent::CgroupsChanged).await.unwrap();
        drop(events);
        assert!(matches!(
            inbox.next().await,
            Some(AgentEvent::CgroupsChanged)
        ));
        assert!(inbox.has_request());
        assert!(matches!(inbox.next().await, Some(AgentEvent::Start { .. })));
        assert!(!inbox.has_request());
        assert!(matches!(
            inbox.next().await,
            Some(AgentEvent::PodsWaitEnded)
        ));
        assert!(matches!(
            inbox.next().await,
            Some(AgentEvent::CgroupsChanged)
        ));
        assert!(inbox.next().await.is_none());
    }
}
