//! Tests of the module `nri` with recorded traffic of containerd, and with a runtime that breaks the protocol.
//!
//! `tests/data/nri` has recordings of a few containers' lives: the messages from containerd to a plugin, the plugin's
//! answers (written in Go with the protocol's official library), and the plugin's log.
//!
//! | what holds | tests |
//! |---|---|
//! | Every message of a real containerd is understood and answered. | `replay`, `pods` |
//! | A runtime that breaks the protocol, and a plugin that is slow, do no harm. | `scenarios` |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/repository.rs"]
mod repository;
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
