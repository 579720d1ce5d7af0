//! How long each CPU was idle, and what all tasks used: the parts from which foreign time is computed.
//!
//! Linux has no file that says how long a CPU worked for whom. What comes nearest:
//!
//! - On cgroup v1, `cpuacct.usage_percpu` of the root cgroup counts every task's time on each CPU in nanoseconds, in the
//!   same moment as the task's own cgroup's, so that the difference of the two is exact.
//! - Everywhere, a CPU's idle time in `/proc/stat`. Up to Linux 7.0 it is measured with a clock at the start and end of each
//!   idle spell, and shown in hundredths of a second. From Linux 7.1 on, and with `nohz=off`, spells shorter than a tick
//!   are only sampled by the tick, which is wrong by up to a tick each time.
//! - `/proc/schedstat` (`CONFIG_SCHEDSTATS`) says how many turns tasks had on a CPU, which limits the number of idle spells
//!   ([`Clock::doubt`]), and how long those lasted in nanoseconds, but for the one that is still going on, which on an
//!   exclusive CPU may last for hours ([`Turns`]). The first helps where turns are few, the second where they are many.
//!   It is read only where idle time is sampled.
//!
//! The user and system columns of `/proc/stat` are not used: most kernels fill them by sampling too, and a task that wakes
//! with the tick can hide from it for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup::{CgroupError, Cgroups, Usage};
use super::file::{self, FileError};
use crate::cpu::CpuSet;

/// The unit in which `/proc/stat` shows time; what is shown is rounded down.
pub const UNIT: Duration = Duration::from_millis(10);

/// The longest tick that kernels are built with (`CONFIG_HZ=100`): running tasks are charged at least so often.
pub const TICK: Duration = Duration::from_millis(10);

/// The same on a CPU in `nohz_full`, where a remote tick comes once a second.
const REMOTE_TICK: Duration = Duration::from_millis(1100);

/// The first Linux that samples short idle spells.
const SAMPLES_IDLE: (u32, u32) = (7, 1);

/// How long [`Watcher::prepare`] waits for the turns of busy CPUs to end.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads [`Look`]s.
#[derive(Debug, Clone)]
pub struct Watcher {
    proc: PathBuf,
    started: Instant,
    /// Whether short idle spells are sampled here rather than measured.
    sampled: bool,
    nohz_full: CpuSet,
    /// Per CPU, how many turns tasks had had when it was last looked at, and when it is known that the last had not begun.
    turns: BTreeMap<u32, (u64, Option<Duration>)>,
    /// When that was.
    last: Option<Duration>,
}

/// Counters of all CPUs, read within a short time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// When reading began, since the watcher was made.
    pub from: Duration,
    /// When reading ended.
    pub to: Duration,
    /// Per online CPU.
    pub clocks: BTreeMap<u32, Clock>,
    /// What all tasks of the node used, where that is counted by CPU.
    pub all: Option<Vec<Duration>>,
    /// Whether interrupts are timed apart from the tasks that they interrupt (`CONFIG_IRQ_TIME_ACCOUNTING`).
    pub interrupts_apart: bool,
}

/// One CPU's counters since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// Idle, waiting for devices or not; two numbers, each rounded down to [`UNIT`].
    pub idle: Duration,
    /// Time taken away by a hypervisor, rounded down to [`UNIT`].
    pub steal: Duration,
    /// Hardware and software interrupts; two numbers, each rounded down to [`UNIT`].
    pub interrupts: Duration,
    /// By how much the idle time may be wrong in all, beyond its rounding.
    pub doubt: Duration,
    /// By how much a running task's time may be behind.
    pub lag: Duration,
    /// What tasks did on it, where idle time is sampled.
    pub turns: Option<Turns>,
}

/// How long tasks ran on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// All turns that are over.
    pub over: Duration,
    /// The longest that the present one can have lasted.
    pub present: Duration,
}

/// Why there is no look at the CPUs.
#[derive(Debug, thiserror::Error)]
pub enum BusyError {
    /// A file that can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The root cgroup can't be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Idle time is only sampled, and nothing says how wrong that is.
    #[error(
        "this kernel only samples idle time and has no /proc/schedstat (CONFIG_SCHEDSTATS) to tell how far it is off"
    )]
    NoBound,
}

// === impl Watcher ===

