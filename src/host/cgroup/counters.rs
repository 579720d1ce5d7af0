//! [`Counters`]: what the kernel counts for cgroups, from files that are kept open.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::memory::{self, Pages};
use super::pressure::{self, Pressure, RESOURCES};
use super::{CgroupError, Cgroups, ignore_gone};
use crate::host::kept::Reader;

/// What the CPU controller counted for a cgroup since it was made; `None` where nothing counts it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuStat {
    /// CPU time used.
    pub usage_seconds: Option<f64>,
    /// CFS periods in which the cgroup ran.
    pub periods: Option<u64>,
    /// Periods in which its quota ran out.
    pub throttled_periods: Option<u64>,
    /// Time its tasks were held back.
    pub throttled_seconds: Option<f64>,
}

/// The files of a cgroup that may be open, by what they hold: its directory, CPU time twice, processes, threads, memory, and
/// one for each resource under pressure.
const DIRECTORY: usize = 0;
const CPU: usize = 1;
const CPUACCT: usize = 2;
const PROCESSES: usize = 3;
const THREADS: usize = 4;
const MEMORY: usize = 5;
const PRESSURE: usize = 6;
const FILES: usize = PRESSURE + RESOURCES.len();

type Files = [Option<File>; FILES];

/// Reads what the kernel counts for cgroups. Where there are more of them than files may be open, the files of the rest are
/// opened each time.
#[derive(Debug)]
pub struct Counters {
    cgroups: Cgroups,
    files: OpenFiles,
}

/// The files that are open, by cgroup.
#[derive(Debug)]
struct OpenFiles {
    reader: Reader,
    open: HashMap<String, Files>,
    most: usize,
}

// === impl Counters ===

impl Counters {
    /// Counters of cgroups of these hierarchies, with so many files open at most.
    pub fn new(cgroups: Cgroups, files: usize) -> Self {
        let files = OpenFiles { reader: Reader::default(), open: HashMap::new(), most: files / FILES };
        Self { cgroups, files }
    }

    /// Closes the files of cgroups that nobody asks for any more.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.files.open.retain(|path, _| is_there(path));
    }

    /// How many cgroups have open files.
    pub fn kept(&self) -> usize {
        self.files.open.len()
    }

    /// What was counted for a cgroup's CPU time.
    pub fn cpu_stat(&mut self, path: &str) -> Result<CpuStat, CgroupError> {
        let mut stat = CpuStat::default();
        if let Some(cpu) = &self.cgroups.cpu {
            let file = || cpu.join(path).join("cpu.stat");
            self.files.read(path, CPU, file, |text| stat = cpu_stat(text))?;
        }
        if let (None, Some(cpuacct)) = (stat.usage_seconds, &self.cgroups.cpuacct) {
            let file = || cpuacct.join(path).join("cpuacct.usage");
            let usage = |text: &str| text.trim_end().parse::<u64>().ok();
            let usage = self.files.read(path, CPUACCT, file, usage)?;
            stat.usage_seconds = usage.flatten().map(|ns| ns as f64 / 1e9);
        }
        Ok(stat)
    }

    /// The process ids in a cgroup, those of cgroups below it included; on cgroup v1 as they were up to a second ago.
    pub fn processes(&mut self, path: &str) -> Result<Vec<i32>, CgroupError> {
        let dir = || self.cgroups.cpuset.join(path);
        let ids = |text: &str| text.lines().filter_map(|line| line.parse().ok()).collect();
        let file = || dir().join("cgroup.procs");
        let found: Option<Vec<i32>> = self.files.read(path, PROCESSES, file, ids)?;
        let mut found = found.unwrap_or_default();
        if self.files.has_children(path, dir) {
            for child in ignore_gone(self.cgroups.children(path))?.unwrap_or_default() {
                let below = ignore_gone(self.cgroups.processes(&format!("{path}/{child}")))?;
                found.extend(below.unwrap_or_default());
            }
        }
        Ok(found)
    }

    /// How many threads there are in a cgroup, those of cgroups below it included; `None` where nobody counts them.
    pub fn threads(&mut self, path: &str) -> Result<Option<usize>, CgroupError> {
        let Some(pids) = &self.cgroups.pids else { return Ok(None) };
        let file = || pids.join(path).join("pids.current");
        Ok(self.files.read(path, THREADS, file, |text| text.trim_end().parse().ok())?.flatten())
    }

    /// Where the memory of a cgroup lies, by NUMA node; `None` where that is not counted.
    ///
    /// # Errors
    /// The file is there and can't be read.
    pub fn pages(&mut self, path: &str) -> Result<Option<Vec<Pages>>, CgroupError> {
        let Some(memory) = &self.cgroups.memory else { return Ok(None) };
        // The older hierarchy counts pages.
        let unit = if *memory == self.cgroups.cpuset { 1 } else { procfs::page_size() };
        let file = || memory.join(path).join("memory.numa_stat");
        self.files.read(path, MEMORY, file, |text| memory::pages(text, unit))
    }

    /// How long tasks of a cgroup have waited for each of [`RESOURCES`]; `None` where that is not counted.
    ///
    /// # Errors
    /// A file is there and can't be read.
    pub fn pressure(&mut self, path: &str) -> Result<[Option<Pressure>; RESOURCES.len()], CgroupError> {
        let dir = || self.cgroups.cpuset.join(path);
        let mut found = [None; RESOURCES.len()];
        for (at, (found, resource)) in found.iter_mut().zip(RESOURCES).enumerate() {
            let file = || dir().join(format!("{resource}.pressure"));
            *found = self.files.read(path, PRESSURE + at, file, pressure::parse)?.flatten();
        }
        Ok(found)
    }
}

