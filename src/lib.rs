//! Pinfold: a node agent for Kubernetes clusters that train models on CPUs.
//!
//! It gives each container of a training pod CPUs of its own, sizes its thread pools to them before it starts, and
//! measures whether both hold. This page is the architecture; the README is for operators.
//!
//! # The one idea
//!
//! **The kernel keeps the state.** Who owns which CPUs is never in a file of ours. It is in the cgroups: in their partitions
//! and CPU sets, and in a mark, an extended attribute that lives and dies with its cgroup ([`pin::AssignmentRecord`]). A restart reads the
//! cgroups and knows everything; there is no checkpoint to corrupt, no drain to change a policy, no file to delete.
//!
//! # The modules, in the order to read them
//!
//! A module imports only the modules in its row; `tests/modules.rs` checks the imports and this table.
//!
//! | module | its one job | imports | never |
//! |---|---|---|---|
//! | [`text`] | documents out of YAML or JSON text, within limits; drawings into SVG | — | I/O, what they mean |
//! | [`cpu`] | CPU sets, a machine's topology as values, placement | — | I/O, clock, randomness, Kubernetes |
//! | [`pod`] | what a pod is and is owed: QoS, role, entitlement, thread environment | `text` `cpu` | I/O, current assignments |
//! | [`scene`] | plans of scenes and cases, their slots, labels, what is wrong with them; training clusters; reports | `text` | I/O |
//! | [`host`] | the only door to /proc, /sys, cgroupfs, resctrl, perf, netlink; every path under a root given to it | `cpu` | knowing pods or policy |
//! | [`pin`] | ledger; observed and desired to steps; applying them; drift; quiet and foreign time | `cpu` `pod` `host` | choosing CPUs itself, Kubernetes |
//! | [`nri`] | the container runtimes' plugin protocol: events in, answers out | `cpu` `pod` | deciding, writing files |
//! | [`cluster`] | the Kubernetes API: this node's pods in; labels, claims, events out; reclaiming; what its Prometheus has | `text` `pod` `scene` | /sys, cgroups |
//! | [`metrics`] | families, collectors, exposition | `cpu` `pod` `host` `pin` (read) | changing anything but what it counts with |
//! | [`agent`] | configuration, the one owner of the state, HTTP, start and stop | all above | an algorithm |
//! | [`local`] | a node without a cluster: real cgroups and processes for the demo and the bench | all above | being needed by the agent |
//! | [`cli`] | arguments, subcommands, what a person sees | all above | logic |
//!
//! The pure modules (`text`, `cpu`, `pod`, `scene`) hold every decision; the rest fetches, plans and applies. A plan is a value that can be
//! compared and printed, and applying one twice is the same as once: the second plan is empty.
//!
//! # One pod's way through the house
//!
//! 1. A runtime asks before it creates a container ([`nri`]), the API server tells of a pod ([`cluster::pods`]), or a manifest
//!    appears in the folder ([`pod::parse`]). Each becomes an event for the one owner task in [`agent`].
//! 2. [`pod::entitlement()`] says *shared* or *exclusive n*, with a reason that a person can read.
//! 3. [`pin::decide::decide`] keeps what runs, may move what allows it, and asks [`cpu::Placer`] for the rest; [`pod::thread_environment`] computes
//!    the variables from the CPUs.
//! 4. The answer goes back to the runtime: CPUs, memory nodes, variables that the container does not have.
//! 5. The runtime asks once more before the program begins, or the container's cgroup is seen ([`host::watch`]). [`pin::plan`] turns observed and desired into steps, ordered so that
//!    no two containers own a CPU at any moment; [`pin::apply()`] carries them out and reads back what is in force.
//! 6. The owner publishes a [`pin::Snapshot`]; [`metrics`] and `/status` read it, and Events on pods follow from it.
//! 7. Every 10 s, and whenever the kernel tells of a broken partition, the kernel is compared with the ledger ([`pin::drift()`]) and repaired. A quiet node makes empty plans.
//! 8. SIGTERM: every assignment stays as it is. `pinfold release` hands them back.
//!
//! # Invariants
//!
//! - No CPU has two owners at any moment, and no container is ever without a CPU; reserved CPUs are never given.
//! - What runs is never moved by a restart, an upgrade, or a pod that comes or goes.
//! - Missing data (a manifest that can't be read, a pod nobody told us of) takes nothing away from anybody.
//! - What can't be explained is reported and left alone.
//! - A value that a user set in a container's environment wins, wherever it comes from.

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod cpu;
pub mod host;
pub mod local;
pub mod metrics;
pub mod nri;
pub mod pin;
pub mod pod;
pub mod scene;
pub mod text;
