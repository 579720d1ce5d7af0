//! Reads a machine's topology from sysfs.
//!
//! Every path lies below a root given by the caller, which holds `sys/`; this machine's own root is
//! `/`. Kernels since 2.6.16 are understood: new ones have CPU lists, old ones only masks, and some
//! machines lack whole directories. A missing file makes the answer coarser and is no error, but
//! content that no kernel writes is one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{self, FileError, Reader};
use crate::cpu::{CoreKind, CpuSet, MAX_CPU, NumaNode, ParseCpuSetError, Topology, TopologyFacts};

/// Directories of the kernel's CPU event sources, which exist on hybrid x86 machines, one per kind of core.
const KIND_DIRECTORIES: [(&str, CoreKind); 3] = [
    ("cpu_core", CoreKind::Performance),
    ("cpu_atom", CoreKind::Efficiency),
    ("cpu_lowpower", CoreKind::LowPower(0)),
];

/// CPUs with at least this part of the capacity of the fastest CPU of their kind, in percent, are
/// of the same kind. Cores of one design differ by a few percent, because some of them reach a
/// higher clock rate.
const SAME_KIND_PERCENT: i64 = 90;

#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Neither a list of CPUs nor a CPU's directory exists.
    #[error("no CPUs below {}: the root must be a folder that holds sys/, as / does", path.display())]
    NoCpus {
        /// The directory in which CPUs were expected.
        path: PathBuf,
    },
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds no CPU ids where CPU ids are expected.
    #[error("{} should hold CPU ids, and holds {text:?}", path.display())]
    Cpus {
        path: PathBuf,
        /// The file's text.
        text: String,
        source: ParseCpuSetError,
    },
    /// A file has content that no kernel writes.
    #[error("{} should hold {expected}, and holds {text:?}", path.display())]
    Malformed {
        path: PathBuf,
        expected: &'static str,
        /// The file's text.
        text: String,
    },
}

/// Why the host's online CPUs are unknown.
#[derive(Debug, thiserror::Error)]
pub enum OnlineError {
    #[error("cannot read the host's online CPUs from {}: mount sysfs there", path.display())]
    Read {
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file does not hold a CPU list.
    #[error("{} does not hold a CPU list", path.display())]
    Parse {
        path: PathBuf,
        /// The parser's error.
        source: ParseCpuSetError,
    },
}

type Result<T, E = TopologyError> = std::result::Result<T, E>;

/// The texts of the files that change when a CPU or a NUMA node goes offline or comes online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotplugState([Option<String>; 4]);

/// The files of a [`HotplugState`], kept open: every turn reads them, which then takes one call for each file instead of three.
#[derive(Debug, Clone)]
pub struct HotplugFiles {
    files: [(PathBuf, Option<Arc<File>>); 4],
}

// === impl HotplugFiles ===

impl HotplugFiles {
    /// The files of the machine whose `sys/` lies in `root`.
    pub fn new(root: &Path) -> Self {
        let names = [
            "cpu/online",
            "cpu/present",
            "node/online",
            "node/has_memory",
        ];
        let system = root.join("sys/devices/system");
        Self {
            files: names.map(|name| (system.join(name), None)),
        }
    }

    /// Reads the files. One that is missing or can't be read counts as `None`.
    pub fn read(&mut self) -> HotplugState {
        let mut reader = Reader::default();
        let texts = self.files.each_mut().map(|(path, file)| {
            if let Some(text) = file.as_ref().and_then(|file| reader.read(file).ok()) {
                return Some(text.to_owned());
            }
            let (opened, text) = reader.open(path.clone()).ok()??;
            let text = text.to_owned();
            *file = Some(Arc::new(opened));
            Some(text)
        });
        HotplugState(texts)
    }
}

/// The online CPUs of the host whose sysfs is mounted at `sys` (`/sys` on a running machine).
///
/// # Errors
///
/// The file cannot be read or is not a CPU list.
pub fn online_cpus(sys: &Path) -> Result<CpuSet, OnlineError> {
    let path = sys.join("devices/system/cpu/online");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(OnlineError::Read { path, source }),
    };
    text.parse()
        .map_err(|source| OnlineError::Parse { path, source })
}

