//! `pinfold top --once`: two rounds of requests, then a frame as text, or the same for programs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::document::document;
use super::state::TopState;
use crate::cli::OutputFormat;
use crate::client::targets::Target;
use crate::client::{MAX_REQUESTS, MonitoredNode, fetch};

/// Prints a frame of this width, or a document for programs. Rates need two rounds, `interval` apart.
pub(super) async fn print(
    mut state: TopState,
    targets: &[Target],
    interval: Duration,
    (form, width): (OutputFormat, u16),
) -> anyhow::Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    for round in 0..2 {
        if round > 0 {
            tokio::time::sleep(interval).await;
        }
        request_all(&mut state, targets, &permits).await?;
        if state.nodes.iter().all(|node| node.status().is_none()) {
            anyhow::bail!(
                "{}; start the agent (pinfold run), or give the address of an agent with --node",
                errors(&state.nodes, targets)
            );
        }
    }
    state.arrange();
    if form != OutputFormat::Text {
        return form.print(&document(&state));
    }
    let frame = state.picture().as_text(width.into());
    crate::cli::emit(
        frame
            .iter()
            .map(|line| line.to_string().trim_end().to_owned()),
    )
}

/// Sends a request to each node. A node that failed in the first round gets no second request.
async fn request_all(
    state: &mut TopState,
    targets: &[Target],
    permits: &Arc<Semaphore>,
) -> anyhow::Result<()> {
    let started = state.started;
    let mut requests = JoinSet::new();
    for (index, target) in targets.iter().enumerate() {
        let node = state.nodes.get(index);
        if node.is_some_and(|node| node.error().is_some()) {
            continue;
        }
        let (endpoint, permits) = (target.endpoint.clone(), Arc::clone(permits));
        requests.spawn(async move {
            let response = fetch(&endpoint, &permits).await;
            (index, started.elapsed(), response)
        });
    }
    while let Some(response) = requests.join_next().await {
        state.record(response.context("a request to a node ended unexpectedly")?);
    }
    Ok(())
}

/// The errors of all nodes, with the agents' addresses.
fn errors(nodes: &[MonitoredNode], targets: &[Target]) -> String {
    let errors = nodes.iter().zip(targets).map(|(node, target)| {
        let error = node.error().map_or("no response", |(error, _)| error);
        format!("{}: {error}", target.endpoint)
    });
    errors.collect::<Vec<_>>().join("; ")
}
