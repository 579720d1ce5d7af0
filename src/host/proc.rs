//! Processes: threads, context switches, start times, and the counters of network namespaces.

mod net;
mod netns_handles;
mod tasks;

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use procfs_core::process::{Stat, Status};
use procfs_core::{FromBufRead, FromRead, Uptime};

use super::file;
pub use super::file::Reader;
pub use net::{InterfaceTraffic, NamespaceTcpCounts, PacketCounts};
pub use netns_handles::{NetnsHandles, NetnsKey};
pub use tasks::{AFFINITY_CPUS, Task, set_affinity};

/// The bit of `CAP_SYS_ADMIN` in a set of capabilities.
const SYS_ADMIN: u64 = 1 << 21;

/// The /proc below a root.
#[derive(Debug, Clone)]
pub struct Proc {
    dir: PathBuf,
    ticks_per_second: u64,
    /// Whether the kernel counts how long threads wait for a CPU.
    counts_delay: bool,
    /// Whether the kernel counts the moves of threads between CPUs.
    counts_migrations: bool,
}

/// The scheduler's counters of one thread since the thread's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerCounts {
    /// Context switches because the thread waited for something.
    pub voluntary: u64,
    /// Context switches because the thread was taken off its CPU.
    pub involuntary: u64,
    /// Nanoseconds in which the thread could have run and had no CPU.
    pub run_delay: u64,
}

pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .unwrap_or_default()
}

// === impl Proc ===

impl Proc {
    /// The /proc below `root`; `/` on a usual machine.
    pub fn new(root: &Path) -> Self {
        let dir = root.join("proc");
        let counts_delay = dir.join("self/schedstat").exists();
        let counts_migrations = dir.join("self/sched").exists();
        Self {
            dir,
            ticks_per_second: procfs::ticks_per_second(),
            counts_delay,
            counts_migrations,
        }
    }

    /// Whether this process may administer the machine (`CAP_SYS_ADMIN`). If its capabilities can't
    /// be read, the answer is true, and the kernel refuses later.
    pub fn may_administer(&self) -> bool {
        let text = fs::read(self.dir.join("self/status")).ok();
        let status = text.and_then(|text| Status::from_buf_read(Cursor::new(text)).ok());
        status.is_none_or(|status| status.capeff & SYS_ADMIN != 0)
    }

    /// The threads of a process with the scheduler's counters; empty for a process that is gone.
    pub fn threads(&self, pid: i32) -> Vec<(i32, SchedulerCounts)> {
        let ids = self.thread_ids(pid).into_iter();
        ids.filter_map(|tid| Some((tid, self.scheduled(pid, tid)?)))
            .collect()
    }

    /// The ids of a process's threads; empty for a process that is gone.
    fn thread_ids(&self, pid: i32) -> Vec<i32> {
        let tasks = file::list(&self.dir.join(format!("{pid}/task"))).unwrap_or_default();
        tasks
            .iter()
            .filter_map(|task| task.name.parse().ok())
            .collect()
    }

    /// The number of a process's threads; 0 for a process that is gone.
    pub fn thread_count(&self, pid: i32) -> usize {
        // The kernel counts each thread as a link to the directory `task`, which has two more
        // links.
        let links =
            fs::metadata(self.dir.join(format!("{pid}/task"))).map_or(0, |tasks| tasks.nlink());
        usize::try_from(links.saturating_sub(2)).unwrap_or_default()
    }

    /// The start time of a process, in the kernel's ticks since boot; `None` for a process that is gone.
    pub fn start_time(&self, pid: i32) -> Option<u64> {
        self.stat(pid).map(|stat| stat.starttime)
    }

    /// The scheduler's counters of a thread; `None` if it is gone. Only two of more than fifty
    /// lines are parsed, because a scrape calls this for every thread on the node.
    fn scheduled(&self, pid: i32, tid: i32) -> Option<SchedulerCounts> {
        let dir = self.dir.join(format!("{pid}/task/{tid}"));
        let status = file::read_value(&dir.join("status")).ok()?;
        let of = |name: &str| last_field(&status, name)?.parse().ok();
        // A thread that ends between the two reads is left out, because with half of its counters
        // it would look like a different thread.
        let run_delay = if self.counts_delay {
            file::read_value(&dir.join("schedstat"))
                .ok()?
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()?
        } else {
            0
        };
        Some(SchedulerCounts {
            voluntary: of("voluntary_ctxt_switches:")?,
            involuntary: of("nonvoluntary_ctxt_switches:")?,
            run_delay,
        })
    }