/// Reads the topology of the machine whose `sys/` lies in `root`.
///
/// # Errors
///
/// [`TopologyError::NoCpus`] if no CPU is found. The other errors mean a file that can't be read or understood.
pub fn read(root: &Path) -> Result<Topology> {
    let devices = root.join("sys/devices");
    let cpus = devices.join("system/cpu");
    let (online, offline) = online_and_offline(&cpus)?;
    // The file is empty if no CPU was isolated at boot. Some machines lack the file.
    let isolated = list(&cpus.join("isolated"))?.unwrap_or_default();
    let mut facts = TopologyFacts {
        online,
        offline,
        isolated,
        ..TopologyFacts::default()
    };
    // The CPUs of each socket by its id, for kernels without lists of a socket's CPUs. The id is -1
    // on machines without socket ids.
    let mut packages: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in facts.online.iter() {
        let directory = cpus.join(format!("cpu{cpu}"));
        let topology = directory.join("topology");
        // A CPU is added to its own list, whatever the file holds, so that no list is empty.
        let with_self = |mut list: CpuSet| {
            list.insert(cpu);
            list
        };
        // `core_id` is not used: the ids repeat from socket to socket, and on some machines within a socket.
        let core = first_of(
            &topology,
            &["thread_siblings_list", "core_cpus_list"],
            &["thread_siblings", "core_cpus"],
        )?;
        facts.cores.extend(core.map(with_self));
        match first_of(
            &topology,
            &["core_siblings_list", "package_cpus_list"],
            &["core_siblings", "package_cpus"],
        )? {
            Some(socket) => facts.sockets.push(with_self(socket)),
            None => match number(&topology.join("physical_package_id"))? {
                Some(id) if id >= 0 => {
                    packages.entry(id).or_default().insert(cpu);
                }
                _ => {}
            },
        }
        facts
            .llcs
            .extend(last_level_cache(&directory.join("cache"))?.map(with_self));
    }
    facts.sockets.extend(packages.into_values());
    facts.kinds = kinds(&devices, &cpus, &facts.online)?;
    facts.numa = numa(&devices.join("system/node"))?;
    Ok(Topology::from_facts(facts))
}

/// The online CPUs, and the CPUs that are present and offline.
///
/// The kernel's own `offline` file is no help, because it also names possible ids without a CPU.
fn online_and_offline(cpus: &Path) -> Result<(CpuSet, CpuSet)> {
    let directories = || numbered(cpus, "cpu").map(CpuSet::from_iter);
    let present = match list(&cpus.join("present"))? {
        Some(present) if !present.is_empty() => present,
        _ => directories()?,
    };
    let online = match list(&cpus.join("online"))? {
        Some(online) => online,
        None => {
            let mut online = CpuSet::new();
            for cpu in present.iter() {
                // A CPU that can't be switched off, such as CPU 0, has no file `online`.
                let file = cpus.join(format!("cpu{cpu}/online"));
                let switched_on = parsed(&file, "0 or 1", |text| match text {
                    "0" => Some(false),
                    "1" => Some(true),
                    _ => None,
                })?;
                if switched_on.unwrap_or(true) {
                    online.insert(cpu);
                }
            }
            online
        }
    };
    if online.is_empty() {
        return Err(TopologyError::NoCpus {
            path: cpus.to_owned(),
        });
    }
    let offline = present.difference(&online);
    Ok((online, offline))
}

