//! [`Plugin`]: who answers the runtime.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::adjust::{ContainerAdjustment, ContainerUpdate};
use super::event::{Event, EventRequest, Events};
use super::proto::{Container, LinuxResources, PodSandbox};

/// A no, in words that the runtime passes on: `kubectl describe pod` shows them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

/// The longest refusal that is passed on, in letters: it ends up in an Event of at most 1 KiB, with others' words around it.
const LONGEST_REFUSAL: usize = 800;

// === impl Refusal ===

impl Refusal {
    /// A no, in these words. Name the object and what to do about it.
    pub fn new(words: impl Into<String>) -> Self {
        let mut words = words.into();
        if let Some((end, _)) = words.char_indices().nth(LONGEST_REFUSAL) {
            words.truncate(end);
            words.push('…');
        }
        Self(words)
    }
}

impl From<String> for Refusal {
    fn from(words: String) -> Self {
        Self::new(words)
    }
}

impl From<&str> for Refusal {
    fn from(words: &str) -> Self {
        Self::new(words)
    }
}

/// A handler gave no answer within this time, and was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerTimeout(pub Duration);

impl fmt::Display for HandlerTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {:?}", self.0)
    }
}

/// What went unanswered.
#[derive(Debug, Clone, Copy)]
pub enum UnansweredCall<'a> {
    /// What exists was told.
    Synchronize,
    /// An event was told.
    Event(Event, &'a EventRequest),
}

impl fmt::Display for UnansweredCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synchronize => f.write_str("Synchronize"),
            Self::Event(event, EventRequest { pod, container, .. }) => {
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

/// What is made of a container that is being created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Creation {
    /// Changes of the container.
    pub adjustment: ContainerAdjustment,
    /// Changes of others, made before the container is there.
    pub updates: Vec<ContainerUpdate>,
}

/// Whoever answers the runtime.
///
/// The runtime waits while a handler works, and so does every other container on the node: answer well under a
/// millisecond. A handler that takes longer than the deadline is cancelled, at one of its `await`s, and
/// [`unanswered`](Self::unanswered) answers in its place; whatever it has begun must bear that. It runs as a task on the
/// thread that has read the call, for the sake of time: it must not block; what does belongs into `spawn_blocking`.
///
/// A handler must not panic: the release binary aborts on a panic, and assignments then stay in the kernel until the agent
/// starts again.
///
/// Handlers run one after the other, in the order in which the runtime calls, and the time that one waits for its turn
/// counts.
///
/// A handler never calls the runtime, which holds its lock until the handler has answered: it would wait for itself. It is
/// given nothing to call it with, and [`Updater`](super::Updater) refuses from inside one. What is to change with the
/// answer goes into the answer.
///
/// A [`Refusal`] fails what the runtime is about to do: of [`create`](Self::create) and [`start`](Self::start) the
/// container, which the kubelet tries again. No answer at all lets it happen unadjusted.
pub trait Plugin: Send + Sync + 'static {
    /// The events to hear of. A handler of any other is never called.
    fn events(&self) -> Events;

    /// Answers where a handler does not answer in time. Without a refusal things go their way: a container is created
    /// or started as if there were no plugin.
    ///
    /// # Errors
    /// The refusal to let it.
    fn unanswered(&self, call: &UnansweredCall<'_>, timeout: HandlerTimeout)
    -> Result<(), Refusal>;

    /// Reduces a container of [`synchronize`](Self::synchronize) to the fields that the plugin uses. The containers of each
    /// part are reduced as soon as the part is read, since all parts together may be larger than the memory of the process.
    fn reduce(&self, container: Container) -> Container {
        container
    }

    /// What exists, after every registration: forget what was told before. Containers that have ended are not in it.
    ///
    /// # Errors
    /// A refusal ends the connection, and it is tried again.
    fn synchronize(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Refusal>> + Send;

    /// A container is about to be created. It has no cgroup yet.
    ///
    /// # Errors
    /// A refusal fails the container.
    fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<Creation, Refusal>> + Send;

    /// A container was created, with what all plugins made of it.
    fn created(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// A container is about to start: the gate before its program runs. Its cgroup exists, its first process waits.
    ///
    /// # Errors
    /// A refusal fails the container.
    fn start(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<(), Refusal>> + Send {
        async { Ok(()) }
    }

    /// A container's program runs.
    fn started(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// A container's resources are about to be changed to `resources`. An update of the container itself in the answer
    /// wins over what was asked for.
    ///
    /// # Errors
    /// A refusal fails the change.
    fn update(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
        _resources: &LinuxResources,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Refusal>> + Send {
        async { Ok(Vec::new()) }
    }

    /// A container's resources were changed.
    fn updated(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// A container has stopped, or was never started after all.
    fn stopped(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Vec<ContainerUpdate>> + Send {
        async { Vec::new() }
    }

    /// A container is gone.
    fn removed(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// A pod's sandbox is there, without containers.
    ///
    /// # Errors
    /// A refusal fails the pod's sandbox, which the kubelet tries again.
    fn pod_run(&self, _pod: &PodSandbox) -> impl Future<Output = Result<(), Refusal>> + Send {
        async { Ok(()) }
    }

    /// A pod's sandbox was stopped.
    fn pod_stopped(&self, _pod: &PodSandbox) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// A pod's sandbox is gone.
    fn pod_removed(&self, _pod: &PodSandbox) -> impl Future<Output = ()> + Send {
        async {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_refusal_is_cut_between_letters() {
        assert_eq!(Refusal::from("no").to_string(), "no");
        let cut = Refusal::new("é".repeat(2000)).to_string();
        assert_eq!(cut.chars().count(), LONGEST_REFUSAL + 1);
        assert!(cut.ends_with("é…"));
    }

    #[test]
    fn what_went_unanswered_is_named() {
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
