//! The Kubernetes API: this node's pods in; labels, claims, events out.
//!
//! ```text
//!  connect ── Client ──> Api ──┬─> pods::follow ── PodsEvent ──> (the agent's owner)
//!                              ├─> scenes   this node's place by the plans: which labels, which claim
//!                              ├─> node     labels by server-side apply, on difference only
//!                              ├─> claims   one create-only Lease per slot
//!                              ├─> events   a queue that never blocks, Events with counts
//!                              └─> reclaim  parameter servers whose job has ended (no agent does this)
//!
//!  prometheus ── what a cluster's Prometheus has of its training jobs, for reports (no agent does this either)
//! ```
//!
//! While the API server is away, the last known state stays in force. [`pods`] reports a pod as gone only if the server
//! said so, and a failed read takes nothing off a node. Pure functions decide what to write ([`node::plan`],
//! [`events::Book`], [`pods::PodCache`]); the remaining code sends and receives.
//!
//! [`Api`] is a layer over `kube::Client`, which keeps credentials, TLS and connections. The layer adds `Retry-After` for
//! answers without a Status, a deadline for each request, a size bound for each answer, and counters. `list` reads every
//! collection page by page, and `retry` repeats single requests.

mod backoff;
mod call;
pub mod claims;
pub mod connect;
mod counters;
pub mod events;
mod list;
pub mod node;
pub mod peers;
pub mod pods;
pub mod reclaim;
mod retry;
pub mod scenes;

pub use backoff::{Backoff, Jitter};
pub use call::{Api, Failure};
pub(crate) use call::{short, words};
pub(crate) use connect::AGENT;
pub use counters::{Call, Counters, ErrorKind};

/// The field manager of everything that is applied, and the component that reports Events.
pub const MANAGER: &str = "pinfold";
