//! Starts processes as a container runtime does. A process is a member of all its cgroups and of
//! its network namespace before the first instruction of its program, and ends at the latest when
//! this program ends.
//!
//! The parent opens all files before the fork, so that between fork and exec, the child makes only
//! system calls on open descriptors.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid, pipe2, read, write};

use super::netns::Netns;

/// How often [`Process::stop_by`] checks whether the process has ended.
const STOP_POLL: Duration = Duration::from_millis(10);

/// What to start, and how.
#[derive(Debug, Clone)]
pub struct Spawn {
    pub program: PathBuf,
    /// The arguments, without the program's name.
    pub args: Vec<OsString>,
    /// The complete environment. The new process inherits nothing from this program.
    pub env: BTreeMap<String, String>,
    /// The `cgroup.procs` files to join before the program runs: one per hierarchy, and at most
    /// 253.
    pub cgroup_procs: Vec<PathBuf>,
    /// The network namespace to run in. `None` means that of this program.
    pub netns: Option<Netns>,
    /// Where standard error goes. Standard output is a pipe to this program; standard input is
    /// empty.
    pub stderr: Stderr,
}

/// Where a process's standard error goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stderr {
    /// The standard error of this program.
    #[default]
    Inherit,
    /// A file to append to, which is created if missing.
    File(PathBuf),
}

/// A started process. Dropping the handle kills it with SIGKILL and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

