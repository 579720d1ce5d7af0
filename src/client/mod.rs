//! A client of a running agent: the agent's HTTP API, and the model behind `top`.
//!
//! `Endpoint` requests `/status` and `/metrics`. `container_report` puts the status of a container
//! into words. For `top`, each `Response` goes to the `MonitoredNode` of the agent, which offers
//! the pods as `PodRow`s.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

pub(crate) mod container_report;
mod container_status;
mod endpoint;
#[cfg(feature = "top")]
mod fetch;
pub(crate) mod full_status;
#[cfg(feature = "top")]
mod monitored_node;
#[cfg(feature = "top")]
mod row;
#[cfg(feature = "top")]
mod scrape;
#[cfg(feature = "top")]
mod status;
#[cfg(feature = "top")]
pub(crate) mod targets;

#[cfg(feature = "top")]
pub(crate) use container_status::SafeText;
pub(crate) use endpoint::Endpoint;
#[cfg(feature = "portforward")]
pub(crate) use endpoint::{Opening, Route, Stream};
#[cfg(feature = "top")]
pub(crate) use fetch::{MAX_REQUESTS, fetch};
#[cfg(feature = "top")]
pub(crate) use monitored_node::{MonitoredNode, NO_LETTER, Response};
#[cfg(feature = "top")]
pub(crate) use row::{PodKey, PodRow, RowFigures};
#[cfg(all(test, feature = "top"))]
pub(crate) use scrape::{ScrapeValues, family_names};
#[cfg(feature = "top")]
pub(crate) use status::AgentStatus;