/// The CPUs that share the highest data or unified cache of a CPU, from the CPU's `cache` directory.
///
/// `None` if the directory is missing, or the highest cache does not list its CPUs. A lower cache
/// would not be the last level.
fn last_level_cache(directory: &Path) -> Result<Option<CpuSet>> {
    let mut last: Option<(i64, PathBuf)> = None;
    for index in numbered(directory, "index")? {
        let cache = directory.join(format!("index{index}"));
        let expected = "Data, Instruction or Unified";
        let holds_data = parsed(&cache.join("type"), expected, |kind| match kind {
            "Data" | "Unified" => Some(true),
            "Instruction" => Some(false),
            _ => None,
        })?;
        if holds_data != Some(true) {
            continue;
        }
        let Some(level) = number(&cache.join("level"))? else {
            continue;
        };
        if last.as_ref().is_none_or(|(highest, _)| level > *highest) {
            last = Some((level, cache));
        }
    }
    last.map_or(Ok(None), |(_, cache)| {
        first_of(&cache, &["shared_cpu_list"], &["shared_cpu_map"])
    })
}

/// The CPUs of each kind of core; empty on a machine with a single kind.
fn kinds(devices: &Path, cpus: &Path, online: &CpuSet) -> Result<Vec<(CoreKind, CpuSet)>> {
    let mut kinds = Vec::new();
    for (directory, kind) in KIND_DIRECTORIES {
        kinds.extend(list(&devices.join(directory).join("cpus"))?.map(|cpus| (kind, cpus)));
    }
    if !kinds.is_empty() {
        return Ok(kinds);
    }
    let mut capacities: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in online.iter() {
        if let Some(capacity) = number(&cpus.join(format!("cpu{cpu}/cpu_capacity")))? {
            capacities.entry(capacity).or_default().insert(cpu);
        }
    }
    Ok(by_capacity(&capacities))
}

/// The CPUs of each kind of core, from the CPUs of each capacity; empty for a single kind.
fn by_capacity(capacities: &BTreeMap<i64, CpuSet>) -> Vec<(CoreKind, CpuSet)> {
    // The highest capacity of each kind, and the kind's CPUs.
    let mut kinds: Vec<(i64, CpuSet)> = Vec::new();
    for (&capacity, cpus) in capacities.iter().rev() {
        match kinds.last_mut() {
            Some((fastest, of_kind))
                if capacity.saturating_mul(100) >= fastest.saturating_mul(SAME_KIND_PERCENT) =>
            {
                *of_kind = of_kind.union(cpus);
            }
            _ => kinds.push((capacity, cpus.clone())),
        }
    }
    if kinds.len() < 2 {
        return Vec::new();
    }
    let ranked = kinds.into_iter().enumerate();
    ranked
        .map(|(rank, (_, cpus))| (CoreKind::of_rank(rank), cpus))
        .collect()
}

/// The NUMA nodes by ascending id; empty if the kernel was built without NUMA.
fn numa(directory: &Path) -> Result<Vec<NumaNode>> {
    let ids = numbered(directory, "node")?;
    // The kernel accepts exactly these NUMA nodes in `cpuset.mems`.
    let with_memory = list(&directory.join("has_memory"))?;
    let lacks_memory = |id| {
        with_memory
            .as_ref()
            .is_some_and(|nodes| !nodes.contains(id))
    };
    let mut nodes: Vec<NumaNode> = Vec::with_capacity(ids.len());
    let mut consistent = true;
    for &id in &ids {
        let node = directory.join(format!("node{id}"));
        let path = node.join("distance");
        // The kernel writes a distance for each NUMA node with a directory, in the order of the ids.
        let row = text(&path)?;
        let row = row.map(|row| {
            row.split_whitespace()
                .map(|d| d.parse().ok())
                .collect::<Option<Vec<u32>>>()
        });
        let distances = match row {
            None => Vec::new(),
            Some(Some(distances)) if distances.len() == ids.len() => distances,
            Some(_) => {
                consistent = false;
                tracing::warn!(
                    "{} does not hold one distance for each of the {} NUMA nodes, as on machines with offline NUMA \
                     nodes: Pinfold ignores the distances",
                    path.display(),
                    ids.len()
                );
                Vec::new()
            }
        };
        nodes.push(NumaNode {
            id,
            cpus: first_of(&node, &["cpulist"], &["cpumap"])?.unwrap_or_default(),
            memory_bytes: match lacks_memory(id) {
                true => Some(0),
                false => memory(&node.join("meminfo"))?,
            },
            distances,
        });
    }
    if !consistent {
        nodes.iter_mut().for_each(|node| node.distances.clear());
    }
    Ok(nodes)
}

