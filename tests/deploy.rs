//! What is shipped for a cluster and for systemd: manifests, the chart, admission policies, the image, the unit.
//!
//! What needs a program that Debian's plain installation lacks (kubectl, helm, buildah, systemd-analyze) or the real kernel
//! is left to `tests/run`, and named.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/evaluate.rs"]
mod evaluate;
#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the tests of the agent use more of it")]
#[path = "support/kernel.rs"]
mod kernel;
#[path = "support/kubectl.rs"]
mod kubectl;
#[path = "support/strict.rs"]
mod strict;
#[path = "support/yaml.rs"]
mod yaml;

#[path = "deploy/agent.rs"]
mod agent;
#[path = "deploy/chart.rs"]
mod chart;
#[path = "deploy/claims.rs"]
mod claims;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/threads.rs"]
mod threads;
#[path = "deploy/tools.rs"]
mod tools;
#[path = "deploy/unit.rs"]
mod unit;
