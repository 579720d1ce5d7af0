//! CPU isolation on a tree of files with the kernel's paths. Unlike the kernel's files, a regular
//! one keeps the rest of its old text after a shorter write, so the CPU sets here have texts of
//! equal length.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pinfold::agent::isolation_problems;
use pinfold::host::cgroup::{Cgroups, NoteSubject};
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator, IsolationReport};

use super::{ALL, gate, isolation_input, set};

const TREE: &str = "kubepods";

struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let machine = Self {
            root: tempfile::tempdir().unwrap(),
        };
        machine.write("cgroup/cgroup.controllers", "cpuset cpu\n");
        fs::create_dir(machine.path("cgroup/kubepods")).unwrap();
        for (path, text) in files {
            machine.write(path, text);
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path))
            .unwrap()
            .trim()
            .to_owned()
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::detect(&self.path("cgroup")).unwrap()
    }

    /// Isolates the CPUs with a new isolator, as an agent after its start.
    fn isolate(&self, options: CpuIsolationOptions, exclusive: &str) -> IsolationReport {
        let mut isolator = CpuIsolator::new(self.root.path());
        isolator.isolate(
            &isolation_input(options, &set(exclusive), &set("0-7")),
            &self.cgroups(),
            TREE,
        )
    }

    fn note(&self) -> Option<String> {
        self.cgroups()
            .note(TREE, NoteSubject::CpuIsolation)
            .unwrap()
    }

    /// Every file with its content.
    fn contents(&self) -> BTreeMap<PathBuf, String> {
        fn collect(folder: &Path, all: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    collect(&path, all);
                } else {
                    all.insert(
                        path.clone(),
                        fs::read_to_string(path).unwrap().trim().to_owned(),
                    );
                }
            }
        }
        let mut all = BTreeMap::new();
        collect(self.root.path(), &mut all);
        all
    }
}

const IRQ: &str = "proc/irq/24/smp_affinity_list";
const RPS: &str = "sys/class/net/eth0/queues/rx-0/rps_cpus";

fn typical_machine() -> Machine {
    Machine::new(&[
        (IRQ, "0-7\n"),
        ("proc/irq/24/effective_affinity_list", "6\n"),
        ("proc/irq/25/smp_affinity_list", "4-7\n"),
        ("proc/irq/26/smp_affinity_list", "0-1\n"),
        ("proc/irq/default_smp_affinity", "000000ff\n"),
        ("proc/interrupts", "           CPU0\n"),
        ("proc/12/comm", "sleep\n"),
        ("sys/kernel/irq/24/actions", "eth0-rx\n"),
        ("sys/devices/virtual/workqueue/cpumask", "000000ff\n"),
        (
            "sys/devices/virtual/workqueue/writeback/cpumask",
            "000000ff\n",
        ),
        (RPS, "000000c0\n"),
        ("sys/class/net/eth0/queues/rx-1/rps_cpus", "00000000\n"),
        ("sys/class/net/eth0/queues/tx-0/xps_cpus", "000000c0\n"),
        ("sys/class/net/eth0/queues/tx-1/xps_cpus", "000000ff\n"),
        ("sys/class/net/bonding_masters", "\n"),
    ])
}

/// Whether the machine lets the test write notes as extended attributes.
fn attributes_available() -> bool {
    gate::meant_for_this_machine("root, for attributes in the namespace trusted")
}

#[test]
fn isolation_changes_only_overlapping_files_and_restores_them() {
    if !attributes_available() {
        return;
    }
    let machine = typical_machine();
    let before = machine.contents();
    assert_eq!(
        machine.isolate(CpuIsolationOptions::default(), "4-7"),
        machine.isolate(ALL, ""),
        "without exclusive CPUs or options the report is empty"
    );
    assert_eq!((machine.contents(), machine.note()), (before.clone(), None));

    let report = machine.isolate(ALL, "4-7");
    let changed: BTreeMap<String, String> = machine
        .contents()
        .into_iter()
        .filter(|(path, text)| before.get(path) != Some(text))
        .map(|(path, text)| {
            (
                path.strip_prefix(machine.root.path())
                    .unwrap()
                    .display()
                    .to_string(),
                text,
            )
        })
        .collect();
    let expected = [
        (IRQ, "0-3"),
        ("proc/irq/25/smp_affinity_list", "0-3"),
        ("proc/irq/default_smp_affinity", "0000000f"),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0000000f"),
        ("sys/class/net/eth0/queues/tx-1/xps_cpus", "0000000f"),
        ("sys/devices/virtual/workqueue/cpumask", "0000000f"),
    ];
    assert_eq!(
        changed,
        expected
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into()
    );
    assert_eq!(machine.contents().len(), before.len(), "a file was created");
    assert_eq!(
        (report.moved.len(), report.away, report.failed.len()),
        (6, 6, 0),
        "{report:?}"
    );
    assert!(
        report.moved.contains(&"eth0 transmit queue 1".to_owned()),
        "{report:?}"
    );

    let second_report = machine.isolate(ALL, "4-7");
    assert_eq!(
        (second_report.moved.len(), second_report.away),
        (0, 6),
        "{second_report:?}"
    );
    let narrower_report = machine.isolate(ALL, "6-7");
    assert_eq!(machine.read(IRQ), "0-5");
    assert_eq!(machine.read("proc/irq/25/smp_affinity_list"), "4-5");
    assert_eq!(narrower_report.failed, [], "{narrower_report:?}");
    // The option for packet steering is switched off.
    machine.isolate(
        CpuIsolationOptions {
            packet_steering: false,
            ..ALL
        },
        "6-7",
    );
    assert_eq!(machine.read(RPS), "000000c0");
    assert_eq!(machine.read(IRQ), "0-5");

    let report = machine.isolate(ALL, "");
    assert_eq!(report.away, 0, "{report:?}");
    assert_eq!((machine.contents(), machine.note()), (before, None));
}

