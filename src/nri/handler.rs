//! One call of the runtime: the handler with its deadline, and the answer as the runtime wants it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::adjust::updates;
use super::event::{Event, Subject};
use super::plugin::{Creation, HandlerTimeout, Plugin, Refusal, Unanswered};
use super::proto::{
    Container, CreateContainerResponse, PodSandbox, SynchronizeResponse, UpdateContainerResponse,
};

/// What the runtime is told.
pub(super) enum Answer {
    /// The answer to what exists.
    Synchronized(Result<Vec<u8>, Refusal>),
    /// The answer to an event.
    Event(Result<Vec<u8>, Refusal>),
}

/// What the plugin is to be told.
pub(super) enum What {
    /// What exists.
    Synchronize(Vec<PodSandbox>, Vec<Container>),
    /// An event.
    Event(Event, Box<Subject>),
}

/// A call of the runtime that a handler of the plugin answers.
pub(super) struct Call {
    pub(super) what: What,
    /// How long there is from the call to its answer.
    pub(super) limit: Duration,
    /// When that is over.
    pub(super) deadline: Instant,
}

// === impl Call ===

impl Call {
    /// Has the plugin answer.
    pub(super) async fn answer<P: Plugin>(self, plugin: Arc<P>) -> Answer {
        let handlers = Arc::clone(&plugin);
        let (deadline, limit) = (self.deadline, self.limit);
        match self.what {
            What::Synchronize(pods, containers) => {
                let handler = async move {
                    let update = updates(handlers.synchronize(pods, containers).await?);
                    Ok(SynchronizeResponse {
                        update,
                        more: false,
                    }
                    .encode_to_vec())
                };
                Answer::Synchronized(match in_time(handler, deadline, limit).await {
                    Ok(answer) => answer,
                    Err(timeout) => unanswered(&*plugin, &Unanswered::Synchronize, timeout),
                })
            }
            What::Event(event, subject) => {
                let subject = Arc::new(subject);
                let told = Arc::clone(&subject);
                let handler = async move { handle(&*handlers, event, &told).await };
                Answer::Event(match in_time(handler, deadline, limit).await {
                    Ok(answer) => answer,
                    Err(timeout) => {
                        unanswered(&*plugin, &Unanswered::Event(event, &subject), timeout)
                    }
                })
            }
        }
    }
}

/// Runs a handler, and cancels it at one of its awaits when its time is over.
async fn in_time(
    handler: impl Future<Output = Result<Vec<u8>, Refusal>>,
    deadline: Instant,
    limit: Duration,
) -> Result<Result<Vec<u8>, Refusal>, HandlerTimeout> {
    tokio::time::timeout_at(deadline, handler)
        .await
        .map_err(|_| HandlerTimeout(limit))
}

/// What the plugin chose for the case: an answer that changes nothing, or a refusal.
fn unanswered<P: Plugin>(
    plugin: &P,
    call: &Unanswered<'_>,
    why: HandlerTimeout,
) -> Result<Vec<u8>, Refusal> {
    tracing::error!("NRI: {call}: {why}");
    plugin.unanswered(call, why).map(|()| Vec::new())
}

async fn handle<P: Plugin>(
    plugin: &P,
    event: Event,
    subject: &Subject,
) -> Result<Vec<u8>, Refusal> {
    let Subject {
        pod,
        container,
        resources,
    } = subject;
    let update = match event {
        Event::CreateContainer => {
            let Creation {
                adjustment,
                updates: others,
            } = plugin.create(pod, container).await?;
            let response = CreateContainerResponse {
                adjust: Some(adjustment.into_proto()),
                update: updates(others),
            };
            return Ok(response.encode_to_vec());
        }
        Event::UpdateContainer => plugin.update(pod, container, resources).await?,
        Event::StopContainer => plugin.stopped(pod, container).await,
        others => {
            match others {
                Event::RunPodSandbox => plugin.pod_run(pod).await?,
                Event::StopPodSandbox => plugin.pod_stopped(pod).await,
                Event::RemovePodSandbox => plugin.pod_removed(pod).await,
                Event::PostCreateContainer => plugin.created(pod, container).await,
                Event::StartContainer => plugin.start(pod, container).await?,
                Event::PostStartContainer => plugin.started(pod, container).await,
                Event::PostUpdateContainer => plugin.updated(pod, container).await,
                Event::RemoveContainer => plugin.removed(pod, container).await,
                Event::CreateContainer | Event::UpdateContainer | Event::StopContainer => {}
            }
            Vec::new()
        }
    };
    Ok(UpdateContainerResponse {
        update: updates(update),
    }
    .encode_to_vec())
}
