//! [`EventQueue`]: the reconciler's events in order, with a check for urgent events.

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

    /// Whether an urgent event waits: a runtime request whose time is not over, or a new pod. The cgroup of a new pod is read at
    /// once, so that the first CreateContainer of the pod need not wait for the read.
    pub(super) fn has_urgent(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.peeked.push_back(event);
        }
        let is_urgent = |event: &AgentEvent| {
            matches!(event, AgentEvent::NewPod(_)) || event.is_request() && !event.is_expired()
        };
        self.peeked.iter().any(is_urgent)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_new_pod_is_urgent() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = EventQueue::new(inbox);
        let new = AgentEvent::NewPod("uid".to_owned());
        events.send(new).await.unwrap();
        assert!(inbox.has_urgent());
        inbox.next().await.unwrap();
        assert!(!inbox.has_urgent());
    }

    #[tokio::test]
    async fn a_request_whose_time_is_over_is_not_urgent() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = EventQueue::new(inbox);
        let (reply, answer) = oneshot::channel();
        let (uid, container) = ("uid".to_owned(), "main".to_owned());
        let update = AgentEvent::Update {
            uid,
            container,
            reply,
        };
        events.send(update).await.unwrap();
        assert!(inbox.has_urgent());
        drop(answer);
        assert!(!inbox.has_urgent());
        assert!(inbox.next().await.unwrap().is_expired());
    }

    #[tokio::test]
    async fn a_request_is_noticed_and_the_order_of_events_stays() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = EventQueue::new(inbox);
        assert!(!inbox.has_urgent());
        events.send(AgentEvent::CgroupsChanged).await.unwrap();
        assert!(!inbox.has_urgent());
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
        assert!(inbox.has_urgent());
        events.send(AgentEvent::CgroupsChanged).await.unwrap();
        drop(events);
        assert!(matches!(
            inbox.next().await,
            Some(AgentEvent::CgroupsChanged)
        ));
        assert!(inbox.has_urgent());
        assert!(matches!(inbox.next().await, Some(AgentEvent::Start { .. })));
        assert!(!inbox.has_urgent());
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