impl Watcher {
    /// A watcher of the machine whose `proc` and `sys` lie below `root`.
    pub fn new(root: &Path) -> Self {
        let proc = root.join("proc");
        let text = |path: PathBuf| {
            file::read_optional(&path)
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        let release = text(proc.join("sys/kernel/osrelease"));
        let line = text(proc.join("cmdline"));
        let periodic = line
            .split_whitespace()
            .any(|word| matches!(word, "nohz=off" | "nohz=0"));
        let sampled = periodic || version(&release).is_none_or(|version| version >= SAMPLES_IDLE);
        // The file says "(null)" where there are none.
        let nohz_full = text(root.join("sys/devices/system/cpu/nohz_full"))
            .parse()
            .unwrap_or_default();
        let started = Instant::now();
        Self {
            proc,
            started,
            sampled,
            nohz_full,
            turns: BTreeMap::new(),
            last: None,
        }
    }

    /// Whether short idle spells are sampled by this kernel, rather than measured.
    pub fn samples_idle(&self) -> bool {
        self.sampled
    }

    /// Makes the next look tell more where idle time is sampled: looks once, then waits for 20 ms, so that CPUs on which
    /// tasks take turns are known to have begun the present one within that time. Elsewhere it does nothing.
    ///
    /// # Errors
    /// See [`BusyError`].
    pub fn prepare(&mut self, cgroups: &Cgroups) -> Result<(), BusyError> {
        if self.sampled {
            self.look(cgroups)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// See [`BusyError`].
    pub fn look(&mut self, cgroups: &Cgroups) -> Result<Look, BusyError> {
        let from = self.started.elapsed();
        let all = match cgroups.usage("")? {
            Some(Usage::PerCpu(all)) => Some(all),
            _ => None,
        };
        let stat = file::read(&self.proc.join("stat"))?;
        // Where every task is counted by CPU, idle time isn't needed.
        let turns = match all {
            None if self.sampled => {
                let text =
                    file::read_optional(&self.proc.join("schedstat"))?.ok_or(BusyError::NoBound)?;
                Some(turns(&text))
            }
            _ => None,
        };
        let to = self.started.elapsed();
        let (mut clocks, mut interrupts_apart) = (BTreeMap::new(), false);
        for line in stat.lines() {
            let Some((cpu, hard, mut clock)) = clock(line) else {
                continue;
            };
            interrupts_apart |= hard > 0;
            clock.lag = if self.nohz_full.contains(cpu) {
                REMOTE_TICK
            } else {
                TICK
            };
            if let Some(turns) = &turns {
                let (over, count) = *turns.get(&cpu).ok_or(BusyError::NoBound)?;
                clock.doubt = TICK.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
                let begun = self.begun(cpu, count);
                clock.turns = begun.map(|begun| Turns {
                    over,
                    present: to.saturating_sub(begun),
                });
            }
            clocks.insert(cpu, clock);
        }
        self.last = Some(from);
        Ok(Look {
            from,
            to,
            clocks,
            all,
            interrupts_apart,
        })
    }

    /// When it is known that the present turn on a CPU, one of so many, had not begun.
    fn begun(&mut self, cpu: u32, count: u64) -> Option<Duration> {
        let known = match self.turns.get(&cpu) {
            Some((before, known)) if *before == count => *known,
            // It has begun since the last look began.
            Some(_) => self.last,
            None => None,
        };
        self.turns.insert(cpu, (count, known));
        known
    }
}

/// `cpu3 user nice system idle iowait irq softirq steal …`, in hundredths of a second.
///
/// Returns the CPU, its hardware interrupts and its clock. Ticks never find a hardware interrupt, being one themselves: a
/// number above zero shows that interrupts are timed.
fn clock(line: &str) -> Option<(u32, u64, Clock)> {
    let mut words = line.split_ascii_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    let time = |number: u64| Duration::from_millis(number.saturating_mul(10));
    let clock = Clock {
        idle: time(numbers.get(3)?.saturating_add(number(4))),
        interrupts: time(number(5).saturating_add(number(6))),
        steal: time(number(7)),
        ..Clock::default()
    };
    Some((cpu, number(5), clock))
}

/// How long tasks ran on each CPU, and in how many turns: the seventh and the last of the nine numbers of `cpu3 …`.
fn turns(text: &str) -> BTreeMap<u32, (Duration, u64)> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let over = Duration::from_nanos(words.nth(6)?.parse().ok()?);
        Some((cpu, (over, words.nth(1)?.parse().ok()?)))
    };
    text.lines().filter_map(of_line).collect()
}

/// `6.12.117+deb13-amd64` is 6.12.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let (cpu, hard, clock) =
            clock("cpu3 558057 48197 80568 488400 11681 7 970 1629 0 0").unwrap();
        assert_eq!((cpu, hard), (3, 7));
        assert_eq!(clock.idle, Duration::from_millis(5_000_810));
        assert_eq!(clock.interrupts, Duration::from_millis(9770));
        assert_eq!(clock.steal, Duration::from_millis(16290));
        for line in [
            "cpu  1 2 3 4 5 6 7 8 9 10",
            "intr 5",
            "",
            "cpu1",
            "cpux 1 2 3 4",
            "cpu1 1 2 3",
        ] {
            assert!(super::clock(line).is_none(), "{line}");
        }
        let text = "version 16\ntimestamp 4294894919\ncpu0 0 0 0 0 0 0 1732625728 333098525 1486\ndomain0 3 1";
        assert_eq!(
            turns(text),
            BTreeMap::from([(0, (Duration::from_nanos(1_732_625_728), 1486))])
        );
    }

    #[test]
    fn the_present_turn_began_after_the_last_look_that_knew_another() {
        let mut watcher = Watcher::new(Path::new("/nowhere"));
        let mut at = |ms, count| {
            let begun = watcher.begun(0, count);
            watcher.last = Some(Duration::from_millis(ms));
            begun.map(|begun| begun.as_millis())
        };
        assert_eq!(at(10, 5), None, "it may have lasted for ever");
        assert_eq!(at(20, 5), None);
        assert_eq!(at(30, 6), Some(20));
        assert_eq!(at(40, 6), Some(20));
        assert_eq!(at(50, 9), Some(40));
    }

    #[test]
    fn kernels_are_told_apart() {
        assert_eq!(version("6.12.117+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("7.2.13+deb14-amd64"), Some((7, 2)));
        assert_eq!(version(""), None);
        let root = tempfile::tempdir().unwrap();
        let kernel = root.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        for (release, line, sampled) in [
            ("6.12.0", "quiet", false),
            ("6.12.0", "quiet nohz=off", true),
            ("7.0.9", "", false),
            ("7.1-rc1", "", true),
            ("?", "", true),
        ] {
            std::fs::write(kernel.join("osrelease"), release).unwrap();
            std::fs::write(root.path().join("proc/cmdline"), line).unwrap();
            assert_eq!(
                Watcher::new(root.path()).samples_idle(),
                sampled,
                "{release} {line}"
            );
        }
    }
}
