//! The allowed CPUs of each thread, and how often it moved between CPUs. Reading both for every
//! thread is too much work for each scrape.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::unistd::Pid;
use procfs_core::process::{Stat, StatFlags};

use super::{Proc, last_field};
use crate::cpu::CpuSet;
use crate::host::file;

/// The longest readable environment in bytes. Usual environments have a few kilobytes.
const ENVIRONMENT: u64 = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub tid: i32,
    /// The CPUs on which the thread may run: the thread's own mask, within the cgroup's CPUs.
    pub allowed: CpuSet,
    /// The number of moves between CPUs; `None` if the kernel does not report them.
    pub migrations: Option<u64>,
}

/// The CPUs that [`set_affinity`] can name are below this one.
pub const AFFINITY_CPUS: u32 = 1024;

/// Asks the kernel to run a thread on a single CPU, as `taskset -pc CPU TID` does.
///
/// # Errors
/// The kernel's error. It is EINVAL if the thread's cgroup lacks the CPU, and for a CPU from [`AFFINITY_CPUS`].
pub fn set_affinity(tid: i32, cpu: u32) -> io::Result<()> {
    let mut mask = Mask::new();
    mask.set(cpu as usize)?;
    Ok(sched_setaffinity(Pid::from_raw(tid), &mask)?)
}

// === impl Proc ===

impl Proc {
    /// The CPUs on which the first thread of a process may run, from the line `Cpus_allowed_list` of its status; `None` for a
    /// process that is gone.
    pub fn allowed(&self, pid: i32) -> Option<CpuSet> {
        let status = file::read_value(&self.dir.join(format!("{pid}/status"))).ok()?;
        last_field(&status, "Cpus_allowed_list:")?.parse().ok()
    }

    /// The threads of a process with their masks; empty for a process that is gone.
    pub fn tasks(&self, pid: i32) -> Vec<Task> {
        let ids = self.thread_ids(pid).into_iter();
        ids.filter_map(|tid| self.task(pid, tid)).collect()
    }

    fn task(&self, pid: i32, tid: i32) -> Option<Task> {
        let dir = self.dir.join(format!("{pid}/task/{tid}"));
        let status = file::read_value(&dir.join("status")).ok()?;
        let allowed = last_field(&status, "Cpus_allowed_list:")?.parse().ok()?;
        let sched = self
            .counts_migrations
            .then(|| file::read_value(&dir.join("sched")));
        let migrations = sched.and_then(|sched| migrations(&sched.ok()?));
        Some(Task {
            tid,
            allowed,
            migrations,
        })
    }

    /// The root directory of a process, as the process sees it.
    pub fn root_of(&self, pid: i32) -> PathBuf {
        self.dir.join(pid.to_string()).join("root")
    }

    /// Why the kernel does not report moves of threads; `None` if it does.
    pub fn no_migrations(&self) -> Option<&'static str> {
        (!self.counts_migrations).then_some("the kernel was built without CONFIG_SCHED_DEBUG")
    }

    /// Whether a process still runs the program of a parent outside the container. `container`
    /// lists the container's processes.
    ///
    /// A container runtime forks a process into the container's cgroup, and only then the process
    /// executes the container's program. Until it does, `/proc/PID/environ` shows the runtime's
    /// environment. A worker forked by a training program never executes a program either, but its
    /// parent belongs to the container.
    pub fn awaits_exec(&self, pid: i32, container: &[i32]) -> bool {
        let forked = |stat: &Stat| {
            StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_FORKNOEXEC)
        };
        self.stat(pid)
            .is_some_and(|stat| forked(&stat) && !container.contains(&stat.ppid))
    }

    /// The variables with the given names from the initial environment of a process. All others are
    /// left out, because environments contain secrets.
    ///
    /// `None` if the process is gone or unreadable, or if its environment is longer than 256 KiB.
    /// An empty environment is `None`, too, because the kernel shows one while a process executes
    /// its program.
    pub fn variables(&self, pid: i32, names: &[&str]) -> Option<BTreeMap<String, String>> {
        let file = fs::File::open(self.dir.join(format!("{pid}/environ"))).ok()?;
        // A process can make any part of its memory appear as its environment, of any length.
        let mut text = Vec::new();
        file.take(ENVIRONMENT + 1).read_to_end(&mut text).ok()?;
        if text.is_empty() || text.len() as u64 > ENVIRONMENT {
            return None;
        }
        let pairs = text.split(|byte| *byte == 0).filter_map(|pair| {
            let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
            names
                .contains(&name)
                .then(|| (name.to_owned(), value.to_owned()))
        });
        Some(pairs.collect())
    }
}