/// The bytes of `MemTotal` in a NUMA node's `meminfo`, whose lines read like `Node 0 MemTotal:  16772456 kB`.
fn memory(path: &Path) -> Result<Option<u64>> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let total = text.lines().find_map(|line| {
        let (_, value) = line.split_once("MemTotal:")?;
        let number = value.trim().strip_suffix("kB")?.trim();
        number.parse::<u64>().ok()?.checked_mul(1024)
    });
    if total.is_none() {
        let first = text.lines().next().unwrap_or_default().to_owned();
        return Err(malformed(path, "a line with MemTotal in kB", first));
    }
    Ok(total)
}

/// The CPUs from the first file that exists: lists first, then masks.
fn first_of(directory: &Path, lists: &[&str], masks: &[&str]) -> Result<Option<CpuSet>> {
    for name in lists {
        if let Some(cpus) = list(&directory.join(name))? {
            return Ok(Some(cpus));
        }
    }
    for name in masks {
        if let Some(cpus) = cpus(&directory.join(name), CpuSet::from_mask)? {
            return Ok(Some(cpus));
        }
    }
    Ok(None)
}

fn list(path: &Path) -> Result<Option<CpuSet>> {
    cpus(path, str::parse)
}

fn cpus(
    path: &Path,
    parse: impl Fn(&str) -> Result<CpuSet, ParseCpuSetError>,
) -> Result<Option<CpuSet>> {
    let cpus = |text: String| {
        parse(&text).map_err(|source| TopologyError::Cpus {
            path: path.to_owned(),
            text,
            source,
        })
    };
    text(path)?.map(cpus).transpose()
}

fn number(path: &Path) -> Result<Option<i64>> {
    parsed(path, "a whole number", |text| text.parse().ok())
}

/// The value in a file; `None` if the file does not exist.
fn parsed<T>(
    path: &Path,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>> {
    let value = |text: String| parse(&text).ok_or_else(|| malformed(path, expected, text));
    text(path)?.map(value).transpose()
}

fn malformed(path: &Path, expected: &'static str, text: String) -> TopologyError {
    TopologyError::Malformed {
        path: path.to_owned(),
        expected,
        text,
    }
}

/// The text of a file, without white space around it; `None` if the file does not exist.
fn text(path: &Path) -> Result<Option<String>> {
    // Some copies of sysfs files have the file's nominal size, and end in zero bytes.
    let outside = |c: char| c.is_whitespace() || c == '\0';
    let text = file::read_optional(path)?;
    Ok(text.map(|text| text.trim_matches(outside).to_owned()))
}

/// The numbers N of a directory's entries `<prefix>N`, ascending; empty if it does not exist.
fn numbered(directory: &Path, prefix: &str) -> Result<Vec<u32>> {
    let entries = file::list_optional(directory).map_err(FileError::reading(directory))?;
    // Names like `cpufreq` share the prefix and are skipped. No id is above the largest CPU id.
    let mut numbers: Vec<u32> = entries
        .iter()
        .filter_map(|entry| entry.name.strip_prefix(prefix)?.parse().ok())
        .filter(|number| *number <= MAX_CPU)
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("devices/system/cpu");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("online"), text).unwrap();
        root
    }

    #[test]
    fn reads_the_list_under_the_given_root() {
        let root = sys("0-3,8\n");
        assert_eq!(online_cpus(root.path()).unwrap().to_string(), "0-3,8");
    }

    #[test]
    fn names_the_file_when_it_is_missing_or_odd() {
        let root = tempfile::tempdir().unwrap();
        assert!(
            online_cpus(root.path())
                .unwrap_err()
                .to_string()
                .contains("devices/system/cpu/online")
        );
        let root = sys("all of them");
        assert!(matches!(
            online_cpus(root.path()),
            Err(OnlineError::Parse { .. })
        ));
    }
}
