//! The cgroup namespace of this process.
//!
//! On cgroup v2 a container has a cgroup namespace of its own. If systemd mounts the hierarchy with
//! `nsdelegate`, a process can't write to the cgroup of its container, even if the host's hierarchy
//! is mounted in the container. The agent could then not be moved off the CPUs that it gives away.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

/// Moves this thread, and all threads that it starts later, into the cgroup namespace of the first
/// process (PID 1) below `root`. Returns whether the thread was in another namespace. Does nothing
/// if the namespace of one of the two can't be read.
///
/// # Errors
/// The kernel refuses because `CAP_SYS_ADMIN` is missing.
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
