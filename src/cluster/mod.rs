//! The Kubernetes API: reads this node's pods, and writes labels, claims and Events.
//!
//! ```text
//!  connect ── Client ──> Api ──┬─> pods::follow ── PodsEvent ──> (the agent's reconciler)
//!                              ├─> scenes   this node's slot, by the ScenePlans: labels and claim
//!                              ├─> node_reader  CPUs for pods, and the startup taint
//!                              ├─> node     labels by server-side apply, on difference only
//!                              ├─> claims   one create-only Lease per slot
//!                              ├─> events   a queue that never blocks, Events with counts
//!                              ├─> review   whether a caller of the agent may read a path
//!                              ├─> agents   the agents' pods, and port-forwards to agents (not used by the agent)
//!                              ├─> patient  requests that outlast a restart of the server (not used by the agent)
//!                              ├─> reclaim  parameter servers whose job has ended (not used by the agent)
//!                              └─> plan_status  the status of the ScenePlans (not used by the agent)
//! ```
//!
//! While the API server is unreachable, the last known state stays in force. [`pods`] reports a pod as gone only if the
//! server reported the deletion, and a failed read removes nothing from a node. Pure functions decide what to write
//! ([`own_node::plan`], [`events::Book`], [`pods::PodCache`]); the remaining code sends and receives.
//!
//! [`Api`] is a layer over `kube::Client`, which keeps credentials, TLS and connections. It adds
//! `Retry-After` for answers without a Status, a deadline for each request, a size bound for each
//! answer, and counters. `list` reads every collection page by page, `informer` follows a
//! collection with a list and a watch, and `retry` repeats single requests.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

#[cfg(feature = "portforward")]
pub mod agents;
mod backoff;
mod call;
pub mod claims;
pub mod connect;
mod counters;
pub mod events;
mod informer;
mod list;
pub mod node_reader;
#[cfg(feature = "reclaim")]
mod objects;
pub mod own_node;
#[cfg(feature = "lab")]
pub mod patient;
pub mod peers;
#[cfg(feature = "reclaim")]
pub mod plan_status;
pub mod pods;
#[cfg(feature = "reclaim")]
pub mod reclaim;
mod retry;
pub mod review;
pub mod scenes;
mod watch;

pub use backoff::{Backoff, Jitter};
pub use call::{Api, Failure};
#[cfg(feature = "experiments")]
pub(crate) use call::{short, words};
#[cfg(feature = "experiments")]
pub(crate) use connect::AGENT;
pub use counters::{ApiCounters, Call, ErrorKind};

/// The field manager of all writes, and the value of the label `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "pinfold";