/// The number in the line `se.nr_migrations : 12`.
fn migrations(sched: &str) -> Option<u64> {
    let mut lines = sched.lines();
    let line = lines.find_map(|line| line.strip_prefix("se.nr_migrations"))?;
    line.trim_start().strip_prefix(':')?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &std::path::Path, file: &str, text: &str) {
        let path = root.join("proc").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn threads_are_read_one_by_one() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let sched = "x (7, #threads: 2)\n---\nse.exec_start    :   1.5\nse.nr_migrations      :       12\nnr_switches : 9\n";
        write(root, "self/sched", sched);
        write(
            root,
            "7/task/7/status",
            "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\nMems_allowed:\t1\n",
        );
        write(root, "7/task/7/sched", sched);
        write(root, "7/task/8/status", "Cpus_allowed_list:\t2\n");
        // The status of an ending thread has no line `Cpus_allowed_list`.
        write(root, "7/task/9/status", "Name:\tx\n");
        let proc = Proc::new(root);
        let mut tasks = proc.tasks(7);
        tasks.sort_by_key(|task| task.tid);
        let all = Task {
            tid: 7,
            allowed: "0-3,8".parse().unwrap(),
            migrations: Some(12),
        };
        let one = Task {
            tid: 8,
            allowed: "2".parse().unwrap(),
            migrations: None,
        };
        assert_eq!(tasks, [all, one]);
        assert_eq!((proc.tasks(70), proc.no_migrations()), (vec![], None));
    }

    #[test]
    fn a_process_is_kept_on_a_cpu_or_the_kernel_says_why_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let proc = Proc::new(std::path::Path::new("/"));
        let cpu = proc.allowed(pid).unwrap().first().unwrap();
        set_affinity(pid, cpu).unwrap();
        assert_eq!(proc.allowed(pid), Some([cpu].into_iter().collect()));
        for beyond in [AFFINITY_CPUS - 1, AFFINITY_CPUS] {
            let refusal = set_affinity(pid, beyond).unwrap_err();
            assert_eq!(refusal.kind(), io::ErrorKind::InvalidInput, "{beyond}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            (proc.allowed(-1), set_affinity(-1, cpu).is_ok()),
            (None, false)
        );
    }

    #[test]
    fn an_empty_environment_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "7/environ", "");
        assert_eq!(
            Proc::new(root.path()).variables(7, &["OMP_NUM_THREADS"]),
            None
        );
    }

    #[test]
    fn a_fork_of_a_process_outside_the_container_awaits_its_program() {
        use std::io::BufRead as _;
        use std::process::{Command, Stdio};

        // The subshell is forked and never executes a program.
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; (read line <&3) & echo $!; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        io::BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let child: i32 = line.trim().parse().unwrap();
        let parent = i32::try_from(shell.id()).unwrap();
        let proc = Proc::new(std::path::Path::new("/"));
        let found = (
            proc.awaits_exec(child, &[child]),
            proc.awaits_exec(child, &[parent, child]),
            proc.awaits_exec(parent, &[parent, child]),
        );
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(found, (true, false, false));
        assert!(
            !proc.awaits_exec(child, &[child]),
            "a process that is gone awaits nothing"
        );
    }

    #[test]
    fn only_what_is_asked_for_leaves_an_environment() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            "7/environ",
            "PATH=/bin\0OMP_NUM_THREADS=4\0PASSWORD=x\0OMP_NUM=1\0A\0\0MKL=a=b\0",
        );
        let proc = Proc::new(root.path());
        let found = proc
            .variables(7, &["OMP_NUM_THREADS", "MKL", "NONE"])
            .unwrap();
        let expected = [("MKL", "a=b"), ("OMP_NUM_THREADS", "4")];
        assert_eq!(
            found,
            expected
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
        assert_eq!(proc.variables(8, &["OMP_NUM_THREADS"]), None);
        assert!(proc.no_migrations().is_some());
    }
}
