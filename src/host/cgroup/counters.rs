//! Kernel counters of cgroups. [`Counters`] keeps the files open between readings, while
//! [`Cgroups::usage`] and [`Cgroups::no_pressure`] open them at each call.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::cgroups::{CgroupVersion, Cgroups, Result, ignore_gone};
use crate::host::file::{self, FileError, Reader};

/// CPU controller counters of a cgroup since its creation; `None` where no controller counts the value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuStat {
    pub usage: Option<Duration>,
    /// CFS periods in which the cgroup ran.
    pub periods: Option<u64>,
    /// Periods in which the quota ran out.
    pub throttled_periods: Option<u64>,
    /// Time in which the quota kept the cgroup's tasks from running.
    pub throttled: Option<Duration>,
}

/// Resources whose pressure the kernel counts.
pub const RESOURCES: [&str; 3] = ["cpu", "io", "memory"];

/// Time in which tasks of a cgroup waited, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    /// Time in which at least one task waited.
    pub some: Duration,
    /// Time in which all tasks waited at once; `None` where the kernel does not report it.
    pub full: Option<Duration>,
}

/// CPU time used by a cgroup's tasks since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuUsage {
    /// One time per CPU, from CPU 0 on (cgroup v1).
    PerCpu(Vec<Duration>),
    /// On all CPUs together (cgroup v2).
    Total(Duration),
}

/// A cgroup's memory on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumaUsage {
    pub numa: u32,
    /// Bytes of files held in memory.
    pub file: u64,
    /// Bytes of the tasks' own memory.
    pub anonymous: u64,
}

/// Indexes of a cgroup's files in [`Files`]. CPU time has two files, and each of [`RESOURCES`] has
/// one for its pressure.
const DIRECTORY: usize = 0;
const CPU: usize = 1;
const CPUACCT: usize = 2;
const PROCESSES: usize = 3;
const THREADS: usize = 4;
const MEMORY: usize = 5;
const PRESSURE: usize = 6;
const FILES: usize = PRESSURE + RESOURCES.len();

type Files = [Option<File>; FILES];

/// Reads kernel counters of cgroups. Only a limited number of files stays open; those of further
/// cgroups are opened for each reading.
#[derive(Debug)]
pub struct Counters {
    cgroups: Cgroups,
    files: OpenFiles,
}

#[derive(Debug)]
struct OpenFiles {
    reader: Reader,
    /// The files of each cgroup, indexed by the cgroup's number.
    cgroups: Vec<Files>,
    /// The number of open files; `most` is its limit.
    count: usize,
    most: usize,
}

#[derive(Debug)]
pub struct CgroupCounters<'a> {
    cgroups: &'a Cgroups,
    number: usize,
    path: &'a str,
    files: &'a mut OpenFiles,
}

// === impl Cgroups ===

impl Cgroups {
    /// Why the kernel counts no pressure of cgroups; `None` if it does.
    pub fn no_pressure(&self) -> Option<&'static str> {
        match self.version {
            CgroupVersion::V1 => Some("cgroup v1 has no pressure stall information"),
            CgroupVersion::V2 => {
                // The root cgroup may lack files that the cgroups below have. Older kernels have
                // them, but reading fails while pressure is not counted.
                let below = self.children("").unwrap_or_default().into_iter().next();
                let counted = |path: &str| {
                    let text =
                        file::read_value_optional(&self.root().join(path).join("cpu.pressure"));
                    text.is_ok_and(|text| text.is_some_and(|text| pressure(&text).is_some()))
                };
                let counted = counted("") || below.is_some_and(|child| counted(&child));
                (!counted)
                    .then_some("the kernel has no pressure stall information: boot with psi=1")
            }
        }
    }

    /// The CPU time of a cgroup; `None` where no controller counts it. The path `""` is the root,
    /// whose time on v1 covers every task of the node.
    ///
    /// # Errors
    /// The cgroup is gone, or the file can't be read.
    pub fn usage(&self, path: &str) -> Result<Option<CpuUsage>> {
        let Some(cpuacct) = &self.cpuacct else {
            return Ok(None);
        };
        let dir = cpuacct.join(path);
        if let Some(text) = file::read_optional(&dir.join("cpuacct.usage_percpu"))? {
            let times = text
                .split_whitespace()
                .map(|ns| ns.parse().ok().map(Duration::from_nanos));
            return Ok(times.collect::<Option<Vec<_>>>().map(CpuUsage::PerCpu));
        }
        let stat = cpu_stat(&file::read(&dir.join("cpu.stat"))?);
        Ok(stat.usage.map(CpuUsage::Total))
    }
}

