//! Readings of CPU time: the idle time of each CPU, and the time used by all tasks. Interference is
//! computed from both.
//!
//! Linux has no file with the CPU time of each task on each CPU. The closest sources are:
//!
//! - On cgroup v1, `cpuacct.usage_percpu` of the root cgroup counts the time of all tasks on each
//!   CPU in nanoseconds. The kernel updates the root cgroup and the task's own cgroup at the same
//!   moment, so the difference of both is exact.
//! - On every kernel, `/proc/stat` shows the idle time of each CPU in hundredths of a second. A CPU
//!   is idle in spells, and runs tasks in between. Up to Linux 7.0, the kernel reads a clock at the
//!   start and at the end of each spell. From Linux 7.1 on, and with `nohz=off`, it samples short
//!   spells: each timer tick that finds the CPU idle counts as a whole tick of idle time, so the
//!   error of such a spell is up to one tick.
//! - `/proc/schedstat` (`CONFIG_SCHEDSTATS`) describes run slices. A run slice is a time in which
//!   one task runs on a CPU without a break. The file has the number of slices on each CPU, and the
//!   total duration of all ended slices in nanoseconds. Because each idle spell ends with a new
//!   slice, the number of slices limits the error of the idle time ([`CpuTimes::idle_error`]), and
//!   the limit is good if there are few. The duration is another measure of the tasks' time
//!   ([`RunSlices`]), which is good if there are many, but it lacks the current slice, and that may
//!   last for hours on an exclusive CPU. The sampler reads the file only if the kernel samples idle
//!   time and counts no usage per CPU.
//!
//! The user and system columns of `/proc/stat` are not used, because most kernels sample them, too,
//! and a task that wakes with the tick can stay unseen for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup::{CgroupError, Cgroups, CpuUsage};
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

/// The wait in [`Sampler::prepare`], in which slices on busy CPUs end.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads the counters of all CPUs. Each reading is a [`CpuSample`].
#[derive(Debug, Clone)]
pub struct Sampler {
    proc: PathBuf,
    started: Instant,
    /// Whether the kernel samples short idle spells instead of measuring them with a clock.
    sampled: bool,
    nohz_full: CpuSet,
    /// Per CPU, the number of run slices at the last reading, and a time before the start of the
    /// last slice; `None` if no such time is known.
    slices: BTreeMap<u32, (u64, Option<Duration>)>,
    /// The time at which the last reading began.
    last: Option<Duration>,
}

/// Counters of all CPUs, read within a short time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuSample {
    /// The time at which reading began, since the sampler's creation.
    pub began: Duration,
    /// The time at which reading ended.
    pub ended: Duration,
    /// The counters of each online CPU.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// The time of all tasks of the node, by CPU number; `None` unless the kernel counts usage per
    /// CPU.
    pub all_tasks: Option<Vec<Duration>>,
    /// Whether the kernel counts the time of interrupts apart from the interrupted tasks
    /// (`CONFIG_IRQ_TIME_ACCOUNTING`).
    pub separate_interrupts: bool,
}

/// The counters of a CPU since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Idle time, including the time in which tasks wait for devices. It is the sum of two numbers
    /// of the kernel, each rounded down to [`UNIT`].
    pub idle: Duration,
    /// Time taken by a hypervisor, rounded down to [`UNIT`].
    pub steal: Duration,
    /// Time of hardware and software interrupts, also the sum of two numbers, each rounded down to
    /// [`UNIT`].
    pub interrupts: Duration,
    /// The largest error of `idle` through sampling; rounding comes on top.
    pub idle_error: Duration,
    /// The longest time by which a running task's usage may be outdated.
    pub lag: Duration,
    /// The run time of tasks; `None` unless idle time is sampled, or if the start of the current
    /// slice is unknown.
    pub run_slices: Option<RunSlices>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunSlices {
    pub ended: Duration,
    /// The longest possible duration of the current slice.
    pub current: Duration,
}

/// Why the counters can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BusyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel only samples idle time, and no file limits the error of that.
    #[error(
        "this kernel only samples idle time, and the error is unknown without /proc/schedstat (CONFIG_SCHEDSTATS)"
    )]
    NoBound,
}

// === impl Sampler ===

impl Sampler {
    /// Makes a sampler of the machine whose `proc` and `sys` are below `root`.
    pub fn new(root: &Path) -> Self {
        let proc = root.join("proc");
        let text = |path: PathBuf| file::read(&path).unwrap_or_default();
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
        Self {
            proc,
            started: Instant::now(),
            sampled,
            nohz_full,
            slices: BTreeMap::new(),
            last: None,
        }
    }

    /// Whether the kernel samples short idle spells instead of measuring them.
    pub fn samples_idle(&self) -> bool {
        self.sampled
    }