/// The thread that starts processes.
///
/// The kernel sends the parent-death signal when the *thread* that forked the child ends, not when
/// the parent process ends. The caller's thread may end early, so a dedicated thread, which lives
/// as long as this handle, starts all processes. They die if this program is killed. Dropping the
/// handle kills all of them, too, so keep it until all have ended.
#[derive(Debug)]
pub struct Launcher {
    jobs: Option<mpsc::Sender<SpawnJob>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a process could not be started: the failed step, with the program or the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct SpawnError {
    step: String,
    /// The kernel's error; `None` if the launcher's thread has ended.
    source: Option<io::Error>,
}

/// A process to start, and the channel for the answer.
type SpawnJob = (Spawn, mpsc::Sender<Result<Process, SpawnError>>);

// The steps of the child. It reports the step at which it failed as a byte through a pipe, because
// the error of a failed start carries only an errno.
const TIE: u8 = 1;
const NETNS: u8 = 2;
/// The first `cgroup.procs` file; for the others, the index of the file is added.
const CGROUP: u8 = 3;

// === impl SpawnError ===

impl SpawnError {
    fn at(step: String) -> impl FnOnce(io::Error) -> Self {
        |source| Self {
            step,
            source: Some(source),
        }
    }
}

// === impl Launcher ===

impl Launcher {
    /// Starts the launcher's thread.
    ///
    /// # Errors
    ///
    /// The kernel refuses to start a thread.
    pub fn new() -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<SpawnJob>();
        let thread = thread::Builder::new()
            .name("pinfold-launch".to_owned())
            .spawn(move || {
                run_anywhere();
                for (spawn, reply) in inbox {
                    // If the caller panicked, nobody receives the reply. The process is then
                    // dropped and killed.
                    let _ = reply.send(start(&spawn));
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Starts a process. Returns once it has joined all cgroups and the namespace, and the kernel
    /// has loaded the program.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]. After an error no process is left.
    pub fn spawn(&self, spawn: Spawn) -> Result<Process, SpawnError> {
        let program = spawn.program.clone();
        let (reply, answer) = mpsc::channel();
        // Without the thread, the job and its `reply` are dropped, and no answer comes.
        let _ = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send((spawn, reply)).is_ok());
        answer.recv().unwrap_or_else(|_| {
            let why = "the thread that starts processes has ended";
            Err(SpawnError {
                step: format!("start {}: {why}", program.display()),
                source: None,
            })
        })
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // A closed inbox ends the thread, and the kernel then kills the processes that it started.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Process ===

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the read end of the standard output. Returns `None` from the second call on.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The exit status, or `None` while the process runs.
    ///
    /// # Errors
    ///
    /// Error of `waitpid`, which is not expected.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end of the process, and blocks the thread meanwhile.
    ///
    /// # Errors
    ///
    /// Error of `waitpid`, which is not expected.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Sends a signal to the process, or does nothing if it has ended.
    ///
    /// # Errors
    ///
    /// The kernel refuses the signal, for example for lack of a privilege.
    pub fn kill(&mut self, signal: Signal) -> io::Result<()> {
        // After `wait`, the kernel may give the process id to a new process.
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).map_err(io::Error::from)
    }

    /// Sends SIGTERM, waits until `deadline` at most, and then sends SIGKILL. Blocks the thread.
    /// Callers can stop many processes with a common deadline.
    ///
    /// # Errors
    ///
    /// The kernel refuses a signal, for example for lack of a privilege.
    pub fn stop_by(&mut self, deadline: Instant) -> io::Result<ExitStatus> {
        self.kill(Signal::SIGTERM)?;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(STOP_POLL);
        }
        self.kill(Signal::SIGKILL)?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A drop cannot report errors. Both calls do nothing if the process has already been waited
        // for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets the thread, and all processes that it starts, run on every CPU of their cgroup. Otherwise a
/// CPU mask set at the start of this program, for example by taskset, would restrict them inside
/// their cgroups.
fn run_anywhere() {
    let mut all = nix::sched::CpuSet::new();
    for cpu in 0..nix::sched::CpuSet::count() {
        // Never fails: the set has room for `count()` CPUs.
        let _ = all.set(cpu);
    }
    // The kernel refuses only if the cgroup allows no CPU at all, and then no process could run
    // there anyway.
    let _ = nix::sched::sched_setaffinity(Pid::from_raw(0), &all);
}

/// Starts a process from the calling thread. When this thread ends, so does the process.
fn start(spawn: &Spawn) -> Result<Process, SpawnError> {
    let program = spawn.program.display();
    let mut procs_files = Vec::with_capacity(spawn.cgroup_procs.len());
    for path in &spawn.cgroup_procs {
        // The file is neither created nor truncated: if it is missing, so is the cgroup.
        let file = OpenOptions::new().write(true).open(path);
        procs_files.push(file.map_err(SpawnError::at(format!(
            "open {}: the cgroup must exist and be writable, which needs root",
            path.display()
        )))?);
    }
    let started = || SpawnError::at(format!("start {program}"));
    let (report, child_report) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .map_err(io::Error::from)
        .map_err(started())?;

    let mut command = Command::new(&spawn.program);
    command.args(&spawn.args).env_clear().envs(&spawn.env);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr(spawn)?);
    let (parent, netns) = (getpid(), spawn.netns.clone());
    let join = move || join_all(parent, netns.as_ref(), &procs_files, &child_report);
    // SAFETY: `join` runs in the child between fork and exec, where only async-signal-safe calls
    // are sound. `join` makes prctl, getppid, setns and write calls on descriptors opened above,
    // allocates nothing, takes no lock, and returns plain errnos as errors.
    unsafe { command.pre_exec(join) };

    command
        .spawn()
        .map(|child| Process { child })
        .map_err(|source| {
            let mut at = [0_u8];
            match read(&report, &mut at) {
                Ok(1) => SpawnError::at(step(spawn, at[0]))(source),
                // The child reported no step: the fork or the exec failed.
                _ => started()(source),
            }
        })
}

/// The child's steps between fork and exec. If one fails, its number is written to `report`.
fn join_all(
    parent: Pid,
    netns: Option<&Netns>,
    procs_files: &[File],
    report: &OwnedFd,
) -> io::Result<()> {
    let failed = |stage: u8, errno: nix::Error| {
        // If the write fails, the parent cannot name the step, but still gets the errno.
        let _ = write(report, &[stage]);
        io::Error::from(errno)
    };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| failed(TIE, errno))?;
    // If the parent died before the prctl call, it sends no signal any more, and the child has a
    // new parent.
    if getppid() != parent {
        return Err(failed(TIE, nix::Error::ESRCH));
    }
    if let Some(netns) = netns {
        setns(netns.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|errno| failed(NETNS, errno))?;
    }
    for (file, index) in procs_files.iter().zip(0_u8..) {
        // The kernel takes `0` as the process id of the writer, in every PID namespace.
        write(file, b"0").map_err(|errno| failed(CGROUP.saturating_add(index), errno))?;
    }
    Ok(())
}

fn step(spawn: &Spawn, at: u8) -> String {
    let program = spawn.program.display();
    match at {
        TIE => format!("tie {program} to the life of this program"),
        NETNS => {
            format!("move {program} into its network namespace: run as root or with CAP_SYS_ADMIN")
        }
        later => {
            let index = usize::from(later.saturating_sub(CGROUP));
            let file = spawn.cgroup_procs.get(index).map(|path| path.display());
            file.map_or(format!("start {program}"), |file| {
                format!(
                    "move {program} into its cgroup by {file}: a cpuset needs CPUs and memory nodes, and a cgroup with \
                     controllers enabled for its children takes no processes"
                )
            })
        }
    }
}

fn stderr(spawn: &Spawn) -> Result<Stdio, SpawnError> {
    match &spawn.stderr {
        Stderr::Inherit => Ok(Stdio::inherit()),
        Stderr::File(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let (file, program) = (path.display(), spawn.program.display());
            let step = format!("open {file} for the standard error of {program}");
            Ok(opened.map_err(SpawnError::at(step))?.into())
        }
    }
}

#[cfg(test)]
mod tests;
