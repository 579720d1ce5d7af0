//! Network metrics of pods on the real kernel: known traffic of real processes in real cgroups, compared with the
//! counts.
//!
//! | what holds | tests |
//! |---|---|
//! | Bytes of a pod's sockets and interfaces are those that were sent. | `sockets`, `interfaces`, `traffic` |
//! | Segments and retransmissions agree with the network's own counters. | `segments`, `tcp` |
//! | Connections agree with `ss` and /proc. | `connections` |
//! | Bytes between the pods of a job are those between their namespaces. | `peers` |
//! | The committed BPF instructions are those of the committed source. | `program` |

// A helper that fails also fails its calling test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/agent.rs"]
#[allow(dead_code, reason = "shared with tests of the whole agent")]
mod agent;
#[path = "support/gate.rs"]
mod gate;
#[path = "support/http.rs"]
#[allow(dead_code, reason = "shared with tests of the whole agent")]
mod http;
#[path = "support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests of the whole agent")]
mod kernel;

#[path = "network/connections.rs"]
mod connections;
#[path = "network/interfaces.rs"]
mod interfaces;
#[path = "network/peers.rs"]
mod peers;
#[path = "network/program.rs"]
mod program;
#[path = "support/repository.rs"]
mod repository;
#[path = "network/segments.rs"]
mod segments;
#[path = "network/sockets.rs"]
mod sockets;
#[path = "network/tcp.rs"]
mod tcp;
#[path = "network/traffic.rs"]
mod traffic;