    /// Makes the next reading more exact if the kernel samples idle time: takes a reading, then
    /// waits for 20 ms, so that the next reading knows the start of a slice that began during the
    /// wait. Does nothing if the kernel measures idle time with a clock.
    ///
    /// # Errors
    /// See [`BusyError`].
    pub fn prepare(&mut self, cgroups: &Cgroups) -> Result<(), BusyError> {
        if self.sampled {
            self.sample(cgroups)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// # Errors
    /// See [`BusyError`].
    pub fn sample(&mut self, cgroups: &Cgroups) -> Result<CpuSample, BusyError> {
        let began = self.started.elapsed();
        let all_tasks = match cgroups.usage("")? {
            Some(CpuUsage::PerCpu(times)) => Some(times),
            _ => None,
        };
        let stat = file::read(&self.proc.join("stat"))?;
        let mut slices = None;
        // With usage per CPU nobody needs the idle time, so `/proc/schedstat` is not read.
        if all_tasks.is_none() && self.sampled {
            let text = file::read_optional(&self.proc.join("schedstat"))?;
            slices = Some(run_slices(&text.ok_or(BusyError::NoBound)?));
        }
        let ended = self.started.elapsed();
        let (mut cpus, mut separate_interrupts) = (BTreeMap::new(), false);
        for (cpu, hard_interrupts, mut times) in stat.lines().filter_map(cpu_times) {
            separate_interrupts |= hard_interrupts > 0;
            times.lag = if self.nohz_full.contains(cpu) {
                REMOTE_TICK
            } else {
                TICK
            };
            if let Some(slices) = &slices {
                let (total, count) = *slices.get(&cpu).ok_or(BusyError::NoBound)?;
                times.idle_error = TICK.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
                times.run_slices = self.slice_start(cpu, count).map(|start| RunSlices {
                    ended: total,
                    current: ended.saturating_sub(start),
                });
            }
            cpus.insert(cpu, times);
        }
        self.last = Some(began);
        Ok(CpuSample {
            began,
            ended,
            cpus,
            all_tasks,
            separate_interrupts,
        })
    }

    /// A time before the start of the current slice on a CPU; `None` if no such time is known.
    /// `count` is the number of run slices until now.
    fn slice_start(&mut self, cpu: u32, count: u64) -> Option<Duration> {
        let known = match self.slices.get(&cpu) {
            Some((before, known)) if *before == count => *known,
            // The current slice began after the start of the last reading.
            Some(_) => self.last,
            None => None,
        };
        self.slices.insert(cpu, (count, known));
        known
    }
}

/// Parses `cpu3 user nice system idle iowait irq softirq steal …`, in hundredths of a second.
///
/// Returns the CPU, the hardware interrupt time in hundredths of a second, and the times. A kernel
/// that only samples interrupt time does so at the timer tick. The tick is a hardware interrupt
/// itself and never interrupts another one, so this time stays zero. If it is above zero, the
/// kernel measures interrupt time.
fn cpu_times(line: &str) -> Option<(u32, u64, CpuTimes)> {
    let mut words = line.split_ascii_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    let time = |number: u64| Duration::from_millis(number.saturating_mul(10));
    let times = CpuTimes {
        idle: time(numbers.get(3)?.saturating_add(number(4))),
        interrupts: time(number(5).saturating_add(number(6))),
        steal: time(number(7)),
        ..CpuTimes::default()
    };
    Some((cpu, number(5), times))
}

/// Per CPU, the total duration of all ended slices, and the number of run slices: the seventh and the
/// ninth number of `cpu3 …`.
fn run_slices(text: &str) -> BTreeMap<u32, (Duration, u64)> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let total = Duration::from_nanos(words.nth(6)?.parse().ok()?);
        Some((cpu, (total, words.nth(1)?.parse().ok()?)))
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
        let (cpu, hard, times) =
            cpu_times("cpu3 558057 48197 80568 488400 11681 7 970 1629 0 0").unwrap();
        assert_eq!((cpu, hard), (3, 7));
        assert_eq!(times.idle, Duration::from_millis(5_000_810));
        assert_eq!(times.interrupts, Duration::from_millis(9770));
        assert_eq!(times.steal, Duration::from_millis(16290));
        for line in [
            "cpu  1 2 3 4 5 6 7 8 9 10",
            "intr 5",
            "",
            "cpu1",
            "cpux 1 2 3 4",
            "cpu1 1 2 3",
        ] {
            assert!(cpu_times(line).is_none(), "{line}");
        }
        let text = "version 16\ntimestamp 4294894919\ncpu0 0 0 0 0 0 0 1732625728 333098525 1486\ndomain0 3 1";
        assert_eq!(
            run_slices(text),
            BTreeMap::from([(0, (Duration::from_nanos(1_732_625_728), 1486))])
        );
    }

    #[test]
    fn the_current_slice_began_after_the_last_sample_that_knew_another() {
        let mut sampler = Sampler::new(Path::new("/nowhere"));
        let mut at = |ms, count| {
            let begun = sampler.slice_start(0, count);
            sampler.last = Some(Duration::from_millis(ms));
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
                Sampler::new(root.path()).samples_idle(),
                sampled,
                "{release} {line}"
            );
        }
    }
}
