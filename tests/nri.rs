//! The module `nri`: against the recorded traffic of containerd, and against a runtime that does what none should.
//!
//! `tests/data/nri` holds what containerd sent a plugin over a few containers' lives, what that plugin answered (Go, the
//! protocol's own library), and what it logged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/nri.rs"]
mod runtime;

#[path = "nri/listening.rs"]
mod listening;
#[path = "nri/pods.rs"]
mod pods;
#[path = "nri/replay.rs"]
mod replay;
#[path = "nri/scenarios.rs"]
mod scenarios;