// === impl OpenFiles ===

impl OpenFiles {
    /// Whether there are cgroups below one: a directory is linked to by itself, by the one above, and by each in it.
    fn has_children(&mut self, path: &str, directory: impl FnOnce() -> PathBuf) -> bool {
        let links = |file: &File| file.metadata().map_or(0, |directory| directory.nlink());
        if let Some(Some(kept)) = self.open.get(path).and_then(|files| files.get(DIRECTORY)) {
            return links(kept) > 2;
        }
        let Ok(file) = File::open(directory()) else { return false };
        let found = links(&file) > 2;
        self.keep_open(path, DIRECTORY, file);
        found
    }

    /// Reads one of a cgroup's files; `None` where there is none.
    fn read<T>(
        &mut self,
        path: &str,
        which: usize,
        file: impl FnOnce() -> PathBuf,
        parse: impl FnOnce(&str) -> T,
    ) -> Result<Option<T>, CgroupError> {
        if let Some(Some(kept)) = self.open.get(path).and_then(|files| files.get(which)) {
            match self.reader.read(kept) {
                Ok(text) => return Ok(Some(parse(text))),
                // Gone, or another one in its place: then all of its files are.
                Err(_) => drop(self.open.remove(path)),
            }
        }
        let Some((file, text)) = self.reader.open(file())? else { return Ok(None) };
        let value = parse(text);
        self.keep_open(path, which, file);
        Ok(Some(value))
    }

    fn keep_open(&mut self, path: &str, which: usize, file: File) {
        if !self.open.contains_key(path) && self.open.len() < self.most {
            self.open.insert(path.to_owned(), Files::default());
        }
        if let Some(place) = self.open.get_mut(path).and_then(|files| files.get_mut(which)) {
            *place = Some(file);
        }
    }
}

fn cpu_stat(text: &str) -> CpuStat {
    let mut stat = CpuStat::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(' ') else { continue };
        let value = value.parse::<u64>().ok();
        match key {
            "nr_periods" => stat.periods = value,
            "nr_throttled" => stat.throttled_periods = value,
            "throttled_time" => stat.throttled_seconds = value.map(|ns| ns as f64 / 1e9),
            "throttled_usec" => stat.throttled_seconds = value.map(|us| us as f64 / 1e6),
            "usage_usec" => stat.usage_seconds = value.map(|us| us as f64 / 1e6),
            _ => {}
        }
    }
    stat
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_gone_is_nothing_and_what_comes_back_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        let mut counters = Counters::new(Cgroups::detect(root).unwrap(), FILES);
        for (cgroup, us, kept) in [("a", 1_500_000, 1), ("b", 2_000_000, 1), ("a", 3_000_000, 1)] {
            fs::create_dir_all(root.join(cgroup)).unwrap();
            fs::write(root.join(cgroup).join("cpu.stat"), format!("usage_usec {us}\nnr_periods 3\n"))
                .unwrap();
            fs::write(root.join(cgroup).join("cgroup.procs"), "7\n8\n").unwrap();
            let stat = counters.cpu_stat(cgroup).unwrap();
            assert_eq!((stat.usage_seconds, stat.periods), (Some(us as f64 / 1e6), Some(3)));
            assert_eq!(counters.processes(cgroup).unwrap(), [7, 8]);
            assert_eq!(counters.pressure(cgroup).unwrap(), [None; RESOURCES.len()]);
            assert_eq!(counters.pages(cgroup).unwrap(), None);
            assert_eq!(counters.threads(cgroup).unwrap(), None);
            assert_eq!(counters.kept(), kept, "no more than may be open");
        }
        assert_eq!(counters.cpu_stat("none").unwrap(), CpuStat::default());
        assert_eq!(counters.processes("none").unwrap(), Vec::<i32>::new());
        counters.keep(|path| path != "a");
        assert_eq!(counters.kept(), 0);
    }
}
