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
//! Everything here works on from what it has when the API is away: [`pods`] never says that a pod is gone unless the server
//! said so, and nothing is ever taken off a node because it could not be read. What to write is decided by functions of
//! values ([`node::plan`], [`events::Book`], [`pods::Known`]); the rest sends and receives.
//!
//! [`Api`] is this module's own layer over `kube::Client`, which keeps credentials, TLS and connections. It is there for
//! what the client does not give: `Retry-After` also where the body is no Status, a deadline for every request, a bound on
//! every answer, and counters.

mod backoff;
mod call;
pub mod claims;
pub mod connect;
mod counters;
pub mod events;
pub mod node;
pub mod peers;
pub mod pods;
pub mod reclaim;
pub mod scenes;

pub use backoff::{Backoff, Dice};
pub use call::{Api, Failure};
pub(crate) use call::{short, words};
pub(crate) use connect::AGENT;
pub use counters::{Call, Counters, ErrorKind};

/// The field manager of everything that is applied, and the component that reports Events.
pub const MANAGER: &str = "pinfold";
