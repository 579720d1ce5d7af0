//! The topology of real machines, of damaged copies, and of the machine that runs the test.

// A helper that fails also fails its calling test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use pinfold::cpu::{CoreKind, CpuSet, Topology};
use pinfold::host::topology::{TopologyError, read};
use serde::Deserialize;
use tempfile::TempDir;

#[path = "support/machine.rs"]
mod machine;

use machine::{archives, unpack};

/// The known groups of a machine's CPUs; `None` if they are not checked.
#[derive(Deserialize)]
struct Truth {
    online: Vec<u32>,
    cores: Option<Vec<Vec<u32>>>,
    sockets: Option<Vec<Vec<u32>>>,
    numa: Option<Vec<Vec<u32>>>,
    llc: Option<Vec<Vec<u32>>>,
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A machine unpacked to a private folder, which a test may damage.
struct Machine {
    root: PathBuf,
    _folder: TempDir,
}

impl Machine {
    fn unpack(name: &str) -> Self {
        let folder = unpack(name);
        Self {
            root: folder.path().to_owned(),
            _folder: folder,
        }
    }

    /// A machine with the given files below `sys/devices`.
    fn of(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let machine = Self {
            root: folder.path().to_owned(),
            _folder: folder,
        };
        for (path, text) in files {
            machine.write(path, text);
        }
        machine
    }

    fn path(&self, below_devices: &str) -> PathBuf {
        self.root.join("sys/devices").join(below_devices)
    }

    fn write(&self, below_devices: &str, text: &str) {
        let path = self.path(below_devices);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Removes all files and folders with a name. At least one must exist.
    fn remove_all(&self, name: &str) {
        let mut removed = 0;
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let is_folder = entry.file_type().unwrap().is_dir();
                if entry.file_name() == name {
                    removed += 1;
                    if is_folder {
                        fs::remove_dir_all(entry.path())
                    } else {
                        fs::remove_file(entry.path())
                    }
                    .unwrap();
                } else if is_folder {
                    folders.push(entry.path());
                }
            }
        }
        assert!(removed > 0, "there is no {name} to remove");
    }

    fn read(&self) -> Topology {
        read(&self.root).unwrap()
    }

    /// The error, which must name the file and the content.
    fn error(&self, path: &str, text: &str) -> TopologyError {
        let error = read(&self.root).unwrap_err();
        let shown = error.to_string();
        assert!(
            shown.contains(self.path(path).to_str().unwrap()),
            "{shown} does not name {path}"
        );
        assert!(
            shown.contains(&format!("{text:?}")),
            "{shown} does not show {text:?}"
        );
        error
    }
}

fn sorted(groups: impl IntoIterator<Item = CpuSet>) -> Vec<CpuSet> {
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort();
    groups
}

/// Groups of CPUs with the same id of a kind; `None` if a CPU has no id.
fn by_id(
    topology: &Topology,
    id: impl Fn(&pinfold::cpu::Cpu) -> Option<u32>,
) -> Option<Vec<CpuSet>> {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in &topology.cpus {
        groups.entry(id(cpu)?).or_default().insert(cpu.id);
    }
    Some(sorted(groups.into_values()))
}

