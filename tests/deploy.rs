//! The files for clusters and systemd: manifests, chart, admission policies, image and unit.
//!
//! Tests that need the real kernel or a program outside Debian's plain installation (kubectl, helm,
//! buildah, systemd-analyze) run with `tests/run`. Plain `cargo test` skips them and names each.
//!
//! | what holds | tests |
//! |---|---|
//! | The manifests, the chart and the unit are valid, and have the rights that the documentation names. | `manifests`, `unit` |
//! | The chart renders what kustomize renders, and each value has an effect. | `chart`, `values` |
//! | The policies keep an agent to its own Node. | `claims` |
//! | Pods that require CPUs need the class. | `required` |
//! | The policy for thread counts computes what the agent computes. | `threads` |
//! | The agent works with exactly the capabilities that it is given. | `agent` |
//! | The images contain the binaries and nothing else. | `image` |
//! | A release has all its files. | `release`, `krew` |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/evaluate.rs"]
mod evaluate;
#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the tests of the agent use the rest")]
#[path = "support/kernel.rs"]
mod kernel;
#[path = "support/kubectl.rs"]
mod kubectl;
#[path = "support/values.rs"]
mod schema;
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
#[path = "deploy/krew.rs"]
mod krew;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/release.rs"]
mod release;
#[path = "deploy/required.rs"]
mod required;
#[path = "deploy/threads.rs"]
mod threads;
#[path = "deploy/tools.rs"]
mod tools;
#[path = "deploy/unit.rs"]
mod unit;
#[path = "deploy/values.rs"]
mod values;
