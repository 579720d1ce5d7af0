//! The agent on the real kernel: real cgroups, real processes, and the program itself.
//!
//! The tests need root, a cgroup hierarchy with cpuset and two CPUs. Plain `cargo test` leaves the tests to `tests/run` and
//! names each. Every test makes a separate tree of pods and touches no further tree.

// A helper function that cannot do its work fails the calling test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/agent.rs"]
mod agent;
#[path = "support/events.rs"]
mod events;
mod fakeapi;

use fakeapi::yaml as repository;
#[path = "support/gate.rs"]
mod gate;
#[path = "support/http.rs"]
mod http;
#[path = "support/kernel.rs"]
mod kernel;
#[path = "support/kubelet.rs"]
mod kubelet;

#[path = "support/systemd.rs"]
mod systemd;

#[path = "support/nri.rs"]
#[allow(dead_code, reason = "shared with tests of the protocol")]
mod runtime;

#[path = "agent/access.rs"]
mod access;
#[path = "agent/answers.rs"]
mod answers;
#[path = "agent/api.rs"]
mod api;
#[path = "agent/beside_kubelet.rs"]
mod beside_kubelet;
#[path = "agent/churn.rs"]
mod churn;
#[path = "agent/cost.rs"]
mod cost;
#[path = "agent/counters.rs"]
mod counters;
#[path = "agent/drift.rs"]
mod drift;
#[path = "agent/endurance.rs"]
mod endurance;
#[path = "agent/frameworks.rs"]
mod frameworks;
#[path = "agent/full_node.rs"]
mod full_node;
#[path = "agent/hotplug.rs"]
mod hotplug;
#[path = "agent/late.rs"]
mod late;
#[path = "agent/life.rs"]
mod life;
#[path = "agent/nested.rs"]
mod nested;
#[path = "agent/offer.rs"]
mod offer;
#[path = "agent/partition/mod.rs"]
mod partition;
#[path = "agent/peers.rs"]
mod peers;
#[path = "agent/pinning.rs"]
mod pinning;
#[path = "agent/preserved.rs"]
mod preserved;
#[path = "agent/records.rs"]
mod records;
#[path = "agent/refused.rs"]
mod refused;
#[path = "agent/release.rs"]
mod release;
#[path = "agent/restart.rs"]
mod restart;
#[path = "agent/runtime_requests.rs"]
mod runtime_requests;
#[path = "agent/scenes.rs"]
mod scenes;
#[path = "agent/serving.rs"]
mod serving;
#[path = "agent/switches.rs"]
mod switches;
#[path = "agent/tasks.rs"]
mod tasks;
#[path = "agent/threaded.rs"]
mod threaded;
