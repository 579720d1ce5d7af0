//! The agent on the real kernel: real cgroups, real processes, and the program itself.
//!
//! The tests need root, a cgroup hierarchy with cpuset and two CPUs. Plain `cargo test` names each
//! of them and leaves it to `tests/run`. Every test makes a tree of pods of its own, and touches no
//! other.
//!
//! | what holds | tests |
//! |---|---|
//! | A pod that appears is pinned, in every order of events and with every naming of cgroups. | `pinning` |
//! | An assignment outlives its container, and ends with its pod or its annotation. | `assignment_end` |
//! | What the reconciler owes the runtime: records before answers, deadlines, order, refusals, shutdown. | `reconciler`, `runtime_requests` |
//! | The answer to each kind of creation is as recorded. | `create_answers` |
//! | A description that comes late, or not at all, takes no CPUs away. | `late` |
//! | A foreign write is counted once and repaired. | `drift` |
//! | A refused write waits, and is tried again only after a change or by the timer. | `refused` |
//! | What can't be read or written is named, and nothing is lost by it. | `records` |
//! | On cgroup v2, the kernel keeps exclusive CPUs against everybody. | `partition` |
//! | On cgroup v1, nested cgroups follow their container. | `nested` |
//! | CPUs that go offline are not assigned, and return to every cgroup. | `hotplug`, `nested` |
//! | The agent uses only the CPUs that the pods' top cgroup offers. | `offer` |
//! | Threaded cgroups of a container do no harm. | `threaded` |
//! | A restart, a kill or an upgrade moves nothing; months of events in minutes. | `restart`, `endurance`, `churn` |
//! | `pinfold release` hands everything back. | `release` |
//! | Beside a kubelet that assigns CPUs itself, the agent keeps these CPUs, or only observes without partitions. | `beside_kubelet`, `partition::kubelet` |
//! | Pods, labels and peers come from the API server, also through its failures. | `api`, `scenes`, `peers` |
//! | A new node takes pods when its agent is in step. | `startup_taint` |
//! | `/status`, `/metrics` and the probes serve whom they should, and end as they should. | `access`, `serving` |
//! | Metrics of CPUs, threads and switches agree with other measurements. | `counters`, `switches`, `tasks` |
//! | Real frameworks start with the thread counts that Pinfold gives. | `frameworks` |
//! | An agent at rest costs nothing, and a full node fits into its memory. | `cost`, `full_node` |

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
#[path = "agent/api.rs"]
mod api;
#[path = "agent/assignment_end.rs"]
mod assignment_end;
#[path = "agent/beside_kubelet.rs"]
mod beside_kubelet;
#[path = "agent/churn.rs"]
mod churn;
#[path = "agent/cost.rs"]
mod cost;
#[path = "agent/counters.rs"]
mod counters;
#[path = "agent/create_answers.rs"]
mod create_answers;
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
#[path = "agent/live_files.rs"]
mod live_files;
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
#[path = "agent/reconciler.rs"]
mod reconciler;
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
#[path = "agent/startup_taint.rs"]
mod startup_taint;
#[path = "agent/switches.rs"]
mod switches;
#[path = "agent/tasks.rs"]
mod tasks;
#[path = "agent/threaded.rs"]
mod threaded;