#[test]
fn real_machines_are_read_correctly() {
    let truth = fs::read_to_string(archives().join("truth.json")).unwrap();
    let truth: BTreeMap<String, Truth> = serde_json::from_str(&truth).unwrap();
    assert_eq!(truth.len(), 14);
    let archives = fs::read_dir(archives()).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_str()
            .is_some_and(|name| name.ends_with(".tar.bz2"))
    });
    assert_eq!(archives.count(), truth.len(), "every archive has its truth");
    let judge = |(name, truth): (&String, &Truth)| {
        let topology = Machine::unpack(name).read();
        let mut checked_levels = Vec::new();
        let online: CpuSet = truth.online.iter().copied().collect();
        assert_eq!(topology.online, online, "{name}: online");
        assert_eq!(
            topology.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(),
            truth.online,
            "{name}: CPUs"
        );
        let levels = [
            (
                "cores",
                &truth.cores,
                by_id(&topology, |cpu| cpu.core),
                topology.cores(),
            ),
            (
                "sockets",
                &truth.sockets,
                by_id(&topology, |cpu| cpu.socket),
                topology.sockets(),
            ),
            (
                "NUMA nodes",
                &truth.numa,
                by_id(&topology, |cpu| cpu.numa),
                topology.numa_nodes(),
            ),
            (
                "LLCs",
                &truth.llc,
                by_id(&topology, |cpu| cpu.llc),
                topology.llcs(),
            ),
        ];
        for (level, truth, ids, groups) in levels {
            let Some(truth) = truth else {
                checked_levels.push(format!("{level} not judged"));
                continue;
            };
            let truth = sorted(truth.iter().map(|group| group.iter().copied().collect()));
            assert_eq!(ids.as_ref(), Some(&truth), "{name}: {level} by id");
            assert_eq!(sorted(groups), truth, "{name}: {level} as groups");
            checked_levels.push(format!("{} {level}", truth.len()));
        }
        format!(
            "{name}: {} CPUs, {}",
            online.len(),
            checked_levels.join(", ")
        )
    };
    // Unpacking takes most of the time, so two threads share the archives.
    let all: Vec<_> = truth.iter().collect();
    let (first_half, second_half) = all.split_at(all.len() / 2);
    let lines = std::thread::scope(|scope| {
        let halves = [first_half, second_half]
            .map(|half| scope.spawn(|| half.iter().map(|&m| judge(m)).collect::<Vec<_>>()));
        halves.map(|half| half.join().unwrap()).concat()
    });
    println!("{}", lines.join("\n"));
    assert_eq!(lines.len(), 14);
}

#[test]
fn distances_that_do_not_fit_the_numa_nodes_are_not_used() {
    for odd in ["10 20 20", "near"] {
        let machine = Machine::of(&[
            ("system/cpu/online", "0-1\n"),
            ("system/node/node0/cpulist", "0\n"),
            ("system/node/node0/distance", "10 20\n"),
            ("system/node/node1/cpulist", "1\n"),
        ]);
        machine.write("system/node/node1/distance", &format!("{odd}\n"));
        let distances: Vec<Vec<u32>> = machine
            .read()
            .numa
            .into_iter()
            .map(|numa| numa.distances)
            .collect();
        assert!(
            distances.len() == 2 && distances.iter().all(Vec::is_empty),
            "{odd}: {distances:?}"
        );
    }
}

#[test]
fn numa_nodes_have_memory_and_distances_even_without_cpus() {
    let topology = Machine::unpack("nvidiagpunumanodes").read();
    let ids: Vec<u32> = topology.numa.iter().map(|node| node.id).collect();
    assert_eq!(
        ids,
        [0, 8, 250, 251, 252, 253, 254, 255],
        "by number, not by name"
    );
    assert_eq!(topology.numa[0].cpus, set("0-15"), "cut to what is online");
    assert_eq!(topology.numa[1].cpus, set("88-103"));
    assert!(topology.numa[2..].iter().all(|node| node.cpus.is_empty()));
    assert_eq!(topology.numa[0].memory_bytes, Some(129_839_104 * 1024));
    assert_eq!(topology.numa[2].memory_bytes, Some(15_728_640 * 1024));
    assert_eq!(topology.numa[1].distances, [40, 10, 80, 80, 80, 80, 80, 80]);
    assert_eq!(topology.numa_nodes(), [set("0-15"), set("88-103")]);
    assert_eq!(topology.numa_of(&set("15,88")), Some(set("0,8")));
}