// === impl Counters ===

impl Counters {
    /// Counters for cgroups in the hierarchies `cgroups`, with at most `files` open files.
    pub fn new(cgroups: Cgroups, files: usize) -> Self {
        Self {
            cgroups,
            files: OpenFiles {
                reader: Reader::default(),
                cgroups: Vec::new(),
                count: 0,
                most: files,
            },
        }
    }

    /// Closes the files of the cgroup with the given number.
    pub fn forget(&mut self, number: usize) {
        self.files.close(number);
    }

    /// The counters of a cgroup below the top of the hierarchies. The caller chooses its number,
    /// which is an index and should be small. No other cgroup may have the same number until
    /// [`Counters::forget`].
    pub fn of<'a>(&'a mut self, number: usize, path: &'a str) -> CgroupCounters<'a> {
        let Self { cgroups, files } = self;
        if files.cgroups.len() <= number {
            files.cgroups.resize_with(number + 1, Files::default);
        }
        CgroupCounters {
            cgroups,
            number,
            path,
            files,
        }
    }
}

// === impl CgroupCounters ===

impl CgroupCounters<'_> {
    /// The cgroup's counters of CPU time.
    ///
    /// # Errors
    /// A file exists and can't be read. The methods below fail for the same reason.
    pub fn cpu_stat(&mut self) -> Result<CpuStat> {
        let mut stat = CpuStat::default();
        if let Some(cpu) = &self.cgroups.cpu {
            let read = self.read(CPU, cpu, "cpu.stat", cpu_stat)?;
            stat = read.unwrap_or_default();
        }
        if let (None, Some(cpuacct)) = (stat.usage, &self.cgroups.cpuacct) {
            let usage = self.read(CPUACCT, cpuacct, "cpuacct.usage", number)?;
            stat.usage = usage.flatten().map(Duration::from_nanos);
        }
        Ok(stat)
    }

    /// The process ids in the cgroup and in those below. On cgroup v1 they may be up to a second
    /// old.
    ///
    /// `threads` is the number of threads in the cgroup and in those below. Every process has at
    /// least one thread, so if the cgroup itself has as many processes as `threads`, the cgroups
    /// below are empty and need no reading.
    pub fn processes(&mut self, threads: Option<usize>) -> Result<Vec<i32>> {
        let (cgroups, path) = (self.cgroups, self.path);
        let ids = |text: &str| text.lines().filter_map(|line| line.parse().ok()).collect();
        let found: Option<Vec<i32>> = self.read(PROCESSES, &cgroups.cpuset, "cgroup.procs", ids)?;
        let mut found = found.unwrap_or_default();
        let directory = || cgroups.cpuset.join(path);
        if threads != Some(found.len()) && self.files.has_children(self.number, directory) {
            for child in cgroups.children_if_present(path)? {
                let below = ignore_gone(cgroups.processes(&format!("{path}/{child}")))?;
                found.extend(below.unwrap_or_default());
            }
        }
        Ok(found)
    }

    /// The number of threads in the cgroup and in those below; `None` where no controller counts
    /// threads.
    pub fn threads(&mut self) -> Result<Option<usize>> {
        let Some(pids) = &self.cgroups.pids else {
            return Ok(None);
        };
        Ok(self.read(THREADS, pids, "pids.current", number)?.flatten())
    }

    /// The cgroup's memory by NUMA node; `None` where the kernel does not count it so.
    pub fn memory_by_numa(&mut self) -> Result<Option<Vec<NumaUsage>>> {
        let Some(memory) = &self.cgroups.memory else {
            return Ok(None);
        };
        // cgroup v1 counts pages, v2 counts bytes.
        let unit = if *memory == self.cgroups.cpuset {
            1
        } else {
            procfs::page_size()
        };
        let usage = |text: &str| numa_usage(text, unit);
        self.read(MEMORY, memory, "memory.numa_stat", usage)
    }

    /// How long the cgroup's tasks waited for each of [`RESOURCES`]; `None` where the kernel does
    /// not count the pressure.
    pub fn pressure(&mut self) -> Result<[Option<Pressure>; RESOURCES.len()]> {
        let mut found = [None; RESOURCES.len()];
        // In the order of the resources.
        let files = ["cpu.pressure", "io.pressure", "memory.pressure"];
        for (which, (found, file)) in (PRESSURE..).zip(found.iter_mut().zip(files)) {
            let read = self.read(which, &self.cgroups.cpuset, file, pressure)?;
            *found = read.flatten();
        }
        Ok(found)
    }

    /// Reads a file of the cgroup in a hierarchy; `None` if the file does not exist.
    fn read<T>(
        &mut self,
        which: usize,
        hierarchy: &Path,
        name: &str,
        parse: impl FnOnce(&str) -> T,
    ) -> Result<Option<T>> {
        let path = self.path;
        let file = || hierarchy.join(path).join(name);
        Ok(self.files.read(self.number, which, file, parse)?)
    }
}

