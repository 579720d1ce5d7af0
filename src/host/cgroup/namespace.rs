//! The cgroup namespace that this process is in.
//!
//! A container has one of its own on cgroup v2. Where systemd mounts the hierarchy with `nsdelegate`, the kernel then keeps
//! it from writing to its own container's cgroup, although the host's hierarchy is mounted there: the agent could not be
//! moved off the CPUs that it gives away.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

/// Moves this thread, and those that it will start, into the cgroup namespace of the first process; says whether it was in
/// another. Nothing happens where there is no such process below `root`.
///
/// # Errors
/// The kernel refuses, for want of `CAP_SYS_ADMIN`.
pub fn join_host(root: &Path) -> io::Result<bool> {
    let path = |process: &str| root.join("proc").join(process).join("ns/cgroup");
    let (own, first) = (fs::read_link(path("self")), fs::read_link(path("1")));
    match (own, first) {
        (Ok(own), Ok(first)) if own != first => {}
        _ => return Ok(false),
    }
    setns(File::open(path("1"))?, CloneFlags::CLONE_NEWCGROUP)?;
    Ok(true)
}
