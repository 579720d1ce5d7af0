//! [`EventQueue`]: the reconciler's events, with a check for urgent events.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::event::{AgentEvent, RuntimeUpdate};

/// The sending ends of the reconciler's two queues.
#[derive(Debug, Clone)]
pub(super) struct EventSenders {
    /// The container runtime's events, in order. The queue has no limit: a full one would delay the runtime, which waits for the
    /// answers to its requests.
    pub(super) runtime: mpsc::UnboundedSender<AgentEvent>,
    /// All other events. A sender waits while the queue is full, and then sends the newest state.
    pub(super) others: mpsc::Sender<AgentEvent>,
}

/// The reconciler's events, each queue in the order of arrival.
#[derive(Debug)]
pub(super) struct EventQueue {
    runtime: mpsc::UnboundedReceiver<AgentEvent>,
    others: mpsc::Receiver<AgentEvent>,
    /// Events of the runtime that [`EventQueue::has_urgent`] has taken from the channel, not
    /// handled yet.
    peeked: VecDeque<AgentEvent>,
}

// === impl EventQueue ===

impl EventQueue {
    pub(super) fn new() -> (EventSenders, Self) {
        let (runtime, of_runtime) = mpsc::unbounded_channel();
        let (others, of_others) = mpsc::channel(64);
        let queue = Self {
            runtime: of_runtime,
            others: of_others,
            peeked: VecDeque::new(),
        };
        (EventSenders { runtime, others }, queue)
    }

    /// The next event; `None` once all senders of both queues are dropped and all events are taken.
    ///
    /// The other events come first, so that what the API server said of a pod before a request
    /// counts for the request.
    ///
    /// Cancel safe: a cancelled call takes no event.
    pub(super) async fn next(&mut self) -> Option<AgentEvent> {
        if let Ok(event) = self.others.try_recv() {
            return Some(event);
        }
        if let Some(event) = self.peeked.pop_front() {
            return Some(event);
        }
        tokio::select! {
            biased;
            Some(event) = self.others.recv() => Some(event),
            Some(event) = self.runtime.recv() => Some(event),
            else => None,
        }
    }

    /// Whether an urgent event waits: a runtime request whose time is not over, or a new pod. The cgroup of a new pod is read at
    /// once, so that the first CreateContainer of the pod need not wait for the read.
    pub(super) fn has_urgent(&mut self) -> bool {
        while let Ok(event) = self.runtime.try_recv() {
            self.peeked.push_back(event);
        }
        self.peeked.iter().any(is_urgent)
    }
}

fn is_urgent(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::Runtime(RuntimeUpdate::Pod(pod)) => pod.is_new(),
        _ => event.is_request() && !event.is_expired(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::agent::event::{PodSource, PodsUpdate, RuntimePod};
    use crate::pod::{Container, Pod};

    fn start(uid: &str) -> (AgentEvent, oneshot::Receiver<Result<(), String>>) {
        let (reply, answer) = oneshot::channel();
        let (uid, container) = (uid.to_owned(), "main".to_owned());
        let event = AgentEvent::Start {
            uid,
            container,
            reply,
        };
        (event, answer)
    }

    #[tokio::test]
    async fn a_new_pod_is_urgent() {
        let (senders, mut queue) = EventQueue::new();
        for containers in [vec![], vec![Container::default()]] {
            let is_new = containers.is_empty();
            let pod = RuntimePod::new(Pod {
                containers,
                ..Pod::default()
            });
            let update = RuntimeUpdate::Pod(Box::new(pod));
            senders.runtime.send(AgentEvent::Runtime(update)).unwrap();
            assert_eq!(queue.has_urgent(), is_new);
            queue.next().await.unwrap();
            assert!(!queue.has_urgent());
        }
    }

    #[tokio::test]
    async fn a_request_whose_time_is_over_is_not_urgent() {
        let (senders, mut queue) = EventQueue::new();
        let (event, answer) = start("uid");
        senders.runtime.send(event).unwrap();
        assert!(queue.has_urgent());
        drop(answer);
        assert!(!queue.has_urgent());
        assert!(queue.next().await.unwrap().is_expired());
    }

    #[tokio::test]
    async fn the_order_of_the_runtimes_events_stays_and_descriptions_come_before() {
        let (senders, mut queue) = EventQueue::new();
        assert!(!queue.has_urgent());
        let touched = |uid: &str| AgentEvent::CgroupsChanged(uid.to_owned());
        senders.runtime.send(touched("first")).unwrap();
        assert!(!queue.has_urgent());
        let (event, _answer) = start("second");
        senders.runtime.send(event).unwrap();
        senders.runtime.send(touched("third")).unwrap();
        assert!(queue.has_urgent());
        let update = PodsUpdate {
            source: PodSource::Api,
            change: None,
            errors: Vec::new(),
        };
        senders.others.send(AgentEvent::Pods(update)).await.unwrap();
        drop(senders);
        let mut order = Vec::new();
        while let Some(event) = queue.next().await {
            order.push(match event {
                AgentEvent::Pods(_) => "pods".to_owned(),
                AgentEvent::CgroupsChanged(uid) | AgentEvent::Start { uid, .. } => uid,
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(order, ["pods", "first", "second", "third"]);
    }
}
