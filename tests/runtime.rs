//! Real container runtimes on the real kernel: two series of containerd with their runc, called as the kubelet calls
//! them.
//!
//! The tests need root, a cgroup hierarchy with cpuset, two CPUs and the files that
//! `tests/runtime/prepare` fetches. Plain `cargo test` skips them and names each; `tests/run` runs
//! them.
//!
//! | what holds | tests |
//! |---|---|
//! | A container has its CPUs and variables before its first instruction. | `pinned` |
//! | Behind `pinfold-runtime`, no container of a `required` pod starts without its CPUs, whatever happens to the agent. | `required` |
//! | The plugin library gives a real runtime's container each adjustment. | `plugin` |
//! | Without a plugin, the runtimes do what the other tests compare with. | `plain` |

// A helper that fails also fails its calling test.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/agent.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod agent;
#[path = "support/gate.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod gate;
#[path = "support/http.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod http;
#[path = "support/kernel.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod kernel;

#[path = "runtime/cri.rs"]
mod cri;
#[path = "runtime/daemon.rs"]
mod daemon;
#[path = "runtime/image.rs"]
mod image;
#[path = "runtime/leftovers.rs"]
mod leftovers;
#[path = "runtime/messages.rs"]
mod messages;
#[path = "runtime/pinned.rs"]
mod pinned;
#[path = "runtime/plain.rs"]
mod plain;
#[path = "runtime/plugin.rs"]
mod plugin;
#[path = "runtime/pods.rs"]
mod pods;
#[path = "runtime/probe.rs"]
#[allow(
    dead_code,
    reason = "the program itself is built by tests/runtime/prepare"
)]
mod probe;
#[path = "runtime/required.rs"]
mod required;
#[path = "runtime/scenarios.rs"]
mod scenarios;
#[path = "runtime/scripted.rs"]
mod scripted;
