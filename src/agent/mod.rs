//! Configuration, the one owner of the state, HTTP, start and stop.
//!
//! ```text
//!  manifests ──inotify──> folder ─┐
//!  the API ──────watch──> cluster ┤
//!  cgroups ────inotify──> trees ──┼── Event ──> owner ── Snapshot ──> HTTP (/metrics, /status, /readyz)
//!  a runtime ──────NRI──> runtime ┤
//!  every 10 s ────────────────────┘
//! ```
//!
//! All that changes is changed by one task, the owner; others send it events and read what it publishes.

pub mod cluster;
pub mod config;
mod event;
mod folder;
mod gate;
mod given_up;
mod heartbeat;
mod history;
mod http;
mod identity;
mod isolation;
mod node;
mod owner;
mod promises;
mod question;
mod run;
mod runtime;
mod service;
mod tasks;
mod told;

pub use event::{Admission, Event, RuntimeNews, RuntimePod, Source};
pub use folder::read_pods;
pub use node::{Node, environment, reserved};
pub use run::{Agent, lock, run};
