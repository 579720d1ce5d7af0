//! `pinfold-runtime`: the OCI runtime of the RuntimeClass `pinfold-required`. It runs the node's real OCI runtime for
//! everything, and before a container starts, it checks that the container has the CPUs that Pinfold assigned to it.
//!
//! The agent makes the same check when the container runtime asks it, but a runtime goes on without an agent that is
//! absent or doesn't answer. This program sits behind the runtime, where nothing is skipped. It therefore asks nobody, waits
//! for nothing, and takes missing evidence as a reason to refuse.
//!
//! | file | task |
//! |---|---|
//! | `arguments` | which call starts a container, and where the log is |
//! | `real` | where the node's real OCI runtime is |
//! | `container` | what the runtime says about a container, and whether it has to be checked |
//! | `cgroup` | the container's cgroup, its record and its CPUs, and the judgement |
//! | `install`, `handler` | the program and its handler on a host |
//!
//! The program uses nothing of Pinfold's library, so that it stays small and starts at once. A test compares the parts of
//! the format that both know.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod arguments;
mod cgroup;
mod container;
mod handler;
mod install;
mod log;
mod real;

use arguments::{Call, Invocation};
use container::Admission;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // No OCI runtime has commands of these names.
    if let Some(code) = install::run(&arguments) {
        return code;
    }
    let Invocation { call, log } = arguments::parse(&arguments);
    let why = match decide(&call) {
        // `exec` returns only if it failed.
        Ok(real) => {
            let error = Command::new(&real).args(&arguments).exec();
            real::cannot_run(&real, &error)
        }
        Err(why) => why,
    };
    log::refusal(&log, &why);
    ExitCode::FAILURE
}

/// The real runtime, if it may carry out the call.
///
/// # Errors
/// The reason why the container may not start, or why there is no runtime.
fn decide(call: &Call) -> Result<PathBuf, String> {
    let real = real::find()?;
    match call {
        Call::Other => {}
        Call::Start { id, globals } => check(&real, id, globals)?,
        Call::Unchecked { command } => {
            return Err(format!(
                "`{command}` starts a container at once, so its CPUs can't be checked before: use the RuntimeClass \
                 pinfold-required for the kubelet's pods only"
            ));
        }
    }
    Ok(real)
}

/// Whether a created container may start.
fn check(real: &Path, id: &OsStr, globals: &[OsString]) -> Result<(), String> {
    let id = id
        .to_str()
        .ok_or_else(|| format!("the container id {id:?} is no text"))?;
    let state = container::state(real, globals, id)?;
    // The real runtime says what is wrong with a container that can't be started.
    if state.status != "created" {
        return Ok(());
    }
    match container::admission(id, &state.annotations())? {
        Admission::Free => Ok(()),
        Admission::Checked(enforcement) => {
            let evidence = cgroup::evidence(Path::new("/proc"), state.pid, id)?;
            cgroup::judge(enforcement, &evidence)
        }
    }
}
