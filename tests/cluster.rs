//! The Kubernetes API: the fake server held to recordings of a real one, and the module `cluster` against the fake.
//!
//! | what holds | tests |
//! |---|---|
//! | The fake API server answers as recordings of a real one. | `replay`, `admission` |
//! | The follower of a node's pods survives every fault of the server and the connection. | `pods`, `connect` |
//! | A slot has one holder, whatever happens to agents and server. | `claims`, `simulation`, `scenes` |
//! | Labels and taints of the Node follow the plan, from install to uninstall. | `node`, `install_to_uninstall` |
//! | The startup taint goes when the agent is in step, and not before. | `node_reader` |
//! | A plan's status tells what the cluster does. | `plan_status` |
//! | A parameter server is deleted only after its workers or its chief have succeeded. | `reclaim`, `reclaim_controller` |
//! | Events are counted, limited, and block nobody. | `events` |
//! | Reviews of callers stay for a bounded time. | `review` |
//! | Peers and agents are found with the rights that the agent has in any case. | `peers`, `agents`, `forward` |
//! | An experiment runs, is interrupted, killed, resumed and aborted, and leaves nothing behind. | `scene_run` |
//! | Commands that need a cluster answer, and name the remedy if they can't. | `scene_commands` |

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
#[path = "cluster/events.rs"]
mod events;
#[cfg(feature = "portforward")]
#[path = "cluster/forward.rs"]
mod forward;
#[path = "cluster/install_to_uninstall.rs"]
mod install_to_uninstall;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/node_reader.rs"]
mod node_reader;
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
#[path = "cluster/scene_commands.rs"]
mod scene_commands;
#[cfg(feature = "lab")]
#[path = "cluster/scene_run.rs"]
mod scene_run;
#[path = "cluster/scenes.rs"]
mod scenes;
#[path = "cluster/simulation.rs"]
mod simulation;
