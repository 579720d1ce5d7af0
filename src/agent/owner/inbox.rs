//! [`Inbox`]: the owner's events, in their order, and whether a runtime's question is among them.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::super::event::Event;

/// What the owner is told, as it comes.
#[derive(Debug)]
pub(super) struct Inbox {
    events: mpsc::Receiver<Event>,
    /// Those that were looked at and not taken.
    looked_at: VecDeque<Event>,
}

// === impl Inbox ===

impl Inbox {
    pub(super) fn new(events: mpsc::Receiver<Event>) -> Self {
        Self {
            events,
            looked_at: VecDeque::new(),
        }
    }

    /// The next event; `None` when there can be no more.
    ///
    /// Cancel safe: an event is taken only when this returns.
    pub(super) async fn next(&mut self) -> Option<Event> {
        match self.looked_at.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Whether a runtime waits for an answer.
    pub(super) fn is_asked(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.looked_at.push_back(event);
        }
        self.looked_at
            .iter()
            .any(|event| matches!(event, Event::Create { .. } | Event::Start { .. }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_question_is_seen_and_nothing_changes_its_place() {
        let (events, inbox) = mpsc::channel(8);
        let mut inbox = Inbox::new(inbox);
        assert!(!inbox.is_asked());
        events.send(Event::Changed).await.unwrap();
        assert!(!inbox.is_asked());
        let (reply, _answer) = oneshot::channel();
        let (uid, container) = ("uid".to_owned(), "main".to_owned());
        events
            .send(Event::Start {
                uid,
                container,
                reply,
            })
            .await
            .unwrap();
        events.send(Event::Unheard).await.unwrap();
        assert!(inbox.is_asked());
        events.send(Event::Changed).await.unwrap();
        drop(events);
        assert!(matches!(inbox.next().await, Some(Event::Changed)));
        assert!(inbox.is_asked());
        assert!(matches!(inbox.next().await, Some(Event::Start { .. })));
        assert!(!inbox.is_asked());
        assert!(matches!(inbox.next().await, Some(Event::Unheard)));
        assert!(matches!(inbox.next().await, Some(Event::Changed)));
        assert!(inbox.next().await.is_none());
    }
}
