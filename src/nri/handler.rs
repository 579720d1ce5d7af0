//! The calls of a plugin's handlers, each with a deadline and an encoded answer.

use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::proto::{CreateContainerResponse, UpdateContainerResponse};
use super::{
    Container, Event, EventRequest, HandlerTimeout, Plugin, PodSandbox, Refusal, UnansweredCall,
};

/// The plugin's encoded answer about the existing pods and containers.
pub(super) async fn synchronize<P: Plugin>(
    plugin: &P,
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
    deadline: Instant,
    limit: Duration,
) -> Result<Vec<u8>, Refusal> {
    let synchronized = plugin.synchronize(pods, containers);
    let handler = async { synchronized.await.map(|()| Vec::new()) };
    let call = UnansweredCall::Synchronize;
    answer_in_time(plugin, handler, &call, deadline, limit).await
}

/// The plugin's encoded answer to an event.
pub(super) async fn event<P: Plugin>(
    plugin: &P,
    event: Event,
    request: &EventRequest,
    deadline: Instant,
    limit: Duration,
) -> Result<Vec<u8>, Refusal> {
    let handler = call_handler(plugin, event, request, deadline);
    let call = UnansweredCall::Event(event, request);
    answer_in_time(plugin, handler, &call, deadline, limit).await
}

/// The handler's answer. `limit` is the time from the request to the deadline. At the deadline, the
/// handler is cancelled at one of its `await`s, and [`Plugin::unanswered`] answers: an empty
/// answer, or a refusal.
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
            let change = plugin.update(pod, container, deadline).await?;
            let update = change.update_of(&container.id).into_iter().collect();
            return Ok(UpdateContainerResponse { update }.encode_to_vec());
        }
        Event::StartContainer => plugin.start(pod, container, deadline).await?,
        _ => plugin.notify(event, request).await,
    }
    // The empty message answers all other events.
    Ok(Vec::new())
}
