//! Readings of CPU time: the idle time of each CPU, and the time used by all tasks. Interference is
//! computed from both.
//!
//! Linux has no file with the CPU time of each task on each CPU. The closest sources are:
//!
//! - On cgroup v1, `cpuacct.usage_percpu` of the root cgroup counts the time of all tasks on each
//!   CPU in nanoseconds. The kernel updates the root cgroup and the task's own cgroup at the same
//!   moment, so the difference of both is exact.
//! - On every kernel, `/proc/stat` shows the idle time of each CPU in hundredths of a second. Up to
//!   Linux 7.0, the kernel measures idle time with a clock at the start and end of each idle spell.
//!   From Linux 7.1 on, and with `nohz=off`, the tick samples spells shorter than a tick. Each
//!   sample is wrong by up to a tick.
//! - `/proc/schedstat` (`CONFIG_SCHEDSTATS`) counts the turns of tasks on a CPU, which limits the
//!   number of idle spells ([`Clock::doubt`]). The file also shows the duration of all ended turns
//!   in nanoseconds ([`Turns`]). The present turn is missing, and may last for hours on an
//!   exclusive CPU. The count of turns helps if turns are few, the duration if turns are many. The
//!   watcher reads the file only if the kernel samples idle time and counts no usage per CPU.
//!
//! The user and system columns of `/proc/stat` are not used. Most kernels sample both columns, too,
//! and a task that wakes with the tick can stay unseen for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup::{CgroupError, Cgroups, Usage};
use super::file::{self, FileError};
use crate::cpu::CpuSet;

/// The unit of time in `/proc/stat`. Times are rounded down.
pub const UNIT: Duration = Duration::from_millis(10);

/// The longest tick of Linux kernels (`CONFIG_HZ=100`). The kernel charges running tasks at least
/// once per tick.
pub const TICK: Duration = Duration::from_millis(10);

/// The longest tick of a `nohz_full` CPU: a remote tick comes every second; the rest is a margin.
const REMOTE_TICK: Duration = Duration::from_millis(1100);

/// The first Linux version that samples short idle spells.
const SAMPLES_IDLE: (u32, u32) = (7, 1);

/// The wait in [`Watcher::prepare`], in which turns on busy CPUs end.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads the counters of all CPUs. Each reading is a [`Look`].
#[derive(Debug, Clone)]
pub struct Watcher {
    proc: PathBuf,
    started: Instant,
    /// Whether the kernel samples short idle spells instead of measuring them.
    sampled: bool,
    nohz_full: CpuSet,
    /// Per CPU, the number of turns at the last reading, and a time at which the last turn had not
    /// begun yet. `None` if no time is known.
    turns: BTreeMap<u32, (u64, Option<Duration>)>,
    /// The time at which the last reading began.
    last: Option<Duration>,
}

/// Counters of all CPUs, read within a short time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The time at which reading began, since the watcher's creation.
    pub from: Duration,
    /// The time at which reading ended.
    pub to: Duration,
    /// The counters of each online CPU.
    pub clocks: BTreeMap<u32, Clock>,
    /// The time of all tasks of the node, by CPU number; `None` unless the kernel counts usage per
    /// CPU.
    pub all: Option<Vec<Duration>>,
    /// Whether the kernel counts the time of interrupts apart from the interrupted tasks
    /// (`CONFIG_IRQ_TIME_ACCOUNTING`).
    pub interrupts_apart: bool,
}

/// The counters of a CPU since the CPU's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// Idle time, with and without waiting for devices: the sum of two numbers, each rounded down
    /// to [`UNIT`].
    pub idle: Duration,
    /// Time taken by a hypervisor, rounded down to [`UNIT`].
    pub steal: Duration,
    /// Time of hardware and software interrupts: the sum of two numbers, each rounded down to
    /// [`UNIT`].
    pub interrupts: Duration,
    /// The largest error of `idle` through sampling, without the error of rounding.
    pub doubt: Duration,
    /// The longest time by which a running task's usage may be outdated.
    pub lag: Duration,
    /// The run time of tasks; `None` unless idle time is sampled, or if the start of the present
    /// turn is unknown.
    pub turns: Option<Turns>,
}

/// The run time of tasks on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// The sum of all ended turns.
    pub over: Duration,
    /// The longest possible duration of the present turn.
    pub present: Duration,
}

/// Why the counters can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BusyError {
    /// The kernel's file can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The root cgroup can't be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel only samples idle time, and no file limits the error.
    #[error(
        "this kernel only samples idle time and has no /proc/schedstat (CONFIG_SCHEDSTATS) to tell how far it is off"
    )]
    NoBound,
}

// === impl Watcher ===

impl Watcher {
    /// Makes a watcher of the machine whose `proc` and `sys` are below `root`.
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
        // The kernel writes "(null)" if no CPU is in `nohz_full`.
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

    /// Whether the kernel samples short idle spells instead of measuring them.
    pub fn samples_idle(&self) -> bool {
        self.sampled
    }

    /// Makes the next reading more exact if the kernel samples idle time: takes a reading, then
    /// waits for 20 ms. A turn that begins after the reading is then known to last at most as long
    /// as the wait and the next reading. Does nothing if the kernel measures idle time.
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

    /// Takes a reading of the counters.
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
        // Usage per CPU makes idle time unnecessary, so `/proc/schedstat` is not read.
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

    /// A time at which the present turn on a CPU had not begun yet. `count` is the number of turns
    /// until now. `None` if no time is known.
    fn begun(&mut self, cpu: u32, count: u64) -> Option<Duration> {
        let known = match self.turns.get(&cpu) {
            Some((before, known)) if *before == count => *known,
            // The present turn began after the start of the last reading.
            Some(_) => self.last,
            None => None,
        };
        self.turns.insert(cpu, (count, known));
        known
    }
}

/// Parses `cpu3 user nice system idle iowait irq softirq steal …`, in hundredths of a second.
///
/// Returns the CPU, the hardware interrupt time in hundredths of a second, and the clock. Ticks are
/// hardware interrupts, and never sample a hardware interrupt. A number above zero shows that the
/// kernel measures interrupt time.
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

/// Per CPU, the total duration of all ended turns, and the number of turns: the seventh and the
/// ninth number of `cpu3 …`.
fn turns(text: &str) -> BTreeMap<u32, (Duration, u64)> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let over = Duration::from_nanos(words.nth(6)?.parse().ok()?);
        Some((cpu, (over, words.nth(1)?.parse().ok()?)))
    };
    text.lines().filter_map(of_line).collect()
}

/// Parses a kernel release: `6.12.117+deb13-amd64` is version 6.12.
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
