//! A node without a cluster: real cgroups and real processes, for `demo` and `bench`.
//!
//! [`demo`] is the whole: [`job`] says which pods there are, a local node does for them what a kubelet and a runtime do,
//! and the real agent is pointed at it.
//!
//! [`mod@bench`] runs that job, or any command, in four ways on the same local node, and compares.
//!
//! [`train`] is what runs in the containers: a small parameter-server job that computes, blocks and talks like the
//! frameworks it stands for, so that what pinning and sizing do to it can be measured and not only claimed.

pub mod bench;
pub mod demo;
pub mod job;
mod node;
mod sample;
pub mod train;
