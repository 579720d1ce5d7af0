//! The agent: configuration, the reconciler, the HTTP server, start and shutdown.
//!
//! ```text
//!  manifests ──inotify──> folder ──┐
//!  API server ───watch──> cluster ─┼── Event ───> Reconciler ── Snapshot ──> HTTP (/metrics, /status, /readyz)
//!  runtime ────────NRI──> runtime ─┤              (one thread,
//!  cgroups ────inotify─────────────┼── Trigger ─>  the sole
//!  timer, every 10 s ──────────────┘               writer)
//! ```
//!
//! The reconciler is the sole writer of the node's state. All other tasks send it events, and read
//! the snapshots that it publishes.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod access;
mod agent_node;
pub mod allocatable;
pub mod api;
mod changes;
pub mod config;
mod event;
mod event_queue;
pub mod exporter;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod fake_kernel;
mod folder;
pub mod gate;
mod heartbeat;
mod history;
mod http;
mod identity;
mod in_step;
mod isolation_gate;
pub mod kernel;
mod known_pods;
mod kubelet;
pub mod kubelet_config;
mod kubelet_report;
mod live_files;
mod log_filter;
mod lost_cpus;
mod mirror;
pub mod node_capacity;
mod pending;
mod pending_shrinks;
mod pod_lists;
mod pod_store;
#[cfg(feature = "reclaim")]
mod probes;
mod publish;
mod reconciler;
mod release_backoff;
mod run;
mod runtime;
mod runtime_requests;
mod schedule;
mod server;
mod service;
mod tasks;
pub mod turn;
mod unguarded;
pub mod world;

pub use agent_node::{AgentNode, capacity, environment, reserved};
pub use event::{
    AgentEvent, CreateAnswer, PodKey, PodSource, PodsChange, PodsUpdate, RuntimePod, RuntimeUpdate,
};
pub use folder::read_pods;
#[cfg(feature = "reclaim")]
pub use probes::ControllerProbes;
pub use publish::isolation_problems;
pub use run::{Agent, lock, run};
