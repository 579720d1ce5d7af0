//! One call of a plugin's handler: the arguments, the deadline and the encoded answer.

use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::adjust::updates;
use super::proto::{CreateContainerResponse, SynchronizeResponse, UpdateContainerResponse};
use super::{
    Container, Event, EventRequest, HandlerTimeout, Plugin, PodSandbox, Refusal, UnansweredCall,
};

/// The output of a handler.
pub(super) struct HandlerOutput {
    /// Whether the request was Synchronize.
    pub is_synchronize: bool,
    /// The encoded answer.
    pub answer: Result<Vec<u8>, Refusal>,
}

/// The arguments of a handler.
pub(super) enum HandlerInput {
    /// The existing pods and containers.
    Synchronize(Vec<PodSandbox>, Vec<Container>),
    /// An event.
    Event(Event, Box<EventRequest>),
}

/// A request of the runtime that a handler of the plugin answers.
pub(super) struct HandlerCall {
    pub input: HandlerInput,
    /// The time limit from the request to the answer.
    pub limit: Duration,
    /// The end of the time limit.
    pub deadline: Instant,
}

// === impl HandlerCall ===

impl HandlerCall {
    /// Runs the plugin's handler until the deadline.
    pub(super) async fn run<P: Plugin>(self, plugin: &P) -> HandlerOutput {
        let Self {
            input,
            limit,
            deadline,
        } = self;
        let is_synchronize = matches!(input, HandlerInput::Synchronize(..));
        let answer = match input {
            HandlerInput::Synchronize(pods, containers) => {
                let handler = async {
                    let response = SynchronizeResponse {
                        update: updates(plugin.synchronize(pods, containers).await?),
                        more: false,
                    };
                    Ok(response.encode_to_vec())
                };
                let call = UnansweredCall::Synchronize;
                answer_in_time(plugin, handler, &call, deadline, limit).await
            }
            HandlerInput::Event(event, request) => {
                let handler = call_handler(plugin, event, &request);
                let call = UnansweredCall::Event(event, &request);
                answer_in_time(plugin, handler, &call, deadline, limit).await
            }
        };
        HandlerOutput {
            is_synchronize,
            answer,
        }
    }
}

/// The handler's answer. At the deadline, the handler is cancelled at one of its `await`s, and
/// [`Plugin::unanswered`] answers: an empty answer, or a refusal.
async fn answer_in_time<P: Plugin>(
    plugin: &P,
    handler: impl Future<Output = Result<Vec<u8>, Refusal>>,
    call: &UnansweredCall<'_>,
    deadline: Instant,
    limit: Duration,
) -> Result<Vec<u8>, Refusal> {
    match tokio::time::timeout_at(deadline, handler).await {
        Ok(answer) => answer,
        Err(_) => {
            let timeout = HandlerTimeout(limit);
            tracing::error!("NRI: {call}: {timeout}");
            plugin.unanswered(call, timeout).map(|()| Vec::new())
        }
    }
}

async fn call_handler<P: Plugin>(
    plugin: &P,
    event: Event,
    request: &EventRequest,
) -> Result<Vec<u8>, Refusal> {
    let EventRequest { pod, container } = request;
    let update = match event {
        Event::CreateContainer => {
            let creation = plugin.create(pod, container).await?;
            let response = CreateContainerResponse {
                adjust: Some(creation.adjustment.into_proto()),
                update: updates(creation.updates),
            };
            return Ok(response.encode_to_vec());
        }
        Event::UpdateContainer => plugin.update(pod, container).await?,
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
    let update = updates(update);
    Ok(UpdateContainerResponse { update }.encode_to_vec())
}
