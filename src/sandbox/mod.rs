//! A node without a cluster: real cgroups and real processes, for `demo` and `bench`.
//!
//! [`demo`] runs the pods of [`job`]. A local node does the work of a kubelet and a container
//! runtime, and the real agent watches it.
//!
//! [`mod@bench`] runs the same job, or any command, in four ways on a local node, and compares
//! them.
//!
//! Both read the job's [`steps`] from the lines of its processes. [`neighbors`] are the other pods
//! of the node. [`interference`] says how much programs outside the pods used the exclusive CPUs.
//!
//! [`train`] is the program in the containers: a small parameter-server job that computes, blocks
//! and communicates like real frameworks, and so makes the effects of pinning and sizing
//! measurable.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "demo")]
pub mod demo;
pub mod interference;
pub mod job;
mod local_node;
pub mod neighbors;
mod sample;
pub mod steps;
pub mod train;
