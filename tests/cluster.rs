//! The Kubernetes API: the fake server held to recordings of a real one, and the module `cluster` against the fake.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod fakeapi;

use fakeapi::yaml as repository;

#[path = "cluster/replay.rs"]
mod replay;

#[path = "cluster/admission.rs"]
mod admission;
#[path = "cluster/agents.rs"]
mod agents;
#[path = "cluster/claims.rs"]
mod claims;
#[path = "cluster/connect.rs"]
mod connect;
#[path = "cluster/day.rs"]
mod day;
#[path = "cluster/events.rs"]
mod events;
#[cfg(feature = "portforward")]
#[path = "cluster/forward.rs"]
mod forward;
#[path = "cluster/live.rs"]
mod live;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/peers.rs"]
mod peers;
#[path = "cluster/plan_status.rs"]
mod plan_status;
#[path = "cluster/pods.rs"]
mod pods;
#[path = "cluster/reclaim.rs"]
mod reclaim;
#[path = "cluster/reclaim_controller.rs"]
mod reclaim_controller;
#[path = "cluster/reclaim_memory.rs"]
mod reclaim_memory;
#[path = "cluster/review.rs"]
mod review;
#[path = "cluster/scenes.rs"]
mod scenes;
#[path = "cluster/simulation.rs"]
mod simulation;