#[test]
fn a_value_changed_by_an_administrator_stays() {
    if !attributes_available() {
        return;
    }
    let machine = typical_machine();
    machine.isolate(ALL, "4-7");
    machine.write(IRQ, "2-2\n");
    machine.isolate(ALL, "4-7");
    machine.isolate(CpuIsolationOptions::default(), "4-7");
    assert_eq!(machine.read(IRQ), "2-2");
    assert_eq!(machine.read("proc/irq/25/smp_affinity_list"), "4-7");
}

#[test]
fn an_unreadable_or_unwritable_note_stops_isolation() {
    if !attributes_available() {
        return;
    }
    let machine = typical_machine();
    let before = machine.contents();
    for note in ["hello", r#"{"version":9}"#] {
        machine
            .cgroups()
            .set_note(TREE, NoteSubject::CpuIsolation, Some(note))
            .unwrap();
        for options in [ALL, CpuIsolationOptions::default()] {
            let report = machine.isolate(options, "4-7");
            assert!(
                isolation_problems(&report).concat().contains("record"),
                "{report:?}"
            );
        }
        assert_eq!(
            (machine.contents(), machine.note().as_deref()),
            (before.clone(), Some(note))
        );
    }
    fs::remove_dir(machine.path("cgroup/kubepods")).unwrap();
    let report = machine.isolate(ALL, "4-7");
    assert!(
        isolation_problems(&report).concat().contains("kubepods"),
        "{report:?}"
    );
    assert_eq!(machine.contents(), before);
    assert_eq!(
        machine.isolate(ALL, ""),
        IsolationReport::default(),
        "without pods the agent needs no note"
    );
}

#[test]
fn the_advice_about_irqbalance_stays_while_irqbalance_runs() {
    if !attributes_available() {
        return;
    }
    let machine = typical_machine();
    machine.write("proc/77/comm", "irqbalance\n");
    let report = machine.isolate(ALL, "4-7");
    assert!(
        report.irqbalance == Some(set("4-7")) && !report.moved.is_empty(),
        "{report:?}"
    );
    // After a restart, the knobs have the wanted values, and the first call writes nothing.
    let mut isolator = CpuIsolator::new(machine.root.path());
    let (exclusive, online) = (set("4-7"), set("0-7"));
    let input = isolation_input(ALL, &exclusive, &online);
    for _ in 0..2 {
        let report = isolator.isolate(&input, &machine.cgroups(), TREE);
        assert!(
            report.irqbalance == Some(set("4-7")) && report.moved.is_empty(),
            "{report:?}"
        );
    }
    machine.write("proc/77/comm", "sleep\n");
    let report = isolator.isolate(&input, &machine.cgroups(), TREE);
    assert_eq!(report.irqbalance, None, "irqbalance has ended");
}

#[test]
fn failures_are_reported_with_a_remedy() {
    if !attributes_available() {
        return;
    }
    let machine = typical_machine();
    machine.write("proc/77/comm", "irqbalance\n");
    machine.write("proc/irq/27/smp_affinity_list", "a few\n");
    // A file that reads as a list of CPUs and that refuses every write.
    let online = "/sys/devices/system/cpu/online";
    fs::create_dir(machine.path("proc/irq/28")).unwrap();
    std::os::unix::fs::symlink(online, machine.path("proc/irq/28/smp_affinity_list")).unwrap();
    let first = fs::read_to_string(online)
        .unwrap()
        .parse::<pinfold::cpu::CpuSet>()
        .unwrap();
    let (own, online) = (set("0"), first.union(&set("0-7")));
    let isolation_input = isolation_input(ALL, &own, &online);
    let report =
        CpuIsolator::new(machine.root.path()).isolate(&isolation_input, &machine.cgroups(), TREE);
    let sentences = isolation_problems(&report).join("\n");
    for part in [
        "a few",
        "IRQ 28",
        "IRQBALANCE_BANNED_CPULIST=0",
        "restart irqbalance, or stop irqbalance",
    ] {
        assert!(sentences.contains(part), "{part}: {sentences}");
    }
    assert!(
        report.irqbalance == Some(set("0")) && report.managed.is_empty(),
        "{report:?}"
    );
    let note = machine.note().unwrap();
    assert!(
        note.contains(r#""irqs":"24","#) && !note.contains("28"),
        "28 was never moved: {note}"
    );
}
