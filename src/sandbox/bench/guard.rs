//! [`CleanupGuard`]: a process that removes the remains of a bench that was killed.
//!
//! The process waits for the end of a pipe. Only the bench holds the other end, so the kernel
//! closes the pipe when the bench ends, however that happens.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use crate::host::cgroup::Cgroups;
use crate::sandbox::local_node;

/// The cleanup process. A drop starts the cleanup and waits until the process ends.
#[derive(Debug)]
pub(super) struct CleanupGuard {
    child: Child,
}

// === impl CleanupGuard ===

impl CleanupGuard {
    /// Starts the process.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn start(cgroup_dir: &Path) -> anyhow::Result<Self> {
        let program =
            std::env::current_exe().context("can't find the file of the pinfold program")?;
        let mut command = Command::new(program);
        command
            .args(["train", "sweep", "--cgroup-dir"])
            .arg(cgroup_dir);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // An interrupt from the terminal must not end the cleanup process.
        command.process_group(0);
        let child = command
            .spawn()
            .context("can't start the process that removes the bench's remains after a kill")?;
        Ok(Self { child })
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The cleanup process prints nothing, because nobody could act on an error. The next bench
        // removes what remains.
        let _ = self.child.wait();
    }
}

/// Waits until standard input ends, then removes the remains of a bench.
///
/// # Errors
/// No cgroup hierarchy, or the kernel refuses.
pub fn sweep(cgroup_dir: &Path) -> anyhow::Result<()> {
    let mut nothing = Vec::new();
    // A read error counts as the end of the input.
    let _ = std::io::stdin().read_to_end(&mut nothing);
    local_node::clear(&Cgroups::detect(cgroup_dir)?)
}