#[test]
fn offline_siblings_are_not_in_any_group() {
    let topology = Machine::unpack("16em64t-4s2c2t-offlines").read();
    assert_eq!(topology.offline, set("2,5,13-14"));
    assert_eq!(topology.core_of(10), set("10"), "its sibling 2 is off");
    assert_eq!(topology.core_of(7), set("7,15"));
    assert_eq!(topology.core_of(2), set(""));

    // Some kernels still name the sibling in the lists; the result is the same.
    let machine = Machine::of(&[
        ("system/cpu/online", "0-2\n"),
        ("system/cpu/present", "0-3\n"),
        ("system/cpu/offline", "3-511\n"),
        ("system/cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
        ("system/cpu/cpu1/topology/thread_siblings_list", "1,3\n"),
        ("system/cpu/cpu2/topology/thread_siblings_list", "0,2\n"),
    ]);
    let topology = machine.read();
    assert_eq!(
        topology.offline,
        set("3"),
        "what is merely possible is not there"
    );
    assert_eq!(topology.cores(), [set("0,2"), set("1")]);
}

#[test]
fn hybrid_kinds_come_from_event_sources_or_else_from_capacities() {
    let machine = Machine::unpack("20em64t-hybrid-1p6c2t+2ca4co1t");
    assert!(
        machine.read().cpus.iter().all(|cpu| cpu.kind.is_none()),
        "this copy does not tell"
    );
    machine.write("cpu_core/cpus", "0-11\n");
    machine.write("cpu_atom/cpus", "12-19\n");
    machine.write("system/cpu/cpu0/cpu_capacity", "not looked at");
    let kinds = |topology: Topology| topology.cpus.iter().map(|cpu| cpu.kind).collect::<Vec<_>>();
    let (fast, slow) = (Some(CoreKind::Performance), Some(CoreKind::Efficiency));
    assert_eq!(
        kinds(machine.read()),
        [vec![fast; 12], vec![slow; 8]].concat()
    );

    machine.write("cpu_lowpower/cpus", "16-19\n");
    machine.write("cpu_atom/cpus", "12-15\n");
    let slowest = Some(CoreKind::LowPower(0));
    assert_eq!(
        kinds(machine.read()),
        [vec![fast; 12], vec![slow; 4], vec![slowest; 4]].concat()
    );

    let machine = Machine::of(&[("system/cpu/online", "0-3")]);
    for (cpu, capacity) in ["446", "446", "871", "1024\n"].iter().enumerate() {
        machine.write(&format!("system/cpu/cpu{cpu}/cpu_capacity"), capacity);
    }
    assert_eq!(
        kinds(machine.read()),
        [slowest, slowest, slow, fast],
        "three speeds are three kinds"
    );
    let json = serde_json::to_value(machine.read()).unwrap();
    assert_eq!(json["cpus"][0]["kind"], "low-power");
    // Cores of one design, of which some reach a higher clock rate.
    for (cpu, capacity) in ["718", "731", "1009", "1024"].iter().enumerate() {
        machine.write(&format!("system/cpu/cpu{cpu}/cpu_capacity"), capacity);
    }
    assert_eq!(kinds(machine.read()), [slow, slow, fast, fast]);
    for cpu in 0..4 {
        machine.write(&format!("system/cpu/cpu{cpu}/cpu_capacity"), "1024\n");
    }
    assert_eq!(kinds(machine.read()), [None; 4], "all alike");
}

#[test]
fn missing_files_give_coarser_groups() {
    let machine = Machine::unpack("8em64t-2s2ca2c");
    let complete = machine.read();
    assert_eq!(
        (
            complete.llcs().len(),
            complete.sockets().len(),
            complete.numa.len()
        ),
        (4, 2, 1)
    );

    machine.remove_all("shared_cpu_list");
    machine.remove_all("thread_siblings_list");
    machine.remove_all("core_siblings_list");
    machine.remove_all("cpulist");
    assert_eq!(machine.read(), complete, "masks give the same as lists");

    // The folders and the files in the folders give the online CPUs.
    machine.remove_all("online");
    assert_eq!(machine.read(), complete);
    machine.remove_all("present");
    assert_eq!(machine.read(), complete);
    machine.write("system/cpu/cpu6/online", "0\n");
    machine.write("system/cpu/cpu7/online", "1\n");
    let topology = machine.read();
    assert_eq!(
        (topology.online, topology.offline),
        (set("0-5,7"), set("6"))
    );
    machine.write("system/cpu/cpu6/online", "1\n");

    machine.remove_all("core_siblings");
    assert_eq!(
        machine.read(),
        complete,
        "socket ids give the same as lists"
    );
    machine.remove_all("physical_package_id");
    let topology = machine.read();
    assert!(topology.cpus.iter().all(|cpu| cpu.socket.is_none()));
    assert_eq!(topology.sockets(), [set("0-7")]);

    machine.remove_all("distance");
    machine.remove_all("meminfo");
    let topology = machine.read();
    assert_eq!(
        (
            topology.numa[0].memory_bytes,
            topology.numa[0].distances.len()
        ),
        (None, 0)
    );
    machine.remove_all("node");
    let topology = machine.read();
    assert!(topology.numa.is_empty() && topology.cpus.iter().all(|cpu| cpu.numa.is_none()));
    assert_eq!(topology.numa_of(&set("0")), None);

    machine.remove_all("index2");
    assert_eq!(
        machine.read().llcs().len(),
        8,
        "the highest cache that is listed is now each core's own"
    );
    machine.remove_all("cache");
    assert!(machine.read().cpus.iter().all(|cpu| cpu.llc.is_none()));

    machine.remove_all("topology");
    let topology = machine.read();
    assert!(topology.cpus.iter().all(|cpu| cpu.core.is_none()));
    assert_eq!(topology.cores().len(), 8);
    assert_eq!(topology.online, set("0-7"));

    fs::remove_dir_all(machine.path("system/cpu")).unwrap();
    let error = read(&machine.root).unwrap_err();
    assert!(
        matches!(&error, TopologyError::NoCpus { path } if *path == machine.path("system/cpu")),
        "{error:?}"
    );
}

#[test]
fn new_names_of_the_lists_are_read() {
    let machine = Machine::unpack("memorysidecaches");
    let complete = machine.read();
    for name in [
        "thread_siblings_list",
        "thread_siblings",
        "core_siblings_list",
        "core_siblings",
    ] {
        machine.remove_all(name);
    }
    assert_eq!(machine.read(), complete);
    for name in ["core_cpus_list", "package_cpus_list"] {
        machine.remove_all(name);
    }
    assert_eq!(machine.read(), complete);
}

#[test]
fn a_cache_without_a_cpu_list_hides_the_lower_caches() {
    let machine = Machine::of(&[("system/cpu/online", "0-1")]);
    for (index, level, kind) in [
        (0, "1", "Data"),
        (1, "1", "Instruction"),
        (2, "2", "Unified"),
        (10, "3", "Unified"),
    ] {
        machine.write(&format!("system/cpu/cpu0/cache/index{index}/level"), level);
        machine.write(&format!("system/cpu/cpu0/cache/index{index}/type"), kind);
        if level != "3" {
            machine.write(
                &format!("system/cpu/cpu0/cache/index{index}/shared_cpu_list"),
                "0",
            );
        }
    }
    assert_eq!(machine.read().cpu(0).unwrap().llc, None);
    machine.write("system/cpu/cpu0/cache/index10/shared_cpu_list", "0-1");
    let topology = machine.read();
    assert_eq!(topology.llcs(), [set("0-1")], "CPU 0's list names CPU 1");
    assert_eq!(topology.cpu(1).unwrap().llc, Some(0));
}

#[test]
fn errors_of_malformed_files_name_file_and_content() {
    let cases = [
        ("system/cpu/online", "0-3,", "CPU ids"),
        ("system/cpu/online", "all", "CPU ids"),
        ("system/cpu/present", "3-0", "CPU ids"),
        (
            "system/cpu/cpu1/topology/thread_siblings_list",
            "0..1",
            "CPU ids",
        ),
        (
            "system/cpu/cpu1/topology/core_siblings_list",
            "0-9999",
            "CPU ids",
        ),
        ("system/cpu/cpu1/topology/core_cpus", "0x3", "CPU ids"),
        ("system/cpu/cpu1/topology/package_cpus", "", "CPU ids"),
        (
            "system/cpu/cpu1/topology/physical_package_id",
            "zero",
            "a whole number",
        ),
        ("system/cpu/cpu1/cache/index0/level", "L3", "a whole number"),
        (
            "system/cpu/cpu1/cache/index0/type",
            "Trace",
            "Data, Instruction or Unified",
        ),
        (
            "system/cpu/cpu1/cache/index0/shared_cpu_list",
            "1,,2",
            "CPU ids",
        ),
        (
            "system/cpu/cpu1/cache/index0/shared_cpu_map",
            "0-1",
            "CPU ids",
        ),
        ("system/cpu/cpu1/cpu_capacity", "1k", "a whole number"),
        ("cpu_atom/cpus", "cpu1", "CPU ids"),
        ("system/node/node0/cpulist", "0-", "CPU ids"),
        ("system/node/node0/cpumap", "ff ff", "CPU ids"),
        (
            "system/node/node0/meminfo",
            "Node 0 MemTotal: 5 pages",
            "MemTotal in kB",
        ),
        (
            "system/node/node0/meminfo",
            "Node 0 MemFree: 5 kB",
            "MemTotal in kB",
        ),
    ];
    for (path, text, expected) in cases {
        let machine = Machine::of(&[
            ("system/cpu/online", "0-1\n"),
            ("system/cpu/cpu1/cache/index0/level", "1\n"),
            ("system/cpu/cpu1/cache/index0/type", "Data\n"),
            ("system/node/node0/cpulist", "0-1\n"),
        ]);
        machine.read();
        if path.ends_with("cpumap") {
            machine.remove_all("cpulist");
        }
        machine.write(path, &format!("{text}\n"));
        let shown = machine.error(path, text).to_string();
        assert!(
            shown.contains(expected),
            "{shown} does not say what is expected in {path}"
        );
    }
    let machine = Machine::of(&[
        ("system/cpu/cpu0/online", "1"),
        ("system/cpu/cpu1/online", "yes"),
    ]);
    machine.error("system/cpu/cpu1/online", "yes");
    let machine = Machine::of(&[("system/cpu/online", "\n"), ("system/cpu/present", "0-3")]);
    assert!(matches!(
        read(&machine.root),
        Err(TopologyError::NoCpus { .. })
    ));
    // A folder in place of a file is unreadable, which differs from missing.
    let machine = Machine::of(&[("system/cpu/online/file", "")]);
    let error = read(&machine.root).unwrap_err();
    assert!(
        matches!(&error, TopologyError::File(error) if error.to_string().ends_with("cpu/online")),
        "{error:?}"
    );
}

#[test]
fn the_topology_of_this_machine_matches_sysfs() {
    let topology = read(Path::new("/")).unwrap();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    assert_eq!(topology.online, online.parse().unwrap());
    for groups in [
        topology.cores(),
        topology.llcs(),
        topology.numa_nodes(),
        topology.sockets(),
    ] {
        assert_eq!(
            groups
                .iter()
                .fold(CpuSet::new(), |all, group| all.union(group)),
            topology.online
        );
        assert_eq!(
            groups.iter().map(CpuSet::len).sum::<usize>(),
            topology.online.len()
        );
    }
    // The topology has every CPU that this process may use.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    assert!(
        !set(allowed).is_disjoint(&topology.online),
        "{allowed} is not of {}",
        topology.online
    );
}

