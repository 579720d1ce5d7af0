//! A request for the status and the counters of an agent.

use tokio::sync::Semaphore;

use super::endpoint::Endpoint;
use super::monitored_node::Response;
use super::scrape::ScrapeValues;
use super::status::AgentStatus;

/// The most requests at the same time: fewer than the open files that a process may have.
pub(crate) const MAX_REQUESTS: usize = 256;

/// Requests `/status` and `/metrics` of an agent, as soon as `permits` has a free permit.
pub(crate) async fn fetch(endpoint: &Endpoint, permits: &Semaphore) -> Response {
    let _permit = permits.acquire().await;
    let request = async {
        let bodies = endpoint.get(&["/status", "/metrics"]).await?;
        let [status, metrics] = &bodies[..] else {
            anyhow::bail!("no response")
        };
        Ok((
            AgentStatus::parse(status)?,
            ScrapeValues::parse(&String::from_utf8_lossy(metrics)),
        ))
    };
    let timeout = endpoint.timeout();
    match tokio::time::timeout(timeout, request).await {
        Ok(response) => response.map_err(|error: anyhow::Error| format!("{error:#}")),
        Err(_) => Err(format!("no response within {} s", timeout.as_secs())),
    }
}