// === impl OpenFiles ===

impl OpenFiles {
    /// Whether the cgroup has cgroups below. A directory has a link from itself, one from its
    /// parent and one from each subdirectory.
    fn has_children(&mut self, number: usize, directory: impl FnOnce() -> PathBuf) -> bool {
        let links = |file: &File| file.metadata().map_or(0, |directory| directory.nlink());
        if let Some(directory) = file(&self.cgroups, number, DIRECTORY) {
            return links(directory) > 2;
        }
        let Ok(file) = File::open(directory()) else {
            return false;
        };
        let found = links(&file) > 2;
        self.keep_open(number, DIRECTORY, file);
        found
    }

    /// Reads a file of a cgroup; `None` if the file does not exist.
    fn read<T>(
        &mut self,
        number: usize,
        which: usize,
        path: impl FnOnce() -> PathBuf,
        parse: impl FnOnce(&str) -> T,
    ) -> Result<Option<T>, FileError> {
        if let Some(file) = file(&self.cgroups, number, which) {
            match self.reader.read(file) {
                Ok(text) => return Ok(Some(parse(text))),
                // The cgroup is gone, or a new one has its path. Either way all its open files are
                // stale.
                Err(_) => self.close(number),
            }
        }
        let Some((file, text)) = self.reader.open(path())? else {
            return Ok(None);
        };
        let value = parse(text);
        self.keep_open(number, which, file);
        Ok(Some(value))
    }

    fn close(&mut self, number: usize) {
        let closed = self.cgroups.get_mut(number).map(std::mem::take);
        self.count -= closed.iter().flatten().flatten().count();
    }

    fn keep_open(&mut self, number: usize, which: usize, file: File) {
        let files = self.cgroups.get_mut(number);
        let entry = files.and_then(|files| files.get_mut(which));
        if let Some(entry) = entry.filter(|_| self.count < self.most) {
            self.count += usize::from(entry.replace(file).is_none());
        }
    }
}

fn file(cgroups: &[Files], number: usize, which: usize) -> Option<&File> {
    cgroups.get(number)?.get(which)?.as_ref()
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.trim_end().parse().ok()
}

