//! One call of the runtime: the handler with its deadline, and the answer as the runtime wants it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::adjust::updates;
use super::event::{Event, EventRequest};
use super::plugin::{Creation, HandlerTimeout, Plugin, Refusal, UnansweredCall};
use super::proto::{
    Container, CreateContainerResponse, PodSandbox, SynchronizeResponse, UpdateContainerResponse,
};

/// What the runtime is told.
pub(super) enum HandlerOutput {
    /// The answer to what exists.
    Synchronized(Result<Vec<u8>, Refusal>),
    /// The answer to an event.
    Event(Result<Vec<u8>, Refusal>),
}

/// What the plugin is to be told.
pub(super) enum HandlerInput {
    /// What exists.
    Synchronize(Vec<PodSandbox>, Vec<Container>),
    /// An event.
    Event(Event, Box<EventRequest>),
}

/// A call of the runtime that a handler of the plugin answers.
pub(super) struct HandlerCall {
    pub(super) input: HandlerInput,
    /// How long there is from the call to its answer.
    pub(super) limit: Duration,
    /// When that is over.
    pub(super) deadline: Instant,
}

// === impl HandlerCall ===

impl HandlerCall {
    /// Has the plugin answer.
    pub(super) async fn run<P: Plugin>(self, plugin: Arc<P>) -> HandlerOutput {
        let handlers = Arc::clone(&plugin);
        let (deadline, limit) = (self.deadline, self.limit);
        match self.input {
            HandlerInput::Synchronize(pods, containers) => {
                let handler = async move {
                    let update = updates(handlers.synchronize(pods, containers).await?);
                    Ok(SynchronizeResponse {
                        update,
                        more: false,
                    }
                    .encode_to_vec())
                };
                HandlerOutput::Synchronized(match with_deadline(handler, deadline, limit).await {
                    Ok(answer) => answer,
                    Err(timeout) => {
                        answer_after_timeout(&*plugin, &UnansweredCall::Synchronize, timeout)
                    }
                })
            }
            HandlerInput::Event(event, request) => {
                let request = Arc::new(request);
                let handler_request = Arc::clone(&request);
                let handler =
                    async move { call_handler(&*handlers, event, &handler_request).await };
                HandlerOutput::Event(match with_deadline(handler, deadline, limit).await {
                    Ok(answer) => answer,
                    Err(timeout) => answer_after_timeout(
                        &*plugin,
                        &UnansweredCall::Event(event, &request),
                        timeout,
                    ),
                })
            }
        }
    }
}

/// Runs a handler, and cancels it at one of its awaits when its time is over.
async fn with_deadline(
    handler: impl Future<Output = Result<Vec<u8>, Refusal>>,
    deadline: Instant,
    limit: Duration,
) -> Result<Result<Vec<u8>, Refusal>, HandlerTimeout> {
    tokio::time::timeout_at(deadline, handler)
        .await
        .map_err(|_| HandlerTimeout(limit))
}

/// What the plugin chose for the case: an answer that changes nothing, or a refusal.
fn answer_after_timeout<P: Plugin>(
    plugin: &P,
    call: &UnansweredCall<'_>,
    timeout: HandlerTimeout,
) -> Result<Vec<u8>, Refusal> {
    tracing::error!("NRI: {call}: {timeout}");
    plugin.unanswered(call, timeout).map(|()| Vec::new())
}

async fn call_handler<P: Plugin>(
    plugin: &P,
    event: Event,
    request: &EventRequest,
) -> Result<Vec<u8>, Refusal> {
    let EventRequest {
        pod,
        container,
        resources,
    } = request;
    let update = match event {
        Event::CreateContainer => {
            let Creation {
                adjustment,
                updates: updates_of_others,
            } = plugin.create(pod, container).await?;
            let response = CreateContainerResponse {
                adjust: Some(adjustment.into_proto()),
                update: updates(updates_of_others),
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
