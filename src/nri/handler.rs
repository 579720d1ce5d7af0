//! One call of a plugin's handler: the arguments, the deadline and the encoded answer.

use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::proto::{CreateContainerResponse, UpdateContainerResponse};
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
                let synchronized = plugin.synchronize(pods, containers);
                let handler = async { synchronized.await.map(|()| Vec::new()) };
                let call = UnansweredCall::Synchronize;
                answer_in_time(plugin, handler, &call, deadline, limit).await
            }
            HandlerInput::Event(event, request) => {
                let handler = call_handler(plugin, event, &request, deadline);
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
    deadline: Instant,
) -> Result<Vec<u8>, Refusal> {
    let EventRequest { pod, container } = request;
    match event {
        Event::CreateContainer => {
            let adjustment = plugin.create(pod, container, deadline).await?;
            let adjust = Some(adjustment.into_proto());
            return Ok(CreateContainerResponse { adjust }.encode_to_vec());
        }
        Event::UpdateContainer => {
            let change = plugin.update(pod, container).await?;
            let update = change.update_of(&container.id).into_iter().collect();
            return Ok(UpdateContainerResponse { update }.encode_to_vec());
        }
        Event::StartContainer => plugin.start(pod, container).await?,
        _ => plugin.notify(event, request).await,
    }
    // The empty message answers all other events.
    Ok(Vec::new())
}
