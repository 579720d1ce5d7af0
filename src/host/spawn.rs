//! Processes started the way a container runtime starts them: inside their cgroups and their network namespace from
//! the first instruction on, and gone when this program is gone.
//!
//! Everything that can be prepared is prepared before the fork; between fork and exec the child only makes system
//! calls on descriptors that are open already.

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

/// How often [`Process::stop`] looks whether the process has ended.
const STOP_POLL: Duration = Duration::from_millis(10);

/// What to start and where.
#[derive(Debug, Clone)]
pub struct Spawn {
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Its whole environment: nothing of this process's own is passed on.
    pub env: BTreeMap<String, String>,
    /// The `cgroup.procs` files to join before the program runs, one for each hierarchy.
    pub cgroup_procs: Vec<PathBuf>,
    /// The network namespace to run in; `None` for the one of this process.
    pub netns: Option<Netns>,
    /// Where its standard error goes. Standard output is a pipe to this process; standard input is empty.
    pub stderr: Stderr,
}

/// Where a process's standard error goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stderr {
    /// To this process's own.
    #[default]
    Inherit,
    /// To the end of a file, which is created if need be.
    File(PathBuf),
    /// Nowhere.
    Null,
}

/// A process that was started. Dropping it kills it with SIGKILL and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

/// The thread that starts processes.
///
/// The kernel sends a child its parent-death signal when the *thread* that forked it ends, not when the process does.
/// So processes are started by one thread that lives as long as this handle: started from anywhere, they end with it,
/// and they end if this program is killed. Dropping the handle kills what it started; keep it until all are done.
#[derive(Debug)]
pub struct Launcher {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// A `cgroup.procs` file can't be opened for writing.
    #[error("cannot open {}: the cgroup must exist and be writable, which needs root", path.display())]
    OpenCgroup {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The child was refused by a cgroup.
    #[error(
        "cannot move {} into its cgroup by {}: a cpuset needs CPUs and memory nodes, and a cgroup with \
         controllers enabled for its children takes no processes",
        program.display(), path.display()
    )]
    JoinCgroup {
        /// The program that was to run.
        program: PathBuf,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The child could not enter the network namespace.
    #[error("cannot move {} into its network namespace: run as root or with CAP_SYS_ADMIN", program.display())]
    JoinNetns {
        /// The program that was to run.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The file for standard error can't be opened.
    #[error("cannot open {} for the standard error of {}", path.display(), program.display())]
    Stderr {
        /// The program that was to run.
        program: PathBuf,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The parent-death signal could not be set, or the parent died while the child was being made.
    #[error("cannot tie {} to the life of this program", program.display())]
    Tie {
        /// The program that was to run.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The program itself could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The launcher's thread is gone.
    #[error("cannot start {}: the thread that starts processes has ended", program.display())]
    NoLauncher {
        /// The program.
        program: PathBuf,
    },
}

#[derive(Debug)]
struct Job {
    spawn: Spawn,
    reply: mpsc::Sender<Result<Process, SpawnError>>,
}

/// How far the child had come when it failed: one byte through a pipe, because an exec error carries only an errno.
mod stage {
    pub(super) const TIE: u8 = 1;
    pub(super) const NETNS: u8 = 2;
    /// Plus the index of the `cgroup.procs` file.
    pub(super) const CGROUP: u8 = 3;
}

// === impl Launcher ===

impl Launcher {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The kernel refuses a thread.
    pub fn new() -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let thread = thread::Builder::new()
            .name("pinfold-launch".to_owned())
            .spawn(move || {
                run_anywhere();
                for Job { spawn, reply } in inbox {
                    // Nobody waits for the reply if the caller panicked; the process is then dropped, and so killed.
                    let _ = reply.send(start(&spawn));
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Starts a process and returns when it has joined everything and its program has been loaded.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; no process is left behind.
    pub fn spawn(&self, spawn: Spawn) -> Result<Process, SpawnError> {
        let program = spawn.program.clone();
        let (reply, answer) = mpsc::channel();
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Job { spawn, reply }).is_ok());
        match answer.recv() {
            Ok(result) if sent => result,
            _ => Err(SpawnError::NoLauncher { program }),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The thread ends when its inbox is closed; the kernel then kills what it started.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Process ===

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The read end of its standard output; `None` from the second call on.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    ///
    /// The kernel's, which is not to be expected.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it has ended. Blocks the thread.
    ///
    /// # Errors
    ///
    /// The kernel's, which is not to be expected.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Sends it a signal; does nothing if it has ended.
    ///
    /// # Errors
    ///
    /// The kernel's, such as a missing privilege.
    pub fn kill(&mut self, signal: Signal) -> io::Result<()> {
        // Once waited for, the id may belong to somebody else.
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).map_err(io::Error::from)
    }

    /// Asks it to end with SIGTERM, waits up to `grace`, and ends it with SIGKILL then. Blocks the thread.
    ///
    /// # Errors
    ///
    /// The kernel's, such as a missing privilege.
    pub fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.stop_by(Instant::now() + grace)
    }

    /// The same with a moment until which it may go on, so that many can end within one time.
    ///
    /// # Errors
    ///
    /// The kernel's, such as a missing privilege.
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
        // Both fail only if it has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets what this thread starts run wherever its cgroup does: a mask that this program was started with, as by taskset, would
/// go on within any cgroup.
fn run_anywhere() {
    let mut all = nix::sched::CpuSet::new();
    for cpu in 0..nix::sched::CpuSet::count() {
        // It has room for each of them.
        let _ = all.set(cpu);
    }
    // Refused only where nothing of it is allowed, and then nothing would run at all.
    let _ = nix::sched::sched_setaffinity(Pid::from_raw(0), &all);
}

/// Starts a process from the calling thread, whose end will be the process's end.
fn start(spawn: &Spawn) -> Result<Process, SpawnError> {
    let program = || spawn.program.clone();
    let start_error = |source: io::Error| SpawnError::Start {
        program: program(),
        source,
    };

    let mut doors = Vec::with_capacity(spawn.cgroup_procs.len());
    for path in &spawn.cgroup_procs {
        // Never created, never truncated: a file that is not there is a cgroup that is not there.
        let door = OpenOptions::new().write(true).open(path);
        doors.push(door.map_err(|source| SpawnError::OpenCgroup {
            path: path.clone(),
            source,
        })?);
    }
    let (report, child_report) =
        pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(|errno| start_error(errno.into()))?;

    let mut command = Command::new(&spawn.program);
    command.args(&spawn.args).env_clear().envs(&spawn.env);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr(spawn)?);
    let (parent, netns) = (getpid(), spawn.netns.clone());
    let join = move || join_all(parent, netns.as_ref(), &doors, &child_report);
    // SAFETY: `join` runs in the child between fork and exec, where only async-signal-safe calls are sound. It makes
    // prctl, getppid, setns and write calls on descriptors opened above; it allocates nothing, takes no lock and
    // returns errors that are plain errnos.
    unsafe { command.pre_exec(join) };

    command
        .spawn()
        .map(|child| Process { child })
        .map_err(|source| {
            let mut at = [0_u8];
            match read(&report, &mut at) {
                Ok(1) => staged(spawn, at[0], source),
                // Nothing was reported: the fork or the exec itself failed.
                _ => start_error(source),
            }
        })
}

/// The child's side, in the order in which a failure is easiest to explain.
fn join_all(
    parent: Pid,
    netns: Option<&Netns>,
    doors: &[File],
    report: &OwnedFd,
) -> io::Result<()> {
    let failed = |stage: u8, errno: nix::Error| {
        // The parent names no stage if this fails, but it still has the errno.
        let _ = write(report, &[stage]);
        io::Error::from(errno)
    };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| failed(stage::TIE, errno))?;
    // If the parent died before the line above, its death sends no signal any more; the child has a new parent.
    if getppid() != parent {
        return Err(failed(stage::TIE, nix::Error::ESRCH));
    }
    if let Some(netns) = netns {
        setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|errno| failed(stage::NETNS, errno))?;
    }
    for (door, index) in doors.iter().zip(0_u8..) {
        // Zero stands for the process that writes, whatever its id is in the reader's namespace.
        write(door, b"0").map_err(|errno| failed(stage::CGROUP.saturating_add(index), errno))?;
    }
    Ok(())
}

fn staged(spawn: &Spawn, at: u8, source: io::Error) -> SpawnError {
    let program = spawn.program.clone();
    match at {
        stage::TIE => SpawnError::Tie { program, source },
        stage::NETNS => SpawnError::JoinNetns { program, source },
        later => match spawn
            .cgroup_procs
            .get(usize::from(later.saturating_sub(stage::CGROUP)))
        {
            Some(path) => SpawnError::JoinCgroup {
                program,
                path: path.clone(),
                source,
            },
            None => SpawnError::Start { program, source },
        },
    }
}

fn stderr(spawn: &Spawn) -> Result<Stdio, SpawnError> {
    match &spawn.stderr {
        Stderr::Inherit => Ok(Stdio::inherit()),
        Stderr::Null => Ok(Stdio::null()),
        Stderr::File(path) => match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Ok(file.into()),
            Err(source) => Err(SpawnError::Stderr {
                program: spawn.program.clone(),
                path: path.clone(),
                source,
            }),
        },
    }
}

#[cfg(test)]
mod tests;