fn pinfold(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .arg("topology")
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_topology_command_draws_and_prints_json() {
    let machine = Machine::unpack("16em64t-4s2c2t-offlines");
    let root = machine.root.to_str().unwrap();
    let drawn = pinfold(&["--root-dir", root]);
    assert!(drawn.status.success(), "{drawn:?}");
    assert_eq!(
        String::from_utf8(drawn.stdout).unwrap(),
        "\
12 CPUs online · 7 cores · 4 LLCs · 1 NUMA node · 4 sockets
offline: 2,5,13-14

NUMA node 0 · 16.0 GiB
  socket 0 · LLC 0  [ 0  8] [ 4 12]   socket 1 · LLC 1  [ 1  9]
  socket 2 · LLC 2  [ 3 11] [ 7 15]   socket 3 · LLC 3  [ 6] [10]
"
    );
    let json = pinfold(&["--root-dir", root, "-o", "json"]);
    assert!(json.status.success(), "{json:?}");
    assert!(json.stdout.starts_with(
        br#"{"online":"0-1,3-4,6-12,15","offline":"2,5,13-14","cpus":[{"id":0,"core":0,"#
    ));
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value, serde_json::to_value(machine.read()).unwrap());
}

#[test]
fn the_topology_command_refuses_a_root_without_a_machine() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nothing");
    for root in [folder.path(), &missing] {
        let failed = pinfold(&["--root-dir", root.to_str().unwrap()]);
        assert_eq!(failed.status.code(), Some(2), "{failed:?}");
        let shown = String::from_utf8(failed.stderr).unwrap();
        assert!(
            shown.contains(root.join("sys/devices/system/cpu").to_str().unwrap()),
            "{shown}"
        );
        assert!(
            shown.contains("must be a folder that holds sys/"),
            "{shown}"
        );
        assert!(failed.stdout.is_empty());
    }
}
