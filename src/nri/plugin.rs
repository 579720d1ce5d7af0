//! [`Plugin`]: the handlers that answer the runtime.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::{Container, ContainerAdjustment, CpuChange, Event, EventRequest, EventSet, PodSandbox};

/// A refusal, as text. The runtime passes it on, and `kubectl describe pod` shows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

/// The longest text of a refusal, in characters. It becomes part of a Kubernetes Event, whose
/// message has at most 1 KiB.
const LONGEST_REFUSAL: usize = 800;

// === impl Refusal ===

impl Refusal {
    /// A refusal with a text, which should name the object and the remedy.
    pub fn new(words: impl Into<String>) -> Self {
        let mut words = words.into();
        if let Some((end, _)) = words.char_indices().nth(LONGEST_REFUSAL) {
            words.truncate(end);
            words.push('…');
        }
        Self(words)
    }
}

/// A handler exceeded this time limit and was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerTimeout(pub Duration);

impl fmt::Display for HandlerTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {:?}", self.0)
    }
}

/// A request that a handler did not answer in time.
#[derive(Debug, Clone, Copy)]
pub enum UnansweredCall<'a> {
    /// The list of existing pods and containers.
    Synchronize,
    Event(Event, &'a EventRequest),
}

impl fmt::Display for UnansweredCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synchronize => f.write_str("Synchronize"),
            Self::Event(event, EventRequest { pod, container }) => {
                write!(f, "{event} of {}/{}", pod.namespace, pod.name)?;
                if container.name.is_empty() {
                    Ok(())
                } else {
                    write!(f, " container {}", container.name)
                }
            }
        }
    }
}

/// The handlers that answer the runtime.
///
/// The runtime waits while a handler works, and so do all other containers of the node. A handler
/// should answer in well under a millisecond. At the deadline, it is cancelled at one of its
/// `await`s, and [`unanswered`](Self::unanswered) answers instead, so it must tolerate cancellation
/// at every `await`. To save time, handlers run on the thread that reads the requests. They must
/// not block; use `spawn_blocking` for blocking work.
///
/// A handler must not panic: the release binary aborts on a panic, and assignments then stay in the
/// kernel until the agent starts again.
///
/// Handlers run one after the other, in the order of the runtime's requests. The time in the queue
/// counts against the deadline.
///
/// A handler never calls the runtime. The runtime holds a lock until the handler has answered, so
/// the call would wait forever. The trait therefore offers no way to do so; put all changes into
/// the answer.
///
/// A [`Refusal`] fails the operation of the runtime. A refused [`create`](Self::create) or
/// [`start`](Self::start) fails the container, and the kubelet tries again. Without an answer, the
/// operation continues without adjustments.
pub trait Plugin: Send + Sync + 'static {
    /// The events that the plugin subscribes to. Handlers of other events are never called.
    fn events(&self) -> EventSet;

    /// Answers in place of a handler that exceeded the deadline. Without a refusal the operation
    /// continues as if the plugin did not exist.
    ///
    /// # Errors
    /// The refusal of the operation.
    fn unanswered(&self, call: &UnansweredCall<'_>, timeout: HandlerTimeout)
    -> Result<(), Refusal>;

    /// Reduces a pod of [`synchronize`](Self::synchronize), like [`reduce`](Self::reduce) a container.
    fn reduce_pod(&self, pod: PodSandbox) -> PodSandbox {
        pod
    }

    /// Reduces a container of [`synchronize`](Self::synchronize) to the fields that the plugin
    /// uses. This happens to each part as soon as it is read, since all parts together may be
    /// larger than the memory of the process.
    fn reduce(&self, container: Container) -> Container {
        container
    }

    /// Receives the existing pods and containers after every registration, which makes all earlier
    /// lists and events void. Stopped containers are not listed.
    ///
    /// # Errors
    /// A refusal ends the connection, and the plugin connects again.
    fn synchronize(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// A connection has ended. Until the next [`synchronize`](Self::synchronize), the runtime
    /// reports no changes, so what it has reported grows old.
    fn disconnected(&self) {}

    /// A container is about to be created, and has no cgroup yet. A handler that waits for
    /// something leaves enough time until the deadline for its own work.
    ///
    /// # Errors
    /// A refusal fails the container.
    fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
        deadline: Instant,
    ) -> impl Future<Output = Result<ContainerAdjustment, Refusal>> + Send;

    /// A container is about to start. Its cgroup exists, and its first process waits.
    ///
    /// # Errors
    /// A refusal fails the container.
    fn start(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
        _deadline: Instant,
    ) -> impl Future<Output = Result<(), Refusal>> + Send {
        async { Ok(()) }
    }

    /// A container's resources are about to be changed. The returned change has priority.
    ///
    /// # Errors
    /// A refusal fails the change.
    fn update(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
        _deadline: Instant,
    ) -> impl Future<Output = Result<CpuChange, Refusal>> + Send {
        async { Ok(CpuChange::default()) }
    }

    /// All other events: a pod's sandbox was run, stopped or removed, or a container has changed. A
    /// plugin cannot influence them.
    fn notify(&self, _event: Event, _request: &EventRequest) -> impl Future<Output = ()> + Send {
        async {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_refusal_is_cut_between_letters() {
        assert_eq!(Refusal::new("no").to_string(), "no");
        let cut = Refusal::new("é".repeat(2000)).to_string();
        assert_eq!(cut.chars().count(), LONGEST_REFUSAL + 1);
        assert!(cut.ends_with("é…"));
    }

    #[test]
    fn an_unanswered_call_names_event_pod_and_container() {
        let mut request = EventRequest::default();
        (request.pod.namespace, request.pod.name) = ("train".to_owned(), "ps-0".to_owned());
        assert_eq!(
            UnansweredCall::Event(Event::RunPodSandbox, &request).to_string(),
            "RunPodSandbox of train/ps-0"
        );
        request.container.name = "ps".to_owned();
        let call = UnansweredCall::Event(Event::StartContainer, &request).to_string();
        assert_eq!(call, "StartContainer of train/ps-0 container ps");
        assert_eq!(
            HandlerTimeout(Duration::from_millis(1500)).to_string(),
            "no answer within 1.5s"
        );
    }
}
