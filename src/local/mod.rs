//! A node without a cluster: real cgroups and real processes, for `demo` and `bench`.
//!
//! [`train`] is what runs in the containers: a small parameter-server job that computes, blocks and talks like the
//! frameworks it stands for, so that what pinning and sizing do to it can be measured and not only claimed.

pub mod train;