fn cpu_stat(text: &str) -> CpuStat {
    let mut stat = CpuStat::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(' ') else {
            continue;
        };
        let value = value.parse::<u64>().ok();
        match key {
            "nr_periods" => stat.periods = value,
            "nr_throttled" => stat.throttled_periods = value,
            "throttled_time" => stat.throttled = value.map(Duration::from_nanos),
            "throttled_usec" => stat.throttled = value.map(Duration::from_micros),
            "usage_usec" => stat.usage = value.map(Duration::from_micros),
            _ => {}
        }
    }
    stat
}

fn pressure(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let total = line
            .split(' ')
            .find_map(|field| field.strip_prefix("total="))?;
        Some(Duration::from_micros(total.parse().ok()?))
    };
    Some(Pressure {
        some: total("some")?,
        full: total("full"),
    })
}

/// Parses `memory.numa_stat`, which counts in units of `unit` bytes.
fn numa_usage(text: &str, unit: u64) -> Vec<NumaUsage> {
    let mut found: BTreeMap<u32, NumaUsage> = BTreeMap::new();
    for line in text.lines() {
        // Examples of a line: `anon N0=4096 N1=0` (v2), `anon=1 N0=1 N1=0` (v1).
        let mut fields = line.split(' ');
        let first = fields.next().unwrap_or_default();
        let memory_type = first.split_once('=').map_or(first, |(name, _)| name);
        let count_of_node = |field: &str| -> Option<(u32, u64)> {
            let (numa, count) = field.strip_prefix('N')?.split_once('=')?;
            Some((numa.parse().ok()?, count.parse().ok()?))
        };
        for (numa, count) in fields.filter_map(count_of_node) {
            let usage = found.entry(numa).or_default();
            usage.numa = numa;
            match memory_type {
                "anon" => usage.anonymous = count.saturating_mul(unit),
                "file" => usage.file = count.saturating_mul(unit),
                _ => {}
            }
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    impl Counters {
        pub(crate) fn open_count(&self) -> usize {
            self.files.count
        }
    }

    #[test]
    fn an_ended_cgroup_has_no_counters_and_a_new_one_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        // Two files may stay open, so a third one is opened for each reading.
        let mut counters = Counters::new(Cgroups::detect(root).unwrap(), 2);
        for (number, cgroup, us) in [
            (0, "a", 1_500_000),
            (1, "b", 2_000_000),
            (0, "a", 3_000_000),
        ] {
            fs::create_dir_all(root.join(cgroup)).unwrap();
            fs::write(
                root.join(cgroup).join("cpu.stat"),
                format!("usage_usec {us}\nnr_periods 3\n"),
            )
            .unwrap();
            fs::write(root.join(cgroup).join("cgroup.procs"), "7\n8\n").unwrap();
            let mut of = counters.of(number, cgroup);
            let stat = of.cpu_stat().unwrap();
            assert_eq!(
                (stat.usage, stat.periods),
                (Some(Duration::from_micros(us)), Some(3))
            );
            assert_eq!(of.processes(None).unwrap(), [7, 8]);
            assert_eq!(of.pressure().unwrap(), [None; RESOURCES.len()]);
            assert_eq!(of.memory_by_numa().unwrap(), None);
            assert_eq!(of.threads().unwrap(), None);
            assert_eq!(counters.open_count(), 2, "no more than may be open");
        }
        let mut none = counters.of(2, "none");
        assert_eq!(none.cpu_stat().unwrap(), CpuStat::default());
        assert_eq!(none.processes(None).unwrap(), Vec::<i32>::new());
        counters.forget(1);
        assert_eq!(counters.open_count(), 2, "they are another's");
        counters.forget(0);
        assert_eq!(counters.open_count(), 0);
        // After `forget`, another cgroup's files can stay open.
        assert_eq!(
            counters.of(0, "b").cpu_stat().unwrap().usage,
            Some(Duration::from_micros(2_000_000))
        );
        assert_eq!(counters.open_count(), 1);
        counters.forget(9);
    }

    #[test]
    fn processes_below_are_found_by_their_threads() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join("cgroup.controllers"), "cpuset pids\n").unwrap();
        fs::create_dir_all(root.join("a/below")).unwrap();
        fs::write(root.join("a/cgroup.procs"), "7\n8\n").unwrap();
        fs::write(root.join("a/below/cgroup.procs"), "9\n").unwrap();
        let mut counters = Counters::new(Cgroups::detect(root).unwrap(), 9);
        for (current, expected, open) in [
            ("2\n", &[7, 8][..], 2),
            ("3\n", &[7, 8, 9], 3),
            ("9\n", &[7, 8, 9], 3),
        ] {
            fs::write(root.join("a/pids.current"), current).unwrap();
            let mut of = counters.of(0, "a");
            let threads = of.threads().unwrap();
            assert_eq!(of.processes(threads).unwrap(), expected, "{current}");
            assert_eq!(
                counters.open_count(),
                open,
                "the directory is opened when it is asked"
            );
        }
    }

    #[test]
    fn times_are_exact() {
        let v1 = cpu_stat("nr_periods 7\nnr_throttled 2\nthrottled_time 18446744073709551615\n");
        let most = Some(Duration::from_nanos(u64::MAX));
        let expected = CpuStat {
            periods: Some(7),
            throttled_periods: Some(2),
            throttled: most,
            usage: None,
        };
        assert_eq!(v1, expected);
        let v2 = cpu_stat("usage_usec 18446744073709551615\nuser_usec 1\nthrottled_usec 3\n");
        let most = Some(Duration::from_micros(u64::MAX));
        let (three, none) = (Some(Duration::from_micros(3)), CpuStat::default());
        assert_eq!(
            v2,
            CpuStat {
                usage: most,
                throttled: three,
                ..none
            }
        );
    }

    #[test]
    fn totals_are_read_and_nonsense_is_nothing() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let (some, full) = (Duration::from_micros(1500), Some(Duration::from_micros(7)));
        assert_eq!(pressure(text), Some(Pressure { some, full }));
        // Before Linux 5.13, `cpu.pressure` has no line `full`.
        assert_eq!(
            pressure("some avg10=0.00 total=1500"),
            Some(Pressure { some, full: None })
        );
        for nonsense in [
            "",
            "some",
            "some total=",
            "some total=-1",
            "something total=1",
            "full total=1",
        ] {
            assert_eq!(pressure(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn both_versions_count() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        let cgroups = Cgroups::detect(dir.path()).unwrap();
        assert!(cgroups.usage("").unwrap_err().is_gone());
        fs::write(
            dir.path().join("cpu.stat"),
            "usage_usec 1500\nuser_usec 1000\n",
        )
        .unwrap();
        assert_eq!(
            cgroups.usage("").unwrap(),
            Some(CpuUsage::Total(Duration::from_micros(1500)))
        );
        fs::write(dir.path().join("cpuacct.usage_percpu"), "12 34 \n").unwrap();
        let both = vec![Duration::from_nanos(12), Duration::from_nanos(34)];
        assert_eq!(cgroups.usage("").unwrap(), Some(CpuUsage::PerCpu(both)));
        fs::write(dir.path().join("cpuacct.usage_percpu"), "12 x\n").unwrap();
        assert_eq!(cgroups.usage("").unwrap(), None);
    }

    #[test]
    fn both_versions_say_where_memory_lies() {
        let v1 =
            "total=7 N0=3 N1=4\nfile=2 N0=2 N1=0\nanon=5 N0=1 N1=4\nhierarchical_anon=9 N0=9 N1=0";
        let v2 = "anon N0=4096 N1=16384\nfile N0=8192 N1=0\nkernel_stack N0=1 N1=1";
        let expected = [
            NumaUsage {
                numa: 0,
                file: 8192,
                anonymous: 4096,
            },
            NumaUsage {
                numa: 1,
                file: 0,
                anonymous: 16_384,
            },
        ];
        assert_eq!(numa_usage(v1, 4096), expected);
        assert_eq!(numa_usage(v2, 1), expected);
        assert_eq!(numa_usage("anon Nx=1 N1 =2 N2=x\n\nN0=1", 1), []);
    }
}