    /// Why the kernel does not count how long threads wait for a CPU; `None` if it does.
    pub fn no_run_delay(&self) -> Option<&'static str> {
        (!self.counts_delay).then_some("the kernel was built without CONFIG_SCHED_INFO")
    }

    /// Seconds since the start of a process, in hundredths as the kernel counts; `None` if it is
    /// gone.
    pub fn age_seconds(&self, pid: i32) -> Option<f64> {
        let stat = self.stat(pid)?;
        let uptime = Uptime::from_read(fs::File::open(self.dir.join("uptime")).ok()?).ok()?;
        let started = stat.starttime as f64 / self.ticks_per_second as f64;
        Some((uptime.uptime - started).max(0.0))
    }

    /// CPU seconds, user and system, used by all threads of a process.
    pub fn cpu_seconds(&self, pid: i32) -> Option<f64> {
        let stat = self.stat(pid)?;
        Some(stat.utime.saturating_add(stat.stime) as f64 / self.ticks_per_second as f64)
    }

    fn stat(&self, pid: i32) -> Option<Stat> {
        let text = fs::read(self.dir.join(format!("{pid}/stat"))).ok()?;
        // The crate cuts `1 (name) S …` at the brackets without checking the bytes beside them.
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let beside = [0, open.checked_sub(1)?, close + 1, close + 2];
        let beside = beside.map(|at| text.get(at));
        match beside {
            [
                Some(b'0'..=b'9'),
                Some(b' '),
                Some(b' '),
                Some(b'A'..=b'Z' | b'a'..=b'z'),
            ] if open < close => Stat::from_read(Cursor::new(text)).ok(),
            _ => None,
        }
    }
}

/// The value in a line `name value` of a process's status. The name includes the colon. The wanted
/// names are in the last lines.
fn last_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().rev();
    lines.find_map(|line| Some(line.strip_prefix(name)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn this_process_has_threads_and_an_age() {
        let proc = Proc::new(Path::new("/"));
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let before = proc.threads(own_pid()).len();
        let thread = std::thread::spawn(move || stopped.recv());
        // The thread may need a moment to appear. Other tests may start and end threads, too.
        assert!(before >= 1);
        // A child process is counted, because other tests start and end threads in this process.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert_eq!(proc.thread_count(i32::try_from(child.id()).unwrap()), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(proc.age_seconds(own_pid()).unwrap() < 3600.0);
        assert!(proc.cpu_seconds(own_pid()).unwrap() >= 0.0);
        drop(stop);
        thread.join().unwrap().unwrap_err();
    }

    #[test]
    fn a_line_cut_short_is_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("proc/1");
        fs::create_dir_all(&dir).unwrap();
        let whole = fs::read_to_string("/proc/self/stat").unwrap();
        let proc = Proc::new(root.path());
        for end in 0..whole.rfind(") ").unwrap() + 40 {
            fs::write(dir.join("stat"), &whole[..end]).unwrap();
            assert_eq!(proc.cpu_seconds(1), None, "{:?}", &whole[..end]);
        }
        for text in [
            "(init) S 0",
            " (init) S 0",
            ") S (",
            "1 )(",
            "1 (a)\u{e9}\u{e9} S",
        ] {
            fs::write(dir.join("stat"), text).unwrap();
            assert_eq!(proc.cpu_seconds(1), None, "{text:?}");
        }
        fs::write(dir.join("stat"), &whole).unwrap();
        assert!(proc.cpu_seconds(1).is_some());
    }

    #[test]
    fn a_process_that_is_gone_is_nothing() {
        let proc = Proc::new(Path::new("/"));
        assert!(proc.threads(-1).is_empty());
        assert_eq!(proc.thread_count(-1), 0);
        assert_eq!(proc.age_seconds(-1), None);
    }
}
