//! [`Guard`]: another process, which clears away what a bench leaves when it dies in a way that it can't do anything about.
//!
//! It waits for the end of a pipe that only the bench holds; the kernel closes that whatever the bench dies of.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use crate::host::cgroup::Cgroups;
use crate::local::node;

/// The process that clears away. Dropping it lets it do so and waits for its end.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
}

// === impl Guard ===

impl Guard {
    /// Starts the process.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn start(cgroup_dir: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("can't find this program's own file")?;
        let mut command = Command::new(program);
        command
            .args(["train", "sweep", "--cgroup-root"])
            .arg(cgroup_dir);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // What interrupts the bench from a terminal is not meant for it.
        command.process_group(0);
        let child = command
            .spawn()
            .context("can't start the process that clears away after a kill")?;
        Ok(Self { child })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has nothing to say that anybody could act on: what it could not remove, the next bench finds.
        let _ = self.child.wait();
    }
}

/// Waits until standard input ends, then removes what a bench has left.
///
/// # Errors
/// No cgroup hierarchy, or the kernel refuses.
pub fn sweep(cgroup_dir: &Path) -> anyhow::Result<()> {
    let mut nothing = Vec::new();
    // An end by an error is an end, too.
    let _ = std::io::stdin().read_to_end(&mut nothing);
    node::clear(&Cgroups::detect(cgroup_dir)?)
}
