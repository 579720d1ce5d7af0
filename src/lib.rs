//! Pinfold: a node agent for Kubernetes clusters that train models on CPUs.
//!
//! The agent gives each container of a Guaranteed training pod exclusive CPUs, and sets the thread counts in the
//! container's environment before the start. The agent also measures whether both hold. This page describes the
//! architecture. `docs/` is for operators.
//!
//! # The central decision: the kernel is the source of truth
//!
//! Pinfold has no state file. Which container owns which CPUs is stored in the cgroups: in partitions and CPU sets, and in
//! the assignment record, an extended attribute of the cgroup ([`pin::AssignmentRecord`]). The kernel removes the record
//! with the cgroup. A restart reads the cgroups and knows the state. No checkpoint can become corrupt, and a change of
//! policy needs no drain.
//!
//! # The modules, in the order to read them
//!
//! A module imports only the modules in its row; `tests/modules.rs` checks the imports and this table.
//!
//! | module | responsibility | may import | must not |
//! |---|---|---|---|
//! | [`text`] | YAML and JSON documents within limits; drawings as SVG | — | do I/O, know what a document means |
//! | [`cpu`] | CPU sets, a machine's topology as values, placement | — | do I/O, read a clock, use randomness, know Kubernetes |
//! | [`pod`] | QoS, role, entitlement, thread environment | `text` `cpu` | do I/O, know current assignments |
//! | [`scene`] | plans of scenes and cases, slots, labels, rules of reclaim: the part that runs in the cluster | `text` | do I/O |
//! | [`experiment`] | checks of plans, import, training clusters, simulation, reports: tools for people around scenes | `text` `pod` `scene` | do I/O, be used by the agent |
//! | [`host`] | the only access to /proc, /sys, cgroupfs, resctrl, perf, netlink, BPF; each path below a given root | `cpu` | know pods or policy |
//! | [`pin`] | ledger; observed and desired state; plans and steps; drift; CPU isolation; interference | `cpu` `pod` `host` | choose CPUs other than through [`cpu::Placer`], know Kubernetes |
//! | [`nri`] | the plugin protocol of the container runtimes | `cpu` `pod` | decide, write files |
//! | [`cluster`] | the Kubernetes API: pods, labels, claims, Events, reclaim | `text` `pod` `scene` | touch /sys or cgroups |
//! | [`metrics`] | families, collectors, exposition | `cpu` `pod` `host` `pin` (read) | change what it measures |
//! | [`prometheus`] | queries to a Prometheus, for reports | `experiment` `cluster` | be used by the agent |
//! | [`agent`] | configuration, schedule, reconciler, runtime requests, HTTP, lifecycle | all above but `experiment` `prometheus` | decide placement, entitlement or labels |
//! | [`client`] | talks to a running agent: its HTTP API, the model behind `top` | `text` `cpu` `pod` | be needed by the agent |
//! | [`sandbox`] | real cgroups and processes without a cluster, for demo and bench | all above | be needed by the agent |
//! | [`cli`] | arguments, subcommands, output | all above | contain logic |
//!
//! Cargo features, all on by default, leave parts out: `experiments` has [`experiment`], [`prometheus`] and `pinfold scene`;
//! `reclaim` has `pinfold scene reclaim`; `demo` and `bench` have [`sandbox`] and their commands, `bench` with `experiments`;
//! `top` has `pinfold top`;
//! `portforward` has `pinfold status` and port-forwards to the agents of a cluster. The agent's image is built without features.
//!
//! The pure modules (`text`, `cpu`, `pod`, `scene`, `experiment`) and the pure half of `pin` hold every decision. The others fetch, plan
//! and apply. A plan is a value that can be compared and printed. A plan that was applied leaves nothing for the next plan.
//!
//! # One pod's way through the modules
//!
//! 1. The container runtime announces a container before its creation ([`nri`]). The API server reports the pod
//!    ([`cluster::pods`]), or a manifest appears in the folder ([`pod::parse`]). Each becomes an event for the reconciler in
//!    [`agent`]. The reconciler's schedule decides when a pass runs.
//! 2. [`pod::entitlement()`] says *shared* or *exclusive n*, with a reason for people.
//! 3. [`pin::decide::decide`] keeps existing assignments, may move containers that allow moves, and asks [`cpu::Placer`] for
//!    the rest. [`pod::thread_environment`] computes the thread variables from the CPUs.
//! 4. The answer to the runtime holds CPUs, memory nodes, and the variables that the container does not set itself.
//! 5. The runtime asks again before the program begins, or the container's cgroup appears ([`host::watch`]). [`pin::plan`]
//!    turns the observed and the desired state into steps. No two containers own a CPU at any moment of a plan.
//!    [`pin::apply()`] carries the steps out and reads the effective CPUs back.
//! 6. The reconciler publishes a [`pin::Snapshot`]. [`metrics`], `/status` and the Events on pods follow from the snapshot.
//! 7. Every 10 s, and after each change of a partition by the kernel, a pass compares the kernel with the ledger
//!    ([`pin::drift()`]) and repairs drift. A pass without changes has an empty plan.
//! 8. After SIGTERM every assignment stays. `pinfold release` hands the CPUs back.
//!
//! # One pipeline
//!
//! Every change goes through the same pass, `agent::pass`: observe, decide, plan, apply, verify. A node pass reads all pods, and
//! the reconciler publishes its result. A pod pass serves a runtime request: it reads the request's pod, takes the remaining
//! pods from the last observed state, and costs the same on a full node as on an empty one. If a node pass may free missing
//! CPUs, a running container would have to move, or drift is found, a node pass serves the request instead. A node pass yields
//! to waiting requests after records, and after sets of pods and of containers that give up or share CPUs. After any other
//! step, the pass runs to its end. The pure type `agent::schedule::Schedule` decides when which pass runs.
//!
//! # Invariants
//!
//! - No CPU has two owners at any moment. No container is ever without a CPU. Reserved CPUs are never assigned.
//! - Not every online CPU is available to pods: they get the CPUs that their top cgroup offers, our own partitions included, less the CPUs that
//!   other programs hold as exclusive ([`pin::Ledger::available`]).
//! - A restart, an upgrade, or another pod's arrival or departure moves no running container.
//! - Missing data (an unreadable manifest, a pod that no source reports) never takes anything away.
//! - An owner that Pinfold cannot explain is reported and left alone.
//! - A value that the user set in a container's environment always wins.

#![warn(clippy::print_stdout, clippy::print_stderr)]

/// Declares an enum whose values have names, for labels and output.
macro_rules! named {
    ($(#[$about:meta])* pub enum $enum:ident {
        $($(#[$says:meta])* $value:ident $(= $number:literal)? => $name:literal,)+
    }) => {
        $(#[$about])*
        pub enum $enum {
            $($(#[$says])* $value $(= $number)?,)+
        }

        impl $enum {
            /// All values, in their order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The value's name in labels and output.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }
    };
}

pub mod agent;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod cpu;
#[cfg(feature = "experiments")]
pub mod experiment;
pub mod host;
pub mod metrics;
pub mod nri;
pub mod pin;
pub mod pod;
#[cfg(feature = "experiments")]
pub mod prometheus;
#[cfg(any(feature = "demo", feature = "bench"))]
pub mod sandbox;
pub mod scene;
pub mod text;
