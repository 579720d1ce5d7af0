//! Pinfold: a node agent for Kubernetes clusters that train models on CPUs.
//!
//! The agent gives each container of a Guaranteed training pod exclusive CPUs, sets the thread
//! counts in its environment before it starts, and measures whether both hold. This page describes
//! the architecture; operators find what they need in `docs/`.
//!
//! # The central decision: the kernel is the source of truth
//!
//! Pinfold has no state file. Which container owns which CPUs is stored in the cgroups: in
//! partitions and CPU sets, and in the assignment record, an extended attribute of the cgroup
//! ([`pin::AssignmentRecord`]) that the kernel removes together with the cgroup. After a restart,
//! the agent reads the cgroups and knows the state again. So no checkpoint can become corrupt, and
//! a change of policy needs no drain.
//!
//! # Four products in one binary
//!
//! | product | its own modules | commands |
//! |---|---|---|
//! | the node agent | [`agent`], [`nri`], [`pin`], [`metrics`], most of [`cluster`] and [`host`] | `run`, `release`, `config` |
//! | scenes and the tools around them | [`scene`], [`experiment`], [`promql`], `cluster::reclaim`, `cluster::claims` | `scene …` |
//! | demo and bench, on one machine without a cluster | [`sandbox`] | `demo`, `bench` |
//! | the screens, for people who look | [`client`] | `top`, `status`, `explain`, `plan`, `place`, `topology`, `doctor` |
//!
//! All four decide with the same [`cpu`], [`pod`] and [`pin`], so what `plan` shows, what the demo does and what the agent does can't
//! differ. [`text`] and [`cli`] serve all of them.
//!
//! A small second program, `src/bin/pinfold-runtime`, runs in front of a node's OCI runtime and uses none of these modules.
//!
//! # The modules, in the order to read them
//!
//! A module imports only the modules in its row; `tests/modules.rs` checks the imports and this table.
//!
//! | module | responsibility | may import | must not |
//! |---|---|---|---|
//! | [`text`] | YAML and JSON documents within limits; durations, numbers with units, the text format of metrics; drawings as SVG | — | do I/O, know what a document means |
//! | [`cpu`] | CPU sets, a machine's topology as values, placement | — | do I/O, read a clock, use randomness, know Kubernetes |
//! | [`pod`] | QoS, role, entitlement, thread environment | `text` `cpu` | do I/O, know current assignments |
//! | [`scene`] | plans of scenes and cases, slots, labels, rules of reclaim: the part that runs in the cluster | `text` | do I/O |
//! | [`experiment`] | checks of plans, import, training clusters, simulation, reports: tools for people around scenes | `text` `pod` `scene` | do I/O, be used by the agent |
//! | [`host`] | the only access to /proc, /sys, cgroupfs, resctrl, perf, netlink, BPF; each path below a given root | `cpu` | know pods or policy |
//! | [`pin`] | ledger; observed and desired state; plans and steps; drift; CPU isolation; interference | `cpu` `pod` `host` | choose CPUs other than through [`cpu::Placer`], know Kubernetes |
//! | [`nri`] | the plugin protocol of the container runtimes | `cpu` `pod` | decide, write files |
//! | [`cluster`] | the Kubernetes API: pods, labels, claims, Events, reclaim | `text` `pod` `scene` | touch /sys or cgroups |
//! | [`metrics`] | families, collectors, exposition | `cpu` `pod` `host` `pin` (read) | change what it measures |
//! | [`promql`] | queries to a Prometheus, for reports | `experiment` `cluster` | be used by the agent |
//! | [`agent`] | configuration, schedule, reconciler, runtime requests, HTTP, lifecycle | all above but `experiment` `promql` | decide placement, entitlement or labels |
//! | [`client`] | talks to a running agent: its HTTP API, the model behind `top` | `text` `cpu` `pod` | be needed by the agent |
//! | [`sandbox`] | real cgroups and processes without a cluster, for demo and bench | all above | be needed by the agent |
//! | [`lab`] | carries out experiments on a cluster: `pinfold scene run` | `text` `pod` `scene` `experiment` `cluster` `client` `promql` | be used by the agent |
//! | [`cli`] | arguments, subcommands, output | all above | contain logic |
//!
//! Cargo features, all on by default, leave parts out: `experiments` has [`experiment`], [`promql`] and `pinfold scene`;
//! `reclaim` has `pinfold scene reclaim`; `demo` and `bench` have their commands and `sandbox`, which has [`sandbox`] and
//! `experiments`; `top` has `pinfold top`;
//! `portforward` has `pinfold status` and port-forwards to the agents of a cluster; `man` has `pinfold man`. The agent's image is
//! built without features.
//!
//! Every decision is made in the pure modules (`text`, `cpu`, `pod`, `scene`, `experiment`) and in
//! the pure half of `pin`. The others fetch, plan and apply. A plan is a value that can be compared
//! and printed, and one that was applied leaves nothing for the next.
//!
//! # One pod's way through the modules
//!
//! 1. The API server lists the pod ([`cluster::pods`]), a manifest appears in the folder
//!    ([`pod::parse`]), or the container runtime makes its sandbox ([`nri`]). Each source sends the
//!    change of this one pod to the reconciler in [`agent`]. When the pod is read, it is reduced to
//!    what the rules need, and recognized.
//! 2. The agent's `World` holds the pod, and a mirror of its cgroups. The runtime asks about each container before it creates it:
//!    `admit` reads the pod's cgroups again if they are dirty or no longer as in the mirror.
//! 3. [`pod::entitlement()`] says *shared* or *exclusive n*, with a reason for people. [`pin::decide::decide`] keeps existing
//!    assignments, and asks [`cpu::Placer`] for the rest. [`pod::thread_environment`] computes the thread variables.
//! 4. The pod's assignment record is written and read back. Then the runtime gets CPUs, memory nodes, and the variables that the
//!    container does not set itself.
//! 5. The runtime asks again when the cgroup exists, before the program begins: `start` reads the pod, [`pin::plan`] turns the
//!    observed and the desired state into steps, and [`pin::apply()`] carries them out and reads the effective CPUs back.
//! 6. `reconcile` follows. It reads the pods whose folders have changed ([`host::watch`]), takes the owner's CPUs from the other
//!    containers where the kernel does not do so itself, and the reconciler publishes a [`pin::Snapshot`].
//! 7. [`metrics`], `/status` and the Events on pods follow from the snapshot. Every 10 s by default, a sweep reads every pod: [`pin::drift()`]
//!    compares the kernel with the ledger, and `reconcile` repairs.
//! 8. After SIGTERM every assignment stays. `pinfold release` hands the CPUs back.
//!
//! # One world, three turns
//!
//! `agent::world::World` is all that the agent knows: the pods, the mirror of the cgroups, and the ledger, which is read from the
//! mirror. A pod is dirty when its folder has changed or a step has written there, and then it is read again. Effective CPUs can
//! change without a sign, so they are read again after each step on a partition or above the pods.
//!
//! A turn observes, decides, plans and applies. It first empties the kernel's queue of changes in the pods' trees
//! (`agent::changes`), and does so again after its own steps. `agent::turn` has three kinds. `admit` and `start` are about the pod of a runtime
//! request. They mostly read and decide about this pod alone, and then cost the same on a full node as on an empty one. If other
//! pods may have to give up CPUs or move, or if drift is found, a `reconcile` about all pods serves the request. A `reconcile`
//! that serves no request ends early as soon as one waits: between two pods that it reads, and after steps that leave a safe
//! state behind. What is done then stays, and the next turn plans anew.
//! The pure type `agent::schedule::Schedule` decides when which turn runs.
//!
//! # Invariants
//!
//! - No CPU has two owners at any moment. No container is ever without a CPU. Reserved CPUs are never assigned.
//! - Not every online CPU is available to pods: they get the CPUs that their top cgroup offers, our own partitions included, less the CPUs that
//!   other programs hold as exclusive ([`pin::Ledger::available`]).
//! - A restart, an upgrade, or another pod's arrival or departure moves no running container.
//! - Missing data (an unreadable manifest, a list that has not come) takes nothing away. A pod that the complete lists lack keeps
//!   the CPUs of the containers that exist.
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
#[cfg(feature = "lab")]
pub mod lab;
pub mod metrics;
pub mod nri;
pub mod pin;
pub mod pod;
#[cfg(feature = "experiments")]
pub mod promql;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod scene;
pub mod text;
